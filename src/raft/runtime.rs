//! The async runtime for openraft: tokio with two replacements.
//!
//! Random numbers come from [`crate::rng`]. Simulated nodes use their own time instead of tokio's.

use std::time::Duration;

use openraft::{AsyncRuntime, OptionalSend};
use openraft_rt_tokio::TokioRuntime;

use crate::rng::{ProcessRng, rng};
#[cfg(feature = "testing")]
use crate::sim::instant as time;
use crate::time::inherit_time;
#[cfg(not(feature = "testing"))]
use steady as time;

#[derive(Debug)]
pub struct Runtime(TokioRuntime);

impl AsyncRuntime for Runtime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = time::Sleep;
    type Instant = time::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = ProcessRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = <TokioRuntime as AsyncRuntime>::Watch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    #[track_caller]
    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        TokioRuntime::spawn(inherit_time(future))
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        time::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        time::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Self::Timeout<R, F> {
        time::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Self::Instant, future: F) -> Self::Timeout<R, F> {
        time::timeout_at(deadline, future)
    }

    fn is_panic(error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(error)
    }

    fn thread_rng() -> ProcessRng {
        rng()
    }

    fn new(threads: usize) -> Runtime {
        Runtime(TokioRuntime::new(threads))
    }

    fn block_on<F: Future<Output = T>, T>(&mut self, future: F) -> T {
        self.0.block_on(future)
    }
}

#[cfg(not(feature = "testing"))]
mod steady {
    use openraft::{AsyncRuntime, OptionalSend};
    pub use openraft_rt_tokio::TokioInstant as Instant;
    use openraft_rt_tokio::TokioRuntime;
    use tokio::time::Timeout;
    pub use tokio::time::{Sleep, sleep, timeout};

    pub fn sleep_until(deadline: Instant) -> Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    pub fn timeout_at<F: Future + OptionalSend>(deadline: Instant, future: F) -> Timeout<F> {
        TokioRuntime::timeout_at(deadline, future)
    }
}

#[cfg(feature = "testing")]
impl openraft::Instant for time::Instant {
    fn now() -> time::Instant {
        time::Instant::current()
    }

    fn elapsed(&self) -> Duration {
        self.age()
    }
}
