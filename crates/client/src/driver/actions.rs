//! Carries out what the rows of the claim machine say.
//!
//! In:    an action. Out: a request on its way, a timer, or news for the claim's client.
//! Never: decides which state follows.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use serde_json::{Map, Value, json};

use super::entry::{Entry, Phase, TimerId};
use super::{Driver, News};
use crate::clock::BootInstant;
use crate::error::{Error, Lost};
use crate::http::Call;
use crate::item;
use crate::machine::{Action, Event, Notice, Request, Row, State, Timer};
use crate::request::Wait;
use crate::settings::{margin, renew_period};

/// Long-polls at a time, each a connection of its own; claims beyond ask now and then.
const LONG_POLLS_MAX: usize = 64;
/// How long a claim that must not wait may take to be registered: a silent address, and then the next one.
const REGISTER_WITHIN: Duration = Duration::from_secs(5);
/// How long one question for its turn waits on the server: a third of the ttl, within these bounds. A node that is cut off from
/// its cluster can't tell that the turn has come; another node is asked while the claim still holds. (`node.rs` notices a node
/// that says nothing at all sooner.)
const PIECE_MIN: Duration = Duration::from_secs(2);
const PIECE_MAX: Duration = Duration::from_secs(10);
/// What `Retry-After` may ask for at the most: a maintenance page of ten seconds may ask for an hour.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// How long a node may be silent beyond the time that it was asked to wait.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// What each claim of a manager adds to the time that endings may take: thousands that end at once wait for each other.
const END_TAKES: Duration = Duration::from_millis(5);
/// How long an abort is repeated: something is failing already.
const ABORT_WITHIN: Duration = Duration::from_secs(3);

impl Driver {
    /// What changes with the state, before any action: a claim that is on its way out is not held from that moment.
    pub(super) fn leave(&mut self, key: u64, to: State, event: Event) {
        self.drop_request(key);
        let Some(entry) = self.claims.get_mut(&key) else { return };
        let from = std::mem::replace(&mut entry.state, to);
        if matches!(event, Event::Response(_)) && to.retries().is_none() {
            entry.attempts = 0;
            entry.set_trouble(None);
        }
        match to {
            State::Releasing if from.is_holding() && !entry.is_lost => entry.set_phase(Phase::Releasing),
            State::Withdrawing => {
                let timeout = entry.timed_out();
                entry.verdict.get_or_insert(timeout);
            }
            State::Aborting => {
                entry.verdict.get_or_insert(Error::Aborted);
                if from.is_holding() && !entry.is_lost && entry.on_claim.is_none() {
                    entry.set_phase(Phase::Lost(Lost::Aborted));
                }
            }
            State::Done if matches!(from, State::Registering | State::RetryingRegister) => {
                if event == Event::Signal {
                    entry.verdict.get_or_insert(Error::Aborted);
                }
                self.take_back(key, event == Event::Signal);
            }
            _ => {}
        }
        if !to.is_holding() {
            for timer in [TimerId::Lost, TimerId::End, TimerId::MaxHold] {
                self.stop_timer(key, timer);
            }
        }
    }

    pub(super) fn perform(&mut self, key: u64, row: &Row, action: Action) {
        match action {
            Action::Send(request) => self.send(key, row, request),
            Action::Start(timer) => {
                if let Some(due) = self.due(key, timer) {
                    self.start_timer(key, TimerId::Machine(timer), due);
                }
                if timer == Timer::Activate
                    && self.claims.get(&key).is_some_and(|entry| entry.wait == Wait::No)
                {
                    self.fire(key, TimerId::Machine(Timer::Timeout));
                }
            }
            Action::Cancel(timer) => self.stop_timer(key, TimerId::Machine(timer)),
            Action::Notify(notice) => self.notify(key, notice),
        }
    }

    pub(super) fn due(&mut self, key: u64, timer: Timer) -> Option<BootInstant> {
        let now = BootInstant::now();
        let entry = self.claims.get_mut(&key)?;
        let retries = &self.options.retries;
        let chance = rand::random::<f64>();
        match timer {
            Timer::Timeout => match entry.wait {
                Wait::Default | Wait::Forever => None,
                Wait::For(timeout) => Some(entry.started + timeout),
                Wait::No => Some(entry.started + REGISTER_WITHIN),
            },
            Timer::Retry => {
                let request = entry.state.retries()?;
                let mut pause = retries.of(request).pause(entry.attempts, chance);
                if request == Request::Renew {
                    pause = pause.min(entry.ttl / 10);
                }
                entry.attempts += 1;
                if let Some(after) = entry.retry_after.take() {
                    // A server that asks for more than is left of the claim's time is asked once more before the end.
                    pause = (after.min(RETRY_AFTER_MAX) + pause).min(pause.max(entry.time_left(request) / 2));
                    if request == Request::Activate {
                        pause = pause.min((entry.ttl / 3).max(PIECE_MIN));
                    }
                }
                Some(now + pause)
            }
            Timer::Renew if entry.unconfirmed => Some(now),
            Timer::Renew => {
                Some(entry.renewed + renew_period(entry.ttl, entry.lead).mul_f64(1.0 - chance / 10.0))
            }
            Timer::Activate => {
                let honoured =
                    entry.long_poll.take().map(|(since, wait)| now.since(since) >= wait.mul_f64(0.9));
                // The first question, or the server held the last one for as long as it was asked to.
                let at_once = match honoured {
                    None => entry.polls == 0 && !self.options.long_poll.is_zero(),
                    Some(honoured) => honoured,
                };
                if at_once {
                    entry.polls = 0;
                    return Some(now);
                }
                entry.polls += 1;
                let pause = retries.poll.pause(entry.polls - 1, chance);
                // The server withdraws a claim with items that nobody asks for within its ttl.
                Some(now + if entry.is_plain() { pause } else { pause.min(entry.ttl / 3) })
            }
        }
    }

