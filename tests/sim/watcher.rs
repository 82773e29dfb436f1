//! Clients that watch all transitions, at one node after the other. One must miss none. Another begins from now, again
//! and again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::lease::Transition;
use tenure::node::{Compacted, Watch, WatchEnd, WatchPosition};
use tenure::types::NodeId;

use super::judge::each_transition_once;
use super::ledger::Ledger;
use super::world::{World, lock};

/// The log index and the part of a transition. The position after all parts of an entry has [`u32::MAX`].
type Place = (u64, u32);

/// Pause before a watch at the next node.
const PAUSE: Duration = Duration::from_millis(5);
/// Pause before the next watch from now.
const LONG_PAUSE: Duration = Duration::from_millis(100);
/// The number of transitions that a watch from now receives.
const FROM_NOW: usize = 20;
/// Interval between two checks that the watched node still serves clients.
const LEFT_POLL: Duration = Duration::from_millis(100);
/// Bound for the last transition to arrive, after all replicas have applied it.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks `each_transition_once` while nodes crash: the watch delivers each transition once, in order and whole.
pub async fn watch(world: Arc<World>) {
    let mut node = 1;
    loop {
        let (index, part) = *lock(&world.watched);
        let start = WatchPosition { index, part: (part != u32::MAX).then_some(part) };
        let from = (!world.plan.planted.late_watch).then_some(start);
        let watch = world.node(node).map(|running| running.transitions(from));
        match watch {
            Some(Ok(watch)) => follow(&world, node, watch, &world.watched, usize::MAX, "watched").await,
            // A watch cannot resume in the compacted part of the log, so it continues after it.
            Some(Err(compacted)) => {
                world.count_work("watch compacted");
                may_be_compacted(&world, node, (index, part), compacted);
                *lock(&world.watched) = (compacted.oldest, u32::MAX);
            }
            None => {}
        }
        node = world.next_node(node);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Checks that a watch without a position begins after the last applied entry of its node, or before.
pub async fn watch_from_now(world: Arc<World>) {
    let mut node = 1;
    loop {
        let watch = world.node(node).map(|running| running.transitions(None));
        match watch {
            Some(Ok(watch)) => {
                let start = watch.position();
                let applied = lock(&world.ledger).applied.get(&node).copied().unwrap_or_default();
                if start.index > applied {
                    let how = format!("a watch from now of node {node} begins at {start:?}; it has applied {applied}");
                    world.report_violation("each_transition_once", how);
                }
                let reached = Mutex::new((start.index, start.part.unwrap_or(u32::MAX)));
                follow(&world, node, watch, &reached, FROM_NOW, "watched from now").await;
            }
            Some(Err(compacted)) => {
                let how = format!("a watch from now of node {node}: {compacted}");
                world.report_violation("each_transition_once", how);
            }
            None => {}
        }
        node = world.next_node(node);
        tokio::time::sleep(LONG_PAUSE).await;
    }
}

/// Receives at most `count` transitions of a watch, which was opened at the position in `reached`. Ends with the watch,
/// or when clients leave the node.
async fn follow(
    world: &World,
    node: NodeId,
    mut watch: Watch,
    reached: &Mutex<Place>,
    count: usize,
    work: &'static str,
) {
    let left = has_left(world, node);
    tokio::pin!(left);
    for _ in 0..count {
        let next = tokio::select! {
            biased;
            next = watch.next() => next,
            () = &mut left => return,
        };
        let after = *lock(reached);
        match next {
            Ok(seen) => {
                let checked = check(&lock(&world.ledger), after, &seen);
                if let Err(how) = checked {
                    world.report_violation("each_transition_once", how);
                }
                *lock(reached) = (seen.index, seen.part);
                world.count_work(work);
            }
            Err(WatchEnd::Compacted(compacted)) => return may_be_compacted(world, node, after, compacted),
            Err(WatchEnd::Stopped) => return,
        }
    }
}

/// Waits until clients leave a node: its process has ended or must end, or the cluster was asked to remove it.
async fn has_left(world: &World, node: NodeId) {
    loop {
        tokio::time::sleep(LEFT_POLL).await;
        let serves = world.node(node).is_some_and(|running| running.health().failed.is_none());
        if !serves || !world.usable_nodes().contains(&node) {
            return;
        }
    }
}

fn may_be_compacted(world: &World, node: NodeId, after: Place, compacted: Compacted) {
    let replaced = lock(&world.ledger).replaced.get(&node).copied().unwrap_or_default();
    if let Err(how) = check_compacted(replaced, after, compacted) {
        world.report_violation("each_transition_once", format!("node {node}: {how}"));
    }
}

/// Checks the answer to a watch after a position. `replaced`: the highest index at which a snapshot replaced the state
/// of the node. A run has fewer transitions than a node keeps, so a node forgets only those up to there.
pub fn check_compacted(replaced: u64, after: Place, Compacted { oldest }: Compacted) -> Result<(), String> {
    if oldest < after.0 || oldest > replaced {
        return Err(format!("a watch after {after:?} has to begin at {oldest}; the last snapshot has {replaced}"));
    }
    Ok(())
}

/// Checks the transition that a watch delivered next after a position.
pub fn check(ledger: &Ledger, after: Place, seen: &Transition) -> Result<(), String> {
    let next = (seen.index, seen.part);
    let first = ledger.entries.partition_point(|entry| entry.index < after.0);
    let near = ledger.entries[first..].iter().take_while(|entry| entry.index <= seen.index);
    let places = near.flat_map(|entry| entry.transitions.iter().map(|seen| (seen.index, seen.part)));
    each_transition_once::check_watch(places, after, next)?;
    match ledger.entry(seen.index).and_then(|entry| entry.transitions.get(seen.part as usize)) {
        Some(applied) if applied == seen => Ok(()),
        applied => Err(format!("the watch delivered {seen:?}; the log has {applied:?}")),
    }
}

/// Checks after the last entry that the watcher receives the last transition.
pub async fn check_end(world: &World) {
    let last = || {
        let ledger = lock(&world.ledger);
        let last = ledger.entries.iter().rev().find_map(|entry| entry.transitions.last());
        last.map(|seen| (seen.index, seen.part))
    };
    let reached = async {
        while last().is_some_and(|last| *lock(&world.watched) < last) {
            tokio::time::sleep(PAUSE).await;
        }
    };
    if tokio::time::timeout(END_TIMEOUT, reached).await.is_err() {
        let (watched, last) = (*lock(&world.watched), last());
        world.report_violation(
            "each_transition_once",
            format!("the watcher stands at {watched:?} within {END_TIMEOUT:?} of the last transition, {last:?}"),
        );
    }
}
