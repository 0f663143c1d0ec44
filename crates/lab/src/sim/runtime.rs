//! A runtime in a time of its own: one thread, tasks one after the other, and a clock that jumps to what is next.
//!
//! In:    futures, each belonging to a node (0: to nobody). Out: openraft's [`AsyncRuntime`] for the simulation.
//! Never: asks the machine for the time or for randomness.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use openraft::OptionalSend;
use openraft::async_runtime::{AsyncRuntime, Instant};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::sync::oneshot;

use crate::random::Random;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;
type Ready = Arc<Mutex<VecDeque<u64>>>;

#[derive(Default)]
struct Executor {
    now_us: Cell<u64>,
    tasks: RefCell<BTreeMap<u64, (u64, Task)>>,
    /// Which node each task belongs to, also while it is polled.
    node_of: RefCell<BTreeMap<u64, u64>>,
    ready: Ready,
    timers: RefCell<BTreeMap<(u64, u64), Waker>>,
    /// Nodes that stand still, and the tasks of theirs that would run.
    paused: RefCell<BTreeSet<u64>>,
    held: RefCell<Vec<u64>>,
    newest: Cell<u64>,
    current_node: Cell<u64>,
    random: RefCell<Option<Random>>,
}

thread_local! {
    static EXECUTOR: Executor = Executor::default();
}

fn with<T>(look: impl FnOnce(&Executor) -> T) -> T {
    EXECUTOR.with(|executor| look(executor))
}

struct TaskWaker {
    task: u64,
    ready: Ready,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut ready = self.ready.lock();
        if !ready.contains(&self.task) {
            ready.push_back(self.task);
        }
    }
}

/// Forgets everything and begins at instant 0.
pub(super) fn reset(random: Random) {
    with(|executor| {
        // Dropped tasks may wake others: they go first, one by one.
        loop {
            let task = executor.tasks.borrow_mut().pop_first();
            if task.is_none() {
                break;
            }
        }
        executor.node_of.borrow_mut().clear();
        executor.ready.lock().clear();
        executor.timers.borrow_mut().clear();
        executor.paused.borrow_mut().clear();
        executor.held.borrow_mut().clear();
        executor.now_us.set(0);
        executor.newest.set(0);
        executor.current_node.set(0);
        *executor.random.borrow_mut() = Some(random);
    });
}

/// Microseconds since the beginning.
pub(super) fn now_us() -> u64 {
    with(|executor| executor.now_us.get())
}

/// Starts a task of a node.
pub(super) fn spawn_on(node: u64, future: impl Future<Output = ()> + Send + 'static) {
    with(|executor| {
        let task = executor.newest.get() + 1;
        executor.newest.set(task);
        executor.tasks.borrow_mut().insert(task, (node, Box::pin(future)));
        executor.node_of.borrow_mut().insert(task, node);
        executor.ready.lock().push_back(task);
    });
}

/// Everything that a node was doing is gone.
pub(super) fn kill(node: u64) {
    let tasks: Vec<u64> = with(|executor| {
        let node_of = executor.node_of.borrow();
        node_of.iter().filter(|(_, of)| **of == node).map(|(task, _)| *task).collect()
    });
    resume(node);
    for task in tasks {
        let dropped = with(|executor| {
            executor.node_of.borrow_mut().remove(&task);
            executor.tasks.borrow_mut().remove(&task)
        });
        drop(dropped);
    }
}

/// A node stands still.
pub(super) fn pause(node: u64) {
    with(|executor| executor.paused.borrow_mut().insert(node));
}

/// It goes on.
pub(super) fn resume(node: u64) {
    with(|executor| {
        executor.paused.borrow_mut().remove(&node);
        let held = std::mem::take(&mut *executor.held.borrow_mut());
        executor.ready.lock().extend(held);
    });
}

/// Runs tasks until this instant.
pub(super) fn run_until(end_us: u64) {
    loop {
        while let Some(task) = with(|executor| executor.ready.lock().pop_front()) {
            poll(task);
        }
        let next = with(|executor| executor.timers.borrow().keys().next().copied());
        let Some((at_us, _)) = next.filter(|(at_us, _)| *at_us <= end_us) else { break };
        with(|executor| executor.now_us.set(at_us.max(executor.now_us.get())));
        let waker = with(|executor| executor.timers.borrow_mut().pop_first());
        if let Some((_, waker)) = waker {
            waker.wake();
        }
    }
    with(|executor| executor.now_us.set(end_us));
}

