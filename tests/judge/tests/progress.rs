//! The commits that answers show.

use std::time::Duration;

use crate::judge::Progress;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn progress() -> Progress {
    let mut progress = Progress::default();
    for (index, at) in [(1, 100), (2, 200), (2, 250), (9, 1_000), (8, 1_050), (10, 1_100), (11, 3_100)] {
        progress.saw(index, ms(at));
    }
    progress
}

#[test]
fn only_higher_indices_are_commits() {
    assert_eq!((progress().first_at(3), progress().first_at(9)), (Some(ms(1_000)), Some(ms(1_000))));
    assert_eq!((progress().first_at(0), progress().first_at(12)), (Some(ms(100)), None));
}

#[test]
fn pauses_are_clipped_to_the_period() {
    let without = |from, until| progress().without_commits(ms(from), ms(until), ms(250));
    assert_eq!(without(0, 3_100), ms(800 + 2_000));
    assert_eq!(without(0, 210), ms(10), "a long pause begins at 200 ms");
    assert_eq!(without(500, 1_500), ms(500 + 400));
    assert_eq!(without(1_000, 1_100), Duration::ZERO);
    assert_eq!(without(3_200, 3_300), ms(100), "no commit after 3.1 s");
    assert_eq!(Progress::default().without_commits(ms(0), ms(9), ms(1)), Duration::ZERO);
}

#[test]
fn forget_before_keeps_the_last_commit() {
    let mut short = progress();
    short.forget_before(ms(1_050));
    assert_eq!(short.without_commits(ms(1_050), ms(3_100), ms(250)), ms(2_000));
    assert_eq!(short.first_at(1), Some(ms(1_000)));
}
