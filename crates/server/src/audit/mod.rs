//! The audit: who got what, from where, why, as one JSON line each.
//!
//! In:    events from the table (as a listener), refusals and changes of access control from the door.
//! Out:   lines, through a bounded queue, to the thread in `writer.rs`. Refusals have a file of their own: however many
//!        there are, they never push a grant out.
//! Never: holds up the table or a request. What does not fit into the queue is counted, and the count is a line, too.
//!
//! - `notes.rs`     which request made or ended a claim
//! - `refusals.rs`  refusals, counted and summed up
//! - `writer.rs`    the thread that writes, and puts full files aside

mod notes;
mod refusals;
mod writer;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock, Weak};

use leasehold_core::{ClaimId, Ending, Event, EventKind, Mode, Status};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;

pub use self::notes::Noted;
use self::notes::{Asker, Notes, Wish};
use self::refusals::{Refusals, RefusedRequest};
use crate::message::time::rfc3339;
use leasehold_engine::Engine;
use leasehold_engine::clock::wall_us;
use leasehold_engine::publish::Listener;

/// Lines on their way to the file.
const QUEUE_LEN: usize = 65_536;

/// `[audit]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

    /// `audit.refused.jsonl` for `audit.jsonl`.
    fn refused_file(&self) -> Option<PathBuf> {
        let file = self.file()?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let end = file.extension().map_or_else(String::new, |end| format!(".{}", end.to_string_lossy()));
        Some(file.with_file_name(format!("{name}.refused{end}")))
    }
}

/// One line, or the wish to know that all before it are written.
enum Line {
    Text(String),
    Refused(String),
    Flush(SyncSender<()>),
}

/// The audit.
#[derive(Debug)]
pub struct Audit {
    lines: SyncSender<Line>,
    lost: AtomicU64,
    /// Entries up to this one are in the file already: they come again when a node starts.
    written: AtomicU64,
    /// Whether events are new, where the place they go to can't tell what it has seen.
    live: AtomicBool,
    notes: Mutex<Notes>,
    refusals: Arc<Mutex<Refusals>>,
    /// The table, once there is one.
    engine: OnceLock<Weak<Engine>>,
    /// The table was replaced as a whole: some claims that waited may be gone without an event.
    replaced: AtomicBool,
}

impl Audit {
    /// Opens the files and starts the thread that writes.
    pub fn start(options: &AuditOptions) -> Result<Arc<Self>, String> {
        let file = options.file();
        let failed = |error: std::io::Error| format!("audit: {}: {error}", options.to);
        let written = file.as_deref().map_or(Ok(None), writer::last_index).map_err(failed)?;
        let (lines, queue) = sync_channel(QUEUE_LEN);
        let open = |file| writer::Writer::open(file, options.max_mib << 20, options.keep).map_err(failed);
        let refusals = Arc::new(Mutex::new(Refusals::default()));
        let live = AtomicBool::new(file.is_some());
        let (grants, refused) = (open(file)?, open(options.refused_file())?);
        let pen = writer::Pen { grants, refused, refusals: refusals.clone() };
        let thread = std::thread::Builder::new().name("audit".into());
        thread.spawn(move || pen.run(&queue)).map_err(failed)?;
        Ok(Arc::new(Self {
            lines,
            lost: AtomicU64::new(0),
            written: AtomicU64::new(written.unwrap_or(0)),
            live,
            notes: Mutex::default(),
            refusals,
            engine: OnceLock::new(),
            replaced: AtomicBool::new(false),
        }))
    }

    /// From now on events are new, and this is the engine whose events they are.
    pub fn go_live(&self, engine: &Arc<Engine>) {
        // The log ends before the file does: it is another one, begun anew or restored from a backup, and counts from there.
        let log_end = engine.log_end();
        let written = self.written.fetch_min(log_end, Ordering::AcqRel);
        if written > log_end {
            tracing::warn!(
                "the audit ends with log entry {written}, and this node's log with {log_end}: it was restored or begun anew; \
                 indexes in the audit repeat from here on"
            );
        }
        self.engine.set(Arc::downgrade(engine)).ok();
        self.live.store(true, Ordering::Release);
    }

    /// Returns when everything so far is written, refusals that are only counted included.
    pub fn flush(&self) {
        let (done, written) = sync_channel(1);
        if self.lines.send(Line::Flush(done)).is_ok() {
            written.recv().ok();
        }
    }

    /// A request asks for this claim to be made.
    pub fn note(self: &Arc<Self>, claim: ClaimId, by: Arc<str>, from: Arc<str>) -> Noted {
        self.add_note(claim, Wish::Make, Asker { by, from })
    }

