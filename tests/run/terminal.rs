//! With a terminal on stdin, the command can read from it and gets its signals.

use std::fs::File;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::cluster::SOON;
use crate::process::Process;
use crate::steady::steady;
use crate::world::{World, code};

steady!(
    command_reads_from_the_terminal_and_gets_ctrl_c,
    command_of_a_terminal_gets_only_term_usr1_and_usr2_from_its_run,
    remaining_processes_get_ctrl_c_once,
    command_stopped_with_its_run_is_killed_by_the_deadline,
);

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

/// `tenure run` cannot tell a signal of `kill` from one of the terminal, which the command already has.
async fn command_of_a_terminal_gets_only_term_usr1_and_usr2_from_its_run() {
    let world = World::start().await;
    let traps =
        "for s in HUP INT QUIT TERM USR1; do trap \"mark $s marks\" $s; done; trap \"mark USR2 marks; exit 9\" USR2";
    let (_keys, mut run) = run(&world, "job", &format!("{traps}; mark up marks; while :; do sleep 0.02; done"));
    world.wait_for_mark("marks", "up").await;
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT] {
        run.signal(signal);
    }
    for (signal, word) in [(Signal::TERM, "TERM"), (Signal::USR1, "USR1"), (Signal::USR2, "USR2")] {
        run.signal(signal);
        world.wait_for_mark("marks", word).await;
    }
    assert_eq!(code(&mut run).await, 9, "{}", run.said());
    let words: Vec<String> = world.marks("marks").into_iter().map(|mark| mark.word).collect();
    assert_eq!(words, ["up", "TERM", "USR1", "USR2"]);
}

/// One remaining process is in the foreground group, and one is in another group. The first one is no background job,
/// because such a job of a shell ignores INT. It kills the shell instead.
async fn remaining_processes_get_ctrl_c_once() {
    let world = World::start().await;
    let runs = "until grep -q end $D/end; do mark tick $1; sleep 0.02; done";
    let remaining = format!(". $D/library; trap \"mark INT $1\" INT; eval \"$2\"; {runs}");
    for (file, text) in [("remaining", remaining.as_str()), ("end", "")] {
        std::fs::write(world.path(file), text).expect("write a file");
    }
    let script = "setsid -f sh $D/remaining far; sh $D/remaining near \"kill -KILL \\$PPID\"; exit 6";
    let (mut keys, mut run) = run(&world, "job", script);
    for file in ["near", "far"] {
        world.wait_for_mark(file, "tick").await;
    }
    let began = Instant::now();
    while !run.said().contains("keep the lease") {
        assert!(began.elapsed() < SOON, "the command has not exited: {}", run.said());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    keys.write_all(b"\x03").expect("write to the terminal");
    for file in ["near", "far"] {
        world.wait_for_mark(file, "INT").await;
    }
    std::fs::write(world.path("end"), "end").expect("write a file");
    assert_eq!((code(&mut run).await, world.is_held("job").await), (137, false), "{}", run.said());
    for file in ["near", "far"] {
        let marks = world.marks(file);
        assert_eq!(marks.iter().filter(|mark| mark.word == "INT").count(), 1, "{file}: {marks:?}");
    }
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
