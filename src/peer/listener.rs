//! The answering end: accepts connections, checks callers, and serves requests.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::frame::{self, Frame, FrameKind};
use super::handshake::{self, Incarnations, PeerIdentity, PeerRefusal};
use super::outbox::Outbox;
use super::{Lane, Payload, PeerListener, Service, Services};
use crate::accept::Acceptor;
use crate::tls::{Handshake, NodeTls, Reader, Stream};
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
/// The name of a connection in the log.
const KIND: &str = "peer connection";

/// A [`PeerListener`] over TCP, with or without TLS.
pub struct TcpPeerListener {
    listener: TcpListener,
    tls: Option<NodeTls>,
}

impl TcpPeerListener {
    pub fn new(listener: TcpListener, tls: Option<NodeTls>) -> TcpPeerListener {
        TcpPeerListener { listener, tls }
    }
}

impl PeerListener for TcpPeerListener {
    async fn closed_during<W: Future<Output: Send> + Send>(&self, work: W) -> W::Output {
        let close_all = async {
            let mut acceptor = Acceptor::new(&self.listener, KIND);
            loop {
                drop(acceptor.next().await);
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            never = close_all => never,
        }
    }

    async fn serve<R: Service, N: Service>(
        self,
        identity: PeerIdentity,
        incarnations: Arc<dyn Incarnations>,
        services: Services<R, N>,
        stop: CancellationToken,
    ) {
        let TcpPeerListener { listener, tls } = self;
        let (services, identity) = (Arc::new(services), Arc::new(identity));
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let (tasks, refusals) = (TaskTracker::new(), Arc::new(RefusalLog::default()));
        let latest = Arc::new(LatestConnections::default());
        let mut acceptor = Acceptor::new(&listener, KIND);
        loop {
            let (stream, address) = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                accepted = acceptor.next() => accepted,
            };
            let Ok(permit) = permits.clone().try_acquire_owned() else {
                refusals.log("limit", &format!("{MAX_CONNECTIONS} connections are open, and no more are allowed"));
                continue;
            };
            let (identity, incarnations, services) = (identity.clone(), incarnations.clone(), services.clone());
            let (tls, refusals, latest, stop) = (tls.clone(), refusals.clone(), latest.clone(), stop.child_token());
            tasks.spawn(async move {
                let from = address.ip();
                match answer_caller(stream, tls, &identity, &*incarnations, services, &latest, stop).await {
                    Ok(Err(reason)) => refusals.log(&reason, &format!("from {from}: {reason}")),
                    // A caller that sends invalid data or nothing is rarely a node of the cluster, so log its address for the
                    // operator.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        refusals.log(&from.to_string(), &format!("from {from}: {error}"));
                    }
                    Err(error) => tracing::debug!(%error, %address, "peer connection ended"),
                    Ok(Ok(())) => {}
                }
                drop(permit);
            });
        }
        drop(listener);
        tasks.close();
        tasks.wait().await;
    }
}

