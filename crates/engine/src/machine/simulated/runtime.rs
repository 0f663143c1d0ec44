//! A runtime in a time of its own: one thread, tasks one after the other, and a clock that jumps to what is next.
//!
//! In:    futures, each belonging to a node (0: to nobody). Out: tasks, timers and chance for the simulation
//!        (`openraft_runtime.rs` gives them to openraft).
//! Never: asks the machine for the time or for randomness.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use rand::distr::{Distribution, StandardUniform};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::oneshot;

pub use super::instant::Instant;
use super::instant::us;
pub use super::openraft_runtime::Runtime;

type Future0 = Pin<Box<dyn Future<Output = ()> + Send>>;
type Ready = Arc<Mutex<VecDeque<u64>>>;

struct Task {
    node: u64,
    /// Away while it is polled.
    future: Option<Future0>,
    wake: Arc<TaskWaker>,
}

/// What happens at an instant.
enum Alarm {
    Wake(Waker),
    Call(Box<dyn FnOnce()>),
}

/// How a node's clock runs.
#[derive(Debug, Clone, Copy, Default)]
struct Crystal {
    /// It showed this ...
    local_us: u64,
    /// ... at this instant of the simulation ...
    at_us: u64,
    /// ... and is so much too fast since then, in millionths.
    fast_ppm: i64,
}

impl Crystal {
    fn local_us(&self, now_us: u64) -> u64 {
        let passed_us = (now_us - self.at_us) as i64;
        self.local_us + (passed_us + passed_us * self.fast_ppm / 1_000_000) as u64
    }
}

#[derive(Default)]
struct Executor {
    now_us: Cell<u64>,
    tasks: RefCell<BTreeMap<u64, Task>>,
    ready: Ready,
    timers: RefCell<BTreeMap<(u64, u64), Alarm>>,
    /// Nodes that stand still, and the tasks of theirs that would run.
    paused: RefCell<BTreeSet<u64>>,
    held: RefCell<Vec<u64>>,
    newest: Cell<u64>,
    current_node: Cell<u64>,
    crystals: RefCell<BTreeMap<u64, Crystal>>,
    random: RefCell<Option<SmallRng>>,
}

thread_local! {
    static EXECUTOR: Executor = Executor::default();
}

fn with<T>(look: impl FnOnce(&Executor) -> T) -> T {
    EXECUTOR.with(|executor| look(executor))
}

struct TaskWaker {
    task: u64,
    queued: AtomicBool,
    ready: Ready,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.lock().push_back(self.task);
        }
    }
}

/// Forgets everything and begins at instant 0, with these dice.
pub fn reset(seed: u64) {
    with(|executor| {
        // Dropped tasks may wake others: they go first, one by one.
        loop {
            let task = executor.tasks.borrow_mut().pop_first();
            if task.is_none() {
                break;
            }
        }
        executor.ready.lock().clear();
        executor.timers.borrow_mut().clear();
        executor.paused.borrow_mut().clear();
        executor.held.borrow_mut().clear();
        executor.crystals.borrow_mut().clear();
        executor.now_us.set(0);
        executor.newest.set(0);
        executor.current_node.set(0);
        *executor.random.borrow_mut() = Some(SmallRng::seed_from_u64(seed));
    });
}

/// Microseconds since the beginning, by nobody's clock.
pub fn now_us() -> u64 {
    with(|executor| executor.now_us.get())
}

/// The node whose task runs; 0 for nobody's.
pub fn current_node() -> u64 {
    with(|executor| executor.current_node.get())
}

/// From now on a node's clock is so much too fast, in millionths; at first it shows `begin_us`.
pub fn set_crystal(node: u64, begin_us: u64, fast_ppm: i64) {
    with(|executor| {
        let at_us = executor.now_us.get();
        let mut crystals = executor.crystals.borrow_mut();
        let local_us = crystals.get(&node).map_or(begin_us, |crystal| crystal.local_us(at_us));
        crystals.insert(node, Crystal { local_us, at_us, fast_ppm });
    });
}

pub(super) fn local_us() -> u64 {
    with(|executor| {
        let now_us = executor.now_us.get();
        let crystals = executor.crystals.borrow();
        crystals.get(&executor.current_node.get()).map_or(now_us, |crystal| crystal.local_us(now_us))
    })
}

/// Starts a task of a node. Returns its number.
pub fn spawn_on(node: u64, future: impl Future<Output = ()> + Send + 'static) -> u64 {
    with(|executor| {
        let task = executor.newest.get() + 1;
        executor.newest.set(task);
        let ready = executor.ready.clone();
        let wake = Arc::new(TaskWaker { task, queued: AtomicBool::new(false), ready });
        let future: Future0 = Box::pin(future);
        executor.tasks.borrow_mut().insert(task, Task { node, future: Some(future), wake: wake.clone() });
        wake.wake();
        task
    })
}

fn forget(task: u64) {
    let dropped = EXECUTOR.try_with(|executor| executor.tasks.borrow_mut().remove(&task));
    drop(dropped);
}

/// Everything that a node was doing is gone.
pub fn kill(node: u64) {
    let tasks: Vec<u64> = with(|executor| {
        let tasks = executor.tasks.borrow();
        tasks.iter().filter(|(_, task)| task.node == node).map(|(number, _)| *number).collect()
    });
    resume(node);
    tasks.into_iter().for_each(forget);
}

/// A node stands still.
pub fn pause(node: u64) {
    with(|executor| executor.paused.borrow_mut().insert(node));
}

