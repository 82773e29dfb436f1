//! Tests of the command queue: order, bounds and overload; and of the weights of commands.

use futures_util::FutureExt;

use super::*;
use crate::lease::{Acquire, HolderCommand, Renewal, Stamp, WaiterId};
use crate::token::FencingToken;
use crate::types::{
    AccessName, HolderId, LeaseName, MAX_ACCESS_NAME_BYTES, MAX_HOLDER_BYTES, MAX_METADATA_BYTES, MAX_METADATA_ENTRIES,
    MAX_NAME_BYTES, MAX_REASON_BYTES, MAX_TTL_MS, Metadata, Ttl,
};

const WEIGHT: usize = 100;
const ENTRY_BYTES: usize = 64 << 10;
/// Number of commands of [`WEIGHT`] in one entry.
const ENTRY: usize = ENTRY_BYTES / WEIGHT;
const IN_FLIGHT: usize = 2;

fn queue<J>() -> CommandQueue<J> {
    CommandQueue::new(ENTRY_BYTES, IN_FLIGHT)
}

fn entry<J>(queue: &mut CommandQueue<J>) -> Vec<J> {
    queue.take_entry(|_| true).into_iter().map(|waiting| waiting.job).collect()
}

#[test]
fn urgent_commands_go_first_in_fifo_order() {
    let (mut queue, now) = (queue(), Instant::now());
    for (class, job) in [(Class::Ordinary, "a"), (Class::Urgent, "r"), (Class::Ordinary, "b"), (Class::Urgent, "s")] {
        queue.push(class, WEIGHT, job, now).expect("there is room");
    }
    assert_eq!(entry(&mut queue), ["r", "s", "a", "b"]);
    assert!(queue.is_empty());
}

#[test]
fn commands_beyond_an_entry_keep_their_order() {
    let (mut queue, now) = (queue(), Instant::now());
    for job in 0..ENTRY + 3 {
        queue.push(Class::Ordinary, WEIGHT, job, now).expect("there is room");
    }
    assert_eq!(entry(&mut queue).len(), ENTRY);
    let again = |job| QueuedCommand { class: Class::Ordinary, since: now, weight: WEIGHT, job };
    queue.requeue([7, 8].map(again).into());
    assert_eq!(entry(&mut queue), [7, 8, ENTRY, ENTRY + 1, ENTRY + 2]);
    queue.push(Class::Urgent, ENTRY_BYTES * 2, 1, now).expect("there is room");
    assert_eq!(entry(&mut queue), [1], "a command larger than an entry goes alone");
}

#[test]
fn claims_that_are_held_back_keep_their_order_and_their_time_limit() {
    let (mut queue, start) = (queue(), Instant::now());
    let push = |queue: &mut CommandQueue<&'static str>, job, ms| {
        queue.push(Class::Ordinary, WEIGHT, job, start + Duration::from_millis(ms)).expect("there is room");
    };
    push(&mut queue, "first", 0);
    push(&mut queue, "second", 1);
    let taken = queue.take_entry(|_| true);
    queue.hold_back(taken.into_iter());
    push(&mut queue, "third", 2);
    assert_eq!((queue.len(Class::Ordinary), entry(&mut queue)), (3, vec!["third"]));
    assert_eq!(queue.next_late(), Some(start + MAX_WAIT));
    assert_eq!(queue.take_late(start + MAX_WAIT), ["first"]);
    push(&mut queue, "fourth", 3);
    queue.end_hold();
    assert_eq!(entry(&mut queue), ["second", "fourth"]);
}

fn claim_of_n(limit: u32, wait_ms: Option<u64>) -> Command {
    let (name, holder) = (LeaseName::new("n").expect("valid"), HolderId::new("h").expect("valid"));
    let (ttl, metadata) = (Ttl::millis(1_000).expect("valid"), Metadata::default());
    Command::Acquire(Acquire { name, holder, ttl, wait_ms, lock_delay_ms: 0, limit, metadata })
}

fn revoke_of_n() -> Command {
    Command::Revoke { name: LeaseName::new("n").expect("valid"), reason: String::new() }
}

#[test]
fn claim_is_held_back_until_the_last_entry_with_its_name_is_done() {
    for later in [revoke_of_n(), claim_of_n(2, None)] {
        let mut undecided = Undecided::default();
        let first = undecided.add([claim_of_n(2, None)].iter());
        let second = undecided.add([later].iter());
        undecided.remove(&first);
        assert!(undecided.holds_back(&claim_of_n(2, None)), "the second entry is in flight");
        undecided.remove(&second);
        assert!(!undecided.holds_back(&claim_of_n(2, None)));
    }
}

