//! `queue`: one resource handed from holder to holder through a queue of long-polling waiters.
//!
//! In:    a holder and N waiters, each on its own connection; a new holder releases at once and queues again.
//! Out:   the hand-over: from the release being sent until the next holder has read its 201.
//! Never: takes order on trust. A token that does not grow, a grant while another client holds, or a waiter that was
//!        overtaken is counted as an error.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::http::Request;
use crate::names::Names;
use crate::session::Session;
use crate::stats::Op;

/// Claims sent this close together may reach the queue in either order; farther apart they may not.
const ORDER_SLACK: Duration = Duration::from_millis(100);

/// The queue as the clients see it.
#[derive(Default)]
struct Queue {
    /// Who waits since when, in the order in which the claims were sent.
    waiting: VecDeque<(usize, Instant)>,
    /// The connections that hold, until their releases are sent, and whether they share.
    holders: Vec<(usize, bool)>,
    /// When the last release was sent, until its hand-over is counted.
    released: Option<Instant>,
    /// The token of the last holder.
    token: u64,
    /// When the server says that the newest claim among the holders so far was created: the order of its queue.
    created: Vec<u8>,
}

/// What the answer to a waiting claim says.
struct Grant<'a> {
    connection: usize,
    token: u64,
    created: &'a [u8],
    /// Whether it may hold beside others who share.
    shares: bool,
}

impl Queue {
    /// Takes a connection out of the queue; returns when it queued and when the first in the queue did.
    fn dequeue(&mut self, connection: usize) -> Option<(Instant, Instant)> {
        let first = self.waiting.front()?.1;
        let place = self.waiting.iter().position(|waiter| waiter.0 == connection)?;
        self.waiting.remove(place).map(|waiter| (waiter.1, first))
    }

    /// A client has read its grant. Returns when the hand-over to it began, if there was one; fails if it came out of
    /// order.
    fn granted(&mut self, grant: &Grant<'_>) -> (Option<Instant>, Result<(), &'static str>) {
        let Some((queued, first)) = self.dequeue(grant.connection) else {
            return (None, Err("without having waited"));
        };
        // A claim sent after the release found the resource free: that is no hand-over.
        let began = self.released.take().filter(|released| queued < *released);
        (began, self.check_order(grant, queued, first))
    }

    fn check_order(
        &mut self,
        grant: &Grant<'_>,
        queued: Instant,
        first: Instant,
    ) -> Result<(), &'static str> {
        let beside = self.holders.iter().any(|(_, shares)| !(*shares && grant.shares));
        let joins = grant.shares && !self.holders.is_empty();
        self.holders.push((grant.connection, grant.shares));
        // Those who share have one token, also if the last of them has sent its release and the server has not read it yet.
        let before = std::mem::replace(&mut self.token, grant.token);
        let same = grant.shares && grant.token == before;
        let grew = same || (!joins && grant.token > before);
        // RFC 3339 in UTC with a fixed number of digits sorts as text. Sharers are granted together, and their answers
        // may be read in any order. The next holder must be younger than all of them.
        let is_later = grant.created >= self.created.as_slice();
        let in_order = is_later || same;
        if is_later {
            self.created = grant.created.to_vec();
        }
        if beside {
            return Err("while another holds");
        }
        if !grew {
            return Err(if joins { "with a wrong token" } else { "with a token that did not grow" });
        }
        if !in_order || queued.saturating_duration_since(first) > ORDER_SLACK {
            return Err("before an earlier waiter");
        }
        Ok(())
    }

    /// A holder sends its release.
    fn releases(&mut self, connection: usize, now: Instant) {
        self.holders.retain(|(holder, _)| *holder != connection);
        self.released = Some(now);
    }
}

/// How a waiter wants the resource: what follows its name in a claim. No hand-over outlives the ttl. A queue that is not mixed
/// has waiters of the first kind.
const KINDS: [&str; 4] = [
    "\",\"ttl\":60.0}",
    "\",\"ttl\":60.0,\"mode\":\"shared\"}",
    "\",\"ttl\":60.0,\"take\":3,\"of\":4}",
    // A set: `stand` adds a resource of its own.
    "",
];
const SHARED: usize = 1;
const SET: usize = 3;

/// What all connections of a queue share.
pub(super) struct Line {
    queue: RefCell<Queue>,
    mixed: bool,
}

impl Line {
    /// A queue of exclusive claims, or of all kinds.
    pub(super) fn new(mixed: bool) -> Self {
        Self { queue: RefCell::default(), mixed }
    }

    /// The request of a connection.
    fn body(&self, number: usize, name: &str) -> String {
        match if self.mixed { number % KINDS.len() } else { 0 } {
            SET => format!("{{\"resources\":[\"{name}\",\"{name}/{number}\"],\"ttl\":60.0}}"),
            kind => format!("{{\"resource\":\"{name}{}", KINDS[kind]),
        }
    }

