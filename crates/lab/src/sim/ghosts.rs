//! Clients that ask for a lock, wait for it, and go away before they have it.
//!
//! In:    the locks dialect of nodes that may be cut off. Out: what they left behind once everything is well: nothing.
//! Never: blames a node that died meanwhile: it can't know who was told what. Its waiting requests are withdrawn when it
//!        comes back, or by its leader; a lock that was granted first stays.

use std::collections::BTreeSet;

use leasehold_core::table::{ListFilter, ListPage};
use leasehold_core::{ClaimId, Command, NewClaim, OnBusy, Status};
use leasehold_engine::Engine;
use leasehold_engine::machine::simulated::runtime::{self, now_us, sleep_us};

use super::http::abandoned_request;
use super::world;
use crate::random::Random;

/// How long a node may take to withdraw, once everything is well, what nobody waits for.
const GONE_US: u64 = 15_000_000;

/// Comes and goes until the world stops. Each resource is used once: held for a while by somebody, and asked for by a client
/// that does not stay.
pub(super) async fn come_and_go(mut random: Random) {
    world::with(|world| world.clients_at_work += 1);
    for number in 0.. {
        sleep_us(random.below(400_000)).await;
        if world::with(|world| world.stop) {
            break;
        }
        let resource = format!("ghost{number}");
        let held_us = random.between(200_000, 3_000_000);
        let Some(node) = world::any_node(&mut random) else { continue };
        hold(node, &resource, held_us);
        sleep_us(random.between(20_000, 300_000)).await;
        let Some(node) = world::any_node(&mut random) else { continue };
        let starts = world::with(|world| world.starts.get(&node).map_or(0, |start| start.0));
        let stay_us = random.below(held_us);
        let body = r#"{"title":"ghost","lifetime":3600,"wait":600}"#;
        // One that is answered may know of its lock, and keeps it.
        if abandoned_request(&mut random, node, &format!("/locks/{resource}"), body, stay_us).await {
            world::with(|world| world.ghosts.push((resource, node, starts)));
            world::count("client-gone");
        }
    }
    world::with(|world| world.clients_at_work -= 1);
}

/// Somebody holds the resource for a while.
fn hold(node: u64, resource: &str, held_us: u64) {
    let Some(running) = world::node(node) else { return };
    let id = ClaimId::from_u128(runtime::random());
    let new = NewClaim::new(id, resource, "holder", Some(held_us), OnBusy::Refuse);
    runtime::spawn_on(node, async move {
        running.engine.submit(Command::Claim(new)).await.ok();
    });
}

/// A lock that nobody knows of, if there is one for long after everything was healed.
pub(super) fn left_behind(nodes: &[u64]) -> Option<String> {
    let until_us = now_us() + GONE_US;
    loop {
        let running = nodes.iter().find_map(|node| world::node(*node))?;
        let living = living(&running.engine);
        let ghosts = world::with(|world| {
            let is_same_run = |node: &u64, starts: u64| {
                world.nodes.contains_key(node) && world.starts.get(node).is_some_and(|run| run.0 == starts)
            };
            let ghosts = world.ghosts.iter().filter(|(_, node, starts)| is_same_run(node, *starts));
            ghosts.map(|(resource, node, _)| (resource.clone(), *node)).collect::<Vec<_>>()
        });
        let (resource, node) = ghosts.into_iter().find(|(resource, _)| living.contains(resource))?;
        if now_us() > until_us {
            return Some(format!(
                "{resource} is still there, and its client on node {node} went away long ago"
            ));
        }
        runtime::run_until(now_us() + 200_000);
    }
}

/// Resources that somebody holds or waits for.
fn living(engine: &Engine) -> BTreeSet<String> {
    let mut living = BTreeSet::new();
    for status in [Status::Active, Status::Waiting] {
        let filter = ListFilter { status: Some(status), ..ListFilter::default() };
        let mut page = ListPage::new(0, usize::MAX);
        while !page.done {
            engine.read(|table, now_us| table.list(&filter, &mut page, now_us, 4096));
        }
        living.extend(page.views.iter().map(|view| view.claim.resource.to_string()));
    }
    living
}
