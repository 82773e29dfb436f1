//! What becomes of commands that wait.

use super::*;
use crate::lease::WaiterId;
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName};

const WEIGHT: usize = 100;
const ENTRY_BYTES: usize = 64 << 10;
/// Commands of that weight in an entry.
const ENTRY: usize = ENTRY_BYTES / WEIGHT;
const IN_FLIGHT: usize = 2;

fn queue<J>() -> Queue<J> {
    Queue::new(ENTRY_BYTES, IN_FLIGHT)
}

fn entry<J>(queue: &mut Queue<J>) -> Vec<J> {
    queue.take_entry(|_| true).into_iter().map(|waiting| waiting.job).collect()
}

#[test]
fn urgent_commands_go_first_and_each_line_keeps_its_order() {
    let (mut queue, now) = (queue(), Instant::now());
    for (class, job) in [(Class::Ordinary, "a"), (Class::Urgent, "r"), (Class::Ordinary, "b"), (Class::Urgent, "s")] {
        queue.push(class, WEIGHT, job, now).expect("there is room");
    }
    assert_eq!(entry(&mut queue), ["r", "s", "a", "b"]);
    assert!(queue.is_empty());
}

#[test]
fn an_entry_takes_what_fits_and_the_rest_keeps_its_place() {
    let (mut queue, now) = (queue(), Instant::now());
    for job in 0..ENTRY + 3 {
        queue.push(Class::Ordinary, WEIGHT, job, now).expect("there is room");
    }
    assert_eq!(entry(&mut queue).len(), ENTRY);
    let again = |job| QueuedCommand { class: Class::Ordinary, since: now, weight: WEIGHT, job };
    queue.push_again([7, 8].map(again).into());
    assert_eq!(entry(&mut queue), [7, 8, ENTRY, ENTRY + 1, ENTRY + 2]);
    queue.push(Class::Urgent, ENTRY_BYTES * 2, 1, now).expect("there is room");
    assert_eq!(entry(&mut queue), [1], "one that is larger than an entry goes alone");
}

#[test]
fn what_nobody_waits_for_any_more_is_left_out() {
    let (mut queue, now) = (queue(), Instant::now());
    for job in 0..4 {
        queue.push(Class::Ordinary, WEIGHT, job, now).expect("there is room");
    }
    let kept: Vec<i32> = queue.take_entry(|job| job % 2 == 0).into_iter().map(|waiting| waiting.job).collect();
    assert_eq!(kept, [0, 2]);
}

#[test]
fn claims_are_refused_while_a_disk_hangs_and_renewals_are_taken() {
    let (mut queue, start) = (queue(), Instant::now());
    for _ in 0..IN_FLIGHT {
        queue.entry_sent(start);
    }
    queue.push(Class::Ordinary, WEIGHT, 0, start).expect("it hangs for no time yet");
    let later = start + MAX_EXPECTED_WAIT + Duration::from_millis(1);
    assert_eq!(queue.push(Class::Ordinary, WEIGHT, 1, later), Err(Full::TooSlow));
    queue.push(Class::Urgent, WEIGHT, 2, later).expect("renewals are taken");
    assert_eq!(queue.next_late(), Some(start + MAX_WAIT));
    assert_eq!(queue.take_late(start + MAX_WAIT), [0], "what was taken in is refused in time");
}

#[test]
fn an_entry_that_took_long_is_held_against_nobody_once_it_is_through() {
    let (mut queue, start) = (queue(), Instant::now());
    for _ in 0..IN_FLIGHT {
        queue.entry_sent(start);
    }
    let later = start + 10 * MAX_EXPECTED_WAIT;
    for _ in 0..IN_FLIGHT {
        queue.entry_done(start, later);
    }
    queue.push(Class::Ordinary, WEIGHT, 1, later).expect("it goes at once");
}

#[test]
fn where_every_entry_takes_long_claims_are_taken_all_the_same() {
    let (mut queue, start) = (queue(), Instant::now());
    let far = 2 * MAX_EXPECTED_WAIT;
    queue.entry_sent(start);
    queue.entry_done(start, start + far);
    for _ in 0..IN_FLIGHT {
        queue.entry_sent(start + far);
    }
    let later = start + far + far;
    queue.push(Class::Ordinary, WEIGHT, 1, later).expect("this one takes no longer than the one before");
}

