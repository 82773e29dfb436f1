//! The gate: concurrent callers, waiting, and failures of its store.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use futures_util::FutureExt;
use tenure::fence::{Admission, Gate, HighWater, HighWaterStore, MAX_WAITING, Refused, Volatile};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::token::token;

/// Waits until the token is the mark. The mark rises before the caller is inside.
async fn mark_is(gate: &Gate, resource: &str, index: u64) {
    while gate.highest(resource).token() != token(index) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn newer_write_starts_after_older_ones_and_blocks_further_ones() {
    let gate = Gate::in_memory();
    let (finish, finished) = oneshot::channel::<()>();
    let order = Arc::new(Mutex::new(Vec::new()));
    let record = |event| {
        let order = Arc::clone(&order);
        move || order.lock().unwrap().push(event)
    };
    let older = tokio::spawn({
        let (gate, began, ended) = (gate.clone(), record("older began"), record("older ended"));
        async move {
            let write = || async {
                began();
                finished.await.unwrap();
                ended();
            };
            gate.admit("a", token(1), write).await
        }
    });
    while order.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let newer = tokio::spawn({
        let (gate, began) = (gate.clone(), record("newer began"));
        async move { gate.admit("a", token(2), || async { began() }).await }
    });
    mark_is(&gate, "a", 2).await;
    let late = gate.admit("a", token(1), || async { unreachable!("the token is stale") }).await;
    assert!(matches!(late, Err(Refused::Stale(stale)) if stale.offered == token(1) && stale.highest == token(2)));
    gate.admit("b", token(1), || async {}).await.expect("other resources do not wait");
    finish.send(()).unwrap();
    older.await.unwrap().expect("the older caller was inside");
    newer.await.unwrap().expect("the token is the highest");
    assert_eq!(*order.lock().unwrap(), ["older began", "older ended", "newer began"]);
}

#[tokio::test]
async fn busy_gate_refuses_after_its_max_wait() {
    let gate = Gate::in_memory().with_max_wait(Duration::from_millis(50));
    let inside = gate.enter("a", token(1)).await.expect("the first");
    let busy = gate.admit("a", token(2), || async { unreachable!("an older caller is inside") }).await.unwrap_err();
    let Refused::Busy { offered, older, waited } = busy else { panic!("{busy}") };
    assert_eq!((offered, older, waited), (token(2), token(1), Duration::from_millis(50)));
    drop(inside);
    gate.admit("a", token(2), || async {}).await.expect("no caller is inside");
}

#[tokio::test]
async fn any_max_wait_is_accepted() {
    let gate = Gate::in_memory().with_max_wait(Duration::MAX);
    let inside = gate.enter("a", token(1)).await.expect("the first");
    let waiting = tokio::spawn({
        let gate = gate.clone();
        async move { gate.enter("a", token(2)).await.map(drop) }
    });
    mark_is(&gate, "a", 2).await;
    drop(inside);
    waiting.await.unwrap().expect("the token is the highest");
    let blocking = tokio::task::spawn_blocking(move || gate.enter_blocking("a", token(3)).map(drop));
    blocking.await.unwrap().expect("no caller is inside");
}

#[tokio::test]
async fn requests_of_one_holder_are_inside_together() {
    let gate = Gate::in_memory();
    let one = gate.enter("a", token(1)).await.expect("the first");
    let other = gate.enter("a", token(1)).await.expect("the same");
    assert_eq!((one.token(), other.resource()), (token(1), "a"));
}

/// The gate admits the waiter with the highest token, and refuses the others as stale.
#[tokio::test]
async fn waiter_is_refused_when_a_higher_token_arrives() {
    let gate = Gate::in_memory();
    let inside = gate.enter("a", token(1)).await.expect("the first");
    let enter = |index| {
        let gate = gate.clone();
        tokio::spawn(async move { gate.enter("a", token(index)).await.map(drop) })
    };
    let second = enter(2);
    mark_is(&gate, "a", 2).await;
    let third = enter(3);
    let overtaken = second.await.unwrap().unwrap_err();
    assert!(matches!(overtaken, Refused::Stale(stale) if stale.highest == token(3)), "{overtaken}");
    drop(inside);
    third.await.unwrap().expect("the newest");
}

#[tokio::test]
async fn cancelled_waiter_does_not_block_the_gate() {
    let gate = Gate::in_memory();
    let inside = gate.enter("a", token(1)).await.expect("the first");
    let waiting = tokio::spawn({
        let gate = gate.clone();
        async move { gate.enter("a", token(2)).await.map(drop) }
    });
    mark_is(&gate, "a", 2).await;
    waiting.abort();
    drop(waiting.await);
    drop(inside);
    gate.enter("a", token(3)).await.map(drop).expect("no caller is inside");
}

#[tokio::test]
async fn write_that_panics_or_is_dropped_leaves_the_gate() {
    let gate = Gate::in_memory().with_max_wait(Duration::ZERO);
    let write = gate.admit("a", token(1), || async { panic!("planted by a test") });
    AssertUnwindSafe(write).catch_unwind().await.map(|_: Result<(), Refused>| ()).expect_err("the write panics");
    gate.admit("a", token(2), || async {}).await.expect("no caller is inside after a panic");
    let write = || gate.admit_blocking("a", token(2), || panic!("planted by a test"));
    catch_unwind(AssertUnwindSafe(write)).map(|_: Result<(), Refused>| ()).expect_err("the write panics");
    gate.admit("a", token(3), || async {}).await.expect("no caller is inside after a panic of a thread");
    let mut dropped = Box::pin(gate.admit("a", token(3), std::future::pending::<()>));
    assert!(dropped.as_mut().now_or_never().is_none(), "the write does not end");
    let busy = gate.admit("a", token(4), || async {}).await;
    assert!(matches!(busy, Err(Refused::Busy { .. })), "{busy:?}");
    drop(dropped);
    gate.admit("a", token(4), || async {}).await.expect("no caller is inside after a drop");
}

#[tokio::test]
async fn waiters_are_bounded_and_release_their_permits() {
    let gate = Gate::in_memory();
    let _inside = gate.enter("a", token(1)).await.expect("the first");
    let hurried = gate.clone().with_max_wait(Duration::ZERO);
    let enter = async || hurried.enter("a", token(2)).await.map(drop).unwrap_err();
    assert!(matches!(enter().await, Refused::Busy { .. }));
    let mut waiting = JoinSet::new();
    for _ in 0..=MAX_WAITING {
        let gate = gate.clone();
        waiting.spawn(async move { gate.enter("a", token(2)).await.map(drop) });
    }
    let first = waiting.join_next().await.expect("one ends").expect("no panic");
    assert!(matches!(first, Err(Refused::TooManyWaiting)), "one waiter above the limit: {first:?}");
    assert!(matches!(enter().await, Refused::TooManyWaiting));
    waiting.shutdown().await;
    assert!(matches!(enter().await, Refused::Busy { .. }));
}

#[test]
fn volatile_store_recalls_nothing() {
    assert_eq!(Volatile.recall().expect("the store never fails"), []);
}

#[test]
fn blocking_callers_wait_like_tasks() {
    let gate = Gate::in_memory();
    let inside = gate.enter_blocking("a", token(1)).expect("the first");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let newer = scope.spawn(|| gate.admit_blocking("a", token(2), || over.load(Ordering::SeqCst)));
        while gate.highest("a").token() != token(2) {
            std::thread::yield_now();
        }
        over.store(true, Ordering::SeqCst);
        drop(inside);
        assert!(newer.join().unwrap().expect("the newest"), "the newer caller was inside together with an older one");
    });
    let short = gate.clone().with_max_wait(Duration::from_millis(20));
    let _inside = gate.enter_blocking("a", token(2)).expect("the same");
    assert!(matches!(short.admit_blocking("a", token(3), || ()), Err(Refused::Busy { .. })));
}

