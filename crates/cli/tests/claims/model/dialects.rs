//! What the other dialects see of claims that share, take slots or belong to a set, and what they can't change.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::{granted, queued, release};
use crate::common::{PATIENCE, Server};
use serde_json::json;

const REDIS: [&str; 2] = ["--redis-listen", "127.0.0.1:0"];

/// The reply to one command of a Redis client.
fn redis(addr: SocketAddr, command: &str) -> String {
    let mut socket = TcpStream::connect(addr).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let (mut reply, mut byte) = (String::new(), [0]);
    while !reply.ends_with("\r\n") {
        socket.read_exact(&mut byte).unwrap();
        reply.push(byte[0].into());
    }
    reply.trim_end().to_string()
}

#[test]
fn leases_are_refused_by_readers_and_reservations_and_end_neither() {
    let server = Server::start();
    let lease = "/v1/ns/leases/x";
    let ask = |method: &str| {
        server.ask(method, lease, &[("X-Quorum-Client-ID", "me"), ("Accept", "application/json")], "").reply()
    };
    let (first, _) = granted(&server, json!({"resource": "ns/leases/x", "mode": "shared"}));
    let (second, _) =
        granted(&server, json!({"resources": ["elsewhere", {"resource": "ns/leases/x", "mode": "shared"}]}));
    assert_eq!(ask("POST").status, 409);
    let seen = ask("GET");
    assert_eq!(seen.status, 200);
    let seen = seen.json();
    assert_eq!(
        (&seen["key"], seen["other_holders"].as_array().unwrap().len()),
        (&"ns/leases/x".into(), 1),
        "{seen}"
    );
    let text = server.ask("GET", lease, &[("Accept", "text/plain")], "").reply().text();
    assert!(text.contains("also held by"), "{text}");
    for method in ["PUT", "DELETE"] {
        let reply = ask(method);
        assert_eq!(reply.status, 409, "{method}: {reply:?}");
    }
    let list = server.get("/v1/ns/leases/list").json();
    assert_eq!(list["leases"][0]["key"], "ns/leases/x", "{list}");
    assert_eq!(list["leases"].as_array().unwrap().len(), 1);
    release(&server, &first);
    // The set holds on, of which the lease is not the first item.
    assert_eq!(ask("GET").json()["key"], "ns/leases/x");
    let list = server.get("/v1/ns/leases/list").json();
    assert_eq!(list["leases"][0]["key"], "ns/leases/x", "not the name of the set's first item: {list}");
    release(&server, &second);
    // Reserved: a set that waits for another resource came first.
    let other = server.claim("other", 600.0);
    let (set, _) = queued(&server, json!({"resources": ["ns/leases/x", "other"]}));
    let refused = server.ask("POST", lease, &[("X-Quorum-Client-ID", "me")], "").reply();
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.text().contains("came first"), "{refused:?}");
    assert_eq!(server.patch(&set, r#"{"status": "withdrawn"}"#).status, 204);
    release(&server, &other);
    assert_eq!(ask("POST").status, 201);
}

#[test]
fn locks_are_refused_and_administrators_end_only_what_is_alone() {
    let server = Server::start();
    let lock = |wait: u32| {
        server.post("/locks/R1", &format!("{{\"title\": \"t\", \"lifetime\": 60, \"wait\": {wait}}}"))
    };
    let (path, claim) = granted(&server, json!({"resources": ["R2", {"resource": "R1", "mode": "shared"}]}));
    granted(&server, json!({"resource": "R1", "mode": "shared"}));
    assert_eq!(lock(0).status, 408, "held by others until the wait was over");
    let seen = server.get("/resources/R1").json();
    assert_eq!(seen["_embedded"]["locks"].as_array().unwrap().len(), 2, "both holders: {seen}");
    let id = path.trim_end_matches('/').rsplit('/').next().unwrap();
    let one = server.get(&format!("/locks/R1/{id}"));
    assert_eq!((one.status, &one.json()["_links"]["self"]["href"]), (200, &format!("/locks/R1/{id}").into()));
    let token = claim["items"][1]["token"].to_string();
    assert_eq!(one.header("leasehold-token"), Some(token.as_str()), "the token on this resource");
    for path in ["/resources/R1", "/resources", &format!("/locks/R1/{id}")] {
        let reply = server.ask("DELETE", path, &[], "").reply();
        assert_eq!((reply.status, reply.problem().as_str()), (409, "not-alone"), "{path}: {reply:?}");
    }
    assert_eq!(server.status(&path), "active");
    // What is alone ends all the same.
    server.claim("R3", 600.0);
    let reply = server.ask("DELETE", "/resources", &[], "").reply();
    assert_eq!((reply.status, &reply.json()["resources"]), (409, &json!(["R1", "R2"])));
    assert!(server.list("resource=R3&status=active").is_empty());
}

#[test]
fn typed_locks_are_refused_as_held_and_unlock_nothing_of_a_set() {
    let server = Server::start();
    let call = |what: &str, rest: &str| {
        let body = format!("{{\"ids\": [\"t\"], \"hostname\": \"h\", \"owner\": 1{rest}}}");
        let reply = server.post(&format!("/v1/dss/media/{what}"), &body);
        (reply.status, reply.json()["locks"][0]["errno"].as_str().unwrap_or("").to_string())
    };
    let (path, set) =
        granted(&server, json!({"resources": ["x", {"resource": "dss/media/t", "mode": "shared"}]}));
    assert_eq!(call("lock", ""), (409, "EEXIST".into()));
    assert_eq!(call("refresh", ""), (403, "EACCES".into()));
    assert_eq!(call("unlock", ", \"force\": true"), (403, "EACCES".into()));
    let seen = server.post("/v1/dss/media/status", r#"{"ids": ["t"]}"#).json();
    assert_eq!(seen["locks"][0]["token"], set["items"][1]["token"], "the token on this resource: {seen}");
    assert_eq!(server.status(&path), "active");
    release(&server, &path);
    let holder = server.claim("x", 600.0);
    queued(&server, json!({"resources": ["dss/media/t", "x"]}));
    assert_eq!(call("lock", ""), (409, "EEXIST".into()), "reserved by the set");
    release(&server, &holder);
}

#[test]
fn redis_clients_see_a_key_that_is_held_and_can_t_end_it() {
    let server = Server::start_with(&REDIS);
    let addr = server.other_addrs[0];
    let (path, _) = granted(&server, json!({"resource": "k", "mode": "shared"}));
    assert_eq!(redis(addr, "SET k v NX PX 60000"), "$-1", "held by another");
    assert_eq!(redis(addr, "EXISTS k"), ":1");
    for command in ["DEL k", "PEXPIRE k 1000"] {
        let reply = redis(addr, command);
        assert!(reply.starts_with("-ERR"), "{command}: {reply}");
    }
    release(&server, &path);
    let holder = server.claim("x", 600.0);
    queued(&server, json!({"resources": ["k", "x"]}));
    assert_eq!(redis(addr, "SET k v NX PX 60000"), "$-1", "reserved by a set that came first");
    release(&server, &holder);
}

#[test]
fn what_other_dialects_take_is_exclusive() {
    let server = Server::start();
    assert_eq!(server.post("/locks/R1", r#"{"title": "t", "lifetime": 60, "wait": 0}"#).status, 201);
    let (waiting, claim) = queued(&server, json!({"resource": "R1", "mode": "shared"}));
    assert_eq!(claim["position"], 1);
    let reply = server.ask("DELETE", "/resources/R1", &[], "").reply();
    assert_eq!(reply.status, 409, "a reader waits there: {reply:?}");
    assert_eq!(server.patch(&waiting, r#"{"status": "withdrawn"}"#).status, 204);
    assert_eq!(server.ask("DELETE", "/resources/R1", &[], "").reply().status, 204);
}
