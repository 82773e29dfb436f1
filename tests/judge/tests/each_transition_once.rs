//! Skipped and repeated events of a watch are found.

use crate::judge::each_transition_once::check_watch;

const LOG: [(u64, u32); 4] = [(1, 0), (6, 0), (6, 1), (8, 0)];

#[test]
fn skipped_and_repeated_watch_events_are_caught() {
    let watch = |after, next| check_watch(LOG.into_iter(), after, next);
    watch((0, u32::MAX), (1, 0)).expect("the first transition");
    watch((1, u32::MAX), (6, 0)).expect("the next transition");
    watch((6, 0), (6, 1)).expect("the second transition of an entry");
    watch((1, u32::MAX), (6, 1)).expect_err("a transition of the entry is skipped");
    watch((1, u32::MAX), (8, 0)).expect_err("an entry is skipped");
    watch((6, 0), (6, 0)).expect_err("a transition is repeated");
}
