//! The handshake. Both ends first send their cluster, node and incarnation, and each end refuses a mismatch.
//!
//! An *incarnation* is a random number that the first start of a node stores beside its data. A voter that returns with
//! another incarnation has lost its disk: it may have forgotten votes and entries that the cluster counts on.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::Lane;
use crate::storage::codec;
use crate::types::NodeId;

const MAGIC: &[u8; 8] = b"TENUREp\x01";
const MAX_HELLO_BYTES: usize = 4096;

/// The identity that this node sends to its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cluster: String,
    pub node: NodeId,
    pub incarnation: u64,
    /// The length of the leadership lease that this node promises. All nodes of a cluster need the same length.
    pub promise: Duration,
}

/// The first message of each end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub cluster: String,
    pub from: NodeId,
    pub incarnation: u64,
    pub promise_ms: u64,
    /// The id of the other end: the caller's target, or the caller's id in the answer.
    pub to: NodeId,
    /// The lane of the connection.
    pub lane: u8,
    /// The reason why the answering end refuses the caller.
    pub refused: Option<Refusal>,
}

/// The reason why a node refuses a connection. Nodes with different builds exchange it: append new variants at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message explains the fields")]
pub enum Refusal {
    /// The other node belongs to another cluster.
    #[error("node {node} belongs to cluster {theirs:?}, not to {ours:?}")]
    OtherCluster { node: NodeId, theirs: String, ours: String },
    /// Another node answers at the address.
    #[error("node {caller} called node {meant}, but node {answers} answered: correct the address of node {meant}")]
    OtherNode { caller: NodeId, meant: NodeId, answers: NodeId },
    /// Two nodes have the same id.
    #[error("two nodes use the id {node}: give each node a unique id")]
    SharedId { node: NodeId },
    /// The node has lost the data directory that it joined with.
    #[error(
        "node {node} joined with another disk ({joined:016x}, now {now:016x}): a voter that lost its disk may have \
         forgotten votes and entries that the cluster counts on. Remove it from the cluster and let it join again \
         under a new id with an empty directory"
    )]
    OtherDisk { node: NodeId, joined: u64, now: u64 },
    /// The nodes have different timings.
    #[error(
        "node {node} has a leadership lease of {theirs_ms} ms, but the other nodes of this cluster use {ours_ms} ms: \
         all nodes need the same [raft] timings. To change them, stop all nodes, change the file, and start them again"
    )]
    OtherTimings { node: NodeId, theirs_ms: u64, ours_ms: u64 },
}

/// The incarnations of the cluster's members that this node knows.
pub trait Incarnations: Send + Sync + 'static {
    /// Whether this node has read its log. Before that, it could accept a caller that it must refuse.
    fn are_read(&self) -> bool;

    /// The incarnation that `node` joined with, if it has joined.
    fn joined(&self, node: NodeId) -> Option<u64>;

    /// Called when this end has accepted the hello of `node`.
    fn observe(&self, node: NodeId, incarnation: u64);
}

impl Identity {
    fn hello(&self, to: NodeId, lane: Lane, refused: Option<Refusal>) -> Hello {
        Hello {
            cluster: self.cluster.clone(),
            from: self.node,
            incarnation: self.incarnation,
            promise_ms: self.promise_ms(),
            to,
            lane: lane.code(),
            refused,
        }
    }

    /// The reason to refuse the other end, if there is one.
    fn refusal(&self, other: &Hello, known: &dyn Incarnations) -> Option<Refusal> {
        if other.cluster != self.cluster {
            let (theirs, ours) = (other.cluster.clone(), self.cluster.clone());
            return Some(Refusal::OtherCluster { node: other.from, theirs, ours });
        }
        if other.to != self.node {
            return Some(Refusal::OtherNode { caller: other.from, meant: other.to, answers: self.node });
        }
        if other.from == self.node {
            return Some(Refusal::SharedId { node: self.node });
        }
        if let Some(joined) = known.joined(other.from).filter(|&joined| joined != other.incarnation) {
            return Some(Refusal::OtherDisk { node: other.from, joined, now: other.incarnation });
        }
        // A leader serves reads from memory for as long as it assumes that the others promised.
        let (theirs_ms, ours_ms) = (other.promise_ms, self.promise_ms());
        (theirs_ms != ours_ms).then_some(Refusal::OtherTimings { node: other.from, theirs_ms, ours_ms })
    }

