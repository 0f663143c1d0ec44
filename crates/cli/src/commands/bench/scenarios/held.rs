//! Many held claims: taking them, touching each of them, with a bystander's probe beside.
//!
//! In:    a number of claims.
//! Out:   workloads that `renew` and `hold` put together.
//! Never: two claims on one resource.

use std::time::Instant;

use super::super::engine::{Answer, Next, Workload};
use super::super::request::{ClaimRequest, ClaimTemplate, Paths};
use super::super::stats::{Op, Recorder};
use super::cycle::Cycle;

/// Takes claims until there are enough.
pub(crate) struct Fill {
    claim: ClaimTemplate,
    /// The next resource, which is also how many were asked for.
    asked: u64,
    /// How many to ask for.
    wanted: u64,
    /// What was granted.
    pub(crate) paths: Paths,
}

impl Fill {
    /// Takes `wanted` claims by `claim`.
    pub(crate) fn new(claim: ClaimTemplate, wanted: u64) -> Self {
        Self { claim, asked: 0, wanted, paths: Paths::with_room(wanted as usize) }
    }

    /// The name of the resource of claim `number`.
    pub(crate) fn name(&self, number: u64) -> String {
        self.claim.name(number)
    }
}

impl Workload for Fill {
    fn next(&mut self, _connection: usize, _now: Instant, out: &mut Vec<u8>) -> Next {
        if self.asked >= self.wanted {
            return Next::Done;
        }
        self.claim.write(self.asked, out);
        self.asked += 1;
        Next::Send(Op::Claim)
    }

    fn answered(&mut self, answer: &Answer<'_>, _recorder: &mut Recorder) -> Result<(), &'static str> {
        if answer.response.status() != 201 {
            return Err("instead of 201");
        }
        self.paths.push(answer.response.location_path().ok_or("without a Location")?);
        Ok(())
    }

    fn finish(&mut self) {
        self.wanted = self.asked;
    }
}

/// Sends one kind of request to claim after claim.
pub(crate) struct Each<'a> {
    paths: &'a Paths,
    request: Request,
    op: Op,
    /// The only status that is right.
    expected: u16,
    /// The next claim.
    at: usize,
    /// Where to stop; unset goes round until time is up.
    end: Option<usize>,
}

/// The request `Each` sends.
enum Request {
    /// The same for every claim.
    Fixed(ClaimRequest),
    /// A ttl that ends at one moment for all claims, whenever each is asked.
    ExpireAt {
        /// The Host header.
        host: String,
        /// The moment.
        moment: Instant,
    },
}

impl<'a> Each<'a> {
    /// Renews round and round.
    pub(crate) fn renew(host: &str, paths: &'a Paths, ttl: f64) -> Self {
        let request = Request::Fixed(ClaimRequest::patch(host, &format!("{{\"ttl\":{ttl:?}}}")));
        Self { paths, request, op: Op::Renew, expected: 200, at: 0, end: None }
    }

    /// Reads round and round; up to date, or as this node has it.
    pub(crate) fn read(host: &str, paths: &'a Paths, stale: bool) -> Self {
        let request = Request::Fixed(ClaimRequest::get(host, if stale { "?stale=true" } else { "" }));
        Self { paths, request, op: Op::Get, expected: 200, at: 0, end: None }
    }

    /// Releases every claim once.
    pub(crate) fn release(host: &str, paths: &'a Paths) -> Self {
        let request = Request::Fixed(ClaimRequest::patch(host, "{\"status\":\"released\"}"));
        Self { paths, request, op: Op::Release, expected: 204, at: 0, end: Some(paths.len()) }
    }

    /// Gives every claim, once, a ttl that ends at `moment`.
    pub(crate) fn expire_at(host: &str, paths: &'a Paths, moment: Instant) -> Self {
        let request = Request::ExpireAt { host: host.to_owned(), moment };
        Self { paths, request, op: Op::Renew, expected: 200, at: 0, end: Some(paths.len()) }
    }
}

