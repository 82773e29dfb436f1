//! The command line of `tenure run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::api::TtlMs;
use crate::cli::{CredentialArguments, duration, metadata};
use crate::client::{
    DEFAULT_ENDPOINTS, ENDPOINTS_VARIABLE, Endpoints, LeaseManager, LeaseOptions, ManagerOptions, Remote, Wait,
};
use crate::types::{HolderId, InvalidValue, LeaseName, MAX_WAIT_MS, Metadata, Ttl};

/// Maximum of the default grace, which is a quarter of the ttl.
const MAX_DEFAULT_GRACE: Duration = Duration::from_secs(10);
/// Maximum time between KILL and the deadline, which is a twentieth of the ttl. The kernel needs it to end the
/// processes.
const MAX_KILL_MARGIN: Duration = Duration::from_millis(50);

#[derive(Args)]
pub struct Arguments {
    /// Name of the lease
    name: LeaseName,
    /// Maximum time to wait for the lease, at most 24h; `ttl` waits for one ttl [default: fail at once if it is held]
    #[arg(long, value_parser = read_wait, value_name = "DURATION|ttl")]
    wait: Option<Wait>,
    #[command(flatten)]
    holding: HoldArguments,
    /// Command to run, with its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// How to hold the lease, and how to stop the command when the lease is lost.
#[derive(Args)]
pub struct HoldArguments {
    /// Time until the lease expires without a renewal, for instance after a crash of this machine; or `infinite`
    #[arg(long, default_value = "30s", value_parser = duration::parse_ttl, value_name = "DURATION")]
    ttl: TtlMs,
    /// Time between TERM and KILL when the lease is lost; at most half the ttl [default: a quarter of the ttl, at most
    /// 10s]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    grace: Option<Duration>,
    /// Signal when the lease is lost: `term` sends TERM and, after the grace, KILL; `kill` sends only KILL
    #[arg(long, value_name = "SIGNAL", default_value = "term")]
    on_lost: OnLost,
    /// Holder name, unique among all clients [default: host name, process id and a random part]
    #[arg(long, alias = "id")]
    holder: Option<HolderId>,
    /// Metadata that readers of the lease see; repeat it for several entries
    #[arg(long = "meta", alias = "metadata", value_parser = metadata::read, value_name = "KEY=VALUE")]
    metadata: Vec<(String, String)>,
    /// Time after an expiry or a revoke in which no client gets the lease, at most 24h [default: 0s]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    lock_delay: Option<Duration>,
    /// URLs of the nodes, separated by commas
    #[arg(long, env = ENDPOINTS_VARIABLE, default_value = DEFAULT_ENDPOINTS, value_name = "URLS")]
    endpoints: Endpoints,
    #[command(flatten)]
    credentials: CredentialArguments,
    /// Timeout to acquire the lease, without the wait in the queue, and to release it
    #[arg(long, default_value = "5s", value_parser = duration::parse, value_name = "DURATION")]
    timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    Term,
    Kill,
}

/// The validated arguments.
pub struct Plan {
    pub name: LeaseName,
    /// `None` is infinite.
    pub ttl: Option<Duration>,
    pub metadata: Metadata,
    pub lock_delay: Duration,
    /// Time between TERM and KILL. `None` sends no TERM.
    pub grace: Option<Duration>,
    pub kill_margin: Duration,
    pub holder: Option<HolderId>,
    pub endpoints: Endpoints,
    pub credentials: CredentialArguments,
    pub remote: Remote,
    pub timeout: Duration,
    pub command: Vec<OsString>,
}

impl Arguments {
    /// Validates the arguments.
    ///
    /// # Errors
    ///
    /// An argument is invalid. The error is a message for the user.
    pub fn plan(self) -> Result<(Plan, Wait), String> {
        Ok((self.holding.plan(self.name, self.command)?, self.wait.unwrap_or_default()))
    }
}

impl HoldArguments {
    /// Validates the arguments.
    ///
    /// # Errors
    ///
    /// An argument is invalid. The error is a message for the user.
    pub fn plan(self, name: LeaseName, command: Vec<OsString>) -> Result<Plan, String> {
        let ttl = Ttl::try_from(self.ttl).map_err(to_message)?.as_millis().map(Duration::from_millis);
        let default_grace = ttl.map_or(MAX_DEFAULT_GRACE, |ttl| (ttl / 4).min(MAX_DEFAULT_GRACE));
        let grace = self.grace.unwrap_or(default_grace);
        if let Some(ttl) = ttl.filter(|ttl| grace > *ttl / 2) {
            return Err(format!("--grace {grace:?} is above half the ttl of {ttl:?}: choose at most {:?}", ttl / 2));
        }
        Ok(Plan {
            name,
            ttl,
            metadata: Metadata::new(self.metadata.into_iter().collect()).map_err(to_message)?,
            lock_delay: self.lock_delay.unwrap_or_default(),
            grace: (self.on_lost == OnLost::Term).then_some(grace),
            kill_margin: ttl.map_or(Duration::ZERO, |ttl| (ttl / 20).min(MAX_KILL_MARGIN)),
            holder: self.holder,
            endpoints: self.endpoints.clone(),
            remote: self.credentials.remote(&self.endpoints).map_err(|failure| failure.message())?,
            credentials: self.credentials,
            timeout: self.timeout,
            command,
        })
    }
}

impl Plan {
    /// # Errors
    ///
    /// The timeout is outside the bounds of a manager.
    pub fn manager(&self) -> Result<LeaseManager, InvalidValue> {
        let options = ManagerOptions::new().operation_timeout(self.timeout);
        let options = match &self.holder {
            Some(holder) => options.holder(holder.clone()),
            None => options,
        };
        LeaseManager::with_options(self.remote.clone(), options)
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
    let wait = duration::parse(text).map_err(|error| format!("{error}, or `ttl`"))?;
    if wait.as_millis() > u128::from(MAX_WAIT_MS) {
        return Err(format!("{text} is longer than the maximum of 24 hours"));
    }
    Ok(Wait::UpTo(wait))
}

fn to_message(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn plan(options: &str) -> Result<Plan, String> {
        let words = format!("run job {options} -- true");
        let line = CommandLine::try_parse_from(words.split_whitespace()).map_err(to_message)?;
        line.arguments.plan().map(|(plan, _)| plan)
    }

    #[test]
    fn wait_is_at_most_24_hours() {
        assert_eq!(read_wait("24h"), Ok(Wait::UpTo(Duration::from_secs(24 * 60 * 60))));
        assert!(read_wait("24h1ms").is_err_and(|why| why.contains("maximum of 24 hours")));
    }

    #[test]
    fn grace_and_kill_margin_follow_the_ttl() {
        let ms = Duration::from_millis;
        let (grace, ttl) = (|grace| Some(ms(grace)), |ttl| Some(ms(ttl)));
        for (options, expected) in [
            ("", (ttl(30_000), grace(7_500), ms(50))),
            ("--ttl 400ms", (ttl(400), grace(100), ms(20))),
            ("--ttl 60s", (ttl(60_000), grace(10_000), ms(50))),
            ("--ttl infinite", (None, grace(10_000), ms(0))),
            ("--ttl 60s --on-lost kill", (ttl(60_000), None, ms(50))),
            ("--ttl 10s --grace 5s", (ttl(10_000), grace(5_000), ms(50))),
        ] {
            let plan = plan(options).unwrap_or_else(|error| panic!("{options}: {error}"));
            assert_eq!((plan.ttl, plan.grace, plan.kill_margin), expected, "{options}");
        }
        let refused = plan("--ttl 10s --grace 5001ms").err().expect("it is above half the ttl");
        assert!(refused.contains("above half the ttl"), "{refused}");
    }
}
