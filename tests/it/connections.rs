//! The connections of the HTTP client: to nodes that do not answer, and idle ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::api::{Acquire, Code};
use tenure::client::CallError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::remote::{ScriptedNode, event, holder, lease, name, problem, read_request, remote, stream};
use crate::steady::{steady, strict};

steady!(claim_leaves_a_node_without_power, watch_opens_at_the_next_node_when_a_refusal_has_no_end);
strict!(idle_connections_end_before_a_node_closes_them, broken_watch_resumes_for_a_caller_with_a_short_limit);

/// An upper bound for waits. Only a hang exceeds it.
const LONG: Duration = Duration::from_secs(20);

async fn bound() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("the listener is bound").to_string();
    (listener, address)
}

/// The claim was not sent to that node, so the refusal of the next one is its outcome. Linux drops the packets of a new
/// connection while the queue of its listener is full.
async fn claim_leaves_a_node_without_power() {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let full = socket.listen(0).expect("it listens");
    let dead = full.local_addr().expect("the listener is bound");
    let mut waiting = Vec::new();
    while let Ok(connected) = tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(dead)).await {
        waiting.push(connected.expect("it listens"));
    }
    let node = ScriptedNode::start(vec![problem(Code::Held)]).await;
    let remote = remote(&[&dead.to_string(), &node.address]);
    let refused = remote.acquire(&name(), &Acquire::new(holder())).await;
    assert!(matches!(&refused, Err(CallError::Refused(problem)) if problem.code == Code::Held), "{refused:?}");
}

/// The node hangs after the head of its answer.
async fn watch_opens_at_the_next_node_when_a_refusal_has_no_end() {
    let (hanging, address) = bound().await;
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = hanging.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"HTTP/1.1 503 X\r\ncontent-length: 9\r\n\r\n").await;
            open.push(stream);
        }
    });
    let node = ScriptedNode::start(vec![stream(event(5))]).await;
    let mut watch = remote(&[&address, &node.address]).with_timeout(Duration::from_secs(2)).watch("", None);
    let next = tokio::time::timeout(LONG, watch.next()).await.expect("the watch goes on");
    assert_eq!(next.expect("the other node opens a stream").index, 5);
}

/// The limit is shorter than the pause before the next connection.
async fn broken_watch_resumes_for_a_caller_with_a_short_limit() {
    let node = ScriptedNode::start(vec![stream(event(5)), stream(event(7))]).await;
    let mut watch = remote(&[&node.address]).watch("", None);
    let resumed = async {
        loop {
            if let Ok(next) = tokio::time::timeout(Duration::from_millis(100), watch.next()).await
                && next.expect("the node has an event").index == 7
            {
                return;
            }
        }
    };
    tokio::time::timeout(LONG, resumed).await.expect("the watch connects again");
}

/// A node closes them after 60 s. A request at that moment would fail.
async fn idle_connections_end_before_a_node_closes_them() {
    let (listener, address) = bound().await;
    let (accepted, served_by) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, last) = (accepted.clone(), served_by.clone());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (number, last) = (count.fetch_add(1, Ordering::SeqCst) + 1, last.clone());
            tokio::spawn(async move {
                let answer = lease().replace("connection: close\r\n", "");
                loop {
                    match read_request(&mut stream).await {
                        line if line.is_empty() => break,
                        line if line.starts_with("GET /v1/leases/") => last.store(number, Ordering::SeqCst),
                        _ => {}
                    }
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            });
        }
    });
    let remote = remote(&[&address]);
    remote.get(&name()).await.expect("the node answers");
    tokio::time::sleep(Duration::from_secs(22)).await;
    let before = accepted.load(Ordering::SeqCst);
    remote.get(&name()).await.expect("the node answers");
    assert!(served_by.load(Ordering::SeqCst) > before, "the request used a connection that was idle for 22 s");
}
