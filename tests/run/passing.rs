//! `tenure run` forwards signals to the command.

use rustix::process::Signal;

use crate::process::Process;
use crate::steady::steady;
use crate::world::{World, code};

steady!(signals_reach_the_command, ignored_hup_stays_ignored);

async fn signals_reach_the_command() {
    let world = World::start().await;
    let traps =
        "for s in TERM INT HUP QUIT USR1; do trap \"mark $s marks\" $s; done; trap 'mark USR2 marks; exit 9' USR2";
    let mut run = world.run("job --ttl 20s", &format!("{traps}; mark up marks; while :; do sleep 0.02; done"));
    world.wait_for_mark("marks", "up").await;
    let sent = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
    for (signal, word) in sent.into_iter().zip(["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"]) {
        run.signal(signal);
        world.wait_for_mark("marks", word).await;
    }
    assert_eq!(code(&mut run).await, 9);
    let words: Vec<String> = world.marks("marks").into_iter().map(|mark| mark.word).collect();
    assert_eq!(words, ["up", "TERM", "INT", "HUP", "QUIT", "USR1", "USR2"], "the command gets each signal once");
}

async fn ignored_hup_stays_ignored() {
    let world = World::start().await;
    let run = "trap '' HUP; exec $T run job --ttl 20s -- sh -c '. \"$D/library\"; kill -HUP $$; ticks marks'";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", run]).env("T", env!("CARGO_BIN_EXE_tenure")).env("D", world.cluster.folder());
    command.env("TENURE_ENDPOINTS", world.link.endpoints());
    let mut run = Process::start("nohup", command, world.cluster.folder());
    world.wait_for_mark("marks", "tick").await;
    run.signal(Signal::HUP);
    let ticks = world.marks("marks").len();
    while world.marks("marks").len() < ticks + 5 {
        assert!(run.is_running(), "{}", run.said());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    run.signal(Signal::INT);
    code(&mut run).await;
}
