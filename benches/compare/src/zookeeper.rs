//! ZooKeeper over its binary protocol. Each client has a session. An acquire creates an ephemeral node, and a release
//! deletes it. The zxid of the creation is the fencing token.

use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Client, Result, TTL};

const PROTOCOL_VERSION: i32 = 0;
const PASSWORD_BYTES: usize = 16;
const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const SYNC: i32 = 9;
const PING: i32 = 11;
const CLOSE_SESSION: i32 = -11;

const WATCH_XID: i32 = -1;
const PING_XID: i32 = -2;
const ALL_PERMISSIONS: i32 = 31;
const PERSISTENT: i32 = 0;
const EPHEMERAL: i32 = 1;
const ANY_VERSION: i32 = -1;
const NODE_DELETED: i32 = 2;
const NO_NODE: i32 = -101;

pub struct ZooKeeper {
    stream: TcpStream,
    requests: BytesMut,
    received: BytesMut,
    xid: i32,
}

struct Reply {
    xid: i32,
    zxid: i64,
    error: i32,
    body: Bytes,
}

impl Client for ZooKeeper {
    type Link = String;
    const CLIENTS_PER_LINK: usize = 1;

    async fn link(address: &str) -> Result<String> {
        Ok(address.to_string())
    }

    async fn connect(address: &String) -> Result<ZooKeeper> {
        ZooKeeper::open(address, TTL).await
    }

    async fn acquire(&mut self, name: &str) -> Result<u64> {
        self.create(name, EPHEMERAL).await
    }

    async fn release(&mut self, name: &str, _token: u64) -> Result<()> {
        self.request(DELETE, |body| {
            put_path(body, name);
            body.put_i32(ANY_VERSION);
        });
        self.done().await?;
        Ok(())
    }

    async fn hold(&mut self, _name: &str) -> Result<()> {
        Ok(())
    }

    /// A ping renews the session. The server answers it from memory.
    async fn renew(&mut self) -> Result<()> {
        self.frame(|body| {
            body.put_i32(PING_XID);
            body.put_i32(PING);
        });
        self.flush().await?;
        match self.receive().await?.xid {
            PING_XID => Ok(()),
            xid => Err(format!("ZooKeeper answered a ping with the request number {xid}").into()),
        }
    }

    /// A sync and a read in one message. The server answers requests of one session in order.
    async fn read(&mut self, name: &str) -> Result<u64> {
        self.request(SYNC, |body| put_path(body, name));
        self.request(GET_DATA, |body| {
            put_path(body, name);
            body.put_u8(0);
        });
        self.flush().await?;
        let expected = self.xid;
        self.reply(expected - 1).await?.succeeded()?;
        let mut body = self.reply(expected).await?.succeeded()?.body;
        let data = body.try_get_i32()?.max(0) as usize;
        body.advance(data);
        // The stat of a node starts with the zxid of its creation.
        Ok(body.try_get_i64()?.try_into()?)
    }

    async fn write(&mut self, name: &str) -> Result<()> {
        self.request(SET_DATA, |body| {
            put_path(body, name);
            put_bytes(body, b"prober");
            body.put_i32(ANY_VERSION);
        });
        self.flush().await?;
        let reply = self.reply(self.xid).await?;
        if reply.error == NO_NODE {
            self.create(name, PERSISTENT).await?;
        } else {
            reply.succeeded()?;
        }
        Ok(())
    }

    async fn close(mut self) -> Result<()> {
        self.request(CLOSE_SESSION, |_| ());
        self.done().await?;
        Ok(())
    }

    /// The socket of the holder closes without the end of its session.
    async fn abandon(address: &str, name: &str, ttl: Duration) -> Result<Duration> {
        let mut watcher = ZooKeeper::open(address, TTL).await?;
        let mut holder = ZooKeeper::open(address, ttl).await?;
        let sent = Instant::now();
        holder.create(name, EPHEMERAL).await?;
        watcher.request(EXISTS, |body| {
            put_path(body, name);
            body.put_u8(1);
        });
        watcher.done().await?;
        drop(holder);
        let mut event = watcher.reply(WATCH_XID).await?.body;
        let after = sent.elapsed();
        match event.try_get_i32()? {
            NODE_DELETED => watcher.close().await.map(|()| after),
            kind => Err(format!("a watch of type {kind}: expected {NODE_DELETED}").into()),
        }
    }
}

