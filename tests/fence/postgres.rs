//! The column form and the function form, in a PostgreSQL server.

use std::sync::{Arc, Mutex};

use tenure::fence::conformance::{self, Answer, Effort, Resource};
use tenure::fence::{Stale, postgres};
use tenure::token::FencingToken;
use tokio_postgres::{Client, Error, IsolationLevel, Transaction};

use crate::cookbook::statement;
use crate::postgres_server::PostgresServer;
use crate::token::token;

const WRITE: &str = "INSERT INTO note VALUES ($1, $2)";

fn refusal(error: &Error) -> Option<Stale> {
    let error = error.as_db_error()?;
    postgres::refusal(error.code().code(), error.detail())
}

/// The offered and the highest token of a refusal.
fn marks(error: &Error) -> Option<(FencingToken, FencingToken)> {
    refusal(error).map(|stale| (stale.offered, stale.highest))
}

fn sqlstate(error: &Error) -> &str {
    error.as_db_error().unwrap_or_else(|| panic!("{error}")).code().code()
}

async fn check(transaction: &Transaction<'_>, resource: &str, index: u64) -> Result<(), Error> {
    transaction.execute(postgres::CHECK, &[&resource, &token(index).as_i64()]).await.map(drop)
}

async fn pid(client: &Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.expect("an answer").get(0)
}

/// Returns when the session `pid` waits for a lock.
async fn waits_for_lock(watcher: &Client, pid: i32) {
    let waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock')";
    while !watcher.query_one(waiting, &[&pid]).await.expect("an answer").get::<_, bool>(0) {
        tokio::task::yield_now().await;
    }
}

async fn notes(client: &Client) -> Vec<String> {
    let rows = client.query("SELECT text FROM note ORDER BY text", &[]).await.expect("an answer");
    rows.iter().map(|row| row.get(0)).collect()
}

