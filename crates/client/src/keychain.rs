//! The keychain: claims for a parent process, over a pipe of JSON lines.
//!
//! In:    requests, one a line. Out: answers and events, one a line.
//! Never: waits for a parent that does not read, and never keeps a claim when the parent is gone.
//!
//! docs/client.md describes the lines. A claim is named by its resource: a keychain has one claim on each at a time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::claim::Claim;
use crate::driver::Phase;
use crate::error::Error;
use crate::manager::LockManager;
use crate::settings::{ClaimRequest, Wait};

/// Bytes that may wait for a parent that does not read; beyond that its requests wait too, and it is not told any more
/// how its claims wait.
const BACKLOG_BYTES_MAX: usize = 4 << 20;
/// Longest line: far more than the data that a server takes with a claim. A parent that never ends its line would
/// otherwise take all memory.
const LINE_LEN_MAX: usize = 1 << 20;
/// How long a claim may be held unless told otherwise: nothing is renewed for ever.
pub const MAX_HOLD_DEFAULT: Duration = Duration::from_secs(24 * 3600);

/// A line from the parent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// Comes back in the answer.
    #[serde(default)]
    id: Value,
    op: String,
    #[serde(default)]
    resource: Option<String>,
    #[serde(default)]
    ttl: Option<f64>,
    #[serde(default)]
    timeout: Option<f64>,
    #[serde(default)]
    data: Option<Box<RawValue>>,
    #[serde(default)]
    max_hold: Option<f64>,
    #[serde(default)]
    lead: Option<f64>,
}

/// How the parent left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// It asked to.
    Shutdown,
    /// The pipe is closed, or broke.
    Closed,
}

/// Where a claim of the parent's is.
enum Held {
    Waiting(tokio::task::AbortHandle),
    Here(Claim),
}

/// What all tasks share.
struct Keychain {
    manager: LockManager,
    claims: Mutex<HashMap<String, Held>>,
    out: mpsc::UnboundedSender<String>,
    /// Bytes that wait for the parent.
    backlog: AtomicUsize,
    drained: tokio::sync::Notify,
    max_hold: Duration,
}

/// Serves a parent until it leaves. What it holds is still held then: the caller aborts or closes the manager.
pub async fn serve<R, W>(manager: LockManager, max_hold: Duration, reader: R, writer: W) -> Leave
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (out, lines) = mpsc::unbounded_channel();
    let keychain = Arc::new(Keychain {
        manager,
        claims: Mutex::default(),
        out,
        backlog: AtomicUsize::new(0),
        drained: tokio::sync::Notify::new(),
        max_hold,
    });
    let writing = tokio::spawn(write(keychain.clone(), lines, writer));
    let leave = read(&keychain, reader).await;
    if let Some(id) = leave {
        keychain.manager.close().await;
        keychain.answer(&id, json!({ "ok": true }));
        keychain.flushed().await;
        writing.abort();
        return Leave::Shutdown;
    }
    writing.abort();
    Leave::Closed
}

/// Returns the id of the request to shut down, or nothing at the end of the pipe.
async fn read<R: AsyncBufRead + Unpin>(keychain: &Arc<Keychain>, mut reader: R) -> Option<Value> {
    let mut line = Vec::new();
    loop {
        keychain.flushed_to(BACKLOG_BYTES_MAX).await;
        if !read_line(&mut reader, &mut line).await? {
            let error = Error::Invalid(format!("a line is longer than {LINE_LEN_MAX} bytes"));
            keychain.answer(&Value::Null, refusal(&error));
            continue;
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match serde_json::from_slice::<Line>(&line) {
            Ok(line) if line.op == "shutdown" => return Some(line.id),
            Ok(line) => keychain.clone().obey(line),
            Err(error) => {
                let id = serde_json::from_slice::<Value>(&line).ok().and_then(|line| line.get("id").cloned());
                let error = Error::Invalid(format!("the line can't be understood: {error}"));
                keychain.answer(&id.unwrap_or_default(), refusal(&error));
            }
        }
    }
}

/// The next line, or nothing at the end of the pipe. Of one that is too long (`false`) nothing is kept.
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
        if fits {
            line.extend_from_slice(&bytes[..len]);
        } else {
            *line = Vec::new();
        }
        reader.consume(len);
        if end.is_some() {
            return Some(fits);
        }
    }
}

