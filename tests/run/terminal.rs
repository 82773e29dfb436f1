//! At a terminal the command can read from it, and the terminal's keys reach the command.

use std::fs::File;
use std::io::Write;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process_group};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::process::Process;
use crate::steady::steady;
use crate::world::{World, code};

steady!(the_command_reads_from_the_terminal_and_has_its_keys, what_is_stopped_with_its_run_is_killed_by_the_deadline,);

/// `tenure run` at a terminal of its own.
fn run(world: &World, name: &str, script: &str) -> (File, Process) {
    let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("there are terminals");
    grantpt(&keys).and_then(|()| unlockpt(&keys)).expect("it is ours");
    let path = ptsname(&keys, Vec::new()).expect("it has a name");
    let terminal = path.to_str().expect("it is plain");
    let mut command = Command::new("sh");
    let line = format!("exec setsid -c $T run {name} --ttl 1s -- sh -c '. \"$D/library\"; {script}' < {terminal}");
    command.args(["-c", &line]).env("T", env!("CARGO_BIN_EXE_tenure")).env("D", world.cluster.folder());
    command.env("TENURE_ENDPOINTS", world.link.endpoints());
    let process = Process::start(name, command, world.cluster.folder());
    (File::from(keys), process)
}

async fn the_command_reads_from_the_terminal_and_has_its_keys() {
    let world = World::start().await;
    let script = "trap \"mark INT marks; exit 5\" INT; mark up marks; read -r word; mark \"$word\" marks; ticks marks";
    let (mut keys, mut run) = run(&world, "job", script);
    world.marked("marks", "up").await;
    keys.write_all(b"hello\n").expect("the terminal takes it");
    world.marked("marks", "hello").await;
    keys.write_all(b"\x03").expect("the terminal takes it");
    assert_eq!(code(&mut run).await, 5, "{}", run.said());
}

/// As Ctrl-Z does it: `tenure run` and the command are stopped together, and the guardian counts on.
async fn what_is_stopped_with_its_run_is_killed_by_the_deadline() {
    let world = World::start().await;
    let script = "cut -d\" \" -f5 /proc/$$/stat > $D/group; ticks marks";
    let (_keys, mut run) = run(&world, "job", script);
    world.marked("marks", "tick").await;
    let claim = world.next_holder("job").await;
    let group = world.text("group").trim().parse().ok().and_then(Pid::from_raw).expect("a number");
    kill_process_group(group, Signal::STOP).expect("it runs");
    let granted = claim.await.expect("it was granted");
    let last = world.last("marks");
    kill_process_group(group, Signal::CONT).expect("it is stopped");
    assert_eq!(code(&mut run).await, 123, "{}", run.said());
    assert!(last < granted && world.last("marks") == last, "it went on after the grant");
}
