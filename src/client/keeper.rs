//! The keeper task of a manager: it renews the held leases, detects losses and runs background commands.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio_util::sync::CancellationToken;

use super::hold::{Hold, KeeperAction};
use super::operations;
use super::shared::{KeeperCommand, ManagerInner, RenewalSchedule};
use super::{CallError, Loss, RetryBudget};
use crate::api::{MAX_BODY_BYTES, MAX_RENEW_ITEMS, RenewBatch, RenewItem, RenewResult};
use crate::time;
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName};

/// Longest time between two checks while a lease is held. Timers stop while the machine is suspended and deadlines do
/// not, so the keeper must read the clock often.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Shortest timeout of a renewal, for very short ttls.
const MIN_RENEWAL_TIMEOUT: Duration = Duration::from_millis(50);

/// Bytes of one lease in the body of a renewal, beside its name: field names, punctuation and the token.
const ITEM_BYTES: usize = 64;
/// Bytes of a renewal for its holder, with JSON escapes, and for the other fields.
const HEAD_BYTES: usize = 4096;

type Work = FuturesUnordered<BoxFuture<'static, ()>>;

/// Runs until `stop`. Then it releases the held leases. It renews them until their listeners have ended.
pub(super) async fn run(shared: Arc<ManagerInner>, stop: CancellationToken) {
    let mut work = Work::new();
    // A runtime that was shut down took its keeper along, and the renewals that were in flight.
    let held = shared.all_held();
    held.iter().for_each(|hold| hold.forget_renewal());
    shared.schedule_check(held);
    keep(&shared, &mut work, stop.cancelled()).await;
    let held = shared.all_held();
    let longest_drain = held.iter().map(|hold| hold.drain()).max().unwrap_or_default();
    for hold in held {
        shared.send_command(KeeperCommand::Release { hold, token: None, permit: None });
    }
    for command in shared.take_commands() {
        work.push(Box::pin(run_command(shared.clone(), command)));
    }
    let limit = longest_drain.saturating_add(shared.options.operation_timeout);
    let mut renewals = Work::new();
    let _ = tokio::time::timeout(limit, keep(&shared, &mut renewals, work.collect::<()>())).await;
    // A lease that was not released expires at the cluster. This process must treat it as not held from now on.
    for hold in shared.all_held() {
        hold.give_up();
    }
}

/// Renews the held leases and runs commands, in `work`, until `end`.
async fn keep(shared: &Arc<ManagerInner>, work: &mut Work, end: impl Future<Output = ()>) {
    let mut end = std::pin::pin!(end);
    let mut planned = shared.now();
    loop {
        let now = shared.now();
        let late = now.saturating_sub(planned);
        for command in shared.take_commands() {
            work.push(Box::pin(run_command(shared.clone(), command)));
        }
        let next = renew_due(shared, now, late, work);
        let pause = next.map_or(CHECK_INTERVAL, |next| next.saturating_sub(now).min(CHECK_INTERVAL));
        // Without a held lease there is no planned check, so the next one cannot be late.
        planned = next.map_or(Duration::MAX, |_| now + pause);
        tokio::select! {
            biased;
            () = &mut end => break,
            () = shared.wake.notified() => {}
            Some(()) = work.next(), if !work.is_empty() => {}
            () = time::sleep(pause), if next.is_some() => {}
        }
    }
}

/// Checks the due leases and sends the renewals, batched per holder. Returns the time of the next check; `None` if no
/// lease is held.
fn renew_due(shared: &Arc<ManagerInner>, now: Duration, late: Duration, work: &mut Work) -> Option<Duration> {
    let mut due: BTreeSet<HolderId> = BTreeSet::new();
    let (mut renewals, mut lost) = (Vec::new(), Vec::new());
    let next_due = || shared.schedule().next_due(now);
    while let Some(hold) = next_due() {
        // It calls the program's progress check, which may use the manager. So this task holds no lock meanwhile.
        let action = hold.next_action(now, late);
        let mut schedule = shared.schedule();
        match action {
            KeeperAction::Nothing => {
                schedule.forget_if_ended(&hold);
                lost.push(hold);
            }
            KeeperAction::CheckAt(at) => schedule.insert_unless_scheduled(at, &hold),
            KeeperAction::Renew { token, ttl } => {
                due.insert(hold.holder.clone());
                schedule_deadline_check(&mut schedule, &hold, token, now);
                renewals.push((hold, token, ttl));
            }
        }
    }
    if !due.is_empty() {
        let is_early = |hold: &&Arc<Hold>| due.contains(&hold.holder) && hold.can_renew_early(now);
        let early: Vec<Arc<Hold>> = shared.schedule().held().filter(is_early).cloned().collect();
        for hold in early {
            hold.renew_now(now);
            if let KeeperAction::Renew { token, ttl } = hold.next_action(now, late) {
                schedule_deadline_check(&mut shared.schedule(), &hold, token, now);
                renewals.push((hold, token, ttl));
            }
        }
    }
    let next = shared.schedule().first();
    lost.iter().for_each(|hold| shared.keep_unreleased(hold));
    for holder in due {
        let (mine, rest) = renewals.into_iter().partition(|(hold, ..)| hold.holder == holder);
        renewals = rest;
        send(shared, holder, mine, work);
    }
    next
}

