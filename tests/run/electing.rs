//! `tenure elect`: who leads, and what runs while it does.

use rustix::process::Signal;

use crate::process::{Process, tenure};
use crate::steady::steady;
use crate::world::{World, code};

steady!(leaders_follow_each_other_and_observers_see_it, a_command_runs_in_every_leadership_until_it_ends_by_itself,);

fn elect(world: &World, who: &str, words: &str, script: Option<&str>) -> Process {
    let mut command = tenure();
    command.args(["elect", "duty", "-o", "json", "--ttl", "2s", "--holder", who]);
    command.args(words.split_whitespace());
    if let Some(script) = script {
        command.args(["--", "sh", "-c", &format!(". \"$D/library\"; {script}")]);
    }
    command.env("TENURE_ENDPOINTS", world.link.endpoints()).env("D", world.cluster.folder());
    Process::start(who, command, world.cluster.folder())
}

async fn says(process: &Process, words: &str) {
    let began = std::time::Instant::now();
    while !(process.printed() + &process.said()).contains(words) {
        assert!(began.elapsed() < crate::cluster::SOON, "no {words}: {} {}", process.printed(), process.said());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

async fn leaders_follow_each_other_and_observers_see_it() {
    let world = World::start().await;
    let mut observer = elect(&world, "observer", "--observe", None);
    says(&observer, r#""holder":null"#).await;
    let mut first = elect(&world, "first", "", None);
    says(&first, r#""event":"elected""#).await;
    says(&observer, r#""holder":"first""#).await;
    let mut second = elect(&world, "second", "--once", None);
    while !world.is_waited_for("duty").await {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    first.signal(Signal::TERM);
    assert_eq!(code(&mut first).await, 0);
    says(&first, r#""event":"resigned""#).await;
    says(&observer, r#""holder":"second""#).await;
    assert_eq!(world.tenure("lease revoke duty").await, 0);
    assert_eq!(code(&mut second).await, 123);
    says(&second, r#""reason":"revoked""#).await;
    observer.signal(Signal::INT);
    assert_eq!(code(&mut observer).await, 0);
}

async fn a_command_runs_in_every_leadership_until_it_ends_by_itself() {
    let world = World::start().await;
    let script = "mark $TENURE_TOKEN terms; [ $(wc -l < $D/terms) = 2 ] && exit 123; exec sleep 60";
    let mut leader = elect(&world, "leader", "", Some(script));
    while world.marks("terms").is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(world.tenure("lease revoke duty").await, 0);
    // Its own exit code, though it is also that of a loss: that it was not.
    assert_eq!(code(&mut leader).await, 123, "{}", leader.said());
    assert!(leader.said().contains("resigned"), "{}", leader.said());
    let tokens: Vec<u64> = world.marks("terms").iter().map(|mark| mark.word.parse().expect("a token")).collect();
    assert!(tokens.len() == 2 && tokens[0] < tokens[1], "{tokens:?}");
    assert!(leader.printed().is_empty() && !world.is_held("duty").await, "{}", leader.printed());
}
