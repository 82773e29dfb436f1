//! The event stream of a cluster. It resumes after a broken connection.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use reqwest::header::CONTENT_TYPE;
use sse_stream::Sse;
use tokio::time::Instant;

use super::Remote;
use super::call::describe_error;
use super::endpoints::at;
use super::events::parse_events;
use crate::api::{Code, Event, EventId, Problem};
use crate::client::CallError;

/// Longest silence of a stream before the client opens another one. A node sends a heartbeat at least every 10 s.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause before a broken stream is opened again. It prevents a busy loop if streams break at once.
const RECONNECT_DELAY: Duration = Duration::from_millis(200);

type EventStream = Pin<Box<dyn Stream<Item = Result<Sse, sse_stream::Error>> + Send + Sync>>;

/// A stream of transitions. It returns each transition once and in order, also across broken connections and failed
/// nodes.
pub struct Watch {
    remote: Remote,
    prefix: String,
    /// The position of the last returned event. All received events are returned before a stream is opened again.
    position: Option<EventId>,
    stream: Option<EventStream>,
    /// The node of the stream and the number of nodes, until its first position arrives.
    unproven: Option<(usize, usize)>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("prefix", &self.prefix).field("position", &self.position).finish_non_exhaustive()
    }
}

impl Watch {
    pub(super) fn new(remote: Remote, prefix: String, after: Option<EventId>) -> Watch {
        Watch { remote, prefix, position: after, stream: None, unproven: None }
    }

    /// The position of the last returned event. A new watch can continue after it.
    pub fn position(&self) -> Option<EventId> {
        self.position
    }

    /// Waits for the next transition.
    ///
    /// # Errors
    ///
    /// - Refused as `compacted`: the cluster no longer keeps the next events. List the leases and start a new watch.
    /// - Refused as `unauthenticated` or `forbidden`: two nodes, or one node twice, have said so in two rounds over the nodes.
    ///   The rights of a new token reach the nodes one heartbeat interval late.
    /// - Unavailable: no node opened a stream within the timeout of the [`Remote`]. The next call tries again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no transition.
    pub async fn next(&mut self) -> Result<Event, CallError> {
        loop {
            let Some(stream) = &mut self.stream else {
                self.stream = Some(self.connect().await?);
                continue;
            };
            let Some(Ok(received)) = stream.next().await else {
                self.stream = None;
                if let Some((index, count)) = self.unproven.take() {
                    self.remote.endpoints.avoid(index, count);
                }
                tokio::time::sleep(RECONNECT_DELAY).await;
                continue;
            };
            if let Some(position) = received.id.and_then(|id| id.parse().ok()) {
                self.position = Some(position);
                self.unproven = None;
            }
            // Without a transition: a position, and `lagged`. After `lagged` the server ends
            // the stream, and the client opens it again after the last position.
            if let Some(event) = received.data.and_then(|data| serde_json::from_str(&data).ok()) {
                return Ok(event);
            }
        }
    }