    fn promise_ms(&self) -> u64 {
        self.promise.as_millis() as u64
    }
}

/// The calling end: sends its hello and checks the answering node. Not cancel safe: drop the stream with the future.
pub async fn call<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    identity: &Identity,
    target: NodeId,
    lane: Lane,
    known: &dyn Incarnations,
) -> io::Result<Result<(), Refusal>> {
    write_hello(stream, &identity.hello(target, lane, None)).await?;
    let answer = read_hello(stream).await?;
    if let Some(reason) = answer.refused {
        return Ok(Err(reason));
    }
    if answer.from != target {
        return Ok(Err(Refusal::OtherNode { caller: identity.node, meant: target, answers: answer.from }));
    }
    let refusal = identity.refusal(&answer, known);
    if refusal.is_none() {
        known.observe(answer.from, answer.incarnation);
    }
    Ok(refusal.map_or(Ok(()), Err))
}

/// The answering end: checks the caller and returns its id and lane. Not cancel safe: drop the stream with the future.
pub async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    identity: &Identity,
    known: &dyn Incarnations,
) -> io::Result<Result<(NodeId, Lane), Refusal>> {
    let hello = read_hello(stream).await?;
    let Some(lane) = Lane::from_code(hello.lane) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("unknown lane {}", hello.lane)));
    };
    if !known.are_read() {
        return Err(io::Error::other(format!("node {} called before this node has read its log", hello.from)));
    }
    let refusal = identity.refusal(&hello, known);
    write_hello(stream, &identity.hello(hello.from, lane, refusal.clone())).await?;
    if refusal.is_none() {
        known.observe(hello.from, hello.incarnation);
    }
    Ok(refusal.map_or(Ok((hello.from, lane)), Err))
}

pub(crate) async fn write_hello<W: AsyncWrite + Unpin>(writer: &mut W, hello: &Hello) -> io::Result<()> {
    let body = codec::encode(hello);
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&body);
    writer.write_all(&bytes).await
}

