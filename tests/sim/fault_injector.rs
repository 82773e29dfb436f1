//! Spoils what a replica applies, in the way of one planted bug: the entry, or the machine behind the machine's back.
//!
//! The machine defends itself by assertions. To show that the promises would find the bug without them, the meddler makes
//! the machine forget what the assertions compare with: it takes it apart as a snapshot does, changes that, and puts it
//! together again.

use serde_json::{Value, json};
use tenure::lease::{Batch, Command, Machine, StoredRecord};
use tenure::token::FencingToken;
use tenure::types::LeaseName;

use super::bugs::MachineBug;

pub struct Meddler {
    bug: MachineBug,
    /// Index of the snapshot that this replica came from.
    snapshot: u64,
}

impl Meddler {
    pub fn new(bug: MachineBug) -> Meddler {
        Meddler { bug, snapshot: 0 }
    }

    pub fn replaced(&mut self, index: u64) {
        self.snapshot = index;
    }

    /// Every replica does the same to the same entry, but where the bug is that they do not.
    pub fn spoil(&self, machine: &mut Machine, token: &mut FencingToken, batch: &mut Batch) {
        match self.bug {
            MachineBug::TokensFromSnapshot => self.move_to(machine, token, token.index - self.snapshot),
            MachineBug::TokensFromClock => self.move_to(machine, token, batch.stamp.wall_ms),
            MachineBug::ReleaseIgnoresToken => batch.commands.iter_mut().for_each(|command| aim(machine, command)),
            MachineBug::DeadWaiterGranted => {
                if machine.counts().waiting > 0 {
                    rebuild(machine, |_, record| {
                        for place in record["waiting"].as_array_mut().expect("waiters") {
                            place["until"] = json!(u64::MAX);
                        }
                    });
                }
            }
            MachineBug::ExpiredRevived => revive(machine, batch),
            MachineBug::SecondToken => forget_claims(machine, batch),
        }
    }

    fn move_to(&self, machine: &mut Machine, token: &mut FencingToken, index: u64) {
        // The index of an entry that makes no sense as a token stays unique.
        *token = FencingToken { term: token.term, index: index.max(1) };
        let is_above = machine.applied().is_none_or(|last| last.index < token.index && last.as_u64() < token.as_u64());
        if !is_above {
            // A snapshot with grants of its future is refused, so those are forgotten, too.
            rebuild(machine, |header, record| {
                header["applied"] = Value::Null;
                record["last_grant"] = json!(0);
                (record["held"], record["waiting"]) = (json!([]), json!([]));
            });
        }
    }
}

/// A release of whatever its name is held by.
fn aim(machine: &Machine, command: &mut Command) {
    let Command::Release { name, holder, token } = command else { return };
    if let Some(lease) = machine.get(name).and_then(|view| view.held.into_iter().next()) {
        (*holder, *token) = (lease.holder, lease.token);
    }
}

/// Puts a grant that is over back, if a renewal asks for it and nobody has the lease.
fn revive(machine: &mut Machine, batch: &Batch) {
    for command in &batch.commands {
        let Command::Renew { holder, leases } = command else { continue };
        for asked in leases {
            let Some(view) = machine.get(&asked.name) else { continue };
            let is_over = view.ended.iter().any(|lease| lease.holder == *holder && lease.token == asked.token);
            if !is_over || !view.held.is_empty() || view.waiters > 0 {
                continue;
            }
            let (token, later) = (json!(asked.token), json!(machine.now().max(batch.stamp.now) + 1_000));
            rebuild_one(machine, &asked.name, |record| {
                let ended = record["ended"].as_array_mut().expect("what is over");
                let Some(place) = ended.iter().position(|ended| ended["grant"]["grant"]["token"] == token) else {
                    return;
                };
                let mut grant = ended.remove(place)["grant"].take();
                grant["grant"]["deadline"] = later.clone();
                record["held"] = json!([grant]);
            });
        }
    }
}

/// Forgets the claims of those who ask again.
fn forget_claims(machine: &mut Machine, batch: &Batch) {
    for command in &batch.commands {
        let Command::Acquire(acquire) = command else { continue };
        let held = machine.get(&acquire.name).map(|view| view.held).unwrap_or_default();
        if held.iter().any(|lease| lease.holder == acquire.holder) {
            let holder = json!(acquire.holder);
            rebuild_one(machine, &acquire.name, |record| {
                record["held"].as_array_mut().expect("holders").retain(|held| held["grant"]["holder"] != holder);
                record["history"] = json!([]);
            });
        }
    }
}

fn rebuild_one(machine: &mut Machine, name: &LeaseName, change: impl Fn(&mut Value)) {
    let wanted = json!(name);
    rebuild(machine, |_, record| {
        if record["name"] == wanted {
            change(record);
        }
    });
}

/// Takes the machine apart as a snapshot does, changes the pieces, and puts it together again.
fn rebuild(machine: &mut Machine, change: impl Fn(&mut Value, &mut Value)) {
    let mut header = serde_json::to_value(machine.header()).expect("a header");
    let records: Vec<StoredRecord> = machine
        .records()
        .map(|record| {
            let mut record = serde_json::to_value(record).expect("a record");
            change_parts(&mut record["V2"], |record| change(&mut header, record));
            serde_json::from_value(record).expect("still a record")
        })
        .collect();
    let header = serde_json::from_value(header).expect("still a header");
    *machine = Machine::from_records(header, records).expect("still a machine");
}

/// Changes a name of one part: its lists stand beside its last grant meanwhile, and their lengths are counted again.
fn change_parts(record: &mut Value, change: impl FnOnce(&mut Value)) {
    let mut flat = record["part"].take();
    (flat["name"], flat["last_grant"]) = (record["name"].clone(), record["last_grant"].clone());
    change(&mut flat);
    record["last_grant"] = flat["last_grant"].clone();
    for list in ["held", "waiting", "ended", "history"] {
        record["counts"][list] = json!(flat[list].as_array().expect("a list").len());
    }
    record["part"] = flat;
}
