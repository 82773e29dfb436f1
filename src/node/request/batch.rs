//! Batch renewal: one request becomes as many commands as needed.

use futures_util::future::join_all;

use crate::lease::{Command, HolderLease, Lost, Outcome, Renewal};
use crate::node::NodeCore;
use crate::node::leader::LeaderTerm;
use crate::node::request::propose::{AppliedOutcome, MAX_COMMAND_BYTES, ProposeError, renewal_weight};
use crate::node::request::route::owned;
use crate::node::request::{Answer, Answered};
use crate::peer::Transport;
use crate::storage::{Position, Storage};
use crate::types::{AccessName, HolderId, Metadata};

impl<S: Storage, T: Transport> NodeCore<S, T> {
    /// Proposes the renewals in parts, so that each part fits into a log entry.
    pub(in crate::node) async fn renew(
        &self,
        leader_term: &LeaderTerm,
        principal: Option<AccessName>,
        holder: HolderId,
        leases: Vec<Renewal>,
    ) -> Result<Answered, ProposeError> {
        let parts = split(leases).into_iter().map(|leases| {
            let command = Command::Renew { holder: holder.clone(), leases };
            self.propose(leader_term, owned(principal.clone(), command))
        });
        merge(join_all(parts).await)
    }
}

/// Splits renewals into commands of at most half of [`MAX_COMMAND_BYTES`].
fn split(leases: Vec<Renewal>) -> Vec<Vec<Renewal>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for lease in leases {
        bytes += renewal_weight(&lease);
        if bytes > MAX_COMMAND_BYTES / 2 {
            parts.push(Vec::new());
            bytes = renewal_weight(&lease);
        }
        parts.last_mut().expect("parts has at least one element").push(lease);
    }
    parts
}

/// Merges the parts into one outcome. The batch is certainly not done only if every part is certainly not done.
fn merge(parts: Vec<Result<AppliedOutcome, ProposeError>>) -> Result<Answered, ProposeError> {
    let mut renewed = Vec::new();
    // A lease of one part can end before the entry of another one: the first entry hides no later change.
    let mut first: Option<Position> = None;
    let mut applied = 0;
    let mut failure = None;
    for part in parts {
        match part {
            Ok(AppliedOutcome { outcome: Outcome::Renewed(part), position }) => {
                applied += 1;
                first = Some(first.map_or(position, |first| first.min(position)));
                renewed.extend(part);
            }
            Ok(other) => return Ok(other.answered()),
            Err(unknown @ ProposeError::Unknown(_)) => failure = Some(unknown),
            Err(certain) => failure = failure.or(Some(certain)),
        }
    }
    match failure {
        None => Ok((Answer::Outcome(Outcome::Renewed(without_metadata(renewed))), first)),
        Some(certain) if applied > 0 && !matches!(certain, ProposeError::Unknown(_)) => {
            let why = "only a part of the batch was renewed; send the batch again".to_owned();
            Err(ProposeError::Unknown(why))
        }
        Some(failure) => Err(failure),
    }
}

