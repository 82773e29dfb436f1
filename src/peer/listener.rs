//! The answering end: takes connections, checks who calls, and answers requests.

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

/// Most connections at once: five lanes from each of the other nodes, and room for those that have just broken.
const MAX_CONNECTIONS: usize = 256;
/// Longest time a caller may take to say who it is.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Most requests under way on one connection; further ones wait in the kernel.
const MAX_UNDER_WAY: usize = 32_768;
/// For how long the same refusal is not logged again, and how many different ones are logged in that time.
const REFUSAL_SILENCE: Duration = Duration::from_secs(10);
const MAX_REFUSALS: usize = 16;
/// Wait after a failed accept (usually: no file descriptors left) before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Answers calls until `stop`, then ends every connection and returns when nothing runs any more.
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
                tracing::warn!(%error, "cannot take a peer connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = room.clone().try_acquire_owned() else {
            refused.say("room", &format!("{MAX_CONNECTIONS} are open"));
            continue;
        };
        let (identity, incarnations, service) = (identity.clone(), incarnations.clone(), service.clone());
        let (refused, tracker, stop) = (refused.clone(), tasks.clone(), stop.clone());
        tasks.spawn(async move {
            match answer_caller(stream, &identity, &*incarnations, service, &refused, tracker, stop).await {
                // No node of a cluster says such things, so whoever runs it should know who does.
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

/// Refusals that were logged lately: a caller that does not belong tries again many times a second.
#[derive(Default)]
struct Refused(Mutex<Vec<(String, Instant)>>);

impl Refused {
    /// Says it, unless something was said about `subject` lately.
    fn say(&self, subject: &str, reason: &str) {
        let mut said = self.0.lock();
        said.retain(|(_, at)| at.elapsed() < REFUSAL_SILENCE);
        if said.len() < MAX_REFUSALS && said.iter().all(|(earlier, _)| earlier != subject) {
            tracing::warn!(%reason, "refused a peer connection");
            said.push((subject.to_owned(), Instant::now()));
        }
    }
}

/// What one caller has asked for.
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
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer from a caller"));
                }
            }
        }
        Ok(())
    }

    /// Answers in a task of its own, so that a request that waits does not hold up the others.
    async fn answer_beside(&self, frame: Frame) {
        let place = self.room.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (service, writer, under_way) = (self.service.clone(), self.writer.clone(), self.under_way.clone());
        let (from, lane, id) = (self.from, self.lane, frame.id);
        // Held while spawning: the task cannot remove its entry before it is there.
        let mut entries = self.under_way.lock();
        let call = self.tasks.spawn(async move {
            let body = service.serve(from, lane, frame.body).await;
            // Removed before writing: from here on a withdrawal must not cut the frame in two.
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
