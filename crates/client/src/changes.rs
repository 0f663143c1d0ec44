//! A value that changes, and somebody who follows it.
//!
//! In:    what the driver makes known of a claim. Out: [`Changes`], for any executor.
//! Never: a backlog: whoever is slow sees the newest value alone.

use tokio::sync::watch;

/// A value that changes, as its follower sees it.
#[derive(Debug, Clone)]
pub struct Changes<T>(watch::Receiver<T>);

impl<T: Clone> Changes<T> {
    pub(crate) fn of(value: &watch::Sender<T>) -> Self {
        Self(value.subscribe())
    }

    /// The value at this moment.
    pub fn now(&self) -> T {
        self.0.borrow().clone()
    }

    /// Waits for the next change and returns the newest value; `None` when no more changes follow. A call that is
    /// cancelled misses nothing.
    pub async fn next(&mut self) -> Option<T> {
        self.0.changed().await.ok()?;
        Some(self.0.borrow_and_update().clone())
    }
}
