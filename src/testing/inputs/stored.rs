//! Files and records on a node's own disk, and the journal of a fence.

use super::{Input, input, texts};
use crate::access::AccessChange;
use crate::fence::journal::{self, Kept};
use crate::lease::{Acquire, Batch, Command, Machine, Stamp};
use crate::raft::State;
use crate::raft::snapshot::{self, SnapshotReader};
use crate::storage::disk::directory;
use crate::storage::disk::segment::{
    self, Item, LogState, RECORD_HEADER_BYTES, RecordBatch, SegmentHeader, SegmentRecord, Start,
};
use crate::storage::record::{
    self, ChunkV1, CommittedV1, HEADER_BYTES, IdentityV1, LogPartV1, ManifestV1, PositionV1, RECORD_VERSION, Raw,
    RecordError, RecordKind, VoteV1,
};
use crate::storage::{Identity, Position, VoteRecord};
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName, Metadata, Ttl};

pub(super) fn inputs() -> Vec<Input> {
    vec![
        input("stored_record", 1024, stored_record, stored_records),
        input("log_header", 64, log_header, log_headers),
        input("log_record", 1024, log_record, log_records),
        input("stored_marker", 512, marker, markers),
        input("snapshot", 4096, snapshot, snapshots),
        input("fence_journal", 1024, fence_journal, fence_journals),
    ]
}

const KEY: &[u8] = b"key";

/// A stored record, unchanged and with a valid checksum: the fuzzer does not find valid checksums.
fn stored_record(bytes: &[u8]) -> bool {
    let unchanged = unseal_any(bytes);
    let Some((kind, payload)) = bytes.split_first() else { return unchanged };
    let sealed = sealed(*kind, payload);
    let found = unseal_any(&sealed);
    // A wrong checksum is detected for each payload.
    let mut broken = sealed;
    broken[2] ^= 1;
    assert!(!unseal_any(&broken));
    unchanged || found
}

