//! The messages of HTTP/1.1, as far as a proxy between a client and a node needs them.

use std::io::{Error, ErrorKind, Result};

use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The longest body that the proxy reads. The suite sends small ones.
const MAX_BODY_BYTES: usize = 1 << 20;

/// A request or a response.
pub struct Message {
    /// The start line and the fields, with the empty line at the end.
    head: String,
    /// The body in its form on the wire, with the marks of its chunks.
    raw_body: Vec<u8>,
    body: Vec<u8>,
    is_complete: bool,
}

impl Message {
    /// Reads a message. Returns `None` if the stream ends before it.
    pub async fn read(from: &mut (impl AsyncBufRead + Unpin)) -> Result<Option<Message>> {
        let Some(mut message) = Message::read_head(from).await? else { return Ok(None) };
        message.read_body(from).await?;
        Ok(Some(message))
    }

    /// Reads the start line and the fields. Returns `None` if the stream ends before them.
    pub async fn read_head(from: &mut (impl AsyncBufRead + Unpin)) -> Result<Option<Message>> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if from.read_line(&mut head).await? == 0 {
                return if head.is_empty() { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
            }
        }
        Ok(Some(Message { head, raw_body: Vec::new(), body: Vec::new(), is_complete: false }))
    }

    pub async fn read_body(&mut self, from: &mut (impl AsyncBufRead + Unpin)) -> Result<()> {
        while !self.is_complete {
            let part = self.read_part(from).await?;
            self.raw_body.extend_from_slice(&part);
            if self.raw_body.len() > MAX_BODY_BYTES {
                return Err(Error::new(ErrorKind::InvalidData, "the body is too long"));
            }
        }
        Ok(())
    }

    /// Writes the head and then each part of the body as it arrives: a watch has no end.
    pub async fn relay(
        &mut self,
        from: &mut (impl AsyncBufRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Result<()> {
        to.write_all(self.head.as_bytes()).await?;
        while !self.is_complete {
            to.write_all(&self.read_part(from).await?).await?;
            self.body.clear();
        }
        Ok(())
    }

    /// Reads the next part of the body in its form on the wire.
    async fn read_part(&mut self, from: &mut (impl AsyncBufRead + Unpin)) -> Result<Vec<u8>> {
        let mut part = Vec::new();
        if !self.is_chunked() {
            part.resize(self.length(), 0);
            from.read_exact(&mut part).await?;
            self.body.extend_from_slice(&part);
            self.is_complete = true;
            return Ok(part);
        }
        from.read_until(b'\n', &mut part).await?;
        let size = std::str::from_utf8(&part).ok().and_then(|line| usize::from_str_radix(line.trim(), 16).ok());
        let size = size.filter(|size| *size <= MAX_BODY_BYTES);
        let size = size.ok_or_else(|| Error::new(ErrorKind::InvalidData, "a broken chunk"))?;
        let line = part.len();
        part.resize(line + size + 2, 0);
        from.read_exact(&mut part[line..]).await?;
        self.body.extend_from_slice(&part[line..line + size]);
        self.is_complete = size == 0;
        Ok(part)
    }

    /// Replaces texts of the body by others of the same length.
    pub fn rename(&mut self, names: &[(String, String)]) {
        for (from, to) in names {
            assert_eq!(from.len(), to.len(), "all ports have five digits");
            let places = self.raw_body.windows(from.len()).enumerate().filter(|(_, bytes)| *bytes == from.as_bytes());
            let places: Vec<usize> = places.map(|(place, _)| place).collect();
            for place in places {
                self.raw_body[place..place + to.len()].copy_from_slice(to.as_bytes());
            }
        }
    }

    /// The bytes of the message.
    pub fn bytes(&self) -> Vec<u8> {
        [self.head.as_bytes(), &self.raw_body].concat()
    }

    /// The words of the start line.
    pub fn start(&self) -> Vec<&str> {
        self.head.lines().next().unwrap_or_default().split(' ').collect()
    }

    /// The body, or `null` if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// Whether the body has no end until the connection ends.
    pub fn is_stream(&self) -> bool {
        self.field("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
    }

    fn is_chunked(&self) -> bool {
        self.field("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"))
    }

    fn length(&self) -> usize {
        self.field("content-length").and_then(|length| length.parse().ok()).unwrap_or(0)
    }

    fn field(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn chunked_request_ends_before_the_next_one() {
        let first = "POST /v1/renew HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{\"a\r\n4\r\n\":1}\r\n0\r\n\r\n";
        let second = "POST /livez HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}";
        let text = format!("{first}{second}");
        let mut stream = text.as_bytes();
        let read = Message::read(&mut stream).await.expect("valid").expect("a message");
        assert_eq!((read.bytes(), read.json()), (first.as_bytes().to_vec(), json!({"a": 1})));
        let read = Message::read(&mut stream).await.expect("valid").expect("a message");
        assert_eq!((read.start()[1], read.bytes()), ("/livez", second.as_bytes().to_vec()));
        assert!(Message::read(&mut stream).await.expect("valid").is_none());
    }
}