    async fn connect(&mut self) -> Result<EventStream, CallError> {
        let began = Instant::now();
        let endpoints = &self.remote.endpoints;
        let (urls, first) = (endpoints.urls(), endpoints.preferred());
        let mut query = vec![("prefix", self.prefix.clone())];
        query.extend(self.position.map(|position| ("after", position.to_string())));
        // For each node, why its last attempt failed.
        let mut reasons = BTreeMap::new();
        // The answers with which access control refuses the caller, and the nodes whose last answer is such a one.
        let (mut denials, mut denied) = (0, BTreeMap::new());
        for attempt in 0.. {
            let (index, endpoint) = at(&urls, first, attempt);
            let url = endpoint.join("v1/watch").expect("a constant path");
            let sent = self.remote.http.get(url).query(&query).send();
            let asked = async {
                match sent.await {
                    Ok(response) if response.status().is_success() => Ok(response),
                    Ok(response) => Err(refusal(response).await),
                    Err(error) => Err(WatchRefusal::Unavailable(describe_error(endpoint, &error))),
                }
            };
            let limit = self.remote.budget.attempt;
            let unanswered = endpoints.begin_attempt(index, urls.len());
            let asked = tokio::time::timeout(limit, asked).await;
            unanswered.end();
            let refused = match asked {
                Ok(Ok(response)) if is_event_stream(&response) => {
                    endpoints.prefer(index);
                    self.unproven = Some((index, urls.len()));
                    let (endpoints, http, node) = (endpoints.clone(), self.remote.http.clone(), endpoint.clone());
                    // A client that only watches sends no other request that would ask for the members.
                    let chunks = chunks(response).inspect(move |_| endpoints.refresh(&http, &node));
                    return Ok(Box::pin(parse_events(chunks)));
                }
                Ok(Ok(_)) => WatchRefusal::Unavailable(format!("{endpoint} answered without an event stream")),
                Ok(Err(refused)) => refused,
                Err(_) => WatchRefusal::Unavailable(format!("{endpoint} did not answer within {limit:?}")),
            };
            let why = match refused {
                WatchRefusal::Final(problem) => return Err(CallError::Refused(problem)),
                WatchRefusal::Denied(problem) => {
                    denials += 1;
                    let why = problem.detail.clone();
                    denied.insert(index, problem);
                    why
                }
                WatchRefusal::Unavailable(why) => {
                    endpoints.avoid(index, urls.len());
                    denied.remove(&index);
                    why
                }
            };
            reasons.insert(index, why);
            let is_over = began.elapsed() >= self.remote.budget.total;
            // A node that applied a new token late accepts it in the second round.
            let is_denied = is_over || (denials > 1 && attempt + 1 >= 2 * urls.len());
            if is_denied && let Some((_, problem)) = denied.pop_first() {
                return Err(CallError::Refused(problem));
            }
            if is_over {
                return Err(CallError::Unavailable(reasons.into_values().collect::<Vec<_>>().join("; ")));
            }
            if (attempt + 1) % urls.len() == 0 {
                tokio::time::sleep(RECONNECT_DELAY).await;
            }
        }
        unreachable!("only a return ends the loop")
    }
}

/// Something else may listen at the address of a node, and answer each request with a page.
fn is_event_stream(response: &reqwest::Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    response.status().is_success() && kind.starts_with("text/event-stream")
}

/// The chunks of the body, until its end, an error or a long silence.
fn chunks(response: reqwest::Response) -> impl Stream<Item = Bytes> {
    stream::unfold(response, |mut response| async move {
        let chunk = tokio::time::timeout(SILENCE_TIMEOUT, response.chunk()).await.ok()?.ok()??;
        Some((chunk, response))
    })
}

/// Why a node opens no stream.
enum WatchRefusal {
    /// All nodes answer like this.
    Final(Box<Problem>),
    /// Access control refuses the caller, by the state of this node.
    Denied(Box<Problem>),
    /// Another node may open a stream.
    Unavailable(String),
}

async fn refusal(response: reqwest::Response) -> WatchRefusal {
    let status = response.status();
    match response.json::<Problem>().await {
        Ok(problem) => match problem.code {
            Code::Compacted | Code::Invalid => WatchRefusal::Final(Box::new(problem)),
            Code::Unauthenticated | Code::Forbidden => WatchRefusal::Denied(Box::new(problem)),
            _ => WatchRefusal::Unavailable(problem.detail),
        },
        Err(_) => WatchRefusal::Unavailable(format!("the answer was {status}")),
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::io;

    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    /// A response whose node sends one chunk and hangs.
    fn response_with_one_chunk() -> reqwest::Response {
        let chunk = stream::iter([Ok::<_, io::Error>(Frame::data(Bytes::from_static(b"data: 1\n\n")))]);
        let body = reqwest::Body::wrap(StreamBody::new(chunk.chain(stream::pending())));
        ::http::Response::new(body).into()
    }

    #[tokio::test(start_paused = true)]
    async fn stream_ends_after_30_s_of_silence() {
        let mut chunks = Box::pin(chunks(response_with_one_chunk()));
        assert_eq!(chunks.next().await.expect("a chunk"), "data: 1\n\n");
        let silent_since = Instant::now();
        let end = tokio::time::timeout(SILENCE_TIMEOUT + Duration::from_secs(1), chunks.next()).await;
        assert_eq!(end.expect("the silence ends the stream"), None);
        assert_eq!(silent_since.elapsed(), SILENCE_TIMEOUT);
    }
}
