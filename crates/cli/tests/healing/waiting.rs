//! Lock requests that wait on a node which is cut off, or dies: they are answered in time, and leave nothing behind.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use leasehold_lab::cluster::{Cluster, PATIENCE};
use leasehold_lab::http::request;

use crate::support::*;

fn lock_body(wait: u64) -> String {
    format!("{{\"title\": \"a client\", \"lifetime\": 3600, \"wait\": {wait}}}")
}

/// Asks for a lock on a connection that the test can close.
fn waits_for_lock(addr: SocketAddr, resource: &str) -> TcpStream {
    let mut stream = TcpStream::connect(addr).unwrap();
    let body = lock_body(3600);
    let head = format!(
        "POST /locks/{resource} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    stream
}

/// Takes a lock through this node. Tells its path.
fn holds_lock(cluster: &Cluster, node: u64, resource: &str) -> String {
    let reply = cluster.ask(node, "POST", &format!("/locks/{resource}"), &lock_body(0)).unwrap();
    assert_eq!(reply.status, 201, "{reply:?}");
    let location = reply.header("location").unwrap();
    location.splitn(4, '/').nth(3).map(|path| format!("/{path}")).unwrap()
}

/// Says that this node does not lead, or that it does not know what became of something.
fn is_cut_off(cluster: &Cluster, node: u64) -> bool {
    cluster.ask(node, "GET", "/readyz", "").is_ok_and(|reply| reply.status == 503)
}

/// The client goes while its node is cut off. Its place in the queue used to be left to nobody.
#[test]
fn a_client_that_goes_while_its_node_is_cut_off_leaves_the_queue_afterwards() {
    let _alone = alone();
    let cluster = cluster(3, &[]);
    cluster.network.cuts_last();
    let (leader, followers) = roles(&cluster);
    let holder = holds_lock(&cluster, leader, "ghost");
    let waiting = waits_for_lock(cluster.addr(followers[0]), "ghost");
    eventually("the request waits", || count(&cluster, leader, "ghost", "waiting") == 1);
    cluster.isolate(&[followers[0]]);
    eventually("the node is cut off", || is_cut_off(&cluster, followers[0]));
    drop(waiting);
    // The withdrawal is tried by now, in vain: requests that come later are answered.
    let reply = cluster.ask(followers[0], "POST", "/v1/claims/", &claim_body("cut-off")).unwrap();
    assert_eq!(reply.status, 503, "{reply:?}");
    assert_eq!(count(&cluster, leader, "ghost", "waiting"), 1, "nobody can know yet that the client is gone");
    cluster.network.heal();
    eventually("the request is withdrawn", || count(&cluster, leader, "ghost", "waiting") == 0);
    assert_eq!(cluster.ask(leader, "DELETE", &holder, "").unwrap().status, 204);
    holds_lock(&cluster, leader, "ghost");
}

/// The node dies with its clients, and does not come back.
#[test]
fn requests_that_waited_on_a_dead_node_leave_the_queue() {
    let _alone = alone();
    let mut cluster = cluster(3, &[]);
    let (leader, followers) = roles(&cluster);
    let holder = holds_lock(&cluster, leader, "ghost");
    let _waiting = waits_for_lock(cluster.addr(followers[0]), "ghost");
    let on_another = waits_for_lock(cluster.addr(followers[1]), "ghost");
    eventually("both requests wait", || count(&cluster, leader, "ghost", "waiting") == 2);
    cluster.kill(followers[0]).unwrap();
    eventually("the request is withdrawn", || count(&cluster, leader, "ghost", "waiting") == 1);
    assert_eq!(cluster.ask(leader, "DELETE", &holder, "").unwrap().status, 204);
    eventually("the other one holds", || count(&cluster, leader, "ghost", "active") == 1);
    drop(on_another);
}

/// A wait is over when the client said, also where nobody can be asked whether it is.
#[test]
fn a_wait_on_a_node_that_is_cut_off_ends() {
    let _alone = alone();
    let cluster = cluster(3, &[]);
    cluster.network.cuts_last();
    let (leader, followers) = roles(&cluster);
    holds_lock(&cluster, leader, "held");
    let claim = cluster.ask(leader, "POST", "/v1/claims/", &claim_body("held-claim")).unwrap();
    assert_eq!(claim.status, 201);
    let addr = cluster.addr(followers[0]);
    let lock = in_background(addr, "POST", "/locks/held", &lock_body(2));
    let claim = in_background(addr, "POST", "/v1/claims/?wait=2", &claim_body("held-claim"));
    eventually("both wait", || {
        count(&cluster, leader, "held", "waiting") + count(&cluster, leader, "held-claim", "waiting") == 2
    });
    cluster.isolate(&[followers[0]]);
    // Its claim may be granted yet: nobody can say that nothing happened, or that the wait has ended.
    let reply = lock.join().unwrap().expect("a request is answered, whatever becomes of its node");
    assert_eq!(
        (reply.status, reply.json()["type"].as_str()),
        (504, Some("urn:leasehold:problem:outcome-unknown")),
        "{reply:?}"
    );
    // A client that knows its claim's URL can go on asking.
    let reply = claim.join().unwrap().expect("a request is answered, whatever becomes of its node");
    assert_eq!(reply.status, 202, "{reply:?}");
    cluster.network.heal();
    eventually("the lock's request is withdrawn", || count(&cluster, leader, "held", "waiting") == 0);
    assert_eq!(count(&cluster, leader, "held-claim", "waiting"), 1);
    // On a node that reaches its cluster a wait ends as it always did.
    let reply = request(cluster.addr(leader), "POST", "/locks/held", &lock_body(1), PATIENCE).unwrap();
    assert_eq!(reply.status, 408, "{reply:?}");
}