/// A store that fails after some marks.
struct FailingStore {
    stored: Arc<Mutex<Vec<(String, u64)>>>,
    fails_after: usize,
}

impl HighWaterStore for FailingStore {
    fn recall(&mut self) -> io::Result<Vec<(String, HighWater)>> {
        let mark = |index| ("a".to_owned(), HighWater::NONE.offer(token(index)).unwrap());
        Ok(vec![("a".to_owned(), HighWater::NONE), mark(5), mark(3)])
    }

    fn remember(&mut self, resource: &str, mark: HighWater) -> io::Result<()> {
        let mut stored = self.stored.lock().unwrap();
        if stored.len() == self.fails_after {
            return Err(io::Error::other("the disk is broken"));
        }
        stored.push((resource.to_owned(), mark.as_u64()));
        Ok(())
    }
}

#[tokio::test]
async fn gate_stores_marks_before_writes_and_fails_with_its_store() {
    let stored = Arc::new(Mutex::new(Vec::new()));
    let gate = Gate::keeping(FailingStore { stored: Arc::clone(&stored), fails_after: 1 })
        .expect("the store recalls its marks");
    assert!(matches!(gate.enter("a", token(4)).await, Err(Refused::Stale(_))), "the highest recalled mark");
    let before = gate.admit("a", token(6), || async { stored.lock().unwrap().clone() }).await.expect("higher");
    assert_eq!(before, [("a".to_owned(), token(6).as_u64())]);
    gate.admit("a", token(6), || async {}).await.expect("an equal token stores no mark");
    for index in [7, 6, 8] {
        let refused =
            gate.admit("a", token(index), || async { unreachable!("the gate has failed") }).await.unwrap_err();
        assert!(matches!(&refused, Refused::Failed(why) if why.contains("the disk is broken")), "{refused}");
    }
}

