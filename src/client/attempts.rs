//! The attempts of one request, and what their ends mean together.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use rand::RngExt;
use tokio::time::Instant;

use super::CallError;
use crate::api::{Code, Problem, Released};
use crate::chance::chance;

/// Pauses between rounds over all nodes, doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LAST_PAUSE: Duration = Duration::from_millis(400);

/// How long a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// One attempt, so that one silent node does not take all of it.
    pub attempt: Duration,
    /// All attempts together, beside what the request waits for a lease. An attempt that could not have its whole time
    /// any more is not begun, so that an answer is not cut off just before it comes.
    pub total: Duration,
}

impl Patience {
    /// Longest single attempt, beside what it waits for a lease.
    const ATTEMPT: Duration = Duration::from_secs(2);

    /// So long in all; two fifths of it, and 2 s at most, for an attempt.
    pub fn within(total: Duration) -> Patience {
        Patience { attempt: (total * 2 / 5).min(Patience::ATTEMPT), total }
    }
}

/// Whether a request whose answer was lost is sent again by itself, and what a later answer then says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Changes nothing: sent again, and never of unknown outcome.
    Read,
    /// A renewal: sent again. A later answer settles it, because a lease that is lost stays lost. An attempt whose answer
    /// takes long goes on beside the next one: a cluster that is slow must not cost a lease that it keeps.
    Renewal,
    /// A claim or a change of metadata: sent again, because the same request twice does no harm. A later grant settles it; a later
    /// refusal does not, because the first attempt may still be granted.
    Claim,
    /// A release: sent again, because it names a token and ends no other grant. `released: true` settles it;
    /// `released: false` after a lost answer does not, because the first attempt may have released.
    Release,
    /// Not sent again: a second hand-over or revoke could hit the next holder.
    Never,
}

impl Repeat {
    /// Whether an attempt has all the time that is left. What is not sent again ends its request, unless it was certainly
    /// not done; and renewals go on side by side.
    fn has_all_the_time(self) -> bool {
        matches!(self, Repeat::Never | Repeat::Renewal)
    }
}

/// How one attempt ended.
pub(crate) enum Attempt<T> {
    Done(T),
    Refused(Box<Problem>),
    /// Certainly not done; another node, or a later moment, may do it.
    NotDone(String),
    Unknown(String),
    /// Certainly not done, and nothing more is done here: said by a node in the same process.
    #[cfg(feature = "server")]
    ShutDown,
}

/// One attempt that is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    /// From 0.
    pub number: usize,
    /// Since the first one began.
    pub elapsed: Duration,
    /// It may take this long.
    pub limit: Duration,
}

/// An answer, and why an earlier attempt of its request may have been carried out too.
#[derive(Debug, PartialEq)]
pub(crate) struct Settled<T> {
    pub answer: T,
    pub doubt: Option<String>,
}

impl Settled<Released> {
    /// What a release came to. Nothing was held, and an earlier attempt may have released it: that is unknown.
    pub fn released(self) -> Result<Released, CallError> {
        match self.doubt.filter(|_| !self.answer.released) {
            Some(why) => Err(CallError::Unknown { why, last: None }),
            None => Ok(self.answer),
        }
    }
}