async fn write<W: AsyncWrite + Unpin>(
    keychain: Arc<Keychain>,
    mut lines: mpsc::UnboundedReceiver<String>,
    mut writer: W,
) {
    while let Some(mut batch) = lines.recv().await {
        while let Ok(more) = lines.try_recv() {
            batch.push_str(&more);
        }
        // A parent that does not read any more is about to close the pipe; renewals go on until it does.
        if writer.write_all(batch.as_bytes()).await.is_err() || writer.flush().await.is_err() {
            lines.close();
        }
        keychain.backlog.fetch_sub(batch.len(), Ordering::AcqRel);
        keychain.drained.notify_waiters();
    }
}

impl Keychain {
    fn obey(self: Arc<Self>, line: Line) {
        match line.op.as_str() {
            "ping" => self.answer(
                &line.id,
                json!({ "ok": true, "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id() }),
            ),
            "list" => self.list(&line.id),
            "claim" | "release" | "refresh" | "validate" => match line.resource.clone() {
                None => self.answer(&line.id, refusal(&Error::Invalid("'resource' is missing".into()))),
                Some(resource) => self.obey_on(line, resource),
            },
            other => {
                let words = "claim, release, refresh, validate, list, ping and shutdown";
                let error = Error::Invalid(format!("'{other}' is no operation; there are {words}"));
                self.answer(&line.id, refusal(&error));
            }
        }
    }

    fn obey_on(self: Arc<Self>, line: Line, resource: String) {
        match line.op.as_str() {
            "claim" => self.claim(line, resource),
            "release" => self.release(line.id, &resource),
            "refresh" => self.refresh(line, &resource),
            _ => self.validate(&line.id, &resource),
        }
    }

    fn claim(self: Arc<Self>, line: Line, resource: String) {
        let request = match self.request(&line, resource.clone()) {
            Ok(request) => request,
            Err(error) => return self.answer(&line.id, refusal(&error)),
        };
        let mut claims = self.claims();
        if matches!(claims.get(&resource), Some(Held::Waiting(_))) {
            drop(claims);
            return self.answer(&line.id, refusal(&Error::AlreadyClaimed(resource)));
        }
        // One that is over, or lost, makes room; one that holds is refused by the manager.
        if let Some(Held::Here(old)) = claims.get(&resource)
            && old.validate().is_err()
        {
            claims.remove(&resource);
        }
        let pending = match self.manager.request(request) {
            Ok(pending) => pending,
            Err(error) => {
                drop(claims);
                return self.answer(&line.id, refusal(&error));
            }
        };
        let keychain = self.clone();
        let name = resource.clone();
        let (begin, begun) = tokio::sync::oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            begun.await.ok();
            keychain.acquire(line.id, name, pending).await;
        });
        claims.entry(resource).or_insert_with(|| Held::Waiting(task.abort_handle()));
        drop(claims);
        begin.send(()).ok();
    }

    fn request(&self, line: &Line, resource: String) -> Result<ClaimRequest, Error> {
        let wait = match line.timeout {
            None => Wait::Default,
            Some(0.0) => Wait::No,
            Some(timeout) => Wait::For(seconds("timeout", timeout)?),
        };
        Ok(ClaimRequest {
            resource,
            ttl: line.ttl.map(|ttl| seconds("ttl", ttl)).transpose()?,
            wait,
            data: line.data.clone(),
            max_hold: Some(line.max_hold.map_or(Ok(self.max_hold), |most| seconds("max_hold", most))?),
            lead: line.lead.map_or(Ok(Duration::ZERO), |lead| seconds("lead", lead))?,
        })
    }

    async fn acquire(self: Arc<Self>, id: Value, resource: String, pending: crate::Pending) {
        let mut phases = pending.phases();
        let acquired = pending.acquired();
        tokio::pin!(acquired);
        let claim = loop {
            tokio::select! {
                claim = &mut acquired => break claim,
                Ok(()) = phases.changed() => {
                    let is_read = self.backlog.load(Ordering::Acquire) <= BACKLOG_BYTES_MAX;
                    if let Phase::Waiting(progress) = &*phases.borrow_and_update() && is_read {
                        let holder = progress.holder.as_ref().map(|holder| json!({
                            "claim": holder.id(), "owner": holder.owner, "token": holder.token, "user_data": holder.user_data,
                        }));
                        self.tell(&json!({ "event": "waiting", "resource": resource, "position": progress.position,
                            "holder": holder, "trouble": progress.trouble }));
                    }
                }
            }
        };
        let claim = match claim {
            Ok(claim) => claim,
            Err(error) => {
                let mut claims = self.claims();
                if matches!(claims.get(&resource), Some(Held::Waiting(_)))
                    && !matches!(error, Error::AlreadyClaimed(_))
                {
                    claims.remove(&resource);
                }
                drop(claims);
                return self.answer(&id, refusal(&error));
            }
        };
        let (name, token, phases) = (claim.id().to_string(), claim.token(), claim.phases());
        self.tell(&json!({ "event": "acquired", "resource": resource, "claim": name, "token": token }));
        self.answer(
            &id,
            json!({ "ok": true, "resource": resource, "claim": name, "token": token,
            "remaining": claim.holds_until().remaining().as_secs_f64() }),
        );
        self.claims().insert(resource.clone(), Held::Here(claim));
        // A task of its own, since it stays as long as the claim, and this one is large.
        tokio::spawn(self.follow(resource, name, token, phases));
    }