/// A store that panics at its second mark.
struct PanickingStore(Arc<AtomicUsize>);

impl HighWaterStore for PanickingStore {
    fn recall(&mut self) -> io::Result<Vec<(String, HighWater)>> {
        Ok(Vec::new())
    }

    fn remember(&mut self, _: &str, _: HighWater) -> io::Result<()> {
        assert_ne!(self.0.fetch_add(1, Ordering::SeqCst), 1, "planted by a test");
        Ok(())
    }
}

/// It is unknown which marks the store has kept.
#[tokio::test]
async fn gate_fails_when_its_store_panics() {
    let calls = Arc::new(AtomicUsize::new(0));
    let gate = Gate::keeping(PanickingStore(Arc::clone(&calls))).expect("the store recalls no marks");
    gate.admit("a", token(7), || async {}).await.expect("the first mark is stored");
    for index in [8, 9] {
        let refused =
            gate.admit("a", token(index), || async { unreachable!("the gate has failed") }).await.unwrap_err();
        assert!(matches!(&refused, Refused::Failed(_)), "{refused}");
    }
    assert_eq!(calls.load(Ordering::SeqCst), 2, "the store is not called again");
}

#[tokio::test(start_paused = true)]
async fn gate_waits_10_s_for_older_callers() {
    let gate = Gate::in_memory();
    let _inside = gate.enter("a", token(1)).await.expect("the first");
    let began = tokio::time::Instant::now();
    let refused = gate.enter("a", token(2)).await.map(drop).unwrap_err();
    assert!(matches!(refused, Refused::Busy { waited, .. } if waited == Duration::from_secs(10)), "{refused}");
    let waited = began.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(11)).contains(&waited), "{waited:?}");
}

/// A store that reports the start of each write and then blocks until the test lets it continue.
struct BlockingStore {
    began: std::sync::mpsc::Sender<()>,
    resume: std::sync::mpsc::Receiver<()>,
}

impl HighWaterStore for BlockingStore {
    fn recall(&mut self) -> io::Result<Vec<(String, HighWater)>> {
        Ok(Vec::new())
    }

    fn remember(&mut self, _: &str, _: HighWater) -> io::Result<()> {
        self.began.send(()).expect("the test waits");
        self.resume.recv().map_err(io::Error::other)
    }
}