async fn with_schema() -> Option<PostgresServer> {
    let server = PostgresServer::start().await?;
    let client = server.connect().await;
    client.batch_execute(postgres::SCHEMA).await.expect("apply the schema");
    client.batch_execute(postgres::SCHEMA).await.expect("apply the schema again");
    client.batch_execute("CREATE TABLE note (text text, fence bigint)").await.expect("a table");
    Some(server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn function_fences_a_whole_transaction() {
    let Some(server) = with_schema().await else { return };
    let (mut one, mut other, watcher) = (server.connect().await, server.connect().await, server.connect().await);
    accepts_equal_and_refuses_lower(&mut one).await;
    rollback_reverts_the_mark(&mut one).await;
    refuses_invalid_tokens(&one).await;
    marks_are_in_the_schema_of_the_function(&one, &server.connect().await).await;
    newer_token_waits_for_a_stalled_transaction(&mut one, &mut other, &watcher).await;
    older_token_is_refused_after_its_wait(&mut one, &mut other, &watcher).await;
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        snapshot_isolation_fails_after_a_wait(&mut one, &mut other, &watcher, level).await;
    }
}

async fn accepts_equal_and_refuses_lower(client: &mut Client) {
    for index in [5, 5, 6] {
        let write = client.transaction().await.expect("begun");
        check(&write, "plain", index).await.expect("not below");
        write.commit().await.expect("committed");
    }
    let write = client.transaction().await.expect("begun");
    let error = check(&write, "plain", 5).await.expect_err("stale");
    assert_eq!(marks(&error), Some((token(5), token(6))));
    // PostgreSQL rejects further statements of the aborted transaction.
    let error = write.execute(WRITE, &[&"late", &5i64]).await.expect_err("aborted");
    assert_eq!((sqlstate(&error), refusal(&error)), ("25P02", None));
}

async fn rollback_reverts_the_mark(client: &mut Client) {
    let write = client.transaction().await.expect("begun");
    check(&write, "rolled back", 9).await.expect("the first");
    write.execute(WRITE, &[&"rolled back", &9i64]).await.expect("inside");
    write.rollback().await.expect("rolled back");
    let write = client.transaction().await.expect("begun");
    check(&write, "rolled back", 8).await.expect("the mark 9 was rolled back");
    write.commit().await.expect("committed");
    assert!(notes(client).await.is_empty());
}

async fn refuses_invalid_tokens(client: &Client) {
    for (resource, fence) in [(Some("x"), None), (None, Some(1i64)), (Some("x"), Some(-1))] {
        let error = client.execute(postgres::CHECK, &[&resource, &fence]).await.expect_err("no token");
        assert_eq!(sqlstate(&error), "22023");
    }
}

/// The other session uses the schema of another application, which has its own marks.
async fn marks_are_in_the_schema_of_the_function(client: &Client, other: &Client) {
    let row = client.query_one("SELECT current_schema()::text", &[]).await.expect("an answer");
    let schema: String = row.get(0);
    let make = format!("CREATE SCHEMA {schema}_other; SET search_path TO {schema}_other");
    other.batch_execute(&make).await.expect("another schema");
    other.batch_execute(postgres::SCHEMA).await.expect("apply the schema");
    let accept = format!("SELECT {schema}.tenure_fence('shared', {})", token(7).as_i64());
    other.batch_execute(&accept).await.expect("the first");
    let lower = client.execute(postgres::CHECK, &[&"shared", &token(6).as_i64()]).await.expect_err("stale");
    assert_eq!(marks(&lower), Some((token(6), token(7))));
    other.batch_execute(&format!("DROP SCHEMA {schema}_other CASCADE")).await.expect("dropped");
}

/// The old holder is paused inside its transaction, after the check.
async fn newer_token_waits_for_a_stalled_transaction(one: &mut Client, other: &mut Client, watcher: &Client) {
    let pid = pid(other).await;
    let older = one.transaction().await.expect("begun");
    check(&older, "stalls", 1).await.expect("the first");
    let newer = other.transaction().await.expect("begun");
    let ((), older) = tokio::join!(
        async {
            check(&newer, "stalls", 2).await.expect("higher");
            // The newer transaction sees the writes of the older one.
            let seen: i64 = newer.query_one("SELECT count(*) FROM note", &[]).await.expect("an answer").get(0);
            assert_eq!(seen, 2, "the newer transaction continued before the older one committed");
        },
        async {
            waits_for_lock(watcher, pid).await;
            older.execute(WRITE, &[&"first half", &1i64]).await.expect("inside");
            older.execute(WRITE, &[&"second half", &1i64]).await.expect("inside");
            older.commit().await.expect("committed");
        }
    );
    let () = older;
    newer.commit().await.expect("committed");
    let late = one.transaction().await.expect("begun");
    let error = check(&late, "stalls", 1).await.expect_err("stale");
    assert_eq!(refusal(&error).map(|stale| stale.highest), Some(token(2)));
    late.rollback().await.expect("rolled back");
    assert_eq!(notes(one).await, ["first half", "second half"]);
}

async fn older_token_is_refused_after_its_wait(one: &mut Client, other: &mut Client, watcher: &Client) {
    let pid = pid(other).await;
    for resource in ["first use", "first use", "used"] {
        let (low, high) = if resource == "used" { (30, 31) } else { (10, 20) };
        let newer = one.transaction().await.expect("begun");
        check(&newer, resource, high).await.expect("the highest");
        let older = other.transaction().await.expect("begun");
        let (error, ()) = tokio::join!(async { check(&older, resource, low).await.expect_err("stale") }, async {
            waits_for_lock(watcher, pid).await;
            newer.commit().await.expect("committed");
        });
        assert_eq!(marks(&error), Some((token(low), token(high))));
    }
}

async fn snapshot_isolation_fails_after_a_wait(
    one: &mut Client,
    other: &mut Client,
    watcher: &Client,
    level: IsolationLevel,
) {
    let pid = pid(other).await;
    let resource = format!("{level:?}");
    // The lock holder has a lower, higher or equal token, or is the first use of the resource.
    for (first, second) in [(1, 2), (5, 3), (6, 6), (7, 8)] {
        let holds = one.transaction().await.expect("begun");
        check(&holds, &resource, first).await.expect("the highest");
        let late = other.build_transaction().isolation_level(level).start().await.expect("begun");
        let (answer, ()) = tokio::join!(check(&late, &resource, second), async {
            waits_for_lock(watcher, pid).await;
            holds.commit().await.expect("committed");
        });
        let error = answer.expect_err("its snapshot is older than the committed mark");
        assert_eq!((sqlstate(&error), refusal(&error)), ("40001", None), "{level:?} {first} {second}");
    }
    // A retry after 40001 succeeds or finds the token stale.
    for (index, accepted) in [(8, true), (6, false)] {
        let again = other.build_transaction().isolation_level(level).start().await.expect("begun");
        let answer = check(&again, &resource, index).await;
        assert_eq!(answer.as_ref().err().and_then(refusal).is_none(), accepted, "{answer:?}");
        assert_eq!(answer.is_ok(), accepted, "{answer:?}");
        if accepted {
            again.commit().await.expect("committed");
        }
    }
}

/// A table with one of the forms. Each writer has a connection.
struct Table {
    server: Arc<PostgresServer>,
    clients: Mutex<Vec<Client>>,
    form: Form,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Column,
    Function(IsolationLevel),
    /// Planted bug: the check runs in a separate transaction.
    SeparateCheck,
}

impl Table {
    async fn write_with(&self, client: &mut Client, item: &str, token: i64, value: &str) -> Result<Answer, Error> {
        let level = match self.form {
            Form::Column => {
                let rows = client.execute(statement("column form: insert or update"), &[&value, &token, &item]).await?;
                return Ok(if rows == 1 { Answer::Accepted } else { Answer::Refused });
            }
            Form::Function(level) => level,
            Form::SeparateCheck => IsolationLevel::ReadCommitted,
        };
        let mut write = client.build_transaction().isolation_level(level).start().await?;
        if let Err(error) =
            write.execute(statement("function form: check").trim().trim_end_matches(';'), &[&item, &token]).await
        {
            return if refusal(&error).is_some() { Ok(Answer::Refused) } else { Err(error) };
        }
        if let Form::SeparateCheck = self.form {
            write.commit().await?;
            write = client.transaction().await?;
        }
        let put = "INSERT INTO report (id, body) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET body = excluded.body";
        write.execute(put, &[&item, &value]).await?;
        write.commit().await?;
        Ok(Answer::Accepted)
    }

    async fn client(&self) -> Client {
        let idle = self.clients.lock().unwrap().pop();
        match idle {
            Some(client) => client,
            None => self.server.connect().await,
        }
    }
}

impl Resource for Table {
    type Error = Error;

    async fn write(&self, item: &str, token: FencingToken, value: &str) -> Result<Answer, Error> {
        let mut client = self.client().await;
        loop {
            match self.write_with(&mut client, item, token.as_i64(), value).await {
                Err(error) if sqlstate(&error) == "40001" => {}
                answer => {
                    self.clients.lock().unwrap().push(client);
                    return answer;
                }
            }
        }
    }

    async fn read(&self, item: &str) -> Result<Option<String>, Error> {
        let client = self.client().await;
        let row = client.query_opt("SELECT body FROM report WHERE id = $1", &[&item]).await?;
        self.clients.lock().unwrap().push(client);
        Ok(row.map(|row| row.get(0)))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_forms_conform_and_a_separate_check_does_not() {
    let Some(server) = with_schema().await.map(Arc::new) else { return };
    let client = server.connect().await;
    client.batch_execute(statement("column form: table")).await.expect("a table");
    check_plain_update(&client).await;
    let check_form = async |form| {
        let open = async || Ok(Table { server: Arc::clone(&server), clients: Mutex::default(), form });
        conformance::check(open, Effort::default().rounds(50)).await
    };
    for form in [
        Form::Column,
        Form::Function(IsolationLevel::ReadCommitted),
        Form::Function(IsolationLevel::RepeatableRead),
        Form::Function(IsolationLevel::Serializable),
    ] {
        let report = check_form(form).await.unwrap_or_else(|error| panic!("{form:?}: {error}"));
        println!("{form:?}\n{report}");
    }
    let error =
        check_form(Form::SeparateCheck).await.expect_err("another holder can write between the check and the write");
    println!("{:?}: {error}", Form::SeparateCheck);
}

async fn check_plain_update(client: &Client) {
    let update = statement("column form: update");
    let nothing = client.execute(update, &[&"one", &5i64, &"updated"]).await.expect("an answer");
    assert_eq!(nothing, 0, "no such row");
    client.execute("INSERT INTO report (id, body) VALUES ('updated', '')", &[]).await.expect("a row");
    for (fence, changed) in [(5i64, 1), (5, 1), (4, 0), (i64::MAX, 1), (i64::MAX - 1, 0)] {
        assert_eq!(
            client.execute(update, &[&"text", &fence, &"updated"]).await.expect("an answer"),
            changed,
            "{fence}"
        );
    }
}
