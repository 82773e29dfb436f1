//! The supervisor: it acquires the lease, runs the command through the guardian, and releases the lease.

use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use super::arguments::Plan;
use super::codes;
use super::descendants;
use super::forwarded::{self, ForwardedSignals, is_from_terminal};
use super::guarded::{GuardianHandle, terminal_group};
use super::messages::{Deadlines, GuardianReport, Instruction};
use crate::api::Code;
use crate::client::{CallError, ENDPOINTS_VARIABLE, HoldState, Lease, Wait};
use crate::clock::{Clock, SystemClock};
use crate::token::FencingToken;

/// Interval at which the supervisor reads the clock. Timers stop during suspend, but deadlines do not.
const CLOCK_INTERVAL: Duration = Duration::from_millis(100);
/// A guardian without a final report counts as stuck this long after the time for KILL.
const GUARDIAN_TIMEOUT: Duration = Duration::from_millis(20);
/// Minimum timeout for the release of a lease that has expired by the local clock. The cluster may still hold it.
const MIN_RELEASE_TIMEOUT: Duration = Duration::from_millis(250);

/// Acquires the lease, runs the command and returns the exit code.
pub async fn run(plan: Plan, wait: Wait) -> u8 {
    let mut forwarded = match ForwardedSignals::listen() {
        Ok(forwarded) => forwarded,
        Err(error) => {
            message!("tenure: cannot install signal handlers: {error}");
            return codes::FAILED;
        }
    };
    let manager = match plan.manager() {
        Ok(manager) => manager,
        Err(error) => {
            message!("tenure: {error}");
            return codes::FAILED;
        }
    };
    let code = match manager.lease_with(plan.name.as_str(), plan.lease_options()) {
        Ok(lease) => hold(&plan, wait, &lease, &mut forwarded).await,
        Err(error) => {
            message!("tenure: {error}");
            codes::FAILED
        }
    };
    // The command has exited, so a failed shutdown must not change the exit code.
    let _ = tokio::time::timeout(plan.timeout, manager.shutdown()).await;
    code
}

async fn hold(plan: &Plan, wait: Wait, lease: &Lease, forwarded: &mut ForwardedSignals) -> u8 {
    let acquired = tokio::select! {
        acquired = lease.acquire(wait) => acquired,
        signal = forwarded.end_requested() => {
            message!("tenure: {}: the lease is not acquired: received {} first", plan.name, forwarded::name(signal));
            return codes::NOT_ACQUIRED;
        }
    };
    match acquired {
        Ok(token) => run_command(plan, lease, token, forwarded).await.0.code(),
        Err(error) => {
            message!("tenure: {}: the lease is not acquired: {error}", plan.name);
            code_of(&error)
        }
    }
}

/// Runs the command while the lease is held, and then releases the lease. Returns whether the cluster has released it;
/// `None`: it has not answered.
pub async fn run_command(
    plan: &Plan,
    lease: &Lease,
    token: FencingToken,
    forwarded: &mut ForwardedSignals,
) -> (End, Option<bool>) {
    let end = match Supervisor::begin(plan, lease, token).await {
        Ok(supervisor) => supervisor.watch(forwarded).await,
        Err(error) => {
            message!("tenure: {}: cannot start the guardian of the command: {error}", plan.name);
            End::Exited(codes::FAILED)
        }
    };
    let released = release(plan, lease, end).await;
    (end, released)
}

/// The end of a command. The command can exit with any code, including [`codes::LOST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The command has exited with this code.
    Exited(u8),
    /// The lease was lost, and all processes of the command have exited.
    Lost,
}

impl End {
    pub fn code(self) -> u8 {
        match self {
            End::Exited(code) => code,
            End::Lost => codes::LOST,
        }
    }
}

async fn release(plan: &Plan, lease: &Lease, end: End) -> Option<bool> {
    let within = match end {
        End::Lost => {
            lease.remaining().unwrap_or_default().clamp(MIN_RELEASE_TIMEOUT, plan.timeout.max(MIN_RELEASE_TIMEOUT))
        }
        End::Exited(_) => plan.timeout,
    };
    match tokio::time::timeout(within, lease.release()).await {
        Ok(Ok(is_released)) => return Some(is_released),
        Ok(Err(error)) => message!("tenure: {}: the lease is not released, so it expires: {error}", plan.name),
        Err(_) => message!("tenure: {}: the lease is not released within {within:?}, so it expires", plan.name),
    }
    None
}

