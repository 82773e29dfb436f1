//! `tenure cluster`.

use clap::Subcommand;

use super::failure::Failure;
use super::output::{self, Format};
use super::{ClientArguments, duration};
use crate::api::{Cluster, DiskState, MemberInfo, Transferred};
use crate::types::NodeId;

#[derive(Subcommand)]
pub enum Command {
    /// Show the nodes, the leader and the replication lag; exit code 4 without a quorum
    Status {
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Transfer the leadership to another voter
    Transfer {
        /// The voter that becomes the leader; by default the one that lacks the fewest log entries
        #[arg(long, value_name = "ID")]
        to: Option<NodeId>,
        #[command(flatten)]
        client: ClientArguments,
    },
}

impl Command {
    /// The output format that the user asked for.
    pub fn output(&self) -> Format {
        let (Command::Status { client } | Command::Transfer { client, .. }) = self;
        client.output
    }
}

pub async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Status { client } => status(client).await,
        Command::Transfer { to, client } => transfer(to, client).await,
    }
}

async fn transfer(to: Option<NodeId>, client: ClientArguments) -> Result<(), Failure> {
    let transferred = client.remote()?.transfer_leadership(to).await?;
    check_target(to, &transferred)?;
    match client.output {
        Format::Json => output::json(&transferred),
        Format::Table if transferred.from == transferred.leader => {
            output::print(&format!("node {} was the leader already\n", transferred.leader))
        }
        Format::Table => {
            output::print(&format!("node {} leads now, before: node {}\n", transferred.leader, transferred.from))
        }
    }
}

/// Fails if a node other than `to` became the leader.
fn check_target(to: Option<NodeId>, transferred: &Transferred) -> Result<(), Failure> {
    match to {
        Some(to) if to != transferred.leader => {
            let leader = transferred.leader;
            Err(Failure::Other(anyhow::anyhow!("node {to} did not take the leadership: node {leader} leads now")))
        }
        _ => Ok(()),
    }
}

async fn status(client: ClientArguments) -> Result<(), Failure> {
    let cluster = client.remote()?.cluster().await?;
    let printed = match client.output {
        Format::Json => output::json(&cluster),
        Format::Table => show(&cluster),
    };
    if cluster.quorum {
        return printed;
    }
    let why = "it reaches no leader with a majority, so no lease changes";
    Err(Failure::Unavailable(format!("no quorum, as seen by node {}: {why}", cluster.node)))
}

fn show(cluster: &Cluster) -> Result<(), Failure> {
    let leader = cluster.leader.map_or("no leader".to_owned(), |leader| format!("node {leader} leads"));
    message!(
        "cluster {}: {leader}, term {}, applied {}, feature level {} (as seen by node {})",
        cluster.cluster_id,
        cluster.term,
        cluster.applied,
        cluster.feature_level,
        cluster.node
    );
    show_members(&cluster.members)
}

pub fn show_members(members: &[MemberInfo]) -> Result<(), Failure> {
    let columns = ["NODE", "ROLE", "STATE", "HTTP", "PEER", "LAG", "LAST CONTACT", "DISK", "CERTIFICATE EXPIRES"];
    output::table(&columns, members.iter().map(row))
}

fn row(member: &MemberInfo) -> Vec<String> {
    vec![
        member.id.to_string(),
        member.role.as_str().to_owned(),
        member.state.as_str().to_owned(),
        member.http.clone(),
        member.peer.clone(),
        member.lag.map_or("-".to_owned(), |lag| lag.to_string()),
        member.last_contact_ms.map_or("-".to_owned(), |ms| format!("{} ago", duration::show(ms))),
        member.disk.map_or("-", DiskState::as_str).to_owned(),
        member.certificate_expires_at.map_or("-".to_owned(), |at| at.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_of_a_member_has_the_order_of_its_headings() {
        let json = r#"{"id":3,"role":"follower","state":"lagging","http":"a:1","peer":"b:2","lag":7,
            "last_contact_ms":20,"certificate_expires_at":"2026-01-31T12:00:00.000Z","disk":"stalled"}"#;
        let member: MemberInfo = serde_json::from_str(json).expect("a member");
        let expected = ["3", "follower", "lagging", "a:1", "b:2", "7", "20ms ago", "stalled"];
        assert_eq!(row(&member)[..8], expected);
        assert_eq!(row(&member)[8..], ["2026-01-31T12:00:00.000Z"]);
        let unknown =
            MemberInfo { lag: None, last_contact_ms: None, certificate_expires_at: None, disk: None, ..member };
        assert_eq!(row(&unknown)[5..], ["-"; 4]);
    }

    #[test]
    fn leadership_of_another_node_is_a_failure() {
        let transferred = Transferred { from: 1, leader: 2 };
        assert!(check_target(None, &transferred).is_ok());
        assert!(check_target(Some(2), &transferred).is_ok());
        let failure = check_target(Some(3), &transferred).expect_err("node 2 leads");
        assert_eq!(failure.message(), "node 3 did not take the leadership: node 2 leads now");
    }
}