pub(crate) async fn read_hello<R: AsyncRead + Unpin>(reader: &mut R) -> io::Result<Hello> {
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let mut magic = [0; 8];
    reader.read_exact(&mut magic).await?;
    if magic[..7] != MAGIC[..7] {
        return Err(invalid("the other end does not speak Tenure's peer protocol".into()));
    }
    if magic[7] != MAGIC[7] {
        return Err(invalid(format!("the other end speaks peer protocol {}, this node {}", magic[7], MAGIC[7])));
    }
    let length = reader.read_u32().await? as usize;
    if length > MAX_HELLO_BYTES {
        return Err(invalid(format!("a hello message of {length} bytes: at most {MAX_HELLO_BYTES} are allowed")));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await?;
    codec::decode(&body, MAX_HELLO_BYTES).map_err(|error| invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Known(Option<u64>);

    impl Incarnations for Known {
        fn are_read(&self) -> bool {
            true
        }
        fn joined(&self, _: NodeId) -> Option<u64> {
            self.0
        }
        fn observe(&self, _: NodeId, _: u64) {}
    }

    fn identity(cluster: &str, node: NodeId) -> Identity {
        Identity { cluster: cluster.into(), node, incarnation: node * 11, promise: Duration::from_millis(300) }
    }

    async fn shake_hands(
        caller: Identity,
        target: NodeId,
        callee: Identity,
        known: Option<u64>,
    ) -> (Result<(), Refusal>, Result<(NodeId, Lane), Refusal>) {
        let (mut near, mut far) = tokio::io::duplex(1024);
        let known = Known(known);
        let (called, answered) =
            tokio::join!(call(&mut near, &caller, target, Lane::Log, &Known(None)), answer(&mut far, &callee, &known));
        (called.expect("the call has no I/O error"), answered.expect("the answer has no I/O error"))
    }

    #[tokio::test]
    async fn handshake_connects_two_nodes_of_one_cluster() {
        let (called, answered) = shake_hands(identity("a", 1), 2, identity("a", 2), Some(11)).await;
        assert_eq!(called, Ok(()));
        assert_eq!(answered, Ok((1, Lane::Log)));
    }

    #[tokio::test]
    async fn mismatched_peers_are_refused_at_both_ends() {
        let cases = [
            (identity("b", 1), 2, None, "belongs to cluster"),
            (identity("a", 1), 3, None, "called node 3, but node 2 answered"),
            (identity("a", 2), 2, None, "two nodes use the id 2"),
            (identity("a", 1), 2, Some(99), "lost its disk"),
            (Identity { promise: Duration::from_secs(4), ..identity("a", 1) }, 2, None, "same [raft] timings"),
        ];
        for (caller, target, known, reason) in cases {
            let (called, answered) = shake_hands(caller, target, identity("a", 2), known).await;
            assert!(called.unwrap_err().to_string().contains(reason), "{reason}");
            assert!(answered.unwrap_err().to_string().contains(reason), "{reason}");
        }
    }

    #[tokio::test]
    async fn callers_are_refused_before_the_log_is_read() {
        struct Unread;
        impl Incarnations for Unread {
            fn are_read(&self) -> bool {
                false
            }
            fn joined(&self, _: NodeId) -> Option<u64> {
                None
            }
            fn observe(&self, node: NodeId, _: u64) {
                panic!("node {node} was accepted");
            }
        }
        let (mut near, mut far) = tokio::io::duplex(1024);
        let (caller, callee) = (identity("a", 1), identity("a", 2));
        let answer = async move { answer(&mut far, &callee, &Unread).await.map(|_| ()) };
        let (called, answered) = tokio::join!(call(&mut near, &caller, 2, Lane::Log, &Known(None)), answer);
        assert!(called.is_err() && answered.is_err(), "{called:?} {answered:?}");
    }

    #[tokio::test]
    async fn other_protocols_and_versions_are_distinguished() {
        let http = read_hello(&mut &b"GET / HTTP/1.1\r\n\r\n"[..]).await.unwrap_err().to_string();
        assert!(http.contains("does not speak"), "{http}");
        let newer = read_hello(&mut &b"TENUREp\x02\0\0\0\0"[..]).await.unwrap_err().to_string();
        assert!(newer.contains("protocol 2"), "{newer}");
    }

    #[tokio::test]
    async fn hello_has_at_most_4096_bytes() {
        let hello = |bytes: usize| {
            let with = |name: usize| identity(&"c".repeat(name), 1).hello(2, Lane::Log, None);
            let around = codec::encode(&with(1_000)).len() - 1_000;
            with(bytes - around)
        };
        let mut wire = Vec::new();
        write_hello(&mut wire, &hello(4_096)).await.expect("a vector accepts all bytes");
        assert_eq!(wire.len(), MAGIC.len() + 4 + 4_096);
        assert_eq!(read_hello(&mut &wire[..]).await.expect("the hello is at the limit"), hello(4_096));
        wire.clear();
        write_hello(&mut wire, &hello(4_097)).await.expect("a vector accepts all bytes");
        let refused = read_hello(&mut &wire[..]).await.expect_err("the hello is above the limit");
        assert_eq!(refused.to_string(), "a hello message of 4097 bytes: at most 4096 are allowed");
    }
}