/// Removes the metadata from the answer to a batch. The metadata of 10,000 leases takes 45 MB, and the holder knows it.
fn without_metadata(mut renewed: Vec<Result<HolderLease, Lost>>) -> Vec<Result<HolderLease, Lost>> {
    if renewed.len() > 1 {
        renewed.iter_mut().flatten().for_each(|lease| lease.metadata = Metadata::default());
    }
    renewed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::RequestError;

    fn applied() -> Result<AppliedOutcome, ProposeError> {
        Ok(AppliedOutcome { outcome: Outcome::Renewed(Vec::new()), position: Position::default() })
    }

    #[test]
    fn batch_is_not_done_only_if_no_part_may_be_done() {
        let busy = || Err(ProposeError::Refused(RequestError::Busy));
        let unknown = || Err(ProposeError::Unknown("why".to_owned()));
        assert!(merge(vec![applied(), applied()]).is_ok());
        assert_eq!(merge(vec![busy(), Err(ProposeError::NotLeader)]), Err(ProposeError::Refused(RequestError::Busy)));
        for parts in [
            vec![applied(), busy()],
            vec![busy(), applied()],
            vec![Err(ProposeError::NotLeader), applied()],
            vec![unknown(), busy()],
            vec![busy(), unknown()],
            vec![Err(ProposeError::NotLeader), unknown()],
            vec![busy(), unknown(), applied()],
        ] {
            let merged = merge(parts.clone());
            assert!(matches!(merged, Err(ProposeError::Unknown(_))), "{parts:?}: {merged:?}");
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod cluster_tests {
    use std::time::Duration;

    use super::*;
    use crate::access::Caller;
    use crate::config::{LeaseSettings, RaftTimings};
    use crate::lease::{Acquire, WaiterId};
    use crate::node::{Forward, Request};
    use crate::testing::{Cluster, TestNode};
    use crate::types::{LeaseName, Metadata, Ttl};

    /// One less than the capacity of the queue.
    const ALMOST_ALL: usize = 32_768 - 1;

    fn holder() -> HolderId {
        HolderId::new("holder").expect("valid")
    }

    async fn acquire(node: &TestNode, name: LeaseName) -> Renewal {
        let acquire = Acquire {
            name: name.clone(),
            holder: holder(),
            ttl: Ttl::millis(60_000).expect("valid"),
            wait_ms: None,
            lock_delay_ms: 0,
            limit: 1,
            metadata: Metadata::default(),
        };
        match node.request(Request::Acquire(acquire), Forward::Once).await.expect("answered").answer {
            Answer::Outcome(Outcome::Held { lease, .. }) => Renewal { name, token: lease.token, ttl: None },
            other => panic!("{other:?}"),
        }
    }

    /// Leaves room for one urgent command in the leader's queue. The leader is isolated, so its entries do not commit.
    async fn fill_queue(node: &TestNode) {
        let waiter = WaiterId { name: LeaseName::new("none").expect("valid"), holder: holder() };
        let class = crate::node::request::propose::Class::Urgent;
        while node.inner.requests.proposer.waiting(class) < ALMOST_ALL {
            let leader_term = node.inner.requests.clock.leader_term().expect("it leads");
            for _ in node.inner.requests.proposer.waiting(class)..ALMOST_ALL {
                let (proposer, waiters) = (node.inner.requests.proposer.clone(), vec![waiter.clone()]);
                tokio::spawn(async move { proposer.propose(leader_term.term, Command::KeepWaiting { waiters }).await });
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn batch_with_an_applied_part_is_never_refused() {
        let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
        let leader = cluster.leader().await;
        let node = cluster.node(leader).clone();
        let mut leases = Vec::new();
        for number in 0..300 {
            let name = LeaseName::new(format!("{number:0>200}")).expect("valid");
            leases.push(acquire(&node, name).await);
        }
        let renewals = |node: &TestNode| {
            let name = leases[0].name.clone();
            node.inner.raft.replica().read(|state| state.machine.get(&name).expect("held").held[0].renewals)
        };
        assert!(split(leases.clone()).len() > 1, "the batch needs several commands");
        cluster.board.isolate(leader, cluster.ids());
        fill_queue(&node).await;
        let batch = Request::Change(Command::Renew { holder: holder(), leases: leases.clone() });
        let (inner, sent) = (node.inner.clone(), batch);
        let answer = tokio::spawn(async move { inner.execute_as_leader(&Caller::Program, sent).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        cluster.board.heal();
        let answer = answer.await.expect("the request does not panic");
        while renewals(&node) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(matches!(answer, Err(ProposeError::Unknown(_))), "a part was applied: {answer:?}");
        cluster.shutdown().await;
    }

    #[tokio::test(start_paused = true)]
    async fn results_of_a_split_batch_keep_its_order() {
        let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
        cluster.leader().await;
        let node = cluster.node(1);
        let mut leases = Vec::new();
        for number in 0..300 {
            let name = LeaseName::new(format!("{number:0>200}")).expect("valid");
            leases.push(acquire(node, name).await);
        }
        leases.iter_mut().step_by(7).for_each(|wrong| wrong.token.index += 1);
        assert!(split(leases.clone()).len() > 1, "the batch needs several commands");
        let batch = Request::Change(Command::Renew { holder: holder(), leases: leases.clone() });
        let renewed = match node.request(batch, Forward::Once).await.expect("answered").answer {
            Answer::Outcome(Outcome::Renewed(renewed)) => renewed,
            other => panic!("{other:?}"),
        };
        assert_eq!(renewed.len(), leases.len());
        for (at, (asked, renewed)) in leases.into_iter().zip(renewed).enumerate() {
            let renewed = renewed.ok().map(|lease| (lease.name, lease.token));
            let expected = (at % 7 != 0).then_some((asked.name, asked.token));
            assert_eq!(renewed, expected, "result {at}");
        }
        cluster.shutdown().await;
    }
}
