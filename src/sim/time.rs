//! Simulated time for the tasks of a node or of a lease manager.
//!
//! A test can make a node's timers fast or slow, pause its process, and suspend its machine. Tasks inherit the
//! simulated time of the task that spawns them. True time is the time of tokio's clock.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Upper bound of the rounding error of a conversion between two clocks.
const ROUNDING: Duration = Duration::from_nanos(4);

thread_local! {
    /// The simulated time of the task that this thread polls.
    static CURRENT: RefCell<NodeTime> = const { RefCell::new(NodeTime(None)) };
}

/// The simulated time of one node's tasks. Clones share it. The default is true time.
#[derive(Clone, Default)]
pub struct NodeTime(Option<Arc<TimeInner>>);

struct TimeInner {
    rate: ClockRate,
    pause: Mutex<PauseState>,
}

#[derive(Default)]
struct PauseState {
    is_paused: bool,
    /// The tasks that were polled during the pause.
    wakers: Vec<Waker>,
}

/// A node's clock: true time since `began`, minus the suspended time, times a factor.
#[derive(Clone, Copy, Debug)]
pub struct ClockRate {
    began: Instant,
    factor: f64,
    /// openraft requires `Copy` instants, so each test leaks these few bytes.
    suspends: &'static Suspends,
}

/// The suspends of a machine.
#[derive(Debug)]
struct Suspends {
    /// Total length of the completed suspends, in nanoseconds.
    over: AtomicU64,
    /// Start of the current suspend, in nanoseconds since `began`, or `AWAKE`.
    since: AtomicU64,
}

/// The machine is not suspended.
const AWAKE: u64 = u64::MAX;

/// A timer on a node's clock. It stops while the machine is suspended.
pub struct Sleep {
    rate: Option<ClockRate>,
    deadline: Instant,
    timer: Pin<Box<tokio::time::Sleep>>,
}

/// A task that runs in simulated time.
pub struct WithTime<F> {
    time: NodeTime,
    task: Pin<Box<F>>,
}

impl NodeTime {
    /// A time that runs `factor` times as fast as true time from `began`.
    pub fn new(began: Instant, factor: f64) -> NodeTime {
        NodeTime(Some(Arc::new(TimeInner { rate: ClockRate::new(began, factor), pause: Mutex::default() })))
    }

    /// Pauses the node's tasks until [`resume`](Self::resume), like SIGSTOP. The clock advances.
    pub fn pause(&self) {
        self.0.iter().for_each(|inner| inner.pause.lock().is_paused = true);
    }

    /// Suspends the machine until [`resume`](Self::resume). The node's tasks pause, and its clock stops.
    pub fn suspend(&self) {
        self.pause();
        self.0.iter().for_each(|inner| inner.rate.suspend(Instant::now()));
    }

    /// Total time for which the machine has been suspended.
    pub fn suspended(&self) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |inner| inner.rate.suspended_until(Instant::now()))
    }

    /// Ends a pause or a suspend.
    pub fn resume(&self) {
        let woken = self.0.iter().flat_map(|inner| {
            let mut pause = inner.pause.lock();
            pause.is_paused = false;
            inner.rate.resume(Instant::now());
            std::mem::take(&mut pause.wakers)
        });
        woken.collect::<Vec<_>>().into_iter().for_each(Waker::wake);
    }

    /// Runs a task in this simulated time.
    pub fn run_with<F: Future>(&self, task: F) -> WithTime<F> {
        WithTime { time: self.clone(), task: Box::pin(task) }
    }

    pub(crate) fn rate(&self) -> Option<ClockRate> {
        self.0.as_ref().map(|inner| inner.rate)
    }

    /// Whether the node is paused. If so, the end of the pause wakes the task.
    fn is_paused(&self, task: &Waker) -> bool {
        let Some(inner) = &self.0 else { return false };
        let mut pause = inner.pause.lock();
        if pause.is_paused && !pause.wakers.iter().any(|waiting| waiting.will_wake(task)) {
            pause.wakers.push(task.clone());
        }
        pause.is_paused
    }
}

impl ClockRate {
    fn new(began: Instant, factor: f64) -> ClockRate {
        let suspends = Suspends { over: AtomicU64::new(0), since: AtomicU64::new(AWAKE) };
        ClockRate { began, factor, suspends: Box::leak(Box::new(suspends)) }
    }

    /// Starts a suspend, unless the machine is already suspended.
    fn suspend(self, moment: Instant) {
        let since = (moment - self.began).as_nanos() as u64;
        let _ = self.suspends.since.compare_exchange(AWAKE, since, Ordering::SeqCst, Ordering::SeqCst);
    }

    fn resume(self, moment: Instant) {
        let over = self.suspended_until(moment).as_nanos() as u64;
        self.suspends.since.store(AWAKE, Ordering::SeqCst);
        self.suspends.over.store(over, Ordering::SeqCst);
    }

    /// Total suspended time before this moment.
    fn suspended_until(self, moment: Instant) -> Duration {
        let over = Duration::from_nanos(self.suspends.over.load(Ordering::SeqCst));
        match self.suspends.since.load(Ordering::SeqCst) {
            AWAKE => over,
            since => over + (moment - self.began).saturating_sub(Duration::from_nanos(since)),
        }
    }

