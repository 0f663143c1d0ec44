//! A read on a follower shows everything that any node has acknowledged before it, also while the follower is behind.

use std::time::Duration;

use leasehold_lab::proxy::Passage;

use crate::support::*;

/// How much later a follower hears of what its leader and the other follower have agreed on.
const BEHIND: Duration = Duration::from_millis(300);

/// `GET` of a lease used to look at the nearest table without asking the leader: nearly every read right after a write was
/// stale.
#[test]
fn a_follower_that_is_behind_shows_what_was_acknowledged() {
    let _alone = alone();
    // Slow heartbeats: a leader that is heard late is not taken for one that is gone.
    let cluster = cluster(3, &["--heartbeat-ms", "2000"]);
    let (leader, followers) = roles(&cluster);
    serves(&cluster, followers[0], "before");
    cluster.network.set(leader, followers[0], Passage { cut: false, delay: BEHIND });
    for round in 0..5 {
        let lease = format!("/v1/team/leases/read-{round}");
        let made = cluster.ask(leader, "POST", &lease, "").unwrap();
        assert_eq!(made.status, 201, "{made:?}");
        let read = cluster.ask(followers[0], "GET", &lease, "").unwrap();
        assert_eq!(read.status, 200, "a lease that was acknowledged is not shown: {read:?}");

        let resource = format!("read-{round}");
        let made = cluster.ask(leader, "POST", "/v1/claims/", &claim_body(&resource)).unwrap();
        assert_eq!(made.status, 201, "{made:?}");
        assert_eq!(
            count(&cluster, followers[0], &resource, "active"),
            1,
            "a claim that was acknowledged is not shown"
        );
    }
    cluster.network.heal();
}
