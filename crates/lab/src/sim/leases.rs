//! One client that takes leases and lets go of them over HTTP, and looks at them on any node in between.
//!
//! In:    the leases dialect of nodes that may be down. Out: a violation where a read shows what is over.
//! Never: shares a lease with anybody: what it was told is what every later read must show.

use leasehold_engine::machine::simulated::runtime::sleep_us;

use super::http::{Said, request};
use super::world;
use crate::random::Random;

/// A namespace that once was taken for a call about the cluster, which needs no new table.
const LEASES: &str = "/v1/cluster-of-leases/leases";
/// A lease holds without renewal for longer than a run.
const CLIENT: &str = "X-Quorum-Client-ID: the-only-client\r\nX-Quorum-Lease-Length: 3600\r\n";

/// Takes leases and lets go of them until the world stops.
pub(super) async fn use_some(mut random: Random) {
    world::with(|world| world.clients_at_work += 1);
    let mut name = 0;
    while !world::with(|world| world.stop) {
        let path = format!("{LEASES}/master{name}");
        for (method, held) in [("POST", true), ("DELETE", false)] {
            let said = request(&mut random, method, &path, CLIENT, "").await;
            if !said.is_some_and(|said| (200..300).contains(&said.status)) {
                // It may yet happen: nothing can be said about this lease any more.
                name += 1;
                break;
            }
            look(&mut random, &path, held).await;
            sleep_us(random.below(200_000)).await;
        }
        sleep_us(20_000).await;
    }
    world::with(|world| world.clients_at_work -= 1);
}

/// Reads the lease a few times: it is held, or not.
async fn look(random: &mut Random, path: &str, held: bool) {
    for _ in 0..random.below(4) {
        let Some(Said { status, .. }) = request(random, "GET", path, "", "").await else { continue };
        world::count("lease-read");
        let seen = match status {
            200 | 204 => true,
            404 => false,
            _ => continue,
        };
        if seen != held {
            world::violate(format!("stale lease: a read said {status}, and whether it is held is {held}"));
        }
    }
}
