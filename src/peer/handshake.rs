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
use crate::tls::PeerCertificate;
use crate::types::NodeId;

/// The last byte is the version of the protocol.
const MAGIC: &[u8; 8] = b"TENUREp\x02";
const MAX_HELLO_BYTES: usize = 4096;

/// The identity that this node sends to its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    pub cluster: String,
    pub node: NodeId,
    pub incarnation: u64,
    /// The length of the leadership lease that this node promises. All nodes of a cluster need the same length.
    pub vote_lease: Duration,
}

/// The first message of each end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub cluster: String,
    pub from: NodeId,
    pub incarnation: u64,
    pub vote_lease_ms: u64,
    /// The id of the other end: the caller's target, or the caller's id in the answer.
    pub to: NodeId,
    /// The lane of the connection.
    pub lane: u8,
    /// The reason why the answering end refuses the caller.
    pub refused: Option<PeerRefusal>,
}

/// The reason why a node refuses a connection. Nodes with different builds exchange it: append new variants at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message explains the fields")]
pub enum PeerRefusal {
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
    #[error(
        "the other node speaks version {theirs} of the peer protocol, and this node speaks version {ours}: run one \
         version of Tenure on all nodes"
    )]
    OtherVersion { theirs: u8, ours: u8 },
    /// The cluster removed the node.
    #[error(
        "node {node} was removed from the cluster: to add its machine again, start a node with a new id and an empty \
         directory"
    )]
    Removed { node: NodeId },
    /// The certificate of the caller is not that of the node.
    #[error("node {node} of cluster {cluster:?} presented the certificate of another node or cluster: give it its own")]
    OtherCertificate { node: NodeId, cluster: String },
}

/// The incarnations of the cluster's members that this node knows.
pub trait Incarnations: Send + Sync + 'static {
    /// The incarnation that `node` joined with, if it has joined.
    fn joined(&self, node: NodeId) -> Option<u64>;

    /// Whether the cluster removed `node`.
    fn is_removed(&self, node: NodeId) -> bool;

    /// Called when this end has accepted the hello of `node`.
    fn observe(&self, node: NodeId, incarnation: u64);
}

impl PeerIdentity {
    fn hello(&self, to: NodeId, lane: Lane, refused: Option<PeerRefusal>) -> Hello {
        Hello {
            cluster: self.cluster.clone(),
            from: self.node,
            incarnation: self.incarnation,
            vote_lease_ms: self.vote_lease_ms(),
            to,
            lane: lane.code(),
            refused,
        }
    }

    /// The reason to refuse the other end, if there is one.
    fn refusal(&self, other: &Hello, known: &dyn Incarnations) -> Option<PeerRefusal> {
        if other.cluster != self.cluster {
            let (theirs, ours) = (other.cluster.clone(), self.cluster.clone());
            return Some(PeerRefusal::OtherCluster { node: other.from, theirs, ours });
        }
        if other.to != self.node {
            return Some(PeerRefusal::OtherNode { caller: other.from, meant: other.to, answers: self.node });
        }
        if other.from == self.node {
            return Some(PeerRefusal::SharedId { node: self.node });
        }
        if known.is_removed(other.from) {
            return Some(PeerRefusal::Removed { node: other.from });
        }
        if let Some(joined) = known.joined(other.from).filter(|&joined| joined != other.incarnation) {
            return Some(PeerRefusal::OtherDisk { node: other.from, joined, now: other.incarnation });
        }
        // A leader serves reads from memory for as long as it assumes that the others promised.
        let (theirs_ms, ours_ms) = (other.vote_lease_ms, self.vote_lease_ms());
        (theirs_ms != ours_ms).then_some(PeerRefusal::OtherTimings { node: other.from, theirs_ms, ours_ms })
    }

    fn vote_lease_ms(&self) -> u64 {
        self.vote_lease.as_millis() as u64
    }
}

/// The calling end: sends its hello and checks the answering node. Not cancel safe: drop the stream with the future.
pub async fn call<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    identity: &PeerIdentity,
    target: NodeId,
    lane: Lane,
    known: &dyn Incarnations,
) -> io::Result<Result<(), PeerRefusal>> {
    write_hello(stream, &identity.hello(target, lane, None)).await?;
    let answer = match read_hello(stream).await? {
        Ok(answer) => answer,
        Err(reason) => return Ok(Err(reason)),
    };
    if let Some(reason) = answer.refused {
        return Ok(Err(reason));
    }
    if answer.from != target {
        return Ok(Err(PeerRefusal::OtherNode { caller: identity.node, meant: target, answers: answer.from }));
    }
    let refusal = identity.refusal(&answer, known);
    if refusal.is_none() {
        known.observe(answer.from, answer.incarnation);
    }
    Ok(refusal.map_or(Ok(()), Err))
}

