//! A grant out of the order of the queue is found.

use crate::judge::ObservedQueue;
use crate::judge::queue_order::check;
use crate::judge::samples::{from_queue, granted, with_queues};

#[test]
fn grant_out_of_queue_order_is_caught() {
    let queue =
        |index, waiters: &[&str]| ObservedQueue { index, waiters: waiters.iter().map(|&who| who.into()).collect() };
    let log = [granted(1, "a", 5), from_queue(2, "b", 8), from_queue(3, "d", 11)];
    let good = [queue(6, &["b", "c", "d"]), queue(9, &["c", "d"])];
    check(&with_queues(&good, &log)).expect("c gave up");
    check(&with_queues(&[queue(6, &["d", "b"])], &log)).expect_err("d was ahead");
    check(&with_queues(&[queue(9, &["b", "d"])], &log)).expect_err("b has it already");
}
