//! JSON over plain HTTP between the parts of the example, and the answers of its services.

use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::Done;

const TIMEOUT: Duration = Duration::from_secs(3);

/// A status and a JSON body.
pub struct Answer(pub StatusCode, pub Value);

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        (self.0, [(CONTENT_TYPE, "application/json")], self.1.to_string()).into_response()
    }
}

impl Answer {
    pub fn message(status: StatusCode, message: &str) -> Answer {
        Answer(status, json!({"message": message}))
    }
}

/// An error of the database or of the lease service: 500. The change may be done if the answer of a commit is lost.
impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Answer {
    fn from(error: E) -> Answer {
        let error = error.into();
        // The message of a database error is in its source.
        let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        Answer::message(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}{source}"))
    }
}

/// Sends one request on a new connection.
pub async fn send(address: &str, method: &str, path: &str, body: &Value) -> Done<(u16, Value)> {
    timeout(TIMEOUT, exchange(address, method, path, &body.to_string())).await?
}

async fn exchange(address: &str, method: &str, path: &str, body: &str) -> Done<(u16, Value)> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let (head, body) = response.split_once("\r\n\r\n").ok_or("the answer is incomplete")?;
    let status = head.split(' ').nth(1).ok_or("the answer has no status")?.parse()?;
    Ok((status, serde_json::from_str(body)?))
}
