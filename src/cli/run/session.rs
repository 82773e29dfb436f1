//! One command under one lease, from the acquire to the release.

use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use super::arguments::Plan;
use super::codes;
use super::forwarded::{ForwardedSignals, is_of_the_terminal};
use super::guarded::{Guarded, terminal_group};
use super::messages::{Order, Report, Times};
use crate::api::Code;
use crate::client::{CallError, ENDPOINTS_VARIABLE, HoldState, Lease, Wait};
use crate::clock::{Clock, SystemClock};
use crate::token::FencingToken;

/// Timers stand still while the machine is suspended, and deadlines do not: the clock is looked at this often.
const LOOK: Duration = Duration::from_millis(100);
/// So long after its time for KILL a guardian that has not said that all is over does not run.
const GUARDIAN_LATE: Duration = Duration::from_millis(20);
/// Least time for giving back what is lost by this side's clock: others wait for nothing then.
const LEAST_RELEASE: Duration = Duration::from_millis(250);

/// Returns the exit code.
pub async fn run(plan: Plan, wait: Wait) -> u8 {
    let mut forwarded = match ForwardedSignals::listen() {
        Ok(forwarded) => forwarded,
        Err(error) => {
            eprintln!("tenure: cannot listen to signals: {error}");
            return codes::OURS;
        }
    };
    let manager = plan.manager();
    let code = match manager.lease_with(plan.name.as_str(), plan.lease_options()) {
        Ok(lease) => hold(&plan, wait, &lease, &mut forwarded).await,
        Err(error) => {
            eprintln!("tenure: {error}");
            codes::OURS
        }
    };
    // Whatever comes of it, the command has ended, and its code is what counts.
    let _ = tokio::time::timeout(plan.timeout, manager.shutdown()).await;
    code
}

async fn hold(plan: &Plan, wait: Wait, lease: &Lease, forwarded: &mut ForwardedSignals) -> u8 {
    let acquired = tokio::select! {
        acquired = lease.acquire(wait) => acquired,
        signal = forwarded.asked_to_end() => {
            eprintln!("tenure: {}: {signal:?} came before the lease was acquired", plan.name);
            return codes::NOT_ACQUIRED;
        }
    };
    match acquired {
        Ok(token) => run_held(plan, lease, token, forwarded).await.code(),
        Err(error) => {
            eprintln!("tenure: {}: not acquired: {error}", plan.name);
            code_of(&error)
        }
    }
}

/// Runs the command under a lease that is held, and releases it.
pub async fn run_held(plan: &Plan, lease: &Lease, token: FencingToken, forwarded: &mut ForwardedSignals) -> End {
    let end = match Session::begin(plan, lease, token).await {
        Ok(session) => session.watch(forwarded).await,
        Err(error) => {
            eprintln!("tenure: {}: the command cannot be started: {error}", plan.name);
            End::Itself(codes::OURS)
        }
    };
    release(plan, lease, end).await;
    end
}

/// What ended a command. Its own exit code can be any number, that of a loss too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Not the lease, with this exit code.
    Itself(u8),
    /// The lease was lost, and nothing of the command is left.
    Lost,
}

impl End {
    pub fn code(self) -> u8 {
        match self {
            End::Itself(code) => code,
            End::Lost => codes::LOST,
        }
    }
}

async fn release(plan: &Plan, lease: &Lease, end: End) {
    let within = match end {
        End::Lost => lease.remaining().unwrap_or_default().clamp(LEAST_RELEASE, plan.timeout.max(LEAST_RELEASE)),
        End::Itself(_) => plan.timeout,
    };
    match tokio::time::timeout(within, lease.release()).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => eprintln!("tenure: {}: not released, and expires: {error}", plan.name),
        Err(_) => eprintln!("tenure: {}: not released within {within:?}, and expires", plan.name),
    }
}

/// What a claim that failed comes to.
pub fn code_of(error: &CallError) -> u8 {
    match error {
        CallError::Refused(problem) if problem.code == Code::Invalid => codes::OURS,
        CallError::Refused(_) => codes::NOT_ACQUIRED,
        CallError::Unknown { .. } | CallError::Unavailable(_) | CallError::ShutDown => codes::OURS,
    }
}

struct Session<'a> {
    plan: &'a Plan,
    lease: &'a Lease,
    guarded: Guarded,
    group: Option<Pid>,
    /// As the guardian knows them.
    times: Times,
}

