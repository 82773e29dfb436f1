//! Raft messages between nodes.
//!
//! This crate defines its own message types. openraft's types may change with each release, and some of its errors
//! cannot be encoded without loss. The format stays compatible: enums grow only at the end, and structs are frozen.

use bytes::Bytes;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse};
use serde::{Deserialize, Serialize};

use super::log::{self, MAX_ENTRY_BYTES, PayloadError};
use super::types::{TypeConfig, log_id, position, vote, vote_record};
use crate::peer::Lane;
use crate::storage::codec::{self, DecodeError};
use crate::storage::{LogRecord, Position, SNAPSHOT_CHUNK_BYTES, VoteRecord};
use crate::types::NodeId;

/// Most bytes of entries in one append. A single larger entry is still sent.
pub const MAX_APPEND_BYTES: usize = 1 << 20;
/// Bytes of a snapshot in one message. The last chunk may exceed it.
pub const SNAPSHOT_MESSAGE_BYTES: usize = 256 << 10;
/// Largest message that a node decodes, in bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 4 << 20;

// Each Raft message fits its lane. An append has entries with their positions, and can exceed its bound by one entry. A
// snapshot message can exceed its bound by one chunk.
const _: () = {
    const POSITIONS_BYTES: usize = 1024 * 32;
    assert!(MAX_APPEND_BYTES + MAX_ENTRY_BYTES + POSITIONS_BYTES <= Lane::Log.max_body());
    assert!(SNAPSHOT_MESSAGE_BYTES + SNAPSHOT_CHUNK_BYTES + 1024 <= Lane::Snapshot.max_body());
    assert!(Lane::Control.max_body() <= MAX_MESSAGE_BYTES);
    assert!(Lane::Log.max_body() <= MAX_MESSAGE_BYTES && Lane::Snapshot.max_body() <= MAX_MESSAGE_BYTES);
};

