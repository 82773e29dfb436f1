//! The command ends in time if `tenure run` or its guardian is stopped or killed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cluster::SOON;
use crate::process::{Process, TENURE};
use crate::steady::steady;
use crate::world::{World, code, wall};

steady!(
    stopped_run_does_not_extend_the_command,
    briefly_stopped_run_keeps_the_lease,
    killed_run_ends_the_command,
    killed_run_ends_the_command_of_an_infinite_lease,
    killed_run_with_on_lost_kill_ends_the_command,
    killed_guardian_ends_the_command_and_releases_the_lease,
    run_kills_the_command_of_a_stopped_guardian,
    run_kills_the_revoked_command_of_a_stopped_guardian,
    lease_is_not_released_while_a_process_cannot_be_killed,
    killed_run_and_guardian_end_the_command,
    term_to_all_processes_ends_the_command_gracefully,
    guardian_survives_each_forwarded_signal,
);

const IGNORES_TERM: &str = "echo $PPID > $D/guardian; trap '' TERM; ticks marks";

async fn stopped_run_does_not_extend_the_command() {
    let world = World::start().await;
    let mut run = world.run("job --ttl 3s", IGNORES_TERM);
    world.wait_for_mark("marks", "tick").await;
    let claim = world.next_holder("job").await;
    run.signal(Signal::STOP);
    let granted = claim.await.expect("the lease was granted");
    let before = granted.checked_sub(world.last_mark("marks")).expect("the command ran after the grant");
    println!("the last mark is {} ms before the next grant", before.as_millis());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(world.last_mark("marks") < granted, "the command does not run again");
    run.signal(Signal::CONT);
    assert_eq!(code(&mut run).await, 123, "{}", run.said());
}

async fn briefly_stopped_run_keeps_the_lease() {
    let world = World::start().await;
    let mut run = world.run("job --ttl 6s", "mark up marks; sleep 4.5; exit 6");
    world.wait_for_mark("marks", "up").await;
    run.signal(Signal::STOP);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    run.signal(Signal::CONT);
    assert_eq!(code(&mut run).await, 6, "{}", run.said());
}

async fn killed_run_ends_the_command() {
    let world = World::start().await;
    let mut deaf = world.run("deaf --ttl 2s --grace 300ms", IGNORES_TERM);
    let mut polite = world.run("polite --ttl 2s", "trap 'mark TERM polite; exit' TERM; ticks polite");
    world.wait_for_mark("marks", "tick").await;
    world.wait_for_mark("polite", "tick").await;
    let claim = world.next_holder("deaf").await;
    let killed = wall();
    deaf.kill();
    polite.kill();
    world.wait_for_mark("polite", "TERM").await;
    let granted = claim.await.expect("the lease was granted");
    let (term, end) = (world.first_mark("polite", "TERM") - killed, world.last_mark("marks") - killed);
    println!(
        "TERM came {} ms after kill -9; a command that ignores TERM ended after {} ms",
        term.as_millis(),
        end.as_millis()
    );
    assert!(term < Duration::from_millis(200) && end < Duration::from_millis(500), "{term:?} {end:?}");
    assert!(world.last_mark("marks") < granted);
}

/// An infinite lease has no deadline, so the guardian counts only the grace.
async fn killed_run_ends_the_command_of_an_infinite_lease() {
    command_ends_after_its_killed_run("--grace 300ms").await;
}

async fn killed_run_with_on_lost_kill_ends_the_command() {
    command_ends_after_its_killed_run("--on-lost kill").await;
}

