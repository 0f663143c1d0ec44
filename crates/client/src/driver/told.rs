//! Being told: one open request asks the server for the end of any of the claims that are held.
//!
//! In:    claims that are held from now on, and answers of `POST /v1/endings`. Out: claims that are lost at once, not at their next
//!        renewal.
//! Never: relied on: a claim that nobody tells of is lost by the clock or by its renewal, as ever. A server that does not know the
//!        call is asked once.
//!
//! A request asks for a page of claims, so that a claim that comes or goes has few others asked for again. A page that grows is
//! sent when nothing was added for a moment.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use hyper::Method;
use serde_json::json;
use tokio::task::AbortHandle;

use super::{Driver, News};
use crate::call::{Call, Failure, Reply};
use crate::clock::BootInstant;
use crate::error::Lost;
use crate::machine::{Event, State, Timer};
use crate::wire::{Ending, Endings};

/// Claims of one request.
const PAGE_LEN: usize = 250;
/// How long a request stands open: a server with 100,000 lone holders gets some 1,700 of these a second.
const WAIT: Duration = Duration::from_secs(60);
/// How much longer its answer may take.
const WITHIN: Duration = Duration::from_secs(10);
/// A page is sent when nothing was added to it for this long.
const GATHER: Duration = Duration::from_millis(10);
/// Pauses after a failure: the first, and the longest.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// What is asked for at the moment.
pub(super) struct Told {
    /// Claims that are held and that nobody asks for yet.
    fresh: Vec<u64>,
    pages: BTreeMap<u64, Page>,
    /// Claim -> its page.
    page_of: HashMap<u64, u64>,
    last_page: u64,
    /// Claims that the server does not know: their renewals will tell.
    unknown: HashSet<u64>,
    failures: u32,
    is_pausing: bool,
    /// The server knows `POST /v1/endings`.
    is_known: bool,
}

/// One open request.
struct Page {
    claims: Vec<u64>,
    request: AbortHandle,
}

impl Default for Told {
    fn default() -> Self {
        Self {
            fresh: Vec::new(),
            pages: BTreeMap::new(),
            page_of: HashMap::new(),
            last_page: 0,
            unknown: HashSet::new(),
            failures: 0,
            is_pausing: false,
            is_known: true,
        }
    }
}

impl Told {
    /// A claim is held from now on.
    pub(super) fn add(&mut self, key: u64) {
        self.fresh.push(key);
    }

    /// A claim is over.
    pub(super) fn forget(&mut self, key: u64) {
        self.unknown.remove(&key);
        let Some(number) = self.page_of.remove(&key) else { return };
        let Some(page) = self.pages.get_mut(&number) else { return };
        page.claims.retain(|claim| *claim != key);
        if page.claims.is_empty() {
            page.request.abort();
            self.pages.remove(&number);
        }
    }

    /// Takes a page apart whose request is over.
    fn take(&mut self, number: u64) -> Vec<u64> {
        let claims = self.pages.remove(&number).map(|page| page.claims).unwrap_or_default();
        for claim in &claims {
            self.page_of.remove(claim);
        }
        claims
    }
}

impl Driver {
    /// Asks for the claims that nobody asks for yet.
    pub(super) fn ask_for_ends(&mut self) {
        if self.told.fresh.is_empty()
            || self.told.is_pausing
            || !self.told.is_known
            || self.options.long_poll.is_zero()
        {
            return;
        }
        let mut claims: Vec<u64> = std::mem::take(&mut self.told.fresh);
        // The newest page, if it has room, is sent again with these.
        let newest = self.told.pages.last_key_value().filter(|(_, page)| page.claims.len() < PAGE_LEN);
        if let Some(number) = newest.map(|(number, _)| *number) {
            if let Some(page) = self.told.pages.get(&number) {
                page.request.abort();
            }
            claims.extend(self.told.take(number));
        }
        claims.retain(|key| {
            let held = self.claims.get(key).is_some_and(|entry| entry.state.is_holding() && !entry.is_lost);
            held && !self.told.unknown.contains(key)
        });
        claims.sort_unstable();
        claims.dedup();
        for some in claims.chunks(PAGE_LEN) {
            self.ask_for_page(some);
        }
    }

