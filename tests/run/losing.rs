//! A lease that cannot be kept, or is taken away, ends the command before anybody else has the lease, where that is
//! possible at all.

use std::time::Duration;

use crate::process::Process;
use crate::steady::steady;
use crate::world::{Mark, World, code, wall};

steady!(
    nothing_of_the_command_runs_when_the_next_has_the_lease,
    without_term_the_command_is_killed_at_the_deadline,
    what_is_revoked_or_handed_over_ends_the_command,
);

const TTL: Duration = Duration::from_millis(1500);
const GRACE: Duration = Duration::from_millis(400);
/// What a busy machine adds.
const SLACK: Duration = Duration::from_millis(250);

const POLITE: &str = "trap 'mark TERM polite; exit 0' TERM; ticks polite";
const DEAF: &str = "trap '' TERM; ticks deaf";
const FAMILY: &str = "(trap '' TERM; ticks family) & trap 'exit 0' TERM; wait";
const ESCAPED: &str = "(setsid sh -c '. \"$D/library\"; trap \"\" TERM; ticks escaped' &); exec sleep 60";
const STOPPED: &str = "trap 'mark TERM stopped; exit 0' TERM; mark tick stopped; kill -STOP $$; ticks stopped";

/// Starts each of them, and has somebody wait for its lease.
async fn start(
    world: &World,
    scripts: &[(&str, &str)],
    options: &str,
) -> Vec<(Process, tokio::task::JoinHandle<Duration>)> {
    let mut started = Vec::new();
    for (name, script) in scripts {
        started.push(world.run(&format!("{name} --ttl {}ms {options}", TTL.as_millis()), script));
    }
    let mut waited = Vec::new();
    for ((name, _), run) in scripts.iter().zip(started) {
        world.marked(name, "tick").await;
        waited.push((run, world.next_holder(name).await));
    }
    waited
}

async fn nothing_of_the_command_runs_when_the_next_has_the_lease() {
    let world = World::start().await;
    let scripts = [("polite", POLITE), ("deaf", DEAF), ("family", FAMILY), ("escaped", ESCAPED), ("stopped", STOPPED)];
    let started = start(&world, &scripts, &format!("--grace {}ms", GRACE.as_millis())).await;
    world.link.cut();
    for ((name, _), (mut run, claim)) in scripts.iter().zip(started) {
        let granted = claim.await.expect("it was granted");
        assert_eq!(code(&mut run).await, 123, "{name}");
        let last = world.last(name);
        let before = granted.checked_sub(last).unwrap_or_else(|| panic!("{name} ran {:?} too long", last - granted));
        println!("{name}: its last trace {} ms before the next grant", before.as_millis());
        if ["deaf", "family", "escaped"].contains(name) {
            assert!(before <= GRACE, "{name} was not given its grace: {before:?}");
        } else {
            let term = granted - world.when(name, "TERM");
            println!("{name}: TERM {} ms before the next grant", term.as_millis());
            // On a busy machine a shell takes its time to write that down.
            assert!((GRACE / 2..GRACE + SLACK).contains(&term), "{name}: {term:?}");
        }
    }
}

async fn without_term_the_command_is_killed_at_the_deadline() {
    let world = World::start().await;
    let started = start(&world, &[("polite", POLITE)], "--on-lost kill").await;
    world.link.cut();
    for (mut run, claim) in started {
        let granted = claim.await.expect("it was granted");
        assert_eq!(code(&mut run).await, 123);
        assert!(world.marks("polite").iter().all(|mark| mark.word == "tick" && mark.at < granted));
        assert!(granted - world.last("polite") < SLACK);
    }
}

async fn what_is_revoked_or_handed_over_ends_the_command() {
    let world = World::start().await;
    let grace = "--grace 300ms --ttl 1500ms";
    for (name, script) in [("polite", POLITE), ("deaf", DEAF)] {
        let mut run = world.run(&format!("{name} {grace}"), script);
        world.marked(name, "tick").await;
        let revoked = wall();
        assert_eq!(world.tenure(&format!("lease revoke {name}")).await, 0);
        assert_eq!(code(&mut run).await, 123, "{}", run.said());
        assert!(run.said().contains("revoked"), "{}", run.said());
        println!("{name}: ran for {} ms after it was revoked", (world.last(name) - revoked).as_millis());
    }
    let written: Vec<Mark> = world.marks("polite");
    assert!(written.iter().any(|mark| mark.word == "TERM"));

    let mut run = world.run("given --ttl 1500ms --holder me", "echo $TENURE_TOKEN > $D/token; ticks given");
    world.marked("given", "tick").await;
    let claim = world.next_holder("given").await;
    let token = world.text("token");
    assert_eq!(world.tenure(&format!("lease handover given --holder me --token {}", token.trim())).await, 0);
    claim.await.expect("it was given");
    assert_eq!(code(&mut run).await, 123, "{}", run.said());
    assert!(run.said().contains("handed over"), "{}", run.said());
}