/// Schedules a check at the deadline of a grant during its renewal. A later grant of the lease, which can begin at any time,
/// has a check of its own.
fn schedule_deadline_check(schedule: &mut RenewalSchedule, hold: &Arc<Hold>, token: FencingToken, now: Duration) {
    if let Some(at) = hold.check_during_renewal(token, now) {
        schedule.insert(at, hold);
    }
}

type DueRenewal = (Arc<Hold>, FencingToken, Option<Duration>);

fn send(shared: &Arc<ManagerInner>, holder: HolderId, mut renewals: Vec<DueRenewal>, work: &mut Work) {
    while !renewals.is_empty() {
        let rest = renewals.split_off(batch_len(renewals.iter().map(|(hold, ..)| &hold.name)));
        work.push(Box::pin(renew(shared.clone(), holder.clone(), renewals)));
        renewals = rest;
    }
}

/// The number of leases that fit into one request.
fn batch_len<'n>(names: impl Iterator<Item = &'n LeaseName>) -> usize {
    let mut bytes = HEAD_BYTES;
    let fits = |name: &&LeaseName| {
        bytes += name.as_str().len() + ITEM_BYTES;
        bytes <= MAX_BODY_BYTES
    };
    names.take(MAX_RENEW_ITEMS).take_while(fits).count()
}

/// Renews these leases. A panic counts as a failed renewal of each, and must not end the keeper.
async fn renew(shared: Arc<ManagerInner>, holder: HolderId, renewals: Vec<DueRenewal>) {
    if AssertUnwindSafe(ask_and_apply(&shared, holder, &renewals)).catch_unwind().await.is_err() {
        tracing::error!(leases = renewals.len(), "a renewal panicked");
        let now = shared.now();
        renewals.iter().for_each(|(hold, token, _)| hold.renewal_failed(*token, now));
    }
    shared.schedule_check(renewals.into_iter().map(|(hold, ..)| hold));
}

async fn ask_and_apply(shared: &ManagerInner, holder: HolderId, renewals: &[DueRenewal]) {
    let sent = shared.now();
    let item = |(hold, token, _): &DueRenewal| RenewItem::new(hold.name.clone(), *token);
    let batch = RenewBatch::new(holder, renewals.iter().map(item).collect());
    let shortest = renewals.iter().filter_map(|(_, _, ttl)| *ttl).min();
    let total = shortest.map_or(shared.options.operation_timeout, |ttl| ttl / 3);
    let total = total.clamp(MIN_RENEWAL_TIMEOUT, shared.options.operation_timeout.max(MIN_RENEWAL_TIMEOUT));
    let answer = shared.coordinator.renew(batch, RetryBudget::within(total)).await;
    let now = shared.now();
    for (hold, ..) in renewals {
        *hold.renewal_refusal() = match &answer {
            Err(CallError::Refused(problem)) => Some(problem.clone()),
            _ => None,
        };
    }
    match answer {
        Ok(renewed) if renewed.results.len() == renewals.len() => {
            for ((hold, token, _), result) in renewals.iter().zip(renewed.results) {
                apply_result(hold, *token, result, sent, now);
            }
        }
        Ok(_) => renewals.iter().for_each(|(hold, token, _)| hold.renewal_failed(*token, now)),
        Err(error) => {
            tracing::debug!(%error, leases = renewals.len(), "a renewal failed");
            renewals.iter().for_each(|(hold, token, _)| hold.renewal_failed(*token, now));
        }
    }
}