/// Serves one connection until its end, or returns why the caller is refused.
async fn answer_caller<R: Service, N: Service>(
    stream: TcpStream,
    tls: Option<NodeTls>,
    identity: &PeerIdentity,
    incarnations: &dyn Incarnations,
    services: Arc<Services<R, N>>,
    latest: &LatestConnections,
    stop: CancellationToken,
) -> io::Result<Result<(), String>> {
    super::prepare(&stream)?;
    let handshake = async {
        let (mut stream, certificate) = match &tls {
            Some(tls) => {
                let handshake = Handshake::begin("peer");
                let accepted = tls.accept_peer(stream).await?;
                handshake.complete();
                accepted
            }
            None => (Stream::Plain(stream), None),
        };
        let answered = handshake::answer(&mut stream, identity, incarnations, certificate.as_ref()).await?;
        if let (Some(tls), Some(certificate), Ok((from, _))) = (&tls, &certificate, &answered) {
            tls.remember(*from, certificate);
        }
        let reason = |refusal: PeerRefusal| match (&refusal, &certificate) {
            (PeerRefusal::OtherCertificate { .. }, Some(certificate)) => {
                format!("{refusal}. The certificate names {}", certificate.names())
            }
            _ => refusal.to_string(),
        };
        io::Result::Ok(answered.map(|caller| (stream, caller)).map_err(reason))
    };
    let outcome = tokio::select! {
        () = stop.cancelled() => return Ok(Ok(())),
        done = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake) => done,
    };
    let silent = |_| {
        let why = format!("it did not complete the handshake within {HANDSHAKE_TIMEOUT:?}");
        io::Error::new(io::ErrorKind::InvalidData, why)
    };
    let (stream, (from, lane)) = match outcome.map_err(silent)?? {
        Ok(caller) => caller,
        Err(reason) => return Ok(Err(reason)),
    };
    let calls = TaskTracker::new();
    let reads = calls.token();
    if lane != Lane::Control {
        latest.replace(from, lane, &stop, &calls).await;
    }
    let (reader, writer) = stream.into_split();
    let connection = InboundConnection {
        from,
        lane,
        services,
        outbox: Arc::new(Outbox::new()),
        in_flight: Arc::default(),
        permits: Arc::new(Semaphore::new(if lane.in_order() { 1 } else { MAX_IN_FLIGHT })),
        calls: calls.clone(),
    };
    let (outbox, closed) = (connection.outbox.clone(), stop.child_token());
    let broken = closed.clone();
    calls.spawn(async move {
        if let Err(error) = outbox.write_to(writer, &broken).await {
            tracing::debug!(%error, "an answer could not be sent");
        }
        broken.cancel();
    });
    let read = tokio::select! {
        biased;
        () = closed.cancelled() => Ok(()),
        read = connection.read_requests(reader) => read,
    };
    if lane == Lane::Control && !stop.is_cancelled() {
        connection.services.disconnected(from);
    }
    for (_, call) in connection.in_flight.lock().drain() {
        call.abort();
    }
    // The caller does not read an answer that is still written.
    stop.cancel();
    drop(reads);
    calls.close();
    calls.wait().await;
    latest.forget(from, lane, &calls);
    read.map(Ok)
}

/// The latest connection of each node on each lane except [`Lane::Control`].
///
/// A node that opens another connection has given up the requests on the one before, and may send them again. So a
/// connection serves nothing before the earlier one has ended: a request that the kernel still holds there is not
/// carried out after its repetition. On a lane in order, a connection does not notice its end while a call waits for the
/// disk, and a late part of a snapshot would disturb the next transfer.
#[derive(Default)]
struct LatestConnections(Mutex<HashMap<(NodeId, Lane), LatestConnection>>);

struct LatestConnection {
    /// Ends the connection.
    stop: CancellationToken,
    /// Its reader and its calls.
    calls: TaskTracker,
}

impl LatestConnections {
    /// Ends the earlier connection of this node and lane, and waits until no call of it runs.
    async fn replace(&self, from: NodeId, lane: Lane, stop: &CancellationToken, calls: &TaskTracker) {
        let latest = LatestConnection { stop: stop.clone(), calls: calls.clone() };
        let earlier = self.0.lock().insert((from, lane), latest);
        if let Some(earlier) = earlier {
            earlier.stop.cancel();
            earlier.calls.close();
            earlier.calls.wait().await;
        }
    }

