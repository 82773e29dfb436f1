//! Messages from other nodes, and log entries.

use bytes::Bytes;
use futures_util::FutureExt;

use super::{Input, encoded, input};
use crate::access::{Access, AccessChange, AccessName, AccessToken, Caller, Denied, TokenHash};
use crate::lease::{Acquire, Batch, Command, ListFilter, Outcome, Stamp};
use crate::node::request::call::{MAX_CALL_BYTES, MAX_REPLY_BYTES, NodeCall, NodeReply};
use crate::node::{Answer, Consistency, MemberRefusal, Query, Request, RequestError, Response, Served};
use crate::peer::Lane;
use crate::peer::frame::{self, Frame, FrameKind};
use crate::peer::handshake::{self, Hello, PeerRefusal};
use crate::raft::log::{self, Content, Joined, MembershipRecord};
use crate::raft::wire::{self, Append, RequestVote};
use crate::raft::{Call, FeatureLevel, Proposal, Reply};
use crate::storage::{LogRecord, Position, VoteRecord, codec};
use crate::trace::TraceParent;
use crate::types::{DiskState, HolderId, LeaseName, MemberChange, Metadata, Ttl};

pub(super) fn inputs() -> Vec<Input> {
    vec![
        input("peer_frames", 4096, frames, some_frames),
        input("peer_hello", 1024, hello, hellos),
        input("raft_call", 4096, raft_call, raft_calls),
        input("raft_reply", 4096, raft_reply, raft_replies),
        input("node_call", 4096, node_call, node_calls),
        input("node_reply", 4096, node_reply, node_replies),
        input("log_entry", 4096, log_entry, log_entries),
    ]
}

/// A sequence of frames. It is accepted if it ends at the end of a frame.
fn frames(mut bytes: &[u8]) -> bool {
    let max_bytes = Lane::Control.max_body();
    loop {
        let before = bytes;
        let read = frame::read(&mut bytes, max_bytes).now_or_never().expect("a read from memory never waits");
        match read {
            Err(_) => return false,
            // The reader treats an incomplete length as the end of the stream.
            Ok(None) => return before.is_empty(),
            Ok(Some(frame)) => {
                assert!(frame.body.len() <= max_bytes, "{} bytes", frame.body.len());
                let mut written = Vec::new();
                frame::write(&mut written, &frame)
                    .now_or_never()
                    .expect("no wait")
                    .expect("a vector accepts all bytes");
                assert_eq!(written, before[..before.len() - bytes.len()]);
            }
        }
    }
}

fn some_frames() -> Vec<Vec<u8>> {
    let written = |kind, id, body: &'static [u8]| {
        let mut bytes = Vec::new();
        let frame = Frame { kind, id, body: Bytes::from_static(body) };
        frame::write(&mut bytes, &frame).now_or_never().expect("no wait").expect("a vector accepts all bytes");
        bytes
    };
    let (raft, node) = (written(FrameKind::Raft, 7, b"body"), written(FrameKind::Node, 8, b"body"));
    let response = written(FrameKind::Response, u64::MAX, b"");
    let withdrawal = written(FrameKind::Withdraw, 7, b"");
    vec![[node.clone(), withdrawal].concat(), [response, raft, node].concat(), Vec::new()]
}

fn hello(mut bytes: &[u8]) -> bool {
    let read = handshake::read_hello(&mut bytes).now_or_never().expect("a read from memory never waits");
    let Ok(Ok(hello)) = read else { return false };
    let written = written_hello(&hello);
    let again = handshake::read_hello(&mut &written[..]).now_or_never().expect("no wait").expect("it reads back");
    assert_eq!(again, Ok(hello));
    true
}

fn written_hello(hello: &Hello) -> Vec<u8> {
    let mut bytes = Vec::new();
    let written = handshake::write_hello(&mut bytes, hello).now_or_never().expect("a write to memory never waits");
    written.expect("a vector accepts all bytes");
    bytes
}

fn hellos() -> Vec<Vec<u8>> {
    let plain = Hello {
        cluster: "local".to_owned(),
        from: 1,
        incarnation: 7,
        vote_lease_ms: 325,
        to: 2,
        lane: 0,
        refused: None,
    };
    let refusals = [
        PeerRefusal::OtherCluster { node: 1, theirs: "a".to_owned(), ours: "b".to_owned() },
        PeerRefusal::OtherNode { caller: 1, meant: 2, answers: 3 },
        PeerRefusal::SharedId { node: 1 },
        PeerRefusal::OtherDisk { node: 1, joined: 7, now: 8 },
        PeerRefusal::OtherTimings { node: 1, theirs_ms: 325, ours_ms: 4000 },
        PeerRefusal::OtherVersion { theirs: 1, ours: 2 },
    ];
    let refused = refusals.into_iter().map(|refusal| Hello { refused: Some(refusal), ..plain.clone() });
    std::iter::once(plain.clone()).chain(refused).map(|hello| written_hello(&hello)).collect()
}

