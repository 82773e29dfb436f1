//! Tests of the fault injection itself. A simulated power cut must lose all unsynced data and nothing else (only root
//! can test it). A faked clock must change only the clocks that it is meant to change.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use tenure::clock::{Clock, SystemClock};

use super::clocks;
use super::disk::Disk;
use super::process;
use super::suspend::SuspendClock;

const RECORDS: usize = 200;

/// Appends records to a file and closes it. The kernel acknowledged all writes before the power cut.
fn write(path: &Path, sync: impl Fn(&File)) {
    let mut file = File::create(path).expect("the disk is writable");
    for number in 0..RECORDS {
        writeln!(file, "{number}").expect("the disk has space");
    }
    sync(&file);
}

fn survivors(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().filter(|line| !line.contains('\0')).count())
}

#[test]
fn power_cut_loses_unsynced_data_only() {
    if !rustix::process::geteuid().is_root() {
        let refused = Disk::new(Path::new("/nowhere"), "disk");
        assert!(refused.is_err(), "only root can make disks");
        return;
    }
    let folder = tempfile::TempDir::new().expect("a folder");
    let mut disk = Disk::new(folder.path(), "disk").expect("root can make disks");
    let (synced, unsynced) = (disk.path().join("synced"), disk.path().join("unsynced"));
    write(&synced, |file| file.sync_all().expect("a disk that works"));
    write(&unsynced, |_| ());
    assert_eq!(survivors(&unsynced), RECORDS, "the data is readable before the power cut");
    disk.cut_power().expect("the disk is mounted");
    assert!(File::create(disk.path().join("later")).is_err(), "writes fail after the power cut");
    disk.unmount().expect("no process uses the disk");
    disk.mount().expect("the file system is consistent");
    assert_eq!(survivors(&synced), RECORDS);
    assert_eq!(survivors(&unsynced), 0, "a power cut loses unsynced data");
}

/// Set in a child process that only prints its clocks.
const PRINT_CLOCKS: &str = "TENURE_FAULTS_TELL_CLOCKS";

/// The elapsed time of `Instant`, of the lease clock and of the wall clock.
fn measure_clocks() -> [f64; 3] {
    let (instant, own, wall) = (Instant::now(), SystemClock.elapsed(), SystemTime::now());
    while SystemClock.elapsed() - own < Duration::from_millis(400) {
        std::thread::yield_now();
    }
    let wall = SystemTime::now().duration_since(wall).expect("the wall clock does not go back");
    [instant.elapsed(), SystemClock.elapsed() - own, wall].map(|elapsed| elapsed.as_secs_f64())
}

/// libfaketime changes timers and the wall clock. Cluster time and local reads keep the real clock.
#[test]
fn faked_rate_changes_timers_but_not_the_lease_clock() {
    if std::env::var_os(PRINT_CLOCKS).is_some() {
        let measured = measure_clocks();
        assert!(measured.iter().all(|elapsed| *elapsed > 0.0));
        println!("clocks: {measured:?}");
        return;
    }
    let rate = |environment: Vec<(String, String)>| {
        let name = "control::faked_rate_changes_timers_but_not_the_lease_clock";
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        let output = command.args(["--exact", name, "--nocapture"]).env(PRINT_CLOCKS, "1").envs(environment).output();
        let output = String::from_utf8(output.expect("the child process runs").stdout).expect("text");
        let measured = output.lines().find_map(|line| line.split_once("clocks: ")).expect(&output).1;
        let [instant, own, wall]: [f64; 3] = serde_json::from_str(measured).expect("three numbers");
        (instant / own, wall / own)
    };
    let is_about = |seen: f64, expected: f64| (seen / expected - 1.0).abs() < 0.25;
    let (timers, wall) = rate(Vec::new());
    assert!(is_about(timers, 1.0) && is_about(wall, 1.0), "the real clocks: {timers}, {wall}");
    if clocks::library().is_none() {
        // `Run::kinds` refuses clock faults without the library.
        return;
    }
    let (timers, wall) = rate(clocks::at_rate(2.0));
    assert!(is_about(timers, 2.0) && is_about(wall, 2.0), "twice as fast: {timers}, {wall}");
}

