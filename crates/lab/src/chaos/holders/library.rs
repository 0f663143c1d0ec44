//! Claims of the client library, held in this process.
//!
//! In:    addresses. Out: what `validate` said and when. Never: believes a claim that says it is lost.

use leasehold_client::blocking::{Claim, LockManager};
use leasehold_client::{ClaimRequest, Error, Options, Wait};
use std::thread;

use super::{Grant, Holder, WAIT};

pub(super) fn work(holder: &mut Holder) {
    let mut manager: Option<LockManager> = None;
    while !holder.stopped() {
        let known = match manager.take() {
            Some(known) => known,
            None => {
                let urls = holder.book.shared.urls(holder.book.number);
                match LockManager::new(Options::url(&urls.join(","))) {
                    Ok(new) => new,
                    Err(error) => return holder.odd(format!("the library does not start: {error}")),
                }
            }
        };
        one(holder, &known);
        // Now and then a manager goes, with whatever it still has to tell the server.
        manager = Some(known).filter(|_| !holder.random.percent(5));
        holder.rest();
    }
}

fn one(holder: &mut Holder, manager: &LockManager) {
    let (held, ttl) = holder.begin();
    let request = ClaimRequest::new(held.resource()).ttl(ttl).wait(Wait::For(WAIT));
    let called_us = holder.now_us();
    match manager.request(request) {
        Ok(claim) => match claim.token() {
            Some(token) => {
                let grant = holder.granted(held, ttl, called_us, token, claim.id());
                hold(holder, grant, claim);
            }
            None => holder.odd(format!("the library holds {} without a token", held.resource())),
        },
        Err(Error::Invalid(why) | Error::Refused { detail: why, .. }) => {
            holder.odd(format!("the library is refused {}: {why}", held.resource()));
        }
        Err(_) => holder.not_granted(&held, ttl, called_us),
    }
}

fn hold(holder: &mut Holder, mut grant: Grant, claim: Claim) {
    let (looks, pause) = holder.shift(grant.ttl);
    for _ in 0..looks {
        let called_us = holder.now_us();
        match claim.validate() {
            Ok(Some(token)) if token == grant.token => holder.holds(&mut grant, called_us),
            Ok(other) => holder.odd(format!("#{} has the token {other:?} now", grant.held.handle)),
            Err(_) => break,
        }
        thread::sleep(pause);
    }
    if holder.random.percent(20) {
        let called_us = holder.now_us();
        if claim.refresh(None).is_ok() {
            holder.renewed(&mut grant, called_us);
        }
    }
    let called_us = holder.now_us();
    if holder.random.percent(85) && claim.release().is_ok() {
        holder.released(&grant, called_us);
    } else {
        // Dropped, lost, or given up without an answer.
        holder.left(&grant);
    }
}
