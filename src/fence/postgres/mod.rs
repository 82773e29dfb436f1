//! PostgreSQL as the resource. No driver is needed here: these are SQL texts and the reading of one error.
//!
//! **Column form**, for a row that is written by one statement: a `BIGINT` column beside the data.
//!
//! ```sql
//! UPDATE report SET body = $1, fence = $2 WHERE id = $3 AND fence <= $2;   -- 0 rows: refused, or no such row
//! ```
//!
//! **Function form**, for transactions of several statements: apply [`SCHEMA`] once as a migration, then begin every
//! transaction that writes with [`CHECK`] (the resource's name, and [`FencingToken::as_i64`]). A stale token raises
//! [`STALE_SQLSTATE`], which [`refusal`] reads; the transaction is aborted and has changed nothing.
//!
//! The function locks the resource's row until the transaction ends. So a transaction that was checked and then stalls
//! makes newer ones wait; whatever it still writes, it writes before them. If it ends in a rollback, the token's rise is
//! rolled back with the writes. Bound the wait with `lock_timeout`, and the stall with
//! `idle_in_transaction_session_timeout`: a holder that is paused inside a transaction keeps its successor out until
//! PostgreSQL ends its session.
//!
//! | isolation | what happens when another transaction had the lock |
//! |---|---|
//! | `READ COMMITTED` | waits, then compares with what was committed; statements after the check see it |
//! | `REPEATABLE READ`, `SERIALIZABLE` | waits, then fails with `40001` if the other committed: run the transaction again. Make the check the *first* statement, so that the snapshot is not older than the lock |
//!
//! Do not call the function inside the statement that it protects (`UPDATE .. WHERE ..`): the order of evaluation is
//! PostgreSQL's, and the snapshot is older than the lock. Do not catch the error in a savepoint and write on. Marks are as
//! durable as the commits: `synchronous_commit = off`, or failing over to a replica that lags, can lose a rise together
//! with the writes under it, and then an older holder's token is the highest that the database knows.
//!
//! With `tokio-postgres`:
//!
//! ```no_run
//! use tenure::fence::postgres;
//! use tenure::token::FencingToken;
//!
//! # async fn write(client: &mut tokio_postgres::Client, token: FencingToken) -> Result<(), Box<dyn std::error::Error>> {
//! let write = client.transaction().await?;
//! if let Err(error) = write.execute(postgres::CHECK, &[&"report-7", &token.as_i64()]).await {
//!     let answer = error.as_db_error();
//!     return Err(match answer.and_then(|answer| postgres::refusal(answer.code().code(), answer.detail())) {
//!         Some(stale) => stale.into(), // the lease is lost
//!         None => error.into(),
//!     });
//! }
//! write.execute("INSERT INTO page VALUES (1, 'first')", &[]).await?;
//! write.execute("INSERT INTO page VALUES (2, 'second')", &[]).await?;
//! write.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Sources: PostgreSQL's manual on `INSERT` (`ON CONFLICT`), 13.2 Transaction Isolation, 13.3 Explicit Locking. The tests
//! run against a real server.

use super::Stale;
#[cfg(doc)]
use crate::token::FencingToken;

/// The table `tenure_fences` and the function `tenure_fence(resource text, token bigint)`, to be applied as a migration.
pub const SCHEMA: &str = include_str!("schema.sql");

/// The check, as a statement of its own. `$1` is the resource's name (`text`), `$2` the token (`bigint`).
pub const CHECK: &str = "SELECT tenure_fence($1, $2)";

/// The SQLSTATE of a stale token. It is in the range that neither the standard nor PostgreSQL uses.
pub const STALE_SQLSTATE: &str = "TNF01";

/// The refusal in an error of the server: its SQLSTATE and its `DETAIL`, which every driver hands out.
///
/// `None`: another error. It says nothing about the token.
pub fn refusal(sqlstate: &str, detail: Option<&str>) -> Option<Stale> {
    if sqlstate != STALE_SQLSTATE {
        return None;
    }
    let (offered, highest) = detail?.strip_prefix("offered=")?.split_once(" highest=")?;
    Some(Stale { offered: offered.parse().ok()?, highest: highest.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_read_and_nothing_else_is_taken_for_one() {
        let stale = refusal("TNF01", Some("offered=5 highest=844424930132010")).expect("it is one");
        assert_eq!((stale.offered.as_u64(), stale.highest.as_u64()), (5, 844_424_930_132_010));
        assert_eq!(refusal("40001", Some("offered=5 highest=7")), None);
        assert_eq!(refusal("TNF01", None), None);
        assert_eq!(refusal("TNF01", Some("offered=5")), None);
        assert!(SCHEMA.contains(STALE_SQLSTATE));
    }
}