    /// Tells what becomes of a claim that was acquired.
    async fn follow(
        self: Arc<Self>,
        resource: String,
        claim: String,
        token: Option<u64>,
        mut phases: tokio::sync::watch::Receiver<Phase>,
    ) {
        loop {
            match &*phases.borrow_and_update() {
                Phase::Lost(lost) => {
                    self.tell(
                        &json!({ "event": "lost", "resource": resource, "claim": claim, "token": token,
                        "reason": lost.kind(), "detail": lost.to_string() }),
                    );
                    return;
                }
                Phase::Released => {
                    self.tell(
                        &json!({ "event": "released", "resource": resource, "claim": claim, "token": token }),
                    );
                    return;
                }
                Phase::Ended => return,
                _ => {}
            }
            if phases.changed().await.is_err() {
                return;
            }
        }
    }

    fn release(self: Arc<Self>, id: Value, resource: &str) {
        let held = self.claims().remove(resource);
        match held {
            None => self.answer(&id, refusal(&Error::Ended("there is no claim on it".into()))),
            Some(Held::Waiting(task)) => {
                // Its pending claim goes with the task, and leaves the queue.
                task.abort();
                self.answer(&id, json!({ "ok": true }));
            }
            Some(Held::Here(claim)) => {
                tokio::spawn(async move {
                    let answer = claim
                        .release()
                        .await
                        .map_or_else(|error| refusal(&error), |()| json!({ "ok": true }));
                    self.answer(&id, answer);
                });
            }
        }
    }

    fn refresh(self: Arc<Self>, line: Line, resource: &str) {
        let ttl = match line.ttl.map(|ttl| seconds("ttl", ttl)).transpose() {
            Ok(ttl) => ttl,
            Err(error) => return self.answer(&line.id, refusal(&error)),
        };
        let refreshing = match self.claims().get(resource) {
            Some(Held::Here(claim)) => claim.start_refresh(ttl),
            _ => Err(Error::Ended("it is not held".into())),
        };
        tokio::spawn(async move {
            let result = match refreshing {
                Ok(refreshing) => refreshing.await.unwrap_or(Err(Error::Closed)),
                Err(error) => Err(error),
            };
            self.answer(&line.id, result.map_or_else(|error| refusal(&error), |()| json!({ "ok": true })));
        });
    }

    fn validate(&self, id: &Value, resource: &str) {
        let answer = match self.claims().get(resource) {
            Some(Held::Here(claim)) => claim.validate().map_or_else(
                |error| refusal(&error),
                |token| {
                    json!({ "ok": true, "claim": claim.id(), "token": token,
                    "remaining": claim.holds_until().remaining().as_secs_f64() })
                },
            ),
            _ => refusal(&Error::Ended("it is not held".into())),
        };
        self.answer(id, answer);
    }

    fn list(&self, id: &Value) {
        let claims = self.claims();
        let mut rows: Vec<Value> = claims
            .iter()
            .map(|(resource, held)| match held {
                Held::Waiting(_) => {
                    json!({ "resource": resource, "held": false, "claim": null, "token": null })
                }
                Held::Here(claim) => json!({ "resource": resource, "held": claim.validate().is_ok(),
                    "claim": claim.id(), "token": claim.token() }),
            })
            .collect();
        drop(claims);
        rows.sort_by(|a, b| a["resource"].as_str().cmp(&b["resource"].as_str()));
        self.answer(id, json!({ "ok": true, "claims": rows }));
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

    /// Returns when at most so many bytes wait for the parent.
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
        // A parent that asks to shut down and does not read the answer is not waited for.
        tokio::time::timeout(Duration::from_secs(2), self.flushed_to(0)).await.ok();
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<String, Held>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refusal(error: &Error) -> Value {
    json!({ "ok": false, "error": error.kind(), "detail": error.to_string() })
}

fn seconds(name: &str, seconds: f64) -> Result<Duration, Error> {
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero());
    duration.ok_or_else(|| Error::Invalid(format!("'{name}' must be a number of seconds above 0")))
}