fn sealed(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![RECORD_VERSION, kind, 0, 0, 0, 0];
    bytes.extend_from_slice(payload);
    let crc = record::checksum(KEY, &bytes);
    bytes[2..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Whether the record decodes. Asserts that it decodes as at most one kind, and that it reads back unchanged.
fn unseal_any(bytes: &[u8]) -> bool {
    macro_rules! reads_back {
        ($kind:ident, $type:ty) => {
            match record::unseal::<$type>(RecordKind::$kind, KEY, bytes) {
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    assert_eq!(matches!(error, RecordError::Torn { .. }), bytes.len() < HEADER_BYTES);
                    0
                }
                Ok(value) => {
                    let written = record::seal(RecordKind::$kind, KEY, &value, 0);
                    assert_eq!(
                        record::unseal::<$type>(RecordKind::$kind, KEY, &written).expect("it reads back"),
                        value
                    );
                    1
                }
            }
        };
    }
    let kinds = reads_back!(Identity, IdentityV1)
        + reads_back!(Vote, VoteV1)
        + reads_back!(Floor, PositionV1)
        + reads_back!(Committed, CommittedV1)
        + reads_back!(LogPart, LogPartV1)
        + reads_back!(Manifest, ManifestV1)
        + reads_back!(Chunk, ChunkV1);
    assert!(kinds <= 1, "the record decodes as {kinds} kinds");
    kinds == 1
}

/// Kind and payload of each record. The check adds the header.
fn stored_records() -> Vec<Vec<u8>> {
    let position = PositionV1 { term: 3, index: 70_000 };
    let identity = IdentityV1 { cluster: "local".to_owned(), node: 2, incarnation: 7 };
    let vote = VoteV1 { term: 9, candidate: Some(2), committed: true };
    let part = LogPartV1 { term: 3, parts: 1, payload: Raw(b"entry") };
    let manifest = ManifestV1 { id: 4, meta: Raw(b"m"), chunks: 2, bytes: 20_000, crc: 0xdead_beef };
    let records = [
        record::seal(RecordKind::Identity, KEY, &identity, 0),
        record::seal(RecordKind::Vote, KEY, &vote, 0),
        record::seal(RecordKind::Floor, KEY, &position, 0),
        record::seal(RecordKind::Committed, KEY, &CommittedV1 { position: Some(position) }, 0),
        record::seal(RecordKind::LogPart, KEY, &part, 0),
        record::seal(RecordKind::Manifest, KEY, &manifest, 0),
        record::seal(RecordKind::Chunk, KEY, &ChunkV1 { payload: Raw(b"chunk") }, 0),
    ];
    let bare = |record: &Vec<u8>| [&[record[1]], &record[HEADER_BYTES..]].concat();
    records.iter().map(bare).chain([records[1].clone()]).collect()
}

/// The header of a segment of the log.
fn log_header(bytes: &[u8]) -> bool {
    let Ok(header) = SegmentHeader::decode(bytes) else { return false };
    assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
    true
}

fn log_headers() -> Vec<Vec<u8>> {
    vec![SegmentHeader { number: 2, first_group: 5, salt: 3 }.encode()[..40].to_vec()]
}

const SALT: u64 = 7;
const OFFSET: usize = 512;

/// A record of the log, unchanged and with a valid checksum.
fn log_record(bytes: &[u8]) -> bool {
    let unchanged = reads_back(bytes);
    let Some((kind, body)) = bytes.split_first() else { return unchanged };
    let sealed = sealed_log_record(*kind, body);
    let found = reads_back(&sealed);
    let mut broken = sealed;
    broken[2] ^= 1;
    assert_eq!(SegmentRecord::read(&broken, SALT, OFFSET), None);
    unchanged || found
}

fn sealed_log_record(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; RECORD_HEADER_BYTES];
    bytes[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
    bytes[16] = kind;
    bytes.extend_from_slice(body);
    let crc = segment::checksum(SALT, OFFSET, &bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Whether the record decodes. Asserts that its content reads back unchanged.
fn reads_back(bytes: &[u8]) -> bool {
    let Some(record) = SegmentRecord::read(bytes, SALT, OFFSET) else { return false };
    assert!(record.bytes <= bytes.len());
    let Ok(item) = record.item() else { return false };
    let mut batch = RecordBatch::default();
    batch.push(&item);
    let written = batch.seal(SALT, OFFSET, record.group).to_vec();
    let again = SegmentRecord::read(&written, SALT, OFFSET).expect("it reads back");
    assert_eq!((again.item(), again.group, again.is_last), (Ok(item), record.group, true));
    true
}

/// Kind and body of each record. The check adds the header.
fn log_records() -> Vec<Vec<u8>> {
    let position = Position { term: 3, index: 70_000 };
    let vote = VoteRecord { term: 9, candidate: Some(2), committed: true };
    let state = LogState { last: Some(position), floor: None, vote: Some(vote), committed: Some(position) };
    let items = [
        Item::Start(Start { previous_end: 4_000_000, state }),
        Item::Entry { position, payload: b"entry" },
        Item::Truncate(None),
        Item::Floor(position),
        Item::Vote(vote),
        Item::Committed(Some(position)),
        Item::Close,
    ];
    let sealed = |item: &Item<'_>| {
        let mut batch = RecordBatch::default();
        batch.push(item);
        batch.seal(SALT, OFFSET, 5).to_vec()
    };
    let bare = |item| {
        let sealed = sealed(item);
        [&[sealed[16]], &sealed[RECORD_HEADER_BYTES..]].concat()
    };
    items.iter().map(bare).chain([sealed(&items[4])]).collect()
}

/// The marker file, which identifies the owner of a data directory.
fn marker(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Some((_, identity)) = directory::parse_marker(text) else { return false };
    let (format, again) = directory::parse_marker(&directory::marker_text(&identity)).expect("it reads back");
    assert_eq!((format, again), (directory::FORMAT, identity));
    true
}

fn markers() -> Vec<Vec<u8>> {
    let own = directory::marker_text(&Identity { cluster: "a \"b\"\nc = d".to_owned(), node: 7 });
    vec![own.into_bytes(), b"node = 1\ncluster = \"c\"\nformat = 4294967295".to_vec()]
}

/// A snapshot of the state. An accepted snapshot encodes to equal bytes again, and its machine can apply entries.
fn snapshot(bytes: &[u8]) -> bool {
    let Some(state) = read_snapshot(bytes, bytes.len().max(1)) else { return false };
    let written = written_snapshot(&state);
    let again = read_snapshot(&written, 7).expect("it reads back");
    assert_eq!(written_snapshot(&again), written);
    apply_ticks(state.machine);
    true
}

fn read_snapshot(bytes: &[u8], piece: usize) -> Option<State> {
    let mut reader = SnapshotReader::default();
    bytes.chunks(piece).try_for_each(|piece| reader.push(piece)).ok()?;
    reader.finish().ok()
}

fn written_snapshot(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    let written = snapshot::encode(state, |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    });
    written.expect("the buffer accepts all bytes");
    bytes
}

/// Applies up to four ticks, until no timer is due or no next token exists.
fn apply_ticks(mut machine: Machine) {
    for _ in 0..4 {
        let Some(due) = machine.next_due() else { return };
        let last = machine.applied().unwrap_or(FencingToken { term: 0, index: 0 });
        let Ok(next) = FencingToken::try_from(last.as_u64().saturating_add(1)) else { return };
        if next.index <= last.index || next.term < last.term {
            return;
        }
        let stamp = Stamp { now: due.max(machine.now()), wall_ms: 0 };
        machine.apply(next, &Batch { stamp, commands: vec![Command::Tick] });
    }
}

fn snapshots() -> Vec<Vec<u8>> {
    let machine = Machine::new();
    let mut state = State { machine, ..State::default() };
    let empty = written_snapshot(&state);
    for (index, commands) in (10..).zip(entries()) {
        let batch = Batch { stamp: Stamp { now: index * 100, wall_ms: 1_700_000_000_000 + index }, commands };
        state.machine.apply(FencingToken { term: 3, index }, &batch);
    }
    state.joined.insert(2, 7);
    let filled = written_snapshot(&state);
    state.machine.restore(FencingToken { term: 1 << 50, index: 1 << 46 }, 1_700_000_000_000, Some(60_000));
    let restored = written_snapshot(&state);
    state.access = state.access.with(&AccessChange::Enable(true));
    vec![empty, filled, restored, written_snapshot(&state)]
}

/// Commands that produce a held lease, a waiter, a lock delay, an ended lease, and each kind of transition.
fn entries() -> [Vec<Command>; 6] {
    let name = |text: &str| LeaseName::new(text).expect("a valid name");
    let holder = |text: &str| HolderId::new(text).expect("a valid holder");
    let acquire = |lease: &str, who: &str, limit, wait_ms| {
        let metadata = Metadata::new([("k".to_string(), "v".to_string())].into()).expect("small metadata");
        let (name, holder, ttl) = (name(lease), holder(who), Ttl::millis(500).expect("valid"));
        Command::Acquire(Acquire { name, holder, ttl, wait_ms, lock_delay_ms: 300, limit, metadata })
    };
    let token = |index| FencingToken { term: 3, index };
    let to = Some(holder("r"));
    [
        vec![acquire("a", "p", 1, None), acquire("b", "p", 1, None), acquire("c", "p", 1, None)],
        vec![acquire("a", "q", 1, Some(5000)), acquire("a", "r", 1, Some(5000)), acquire("b", "q", 1, Some(5000))],
        vec![Command::HandOver { name: name("a"), holder: holder("p"), token: token(10), to }],
        vec![Command::Release { name: name("a"), holder: holder("r"), token: token(12) }, acquire("e", "p", 2, None)],
        vec![Command::Revoke { name: name("b"), reason: "why".to_string() }, acquire("e", "q", 2, None)],
        vec![acquire("d", "p", 1, None), acquire("e", "r", 2, Some(400))],
    ]
}

/// The journal of a fence, with the highest token of each resource.
fn fence_journal(bytes: &[u8]) -> bool {
    let Ok(tokens) = journal::parse(bytes) else { return false };
    assert_eq!(journal::parse(&journal::whole(&tokens)).as_ref(), Ok(&tokens));
    true
}

fn fence_journals() -> Vec<Vec<u8>> {
    let mark = |value: u64| value.try_into().expect("63 bits");
    let kept: Kept = [("a".to_owned(), mark(1)), ("printer/2".to_owned(), mark(i64::MAX as u64))].into();
    let whole = journal::whole(&kept);
    let torn = whole[..whole.len() - 3].to_vec();
    [texts(["tenure fences 1\n"]), vec![whole, torn]].concat()
}