/// It goes on.
pub fn resume(node: u64) {
    with(|executor| {
        executor.paused.borrow_mut().remove(&node);
        let held = std::mem::take(&mut *executor.held.borrow_mut());
        executor.ready.lock().extend(held);
    });
}

/// Runs tasks until this instant.
pub fn run_until(end_us: u64) {
    loop {
        while let Some(task) = with(|executor| executor.ready.lock().pop_front()) {
            poll(task);
        }
        let next = with(|executor| executor.timers.borrow().keys().next().copied());
        let Some((at_us, _)) = next.filter(|(at_us, _)| *at_us <= end_us) else { break };
        with(|executor| executor.now_us.set(at_us.max(executor.now_us.get())));
        let alarm = with(|executor| executor.timers.borrow_mut().pop_first());
        match alarm {
            Some((_, Alarm::Wake(waker))) => waker.wake(),
            Some((_, Alarm::Call(call))) => call(),
            None => {}
        }
    }
    with(|executor| executor.now_us.set(end_us));
}

fn poll(number: u64) {
    let found = with(|executor| {
        let mut tasks = executor.tasks.borrow_mut();
        let task = tasks.get_mut(&number)?;
        if executor.paused.borrow().contains(&task.node) {
            executor.held.borrow_mut().push(number);
            return None;
        }
        executor.current_node.set(task.node);
        task.wake.queued.store(false, Ordering::Relaxed);
        Some((task.future.take()?, Waker::from(task.wake.clone())))
    });
    let Some((mut future, waker)) = found else { return };
    let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
    let over = with(|executor| {
        let mut tasks = executor.tasks.borrow_mut();
        match tasks.get_mut(&number) {
            Some(task) if polled.is_pending() => {
                task.future = Some(future);
                None
            }
            // Done; or killed by what this very task did.
            _ => Some((future, tasks.remove(&number))),
        }
    });
    // Dropped as what it was: its last words are still those of its node.
    drop(over);
    with(|executor| executor.current_node.set(0));
}

/// Has something done at an instant, by nobody's task.
pub(super) fn call_at(at_us: u64, call: impl FnOnce() + 'static) {
    with(|executor| {
        executor.newest.set(executor.newest.get() + 1);
        let key = (at_us, executor.newest.get());
        executor.timers.borrow_mut().insert(key, Alarm::Call(Box::new(call)));
    });
}

/// Wakes at an instant.
#[derive(Debug)]
pub struct Sleep {
    at_us: u64,
    timer: Option<(u64, u64)>,
}

impl Sleep {
    fn until(at_us: u64) -> Self {
        Self { at_us, timer: None }
    }
}

/// Waits so many microseconds.
pub fn sleep_us(length_us: u64) -> Sleep {
    Sleep::until(now_us().saturating_add(length_us))
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
        let alarm = Alarm::Wake(context.waker().clone());
        with(|executor| executor.timers.borrow_mut().insert(key, alarm));
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

/// Waits so long.
pub fn sleep(length: Duration) -> Sleep {
    Sleep::until(now_us().saturating_add(us(length)))
}

/// Waits for an instant of this node's clock.
pub fn sleep_until(at: Instant) -> Sleep {
    Sleep::until(now_us().saturating_add(at.local_us().saturating_sub(local_us())))
}

/// Waits for a future, but only so long.
pub fn timeout<F: Future>(length: Duration, future: F) -> Limited<F> {
    Limited { future: Box::pin(future), sleep: sleep(length) }
}

/// Waits for a future until an instant of this node's clock.
pub fn timeout_at<F: Future>(deadline: Instant, future: F) -> Limited<F> {
    Limited { future: Box::pin(future), sleep: sleep_until(deadline) }
}

/// Starts a task of the node that runs.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let (done, result) = oneshot::channel();
    let task = spawn_on(current_node(), async move {
        done.send(future.await).ok();
    });
    JoinHandle { result, task }
}

/// Work that waits for the disk: here nobody waits.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    Ok(work())
}

/// Work that takes its time.
pub async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    sleep_us(2_000 + random::<u64>() % 50_000).await;
    Ok(work())
}

/// A number by the dice of the seed.
pub fn random<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    with(|executor| executor.random.borrow_mut().as_mut().expect("a simulation runs").random())
}

/// Microseconds since 1970 by the node's wall clock. The simulation begins one day after that.
pub fn wall_us() -> u64 {
    86_400_000_000 + now_us() + super::world().wall_ahead_us(current_node())
}

/// Simulated nodes share one process: none knows what it takes.
pub fn resident_bytes() -> Option<u64> {
    None
}

/// Simulated nodes have all the memory they want.
pub fn memory_bytes() -> Option<u64> {
    None
}

/// A task that went away without a result: its node was killed.
#[derive(Debug, Clone, Copy)]
pub struct Gone;

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the task's node was killed")
    }
}

impl std::error::Error for Gone {}

/// As of tokio's timeouts.
impl From<Gone> for io::Error {
    fn from(_: Gone) -> Self {
        io::ErrorKind::TimedOut.into()
    }
}

/// The result of a task, once there is one.
pub struct JoinHandle<T> {
    result: oneshot::Receiver<T>,
    task: u64,
}

impl<T> JoinHandle<T> {
    /// Ends the task.
    pub fn abort(&self) {
        forget(self.task);
    }
}

impl<T> crate::machine::Abort for JoinHandle<T> {
    fn abort(&self) {
        Self::abort(self);
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Gone>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.result).poll(context).map(|result| result.map_err(|_| Gone))
    }
}

/// A future that has only so much time.
pub struct Limited<F> {
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