/// The elapsed time of `Instant`, of the lease clock and of the suspend clock (lower and upper bound) until a line
/// arrives on standard input.
fn measure_suspend() -> [f64; 4] {
    let (suspended, own, instant) = (SystemClock.suspended(), SystemClock.elapsed(), Instant::now());
    println!("running");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let (instant, own, later) = (instant.elapsed(), SystemClock.elapsed() - own, SystemClock.suspended());
    let at_least = later.at_least.saturating_sub(suspended.at_most);
    let at_most = later.at_most.saturating_sub(suspended.at_least);
    [instant, own, at_least, at_most].map(|elapsed| elapsed.as_secs_f64())
}

/// A process that is stopped with the suspend clock observes a suspend of the machine.
#[test]
fn stopped_process_counts_a_suspend() {
    const STOPPED: Duration = Duration::from_millis(300);
    if std::env::var_os(PRINT_CLOCKS).is_some() {
        println!("clocks: {:?}", measure_suspend());
        return;
    }
    let folder = tempfile::TempDir::new().expect("a folder");
    let mut suspends = SuspendClock::new(folder.path(), 1);
    let environment = suspends.start().expect("cargo build --all-features --example suspended_clock");
    let name = "control::stopped_process_counts_a_suspend";
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", name, "--nocapture"]).env(PRINT_CLOCKS, "1").envs(environment);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the child process runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map(|line| line.expect("text"));
    assert!(lines.any(|line| line.ends_with("running")), "the child process ended early");
    process::stop(&child).expect("the child process runs");
    suspends.begin();
    std::thread::sleep(STOPPED);
    suspends.end().expect("the file of the suspend clock exists");
    kill_process(Pid::from_child(&child), Signal::CONT).expect("the child process is stopped");
    child.stdin.take().expect("piped").write_all(b"\n").expect("the child process reads");
    let measured = lines
        .find_map(|line| Some(line.split_once("clocks: ")?.1.to_owned()))
        .expect("the child process prints its clocks");
    assert!(child.wait().expect("a child").success());
    let [instant, own, at_least, at_most]: [f64; 4] = serde_json::from_str(&measured).expect("four numbers");
    let stopped = STOPPED.as_secs_f64();
    assert!(own > stopped, "the lease clock runs while the process is stopped: {measured}");
    assert!(instant < own - stopped, "the timer clock stops: {measured}");
    assert!(at_most >= stopped && at_least <= own, "the suspend clock counts the stop: {measured}");
}

/// A time namespace sets `CLOCK_BOOTTIME` ahead of all other clocks, like a suspend. Only root can create one.
#[test]
fn lease_clock_counts_suspends() {
    const AHEAD_SECONDS: u32 = 1_000_000;
    if std::env::var_os(PRINT_CLOCKS).is_some() {
        println!("clocks: {}", SystemClock.elapsed().as_secs_f64());
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let before = SystemClock.elapsed().as_secs_f64();
    let name = "control::lease_clock_counts_suspends";
    let ahead = AHEAD_SECONDS.to_string();
    let mut command = Command::new("unshare");
    command.args(["--time", "--boottime", &ahead]).arg(std::env::current_exe().expect("this test"));
    let output = command
        .args(["--exact", name, "--nocapture"])
        .env(PRINT_CLOCKS, "1")
        .output()
        .expect("unshare (util-linux) is installed");
    let (output, why) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let measured = output.lines().find_map(|line| line.split_once("clocks: ")).expect(&why).1;
    let elapsed: f64 = measured.parse().expect("seconds");
    assert!(elapsed - before >= f64::from(AHEAD_SECONDS), "{before} here, {measured} there");
}