/// The exit code for a failed claim.
pub fn code_of(error: &CallError) -> u8 {
    match error {
        CallError::Refused(problem) => match problem.code {
            Code::Held | Code::LockDelay | Code::WaitTimeout | Code::WaitAbandoned => codes::NOT_ACQUIRED,
            _ => codes::FAILED,
        },
        CallError::Unknown { .. } | CallError::Unavailable(_) | CallError::ShutDown => codes::FAILED,
    }
}

/// Why the cluster refused the last renewal, to append to a message. Empty if it did not.
pub fn refusal_of(lease: &Lease) -> String {
    let refusal = lease.renewal_refusal();
    refusal.map_or(String::new(), |problem| format!(": refused ({}): {}", problem.code.as_str(), problem.detail))
}

struct Supervisor<'a> {
    plan: &'a Plan,
    lease: &'a Lease,
    guardian: GuardianHandle,
    /// The process group of a command that shares the foreground of the terminal. See [`terminal_group`].
    group: Option<Pid>,
    /// The command has exited, and others of its processes still run.
    draining: bool,
    /// The last deadlines that were sent to the guardian.
    deadlines: Deadlines,
}

impl<'a> Supervisor<'a> {
    async fn begin(plan: &'a Plan, lease: &'a Lease, token: FencingToken) -> io::Result<Supervisor<'a>> {
        let environment = [
            ("TENURE_LEASE", plan.name.to_string()),
            ("TENURE_TOKEN", token.to_string()),
            ("TENURE_HOLDER", lease.holder().to_string()),
            (ENDPOINTS_VARIABLE, plan.endpoints.to_string()),
        ];
        let certificates = plan.credentials.variables().map(|(name, path)| (name, path.into()));
        let environment = environment.map(|(name, value)| (name, value.into())).into_iter().chain(certificates);
        let (guardian, group) = (GuardianHandle::spawn(&plan.command, environment)?, terminal_group());
        let mut supervisor =
            Supervisor { plan, lease, guardian, group, draining: false, deadlines: Deadlines::default() };
        supervisor.deadlines = supervisor.current_deadlines();
        let group = group.map(Pid::as_raw_pid);
        let start = Instruction::Start { deadlines: supervisor.deadlines, grace: plan.grace, group };
        if let Err(error) = supervisor.guardian.send(&start).await {
            // The guardian may have received the instruction.
            supervisor.kill_all("its guardian does not respond", End::Exited(codes::FAILED)).await;
            return Err(error);
        }
        Ok(supervisor)
    }

    /// Returns when all processes of the command have exited. If some cannot be killed, this process exits without a
    /// release: a lease must not be released while its command still runs.
    async fn watch(mut self, forwarded: &mut ForwardedSignals) -> End {
        let ended = self.lease.ended();
        let mut states = self.lease.states();
        let mut is_lost = false;
        loop {
            // The guardian of an earlier leadership, which ended after its last report.
            descendants::reap(|_, _| {});
            let pause = self.pause();
            let sent = tokio::select! {
                report = self.guardian.report() => match self.handle_report(report) {
                    AfterReport::Continue => Ok(()),
                    AfterReport::Return(end) => return end,
                    AfterReport::GuardianDied => {
                        return self.kill_all("its guardian has died", End::Exited(codes::FAILED)).await;
                    }
                },
                // The manager outlives the supervisor, so the sender exists.
                _ = states.changed() => {
                    let state = *states.borrow_and_update();
                    self.renewed(state).await
                }
                () = ended.cancelled(), if !is_lost => {
                    is_lost = true;
                    self.lost().await
                }
                signal = forwarded.next() => self.forward(signal).await,
                () = tokio::time::sleep(pause) => Ok(()),
            };
            if sent.is_err() || self.pause().is_zero() {
                // A guardian that has ended receives nothing. Its final report may have arrived, but is not read yet.
                let report = self.guardian.received_final_report().await;
                if let Some(AfterReport::Return(end)) = report.map(|report| self.handle_report(Some(report))) {
                    return end;
                }
                let end = if sent.is_err() { End::Exited(codes::FAILED) } else { End::Lost };
                return self.kill_all("its guardian does not respond", end).await;
            }
        }
    }

    /// Time until the next check of the clock. Zero means that the guardian is late.
    fn pause(&self) -> Duration {
        let left = |at: Duration| (at + GUARDIAN_TIMEOUT).saturating_sub(SystemClock.elapsed());
        self.deadlines.kill_at.map_or(CLOCK_INTERVAL, left).min(CLOCK_INTERVAL)
    }

    fn handle_report(&mut self, report: Option<GuardianReport>) -> AfterReport {
        let Some(report) = report else { return AfterReport::GuardianDied };
        match report {
            GuardianReport::Failed(why) => {
                self.say(&why);
                AfterReport::Return(End::Exited(codes::FAILED))
            }
            GuardianReport::TooLate => {
                self.say("the command is not started: the lease was about to expire");
                AfterReport::Return(End::Lost)
            }
            GuardianReport::Draining { code } => {
                self.draining = true;
                self.say(&format!("the command has exited ({code}); its child processes still run and keep the lease"));
                AfterReport::Continue
            }
            GuardianReport::Stopping => {
                self.say(&format!("{}: stopping the command", self.why()));
                AfterReport::Continue
            }
            GuardianReport::Ended { was_stopped: true, .. } => AfterReport::Return(End::Lost),
            GuardianReport::Ended { code, .. } => AfterReport::Return(End::Exited(code)),
        }
    }

    async fn renewed(&mut self, state: HoldState) -> io::Result<()> {
        if !matches!(state, HoldState::Held { .. }) || !self.lease.is_held() {
            return Ok(());
        }
        self.deadlines = self.current_deadlines();
        self.guardian.send(&Instruction::Extend(self.deadlines)).await
    }

    /// The lease was revoked or handed over, or has expired by the local clock.
    async fn lost(&mut self) -> io::Result<()> {
        let by = SystemClock.elapsed() + self.plan.grace.unwrap_or_default();
        let kill_at = self.deadlines.kill_at.map_or(by, |known| known.min(by));
        self.deadlines = Deadlines { term_at: None, kill_at: Some(kill_at) };
        self.guardian.send(&Instruction::Stop { kill_at }).await
    }

    /// A command in the foreground group gets a signal of the terminal directly. After its exit, the user means the remaining
    /// processes, which can be in other groups.
    async fn forward(&mut self, signal: Signal) -> io::Result<()> {
        if self.group.is_some() && is_from_terminal(signal) && !self.draining {
            return Ok(());
        }
        self.guardian.send(&Instruction::Forward(signal.as_raw())).await
    }

    async fn kill_all(self, why: &str, end: End) -> End {
        message!("tenure: {}: {why}: killing the command", self.plan.name);
        if !self.guardian.kill_all().await {
            message!("tenure: {}: cannot kill a process of the command: the lease is not released", self.plan.name);
            std::process::exit(end.code().into());
        }
        end
    }

    /// Reads the clock before the remaining time, so that a delay between both makes the deadlines earlier, not later.
    fn current_deadlines(&self) -> Deadlines {
        let now = SystemClock.elapsed();
        match self.lease.remaining() {
            Some(Duration::MAX) => Deadlines::default(),
            left => {
                let deadline = now + left.unwrap_or_default();
                let kill_at = deadline.saturating_sub(self.plan.kill_margin);
                let term_at = self.plan.grace.map(|grace| deadline.saturating_sub(grace).min(kill_at));
                Deadlines { term_at, kill_at: Some(kill_at) }
            }
        }
    }

    fn why(&self) -> String {
        match self.lease.state() {
            HoldState::Lost { why, .. } => format!("the lease is lost: {why}{}", refusal_of(self.lease)),
            HoldState::Ending { .. } | HoldState::AtRisk { .. } => {
                format!("the lease cannot be renewed{}", refusal_of(self.lease))
            }
            _ => "the lease was not renewed in time".to_owned(),
        }
    }

    fn say(&self, message: &str) {
        message!("tenure: {}: {message}", self.plan.name);
    }
}

/// The next step of the supervisor after a report.
enum AfterReport {
    Continue,
    Return(End),
    GuardianDied,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Problem;

    #[test]
    fn only_a_lease_that_is_not_granted_in_time_exits_with_124() {
        let code_of = |code| code_of(&CallError::Refused(Box::new(Problem::new(code, "why"))));
        for code in [Code::Held, Code::LockDelay, Code::WaitTimeout, Code::WaitAbandoned] {
            assert_eq!(code_of(code), codes::NOT_ACQUIRED, "{code:?}");
        }
        for code in [Code::Invalid, Code::Forbidden, Code::QueueFull] {
            assert_eq!(code_of(code), codes::FAILED, "{code:?}");
        }
    }
}
