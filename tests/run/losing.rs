//! The command ends before the next holder has the lease. A revoke or a handover is the exception: the command ends soon
//! after it.

use std::time::{Duration, Instant};

use crate::cluster::SOON;
use crate::process::Process;
use crate::steady::steady;
use crate::world::{Mark, World, code, wall};

steady!(
    command_ends_before_the_next_grant,
    on_lost_kill_kills_at_the_deadline,
    revoke_and_handover_end_the_command,
    revoked_command_is_killed_after_its_grace,
    revoked_command_of_on_lost_kill_is_killed_at_once,
    lock_delay_follows_a_revoke,
    end_of_a_command_tells_why_its_renewal_was_refused,
);

const TTL: Duration = Duration::from_millis(1500);
const GRACE: Duration = Duration::from_millis(400);
/// Allowance for a busy machine.
const SLACK: Duration = Duration::from_millis(250);

const TRAPS_TERM: &str = "trap 'mark TERM polite; exit 0' TERM; ticks polite";
const IGNORES_TERM: &str = "trap '' TERM; ticks deaf";
const CHILD_IGNORES_TERM: &str = "(trap '' TERM; ticks family) & trap 'exit 0' TERM; wait";
const CHILD_IN_NEW_SESSION: &str = "(setsid sh -c '. \"$D/library\"; trap \"\" TERM; ticks escaped' &); exec sleep 60";
const STOPS_ITSELF: &str = "trap 'mark TERM stopped; exit 0' TERM; mark tick stopped; kill -STOP $$; ticks stopped";

/// Starts a run for each script, and a waiter for each lease.
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
        world.wait_for_mark(name, "tick").await;
        waited.push((run, world.next_holder(name).await));
    }
    waited
}

async fn command_ends_before_the_next_grant() {
    let world = World::start().await;
    let scripts = [
        ("polite", TRAPS_TERM),
        ("deaf", IGNORES_TERM),
        ("family", CHILD_IGNORES_TERM),
        ("escaped", CHILD_IN_NEW_SESSION),
        ("stopped", STOPS_ITSELF),
    ];
    let started = start(&world, &scripts, &format!("--grace {}ms", GRACE.as_millis())).await;
    world.link.cut();
    for ((name, _), (mut run, claim)) in scripts.iter().zip(started) {
        let granted = claim.await.expect("the lease was granted");
        assert_eq!(code(&mut run).await, 123, "{name}");
        let last = world.last_mark(name);
        let before = granted.checked_sub(last).unwrap_or_else(|| panic!("{name} ran {:?} too long", last - granted));
        println!("{name}: the last mark is {} ms before the next grant", before.as_millis());
        if ["deaf", "family", "escaped"].contains(name) {
            assert!(before <= GRACE, "{name} was killed before the end of its grace: {before:?}");
        } else {
            let term = granted - world.first_mark(name, "TERM");
            println!("{name}: TERM {} ms before the next grant", term.as_millis());
            // On a busy machine, the shell needs time to write its mark.
            assert!((GRACE / 2..GRACE + SLACK).contains(&term), "{name}: {term:?}");
        }
    }
}

async fn on_lost_kill_kills_at_the_deadline() {
    let world = World::start().await;
    let started = start(&world, &[("polite", TRAPS_TERM)], "--on-lost kill").await;
    world.link.cut();
    for (mut run, claim) in started {
        let granted = claim.await.expect("the lease was granted");
        assert_eq!(code(&mut run).await, 123);
        assert!(world.marks("polite").iter().all(|mark| mark.word == "tick" && mark.at < granted));
        assert!(granted - world.last_mark("polite") < SLACK);
    }
}

