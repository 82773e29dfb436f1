//! With a terminal on stdin, the command can read from it and gets its signals.

use std::fs::File;
use std::io::Write;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process_group};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::process::Process;
use crate::steady::steady;
use crate::world::{World, code};

steady!(command_reads_from_the_terminal_and_gets_ctrl_c, command_stopped_with_its_run_is_killed_by_the_deadline,);

/// Starts `tenure run` in a new session with a terminal.
fn run(world: &World, name: &str, script: &str) -> (File, Process) {
    let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("open a terminal");
    grantpt(&keys).and_then(|()| unlockpt(&keys)).expect("unlock the terminal");
    let path = ptsname(&keys, Vec::new()).expect("the terminal has a name");
    let terminal = path.to_str().expect("the name is UTF-8");
    let mut command = Command::new("sh");
    let line = format!("exec setsid -c $T run {name} --ttl 3s -- sh -c '. \"$D/library\"; {script}' < {terminal}");
    command.args(["-c", &line]).env("T", env!("CARGO_BIN_EXE_tenure")).env("D", world.cluster.folder());
    command.env("TENURE_ENDPOINTS", world.link.endpoints());
    let process = Process::start(name, command, world.cluster.folder());
    (File::from(keys), process)
}

async fn command_reads_from_the_terminal_and_gets_ctrl_c() {
    let world = World::start().await;
    let script = "trap \"mark INT marks; exit 5\" INT; mark up marks; read -r word; mark \"$word\" marks; ticks marks";
    let (mut keys, mut run) = run(&world, "job", script);
    world.wait_for_mark("marks", "up").await;
    keys.write_all(b"hello\n").expect("write to the terminal");
    world.wait_for_mark("marks", "hello").await;
    keys.write_all(b"\x03").expect("write to the terminal");
    assert_eq!(code(&mut run).await, 5, "{}", run.said());
}

/// Like Ctrl-Z: `tenure run` and the command are stopped together, but the guardian runs.
async fn command_stopped_with_its_run_is_killed_by_the_deadline() {
    let world = World::start().await;
    let script = "cut -d\" \" -f5 /proc/$$/stat > $D/group; ticks marks";
    let (_keys, mut run) = run(&world, "job", script);
    world.wait_for_mark("marks", "tick").await;
    let claim = world.next_holder("job").await;
    let group = world.text("group").trim().parse().ok().and_then(Pid::from_raw).expect("the script wrote its group");
    kill_process_group(group, Signal::STOP).expect("the group runs");
    let granted = claim.await.expect("the lease was granted");
    let last = world.last_mark("marks");
    kill_process_group(group, Signal::CONT).expect("the group is stopped");
    assert_eq!(code(&mut run).await, 123, "{}", run.said());
    assert!(last < granted && world.last_mark("marks") == last, "the command continued after the grant");
}