#[test]
fn claims_with_a_wait_and_of_plain_leases_hold_no_claim_back() {
    for (entry, holds_back) in [(claim_of_n(2, Some(0)), false), (claim_of_n(1, None), false), (revoke_of_n(), true)] {
        let mut undecided = Undecided::default();
        undecided.add([entry.clone()].iter());
        assert_eq!(undecided.holds_back(&claim_of_n(2, None)), holds_back, "{entry:?}");
        assert!(!undecided.holds_back(&revoke_of_n()), "{entry:?}");
    }
}

/// The numbers of the commands that share an entry.
fn together(commands: &[Command]) -> Vec<usize> {
    let mut order = EntryOrder::default();
    let taken = commands.iter().enumerate().filter(|(_, command)| !order.holds_back(command));
    taken.map(|(number, _)| number).collect()
}

#[test]
fn claim_with_a_wait_is_held_back_only_behind_a_claim_that_may_be_postponed() {
    let (revoke, plain, counted) = (revoke_of_n(), |wait_ms| claim_of_n(1, wait_ms), |wait_ms| claim_of_n(2, wait_ms));
    let wait = Some(1_000);
    assert_eq!(together(&[counted(None), counted(None), counted(wait)]), [0, 1]);
    assert_eq!(together(&[counted(None), counted(wait), counted(None), counted(wait)]), [0], "they keep their order");
    assert_eq!(together(&[counted(wait), counted(None), counted(None)]), [0, 1, 2]);
    assert_eq!(together(&[revoke.clone(), plain(None), plain(wait), revoke.clone()]), [0, 1, 3]);
    assert_eq!(together(&[revoke.clone(), plain(wait), plain(None)]), [0, 1, 2]);
    assert_eq!(together(&[plain(None), revoke, plain(wait)]), [0, 1, 2]);
    assert_eq!(together(&[plain(None), plain(None), plain(wait), plain(wait)]), [0, 1, 2, 3]);
}

/// Under access control, each claim is a command of its principal.
#[test]
fn claims_of_principals_are_held_back_like_others() {
    let owned = |wait_ms| claim_of_n(2, wait_ms).owned_by(AccessName::new("p").expect("valid"));
    assert_eq!(together(&[owned(None), owned(Some(1_000))]), [0]);
    for (entry, later) in [(owned(None), claim_of_n(2, None)), (claim_of_n(2, None), owned(None))] {
        let mut undecided = Undecided::default();
        undecided.add([entry.clone()].iter());
        assert!(undecided.holds_back(&later), "{entry:?}, {later:?}");
    }
}

/// The leader does not lead any more, so no entry ends the hold.
#[test]
fn claims_that_are_held_back_are_taken_with_all_commands() {
    let (mut queue, now) = (queue(), Instant::now());
    queue.push(Class::Ordinary, WEIGHT, "held back", now).expect("there is room");
    let taken = queue.take_entry(|_| true);
    queue.hold_back(taken.into_iter());
    for (class, job) in [(Class::Ordinary, "claim"), (Class::Urgent, "renewal")] {
        queue.push(class, WEIGHT, job, now).expect("there is room");
    }
    assert_eq!(queue.take_all(), ["renewal", "held back", "claim"]);
}

#[test]
fn unwanted_commands_are_dropped() {
    let (mut queue, now) = (queue(), Instant::now());
    for job in 0..4 {
        queue.push(Class::Ordinary, WEIGHT, job, now).expect("there is room");
    }
    let kept: Vec<i32> = queue.take_entry(|job| job % 2 == 0).into_iter().map(|waiting| waiting.job).collect();
    assert_eq!(kept, [0, 2]);
}

#[test]
fn disk_stall_refuses_claims_and_takes_renewals() {
    let (mut queue, start) = (queue(), Instant::now());
    for _ in 0..IN_FLIGHT {
        queue.entry_sent(start);
    }
    queue.push(Class::Ordinary, WEIGHT, 0, start).expect("the stall begins now");
    let later = start + MAX_EXPECTED_WAIT + Duration::from_millis(1);
    assert_eq!(queue.push(Class::Ordinary, WEIGHT, 1, later), Err(Full::TooSlow));
    queue.push(Class::Urgent, WEIGHT, 2, later).expect("renewals are taken");
    assert_eq!(queue.next_late(), Some(start + MAX_WAIT));
    assert_eq!(queue.take_late(start + MAX_WAIT), [0], "a queued claim is refused after MAX_WAIT");
}

