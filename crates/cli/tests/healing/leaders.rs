//! A leader that goes, and what is said of the leader that was.

use crate::support::*;

/// A leader that stops used to hand over to the member with the highest number among those with the whole log, dead or
/// not, and waited for it in vain.
#[test]
fn a_leader_that_stops_hands_over_to_a_node_that_is_there() {
    let _alone = alone();
    let mut cluster = cluster(3, &[]);
    let (leader, followers) = roles(&cluster);
    let (alive, dead) = (followers[0], followers[1]);
    // Nothing is held, so no time is stamped: both followers have the whole log, also the one that is dead.
    cluster.converge().unwrap();
    cluster.kill(dead).unwrap();
    missed(&cluster, leader, dead, 1000);
    cluster.terminate(leader).unwrap();
    let log = cluster.log(leader);
    assert!(!log.contains("could not be handed over"), "{log}");
    let elected = format!("there is a leader leader=Some({alive})");
    assert!(cluster.log(alive).contains(&elected), "{}", cluster.log(alive));
    cluster.spawn(leader).unwrap();
    serves(&cluster, alive, "after");
}