#[test]
fn both_lines_are_bounded_in_number_and_bytes() {
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
fn one_command_may_take_all_bytes_of_its_line() {
    let now = Instant::now();
    for class in [Class::Urgent, Class::Ordinary] {
        assert_eq!(queue().push(class, MAX_WAITING_BYTES, (), now), Ok(()));
        assert_eq!(queue().push(class, MAX_WAITING_BYTES + 1, (), now), Err(Full::TooMany));
    }
}

#[test]
fn a_claim_waits_for_800_ms_and_no_longer() {
    let (mut queue, start) = (queue(), Instant::now());
    queue.push(Class::Ordinary, WEIGHT, "claim", start).expect("there is room");
    queue.push(Class::Urgent, WEIGHT, "renewal", start).expect("there is room");
    let late = start + Duration::from_millis(800);
    assert_eq!(queue.next_late(), Some(late));
    assert!(queue.take_late(late - Duration::from_millis(1)).is_empty());
    assert_eq!(queue.take_late(late), ["claim"]);
}

#[test]
fn a_claim_that_would_wait_for_400_ms_is_taken() {
    let push_with = |entry_takes: Duration| {
        let (mut queue, start) = (queue(), Instant::now());
        queue.entry_sent(start);
        let now = start + entry_takes;
        queue.entry_done(start, now);
        // Two rounds of entries: those on their way, and as many behind them.
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

/// What became of commands that came ten times as fast as entries could take them.
struct Played {
    /// Longest time from coming to having been served.
    renewal: Duration,
    claim: Duration,
    served: usize,
    refused: usize,
    longest_line: usize,
}

/// Ten seconds of virtual time: 20 ms an entry, one renewal each ms, and claims at ten times of what is left.
fn play(renewals: Class) -> Played {
    const STEP: Duration = Duration::from_millis(1);
    const ENTRY_TAKES: u32 = 20;
    let start = Instant::now();
    let mut queue: Queue<(bool, Instant)> = queue();
    let mut played = Played { renewal: STEP, claim: STEP, served: 0, refused: 0, longest_line: 0 };
    let mut on_their_way: VecDeque<(Instant, Vec<(bool, Instant)>)> = VecDeque::new();
    for ms in 0..10_000 {
        let now = start + STEP * ms;
        let _ = queue.push(renewals, WEIGHT, (true, now), now).inspect_err(|_| played.renewal = Duration::MAX);
        for _ in 0..10 * IN_FLIGHT * ENTRY / ENTRY_TAKES as usize {
            played.refused += usize::from(queue.push(Class::Ordinary, WEIGHT, (false, now), now).is_err());
        }
        for (is_renewal, _) in queue.take_late(now) {
            played.refused += 1;
            played.renewal = if is_renewal { Duration::MAX } else { played.renewal };
        }
        while let Some((done, _)) = on_their_way.front().filter(|(done, _)| *done <= now) {
            queue.entry_done(*done - STEP * ENTRY_TAKES, now);
            for (is_renewal, came) in on_their_way.pop_front().expect("there is one").1 {
                let longest = if is_renewal { &mut played.renewal } else { &mut played.claim };
                *longest = (*longest).max(now - came);
                played.served += 1;
            }
        }
        while on_their_way.len() < IN_FLIGHT && !queue.is_empty() {
            queue.entry_sent(now);
            on_their_way.push_back((now + STEP * ENTRY_TAKES, entry(&mut queue)));
        }
        played.longest_line = played.longest_line.max(queue.len(Class::Ordinary));
    }
    played
}

#[test]
fn at_ten_times_what_can_be_served_renewals_are_quick_and_claims_are_served_in_time_or_refused() {
    let played = play(Class::Urgent);
    assert!(played.renewal <= Duration::from_millis(2 * 20), "{:?}", played.renewal);
    assert!(played.claim <= MAX_WAIT + Duration::from_millis(20), "{:?}", played.claim);
    let possible = 10_000 / 20 * IN_FLIGHT * ENTRY;
    assert!(played.served > possible * 9 / 10, "{} of {possible}: no entry goes half empty", played.served);
    assert!(played.refused > possible * 8, "{} refused", played.refused);
    assert!(played.longest_line < MAX_WAITING, "bounded by time before it is bounded in number");
}

#[test]
fn in_one_line_with_the_claims_renewals_would_wait_as_long_or_be_refused() {
    assert!(play(Class::Ordinary).renewal > Duration::from_millis(300), "the check above can fail");
}

#[test]
fn what_keeps_or_frees_a_lease_is_urgent() {
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
    }
    assert_eq!(Class::of(&Command::Revoke { name: name(), reason: String::new() }), Class::Ordinary);
}
