//! An expiry after its bound is found.

use std::time::Duration;

use crate::judge::expiry_happens::{Expiries, check, check_abandoned};
use crate::judge::history::{Ended, Operation, RequestKind};
use crate::judge::samples::{acquire, acquired, commits, did, expired, granted, history, token};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn judge(asked: &[Operation], expired_at: u64, without: (u64, u64)) -> Expiries {
    let log = [granted(5, "a", 5), expired(expired_at, "a", 5, 100_000)];
    check(&history(asked, &log), &commits(without), ms(20_000))
}

#[test]
fn expiry_within_the_bound_is_accepted() {
    let asked = [acquired("a", (0, 10), 5)];
    assert_eq!(judge(&asked, 2_200, (0, 0)).late, None);
    assert_eq!(judge(&asked, 6_200, (1_500, 5_500)).late, None, "four seconds without a commit after the ttl");
    assert_eq!(judge(&asked, 6_200, (500, 4_500)).late, None, "four seconds without a commit before its end");
    assert_eq!(judge(&asked, 2_200, (0, 0)).judged, 1);
}

#[test]
fn expiry_after_the_bound_is_caught() {
    let asked = [acquired("a", (0, 10), 5)];
    assert!(judge(&asked, 2_400, (0, 0)).late.is_some(), "1.4 s after the ttl");
    assert!(judge(&asked, 6_900, (1_500, 5_500)).late.is_some(), "four of the seconds had no commit");
    assert!(judge(&asked, 6_200, (8_000, 12_000)).late.is_some(), "the pause begins after the expiry");
}

#[test]
fn expiry_counts_from_the_first_answer_with_its_index() {
    let (asked, log) = ([acquired("a", (0, 10), 5)], [granted(5, "a", 5), expired(9_000, "a", 5, 1_500)]);
    let expiries = check(&history(&asked, &log), &commits((0, 0)), ms(20_000));
    assert_eq!(expiries.late, None, "an answer showed index 1,500 after 1.4 s; the watchers received it late");
}

#[test]
fn parts_of_a_late_event_are_known() {
    let log = [granted(5, "a", 5), expired(9_000, "a", 5, 1_500)];
    let heard = |asked: &[Operation]| check(&history(asked, &log), &commits((200, 700)), ms(20_000)).last_heard;
    let known = heard(&[acquired("a", (0, 10), 5)]);
    assert!(known.behind > ms(7_900) && known.behind < ms(8_000), "the ttl is one second: {known:?}");
    assert_eq!((known.delivery, known.is_ambiguous), (ms(7_600), false), "an answer showed it at 1.4 s");
    assert_eq!(known.without_commits, ms(600), "from 100 to 700 ms");
    let unknown = did("a", RequestKind::Renew { token: token(5) }, (900, 950), Ended::Unknown);
    assert!(heard(&[acquired("a", (0, 10), 5), unknown]).is_ambiguous);
}

#[test]
fn lease_that_never_expires_is_caught() {
    let asked = [acquired("a", (0, 10), 5)];
    let late = |now| check(&history(&asked, &[granted(5, "a", 5)]), &commits((0, 0)), ms(now)).late.is_some();
    assert_eq!((late(2_200), late(2_400)), (false, true));
}

#[test]
fn infinite_lease_has_no_bound() {
    let claim = RequestKind::Acquire { ttl_ms: None, limit: 1, wait_ms: None, lock_delay_ms: 0 };
    let unknown = [did("a", claim, (0, 10), Ended::Unknown)];
    let held = check(&history(&unknown, &[granted(5, "a", 5)]), &commits((0, 0)), ms(20_000));
    assert_eq!((held.judged, held.ambiguous, held.infinite, held.late), (0, 0, 1, None));
}

#[test]
fn extension_moves_the_bound_unless_unknown() {
    let renew = |ended| did("a", RequestKind::Renew { token: token(5) }, (900, 910), ended);
    let renewed = [acquired("a", (0, 10), 5), renew(Ended::Held(token(5), Some(3_000)))];
    assert_eq!(judge(&renewed, 5_100, (0, 0)).late, None);
    assert!(judge(&renewed, 5_400, (0, 0)).late.is_some());
    let unknown = judge(&[acquired("a", (0, 10), 5), renew(Ended::Unknown)], 9_000, (0, 0));
    assert_eq!((unknown.judged, unknown.ambiguous, unknown.late), (0, 1, None));
    let lost = judge(&[did("a", acquire(), (0, 10), Ended::Unknown)], 9_000, (0, 0));
    assert_eq!((lost.judged, lost.ambiguous), (0, 1));
}

#[test]
fn abandoned_lease_must_be_free_after_its_bound() {
    let log = [granted(5, "a", 5), expired(90, "a", 5, 7), granted(100, "b", 9)];
    check_abandoned(&log, ms(1_100), ms(1_000)).expect("at the bound");
    check_abandoned(&log, ms(1_101), ms(1_000)).expect_err("b holds the lease after the bound");
    check_abandoned(&log[..2], ms(9_000), ms(1_000)).expect("the lease is free");
}