    /// The reading of the node's clock at this moment of true time.
    pub fn shown_at(self, moment: Instant) -> Instant {
        self.began + (moment - self.began - self.suspended_until(moment)).mul_f64(self.factor)
    }

    /// The moment of true time at which the node's clock shows `shown`, or slightly more because of rounding. With
    /// slightly less, a timer would fire early and reset itself to the same moment without end.
    pub fn moment_of(self, shown: Instant) -> Instant {
        let suspended = self.suspended_until(Instant::now());
        self.began + suspended + self.in_true_time(shown - self.began) + ROUNDING
    }

    pub fn in_true_time(self, time: Duration) -> Duration {
        time.div_f64(self.factor)
    }
}

impl<F: Future> Future for WithTime<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if self.time.is_paused(context.waker()) {
            return Poll::Pending;
        }
        let _restore = RestoreTime(CURRENT.replace(self.time.clone()));
        self.task.as_mut().poll(context)
    }
}

/// Restores the previous simulated time of the thread.
struct RestoreTime(NodeTime);

impl Drop for RestoreTime {
    fn drop(&mut self) {
        CURRENT.set(std::mem::take(&mut self.0));
    }
}

/// The simulated time of the current task.
pub fn current() -> NodeTime {
    CURRENT.with_borrow(NodeTime::clone)
}

/// Wraps a task so that it inherits the simulated time of the current task.
pub fn inherit_time<F: Future>(task: F) -> WithTime<F> {
    current().run_with(task)
}

pub fn sleep(time: Duration) -> Sleep {
    let (now, rate) = (Instant::now(), current().rate());
    sleep_until(rate.map_or(now, |rate| rate.shown_at(now)) + time, rate)
}

/// Sleeps until the node's clock shows `deadline`. Without a `rate`, it uses true time.
pub fn sleep_until(deadline: Instant, rate: Option<ClockRate>) -> Sleep {
    let moment = rate.map_or(deadline, |rate| rate.moment_of(deadline));
    Sleep { rate, deadline, timer: Box::pin(tokio::time::sleep_until(moment)) }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(context));
            let deadline = self.deadline;
            match self.rate {
                // The machine was suspended during the sleep.
                Some(rate) if rate.shown_at(Instant::now()) < deadline => {
                    self.timer.as_mut().reset(rate.moment_of(deadline));
                }
                _ => return Poll::Ready(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_never_fires_before_its_node_time() {
        let began = Instant::now();
        for (factor, step) in [(0.5, 7_001), (0.9955, 104_729), (1.0, 1_000_003), (1.0045, 86_243), (2.0, 15_485_863)] {
            let rate = ClockRate::new(began, factor);
            for number in 0..10_000 {
                let shown = began + Duration::from_nanos(number * step);
                let late = rate.shown_at(rate.moment_of(shown)).checked_duration_since(shown);
                assert!(late.is_some_and(|late| late < Duration::from_nanos(20)), "{factor}, {number}: {late:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn spawned_task_inherits_the_clock_rate() {
        let began = Instant::now();
        let fast = NodeTime::new(began, 2.0);
        let starting = fast.run_with(async {
            let started = tokio::spawn(inherit_time(sleep(Duration::from_secs(10))));
            started.await.expect("no panic");
        });
        starting.await;
        assert_eq!(began.elapsed().as_secs(), 5);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(began.elapsed().as_secs(), 15, "a task without NodeTime uses true time");
    }

    #[tokio::test(start_paused = true)]
    async fn paused_task_runs_only_after_resume() {
        let began = Instant::now();
        let time = NodeTime::new(began, 1.0);
        let task = tokio::spawn(time.run_with(async move {
            sleep(Duration::from_secs(1)).await;
            began.elapsed().as_secs()
        }));
        tokio::task::yield_now().await;
        time.pause();
        tokio::time::sleep(Duration::from_secs(7)).await;
        assert!(!task.is_finished());
        time.resume();
        assert_eq!(task.await.expect("no panic"), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn suspend_stops_the_clock() {
        let began = Instant::now();
        let time = NodeTime::new(began, 1.0);
        let rate = time.rate().expect("the node has its own clock");
        tokio::time::sleep(Duration::from_secs(1)).await;
        time.suspend();
        tokio::time::sleep(Duration::from_secs(3)).await;
        time.suspend();
        assert_eq!(rate.shown_at(Instant::now()) - began, Duration::from_secs(1), "the clock stops during the suspend");
        tokio::time::sleep(Duration::from_secs(4)).await;
        time.resume();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let shown = rate.shown_at(Instant::now());
        assert_eq!((shown - began, time.suspended()), (Duration::from_secs(3), Duration::from_secs(7)));
        assert_eq!((rate.moment_of(shown) - began).as_secs(), 10, "the conversion to true time adds the suspend");
    }

    #[tokio::test(start_paused = true)]
    async fn suspend_stops_the_timers() {
        let began = Instant::now();
        let time = NodeTime::new(began, 1.0);
        let task = tokio::spawn(time.run_with(async move {
            sleep(Duration::from_secs(2)).await;
            began.elapsed().as_secs()
        }));
        tokio::time::sleep(Duration::from_secs(1)).await;
        time.suspend();
        tokio::time::sleep(Duration::from_secs(7)).await;
        time.resume();
        assert_eq!(task.await.expect("no panic"), 9);
    }
}
