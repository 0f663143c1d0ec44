//! Renewals of many claims in one request.
//!
//! In:    claims whose renewal is due. Out: `POST /v1/renewals`, or a PATCH where there is one claim, or a server
//!        that does not know better; each claim's answer as its own event.
//! Never: lets one claim's fate touch another's.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::Method;
use serde_json::json;

use super::actions::claim_path;
use super::entry::TimerId;
use super::{Driver, News};
use crate::clock::BootInstant;
use crate::error::Error;
use crate::http::{Call, Failure, Reply};
use crate::machine::{Event, State, Timer, is_refusal};
use crate::settings::renew_period;
use crate::wire::{Renewals, lost, with_reason};

/// Renewals in one request: some 350 KB, a third of what the server takes.
const BATCH_LEN_MAX: usize = 10_000;

impl Driver {
    /// A renewal goes out: those that are due soon travel with it, and so do those that wait to be repeated.
    pub(super) fn renew_ahead(&mut self, now: BootInstant) {
        if !self.knows_renewals {
            return;
        }
        let renewing: Vec<u64> = self.renewals.clone();
        let Some(period) =
            renewing.iter().filter_map(|key| self.claims.get(key)).map(|e| renew_period(e.ttl, e.lead)).max()
        else {
            return;
        };
        let horizon = now + period / 4;
        let soon = self.timers.range(..(horizon, 0, TimerId::Lost));
        let soon: Vec<(u64, TimerId)> = soon
            .filter(|(due, key, timer)| {
                let Some(entry) = self.claims.get(key) else { return false };
                match timer {
                    TimerId::Machine(Timer::Renew) => *due <= now + renew_period(entry.ttl, entry.lead) / 4,
                    TimerId::Machine(Timer::Retry) => entry.state == State::RetryingRenew,
                    _ => false,
                }
            })
            .map(|(_, key, timer)| (*key, *timer))
            .collect();
        for (key, timer) in soon {
            self.fire(key, timer);
        }
    }

    /// Sends what this round has gathered.
    pub(super) fn send_renewals(&mut self) {
        if self.renewals.is_empty() {
            return;
        }
        let mut by_ttl: BTreeMap<Duration, Vec<u64>> = BTreeMap::new();
        for key in std::mem::take(&mut self.renewals) {
            if let Some(entry) = self.claims.get(&key).filter(|entry| entry.state == State::Renewing) {
                by_ttl.entry(entry.ttl).or_default().push(key);
            }
        }
        for (ttl, keys) in by_ttl {
            if keys.len() == 1 || !self.knows_renewals {
                for key in keys {
                    self.renew_alone(key);
                }
            } else {
                for keys in keys.chunks(BATCH_LEN_MAX) {
                    self.renew_together(ttl, keys);
                }
            }
        }
    }

    /// Renews again those whose ttl was changed while a renewal with the old one was on its way.
    pub(super) fn renew_changed(&mut self) {
        for key in std::mem::take(&mut self.changed) {
            let is_due = |entry: &super::Entry| entry.state == State::Active && entry.ttl != entry.sent_ttl;
            if self.claims.get(&key).is_some_and(is_due) {
                self.fire(key, TimerId::Machine(Timer::Renew));
            }
        }
    }

    /// An attempt may take a part of the period, so that another address gets its chance before the ttl is over.
    fn attempt(&self, ttl: Duration) -> Duration {
        self.options.retries.renew.attempt.min((ttl / 6).max(Duration::from_millis(50)))
    }

    fn renew_alone(&mut self, key: u64) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        entry.sent_ttl = entry.ttl;
        let body = json!({ "ttl": entry.ttl.as_secs_f64() }).to_string();
        let (call, ttl) = (Call::new(Method::PATCH, claim_path(entry), body), entry.ttl);
        let within = self.attempt(ttl);
        self.spawn(key, call, within, true);
    }

    fn renew_together(&mut self, ttl: Duration, keys: &[u64]) {
        for key in keys {
            self.claims.entry(*key).and_modify(|entry| entry.sent_ttl = ttl);
        }
        let entries: Vec<_> = keys.iter().filter_map(|key| Some((*key, self.claims.get(key)?))).collect();
        let ids: Vec<&str> = entries.iter().filter_map(|(_, entry)| entry.id.as_deref()).collect();
        let body = json!({ "ids": ids, "ttl": ttl.as_secs_f64() }).to_string();
        let batch: Vec<(u64, u64)> = entries.iter().map(|(key, entry)| (*key, entry.seq)).collect();
        let call = Call::new(Method::POST, "renewals", body);
        let (http, news, within) = (self.http.clone(), self.news.clone(), self.attempt(ttl));
        tokio::spawn(async move {
            let result = http.send_long(&call, within).await;
            news.send(News::Renewed { batch, result }).ok();
        });
    }

    /// The answer to a request for many, claim by claim.
    pub(super) fn renewed(&mut self, batch: Vec<(u64, u64)>, result: Result<Reply, Failure>) {
        let current: Vec<u64> = batch
            .into_iter()
            .filter(|(key, seq)| self.claims.get(key).is_some_and(|entry| entry.seq == *seq))
            .map(|(key, _)| key)
            .collect();
        let reply = match result {
            Ok(reply) => reply,
            Err(failure) => {
                for key in current {
                    self.unanswered(key, &failure);
                }
                return;
            }
        };
        if matches!(reply.status, 404 | 405 | 501) {
            self.knows_renewals = false;
            for key in current {
                self.renew_alone(key);
            }
            return;
        }
        let answers = serde_json::from_slice::<Renewals>(&reply.body).ok().filter(|_| reply.status == 200);
        let answers: BTreeMap<String, _> = answers
            .map(|answers| answers.claims.into_iter().map(|renewal| (renewal.id.clone(), renewal)).collect())
            .unwrap_or_default();
        for key in current {
            self.renewed_in_batch(key, &reply, &answers);
        }
    }

    fn renewed_in_batch(
        &mut self,
        key: u64,
        reply: &Reply,
        answers: &BTreeMap<String, crate::wire::Renewal>,
    ) {
        let id = self.claims.get(&key).and_then(|entry| entry.id.as_ref());
        let answer = id.and_then(|id| answers.get(id));
        if answer.is_some_and(|answer| !answer.renewed && self.expired_unseen(key, answer.status.as_deref()))
        {
            return self.ask_again(key);
        }
        let keeps_its_ttl = answer.is_none() && self.keeps_its_ttl(key, reply);
        let Some(entry) = self.claims.get_mut(&key) else { return };
        entry.retry_after = reply.retry_after;
        let status = match answer {
            Some(answer) if answer.renewed => {
                let ttl = entry.sent_ttl;
                self.holds_from(key, reply.sent, ttl);
                200
            }
            Some(answer) if answer.revoking => {
                // It is held until the client has let go, and lost by then.
                self.on(key, Event::Response(200));
                return self.let_go(key, lost("revoked", answer.reason.as_deref()));
            }
            Some(answer) => {
                let status = answer.status.as_deref().unwrap_or("the server does not know it");
                entry.verdict.get_or_insert(Error::Ended(with_reason(status, answer.reason.as_deref())));
                400
            }
            None if keeps_its_ttl => 503,
            None if is_refusal(reply.status) => {
                entry.verdict.get_or_insert(reply.refusal());
                reply.status
            }
            None => {
                entry.set_trouble(Some(format!("the server answers a renewal with {}", reply.status)));
                503
            }
        };
        self.on(key, Event::Response(status));
    }
}
