//! The audit: who got what, from where, why, as one JSON line each.
//!
//! In:    events from the table (as a listener), refusals and changes of access control from the door.
//! Out:   lines, through a bounded queue, to the thread in `writer.rs`.
//! Never: holds up the table or a request. What does not fit into the queue is counted, and the count is a line, too.

mod writer;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

use leasehold_core::{ClaimId, Event, EventKind};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::engine::clock::wall_us;
use crate::http::time::rfc3339;
use crate::publish::Listener;

/// Lines on their way to the file.
const QUEUE_LEN: usize = 65_536;
/// Claims of which it is remembered who asked for their change, until the change happens.
const NOTES_MAX: usize = 100_000;

/// `[audit]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AuditOptions {
    /// `stderr`, or the path of a file.
    pub to: String,
    /// Mebibytes after which a file is put aside as `.1`, `.2`, ... [default: 100]
    #[serde(default = "max_mib")]
    pub max_mib: u64,
    /// How many of those are kept [default: 10].
    #[serde(default = "keep")]
    pub keep: usize,
}

fn max_mib() -> u64 {
    100
}

fn keep() -> usize {
    10
}

impl AuditOptions {
    /// The defaults, with this file or `stderr`.
    pub fn new(to: String) -> Self {
        Self { to, max_mib: max_mib(), keep: keep() }
    }

    fn file(&self) -> Option<PathBuf> {
        (self.to != "stderr").then(|| self.to.clone().into())
    }
}

/// One line, or the wish to know that all before it are written.
enum Line {
    Text(String),
    Flush(SyncSender<()>),
}

/// The audit.
#[derive(Debug)]
pub struct Audit {
    lines: SyncSender<Line>,
    lost: AtomicU64,
    /// Entries up to this one are in the file already: they come again when a node starts.
    written: u64,
    /// Whether events are new, where the place they go to can't tell what it has seen.
    live: AtomicBool,
    notes: Mutex<HashMap<ClaimId, Note>>,
}

/// Who asked for a change.
#[derive(Debug, Clone)]
struct Note {
    by: Arc<str>,
    from: Arc<str>,
}

impl Audit {
    /// Opens the file and starts the thread that writes.
    pub fn start(options: &AuditOptions) -> Result<Arc<Self>, String> {
        let file = options.file();
        let failed = |error: std::io::Error| format!("audit: {}: {error}", options.to);
        let written = file.as_deref().map_or(Ok(None), writer::last_index).map_err(failed)?;
        let (lines, queue) = sync_channel(QUEUE_LEN);
        let writer =
            writer::Writer::open(file.clone(), options.max_mib << 20, options.keep).map_err(failed)?;
        let thread = std::thread::Builder::new().name("audit".into());
        thread.spawn(move || writer.run(&queue)).map_err(failed)?;
        Ok(Arc::new(Self {
            lines,
            lost: AtomicU64::new(0),
            written: written.unwrap_or(0),
            live: AtomicBool::new(file.is_some()),
            notes: Mutex::default(),
        }))
    }

    /// From now on events are new.
    pub fn go_live(&self) {
        self.live.store(true, Ordering::Release);
    }

    /// Returns when everything so far is written.
    pub fn flush(&self) {
        let (done, written) = sync_channel(1);
        if self.lines.send(Line::Flush(done)).is_ok() {
            written.recv().ok();
        }
    }

    /// The next change of this claim is asked for by this caller.
    pub fn note(&self, claim: ClaimId, by: Arc<str>, from: Arc<str>) {
        let mut notes = self.notes.lock();
        if notes.len() >= NOTES_MAX {
            notes.clear();
        }
        notes.insert(claim, Note { by, from });
    }

    /// A caller was turned away.
    pub fn refused(&self, who: &str, how: &str, from: &str, verb: &str, resource: &str, status: u16) {
        let time = rfc3339(wall_us());
        self.send(&RefusedLine { time, what: "refused", who, how, from, verb, resource, status });
    }

    /// Access control was changed.
    pub fn access_changed(
        &self,
        settings_changed: bool,
        rules: usize,
        made: &[String],
        withdrawn: &[String],
    ) {
        self.send(&AccessLine {
            time: rfc3339(wall_us()),
            what: "access-changed",
            settings_changed,
            rules,
            keys_made: made,
            keys_withdrawn: withdrawn,
        });
    }

    fn send(&self, line: &impl Serialize) {
        let line = serde_json::to_string(line).unwrap_or_default();
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let line = json!({"time": rfc3339(wall_us()), "what": "lost", "count": lost});
            if self.lines.try_send(Line::Text(format!("{line}\n"))).is_err() {
                self.lost.fetch_add(lost + 1, Ordering::Relaxed);
                return;
            }
        }
        if let Err(TrySendError::Full(_)) = self.lines.try_send(Line::Text(format!("{line}\n"))) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn tell(&self, index: u64, event: &Event) {
        let (what, note) = match event.kind {
            EventKind::Activated { .. } => ("granted", self.notes.lock().get(&event.claim).cloned()),
            EventKind::Ended { status, .. } => (status.as_str(), self.notes.lock().remove(&event.claim)),
            EventKind::Queued | EventKind::Renewed => return,
        };
        self.send(&EventLine {
            time: rfc3339(event.stamp.wall_us),
            index,
            what,
            who: &event.owner,
            by: note.as_ref().map(|note| &*note.by),
            from: note.as_ref().map(|note| &*note.from),
            resource: &event.resource,
            claim: event.claim.to_string(),
            token: Some(event.token).filter(|token| *token > 0),
            why: event.reason.as_deref(),
        });
    }
}

/// Something happened to a claim.
#[derive(Serialize)]
struct EventLine<'a> {
    time: String,
    index: u64,
    what: &'a str,
    who: &'a str,
    by: Option<&'a str>,
    from: Option<&'a str>,
    resource: &'a str,
    claim: String,
    token: Option<u64>,
    why: Option<&'a str>,
}

/// Somebody was turned away.
#[derive(Serialize)]
struct RefusedLine<'a> {
    time: String,
    what: &'a str,
    who: &'a str,
    how: &'a str,
    from: &'a str,
    verb: &'a str,
    resource: &'a str,
    status: u16,
}

/// Rules or keys are others than before.
#[derive(Serialize)]
struct AccessLine<'a> {
    time: String,
    what: &'a str,
    settings_changed: bool,
    rules: usize,
    keys_made: &'a [String],
    keys_withdrawn: &'a [String],
}

impl Listener for Audit {
    fn applied(&self, index: u64, events: &[Event]) {
        if index > self.written && self.live.load(Ordering::Acquire) {
            events.iter().for_each(|event| self.tell(index, event));
        }
    }
}
