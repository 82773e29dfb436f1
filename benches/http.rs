//! A minimal HTTP/1.1 client. It shares the processors with the nodes, so it must cost little.

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
        self.send_body(path, body).await?;
        self.answer().await
    }

    /// Sends a request without a body, given as method and path. Does not wait for the answer.
    pub async fn send(&mut self, request: &str) -> io::Result<()> {
        self.stream.write_all(format!("{request} HTTP/1.1\r\nhost: {}\r\n\r\n", self.host).as_bytes()).await
    }

    /// Sends a POST request. Does not wait for the answer.
    pub async fn send_body(&mut self, path: &str, body: &str) -> io::Result<()> {
        let length = body.len();
        let head = format!("content-type: application/json\r\ncontent-length: {length}");
        let host = &self.host;
        let request = format!("POST {path} HTTP/1.1\r\nhost: {host}\r\n{head}\r\n\r\n{body}");
        self.stream.write_all(request.as_bytes()).await
    }

    /// Reads until these bytes arrive, and discards the data.
    pub async fn read_until(&mut self, wanted: &[u8]) -> io::Result<()> {
        self.received.clear();
        while !self.received.windows(wanted.len()).any(|window| window == wanted) {
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    async fn call(&mut self, request: &[u8]) -> io::Result<Answer> {
        self.stream.write_all(request).await?;
        self.answer().await
    }

    /// Reads the answer to the last request.
    pub async fn answer(&mut self) -> io::Result<Answer> {
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

/// Status, offset of the body, and length of the body.
fn read_head(bytes: &[u8]) -> io::Result<Option<(u16, usize, usize)>> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP/1.1 with a content-length");
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| invalid())?;
    let status = head.get(9..12).and_then(|status| status.parse().ok()).ok_or_else(invalid)?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    Ok(Some((status, end + 4, length.ok_or_else(invalid)?)))
}

/// The token of the lease in an answer.
pub fn token(answer: &Answer) -> String {
    let lease: serde_json::Value = serde_json::from_slice(&answer.body).expect("the answer is JSON");
    lease["token"].as_str().unwrap_or_else(|| panic!("no token in {lease}")).to_string()
}
