//! The byte format of snapshots.
//!
//! A snapshot is a sequence of length-prefixed records: a header, then the records of each name in name order. Equal
//! states have equal bytes on all replicas. A large name has several records, so the size of a record is bounded.

use std::collections::BTreeMap;

use openraft::StoredMembership;
use serde::{Deserialize, Serialize};

use super::level::{FeatureLevel, NewerLevel};
use super::log::{MembershipRecord, PayloadError};
use super::state_machine::State;
use super::types::{SnapshotMeta, log_id, position};
use crate::access::{Access, AccessState, TokenId};
use crate::lease::{BadSnapshot, Rebuild, SnapshotHeader, SnapshotHeaderV1, SnapshotHeaderV2, StoredRecord};
use crate::storage::codec::{self, DecodeError};
use crate::storage::{Position, SnapshotManifest, SnapshotWriter, Storage, StorageError};
use crate::types::NodeId;

/// The format that this build writes from the feature level of expiring tokens on. It also reads formats 1 to 5.
const FORMAT: u32 = 6;
/// The format above the first feature level and below that of expiring tokens.
const FORMAT_WITHOUT_EXPIRY: u32 = 5;
/// The format at the first feature level. A node of an older build can read it.
const FORMAT_OF_FIRST_LEVEL: u32 = 3;
/// Largest record that this build writes, in bytes. It far exceeds one part of a name.
const MAX_WRITTEN_BYTES: usize = 1 << 20;
/// Largest record that this build reads, in bytes. Format 1 wrote each name as one record of any size.
const MAX_RECORD_BYTES: usize = 512 << 20;

/// The snapshot type of openraft's interface.
pub enum SnapshotData<S: Storage> {
    /// A complete snapshot in this node's store.
    Stored { store: S, manifest: SnapshotManifest },
    /// A received and validated snapshot. The node writes its manifest only after openraft accepts it. Otherwise, a
    /// snapshot from a deposed leader could replace a newer one whose log entries are already purged.
    Received { writer: SnapshotWriter<S>, state: Box<State> },
}

/// Position and membership of a snapshot. The store keeps them in the manifest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    pub last: Option<Position>,
    pub membership_at: Option<Position>,
    pub membership: MembershipRecord,
}

/// The header of formats 3 to 6. In format 4, the next record is an [`AccessState`]. In format 5, it is an
/// [`ExtensionV5`]. In format 6, it is an [`Extension`].
#[derive(Serialize, Deserialize)]
struct StateHeader {
    format: u32,
    meta: Meta,
    joined: BTreeMap<NodeId, u64>,
    machine: SnapshotHeader,
}

/// The fields of format 6 that the header does not have.
#[derive(Serialize, Deserialize)]
struct Extension {
    level: FeatureLevel,
    access: AccessState,
    /// When tokens expire, by the wall clock.
    expiries: BTreeMap<TokenId, u64>,
}

#[derive(Serialize, Deserialize)]
struct ExtensionV5 {
    level: FeatureLevel,
    access: AccessState,
}

#[derive(Serialize, Deserialize)]
struct HeaderV2 {
    format: u32,
    meta: Meta,
    joined: BTreeMap<NodeId, u64>,
    machine: SnapshotHeaderV2,
}

#[derive(Serialize, Deserialize)]
struct HeaderV1 {
    format: u32,
    meta: Meta,
    joined: BTreeMap<NodeId, u64>,
    machine: SnapshotHeaderV1,
}

impl Meta {
    pub fn of(state: &State) -> Meta {
        Meta {
            last: state.applied.as_ref().map(position),
            membership_at: state.membership.log_id().as_ref().map(position),
            membership: MembershipRecord::from(state.membership.membership()),
        }
    }

    pub fn snapshot_meta(self) -> Result<SnapshotMeta, PayloadError> {
        let membership = self.membership.membership()?;
        Ok(SnapshotMeta {
            last_log_id: self.last.map(log_id),
            last_membership: StoredMembership::new(self.membership_at.map(log_id), membership),
        })
    }
}

