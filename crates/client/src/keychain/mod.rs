//! The keychain: claims for a parent process, over a pipe of JSON lines.
//!
//! In:    requests, one a line. Out: answers and events, one a line.
//! Never: waits for a parent that does not read, and never keeps a claim when the parent is gone.
//!
//! docs/keychain.md describes the lines. A claim is named by its (first) resource and, in a parent with several workers, by the
//! worker: each has one claim on a resource at a time. `line.rs` reads a line, `claims.rs` does what it asks for.

mod claims;
mod line;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};

use self::claims::Held;
use self::line::{Line, Name, refusal};
use crate::clock::BootInstant;
use crate::error::Error;
use crate::manager::LockManager;
use crate::settings::OnLost;

/// Bytes that may wait for a parent that does not read; beyond that its requests wait too, and it is not told any more
/// how its claims wait.
const BACKLOG_BYTES_MAX: usize = 4 << 20;
/// Longest line: far more than the data that a server takes with a claim. A parent that never ends its line would
/// otherwise take all memory.
const LINE_LEN_MAX: usize = 1 << 20;
/// What is kept of a longer line: its id may be in there.
const HEAD_LEN: usize = 64;
/// How long a parent that does not read is waited for at the end.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// What holds for all claims that don't say otherwise.
pub struct Settings {
    /// How long a claim may be held. `None`: for as long as the parent wants.
    pub max_hold: Option<Duration>,
    /// Whether the parent is terminated when a claim is lost.
    pub on_lost: OnLost,
    /// Whether the parent is told of each renewal, and until when the claim holds then.
    pub tell_renewals: bool,
    /// Sends SIGTERM to the parent.
    pub terminate: Box<dyn Fn() + Send + Sync>,
}

/// How the parent left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leave {
    /// It asked to, in the request with this id.
    Shutdown(Value),
    /// The pipe is closed, or broke.
    Closed,
}

/// Serves one parent.
pub struct Keychain {
    inner: Arc<Inner>,
    writing: tokio::task::AbortHandle,
}

/// What all tasks share.
struct Inner {
    manager: LockManager,
    settings: Settings,
    claims: Mutex<BTreeMap<Name, Held>>,
    next_serial: AtomicU64,
    out: mpsc::UnboundedSender<String>,
    /// Bytes that wait for the parent.
    backlog: AtomicUsize,
    drained: Notify,
    /// Claims whose renewal the parent has not been told yet: one line for each, however long the parent does not read.
    renewed: Mutex<BTreeMap<String, BootInstant>>,
    has_renewed: Notify,
    /// Tasks that may have something to say.
    busy: AtomicUsize,
    rested: Notify,
    /// The parent has closed its pipe.
    is_deserted: AtomicBool,
}

impl Keychain {
    /// Starts to write; [`Keychain::serve`] reads.
    pub fn new<W>(manager: LockManager, settings: Settings, writer: W) -> Self
    where
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let (out, lines) = mpsc::unbounded_channel();
        let inner = Arc::new(Inner {
            manager,
            settings,
            claims: Mutex::default(),
            next_serial: AtomicU64::new(0),
            out,
            backlog: AtomicUsize::new(0),
            drained: Notify::new(),
            renewed: Mutex::default(),
            has_renewed: Notify::new(),
            busy: AtomicUsize::new(0),
            rested: Notify::new(),
            is_deserted: AtomicBool::new(false),
        });
        let writing = tokio::spawn(write(inner.clone(), lines, writer)).abort_handle();
        Self { inner, writing }
    }

    /// Serves the parent until it leaves. What it holds is still held then: [`Keychain::close`] or [`Keychain::abort`] it.
    pub async fn serve<R: AsyncBufRead + Unpin>(&self, reader: R) -> Leave {
        match read(&self.inner, reader).await {
            Some(id) => Leave::Shutdown(id),
            None => {
                self.inner.is_deserted.store(true, Ordering::Release);
                Leave::Closed
            }
        }
    }

    /// Releases everything, then answers the request to shut down.
    pub async fn close(&self, id: &Value) {
        // Released as the parent wants, and not lost; and no loss of this moment ends the parent.
        self.inner.is_deserted.store(true, Ordering::Release);
        self.inner.claims().clear();
        self.inner.manager.close().await;
        self.inner.rested().await;
        self.inner.answer(id, json!({ "ok": true }));
        self.inner.flushed().await;
    }

    /// Aborts everything, and returns when the last answers are written.
    pub async fn abort(&self) {
        self.inner.manager.abort().await;
        self.inner.rested().await;
        self.inner.flushed().await;
    }
}

