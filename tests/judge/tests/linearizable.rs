//! Histories with and without an order of the calls.

use crate::judge::history::{Ended, RequestKind};
use crate::judge::linearizable::{SearchResult, check};
use crate::judge::samples::{BOUNDS, acquire, acquired, did, expired, granted, history, released, saw, token};
use crate::judge::{Bounds, LeaseHistory};

#[test]
fn only_a_logged_expiry_explains_the_next_grant() {
    let asked = [acquired("a", (0, 10), 5), acquired("b", (1500, 1510), 9)];
    let log = [granted(5, "a", 5), expired(1400, "a", 5, 8), granted(1505, "b", 9)];
    assert_eq!(check(&history(&asked, &log)), SearchResult::Possible);
    let without = [log[0].clone(), log[2].clone()];
    assert!(matches!(check(&history(&asked, &without)), SearchResult::Impossible(_)));
}

#[test]
fn logged_unknown_release_explains_the_next_grant() {
    let release = did("a", RequestKind::Release { token: token(5) }, (20, 30), Ended::Unknown);
    let asked = [acquired("a", (0, 10), 5), release, acquired("b", (40, 50), 9)];
    let log = [granted(5, "a", 5), released(60, "a", 5, 8), granted(45, "b", 9)];
    assert_eq!(check(&history(&asked, &log)), SearchResult::Possible);
    let read = [acquired("a", (0, 10), 5), saw((20, 30), &[], 6)];
    assert!(matches!(check(&history(&read, &log[..1])), SearchResult::Impossible(_)), "a stale read");
}

#[test]
fn refusal_proves_nothing_outside_the_drift() {
    let refused = [did("a", acquire(), (0, 10), Ended::Refused("held".into()))];
    assert!(matches!(check(&history(&refused, &[])), SearchResult::Impossible(_)), "the lease was free");
    let bounds = Bounds { inside_drift: false, ..BOUNDS.clone() };
    assert_eq!(check(&LeaseHistory { bounds: &bounds, ..history(&refused, &[]) }), SearchResult::Possible);
}

#[test]
fn lost_token_is_not_held_afterwards() {
    let lost = did("a", RequestKind::Renew { token: token(5) }, (20, 30), Ended::Refused("lost".into()));
    let log = [granted(5, "a", 5), expired(60, "a", 5, 8)];
    let asked = |read| [acquired("a", (0, 10), 5), lost.clone(), read];
    assert_eq!(check(&history(&asked(saw((40, 50), &[], 8)), &log)), SearchResult::Possible, "it expired before");
    let held = check(&history(&asked(saw((40, 50), &[("a", 5)], 7)), &log));
    assert!(matches!(held, SearchResult::Impossible(_)), "{held:?}");
}