/// Writes a view of the state, reads the stored bytes back, and verifies that they can be loaded.
///
/// It blocks on the disk, so async code must not call it directly.
///
/// # Errors
///
/// The stored bytes are not a snapshot of the view. The log must not be purged for it.
pub fn write<S: Storage>(view: &State, writer: &mut SnapshotWriter<S>) -> Result<(), SnapshotError> {
    encode(view, |bytes| writer.push(bytes))?;
    let mut reader = SnapshotReader::checking();
    writer.read_back(|bytes| reader.push(bytes))?;
    let read = reader.finish()?;
    let is_other = Meta::of(&read) != Meta::of(view) || read.machine.applied() != view.machine.applied();
    if is_other || read.access.state() != view.access.state() || read.level != view.level {
        return Err(SnapshotError::OtherState);
    }
    Ok(())
}

/// Encodes a view of the state and passes the bytes to `sink` in parts.
pub(crate) fn encode(
    view: &State,
    mut sink: impl FnMut(&[u8]) -> Result<(), StorageError>,
) -> Result<(), SnapshotError> {
    let is_first = view.level == FeatureLevel::FIRST && view.access.is_empty();
    let format = match view.level {
        _ if is_first => FORMAT_OF_FIRST_LEVEL,
        level if level < FeatureLevel::TOKEN_EXPIRY => FORMAT_WITHOUT_EXPIRY,
        _ => FORMAT,
    };
    let header =
        StateHeader { format, meta: Meta::of(view), joined: view.joined.clone(), machine: view.machine.header() };
    let mut bytes = Vec::new();
    push(&header, &mut bytes, &mut sink)?;
    let (level, access) = (view.level, view.access.state());
    match format {
        FORMAT_OF_FIRST_LEVEL => {}
        FORMAT_WITHOUT_EXPIRY => push(&ExtensionV5 { level, access: access.clone() }, &mut bytes, &mut sink)?,
        _ => {
            let extension = Extension { level, access: access.clone(), expiries: access.expiries().clone() };
            push(&extension, &mut bytes, &mut sink)?;
        }
    }
    for record in view.machine.records() {
        push(&record, &mut bytes, &mut sink)?;
    }
    Ok(())
}

fn push<T: Serialize>(
    record: &T,
    bytes: &mut Vec<u8>,
    sink: &mut impl FnMut(&[u8]) -> Result<(), StorageError>,
) -> Result<(), SnapshotError> {
    bytes.clear();
    codec::encode_into(record, bytes);
    if bytes.len() > MAX_WRITTEN_BYTES {
        return Err(SnapshotError::RecordTooLong { bytes: bytes.len(), max: MAX_WRITTEN_BYTES });
    }
    sink(&(bytes.len() as u32).to_be_bytes())?;
    Ok(sink(bytes)?)
}

/// Decodes a snapshot incrementally, from parts of any size.
#[derive(Default)]
pub struct SnapshotReader {
    pending: Vec<u8>,
    partial: Option<PartialState>,
    checks_only: bool,
}

/// The state after the header: the machine grows by one record at a time.
struct PartialState {
    meta: Meta,
    joined: BTreeMap<NodeId, u64>,
    format: u8,
    /// `None` until its record was read.
    extension: Option<(FeatureLevel, Access)>,
    machine: Rebuild,
}

impl SnapshotReader {
    /// A reader that validates all records and discards the names. Its final state has no names.
    pub fn checking() -> SnapshotReader {
        SnapshotReader { checks_only: true, ..SnapshotReader::default() }
    }

    pub fn push(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.pending.extend_from_slice(bytes);
        let mut read = 0;
        while let Some(record) = next_record(&self.pending[read..])? {
            read += 4 + record.len();
            match &mut self.partial {
                None => self.partial = Some(read_header(record, self.checks_only)?),
                Some(partial) if partial.extension.is_none() => {
                    partial.extension = Some(read_extension(partial.format, record)?);
                }
                Some(partial) => partial.machine.push(codec::decode::<StoredRecord>(record, MAX_RECORD_BYTES)?)?,
            }
        }
        self.pending.drain(..read);
        Ok(())
    }

