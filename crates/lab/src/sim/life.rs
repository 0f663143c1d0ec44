//! The life of a claim over HTTP, as the client library's own machine leads it.
//!
//! In:    rows of `leasehold_client::machine`, answers of the claims dialect. Out: operations in the world's history.
//! Never: decides which state follows: the library's table does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_client::internals::machine::{Action, Event, Request, State, Timer, step};
use leasehold_engine::machine::simulated::runtime::{now_us, timeout};

use super::clients::{new_handle, note, sure_us};
use super::http::{Said, request};
use super::{mixed, world};
use crate::history::{Answer, Call, Handle, Item};
use crate::random::Random;
use crate::wire::{claim_body, state};

/// No answer, for the machine.
const NO_ANSWER: u16 = 599;

/// One claim.
struct Life<'a> {
    client: u64,
    random: &'a mut Random,
    handle: Handle,
    items: Arc<[Item]>,
    ttl_us: u64,
    /// Its path, once it is known.
    path: Option<String>,
    timers: BTreeMap<Timer, u64>,
    /// When the claim was first asked for, while no answer has come.
    registering_us: Option<u64>,
    /// When its client is done with it.
    release_us: Option<u64>,
}

/// Leads one claim from its beginning to its end.
pub(super) async fn live(client: u64, random: &mut Random) {
    let items = match random.percent(60) {
        true => Item::alone(&format!("r{}", random.below(3))),
        false => mixed::any_items(random),
    };
    let ttl_us = random.between(300_000, 3_000_000);
    let mut life = Life {
        client,
        random,
        handle: new_handle(),
        items,
        ttl_us,
        path: None,
        timers: BTreeMap::new(),
        registering_us: None,
        release_us: None,
    };
    life.run().await;
    if let Some(called_us) = life.registering_us {
        let call = Call::Claim { ttl_us: Some(sure_us(ttl_us)) };
        note(client, (life.handle, &life.items), call, called_us, &Answer::Unknown);
    }
}

impl Life<'_> {
    async fn run(&mut self) {
        let (mut state, mut event) = (State::New, Event::Start);
        while !state.is_final() {
            if let Some(row) = step(state, event) {
                state = row.to;
                let mut sent = None;
                for action in row.then {
                    match *action {
                        Action::Send(what) => sent = Some(what),
                        Action::Start(timer) => self.start(timer),
                        Action::Cancel(timer) => drop(self.timers.remove(&timer)),
                        Action::Notify(_) => {}
                    }
                }
                if state.is_holding() && self.release_us.is_none() {
                    self.release_us = Some(now_us() + self.random.below(2 * self.ttl_us));
                }
                if matches!(state, State::Releasing | State::Withdrawing) {
                    self.timers.entry(Timer::Timeout).or_insert(now_us() + 5_000_000);
                }
                if let Some(what) = sent {
                    event = self.send(what).await;
                    continue;
                }
            }
            event = self.wait(state).await;
        }
    }

    fn start(&mut self, timer: Timer) {
        let length_us = match timer {
            Timer::Timeout => self.random.between(1_000_000, 8_000_000),
            Timer::Retry => self.random.between(20_000, 300_000).min(self.ttl_us / 10),
            Timer::Renew => self.ttl_us / 3,
            Timer::Activate => self.random.below(100_000),
        };
        self.timers.insert(timer, now_us() + length_us);
    }

    /// The next thing that happens without an answer to wait for.
    async fn wait(&mut self, state: State) -> Event {
        if state.is_holding() && self.release_us.is_some_and(|at_us| at_us <= now_us()) {
            return Event::ReleaseRequested;
        }
        let next = self.timers.iter().map(|(timer, at_us)| (*at_us, *timer)).min();
        let release_us = self.release_us.filter(|_| state.is_holding()).unwrap_or(u64::MAX);
        match next {
            Some((at_us, timer)) if at_us <= release_us => {
                let length = Duration::from_micros(at_us.saturating_sub(now_us()));
                timeout(length, std::future::pending::<()>()).await.ok();
                self.timers.remove(&timer);
                Event::Fired(timer)
            }
            _ if release_us != u64::MAX => {
                let length = Duration::from_micros(release_us.saturating_sub(now_us()));
                timeout(length, std::future::pending::<()>()).await.ok();
                Event::ReleaseRequested
            }
            // Nothing would ever happen.
            _ => Event::Signal,
        }
    }

    /// Sends a request, writes down what was answered, and tells the machine.
    async fn send(&mut self, what: Request) -> Event {
        let called_us = now_us();
        let seconds = self.ttl_us as f64 / 1e6;
        let said = match (what, self.path.clone()) {
            (Request::Register, _) => {
                self.registering_us.get_or_insert(called_us);
                let key = format!("Idempotency-Key: life-{}\r\n", self.handle);
                let body = claim_body(&self.items, seconds, None).to_string();
                request(self.random, "POST", "/v1/claims/", &key, &body).await
            }
            (_, None) => None,
            (Request::Activate, Some(path)) => {
                let path = format!("{path}?wait={}", self.random.below(3));
                request(self.random, "PATCH", &path, "", r#"{"status":"active"}"#).await
            }
            (Request::Renew, Some(path)) => {
                request(self.random, "PATCH", &path, "", &format!(r#"{{"ttl":{seconds}}}"#)).await
            }
            (Request::Release, Some(path)) => {
                request(self.random, "PATCH", &path, "", r#"{"status":"released"}"#).await
            }
            (Request::Withdraw, Some(path)) => {
                request(self.random, "PATCH", &path, "", r#"{"status":"withdrawn"}"#).await
            }
            (Request::Abort, Some(path)) => {
                request(self.random, "PATCH", &path, "", r#"{"status":"aborted"}"#).await
            }
        };
        let status = said.as_ref().map_or(NO_ANSWER, |said| said.status);
        self.learn(what, called_us, said.as_ref());
        Event::Response(status)
    }

    fn learn(&mut self, what: Request, called_us: u64, said: Option<&Said>) {
        let answer = said.map_or(Answer::Unknown, answer_of);
        let write = |call, called_us| note(self.client, (self.handle, &self.items), call, called_us, &answer);
        match what {
            Request::Register => {
                let Some(first_us) = self.registering_us.filter(|_| answer != Answer::Unknown) else {
                    return;
                };
                self.registering_us = None;
                let url = said.and_then(|said| said.body.get("url")?.as_str());
                self.path = url.and_then(|url| url.find("/v1/").map(|at| url[at..].to_string()));
                if self.path.is_none() {
                    world::violate("dialect: a claim was made, and its answer has no URL".into());
                }
                write(Call::Claim { ttl_us: Some(sure_us(self.ttl_us)) }, first_us);
            }
            Request::Activate => write(Call::Activate { ttl_us: sure_us(self.ttl_us) }, called_us),
            Request::Renew => write(Call::Renew { ttl_us: sure_us(self.ttl_us) }, called_us),
            Request::Release | Request::Withdraw | Request::Abort => write(Call::Finish, called_us),
        }
    }
}

/// What an answer of the claims dialect says about the claim.
fn answer_of(said: &Said) -> Answer {
    let text = said.body.get("status").and_then(|status| status.as_str());
    match (said.status, text) {
        (204, _) => Answer::Done,
        (404, _) => Answer::Gone,
        (500.., _) => Answer::Unknown,
        (_, Some("active" | "waiting")) => state(&said.body).unwrap_or(Answer::Unknown),
        (_, Some(last)) if leasehold_client::internals::wire::FINAL.contains(&last) => Answer::Over,
        _ => Answer::Unknown,
    }
}
