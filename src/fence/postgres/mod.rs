//! Fencing for resources in PostgreSQL. This module has SQL texts and an error parser, and needs no driver.
//!
//! **Column form**, for a row that one statement writes: a `BIGINT` column next to the data.
//!
//! ```sql
//! UPDATE report SET body = $1, fence = $2 WHERE id = $3 AND fence <= $2;   -- 0 rows: stale token, or no such row
//! ```
//!
//! **Function form**, for transactions of several statements: apply [`SCHEMA`] once as a migration. Then start each
//! writing transaction with [`CHECK`]. Its parameters are the resource's name and [`FencingToken::as_i64`]. A stale
//! token raises [`STALE_SQLSTATE`], and [`refusal`] parses this error. PostgreSQL aborts the transaction, which has
//! changed nothing.
//!
//! The function locks the resource's row until the end of the transaction. If a transaction stalls after the check,
//! newer ones wait, so all its writes come before theirs. A rollback also reverts the new mark.
//!
//! A holder that is paused inside a transaction blocks the next holder until PostgreSQL ends its session. Set
//! `idle_in_transaction_session_timeout` to bound this pause, and `lock_timeout` to bound the wait.
//!
//! | isolation level | behavior if another transaction holds the lock |
//! |---|---|
//! | `READ COMMITTED` | the check waits, then compares with the committed mark; later statements see the committed data |
//! | `REPEATABLE READ`, `SERIALIZABLE` | the check waits, then fails with `40001` if the other transaction committed: retry the transaction. Make the check the *first* statement, so that the snapshot is not older than the lock |
//!
//! - Do not call the function inside the statement that it protects (`UPDATE .. WHERE ..`). PostgreSQL chooses the
//!   order of evaluation, and the snapshot is older than the lock.
//! - Do not catch the error with a savepoint and continue to write.
//! - A mark is as durable as its commit. `synchronous_commit = off`, or a failover to a replica that lags, can lose a
//!   mark together with its writes. The database then accepts the token of an older holder again.
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
//! References: the PostgreSQL manual on `INSERT` (`ON CONFLICT`), 13.2 Transaction Isolation, 13.3 Explicit Locking.

use super::Stale;
#[cfg(doc)]
use crate::token::FencingToken;

/// The migration: the table `tenure_fences` and the function `tenure_fence(resource text, token bigint)`.
pub const SCHEMA: &str = include_str!("schema.sql");

/// The check, as a separate statement. `$1` is the resource's name (`text`), `$2` is the token (`bigint`).
pub const CHECK: &str = "SELECT tenure_fence($1, $2)";

/// The SQLSTATE of a stale token. Neither the SQL standard nor PostgreSQL uses its class.
pub const STALE_SQLSTATE: &str = "TNF01";

/// Parses a server error for a stale token, from its SQLSTATE and its `DETAIL`.
///
/// Returns `None` for any other error. Such an error does not say whether the token is stale.
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
    fn refusal_parses_only_errors_of_stale_tokens() {
        let stale = refusal("TNF01", Some("offered=5 highest=844424930132010")).expect("the error is a stale token");
        assert_eq!((stale.offered.as_u64(), stale.highest.as_u64()), (5, 844_424_930_132_010));
        assert_eq!(refusal("40001", Some("offered=5 highest=7")), None);
        assert_eq!(refusal("TNF01", None), None);
        assert_eq!(refusal("TNF01", Some("offered=5")), None);
        assert!(SCHEMA.contains(STALE_SQLSTATE));
    }
}
