//! A watch channel that wakes in the order in which it was waited for.
//!
//! In:    values. Out: the newest one, and a wake-up for whoever waits for a change.
//! Never: throws dice: tokio's own spreads its waiters over shards at random, and a seed would not repeat a run.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use openraft::OptionalSend;
use openraft::async_runtime::watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender};
use openraft::base::OptionalSync;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

/// The channel.
pub struct SimWatch;

struct WatchChannel<T> {
    value: RwLock<T>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    version: u64,
    senders: usize,
    receivers: usize,
    waiting: Vec<Waker>,
}

impl<T> WatchChannel<T> {
    fn changed(&self) {
        let waiting = {
            let mut state = self.state.lock();
            state.version += 1;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Its sending end.
pub struct Sender<T>(Arc<WatchChannel<T>>);

/// Its receiving end.
pub struct Receiver<T> {
    shared: Arc<WatchChannel<T>>,
    seen: u64,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.state.lock().senders += 1;
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.0.state.lock();
            state.senders -= 1;
            if state.senders == 0 { std::mem::take(&mut state.waiting) } else { Vec::new() }
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.state.lock().receivers += 1;
        Self { shared: self.shared.clone(), seen: self.seen }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.state.lock().receivers -= 1;
    }
}

impl Watch for SimWatch {
    type Sender<T: OptionalSend + OptionalSync> = Sender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = Receiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = RwLockReadGuard<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (Sender<T>, Receiver<T>) {
        let state = State { senders: 1, receivers: 1, ..State::default() };
        let shared = Arc::new(WatchChannel { value: RwLock::new(init), state: Mutex::new(state) });
        (Sender(shared.clone()), Receiver { shared, seen: 0 })
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<SimWatch, T> for Sender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.state.lock().receivers == 0 {
            return Err(SendError(value));
        }
        *self.0.value.write() = value;
        self.0.changed();
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        let modified = modify(&mut self.0.value.write());
        if modified {
            self.0.changed();
        }
        modified
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.0.value.read()
    }

    fn subscribe(&self) -> Receiver<T> {
        let mut state = self.0.state.lock();
        state.receivers += 1;
        Receiver { shared: self.0.clone(), seen: state.version }
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<SimWatch, T> for Receiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        poll_fn(|context| {
            let mut state = self.shared.state.lock();
            if state.version != self.seen {
                self.seen = state.version;
                return Poll::Ready(Ok(()));
            }
            if state.senders == 0 {
                return Poll::Ready(Err(RecvError(())));
            }
            if !state.waiting.iter().any(|waiting| waiting.will_wake(context.waker())) {
                state.waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.shared.value.read()
    }

    fn borrow_and_update(&mut self) -> RwLockReadGuard<'_, T> {
        self.seen = self.shared.state.lock().version;
        self.shared.value.read()
    }
}
