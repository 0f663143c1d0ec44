//! `queue`: one resource handed from holder to holder through a queue of long-polling waiters.
//!
//! In:    a holder and N waiters, each on its own connection; a new holder releases at once and queues again.
//! Out:   the hand-over: from the release being written until the next holder has read its 201.
//! Never: takes order on trust. A token that does not grow, a grant while another holds, or a waiter that
//!        was overtaken is counted as an error.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::super::engine::{Answer, Next, Workload};
use super::super::request::{ClaimRequest, ClaimTemplate};
use super::super::stats::{Op, Recorder};

/// A ttl no hand-over outlives.
const TTL: f64 = 60.0;
/// Claims written this close together may reach the queue in either order; farther apart they may not.
const ORDER_SLACK: Duration = Duration::from_millis(100);

/// Waiters on one resource.
pub(crate) struct Queue {
    claim: ClaimTemplate,
    release: ClaimRequest,
    /// The path of the claim each connection holds; empty for none.
    held: Vec<Vec<u8>>,
    /// Who waits since when, in the order their claims were written.
    waiting: VecDeque<(usize, Instant)>,
    /// Who holds, until its release is written.
    holder: Option<usize>,
    /// When the last release was written, until its hand-over is counted.
    released: Option<Instant>,
    /// The token of the last holder.
    token: u64,
    /// When the server says the last holder's claim was created: the order of its queue.
    created: Vec<u8>,
    finishing: bool,
}

impl Queue {
    /// A queue over `connections` connections: one holds, the others wait.
    pub(crate) fn new(host: &str, connections: usize) -> Self {
        Self {
            claim: ClaimTemplate::new(host, "queu", "?wait=60", TTL, 0),
            release: ClaimRequest::patch(host, "{\"status\":\"released\"}"),
            held: vec![Vec::new(); connections],
            waiting: VecDeque::with_capacity(connections),
            holder: None,
            released: None,
            token: 0,
            created: Vec::new(),
            finishing: false,
        }
    }

    /// Takes a connection out of the queue; returns when it queued and when the first in the queue did.
    fn dequeue(&mut self, connection: usize) -> Option<(Instant, Instant)> {
        let first = self.waiting.front()?.1;
        let place = self.waiting.iter().position(|waiter| waiter.0 == connection)?;
        self.waiting.remove(place).map(|waiter| (waiter.1, first))
    }

    fn granted(&mut self, answer: &Answer<'_>, recorder: &mut Recorder) -> Result<(), &'static str> {
        let (queued, first) = self.dequeue(answer.connection).ok_or("without having waited")?;
        if answer.response.status() != 201 {
            return Err("instead of 201");
        }
        let path = answer.response.location_path().ok_or("without a Location")?;
        self.held[answer.connection].extend_from_slice(path);
        // A claim written after the release found the resource free: that is no hand-over.
        if let Some(released) = self.released.take().filter(|released| queued < *released) {
            recorder.latency(Op::Handover, released, answer.now);
        }
        self.check_order(answer, queued, first)
    }

    fn check_order(
        &mut self,
        answer: &Answer<'_>,
        queued: Instant,
        first: Instant,
    ) -> Result<(), &'static str> {
        let two_holders = self.holder.replace(answer.connection).is_some();
        let token = answer.response.token().unwrap_or(0);
        let grew = token > std::mem::replace(&mut self.token, token);
        let created = answer.response.text_field(b"\"created\"").unwrap_or_default();
        // RFC 3339 in UTC with a fixed number of digits sorts as text.
        let in_order = created >= self.created.as_slice();
        self.created.clear();
        self.created.extend_from_slice(created);
        if two_holders {
            return Err("while another holds");
        }
        if !grew {
            return Err("with a token that did not grow");
        }
        if !in_order || queued.saturating_duration_since(first) > ORDER_SLACK {
            return Err("before an earlier waiter");
        }
        Ok(())
    }
}

impl Workload for Queue {
    fn next(&mut self, connection: usize, now: Instant, out: &mut Vec<u8>) -> Next {
        let held = &self.held[connection];
        if !held.is_empty() {
            self.release.write(held, out);
            self.holder = None;
            self.released = Some(now);
            return Next::Send(Op::Release);
        }
        if self.finishing {
            return Next::Done;
        }
        self.claim.write(0, out);
        self.waiting.push_back((connection, now));
        Next::Send(Op::WaitingClaim)
    }

    fn answered(&mut self, answer: &Answer<'_>, recorder: &mut Recorder) -> Result<(), &'static str> {
        if answer.op == Op::WaitingClaim {
            return self.granted(answer, recorder);
        }
        self.held[answer.connection].clear();
        if answer.response.status() == 204 { Ok(()) } else { Err("instead of 204") }
    }

    fn lost(&mut self, connection: usize, _op: Op) {
        self.held[connection].clear();
        let _ = self.dequeue(connection);
        self.holder = self.holder.filter(|holder| *holder != connection);
    }

    fn finish(&mut self) {
        self.finishing = true;
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::response::{Parsed, Response, parse};
    use super::*;

    /// Feeds one grant and returns what the workload thinks of it.
    fn grant(
        queue: &mut Queue,
        connection: usize,
        token: u64,
        created: u32,
        now: Instant,
    ) -> Result<(), &'static str> {
        let body = format!("{{\"created\":\"{created:04}\",\"token\":{token}}}");
        let bytes = format!(
            "HTTP/1.1 201 Created\r\nlocation: /v1/claims/{token}/\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes();
        let Parsed::Complete(head) = parse(&bytes) else { panic!("incomplete") };
        let response = Response::new(&head, &bytes);
        let mut recorder = Recorder::new(now - Duration::from_secs(1000), None);
        queue.answered(&Answer { connection, op: Op::WaitingClaim, response: &response, now }, &mut recorder)
    }

    fn release(queue: &mut Queue, connection: usize, now: Instant) {
        assert!(matches!(queue.next(connection, now, &mut Vec::new()), Next::Send(Op::Release)));
        queue.held[connection].clear();
    }

    #[test]
    fn orderly_hand_overs_pass_and_each_disorder_is_named() {
        let start = Instant::now();
        let mut queue = Queue::new("h", 4);
        for connection in 0..4 {
            queue.next(connection, start + ORDER_SLACK * 2 * connection as u32, &mut Vec::new());
        }
        let now = start + Duration::from_secs(1);
        assert_eq!(grant(&mut queue, 0, 1, 1, now), Ok(()));
        release(&mut queue, 0, now);
        assert_eq!(grant(&mut queue, 2, 2, 2, now), Err("before an earlier waiter"));
        assert_eq!(grant(&mut queue, 1, 3, 3, now), Err("while another holds"));
        release(&mut queue, 1, now);
        assert_eq!(grant(&mut queue, 3, 3, 3, now), Err("with a token that did not grow"));
        release(&mut queue, 3, now);
        queue.next(3, now, &mut Vec::new());
        assert_eq!(grant(&mut queue, 3, 4, 2, now), Err("before an earlier waiter"));
    }
}