    /// Queues, holds, releases at once, and queues again until time is up.
    pub(super) async fn stand(&self, session: &mut Session<'_>, names: &Names) -> Result<()> {
        let mut name = String::new();
        names.numbered(0, &mut name);
        let body = self.body(session.number, &name);
        let shares = self.mixed && session.number % KINDS.len() == SHARED;
        while let Some(started) = session.next().await? {
            self.queue.borrow_mut().waiting.push_back((session.number, started));
            let request = Request::claim_set("?wait=60", &body);
            let Some(path) = session.claim(Op::WaitingClaim, started, &request).await? else {
                self.queue.borrow_mut().dequeue(session.number);
                continue;
            };
            let (began, order) = {
                let answer = session.answer();
                let token = answer.number_field(b"\"token\"").unwrap_or(0);
                let created = answer.text_field(b"\"created\"").unwrap_or_default();
                let grant = Grant { connection: session.number, token, created, shares };
                self.queue.borrow_mut().granted(&grant)
            };
            if let Some(began) = began {
                session.run().latency(Op::Handover, began);
            }
            if let Err(complaint) = order {
                session.complain(Op::WaitingClaim, 201, complaint);
            }
            let now = Instant::now();
            self.queue.borrow_mut().releases(session.number, now);
            session.ask(Op::Release, now, &Request::release(&path), &[204]).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds one grant and returns what the queue thinks of it.
    fn grant(queue: &mut Queue, connection: usize, token: u64, created: u32) -> Result<(), &'static str> {
        let created = format!("{created:04}").into_bytes();
        queue.granted(&Grant { connection, token, created: &created, shares: false }).1
    }

    #[test]
    fn orderly_hand_overs_pass_and_each_disorder_is_named() {
        let start = Instant::now();
        let mut queue = Queue::default();
        for connection in 0..4 {
            queue.waiting.push_back((connection, start + ORDER_SLACK * 2 * connection as u32));
        }
        let now = start + Duration::from_secs(1);
        assert_eq!(grant(&mut queue, 0, 1, 1), Ok(()));
        queue.releases(0, now);
        assert_eq!(grant(&mut queue, 2, 2, 2), Err("before an earlier waiter"));
        assert_eq!(grant(&mut queue, 1, 3, 3), Err("while another holds"));
        queue.releases(1, now);
        queue.releases(2, now);
        assert_eq!(grant(&mut queue, 3, 3, 3), Err("with a token that did not grow"));
        queue.releases(3, now);
        queue.waiting.push_back((3, now));
        assert_eq!(grant(&mut queue, 3, 4, 2), Err("before an earlier waiter"));
        assert_eq!(grant(&mut queue, 3, 5, 5), Err("without having waited"));
    }

    #[test]
    fn sharers_hold_together_with_one_token_and_nobody_else_holds_beside_them() {
        let now = Instant::now();
        let shared = |queue: &mut Queue, connection, token, shares| {
            queue.waiting.push_back((connection, now));
            queue.granted(&Grant { connection, token, created: b"", shares }).1
        };
        let mut queue = Queue::default();
        assert_eq!(shared(&mut queue, 0, 1, true), Ok(()));
        assert_eq!(shared(&mut queue, 1, 1, true), Ok(()));
        assert_eq!(shared(&mut queue, 2, 2, true), Err("with a wrong token"));
        assert_eq!(shared(&mut queue, 3, 3, false), Err("while another holds"));
    }

    #[test]
    fn answers_to_sharers_may_come_in_any_order_and_nobody_overtakes_them() {
        let mut queue = Queue::default();
        let mut share = |connection, token, created: &[u8], shares| {
            queue.waiting.push_back((connection, Instant::now()));
            let order = queue.granted(&Grant { connection, token, created, shares }).1;
            queue.releases(connection, Instant::now());
            order
        };
        assert_eq!(share(0, 1, b"2", true), Ok(()));
        assert_eq!(share(1, 1, b"1", true), Ok(()));
        assert_eq!(share(2, 2, b"1", false), Err("before an earlier waiter"));
        assert_eq!(share(3, 3, b"3", false), Ok(()));
        assert_eq!(share(4, 4, b"2", true), Err("before an earlier waiter"));
    }

    #[test]
    fn only_a_claim_that_waited_is_handed_over() {
        let start = Instant::now();
        let mut queue = Queue::default();
        queue.waiting.push_back((0, start));
        queue.releases(9, start + Duration::from_millis(1));
        queue.waiting.push_back((1, start + Duration::from_millis(2)));
        let mut began = |connection, token| {
            queue.granted(&Grant { connection, token, created: b"", shares: false }).0.is_some()
        };
        assert!(began(0, 1));
        assert!(!began(1, 2), "it asked after the release");
    }
}
