//! The attempts of one request, and what their ends mean together.

use std::time::Duration;

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
    /// A renewal: sent again. A later answer settles it, because a lease that is lost stays lost.
    Renewal,
    /// A claim: sent again, because the same holder claims again without harm. A later grant settles it; a later
    /// refusal does not, because the first attempt may still be granted.
    Claim,
    /// Not sent again: `released: false` to the second attempt would hide that the first one released.
    Never,
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
    let mut doubt: Option<String> = None;
    let mut not_done = String::new();
    let mut pause = FIRST_PAUSE;
    for number in 0.. {
        // What is not sent again has all the time that is left: it ends the request, unless it was certainly not done.
        let left = patience.total.saturating_sub(began.elapsed());
        let limit = if repeat == Repeat::Never { left } else { patience.attempt };
        match attempt(Trial { number, elapsed: began.elapsed(), limit }).await {
            Attempt::Done(done) => return Ok(done),
            Attempt::Refused(problem) => return Err(settle(repeat, doubt, problem)),
            Attempt::NotDone(why) => not_done = why,
            Attempt::Unknown(why) if repeat == Repeat::Read => not_done = why,
            Attempt::Unknown(why) if repeat == Repeat::Never => return Err(CallError::Unknown { why, last: None }),
            Attempt::Unknown(why) => doubt = Some(why),
        }
        if (number + 1) % nodes == 0 {
            tokio::time::sleep(pause.mul_f64(chance().random_range(0.5..1.0))).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
        let needed = if repeat == Repeat::Never { Duration::ZERO } else { patience.attempt };
        if began.elapsed() + needed >= patience.total {
            break;
        }
    }
    Err(match doubt {
        Some(why) => CallError::Unknown { why, last: None },
        None => CallError::Unavailable(not_done),
    })
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

    #[tokio::test]
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

    #[tokio::test]
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
