//! Whichever of `tenure run` and its guardian stops or dies: the command ends in time.

use std::time::Duration;

use rustix::process::Signal;

use crate::cluster::SOON;
use crate::steady::steady;
use crate::world::{World, code, wall};

steady!(
    a_stopped_run_is_no_reason_for_the_command_to_go_on,
    a_run_that_is_stopped_for_a_moment_loses_nothing,
    a_killed_run_takes_the_command_with_it,
    a_killed_guardian_ends_the_command_and_the_lease_is_given_back,
    a_stopped_guardian_is_replaced_by_the_run,
    the_command_does_not_outlive_both,
    term_to_all_of_them_ends_the_command_well,
);

const DEAF: &str = "echo $PPID > $D/guardian; trap '' TERM; ticks marks";

async fn a_stopped_run_is_no_reason_for_the_command_to_go_on() {
    let world = World::start().await;
    let mut run = world.run("job --ttl 1s", DEAF);
    world.marked("marks", "tick").await;
    let claim = world.next_holder("job").await;
    run.signal(Signal::STOP);
    let granted = claim.await.expect("it was granted");
    let before = granted.checked_sub(world.last("marks")).expect("it ran too long");
    println!("its last trace {} ms before the next grant", before.as_millis());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(world.last("marks") < granted, "and it stays so");
    run.signal(Signal::CONT);
    assert_eq!(code(&mut run).await, 123, "{}", run.said());
}

async fn a_run_that_is_stopped_for_a_moment_loses_nothing() {
    let world = World::start().await;
    let mut run = world.run("job --ttl 2s", "mark up marks; sleep 1.5; exit 6");
    world.marked("marks", "up").await;
    run.signal(Signal::STOP);
    tokio::time::sleep(Duration::from_millis(500)).await;
    run.signal(Signal::CONT);
    assert_eq!(code(&mut run).await, 6, "{}", run.said());
}

async fn a_killed_run_takes_the_command_with_it() {
    let world = World::start().await;
    let mut deaf = world.run("deaf --ttl 2s --grace 300ms", DEAF);
    let mut polite = world.run("polite --ttl 2s", "trap 'mark TERM polite; exit' TERM; ticks polite");
    world.marked("marks", "tick").await;
    world.marked("polite", "tick").await;
    let claim = world.next_holder("deaf").await;
    let killed = wall();
    deaf.kill();
    polite.kill();
    world.marked("polite", "TERM").await;
    let granted = claim.await.expect("it was granted");
    let (term, end) = (world.when("polite", "TERM") - killed, world.last("marks") - killed);
    println!("TERM {} ms after kill -9, and the end of one that ignores it {} ms", term.as_millis(), end.as_millis());
    assert!(term < Duration::from_millis(200) && end < Duration::from_millis(500), "{term:?} {end:?}");
    assert!(world.last("marks") < granted);
}

async fn a_killed_guardian_ends_the_command_and_the_lease_is_given_back() {
    let world = World::start().await;
    let child = "(trap '' TERM; ticks below) & echo $PPID > $D/guardian; trap '' TERM; ticks marks";
    let mut run = world.run("job --ttl 20s", child);
    world.marked("marks", "tick").await;
    world.marked("below", "tick").await;
    let claim = world.next_holder("job").await;
    let killed = wall();
    world.signal("guardian", Signal::KILL);
    assert_eq!(code(&mut run).await, 125, "{}", run.said());
    let granted = claim.await.expect("it was granted");
    for file in ["marks", "below"] {
        let end = world.last(file);
        assert!(end < granted && end < killed + Duration::from_millis(200), "{file} ended {:?} after", end - killed);
    }
    assert!(granted < killed + Duration::from_secs(1), "given back, not expired");
}

async fn a_stopped_guardian_is_replaced_by_the_run() {
    let world = World::start().await;
    let mut run = world.run("job --ttl 1s", DEAF);
    world.marked("marks", "tick").await;
    let claim = world.next_holder("job").await;
    world.signal("guardian", Signal::STOP);
    world.link.cut();
    let granted = claim.await.expect("it was granted");
    assert_eq!(code(&mut run).await, 123, "{}", run.said());
    let before = granted.checked_sub(world.last("marks")).expect("it ran too long");
    println!("its last trace {} ms before the next grant", before.as_millis());
}

async fn the_command_does_not_outlive_both() {
    let world = World::start().await;
    let mut run = world.run("job --ttl 20s", DEAF);
    world.marked("marks", "tick").await;
    world.signal("guardian", Signal::STOP);
    run.kill();
    world.signal("guardian", Signal::KILL);
    let killed = wall();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(world.last("marks") < killed + Duration::from_millis(100));
}

/// A supervisor signals every process that it sees: the command gets its time all the same.
async fn term_to_all_of_them_ends_the_command_well() {
    let world = World::start().await;
    let script = "echo $PPID > $D/guardian; trap 'sleep 0.3; mark done marks; exit 8' TERM; ticks marks";
    let mut run = world.run("job --ttl 5s", script);
    world.marked("marks", "tick").await;
    world.signal("guardian", Signal::TERM);
    run.signal(Signal::TERM);
    let status = run.exit(SOON).await;
    assert_eq!(status.code(), Some(8), "{}", run.said());
    world.when("marks", "done");
}
