//! A link to a cluster that can be cut: connections stay open, but no data passes any more.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A listener for each node, which forwards connections to it.
pub struct Link {
    endpoints: String,
    cut: watch::Sender<bool>,
    _forwarding: JoinSet<()>,
}

impl Link {
    /// Creates a link to the nodes with these URLs.
    pub async fn to(urls: &str) -> Link {
        let cut = watch::Sender::new(false);
        let mut forwarding = JoinSet::new();
        let mut endpoints = Vec::new();
        for url in urls.split(',') {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind a loopback port");
            endpoints.push(format!("http://{}", listener.local_addr().expect("the listener is bound")));
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
    // Keeps both connections open without data until the end of the test.
    std::future::pending().await
}
