//! `mix`: the realistic mixture, around 100 activation polls a second.
//!
//! In:    a number of connections, which carry whatever comes next.
//! Out:   latencies of every kind of request.
//! Never: two requests on one claim at a time: a claim in use is out of its set until the answer is read.
//!
//! Requests a second at `--rate 1.0`, 370 in all. The claims that begin (40) are as many as end (30 + 10), so
//! the population stays where `PREFILL` put it:
//!
//! | a second | request | right answers |
//! |---|---|---|
//! | 100 | PATCH waiting claim to `active` (the poll) | 200, 409 |
//! | 120 | PATCH `ttl` of an active claim (the heartbeat) | 200 |
//! | 60 | GET one claim | 200 |
//! | 20 + 20 | POST a claim, half on 20 contended resources, half on a new one | 201, 202 |
//! | 30 | PATCH active claim to `released` | 204 |
//! | 8 + 2 | PATCH waiting claim to `withdrawn`, to `aborted` | 204 |
//! | 4 | GET the list of active claims | 200 |
//! | 6 | GET the list of one contended resource | 200 |

use std::cell::RefCell;
use std::collections::VecDeque;

use anyhow::Result;

use crate::http::Request;
use crate::names::Names;
use crate::session::Session;
use crate::stats::Op;

/// What a request may do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Poll,
    Renew,
    Get,
    ClaimContended,
    ClaimNew,
    Release,
    Withdraw,
    Abort,
    ListActive,
    ListResource,
}

/// The distribution: requests a second at scale 1.
const DISTRIBUTION: [(Kind, u64); 10] = [
    (Kind::Poll, 100),
    (Kind::Renew, 120),
    (Kind::Get, 60),
    (Kind::ClaimContended, 20),
    (Kind::ClaimNew, 20),
    (Kind::Release, 30),
    (Kind::Withdraw, 8),
    (Kind::Abort, 2),
    (Kind::ListActive, 4),
    (Kind::ListResource, 6),
];
/// Resources that several clients want.
const CONTENDED: u64 = 20;
/// Claims on them before the run: one active and five waiting each.
const PREFILL: u64 = CONTENDED * 6;
/// Waiting claims past this are withdrawn instead of joined by more; keeps a long run bounded.
const WAITING_MAX: usize = 500;
/// What follows the name of the resource in a claim. Heartbeats and polls come round far sooner than this ttl.
const REST: &str = "\",\"ttl\":60.0}";

/// Requests a second at scale 1.
pub(super) fn requests_per_second() -> f64 {
    DISTRIBUTION.iter().map(|(_, weight)| *weight as f64).sum()
}

/// The mixture, shared by all connections.
pub(super) struct Mix {
    contended: Names,
    new: Names,
    state: RefCell<State>,
}

struct State {
    /// Claims known to be active, the longest unused first.
    active: VecDeque<String>,
    /// Claims that were waiting when last looked at; the server may have promoted them since.
    waiting: VecDeque<String>,
    /// State of the generator that picks the next kind; any odd start will do, and a fixed one repeats.
    random: u64,
    /// Claims still to be made before the mixture starts.
    prefill: u64,
}

impl State {
    /// xorshift64: quick, and good enough to shuffle requests.
    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn pick(&mut self) -> Kind {
        if self.prefill > 0 {
            self.prefill -= 1;
            return Kind::ClaimContended;
        }
        let mut point = self.draw(requests_per_second() as u64);
        for (kind, weight) in DISTRIBUTION {
            if point < weight {
                return self.possible(kind);
            }
            point -= weight;
        }
        Kind::ListActive
    }

    /// What cannot be done for want of claims becomes a claim; what would pile up becomes a withdrawal.
    fn possible(&self, kind: Kind) -> Kind {
        match kind {
            Kind::Poll | Kind::Withdraw | Kind::Abort if self.waiting.is_empty() => Kind::ClaimContended,
            Kind::Renew | Kind::Release | Kind::Get if self.active.is_empty() => Kind::ClaimNew,
            Kind::ClaimContended if self.waiting.len() >= WAITING_MAX => Kind::Withdraw,
            _ => kind,
        }
    }

