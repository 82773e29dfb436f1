//! Exit codes, the environment, and the lease after the command.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::client::Call;
use crate::port;
use crate::steady::steady;
use crate::world::{World, code};

steady!(
    exit_code_tells_the_end_of_the_command,
    command_has_its_lease_in_the_environment,
    infinite_lease_is_released_after_the_command,
    command_inherits_stdin,
    waiter_gets_the_lease_after_the_command_exits,
    waiting_run_starts_after_the_grant,
    term_during_the_wait_leaves_the_queue,
    only_four_signals_end_the_wait,
    failed_release_keeps_the_exit_code,
);

async fn exit_code_tells_the_end_of_the_command() {
    let world = World::start().await;
    assert_eq!(code(&mut world.run("job --ttl 20s", "exit 7")).await, 7);
    assert_eq!(code(&mut world.run("job --ttl 20s", "kill -KILL $$")).await, 137);
    assert_eq!(code(&mut world.run_command("job --ttl 20s", &["/no/such/command"])).await, 127);
    let plain = world.path("plain");
    fs::write(&plain, "").expect("write the file");
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).expect("set the permissions");
    let plain = plain.to_str().expect("the path is UTF-8");
    assert_eq!(code(&mut world.run_command("job --ttl 20s", &[plain])).await, 126);
    // All runs have released the lease: it is free before their ttl ends.
    assert!(!world.is_held("job").await);
    world.cluster.client.acquire("job", "other", 60_000).await;
    assert_eq!(code(&mut world.run("job --ttl 2s", "mark ran never")).await, 124);
    assert_eq!(code(&mut world.run("job --ttl 2s --wait 100ms", "mark ran never")).await, 124);
    assert!(world.marks("never").is_empty(), "no command starts without the lease");
    for invalid in ["job --ttl 2", "job --ttl 1s --grace 600ms", "job --ttl 1ms", "-job", "job --wait 25h", "job --no"]
    {
        assert_eq!(code(&mut world.run(invalid, "true")).await, 125, "{invalid}");
    }
    // A refusal that does not say that another holder has the lease.
    let counted = json!({"holder": "other", "ttl_ms": 60_000, "limit": 3});
    world.cluster.client.done(0, &Call::post("/v1/leases/counted/acquire", counted)).await;
    assert_eq!(code(&mut world.run("counted --ttl 2s", "true")).await, 125);
    let nowhere = format!("job --timeout 300ms --endpoints 127.0.0.1:{}", port::free());
    assert_eq!(code(&mut world.run(&nowhere, "true")).await, 125);
}

async fn command_has_its_lease_in_the_environment() {
    let world = World::start().await;
    let options = "job --ttl 4s --holder me --meta host=x --lock-delay 7s";
    let mut run = world.run(options, "env > $D/env; mark up marks; exec sleep 60");
    world.wait_for_mark("marks", "up").await;
    let lease = world.cluster.client.done(0, &crate::client::Call::get("/v1/leases/job")).await;
    assert_eq!((&lease["holder"], &lease["metadata"]["host"]), (&"me".into(), &"x".into()), "{lease}");
    assert_eq!(lease["lock_delay_ms"], 7_000, "{lease}");
    let token = lease["token"].as_str().expect("a decimal string");
    let environment = world.text("env");
    let endpoints: Vec<String> = world.link.endpoints().split(',').map(|url| format!("{url}/")).collect();
    let expected = [
        "TENURE_LEASE=job".to_owned(),
        format!("TENURE_TOKEN={token}"),
        "TENURE_HOLDER=me".to_owned(),
        format!("TENURE_ENDPOINTS={}", endpoints.join(",")),
    ];
    for line in expected {
        assert!(environment.lines().any(|found| found == line), "{line}: {environment}");
    }
    tokio::time::sleep(Duration::from_millis(4500)).await;
    assert!(world.is_held("job").await, "the lease is renewed beyond its ttl");
    run.signal(Signal::TERM);
    assert_eq!(code(&mut run).await, 143);
}