#[tokio::test]
async fn mark_admits_no_caller_before_it_is_stored() {
    let ((began, begins), (go, resume)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let gate = Gate::keeping(BlockingStore { began, resume }).expect("the store recalls its marks");
    let enter = || {
        let gate = gate.clone();
        tokio::spawn(async move { gate.enter("a", token(5)).await.map(drop) })
    };
    let first = enter();
    tokio::task::spawn_blocking(move || begins.recv()).await.unwrap().expect("the store writes the mark");
    // The same holder enters again during the write.
    let mut second = enter();
    let early = tokio::time::timeout(Duration::from_millis(100), &mut second).await;
    assert!(early.is_err(), "admitted with a mark that a power failure would lose: {early:?}");
    assert_eq!(gate.highest("a"), HighWater::NONE);
    go.send(()).expect("the store waits");
    first.await.unwrap().expect("the mark is stored");
    second.await.unwrap().expect("the mark is stored");
}

/// Longest time for which the maximum wait of these tests may seem to last on a busy machine.
const HANG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn max_wait_is_one_bound_however_often_callers_leave() {
    let gate = Gate::in_memory().with_max_wait(Duration::from_millis(50));
    let _inside = gate.enter("a", token(1)).await.expect("the first");
    let waiting = tokio::spawn({
        let gate = gate.clone();
        async move { gate.enter("a", token(2)).await.map(drop) }
    });
    let leaves = async {
        while !waiting.is_finished() {
            drop(gate.enter("b", token(1)).await.expect("no other caller is there"));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(HANG, leaves).await.expect("the wait ends while callers of another resource leave");
    let refused = waiting.await.unwrap().unwrap_err();
    assert!(matches!(refused, Refused::Busy { older, .. } if older == token(1)), "{refused}");
}

#[test]
fn blocking_max_wait_is_one_bound_however_often_callers_leave() {
    let gate = Gate::in_memory().with_max_wait(Duration::from_millis(50));
    let _inside = gate.enter_blocking("a", token(1)).expect("the first");
    let waiting = std::thread::spawn({
        let gate = gate.clone();
        move || gate.enter_blocking("a", token(2)).map(drop)
    });
    let began = std::time::Instant::now();
    while !waiting.is_finished() {
        drop(gate.enter_blocking("b", token(1)).expect("no other caller is there"));
        assert!(began.elapsed() < HANG, "the wait does not end while callers of another resource leave");
        std::thread::sleep(Duration::from_millis(1));
    }
    let refused = waiting.join().unwrap().unwrap_err();
    assert!(matches!(refused, Refused::Busy { older, .. } if older == token(1)), "{refused}");
}

type Entering<'a> = Pin<Box<dyn Future<Output = Result<Admission, Refused>> + 'a>>;

/// Lets this number of callers wait, behind an older one inside. Each has one of the [`MAX_WAITING`] permits.
async fn fill(gate: &Gate, count: usize) -> (Vec<Entering<'_>>, Admission) {
    let seen = gate.highest("full").token().index();
    let inside = gate.enter("full", token(seen + 1)).await.expect("the newest");
    let newer = token(seen + 2);
    let busy = gate.clone().with_max_wait(Duration::ZERO).enter("full", newer).await.unwrap_err();
    assert!(matches!(busy, Refused::Busy { .. }), "{busy}");
    let wait = |_| {
        let mut waiting: Entering = Box::pin(gate.enter("full", newer));
        let refused = (&mut waiting).now_or_never().map(|ended| ended.map(drop));
        assert!(refused.is_none(), "fewer than {MAX_WAITING} callers wait: {refused:?}");
        waiting
    };
    ((0..count).map(wait).collect(), inside)
}

/// How many threads a test blocks at one resource.
const THREADS: usize = 8;

/// Starts threads that enter these resources with a token, and waits until all are blocked.
async fn block_threads<const N: usize>(
    gate: &Gate,
    resources: [&'static str; N],
    index: u64,
) -> [mpsc::Receiver<Result<Admission, Refused>>; N] {
    let others = fill(gate, MAX_WAITING - N * THREADS).await;
    let blocked = resources.map(|resource| {
        let (tell, told) = mpsc::channel();
        for _ in 0..THREADS {
            let (gate, tell) = (gate.clone(), tell.clone());
            let enter = move || gate.enter_blocking(resource, token(index));
            // The check below takes a permit for a moment, so a thread can find none.
            let mut attempts =
                std::iter::repeat_with(enter).skip_while(|end| matches!(end, Err(Refused::TooManyWaiting)));
            std::thread::spawn(move || tell.send(attempts.next().expect("the iterator has no end")));
        }
        told
    });
    let hurried = gate.clone().with_max_wait(Duration::ZERO);
    while !matches!(hurried.enter("full", gate.highest("full").token()).await, Err(Refused::TooManyWaiting)) {
        std::thread::yield_now();
    }
    drop(others);
    blocked
}

/// A maximum wait that the tests of blocked threads do not wait for.
fn slow_gate() -> Gate {
    Gate::in_memory().with_max_wait(10 * HANG)
}

#[tokio::test]
async fn all_blocked_threads_of_a_resource_enter_when_it_is_empty() {
    let gate = slow_gate();
    let [inside, _other] = [gate.enter("a", token(1)).await, gate.enter("b", token(1)).await];
    let [of_a, of_b] = block_threads(&gate, ["a", "b"], 2).await;
    drop(inside.expect("the first"));
    let entered = || of_a.recv_timeout(HANG).expect("the thread is blocked, and no older caller is inside");
    // An admission that leaves would wake further threads, so all of them stay inside.
    let inside: Vec<Admission> = std::iter::repeat_with(entered).take(THREADS).map(|end| end.expect("newer")).collect();
    assert!(inside.iter().all(|admission| admission.resource() == "a" && admission.token() == token(2)));
    assert!(of_b.try_recv().is_err(), "an older caller is inside at the other resource");
}

#[tokio::test]
async fn all_blocked_threads_are_stale_after_a_higher_token() {
    let gate = slow_gate();
    let _inside = gate.enter("a", token(1)).await.expect("the first");
    let [blocked] = block_threads(&gate, ["a"], 2).await;
    let higher = gate.clone().with_max_wait(Duration::ZERO).enter("a", token(3)).await.unwrap_err();
    assert!(matches!(higher, Refused::Busy { .. }), "{higher}");
    for _ in 0..THREADS {
        let refused = blocked.recv_timeout(HANG).expect("the thread is blocked with a stale token").unwrap_err();
        assert!(matches!(&refused, Refused::Stale(stale) if stale.highest == token(3)), "{refused}");
    }
    // None of them waits any more.
    drop(fill(&gate, MAX_WAITING).await);
}

/// A store that fails for one resource.
struct HalfBrokenStore;

impl HighWaterStore for HalfBrokenStore {
    fn recall(&mut self) -> io::Result<Vec<(String, HighWater)>> {
        Ok(Vec::new())
    }

    fn remember(&mut self, resource: &str, _: HighWater) -> io::Result<()> {
        if resource == "broken" { Err(io::Error::other("the disk is broken")) } else { Ok(()) }
    }
}

#[tokio::test]
async fn waiting_callers_are_refused_when_the_store_fails() {
    let gate = Gate::keeping(HalfBrokenStore).expect("the store recalls no marks").with_max_wait(10 * HANG);
    let _inside = gate.enter("a", token(1)).await.expect("the first");
    let [blocked] = block_threads(&gate, ["a"], 2).await;
    let mut waiting: Entering = Box::pin(gate.enter("a", token(2)));
    assert!((&mut waiting).now_or_never().is_none(), "an older caller is inside");
    let failed = gate.enter("broken", token(1)).await.unwrap_err();
    assert!(matches!(failed, Refused::Failed(_)), "{failed}");
    let refused = tokio::time::timeout(HANG, waiting).await.expect("the gate has failed").unwrap_err();
    assert!(matches!(refused, Refused::Failed(_)), "{refused}");
    for _ in 0..THREADS {
        let refused = blocked.recv_timeout(HANG).expect("the gate of a blocked thread has failed").unwrap_err();
        assert!(matches!(refused, Refused::Failed(_)), "{refused}");
    }
}

#[tokio::test]
async fn caller_after_its_max_wait_returns_its_permit() {
    let gate = slow_gate();
    let _inside = gate.enter("a", token(1)).await.expect("the first");
    let hurried = gate.clone().with_max_wait(Duration::ZERO);
    for round in 0..=MAX_WAITING {
        let (thread, task) = (hurried.enter_blocking("a", token(2)), hurried.enter("a", token(2)).await);
        for refused in [thread.unwrap_err(), task.unwrap_err()] {
            assert!(matches!(refused, Refused::Busy { .. }), "no caller waits in round {round}: {refused}");
        }
    }
    drop(fill(&gate, MAX_WAITING).await);
}
