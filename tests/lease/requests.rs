//! Random batches at random times. Few names and holders, short times and small limits make conflicts likely.

use proptest::collection::vec;
use proptest::prelude::*;
use tenure::lease::{Acquire, Batch, Command, Limits, Machine, Renewal, Stamp, WaiterId};
use tenure::token::FencingToken;
use tenure::types::{AccessName, HolderId, LeaseName, Metadata, Ttl};

use crate::model::Model;

/// A planned log entry. The proposer fills in the tokens that holders know at the time of the proposal.
#[derive(Clone, Debug)]
pub struct PlannedEntry {
    skipped_indexes: u64,
    is_new_term: bool,
    /// Cluster milliseconds since the previous entry. Sometimes negative, like the start of a leader from an older
    /// time.
    elapsed: i64,
    /// Each with the principal that sends it, if the proposer uses principals.
    requests: Vec<(Option<u8>, Request)>,
}

#[derive(Clone, Debug)]
enum Request {
    Acquire { name: u8, holder: u8, ttl: Ttl, wait_ms: Option<u64>, lock_delay_ms: u64, limit: u32, tag: Option<u8> },
    Renew { holder: u8, names: Vec<(u8, Aim)>, ttl: Option<Ttl> },
    Release { name: u8, holder: u8, aim: Aim },
    Revoke { name: u8 },
    HandOver { name: u8, holder: u8, aim: Aim, to: Option<u8> },
    KeepWaiting(Vec<(u8, u8)>),
    LeaveQueue { name: u8, holder: u8 },
    Tick,
    SetLimits(Limits),
    UpdateMetadata { name: u8, holder: u8, aim: Aim, version: u64, tag: u8 },
}

/// The token in a request.
#[derive(Clone, Copy, Debug)]
enum Aim {
    /// The token of the holder's grant, if it has one.
    Current,
    /// The position this many entries ago: usually not a token of the holder.
    Ago(u64),
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const PRINCIPALS: [&str; 2] = ["one", "two"];
const HOLDERS: [&str; 5] = ["p", "q", "r", "s", "t"];

pub fn name(which: u8) -> LeaseName {
    LeaseName::new(NAMES[which as usize]).expect("a valid name")
}

pub fn names() -> impl Iterator<Item = LeaseName> {
    (0..NAMES.len() as u8).map(name)
}

pub fn holders() -> impl Iterator<Item = HolderId> {
    (0..HOLDERS.len() as u8).map(holder)
}

fn holder(which: u8) -> HolderId {
    HolderId::new(HOLDERS[which as usize]).expect("a valid holder")
}

/// Makes log entries from planned entries, with tokens from the model.
pub struct Proposer {
    position: FencingToken,
    clock: i64,
    uses_principals: bool,
}

impl Proposer {
    pub fn new() -> Proposer {
        Proposer { position: FencingToken::new(1, 0), clock: 1000, uses_principals: false }
    }

    /// Some of the requests are of principals.
    pub fn with_principals() -> Proposer {
        Proposer { uses_principals: true, ..Proposer::new() }
    }

    pub fn entry(&mut self, planned: &PlannedEntry, model: &Model) -> (FencingToken, Batch) {
        let (term, index) = (self.position.term(), self.position.index());
        self.position = FencingToken::new(term + u64::from(planned.is_new_term), index + 1 + planned.skipped_indexes);
        self.clock = (self.clock + planned.elapsed).max(0);
        let now = self.clock as u64;
        let command = |(principal, request): &(Option<u8>, Request)| {
            let command = self.command(request, model);
            match principal.filter(|_| self.uses_principals) {
                Some(which) => command.owned_by(AccessName::new(PRINCIPALS[which as usize]).expect("a valid name")),
                None => command,
            }
        };
        let commands = planned.requests.iter().map(command).collect();
        (self.position, Batch { stamp: Stamp { now, wall_ms: 1_000_000 + now }, commands })
    }

    fn token(&self, model: &Model, name_: u8, holder_: u8, aim: Aim) -> FencingToken {
        let ago = |entries| FencingToken::new(self.position.term(), self.position.index().saturating_sub(entries));
        match aim {
            Aim::Current => model.token_of(&name(name_), &holder(holder_)).unwrap_or(ago(0)),
            Aim::Ago(entries) => ago(entries),
        }
    }

