//! The lease is held until all child processes of the command have exited.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cluster::SOON;
use crate::process::Process;
use crate::steady::steady;
use crate::world::{World, code};

steady!(
    child_processes_keep_the_lease,
    child_processes_run_on_although_no_message_can_be_written,
    remaining_processes_get_forwarded_signals,
);

async fn child_processes_keep_the_lease() {
    let world = World::start().await;
    let left = "(mark up left; sleep 0.8; mark end left) & exit 3";
    let escaped = "setsid sh -c '. \"$D/library\"; mark up away; sleep 0.8; mark end away' & exit 4";
    for (name, file, script, own) in [("one", "left", left, 3), ("two", "away", escaped, 4)] {
        let mut run = world.run(&format!("{name} --ttl 5s"), script);
        world.wait_for_mark(file, "up").await;
        let granted = world.next_holder(name).await.await.expect("the lease was granted");
        assert_eq!(code(&mut run).await, own);
        assert!(granted >= world.first_mark(file, "end"), "released while {file} ran");
        assert!(granted <= world.first_mark(file, "end") + Duration::from_millis(150), "released when it had ended");
        assert!(run.said().contains("keep the lease"), "{}", run.said());
    }
}

/// Stderr is a file on a full disk.
async fn child_processes_run_on_although_no_message_can_be_written() {
    let world = World::start().await;
    let run = "exec $T run job --ttl 5s -- sh -c '. \"$D/library\"; (sleep 0.8; mark end left) & exit 3' 2>/dev/full";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", run]).env("T", env!("CARGO_BIN_EXE_tenure")).env("D", world.cluster.folder());
    command.env("TENURE_ENDPOINTS", world.link.endpoints());
    let mut run = Process::start("full", command, world.cluster.folder());
    assert_eq!((code(&mut run).await, world.is_held("job").await), (3, false));
    assert_eq!(world.marks("left").len(), 1, "the child process was killed");
}

async fn remaining_processes_get_forwarded_signals() {
    let world = World::start().await;
    let mut run = world.run("job --ttl 5s", "(trap 'mark TERM left; exit' TERM; ticks left) & exit 3");
    let began = Instant::now();
    while !run.said().contains("keep the lease") {
        assert!(began.elapsed() < SOON, "the command has not exited: {}", run.said());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.wait_for_mark("left", "tick").await;
    run.signal(Signal::TERM);
    world.wait_for_mark("left", "TERM").await;
    assert_eq!((code(&mut run).await, world.is_held("job").await), (3, false));
}