#[test]
fn finished_slow_entry_refuses_no_claim() {
    let (mut queue, start) = (queue(), Instant::now());
    for _ in 0..IN_FLIGHT {
        queue.entry_sent(start);
    }
    let later = start + 10 * MAX_EXPECTED_WAIT;
    for _ in 0..IN_FLIGHT {
        queue.entry_done(start, later);
    }
    queue.push(Class::Ordinary, WEIGHT, 1, later).expect("no entry is in flight");
}

#[test]
fn claims_are_taken_if_every_entry_is_slow() {
    let (mut queue, start) = (queue(), Instant::now());
    let far = 2 * MAX_EXPECTED_WAIT;
    queue.entry_sent(start);
    queue.entry_done(start, start + far);
    for _ in 0..IN_FLIGHT {
        queue.entry_sent(start + far);
    }
    let later = start + far + far;
    queue.push(Class::Ordinary, WEIGHT, 1, later).expect("this entry is no slower than the last one");
}

#[test]
fn both_queues_are_bounded_in_number_and_bytes() {
    let now = Instant::now();
    for class in [Class::Urgent, Class::Ordinary] {
        let mut many = queue();
        let taken = (0..2 * MAX_WAITING).take_while(|_| many.push(class, 1, (), now).is_ok()).count();
        assert_eq!(taken, MAX_WAITING);
        let mut large = queue();
        let taken = (0..1000).take_while(|_| large.push(class, 1 << 20, (), now).is_ok()).count();
        assert_eq!(taken, MAX_WAITING_BYTES >> 20);
    }
}

#[test]
fn each_way_out_of_a_queue_returns_its_room() {
    const LARGE: usize = 1 << 20;
    type WayOut = fn(&mut CommandQueue<()>, Instant);
    let ways: [(&str, &[Class], WayOut); 6] = [
        ("entries", &[Class::Urgent, Class::Ordinary], |queue, _| while !entry(queue).is_empty() {}),
        ("postponed", &[Class::Urgent, Class::Ordinary], |queue, _| {
            let postponed = queue.take_entry(|()| true);
            queue.requeue(postponed);
            while !entry(queue).is_empty() {}
        }),
        ("held back", &[Class::Ordinary], |queue, _| {
            let taken = queue.take_entry(|()| true);
            queue.hold_back(taken.into_iter());
            queue.end_hold();
            while !entry(queue).is_empty() {}
        }),
        ("all", &[Class::Urgent, Class::Ordinary], |queue, _| drop(queue.take_all())),
        ("unwanted", &[Class::Ordinary], |queue, _| drop(queue.take_entry(|()| false))),
        ("late", &[Class::Ordinary], |queue, now| drop(queue.take_late(now + MAX_WAIT))),
    ];
    let now = Instant::now();
    for (way, classes, take) in ways {
        for &class in classes {
            for weight in [1, LARGE] {
                let mut queue = queue();
                for round in 0..2 {
                    let taken = (0..=MAX_WAITING).take_while(|_| queue.push(class, weight, (), now).is_ok()).count();
                    assert_eq!(taken, MAX_WAITING.min(MAX_WAITING_BYTES / weight), "{way}, {class:?}, round {round}");
                    take(&mut queue, now);
                    assert!(queue.is_empty(), "{way}, {class:?}");
                }
            }
        }
    }
}

#[test]
fn one_command_may_take_all_bytes_of_its_queue() {
    let now = Instant::now();
    for class in [Class::Urgent, Class::Ordinary] {
        assert_eq!(queue().push(class, MAX_WAITING_BYTES, (), now), Ok(()));
        assert_eq!(queue().push(class, MAX_WAITING_BYTES + 1, (), now), Err(Full::TooMany));
    }
}

#[test]
fn claim_waits_at_most_800_ms() {
    let (mut queue, start) = (queue(), Instant::now());
    queue.push(Class::Ordinary, WEIGHT, "claim", start).expect("there is room");
    queue.push(Class::Urgent, WEIGHT, "renewal", start).expect("there is room");
    let late = start + Duration::from_millis(800);
    assert_eq!(queue.next_late(), Some(late));
    assert!(queue.take_late(late - Duration::from_millis(1)).is_empty());
    assert_eq!(queue.take_late(late), ["claim"]);
}