impl Workload for Each<'_> {
    fn next(&mut self, _connection: usize, _now: Instant, out: &mut Vec<u8>) -> Next {
        let Some(path) = self.paths.cyclic(self.at).filter(|_| self.end.is_none_or(|end| self.at < end))
        else {
            return Next::Done;
        };
        match &self.request {
            Request::Fixed(request) => request.write(path, out),
            Request::ExpireAt { host, moment } => {
                let left = moment.saturating_duration_since(Instant::now()).as_secs_f64();
                ClaimRequest::patch(host, &format!("{{\"ttl\":{left:?}}}")).write(path, out);
            }
        }
        self.at += 1;
        Next::Send(self.op)
    }

    fn answered(&mut self, answer: &Answer<'_>, _recorder: &mut Recorder) -> Result<(), &'static str> {
        if answer.response.status() == self.expected { Ok(()) } else { Err("unexpected") }
    }

    fn finish(&mut self) {
        self.end = Some(self.at);
    }
}

/// Lists in turn: the active claims, the claims of one resource.
pub(crate) struct Lists {
    requests: [(Op, Vec<u8>); 2],
    /// Which comes next.
    turn: usize,
    finishing: bool,
}

impl Lists {
    /// Lists that look at `resource`.
    pub(crate) fn new(host: &str, resource: &str) -> Self {
        let get =
            |query: &str| format!("GET /v1/claims/?{query} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
        let requests = [
            (Op::ListActive, get("status=active&limit=100")),
            (Op::ListResource, get(&format!("resource={resource}"))),
        ];
        Self { requests, turn: 0, finishing: false }
    }
}

impl Workload for Lists {
    fn next(&mut self, connection: usize, _now: Instant, out: &mut Vec<u8>) -> Next {
        // One client that lists is the case in point; sixty-four would be another scenario.
        if self.finishing || connection != 1 {
            return Next::Done;
        }
        let (op, bytes) = &self.requests[self.turn % 2];
        self.turn += 1;
        out.extend_from_slice(bytes);
        Next::Send(*op)
    }

    fn answered(&mut self, answer: &Answer<'_>, _recorder: &mut Recorder) -> Result<(), &'static str> {
        if answer.response.status() == 200 { Ok(()) } else { Err("instead of 200") }
    }

    fn finish(&mut self) {
        self.finishing = true;
    }
}

/// No work at all: the probe alone.
pub(crate) struct Quiet;

impl Workload for Quiet {
    fn next(&mut self, _connection: usize, _now: Instant, _out: &mut Vec<u8>) -> Next {
        Next::Done
    }

    fn answered(&mut self, _answer: &Answer<'_>, _recorder: &mut Recorder) -> Result<(), &'static str> {
        Err("never asked for")
    }

    fn finish(&mut self) {}
}

/// Connection 0 is a bystander that claims and releases; the others do the work.
pub(crate) struct WithProbe<W> {
    /// The work.
    pub(crate) work: W,
    probe: Cycle,
    /// Connections that still work; with none left the bystander leaves too.
    working: Option<usize>,
}

impl<W: Workload> WithProbe<W> {
    /// A bystander for work that ends by count on all but one of `connections`.
    pub(crate) fn counted(host: &str, work: W, connections: usize) -> Self {
        Self { work, probe: Cycle::probe(host), working: Some(connections - 1) }
    }

    /// A bystander that stays until time is up.
    pub(crate) fn timed(host: &str, work: W) -> Self {
        Self { work, probe: Cycle::probe(host), working: None }
    }
}

impl<W: Workload> Workload for WithProbe<W> {
    fn next(&mut self, connection: usize, now: Instant, out: &mut Vec<u8>) -> Next {
        if connection == 0 {
            return self.probe.next(connection, now, out);
        }
        let next = self.work.next(connection, now, out);
        if let (Next::Done, Some(working)) = (&next, &mut self.working) {
            *working = working.saturating_sub(1);
            if *working == 0 {
                self.probe.finish();
            }
        }
        next
    }

    fn answered(&mut self, answer: &Answer<'_>, recorder: &mut Recorder) -> Result<(), &'static str> {
        if answer.connection == 0 {
            self.probe.answered(answer, recorder)
        } else {
            self.work.answered(answer, recorder)
        }
    }

    fn lost(&mut self, connection: usize, op: Op) {
        if connection == 0 { self.probe.lost(connection, op) } else { self.work.lost(connection, op) }
    }

    fn finish(&mut self) {
        self.probe.finish();
        self.work.finish();
    }
}