    /// A request asks for this claim to end. `only_of`: the table refuses that if the owner is somebody else.
    pub fn note_end(
        self: &Arc<Self>,
        claim: ClaimId,
        ending: Ending,
        only_of: Option<Arc<str>>,
        by: Arc<str>,
        from: Arc<str>,
    ) -> Noted {
        self.add_note(claim, Wish::End { ending, only_of }, Asker { by, from })
    }

    fn add_note(self: &Arc<Self>, claim: ClaimId, wish: Wish, asker: Asker) -> Noted {
        let number = self.notes.lock().add(claim, wish, asker);
        Noted::new(self.clone(), claim, number)
    }

    /// A caller was turned away.
    pub fn refused(&self, who: &str, how: &str, from: &str, verb: &str, resource: &str, status: u16) {
        let refusal = RefusedRequest { who, how, from, verb, resource, status };
        let line = self.refusals.lock().count(refusal);
        if let Some(line) = line {
            self.send(Line::Refused(line));
        }
    }

    /// Access control was changed.
    pub fn access_changed(
        &self,
        settings_changed: bool,
        rules: usize,
        made: &[String],
        withdrawn: &[String],
    ) {
        self.send_text(&AccessLine {
            time: rfc3339(wall_us()),
            what: "access-changed",
            settings_changed,
            rules,
            keys_made: made,
            keys_withdrawn: withdrawn,
        });
    }

    fn send_text(&self, line: &impl Serialize) {
        let line = serde_json::to_string(line).unwrap_or_default();
        self.send(Line::Text(format!("{line}\n")));
    }

    fn send(&self, line: Line) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let line = json!({"time": rfc3339(wall_us()), "what": "lost", "count": lost});
            if self.lines.try_send(Line::Text(format!("{line}\n"))).is_err() {
                self.lost.fetch_add(lost + 1, Ordering::Relaxed);
                return;
            }
        }
        if let Err(TrySendError::Full(_)) = self.lines.try_send(line) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Which slots a claim holds or held, as the table knows it.
    fn slots(&self, event: &Event) -> Option<Vec<u16>> {
        slots_of(event).filter(|_| event.token > 0)?;
        let engine = self.engine.get().and_then(Weak::upgrade)?;
        let view = engine.read(|table, now_us| table.claim_view(event.claim, now_us))?;
        view.items().get(usize::from(event.item)).map(|item| item.slots.clone())
    }

    /// After the table was replaced: forgets the askers of claims that no longer wait.
    fn prune(&self) {
        let Some(engine) = self.engine.get().and_then(Weak::upgrade) else { return };
        engine.read(|table, now_us| {
            let waits = |claim| {
                let view = table.claim_view(claim, now_us);
                view.is_some_and(|view| view.claim.status == Status::Waiting)
            };
            self.notes.lock().keep_waiting(waits);
        });
    }

    /// `asker` is who asked for the event before: all items of a claim have the same one.
    fn tell(&self, index: u64, event: &Event, asker: &mut Option<Asker>) {
        if event.item == 0 {
            *asker = self.notes.lock().asker_of(event);
        }
        let what = match event.kind {
            EventKind::Activated { .. } => "granted",
            EventKind::Ended { status, .. } => status.as_str(),
            EventKind::Revoking => "revoking",
            EventKind::Queued | EventKind::Renewed => return,
        };
        self.send_text(&EventLine {
            time: rfc3339(event.stamp.wall_us),
            index,
            what,
            who: &event.owner,
            by: asker.as_ref().map(|asker| &*asker.by),
            from: asker.as_ref().map(|asker| &*asker.from),
            resource: &event.resource,
            claim: event.claim.to_string(),
            token: Some(event.token).filter(|token| *token > 0),
            mode: event.mode.as_str(),
            take: slots_of(event).map(|(take, _)| take),
            of: slots_of(event).map(|(_, of)| of),
            slots: self.slots(event),
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
    mode: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    take: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<Vec<u16>>,
    why: Option<&'a str>,
}

/// How many slots an item takes, and of how many.
fn slots_of(event: &Event) -> Option<(u16, u16)> {
    if let Mode::Slots { take, of } = event.mode { Some((take, of)) } else { None }
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
        if self.replaced.swap(false, Ordering::AcqRel) {
            self.prune();
        }
        if index > self.written.load(Ordering::Acquire) && self.live.load(Ordering::Acquire) {
            let mut asker = None;
            events.iter().for_each(|event| self.tell(index, event, &mut asker));
        }
    }

    fn replaced(&self) {
        self.replaced.store(true, Ordering::Release);
    }
}