async fn revoke_and_handover_end_the_command() {
    let world = World::start().await;
    let grace = "--grace 300ms --ttl 6s";
    for (name, script) in [("polite", TRAPS_TERM), ("deaf", IGNORES_TERM)] {
        let mut run = world.run(&format!("{name} {grace}"), script);
        world.wait_for_mark(name, "tick").await;
        let revoked = wall();
        assert_eq!(world.tenure(&format!("lease revoke {name}")).await, 0);
        assert_eq!(code(&mut run).await, 123, "{}", run.said());
        assert!(run.said().contains("revoked"), "{}", run.said());
        println!("{name}: ran for {} ms after it was revoked", (world.last_mark(name) - revoked).as_millis());
    }
    let written: Vec<Mark> = world.marks("polite");
    assert!(written.iter().any(|mark| mark.word == "TERM"));

    let mut run = world.run("given --ttl 6s --holder me", "echo $TENURE_TOKEN > $D/token; ticks given");
    world.wait_for_mark("given", "tick").await;
    let claim = world.next_holder("given").await;
    let token = world.text("token");
    assert_eq!(world.tenure(&format!("lease handover given --holder me --token {}", token.trim())).await, 0);
    claim.await.expect("the lease was handed over");
    assert_eq!(code(&mut run).await, 123, "{}", run.said());
    assert!(run.said().contains("handed over"), "{}", run.said());
}

/// The deadline is much later than the end of the grace.
async fn revoked_command_is_killed_after_its_grace() {
    let world = World::start().await;
    let mut run = world.run("stays --ttl 6s --grace 300ms", "trap 'mark TERM stays' TERM; ticks stays");
    world.wait_for_mark("stays", "tick").await;
    assert_eq!(world.tenure("lease revoke stays").await, 0);
    let revoked = wall();
    assert_eq!(code(&mut run).await, 123, "{}", run.said());
    let (term, last) = (world.first_mark("stays", "TERM"), world.last_mark("stays"));
    // The next renewal notices the revoke, at most 0.37 ttl later.
    let noticed = term.saturating_sub(revoked);
    assert!(noticed < Duration::from_millis(2_500), "{noticed:?}");
    assert!(last - term < Duration::from_secs(1), "{:?}", last - term);
}

/// Without TERM there is no grace. The deadline is at least 7 s later.
async fn revoked_command_of_on_lost_kill_is_killed_at_once() {
    let world = World::start().await;
    let mut run = world.run("polite --ttl 12s --on-lost kill", TRAPS_TERM);
    world.wait_for_mark("polite", "tick").await;
    assert_eq!(world.tenure("lease revoke polite").await, 0);
    let began = Instant::now();
    while !run.said().contains("stopping the command") {
        assert!(began.elapsed() < SOON, "{}", run.said());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let noticed = wall();
    assert_eq!(code(&mut run).await, 123, "{}", run.said());
    let over = world.last_mark("polite").saturating_sub(noticed);
    assert!(over < Duration::from_secs(2), "it ran for {over:?} after the loss");
    assert!(world.marks("polite").iter().all(|mark| mark.word == "tick"), "{:?}", world.marks("polite"));
}

async fn end_of_a_command_tells_why_its_renewal_was_refused() {
    let world = World::start().await;
    let mut run = world.run("polite --ttl 2s --grace 300ms", TRAPS_TERM);
    world.wait_for_mark("polite", "tick").await;
    world.turn_access_control_on().await;
    assert_eq!(code(&mut run).await, 123, "{}", run.said());
    assert!(run.said().contains("refused (unauthenticated)"), "{}", run.said());
}

async fn lock_delay_follows_a_revoke() {
    let world = World::start().await;
    let mut run = world.run("job --ttl 6s --lock-delay 60s", TRAPS_TERM);
    world.wait_for_mark("polite", "tick").await;
    assert_eq!(world.tenure("lease revoke job").await, 0);
    assert_eq!(world.tenure("lease acquire job --holder other").await, 5);
    assert_eq!(code(&mut run).await, 123, "{}", run.said());
    let mut refused = world.run("job --ttl 6s", "mark ran");
    assert_eq!(code(&mut refused).await, 124, "{}", refused.said());
}
