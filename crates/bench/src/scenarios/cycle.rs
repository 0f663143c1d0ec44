//! `cycle`: claim and release a resource of one's own, over and over.
//!
//! In:    nothing but the connections. Out: latencies of claims and releases; two durable changes a cycle.
//! Never: two connections on one resource, so that nothing ever waits.

use anyhow::Result;

use crate::http::Request;
use crate::names::Names;
use crate::session::Session;
use crate::stats::Op;

/// What follows the name of the resource in a claim. No run outlives this ttl, so that expiry plays no part.
const REST: &str = "\",\"ttl\":60.0}";

/// Cycles until time is up, or until `goes_on` says no. The requests are counted as `ops`.
pub(super) async fn cycle(
    session: &mut Session<'_>,
    names: &Names,
    ops: (Op, Op),
    goes_on: impl Fn() -> bool,
) -> Result<()> {
    let mut name = String::new();
    while goes_on()
        && let Some(started) = session.next().await?
    {
        names.fresh(&mut name);
        let Some(path) = session.claim(ops.0, started, &Request::claim("", &name, REST)).await? else {
            continue;
        };
        let started = session.next_or_now().await?;
        session.ask(ops.1, started, &Request::release(&path), &[204]).await?;
    }
    Ok(())
}
