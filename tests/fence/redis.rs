//! The script of `docs/fencing.md`, in a Redis server.

use std::sync::Mutex;

use tenure::fence::conformance::{self, Answer, Effort, Resource, Rule};
use tenure::token::FencingToken;

use crate::cookbook::statement;
use crate::redis_server::{Connection, RedisServer, Reply};

/// Each writer has a connection, so that writers race in the server.
struct Redis {
    script: String,
    connections: Mutex<Vec<Connection>>,
    connect: Box<dyn Fn() -> Connection + Send + Sync>,
}

impl Redis {
    fn command(&self, words: &[&str]) -> Result<Reply, std::io::Error> {
        let connection = self.connections.lock().unwrap().pop();
        let mut connection = connection.unwrap_or_else(|| (self.connect)());
        let reply = connection.ask(words);
        self.connections.lock().unwrap().push(connection);
        reply
    }
}

impl Resource for Redis {
    type Error = std::io::Error;

    async fn write(&self, item: &str, token: FencingToken, value: &str) -> Result<Answer, std::io::Error> {
        match self.command(&["EVAL", &self.script, "1", item, &token.padded(), value])? {
            Reply::Integer(1) => Ok(Answer::Accepted),
            Reply::Integer(0) => Ok(Answer::Refused),
            other => Err(std::io::Error::other(format!("{other:?}"))),
        }
    }

    async fn read(&self, item: &str) -> Result<Option<String>, std::io::Error> {
        match self.command(&["HGET", item, "value"])? {
            Reply::Nil => Ok(None),
            Reply::Text(value) => Ok(Some(value)),
            other => Err(std::io::Error::other(format!("{other:?}"))),
        }
    }
}

async fn check_script(
    server: &std::sync::Arc<RedisServer>,
    script: &str,
) -> Result<conformance::Report, conformance::NotConformant> {
    let open = async || {
        let server = std::sync::Arc::clone(server);
        let connect = Box::new(move || server.connect());
        Ok(Redis { script: script.to_owned(), connections: Mutex::default(), connect })
    };
    conformance::check(open, Effort::default().rounds(200)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_conforms_and_lua_number_comparison_does_not() {
    let Some(server) = RedisServer::start().map(std::sync::Arc::new) else { return };
    let script = statement("redis: write under a token");
    let report = check_script(&server, script).await.unwrap_or_else(|error| panic!("{error}"));
    println!("{report}");
    let unpadded = server.connect().ask(&["EVAL", script, "1", "item", "7", "value"]).expect("an answer");
    assert!(matches!(&unpadded, Reply::Error(why) if why.contains("20 digits")), "{unpadded:?}");

    let numbers = script.replace("ARGV[1] < seen", "tonumber(ARGV[1]) < tonumber(seen)");
    assert_ne!(numbers, script);
    let error = check_script(&server, &numbers).await.expect_err("Lua's numbers are doubles");
    println!("{error}");
    assert_eq!(error.rule(), Rule::ExtremesAreOrdered, "{error}");
}