async fn infinite_lease_is_released_after_the_command() {
    let world = World::start().await;
    let mut run = world.run("job --ttl infinite", "mark up marks; sleep 0.5; exit 6");
    world.wait_for_mark("marks", "up").await;
    let lease = world.cluster.client.done(0, &crate::client::Call::get("/v1/leases/job")).await;
    assert_eq!((&lease["state"], &lease["ttl_ms"]), (&"active".into(), &"infinite".into()), "{lease}");
    assert_eq!(code(&mut run).await, 6);
    assert!(!world.is_held("job").await);
}

async fn command_inherits_stdin() {
    let world = World::start().await;
    let run = "printf 'one\\ntwo\\n' | $T run job --ttl 20s -- sh -c 'read -r a; read -r b; echo \"$b $a\"'";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", run]).env("T", env!("CARGO_BIN_EXE_tenure")).env("TENURE_ENDPOINTS", world.link.endpoints());
    let mut shell = crate::process::Process::start("pipe", command, world.cluster.folder());
    assert_eq!((code(&mut shell).await, shell.printed()), (0, "two one\n".to_owned()));
}

async fn waiter_gets_the_lease_after_the_command_exits() {
    let world = World::start().await;
    let mut first = world.run("job --ttl 10s", "mark up first; sleep 0.5; mark end first");
    world.wait_for_mark("first", "up").await;
    let claim = world.next_holder("job").await;
    let granted = claim.await.expect("the lease was granted");
    assert_eq!(code(&mut first).await, 0);
    let gap = granted.checked_sub(world.last_mark("first")).expect("not before the end");
    println!("granted {} ms after the command's end", gap.as_millis());
    assert!(gap <= Duration::from_millis(100), "{gap:?}");
}

async fn waiting_run_starts_after_the_grant() {
    let world = World::start().await;
    let mut first = world.run("job --ttl 10s", "mark up first; sleep 0.5; mark end first");
    world.wait_for_mark("first", "up").await;
    let mut second = world.run("job --ttl 10s --wait ttl", "mark up second");
    assert_eq!((code(&mut first).await, code(&mut second).await), (0, 0));
    let gap = world.first_mark("second", "up").checked_sub(world.last_mark("first")).expect("not before the end");
    println!("the next command ran {} ms after the end of the previous one", gap.as_millis());
}

async fn term_during_the_wait_leaves_the_queue() {
    let world = World::start().await;
    world.cluster.client.acquire("job", "other", 60_000).await;
    let mut run = world.run("job --wait 10s", "mark ran never");
    while !world.has_waiter("job").await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    run.signal(Signal::TERM);
    assert_eq!(code(&mut run).await, 124);
    assert!(!world.has_waiter("job").await && world.marks("never").is_empty());
}

async fn only_four_signals_end_the_wait() {
    let world = World::start().await;
    world.cluster.client.acquire("job", "other", 60_000).await;
    for (signal, word) in [(Signal::INT, "INT"), (Signal::HUP, "HUP"), (Signal::QUIT, "QUIT")] {
        let mut run = world.run("job --wait 10s", "mark ran never");
        while !world.has_waiter("job").await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        run.signal(Signal::USR1);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(run.is_running() && world.has_waiter("job").await, "USR1 ended the wait: {}", run.said());
        run.signal(signal);
        assert_eq!(code(&mut run).await, 124);
        assert!(run.said().contains(&format!("received {word} first")), "{word}: {}", run.said());
    }
    assert!(world.marks("never").is_empty());
}

async fn failed_release_keeps_the_exit_code() {
    let world = World::start().await;
    let script = "mark up marks; until [ -e $D/cut ]; do sleep 0.02; done; exit 5";
    let mut run = world.run("job --ttl 20s --timeout 2s", script);
    world.wait_for_mark("marks", "up").await;
    world.link.cut();
    fs::write(world.path("cut"), "").expect("write the file");
    assert_eq!(code(&mut run).await, 5);
    assert!(run.said().contains("not released"), "{}", run.said());
}
