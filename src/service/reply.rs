//! Conversion of the node's answers to API results or problems. `now` is the cluster time of the answer.

use super::problem::{lost, problem, refusal, unexpected};
use super::show;
use crate::api::{self, Code, Problem};
use crate::lease::{ListCursor, Outcome};
use crate::node::Answer;
use crate::types::{ClusterMs, LeaseName};

/// Converts the answer to an acquire.
pub(crate) fn granted(answer: Answer, now: ClusterMs) -> Result<api::Lease, Box<Problem>> {
    match answer {
        Answer::Outcome(Outcome::Held { lease, .. }) => Ok(show::lease(lease, now)),
        answer => Err(refused(answer)),
    }
}

/// Converts the answer to a renewal of one lease.
pub(crate) fn renewed_one(answer: Answer, now: ClusterMs) -> Result<api::Lease, Box<Problem>> {
    let results = match answer {
        Answer::Outcome(Outcome::Renewed(results)) => results,
        answer => return Err(refused(answer)),
    };
    match <[_; 1]>::try_from(results) {
        Ok([Ok(lease)]) => Ok(show::lease(lease, now)),
        Ok([Err(loss)]) => Err(Box::new(lost(loss))),
        Err(results) => Err(unexpected(&results)),
    }
}

/// Converts the answer to a batch renewal. `names` are the names of its leases in order.
pub(crate) fn renewed(names: Vec<LeaseName>, answer: Answer, now: ClusterMs) -> Result<api::Renewed, Box<Problem>> {
    let results = match answer {
        Answer::Outcome(Outcome::Renewed(results)) if results.len() == names.len() => results,
        answer => return Err(refused(answer)),
    };
    let results = names.into_iter().zip(results).map(|(name, result)| match result {
        Ok(lease) => api::RenewResult { name: name.into(), lease: Some(show::renewal(lease, now)), problem: None },
        Err(loss) => api::RenewResult { name: name.into(), lease: None, problem: Some(lost(loss)) },
    });
    Ok(api::Renewed { results: results.collect() })
}

pub(crate) fn released(answer: Answer) -> Result<api::Released, Box<Problem>> {
    match answer {
        Answer::Outcome(Outcome::Released(released)) => Ok(api::Released { released }),
        answer => Err(refused(answer)),
    }
}

pub(crate) fn handed_over(answer: Answer, now: ClusterMs) -> Result<api::Lease, Box<Problem>> {
    match answer {
        Answer::Outcome(Outcome::HandedOver(lease)) => Ok(show::lease(lease, now)),
        answer => Err(refused(answer)),
    }
}

pub(crate) fn revoked(answer: Answer) -> Result<api::Revoked, Box<Problem>> {
    match answer {
        Answer::Outcome(Outcome::Revoked(revoked)) => Ok(api::Revoked { revoked }),
        answer => Err(refused(answer)),
    }
}

/// Converts the answer to a read of one lease.
pub(crate) fn found(name: &LeaseName, answer: Answer, now: ClusterMs) -> Result<api::Lease, Box<Problem>> {
    let (leases, next) = match answer {
        Answer::Lease(leases) => (leases, None),
        Answer::List { leases, next } => (leases, next),
        answer => return Err(unexpected(&answer)),
    };
    let found = show::one_name(leases, now).ok_or_else(|| {
        Box::new(problem(Code::NotFound, format!("no lease {:?} exists, and no ended one is kept", name.as_str())))
    })?;
    Ok(api::Lease { holders_cursor: next.as_ref().map(show::write_cursor), ..found })
}

pub(crate) fn history(name: LeaseName, answer: Answer) -> Result<api::History, Box<Problem>> {
    match answer {
        Answer::History(transitions) => {
            Ok(api::History { name: name.into(), transitions: transitions.iter().map(show::event).collect() })
        }
        answer => Err(unexpected(&answer)),
    }
}

pub(crate) fn queue(name: LeaseName, answer: Answer, now: ClusterMs) -> Result<api::Queue, Box<Problem>> {
    match answer {
        Answer::Queue(waiters) => Ok(show::queue(name, waiters, None, now)),
        Answer::QueuePart { waiters, total } => Ok(show::queue(name, waiters, Some(total), now)),
        answer => Err(unexpected(&answer)),
    }
}

pub(crate) fn explained(name: LeaseName, answer: Answer, now: ClusterMs) -> Result<api::Explanation, Box<Problem>> {
    match answer {
        Answer::Explain(explanation) => Ok(show::explanation(name, explanation, None, now)),
        Answer::ExplainPart { explanation, holders } => Ok(show::explanation(name, explanation, Some(holders), now)),
        answer => Err(unexpected(&answer)),
    }
}

/// Converts one page of a list. Also returns the start of the next page.
pub(crate) fn listed(answer: Answer, now: ClusterMs) -> Result<(Vec<api::Lease>, Option<ListCursor>), Box<Problem>> {
    match answer {
        Answer::List { leases, next } => Ok((leases.into_iter().map(|lease| show::lease(lease, now)).collect(), next)),
        answer => Err(unexpected(&answer)),
    }
}

/// Converts any answer to a change except success.
fn refused(answer: Answer) -> Box<Problem> {
    match answer {
        Answer::Outcome(Outcome::Refused(refused)) => refusal(refused),
        Answer::WaitTimeout => Box::new(problem(Code::WaitTimeout, "the lease was not granted within wait_ms")),
        Answer::WaitAbandoned => {
            let detail = "the position in the queue was lost; acquire again for a new one";
            Box::new(problem(Code::WaitAbandoned, detail))
        }
        answer => unexpected(&answer),
    }
}