/// A Raft call, decoded into openraft's types.
fn raft_call(bytes: &[u8]) -> bool {
    match encoded::<Call>(bytes, wire::MAX_MESSAGE_BYTES) {
        None => false,
        Some(Call::Append(append) | Call::DatedAppend { append, .. }) => append.request(1).is_ok(),
        Some(Call::Vote(request) | Call::PreVote(request)) => {
            request.request(1);
            true
        }
        Some(Call::Transfer(transfer)) => {
            transfer.request(1);
            true
        }
        Some(_) => true,
    }
}

const TIME: wire::ProcessTime = wire::ProcessTime { process: u64::MAX, ms: 700 };
const VOTE: VoteRecord = VoteRecord { term: 3, candidate: Some(1), committed: true };

fn raft_calls() -> Vec<Vec<u8>> {
    let at = |index| Position { term: 3, index };
    let entries = [blank(), batch(), membership()];
    let entries = (8..).zip(entries).map(|(index, payload)| (at(index), payload.into())).collect();
    let append = Append { vote: VOTE, previous: Some(at(7)), commit: Some(at(6)), entries };
    let empty = || Append { vote: VOTE, previous: None, commit: None, entries: Vec::new() };
    let request_vote = || RequestVote { vote: VOTE, last: Some(at(7)), transfer: false };
    let transfer = wire::TransferCall { from: VOTE, to: 2, last: None };
    let calls = [
        Call::Append(append),
        Call::Append(empty()),
        Call::Vote(request_vote()),
        Call::PreVote(request_vote()),
        Call::Transfer(transfer),
        Call::SnapshotBegin,
        Call::SnapshotBytes(Bytes::from_static(b"bytes")),
        Call::SnapshotEnd { vote: VOTE, crc: 7 },
        Call::DatedAppend { append: empty(), echo: None, shown: None },
        Call::DatedAppend { append: empty(), echo: Some(TIME), shown: Some(7) },
    ];
    calls.iter().map(codec::encode).collect()
}

fn raft_reply(bytes: &[u8]) -> bool {
    match encoded::<Reply>(bytes, wire::MAX_MESSAGE_BYTES) {
        None => false,
        Some(Reply::Append(reply) | Reply::DatedAppend { reply, .. }) => {
            reply.response(1);
            true
        }
        Some(Reply::Vote(reply)) => {
            reply.response(1);
            true
        }
        Some(_) => true,
    }
}

fn raft_replies() -> Vec<Vec<u8>> {
    let at = Some(Position { term: 3, index: 7 });
    let replies = [
        Reply::Append(wire::AppendReply::Success),
        Reply::Append(wire::AppendReply::PartialSuccess(at)),
        Reply::Append(wire::AppendReply::HigherVote(VOTE)),
        Reply::Vote(wire::VoteReply { vote: VOTE, granted: true, last: at }),
        Reply::Transfer(Err("no".to_owned())),
        Reply::SnapshotContinue,
        Reply::SnapshotEnd { vote: VOTE },
        Reply::DatedAppend { reply: wire::AppendReply::PartialSuccess(at), at: TIME },
        Reply::Failed("why".to_owned()),
    ];
    replies.iter().map(codec::encode).collect()
}

/// A call of another node, usually a client's request that it forwards.
fn node_call(bytes: &[u8]) -> bool {
    encoded::<NodeCall>(bytes, MAX_CALL_BYTES).is_some()
}

fn node_calls() -> Vec<Vec<u8>> {
    let filter = ListFilter { prefix: "jo".to_owned(), holder: Some(holder()), states: Vec::new() };
    let read = |query| Request::Read { query, consistency: Consistency::Linearizable };
    let requests = [
        Request::Acquire(acquire()),
        Request::Change(Command::Release { name: name(), holder: holder(), token: TOKEN }),
        Request::Change(Command::Revoke { name: name(), reason: "stuck".to_owned() }),
        read(Query::Lease(name())),
        read(Query::Explain { name: name(), holder: None }),
        read(Query::List { filter, after: None, limit: 100 }),
        Request::Members,
        Request::ChangeMembers(MemberChange::Add { id: 4, http: "d:1".to_owned(), peer: "d:2".to_owned() }),
        Request::ChangeMembers(MemberChange::Replace { old: 1, new: 4 }),
        Request::Transfer(Some(2)),
        Request::Access,
    ];
    let change =
        Request::ChangeAccess(AccessChange::SetPrincipal { principal: principal(), roles: [principal()].into() });
    let hash = TokenHash::of(&AccessToken::from_secret([7; 32]));
    let callers = [Caller::Program, Caller::Token(hash), Caller::Certificate(principal())];
    let named = callers.map(|caller| NodeCall::ForwardAs { caller, request: change.clone() });
    let trace = TraceParent { trace: [1; 16], span: [2; 8], flags: 1, state: "a=1".to_owned() };
    let in_term = NodeCall::ForwardIn {
        term: 3,
        trace: Some(trace.clone()),
        caller: Caller::Token(hash),
        request: Request::Acquire(acquire()),
    };
    let traced = NodeCall::ForwardTraced { trace, caller: Caller::Program, request: change };
    let forwarded = requests
        .map(NodeCall::Forward)
        .into_iter()
        .chain([NodeCall::StoreState, NodeCall::FeatureLevel, NodeCall::DiskState])
        .chain(named);
    let forwarded = forwarded.chain([traced, in_term]);
    forwarded.map(|call| call.encode().into()).collect()
}