#[test]
fn claim_with_an_expected_wait_of_400_ms_is_taken() {
    let push_with = |entry_takes: Duration| {
        let (mut queue, start) = (queue(), Instant::now());
        queue.entry_sent(start);
        let now = start + entry_takes;
        queue.entry_done(start, now);
        // Two rounds of entries: the ones in flight, and as many in the queue.
        for _ in 0..IN_FLIGHT {
            queue.entry_sent(now);
        }
        for _ in 0..2 * IN_FLIGHT {
            queue.push(Class::Urgent, ENTRY_BYTES, 0, now).expect("there is room");
        }
        queue.push(Class::Ordinary, WEIGHT, 1, now)
    };
    assert_eq!(push_with(Duration::from_millis(200)), Ok(()));
    assert_eq!(push_with(Duration::from_millis(200) + Duration::from_nanos(1)), Err(Full::TooSlow));
}

/// The result of a simulated overload.
struct LoadResult {
    /// Longest time of a renewal from arrival to apply. `Duration::MAX` if one was refused.
    renewal: Duration,
    claim: Duration,
    served: usize,
    refused: usize,
    longest_queue: usize,
}

/// Simulates 10 s of overload: 20 ms per entry, one renewal per ms, and claims at ten times the capacity.
fn simulate_load(renewals: Class) -> LoadResult {
    const STEP: Duration = Duration::from_millis(1);
    const ENTRY_TAKES: u32 = 20;
    let start = Instant::now();
    let mut queue: CommandQueue<(bool, Instant)> = queue();
    let mut result = LoadResult { renewal: STEP, claim: STEP, served: 0, refused: 0, longest_queue: 0 };
    let mut in_flight: VecDeque<(Instant, Vec<(bool, Instant)>)> = VecDeque::new();
    for ms in 0..10_000 {
        let now = start + STEP * ms;
        let _ = queue.push(renewals, WEIGHT, (true, now), now).inspect_err(|_| result.renewal = Duration::MAX);
        for _ in 0..10 * IN_FLIGHT * ENTRY / ENTRY_TAKES as usize {
            result.refused += usize::from(queue.push(Class::Ordinary, WEIGHT, (false, now), now).is_err());
        }
        for (is_renewal, _) in queue.take_late(now) {
            result.refused += 1;
            result.renewal = if is_renewal { Duration::MAX } else { result.renewal };
        }
        while let Some((done, _)) = in_flight.front().filter(|(done, _)| *done <= now) {
            queue.entry_done(*done - STEP * ENTRY_TAKES, now);
            for (is_renewal, arrived) in in_flight.pop_front().expect("an entry is in flight").1 {
                let longest = if is_renewal { &mut result.renewal } else { &mut result.claim };
                *longest = (*longest).max(now - arrived);
                result.served += 1;
            }
        }
        while in_flight.len() < IN_FLIGHT && !queue.is_empty() {
            queue.entry_sent(now);
            in_flight.push_back((now + STEP * ENTRY_TAKES, entry(&mut queue)));
        }
        result.longest_queue = result.longest_queue.max(queue.len(Class::Ordinary));
    }
    result
}

#[test]
fn tenfold_load_keeps_renewals_fast_and_bounds_claims() {
    let result = simulate_load(Class::Urgent);
    assert!(result.renewal <= Duration::from_millis(2 * 20), "{:?}", result.renewal);
    assert!(result.claim <= MAX_WAIT + Duration::from_millis(20), "{:?}", result.claim);
    let possible = 10_000 / 20 * IN_FLIGHT * ENTRY;
    assert!(result.served > possible * 9 / 10, "{} of {possible} served: entries are not full", result.served);
    assert!(result.refused > possible * 8, "{} refused", result.refused);
    assert!(result.longest_queue < MAX_WAITING, "the bound of the wait applies before the bound in number");
}

#[test]
fn ordinary_renewals_would_wait_as_long_as_claims() {
    assert!(
        simulate_load(Class::Ordinary).renewal > Duration::from_millis(300),
        "the check of the tenfold load can fail"
    );
}