fn poll(task: u64) {
    let found = with(|executor| {
        let node = *executor.node_of.borrow().get(&task)?;
        if executor.paused.borrow().contains(&node) {
            executor.held.borrow_mut().push(task);
            return None;
        }
        let (node, future) = executor.tasks.borrow_mut().remove(&task)?;
        executor.current_node.set(node);
        Some((node, future, executor.ready.clone()))
    });
    let Some((node, mut future, ready)) = found else { return };
    let waker = Waker::from(Arc::new(TaskWaker { task, ready }));
    let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
    with(|executor| {
        executor.current_node.set(0);
        // A node that was killed by what this very task did stays dead.
        let alive = executor.node_of.borrow().contains_key(&task);
        if polled.is_pending() && alive {
            executor.tasks.borrow_mut().insert(task, (node, future));
            return None;
        }
        executor.node_of.borrow_mut().remove(&task);
        Some(future)
    });
}

/// Wakes at an instant.
#[derive(Debug)]
pub(super) struct Sleep {
    at_us: u64,
    timer: Option<(u64, u64)>,
}

impl Sleep {
    pub(super) fn until(at_us: u64) -> Self {
        Self { at_us, timer: None }
    }
}

/// Waits so many microseconds.
pub(super) fn sleep_us(length_us: u64) -> Sleep {
    Sleep::until(now_us() + length_us)
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if now_us() >= self.at_us {
            return Poll::Ready(());
        }
        let key = self.timer.unwrap_or_else(|| {
            with(|executor| {
                executor.newest.set(executor.newest.get() + 1);
                (self.at_us, executor.newest.get())
            })
        });
        self.timer = Some(key);
        with(|executor| executor.timers.borrow_mut().insert(key, context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.timer {
            // The executor itself may be going away with its thread.
            EXECUTOR.try_with(|executor| drop(executor.timers.borrow_mut().remove(&key))).ok();
        }
    }
}

/// An instant of the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SimInstant(u64);

fn us(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

impl Add<Duration> for SimInstant {
    type Output = Self;
    fn add(self, length: Duration) -> Self {
        Self(self.0.saturating_add(us(length)))
    }
}

impl AddAssign<Duration> for SimInstant {
    fn add_assign(&mut self, length: Duration) {
        *self = *self + length;
    }
}

impl Sub<Duration> for SimInstant {
    type Output = Self;
    fn sub(self, length: Duration) -> Self {
        Self(self.0.saturating_sub(us(length)))
    }
}

impl Sub for SimInstant {
    type Output = Duration;
    fn sub(self, other: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(other.0))
    }
}

impl SubAssign<Duration> for SimInstant {
    fn sub_assign(&mut self, length: Duration) {
        *self = *self - length;
    }
}

impl Instant for SimInstant {
    fn now() -> Self {
        Self(now_us())
    }
}

/// A task that went away without a result: its node was killed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gone;

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the task's node was killed")
    }
}

/// The result of a task, once there is one.
pub(super) struct Joined<T>(oneshot::Receiver<T>);

impl<T> Future for Joined<T> {
    type Output = Result<T, Gone>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|result| result.map_err(|_| Gone))
    }
}

/// A future that has only so much time.
pub(super) struct Limited<F> {
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F: Future> Future for Limited<F> {
    type Output = Result<F::Output, Gone>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(value) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(value));
        }
        Pin::new(&mut self.sleep).poll(context).map(|()| Err(Gone))
    }
}

/// The runtime, as openraft knows it.
#[derive(Debug)]
pub(super) struct SimRuntime;

impl AsyncRuntime for SimRuntime {
    type JoinError = Gone;
    type JoinHandle<T: OptionalSend + 'static> = Joined<T>;
    type Sleep = Sleep;
    type Instant = SimInstant;
    type TimeoutError = Gone;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Limited<T>;
    type ThreadLocalRng = SmallRng;
    type Mpsc = openraft_rt_tokio::TokioMpsc;
    type Watch = super::watch::SimWatch;
    type Oneshot = openraft_rt_tokio::TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = openraft_rt_tokio::TokioMutex<T>;

    fn spawn<T>(future: T) -> Joined<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        let (done, result) = oneshot::channel();
        let node = with(|executor| executor.current_node.get());
        spawn_on(node, async move {
            done.send(future.await).ok();
        });
        Joined(result)
    }

    fn sleep(length: Duration) -> Sleep {
        Sleep::until(now_us().saturating_add(us(length)))
    }

    fn sleep_until(deadline: SimInstant) -> Sleep {
        Sleep::until(deadline.0)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(length: Duration, future: F) -> Limited<F> {
        Limited { future: Box::pin(future), sleep: Self::sleep(length) }
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: SimInstant, future: F) -> Limited<F> {
        Limited { future: Box::pin(future), sleep: Sleep::until(deadline.0) }
    }

    fn is_panic(_: &Gone) -> bool {
        false
    }

    fn thread_rng() -> SmallRng {
        with(|executor| {
            SmallRng::seed_from_u64(executor.random.borrow_mut().as_mut().map_or(0, Random::next))
        })
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
