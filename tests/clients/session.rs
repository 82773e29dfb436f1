//! A running driver: commands, responses and events.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, set_parent_process_death_signal, waitid};
use serde_json::{Value, json};
use tenure::clock::{Clock, SystemClock};
use tenure::token::FencingToken;

use crate::language::Language;
use crate::wait::eventually;

/// A command and its response.
#[derive(Clone, Debug)]
pub struct Asked {
    pub command: Value,
    pub invoked: Duration,
    pub returned: Option<Duration>,
    pub response: Value,
}

/// Everything that a driver was told and said.
#[derive(Default)]
pub struct Record {
    asked: Mutex<Vec<Asked>>,
    events: Mutex<Vec<Value>>,
    /// After the driver has closed its output.
    ended: Mutex<Option<Duration>>,
}

/// A driver process. Dropping it kills the process.
pub struct Session {
    child: Mutex<Child>,
    input: Mutex<Option<ChildStdin>>,
    record: Arc<Record>,
}

impl Session {
    /// Starts a driver. Call it from a thread that outlives the driver: the process ends with that thread.
    #[expect(unsafe_code, reason = "code between fork and exec must be async-signal-safe")]
    pub fn start(language: &Language, environment: &[(String, String)]) -> Session {
        let mut command = Command::new(&language.command[0]);
        command.args(&language.command[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        command.envs(language.environment.iter().chain(environment).map(|(name, value)| (name, value)));
        // SAFETY: the closure makes one system call, which neither allocates nor takes a lock.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("the output is a pipe"));
        let record = Arc::<Record>::default();
        let recorded = record.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                recorded.read(&line);
            }
            *lock(&recorded.ended) = Some(SystemClock.elapsed());
        });
        Session { child: Mutex::new(child), input: Mutex::new(input), record }
    }

    pub fn record(&self) -> Arc<Record> {
        self.record.clone()
    }

    /// Sends a command and returns its number. [`response`](Self::response) waits for its response.
    pub fn send(&self, mut command: Value) -> usize {
        let id = {
            let mut asked = lock(&self.record.asked);
            command["id"] = json!(asked.len());
            let invoked = SystemClock.elapsed();
            asked.push(Asked { command: command.clone(), invoked, returned: None, response: Value::Null });
            asked.len() - 1
        };
        let mut input = lock(&self.input);
        let input = input.as_mut().expect("the input is open");
        writeln!(input, "{command}").and_then(|()| input.flush()).expect("the driver reads its input");
        id
    }

    /// Waits for the response to a command.
    pub async fn response(&self, id: usize) -> Value {
        let command = lock(&self.record.asked)[id].command.clone();
        let response = eventually(&format!("response to {command}"), || {
            let has_ended = self.record.ended().is_some();
            let asked = lock(&self.record.asked)[id].clone();
            assert!(asked.returned.is_some() || !has_ended, "the driver ended before its response to {command}");
            Some(asked).filter(|asked| asked.returned.is_some())
        })
        .await
        .response;
        assert!(response.get("error").is_none(), "{command} failed: {response}");
        response
    }

    /// Sends a command and waits for its response.
    pub async fn ask(&self, command: Value) -> Value {
        self.response(self.send(command)).await
    }

    /// The events so far of this kind for a lease or an election.
    pub fn events(&self, event: &str, name: &str) -> Vec<Value> {
        let of = |line: &&Value| line["event"] == event && (line["lease"] == name || line["election"] == name);
        lock(&self.record.events).iter().filter(of).cloned().collect()
    }

    /// Waits for an event of this kind that has this property.
    pub async fn event(&self, event: &str, name: &str, is_expected: impl Fn(&Value) -> bool) -> Value {
        let what = format!("event {event} of {name}");
        eventually(&what, || self.events(event, name).into_iter().find(&is_expected)).await
    }

    /// Waits until the lease is in this state.
    pub async fn state(&self, lease: &str, state: &str) -> Value {
        self.event("state", lease, |event| event["state"] == state).await
    }

    /// Waits for an event of the work that begins after this call.
    pub async fn works(&self, lease: &str) {
        let before = self.events("work", lease).len();
        eventually(&format!("work of {lease}"), || (self.events("work", lease).len() > before + 1).then_some(())).await;
    }

    pub fn id(&self) -> u32 {
        lock(&self.child).id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&lock(&self.child));
        kill_process(pid, signal).expect("the driver runs");
        if signal == Signal::STOP {
            // Other threads may still run until the kernel reports the stop.
            let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(pid), stopped).expect("the driver is a child");
        }
    }

    /// Closes the input of the driver, and waits for its exit. Returns the exit code.
    pub async fn close(&self) -> Option<i32> {
        drop(lock(&self.input).take());
        self.exit().await
    }

    /// Waits for the exit of the driver. Returns the exit code.
    pub async fn exit(&self) -> Option<i32> {
        let ended = || lock(&self.child).try_wait().expect("the driver is a child");
        eventually("exit of the driver", ended).await.code()
    }

    pub fn kill(&self) {
        let mut child = lock(&self.child);
        // The process may have ended already.
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Record {
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.asked).clone()
    }

    pub fn events(&self) -> Vec<Value> {
        lock(&self.events).clone()
    }

    /// When the driver had ended.
    pub fn ended(&self) -> Option<Duration> {
        *lock(&self.ended)
    }

    fn read(&self, line: &str) {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line:?} is not JSON: {error}"));
        let Some(id) = line["id"].as_u64() else { return lock(&self.events).push(line) };
        let mut asked = lock(&self.asked);
        let asked = asked.get_mut(id as usize).unwrap_or_else(|| panic!("no command has the id of {line}"));
        asked.returned = Some(SystemClock.elapsed());
        asked.response = line;
    }
}

/// The token of a response or of an event.
pub fn token(line: &Value) -> FencingToken {
    let token = line["token"].as_str().and_then(|token| token.parse().ok());
    token.unwrap_or_else(|| panic!("no token in {line}"))
}

/// The time of an event.
pub fn at(line: &Value) -> Duration {
    Duration::from_nanos(line["at_ns"].as_u64().unwrap_or_else(|| panic!("no time in {line}")))
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().expect("no code panics while it holds this lock")
}
