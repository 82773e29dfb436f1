//! `tenure lease`.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use super::failure::Failure;
use super::output::{self, Format};
use super::{ClientArguments, duration, metadata};
use crate::api::{self, Event, EventId, LeaseInfo, TtlMs};
use crate::client::{CallError, ListQuery, Remote};
use crate::token::FencingToken;
use crate::types::{Consistency, HolderId, LeaseName, Metadata};

/// Page size of a list.
const PAGE: u32 = 500;

#[derive(Subcommand)]
pub enum Command {
    /// Acquire a lease, and print its fencing token
    Acquire(Acquire),
    /// Renew a lease for another ttl
    Renew {
        #[command(flatten)]
        held: HeldLease,
        /// New ttl, for instance 30s, or `infinite` [default: the ttl of the grant]
        #[arg(long, value_parser = duration::parse_ttl, value_name = "DURATION")]
        ttl: Option<TtlMs>,
    },
    /// Release a lease
    Release {
        #[command(flatten)]
        held: HeldLease,
    },
    /// Hand a lease over to a waiter, and print the waiter's fencing token
    Handover {
        #[command(flatten)]
        held: HeldLease,
        /// Holder name of the waiter [default: the first in the queue]
        #[arg(long, value_name = "HOLDER")]
        to: Option<HolderId>,
    },
    /// Show one lease
    Get {
        name: LeaseName,
        #[command(flatten)]
        read: ReadArguments,
    },
    /// List leases
    List(List),
    /// Print transitions of leases as they happen
    Watch {
        /// Show only names with this prefix
        #[arg(default_value = "")]
        prefix: String,
        /// Resume after the event with this position, the first column of the output [default: now]
        #[arg(long, value_name = "ID")]
        after: Option<EventId>,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Show the waiters of a lease
    Queue {
        name: LeaseName,
        #[command(flatten)]
        read: ReadArguments,
    },
    /// Show the last transitions of a lease
    History {
        name: LeaseName,
        #[command(flatten)]
        read: ReadArguments,
    },
    /// Explain why a lease is held or not, and which waiter gets it next
    Explain {
        name: LeaseName,
        /// Also explain this holder's relation to the lease, and how it lost it
        #[arg(long)]
        holder: Option<HolderId>,
        #[command(flatten)]
        read: ReadArguments,
    },
    /// Take a lease from all its holders (for operators)
    Revoke {
        name: LeaseName,
        /// Reason for the history, at most 500 bytes
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        client: ClientArguments,
    },
}

#[derive(Args)]
pub struct Acquire {
    name: LeaseName,
    #[command(flatten)]
    claimant: Claimant,
    /// Time until the lease expires without a renewal, for instance 30s, or `infinite` [default: set by the cluster]
    #[arg(long, value_parser = duration::parse_ttl, value_name = "DURATION")]
    ttl: Option<TtlMs>,
    /// Maximum time to wait in the queue, at most 24h [default: fail at once if the lease is held]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    wait: Option<Duration>,
    /// Time after an expiry or a revoke in which no client gets the lease, at most 24h [default: 0s]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    lock_delay: Option<Duration>,
    /// Maximum number of concurrent holders, 1 to 10000 [default: 1]
    #[arg(long)]
    limit: Option<u32>,
    /// Metadata that readers of the lease see; repeat it for several entries
    #[arg(long = "meta", value_parser = metadata::read, value_name = "KEY=VALUE")]
    metadata: Vec<(String, String)>,
    #[command(flatten)]
    client: ClientArguments,
}

/// The holder of a lease. It has no default: with one, two scripts of a user would share each other's leases.
#[derive(Args)]
pub struct Claimant {
    /// Holder name, unique among all clients, for instance "$(hostname):$$" in a script
    #[arg(long, env = "TENURE_HOLDER")]
    holder: HolderId,
}

/// A held lease.
#[derive(Args)]
pub struct HeldLease {
    name: LeaseName,
    #[command(flatten)]
    claimant: Claimant,
    /// Fencing token that `acquire` printed
    #[arg(long, env = "TENURE_TOKEN")]
    token: FencingToken,
    #[command(flatten)]
    client: ClientArguments,
}

#[derive(Args)]
pub struct List {
    /// Show only names with this prefix
    #[arg(default_value = "")]
    prefix: String,
    /// Show only leases of this holder
    #[arg(long)]
    holder: Option<HolderId>,
    /// Show only these states, separated by commas: active, renewed, expired, released, revoked, handed_over,
    /// restored
    #[arg(long, default_value = "active", value_name = "STATES")]
    state: String,
    /// Show leases in all states; the cluster keeps ended leases for a limited time
    #[arg(long, conflicts_with = "state")]
    all: bool,
    /// Maximum number of leases to print
    #[arg(long, default_value_t = 1000)]
    limit: usize,
    #[command(flatten)]
    read: ReadArguments,
}

/// The arguments of commands that read leases.
#[derive(Args)]
pub struct ReadArguments {
    /// `leader`: the current state. `linearizable`: current also if the clocks of the nodes differ. `stale`: the state of
    /// one node, also without a leader
    #[arg(long, default_value = "leader", value_parser = parse_consistency, value_name = "CONSISTENCY")]
    consistency: Consistency,
    #[command(flatten)]
    client: ClientArguments,
}

impl ReadArguments {
    fn remote(&self) -> Result<Remote, Failure> {
        Ok(self.client.remote()?.with_consistency(self.consistency))
    }

