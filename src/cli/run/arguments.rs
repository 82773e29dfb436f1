//! The command line of `tenure run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::api::TtlMs;
use crate::cli::{duration, metadata};
use crate::client::{
    DEFAULT_ENDPOINTS, ENDPOINTS_VARIABLE, Endpoints, LeaseManager, LeaseOptions, ManagerOptions, Remote, Wait,
};
use crate::types::{HolderId, LeaseName, MAX_WAIT_MS, Metadata, Ttl};

/// Longest grace that is chosen by itself; a quarter of a shorter ttl.
const LONGEST_OWN_GRACE: Duration = Duration::from_secs(10);
/// So long before the deadline KILL is sent, so that it has done its work by then; a twentieth of a shorter ttl.
const LONGEST_KILL_MARGIN: Duration = Duration::from_millis(50);

#[derive(Args)]
pub struct Arguments {
    /// The lease
    name: LeaseName,
    /// Wait for at most this long when somebody else holds the lease; `ttl`: for one ttl
    #[arg(long, value_parser = read_wait, value_name = "DURATION|ttl")]
    wait: Option<Wait>,
    #[command(flatten)]
    holding: Holding,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// How the lease is held, and what its loss is to a command.
#[derive(Args)]
pub struct Holding {
    /// How long the lease lasts without a renewal, and so how long others wait when this machine dies; or `infinite`
    #[arg(long, default_value = "30s", value_parser = duration::parse_ttl, value_name = "DURATION")]
    ttl: TtlMs,
    /// Between TERM and KILL when the lease is lost; at most half the ttl [default: a quarter of the ttl, 10s at most]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    grace: Option<Duration>,
    /// What to send the command when the lease is lost: TERM and, after the grace, KILL; or KILL alone
    #[arg(long, value_name = "WHAT", default_value = "term")]
    on_lost: OnLost,
    /// Who claims it: any text that no other claimant uses [default: host, process and a random part]
    #[arg(long, alias = "id")]
    holder: Option<HolderId>,
    /// A note for whoever looks at the lease; can be given several times
    #[arg(long = "meta", alias = "metadata", value_parser = metadata::read, value_name = "KEY=VALUE")]
    metadata: Vec<(String, String)>,
    /// After an expiry or a revoke nobody gets the lease for this long
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    lock_delay: Option<Duration>,
    /// URLs of the nodes, with commas between them
    #[arg(long, env = ENDPOINTS_VARIABLE, default_value = DEFAULT_ENDPOINTS, value_name = "URLS")]
    endpoints: Endpoints,
    /// Time for acquiring the lease, beside what it waits for it, and for releasing it
    #[arg(long, default_value = "5s", value_parser = duration::parse, value_name = "DURATION")]
    timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    Term,
    Kill,
}

/// What is to be run, and how its lease is held.
pub struct Plan {
    pub name: LeaseName,
    /// `None`: infinite.
    pub ttl: Option<Duration>,
    pub metadata: Metadata,
    pub lock_delay: Duration,
    /// `None`: no TERM.
    pub grace: Option<Duration>,
    pub kill_margin: Duration,
    pub holder: Option<HolderId>,
    pub endpoints: Endpoints,
    pub timeout: Duration,
    pub command: Vec<OsString>,
}

impl Arguments {
    /// # Errors
    ///
    /// What is wrong, in words.
    pub fn plan(self) -> Result<(Plan, Wait), String> {
        Ok((self.holding.plan(self.name, self.command)?, self.wait.unwrap_or_default()))
    }
}

impl Holding {
    /// # Errors
    ///
    /// What is wrong, in words.
    pub fn plan(self, name: LeaseName, command: Vec<OsString>) -> Result<Plan, String> {
        let ttl = match self.ttl {
            TtlMs::Millis(ms) => Some(Duration::from_millis(Ttl::millis(ms).and(Ok(ms)).map_err(in_words)?)),
            TtlMs::Infinite => None,
        };
        let own_grace = ttl.map_or(LONGEST_OWN_GRACE, |ttl| (ttl / 4).min(LONGEST_OWN_GRACE));
        let grace = self.grace.unwrap_or(own_grace);
        if let Some(ttl) = ttl.filter(|ttl| grace > *ttl / 2) {
            return Err(format!("a grace of {grace:?} is more than half the ttl of {ttl:?}: nothing could be renewed"));
        }
        Ok(Plan {
            name,
            ttl,
            metadata: Metadata::new(self.metadata.into_iter().collect()).map_err(in_words)?,
            lock_delay: self.lock_delay.unwrap_or_default(),
            grace: (self.on_lost == OnLost::Term).then_some(grace),
            kill_margin: ttl.map_or(Duration::ZERO, |ttl| (ttl / 20).min(LONGEST_KILL_MARGIN)),
            holder: self.holder,
            endpoints: self.endpoints,
            timeout: self.timeout,
            command,
        })
    }
}

impl Plan {
    pub fn manager(&self) -> LeaseManager {
        let options = ManagerOptions::new().operation_timeout(self.timeout);
        let options = match &self.holder {
            Some(holder) => options.holder(holder.clone()),
            None => options,
        };
        LeaseManager::with_options(Remote::new(self.endpoints.clone()), options)
    }

    pub fn lease_options(&self) -> LeaseOptions {
        let options = LeaseOptions::new().metadata(self.metadata.clone()).lock_delay(self.lock_delay);
        let options = options.grace(self.grace.unwrap_or_default());
        match self.ttl {
            Some(ttl) => options.ttl(ttl),
            None => options.infinite(),
        }
    }
}

fn read_wait(text: &str) -> Result<Wait, String> {
    if text == "ttl" {
        return Ok(Wait::ForTtl);
    }
    let wait = duration::parse(text).map_err(|error| format!("{error}; or `ttl`"))?;
    if wait.as_millis() > u128::from(MAX_WAIT_MS) {
        return Err(format!("{text} is longer than 24 hours"));
    }
    Ok(Wait::UpTo(wait))
}

fn in_words(error: impl std::fmt::Display) -> String {
    error.to_string()
}
