//! Clients of all dialects, on the same resources, who write down what they asked and were told.
//!
//! In:    addresses of nodes that may not answer. Out: a `History`.
//! Never: sends anything again that the dialect does not do once: there an answer that was lost stays unknown.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::notes::{Held, Known, Notebook, SharedRound, holder_name};
use crate::history::{Answer, Call, Op};
use crate::http::{Reply, request_with};
use crate::random::Random;
use crate::wire::{claim_body, state};

/// How long a client waits for one answer.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long it tries where a retry is done once.
const TRIES: Duration = Duration::from_secs(30);

/// The wire protocol that a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `/v1/claims/`
    Claims,
    /// `/locks/`
    Locks,
    /// `/v1/.../leases/`
    Leases,
    /// `/v1/dss/`
    Typed,
}

/// All of them.
pub const DIALECTS: [Dialect; 4] = [Dialect::Claims, Dialect::Locks, Dialect::Leases, Dialect::Typed];

/// One client, and what it saw.
pub struct Client {
    book: Notebook,
    pub(super) shared: Arc<SharedRound>,
    pub(super) random: Random,
    /// The node that it asks next.
    pub(super) place: usize,
}

/// How a request ended.
enum Sent {
    /// With this answer, after so many requests of which nobody knows.
    Answered(Reply, u64),
    /// Without one.
    Unknown,
}

impl Client {
    /// A client of its own.
    pub fn new(book: Notebook, random: Random) -> Self {
        let shared = book.shared.clone();
        let place = book.number as usize % shared.nodes.len();
        Self { book, shared, random, place }
    }

    /// Works until told to stop.
    pub fn run(mut self, dialect: Dialect) -> Notebook {
        while !self.shared.stop.load(Ordering::Acquire) {
            match dialect {
                Dialect::Claims => self.claim(),
                Dialect::Locks => self.lock(),
                Dialect::Leases => self.lease(),
                Dialect::Typed => self.typed(),
            }
            thread::sleep(Duration::from_millis(self.random.below(self.shared.rest_ms)));
        }
        self.book
    }

    pub(super) fn now_us(&self) -> u64 {
        self.shared.now_us()
    }

    pub(super) fn begin(&self, resource: &str) -> Held {
        self.shared.begin(resource)
    }

    pub(super) fn note(&mut self, held: &Held, call: Call, called_us: u64, answer: Answer) {
        self.book.note(held, call, called_us, answer);
    }

    pub(super) fn odd(&self, what: &str, reply: &Reply) {
        self.shared.odd(format!("{what}: {} {}", reply.status, reply.body));
    }

    /// The resources of this round, as each dialect names them.
    fn shared_name(&mut self) -> String {
        format!("r{}s{}", self.shared.round, self.random.below(3))
    }

    fn lease_name(&mut self) -> String {
        format!("lab/leases/r{}e{}", self.shared.round, self.random.below(2))
    }

    fn typed_id(&self, number: u64) -> String {
        format!("r{}d{number}", self.shared.round)
    }

