//! A lease as this dialect sees it: the claim that holds a resource, or the last one that did.
//!
//! In:    the table. Out: the latest holder, those before, and their times on the wall clock.
//! Never: shows a holder whose deadline has passed, nor a claim that only ever waited.

use std::sync::Arc;

use leasehold_core::table::Resource;
use leasehold_core::{Status, Table, View};

use leasehold_engine::{Engine, EngineError, Settled};

/// Former holders that are shown.
pub(super) const HISTORY_LEN_MAX: usize = 10;
/// Holders of a shared lease that are shown beside the first.
const OTHERS_LEN_MAX: usize = 100;
/// Finished claims looked at to find them: claims that gave up in the queue lie in between.
const LOOK_LEN_MAX: usize = 1_000;

/// What the table knows about one lease.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    /// Its name in the table.
    pub(super) resource: Arc<str>,
    /// Its holder, or the last one; `None` if it never had any, or that was forgotten.
    pub(super) latest: Option<View>,
    /// Those who no longer hold it, the last one first.
    pub(super) history: Vec<View>,
    /// Claims of other dialects that wait for it.
    pub(super) waiting: usize,
    /// Others who hold it together with the holder: through other dialects it can be shared.
    pub(super) others: Vec<View>,
}

/// When things happened to a holder, by the wall clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// It became the holder.
    pub(super) acquired_us: u64,
    /// It last was renewed, or became the holder.
    pub(super) renewed_us: u64,
    /// Its time is up, or was; it never is later than its end. `None`: it has no end.
    pub(super) expires_us: Option<u64>,
    /// It was given up or taken away before its time was up.
    pub(super) released_us: Option<u64>,
    /// How much of its time is left; `None` once it is over.
    pub(super) left_us: Option<u64>,
}

/// Looks at a lease as it is now. The history is read on demand.
pub(super) async fn look(engine: &Engine, resource: &Arc<str>, history: bool) -> Result<Lease, EngineError> {
    let history_len = if history { HISTORY_LEN_MAX } else { 0 };
    engine
        .read_settled(|table, now_us| match table.resource(resource) {
            None => Settled::Yes(Lease::never_held(resource)),
            Some(entry) => match holder(table, entry, now_us) {
                Holder::Due => Settled::No(vec![resource.clone()]),
                Holder::Is(view) => {
                    let mut history = past(table, entry, now_us, history_len.max(1));
                    let latest = view.or_else(|| history.first().cloned());
                    history.truncate(history_len);
                    let waiting = entry.queue_len() as usize;
                    let others = entry.holders().skip(1).take(OTHERS_LEN_MAX);
                    let others = others.map(|seq| table.view_at(seq, now_us)).collect();
                    Settled::Yes(Lease { resource: resource.clone(), latest, history, waiting, others })
                }
            },
        })
        .await
}

/// Who holds a resource.
#[allow(clippy::large_enum_variant, reason = "taken apart where it is made, never kept")]
pub(super) enum Holder {
    /// This one, or nobody.
    Is(Option<View>),
    /// Somebody whose time is up: settle first.
    Due,
}

/// The holder of a resource at `now_us`.
pub(super) fn holder(table: &Table, entry: &Resource, now_us: u64) -> Holder {
    match entry.active().map(|seq| table.view_at(seq, now_us)) {
        Some(view) if view.claim.is_due(view.now_us) => Holder::Due,
        view => Holder::Is(view),
    }
}

/// Those who no longer hold a resource, the last one first.
pub(super) fn past(table: &Table, entry: &Resource, now_us: u64, max: usize) -> Vec<View> {
    let ended = entry.finished().rev().take(LOOK_LEN_MAX).map(|seq| table.view_at(seq, now_us));
    ended.filter(|view| view.claim.activated_us > 0).take(max).collect()
}

impl Lease {
    /// A lease that nobody is known to have held.
    pub(super) fn never_held(resource: &Arc<str>) -> Self {
        let (history, others) = (Vec::new(), Vec::new());
        Self { resource: resource.clone(), latest: None, history, waiting: 0, others }
    }

    /// Whether somebody holds it.
    pub(super) fn is_held(&self) -> bool {
        self.latest.as_ref().is_some_and(is_held)
    }
}

/// Whether this claim holds its lease.
pub(super) fn is_held(view: &View) -> bool {
    view.claim.status == Status::Active
}

/// The times of a holder, seen at `now_wall_us` of the wall clock.
pub(super) fn times(view: &View, now_wall_us: u64) -> Times {
    let claim = &view.claim;
    let left_us = claim.deadline_us().map(|deadline_us| deadline_us.saturating_sub(view.now_us));
    let in_time = matches!(claim.status, Status::Active | Status::Expired);
    let ended_us = claim.end.as_ref().map(|end| end.ended_wall_us);
    let expires_us = ended_us.or(left_us.map(|left_us| now_wall_us + left_us));
    // The sum of what was stored is the same in every response. It is off only if the table's clock stood still, or
    // the wall clock was set.
    let planned_us = claim.ttl_us().map(|ttl_us| claim.renewed_wall_us.saturating_add(ttl_us));
    let near = |us: u64| planned_us.filter(|planned_us| in_time && planned_us.abs_diff(us) < 1_000_000);
    Times {
        acquired_us: claim.activated_wall_us,
        renewed_us: claim.renewed_wall_us,
        expires_us: expires_us.map(|us| near(us).unwrap_or(us)),
        released_us: ended_us.filter(|_| !in_time),
        left_us,
    }
}
