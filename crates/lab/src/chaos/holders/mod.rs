//! Those who hold for somebody else: the client library, the keychain and `leasehold run`, as real processes that are
//! killed and stopped like everything else.
//!
//! In:    the binary and addresses of nodes that may not answer. Out: a [`Notebook`], for the same checker.
//! Never: writes down more than is certain. "It holds" is noted as a reading whose call came before the question: whoever
//!        is granted the resource before that instant breaks the promise, of the service or of its client.
//!
//! - `library.rs`  claims of a `LockManager` in this process
//! - `keychain.rs` `leasehold keychain` over its pipe: killed, stopped past its ttl, left without a parent
//! - `command.rs`  `leasehold run`: its command answers as long as it lives, and must not live longer than its claim

mod command;
mod keychain;
mod library;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::notes::{Held, Notebook, holder_name};
use crate::cluster::PATIENCE;
use crate::history::{Answer, Call};
use crate::random::Random;

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `leasehold_client::blocking`
    Library,
    /// `leasehold keychain`
    Keychain,
    /// `leasehold run`
    Command,
}

/// All of them.
pub const KINDS: [Kind; 3] = [Kind::Library, Kind::Keychain, Kind::Command];

/// How long one of them waits for its turn.
const WAIT: Duration = Duration::from_secs(3);

/// Works until told to stop.
pub fn work(kind: Kind, binary: &Path, book: Notebook, random: Random) -> Notebook {
    let mut holder = Holder { book, random };
    match kind {
        Kind::Library => library::work(&mut holder),
        Kind::Keychain => keychain::work(&mut holder, binary),
        Kind::Command => command::work(&mut holder, binary),
    }
    holder.book
}

/// One of them, and what it saw.
struct Holder {
    book: Notebook,
    random: Random,
}

/// A claim of theirs that was granted.
struct Grant {
    held: Held,
    token: u64,
    ttl: Duration,
    /// The latest instant of which it is certain that the claim held then, or later.
    good_us: u64,
}

impl Holder {
    fn stopped(&self) -> bool {
        self.book.shared.stop.load(Ordering::Acquire)
    }

    fn now_us(&self) -> u64 {
        self.book.shared.now_us()
    }

    fn odd(&self, what: String) {
        self.book.shared.odd(what);
    }

    fn begin(&mut self) -> (Held, Duration) {
        let name = holder_name(self.book.shared.round, &mut self.random);
        (self.book.shared.begin(&name), Duration::from_secs(self.random.between(1, 4)))
    }

    fn not_granted(&mut self, held: &Held, ttl: Duration, called_us: u64) {
        let call = Call::Claim { ttl_us: Some(ttl.as_micros() as u64) };
        self.book.note(held, call, called_us, Answer::Unknown);
    }

    fn granted(&mut self, held: Held, ttl: Duration, called_us: u64, token: u64, id: &str) -> Grant {
        let call = Call::Claim { ttl_us: Some(ttl.as_micros() as u64) };
        self.book.note(&held, call, called_us, Answer::active(token));
        self.book.known(&held, id);
        Grant { held, token, ttl, good_us: called_us }
    }

    /// It was asked after `called_us` whether it holds, and said so.
    fn holds(&mut self, grant: &mut Grant, called_us: u64) {
        self.book.note(&grant.held, Call::Read, called_us, Answer::active(grant.token));
        grant.good_us = called_us;
    }

    fn renewed(&mut self, grant: &mut Grant, called_us: u64) {
        let call = Call::Renew { ttl_us: grant.ttl.as_micros() as u64 };
        self.book.note(&grant.held, call, called_us, Answer::active(grant.token));
        grant.good_us = called_us;
    }

    /// Whoever gave it up was told that the server knows.
    fn released(&mut self, grant: &Grant, called_us: u64) {
        self.book.note(&grant.held, Call::Finish, called_us, Answer::Done);
    }

    /// It may have been given up at any time since it was last seen to hold.
    fn left(&mut self, grant: &Grant) {
        self.book.note(&grant.held, Call::Finish, grant.good_us, Answer::Unknown);
    }

    /// How often it looks while it holds, and how long it works in between: most are quick, some outlive their ttl and
    /// have to be renewed.
    fn shift(&mut self, ttl: Duration) -> (u64, Duration) {
        match self.random.below(8) {
            0 => (8, ttl / 6),
            _ => (1 + self.random.below(3), Duration::from_millis(self.random.below(30))),
        }
    }

    fn rest(&mut self) {
        let most = self.book.shared.rest_ms.max(50);
        thread::sleep(Duration::from_millis(self.random.below(2 * most)));
    }
}

/// A process that answers lines with lines. It is gone when this is.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// What it said.
enum Heard {
    Line(String),
    /// It closed its output: it is gone, and whatever it had started.
    Closed,
    /// Nothing in all the time that there was.
    Nothing,
}

impl Process {
    fn start(mut command: Command) -> std::io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let (sender, lines) = channel();
        if let Some(out) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { stdin: child.stdin.take(), child, lines })
    }

    /// Where it is gone nobody hears this; whoever waits for the answer sees it.
    fn say(&mut self, line: &str) {
        if let Some(stdin) = &mut self.stdin {
            stdin.write_all(format!("{line}\n").as_bytes()).ok();
        }
    }

    fn hear(&self) -> Heard {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Heard::Line(line),
            Err(RecvTimeoutError::Disconnected) => Heard::Closed,
            Err(RecvTimeoutError::Timeout) => Heard::Nothing,
        }
    }

    /// Reads on until there is nothing more to come. Says whether that came to an end.
    fn closed(&self) -> bool {
        loop {
            match self.hear() {
                Heard::Line(_) => {}
                Heard::Closed => return true,
                Heard::Nothing => return false,
            }
        }
    }

    fn signal(&self, name: &str) {
        Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().ok();
    }

    /// Its exit code, once it is gone; of one that a signal ended there is none.
    fn exited(&mut self) -> Option<Option<i32>> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status.code());
            }
            thread::sleep(Duration::from_millis(10));
        }
        None
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
