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

use std::collections::VecDeque;
use std::time::Instant;

use super::super::engine::{Answer, Next, Workload};
use super::super::request::{ClaimRequest, ClaimTemplate};
use super::super::stats::{Op, Recorder};

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
/// Heartbeats and polls come round far sooner than this.
const TTL: f64 = 60.0;

/// Requests a second at scale 1.
pub(crate) fn requests_per_second() -> f64 {
    DISTRIBUTION.iter().map(|(_, weight)| *weight as f64).sum()
}

/// The requests, built once.
struct Requests {
    claim: ClaimTemplate,
    poll: ClaimRequest,
    renew: ClaimRequest,
    get: ClaimRequest,
    release: ClaimRequest,
    withdraw: ClaimRequest,
    abort: ClaimRequest,
    list_active: Vec<u8>,
    list_resource: Vec<u8>,
}

impl Requests {
    fn new(host: &str) -> Self {
        let claim = ClaimTemplate::new(host, "mixd", "", TTL, 0);
        let status = |word: &str| ClaimRequest::patch(host, &format!("{{\"status\":\"{word}\"}}"));
        let list =
            |query: &str| format!("GET /v1/claims/?{query} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
        Self {
            poll: status("active"),
            renew: ClaimRequest::patch(host, &format!("{{\"ttl\":{TTL:?}}}")),
            get: ClaimRequest::get(host, ""),
            release: status("released"),
            withdraw: status("withdrawn"),
            abort: status("aborted"),
            list_active: list("status=active&limit=100"),
            list_resource: list(&format!("resource={}", claim.name(0))),
            claim,
        }
    }
}

/// The mixture.
pub(crate) struct Mix {
    requests: Requests,
    /// Claims known to be active, the longest unused first.
    active: VecDeque<Vec<u8>>,
    /// Claims that were waiting when last looked at; the server may have promoted them since.
    waiting: VecDeque<Vec<u8>>,
    /// What each connection is doing, and the claim it took for it.
    busy: Vec<(Kind, Vec<u8>)>,
    /// State of the generator that picks the next kind; any odd start will do, and a fixed one repeats.
    random: u64,
    /// The next new resource; those below `CONTENDED` are the contended ones.
    number: u64,
    /// Claims still to be made before the mixture starts.
    prefill: u64,
    finishing: bool,
}

impl Mix {
    /// A mixture over `connections` connections.
    pub(crate) fn new(host: &str, connections: usize) -> Self {
        Self {
            requests: Requests::new(host),
            active: VecDeque::new(),
            waiting: VecDeque::new(),
            busy: vec![(Kind::ListActive, Vec::new()); connections],
            random: 0x9e37_79b9_7f4a_7c15,
            number: CONTENDED,
            prefill: PREFILL,
            finishing: false,
        }
    }

    /// xorshift64: quick, and good enough to shuffle requests.
    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn pick(&mut self) -> Kind {
        if self.finishing {
            return Kind::Abort;
        }
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

    /// Takes the claim a request is about out of its set.
    fn take(&mut self, kind: Kind) -> Option<Vec<u8>> {
        match kind {
            Kind::Poll | Kind::Withdraw => self.waiting.pop_front(),
            Kind::Abort => self.waiting.pop_front().or_else(|| self.active.pop_front()),
            Kind::Renew | Kind::Get => self.active.pop_front(),
            Kind::Release => {
                let place = self.draw(self.active.len().max(1) as u64) as usize;
                self.active.remove(place)
            }
            _ => Some(Vec::new()),
        }
    }

    fn write(&mut self, kind: Kind, path: &[u8], out: &mut Vec<u8>) -> Op {
        let number = match kind {
            Kind::ClaimContended => self.draw(CONTENDED),
            _ => self.number,
        };
        let requests = &self.requests;
        match kind {
            Kind::Poll => requests.poll.write(path, out),
            Kind::Renew => requests.renew.write(path, out),
            Kind::Get => requests.get.write(path, out),
            Kind::Release => requests.release.write(path, out),
            Kind::Withdraw => requests.withdraw.write(path, out),
            Kind::Abort => requests.abort.write(path, out),
            Kind::ListActive => out.extend_from_slice(&requests.list_active),
            Kind::ListResource => out.extend_from_slice(&requests.list_resource),
            Kind::ClaimContended => requests.claim.write(number, out),
            Kind::ClaimNew => {
                requests.claim.write(number, out);
                self.number += 1;
            }
        }
        match kind {
            Kind::Poll => Op::Activate,
            Kind::Renew => Op::Renew,
            Kind::Get => Op::Get,
            Kind::Release => Op::Release,
            Kind::Withdraw | Kind::Abort => Op::Cancel,
            Kind::ListActive => Op::ListActive,
            Kind::ListResource => Op::ListResource,
            Kind::ClaimContended | Kind::ClaimNew => Op::Claim,
        }
    }
}

impl Workload for Mix {
    fn next(&mut self, connection: usize, _now: Instant, out: &mut Vec<u8>) -> Next {
        let kind = self.pick();
        let Some(path) = self.take(kind) else { return Next::Done };
        let op = self.write(kind, &path, out);
        self.busy[connection] = (kind, path);
        Next::Send(op)
    }

    fn answered(&mut self, answer: &Answer<'_>, _recorder: &mut Recorder) -> Result<(), &'static str> {
        let (kind, path) =
            std::mem::replace(&mut self.busy[answer.connection], (Kind::ListActive, Vec::new()));
        match (kind, answer.response.status()) {
            (Kind::Poll | Kind::Renew | Kind::Get, 200) => self.active.push_back(path),
            (Kind::Poll, 409) => self.waiting.push_back(path),
            (Kind::ListActive | Kind::ListResource, 200) => {}
            (Kind::Release | Kind::Withdraw | Kind::Abort, 204) => {}
            (Kind::ClaimContended | Kind::ClaimNew, status @ (201 | 202)) => {
                let path = answer.response.location_path().ok_or("without a Location")?.to_vec();
                if status == 201 { self.active.push_back(path) } else { self.waiting.push_back(path) }
            }
            _ => return Err("unexpected"),
        }
        Ok(())
    }

    fn finish(&mut self) {
        self.finishing = true;
    }
}
