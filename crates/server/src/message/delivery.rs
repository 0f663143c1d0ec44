//! Whether an answer that hands something over reached its client.
//!
//! In:    from a dialect, what to do if the answer is lost; from the connection, what became of it.
//! Out:   the take-back, called at most once, and only when the client certainly has not seen the answer.
//! Never: guesses: when in doubt, the client keeps what it was given.
//!
//! What is certain, and what is not:
//!
//! - The answer did not leave completely (the connection broke first): certainly unseen.
//! - The client had closed its end before the answer reached its machine. Its kernel then refuses the answer: this
//!   side sees the end of the stream first and a reset after it. Certainly unseen.
//! - Everything else counts as seen: another request on the connection, an orderly close after the answer was
//!   acknowledged, and also a reset alone. Proxies reset connections after they have read a whole answer, and
//!   taking a lock from a client that works under it would be worse than leaving one to expire.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// What to do when an answer is lost.
pub type TakeBack = Box<dyn FnOnce() + Send>;

/// The answer in doubt of one connection, if there is one.
#[derive(Default)]
pub struct Delivery {
    owed: Mutex<Option<Owed>>,
    /// Several answers may be on their way at once: it can't be told which of them a write belongs to.
    shared: AtomicBool,
}

struct Owed {
    take_back: TakeBack,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing of the answer has left.
    Unsent,
    /// Some of it has.
    Sending,
    /// All of it has been given to this machine's kernel.
    Sent,
}

impl Delivery {
    /// The next answer on this connection hands something over; call `take_back` should it be lost.
    pub fn owe(&self, take_back: TakeBack) {
        if self.shared.load(Ordering::Relaxed) {
            return;
        }
        *self.owed.lock() = Some(Owed { take_back, stage: Stage::Unsent });
    }

    /// The connection carries several requests at once: all its answers count as seen.
    pub fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    /// The client has seen the answer: it goes on.
    pub fn seen(&self) {
        *self.owed.lock() = None;
    }

    /// The connection is over. An answer that did not leave completely is lost.
    pub fn close(&self) {
        let owed = self.owed.lock().take();
        if let Some(owed) = owed.filter(|owed| owed.stage != Stage::Sent) {
            (owed.take_back)();
        }
    }

    /// The client was gone before the answer came.
    pub(crate) fn lost(&self) {
        let owed = self.owed.lock().take();
        if let Some(owed) = owed {
            (owed.take_back)();
        }
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.owed.lock().as_ref().is_some_and(|owed| owed.stage == Stage::Sent)
    }

    pub(crate) fn note_write(&self) {
        if let Some(owed) = &mut *self.owed.lock() {
            owed.stage = Stage::Sending;
        }
    }

    /// A transport flushes once it has written everything it has.
    pub(crate) fn note_flush(&self) {
        if let Some(owed) = &mut *self.owed.lock()
            && owed.stage == Stage::Sending
        {
            owed.stage = Stage::Sent;
        }
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").field("owes", &self.owed.lock().is_some()).finish()
    }
}
