//! Whether nodes tell the truth about what they do not know: the age of their tables, and what certainly did not happen.
//!
//! In:    clients, and what they were told before. Out: answers that should not have been.
//! Never: takes part in the history: what is found here is wrong by itself.

use std::net::SocketAddr;

use anyhow::ensure;

use super::clients::{Client, is_certainly_undone};
use super::notes::SharedRound;
use crate::cluster::PATIENCE;
use crate::history::{Answer, Call};
use crate::http::{request, request_with};
use crate::wire::state;

/// How far a claim has come; 0: nobody knows it.
fn stage(answer: Option<&Answer>) -> u8 {
    match answer {
        None | Some(Answer::Gone | Answer::Unknown | Answer::Refused) => 0,
        Some(Answer::Waiting) => 1,
        Some(Answer::Active(_)) => 2,
        Some(Answer::Over | Answer::Done) => 3,
    }
}

impl Client {
    /// Reads a claim in the table of any one node as it is. If that has not come as far as this client was told at `told_us`,
    /// the node must admit that it may be so old.
    pub(super) fn check_age(&mut self, id: &str, told: &Answer, told_us: u64) {
        let place = self.random.below(self.shared.nodes.len() as u64) as usize;
        let age = self.now_us().saturating_sub(told_us) as f64 / 1e6;
        let path = format!("/v1/claims/{id}/?stale=true");
        let Ok(reply) = request_with(self.shared.nodes[place], "GET", &path, &[], "", PATIENCE) else {
            return;
        };
        let shown = match reply.status {
            200 => state(&reply.json()),
            404 => None,
            _ => return,
        };
        // Claims that are over are forgotten some day.
        if stage(shown.as_ref()) >= stage(Some(told)) || (shown.is_none() && stage(Some(told)) == 3) {
            return;
        }
        self.shared.count_behind();
        let said = reply.header("leasehold-staleness").unwrap_or("nothing");
        if said != "unknown" && !said.parse::<f64>().is_ok_and(|bound| bound >= age) {
            self.shared.odd(format!(
                "VIOLATION: node {} shows {shown:?} of a claim that was {told:?} {age} s before, and calls its table {said} s \
                 old at most",
                place + 1
            ));
        }
    }

    /// Claims something that nobody else does, once. If that certainly did not happen, nobody must ever find it.
    pub(super) fn claim_once(&mut self) {
        let name = format!("r{}p", self.shared.round);
        let number = self.random.next();
        let held = self.begin(&format!("{name}{number:x}"));
        let body = format!("{{\"resource\": \"{}\", \"ttl\": 2}}", held.resource());
        self.place = self.random.below(self.shared.nodes.len() as u64) as usize;
        let (node, called_us) = (self.shared.nodes[self.place], self.now_us());
        let call = Call::Claim { ttl_us: Some(2_000_000) };
        match request_with(node, "POST", "/v1/claims/", &[], &body, PATIENCE) {
            Ok(reply) if is_certainly_undone(&reply) => self.shared.note_undone(held.resource().to_string()),
            Ok(reply) if reply.status < 500 => match state(&reply.json()) {
                Some(answer) => self.note(&held, call, called_us, answer),
                None => self.odd("claim of one's own", &reply),
            },
            Err(lost) if !lost.sent => {}
            Ok(_) | Err(_) => self.note(&held, call, called_us, Answer::Unknown),
        }
    }
}

/// Looks for all that certainly did not happen, once everything is well again. Tells how much that was.
pub(super) fn find_undone(shared: &SharedRound, node: SocketAddr) -> anyhow::Result<usize> {
    let undone = shared.undone();
    for resource in &undone {
        let path = format!("/v1/claims/?resource={resource}");
        let reply = request(node, "GET", &path, "", PATIENCE).map_err(|error| error.why)?;
        let claims = reply.json();
        ensure!(reply.status == 200 && claims.is_array(), "no list of claims: {reply:?}");
        ensure!(
            claims.as_array().is_some_and(Vec::is_empty),
            "VIOLATION: a client was told that its claim certainly does not exist, and it does: {claims:#}"
        );
    }
    Ok(undone.len())
}