async fn command_ends_after_its_killed_run(options: &str) {
    let world = World::start().await;
    let mut run = world.run(&format!("job --ttl infinite {options}"), IGNORES_TERM);
    world.wait_for_mark("marks", "tick").await;
    run.kill();
    let (killed, began) = (wall(), Instant::now());
    let has_ended = || wall().saturating_sub(world.last_mark("marks")) > Duration::from_secs(1);
    while !has_ended() && began.elapsed() < SOON {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let is_over = has_ended();
    if !is_over {
        // Nothing else ends the command.
        world.signal("guardian", Signal::KILL);
    }
    assert!(is_over, "it ran for {:?} after `tenure run` was killed", wall() - killed);
}

async fn killed_guardian_ends_the_command_and_releases_the_lease() {
    let world = World::start().await;
    let child = "(trap '' TERM; ticks below) & echo $PPID > $D/guardian; trap '' TERM; ticks marks";
    let mut run = world.run("job --ttl 20s", child);
    world.wait_for_mark("marks", "tick").await;
    world.wait_for_mark("below", "tick").await;
    let claim = world.next_holder("job").await;
    let killed = wall();
    world.signal("guardian", Signal::KILL);
    assert_eq!(code(&mut run).await, 125, "{}", run.said());
    let granted = claim.await.expect("the lease was granted");
    for file in ["marks", "below"] {
        let end = world.last_mark(file);
        assert!(end < granted && end < killed + Duration::from_millis(200), "{file} ended {:?} after", end - killed);
    }
    assert!(granted < killed + Duration::from_secs(1), "the lease was released before its expiry");
}

async fn run_kills_the_command_of_a_stopped_guardian() {
    let world = World::start().await;
    let mut run = world.run("job --ttl 3s", IGNORES_TERM);
    world.wait_for_mark("marks", "tick").await;
    let claim = world.next_holder("job").await;
    world.signal("guardian", Signal::STOP);
    world.link.cut();
    let granted = claim.await.expect("the lease was granted");
    assert_eq!(code(&mut run).await, 123, "{}", run.said());
    let before = granted.checked_sub(world.last_mark("marks")).expect("the command ran after the grant");
    println!("the last mark is {} ms before the next grant", before.as_millis());
}

/// The lease is infinite, so the revoke sets the only deadline.
async fn run_kills_the_revoked_command_of_a_stopped_guardian() {
    let world = World::start().await;
    let mut run = world.run("job --ttl infinite --grace 300ms", IGNORES_TERM);
    world.wait_for_mark("marks", "tick").await;
    world.signal("guardian", Signal::STOP);
    let (revoked, began) = (wall(), Instant::now());
    assert_eq!(world.tenure("lease revoke job").await, 0);
    while run.is_running() && began.elapsed() < SOON {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    if run.is_running() {
        // Nothing else ends the command.
        world.signal("guardian", Signal::KILL);
    }
    assert_eq!(code(&mut run).await, 123, "{}", run.said());
    let ran_for = world.last_mark("marks").saturating_sub(revoked);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let end = world.last_mark("marks").saturating_sub(revoked);
    assert_eq!(end, ran_for, "the command runs after the end of `tenure run`");
}

/// Root without the capability `kill` signals only its own processes. The command becomes a process of another user.
async fn lease_is_not_released_while_a_process_cannot_be_killed() {
    const OTHER_USER: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        println!("not checked: only root can start a process of another user");
        return;
    }
    let world = World::start().await;
    let script = format!(
        "echo $PPID > $D/guardian; echo $$ > $D/command; exec setpriv --reuid {OTHER_USER} --clear-groups sleep 60"
    );
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-kill", "--inh-caps=-kill", TENURE, "run", "job", "--ttl", "20s", "--"]);
    command.args(["sh", "-c", &script]).env("D", world.cluster.folder());
    command.env("TENURE_ENDPOINTS", world.link.endpoints());
    let mut run = Process::start("run without kill", command, world.cluster.folder());
    let is_of_other_user = || {
        let process = fs::metadata(format!("/proc/{}", world.text("command").trim()));
        process.is_ok_and(|process| process.uid() == OTHER_USER)
    };
    let began = Instant::now();
    while !is_of_other_user() {
        assert!(run.is_running() && began.elapsed() < SOON, "{}", run.said());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.signal("guardian", Signal::KILL);
    let code = code(&mut run).await;
    let (is_held, runs) = (world.is_held("job").await, is_of_other_user());
    world.signal("command", Signal::KILL);
    assert!(runs, "control: the command runs");
    assert!(is_held, "the next holder gets the lease while the command runs: {}", run.said());
    assert_eq!(code, 125, "{}", run.said());
    assert!(run.said().contains("cannot kill a process of the command: the lease is not released"), "{}", run.said());
}

async fn killed_run_and_guardian_end_the_command() {
    let world = World::start().await;
    let mut run = world.run("job --ttl 20s", IGNORES_TERM);
    world.wait_for_mark("marks", "tick").await;
    world.signal("guardian", Signal::STOP);
    run.kill();
    world.signal("guardian", Signal::KILL);
    let killed = wall();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(world.last_mark("marks") < killed + Duration::from_millis(100));
}

/// A process manager signals all processes of a service. The command still gets its grace.
async fn term_to_all_processes_ends_the_command_gracefully() {
    let world = World::start().await;
    let script = "echo $PPID > $D/guardian; trap 'sleep 0.3; mark done marks; exit 8' TERM; ticks marks";
    let mut run = world.run("job --ttl 5s", script);
    world.wait_for_mark("marks", "tick").await;
    world.signal("guardian", Signal::TERM);
    run.signal(Signal::TERM);
    let status = run.exit(SOON).await;
    assert_eq!(status.code(), Some(8), "{}", run.said());
    world.first_mark("marks", "done");
}

/// A process manager can stop a service with another signal, or tell all its processes to read their configuration.
async fn guardian_survives_each_forwarded_signal() {
    let world = World::start().await;
    let traps = "for s in INT HUP QUIT USR1 USR2; do trap \"mark $s marks\" $s; done";
    let script = "trap 'sleep 0.3; mark done marks; exit 8' TERM; echo $PPID > $D/guardian; ticks marks";
    let mut run = world.run("job --ttl 20s", &format!("{traps}; {script}"));
    world.wait_for_mark("marks", "tick").await;
    let sent = [Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
    for (signal, word) in sent.into_iter().zip(["INT", "HUP", "QUIT", "USR1", "USR2"]) {
        world.signal("guardian", signal);
        run.signal(signal);
        world.wait_for_mark("marks", word).await;
    }
    world.signal("guardian", Signal::TERM);
    run.signal(Signal::TERM);
    assert_eq!(code(&mut run).await, 8, "{}", run.said());
    world.first_mark("marks", "done");
}
