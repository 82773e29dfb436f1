use openraft::storage::Snapshot;

use super::super::level::FeatureLevel;
use super::super::types::{SnapshotMeta, log_id};
use super::super::wire::AppendReply;
use super::*;
use crate::clock::SystemClock;
use crate::config::RaftTimings;
use crate::sim::{MemoryStorage, SyncMode};
use crate::storage::{Position, VoteRecord};

const INDEX: u64 = 41;

fn no_commits() -> Arc<AnnouncedCommits> {
    Arc::new(AnnouncedCommits::new(Arc::new(SystemClock)))
}

/// What becomes of the messages.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Answered,
    Lost,
    /// The answer never comes.
    Pending,
    /// Answered as a part of a snapshot, which other calls report as an unexpected type of answer.
    Continued,
}

/// A transport that writes down the announced commit index at the moment when a message leaves.
#[derive(Clone)]
struct Recorder {
    announced: Arc<AnnouncedCommits>,
    seen: Arc<Mutex<Vec<(Lane, u64)>>>,
    fate: Fate,
}

impl Transport for Recorder {
    async fn call(&self, target: NodeId, _: &str, lane: Lane, _: Payload, _: Duration) -> Result<Bytes, PeerError> {
        self.seen.lock().push((lane, self.announced.highest()));
        match self.fate {
            Fate::Answered => Ok(wire::encode(&Reply::Append(AppendReply::Success))),
            Fate::Lost => Err(PeerError::Lost { target, reason: "the test loses it".to_owned() }),
            Fate::Pending => std::future::pending().await,
            Fate::Continued => Ok(wire::encode(&Reply::SnapshotContinue)),
        }
    }

    async fn is_refused(&self, _: NodeId, _: &str) -> bool {
        unreachable!("only the module `node` calls it")
    }

    async fn shutdown(&self) {}
}

/// Heartbeats have a shorter timeout, because their answers need no disk.
#[tokio::test]
async fn append_with_entries_may_wait_for_a_disk() {
    #[derive(Clone, Default)]
    struct Timeouts(Arc<Mutex<Vec<(Lane, Duration)>>>);

    impl Transport for Timeouts {
        async fn call(
            &self,
            target: NodeId,
            _: &str,
            lane: Lane,
            _: Payload,
            timeout: Duration,
        ) -> Result<Bytes, PeerError> {
            self.0.lock().push((lane, timeout));
            Err(PeerError::Timeout { target, timeout })
        }

        async fn is_refused(&self, _: NodeId, _: &str) -> bool {
            unreachable!("only the module `node` calls it")
        }

        async fn shutdown(&self) {}
    }

    for (timings, least) in [(RaftTimings::lan(), Duration::from_secs(2)), (RaftTimings::wan(), Duration::ZERO)] {
        let transport = Timeouts::default();
        let disk_timeout = timings.disk_timeout();
        assert!(disk_timeout >= least.max(timings.leadership_lease() * 2), "{disk_timeout:?} with {timings:?}");
        let heartbeat = Duration::from_millis(timings.heartbeat_interval_ms);
        let network = Network {
            transport: transport.clone(),
            storage: MemoryStorage::new(SyncMode::default()),
            replica: Replica::new(Vec::new(), FeatureLevel::SUPPORTED),
            announced: no_commits(),
            sending: OutgoingSnapshots::default(),
            quorum: Arc::default(),
            disk_timeout,
        };
        for lane in [Lane::Log, Lane::Control] {
            let leader = VoteRecord { term: 7, candidate: Some(1), committed: true };
            let (vote, prev_log_id) = (vote(leader, 1), None);
            let request = AppendEntriesRequest { vote, prev_log_id, leader_commit: None, entries: Vec::new() };
            let mut link = network.link(2, &PeerInfo::default(), lane);
            let unanswered = link.append_entries(request, RPCOption::new(heartbeat)).await;
            assert!(unanswered.is_err(), "{unanswered:?}");
        }
        let expected = [(Lane::Log, disk_timeout), (Lane::Control, RPCOption::new(heartbeat).soft_ttl())];
        assert_eq!(*transport.0.lock(), expected);
    }
}