    /// Sends once, or again and again where that is the same as once.
    fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str, again: bool) -> Sent {
        let (start, mut unknown) = (Instant::now(), 0);
        loop {
            let node = self.shared.nodes[self.place];
            match request_with(node, method, path, headers, body, PATIENCE) {
                Ok(reply) if reply.status < 500 => return Sent::Answered(reply, unknown),
                Err(lost) if !lost.sent => {}
                // It certainly did not happen: a claim that is found all the same is a violation.
                Ok(reply) if is_certainly_undone(&reply) => {}
                Ok(_) | Err(_) => unknown += 1,
            }
            self.place = (self.place + 1) % self.shared.nodes.len();
            if (unknown > 0 && !again) || start.elapsed() > TRIES {
                return Sent::Unknown;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn think(&mut self) {
        thread::sleep(Duration::from_millis(self.random.below(15)));
    }

    // ---- claims

    fn claim(&mut self) {
        match self.random.below(20) {
            0..=1 => return self.claim_once(),
            2..=9 => return self.mixed(),
            10 => return self.nested(),
            _ => {}
        }
        let resource = match self.random.below(8) {
            2 => holder_name(self.shared.round, &mut self.random),
            0 => self.lease_name(),
            1 => {
                let number = self.random.below(2);
                format!("dss/media/{}", self.typed_id(number))
            }
            _ => self.shared_name(),
        };
        let held = self.begin(&resource);
        self.lead(&held);
    }

    /// Makes a claim, and leads it to its end.
    pub(super) fn lead(&mut self, held: &Held) {
        let ttl_us = if self.random.percent(20) { 1_000_000 } else { 6_000_000 };
        if let Some((id, answer)) = self.make(held, ttl_us, None)
            && self.wait_for_turn(held, &id, answer, ttl_us)
        {
            self.use_claim(held, &id, ttl_us);
        }
    }

    /// Makes a claim. Tells its id and what was answered, if it was made.
    pub(super) fn make(
        &mut self,
        held: &Held,
        ttl_us: u64,
        session: Option<&str>,
    ) -> Option<(String, Answer)> {
        let key = format!("\"k-{}-{:x}\"", held.handle, self.random.next());
        let body = claim_body(&held.items, ttl_us as f64 / 1e6, session).to_string();
        let call = Call::Claim { ttl_us: Some(ttl_us) };
        let called_us = self.now_us();
        let wait = self.random.below(2);
        let path = format!("/v1/claims/?wait={wait}");
        let sent = self.send("POST", &path, &[("Idempotency-Key", &key)], &body, true);
        let Sent::Answered(reply, unknown) = sent else {
            self.note(held, call, called_us, Answer::Unknown);
            return None;
        };
        // A deadlock, or another number of slots.
        let kind = reply.json()["type"].as_str().and_then(|urn| urn.rsplit(':').next().map(str::to_string));
        if reply.status == 409 && kind.is_some_and(|kind| kind == "deadlock" || kind == "capacity") {
            let answer = if unknown == 0 { Answer::Refused } else { Answer::Unknown };
            self.note(held, call, called_us, answer);
            return None;
        }
        let Some(answer) = state(&reply.json()) else {
            self.odd("claim", &reply);
            return None;
        };
        self.note(held, call, called_us, answer.clone());
        let id = reply.json()["url"].as_str().and_then(last_part).unwrap_or_default();
        self.book.known(held, &id);
        self.check_age(&id, &answer, self.now_us());
        Some((id, answer))
    }

    pub(super) fn wait_for_turn(&mut self, held: &Held, id: &str, mut answer: Answer, ttl_us: u64) -> bool {
        let path = format!("/v1/claims/{id}/");
        while answer == Answer::Waiting {
            let called_us = self.now_us();
            if self.shared.stop.load(Ordering::Acquire) || self.random.percent(5) {
                self.finish_claim(held, id, "withdrawn");
                return false;
            }
            answer = if self.random.percent(30) {
                self.read_claim(held, id)
            } else {
                let sent =
                    self.send("PATCH", &format!("{path}?wait=1"), &[], "{\"status\": \"active\"}", true);
                let Sent::Answered(reply, _) = sent else { return false };
                let Some(answer) = state(&reply.json()) else {
                    self.odd("activate", &reply);
                    return false;
                };
                self.note(held, Call::Activate { ttl_us }, called_us, answer.clone());
                answer
            };
        }
        matches!(answer, Answer::Active(_))
    }

    pub(super) fn read_claim(&mut self, held: &Held, id: &str) -> Answer {
        // Any node must know.
        self.place = self.random.below(self.shared.nodes.len() as u64) as usize;
        let called_us = self.now_us();
        let answer = match self.send("GET", &format!("/v1/claims/{id}/"), &[], "", true) {
            Sent::Answered(reply, _) if reply.status == 404 => Answer::Gone,
            Sent::Answered(reply, _) => match state(&reply.json()) {
                Some(answer) => answer,
                None => {
                    self.odd("read", &reply);
                    Answer::Unknown
                }
            },
            Sent::Unknown => Answer::Unknown,
        };
        self.note(held, Call::Read, called_us, answer.clone());
        answer
    }

    fn use_claim(&mut self, held: &Held, id: &str, ttl_us: u64) {
        self.think();
        if self.random.percent(30) {
            let called_us = self.now_us();
            let body = format!("{{\"ttl\": {}}}", ttl_us as f64 / 1e6);
            let call = Call::Renew { ttl_us };
            match self.send("PATCH", &format!("/v1/claims/{id}/"), &[], &body, true) {
                Sent::Answered(reply, _) => match (reply.status, state(&reply.json())) {
                    (200, Some(answer)) => self.note(held, call, called_us, answer),
                    (400, _) => self.note(held, call, called_us, Answer::Over),
                    _ => self.odd("renew", &reply),
                },
                Sent::Unknown => self.note(held, call, called_us, Answer::Unknown),
            }
        }
        if self.random.percent(30) {
            self.read_claim(held, id);
        }
        // Some never release: the ttl does.
        if !self.random.percent(if ttl_us < 2_000_000 { 50 } else { 0 }) {
            self.finish_claim(held, id, "released");
        }
    }

    pub(super) fn finish_claim(&mut self, held: &Held, id: &str, status: &str) {
        let called_us = self.now_us();
        let body = format!("{{\"status\": \"{status}\"}}");
        match self.send("PATCH", &format!("/v1/claims/{id}/"), &[], &body, true) {
            Sent::Answered(reply, _) if reply.status == 204 => {
                self.note(held, Call::Finish, called_us, Answer::Done);
                self.check_age(id, &Answer::Done, self.now_us());
            }
            Sent::Answered(reply, _) if reply.status == 400 => {
                let ended = reply.json()["status"].as_str().is_some_and(|text| text.contains(status));
                let answer = if ended { Answer::Done } else { Answer::Over };
                self.note(held, Call::Finish, called_us, answer);
            }
            Sent::Answered(reply, _) => self.odd("finish", &reply),
            Sent::Unknown => self.note(held, Call::Finish, called_us, Answer::Unknown),
        }
    }

    // ---- locks

    fn lock(&mut self) {
        let resource = self.shared_name();
        let held = self.begin(&resource);
        let lifetime = if self.random.percent(20) { 1 } else { 5 };
        let call = Call::Claim { ttl_us: Some(lifetime * 1_000_000) };
        let body = format!("{{\"title\": \"chaos\", \"lifetime\": {lifetime}, \"wait\": 1}}");
        let called_us = self.now_us();
        let sent = self.send("POST", &format!("/locks/{}", held.resource()), &[], &body, false);
        let Sent::Answered(reply, unknown) = sent else {
            return self.note(&held, call, called_us, Answer::Unknown);
        };
        match (reply.status, token_of(&reply), reply.header("location").and_then(last_part)) {
            (201, Some(token), Some(uid)) if unknown == 0 => {
                self.note(&held, call, called_us, Answer::active(token));
                self.book.known(&held, &uid);
                self.think();
                self.delete(&held, &format!("/locks/{}/{uid}", held.resource()), &[]);
            }
            (408, ..) => self.note(&held, call, called_us, Answer::Over),
            _ => self.odd("lock", &reply),
        }
    }

    /// A deletion that may be sent again; then "it is over" may be our own doing.
    fn delete(&mut self, held: &Held, path: &str, headers: &[(&str, &str)]) {
        let called_us = self.now_us();
        match self.send("DELETE", path, headers, "", true) {
            Sent::Answered(reply, _) if reply.status == 204 => {
                self.note(held, Call::Finish, called_us, Answer::Done);
            }
            Sent::Answered(reply, unknown) if matches!(reply.status, 404 | 403) => {
                if unknown > 0 {
                    self.note(held, Call::Finish, called_us, Answer::Unknown);
                }
                self.note(held, Call::Read, called_us, Answer::Over);
            }
            Sent::Answered(reply, _) => self.odd("delete", &reply),
            Sent::Unknown => self.note(held, Call::Finish, called_us, Answer::Unknown),
        }
    }

    // ---- leases

    fn lease(&mut self) {
        let name = self.lease_name();
        let held = self.begin(&name);
        let seconds = if self.random.percent(30) { 1 } else { 5 };
        let ttl_us = seconds * 1_000_000;
        let call = Call::Claim { ttl_us: Some(ttl_us) };
        let (path, me, length) = (format!("/v1/{name}"), format!("c{}", held.handle), seconds.to_string());
        let headers = [("X-Quorum-Client-ID", me.as_str()), ("X-Quorum-Lease-Length", length.as_str())];
        let called_us = self.now_us();
        let Sent::Answered(reply, unknown) = self.send("POST", &path, &headers, "", true) else {
            return self.note(&held, call, called_us, Answer::Unknown);
        };
        match (reply.status, token_of(&reply), unknown) {
            // "You hold it already" says that a request before this one happened: one whose outcome was not known.
            (201, Some(token), 0) | (405, Some(token), 1..) => {
                self.note(&held, call, called_us, Answer::active(token));
            }
            // The first may have happened and be over.
            (201, ..) => {
                self.note(&held, call, called_us, Answer::Unknown);
                return self.delete(&held, &path, &headers[..1]);
            }
            (409, _, 0) => return self.note(&held, call, called_us, Answer::Refused),
            (409, ..) => return self.note(&held, call, called_us, Answer::Unknown),
            _ => return self.odd("lease", &reply),
        }
        self.think();
        if self.random.percent(40) {
            let called_us = self.now_us();
            let renew = Call::Renew { ttl_us };
            match self.send("PUT", &path, &headers, "", true) {
                Sent::Answered(reply, _) => match (reply.status, token_of(&reply)) {
                    (202, Some(token)) => self.note(&held, renew, called_us, Answer::active(token)),
                    (403 | 404, _) => self.note(&held, renew, called_us, Answer::Over),
                    _ => self.odd("renew lease", &reply),
                },
                Sent::Unknown => self.note(&held, renew, called_us, Answer::Unknown),
            }
        }
        if !self.random.percent(30) {
            self.delete(&held, &path, &headers[..1]);
        }
    }

    // ---- typed locks

    fn typed(&mut self) {
        let two = self.random.percent(50);
        let first = self.random.below(2);
        let numbers = if two { vec![first, 1 - first] } else { vec![first] };
        let ids: Vec<String> = numbers.into_iter().map(|number| self.typed_id(number)).collect();
        let held: Vec<Held> = ids.iter().map(|id| self.begin(&format!("dss/media/{id}"))).collect();
        let names: Vec<String> = ids.iter().map(|id| format!("\"{id}\"")).collect();
        let owner = held[0].handle;
        let who = format!("\"ids\": [{}], \"hostname\": \"chaos\", \"owner\": {owner}", names.join(", "));
        let call = Call::Claim { ttl_us: Some(6_000_000) };
        let id = format!("{:016x}{owner:016x}", self.random.next());
        let called_us = self.now_us();
        let body = format!("{{{who}, \"ttl\": 6, \"call\": \"{id}\"}}");
        let sent = self.send("POST", "/v1/dss/media/lock", &[], &body, true);
        let Sent::Answered(reply, unknown) = sent else {
            return held.iter().for_each(|held| self.note(held, call, called_us, Answer::Unknown));
        };
        match reply.status {
            200 => {
                let locks = reply.json();
                for (place, held) in held.iter().enumerate() {
                    match locks["locks"][place]["token"].as_u64() {
                        Some(token) => self.note(held, call, called_us, Answer::active(token)),
                        None => self.odd("typed lock without a token", &reply),
                    }
                }
            }
            409 if unknown == 0 => {
                // One of them stood in the way; which of several is not of interest here.
                if let [one] = held.as_slice() {
                    self.note(one, call, called_us, Answer::Refused);
                }
                return;
            }
            409 => return held.iter().for_each(|held| self.note(held, call, called_us, Answer::Unknown)),
            _ => return self.odd("typed lock", &reply),
        }
        self.think();
        let called_us = self.now_us();
        let body = format!("{{{who}, \"call\": \"{id}u\"}}");
        let sent = self.send("POST", "/v1/dss/media/unlock", &[], &body, true);
        let answer = match sent {
            Sent::Answered(reply, _) if reply.status == 200 => Answer::Done,
            // Not sent with `retry`, so that a second one may find the first one's doing.
            _ => Answer::Unknown,
        };
        held.iter().for_each(|held| self.note(held, Call::Finish, called_us, answer.clone()));
    }

    /// Asks for claims by their ids, once everything is well again.
    pub fn read_again(mut self, ids: &[Known]) -> Vec<Op> {
        for (handle, id, items) in ids {
            self.read_claim(&Held { handle: *handle, items: items.clone() }, id);
        }
        self.book.ops
    }
}

fn last_part(url: &str) -> Option<String> {
    url.trim_end_matches('/').rsplit('/').next().map(Into::into)
}

fn token_of(reply: &Reply) -> Option<u64> {
    reply.header("leasehold-token")?.parse().ok()
}

/// 503 and 507 say that nothing happened, but for leases, where a header may say that nobody knows.
pub(super) fn is_certainly_undone(reply: &Reply) -> bool {
    matches!(reply.status, 503 | 507) && reply.header("leasehold-outcome").is_none()
}