/// The answering end: checks the caller and returns its id and lane. Not cancel safe: drop the stream with the future.
///
/// `certificate` is that of the caller; `None` on a connection without TLS.
pub async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    identity: &PeerIdentity,
    known: &dyn Incarnations,
    certificate: Option<&PeerCertificate>,
) -> io::Result<Result<(NodeId, Lane), PeerRefusal>> {
    let hello = match read_hello(stream).await? {
        Ok(hello) => hello,
        Err(reason) => {
            // The caller learns the version of this node, and can name both versions, too. Unread bytes would reset the
            // connection before the caller reads the answer.
            if stream.write_all(MAGIC).await.is_ok() && stream.shutdown().await.is_ok() {
                // A caller that has gone reads nothing, and the refusal is the same.
                let _ = tokio::io::copy(stream, &mut tokio::io::sink()).await;
            }
            return Ok(Err(reason));
        }
    };
    let Some(lane) = Lane::from_code(hello.lane) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("unknown lane {}", hello.lane)));
    };
    let refusal = match certificate {
        Some(certificate) if !certificate.is_of(&hello.cluster, hello.from) => {
            Some(PeerRefusal::OtherCertificate { node: hello.from, cluster: hello.cluster.clone() })
        }
        _ => identity.refusal(&hello, known),
    };
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
    writer.write_all(&bytes).await?;
    writer.flush().await
}