#[test]
fn commands_that_keep_or_free_leases_are_urgent() {
    let name = || LeaseName::new("n").expect("valid");
    let holder = || HolderId::new("h").expect("valid");
    let token = FencingToken { term: 1, index: 5 };
    let waiter = WaiterId { name: name(), holder: holder() };
    let urgent = [
        Command::Renew { holder: holder(), leases: Vec::new() },
        Command::Release { name: name(), holder: holder(), token },
        Command::HandOver { name: name(), holder: holder(), token, to: None },
        Command::KeepWaiting { waiters: vec![waiter.clone()] },
        Command::LeaveQueue { waiter },
        Command::Tick,
    ];
    for command in urgent {
        assert_eq!(Class::of(&command), Class::Urgent, "{command:?}");
        let principal = AccessName::new("p").expect("valid");
        let owned = command.owned_by(principal);
        assert_eq!(Class::of(&owned), Class::Urgent, "{owned:?}");
    }
    let metadata = Metadata::default();
    let ordinary = [
        Command::Revoke { name: name(), reason: String::new() },
        Command::UpdateMetadata { name: name(), holder: holder(), token, version: 1, metadata },
    ];
    for command in ordinary {
        assert_eq!(Class::of(&command), Class::Ordinary, "{command:?}");
    }
}

/// The largest command of the kind after this one. A new kind of command needs a place in this order.
fn largest_after(kind: Option<&Command>) -> Option<Command> {
    let name = || LeaseName::new("n".repeat(MAX_NAME_BYTES)).expect("valid");
    let holder = || HolderId::new("h".repeat(MAX_HOLDER_BYTES)).expect("valid");
    let token = FencingToken { term: u64::MAX, index: u64::MAX };
    let bytes = MAX_METADATA_BYTES / MAX_METADATA_ENTRIES - 2;
    let entry = |number: usize| (format!("{number:02}"), "v".repeat(bytes));
    let metadata = Metadata::new((0..MAX_METADATA_ENTRIES).map(entry).collect()).expect("it fits");
    let ttl = Ttl::millis(MAX_TTL_MS).expect("the longest ttl");
    let renewal = || Renewal { name: name(), token, ttl: Some(ttl) };
    let waiter = || WaiterId { name: name(), holder: holder() };
    let limits = Limits {
        max_leases: u64::MAX,
        max_waiters: u32::MAX,
        history: u32::MAX,
        ended_keep_ms: u64::MAX,
        ended_keep: u64::MAX,
        waiter_timeout_ms: u64::MAX,
    };
    let (wait_ms, lock_delay_ms, limit) = (Some(u64::MAX), u64::MAX, u32::MAX);
    let next = match kind {
        None => {
            let claim = Acquire { name: name(), holder: holder(), ttl, wait_ms, lock_delay_ms, limit, metadata };
            Command::Acquire(claim)
        }
        Some(Command::Acquire(_)) => Command::Renew { holder: holder(), leases: (0..200).map(|_| renewal()).collect() },
        Some(Command::Renew { .. }) => Command::Release { name: name(), holder: holder(), token },
        Some(Command::Release { .. }) => Command::Revoke { name: name(), reason: "r".repeat(MAX_REASON_BYTES) },
        Some(Command::Revoke { .. }) => Command::HandOver { name: name(), holder: holder(), token, to: Some(holder()) },
        Some(Command::HandOver { .. }) => Command::KeepWaiting { waiters: (0..100).map(|_| waiter()).collect() },
        Some(Command::KeepWaiting { .. }) => Command::LeaveQueue { waiter: waiter() },
        Some(Command::LeaveQueue { .. }) => Command::Tick,
        Some(Command::Tick) => Command::SetLimits(limits),
        Some(Command::SetLimits(_)) => {
            Command::UpdateMetadata { name: name(), holder: holder(), token, version: u64::MAX, metadata }
        }
        Some(update @ Command::UpdateMetadata { .. }) => {
            let principal = AccessName::new("p".repeat(MAX_ACCESS_NAME_BYTES)).expect("valid");
            update.clone().owned_by(principal)
        }
        Some(Command::As { command: HolderCommand::UpdateMetadata { .. }, principal }) => {
            let leases = (0..200).map(|_| renewal()).collect();
            Command::Renew { holder: holder(), leases }.owned_by(principal.clone())
        }
        Some(Command::As { command: HolderCommand::Renew { .. }, principal }) => {
            Command::HandOver { name: name(), holder: holder(), token, to: Some(holder()) }.owned_by(principal.clone())
        }
        Some(Command::As { .. }) => return None,
    };
    Some(next)
}

