//! The attempts of one request, and their combined result.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use rand::RngExt;
use tokio::time::Instant;

use super::{CallError, RetryBudget};
use crate::api::{Code, Problem, Released};
use crate::rng::rng;

/// Bounds of the pause after a round over all nodes. It doubles with each round, and jitter halves it at most.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LAST_PAUSE: Duration = Duration::from_millis(400);

/// Whether a request is sent again after a lost answer, and whether a later answer resolves the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryPolicy {
    /// A read: retried. Its outcome is never unknown, because it changes nothing.
    Read,
    /// A renewal: retried. A later answer resolves it, because a lost lease stays lost. A slow attempt continues in
    /// parallel with the next one: slow answers must not cost a lease that the cluster has renewed.
    Renewal,
    /// A claim or an update of metadata: retried, because it is idempotent. A later grant resolves it. A later refusal
    /// does not, because the first attempt may still be applied.
    Claim,
    /// A release: retried, because its token names one grant. `released: true` resolves it. `released: false` after a
    /// lost answer does not, because the first attempt may have released the lease.
    Release,
    /// A hand-over or a revoke: not retried after a lost answer, because a second one could hit the next holder.
    Never,
}

impl RetryPolicy {
    /// Whether an attempt may use all remaining time: there is no retry that needs a share of it, or attempts run in
    /// parallel.
    fn uses_remaining_time(self) -> bool {
        matches!(self, RetryPolicy::Never | RetryPolicy::Renewal)
    }
}

/// The result of one attempt.
pub(crate) enum Attempt<T> {
    Done(T),
    Refused(Box<Problem>),
    /// Not applied. Another node, or a later attempt, may apply it.
    NotDone(String),
    Unknown(String),
    /// Not applied, and a retry cannot succeed: the node in this process is shut down.
    #[cfg(feature = "server")]
    ShutDown,
}

#[cfg(feature = "client-http")]
impl<T> Attempt<T> {
    /// Replaces an answer by the result of `read`.
    pub fn and_then<U>(self, read: impl FnOnce(T) -> Attempt<U>) -> Attempt<U> {
        match self {
            Attempt::Done(answer) => read(answer),
            Attempt::Refused(problem) => Attempt::Refused(problem),
            Attempt::NotDone(why) => Attempt::NotDone(why),
            Attempt::Unknown(why) => Attempt::Unknown(why),
            #[cfg(feature = "server")]
            Attempt::ShutDown => Attempt::ShutDown,
        }
    }
}

/// The number and the time limit of an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptContext {
    /// From 0.
    #[cfg_attr(not(feature = "client-http"), expect(dead_code, reason = "only the HTTP transport has several nodes"))]
    pub number: usize,
    /// Since the start of the first attempt.
    pub elapsed: Duration,
    /// The longest time of this attempt.
    pub limit: Duration,
}

/// The answer to a request, and why an earlier attempt may have been applied, too.
#[derive(Debug, PartialEq)]
pub(crate) struct ResolvedAnswer<T> {
    pub answer: T,
    pub ambiguous: Option<String>,
}

impl ResolvedAnswer<Released> {
    /// The result of a release. If the lease was not held and an earlier attempt is ambiguous, the outcome is unknown.
    pub fn released(self) -> Result<Released, CallError> {
        match self.ambiguous.filter(|_| !self.answer.released) {
            Some(why) => Err(CallError::Unknown { why, last: None }),
            None => Ok(self.answer),
        }
    }
}

