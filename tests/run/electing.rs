//! `tenure elect`: leaders, observers and commands.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::Call;
use crate::cluster::SOON;
use crate::process::{Process, tenure};
use crate::steady::steady;
use crate::world::{World, code};

steady!(
    observers_see_successive_leaders,
    observer_that_the_cluster_refuses_exits_with_125,
    leader_holds_the_lease_with_its_options,
    term_before_the_election_exits_with_124,
    command_runs_in_each_leadership_until_it_exits,
    ended_leadership_leaves_no_process,
    hup_before_a_loss_keeps_the_candidate_and_int_ends_it,
    term_before_a_loss_ends_the_candidate,
    signal_after_a_revocation_ends_the_leader,
    leader_that_cannot_release_its_lease_has_not_resigned,
    leader_whose_lease_was_revoked_before_its_release_has_lost_it,
    signal_ends_a_leader_that_asks_why_its_lease_was_lost,
    usage_error_of_a_candidate_exits_with_125,
);

fn elect(world: &World, holder: &str, options: &str, script: Option<&str>) -> Process {
    let mut command = tenure();
    command.args(["elect", "duty", "-o", "json", "--ttl", "6s", "--holder", holder]);
    command.args(options.split_whitespace());
    if let Some(script) = script {
        command.args(["--", "sh", "-c", &format!(". \"$D/library\"; {script}")]);
    }
    command.env("TENURE_ENDPOINTS", world.link.endpoints()).env("D", world.cluster.folder());
    Process::start(holder, command, world.cluster.folder())
}