/// A receiver that installs a large snapshot for longer than one call may take.
#[tokio::test(start_paused = true)]
async fn end_of_a_snapshot_is_asked_for_until_it_is_installed() {
    #[derive(Clone)]
    struct SlowInstall(Arc<Mutex<Vec<Call>>>, usize);

    impl Transport for SlowInstall {
        async fn call(
            &self,
            target: NodeId,
            _: &str,
            _: Lane,
            payload: Payload,
            timeout: Duration,
        ) -> Result<Bytes, PeerError> {
            let Payload::Raft(call) = payload else { unreachable!("only Raft calls it") };
            let call = wire::decode(&call).expect("readable");
            let Call::SnapshotEnd { vote, .. } = call else { return Ok(wire::encode(&Reply::SnapshotContinue)) };
            let asked = {
                let mut ends = self.0.lock();
                ends.push(call);
                ends.len()
            };
            if asked < self.1 {
                tokio::time::sleep(timeout).await;
                return Err(PeerError::Timeout { target, timeout });
            }
            Ok(wire::encode(&Reply::SnapshotEnd { vote }))
        }

        async fn is_refused(&self, _: NodeId, _: &str) -> bool {
            unreachable!("only the module `node` calls it")
        }

        async fn shutdown(&self) {}
    }

    let (disk_timeout, longest) = (Duration::from_secs(2), Duration::from_secs(120));
    for (answered, is_installed, asked) in [(1, true, 1), (30, true, 30), (1_000, false, 60)] {
        let storage = MemoryStorage::new(SyncMode::default());
        let mut writer = storage.begin_snapshot().expect("the store works");
        writer.push(b"snapshot").expect("the store works");
        let manifest = writer.finish_blocking(Vec::new()).expect("the store works");
        let transport = SlowInstall(Arc::default(), answered);
        let ends = transport.0.clone();
        let network = Network {
            transport,
            storage: storage.clone(),
            replica: Replica::new(Vec::new(), FeatureLevel::SUPPORTED),
            announced: no_commits(),
            sending: OutgoingSnapshots::default(),
            quorum: Arc::default(),
            disk_timeout,
        };
        let by = vote(VoteRecord { term: 7, candidate: Some(1), committed: true }, 1);
        let data = SnapshotData::Stored { store: storage, manifest };
        let snapshot = Snapshot { meta: SnapshotMeta::default(), snapshot: data };
        let mut link = network.link(2, &PeerInfo::default(), Lane::Log);
        let option = RPCOption::new(longest);
        let sent = link.full_snapshot(by, snapshot, std::future::pending(), option).await;
        assert_eq!((sent.is_ok(), ends.lock().len()), (is_installed, asked), "answered at {answered}: {sent:?}");
    }
}

/// The leader stops to lead, or removes the follower.
#[tokio::test(start_paused = true)]
async fn cancelled_send_of_a_snapshot_ends() {
    let seen = Arc::default();
    let transport = Recorder { announced: no_commits(), seen: Arc::clone(&seen), fate: Fate::Pending };
    let storage = MemoryStorage::new(SyncMode::default());
    let mut writer = storage.begin_snapshot().expect("the store works");
    writer.push(b"snapshot").expect("the store works");
    let manifest = writer.finish_blocking(Vec::new()).expect("the store works");
    let sending = OutgoingSnapshots::default();
    let network = Network {
        transport,
        storage: storage.clone(),
        replica: Replica::new(Vec::new(), FeatureLevel::SUPPORTED),
        announced: no_commits(),
        sending: sending.clone(),
        quorum: Arc::default(),
        disk_timeout: Duration::from_secs(2),
    };
    let by = vote(VoteRecord { term: 7, candidate: Some(1), committed: true }, 1);
    let snapshot =
        Snapshot { meta: SnapshotMeta::default(), snapshot: SnapshotData::Stored { store: storage, manifest } };
    let cancel = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        ReplicationClosed::new("the leader stops to lead")
    };
    let mut link = network.link(2, &PeerInfo::default(), Lane::Log);
    let send = link.full_snapshot(by, snapshot, cancel, RPCOption::new(Duration::from_secs(120)));
    let sent = tokio::time::timeout(Duration::from_secs(2), send).await.expect("it ends with the cancel");
    assert!(matches!(sent, Err(StreamingError::Closed(_))), "{sent:?}");
    assert_eq!(seen.lock().len(), 1, "the transfer began");
    assert!(!sending.defers_next(), "the next snapshot may be taken");
}

