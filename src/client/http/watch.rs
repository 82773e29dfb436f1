//! The event stream of a cluster, resumed by itself when its connection breaks.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::Remote;
use super::call::in_words;
use super::frames::{Frame, Frames};
use crate::api::{Code, Event, EventId, Problem};
use crate::client::CallError;

/// A node says at least every 10 s that a stream is alive; one that says nothing for so long is given up.
const SILENCE: Duration = Duration::from_secs(30);
/// Pause before a broken stream is opened again, so that one that breaks at once does not spin.
const PAUSE: Duration = Duration::from_millis(200);

/// Transitions, each once and in order, across broken connections and lost nodes.
#[derive(Debug)]
pub struct Watch {
    remote: Remote,
    prefix: String,
    /// Up to here everything was returned. All that was received is returned before a stream is opened again.
    place: Option<EventId>,
    open: Option<Open>,
    ready: VecDeque<(Option<EventId>, Option<Event>)>,
}

#[derive(Debug)]
struct Open {
    response: reqwest::Response,
    frames: Frames,
}

impl Watch {
    pub(super) fn new(remote: Remote, prefix: String, after: Option<EventId>) -> Watch {
        Watch { remote, prefix, place: after, open: None, ready: VecDeque::new() }
    }

    /// Where the stream is: everything up to and with it has been returned. A new watch may go on from here.
    pub fn place(&self) -> Option<EventId> {
        self.place
    }

    /// Waits for the next transition.
    ///
    /// # Errors
    ///
    /// Refused as `compacted`: what comes next is no longer kept, and events are missing; list the leases and watch
    /// from now. Unavailable: no node opened a stream within the remote's timeout; the next call goes on trying.
    pub async fn next(&mut self) -> Result<Event, CallError> {
        loop {
            while let Some((place, event)) = self.ready.pop_front() {
                self.place = place.or(self.place);
                if let Some(event) = event {
                    return Ok(event);
                }
            }
            match &mut self.open {
                None => self.open = Some(self.connect().await?),
                Some(open) => match open.read().await {
                    Some(frames) => self.take(frames),
                    None => {
                        self.open = None;
                        tokio::time::sleep(PAUSE).await;
                    }
                },
            }
        }
    }

    fn take(&mut self, frames: Vec<Frame>) {
        for frame in frames {
            // A frame that only says its place, `lagged`, or one that a newer server invented is no transition. After
            // `lagged` the stream ends, and is opened again behind the last place.
            let event = serde_json::from_str::<Event>(&frame.data).ok();
            let place = frame.id.and_then(|id| id.parse().ok());
            self.ready.push_back((place, event));
        }
    }

    async fn connect(&self) -> Result<Open, CallError> {
        let began = Instant::now();
        let endpoints = &self.remote.endpoints;
        let first = endpoints.preferred();
        let mut query = vec![("prefix", self.prefix.clone())];
        query.extend(self.place.map(|place| ("after", place.to_string())));
        for attempt in 0.. {
            let (place, endpoint) = endpoints.at(first, attempt);
            let url = endpoint.join("v1/watch").expect("a constant path");
            let sent = self.remote.http.get(url).query(&query).send();
            let why = match tokio::time::timeout(self.remote.budget.total, sent).await {
                Ok(Ok(response)) if response.status().is_success() => {
                    endpoints.prefer(place);
                    return Ok(Open { response, frames: Frames::default() });
                }
                Ok(Ok(response)) => refusal(response).await?,
                Ok(Err(error)) => in_words(endpoint, &error),
                Err(_) => format!("{endpoint} did not answer within {:?}", self.remote.budget.total),
            };
            if began.elapsed() >= self.remote.budget.total {
                return Err(CallError::Unavailable(why));
            }
            if (attempt + 1) % endpoints.len() == 0 {
                tokio::time::sleep(PAUSE).await;
            }
        }
        unreachable!("the loop has no end but its returns")
    }
}

impl Open {
    /// The frames of the next piece; `None` when the stream is over, for whatever reason.
    async fn read(&mut self) -> Option<Vec<Frame>> {
        let piece = tokio::time::timeout(SILENCE, self.response.chunk()).await.ok()?.ok()??;
        self.frames.feed(&piece).ok()
    }
}

/// A refusal is final if it is about the request, and words for a later error if it is about the node.
async fn refusal(response: reqwest::Response) -> Result<String, CallError> {
    let status = response.status();
    match response.json::<Problem>().await {
        Ok(problem) if matches!(problem.code, Code::Compacted | Code::Invalid) => {
            Err(CallError::Refused(Box::new(problem)))
        }
        Ok(problem) => Ok(problem.detail),
        Err(_) => Ok(format!("the answer was {status}")),
    }
}