impl<'a> Session<'a> {
    async fn begin(plan: &'a Plan, lease: &'a Lease, token: FencingToken) -> io::Result<Session<'a>> {
        let environment = [
            ("TENURE_LEASE", plan.name.to_string()),
            ("TENURE_TOKEN", token.to_string()),
            ("TENURE_HOLDER", lease.holder().to_string()),
            (ENDPOINTS_VARIABLE, plan.endpoints.to_string()),
        ];
        let (guarded, group) = (Guarded::prepare(&plan.command, environment)?, terminal_group());
        let mut session = Session { plan, lease, guarded, group, times: Times::default() };
        session.times = session.read_times();
        let group = group.map(Pid::as_raw_pid);
        let start = Order::Start { times: session.times, grace: plan.grace, group };
        if let Err(error) = session.guarded.tell(&start).await {
            // It may have understood all the same.
            session.put_down("its guardian does not answer", End::Itself(codes::OURS)).await;
            return Err(error);
        }
        Ok(session)
    }

    /// Until nothing of the command runs any more. Does not return if that cannot be had: a
    /// lease whose work goes on is not given back.
    async fn watch(mut self, forwarded: &mut ForwardedSignals) -> End {
        let gone = self.lease.gone();
        let mut states = self.lease.states();
        let mut is_lost = false;
        loop {
            let pause = self.pause();
            let told = tokio::select! {
                report = self.guarded.report() => match self.heard(report) {
                    Heard::Nothing => Ok(()),
                    Heard::End(end) => return end,
                    Heard::Silence => return self.put_down("its guardian has died", End::Itself(codes::OURS)).await,
                },
                // The manager lives as long as this does, and with it the sender.
                _ = states.changed() => {
                    let state = *states.borrow_and_update();
                    self.renewed(state).await
                }
                () = gone.cancelled(), if !is_lost => {
                    is_lost = true;
                    self.lost().await
                }
                signal = forwarded.next() => self.pass(signal).await,
                () = tokio::time::sleep(pause) => Ok(()),
            };
            if told.is_err() {
                return self.put_down("its guardian does not answer", End::Itself(codes::OURS)).await;
            }
            if self.pause().is_zero() {
                // Everything may be over, and only not heard yet.
                return match self.guarded.report_by_now().await {
                    Some(Report::Ended { code, was_stopped: false }) => End::Itself(code),
                    Some(Report::Ended { .. }) => End::Lost,
                    _ => self.put_down("its guardian does not answer", End::Lost).await,
                };
            }
        }
    }

    /// How long nothing is to be done by the clock. None: the guardian is late.
    fn pause(&self) -> Duration {
        let left = |at: Duration| (at + GUARDIAN_LATE).saturating_sub(SystemClock.elapsed());
        self.times.kill_at.map_or(LOOK, left).min(LOOK)
    }

    fn heard(&self, report: Option<Report>) -> Heard {
        let Some(report) = report else { return Heard::Silence };
        match report {
            Report::Failed(why) => {
                self.say(&why);
                Heard::End(End::Itself(codes::OURS))
            }
            Report::TooLate => {
                self.say("there was no time left to start the command");
                Heard::End(End::Lost)
            }
            Report::Draining { code } => {
                self.say(&format!("the command has ended ({code}); what it started still runs, and keeps the lease"));
                Heard::Nothing
            }
            Report::Stopping => {
                self.say(&format!("{}; stopping the command", self.why()));
                Heard::Nothing
            }
            Report::Ended { was_stopped: true, .. } => Heard::End(End::Lost),
            Report::Ended { code, .. } => Heard::End(End::Itself(code)),
        }
    }

    async fn renewed(&mut self, state: HoldState) -> io::Result<()> {
        if !matches!(state, HoldState::Held { .. }) || !self.lease.is_held() {
            return Ok(());
        }
        self.times = self.read_times();
        self.guarded.tell(&Order::Keep(self.times)).await
    }

    /// Not held any more, by somebody's will or by the clock.
    async fn lost(&mut self) -> io::Result<()> {
        let by = SystemClock.elapsed() + self.plan.grace.unwrap_or_default();
        let kill_at = self.times.kill_at.map_or(by, |known| known.min(by));
        self.times = Times { term_at: None, kill_at: Some(kill_at) };
        self.guarded.tell(&Order::Stop { kill_at }).await
    }

    async fn pass(&mut self, signal: Signal) -> io::Result<()> {
        if self.group.is_some() && is_of_the_terminal(signal) {
            return Ok(());
        }
        self.guarded.tell(&Order::Pass(signal.as_raw())).await
    }

    async fn put_down(self, why: &str, end: End) -> End {
        eprintln!("tenure: {}: {why}; killing the command", self.plan.name);
        if !self.guarded.put_down().await {
            eprintln!("tenure: {}: a process of the command cannot be killed; the lease expires", self.plan.name);
            std::process::exit(end.code().into());
        }
        end
    }

    /// The clock is read first, so that nothing that happens in between makes them later than they are.
    fn read_times(&self) -> Times {
        let now = SystemClock.elapsed();
        match self.lease.remaining() {
            Some(Duration::MAX) => Times::default(),
            left => {
                let deadline = now + left.unwrap_or_default();
                let kill_at = deadline.saturating_sub(self.plan.kill_margin);
                let term_at = self.plan.grace.map(|grace| deadline.saturating_sub(grace).min(kill_at));
                Times { term_at, kill_at: Some(kill_at) }
            }
        }
    }

    fn why(&self) -> String {
        match self.lease.state() {
            HoldState::Lost { why, .. } => format!("the lease is lost: {why}"),
            HoldState::Ending { .. } | HoldState::AtRisk { .. } => "the lease cannot be renewed".to_owned(),
            _ => "the lease was not renewed in time".to_owned(),
        }
    }

    fn say(&self, words: &str) {
        eprintln!("tenure: {}: {words}", self.plan.name);
    }
}

enum Heard {
    Nothing,
    End(End),
    /// There will be no report any more.
    Silence,
}
