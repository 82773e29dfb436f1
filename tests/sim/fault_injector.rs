//! Injects one planted bug into a replica: it changes the applied entry, or the state of the lease machine.
//!
//! Assertions of the lease machine would catch some of these bugs. To show that the invariants catch them, too, the
//! injector removes the state that these assertions read: it serializes the machine as a snapshot does, changes the
//! records, and loads the machine again.

use serde_json::{Value, json};
use tenure::lease::{Batch, Command, Machine, StoredRecord};
use tenure::token::FencingToken;
use tenure::types::LeaseName;

use super::bugs::MachineBug;

/// Injects a bug into one replica.
pub struct FaultInjector {
    bug: MachineBug,
    /// Index of the last installed snapshot.
    snapshot: u64,
}

impl FaultInjector {
    pub fn new(bug: MachineBug) -> FaultInjector {
        FaultInjector { bug, snapshot: 0 }
    }

    pub fn replaced(&mut self, index: u64) {
        self.snapshot = index;
    }

    /// Injects the bug before an entry is applied.
    ///
    /// All replicas change the same entry equally, except for [`MachineBug::TokensFromSnapshot`].
    pub fn inject(&self, machine: &mut Machine, token: &mut FencingToken, batch: &mut Batch) {
        match self.bug {
            MachineBug::TokensFromSnapshot => self.move_to(machine, token, token.index() - self.snapshot),
            MachineBug::TokensFromClock => self.move_to(machine, token, batch.stamp.wall_ms),
            MachineBug::ReleaseIgnoresToken => {
                batch.commands.iter_mut().for_each(|command| retarget_release(machine, command))
            }
            MachineBug::DeadWaiterGranted => {
                if machine.counts().waiting > 0 {
                    rebuild(machine, |_, record| {
                        for waiter in record["waiting"].as_array_mut().expect("`waiting` is a list") {
                            waiter["until"] = json!(u64::MAX);
                        }
                    });
                }
            }
            MachineBug::ExpiredRevived => revive(machine, batch),
            MachineBug::SecondToken => forget_claims(machine, batch),
        }
    }

    fn move_to(&self, machine: &mut Machine, token: &mut FencingToken, index: u64) {
        // Index 0 is not valid in a token.
        *token = FencingToken::new(token.term(), index.max(1));
        let is_above =
            machine.applied().is_none_or(|last| last.index() < token.index() && last.as_u64() < token.as_u64());
        if !is_above {
            // A snapshot with grants above its own index is refused, so the grants are removed, too.
            rebuild(machine, |header, record| {
                header["applied"] = Value::Null;
                record["last_grant"] = json!(0);
                (record["held"], record["waiting"]) = (json!([]), json!([]));
            });
        }
    }
}

/// Replaces holder and token of a release with those of the current grant.
fn retarget_release(machine: &Machine, command: &mut Command) {
    let Command::Release { name, holder, token } = command else { return };
    if let Some(lease) = machine.get(name).and_then(|view| view.held.into_iter().next()) {
        (*holder, *token) = (lease.holder, lease.token);
    }
}

/// Restores an ended grant that a renewal names, if the lease has no holder and no waiter.
fn revive(machine: &mut Machine, batch: &Batch) {
    for command in &batch.commands {
        let Command::Renew { holder, leases } = command else { continue };
        for renewal in leases {
            let Some(view) = machine.get(&renewal.name) else { continue };
            let has_ended = view.ended.iter().any(|lease| lease.holder == *holder && lease.token == renewal.token);
            if !has_ended || !view.held.is_empty() || view.waiters > 0 {
                continue;
            }
            let (token, later) = (json!(renewal.token), json!(machine.now().max(batch.stamp.now) + 1_000));
            rebuild_one(machine, &renewal.name, |record| {
                let ended = record["ended"].as_array_mut().expect("`ended` is a list");
                let Some(index) = ended.iter().position(|ended| ended["grant"]["grant"]["token"] == token) else {
                    return;
                };
                let mut grant = ended.remove(index)["grant"].take();
                grant["grant"]["deadline"] = later.clone();
                record["held"] = json!([grant]);
            });
        }
    }
}

/// Removes the grants of holders that acquire again.
fn forget_claims(machine: &mut Machine, batch: &Batch) {
    for command in &batch.commands {
        let Command::Acquire(acquire) = command else { continue };
        let held = machine.get(&acquire.name).map(|view| view.held).unwrap_or_default();
        if held.iter().any(|lease| lease.holder == acquire.holder) {
            let holder = json!(acquire.holder);
            rebuild_one(machine, &acquire.name, |record| {
                record["held"]
                    .as_array_mut()
                    .expect("`held` is a list")
                    .retain(|held| held["grant"]["holder"] != holder);
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

/// Serializes the machine as a snapshot does, changes header and records, and loads it again.
fn rebuild(machine: &mut Machine, change: impl Fn(&mut Value, &mut Value)) {
    let mut header = serde_json::to_value(machine.header()).expect("a header serializes");
    let records: Vec<StoredRecord> = machine
        .records()
        .map(|record| {
            let mut record = serde_json::to_value(record).expect("a record serializes");
            change_parts(&mut record["V2"], |record| change(&mut header, record));
            serde_json::from_value(record).expect("the changed record is valid")
        })
        .collect();
    let header = serde_json::from_value(header).expect("the changed header is valid");
    *machine = Machine::from_records(header, records).expect("the changed records load");
}

/// Changes a record that has a single part.
///
/// `change` sees the lists of the part, the name and the last grant in one object. Then the counts are updated.
fn change_parts(record: &mut Value, change: impl FnOnce(&mut Value)) {
    let mut flat = record["part"].take();
    (flat["name"], flat["last_grant"]) = (record["name"].clone(), record["last_grant"].clone());
    change(&mut flat);
    record["last_grant"] = flat["last_grant"].clone();
    for list in ["held", "waiting", "ended", "history"] {
        record["counts"][list] = json!(flat[list].as_array().expect("the part has this list").len());
    }
    record["part"] = flat;
}