    fn command(&self, request: &Request, model: &Model) -> Command {
        match *request {
            Request::Acquire { name: n, holder: h, ttl, wait_ms, lock_delay_ms, limit, tag } => {
                let metadata = tag.map(|tag| ("tag".to_string(), tag.to_string())).into_iter().collect();
                let metadata = Metadata::new(metadata).expect("small metadata");
                let (name, holder) = (name(n), holder(h));
                Command::Acquire(Acquire { name, holder, ttl, wait_ms, lock_delay_ms, limit, metadata })
            }
            Request::Renew { holder: h, ref names, ttl } => {
                let renewal =
                    |&(n, aim): &(u8, Aim)| Renewal { name: name(n), token: self.token(model, n, h, aim), ttl };
                Command::Renew { holder: holder(h), leases: names.iter().map(renewal).collect() }
            }
            Request::Release { name: n, holder: h, aim } => {
                Command::Release { name: name(n), holder: holder(h), token: self.token(model, n, h, aim) }
            }
            Request::Revoke { name: n } => Command::Revoke { name: name(n), reason: "to test".to_string() },
            Request::HandOver { name: n, holder: h, aim, to } => {
                let token = self.token(model, n, h, aim);
                Command::HandOver { name: name(n), holder: holder(h), token, to: to.map(holder) }
            }
            Request::KeepWaiting(ref waiters) => {
                let waiter = |&(n, h): &(u8, u8)| WaiterId { name: name(n), holder: holder(h) };
                Command::KeepWaiting { waiters: waiters.iter().map(waiter).collect() }
            }
            Request::LeaveQueue { name: n, holder: h } => {
                Command::LeaveQueue { waiter: WaiterId { name: name(n), holder: holder(h) } }
            }
            Request::Tick => Command::Tick,
            Request::SetLimits(limits) => Command::SetLimits(limits),
            Request::UpdateMetadata { name: n, holder: h, aim, version, tag } => {
                let metadata = Metadata::new([("tag".to_string(), tag.to_string())].into()).expect("small metadata");
                let token = self.token(model, n, h, aim);
                Command::UpdateMetadata { name: name(n), holder: holder(h), token, version, metadata }
            }
        }
    }
}

/// A machine whose first entry sets these limits.
pub fn machine_with(limits: Limits) -> Machine {
    let mut machine = Machine::new();
    let batch = Batch { stamp: Stamp::default(), commands: vec![Command::SetLimits(limits)] };
    machine.apply(FencingToken::new(0, 0), &batch);
    machine
}

pub fn plans() -> impl Strategy<Value = Vec<PlannedEntry>> {
    vec(planned_entry(), 1..60)
}

fn planned_entry() -> impl Strategy<Value = PlannedEntry> {
    let elapsed = prop_oneof![3 => Just(0), 6 => 1..120i64, 2 => 120..1500i64, 1 => -300..0i64];
    let skipped = prop_oneof![5 => Just(0), 1 => 1..4u64];
    (skipped, proptest::bool::weighted(0.1), elapsed, vec((principal(), request()), 0..4)).prop_map(
        |(skipped_indexes, is_new_term, elapsed, requests)| PlannedEntry {
            skipped_indexes,
            is_new_term,
            elapsed,
            requests,
        },
    )
}

fn principal() -> impl Strategy<Value = Option<u8>> {
    proptest::option::weighted(0.7, 0..PRINCIPALS.len() as u8)
}

fn request() -> impl Strategy<Value = Request> {
    let n = || 0..NAMES.len() as u8;
    let h = || 0..HOLDERS.len() as u8;
    let wait = prop_oneof![2 => Just(None), 3 => (0..900u64).prop_map(Some)];
    let delay = prop_oneof![3 => Just(0), 1 => 1..300u64];
    let acquire = (n(), h(), ttl(), wait, delay, limit(), proptest::option::of(0..9u8)).prop_map(
        |(name, holder, ttl, wait_ms, lock_delay_ms, limit, tag)| {
            // Most claims of a name have the same limit. Otherwise the machine would refuse most of them.
            let limit = if limit < 9 { 1 + name as u32 / 2 } else { limit - 8 };
            Request::Acquire { name, holder, ttl, wait_ms, lock_delay_ms, limit, tag }
        },
    );
    let renew = (h(), vec((n(), aim()), 1..3), proptest::option::weighted(0.3, ttl()))
        .prop_map(|(holder, names, ttl)| Request::Renew { holder, names, ttl });
    prop_oneof![
        10 => acquire,
        4 => renew,
        5 => (n(), h(), aim()).prop_map(|(name, holder, aim)| Request::Release { name, holder, aim }),
        1 => n().prop_map(|name| Request::Revoke { name }),
        3 => (n(), h(), aim(), proptest::option::of(h()))
            .prop_map(|(name, holder, aim, to)| Request::HandOver { name, holder, aim, to }),
        2 => vec((n(), h()), 0..4).prop_map(Request::KeepWaiting),
        1 => (n(), h()).prop_map(|(name, holder)| Request::LeaveQueue { name, holder }),
        2 => Just(Request::Tick),
        1 => limits().prop_map(Request::SetLimits),
        3 => (n(), h(), aim(), 0..4u64, 0..3u8)
            .prop_map(|(name, holder, aim, version, tag)| Request::UpdateMetadata { name, holder, aim, version, tag }),
    ]
}

fn ttl() -> impl Strategy<Value = Ttl> {
    prop_oneof![5 => (100..800u64).prop_map(|ms| Ttl::millis(ms).expect("valid")), 1 => Just(Ttl::INFINITE)]
}

fn limit() -> impl Strategy<Value = u32> {
    prop_oneof![9 => Just(0u32), 1 => 9..12u32]
}

fn aim() -> impl Strategy<Value = Aim> {
    prop_oneof![4 => Just(Aim::Current), 1 => (0..6u64).prop_map(Aim::Ago)]
}

pub fn limits() -> impl Strategy<Value = Limits> {
    (2..5u64, 0..4u32, 0..6u32, 0..800u64, 0..5u64, 50..600u64).prop_map(
        |(max_leases, max_waiters, history, ended_keep_ms, ended_keep, waiter_timeout_ms)| {
            let mut limits = Limits::default();
            (limits.max_leases, limits.max_waiters, limits.history) = (max_leases, max_waiters, history);
            (limits.ended_keep_ms, limits.ended_keep, limits.waiter_timeout_ms) =
                (ended_keep_ms, ended_keep, waiter_timeout_ms);
            limits
        },
    )
}
