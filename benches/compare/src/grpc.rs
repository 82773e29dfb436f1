//! The part of gRPC that the etcd client needs, on HTTP/2.

use std::marker::PhantomData;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::RecvStream;
use h2::client::{Builder, ResponseFuture, SendRequest};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Request, Uri};
use prost::Message;
use tokio::net::TcpStream;

use crate::client::Result;

/// Flow control never delays the small messages of the workloads.
const WINDOW: u32 = 16 << 20;
/// A byte for compression, and the length.
const PREFIX: usize = 5;

/// A connection. Its clones share it.
#[derive(Clone)]
pub struct Link {
    requests: SendRequest<Bytes>,
    authority: Authority,
}

impl Link {
    pub async fn open(address: &str) -> Result<Link> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (requests, connection) =
            Builder::new().initial_window_size(WINDOW).initial_connection_window_size(WINDOW).handshake(stream).await?;
        // It ends when the last clone and the last call are dropped. Each call reports an error of the connection.
        tokio::spawn(async move { connection.await.unwrap_or_default() });
        Ok(Link { requests, authority: address.parse()? })
    }

    /// A call with one request and one answer.
    pub async fn call<A: Message + Default>(&self, path: &'static str, request: &impl Message) -> Result<A> {
        let mut call = self.start(path).await?;
        call.send_last(request)?;
        let answer = call.next().await?.ok_or("the call ended without an answer")?;
        match call.next().await? {
            None => Ok(answer),
            Some(_) => Err("the call has a second answer".into()),
        }
    }

    /// A call with streams of requests and answers.
    pub async fn start<A: Message + Default>(&self, path: &'static str) -> Result<Call<A>> {
        let uri = Uri::builder().scheme(Scheme::HTTP).authority(self.authority.clone()).path_and_query(path).build()?;
        let request = Request::post(uri).header("content-type", "application/grpc").header("te", "trailers").body(())?;
        let (answers, requests) = self.requests.clone().ready().await?.send_request(request, false)?;
        Ok(Call { requests, answers: Answers::Unopened(answers), received: BytesMut::new(), answer: PhantomData })
    }
}

pub struct Call<A> {
    requests: h2::SendStream<Bytes>,
    answers: Answers,
    received: BytesMut,
    answer: PhantomData<fn() -> A>,
}

enum Answers {
    Unopened(ResponseFuture),
    Open(RecvStream),
}

impl<A: Message + Default> Call<A> {
    pub fn send(&mut self, request: &impl Message) -> Result<()> {
        Ok(self.requests.send_data(frame(request), false)?)
    }

    fn send_last(&mut self, request: &impl Message) -> Result<()> {
        Ok(self.requests.send_data(frame(request), true)?)
    }

    /// The next answer, or `None` after a successful end.
    pub async fn next(&mut self) -> Result<Option<A>> {
        if let Answers::Unopened(opening) = &mut self.answers {
            let response = opening.await?;
            // A call that fails at once has its status in the headers.
            check_status(response.headers(), false)?;
            self.answers = Answers::Open(response.into_body());
        }
        let Answers::Open(body) = &mut self.answers else { unreachable!("opened above") };
        loop {
            if let Some(answer) = take_message(&mut self.received)? {
                return Ok(Some(answer));
            }
            match body.data().await {
                Some(data) => {
                    let data = data?;
                    body.flow_control().release_capacity(data.len())?;
                    self.received.extend_from_slice(&data);
                }
                None => {
                    check_status(&body.trailers().await?.ok_or("the call ended without a status")?, true)?;
                    return Ok(None);
                }
            }
        }
    }
}

fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(length as u32);
    message.encode(&mut bytes).expect("the buffer has the capacity");
    bytes.freeze()
}

fn take_message<A: Message + Default>(received: &mut BytesMut) -> Result<Option<A>> {
    let Some(length) = received.get(1..PREFIX) else { return Ok(None) };
    let length = u32::from_be_bytes(length.try_into()?) as usize;
    if received.len() < PREFIX + length {
        return Ok(None);
    }
    received.advance(PREFIX);
    Ok(Some(A::decode(received.split_to(length))?))
}

fn check_status(headers: &HeaderMap, is_last: bool) -> Result<()> {
    match headers.get("grpc-status").map(|status| status.as_bytes()) {
        Some(b"0") => Ok(()),
        None if !is_last => Ok(()),
        status => {
            let status = String::from_utf8_lossy(status.unwrap_or(b"missing"));
            let message = headers.get("grpc-message").map(|message| String::from_utf8_lossy(message.as_bytes()));
            Err(format!("gRPC status {status}: {}", message.unwrap_or_default()).into())
        }
    }
}