impl Drop for Keychain {
    fn drop(&mut self) {
        self.writing.abort();
    }
}

/// Returns the id of the request to shut down, or nothing at the end of the pipe.
async fn read<R: AsyncBufRead + Unpin>(keychain: &Arc<Inner>, mut reader: R) -> Option<Value> {
    let mut line = Vec::new();
    loop {
        keychain.flushed_to(BACKLOG_BYTES_MAX).await;
        if !read_line(&mut reader, &mut line).await? {
            let error = Error::Invalid(format!("a line may have at most {LINE_LEN_MAX} bytes"));
            keychain.answer(&id_of_bad_line(&line), refusal(&error));
            continue;
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match serde_json::from_slice::<Line>(&line) {
            Ok(line) if line.op == "shutdown" => return Some(line.id),
            Ok(line) => keychain.obey(line),
            Err(error) => {
                let id = serde_json::from_slice::<Value>(&line).ok().and_then(|line| line.get("id").cloned());
                let error = Error::Invalid(format!("the line can't be read: {error}"));
                keychain.answer(&id.unwrap_or_else(|| id_of_bad_line(&line)), refusal(&error));
            }
        }
    }
}

/// The id of a line that is no JSON, or too long: a number, if the line begins with it.
fn id_of_bad_line(line: &[u8]) -> Value {
    let head = String::from_utf8_lossy(&line[..line.len().min(HEAD_LEN)]).into_owned();
    let mut rest = head.as_str();
    for word in ["{", "\"id\"", ":"] {
        match rest.trim_start().strip_prefix(word) {
            Some(after) => rest = after,
            None => return Value::Null,
        }
    }
    // Without what follows it, the number may have lost its end.
    let number = rest.trim_start().split_once([',', '}', ' ']).map_or("", |(number, _)| number);
    serde_json::from_str::<serde_json::Number>(number).map_or(Value::Null, Value::Number)
}

/// The next line, or nothing at the end of the pipe. Of one that is too long (`false`) only the beginning is kept.
async fn read_line<R: AsyncBufRead + Unpin>(reader: &mut R, line: &mut Vec<u8>) -> Option<bool> {
    line.clear();
    let mut fits = true;
    loop {
        let bytes = reader.fill_buf().await.ok()?;
        if bytes.is_empty() {
            return (!line.is_empty()).then_some(fits);
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let len = end.map_or(bytes.len(), |end| end + 1);
        fits &= line.len() + len <= LINE_LEN_MAX;
        let kept = if fits { len } else { len.min(HEAD_LEN.saturating_sub(line.len())) };
        line.extend_from_slice(&bytes[..kept]);
        if !fits {
            line.truncate(HEAD_LEN);
            line.shrink_to_fit();
        }
        reader.consume(len);
        if end.is_some() {
            return Some(fits);
        }
    }
}

async fn write<W: AsyncWrite + Unpin>(
    keychain: Arc<Inner>,
    mut lines: mpsc::UnboundedReceiver<String>,
    mut writer: W,
) {
    loop {
        let mut batch = tokio::select! {
            line = lines.recv() => match line {
                Some(line) => line,
                None => return,
            },
            () = keychain.has_renewed.notified() => String::new(),
        };
        while let Ok(more) = lines.try_recv() {
            batch.push_str(&more);
        }
        let counted = batch.len();
        keychain.add_renewed(&mut batch);
        // A parent that does not read any more is about to close the pipe; renewals go on until it does.
        if writer.write_all(batch.as_bytes()).await.is_err() || writer.flush().await.is_err() {
            lines.close();
        }
        keychain.backlog.fetch_sub(counted, Ordering::AcqRel);
        keychain.drained.notify_waiters();
    }
}

impl Inner {
    fn obey(self: &Arc<Self>, line: Line) {
        match line.op.as_str() {
            "ping" => self.answer(
                &line.id,
                json!({ "ok": true, "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id() }),
            ),
            "list" => self.list(&line.id),
            "claim" | "take-up" | "release" | "refresh" | "validate" | "show" => match line.name() {
                Err(error) => self.answer(&line.id, refusal(&error)),
                Ok(name) => self.obey_on(line, name),
            },
            other => {
                let words = "claim, take-up, release, refresh, validate, show, list, ping and shutdown";
                let error =
                    Error::Invalid(format!("'{other}' is not an operation; the operations are {words}"));
                self.answer(&line.id, refusal(&error));
            }
        }
    }

    fn obey_on(self: &Arc<Self>, line: Line, name: Name) {
        match line.op.as_str() {
            "release" => self.release(line.id, &name),
            "refresh" => self.refresh(line, &name),
            "validate" => self.validate(&line.id, &name),
            "show" => self.show(line.id, name),
            _ => self.claim(&line, name),
        }
    }

    fn answer(&self, id: &Value, mut answer: Value) {
        answer["id"] = id.clone();
        self.tell(&answer);
    }

    fn tell(&self, line: &Value) {
        let line = format!("{line}\n");
        let len = line.len();
        self.backlog.fetch_add(len, Ordering::AcqRel);
        if self.out.send(line).is_err() {
            self.backlog.fetch_sub(len, Ordering::AcqRel);
        }
    }

    fn tell_renewed(&self, claim: &str, until: BootInstant) {
        lock(&self.renewed).insert(claim.into(), until);
        self.has_renewed.notify_one();
    }

    fn add_renewed(&self, batch: &mut String) {
        for (claim, until) in std::mem::take(&mut *lock(&self.renewed)) {
            let line = json!({ "event": "renewed", "claim": claim, "until": until.as_secs_f64() });
            batch.push_str(&format!("{line}\n"));
        }
    }

    /// Runs a task that [`Self::rested`] waits for.
    fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) -> tokio::task::AbortHandle {
        self.busy.fetch_add(1, Ordering::AcqRel);
        let busy = Busy(self.clone());
        tokio::spawn(async move {
            task.await;
            drop(busy);
        })
        .abort_handle()
    }

    /// Returns when every task has said what it had to say: all claims are over by then.
    async fn rested(&self) {
        let rested = async {
            loop {
                let rested = self.rested.notified();
                if self.busy.load(Ordering::Acquire) == 0 {
                    return;
                }
                rested.await;
            }
        };
        tokio::time::timeout(FLUSH_WITHIN, rested).await.ok();
    }

    /// Returns when at most this many bytes wait for the parent.
    async fn flushed_to(&self, most: usize) {
        loop {
            let drained = self.drained.notified();
            if self.backlog.load(Ordering::Acquire) <= most {
                return;
            }
            drained.await;
        }
    }

    async fn flushed(&self) {
        // A parent that does not read its last answers is not waited for.
        tokio::time::timeout(FLUSH_WITHIN, self.flushed_to(0)).await.ok();
    }

    fn claims(&self) -> MutexGuard<'_, BTreeMap<Name, Held>> {
        lock(&self.claims)
    }
}

/// A task that is not done.
struct Busy(Arc<Inner>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
        self.0.rested.notify_waiters();
    }
}

/// Nothing that holds one of these locks can panic; if it did, what they guard is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