    fn send(&mut self, key: u64, row: &Row, request: Request) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        if request == Request::Renew {
            entry.seq += 1;
            self.renewals.push(key);
            return;
        }
        let is_ending = matches!(request, Request::Release | Request::Withdraw | Request::Abort);
        entry.end_was_sent = is_ending && row.from.retries() == Some(request);
        if is_ending && !entry.end_was_sent {
            let most = self.options.end_timeout;
            let within = if request == Request::Abort { most.min(ABORT_WITHIN) } else { most };
            let others = u32::try_from(self.claims.len() - 1).unwrap_or(u32::MAX);
            let within = within + END_TAKES.saturating_mul(others);
            self.start_timer(key, TimerId::Machine(Timer::Timeout), BootInstant::now() + within);
        }
        let within = self.options.retries.of(request).attempt;
        match request {
            Request::Register => self.register(key),
            Request::Activate => self.activate(key, within),
            Request::Renew => {}
            Request::Release => self.patch_status(key, "released", within),
            Request::Withdraw => self.patch_status(key, "withdrawn", within),
            Request::Abort => self.patch_status(key, "aborted", within),
        }
    }

    pub(super) fn register(&mut self, key: u64) {
        let has_sessions = self.no_sessions_until.is_none_or(BootInstant::is_past);
        let Some(entry) = self.claims.get_mut(&key) else { return };
        if !has_sessions {
            entry.session = None;
        }
        let (call, within) = (register_call(entry), self.options.retries.register.attempt);
        self.spawn(key, call, within, false);
    }

    fn activate(&mut self, key: u64, within: Duration) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        let wait = self.options.long_poll.min((entry.ttl / 3).clamp(PIECE_MIN, PIECE_MAX));
        let is_long = !wait.is_zero() && self.long_polls < LONG_POLLS_MAX;
        let path = claim_path(entry);
        let call = |query: &str| {
            Call::new(Method::PATCH, format!("{path}{query}"), json!({"status": "active"}).to_string())
        };
        if is_long {
            entry.long_poll = Some((BootInstant::now(), wait));
            self.long_polls += 1;
            let call = call(&format!("?wait={}", wait.as_secs_f64()));
            self.spawn(key, call, wait + within.min(SILENCE_MAX), true);
        } else {
            self.spawn(key, call(""), within, false);
        }
    }

    fn patch_status(&mut self, key: u64, status: &str, within: Duration) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        let call = Call::new(Method::PATCH, claim_path(entry), json!({ "status": status }).to_string());
        self.spawn(key, call, within, false);
    }

    pub(super) fn spawn(&mut self, key: u64, call: Call, within: Duration, is_long: bool) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        entry.seq += 1;
        let (seq, http, news) = (entry.seq, self.http.clone(), self.news.clone());
        let task = tokio::spawn(async move {
            let result =
                if is_long { http.send_long(&call, within).await } else { http.send(&call, within).await };
            news.send(News::Answered { key, seq, result }).ok();
        });
        entry.in_flight = Some(task.abort_handle());
    }

    /// Whatever is on its way does not matter any more.
    pub(super) fn drop_request(&mut self, key: u64) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        entry.seq += 1;
        if let Some(task) = entry.in_flight.take() {
            if entry.state == State::Registering {
                entry.may_be_registered = true;
            }
            if entry.long_poll.take().is_some() {
                self.long_polls -= 1;
            }
            // The last word of a claim may still arrive; everything else is taken back.
            let is_last = matches!(entry.state, State::Releasing | State::Withdrawing | State::Aborting);
            if !is_last {
                task.abort();
            }
        }
    }

    fn notify(&mut self, key: u64, notice: Notice) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        match notice {
            Notice::Acquired if entry.unconfirmed => {}
            Notice::Acquired => self.acquired(key),
            Notice::TimedOut => {
                let verdict = not_acquired(entry);
                entry.verdict.get_or_insert(verdict);
            }
            // `finish` tells these two, the second with the server's words.
            Notice::Released | Notice::Refused => {}
        }
    }

    /// The claim certainly holds: its client hears of it.
    pub(super) fn acquired(&mut self, key: u64) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        entry.unconfirmed = false;
        let Some(reply) = entry.on_claim.take() else { return };
        if let Some(grant) = entry.grant.take() {
            entry.shared.grant.set(grant).ok();
        }
        entry.set_phase(Phase::Active);
        if let Some(most) = entry.max_hold {
            self.start_timer(key, TimerId::MaxHold, BootInstant::now() + most);
        }
        // A caller that no longer listens has sent `Cancel`.
        reply.send(Ok(())).ok();
        self.told.add(key);
    }

    /// Until when the claim can be relied on, and when the server's ttl is over.
    pub(super) fn set_deadline(&mut self, key: u64, sent: BootInstant, ttl: Duration) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        let end = sent + ttl;
        let lost = end.before(margin(entry.ttl) + entry.lead);
        entry.renewed = sent;
        entry.shared.set_until(lost);
        self.start_timer(key, TimerId::Lost, lost);
        self.start_timer(key, TimerId::End, end);
    }

    /// The claim is over: everyone who waits for it hears how.
    pub(super) fn finish(&mut self, key: u64) {
        self.drop_request(key);
        let Some(mut entry) = self.claims.remove(&key) else { return };
        self.last_end = Some(BootInstant::now());
        self.told.forget(key);
        for (timer, due) in entry.timers.drain(..) {
            self.timers.remove(&(due, key, timer));
        }
        for item in &entry.items {
            let name = (item.resource.clone(), entry.worker.clone());
            if self.by_resource.get(&name) == Some(&key) {
                self.by_resource.remove(&name);
            }
        }
        let unknown = || Error::Unknown("the server could not be told; the ttl will end the claim".into());
        let verdict = entry.verdict.take();
        let ended = match entry.state {
            State::Released => Ok(()),
            State::Done => {
                Err(verdict.clone().filter(|error| *error != Error::Aborted).unwrap_or_else(unknown))
            }
            _ => Err(verdict.clone().unwrap_or(Error::Aborted)),
        };
        for reply in entry.on_release.drain(..) {
            reply.send(ended.clone()).ok();
        }
        let error = verdict.unwrap_or(Error::Aborted);
        for reply in entry.on_refresh.drain(..) {
            reply.send(Err(error.clone())).ok();
        }
        match entry.on_claim.take() {
            Some(reply) => {
                entry.set_phase(Phase::Ended);
                reply.send(Err(error)).ok();
            }
            None => tell_end(&entry, error),
        }
    }
}

