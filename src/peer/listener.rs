//! The answering end: accepts connections, checks callers, and serves requests.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::BufReader;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::frame::{self, Frame, Kind};
use super::handshake::{self, Identity, Incarnations};
use super::{Lane, Service};
use crate::types::NodeId;

/// Maximum open connections: five lanes from each of the other nodes, and room for those that have just broken.
const MAX_CONNECTIONS: usize = 256;
/// Maximum time for a caller to complete the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum requests in flight on one connection. Further ones wait in the kernel.
const MAX_UNDER_WAY: usize = 32_768;
/// The log repeats a refusal of the same subject only after this time.
const REFUSAL_SILENCE: Duration = Duration::from_secs(10);
/// Maximum different refusals that are logged within [`REFUSAL_SILENCE`].
const MAX_REFUSALS: usize = 16;
/// The wait after a failed accept, which usually means that no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves callers until `stop`. Then it closes every connection and returns after all of its tasks have ended.
///
/// # Cancel safety
///
/// Dropping the future closes the listener. Open connections continue until `stop`.
pub async fn serve<S: Service>(
    listener: TcpListener,
    identity: Identity,
    incarnations: Arc<dyn Incarnations>,
    service: S,
    stop: CancellationToken,
) {
    let (service, identity) = (Arc::new(service), Arc::new(identity));
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let (tasks, refused) = (TaskTracker::new(), Arc::new(Refused::default()));
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a peer connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = room.clone().try_acquire_owned() else {
            refused.say("limit", &format!("{MAX_CONNECTIONS} connections are open, and no more are allowed"));
            continue;
        };
        let (identity, incarnations, service) = (identity.clone(), incarnations.clone(), service.clone());
        let (refused, tracker, stop) = (refused.clone(), tasks.clone(), stop.clone());
        tasks.spawn(async move {
            match answer_caller(stream, &identity, &*incarnations, service, &refused, tracker, stop).await {
                // No node of a cluster sends invalid data, so log the address of this caller for the operator.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    let from = address.ip().to_string();
                    refused.say(&from, &format!("from {from}: {error}"));
                }
                Err(error) => tracing::debug!(%error, %address, "peer connection ended"),
                Ok(()) => {}
            }
            drop(place);
        });
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

async fn answer_caller<S: Service>(
    mut stream: TcpStream,
    identity: &Identity,
    incarnations: &dyn Incarnations,
    service: Arc<S>,
    refused: &Refused,
    tasks: TaskTracker,
    stop: CancellationToken,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let met = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        met = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake::answer(&mut stream, identity, incarnations)) => met,
    };
    let (from, lane) = match met.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
        Ok(caller) => caller,
        Err(reason) => {
            let reason = reason.to_string();
            refused.say(&reason, &reason);
            return Ok(());
        }
    };
    let (reader, writer) = stream.into_split();
    let calls = Calls {
        from,
        lane,
        service,
        writer: Arc::new(tokio::sync::Mutex::new(writer)),
        under_way: Arc::default(),
        room: Arc::new(Semaphore::new(MAX_UNDER_WAY)),
        tasks,
    };
    let read = tokio::select! {
        () = stop.cancelled() => Ok(()),
        read = calls.read_requests(reader) => read,
    };
    for (_, call) in calls.under_way.lock().drain() {
        call.abort();
    }
    read
}

/// The recently logged refusals. They limit the log, because a refused node retries many times a second.
#[derive(Default)]
struct Refused(Mutex<Vec<(String, Instant)>>);

impl Refused {
    /// Logs the refusal unless one of `subject` was logged within [`REFUSAL_SILENCE`].
    fn say(&self, subject: &str, reason: &str) {
        let mut said = self.0.lock();
        said.retain(|(_, at)| at.elapsed() < REFUSAL_SILENCE);
        if said.len() < MAX_REFUSALS && said.iter().all(|(earlier, _)| earlier != subject) {
            tracing::warn!(%reason, "refused a peer connection");
            said.push((subject.to_owned(), Instant::now()));
        }
    }
}

/// The requests of one connection.
struct Calls<S> {
    from: NodeId,
    lane: Lane,
    service: Arc<S>,
    writer: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    under_way: Arc<Mutex<HashMap<u64, AbortHandle>>>,
    room: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl<S: Service> Calls<S> {
    async fn read_requests(&self, reader: OwnedReadHalf) -> io::Result<()> {
        let mut reader = BufReader::with_capacity(64 << 10, reader);
        while let Some(frame) = frame::read(&mut reader, self.lane.max_body()).await? {
            match frame.kind {
                Kind::Request if self.lane.in_order() => {
                    let body = self.service.serve(self.from, self.lane, frame.body).await;
                    let answer = Frame::answer(frame.id, body, self.lane);
                    frame::write(&mut *self.writer.lock().await, &answer).await?;
                }
                Kind::Request => self.answer_beside(frame).await,
                Kind::Withdraw => {
                    if let Some(call) = self.under_way.lock().remove(&frame.id) {
                        call.abort();
                    }
                }
                Kind::Response | Kind::NoAnswer => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the caller sent an answer: expected a request",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Serves the request in a separate task, so that a waiting request does not delay others.
    async fn answer_beside(&self, frame: Frame) {
        let place = self.room.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (service, writer, under_way) = (self.service.clone(), self.writer.clone(), self.under_way.clone());
        let (from, lane, id) = (self.from, self.lane, frame.id);
        // Hold the lock while spawning, so that the task cannot remove its entry before the insert.
        let mut entries = self.under_way.lock();
        let call = self.tasks.spawn(async move {
            let body = service.serve(from, lane, frame.body).await;
            // Remove the entry before the write: a withdrawal must not abort the task in the middle of a frame.
            if under_way.lock().remove(&id).is_some() {
                let written = frame::write(&mut *writer.lock().await, &Frame::answer(id, body, lane)).await;
                if let Err(error) = written {
                    tracing::debug!(%error, "an answer could not be sent");
                }
            }
            drop(place);
        });
        entries.insert(id, call.abort_handle());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_16_subjects_are_logged() {
        let refused = Refused::default();
        for subject in 1..=17 {
            refused.say(&subject.to_string(), "a reason");
        }
        let said = refused.0.lock();
        assert_eq!((said.len(), said.last().map(|(subject, _)| subject.as_str())), (16, Some("16")));
    }
}
