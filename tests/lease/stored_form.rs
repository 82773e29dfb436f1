//! The bytes of a snapshot, recorded: they are on disks.

use tenure::lease::{Acquire, Batch, Command, Limits, Machine, Stamp};
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName, Metadata, Ttl};

use crate::replicas::{bytes, rebuilt};

/// One of everything that is stored: held, waiting, delayed, ended, and each kind of transition.
fn machine_with_everything() -> Machine {
    let name = |text: &str| LeaseName::new(text).expect("a valid name");
    let holder = |text: &str| HolderId::new(text).expect("a valid holder");
    let acquire = |lease: &str, who: &str, wait_ms| {
        let metadata = Metadata::new([("k".to_string(), "v".to_string())].into()).expect("small metadata");
        let (name, holder, ttl) = (name(lease), holder(who), Ttl::Finite(500));
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
    let mut machine = Machine::new(Limits::default());
    for ((position, commands), number) in TOKENS.into_iter().zip(entries).zip(1..) {
        let stamp = Stamp { now: number * 100, wall_ms: 1_700_000_000_000 + number };
        machine.apply(position, &Batch { stamp, commands });
    }
    machine
}

const TOKENS: [FencingToken; 6] = {
    let mut tokens = [FencingToken { term: 3, index: 0 }; 6];
    let mut at = 0;
    while at < tokens.len() {
        tokens[at].index = 10 + at as u64;
        at += 1;
    }
    tokens
};

/// Snapshots are on disks: these bytes stay readable, and a change of them is a new version.
#[test]
fn the_stored_form_is_frozen() {
    let machine = machine_with_everything();
    let hex: String = bytes(&machine).iter().map(|byte| format!("{byte:02x}")).collect();
    let lines: Vec<&str> = include_str!("stored_form.hex").lines().collect();
    assert_eq!(hex, lines.concat(), "the stored form has changed");
    let frozen: Vec<u8> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex")).collect();
    assert_eq!(bytes(&rebuilt(&frozen)), frozen);
}