/// Reads a hello, or returns the refusal of another version of the protocol.
pub(crate) async fn read_hello<R: AsyncRead + Unpin>(reader: &mut R) -> io::Result<Result<Hello, PeerRefusal>> {
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let mut magic = [0; 8];
    reader.read_exact(&mut magic).await?;
    if magic[..7] != MAGIC[..7] {
        return Err(invalid("the other end does not speak Tenure's peer protocol".into()));
    }
    if magic[7] != MAGIC[7] {
        return Ok(Err(PeerRefusal::OtherVersion { theirs: magic[7], ours: MAGIC[7] }));
    }
    let length = reader.read_u32().await? as usize;
    if length > MAX_HELLO_BYTES {
        return Err(invalid(format!("a hello message of {length} bytes: at most {MAX_HELLO_BYTES} are allowed")));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await?;
    codec::decode(&body, MAX_HELLO_BYTES).map(Ok).map_err(|error| invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// The incarnation that each other node joined with, and the observed ones.
    #[derive(Default)]
    struct Known {
        joined: Option<u64>,
        removed: Option<NodeId>,
        observed: Mutex<Vec<(NodeId, u64)>>,
    }

    impl Incarnations for Known {
        fn joined(&self, _: NodeId) -> Option<u64> {
            self.joined
        }
        fn is_removed(&self, node: NodeId) -> bool {
            self.removed == Some(node)
        }
        fn observe(&self, node: NodeId, incarnation: u64) {
            self.observed.lock().push((node, incarnation));
        }
    }

    impl Known {
        fn joined(joined: Option<u64>) -> Known {
            Known { joined, ..Known::default() }
        }

        fn observed(&self) -> Vec<(NodeId, u64)> {
            self.observed.lock().clone()
        }
    }

    fn identity(cluster: &str, node: NodeId) -> PeerIdentity {
        PeerIdentity { cluster: cluster.into(), node, incarnation: node * 11, vote_lease: Duration::from_millis(300) }
    }

    async fn shake_hands(
        (caller, near_known): (PeerIdentity, &Known),
        target: NodeId,
        (callee, far_known): (PeerIdentity, &Known),
    ) -> (Result<(), PeerRefusal>, Result<(NodeId, Lane), PeerRefusal>) {
        let (mut near, mut far) = tokio::io::duplex(1024);
        let (called, answered) = tokio::join!(
            call(&mut near, &caller, target, Lane::Log, near_known),
            answer(&mut far, &callee, far_known, None)
        );
        (called.expect("the call has no I/O error"), answered.expect("the answer has no I/O error"))
    }

    #[tokio::test]
    async fn handshake_connects_two_nodes_of_one_cluster() {
        let (near, far) = (Known::joined(Some(22)), Known::joined(Some(11)));
        let (called, answered) = shake_hands((identity("a", 1), &near), 2, (identity("a", 2), &far)).await;
        assert_eq!(called, Ok(()));
        assert_eq!(answered, Ok((1, Lane::Log)));
        assert_eq!((near.observed(), far.observed()), (vec![(2, 22)], vec![(1, 11)]));
    }

    #[tokio::test]
    async fn mismatched_peers_are_refused_at_both_ends() {
        let cases = [
            (identity("b", 1), 2, None, "belongs to cluster"),
            (identity("a", 1), 3, None, "called node 3, but node 2 answered"),
            (identity("a", 2), 2, None, "two nodes use the id 2"),
            (identity("a", 1), 2, Some(99), "lost its disk"),
            (PeerIdentity { vote_lease: Duration::from_secs(4), ..identity("a", 1) }, 2, None, "same [raft] timings"),
        ];
        for (caller, target, known, reason) in cases {
            let (near, far) = (Known::default(), Known::joined(known));
            let (called, answered) = shake_hands((caller, &near), target, (identity("a", 2), &far)).await;
            assert!(called.unwrap_err().to_string().contains(reason), "{reason}");
            assert!(answered.unwrap_err().to_string().contains(reason), "{reason}");
            assert_eq!((near.observed(), far.observed()), (vec![], vec![]), "a refused node is not recorded: {reason}");
        }
    }

    /// The answering end has lost its disk.
    #[tokio::test]
    async fn caller_refuses_an_answer_with_another_incarnation() {
        let (near, far) = (Known::joined(Some(99)), Known::default());
        let (called, _) = shake_hands((identity("a", 1), &near), 2, (identity("a", 2), &far)).await;
        assert_eq!(called, Err(PeerRefusal::OtherDisk { node: 2, joined: 99, now: 22 }));
        assert_eq!(near.observed(), []);
    }

    #[tokio::test]
    async fn removed_node_is_refused_and_learns_the_reason() {
        let (near, far) = (Known::default(), Known { removed: Some(1), ..Known::default() });
        let (called, answered) = shake_hands((identity("a", 1), &near), 2, (identity("a", 2), &far)).await;
        assert_eq!((called, answered), (Err(PeerRefusal::Removed { node: 1 }), Err(PeerRefusal::Removed { node: 1 })));
        assert_eq!((near.observed(), far.observed()), (vec![], vec![]));
    }

    #[tokio::test]
    async fn other_protocols_are_errors() {
        let http = read_hello(&mut &b"GET / HTTP/1.1\r\n\r\n"[..]).await.unwrap_err().to_string();
        assert!(http.contains("does not speak"), "{http}");
    }

    #[tokio::test]
    async fn other_versions_are_refused_at_both_ends() {
        let named = "the other node speaks version 1 of the peer protocol, and this node speaks version 2: run one version \
                     of Tenure on all nodes";
        let old_hello = b"TENUREp\x01\0\0\0\0";

        let (mut near, mut far) = tokio::io::duplex(1024);
        let caller = async move {
            near.write_all(old_hello).await.expect("the stream has room");
            let mut told = [0; 8];
            near.read_exact(&mut told).await.map(|_| told).expect("readable")
        };
        let (callee, known) = (identity("a", 2), Known::default());
        // `move` drops the stream with the answering end: a caller without an answer sees the end of the stream.
        let callee = async move { answer(&mut far, &callee, &known, None).await };
        let (told, refused) = tokio::join!(caller, callee);
        assert_eq!(refused.expect("no I/O error").expect_err("another version").to_string(), named);
        assert_eq!(&told, MAGIC, "an older caller reads the version of this node");

        let (mut near, mut far) = tokio::io::duplex(1024);
        far.write_all(old_hello).await.expect("the stream has room");
        let refused = call(&mut near, &identity("a", 1), 2, Lane::Log, &Known::default()).await.expect("no I/O error");
        assert_eq!(refused.expect_err("another version").to_string(), named);
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
        assert_eq!(read_hello(&mut &wire[..]).await.expect("the hello is at the limit"), Ok(hello(4_096)));
        wire.clear();
        write_hello(&mut wire, &hello(4_097)).await.expect("a vector accepts all bytes");
        let refused = read_hello(&mut &wire[..]).await.expect_err("the hello is above the limit");
        assert_eq!(refused.to_string(), "a hello message of 4097 bytes: at most 4096 are allowed");
    }
}
