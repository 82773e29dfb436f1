//! Recorded bytes of a snapshot. Disks have snapshots in these forms.

use tenure::lease::{
    Acquire, Batch, Command, LeaseView, Machine, SnapshotHeaderV1, SnapshotHeaderV2, Stamp, StoredRecord,
};
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName, Metadata, Ttl};

use crate::replicas::{bytes, rebuilt};

/// A machine with each stored item: holders, waiters, a lock delay, ended grants, and each kind of transition.
fn machine_with_everything() -> Machine {
    let name = |text: &str| LeaseName::new(text).expect("a valid name");
    let holder = |text: &str| HolderId::new(text).expect("a valid holder");
    let acquire = |lease: &str, who: &str, wait_ms| {
        let metadata = Metadata::new([("k".to_string(), "v".to_string())].into()).expect("small metadata");
        let (name, holder, ttl) = (name(lease), holder(who), Ttl::millis(500).expect("valid"));
        Command::Acquire(Acquire { name, holder, ttl, wait_ms, lock_delay_ms: 300, limit: 1, metadata })
    };
    let entries = [
        vec![acquire("a", "p", None), acquire("b", "p", None), acquire("c", "p", None)],
        vec![acquire("a", "q", Some(5000)), acquire("a", "r", Some(5000)), acquire("b", "q", Some(5000))],
        vec![Command::HandOver { name: name("a"), holder: holder("p"), token: TOKENS[0], to: Some(holder("r")) }],
        vec![Command::Release { name: name("a"), holder: holder("r"), token: TOKENS[2] }, acquire("a", "p", Some(1))],
        vec![Command::Revoke { name: name("b"), reason: "why".to_string() }],
        vec![acquire("d", "p", None)],
    ];
    let mut machine = Machine::new();
    // The last entry has the first millisecond in which lease "c" is expired.
    let times = [100, 200, 300, 400, 500, 601];
    for (((position, commands), now), number) in TOKENS.into_iter().zip(entries).zip(times).zip(1..) {
        let stamp = Stamp { now, wall_ms: 1_700_000_000_000 + number };
        machine.apply(position, &Batch { stamp, commands });
    }
    machine
}

const TOKENS: [FencingToken; 6] = {
    let mut tokens = [FencingToken::new(3, 0); 6];
    let mut at = 0;
    while at < tokens.len() {
        tokens[at] = FencingToken::new(3, 10 + at as u64);
        at += 1;
    }
    tokens
};

/// Decodes hexadecimal digits.
fn bytes_of(text: &str) -> Vec<u8> {
    let hex = text.lines().collect::<Vec<_>>().concat();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex")).collect()
}

/// A change of these bytes needs a new version of the stored form.
#[test]
fn stored_form_is_frozen() {
    let frozen = bytes_of(include_str!("stored_form.hex"));
    let bytes = bytes(&machine_with_everything());
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(bytes == frozen, "the stored form changed without a new version: {hex}");
    assert_eq!(self::bytes(&rebuilt(&frozen)), frozen);
}

#[test]
fn stored_form_of_version_2_is_read() {
    type Snapshot = (SnapshotHeaderV2, Vec<StoredRecord>);
    let frozen = bytes_of(include_str!("stored_form_v2.hex"));
    let decoded = bincode::serde::decode_from_slice(&frozen, bincode::config::standard());
    let ((header, records), read): (Snapshot, usize) = decoded.expect("version 2 decodes");
    assert_eq!(read, frozen.len());
    let header = header.try_into().expect("version 2");
    let old = Machine::from_records(header, records).expect("version 2 is readable");
    assert_eq!(bytes(&old), bytes(&machine_with_everything()));
}

/// A restore is in the stored form: its time without grants, and each ended grant.
#[test]
fn restored_machine_is_stored() {
    let mut machine = machine_with_everything();
    machine.restore(FencingToken::new(40_000, 1_000), 1_700_000_000_000, Some(9_000));
    let stored = bytes(&machine);
    let rebuilt = rebuilt(&stored);
    assert_eq!(bytes(&rebuilt), stored);
    assert_eq!((rebuilt.next_due(), rebuilt.counts()), (machine.next_due(), machine.counts()));
    assert_eq!(rebuilt.next_due(), Some(801), "the lock delay of b ends first");
    assert_eq!((rebuilt.counts().held, rebuilt.counts().waiting), (0, 0));
}

#[test]
fn stored_form_of_version_1_is_read() {
    type Snapshot = (SnapshotHeaderV1, Vec<StoredRecord>);
    let frozen = bytes_of(include_str!("stored_form_v1.hex"));
    let decoded = bincode::serde::decode_from_slice(&frozen, bincode::config::standard());
    let ((header, records), read): (Snapshot, usize) = decoded.expect("version 1 decodes");
    assert_eq!(read, frozen.len());
    let header = header.try_into().expect("version 1");
    let (old, new) =
        (Machine::from_records(header, records).expect("version 1 is readable"), machine_with_everything());
    // In version 1 a lease expired one millisecond earlier, so the last entry came at 600.
    assert_eq!((old.now(), old.applied(), old.limits()), (600, new.applied(), new.limits()));
    assert_eq!((old.counts(), old.next_due()), (new.counts(), new.next_due()));
    for name in ["a", "b"].map(|name| LeaseName::new(name).expect("a valid name")) {
        assert_eq!((old.get(&name), old.queue(&name)), (new.get(&name), new.queue(&name)));
        assert_eq!(old.history(&name), new.history(&name));
    }
    for name in ["c", "d"].map(|name| LeaseName::new(name).expect("a valid name")) {
        let grants = |machine: &Machine| {
            let LeaseView { held, ended, .. } = machine.get(&name).expect("the machine remembers it");
            held.into_iter()
                .chain(ended)
                .map(|lease| (lease.holder, lease.token, lease.state, lease.ttl))
                .collect::<Vec<_>>()
        };
        assert_eq!(grants(&old), grants(&new));
    }
}