    pub fn finish(self) -> Result<State, SnapshotError> {
        let PartialState { meta, joined, extension, machine, .. } = self.partial.ok_or(SnapshotError::Truncated)?;
        let (level, access) = extension.ok_or(SnapshotError::Truncated)?;
        if !self.pending.is_empty() {
            return Err(SnapshotError::Truncated);
        }
        let meta = meta.snapshot_meta()?;
        let machine = machine.finish()?;
        Ok(State { machine, applied: meta.last_log_id, membership: meta.last_membership, joined, access, level })
    }
}

/// Loads a stored snapshot into a state.
pub fn load<S: Storage>(storage: &S, manifest: &SnapshotManifest) -> Result<State, SnapshotError> {
    let mut reader = SnapshotReader::default();
    for number in 0..manifest.chunks {
        reader.push(&storage.read_snapshot(manifest.id, number)?)?;
    }
    reader.finish()
}

fn next_record(bytes: &[u8]) -> Result<Option<&[u8]>, SnapshotError> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > MAX_RECORD_BYTES {
        return Err(SnapshotError::RecordTooLong { bytes: length, max: MAX_RECORD_BYTES });
    }
    Ok(rest.get(..length))
}

fn read_header(record: &[u8], checks_only: bool) -> Result<PartialState, SnapshotError> {
    // The format is the first field of the header, so each build can read it from any header.
    let format = record.first().copied().unwrap_or_default();
    let (meta, joined, machine) = match format {
        1 => {
            let HeaderV1 { meta, joined, machine, .. } = codec::decode(record, MAX_WRITTEN_BYTES)?;
            (meta, joined, machine.try_into()?)
        }
        2 => {
            let HeaderV2 { meta, joined, machine, .. } = codec::decode(record, MAX_WRITTEN_BYTES)?;
            (meta, joined, machine.try_into()?)
        }
        3..=6 => {
            let StateHeader { meta, joined, machine, .. } = codec::decode(record, MAX_WRITTEN_BYTES)?;
            (meta, joined, machine)
        }
        found => return Err(SnapshotError::Format { found: found.into() }),
    };
    let mut machine = Rebuild::new(machine)?;
    if checks_only {
        machine.keep_nothing();
    }
    let extension = (u32::from(format) <= FORMAT_OF_FIRST_LEVEL).then(Default::default);
    Ok(PartialState { meta, joined, format, extension, machine })
}

fn read_extension(format: u8, record: &[u8]) -> Result<(FeatureLevel, Access), SnapshotError> {
    if u32::from(format) < FORMAT_WITHOUT_EXPIRY {
        let access: AccessState = codec::decode(record, MAX_WRITTEN_BYTES)?;
        return Ok((FeatureLevel::ACCESS_CONTROL, access.into()));
    }
    let (level, access) = if u32::from(format) == FORMAT_WITHOUT_EXPIRY {
        let ExtensionV5 { level, access } = codec::decode(record, MAX_WRITTEN_BYTES)?;
        (level, access)
    } else {
        let Extension { level, access, expiries } = codec::decode(record, MAX_WRITTEN_BYTES)?;
        (level, access.with_expiries(expiries))
    };
    level.check(FeatureLevel::SUPPORTED)?;
    Ok((level, access.into()))
}