/// Why the time of a claim was over before it was queued. Only a server that had queued it can say that it was not free.
fn not_acquired(entry: &Entry) -> Error {
    match &entry.not_taken {
        _ if entry.was_taken => entry.timed_out(),
        // An earlier attempt may have got through.
        Some(error @ Error::Refused { .. }) if entry.may_be_registered => Error::Unknown(error.to_string()),
        Some(error) => error.clone(),
        None => Error::Unreachable("no answer in time".into()),
    }
}

/// Tells the holder that its claim has ended, if it still relies on it.
fn tell_end(entry: &Entry, error: Error) {
    let phase = entry.shared.phase.borrow().clone();
    match (phase, entry.state) {
        (Phase::Lost(_) | Phase::Released, _) => {}
        (_, State::Released) => entry.set_phase(Phase::Released),
        // The caller of the release is told the result; nothing relies on the claim any more.
        (Phase::Releasing, _) => entry.set_phase(Phase::Ended),
        (_, State::Fail) => entry.set_phase(Phase::Lost(Lost::Ended(match error {
            Error::Ended(status) => status,
            other => other.to_string(),
        }))),
        _ => entry.set_phase(Phase::Lost(Lost::Aborted)),
    }
}

/// `claims/<id>/`.
pub(super) fn claim_path(entry: &Entry) -> String {
    format!("claims/{}/", entry.id.as_deref().unwrap_or_default())
}

/// The POST, the same each time.
pub(super) fn register_call(entry: &Entry) -> Call {
    let mut body = Map::from_iter([("ttl".to_string(), json!(entry.ttl.as_secs_f64()))]);
    item::write(&entry.items, &mut body);
    if let Some(session) = &entry.session {
        body.insert("session".into(), json!(session));
    }
    let mut body = Value::Object(body).to_string();
    if let Some(data) = &entry.data {
        body.pop();
        body += &format!(", \"user_data\": {}}}", data.get());
    }
    Call::new(Method::POST, "claims/", Bytes::from(body)).header("idempotency-key", &entry.idempotency_key)
}
