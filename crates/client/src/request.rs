//! A claim as its owner asks for it.
//!
//! In:    the name of a resource and what the caller wants to change. Out: a checked [`ClaimRequest`].
//! Never: guesses what a bad value meant.

use std::collections::HashSet;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::error::Error;
use crate::item::{Item, Mode};
use crate::session;
use crate::settings::{OnLost, Options, margin};

/// Longest time that can be set: a hundred days.
const TIME_MAX: Duration = Duration::from_secs(100 * 86_400);
/// Longest idempotency key that is sent: far more than a random one needs.
const KEY_LEN_MAX: usize = 100;
/// Most resources of one claim that a server takes.
const ITEMS_MAX: usize = 1000;

/// Who makes a claim. A worker has one claim on a resource at a time; workers of one process queue for it like strangers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Worker(WorkerKind);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum WorkerKind {
    Task(tokio::task::Id),
    Thread(std::thread::ThreadId),
    Named(String),
}

impl Worker {
    /// The task that runs, or the thread where there is no task.
    pub fn current() -> Self {
        let thread = || WorkerKind::Thread(std::thread::current().id());
        Self(tokio::task::try_id().map_or_else(thread, WorkerKind::Task))
    }

    /// One that the program names.
    pub fn named(name: impl Into<String>) -> Self {
        Self(WorkerKind::Named(name.into()))
    }

    /// What tells it from the other workers of this process: a part of a session.
    pub(crate) fn label(&self) -> String {
        match &self.0 {
            WorkerKind::Task(id) => format!("task{id}"),
            WorkerKind::Thread(id) => {
                let id = format!("{id:?}").replace("ThreadId", "t");
                id.chars().filter(char::is_ascii_alphanumeric).collect()
            }
            WorkerKind::Named(name) => form_urlencoded::byte_serialize(name.as_bytes()).collect(),
        }
    }
}

/// How long a claim may wait for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Wait {
    /// As the manager says.
    #[default]
    Default,
    /// For ever.
    Forever,
    /// For so long.
    For(Duration),
    /// Not at all: hold it now or not.
    No,
}

/// A claim as asked for.
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_client::{ClaimRequest, Wait};
///
/// #[derive(serde::Serialize)]
/// struct Job<'a> {
///     host: &'a str,
///     attempt: u32,
/// }
///
/// # fn main() -> Result<(), leasehold_client::Error> {
/// let request = ClaimRequest::new("db/main")
///     .ttl(Duration::from_secs(60))
///     .wait(Wait::For(Duration::from_secs(600)))
///     .data(&Job { host: "alpha", attempt: 1 })?;
/// # drop(request);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ClaimRequest {
    /// What to hold.
    pub resource: String,
    /// How to hold it.
    pub mode: Mode,
    /// What to hold together with it: all of it, or nothing.
    pub others: Vec<Item>,
    /// How long it stays active without renewal; else the manager's.
    pub ttl: Option<Duration>,
    /// How long it may wait.
    pub wait: Wait,
    /// JSON that is kept with the claim.
    pub(crate) data: Option<Box<RawValue>>,
    /// How long it may be held at most, renewals or not: then it counts as lost. `None`: for as long as it is wanted.
    pub max_hold: Option<Duration>,
    /// How long before the end of the ttl the claim is called lost, so that there is time to stop what it protects.
    pub lead: Duration,
    /// What happens when it is lost; else what the manager says.
    pub on_lost: Option<OnLost>,
    /// Whose it is; else the task or thread that asks for it.
    pub worker: Option<Worker>,
    /// The session that the claim belongs to, a path like `a/b`; else one of the worker's own. The server refuses a claim that
    /// would wait for its own session, or for one that the session is part of.
    pub session: Option<String>,
    /// The key under which the claim is made: a repeated request under the same key gets the same claim. A new key if unset.
    pub idempotency_key: Option<String>,
}

impl ClaimRequest {
    /// With defaults.
    pub fn new(resource: impl Into<String>) -> Self {
        Self { resource: resource.into(), ..Self::default() }
    }

    /// Together with others that share it.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// Some of its slots; [`crate::Claim::slots`] says which ones were granted.
    #[must_use]
    pub fn slots(mut self, take: u32, of: u32) -> Self {
        self.mode = Mode::Slots { take, of };
        self
    }

    /// Another resource, held together with the first: all of them or none, without the deadlocks of taking one after another.
    #[must_use]
    pub fn also(mut self, item: impl Into<Item>) -> Self {
        self.others.push(item.into());
        self
    }

    /// How long it stays active without renewal.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long it may wait.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Data that is kept with the claim and shown to everybody who may read it: anything that serializes to JSON. Fails if the
    /// value can't be written as JSON.
    pub fn data(mut self, data: &(impl Serialize + ?Sized)) -> Result<Self, Error> {
        let data = serde_json::value::to_raw_value(data);
        self.data = Some(
            data.map_err(|error| Error::Invalid(format!("the data can't be written as JSON: {error}")))?,
        );
        Ok(self)
    }