/// Attempts until one is done, refused, of unknown outcome or out of time. There are so many `nodes` to ask in turn.
/// The request itself waits for a lease for at most `wait`: an attempt has its part of that beside its own time.
pub(crate) async fn attempts<T, F, Fut>(
    repeat: Repeat,
    patience: Patience,
    wait: Duration,
    nodes: usize,
    mut attempt: F,
) -> Result<Settled<T>, CallError>
where
    F: FnMut(Trial) -> Fut,
    Fut: Future<Output = Attempt<T>>,
{
    let began = Instant::now();
    let mut under_way = FuturesUnordered::new();
    let mut ends = Ends { repeat, doubt: None, not_done: String::new() };
    let mut pause = FIRST_PAUSE;
    let total = patience.total + wait;
    let whole_attempt = |elapsed: Duration| patience.attempt + wait.saturating_sub(elapsed);
    for number in 0.. {
        let left = total.saturating_sub(began.elapsed());
        let limit = if repeat.has_all_the_time() { left } else { whole_attempt(began.elapsed()) };
        under_way.push(attempt(Trial { number, elapsed: began.elapsed(), limit }));
        let ended = match repeat {
            Repeat::Renewal => tokio::time::timeout(patience.attempt, under_way.next()).await.ok().flatten(),
            _ => under_way.next().await,
        };
        let is_late = ended.is_none();
        if let Some(result) = ended.and_then(|ended| ends.take(ended)) {
            return result;
        }
        if !is_late && (number + 1) % nodes == 0 {
            tokio::time::sleep(pause.mul_f64(chance().random_range(0.5..1.0))).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
        let elapsed = began.elapsed();
        let needed = if repeat == Repeat::Never { Duration::ZERO } else { whole_attempt(elapsed) };
        if elapsed + needed >= total {
            break;
        }
    }
    while let Some(ended) = under_way.next().await {
        if let Some(result) = ends.take(ended) {
            return result;
        }
    }
    Err(ends.error())
}

/// What the attempts that have ended mean together.
struct Ends {
    repeat: Repeat,
    /// One of them may have been carried out.
    doubt: Option<String>,
    /// Why the last of the others was not.
    not_done: String,
}

impl Ends {
    /// One more attempt has ended; what that makes of the request, if it settles it.
    fn take<T>(&mut self, ended: Attempt<T>) -> Option<Result<Settled<T>, CallError>> {
        match ended {
            Attempt::Done(answer) => return Some(Ok(Settled { answer, doubt: self.doubt.take() })),
            Attempt::Refused(problem) => return Some(Err(settle(self.repeat, self.doubt.take(), problem))),
            Attempt::NotDone(why) => self.not_done = why,
            #[cfg(feature = "server")]
            Attempt::ShutDown => {
                let unknown = self.doubt.take().map(|why| CallError::Unknown { why, last: None });
                return Some(Err(unknown.unwrap_or(CallError::ShutDown)));
            }
            Attempt::Unknown(why) if self.repeat == Repeat::Read => self.not_done = why,
            Attempt::Unknown(why) if self.repeat == Repeat::Never => {
                return Some(Err(CallError::Unknown { why, last: None }));
            }
            Attempt::Unknown(why) => self.doubt = Some(why),
        }
        None
    }

    /// Nothing settled it.
    fn error(self) -> CallError {
        match self.doubt {
            Some(why) => CallError::Unknown { why, last: None },
            None => CallError::Unavailable(self.not_done),
        }
    }
}

/// What a problem says about its attempt.
pub(crate) fn judge<T>(problem: Problem, who: &str) -> Attempt<T> {
    match problem.code {
        Code::NoLeader | Code::NotReady | Code::ShuttingDown | Code::TooBusy | Code::Failed | Code::NotLeader => {
            Attempt::NotDone(format!("{who}: {}", problem.detail))
        }
        Code::OutcomeUnknown | Code::Internal => Attempt::Unknown(format!("{who}: {}", problem.detail)),
        Code::Other if problem.status >= 500 => Attempt::Unknown(format!("{who}: {}", problem.detail)),
        _ => Attempt::Refused(Box::new(problem)),
    }
}

fn settle(repeat: Repeat, doubt: Option<String>, problem: Box<Problem>) -> CallError {
    match doubt {
        Some(why) if matches!(repeat, Repeat::Claim | Repeat::Release) => {
            CallError::Unknown { why, last: Some(problem) }
        }
        _ => CallError::Refused(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(answer: usize) -> Result<Settled<usize>, CallError> {
        Ok(Settled { answer, doubt: None })
    }

    fn judged(status: u16, code: Code) -> Attempt<()> {
        judge(Problem { status, ..Problem::new(code, "why") }, "node 1")
    }

    #[test]
    fn unknown_is_never_refused_and_not_done_is_never_unknown() {
        for code in [Code::NoLeader, Code::NotReady, Code::ShuttingDown, Code::TooBusy] {
            assert!(matches!(judged(code.status(), code), Attempt::NotDone(_)), "{code:?}");
        }
        for code in [Code::OutcomeUnknown, Code::Internal] {
            assert!(matches!(judged(code.status(), code), Attempt::Unknown(_)), "{code:?}");
        }
        for code in [Code::Held, Code::Lost, Code::QueueFull, Code::NotFound, Code::Invalid] {
            assert!(matches!(judged(code.status(), code), Attempt::Refused(_)), "{code:?}");
        }
        assert!(matches!(judged(500, Code::Other), Attempt::Unknown(_)), "a code of a newer server");
        assert!(matches!(judged(499, Code::Other), Attempt::Refused(_)), "a code of a newer server");
    }

    #[test]
    fn attempt_takes_two_fifths_of_the_time_and_at_most_2_s() {
        let attempt = |total| Patience::within(Duration::from_millis(total)).attempt.as_millis();
        assert_eq!((attempt(500), attempt(5_000), attempt(60_000)), (200, 2_000, 2_000));
    }

    #[test]
    fn a_refusal_after_a_lost_answer_settles_a_renewal_and_not_a_claim() {
        let held = || Box::new(Problem::new(Code::Held, "held"));
        let doubt = || Some("the connection broke".to_owned());
        assert!(matches!(settle(Repeat::Claim, doubt(), held()), CallError::Unknown { last: Some(_), .. }));
        assert!(matches!(settle(Repeat::Claim, None, held()), CallError::Refused(_)));
        assert!(matches!(settle(Repeat::Renewal, doubt(), held()), CallError::Refused(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_could_not_have_its_whole_time_is_not_begun() {
        let patience = Patience { attempt: Duration::from_millis(100), total: Duration::from_millis(350) };
        let mut begun = 0;
        let result: Result<Settled<()>, CallError> = attempts(Repeat::Claim, patience, Duration::ZERO, 3, |trial| {
            begun += 1;
            assert!(trial.elapsed + trial.limit <= patience.total);
            async move {
                tokio::time::sleep(trial.limit - Duration::from_millis(1)).await;
                Attempt::NotDone("no leader".to_owned())
            }
        })
        .await;
        assert_eq!(result, Err(CallError::Unavailable("no leader".to_owned())), "not unknown: all of them ended");
        assert!((2..=3).contains(&begun), "{begun}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_whose_answer_takes_longer_than_an_attempt_is_done_all_the_same() {
        let patience = Patience { attempt: Duration::from_millis(100), total: Duration::from_millis(2_000) };
        let slow = |trial: Trial| async move {
            let answer = tokio::time::sleep(Duration::from_millis(350));
            match tokio::time::timeout(trial.limit, answer).await {
                Ok(()) => Attempt::Done(trial.number),
                Err(_) => Attempt::Unknown("no answer".to_owned()),
            }
        };
        assert_eq!(
            attempts(Repeat::Renewal, patience, Duration::ZERO, 3, slow).await,
            settled(0),
            "the first is not given up"
        );
        let short = Patience { total: Duration::from_millis(500), ..patience };
        let given_up = attempts(Repeat::Claim, short, Duration::ZERO, 3, slow);
        assert!(matches!(given_up.await, Err(CallError::Unknown { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_asks_another_node_beside_one_that_hangs() {
        let patience = Patience { attempt: Duration::from_millis(50), total: Duration::from_millis(2_000) };
        let ended = attempts(Repeat::Renewal, patience, Duration::ZERO, 3, |trial| async move {
            match trial.number {
                0 => std::future::pending().await,
                1 => Attempt::NotDone("no leader".to_owned()),
                number => Attempt::Done(number),
            }
        });
        assert_eq!(ended.await, settled(2));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_sent_again_is_still_sent_to_the_next_node_when_it_was_not_done() {
        let patience = Patience::within(Duration::from_secs(2));
        let ended = attempts(Repeat::Never, patience, Duration::ZERO, 3, |trial| async move {
            match trial.number {
                0 | 1 => Attempt::NotDone("it is down".to_owned()),
                number => Attempt::Done(number),
            }
        });
        assert_eq!(ended.await, settled(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_goes_on_at_the_next_node_at_any_time_of_it() {
        let (patience, wait) = (Patience::within(Duration::from_secs(5)), Duration::from_secs(60));
        let ended = attempts(Repeat::Claim, patience, wait, 3, |trial| async move {
            assert!(trial.elapsed + trial.limit <= patience.total + wait, "{trial:?}");
            match trial.number {
                0..3 => {
                    tokio::time::sleep(Duration::from_secs(19)).await;
                    Attempt::Unknown("its node is gone".to_owned())
                }
                number => Attempt::Done(number),
            }
        });
        let ended = ended.await.expect("the fourth node grants");
        assert_eq!(ended, Settled { answer: 3, doubt: Some("its node is gone".to_owned()) });
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_is_sent_again_and_is_unknown_if_nothing_is_held_then() {
        for (released, expected) in [(true, Ok(true)), (false, Err(()))] {
            let patience = Patience::within(Duration::from_secs(5));
            let ended = attempts(Repeat::Release, patience, Duration::ZERO, 3, |trial| async move {
                match trial.number {
                    0 => Attempt::Unknown("the connection broke".to_owned()),
                    1 => Attempt::Done(Released { released }),
                    number => panic!("attempt {number}"),
                }
            });
            let limited = |ended: Result<Settled<Released>, CallError>| ended.and_then(Settled::released);
            let ended = limited(ended.await).map(|released| released.released);
            assert_eq!(ended.map_err(|error| assert!(matches!(error, CallError::Unknown { .. }))), expected);
        }
    }

    /// Without these pauses, the clients of a cluster without a leader ask as fast as they can.
    #[tokio::test(start_paused = true)]
    async fn each_round_over_all_nodes_ends_with_a_longer_pause() {
        let patience = Patience { attempt: Duration::from_millis(100), total: Duration::from_secs(10) };
        let mut times = Vec::new();
        let result: Result<Settled<()>, CallError> = attempts(Repeat::Read, patience, Duration::ZERO, 3, |trial| {
            times.push(trial.elapsed);
            assert!(times.len() < 1_000, "there are no pauses");
            async { Attempt::NotDone("no leader".to_owned()) }
        })
        .await;
        assert_eq!(result, Err(CallError::Unavailable("no leader".to_owned())));
        let (rounds, mut pause) = (times.chunks_exact(3), FIRST_PAUSE);
        let begins: Vec<Duration> = rounds.map(|round| round[0]).collect();
        assert!(begins.len() > 3 && times.chunks_exact(3).all(|round| round[0] == round[2]), "{times:?}");
        for pair in begins.windows(2) {
            // The timer counts whole milliseconds.
            let range = pause / 2..=pause + Duration::from_millis(2);
            assert!(range.contains(&(pair[1] - pair[0])), "{pair:?} is not in {range:?}");
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn renewal_whose_node_is_late_is_sent_on_without_a_pause() {
        let patience = Patience { attempt: Duration::from_millis(50), total: Duration::from_secs(2) };
        let mut times = Vec::new();
        let ended = attempts(Repeat::Renewal, patience, Duration::ZERO, 1, |trial| {
            times.push(trial.elapsed);
            async move { if trial.number < 3 { std::future::pending().await } else { Attempt::Done(trial.number) } }
        });
        assert_eq!(ended.await, settled(3));
        assert!(times[3] < Duration::from_millis(160), "{times:?}");
    }
}
