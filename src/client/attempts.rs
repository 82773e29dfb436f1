//! The attempts of one request, and what their ends mean together.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use rand::RngExt;
use tokio::time::Instant;

use super::CallError;
use crate::api::{Code, Problem};
use crate::chance::chance;

/// Pauses between rounds over all nodes, doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LAST_PAUSE: Duration = Duration::from_millis(400);

/// How long a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// One attempt, so that one silent node does not take all of it.
    pub attempt: Duration,
    /// All attempts together. An attempt that could not have its whole time any more is not begun, so that an answer
    /// is not cut off just before it comes.
    pub total: Duration,
}

impl Patience {
    /// Longest single attempt, beside what it waits for a lease.
    const ATTEMPT: Duration = Duration::from_secs(2);

    /// So long in all; two fifths of it, and 2 s at most, for an attempt.
    pub fn within(total: Duration) -> Patience {
        Patience { attempt: (total * 2 / 5).min(Patience::ATTEMPT), total }
    }

    /// The same for a request that first waits for a lease.
    pub fn plus(self, wait: Duration) -> Patience {
        Patience { attempt: self.attempt + wait, total: self.total + wait }
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
    /// A claim: sent again, because the same holder claims again without harm. A later grant settles it; a later
    /// refusal does not, because the first attempt may still be granted.
    Claim,
    /// Not sent again: `released: false` to the second attempt would hide that the first one released.
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

/// Attempts until one is done, refused, of unknown outcome or out of time. There are so many `nodes` to ask in turn.
pub(crate) async fn attempts<T, F, Fut>(
    repeat: Repeat,
    patience: Patience,
    nodes: usize,
    mut attempt: F,
) -> Result<T, CallError>
where
    F: FnMut(Trial) -> Fut,
    Fut: Future<Output = Attempt<T>>,
{
    let began = Instant::now();
    let mut under_way = FuturesUnordered::new();
    let mut ends = Ends { repeat, doubt: None, not_done: String::new() };
    let mut pause = FIRST_PAUSE;
    for number in 0.. {
        let left = patience.total.saturating_sub(began.elapsed());
        let limit = if repeat.has_all_the_time() { left } else { patience.attempt };
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
        let needed = if repeat == Repeat::Never { Duration::ZERO } else { patience.attempt };
        if began.elapsed() + needed >= patience.total {
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
    fn take<T>(&mut self, ended: Attempt<T>) -> Option<Result<T, CallError>> {
        match ended {
            Attempt::Done(done) => return Some(Ok(done)),
            Attempt::Refused(problem) => return Some(Err(settle(self.repeat, self.doubt.take(), problem))),
            Attempt::NotDone(why) => self.not_done = why,
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
        Some(why) if repeat == Repeat::Claim => CallError::Unknown { why, last: Some(problem) },
        _ => CallError::Refused(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let result: Result<(), CallError> = attempts(Repeat::Claim, patience, 3, |trial| {
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
        assert_eq!(attempts(Repeat::Renewal, patience, 3, slow).await, Ok(0), "the first is not given up");
        let given_up = attempts(Repeat::Claim, Patience { total: Duration::from_millis(500), ..patience }, 3, slow);
        assert!(matches!(given_up.await, Err(CallError::Unknown { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_asks_another_node_beside_one_that_hangs() {
        let patience = Patience { attempt: Duration::from_millis(50), total: Duration::from_millis(2_000) };
        let ended = attempts(Repeat::Renewal, patience, 3, |trial| async move {
            match trial.number {
                0 => std::future::pending().await,
                1 => Attempt::NotDone("no leader".to_owned()),
                number => Attempt::Done(number),
            }
        });
        assert_eq!(ended.await, Ok(2));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_sent_again_is_still_sent_to_the_next_node_when_it_was_not_done() {
        let ended = attempts(Repeat::Never, Patience::within(Duration::from_secs(2)), 3, |trial| async move {
            match trial.number {
                0 | 1 => Attempt::NotDone("it is down".to_owned()),
                number => Attempt::Done(number),
            }
        });
        assert_eq!(ended.await, Ok(2));
    }
}
