//! The processes below this one, however far they have gone from their group, and signals to all of them.
//!
//! Whoever calls this is a subreaper: a process whose parent ends becomes its child, so that every descendant is found
//! by walking down, in sessions of their own too. A process that some daemon starts on request is no descendant.

use std::collections::HashMap;
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, pidfd_open, pidfd_send_signal, wait};

/// A running process as `/proc` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: i32,
    group: i32,
    /// Clock ticks after boot: with the number it names one process for ever.
    started: u64,
}

/// Sends a signal to every process below this one, less those of a group that has had it. What has ended in between is
/// no matter; what may not be signalled (a program that runs as somebody else) is left.
pub fn signal_all(signal: Signal, but: Option<Pid>) {
    for process in below(getpid()) {
        if but.is_some_and(|group| group.as_raw_pid() == process.group) {
            continue;
        }
        let Ok(handle) = pidfd_open(process.pid, PidfdFlags::empty()) else { continue };
        // The handle is of whoever had the number when it was opened: look whether that is still the one meant.
        if read(process.pid.as_raw_pid()).is_some_and(|now| now.started == process.started) {
            let _ = pidfd_send_signal(handle, signal);
        }
    }
}

/// Takes the children that have ended. `false`: there is no child any more, and therefore no descendant.
pub fn reap(mut ended: impl FnMut(Pid, WaitStatus)) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => ended(pid, status),
            Ok(None) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// A walk can miss a process whose parent ends meanwhile: it has moved up by the next walk.
fn below(me: Pid) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(process) = pid.and_then(read) {
            children.entry(process.parent).or_default().push(process);
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![me.as_raw_pid()];
    while let Some(parent) = parents.pop() {
        // Taken out, so that numbers which were used again between two reads make no circle.
        for child in children.remove(&parent).unwrap_or_default() {
            parents.push(child.pid.as_raw_pid());
            found.push(child);
        }
    }
    found
}

fn read(pid: i32) -> Option<Process> {
    parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// `pid (name) state parent group session ...`: the name can hold anything, so fields are counted from its last `)`.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    const PARENT: usize = 1;
    const GROUP: usize = 2;
    const STARTED: usize = 19;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(Process {
        pid: Pid::from_raw(pid)?,
        parent: fields.get(PARENT)?.parse().ok()?,
        group: fields.get(GROUP)?.parse().ok()?,
        started: fields.get(STARTED)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_mislead() {
        let stat = "7 (a) S 1 (b)) R 3 5 7 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        let expected = Process { pid: Pid::from_raw(7).expect("not 0"), parent: 3, group: 5, started: 4711 };
        assert_eq!(parse(7, stat), Some(expected));
        assert_eq!(parse(7, "7 (a"), None);
        assert_eq!(parse(7, "7 (a) S 1"), None);
    }

    #[test]
    fn a_child_is_found_below_its_parent_only() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("there is a sleep");
        let pid = Pid::from_child(&child);
        assert!(below(getpid()).iter().any(|process| process.pid == pid));
        assert!(below(pid).is_empty());
        child.kill().expect("it runs");
        child.wait().expect("it is a child");
    }
}