#[test]
fn weight_is_at_least_the_encoded_size() {
    let stamp = Stamp { now: u64::MAX, wall_ms: u64::MAX };
    let bytes = |commands: Vec<Command>| Proposal::leases(&Batch { stamp, commands }).0.len();
    let empty = bytes(Vec::new());
    let largest = std::iter::successors(largest_after(None), |kind| largest_after(Some(kind)));
    for command in largest {
        let (taken, weighed) = (bytes(vec![command.clone()]) - empty, weight(&command));
        assert!(taken <= weighed, "{taken} bytes have weight {weighed}: {command:?}");
    }
}

#[tokio::test]
async fn command_weighs_at_most_64_kib() {
    let revoke = |bytes: usize| {
        let empty = Command::Revoke { name: LeaseName::new("n").expect("valid"), reason: String::new() };
        let reason = "r".repeat(bytes - weight(&empty));
        Command::Revoke { name: LeaseName::new("n").expect("valid"), reason }
    };
    assert_eq!(weight(&revoke(65_536)), 65_536);
    let (proposer, jobs) = Proposer::new();
    assert_eq!(proposer.propose(1, revoke(65_536)).now_or_never(), None);
    assert_eq!(jobs.queue(|queue| queue.len(Class::Ordinary)), 1, "the command waits for an entry");
    let refused = proposer.propose(1, revoke(65_537)).now_or_never();
    assert_eq!(refused, Some(Err(ProposeError::Refused(RequestError::TooLarge))));
    assert_eq!(jobs.queue(|queue| queue.len(Class::Ordinary)), 1);
}

#[tokio::test]
async fn command_is_queued_before_its_caller_waits() {
    let (proposer, jobs) = Proposer::new();
    let _proposed = proposer.propose(1, Command::Tick);
    assert_eq!(jobs.queue(|queue| queue.len(Class::Urgent)), 1);
}

/// A grant without a caller would block the lease until its ttl is over. A release without a caller frees it.
#[tokio::test]
async fn claim_without_a_caller_is_not_proposed() {
    let name = || LeaseName::new("n").expect("valid");
    let holder = |text: &str| HolderId::new(text).expect("valid");
    let claim = |by: &str| {
        let (ttl, metadata) = (Ttl::millis(1_000).expect("valid"), Metadata::default());
        let (wait_ms, lock_delay_ms, limit) = (None, 0, 1);
        Command::Acquire(Acquire { name: name(), holder: holder(by), ttl, wait_ms, lock_delay_ms, limit, metadata })
    };
    let release =
        Command::Release { name: name(), holder: holder("releases"), token: FencingToken { term: 1, index: 5 } };
    let (proposer, jobs) = Proposer::new();
    assert_eq!(proposer.propose(1, claim("is gone")).now_or_never(), None);
    let mut waits = Box::pin(proposer.propose(1, claim("waits")));
    assert_eq!(waits.as_mut().now_or_never(), None);
    assert_eq!(proposer.propose(1, release.clone()).now_or_never(), None);
    let entry = jobs.next_entry(&Undecided::default(), 1).expect("two commands");
    let entry: Vec<_> = entry.into_iter().map(|taken| taken.job.command).collect();
    assert_eq!(entry, [release, claim("waits")]);
    assert!(jobs.next_entry(&Undecided::default(), 1).is_none());
}

/// The node has stopped leading and leads again. No entry would end the hold of the second claim.
#[tokio::test]
async fn claim_of_an_earlier_term_holds_no_claim_back() {
    let (proposer, jobs) = Proposer::new();
    let mut earlier = Box::pin(proposer.propose(1, claim_of_n(2, None)));
    let mut waits = Box::pin(proposer.propose(2, claim_of_n(2, Some(1_000))));
    assert_eq!((earlier.as_mut().now_or_never(), waits.as_mut().now_or_never()), (None, None));
    let entry = jobs.next_entry(&Undecided::default(), 2).expect("the claim of this term");
    let entry: Vec<_> = entry.into_iter().map(|taken| taken.job.command).collect();
    assert_eq!(entry, [claim_of_n(2, Some(1_000))]);
    assert_eq!(earlier.now_or_never(), Some(Err(ProposeError::NotLeader)));
}
