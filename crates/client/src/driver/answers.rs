//! Reads what the server answers, and makes events of it.
//!
//! In:    responses and broken connections. Out: events for the claim machine, deadlines, progress.
//! Never: takes an answer to a request that does not matter any more.

use std::time::Duration;

use super::entry::{Grant, TimerId};
use super::{Driver, News};
use crate::clock::BootInstant;
use crate::error::Error;
use crate::http::{Failure, Reply};
use crate::item;
use crate::machine::{Event, Request, State, is_refusal};
use crate::request::Wait;
use crate::settings::{margin, renew_period};
use crate::wire::{self, ClaimInfo};

/// What no answer counts as.
const NO_ANSWER: u16 = 599;
/// How long a server that does not know sessions is not asked for them again: it may be upgraded meanwhile.
const SESSIONS_PAUSE: Duration = Duration::from_secs(60);

impl Driver {
    pub(super) fn hear(&mut self, news: News) {
        match news {
            News::Cleaned => {
                self.cleaning -= 1;
                self.last_end = Some(BootInstant::now());
            }
            News::Renewed { batch, result } => self.renewed(batch, result),
            News::Told { page, result } => self.told(page, &result),
            News::TellAgain => self.tell_again(),
            News::Answered { key, seq, result } => {
                let Some(entry) = self.claims.get_mut(&key).filter(|entry| entry.seq == seq) else { return };
                entry.in_flight = None;
                if entry.long_poll.is_some() {
                    self.long_polls -= 1;
                }
                match result {
                    Ok(reply) => self.answered(key, &reply),
                    Err(failure) => self.unanswered(key, &failure),
                }
            }
        }
    }

