//! Certain or unknown: nil means "held by another" to these clients, so a node that can't know says so.

use crate::common::eventually;
use crate::support::{REDIS, Resp, port_of};
use crate::trio::Trio;

#[test]
fn a_node_without_a_leader_says_try_again_and_never_nil() {
    let mut trio = Trio::start_with(&REDIS);
    let ports = [0, 1, 2].map(|node| port_of(&trio.nodes[node]));
    for (number, port) in ports.iter().enumerate() {
        let mut redis = Resp::connect(*port);
        eventually("every node serves", || redis.ask(&format!("SET own/{number} v NX PX 600000")) == "+OK");
        assert_eq!(redis.ask(&format!("SET own/{number} w NX PX 600000")), "nil");
        // What one node granted every node shows.
        let mut next = Resp::connect(ports[(number + 1) % 3]);
        assert_eq!(next.ask(&format!("GET own/{number}")), "\"v\"");
        assert_eq!(next.ask(&format!("SET own/{number} w NX PX 600000")), "nil");
    }
    let (one, rest) = trio.nodes.split_first_mut().unwrap();
    rest.iter_mut().for_each(crate::common::Server::kill);
    let port = port_of(one);
    std::thread::scope(|scope| {
        for command in [
            "SET own/0 w NX PX 600000",
            "SET free w NX PX 600000",
            "GET free",
            "GET own/0",
            "TTL free",
            "PTTL own/0",
            "PEXPIRE own/0 1000",
            "DEL own/0",
            "DELIFEQ own/0 v",
            "DELEX own/0 IFEQ v",
            "EXISTS own/0",
            "LEASEHOLD.TOKEN own/0 w",
            // The release and the extension of redis-py, and redlock's several keys at once.
            "EVALSHA c3f8721cbb97f72bc19e972846bd7aaf91901658 1 own/0 w",
            "EVALSHA 1cac51482acf5858da00f6d685d68f886cd6b6b2 1 own/0 w 9000",
            "EVALSHA 96da70f7716f27d278a5218544df37fd8b0a5e4c 2 free own/0 w 9000",
        ] {
            scope.spawn(move || {
                let reply = Resp::connect(port).ask(command);
                assert!(reply.starts_with("-TRYAGAIN"), "{command}: {reply}");
            });
        }
    });
    rest.iter_mut().for_each(crate::common::Server::restart);
    let mut redis = Resp::connect(port);
    eventually("a majority is back, and nothing is lost", || redis.ask("GET own/2") == "\"v\"");
}

#[test]
fn nodes_that_are_listed_as_masters_are_recognised() {
    let trio = Trio::start_with(&REDIS);
    let value = "0123456789abcdef0123456789abcdef";
    let [first, second] = [0, 1].map(|node| port_of(&trio.nodes[node]));
    eventually("the first node grants it", || {
        Resp::connect(first).ask(&format!("SET crowd {value} NX PX 600000")) == "+OK"
    });
    // It is not held by another: the same client asks again, here or after a lost answer.
    let again = Resp::connect(second).ask(&format!("SET crowd {value} NX PX 600000"));
    assert!(again.starts_with("-TRYAGAIN the key is held with this very value"), "{again}");
    assert_eq!(Resp::connect(second).ask("SET crowd fedcba9876543210fedcba9876543210 NX"), "nil");
    // The name of a machine may be the value of two programs on it.
    assert_eq!(Resp::connect(first).ask("SET named worker-on-this-machine NX PX 600000"), "+OK");
    assert_eq!(Resp::connect(second).ask("SET named worker-on-this-machine NX PX 600000"), "nil");
    let log = trio.nodes[1].logged();
    assert!(log.contains("a Redlock client must be given one address"), "{log}");
}
