//! How fast time passes for the tasks of a node or of a lease manager, and whether they run at all.
//!
//! A task can be given another pace than that of true time: a timer that runs fast or slow, a process that is stopped and
//! goes on, and a machine that is suspended. A task hands its pace on to the tasks that it starts.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// More than what the conversions between two clocks lose.
const ROUNDING: Duration = Duration::from_nanos(4);

thread_local! {
    /// That of the task which this thread runs now.
    static CURRENT: RefCell<NodeTime> = const { RefCell::new(NodeTime(None)) };
}

/// The pace of one node's tasks. Clones are the same pace; the default is that of true time.
#[derive(Clone, Default)]
pub struct NodeTime(Option<Arc<Own>>);

struct Own {
    rate: ClockRate,
    halted: Mutex<Halted>,
}

#[derive(Default)]
struct Halted {
    is_halted: bool,
    /// Who wanted to run meanwhile.
    tasks: Vec<Waker>,
}

/// A node's time: true time since some moment, without that in which its machine was suspended, times a factor.
#[derive(Clone, Copy, Debug)]
pub struct ClockRate {
    began: Instant,
    factor: f64,
    /// openraft wants an instant that can be copied, so a test leaks these few bytes.
    suspends: &'static Suspends,
}

/// When a machine was suspended.
#[derive(Debug)]
struct Suspends {
    /// Nanoseconds in suspends that are over.
    over: AtomicU64,
    /// Nanoseconds from `began` to the start of the suspend that goes on, or `AWAKE`.
    since: AtomicU64,
}

/// No suspend goes on.
const AWAKE: u64 = u64::MAX;

/// A timer on a node's clock. It stands still while the machine is suspended.
pub struct Sleep {
    rate: Option<ClockRate>,
    deadline: Instant,
    timer: Pin<Box<tokio::time::Sleep>>,
}

/// A task at a pace.
pub struct WithTime<F> {
    pace: NodeTime,
    task: Pin<Box<F>>,
}

impl NodeTime {
    /// From `began` on, time passes `factor` times as fast as it does.
    pub fn new(began: Instant, factor: f64) -> NodeTime {
        NodeTime(Some(Arc::new(Own { rate: ClockRate::new(began, factor), halted: Mutex::default() })))
    }

    /// Nothing of the node runs until it goes on, as after SIGSTOP. Its clock does.
    pub fn halt(&self) {
        self.0.iter().for_each(|own| own.halted.lock().is_halted = true);
    }

    /// The machine is suspended until the node goes on: nothing of the node runs, and its clock stands still.
    pub fn suspend(&self) {
        self.halt();
        self.0.iter().for_each(|own| own.rate.suspend(Instant::now()));
    }

    /// How long the machine was suspended in all, until now.
    pub fn suspended(&self) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |own| own.rate.suspended_until(Instant::now()))
    }

    pub fn go_on(&self) {
        let woken = self.0.iter().flat_map(|own| {
            let mut halted = own.halted.lock();
            halted.is_halted = false;
            own.rate.resume(Instant::now());
            std::mem::take(&mut halted.tasks)
        });
        woken.collect::<Vec<_>>().into_iter().for_each(Waker::wake);
    }

    /// Runs a task at this pace.
    pub fn keep<F: Future>(&self, task: F) -> WithTime<F> {
        WithTime { pace: self.clone(), task: Box::pin(task) }
    }

    pub(crate) fn rate(&self) -> Option<ClockRate> {
        self.0.as_ref().map(|own| own.rate)
    }

    /// Whether a task has to wait; then it is woken later.
    fn holds_up(&self, task: &Waker) -> bool {
        let Some(own) = &self.0 else { return false };
        let mut halted = own.halted.lock();
        if halted.is_halted && !halted.tasks.iter().any(|waiting| waiting.will_wake(task)) {
            halted.tasks.push(task.clone());
        }
        halted.is_halted
    }
}

impl ClockRate {
    fn new(began: Instant, factor: f64) -> ClockRate {
        let suspends = Suspends { over: AtomicU64::new(0), since: AtomicU64::new(AWAKE) };
        ClockRate { began, factor, suspends: Box::leak(Box::new(suspends)) }
    }

    /// A suspend begins, unless one goes on.
    fn suspend(self, moment: Instant) {
        let since = (moment - self.began).as_nanos() as u64;
        let _ = self.suspends.since.compare_exchange(AWAKE, since, Ordering::SeqCst, Ordering::SeqCst);
    }

