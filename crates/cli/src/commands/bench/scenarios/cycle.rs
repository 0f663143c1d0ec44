//! `cycle`: claim and release a resource of one's own, over and over.
//!
//! In:    nothing but the connections.
//! Out:   latencies of claims and releases; two durable commits a cycle.
//! Never: two connections on one resource, so nothing ever waits.

use std::time::Instant;

use super::super::engine::{Answer, Next, Workload};
use super::super::request::{ClaimRequest, ClaimTemplate};
use super::super::stats::{Op, Recorder};

/// A ttl no run outlives, so that expiry plays no part.
const TTL: f64 = 60.0;

/// Claims and releases on every connection.
pub(crate) struct Cycle {
    claim: ClaimTemplate,
    release: ClaimRequest,
    /// The path of the claim each connection holds; empty for none.
    held: Vec<Vec<u8>>,
    /// The next resource.
    number: u64,
    finishing: bool,
    /// The names its requests go under.
    ops: (Op, Op),
}

impl Cycle {
    /// Cycles on `connections` connections.
    pub(crate) fn new(host: &str, connections: usize) -> Self {
        Self {
            claim: ClaimTemplate::new(host, "cycl", "", TTL, 0),
            release: ClaimRequest::patch(host, "{\"status\":\"released\"}"),
            held: vec![Vec::new(); connections],
            number: 0,
            finishing: false,
            ops: (Op::Claim, Op::Release),
        }
    }

    /// The one-connection probe that runs beside other work and is counted apart.
    pub(crate) fn probe(host: &str) -> Self {
        Self { ops: (Op::ProbeClaim, Op::ProbeRelease), ..Self::new(host, 1) }
    }
}

impl Workload for Cycle {
    fn next(&mut self, connection: usize, _now: Instant, out: &mut Vec<u8>) -> Next {
        let held = &self.held[connection];
        if !held.is_empty() {
            self.release.write(held, out);
            return Next::Send(self.ops.1);
        }
        if self.finishing {
            return Next::Done;
        }
        self.number += 1;
        self.claim.write(self.number, out);
        Next::Send(self.ops.0)
    }

    fn answered(&mut self, answer: &Answer<'_>, _recorder: &mut Recorder) -> Result<(), &'static str> {
        let held = &mut self.held[answer.connection];
        held.clear();
        if answer.op == self.ops.1 {
            return if answer.response.status() == 204 { Ok(()) } else { Err("instead of 204") };
        }
        if answer.response.status() != 201 {
            return Err("instead of 201");
        }
        held.extend_from_slice(answer.response.location_path().ok_or("without a Location")?);
        Ok(())
    }

    fn lost(&mut self, connection: usize, _op: Op) {
        self.held[connection].clear();
    }

    fn finish(&mut self) {
        self.finishing = true;
    }
}