fn principal() -> AccessName {
    AccessName::new("ci").expect("valid")
}

/// The reply to a call of this node.
fn node_reply(bytes: &[u8]) -> bool {
    encoded::<NodeReply>(bytes, MAX_REPLY_BYTES).is_some()
}

fn node_replies() -> Vec<Vec<u8>> {
    let served = Served { node: 1, term: 3, applied: 9, now: 700, stale_ms: None };
    let done = |answer| NodeReply::Done(Box::new(Ok(Response { answer, served })));
    let replies = [
        done(Answer::Outcome(Outcome::Released(true))),
        done(Answer::WaitTimeout),
        done(Answer::Lease(Vec::new())),
        NodeReply::Done(Box::new(Err(RequestError::Unknown("the connection broke".to_owned())))),
        NodeReply::NotLeader,
        NodeReply::StillWaits,
        NodeReply::StoreState { is_empty: true },
        NodeReply::DiskState(DiskState::Stalled),
        NodeReply::Removed,
        NodeReply::FeatureLevel(FeatureLevel::SUPPORTED),
        done(Answer::Transferred { from: 1, leader: 2 }),
        NodeReply::Done(Box::new(Err(RequestError::MemberRefused {
            refusal: MemberRefusal::NotMember,
            detail: "node 9 is not a member".to_owned(),
        }))),
        NodeReply::Done(Box::new(Err(RequestError::Denied(Denied::Forbidden("no".to_owned()))))),
        done(Answer::Access(Access::default().with(&AccessChange::Enable(true)).view())),
    ];
    replies.iter().map(codec::encode).collect()
}

/// The payload of a log entry, from a peer or from the disk.
fn log_entry(bytes: &[u8]) -> bool {
    let read = LogRecord { position: Position { term: 3, index: 9 }, payload: Bytes::copy_from_slice(bytes) };
    let Ok(entry) = log::entry(read) else { return false };
    let record = log::record(&entry);
    assert_eq!(log::entry(record.clone()).expect("it reads back"), entry);
    match Proposal(record.payload).content() {
        Ok(Content::Leases(batch)) => {
            let again = Proposal::leases(&batch).content();
            assert_eq!(again.expect("it reads back"), Content::Leases(batch));
        }
        Ok(Content::Joined(joined)) => {
            let again = Proposal::joined(joined).content();
            assert_eq!(again.expect("it reads back"), Content::Joined(joined));
        }
        Ok(Content::Access(change)) => {
            let again = Proposal::access(&change).content();
            assert_eq!(again.expect("it reads back"), Content::Access(change));
        }
        Ok(Content::Level(level)) => {
            assert!(level <= FeatureLevel::SUPPORTED);
            let again = Proposal::level(level).content();
            assert_eq!(again.expect("it reads back"), Content::Level(level));
        }
        // The entry has no proposal, or a newer build wrote it.
        Err(_) => {}
    }
    true
}

fn log_entries() -> Vec<Vec<u8>> {
    let joined = Proposal::joined(Joined { node: 2, incarnation: 5 });
    let change = Proposal::access(&AccessChange::RemoveRole(principal()));
    let level = Proposal::level(FeatureLevel::SUPPORTED);
    vec![blank(), batch(), membership(), joined.0.to_vec(), change.0.to_vec(), level.0.to_vec()]
}

const TOKEN: crate::FencingToken = crate::FencingToken { term: 1, index: 5 };

fn name() -> LeaseName {
    LeaseName::new("jobs").expect("it is valid")
}

fn holder() -> HolderId {
    HolderId::new("worker-1").expect("it is valid")
}

fn acquire() -> Acquire {
    let metadata = Metadata::new([("pid".to_owned(), "7".to_owned())].into()).expect("it is small");
    let (ttl, wait_ms) = (Ttl::millis(30_000).expect("valid"), Some(5_000));
    Acquire { name: name(), holder: holder(), ttl, wait_ms, lock_delay_ms: 100, limit: 3, metadata }
}

fn blank() -> Vec<u8> {
    vec![1, 0]
}

fn batch() -> Vec<u8> {
    let commands = vec![Command::Acquire(acquire()), Command::Tick];
    Proposal::leases(&Batch { stamp: Stamp { now: 7, wall_ms: 300 }, commands }).0.to_vec()
}

fn membership() -> Vec<u8> {
    let node = |id: u64| (id, (format!("10.0.0.{id}:7101"), format!("10.0.0.{id}:7201")));
    let record = MembershipRecord { configs: vec![[1, 2, 3].into()], nodes: [node(1), node(2), node(3)].into() };
    [&[1, 2][..], &codec::encode(&record)].concat()
}