    /// Prints the age of the state that stale reads returned, on stderr: stdout is the same for each consistency.
    fn show_age(&self, remote: &Remote) {
        if self.consistency == Consistency::Stale && self.client.output == Format::Table {
            match remote.stale_age() {
                Some(age) => message!("stale: the state of one node, {} old", duration::show(as_ms(age))),
                None => message!("stale: the state of one node, of unknown age: it has not caught up since its start"),
            }
        }
    }
}

fn parse_consistency(text: &str) -> Result<Consistency, String> {
    let known = [Consistency::Leader, Consistency::Linearizable, Consistency::Stale];
    let expected = "expected leader, linearizable or stale";
    known.into_iter().find(|known| known.as_str() == text).ok_or_else(|| expected.to_owned())
}

impl Command {
    /// The output format that the user asked for.
    pub fn output(&self) -> Format {
        let client = match self {
            Command::Acquire(arguments) => &arguments.client,
            Command::Renew { held, .. } | Command::Release { held } | Command::Handover { held, .. } => &held.client,
            Command::List(arguments) => &arguments.read.client,
            Command::Get { read, .. }
            | Command::Queue { read, .. }
            | Command::History { read, .. }
            | Command::Explain { read, .. } => &read.client,
            Command::Watch { client, .. } | Command::Revoke { client, .. } => client,
        };
        client.output
    }
}

pub async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Acquire(arguments) => acquire(arguments).await,
        Command::Renew { held, ttl } => renew(held, ttl).await,
        Command::Release { held } => release(held).await,
        Command::Handover { held, to } => hand_over(held, to).await,
        Command::Get { name, read } => get(&name, &read).await,
        Command::List(arguments) => list(arguments).await,
        Command::Watch { prefix, after, client } => watch(&prefix, after, &client).await,
        Command::Queue { name, read } => queue(&name, &read).await,
        Command::History { name, read } => history(&name, &read).await,
        Command::Explain { name, holder, read } => explain(&name, holder.as_ref(), &read).await,
        Command::Revoke { name, reason, client } => revoke(&name, &reason, &client).await,
    }
}

async fn acquire(arguments: Acquire) -> Result<(), Failure> {
    let metadata = Metadata::new(arguments.metadata.into_iter().collect());
    let claim = api::Acquire {
        holder: arguments.claimant.holder,
        ttl_ms: arguments.ttl,
        wait_ms: arguments.wait.map(as_ms),
        lock_delay_ms: arguments.lock_delay.map(as_ms),
        limit: arguments.limit,
        metadata: metadata.map_err(|error| Failure::Usage(error.to_string()))?,
    };
    let lease = arguments.client.remote()?.acquire(&arguments.name, &claim).await?;
    show_held("held", &lease, arguments.client.output)
}

async fn renew(held: HeldLease, ttl_ms: Option<TtlMs>) -> Result<(), Failure> {
    let renew = api::Renew { holder: held.claimant.holder, token: held.token, ttl_ms };
    let lease = held.client.remote()?.renew(&held.name, &renew).await?;
    show_held("renewed", &lease, held.client.output)
}

async fn release(held: HeldLease) -> Result<(), Failure> {
    let release = api::Release::new(held.claimant.holder, held.token);
    let answer = held.client.remote()?.release(&held.name, &release).await?;
    let printed = match held.client.output {
        Format::Json => output::json(&answer),
        Format::Table => Ok(()),
    };
    if answer.released {
        if held.client.output == Format::Table {
            message!("released {}", held.name);
        }
        return printed;
    }
    let detail = format!("{} was not held by {} with token {}: nothing changed", held.name, release.holder, held.token);
    Err(CallError::Refused(Box::new(api::Problem::new(api::Code::Lost, detail))).into())
}

async fn hand_over(held: HeldLease, to: Option<HolderId>) -> Result<(), Failure> {
    let hand_over = api::HandOver { holder: held.claimant.holder, token: held.token, to };
    let lease = held.client.remote()?.hand_over(&held.name, &hand_over).await?;
    show_held("handed over", &lease, held.client.output)
}

/// Prints the token on stdout, so that a script can read it, and the rest on stderr.
fn show_held(verb: &str, lease: &LeaseInfo, format: Format) -> Result<(), Failure> {
    if format == Format::Json {
        return output::json(lease);
    }
    let left = match lease.expires_in_ms {
        Some(left) => format!("expires in {} unless renewed", duration::show(left)),
        None => "until it is released".to_owned(),
    };
    message!("{verb}: {} by {}, {left}", lease.name, lease.holder);
    output::line(&lease.token.to_string())
}

