//! The socket of a connection, which shows a handler that its client has left.
//!
//! hyper sees the end of a connection only when it reads. During a request it does not read while it has bytes of a next
//! one, so a client that sent some could leave a queue unnoticed.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::net::Shutdown;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// The socket of a connection.
pub(super) struct Socket {
    reader: OwnedReadHalf,
    writer: Arc<OwnedWriteHalf>,
}

/// The other end of a socket. Without a listener of the node, it never leaves.
#[derive(Clone, Debug, Default)]
pub(super) struct Client(Option<Arc<OwnedWriteHalf>>);

impl Socket {
    pub fn new(stream: TcpStream) -> Socket {
        let (reader, writer) = stream.into_split();
        Socket { reader, writer: Arc::new(writer) }
    }

    pub fn client(&self) -> Client {
        Client(Some(self.writer.clone()))
    }

    fn stream(&self) -> &TcpStream {
        (*self.writer).as_ref()
    }

    fn poll_with(&self, cx: &mut Context<'_>, mut write: impl FnMut() -> io::Result<usize>) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream().poll_write_ready(cx))?;
            match write() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl Client {
    /// Waits until the client closes its sending half or resets the connection, or the kernel finds that it is gone.
    pub async fn left(&self) {
        match &self.0 {
            // Tokio registers no socket for urgent data, so only the end of all reads makes it ready.
            #[cfg(target_os = "linux")]
            Some(socket) => drop(socket.ready(tokio::io::Interest::PRIORITY).await),
            _ => std::future::pending().await,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().reader).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, || self.writer.try_write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(cx, || self.writer.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.writer.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match rustix::net::shutdown(self.stream(), Shutdown::Write) {
            Err(rustix::io::Errno::NOTCONN) => Ok(()),
            done => done.map_err(io::Error::from),
        })
    }
}