    fn resume(self, moment: Instant) {
        let over = self.suspended_until(moment).as_nanos() as u64;
        self.suspends.since.store(AWAKE, Ordering::SeqCst);
        self.suspends.over.store(over, Ordering::SeqCst);
    }

    /// How long the machine was suspended before this moment.
    fn suspended_until(self, moment: Instant) -> Duration {
        let over = Duration::from_nanos(self.suspends.over.load(Ordering::SeqCst));
        match self.suspends.since.load(Ordering::SeqCst) {
            AWAKE => over,
            since => over + (moment - self.began).saturating_sub(Duration::from_nanos(since)),
        }
    }

    /// What the node's clock shows at this moment.
    pub fn shown_at(self, moment: Instant) -> Instant {
        self.began + (moment - self.began - self.suspended_until(moment)).mul_f64(self.factor)
    }

    /// A moment at which the node's clock shows this or, by the rounding, a little more: a timer that fires before
    /// its clock shows the time is set again for the same time, for ever.
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
        if self.pace.holds_up(context.waker()) {
            return Poll::Pending;
        }
        let _back = Back(CURRENT.replace(self.pace.clone()));
        self.task.as_mut().poll(context)
    }
}

/// Brings the pace of before back.
struct Back(NodeTime);

impl Drop for Back {
    fn drop(&mut self) {
        CURRENT.set(std::mem::take(&mut self.0));
    }
}

pub fn current() -> NodeTime {
    CURRENT.with_borrow(NodeTime::clone)
}

/// A task that keeps the pace of the one that starts it.
pub fn inherit_time<F: Future>(task: F) -> WithTime<F> {
    current().keep(task)
}

pub fn sleep(time: Duration) -> Sleep {
    let (now, rate) = (Instant::now(), current().rate());
    sleep_until(rate.map_or(now, |rate| rate.shown_at(now)) + time, rate)
}

/// Sleeps until this clock shows `deadline`; without one, until tokio's does.
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
                // The machine was suspended meanwhile.
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
    fn no_timer_fires_before_its_clock_shows_the_time() {
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
    async fn a_task_sleeps_by_its_own_clock_and_so_does_what_it_starts() {
        let began = Instant::now();
        let fast = NodeTime::new(began, 2.0);
        let starting = fast.keep(async {
            let started = tokio::spawn(inherit_time(sleep(Duration::from_secs(10))));
            started.await.expect("no panic");
        });
        starting.await;
        assert_eq!(began.elapsed().as_secs(), 5);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(began.elapsed().as_secs(), 15, "and nobody else");
    }

    #[tokio::test(start_paused = true)]
    async fn a_halted_task_does_nothing_until_it_goes_on_and_then_finds_its_timers_late() {
        let began = Instant::now();
        let pace = NodeTime::new(began, 1.0);
        let task = tokio::spawn(pace.keep(async move {
            sleep(Duration::from_secs(1)).await;
            began.elapsed().as_secs()
        }));
        tokio::task::yield_now().await;
        pace.halt();
        tokio::time::sleep(Duration::from_secs(7)).await;
        assert!(!task.is_finished());
        pace.go_on();
        assert_eq!(task.await.expect("no panic"), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_of_a_suspended_machine_stands_still() {
        let began = Instant::now();
        let pace = NodeTime::new(began, 1.0);
        let rate = pace.rate().expect("its own");
        tokio::time::sleep(Duration::from_secs(1)).await;
        pace.suspend();
        tokio::time::sleep(Duration::from_secs(3)).await;
        pace.suspend();
        assert_eq!(rate.shown_at(Instant::now()) - began, Duration::from_secs(1), "while it is suspended");
        tokio::time::sleep(Duration::from_secs(4)).await;
        pace.go_on();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let shown = rate.shown_at(Instant::now());
        assert_eq!((shown - began, pace.suspended()), (Duration::from_secs(3), Duration::from_secs(7)));
        assert_eq!((rate.moment_of(shown) - began).as_secs(), 10, "and back");
    }

    #[tokio::test(start_paused = true)]
    async fn timers_stand_still_while_the_machine_is_suspended() {
        let began = Instant::now();
        let pace = NodeTime::new(began, 1.0);
        let task = tokio::spawn(pace.keep(async move {
            sleep(Duration::from_secs(2)).await;
            began.elapsed().as_secs()
        }));
        tokio::time::sleep(Duration::from_secs(1)).await;
        pace.suspend();
        tokio::time::sleep(Duration::from_secs(7)).await;
        pace.go_on();
        assert_eq!(task.await.expect("no panic"), 9);
    }
}
