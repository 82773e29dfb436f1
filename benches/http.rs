//! A client that does as little as HTTP/1.1 allows, because it shares the processors with what it measures.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub struct Connection {
    stream: TcpStream,
    host: String,
    received: Vec<u8>,
}

pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Connection {
    pub async fn open(address: &str) -> io::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, host: address.to_string(), received: Vec::new() })
    }

    pub async fn get(&mut self, path: &str) -> io::Result<Answer> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.host);
        self.call(request.as_bytes()).await
    }

    pub async fn post(&mut self, path: &str, body: &str) -> io::Result<Answer> {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}",
            self.host
        );
        self.call(request.as_bytes()).await
    }

    async fn call(&mut self, request: &[u8]) -> io::Result<Answer> {
        self.stream.write_all(request).await?;
        self.received.clear();
        let mut head = None;
        loop {
            if head.is_none() {
                head = read_head(&self.received)?;
            }
            if let Some((status, start, length)) = head
                && self.received.len() >= start + length
            {
                return Ok(Answer { status, body: self.received[start..start + length].to_vec() });
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Status, where the body starts, and its length.
fn read_head(bytes: &[u8]) -> io::Result<Option<(u16, usize, usize)>> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "not an answer in HTTP/1.1 with a length");
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| invalid())?;
    let status = head.get(9..12).and_then(|status| status.parse().ok()).ok_or_else(invalid)?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    Ok(Some((status, end + 4, length.ok_or_else(invalid)?)))
}

/// The token in a lease's answer.
pub fn token(answer: &Answer) -> String {
    let lease: serde_json::Value = serde_json::from_slice(&answer.body).expect("a lease");
    lease["token"].as_str().unwrap_or_else(|| panic!("no token in {lease}")).to_string()
}
