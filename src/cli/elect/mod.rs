//! `tenure elect`: standing for election, leading, and seeing who leads.

mod words;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

use super::failure::Failure;
use super::output::Format;
use super::run::arguments::{Holding, Plan};
use super::run::codes;
use super::run::forwarded::ForwardedSignals;
use super::run::session::{self, End};
use crate::client::{Lease, LeaseManager};
use crate::election::{Election, ElectionOptions, Leadership};
use crate::types::LeaseName;
use words::Words;

pub const HELP: &str = "\
Without a command it leads until TERM or INT, then resigns, and prints what happens, a line each: who leads, elected (with \
the fencing token), lost (and why), resigned. With a command it runs the command while it leads, as `tenure run` does (see \
its help), and stands again after a loss unless --once; when the command ends by itself it resigns.

Exit codes:
  0    asked to end while it led or observed
  N    the command's own; 128 + N when signal N ended it
  123  the leadership was lost, with --once
  124  asked to end before it was elected
  125  something else: refused by the cluster, invalid arguments
  126, 127  the command could not be executed, was not found";

#[derive(Args)]
pub struct Arguments {
    /// The election: a lease's name
    name: LeaseName,
    /// Print who leads, as it changes, and do not stand
    #[arg(long, conflicts_with_all = ["once", "command"])]
    observe: bool,
    /// End after the first leadership, also when it is lost
    #[arg(long)]
    once: bool,
    /// How to print what happens
    #[arg(short, long, default_value = "table")]
    output: Format,
    #[command(flatten)]
    holding: Holding,
    /// A command to run while leading, and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs until it is over. Returns the exit code.
pub async fn run(arguments: Arguments) -> ExitCode {
    let words = Words { format: arguments.output, aside: !arguments.command.is_empty() };
    let (observe, once) = (arguments.observe, arguments.once);
    let begun = arguments.holding.plan(arguments.name, arguments.command).and_then(Stand::begin);
    let code = match begun {
        Ok(mut stand) => {
            let ended = if observe { stand.observe(words).await } else { stand.lead(words, once).await };
            let _ = tokio::time::timeout(stand.plan.timeout, stand.manager.shutdown()).await;
            ended.unwrap_or_else(|failure| {
                failure.report();
                codes::OURS
            })
        }
        Err(why) => {
            eprintln!("tenure: {why}");
            codes::OURS
        }
    };
    ExitCode::from(code)
}

/// One candidate, or observer.
struct Stand {
    plan: Plan,
    manager: LeaseManager,
    election: Election,
    lease: Lease,
    forwarded: ForwardedSignals,
}

impl Stand {
    fn begin(plan: Plan) -> Result<Stand, String> {
        let Some(ttl) = plan.ttl else { return Err("a leader needs a ttl that ends".to_owned()) };
        let options = ElectionOptions::new().ttl(ttl).grace(plan.grace.unwrap_or_default());
        let options = options.lock_delay(plan.lock_delay).metadata(plan.metadata.clone());
        let manager = plan.manager();
        let in_words = |error: crate::types::InvalidValue| error.to_string();
        let election = Election::new(&manager, plan.name.as_str(), options).map_err(in_words)?;
        // The same lease as the election's: handles of one name are of one lease.
        let lease = manager.lease(plan.name.as_str()).map_err(in_words)?;
        let forwarded = ForwardedSignals::listen().map_err(|error| format!("cannot listen to signals: {error}"))?;
        Ok(Stand { plan, manager, election, lease, forwarded })
    }

    async fn observe(&mut self, words: Words) -> Result<u8, Failure> {
        let mut observer = self.election.observe();
        loop {
            tokio::select! {
                view = observer.next() => words.view(&view)?,
                _ = self.forwarded.asked_to_end() => return Ok(0),
            }
        }
    }

    async fn lead(&mut self, words: Words, once: bool) -> Result<u8, Failure> {
        let election = self.election.clone();
        let mut observer = election.observe();
        loop {
            let campaign = election.campaign();
            tokio::pin!(campaign);
            let leadership = loop {
                tokio::select! {
                    elected = &mut campaign => break elected?,
                    view = observer.next() => words.view(&view)?,
                    _ = self.forwarded.asked_to_end() => return Ok(codes::NOT_ACQUIRED),
                }
            };
            words.elected(leadership.token())?;
            let end = match self.plan.command.is_empty() {
                true => self.hold(&leadership).await?,
                false => session::run_held(&self.plan, &self.lease, leadership.token(), &mut self.forwarded).await,
            };
            match end {
                End::Lost => words.lost(leadership.token(), self.lease.state())?,
                End::Itself(_) => words.resigned(leadership.token())?,
            }
            if once || end != End::Lost {
                return Ok(end.code());
            }
        }
    }

    /// Leads until asked to end, or until that is lost.
    async fn hold(&mut self, leadership: &Leadership) -> Result<End, Failure> {
        let asked = leadership.while_leading(self.forwarded.asked_to_end()).await;
        if asked.is_err() {
            return Ok(End::Lost);
        }
        match leadership.resign_now().await {
            Ok(true) => Ok(End::Itself(0)),
            Ok(false) => Ok(End::Lost),
            Err(error) => {
                eprintln!("tenure: {}: not released, and expires: {error}", self.plan.name);
                Ok(End::Itself(0))
            }
        }
    }
}