    pub(super) fn unanswered(&mut self, key: u64, failure: &Failure) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        entry.long_poll = None;
        entry.retry_after = None;
        if entry.state == State::Registering {
            entry.may_be_registered |= matches!(failure, Failure::Lost(_));
            entry.not_taken = Some(Error::Unreachable(failure.why().into()));
        }
        entry.set_trouble(Some(failure.why().into()));
        self.on(key, Event::Response(NO_ANSWER));
    }

    fn answered(&mut self, key: u64, reply: &Reply) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        entry.retry_after = reply.retry_after;
        let Some(request) = entry.state.request() else { return };
        let may_be_ours = entry.end_was_sent || reply.is_repeated;
        let over = wire::status_in(&reply.body).filter(|_| reply.status == 400);
        if self.expired_unseen(key, over.as_deref())
            || request == Request::Activate && self.withdrawn_unseen(key, over.as_deref(), reply)
        {
            return self.ask_again(key);
        }
        if request == Request::Register && self.ask_without_session(key, reply) {
            return;
        }
        let status = match request {
            Request::Register if self.is_passing_deadlock(key, reply) => NO_ANSWER,
            Request::Register => self.registered(key, reply),
            Request::Activate => self.activated(key, reply),
            Request::Renew => self.renewed_one(key, reply),
            // The first and only release that was sent can't have done it: somebody else has, and the claim was lost before.
            Request::Release if !may_be_ours => reply.status,
            Request::Release => ended(reply, "released"),
            Request::Withdraw => ended(reply, "withdrawn"),
            Request::Abort => ended(reply, "aborted"),
        };
        self.note_refusal(key, reply, status);
        if let Some(entry) = self.claims.get_mut(&key).filter(|_| status != 409) {
            entry.long_poll = None;
        }
        self.on(key, Event::Response(status));
        if request == Request::Renew && reply.status == 409 {
            if let Some(lost) = wire::revoking_in(&reply.body) {
                self.let_go(key, lost);
            }
        }
    }

    /// Asks at once for the same claim without its session, if the server knows none: deadlocks are not noticed there, as ever.
    /// Other new words are never left out, since a claim without them is another one.
    fn ask_without_session(&mut self, key: u64, reply: &Reply) -> bool {
        let Some(entry) = self.claims.get_mut(&key) else { return false };
        if entry.session.is_none() || !wire::refuses_session(reply.status, &reply.body, entry.is_plain()) {
            return false;
        }
        entry.session = None;
        self.no_sessions_until = Some(BootInstant::now() + SESSIONS_PAUSE);
        self.register(key);
        true
    }

    /// Keeps the server's words for the error that the caller gets.
    fn note_refusal(&mut self, key: u64, reply: &Reply, status: u16) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        if entry.state == State::Registering {
            entry.not_taken = Some(refused(reply));
        }
        let trouble = match status {
            409 if entry.state == State::Activating => return,
            404 if entry.state == State::Registering => {
                format!("{} does not know the claims API (404)", reply.from)
            }
            status if is_refusal(status) => {
                let refusal = match reply.refusal() {
                    // A claim that does not wait is in no deadlock: its resource is held, and that is all.
                    Error::Deadlock { .. } if entry.wait == Wait::No => entry.timed_out(),
                    refusal => refusal,
                };
                entry.verdict.get_or_insert(refusal);
                return;
            }
            300.. if reply.status < 300 => {
                format!("{} answers {}, and not with a claim that can be held", reply.from, reply.status)
            }
            300.. => format!("{} answers {}: {}", reply.from, reply.status, wire::detail(&reply.body)),
            _ => return entry.set_trouble(None),
        };
        entry.set_trouble(Some(trouble));
    }

    fn registered(&mut self, key: u64, reply: &Reply) -> u16 {
        let info = serde_json::from_slice::<ClaimInfo>(&reply.body).ok();
        let status = info.as_ref().map(|info| info.status.as_str());
        let was_withdrawn = self.withdrawn_unseen(key, status, reply);
        let Some(entry) = self.claims.get_mut(&key) else { return reply.status };
        if reply.status >= 500 && !reply.is_certainly_undone() {
            entry.may_be_registered = true;
        }
        if !matches!(reply.status, 200..=202) {
            return reply.status;
        }
        let Some(url) = reply.location.clone().or_else(|| info.as_ref().map(|info| info.url.clone())) else {
            // Something that is no claim: from a server, or from something between.
            entry.may_be_registered = true;
            return NO_ANSWER;
        };
        entry.may_be_registered = false;
        // A repeated POST has found its claim over: nobody knew that it was held. On to the next, under another key.
        if reply.status == 200 {
            entry.idempotency_key = super::fresh_key();
            return match info.map(|info| info.status) {
                Some(status) if status == "expired" || was_withdrawn => NO_ANSWER,
                Some(status) => {
                    entry.verdict.get_or_insert(Error::Ended(status));
                    410
                }
                None => NO_ANSWER,
            };
        }
        entry.id = Some(wire::id_of(&url).into());
        entry.was_taken = true;
        if reply.status == 201 {
            // The claim is new, unless the server knows keys; then it also tells what is left.
            let whole = entry.ttl;
            self.granted(key, reply, info.as_ref(), whole);
        } else {
            let (claim, position) = (entry.id.clone(), info.and_then(|info| info.position));
            entry.show(|progress| {
                progress.claim = claim;
                progress.position = position;
            });
            self.note_asked(key, reply);
        }
        reply.status
    }

    fn activated(&mut self, key: u64, reply: &Reply) -> u16 {
        let info = serde_json::from_slice::<ClaimInfo>(&reply.body).ok();
        match (reply.status, info) {
            (200, info) => self.granted(key, reply, info.as_ref(), Duration::ZERO),
            (409, Some(info)) => {
                self.note_asked(key, reply);
                if let Some(entry) = self.claims.get_mut(&key) {
                    entry.show(|progress| {
                        progress.position = info.position;
                        progress.holder = info.holder.map(|holder| *holder);
                    });
                }
            }
            // A server that knows no `?wait=` and says so: ask without it.
            (400, None) if mentions_wait(&reply.body) => {
                self.options.long_poll = Duration::ZERO;
                return NO_ANSWER;
            }
            _ => {}
        }
        reply.status
    }

    /// It is the claim's turn. What is left of it counts from the answer, which is after the request was sent; it is `untold`
    /// if the server does not tell.
    fn granted(&mut self, key: u64, reply: &Reply, info: Option<&ClaimInfo>, untold: Duration) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        let id = entry.id.clone().unwrap_or_default();
        let token = info.and_then(|info| info.token);
        let items = item::granted(&entry.items, info.map_or(&[], |info| &info.items), token);
        entry.grant = Some(Grant { id, token, items, session: entry.session.clone() });
        let ttl = granted_ttl(entry.ttl, info);
        let left = info.and_then(ClaimInfo::left).map_or(untold, seconds).min(ttl);
        let usable = reply.sent + left.saturating_sub(margin(ttl) + entry.lead);
        if usable.remaining() > renew_period(ttl, entry.lead) {
            self.set_deadline(key, reply.sent, left);
        } else {
            // A long-poll was sent long ago: what is left of the ttl can't be told from here. Renew, then tell.
            entry.unconfirmed = true;
            let end = BootInstant::now() + entry.ttl;
            self.start_timer(key, TimerId::End, end);
        }
    }

    fn renewed_one(&mut self, key: u64, reply: &Reply) -> u16 {
        if reply.status == 200 {
            let info = serde_json::from_slice::<ClaimInfo>(&reply.body).ok();
            let asked = self.claims.get(&key).map(|entry| entry.sent_ttl).unwrap_or_default();
            self.holds_from(key, reply.sent, granted_ttl(asked, info.as_ref()));
        }
        let over = wire::status_in(&reply.body).filter(|_| reply.status == 400);
        if let (Some(over), Some(entry)) = (over, self.claims.get_mut(&key)) {
            let over = wire::with_reason(&over, wire::reason_in(&reply.body).as_deref());
            entry.verdict.get_or_insert(Error::Ended(over));
        }
        match reply.status {
            // It is held until the client has let go, and lost by then.
            409 if wire::revoking_in(&reply.body).is_some() => 200,
            _ if wire::status_in(&reply.body).is_none() && self.keeps_its_ttl(key, reply) => NO_ANSWER,
            status => status,
        }
    }

    /// The server refuses a renewal with a new ttl: the claim keeps the one that it had, and is renewed with that.
    pub(super) fn keeps_its_ttl(&mut self, key: u64, reply: &Reply) -> bool {
        let Some(entry) = self.claims.get_mut(&key) else { return false };
        if !is_refusal(reply.status) || entry.sent_ttl == entry.agreed_ttl {
            return false;
        }
        if entry.ttl == entry.sent_ttl {
            entry.ttl = entry.agreed_ttl;
            for waiting in entry.on_refresh.drain(..) {
                waiting.send(Err(reply.refusal())).ok();
            }
        }
        true
    }

    /// A renewal has succeeded.
    pub(super) fn holds_from(&mut self, key: u64, sent: BootInstant, ttl: Duration) {
        self.set_deadline(key, sent, ttl);
        let Some(entry) = self.claims.get_mut(&key) else { return };
        entry.agreed_ttl = entry.sent_ttl;
        if entry.ttl == entry.sent_ttl {
            for reply in entry.on_refresh.drain(..) {
                reply.send(Ok(())).ok();
            }
        } else {
            self.changed.push(key);
        }
        if entry.unconfirmed && !entry.shared.until().is_past() {
            self.acquired(key);
        }
    }
}

/// What the server granted, which is never counted longer than what was asked for.
fn granted_ttl(asked: Duration, info: Option<&ClaimInfo>) -> Duration {
    info.and_then(ClaimInfo::length).map_or(asked, |granted| seconds(granted).min(asked))
}

/// A number that is not a duration counts as 0.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO)
}

/// Why a claim was not registered.
fn refused(reply: &Reply) -> Error {
    match reply.status {
        200..400 => Error::Unknown(format!(
            "{} answers {}, and not with a claim: {}",
            reply.from,
            reply.status,
            wire::detail(&reply.body)
        )),
        _ => reply.refusal(),
    }
}

/// A claim that is over in just the way that was asked for: the answer to an earlier request was lost.
fn ended(reply: &Reply, wanted: &str) -> u16 {
    match reply.status {
        400 if wire::status_in(&reply.body).as_deref() == Some(wanted) => 204,
        status => status,
    }
}

fn mentions_wait(body: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(body).is_ok_and(|body| body.get("wait").is_some())
}