/// Runs attempts until one of them resolves the request or the budget is used up. The attempts go to the `nodes` in
/// turn. `wait` is the longest wait for a lease: it extends the limit of each attempt and the total.
pub(crate) async fn attempts<T, F, Fut>(
    policy: RetryPolicy,
    budget: RetryBudget,
    wait: Duration,
    nodes: usize,
    mut attempt: F,
) -> Result<ResolvedAnswer<T>, CallError>
where
    F: FnMut(AttemptContext) -> Fut,
    Fut: Future<Output = Attempt<T>>,
{
    let began = Instant::now();
    let mut in_flight = FuturesUnordered::new();
    let mut results = AttemptResults { policy, ambiguous: None, not_done: BTreeMap::new() };
    let mut pause = FIRST_PAUSE;
    let total = budget.total.saturating_add(wait);
    let whole_attempt = |elapsed: Duration| budget.attempt.saturating_add(wait.saturating_sub(elapsed));
    for number in 0.. {
        let left = total.saturating_sub(began.elapsed());
        let limit = if policy.uses_remaining_time() { left } else { whole_attempt(began.elapsed()) };
        let ended = attempt(AttemptContext { number, elapsed: began.elapsed(), limit });
        in_flight.push(async move { (number % nodes, ended.await) });
        let ended = match policy {
            RetryPolicy::Renewal => tokio::time::timeout(budget.attempt, in_flight.next()).await.ok().flatten(),
            _ => in_flight.next().await,
        };
        let is_late = ended.is_none();
        if let Some(result) = ended.and_then(|(node, ended)| results.add(node, ended)) {
            return result;
        }
        if !is_late && (number + 1) % nodes == 0 {
            tokio::time::sleep(pause.mul_f64(rng().random_range(0.5..1.0))).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
        let elapsed = began.elapsed();
        let needed = if policy == RetryPolicy::Never { Duration::ZERO } else { whole_attempt(elapsed) };
        if elapsed.saturating_add(needed) >= total {
            break;
        }
    }
    while let Some((node, ended)) = in_flight.next().await {
        if let Some(result) = results.add(node, ended) {
            return result;
        }
    }
    Err(results.error())
}

/// The combined result of the finished attempts.
struct AttemptResults {
    policy: RetryPolicy,
    /// Why an attempt may have been applied, if there is such an attempt.
    ambiguous: Option<String>,
    /// For each node, why its last attempt that was not applied failed.
    not_done: BTreeMap<usize, String>,
}

impl AttemptResults {
    /// Adds the result of an attempt. Returns the result of the request if it is resolved.
    fn add<T>(&mut self, node: usize, ended: Attempt<T>) -> Option<Result<ResolvedAnswer<T>, CallError>> {
        match ended {
            Attempt::Done(answer) => return Some(Ok(ResolvedAnswer { answer, ambiguous: self.ambiguous.take() })),
            Attempt::Refused(problem) => return Some(Err(refusal_error(self.policy, self.ambiguous.take(), problem))),
            Attempt::NotDone(why) => {
                self.not_done.insert(node, why);
            }
            #[cfg(feature = "server")]
            Attempt::ShutDown => {
                let unknown = self.ambiguous.take().map(|why| CallError::Unknown { why, last: None });
                return Some(Err(unknown.unwrap_or(CallError::ShutDown)));
            }
            Attempt::Unknown(why) if self.policy == RetryPolicy::Read => {
                self.not_done.insert(node, why);
            }
            Attempt::Unknown(why) if self.policy == RetryPolicy::Never => {
                return Some(Err(CallError::Unknown { why, last: None }));
            }
            Attempt::Unknown(why) => self.ambiguous = Some(why),
        }
        None
    }

    /// The error of a request that no attempt resolved.
    fn error(self) -> CallError {
        match self.ambiguous {
            Some(why) => CallError::Unknown { why, last: None },
            None => {
                let mut reasons: Vec<String> = self.not_done.into_values().collect();
                reasons.dedup();
                CallError::Unavailable(reasons.join("; "))
            }
        }
    }
}

/// Classifies a problem: whether the attempt was refused, not applied, or has an unknown outcome.
pub(crate) fn classify_problem<T>(problem: Problem, who: &str) -> Attempt<T> {
    match problem.code {
        Code::NoLeader | Code::NotReady | Code::ShuttingDown | Code::TooBusy | Code::Failed | Code::NotLeader => {
            Attempt::NotDone(format!("{who}: {}", problem.detail))
        }
        Code::OutcomeUnknown | Code::Internal => Attempt::Unknown(format!("{who}: {}", problem.detail)),
        Code::Other if problem.status >= 500 => Attempt::Unknown(format!("{who}: {}", problem.detail)),
        _ => Attempt::Refused(Box::new(problem)),
    }
}

fn refusal_error(policy: RetryPolicy, ambiguous: Option<String>, problem: Box<Problem>) -> CallError {
    match ambiguous {
        Some(why) if matches!(policy, RetryPolicy::Claim | RetryPolicy::Release) => {
            CallError::Unknown { why, last: Some(problem) }
        }
        _ => CallError::Refused(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(answer: usize) -> Result<ResolvedAnswer<usize>, CallError> {
        Ok(ResolvedAnswer { answer, ambiguous: None })
    }

    fn classified(status: u16, code: Code) -> Attempt<()> {
        classify_problem(Problem { status, ..Problem::new(code, "why") }, "node 1")
    }

    #[test]
    fn problem_codes_map_to_attempt_results() {
        for code in [Code::NoLeader, Code::NotReady, Code::ShuttingDown, Code::TooBusy] {
            assert!(matches!(classified(code.status(), code), Attempt::NotDone(_)), "{code:?}");
        }
        for code in [Code::OutcomeUnknown, Code::Internal] {
            assert!(matches!(classified(code.status(), code), Attempt::Unknown(_)), "{code:?}");
        }
        for code in [Code::Held, Code::Lost, Code::QueueFull, Code::NotFound, Code::Invalid] {
            assert!(matches!(classified(code.status(), code), Attempt::Refused(_)), "{code:?}");
        }
        assert!(matches!(classified(500, Code::Other), Attempt::Unknown(_)), "the code of a newer server");
        assert!(matches!(classified(499, Code::Other), Attempt::Refused(_)), "a code of a newer server");
    }

    #[test]
    fn attempt_takes_two_fifths_of_the_time_and_at_most_2_s() {
        let attempt = |total| RetryBudget::within(Duration::from_millis(total)).attempt.as_millis();
        assert_eq!((attempt(500), attempt(5_000), attempt(60_000)), (200, 2_000, 2_000));
    }

    #[test]
    fn late_refusal_resolves_a_renewal_but_not_a_claim() {
        let held = || Box::new(Problem::new(Code::Held, "held"));
        let ambiguous = || Some("the connection broke".to_owned());
        for policy in [RetryPolicy::Claim, RetryPolicy::Release] {
            let error = refusal_error(policy, ambiguous(), held());
            assert!(matches!(&error, CallError::Unknown { last: Some(_), .. }), "{policy:?}: {error:?}");
        }
        assert!(matches!(refusal_error(RetryPolicy::Claim, None, held()), CallError::Refused(_)));
        assert!(matches!(refusal_error(RetryPolicy::Renewal, ambiguous(), held()), CallError::Refused(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn attempt_starts_only_with_its_full_time() {
        let budget = RetryBudget { attempt: Duration::from_millis(100), total: Duration::from_millis(350) };
        let mut begun = 0;
        let result: Result<ResolvedAnswer<()>, CallError> =
            attempts(RetryPolicy::Claim, budget, Duration::ZERO, 3, |context| {
                begun += 1;
                assert!(context.elapsed + context.limit <= budget.total);
                async move {
                    tokio::time::sleep(context.limit - Duration::from_millis(1)).await;
                    Attempt::NotDone("no leader".to_owned())
                }
            })
            .await;
        assert_eq!(
            result,
            Err(CallError::Unavailable("no leader".to_owned())),
            "not unknown: each attempt returned NotDone"
        );
        assert!((2..=3).contains(&begun), "{begun}");
    }

    #[tokio::test(start_paused = true)]
    async fn unavailable_names_the_last_error_of_each_node() {
        let budget = RetryBudget::within(Duration::from_secs(2));
        let result: Result<ResolvedAnswer<()>, CallError> =
            attempts(RetryPolicy::Read, budget, Duration::ZERO, 3, |context| async move {
                match context.number % 3 {
                    0 => Attempt::NotDone(if context.number == 0 { "a: starting" } else { "a: no leader" }.to_owned()),
                    1 => Attempt::Unknown("b: no answer".to_owned()),
                    _ => Attempt::NotDone("c: refused".to_owned()),
                }
            })
            .await;
        let all = "a: no leader; b: no answer; c: refused";
        assert_eq!(result, Err(CallError::Unavailable(all.to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn renewal_accepts_an_answer_after_the_attempt_limit() {
        let budget = RetryBudget { attempt: Duration::from_millis(100), total: Duration::from_millis(2_000) };
        let slow = |context: AttemptContext| async move {
            let answer = tokio::time::sleep(Duration::from_millis(350));
            match tokio::time::timeout(context.limit, answer).await {
                Ok(()) => Attempt::Done(context.number),
                Err(_) => Attempt::Unknown("no answer".to_owned()),
            }
        };
        assert_eq!(
            attempts(RetryPolicy::Renewal, budget, Duration::ZERO, 3, slow).await,
            resolved(0),
            "the first attempt continues"
        );
        let short = RetryBudget { total: Duration::from_millis(500), ..budget };
        let given_up = attempts(RetryPolicy::Claim, short, Duration::ZERO, 3, slow);
        assert!(matches!(given_up.await, Err(CallError::Unknown { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn renewal_tries_another_node_while_one_hangs() {
        let budget = RetryBudget { attempt: Duration::from_millis(50), total: Duration::from_millis(2_000) };
        let ended = attempts(RetryPolicy::Renewal, budget, Duration::ZERO, 3, |context| async move {
            match context.number {
                0 => std::future::pending().await,
                1 => Attempt::NotDone("no leader".to_owned()),
                number => Attempt::Done(number),
            }
        });
        assert_eq!(ended.await, resolved(2));
    }

    /// The time that is left is too short for another attempt.
    #[tokio::test(start_paused = true)]
    async fn renewal_waits_for_its_last_attempts() {
        let budget = RetryBudget { attempt: Duration::from_millis(100), total: Duration::from_millis(250) };
        let ended = attempts(RetryPolicy::Renewal, budget, Duration::ZERO, 3, |context| async move {
            if context.number == 0 {
                tokio::time::sleep(Duration::from_millis(240)).await;
                return Attempt::Done(0);
            }
            tokio::time::sleep(context.limit).await;
            Attempt::Unknown("no answer".to_owned())
        });
        assert_eq!(ended.await, resolved(0));
    }

    #[tokio::test(start_paused = true)]
    async fn one_shot_request_goes_on_after_not_done() {
        let budget = RetryBudget::within(Duration::from_secs(2));
        let ended = attempts(RetryPolicy::Never, budget, Duration::ZERO, 3, |context| async move {
            match context.number {
                0 | 1 => Attempt::NotDone("the node is down".to_owned()),
                number => Attempt::Done(number),
            }
        });
        assert_eq!(ended.await, resolved(2));
    }

    #[tokio::test(start_paused = true)]
    async fn wait_continues_at_the_next_node() {
        let (budget, wait) = (RetryBudget::within(Duration::from_secs(5)), Duration::from_secs(60));
        let ended = attempts(RetryPolicy::Claim, budget, wait, 3, |context| async move {
            assert!(context.elapsed + context.limit <= budget.total + wait, "{context:?}");
            match context.number {
                0..3 => {
                    tokio::time::sleep(Duration::from_secs(19)).await;
                    Attempt::Unknown("its node is gone".to_owned())
                }
                number => Attempt::Done(number),
            }
        });
        let ended = ended.await.expect("the fourth node grants");
        assert_eq!(ended, ResolvedAnswer { answer: 3, ambiguous: Some("its node is gone".to_owned()) });
    }

    #[tokio::test(start_paused = true)]
    async fn retried_release_is_unknown_if_nothing_is_held() {
        for (released, expected) in [(true, Ok(true)), (false, Err(()))] {
            let budget = RetryBudget::within(Duration::from_secs(5));
            let ended = attempts(RetryPolicy::Release, budget, Duration::ZERO, 3, |context| async move {
                match context.number {
                    0 => Attempt::Unknown("the connection broke".to_owned()),
                    1 => Attempt::Done(Released { released }),
                    number => panic!("attempt {number}"),
                }
            });
            let limited = |ended: Result<ResolvedAnswer<Released>, CallError>| ended.and_then(ResolvedAnswer::released);
            let ended = limited(ended.await).map(|released| released.released);
            assert_eq!(ended.map_err(|error| assert!(matches!(error, CallError::Unknown { .. }))), expected);
        }
    }

    #[cfg(feature = "server")]
    #[tokio::test(start_paused = true)]
    async fn shutdown_after_an_ambiguous_attempt_is_unknown() {
        for is_ambiguous in [false, true] {
            let budget = RetryBudget::within(Duration::from_secs(5));
            let mut begun = 0;
            let ended: Result<ResolvedAnswer<()>, CallError> =
                attempts(RetryPolicy::Claim, budget, Duration::ZERO, 1, |context| {
                    begun += 1;
                    async move {
                        match context.number {
                            0 if is_ambiguous => Attempt::Unknown("no answer".to_owned()),
                            _ => Attempt::ShutDown,
                        }
                    }
                })
                .await;
            let unknown = CallError::Unknown { why: "no answer".to_owned(), last: None };
            let (expected, attempts) = if is_ambiguous { (unknown, 2) } else { (CallError::ShutDown, 1) };
            assert_eq!((ended, begun), (Err(expected), attempts));
        }
    }

    /// Without these pauses, clients of a cluster without a leader would send requests in a busy loop.
    #[tokio::test(start_paused = true)]
    async fn pause_grows_after_each_round_over_all_nodes() {
        let budget = RetryBudget { attempt: Duration::from_millis(100), total: Duration::from_secs(10) };
        let mut times = Vec::new();
        let result: Result<ResolvedAnswer<()>, CallError> =
            attempts(RetryPolicy::Read, budget, Duration::ZERO, 3, |context| {
                times.push(context.elapsed);
                assert!(times.len() < 1_000, "the rounds have no pauses");
                async { Attempt::NotDone("no leader".to_owned()) }
            })
            .await;
        assert_eq!(result, Err(CallError::Unavailable("no leader".to_owned())));
        let (rounds, mut pause) = (times.chunks_exact(3), FIRST_PAUSE);
        let begins: Vec<Duration> = rounds.map(|round| round[0]).collect();
        assert!(begins.len() > 3 && times.chunks_exact(3).all(|round| round[0] == round[2]), "{times:?}");
        for pair in begins.windows(2) {
            // Tokio's timer has a resolution of 1 ms.
            let range = pause / 2..=pause + Duration::from_millis(2);
            assert!(range.contains(&(pair[1] - pair[0])), "{pair:?} is not in {range:?}");
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Otherwise all clients of a cluster that lost its leader would ask at the same moments.
    #[tokio::test(start_paused = true)]
    async fn clients_retry_at_different_moments() {
        let budget = RetryBudget { attempt: Duration::from_millis(10), total: Duration::from_millis(100) };
        let mut pauses = Vec::new();
        for _ in 0..50 {
            let mut times = Vec::new();
            let ended: Result<ResolvedAnswer<()>, CallError> =
                attempts(RetryPolicy::Read, budget, Duration::ZERO, 1, |context| {
                    times.push(context.elapsed);
                    async { Attempt::NotDone("no leader".to_owned()) }
                })
                .await;
            assert_eq!(ended, Err(CallError::Unavailable("no leader".to_owned())));
            pauses.push(times[1]);
        }
        let middle = FIRST_PAUSE * 3 / 4;
        assert!(pauses.iter().any(|pause| *pause < middle), "{pauses:?}");
        assert!(pauses.iter().any(|pause| *pause > middle), "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn late_renewal_is_retried_without_a_pause() {
        let budget = RetryBudget { attempt: Duration::from_millis(50), total: Duration::from_secs(2) };
        let mut times = Vec::new();
        let ended = attempts(RetryPolicy::Renewal, budget, Duration::ZERO, 1, |context| {
            times.push(context.elapsed);
            async move { if context.number < 3 { std::future::pending().await } else { Attempt::Done(context.number) } }
        });
        assert_eq!(ended.await, resolved(3));
        assert!(times[3] < Duration::from_millis(160), "{times:?}");
    }
}