/// Entries and snapshots are large. Heartbeats, votes and transfers must not wait behind them.
#[tokio::test]
async fn each_kind_of_message_has_its_lane() {
    let seen = Arc::default();
    let transport = Recorder { announced: no_commits(), seen: Arc::clone(&seen), fate: Fate::Continued };
    let storage = MemoryStorage::new(SyncMode::default());
    let mut network = Network {
        transport,
        storage: storage.clone(),
        replica: Replica::new(Vec::new(), FeatureLevel::SUPPORTED),
        announced: no_commits(),
        sending: OutgoingSnapshots::default(),
        quorum: Arc::default(),
        disk_timeout: Duration::from_secs(1),
    };
    let mut log = network.new_client(2, &PeerInfo::default()).await;
    let mut heartbeat = network.new_heartbeat_client(2, &PeerInfo::default()).await;
    let lanes = || seen.lock().drain(..).map(|(lane, _): (Lane, u64)| lane).collect::<Vec<_>>();
    let by = vote(VoteRecord { term: 7, candidate: Some(1), committed: true }, 1);
    let option = || RPCOption::new(Duration::from_secs(1));
    let append = || AppendEntriesRequest { vote: by, prev_log_id: None, leader_commit: None, entries: Vec::new() };
    log.append_entries(append(), option()).await.expect_err("another type of answer");
    assert_eq!(lanes(), [Lane::Log], "entries");
    heartbeat.append_entries(append(), option()).await.expect_err("another type of answer");
    assert_eq!(lanes(), [Lane::Control], "a heartbeat");
    for link in [&mut log, &mut heartbeat] {
        link.vote(VoteRequest::new(by, None), option()).await.expect_err("another type of answer");
        link.pre_vote(VoteRequest::new(by, None), option()).await.expect_err("another type of answer");
        let transfer = TransferLeaderRequest::new(by, 2, None);
        link.transfer_leader(transfer, option()).await.expect_err("another type of answer");
        assert_eq!(lanes(), [Lane::Control; 3], "two votes and a transfer");
    }
    let mut writer = storage.begin_snapshot().expect("the store works");
    writer.push(b"snapshot").expect("the store works");
    let manifest = writer.finish_blocking(Vec::new()).expect("the store works");
    let snapshot =
        Snapshot { meta: SnapshotMeta::default(), snapshot: SnapshotData::Stored { store: storage, manifest } };
    let sent = log.full_snapshot(by, snapshot, std::future::pending(), option()).await;
    sent.expect_err("another type of answer");
    assert_eq!(lanes(), [Lane::Snapshot; 3], "the begin, the bytes and the end");
}

#[tokio::test]
async fn commit_index_is_announced_before_its_message_leaves() {
    for lane in [Lane::Log, Lane::Control] {
        for fate in [Fate::Answered, Fate::Lost, Fate::Pending] {
            let announced = no_commits();
            let seen = Arc::default();
            let transport = Recorder { announced: announced.clone(), seen: Arc::clone(&seen), fate };
            let (storage, sending) = (MemoryStorage::new(SyncMode::default()), OutgoingSnapshots::default());
            let disk_timeout = Duration::from_secs(1);
            let replica = Replica::new(Vec::new(), FeatureLevel::SUPPORTED);
            let network = Network {
                transport,
                storage,
                replica,
                announced: announced.clone(),
                sending,
                quorum: Arc::default(),
                disk_timeout,
            };
            let mut link = network.link(2, &PeerInfo::default(), lane);
            let send = |link: &mut Link<MemoryStorage, Recorder>, index: u64| {
                let leader = VoteRecord { term: 7, candidate: Some(1), committed: true };
                let request = AppendEntriesRequest {
                    vote: vote(leader, 1),
                    prev_log_id: None,
                    leader_commit: Some(log_id(Position { term: 7, index })),
                    entries: Vec::new(),
                };
                let mut append = Box::pin(link.append_entries(request, RPCOption::new(disk_timeout)));
                let polled = futures_util::FutureExt::now_or_never(append.as_mut());
                assert_eq!(polled.is_none(), matches!(fate, Fate::Pending), "{lane:?}, {fate:?}");
            };
            send(&mut link, INDEX);
            // A later message with an earlier index takes nothing back.
            send(&mut link, INDEX - 1);
            assert_eq!(*seen.lock(), [(lane, INDEX), (lane, INDEX)], "{fate:?}");
            assert_eq!(announced.highest(), INDEX, "{lane:?}, {fate:?}");
        }
    }
}