fn apply_result(hold: &Hold, token: FencingToken, result: RenewResult, sent: Duration, now: Duration) {
    match (result.lease, result.problem.and_then(|problem| problem.why)) {
        (Some(lease), _) => hold.renewed(token, lease.ttl_ms.as_millis().map(Duration::from_millis), sent, now),
        (None, Some(why)) => hold.renewal_refused(token, Loss::from(why), now),
        (None, None) => hold.renewal_failed(token, now),
    }
}

async fn run_command(shared: Arc<ManagerInner>, command: KeeperCommand) {
    let mut unfinished = UnfinishedCommand { shared: shared.clone(), command: Some(command) };
    if let Some(command) = &mut unfinished.command {
        // A panic must not end the keeper. The next attempt would panic again.
        if AssertUnwindSafe(carry_out(&shared, command)).catch_unwind().await.is_err() {
            tracing::error!(lease = %command.hold().name, "a background request of the lease manager panicked");
        }
    }
    unfinished.command = None;
}

async fn carry_out(shared: &Arc<ManagerInner>, command: &mut KeeperCommand) {
    match command {
        KeeperCommand::Release { hold, token, permit } => {
            match (operations::release(shared, hold, *token).await, *token) {
                (Err(error), _) => {
                    tracing::warn!(lease = %hold.name, %error, "the release failed; the lease expires by its ttl");
                }
                // The guard was dropped before its deadline, and the grant ended by the local clock after that.
                (Ok(false), Some(token)) if permit.is_some() && hold.is_unreleased(token) => {
                    let _ = operations::send_release(shared, hold, token).await;
                }
                (Ok(_), _) => {}
            }
            drop(permit.take());
        }
        KeeperCommand::ResolveAmbiguous { hold, claim } => operations::resolve_ambiguous(shared, hold, claim).await,
        KeeperCommand::ReleaseToken { hold, token } => {
            // The lease expires without this release. A success only shortens the wait of other holders.
            let _ = operations::send_release(shared, hold, *token).await;
        }
    }
}

/// A command in progress. If the keeper ends with its runtime, the next keeper runs the command again.
struct UnfinishedCommand {
    shared: Arc<ManagerInner>,
    command: Option<KeeperCommand>,
}

impl Drop for UnfinishedCommand {
    fn drop(&mut self) {
        if let Some(command) = self.command.take() {
            self.shared.send_command(command);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::LeaseOptions;
    use crate::types::MAX_NAME_BYTES;

    /// Another thread releases the lease and acquires it again while the keeper runs the progress check.
    #[test]
    fn renewal_of_a_grant_leaves_that_of_a_later_one_due() {
        const TTL: Option<Duration> = Some(Duration::from_secs(60));
        let (name, holder) = (LeaseName::new("job").expect("valid"), HolderId::new("a").expect("valid"));
        let hold = Hold::new(name, holder, LeaseOptions::new(), 10, Arc::default());
        let (first, later) = (FencingToken::new(1, 1), FencingToken::new(1, 2));
        let now = Duration::from_secs(40);
        hold.granted(LeaseOptions::new(), first, TTL, Duration::ZERO, Duration::ZERO);
        let action = hold.next_action(now, Duration::ZERO);
        assert!(matches!(action, KeeperAction::Renew { token, .. } if token == first), "its renewal is due");
        assert_eq!(hold.give_up(), Some(first));
        hold.granted(LeaseOptions::new(), later, TTL, Duration::ZERO, now);
        schedule_deadline_check(&mut RenewalSchedule::default(), &hold, first, now);
        let action = hold.next_action(now, Duration::ZERO);
        assert!(matches!(action, KeeperAction::Renew { token, .. } if token == later), "no renewal of it was sent");
    }

    #[test]
    fn largest_batch_fits_into_a_request() {
        let holder = HolderId::new("\"".repeat(MAX_NAME_BYTES)).expect("valid");
        for length in [1, MAX_NAME_BYTES] {
            let name = LeaseName::new("n".repeat(length)).expect("valid");
            let count = batch_len(std::iter::repeat_n(&name, 2 * MAX_RENEW_ITEMS));
            let item = RenewItem::new(name, FencingToken::new(32_767, (1 << 48) - 1));
            let batch = RenewBatch::new(holder.clone(), vec![item; count]);
            let bytes = serde_json::to_vec(&batch).expect("a batch is JSON").len();
            assert!(bytes <= MAX_BODY_BYTES, "{count} names of {length} bytes need {bytes} bytes");
            let is_full = count == MAX_RENEW_ITEMS || bytes > MAX_BODY_BYTES * 9 / 10;
            assert!(is_full, "{count} names of {length} bytes need only {bytes} bytes");
        }
    }
}
