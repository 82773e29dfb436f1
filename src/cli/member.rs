//! `tenure member`.

use clap::{Args, Subcommand};
use tokio::time::Instant;

use super::cluster::show_members;
use super::failure::Failure;
use super::output::{self, Format};
use super::{ClientArguments, duration};
use crate::api::{Code, Members};
use crate::client::{CallError, Remote};
use crate::types::{MemberChange, NodeId};
use std::time::Duration;

/// Pause before a replacement is tried again while the new node catches up.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

#[derive(Subcommand)]
pub enum Command {
    /// Show the members
    List {
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Add a node; start it with `tenure serve --join`, and it becomes a voter when it has caught up
    Add {
        /// An id that no node of this cluster ever had
        id: NodeId,
        #[command(flatten)]
        addresses: AddressArguments,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Make a member that has caught up a voter; members ask for it themselves
    Promote {
        id: NodeId,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Remove a member for good; its id can never be used again
    Remove {
        id: NodeId,
        /// Remove it even if no majority of the other voters is healthy: the cluster then stops until a majority of
        /// them returns
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Replace a voter by another member, in one step, when that one has caught up
    Replace {
        /// The voter to remove
        old: NodeId,
        /// The id of the node that takes its place
        #[arg(long, value_name = "ID")]
        with: NodeId,
        /// How long the new node may take to catch up
        #[arg(long, default_value = "10m", value_parser = duration::parse, value_name = "DURATION")]
        within: Duration,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Change the addresses of a member
    Update {
        id: NodeId,
        #[command(flatten)]
        addresses: AddressArguments,
        #[command(flatten)]
        client: ClientArguments,
    },
}

#[derive(Args)]
pub struct AddressArguments {
    /// Address of the public listener, as clients reach it
    #[arg(long, value_name = "HOST:PORT")]
    http: String,
    /// Address of the peer listener, as other nodes reach it
    #[arg(long, value_name = "HOST:PORT")]
    peer: String,
}

impl Command {
    fn client(&self) -> &ClientArguments {
        match self {
            Command::List { client }
            | Command::Add { client, .. }
            | Command::Promote { client, .. }
            | Command::Remove { client, .. }
            | Command::Replace { client, .. }
            | Command::Update { client, .. } => client,
        }
    }

    /// The output format that the user asked for.
    pub fn output(&self) -> Format {
        self.client().output
    }
}

pub async fn run(command: Command) -> Result<(), Failure> {
    let (remote, output) = (command.client().remote()?, command.output());
    let members = match command {
        Command::List { .. } => remote.cluster().await?.members,
        Command::Add { id, addresses: AddressArguments { http, peer }, .. } => {
            let added = remote.change_members(&MemberChange::Add { id, http, peer }).await?;
            message!("node {id} is a member: start it with `tenure serve --config FILE --node {id} --join`");
            added.members
        }
        Command::Promote { id, .. } => remote.change_members(&MemberChange::Promote { id }).await?.members,
        Command::Remove { id, force, .. } => remote.change_members(&MemberChange::Remove { id, force }).await?.members,
        Command::Replace { old, with, within, .. } => {
            let before = match output {
                Format::Table => remote.cluster().await.ok(),
                Format::Json => None,
            };
            let replaced = replace(&remote, old, with, within, output).await?;
            let is_absent = before.is_some_and(|before| before.members.iter().all(|member| member.id != old));
            if is_absent {
                message!("node {old} was removed before, and node {with} is a voter: nothing has changed");
            }
            replaced.members
        }
        Command::Update { id, addresses: AddressArguments { http, peer }, .. } => {
            remote.change_members(&MemberChange::Update { id, http, peer }).await?.members
        }
    };
    match output {
        Format::Json => output::json(&members),
        Format::Table => show_members(&members),
    }
}

/// Replaces a voter. Tries again while the new node catches up. With JSON, stderr has only the problem of a failure.
async fn replace(
    remote: &Remote,
    old: NodeId,
    new: NodeId,
    within: Duration,
    output: Format,
) -> Result<Members, CallError> {
    let began = Instant::now();
    let mut reason = String::new();
    loop {
        let replaced = remote.change_members(&MemberChange::Replace { old, new }).await;
        let again = match &replaced {
            Err(CallError::Refused(problem)) => {
                matches!(problem.code, Code::MemberLags | Code::ChangeInProgress).then_some(&problem.detail)
            }
            _ => None,
        };
        let Some(detail) = again.filter(|_| began.elapsed() + RETRY_PAUSE < within) else { return replaced };
        if *detail != reason && output == Format::Table {
            message!("waiting: {detail}");
            reason.clone_from(detail);
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::http::StatusCode;
    use clap::Parser;
    use tokio::net::TcpListener;

    use super::*;
    use crate::api::Problem;

    #[derive(Parser)]
    struct CommandLine {
        #[command(subcommand)]
        command: Command,
    }

    #[test]
    fn replacement_waits_10_minutes_by_default() {
        let line = CommandLine::try_parse_from(["member", "replace", "1", "--with", "4"]).expect("it is complete");
        let Command::Replace { old, with, within, .. } = line.command else { panic!("another command") };
        assert_eq!((old, with, within), (1, 4, Duration::from_secs(600)));
    }

    /// A leader that refuses each change, with these codes in turn and each time with another detail. Also returns the
    /// number of requests.
    async fn refusing(codes: &'static [Code]) -> (Remote, Arc<AtomicUsize>) {
        let (address, asked) = refusing_at_address(codes).await;
        (Remote::new(address.parse().expect("an endpoint")), asked)
    }

    async fn refusing_at_address(codes: &'static [Code]) -> (String, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let refuse = {
            let asked = Arc::clone(&asked);
            async move || {
                let number = asked.fetch_add(1, Ordering::SeqCst);
                let problem = Problem::new(codes[number % codes.len()], format!("refusal {number}"));
                (StatusCode::CONFLICT, serde_json::to_string(&problem).expect("a problem is JSON"))
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the listener is bound").to_string();
        let router: Router = Router::new().fallback(refuse);
        tokio::spawn(async move { axum::serve(listener, router).await });
        (address, asked)
    }

    /// Only the table says that an earlier attempt has replaced the node.
    #[tokio::test]
    async fn replacement_with_json_sends_no_other_request() {
        let (address, asked) = refusing_at_address(&[Code::MemberRefused]).await;
        let line = ["member", "replace", "1", "--with", "4", "-o", "json", "--endpoints", &address];
        let command = CommandLine::try_parse_from(line).expect("it is complete").command;
        run(command).await.expect_err("it is refused");
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn replacement_ends_at_its_time_limit() {
        const WITHIN: Duration = Duration::from_millis(1_500);
        let (remote, asked) = refusing(&[Code::MemberLags, Code::ChangeInProgress, Code::MemberLags]).await;
        let replaced = tokio::time::timeout(20 * WITHIN, replace(&remote, 1, 4, WITHIN, Format::Table)).await;
        let refused = replaced.expect("the limit is for all attempts together").expect_err("no attempt succeeds");
        let asked = asked.load(Ordering::SeqCst);
        // Three pauses are as long as the limit.
        assert!((1..=3).contains(&asked), "{asked} attempts");
        let last = format!("refusal {}", asked - 1);
        assert!(matches!(&refused, CallError::Refused(problem) if problem.detail == last), "{last}: {refused:?}");
    }

    #[tokio::test]
    async fn replacement_waits_for_another_change() {
        let (remote, asked) = refusing(&[Code::ChangeInProgress, Code::MemberRefused]).await;
        let replaced = replace(&remote, 1, 4, Duration::from_secs(600), Format::Table).await;
        let refused = replaced.expect_err("the second attempt is refused");
        assert!(matches!(&refused, CallError::Refused(problem) if problem.code == Code::MemberRefused), "{refused:?}");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn refusal_that_no_wait_mends_ends_a_replacement_at_once() {
        for codes in [&[Code::MemberRefused], &[Code::NotFound]] {
            let (remote, asked) = refusing(codes).await;
            let refused = replace(&remote, 1, 4, Duration::from_secs(600), Format::Table).await.expect_err("refused");
            assert!(matches!(&refused, CallError::Refused(problem) if problem.code == codes[0]), "{refused:?}");
            assert_eq!(asked.load(Ordering::SeqCst), 1, "{codes:?}");
        }
    }
}