/// openraft makes a message before the answer to an earlier one, and other messages announce later commits meanwhile.
#[test]
fn append_shows_what_any_message_announced() {
    let announced = no_commits();
    let network = Network {
        transport: Recorder { announced: announced.clone(), seen: Arc::default(), fate: Fate::Pending },
        storage: MemoryStorage::new(SyncMode::default()),
        replica: Replica::new(Vec::new(), FeatureLevel::SUPPORTED),
        announced: announced.clone(),
        sending: OutgoingSnapshots::default(),
        quorum: Arc::default(),
        disk_timeout: Duration::from_secs(1),
    };
    let shown = |term, index| {
        let leader = VoteRecord { term: 7, candidate: Some(1), committed: true };
        let leader_commit = Some(log_id(Position { term, index }));
        let request =
            AppendEntriesRequest { vote: vote(leader, 1), prev_log_id: None, leader_commit, entries: Vec::new() };
        network.shown(&Append::new(&request))
    };
    assert_eq!(shown(6, INDEX), None, "an earlier leader may have committed more");
    announced.announce(INDEX, 0);
    assert_eq!(shown(7, INDEX), Some(INDEX));
    announced.announce(INDEX + 9, 0);
    assert_eq!(shown(7, INDEX), Some(INDEX + 9));
}

mod joined_commits {
    use openraft::entry::RaftEntry;
    use tokio::sync::mpsc;

    use super::super::super::types::Entry;
    use super::*;

    /// tokio's time has whole milliseconds.
    const LATER: Duration = Duration::from_millis(5);

    fn append(commit: u64, entries: impl IntoIterator<Item = u64>) -> AppendEntriesRequest<TypeConfig> {
        let leader = VoteRecord { term: 7, candidate: Some(1), committed: true };
        let at = |index| log_id(Position { term: 7, index });
        let entries: Vec<Entry> = entries.into_iter().map(|index| Entry::new_blank(at(index))).collect();
        AppendEntriesRequest {
            vote: vote(leader, 1),
            prev_log_id: Some(at(INDEX)),
            leader_commit: Some(at(commit)),
            entries,
        }
    }

    /// Sends each append after its pause. Returns the commit, the number of entries and the time of each append that leaves.
    async fn sent(
        appends: impl IntoIterator<Item = (Duration, AppendEntriesRequest<TypeConfig>)>,
    ) -> Vec<(u64, usize, Duration)> {
        let began = Instant::now();
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let input = Box::pin(stream::poll_fn(move |context| receiver.poll_recv(context)));
        let leaving = join_commits(input).map(|append| {
            let commit = append.leader_commit.map_or(0, |commit| commit.index);
            (commit, append.entries.len(), began.elapsed())
        });
        let send_all = async move {
            for (pause, append) in appends {
                tokio::time::sleep(pause).await;
                sender.send(append).expect("the stream is read");
            }
            // The stream stays open.
            tokio::time::sleep(10 * COMMIT_DELAY).await;
        };
        tokio::join!(leaving.collect::<Vec<_>>(), send_all).0
    }

    #[tokio::test(start_paused = true)]
    async fn entry_announces_the_commit_before_it() {
        let sent = sent([(LATER, append(INDEX, [])), (Duration::ZERO, append(INDEX, [INDEX + 1]))]).await;
        assert_eq!(sent, [(INDEX, 1, LATER)]);
    }

    #[tokio::test(start_paused = true)]
    async fn commit_waits_a_short_time_and_entries_do_not() {
        let entries = append(INDEX, [INDEX + 1]);
        let sent = sent([(LATER, entries.clone()), (LATER, entries), (LATER, append(INDEX + 1, []))]).await;
        let late = sent.last().map_or(Duration::ZERO, |(.., at)| *at);
        assert_eq!(sent, [(INDEX, 1, LATER), (INDEX, 1, 2 * LATER), (INDEX + 1, 0, late)]);
        assert!((3 * LATER + COMMIT_DELAY..=3 * LATER + 2 * COMMIT_DELAY).contains(&late), "{sent:?}");
    }

    /// Commits without end would otherwise delay all of them.
    #[tokio::test(start_paused = true)]
    async fn second_commit_does_not_wait() {
        let pauses = [LATER, Duration::ZERO, LATER, Duration::ZERO];
        let sent = sent(pauses.into_iter().zip(0..).map(|(pause, n)| (pause, append(INDEX + n, [])))).await;
        assert_eq!(sent, [(INDEX + 1, 0, LATER), (INDEX + 3, 0, 2 * LATER)]);
    }

    /// The probe of a new leader is the only append of its stream.
    #[tokio::test(start_paused = true)]
    async fn last_append_of_a_stream_leaves_at_once() {
        let began = Instant::now();
        let left: Vec<_> = join_commits(stream::iter([append(INDEX, [])])).collect().await;
        assert_eq!((left.len(), began.elapsed()), (1, Duration::ZERO));
    }
}