async fn get(name: &LeaseName, read: &ReadArguments) -> Result<(), Failure> {
    let remote = read.remote()?;
    let lease = remote.get(name).await?;
    read.show_age(&remote);
    match (read.client.output, &lease.holders) {
        (Format::Json, _) => output::json(&lease),
        (Format::Table, Some(holders)) => output::leases(holders),
        (Format::Table, None) => output::leases(std::slice::from_ref(&lease)),
    }
}

async fn list(arguments: List) -> Result<(), Failure> {
    let remote = arguments.read.remote()?;
    let states = if arguments.all { String::new() } else { arguments.state };
    let query = ListQuery { prefix: arguments.prefix, holder: arguments.holder, states, limit: Some(PAGE) };
    let mut leases = Vec::new();
    let mut cursor: Option<String> = None;
    let more = loop {
        let page = remote.list(&query, cursor.as_deref()).await?;
        leases.extend(page.leases);
        cursor = page.cursor;
        if leases.len() > arguments.limit || cursor.is_none() {
            break leases.len() > arguments.limit;
        }
    };
    leases.truncate(arguments.limit);
    arguments.read.show_age(&remote);
    match arguments.read.client.output {
        Format::Json => output::json(&leases)?,
        Format::Table => output::leases(&leases)?,
    }
    if more {
        message!("more leases exist: raise --limit to show them");
    }
    Ok(())
}

async fn watch(prefix: &str, after: Option<EventId>, client: &ClientArguments) -> Result<(), Failure> {
    let remote = client.remote()?;
    if let Some(after) = after
        && let Ok(cluster) = remote.cluster().await
        && cluster.applied < after.index
    {
        let (node, applied) = (cluster.node, cluster.applied);
        let detail = format!("node {node} has applied index {applied}: the watch waits for events after {after}");
        match client.output {
            Format::Table => message!("{detail}"),
            Format::Json => message!("{}", json!({"code": "waiting", "detail": detail})),
        }
    }
    let mut watch = remote.watch(prefix, after);
    loop {
        match watch.next().await {
            Ok(event) => show_event(&event, client.output)?,
            // A watch must survive failures of the cluster, so it retries without a limit.
            Err(CallError::Unavailable(why)) => {
                let _ = Failure::Unavailable(format!("{why}; retrying")).report(client.output);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn show_event(event: &Event, format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => output::json(event),
        Format::Table => {
            let position = EventId { index: event.index, part: Some(event.part) }.to_string();
            output::line(&format!("{position:<8}  {}", output::transition(event)))
        }
    }
}

async fn queue(name: &LeaseName, read: &ReadArguments) -> Result<(), Failure> {
    let remote = read.remote()?;
    let queue = remote.queue(name).await?;
    read.show_age(&remote);
    if read.client.output == Format::Json {
        return output::json(&queue);
    }
    output::table(&["PLACE", "HOLDER", "WAITED", "GIVES UP IN", "SINCE"], queue.waiters.iter().map(waiter_row))
}

fn waiter_row(waiter: &api::Waiter) -> Vec<String> {
    let (waited, left) = (duration::show(waiter.waited_ms), duration::show(waiter.expires_in_ms));
    vec![waiter.place.to_string(), waiter.holder.clone(), waited, left, waiter.since_at.to_string()]
}

async fn history(name: &LeaseName, read: &ReadArguments) -> Result<(), Failure> {
    let remote = read.remote()?;
    let history = remote.history(name).await?;
    read.show_age(&remote);
    match read.client.output {
        Format::Json => output::json(&history),
        Format::Table => history.transitions.iter().try_for_each(|event| output::line(&output::transition(event))),
    }
}

async fn explain(name: &LeaseName, holder: Option<&HolderId>, read: &ReadArguments) -> Result<(), Failure> {
    let remote = read.remote()?;
    let explanation = remote.explain(name, holder).await?;
    read.show_age(&remote);
    match read.client.output {
        Format::Json => output::json(&explanation),
        Format::Table => output::line(&format!("{name}: {}", output::one_line(&explanation.summary))),
    }
}

async fn revoke(name: &LeaseName, reason: &str, client: &ClientArguments) -> Result<(), Failure> {
    let answer = client.remote()?.revoke(name, reason).await?;
    match client.output {
        Format::Json => output::json(&answer),
        Format::Table if answer.revoked == 0 => {
            message!("{name} had no holder: nothing changed");
            Ok(())
        }
        Format::Table => {
            message!(
                "revoked {name} from {}",
                if answer.revoked == 1 { "its holder".to_owned() } else { format!("{} holders", answer.revoked) }
            );
            Ok(())
        }
    }
}

fn as_ms(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_of_a_waiter_has_the_order_of_its_headings() {
        let json = r#"{"place":3,"holder":"h","since_at":"2026-01-31T12:00:00.000Z","waited_ms":20,
            "expires_in_ms":30000}"#;
        let waiter = serde_json::from_str(json).expect("a waiter");
        assert_eq!(waiter_row(&waiter), ["3", "h", "20ms", "30s", "2026-01-31T12:00:00.000Z"]);
    }
}
