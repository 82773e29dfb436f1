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
pub(super) const MAX_CONNECTIONS: usize = 256;
/// Maximum time for a caller to complete the handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum requests in flight on one connection. Further ones wait in the kernel.
pub(super) const MAX_IN_FLIGHT: usize = 32_768;
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
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let (tasks, refusals) = (TaskTracker::new(), Arc::new(RefusalLog::default()));
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
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            refusals.log("limit", &format!("{MAX_CONNECTIONS} connections are open, and no more are allowed"));
            continue;
        };
        let (identity, incarnations, service) = (identity.clone(), incarnations.clone(), service.clone());
        let (refusals, tracker, stop) = (refusals.clone(), tasks.clone(), stop.clone());
        tasks.spawn(async move {
            match answer_caller(stream, &identity, &*incarnations, service, &refusals, tracker, stop).await {
                // No node of a cluster sends invalid data, so log the address of this caller for the operator.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    let from = address.ip().to_string();
                    refusals.log(&from, &format!("from {from}: {error}"));
                }
                Err(error) => tracing::debug!(%error, %address, "peer connection ended"),
                Ok(()) => {}
            }
            drop(permit);
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
    refusals: &RefusalLog,
    tasks: TaskTracker,
    stop: CancellationToken,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let outcome = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        done = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake::answer(&mut stream, identity, incarnations)) => done,
    };
    let (from, lane) = match outcome.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
        Ok(caller) => caller,
        Err(reason) => {
            let reason = reason.to_string();
            refusals.log(&reason, &reason);
            return Ok(());
        }
    };
    let (reader, writer) = stream.into_split();
    let connection = InboundConnection {
        from,
        lane,
        service,
        writer: Arc::new(tokio::sync::Mutex::new(writer)),
        in_flight: Arc::default(),
        permits: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
        tasks,
    };
    let read = tokio::select! {
        () = stop.cancelled() => Ok(()),
        read = connection.read_requests(reader) => read,
    };
    for (_, call) in connection.in_flight.lock().drain() {
        call.abort();
    }
    read
}

/// The recently logged refusals. They limit the log, because a refused node retries many times a second.
#[derive(Default)]
struct RefusalLog(Mutex<Vec<(String, Instant)>>);

impl RefusalLog {
    /// Logs the refusal unless one of `subject` was logged within [`REFUSAL_SILENCE`].
    fn log(&self, subject: &str, reason: &str) {
        let mut logged = self.0.lock();
        logged.retain(|(_, at)| at.elapsed() < REFUSAL_SILENCE);
        if logged.len() < MAX_REFUSALS && logged.iter().all(|(earlier, _)| earlier != subject) {
            tracing::warn!(%reason, "refused a peer connection");
            logged.push((subject.to_owned(), Instant::now()));
        }
    }
}

/// The requests of one connection.
struct InboundConnection<S> {
    from: NodeId,
    lane: Lane,
    service: Arc<S>,
    writer: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    in_flight: Arc<Mutex<HashMap<u64, AbortHandle>>>,
    permits: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl<S: Service> InboundConnection<S> {
    async fn read_requests(&self, reader: OwnedReadHalf) -> io::Result<()> {
        let mut reader = BufReader::with_capacity(64 << 10, reader);
        while let Some(frame) = frame::read(&mut reader, self.lane.max_body()).await? {
            match frame.kind {
                Kind::Request if self.lane.in_order() => {
                    let body = self.service.serve(self.from, self.lane, frame.body).await;
                    let answer = Frame::answer(frame.id, body, self.lane);
                    frame::write(&mut *self.writer.lock().await, &answer).await?;
                }
                Kind::Request => self.answer_in_task(frame).await,
                Kind::Withdraw => {
                    if let Some(call) = self.in_flight.lock().remove(&frame.id) {
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
    async fn answer_in_task(&self, frame: Frame) {
        let permit = self.permits.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (service, writer, in_flight) = (self.service.clone(), self.writer.clone(), self.in_flight.clone());
        let (from, lane, id) = (self.from, self.lane, frame.id);
        // Hold the lock while spawning, so that the task cannot remove its entry before the insert.
        let mut entries = self.in_flight.lock();
        let call = self.tasks.spawn(async move {
            let body = service.serve(from, lane, frame.body).await;
            // Remove the entry before the write: a withdrawal must not abort the task in the middle of a frame.
            if in_flight.lock().remove(&id).is_some() {
                let written = frame::write(&mut *writer.lock().await, &Frame::answer(id, body, lane)).await;
                if let Err(error) = written {
                    tracing::debug!(%error, "an answer could not be sent");
                }
            }
            drop(permit);
        });
        entries.insert(id, call.abort_handle());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_16_subjects_are_logged() {
        let refusals = RefusalLog::default();
        for subject in 1..=17 {
            refusals.log(&subject.to_string(), "a reason");
        }
        let logged = refusals.0.lock();
        assert_eq!((logged.len(), logged.last().map(|(subject, _)| subject.as_str())), (16, Some("16")));
    }
}