    /// Forgets a connection that has ended, unless a later one has replaced it: a faulty peer can present a new node id
    /// with each connection.
    fn forget(&self, from: NodeId, lane: Lane, calls: &TaskTracker) {
        let mut latest = self.0.lock();
        if latest.get(&(from, lane)).is_some_and(|last| TaskTracker::ptr_eq(&last.calls, calls)) {
            latest.remove(&(from, lane));
        }
    }
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
struct InboundConnection<R, N> {
    from: NodeId,
    lane: Lane,
    services: Arc<Services<R, N>>,
    /// The answers, each with the permit of its request.
    outbox: Arc<Outbox<OwnedSemaphorePermit>>,
    in_flight: Arc<Mutex<HashMap<u64, AbortHandle>>>,
    permits: Arc<Semaphore>,
    calls: TaskTracker,
}

impl<R: Service, N: Service> InboundConnection<R, N> {
    async fn read_requests(&self, reader: Reader) -> io::Result<()> {
        let mut reader = BufReader::with_capacity(64 << 10, reader);
        while let Some(frame) = frame::read(&mut reader, self.lane.max_body()).await? {
            match frame.kind {
                FrameKind::Raft => self.answer(frame.id, Payload::Raft(frame.body)).await,
                FrameKind::Node => self.answer(frame.id, Payload::Node(frame.body)).await,
                FrameKind::Withdraw => {
                    if let Some(call) = self.in_flight.lock().remove(&frame.id) {
                        call.abort();
                    }
                }
                FrameKind::Response | FrameKind::NoAnswer => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the caller sent an answer: expected a request",
                    ));
                }
            }
        }
        Ok(())
    }

    /// On a lane in order, serves the request before the next one is read. On other lanes, spawns a task, so that a waiting
    /// request does not delay others.
    async fn answer(&self, id: u64, payload: Payload) {
        let permit = self.permits.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (services, outbox, in_flight) = (self.services.clone(), self.outbox.clone(), self.in_flight.clone());
        let (from, lane) = (self.from, self.lane);
        if lane.in_order() {
            let body = services.serve(from, payload).await;
            outbox.add(Frame::answer(id, body, lane), permit);
            return;
        }
        // Hold the lock while spawning, so that the task cannot remove its entry before the insert.
        let mut entries = self.in_flight.lock();
        let call = self.calls.spawn(async move {
            let body = services.serve(from, payload).await;
            // Without an entry, the request was withdrawn.
            if in_flight.lock().remove(&id).is_some() {
                outbox.add(Frame::answer(id, body, lane), permit);
            }
        });
        entries.insert(id, call.abort_handle());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that lost its power would occupy a connection forever.
    #[cfg(all(target_os = "linux", feature = "testing"))]
    #[tokio::test]
    async fn kernel_ends_an_accepted_connection_after_5_s() {
        use futures_util::FutureExt;
        use rustix::net::sockopt::{socket_keepalive, tcp_keepcnt, tcp_keepidle, tcp_keepintvl, tcp_user_timeout};

        use crate::peer::tests::{AcceptAll, Uncalled, identity};

        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let _caller = TcpStream::connect(listener.local_addr().expect("it is bound")).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("a connection");
        let stream = stream.into_std().expect("a socket");
        let socket = stream.try_clone().expect("a free file descriptor");
        let stream = TcpStream::from_std(stream).expect("a socket");
        let services = Arc::new(Services { raft: Uncalled, node: Uncalled });
        let (answering, latest, stop) = (identity(2), LatestConnections::default(), CancellationToken::new());
        let answered = answer_caller(stream, None, &answering, &AcceptAll, services, &latest, stop);
        assert!(std::pin::pin!(answered).now_or_never().is_none(), "the caller has not sent its handshake");
        assert!(socket.nodelay().expect("a socket") && socket_keepalive(&socket).expect("a socket"));
        let (first, next) = (tcp_keepidle(&socket).expect("a socket"), tcp_keepintvl(&socket).expect("a socket"));
        assert_eq!(first + next * tcp_keepcnt(&socket).expect("a socket"), Duration::from_secs(5));
        assert_eq!(tcp_user_timeout(&socket).expect("a socket"), 5_000);
    }

    /// The log has the refusals for invalid data.
    #[cfg(feature = "testing")]
    #[tokio::test(start_paused = true)]
    async fn silent_caller_is_refused_as_one_that_sends_invalid_data() {
        use crate::peer::tests::{AcceptAll, Uncalled, identity};

        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let _caller = TcpStream::connect(listener.local_addr().expect("it is bound")).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("a connection");
        let services = Arc::new(Services { raft: Uncalled, node: Uncalled });
        let (answering, latest, stop) = (identity(2), LatestConnections::default(), CancellationToken::new());
        let began = tokio::time::Instant::now();
        let answered = answer_caller(stream, None, &answering, &AcceptAll, services, &latest, stop).await;
        let error = answered.expect_err("the caller is silent");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        assert!(began.elapsed() >= HANDSHAKE_TIMEOUT, "{:?}", began.elapsed());
    }

    /// Each client of the cluster has a certificate of the CA.
    #[cfg(all(feature = "testing", feature = "cli"))]
    #[tokio::test]
    async fn foreign_certificate_is_logged_once_with_its_names() {
        use crate::peer::tests::{AcceptAll, HANG_TIMEOUT, Uncalled, identity};
        use crate::telemetry::tests::capture;
        use crate::tls::tests::Authority;

        let ca = Authority::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (written, _logged_here) = capture();
        let stop = CancellationToken::new();
        let served = tokio::spawn(TcpPeerListener::new(listener, Some(ca.node("test", 2))).serve(
            identity(2),
            Arc::new(AcceptAll),
            Services { raft: Uncalled, node: Uncalled },
            stop.clone(),
        ));
        let caller = ca.node("test", 3);
        for _ in 0..3 {
            let call = async {
                let stream = TcpStream::connect(address).await?;
                let mut stream = caller.connect_peer(stream, 2).await?;
                handshake::call(&mut stream, &identity(1), 2, Lane::Log, &AcceptAll).await
            };
            let called = tokio::time::timeout(HANG_TIMEOUT, call).await.expect("an answer").expect("no I/O error");
            let refused = PeerRefusal::OtherCertificate { node: 1, cluster: "test".to_owned() };
            assert_eq!(called, Err(refused));
        }
        stop.cancel();
        served.await.expect("no panic");
        let lines = written.text();
        let warnings: Vec<&str> = lines.lines().filter(|line| line.contains("WARN")).collect();
        assert_eq!(warnings.len(), 1, "{lines}");
        assert!(warnings[0].contains("tenure://test/node/3"), "{lines}");
    }

    #[cfg(feature = "testing")]
    #[tokio::test]
    async fn ended_connection_of_a_node_is_forgotten() {
        use crate::peer::tests::{AcceptAll, HANG_TIMEOUT, Uncalled, connect, identity};

        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let services = Arc::new(Services { raft: Uncalled, node: Uncalled });
        let (answering, latest, stop) = (identity(2), LatestConnections::default(), CancellationToken::new());
        let answered = async {
            let (stream, _) = listener.accept().await.expect("a connection");
            answer_caller(stream, None, &answering, &AcceptAll, services, &latest, stop).await.map(drop)
        };
        // The caller hangs up after its handshake.
        let called = async { connect(&address, Lane::Request).await.map(drop) };
        let both = tokio::time::timeout(HANG_TIMEOUT, async { tokio::join!(answered, called) });
        let (_may_be_reset, called) = both.await.expect("the connection ends");
        called.expect("node 1 is admitted");
        assert!(latest.0.lock().is_empty());
    }

    /// The task of the first connection ends after the second connection has replaced it.
    #[tokio::test]
    async fn ended_connection_forgets_no_later_one() {
        let latest = LatestConnections::default();
        let [first, second, third] = [(); 3].map(|()| (CancellationToken::new(), TaskTracker::new()));
        for (stop, calls) in [&first, &second] {
            latest.replace(1, Lane::Request, stop, calls).await;
        }
        latest.forget(1, Lane::Request, &first.1);
        latest.replace(1, Lane::Request, &third.0, &third.1).await;
        assert!(second.0.is_cancelled(), "its requests would run beside their repetitions");
        assert!(!third.0.is_cancelled());
    }

    #[test]
    fn refusal_is_logged_again_after_10_s() {
        let refusals = RefusalLog::default();
        let pass = |time: Duration| {
            for (_, at) in refusals.0.lock().iter_mut() {
                *at = at.checked_sub(time).expect("the machine has run for longer");
            }
        };
        let log = |subjects: &[&str]| {
            subjects.iter().for_each(|subject| refusals.log(subject, "a reason"));
            refusals.0.lock().iter().map(|(subject, _)| subject.clone()).collect::<Vec<_>>()
        };
        let many: Vec<String> = (1..=16).map(|subject| subject.to_string()).collect();
        let first = log(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(first, many);
        pass(Duration::from_secs(9));
        assert_eq!(log(&["1", "17"]), many, "after 9 s");
        pass(Duration::from_secs(1));
        assert_eq!(log(&["1", "17"]), ["1", "17"], "after 10 s");
    }

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
