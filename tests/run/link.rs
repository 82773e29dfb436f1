//! A link to a cluster that can be cut: connections stay open, but no data passes any more.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A request with this text cuts the link.
type LastText = Arc<Mutex<Option<&'static str>>>;

/// A listener for each node, which forwards connections to it.
pub struct Link {
    endpoints: String,
    cut: watch::Sender<bool>,
    last: LastText,
    _forwarding: JoinSet<()>,
}

impl Link {
    /// Creates a link to the nodes with these URLs.
    pub async fn to(urls: &str) -> Link {
        let (cut, last) = (watch::Sender::new(false), Arc::new(Mutex::new(None)));
        let mut forwarding = JoinSet::new();
        let mut endpoints = Vec::new();
        for url in urls.split(',') {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind a loopback port");
            endpoints.push(format!("http://{}", listener.local_addr().expect("the listener is bound")));
            let node = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
            forwarding.spawn(listen(listener, node, cut.clone(), Arc::clone(&last)));
        }
        Link { endpoints: endpoints.join(","), cut, last, _forwarding: forwarding }
    }

    pub fn endpoints(&self) -> &str {
        &self.endpoints
    }

    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Cuts the link at the next request that contains this text. No node gets that request.
    pub fn cut_at(&self, text: Option<&'static str>) {
        *self.last.lock().expect("no panic") = text;
    }

    pub fn is_cut(&self) -> bool {
        *self.cut.borrow()
    }
}

async fn listen(listener: TcpListener, node: String, cut: watch::Sender<bool>, last: LastText) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.expect("a listener accepts");
        connections.spawn(forward(client, node.clone(), cut.clone(), Arc::clone(&last)));
    }
}

async fn forward(mut client: TcpStream, node: String, cut: watch::Sender<bool>, last: LastText) {
    if *cut.borrow() {
        return std::future::pending().await;
    }
    let Ok(mut node) = TcpStream::connect(&node).await else { return };
    let ((mut from_client, mut to_client), (mut from_node, mut to_node)) = (client.split(), node.split());
    let requests = async {
        let mut bytes = [0; 16 << 10];
        while let Ok(length @ 1..) = from_client.read(&mut bytes).await {
            let text = *last.lock().expect("no panic");
            if text.is_some_and(|text| String::from_utf8_lossy(&bytes[..length]).contains(text)) {
                cut.send_replace(true);
                return std::future::pending().await;
            }
            if to_node.write_all(&bytes[..length]).await.is_err() {
                return;
            }
        }
    };
    let mut is_cut = cut.subscribe();
    tokio::select! {
        _ = is_cut.wait_for(|cut| *cut) => {}
        () = requests => return,
        _ = tokio::io::copy(&mut from_node, &mut to_client) => return,
    }
    // Keeps both connections open without data until the end of the test.
    std::future::pending().await
}
