//! The encoding of log entries: one byte for the format, one byte for the kind, then the content.
//!
//! Newer builds read old entries, so a kind never changes its meaning.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use openraft::EntryPayload;
use serde::{Deserialize, Serialize};

use super::types::{Entry, Membership, PeerInfo, Proposal, log_id, position};
use crate::lease::Batch;
use crate::storage::LogRecord;
use crate::storage::codec::{self, DecodeError};
use crate::types::NodeId;

const FORMAT: u8 = 1;
const BLANK: u8 = 0;
const BATCH: u8 = 1;
const MEMBERSHIP: u8 = 2;
const JOINED: u8 = 3;

/// Largest entry, in bytes. It exceeds the proposer's largest batch and stays below one group commit of the store.
pub const MAX_ENTRY_BYTES: usize = 128 << 10;

/// The decoded content of a proposal.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    Leases(Batch),
    Joined(Joined),
}

/// The incarnation of the disk with which a member joined. The cluster refuses the member with any other disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    pub node: NodeId,
    pub incarnation: u64,
}

/// A membership in the stored format, which is frozen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MembershipRecord {
    /// The voter sets. There are two during joint consensus.
    pub configs: Vec<BTreeSet<NodeId>>,
    /// The addresses of each node's public listener and peer listener.
    pub nodes: BTreeMap<NodeId, (String, String)>,
}

impl Proposal {
    pub fn leases(batch: &Batch) -> Proposal {
        Proposal(frame(BATCH, batch))
    }

    pub fn joined(joined: Joined) -> Proposal {
        Proposal(frame(JOINED, &joined))
    }

    pub fn content(&self) -> Result<Content, PayloadError> {
        match self.0.get(..2) {
            Some([FORMAT, BATCH]) => Ok(Content::Leases(codec::decode(&self.0[2..], MAX_ENTRY_BYTES)?)),
            Some([FORMAT, JOINED]) => Ok(Content::Joined(codec::decode(&self.0[2..], MAX_ENTRY_BYTES)?)),
            other => Err(PayloadError::unknown(other)),
        }
    }
}

impl From<&Membership> for MembershipRecord {
    fn from(membership: &Membership) -> MembershipRecord {
        let node = |(id, info): (&NodeId, &PeerInfo)| (*id, (info.http.clone(), info.peer.clone()));
        MembershipRecord {
            configs: membership.get_joint_config().clone(),
            nodes: membership.nodes().map(node).collect(),
        }
    }
}

impl MembershipRecord {
    /// # Errors
    ///
    /// The record has no voters, or a voter without an address.
    pub fn membership(self) -> Result<Membership, PayloadError> {
        let nodes: BTreeMap<NodeId, PeerInfo> =
            self.nodes.into_iter().map(|(id, (http, peer))| (id, PeerInfo { http, peer })).collect();
        Membership::new(self.configs, nodes).map_err(|error| PayloadError::Undecodable(error.to_string()))
    }
}

/// The stored record of an entry. The bytes of a proposal are stored unchanged.
pub fn record(entry: &Entry) -> LogRecord {
    let payload = match &entry.payload {
        EntryPayload::Blank => Bytes::from_static(&[FORMAT, BLANK]),
        EntryPayload::Normal(proposal) => proposal.0.clone(),
        EntryPayload::Membership(membership) => frame(MEMBERSHIP, &MembershipRecord::from(membership)),
    };
    LogRecord { position: position(&entry.log_id), payload }
}

pub fn entry(record: LogRecord) -> Result<Entry, PayloadError> {
    let payload = match record.payload.get(..2) {
        Some([FORMAT, BLANK]) => EntryPayload::Blank,
        Some([FORMAT, BATCH | JOINED]) => EntryPayload::Normal(Proposal(record.payload)),
        Some([FORMAT, MEMBERSHIP]) => {
            let stored: MembershipRecord = codec::decode(&record.payload[2..], MAX_ENTRY_BYTES)?;
            EntryPayload::Membership(stored.membership()?)
        }
        other => return Err(PayloadError::unknown(other)),
    };
    Ok(Entry { log_id: log_id(record.position), payload })
}

/// The member that joined by this entry, if the entry records a join.
pub fn joined(record: LogRecord) -> Result<Option<Joined>, PayloadError> {
    let EntryPayload::Normal(proposal) = entry(record)?.payload else { return Ok(None) };
    match proposal.content()? {
        Content::Joined(joined) => Ok(Some(joined)),
        Content::Leases(_) => Ok(None),
    }
}

fn frame<T: Serialize>(kind: u8, content: &T) -> Bytes {
    let mut bytes = vec![FORMAT, kind];
    codec::encode_into(content, &mut bytes);
    bytes.into()
}

/// An entry that this build cannot read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    #[error("log entry of format {format}, kind {kind}: a newer build wrote it; run that build or newer")]
    Unknown { format: u8, kind: u8 },
    #[error("log entry shorter than its header of 2 bytes")]
    Short,
    #[error("log entry cannot be read: {0}")]
    Undecodable(String),
}

impl PayloadError {
    fn unknown(header: Option<&[u8]>) -> PayloadError {
        match header {
            Some(&[format, kind]) => PayloadError::Unknown { format, kind },
            _ => PayloadError::Short,
        }
    }
}

impl From<DecodeError> for PayloadError {
    fn from(error: DecodeError) -> PayloadError {
        PayloadError::Undecodable(error.to_string())
    }
}

impl From<PayloadError> for std::io::Error {
    fn from(error: PayloadError) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::InvalidData, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Command, Stamp};
    use crate::storage::Position;

    fn read_back(payload: EntryPayload<Proposal, NodeId, PeerInfo>) -> Vec<u8> {
        let written = Entry { log_id: log_id(Position { term: 3, index: 9 }), payload };
        let record = record(&written);
        assert_eq!(entry(record.clone()).expect("readable"), written);
        record.payload.to_vec()
    }

    #[test]
    fn entries_read_back_and_their_bytes_are_frozen() {
        let batch = Batch { stamp: Stamp { now: 7, wall_ms: 300 }, commands: vec![Command::Tick] };
        let nodes = BTreeMap::from([(1, PeerInfo { http: "h".into(), peer: "p".into() })]);
        assert_eq!(read_back(EntryPayload::Blank), [1, 0]);
        assert_eq!(read_back(EntryPayload::Normal(Proposal::leases(&batch))), [1, 1, 7, 251, 44, 1, 1, 7]);
        assert_eq!(read_back(EntryPayload::Normal(Proposal::joined(Joined { node: 2, incarnation: 5 }))), [1, 3, 2, 5]);
        let membership = Membership::new(vec![BTreeSet::from([1])], nodes).expect("valid");
        assert_eq!(read_back(EntryPayload::Membership(membership)), [1, 2, 1, 1, 1, 1, 1, 1, 104, 1, 112]);
    }

    #[test]
    fn unknown_and_truncated_entries_are_refused() {
        let read = |bytes: &'static [u8]| {
            entry(LogRecord { position: Position::default(), payload: Bytes::from_static(bytes) }).unwrap_err()
        };
        assert_eq!(read(&[2, 1]), PayloadError::Unknown { format: 2, kind: 1 });
        assert_eq!(read(&[1]), PayloadError::Short);
        assert!(matches!(read(&[1, 2, 200]), PayloadError::Undecodable(_)));
    }
}