impl ZooKeeper {
    async fn open(address: &str, ttl: Duration) -> Result<ZooKeeper> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut client = ZooKeeper { stream, requests: BytesMut::new(), received: BytesMut::new(), xid: 0 };
        let ttl = ttl.as_millis() as i32;
        client.frame(|body| {
            body.put_i32(PROTOCOL_VERSION);
            body.put_i64(0); // the last zxid that the client has seen
            body.put_i32(ttl);
            body.put_i64(0); // a new session
            put_bytes(body, &[0; PASSWORD_BYTES]);
            body.put_u8(0); // not read-only
        });
        client.flush().await?;
        let mut answer = client.receive_frame().await?;
        answer.try_get_i32()?;
        let granted = answer.try_get_i32()?;
        if granted != ttl {
            return Err(format!("ZooKeeper granted a session of {granted} ms: expected {ttl} ms").into());
        }
        Ok(client)
    }

    async fn create(&mut self, name: &str, kind: i32) -> Result<u64> {
        self.request(CREATE, |body| {
            put_path(body, name);
            put_bytes(body, b"holder");
            body.put_i32(1); // number of access rules
            body.put_i32(ALL_PERMISSIONS);
            put_bytes(body, b"world");
            put_bytes(body, b"anyone");
            body.put_i32(kind);
        });
        Ok(self.done().await?.zxid.try_into()?)
    }

    /// Appends a request to the next message.
    fn request(&mut self, kind: i32, write_body: impl FnOnce(&mut BytesMut)) {
        self.xid += 1;
        let xid = self.xid;
        self.frame(|body| {
            body.put_i32(xid);
            body.put_i32(kind);
            write_body(body);
        });
    }

    fn frame(&mut self, write_body: impl FnOnce(&mut BytesMut)) {
        let start = self.requests.len();
        self.requests.put_i32(0);
        write_body(&mut self.requests);
        let length = (self.requests.len() - start - 4) as u32;
        self.requests[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    async fn flush(&mut self) -> Result<()> {
        self.stream.write_all(&self.requests).await?;
        self.requests.clear();
        Ok(())
    }

    /// Sends the last request, and receives its successful reply.
    async fn done(&mut self) -> Result<Reply> {
        self.flush().await?;
        self.reply(self.xid).await?.succeeded()
    }

    async fn reply(&mut self, expected: i32) -> Result<Reply> {
        let reply = self.receive().await?;
        match reply.xid == expected {
            true => Ok(reply),
            false => Err(format!("ZooKeeper answered request {}: expected {expected}", reply.xid).into()),
        }
    }

    async fn receive(&mut self) -> Result<Reply> {
        let mut body = self.receive_frame().await?;
        Ok(Reply { xid: body.try_get_i32()?, zxid: body.try_get_i64()?, error: body.try_get_i32()?, body })
    }

    async fn receive_frame(&mut self) -> Result<Bytes> {
        loop {
            if let Some(length) = self.received.first_chunk::<4>() {
                let length = u32::from_be_bytes(*length) as usize;
                if self.received.len() >= 4 + length {
                    self.received.advance(4);
                    return Ok(self.received.split_to(length).freeze());
                }
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err("ZooKeeper closed the connection".into());
            }
        }
    }
}

impl Reply {
    fn succeeded(self) -> Result<Reply> {
        match self.error {
            0 => Ok(self),
            error => Err(format!("ZooKeeper's error {error}").into()),
        }
    }
}

fn put_path(body: &mut BytesMut, name: &str) {
    body.put_i32(1 + name.len() as i32);
    body.put_u8(b'/');
    body.put_slice(name.as_bytes());
}

fn put_bytes(body: &mut BytesMut, bytes: &[u8]) {
    body.put_i32(bytes.len() as i32);
    body.put_slice(bytes);
}
