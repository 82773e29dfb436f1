//! The keeper task of a manager: it renews the held leases, detects losses and runs background commands.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;

use super::hold::{Due, Hold};
use super::operations;
use super::shared::{KeeperCommand, RenewalSchedule, Shared};
use super::{Loss, RetryBudget};
use crate::api::{MAX_RENEW_ITEMS, RenewBatch, RenewItem, RenewResult};
use crate::time;
use crate::token::FencingToken;
use crate::types::HolderId;

/// Longest time between two checks while a lease is held. Timers stop while the machine is suspended and deadlines do
/// not, so the keeper must read the clock often.
const LOOK: Duration = Duration::from_millis(100);
/// Shortest timeout of a renewal, for very short ttls.
const LEAST_PATIENCE: Duration = Duration::from_millis(50);

type Work = FuturesUnordered<BoxFuture<'static, ()>>;

/// Runs until `stop`. Then it releases the held leases within the operation timeout.
pub(super) async fn keep(shared: Arc<Shared>, stop: CancellationToken) {
    let mut work = Work::new();
    let mut meant = shared.now();
    loop {
        let now = shared.now();
        let late = now.saturating_sub(meant);
        for order in shared.take_orders() {
            work.push(Box::pin(carry_out(shared.clone(), order)));
        }
        let next = look_after(&shared, now, late, &mut work);
        let pause = next.map_or(LOOK, |next| next.saturating_sub(now).min(LOOK));
        // Without a held lease there is no planned check, so the next one cannot be late.
        meant = next.map_or(Duration::MAX, |_| now + pause);
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = shared.wake.notified() => {}
            Some(()) = work.next(), if !work.is_empty() => {}
            () = time::sleep(pause), if next.is_some() => {}
        }
    }
    for hold in shared.all_held() {
        shared.order(KeeperCommand::Release { hold, permit: None });
    }
    for order in shared.take_orders() {
        work.push(Box::pin(carry_out(shared.clone(), order)));
    }
    let _ = tokio::time::timeout(shared.options.operation_timeout, work.collect::<()>()).await;
    // A lease that was not released expires at the cluster. This process must treat it as not held from now on.
    for hold in shared.all_held() {
        hold.give_up();
    }
}

/// Checks the due leases and sends the renewals, batched per holder. Returns the time of the next check; `None` if no
/// lease is held.
fn look_after(shared: &Arc<Shared>, now: Duration, late: Duration, work: &mut Work) -> Option<Duration> {
    let mut due: BTreeSet<HolderId> = BTreeSet::new();
    let mut renewals = Vec::new();
    let mut schedule = shared.schedule();
    while let Some(hold) = schedule.next_due(now) {
        match hold.look(now, late) {
            Due::Nothing => schedule.forget_if_ended(&hold),
            Due::At(at) => schedule.insert(at, &hold),
            Due::Renewal { token, ttl } => {
                due.insert(hold.holder.clone());
                watch_deadline(&mut schedule, &hold, now, late);
                renewals.push((hold, token, ttl));
            }
        }
    }
    if !due.is_empty() {
        let along = schedule.held().filter(|hold| due.contains(&hold.holder) && hold.could_renew(now));
        let along: Vec<Arc<Hold>> = along.cloned().collect();
        for hold in along {
            hold.renew_now(now);
            if let Due::Renewal { token, ttl } = hold.look(now, late) {
                watch_deadline(&mut schedule, &hold, now, late);
                renewals.push((hold, token, ttl));
            }
        }
    }
    let next = schedule.first();
    drop(schedule);
    for holder in due {
        let (mine, rest) = renewals.into_iter().partition(|(hold, ..)| hold.holder == holder);
        renewals = rest;
        send(shared, holder, mine, work);
    }
    next
}

/// Schedules a check at the deadline of a lease during its renewal.
fn watch_deadline(schedule: &mut RenewalSchedule, hold: &Arc<Hold>, now: Duration, late: Duration) {
    if let Due::At(at) = hold.look(now, late) {
        schedule.insert(at, hold);
    }
}

type Renewal = (Arc<Hold>, FencingToken, Option<Duration>);

fn send(shared: &Arc<Shared>, holder: HolderId, mut renewals: Vec<Renewal>, work: &mut Work) {
    while !renewals.is_empty() {
        let rest = renewals.split_off(renewals.len().min(MAX_RENEW_ITEMS));
        work.push(Box::pin(renew(shared.clone(), holder.clone(), renewals)));
        renewals = rest;
    }
}

async fn renew(shared: Arc<Shared>, holder: HolderId, renewals: Vec<Renewal>) {
    let sent = shared.now();
    let item = |(hold, token, _): &Renewal| RenewItem { name: hold.name.clone(), token: *token, ttl_ms: None };
    let batch = RenewBatch { holder, leases: renewals.iter().map(item).collect() };
    let shortest = renewals.iter().filter_map(|(_, _, ttl)| *ttl).min();
    let total = shortest.map_or(shared.options.operation_timeout, |ttl| ttl / 3);
    let total = total.clamp(LEAST_PATIENCE, shared.options.operation_timeout.max(LEAST_PATIENCE));
    let answer = shared.coordinator.renew(batch, RetryBudget::within(total)).await;
    let now = shared.now();
    match answer {
        Ok(renewed) if renewed.results.len() == renewals.len() => {
            for ((hold, token, _), result) in renewals.iter().zip(renewed.results) {
                settle(hold, *token, result, sent, now);
            }
        }
        Ok(_) => renewals.iter().for_each(|(hold, token, _)| hold.renewal_failed(*token, now)),
        Err(error) => {
            tracing::debug!(%error, leases = renewals.len(), "a renewal failed");
            renewals.iter().for_each(|(hold, token, _)| hold.renewal_failed(*token, now));
        }
    }
    shared.look_at(renewals.into_iter().map(|(hold, ..)| hold));
}

fn settle(hold: &Hold, token: FencingToken, result: RenewResult, sent: Duration, now: Duration) {
    match (result.lease, result.problem.and_then(|problem| problem.why)) {
        (Some(lease), _) => hold.renewed(token, lease.ttl_ms.map(Duration::from_millis), sent, now),
        (None, Some(why)) => hold.lose(token, Loss::from(why)),
        (None, None) => hold.renewal_failed(token, now),
    }
}

async fn carry_out(shared: Arc<Shared>, order: KeeperCommand) {
    match order {
        KeeperCommand::Release { hold, permit } => {
            if let Err(error) = operations::release(&shared, &hold).await {
                tracing::warn!(lease = %hold.name, %error, "the release of a lease failed; the lease expires by its ttl");
            }
            drop(permit);
        }
        KeeperCommand::Settle { hold, claim } => operations::resolve_ambiguous(&shared, &hold, claim).await,
        KeeperCommand::GiveBack { hold, token } => {
            // The lease expires without this release. A success only shortens the wait of other holders.
            let _ = operations::send_release(&shared, &hold, token).await;
        }
    }
}