/// A snapshot that cannot be read, or that differs when it is read back.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(
        "snapshot of format {found}: this build reads formats 1 to {FORMAT}; run the build that wrote it or a newer one"
    )]
    Format { found: u32 },
    #[error(transparent)]
    Newer(#[from] NewerLevel),
    #[error("the snapshot is truncated")]
    Truncated,
    #[error("the snapshot has a record of {bytes} bytes: expected at most {max} bytes")]
    RecordTooLong { bytes: usize, max: usize },
    #[error("the snapshot reads back as a different state")]
    OtherState,
    #[error("the thread that wrote the snapshot failed: {0}")]
    Interrupted(std::io::Error),
    #[error(transparent)]
    Contents(#[from] BadSnapshot),
    #[error("the snapshot cannot be read: {0}")]
    Undecodable(#[from] DecodeError),
    #[error("the snapshot has an invalid membership: {0}")]
    Membership(#[from] PayloadError),
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl From<SnapshotError> for std::io::Error {
    fn from(error: SnapshotError) -> std::io::Error {
        std::io::Error::other(error)
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::access::{AccessChange, AccessName, AccessToken, TokenHash};
    use crate::lease::snapshot::old;
    use crate::lease::{Acquire, Batch, Command, HolderLease, Machine, Outcome, PART_BYTES, Stamp};
    use crate::sim::MemoryStorage;
    use crate::storage::SNAPSHOT_CHUNK_BYTES;
    use crate::token::FencingToken;
    use crate::types::{HolderId, LeaseName, MAX_LIMIT, Metadata, Ttl};

    fn name() -> LeaseName {
        LeaseName::new("pool").expect("valid")
    }

    fn acquire(holder: String, metadata_bytes: usize) -> Command {
        let metadata = [("k".to_string(), "v".repeat(metadata_bytes))].into();
        Command::Acquire(Acquire {
            name: name(),
            holder: HolderId::new(holder).expect("valid"),
            ttl: Ttl::INFINITE,
            wait_ms: None,
            lock_delay_ms: 0,
            limit: MAX_LIMIT,
            metadata: Metadata::new(metadata).expect("it fits"),
        })
    }

    fn apply(machine: &mut Machine, command: Command) -> (FencingToken, Outcome) {
        let index = machine.applied().map_or(1, |last| last.index + 1);
        let position = FencingToken { term: 1, index };
        let (mut outcomes, _) = machine.apply(position, &Batch { stamp: Stamp::default(), commands: vec![command] });
        (position, outcomes.remove(0))
    }

    fn add_ended(machine: &mut Machine, count: u32) {
        for number in 0..count {
            let (token, _) = apply(machine, acquire(format!("ended-{number}"), 4_000));
            let holder = HolderId::new(format!("ended-{number}")).expect("valid");
            apply(machine, Command::Release { name: name(), holder, token });
        }
    }

    fn add_held(machine: &mut Machine, count: u32) {
        for number in 0..count {
            let (_, outcome) = apply(machine, acquire(format!("held-{number}"), 4_000));
            assert!(matches!(outcome, Outcome::Held { .. }), "{outcome:?}");
        }
    }

    fn state_of(machine: Machine) -> State {
        State { machine, joined: BTreeMap::from([(2, 7)]), ..State::default() }
    }

    /// Writes the machine to a store and loads it from there.
    fn assert_reads_back(machine: Machine) {
        let (storage, state) = (MemoryStorage::default(), state_of(machine));
        let mut writer = storage.begin_snapshot().expect("the store accepts a snapshot");
        write(&state, &mut writer).expect("the snapshot is written and verified");
        let manifest = writer.finish_blocking(Vec::new()).expect("finished");
        let read = load(&storage, &manifest).expect("the snapshot can be loaded");
        assert_eq!(read.machine.header(), state.machine.header());
        assert!(read.machine.records().eq(state.machine.records()));
        assert_eq!(read.machine.counts(), state.machine.counts());
    }

    #[test]
    fn largest_name_reads_back() {
        let mut machine = Machine::new();
        add_ended(&mut machine, MAX_LIMIT);
        add_held(&mut machine, MAX_LIMIT);
        assert_eq!(machine.counts().held, u64::from(MAX_LIMIT));
        let mut largest = 0;
        let encoded = encode(&state_of(machine.clone()), |bytes| {
            largest = largest.max(bytes.len());
            Ok(())
        });
        encoded.expect("the state is encoded");
        assert!((PART_BYTES - 8_192..=PART_BYTES + 1_024).contains(&largest), "a record has {largest} bytes");
        assert_reads_back(machine);
    }

    /// Builds of format 1 wrote records of more than 64 MiB and could not read them.
    #[test]
    fn oversized_record_of_format_1_is_read() {
        let mut machine = Machine::new();
        add_ended(&mut machine, MAX_LIMIT);
        let (_, before) = old::snapshot(&machine);
        add_held(&mut machine, MAX_LIMIT);
        let (header, mut records) = old::snapshot(&machine);
        old::put_back_ended(&mut records[0], &before[0]);
        let header = HeaderV1 { format: 1, meta: Meta::default(), joined: BTreeMap::new(), machine: header };
        let (header, record) = (codec::encode(&header), codec::encode(&records[0]));
        assert!(record.len() > 64 << 20, "{} bytes", record.len());
        let mut reader = SnapshotReader::default();
        for record in [header, record] {
            reader.push(&(record.len() as u32).to_be_bytes()).expect("a length");
            record.chunks(SNAPSHOT_CHUNK_BYTES).for_each(|chunk| reader.push(chunk).expect("readable"));
        }
        let mut machine = reader.finish().expect("whole").machine;
        assert_eq!((machine.counts().held, machine.counts().ended), (u64::from(MAX_LIMIT), u64::from(MAX_LIMIT)));
        // The next change of the name enforces its bounds.
        let (held, _) = machine.holders(&name());
        let HolderLease { name, holder, token, .. } = held[0].clone();
        let (_, outcome) = apply(&mut machine, Command::Release { name, holder, token });
        assert_eq!(outcome, Outcome::Released(true));
        assert!(machine.counts().ended < u64::from(MAX_LIMIT) / 2, "{:?}", machine.counts());
        assert_reads_back(machine);
    }

    #[test]
    fn record_above_the_read_limit_is_refused() {
        SnapshotReader::default()
            .push(&(MAX_RECORD_BYTES as u32).to_be_bytes())
            .expect("a record of the largest size is accepted");
        let mut reader = SnapshotReader::default();
        let refused = reader.push(&(MAX_RECORD_BYTES as u32 + 1).to_be_bytes()).expect_err("too long");
        assert!(matches!(refused, SnapshotError::RecordTooLong { max: MAX_RECORD_BYTES, .. }), "{refused}");
        let unread = SnapshotReader::default().push(&[0, 0, 0, 1, 7]).expect_err("format 7");
        assert!(matches!(unread, SnapshotError::Format { found: 7 }));
    }

    #[test]
    fn header_bytes_are_frozen() {
        let mut machine = Machine::new();
        apply(&mut machine, Command::Tick);
        let mut bytes = Vec::new();
        let encoded = encode(&state_of(machine.clone()), |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        });
        encoded.expect("the state is encoded");
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "0000002403000000000102070300010101fc80841e00fb102710fcc0270900fb1027fb1027000000");
        let old: Vec<u8> = [vec![0, 0, 0, 0x23, 2, 0, 0, 0, 0, 1, 2, 7, 2], bytes[13..39].to_vec()].concat();
        let mut reader = SnapshotReader::default();
        reader.push(&old).expect("format 2");
        assert_eq!(reader.finish().expect("whole").machine.header(), machine.header());
    }

    /// After an upgrade, a removed id stays used up, and a member with another disk is refused.
    #[test]
    fn disks_of_members_are_read_from_each_format() {
        let mut machine = Machine::new();
        apply(&mut machine, Command::Tick);
        let at = Some(Position { term: 1, index: 1 });
        let nodes = BTreeMap::from([(2, ("http".to_string(), "peer".to_string()))]);
        let membership = MembershipRecord { configs: vec![[2].into()], nodes };
        let meta = Meta { last: at, membership_at: at, membership };
        // Node 3 was removed.
        let joined = BTreeMap::from([(2, 7), (3, 9)]);
        let header_of = |format: u32| {
            let (meta, joined) = (meta.clone(), joined.clone());
            match format {
                1 => codec::encode(&HeaderV1 { format, meta, joined, machine: old::snapshot(&machine).0 }),
                2 => {
                    let SnapshotHeader { now, applied, limits, names, term_began, .. } = machine.header();
                    let machine = SnapshotHeaderV2 { version: 2, now, applied, limits, names, term_began };
                    codec::encode(&HeaderV2 { format, meta, joined, machine })
                }
                _ => codec::encode(&StateHeader { format, meta, joined, machine: machine.header() }),
            }
        };
        let (level, access) = (FeatureLevel::FIRST, AccessState::default());
        for format in 1..=FORMAT {
            let extension = match format {
                1..=3 => None,
                4 => Some(codec::encode(&access)),
                5 => Some(codec::encode(&ExtensionV5 { level, access: access.clone() })),
                _ => Some(codec::encode(&Extension { level, access: access.clone(), expiries: BTreeMap::new() })),
            };
            let mut bytes = Vec::new();
            for record in [Some(header_of(format)), extension].into_iter().flatten() {
                bytes.extend((record.len() as u32).to_be_bytes());
                bytes.extend(record);
            }
            let whole = read(&bytes).unwrap_or_else(|error| panic!("format {format}: {error}"));
            assert_eq!(whole.joined, joined, "format {format}");
            assert_eq!(Meta::of(&whole), meta, "format {format}");
        }
    }

    fn encoded(state: &State) -> (Vec<u8>, String) {
        let mut bytes = Vec::new();
        let encoded = encode(state, |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        });
        encoded.expect("the state is encoded");
        let hex = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        (bytes, hex)
    }

    fn read(bytes: &[u8]) -> Result<State, SnapshotError> {
        let mut reader = SnapshotReader::default();
        reader.push(bytes)?;
        reader.finish()
    }

    #[test]
    fn feature_level_and_access_control_are_part_of_the_snapshot() {
        let mut machine = Machine::new();
        apply(&mut machine, Command::Tick);
        let mut state = state_of(machine);
        state.level = FeatureLevel::TOKEN_EXPIRY;
        state.access = state.access.with(&AccessChange::Enable(true));
        let (bytes, hex) = encoded(&state);
        let header = "0000002405000000000102070300010101fc80841e00fb102710fcc0270900fb1027fb1027000000";
        let header = header.replacen("2405", "2406", 1);
        assert_eq!(hex, format!("{header}000000050501000000"));
        let whole = read(&bytes).expect("format 6");
        assert_eq!((whole.access.state(), whole.level), (state.access.state(), FeatureLevel::TOKEN_EXPIRY));
        assert!(matches!(read(&bytes[..bytes.len() - 9]), Err(SnapshotError::Truncated)));
        let mut newer = bytes.clone();
        newer[44] = 7;
        let refused = read(&newer).err().expect("a newer release wrote it").to_string();
        assert!(refused.contains("the cluster has feature level 7; this program supports levels up to 6"), "{refused}");
        // A cluster with members that do not know expiring tokens.
        state.level = FeatureLevel::REQUEST_TERMS;
        let (without_expiry, hex) = encoded(&state);
        assert_eq!(hex, format!("{}0000000404010000", header.replacen("2406", "2405", 1)));
        let whole = read(&without_expiry).expect("format 5");
        assert_eq!((whole.access.state(), whole.level), (state.access.state(), FeatureLevel::REQUEST_TERMS));
        // Format 4 had access control, and no feature level.
        let old = [&bytes[..4], &[4], &bytes[5..40], &[0, 0, 0, 3, 1, 0, 0]].concat();
        let old = read(&old).expect("format 4");
        assert_eq!((old.access.state(), old.level), (state.access.state(), FeatureLevel::ACCESS_CONTROL));
    }

    #[test]
    fn expiries_of_tokens_are_part_of_the_snapshot() {
        let name = AccessName::new("p").expect("valid");
        let hash = TokenHash::of(&AccessToken::from_secret([7; 32]));
        let changes = [
            AccessChange::SetPrincipal { principal: name.clone(), roles: Default::default() },
            AccessChange::AddExpiringToken { principal: name, hash, created_wall_ms: 7, expires_wall_ms: 9 },
        ];
        let mut state = State { level: FeatureLevel::SUPPORTED, ..state_of(Machine::new()) };
        state.access = changes.iter().fold(state.access, |access, change| access.with(change));
        let read = read(&encoded(&state).0).expect("whole");
        assert_eq!(read.access.state(), state.access.state());
        assert_eq!((read.access.expired(8).len(), read.access.expired(9).len()), (0, 1));
    }

    #[test]
    fn level_without_access_control_stays_in_the_snapshot() {
        let state = State { level: FeatureLevel::SUPPORTED, ..state_of(Machine::new()) };
        assert_eq!(read(&encoded(&state).0).expect("whole").level, FeatureLevel::SUPPORTED);
        let first = State { level: FeatureLevel::FIRST, ..state };
        let (bytes, hex) = encoded(&first);
        assert_eq!(&hex[8..10], "03", "{hex}: a node of the first level reads only format 3");
        assert_eq!(read(&bytes).expect("whole").level, FeatureLevel::FIRST);
    }
}