async fn wait_for_output(process: &Process, text: &str) {
    let began = Instant::now();
    while !(process.printed() + &process.said()).contains(text) {
        assert!(began.elapsed() < SOON, "no {text}: {} {}", process.printed(), process.said());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn observers_see_successive_leaders() {
    let world = World::start().await;
    let mut observer = elect(&world, "observer", "--observe", None);
    wait_for_output(&observer, r#""holder":null"#).await;
    let mut first = elect(&world, "first", "", None);
    wait_for_output(&first, r#""event":"elected""#).await;
    wait_for_output(&observer, r#""holder":"first""#).await;
    let mut second = elect(&world, "second", "--once", None);
    while !world.has_waiter("duty").await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    first.signal(Signal::TERM);
    assert_eq!(code(&mut first).await, 0);
    wait_for_output(&first, r#""event":"resigned""#).await;
    wait_for_output(&observer, r#""holder":"second""#).await;
    assert_eq!(world.tenure("lease revoke duty").await, 0);
    assert_eq!(code(&mut second).await, 123);
    wait_for_output(&second, r#""reason":"revoked""#).await;
    observer.signal(Signal::INT);
    assert_eq!(code(&mut observer).await, 0);
}

async fn observer_that_the_cluster_refuses_exits_with_125() {
    let world = World::start().await;
    let mut observer = elect(&world, "observer", "--observe", None);
    wait_for_output(&observer, r#""holder":null"#).await;
    world.turn_access_control_on().await;
    assert_eq!(code(&mut observer).await, 125, "{}", observer.said());
    assert!(observer.said().contains("refused (unauthenticated)"), "{}", observer.said());
}

async fn leader_holds_the_lease_with_its_options() {
    let world = World::start().await;
    let mut observer = elect(&world, "observer", "--observe", None);
    wait_for_output(&observer, r#""holder":null"#).await;
    let mut first = elect(&world, "first", "--meta k=v --lock-delay 7s", None);
    wait_for_output(&first, r#""event":"elected""#).await;
    wait_for_output(&observer, r#""metadata":{"k":"v"}"#).await;
    let lease = world.cluster.client.done(0, &Call::get("/v1/leases/duty")).await;
    let options = (&lease["holder"], &lease["ttl_ms"], &lease["metadata"]["k"], &lease["lock_delay_ms"]);
    assert_eq!(options, (&"first".into(), &6_000.into(), &"v".into(), &7_000.into()), "{lease}");
    first.signal(Signal::TERM);
    assert_eq!(code(&mut first).await, 0);
    observer.signal(Signal::INT);
    assert_eq!(code(&mut observer).await, 0);
}

/// The command stops slowly, and loses its lease meanwhile.
async fn term_before_a_loss_ends_the_candidate() {
    let world = World::start().await;
    let mut candidate =
        elect(&world, "a", "", Some("trap 'mark TERM marks' TERM; mark up marks; while :; do sleep 0.02; done"));
    world.wait_for_mark("marks", "up").await;
    candidate.signal(Signal::TERM);
    world.wait_for_mark("marks", "TERM").await;
    assert_eq!(world.tenure("lease revoke duty").await, 0);
    assert_eq!(code(&mut candidate).await, 123);
    let starts = world.marks("marks").into_iter().filter(|mark| mark.word == "up").count();
    assert_eq!(starts, 1, "the command has started again");
}

/// The leader has not heard of the revocation yet. It does not campaign again.
async fn signal_after_a_revocation_ends_the_leader() {
    let world = World::start().await;
    for signal in [Signal::HUP, Signal::TERM] {
        let mut leader = elect(&world, "leader", "", None);
        wait_for_output(&leader, r#""event":"elected""#).await;
        assert_eq!(world.tenure("lease revoke duty").await, 0);
        leader.signal(signal);
        assert_eq!(code(&mut leader).await, 0, "{signal:?}: {}", leader.said());
        assert!(leader.printed().contains(r#""event":"lost""#), "{}", leader.printed());
    }
}

/// The cluster counts the lease as held until it expires.
async fn leader_that_cannot_release_its_lease_has_not_resigned() {
    for script in [None, Some("mark up marks; exec sleep 60")] {
        let world = World::start().await;
        let mut leader = elect(&world, "leader", "--timeout 2s", script);
        match script {
            Some(_) => world.wait_for_mark("marks", "up").await,
            None => wait_for_output(&leader, r#""event":"elected""#).await,
        }
        world.link.cut();
        leader.signal(Signal::TERM);
        code(&mut leader).await;
        let output = leader.printed() + &leader.said();
        assert!(output.contains("so it expires"), "{output}");
        assert_eq!(last_events(&output), ["lost"], "{output}");
    }
}

/// The events that end a leadership.
fn last_events(output: &str) -> Vec<&str> {
    let ends = ["lost", "resigned"];
    let event = |line: &str| ends.into_iter().find(|end| line.contains(&format!("\"event\":\"{end}\"")));
    output.lines().filter_map(event).collect()
}

/// The command ends before a renewal shows the loss.
async fn leader_whose_lease_was_revoked_before_its_release_has_lost_it() {
    let world = World::start().await;
    let script = "mark up marks; until [ -e $D/go ]; do sleep 0.02; done";
    let mut leader = elect(&world, "leader", "--once", Some(script));
    world.wait_for_mark("marks", "up").await;
    assert_eq!(world.tenure("lease revoke duty").await, 0);
    std::fs::write(world.path("go"), "").expect("the folder is writable");
    code(&mut leader).await;
    let output = leader.printed() + &leader.said();
    assert_eq!(last_events(&output), ["lost"], "{output}");
    assert!(output.contains(r#""reason":"revoked""#), "{output}");
}

/// The cluster goes away between the answer to the release and the question.
async fn signal_ends_a_leader_that_asks_why_its_lease_was_lost() {
    let world = World::start().await;
    for number in 0..10 {
        let name = format!("leader-{number}");
        let script = format!("mark up {name}; until [ -e $D/{name}-ends ]; do sleep 0.02; done");
        let mut leader = elect(&world, &name, "--once --timeout 60s", Some(&script));
        world.wait_for_mark(&name, "up").await;
        world.link.cut_at(Some("/explain?"));
        assert_eq!(world.tenure("lease revoke duty").await, 0);
        std::fs::write(world.path(&format!("{name}-ends")), "").expect("the folder is writable");
        let began = Instant::now();
        while !world.link.is_cut() && leader.is_running() {
            assert!(began.elapsed() < SOON, "{}", leader.said());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if world.link.is_cut() {
            leader.signal(Signal::TERM);
            assert_eq!(code(&mut leader).await, 0, "the code of its command: {}", leader.said());
            assert_eq!(last_events(&leader.said()), ["lost"], "{}", leader.said());
            return;
        }
        // A renewal has shown the loss first. The next candidate asks for the leader.
        world.link.cut_at(None);
    }
    panic!("each loss was shown by a renewal");
}

/// The command of a leader can exit with 2.
async fn usage_error_of_a_candidate_exits_with_125() {
    let world = World::start().await;
    for invalid in ["--no", "--observe --once", "--grace 5s"] {
        let mut candidate = elect(&world, "candidate", invalid, None);
        assert_eq!(code(&mut candidate).await, 125, "{invalid}: {}", candidate.said());
    }
}

async fn term_before_the_election_exits_with_124() {
    let world = World::start().await;
    world.cluster.client.acquire("duty", "other", 60_000).await;
    let mut candidate = elect(&world, "candidate", "", Some("mark ran never"));
    while !world.has_waiter("duty").await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    candidate.signal(Signal::TERM);
    assert_eq!(code(&mut candidate).await, 124, "{}", candidate.said());
    assert!(!world.has_waiter("duty").await && world.marks("never").is_empty());
}

async fn command_runs_in_each_leadership_until_it_exits() {
    let world = World::start().await;
    let script = "mark $TENURE_TOKEN terms; [ $(wc -l < $D/terms) = 2 ] && exit 123; exec sleep 60";
    let mut leader = elect(&world, "leader", "", Some(script));
    while world.marks("terms").is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(world.tenure("lease revoke duty").await, 0);
    // The command exits with 123, which is also the code of a loss. `tenure elect` passes it on and resigns.
    assert_eq!(code(&mut leader).await, 123, "{}", leader.said());
    assert!(leader.said().contains("resigned"), "{}", leader.said());
    let tokens: Vec<u64> = world.marks("terms").iter().map(|mark| mark.word.parse().expect("a token")).collect();
    assert!(tokens.len() == 2 && tokens[0] < tokens[1], "{tokens:?}");
    assert!(leader.printed().is_empty() && !world.is_held("duty").await, "{}", leader.printed());
}

/// Waits for the start of the command in this many leaderships.
async fn wait_for_terms(world: &World, count: usize) {
    let began = Instant::now();
    while world.marks("terms").len() < count {
        assert!(began.elapsed() < SOON, "{:?}", world.marks("terms"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The exited children that a process has not reaped.
fn zombies(parent: u32) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("readable").flatten();
    let processes = processes.filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
    let after_name = format!(" Z {parent} ");
    processes.filter(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(&after_name))).collect()
}

async fn ended_leadership_leaves_no_process() {
    let world = World::start().await;
    let mut leader = elect(&world, "leader", "", Some("mark up terms; exec sleep 60"));
    wait_for_terms(&world, 1).await;
    assert_eq!(world.tenure("lease revoke duty").await, 0);
    wait_for_terms(&world, 2).await;
    let began = Instant::now();
    while !zombies(leader.id()).is_empty() {
        assert!(began.elapsed() < SOON, "{:?}", zombies(leader.id()));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    leader.signal(Signal::TERM);
    assert_eq!(code(&mut leader).await, 143, "{}", leader.said());
}

/// HUP asks many commands to read their configuration again.
async fn hup_before_a_loss_keeps_the_candidate_and_int_ends_it() {
    let world = World::start().await;
    let traps = "trap 'mark HUP marks' HUP; trap 'mark INT marks' INT";
    let mut candidate = elect(&world, "a", "", Some(&format!("{traps}; mark up terms; while :; do sleep 0.02; done")));
    for (signal, word, terms) in [(Signal::HUP, "HUP", 1), (Signal::INT, "INT", 2)] {
        wait_for_terms(&world, terms).await;
        candidate.signal(signal);
        world.wait_for_mark("marks", word).await;
        assert_eq!(world.tenure("lease revoke duty").await, 0);
    }
    assert_eq!(code(&mut candidate).await, 123, "{}", candidate.said());
    assert_eq!(world.marks("terms").len(), 2, "the command has started again");
}
