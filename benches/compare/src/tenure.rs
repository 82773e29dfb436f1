//! Tenure over HTTP/1.1. Each client has a connection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::client::{Client, Result, TTL};
use crate::http1::{Answer, Connection, token};

pub struct Tenure {
    connection: Connection,
    holder: String,
    /// Path and body of the renewal, name and token of the lease.
    held: Option<(String, String, String, u64)>,
}

impl Client for Tenure {
    type Link = String;
    const CLIENTS_PER_LINK: usize = 1;

    async fn link(address: &str) -> Result<String> {
        Ok(address.to_string())
    }

    async fn connect(address: &String) -> Result<Tenure> {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        let holder = format!("client-{}", CLIENTS.fetch_add(1, Ordering::Relaxed));
        Ok(Tenure { connection: Connection::open(address).await?, holder, held: None })
    }

    async fn acquire(&mut self, name: &str) -> Result<u64> {
        let body = format!(r#"{{"holder":"{}","ttl_ms":{}}}"#, self.holder, TTL.as_millis());
        let answer = self.connection.post(&format!("/v1/leases/{name}/acquire"), &body).await?;
        Ok(token(&expect_ok(answer)?).parse()?)
    }

    async fn release(&mut self, name: &str, token: u64) -> Result<()> {
        let body = format!(r#"{{"holder":"{}","token":"{token}"}}"#, self.holder);
        let answer = expect_ok(self.connection.post(&format!("/v1/leases/{name}/release"), &body).await?)?;
        if answer.body != br#"{"released":true}"# {
            return Err(format!("not released: {}", String::from_utf8_lossy(&answer.body)).into());
        }
        Ok(())
    }

    async fn hold(&mut self, name: &str) -> Result<()> {
        let token = self.acquire(name).await?;
        let body = format!(r#"{{"holder":"{}","token":"{token}"}}"#, self.holder);
        self.held = Some((format!("/v1/leases/{name}/renew"), body, name.to_string(), token));
        Ok(())
    }

    async fn renew(&mut self) -> Result<()> {
        let (path, body, ..) = self.held.as_ref().ok_or("nothing is held")?;
        expect_ok(self.connection.post(path, body).await?)?;
        Ok(())
    }

    async fn read(&mut self, name: &str) -> Result<u64> {
        let answer = self.connection.get(&format!("/v1/leases/{name}")).await?;
        Ok(token(&expect_ok(answer)?).parse()?)
    }

    /// The holder acquires again, which renews the lease.
    async fn write(&mut self, name: &str) -> Result<()> {
        let body = format!(r#"{{"holder":"prober","ttl_ms":{}}}"#, TTL.as_millis());
        expect_ok(self.connection.post(&format!("/v1/leases/{name}/acquire"), &body).await?)?;
        Ok(())
    }

    async fn close(mut self) -> Result<()> {
        match self.held.take() {
            Some((.., name, token)) => self.release(&name, token).await,
            None => Ok(()),
        }
    }

    /// The other client waits in the queue, so the result includes its grant.
    async fn abandon(address: &str, name: &str, ttl: Duration) -> Result<Duration> {
        let mut holder = Connection::open(address).await?;
        let mut waiter = Connection::open(address).await?;
        let path = format!("/v1/leases/{name}/acquire");
        let sent = Instant::now();
        let body = format!(r#"{{"holder":"gone","ttl_ms":{}}}"#, ttl.as_millis());
        expect_ok(holder.post(&path, &body).await?)?;
        expect_ok(waiter.post(&path, r#"{"holder":"next","ttl_ms":1000,"wait_ms":30000}"#).await?)?;
        Ok(sent.elapsed())
    }
}

fn expect_ok(answer: Answer) -> Result<Answer> {
    match answer.status {
        200 => Ok(answer),
        status => Err(format!("status {status}: {}", String::from_utf8_lossy(&answer.body)).into()),
    }
}