    /// How long it may be held at most, renewals or not.
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// How long before the end of the ttl the claim is called lost.
    #[must_use]
    pub fn lead(mut self, lead: Duration) -> Self {
        self.lead = lead;
        self
    }

    /// What happens when it is lost.
    #[must_use]
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = Some(on_lost);
        self
    }

    /// Whose it is.
    #[must_use]
    pub fn worker(mut self, worker: Worker) -> Self {
        self.worker = Some(worker);
        self
    }

    /// The session that the claim belongs to.
    #[must_use]
    pub fn session(mut self, session: impl Into<String>) -> Self {
        self.session = Some(session.into());
        self
    }

    /// The key under which the claim is made.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    pub(crate) fn check(&self, options: &Options) -> Result<(), Error> {
        let invalid = |what: String| Err(Error::Invalid(what));
        self.check_items()?;
        if self.session.as_ref().is_some_and(|session| !session::is_valid(session)) {
            let most = session::LEN_MAX;
            return invalid(format!(
                "a session is a path like 'a/b', without empty names, of up to {most} bytes"
            ));
        }
        if self.max_hold == Some(Duration::ZERO) {
            return invalid(
                "a max_hold of 0 would hold nothing: leave it out to hold without a limit".into(),
            );
        }
        let is_bad_key = |key: &String| {
            key.is_empty() || key.len() > KEY_LEN_MAX || !key.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if self.idempotency_key.as_ref().is_some_and(is_bad_key) {
            return invalid(format!("an idempotency key has 1 to {KEY_LEN_MAX} visible ASCII characters"));
        }
        check_ttl(self.ttl.unwrap_or(options.ttl), self.lead)
    }

    /// Everything to hold.
    pub(crate) fn items(&self) -> Vec<Item> {
        let first = Item { resource: self.resource.clone(), mode: self.mode };
        std::iter::once(first).chain(self.others.iter().cloned()).collect()
    }

    fn check_items(&self) -> Result<(), Error> {
        let items = self.items();
        if items.len() > ITEMS_MAX {
            return Err(Error::Invalid(format!(
                "a claim names {} resources, and may name at most {ITEMS_MAX}",
                items.len()
            )));
        }
        let mut names = HashSet::new();
        for item in &items {
            item.check()?;
            if !names.insert(&item.resource) {
                return Err(Error::Invalid(format!("'{}' is named twice in one claim", item.resource)));
            }
        }
        Ok(())
    }
}

/// Whether a claim can have this ttl, also later on.
pub(crate) fn check_ttl(ttl: Duration, lead: Duration) -> Result<(), Error> {
    let invalid = |what: String| Err(Error::Invalid(what));
    if ttl < Duration::from_millis(1) || ttl > TIME_MAX {
        return invalid(format!(
            "a ttl of {} s is out of range: it must be 1 ms to 100 days",
            ttl.as_secs_f64()
        ));
    }
    if lead.saturating_add(margin(ttl)) >= ttl {
        return invalid(format!(
            "a ttl of {} s is too short to leave {} s for stopping what the claim protects: give it a longer ttl",
            ttl.as_secs_f64(),
            lead.as_secs_f64()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TTL_DEFAULT;

    #[test]
    fn what_makes_no_sense_is_named() {
        let options = Options::default();
        let claim = |request: ClaimRequest| request.check(&options);
        assert!(claim(ClaimRequest::new("")).is_err());
        assert!(claim(ClaimRequest::new("r").lead(TTL_DEFAULT)).is_err());
        assert!(claim(ClaimRequest::new("r")).is_ok());
        let endless = ClaimRequest::new("r").max_hold(Duration::ZERO);
        assert!(claim(endless).unwrap_err().to_string().contains("leave it out"));
        let keyed = |key: &str| ClaimRequest::new("r").idempotency_key(key);
        assert!(claim(keyed("a-1")).is_ok() && claim(keyed("a b")).is_err() && claim(keyed("")).is_err());
        let twice = ClaimRequest::new("a").also("b").also(Item::shared("a"));
        assert!(claim(twice).unwrap_err().to_string().contains("'a' is named twice"));
        assert!(claim(ClaimRequest::new("a").also("")).is_err());
        assert!(claim(ClaimRequest::new("a").session("a//b")).is_err());
    }

    #[test]
    fn data_that_is_no_json_is_refused_and_everything_else_is_kept_as_it_is() {
        let no_text_keys = std::collections::BTreeMap::from([(vec![1], 2)]);
        let refused = ClaimRequest::new("r").data(&no_text_keys).unwrap_err();
        assert!(refused.to_string().contains("the data can't be written as JSON"), "{refused}");
        let kept = ClaimRequest::new("r").data(&("alpha", 1)).unwrap();
        assert_eq!(kept.data.unwrap().get(), r#"["alpha",1]"#);
    }
}
