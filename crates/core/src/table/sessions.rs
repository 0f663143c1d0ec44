//! Which live claims belong to which session.
//!
//! In:    claims with a session, as they come, are granted and end. Out: who waits in a session and below it.
//! Never: part of a snapshot: it is made again from the claims.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// All sessions that have a live claim, by path.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sessions(BTreeMap<Arc<str>, Session>);

#[derive(Debug, Default, PartialEq, Eq)]
struct Session {
    holding: u32,
    waiting: BTreeSet<u64>,
}

impl Sessions {
    pub(super) fn add_holding(&mut self, session: &Arc<str>) {
        self.0.entry(session.clone()).or_default().holding += 1;
    }

    pub(super) fn add_waiting(&mut self, session: &Arc<str>, seq: u64) {
        self.0.entry(session.clone()).or_default().waiting.insert(seq);
    }

    /// A live claim is over; or, if it waited, it may hold now.
    pub(super) fn remove(&mut self, session: &Arc<str>, seq: u64) {
        let Some(entry) = self.0.get_mut(session) else { return };
        if !entry.waiting.remove(&seq) {
            entry.holding -= 1;
        }
        if *entry == Session::default() {
            self.0.remove(session);
        }
    }

    /// Whether a session or one of its ancestors has a live claim. Only then can a new claim of it close a cycle.
    pub(super) fn has_claims(&self, session: &str) -> bool {
        let ancestors = session.match_indices('/').map(|(slash, _)| &session[..slash]);
        ancestors.chain([session]).any(|path| self.0.contains_key(path))
    }

    /// The waiting claims of a session and of its descendants: while one of them waits, the session does not go on.
    pub(super) fn waiting_below(&self, session: &str) -> impl Iterator<Item = u64> {
        let below = format!("{session}/");
        // `0` comes right behind `/`.
        let end = format!("{session}0");
        let own = self.0.get(session).into_iter();
        let range = (Bound::Included(below.as_str()), Bound::Excluded(end.as_str()));
        let below: Vec<&Session> = self.0.range::<str, _>(range).map(|(_, entry)| entry).collect();
        own.chain(below).flat_map(|entry| entry.waiting.iter().copied())
    }
}