    fn ask_for_page(&mut self, claims: &[u64]) {
        let ids: Vec<&str> = claims.iter().filter_map(|key| self.claims.get(key)?.id.as_deref()).collect();
        let body = json!({ "ids": ids }).to_string();
        let call = Call::new(Method::POST, format!("endings?wait={}", WAIT.as_secs()), body).quiet();
        self.told.last_page += 1;
        let (page, http, news) = (self.told.last_page, self.http.clone(), self.news.clone());
        let request = tokio::spawn(async move {
            tokio::time::sleep(GATHER).await;
            let result = http.send_long(&call, WAIT + WITHIN).await;
            news.send(News::Told { page, result }).ok();
        });
        let request = request.abort_handle();
        self.told.page_of.extend(claims.iter().map(|key| (*key, page)));
        self.told.pages.insert(page, Page { claims: claims.to_vec(), request });
    }

    /// The answer for a page: what it tells, and all of its claims that are still held are asked for again.
    pub(super) fn told(&mut self, page: u64, result: &Result<Reply, Failure>) {
        if !self.told.pages.contains_key(&page) {
            return;
        }
        let claims = self.told.take(page);
        let endings = match result {
            Ok(reply) if reply.status == 200 => serde_json::from_slice::<Endings>(&reply.body).ok(),
            Ok(reply) if matches!(reply.status, 400 | 404 | 405 | 501) => {
                self.told.is_known = false;
                return;
            }
            _ => None,
        };
        let by_id: HashMap<String, u64> =
            claims.iter().filter_map(|key| Some((self.claims.get(key)?.id.clone()?, *key))).collect();
        self.told.fresh.extend(claims);
        let Some(endings) = endings else { return self.pause_telling() };
        // A node that stops, or a proxy that does not wait, says so at once: don't ask in a loop.
        let is_early = result.as_ref().is_ok_and(|reply| BootInstant::now().since(reply.sent) < WAIT / 2);
        if endings.claims.is_empty() && is_early {
            return self.pause_telling();
        }
        self.told.failures = 0;
        for ending in endings.claims {
            if let Some(key) = by_id.get(&ending.id) {
                self.told_of(*key, &ending);
            }
        }
    }

    fn told_of(&mut self, key: u64, ending: &Ending) {
        if ending.status.is_some() {
            return self.let_go(key, ending.lost());
        }
        // It may have been forgotten, or this key may not see it: its renewal decides.
        self.told.unknown.insert(key);
        if self.claims.get(&key).is_some_and(|entry| entry.state == State::Active) {
            self.fire(key, super::TimerId::Machine(Timer::Renew));
        }
    }

    /// The server has taken the claim away, or wants it back: its client hears of it now, and the server when the client has
    /// let go.
    pub(super) fn let_go(&mut self, key: u64, lost: Lost) {
        self.lose(key, lost);
        // Its client does not even know that it was granted.
        if self.claims.get(&key).is_some_and(|entry| entry.is_lost && entry.on_claim.is_some()) {
            self.on(key, Event::ReleaseRequested);
        }
    }

    fn pause_telling(&mut self) {
        let pause = (PAUSE * 2u32.saturating_pow(self.told.failures)).min(PAUSE_MAX);
        self.told.failures = (self.told.failures + 1).min(8);
        self.told.is_pausing = true;
        let news = self.news.clone();
        tokio::spawn(async move {
            tokio::time::sleep(pause.mul_f64(0.75 + rand::random::<f64>() / 2.0)).await;
            news.send(News::TellAgain).ok();
        });
    }

    /// The pause after a failure is over.
    pub(super) fn tell_again(&mut self) {
        self.told.is_pausing = false;
    }
}
