//! `shared`, `slots` and `sets`: claims that hold beside others, or several resources at once.
//!
//! In:    connections that claim and release at once, over and over. Out: cycles a second, and latencies of claims that may wait.
//! Never: takes the server's word for it: a reader beside the writer, or a slot that two have, is counted as an error.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;

use super::{measure, timed};
use crate::args::Common;
use crate::disk::Disk;
use crate::http::Request;
use crate::load::{Plan, Span};
use crate::names::Names;
use crate::output::Outcome;
use crate::session::Session;
use crate::stats::Op;
use crate::target::Target;

/// After so many cycles as a reader, the first connection writes once.
const READS_PER_WRITE: u32 = 100;
/// Rounds of each size of a set, one after the other.
const SET_ROUNDS: u32 = 4;
/// Claims wait for their turn for as long as this, and no run outlives their ttl.
const WAIT: &str = "?wait=60";
const SHARED: &str = "\",\"ttl\":60.0,\"mode\":\"shared\"}";
const ALONE: &str = "\",\"ttl\":60.0}";

/// Who holds, as the clients see it.
#[derive(Default)]
struct Holders {
    readers: Cell<u32>,
    writers: Cell<u32>,
}

/// Readers of one resource, and a writer now and then.
pub(super) fn shared(common: &Common, disk: Disk) -> Result<Vec<Outcome>> {
    let (names, holders) = (Names::new("shar"), Holders::default());
    let name = names.one();
    let work = async |session: &mut Session<'_>| {
        let mut cycles = 0;
        while let Some(started) = session.next().await? {
            cycles += 1;
            let writes = session.number == 0 && cycles % READS_PER_WRITE == 0;
            let (op, rest, count) = match writes {
                true => (Op::WaitingClaim, ALONE, &holders.writers),
                false => (Op::Claim, SHARED, &holders.readers),
            };
            let Some(path) = session.claim(op, started, &Request::claim(WAIT, &name, rest)).await? else {
                continue;
            };
            count.set(count.get() + 1);
            if holders.writers.get() > 1 || holders.writers.get() == 1 && holders.readers.get() > 0 {
                session.complain(op, 201, "beside a writer");
            }
            let started = session.next_or_now().await?;
            count.set(count.get() - 1);
            session.ask(Op::Release, started, &Request::release(&path), &[204]).await?;
        }
        Ok(())
    };
    let target = Target::of(common)?;
    let outcome = measure(&target, common.connections, &timed("shared", common), disk, &work, |outcome| {
        outcome.rate_of(Op::Claim, "readers per second", "readers/s");
        outcome.rate_of(Op::WaitingClaim, "writers per second", "writers/s");
    })?;
    Ok(vec![outcome])
}

/// One slot of a few, for more clients than there are slots.
pub(super) fn slots(of: u16, common: &Common, disk: Disk) -> Result<Vec<Outcome>> {
    let (names, taken) = (Names::new("slot"), RefCell::new(BTreeSet::new()));
    let name = names.one();
    let rest = format!("\",\"ttl\":60.0,\"take\":1,\"of\":{of}}}");
    let work = async |session: &mut Session<'_>| {
        while let Some(started) = session.next().await? {
            let request = Request::claim(WAIT, &name, &rest);
            let Some(path) = session.claim(Op::WaitingClaim, started, &request).await? else { continue };
            let slot = session.answer().first_number_of(b"\"slots\":").unwrap_or(0);
            if !(1..=u64::from(of)).contains(&slot) || !taken.borrow_mut().insert(slot) {
                session.complain(Op::WaitingClaim, 201, "with a slot that another has");
            }
            let started = session.next_or_now().await?;
            taken.borrow_mut().remove(&slot);
            session.ask(Op::Release, started, &Request::release(&path), &[204]).await?;
        }
        Ok(())
    };
    let target = Target::of(common)?;
    let plan = format!("slots, {of} of them");
    let outcome = measure(&target, common.connections, &timed(&plan, common), disk, &work, |outcome| {
        outcome.rate_of(Op::WaitingClaim, "slots taken per second", "slots/s");
    })?;
    Ok(vec![outcome])
}

/// One of many resources, and three of them at once, in alternating rounds.
pub(super) fn sets(resources: u32, common: &Common, disk: Disk) -> Result<Vec<Outcome>> {
    let target = Target::of(common)?;
    let names = Names::new("sets");
    let length: Duration = common.measured(super::SECONDS) / SET_ROUNDS;
    let mut outcomes = Vec::new();
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..SET_ROUNDS {
        for (rates, size) in rates.iter_mut().zip([1, 3]) {
            let work = async |session: &mut Session<'_>| claim_some(session, &names, size, resources).await;
            let name = if size == 1 { "sets: one resource" } else { "sets: three resources" };
            let plan = Plan { span: Span::Timed(length), ..timed(name, common) };
            outcomes.push(measure(&target, common.connections, &plan, disk, &work, |outcome| {
                rates.push(outcome.row(Op::WaitingClaim).map_or(0.0, |row| row.per_second));
                outcome.rate_of(Op::WaitingClaim, "cycles per second", "cycles/s");
            })?);
        }
    }
    let [one, three] = rates.map(|rates| crate::spread::Spread::of(rates).median);
    if let Some(last) = outcomes.last_mut() {
        last.fact("a set of three costs", one / three, "single claims");
    }
    Ok(outcomes)
}

/// Claims and releases `size` of the resources at a time.
async fn claim_some(session: &mut Session<'_>, names: &Names, size: u64, resources: u32) -> Result<()> {
    let (mut name, mut body) = (String::new(), String::new());
    // Different for every connection, and the same in every run.
    let mut random = 0x9e37_79b9_7f4a_7c15 ^ (session.number as u64 + 1);
    while let Some(started) = session.next().await? {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        body.clear();
        body.push_str(if size == 1 { "{\"resource\":" } else { "{\"resources\":[" });
        for place in 0..size {
            // Apart by a third: never the same resource twice.
            let number = random % u64::from(resources) + place * u64::from(resources / 3);
            names.numbered(number % u64::from(resources), &mut name);
            body.extend([if place > 0 { ",\"" } else { "\"" }, &name, "\""]);
        }
        body.push_str(if size == 1 { ",\"ttl\":60.0}" } else { "],\"ttl\":60.0}" });
        let request = Request::claim_set(WAIT, &body);
        let Some(path) = session.claim(Op::WaitingClaim, started, &request).await? else { continue };
        let started = session.next_or_now().await?;
        session.ask(Op::Release, started, &Request::release(&path), &[204]).await?;
    }
    Ok(())
}