    /// Takes the claim that a request is about out of its set.
    fn take(&mut self, kind: Kind) -> Option<String> {
        match kind {
            Kind::Poll | Kind::Withdraw => self.waiting.pop_front(),
            Kind::Abort => self.waiting.pop_front().or_else(|| self.active.pop_front()),
            Kind::Renew | Kind::Get => self.active.pop_front(),
            Kind::Release => {
                let place = self.draw(self.active.len().max(1) as u64) as usize;
                self.active.remove(place)
            }
            _ => Some(String::new()),
        }
    }
}

impl Mix {
    /// Nothing claimed yet.
    pub(super) fn new() -> Self {
        let (active, waiting, random) = (VecDeque::new(), VecDeque::new(), 0x9e37_79b9_7f4a_7c15);
        let state = RefCell::new(State { active, waiting, random, prefill: PREFILL });
        Self { contended: Names::new("mixd"), new: Names::new("mixn"), state }
    }

    /// One connection's share: whatever comes next, and at the end an abort of every claim that is left.
    pub(super) async fn work(&self, session: &mut Session<'_>) -> Result<()> {
        loop {
            let next = session.next().await?;
            let taken = {
                let mut state = self.state.borrow_mut();
                let kind = if next.is_some() { state.pick() } else { Kind::Abort };
                state.take(kind).map(|path| (kind, path))
            };
            let Some((kind, path)) = taken else { return Ok(()) };
            let started = next.unwrap_or_else(std::time::Instant::now);
            let mut name = String::new();
            match kind {
                Kind::ClaimNew => self.new.fresh(&mut name),
                Kind::ClaimContended => {
                    let number = self.state.borrow_mut().draw(CONTENDED);
                    self.contended.numbered(number, &mut name);
                }
                _ => self.contended.numbered(0, &mut name),
            }
            let (op, request, right) = request(kind, &path, &name);
            if let Some(status) = session.ask(op, started, &request, right).await? {
                self.answered(session, kind, status, path);
            }
        }
    }

    /// Puts the claim of an answer that is right where it belongs now.
    fn answered(&self, session: &Session<'_>, kind: Kind, status: u16, path: String) {
        let mut state = self.state.borrow_mut();
        match (kind, status) {
            (Kind::Poll, 409) => state.waiting.push_back(path),
            (Kind::Poll | Kind::Renew | Kind::Get, _) => state.active.push_back(path),
            (Kind::ClaimContended | Kind::ClaimNew, _) => {
                let set = if status == 201 { &mut state.active } else { &mut state.waiting };
                set.extend(session.path(Op::Claim, status));
            }
            _ => {}
        }
    }
}

/// A request, what it is counted as, and the answers that are right.
fn request<'a>(kind: Kind, path: &'a str, name: &'a str) -> (Op, Request<'a>, &'static [u16]) {
    let list = |pieces: [&'a str; 3]| Request { target: pieces, ..Request::get("", "") };
    match kind {
        Kind::Poll => (Op::Activate, Request::patch(path, "{\"status\":\"active\"}"), &[200, 409]),
        Kind::Renew => (Op::Renew, Request::patch(path, "{\"ttl\":60.0}"), &[200]),
        Kind::Get => (Op::Get, Request::get(path, ""), &[200]),
        Kind::ClaimContended | Kind::ClaimNew => (Op::Claim, Request::claim("", name, REST), &[201, 202]),
        Kind::Release => (Op::Release, Request::release(path), &[204]),
        Kind::Withdraw => (Op::Cancel, Request::patch(path, "{\"status\":\"withdrawn\"}"), &[204]),
        Kind::Abort => (Op::Cancel, Request::patch(path, "{\"status\":\"aborted\"}"), &[204]),
        Kind::ListActive => (Op::ListActive, list(["/v1/claims/", "?status=active&limit=100", ""]), &[200]),
        Kind::ListResource => (Op::ListResource, list(["/v1/claims/", "?resource=", name]), &[200]),
    }
}
