//! The way to a cluster, which can be cut: connections stay open, and nothing comes through any more.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A listener for each node, and what it forwards.
pub struct Link {
    endpoints: String,
    cut: watch::Sender<bool>,
    _forwarding: JoinSet<()>,
}

impl Link {
    /// To the nodes with these URLs.
    pub async fn to(urls: &str) -> Link {
        let cut = watch::Sender::new(false);
        let mut forwarding = JoinSet::new();
        let mut endpoints = Vec::new();
        for url in urls.split(',') {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
            endpoints.push(format!("http://{}", listener.local_addr().expect("it is bound")));
            let node = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
            forwarding.spawn(listen(listener, node, cut.subscribe()));
        }
        Link { endpoints: endpoints.join(","), cut, _forwarding: forwarding }
    }

    pub fn endpoints(&self) -> &str {
        &self.endpoints
    }

    pub fn cut(&self) {
        self.cut.send_replace(true);
    }
}

async fn listen(listener: TcpListener, node: String, cut: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.expect("a listener accepts");
        connections.spawn(forward(client, node.clone(), cut.clone()));
    }
}

async fn forward(mut client: TcpStream, node: String, mut cut: watch::Receiver<bool>) {
    if *cut.borrow() {
        return std::future::pending().await;
    }
    let Ok(mut node) = TcpStream::connect(&node).await else { return };
    tokio::select! {
        _ = cut.wait_for(|cut| *cut) => {}
        _ = copy_bidirectional(&mut client, &mut node) => return,
    }
    // Both ends are held open until the test ends, and silent.
    std::future::pending().await
}
