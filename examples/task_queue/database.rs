//! The connection to the database, and the statements that both services use.

use std::error::Error;

use serde_json::Value;
use tokio_postgres::{Client, NoTls, Row};

use crate::Done;

const SCHEMA: &str = include_str!("schema.sql");
/// A task as JSON. The token is a text: it has 63 bits, and JSON readers use doubles.
pub const TASK: &str = "(to_jsonb(tasks) || jsonb_build_object('fence', fence::text))::text";
/// A stopped service must not keep its row lock: the database ends the transaction, and nothing is changed.
const SESSION: &str = "SET idle_in_transaction_session_timeout = '5s'; SET lock_timeout = '5s'";

/// Opens a connection to `DATABASE_URL`. Each request opens its own one, which a real service would take from a pool.
pub async fn connect() -> Done<Client> {
    let url = std::env::var("DATABASE_URL").map_err(|_| "DATABASE_URL is not set: expected a connection string")?;
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(SESSION).await?;
    Ok(client)
}

/// Creates the tables. Several processes may do it at once.
pub async fn create() -> Done {
    let mut client = connect().await?;
    let transaction = client.transaction().await?;
    transaction.batch_execute("SELECT pg_advisory_xact_lock(7101)").await?;
    transaction.batch_execute(SCHEMA).await?;
    Ok(transaction.commit().await?)
}

/// The JSON in the first column.
pub fn json(row: &Row) -> Result<Value, Box<dyn Error + Send + Sync>> {
    Ok(serde_json::from_str(row.try_get(0)?)?)
}
