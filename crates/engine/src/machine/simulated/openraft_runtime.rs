//! The simulated runtime in the shape that openraft asks for.
//!
//! In:    openraft's tasks and timers. Out: those of `runtime.rs`.

use std::future::Future;
use std::time::Duration;

use openraft::OptionalSend;
use openraft::async_runtime::AsyncRuntime;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::instant::Instant;
use super::runtime::{
    Gone, JoinHandle, Limited, Sleep, random, sleep, sleep_until, spawn, timeout, timeout_at,
};

/// The runtime, as openraft knows it.
#[derive(Debug)]
pub struct Runtime;

impl AsyncRuntime for Runtime {
    type JoinError = Gone;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = Instant;
    type TimeoutError = Gone;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Limited<T>;
    type ThreadLocalRng = SmallRng;
    type Mpsc = openraft_rt_tokio::TokioMpsc;
    type Watch = super::watch::SimWatch;
    type Oneshot = openraft_rt_tokio::TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = openraft_rt_tokio::TokioMutex<T>;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        spawn(future)
    }

    fn sleep(length: Duration) -> Sleep {
        sleep(length)
    }

    fn sleep_until(deadline: Instant) -> Sleep {
        sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(length: Duration, future: F) -> Limited<F> {
        timeout(length, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Instant, future: F) -> Limited<F> {
        timeout_at(deadline, future)
    }

    fn is_panic(_: &Gone) -> bool {
        false
    }

    fn thread_rng() -> SmallRng {
        SmallRng::seed_from_u64(random())
    }

    fn new(_: usize) -> Self {
        Self
    }

    fn block_on<F, T>(&mut self, _: F) -> T
    where
        F: Future<Output = T>,
    {
        unreachable!("the simulation runs until an instant, not until a result")
    }
}
