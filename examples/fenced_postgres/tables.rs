//! The tables and their statements.

use tokio_postgres::{Client, NoTls};

const SCHEMA: &str = include_str!("schema.sql");

/// One statement checks the token and writes. 0 rows mean that a newer holder has written.
const GUARDED: &str = "UPDATE guarded SET body = $1, fence = $2 WHERE name = $3 AND fence <= $2";
const UNGUARDED: &str = "UPDATE unguarded SET body = $1, fence = $2 WHERE name = $3";

pub struct Tables(Client);

impl Tables {
    /// Connects to `DATABASE_URL`.
    pub async fn connect() -> Result<Tables, Box<dyn std::error::Error>> {
        let url = std::env::var("DATABASE_URL")
            .map_err(|_| "DATABASE_URL is not set: expected a PostgreSQL connection string")?;
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        tokio::spawn(connection);
        Ok(Tables(client))
    }

    pub async fn create(&self) -> Result<(), tokio_postgres::Error> {
        self.0.batch_execute(SCHEMA).await
    }

    pub async fn add(&self, name: &str) -> Result<(), tokio_postgres::Error> {
        for table in ["guarded", "unguarded"] {
            let insert = format!("INSERT INTO {table} (name) VALUES ($1) ON CONFLICT DO NOTHING");
            self.0.execute(&insert, &[&name]).await?;
        }
        Ok(())
    }

    /// Writes to both tables. Returns `false` if the guarded table refused the write.
    pub async fn write(&self, name: &str, body: &str, token: i64) -> Result<bool, tokio_postgres::Error> {
        self.0.execute(UNGUARDED, &[&body, &token, &name]).await?;
        let written = self.0.execute(GUARDED, &[&body, &token, &name]).await? == 1;
        if !written {
            self.0.execute("INSERT INTO refused VALUES ($1, $2)", &[&name, &token]).await?;
        }
        Ok(written)
    }

    /// The token of the last accepted write.
    pub async fn fence(&self, name: &str) -> Result<i64, tokio_postgres::Error> {
        Ok(self.0.query_one("SELECT fence FROM guarded WHERE name = $1", &[&name]).await?.get(0))
    }

    /// The number of accepted writes that came after the write of a newer holder.
    pub async fn stale(&self, table: &str, name: &str) -> Result<i64, tokio_postgres::Error> {
        let count = "SELECT count(*) FROM stale WHERE what = $1 AND name = $2";
        Ok(self.0.query_one(count, &[&table, &name]).await?.get(0))
    }

    /// The number of refused writes.
    pub async fn refused(&self, name: &str) -> Result<i64, tokio_postgres::Error> {
        Ok(self.0.query_one("SELECT count(*) FROM refused WHERE name = $1", &[&name]).await?.get(0))
    }
}