#[derive(Debug, Serialize, Deserialize)]
pub enum Call {
    Append(Append),
    Vote(RequestVote),
    PreVote(RequestVote),
    Transfer(TransferCall),
    SnapshotBegin,
    SnapshotBytes(Bytes),
    SnapshotEnd {
        vote: VoteRecord,
        crc: u32,
    },
    /// From level [`DATED_APPENDS`](super::level::FeatureLevel::DATED_APPENDS) on.
    DatedAppend {
        append: Append,
        /// The newest time that this caller got from the receiver, so the message is not older.
        echo: Option<ProcessTime>,
        /// No node had shown a later entry when this message left. `None` if the caller cannot know that.
        shown: Option<u64>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    Append(AppendReply),
    Vote(VoteReply),
    Transfer(Result<(), String>),
    SnapshotContinue,
    SnapshotEnd {
        vote: VoteRecord,
    },
    /// The call failed on this node. A retry alone does not help.
    Failed(String),
    /// The answer to [`Call::DatedAppend`], with the time of this answer.
    DatedAppend {
        reply: AppendReply,
        at: ProcessTime,
    },
}

/// A time of one process. Only that process can read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessTime {
    /// A random number that the process chose at its start.
    pub process: u64,
    /// Milliseconds of its clock.
    pub ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Append {
    pub vote: VoteRecord,
    pub previous: Option<Position>,
    pub commit: Option<Position>,
    pub entries: Vec<(Position, Bytes)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum AppendReply {
    Success,
    PartialSuccess(Option<Position>),
    Conflict,
    HigherVote(VoteRecord),
}

#[derive(Debug, Serialize, Deserialize)]
pub struct RequestVote {
    pub vote: VoteRecord,
    pub last: Option<Position>,
    pub transfer: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct VoteReply {
    pub vote: VoteRecord,
    pub granted: bool,
    pub last: Option<Position>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct TransferCall {
    pub from: VoteRecord,
    pub to: NodeId,
    pub last: Option<Position>,
}

pub fn encode<T: Serialize>(message: &T) -> Bytes {
    codec::encode(message).into()
}

pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    codec::decode(bytes, MAX_MESSAGE_BYTES)
}

impl Append {
    pub fn new(request: &AppendEntriesRequest<TypeConfig>) -> Append {
        let entry = |entry| {
            let LogRecord { position, payload } = log::record(entry);
            (position, payload)
        };
        Append {
            vote: vote_record(&request.vote),
            previous: request.prev_log_id.as_ref().map(position),
            commit: request.leader_commit.as_ref().map(position),
            entries: request.entries.iter().map(entry).collect(),
        }
    }

    pub fn request(self, from: NodeId) -> Result<AppendEntriesRequest<TypeConfig>, PayloadError> {
        let entry = |(position, payload)| log::entry(LogRecord { position, payload });
        Ok(AppendEntriesRequest {
            vote: vote(self.vote, from),
            prev_log_id: self.previous.map(log_id),
            leader_commit: self.commit.map(log_id),
            entries: self.entries.into_iter().map(entry).collect::<Result<_, _>>()?,
        })
    }
}

impl AppendReply {
    pub fn new(response: AppendEntriesResponse<TypeConfig>) -> AppendReply {
        match response {
            AppendEntriesResponse::Success => AppendReply::Success,
            AppendEntriesResponse::PartialSuccess(upto) => AppendReply::PartialSuccess(upto.as_ref().map(position)),
            AppendEntriesResponse::Conflict => AppendReply::Conflict,
            AppendEntriesResponse::HigherVote(vote) => AppendReply::HigherVote(vote_record(&vote)),
        }
    }

    pub fn response(self, from: NodeId) -> AppendEntriesResponse<TypeConfig> {
        match self {
            AppendReply::Success => AppendEntriesResponse::Success,
            AppendReply::PartialSuccess(upto) => AppendEntriesResponse::PartialSuccess(upto.map(log_id)),
            AppendReply::Conflict => AppendEntriesResponse::Conflict,
            AppendReply::HigherVote(higher) => AppendEntriesResponse::HigherVote(vote(higher, from)),
        }
    }
}

impl RequestVote {
    pub fn new(request: &VoteRequest<TypeConfig>) -> RequestVote {
        RequestVote {
            vote: vote_record(&request.vote),
            last: request.last_log_id.as_ref().map(position),
            transfer: request.leadership_transfer,
        }
    }

    pub fn request(self, from: NodeId) -> VoteRequest<TypeConfig> {
        VoteRequest {
            vote: vote(self.vote, from),
            last_log_id: self.last.map(log_id),
            leadership_transfer: self.transfer,
        }
    }
}

impl VoteReply {
    pub fn new(response: VoteResponse<TypeConfig>) -> VoteReply {
        VoteReply {
            vote: vote_record(&response.vote),
            granted: response.vote_granted,
            last: response.last_log_id.as_ref().map(position),
        }
    }

    pub fn response(self, from: NodeId) -> VoteResponse<TypeConfig> {
        VoteResponse { vote: vote(self.vote, from), vote_granted: self.granted, last_log_id: self.last.map(log_id) }
    }
}

impl TransferCall {
    pub fn new(request: &TransferLeaderRequest<TypeConfig>) -> TransferCall {
        TransferCall {
            from: vote_record(request.from_leader()),
            to: *request.to_node_id(),
            last: request.last_log_id().map(position),
        }
    }

    pub fn request(self, from: NodeId) -> TransferLeaderRequest<TypeConfig> {
        TransferLeaderRequest::new(vote(self.from, from), self.to, self.last.map(log_id))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;
    use crate::raft::types::{Entry, Vote};

    const CALLER: NodeId = 3;

    fn ballot_vote(committed: bool) -> Vote {
        vote(VoteRecord { term: 7, candidate: Some(CALLER), committed }, CALLER)
    }

    fn positions() -> [Option<super::super::types::LogId>; 2] {
        [None, Some(log_id(Position { term: 6, index: 41 }))]
    }

    /// The message after it was encoded and decoded.
    fn sent<T: Serialize + for<'a> Deserialize<'a>>(message: &T) -> T {
        decode(&encode(message)).expect("it is readable")
    }

    fn assert_same(received: &impl Debug, sent: &impl Debug) {
        assert_eq!(format!("{received:?}"), format!("{sent:?}"));
    }

    #[test]
    fn ballot_arrives_as_it_was_sent() {
        for leadership_transfer in [false, true] {
            for last_log_id in positions() {
                let request = VoteRequest { vote: ballot_vote(false), last_log_id, leadership_transfer };
                assert_same(&sent(&RequestVote::new(&request)).request(CALLER), &request);
            }
        }
    }

    #[test]
    fn answer_to_a_ballot_arrives_as_it_was_sent() {
        for vote_granted in [false, true] {
            for last_log_id in positions() {
                let response = || VoteResponse { vote: ballot_vote(true), vote_granted, last_log_id };
                assert_same(&sent(&VoteReply::new(response())).response(CALLER), &response());
            }
        }
    }

    #[test]
    fn append_arrives_as_it_was_sent() {
        let entry =
            |index| Entry { log_id: log_id(Position { term: 7, index }), payload: openraft::EntryPayload::Blank };
        for prev_log_id in positions() {
            for leader_commit in positions() {
                for count in [0, 1, 3] {
                    let entries = (42..42 + count).map(entry).collect();
                    let request = AppendEntriesRequest { vote: ballot_vote(true), prev_log_id, leader_commit, entries };
                    let received = sent(&Append::new(&request)).request(CALLER).expect("its entries are readable");
                    assert_same(&received, &request);
                }
            }
        }
    }

    #[test]
    fn answer_to_an_append_arrives_as_it_was_sent() {
        let [none, some] = positions();
        for make in [
            || AppendEntriesResponse::Success,
            || AppendEntriesResponse::Conflict,
            || AppendEntriesResponse::HigherVote(ballot_vote(false)),
            || AppendEntriesResponse::HigherVote(ballot_vote(true)),
        ] {
            assert_same(&sent(&AppendReply::new(make())).response(CALLER), &make());
        }
        for upto in [none, some] {
            let received = sent(&AppendReply::new(AppendEntriesResponse::PartialSuccess(upto))).response(CALLER);
            assert_same(&received, &AppendEntriesResponse::<TypeConfig>::PartialSuccess(upto));
        }
    }

    #[test]
    fn transfer_arrives_as_it_was_sent() {
        for last in positions() {
            let request = TransferLeaderRequest::new(ballot_vote(true), 2, last);
            assert_same(&sent(&TransferCall::new(&request)).request(CALLER), &request);
        }
    }
}
