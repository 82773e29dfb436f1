//! All descendants of this process, in any process group or session, and signals to them.
//!
//! This process must be a subreaper. A descendant whose parent exits then becomes its child, so a walk over the process
//! tree finds all descendants. A process that a daemon starts on request is no descendant.

use std::collections::HashMap;
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, pidfd_open, pidfd_send_signal, wait};

/// A process, from `/proc/{pid}/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: i32,
    group: i32,
    /// Start time in clock ticks after boot. Together with the pid, it identifies a process uniquely.
    started: u64,
}

/// Sends a signal to all descendants except those in the group `except`. Ignores processes that have exited, and those
/// of another user, which this process must not signal.
pub fn signal_all(signal: Signal, except: Option<Pid>) {
    for process in below(getpid()) {
        if except.is_some_and(|group| group.as_raw_pid() == process.group) {
            continue;
        }
        let Ok(handle) = pidfd_open(process.pid, PidfdFlags::empty()) else { continue };
        // Between the walk and `pidfd_open`, the kernel may have reused the pid for another process.
        if read(process.pid.as_raw_pid()).is_some_and(|now| now.started == process.started) {
            let _ = pidfd_send_signal(handle, signal);
        }
    }
}

/// Reaps the exited children. Returns false if this process has no child, and therefore no descendant.
pub fn reap(mut exited: impl FnMut(Pid, WaitStatus)) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => exited(pid, status),
            Ok(None) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// The descendants of `root`. A walk can miss a process whose parent exits during the walk; the next walk finds it.
fn below(root: Pid) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(process) = pid.and_then(read) {
            children.entry(process.parent).or_default().push(process);
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![root.as_raw_pid()];
    while let Some(parent) = parents.pop() {
        // `remove` prevents an endless loop if the kernel reuses a pid between two reads.
        for child in children.remove(&parent).unwrap_or_default() {
            parents.push(child.pid.as_raw_pid());
            found.push(child);
        }
    }
    found
}

fn read(pid: i32) -> Option<Process> {
    parse(pid, &String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))
}

/// `pid (name) state parent group session ...`: the name can contain any character, so fields are counted from the last
/// `)`. The kernel cuts a long name after 15 bytes, also inside a character.
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
    fn parse_accepts_any_process_name() {
        let stat = "7 (a) S 1 (b)) R 3 5 7 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        let expected = Process { pid: Pid::from_raw(7).expect("not 0"), parent: 3, group: 5, started: 4711 };
        assert_eq!(parse(7, stat), Some(expected));
        assert_eq!(parse(7, "7 (a"), None);
        assert_eq!(parse(7, "7 (a) S 1"), None);
    }

    #[test]
    fn child_with_a_name_that_is_not_utf_8_is_found() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let program = folder.path().join("обработчик");
        std::os::unix::fs::symlink("/bin/sleep", &program).expect("the folder is writable");
        let mut child = std::process::Command::new(program).arg("60").spawn().expect("start sleep");
        let stat = fs::read(format!("/proc/{}/stat", child.id())).expect("it runs");
        assert!(std::str::from_utf8(&stat).is_err(), "control: the kernel has cut the name inside a character");
        let is_found = below(getpid()).iter().any(|process| process.pid == Pid::from_child(&child));
        child.kill().expect("kill the child");
        child.wait().expect("reap the child");
        assert!(is_found);
    }

    #[test]
    fn child_is_found_below_its_parent_only() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("start sleep");
        let pid = Pid::from_child(&child);
        assert!(below(getpid()).iter().any(|process| process.pid == pid));
        assert!(below(pid).is_empty());
        child.kill().expect("kill the child");
        child.wait().expect("reap the child");
    }
}
