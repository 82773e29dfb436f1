//! A TCP proxy before one node that can stall: it accepts connections but forwards no data, like the kernel of a
//! stopped process.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub struct StallingProxy {
    pub address: SocketAddr,
    frozen: watch::Sender<bool>,
}

impl StallingProxy {
    /// Starts a proxy before this node. It ends with the runtime of the test.
    pub async fn before(node: SocketAddr) -> StallingProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the listener is bound");
        let frozen = watch::Sender::new(false);
        let state = frozen.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(node).await else { continue };
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                tokio::spawn(pass(from_client, to_server, state.clone()));
                tokio::spawn(pass(from_server, to_client, state.clone()));
            }
        });
        StallingProxy { address, frozen }
    }

    pub fn freeze(&self) {
        self.frozen.send_replace(true);
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut frozen: watch::Receiver<bool>) {
    let mut piece = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        // A frozen proxy keeps the connection open and forwards nothing.
        if frozen.wait_for(|frozen| !frozen).await.is_err() || to.write_all(&piece[..read]).await.is_err() {
            return;
        }
    }
}
