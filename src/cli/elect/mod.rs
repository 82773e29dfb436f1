//! `tenure elect`: candidates and observers of a leader election.

mod words;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

use super::failure::Failure;
use super::output::Format;
use super::run::arguments::{HoldArguments, Plan};
use super::run::codes;
use super::run::forwarded::ForwardedSignals;
use super::run::session::{self, End};
use crate::api::Standing;
use crate::client::{HoldState, Lease, LeaseManager, Loss};
use crate::election::{Election, ElectionOptions, Leadership};
use crate::token::FencingToken;
use crate::types::LeaseName;
use words::EventPrinter;

pub const HELP: &str = "\
Without a command, it leads until TERM or INT, and then resigns. It prints one line per event: the current leader, \
elected (with the fencing token), lost (with the reason), resigned.

With a command, it runs the command while it leads, like `tenure run` (see its help). When the command exits, it \
resigns. After a loss of the leadership it becomes a candidate again, unless --once is set.

Exit codes:
  0    a signal ended it while it led or observed
  N    the exit code of the command, or 128 + N if signal N ended the command
  123  the leadership was lost, with --once
  124  a signal ended it before it was elected
  125  any other error: refused by the cluster, invalid arguments
  126  the command could not be executed
  127  the command was not found";

#[derive(Args)]
pub struct Arguments {
    /// Name of the election, which is the name of its lease
    name: LeaseName,
    /// Print leader changes, and do not become a candidate
    #[arg(long, conflicts_with_all = ["once", "command"])]
    observe: bool,
    /// Exit after the first leadership, also if it is lost
    #[arg(long)]
    once: bool,
    /// Output format
    #[arg(short, long, default_value = "table")]
    output: Format,
    #[command(flatten)]
    holding: HoldArguments,
    /// Command to run while leading, with its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Takes part in the election, and returns the exit code.
pub async fn run(arguments: Arguments) -> ExitCode {
    let printer = EventPrinter { format: arguments.output, to_stderr: !arguments.command.is_empty() };
    let (observe, once) = (arguments.observe, arguments.once);
    let begun = arguments.holding.plan(arguments.name, arguments.command).and_then(Participant::begin);
    let code = match begun {
        Ok(mut participant) => {
            let ended =
                if observe { participant.observe(printer).await } else { participant.lead(printer, once).await };
            let _ = tokio::time::timeout(participant.plan.timeout, participant.manager.shutdown()).await;
            ended.unwrap_or_else(|failure| match failure {
                // As for the other commands that print until they are ended.
                Failure::OutputClosed if observe => 0,
                Failure::OutputClosed => {
                    message!("tenure: stdout is closed");
                    codes::FAILED
                }
                failure => {
                    failure.report(Format::Table);
                    codes::FAILED
                }
            })
        }
        Err(why) => {
            message!("tenure: {why}");
            codes::FAILED
        }
    };
    ExitCode::from(code)
}

/// A candidate or an observer.
struct Participant {
    plan: Plan,
    manager: LeaseManager,
    election: Election,
    lease: Lease,
    forwarded: ForwardedSignals,
}

impl Participant {
    fn begin(plan: Plan) -> Result<Participant, String> {
        let Some(ttl) = plan.ttl else {
            return Err("--ttl infinite is invalid for an election: expected a finite ttl".to_owned());
        };
        let options = ElectionOptions::new().ttl(ttl).grace(plan.grace.unwrap_or_default());
        let options = options.lock_delay(plan.lock_delay).metadata(plan.metadata.clone());
        let to_message = |error: crate::types::InvalidValue| error.to_string();
        let manager = plan.manager().map_err(to_message)?;
        let election = Election::new(&manager, plan.name.as_str(), options).map_err(to_message)?;
        // This is the election's lease: all handles of a name share one lease.
        let lease = manager.lease(plan.name.as_str()).map_err(to_message)?;
        let forwarded =
            ForwardedSignals::listen().map_err(|error| format!("cannot install signal handlers: {error}"))?;
        Ok(Participant { plan, manager, election, lease, forwarded })
    }

    async fn observe(&mut self, printer: EventPrinter) -> Result<u8, Failure> {
        let mut observer = self.election.observe();
        loop {
            tokio::select! {
                view = observer.next_or_refusal() => printer.view(&view?)?,
                _ = self.forwarded.end_requested() => return Ok(0),
            }
        }
    }

    async fn lead(&mut self, printer: EventPrinter, once: bool) -> Result<u8, Failure> {
        let election = self.election.clone();
        let mut observer = election.observe();
        loop {
            let campaign = election.campaign();
            tokio::pin!(campaign);
            let leadership = loop {
                tokio::select! {
                    elected = &mut campaign => break elected?,
                    view = observer.next() => printer.view(&view)?,
                    _ = self.forwarded.end_requested() => return Ok(codes::NOT_ACQUIRED),
                }
            };
            printer.elected(leadership.token())?;
            let (end, released, is_asked) = match self.plan.command.is_empty() {
                true => self.lead_until_signal(&leadership).await,
                false => {
                    let (plan, token) = (&self.plan, leadership.token());
                    let (end, released) = session::run_command(plan, &self.lease, token, &mut self.forwarded).await;
                    (end, released, false)
                }
            };
            match end {
                End::Exited(_) if released == Some(true) => printer.resigned(leadership.token())?,
                // Without a release, the cluster can count the lease as held until it expires.
                End::Exited(_) | End::Lost => {
                    let why = tokio::select! {
                        biased;
                        why = why_lost(&self.manager, &self.lease, leadership.token(), released) => why,
                        _ = self.forwarded.end_requested() => None,
                    };
                    let refusal = session::refusal_of(&self.lease);
                    // The supervisor of a command has said it.
                    if self.plan.command.is_empty() && !refusal.is_empty() {
                        message!("tenure: {}: the lease was not renewed{refusal}", self.plan.name);
                    }
                    printer.lost(leadership.token(), why)?;
                }
            }
            if is_asked {
                return Ok(0);
            }
            // The command got the signal. Its lease was lost before it ended.
            if once || end != End::Lost || self.forwarded.asked_to_stop() {
                return Ok(end.code());
            }
        }
    }

    /// Leads until a signal or until the leadership is lost. Returns whether the lease is released (`None`: the cluster
    /// has not answered), and whether a signal came, after which the leadership can still turn out to be lost.
    async fn lead_until_signal(&mut self, leadership: &Leadership) -> (End, Option<bool>, bool) {
        if leadership.while_leading(self.forwarded.end_requested()).await.is_err() {
            return (End::Lost, None, false);
        }
        match leadership.resign_now().await {
            Ok(true) => (End::Exited(0), Some(true), true),
            Ok(false) => (End::Lost, Some(false), true),
            Err(error) => {
                message!("tenure: {}: the lease is not released, so it expires: {error}", self.plan.name);
                (End::Exited(0), None, true)
            }
        }
    }
}

/// Why the leadership is lost. `None`: it ended before the lease expired, and perhaps the lease is not released.
async fn why_lost(manager: &LeaseManager, lease: &Lease, token: FencingToken, released: Option<bool>) -> Option<Loss> {
    if let HoldState::Lost { why, .. } = lease.state() {
        return Some(why);
    }
    if released != Some(false) {
        return None;
    }
    // The grant had ended before its release, and no renewal has shown that.
    let (name, holder) = (lease.name().clone(), lease.holder().clone());
    let explained = manager.coordinator().explain(name, holder, manager.budget()).await.ok()?;
    match explained.standing? {
        Standing::Ended { event } if event.token == token => Some(Loss::from(event.event)),
        _ => Some(Loss::Forgotten),
    }
}
