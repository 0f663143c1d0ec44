//! What `leasehold run` says to people: lines on stderr, written by a thread of its own.
//!
//! In:    lines. Out: stderr, in order.
//! Never: holds up or ends the thread that speaks: a full pipe, a full disk, a closed pipe or a stopped terminal costs lines, and
//!        nothing else.

use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use super::super::output;

/// Lines that wait for a stderr that takes none; further ones are dropped.
const QUEUE_LEN: usize = 256;

static QUEUE: OnceLock<SyncSender<Message>> = OnceLock::new();

enum Message {
    Text(String),
    /// Answered when everything before it is written.
    Flush(SyncSender<()>),
}

/// Starts the thread. Without one, nothing is said.
pub(super) fn start() {
    let (sender, receiver) = sync_channel(QUEUE_LEN);
    let thread = std::thread::Builder::new().name("messages".into());
    if thread.spawn(move || write_all(&receiver)).is_ok() {
        QUEUE.set(sender).ok();
    }
}

fn write_all(messages: &Receiver<Message>) {
    for message in messages {
        match message {
            // Nobody can be told that nobody can be told.
            Message::Text(text) => drop(std::io::stderr().write_all(text.as_bytes())),
            Message::Flush(done) => drop(done.send(())),
        }
    }
}

/// A line.
pub(super) fn say(what: &str) {
    write(format!("leasehold: {}\n", output::plain_lines(what)));
}

/// Text as it is.
pub(super) fn write(text: String) {
    if let Some(queue) = QUEUE.get() {
        queue.try_send(Message::Text(text)).ok();
    }
}

/// Waits until everything is written, but not for long.
pub(super) fn flush(within: Duration) {
    let (done, is_done) = sync_channel(1);
    if QUEUE.get().is_some_and(|queue| queue.try_send(Message::Flush(done)).is_ok()) {
        is_done.recv_timeout(within).ok();
    }
}
