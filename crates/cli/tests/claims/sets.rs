//! What callers are told of claims that share, take slots, or take several resources.

use serde_json::{Value, json};

use crate::common::{Server, eventually};

fn made(server: &Server, body: &Value, status: u16) -> String {
    let reply = server.post("/v1/claims/", &body.to_string());
    assert_eq!(reply.status, status, "{reply:?}");
    reply.location_path()
}

fn slots(server: &Server, take: u64, host: &str, status: u16) -> String {
    let body = json!({"resource": "boards", "take": take, "of": 3, "ttl": 600, "user_data": {"host": host}});
    made(server, &body, status)
}

#[test]
fn a_client_that_dies_in_the_middle_of_its_wait_does_not_count_as_asking() {
    let server = Server::start();
    server.claim("held", 600.0);
    let waiting = made(&server, &json!({"resources": ["held", "free"], "ttl": 1}), 202);
    let request = server.ask("PATCH", &format!("{waiting}?wait=300"), &[], r#"{"status": "active"}"#);
    let seen = || server.list("resource=free")[0].clone();
    eventually("an open request keeps it waiting for longer than its ttl", || {
        assert_eq!(seen()["status"], "waiting");
        seen()["waiting_duration"].as_f64() > Some(3.0)
    });
    drop(request);
    eventually("nobody asks any more", || seen()["status"] == "withdrawn");
}

#[test]
fn what_blocks_a_claim_is_the_one_that_leaves_no_slot() {
    let server = Server::start();
    slots(&server, 1, "one", 201);
    slots(&server, 3, "all", 202);
    let third = slots(&server, 1, "third", 202);
    let told = server.patch(&third, r#"{"status": "active"}"#);
    assert_eq!(told.status, 409);
    // Two slots are free, and reserved for the one who wants all of them.
    assert_eq!(told.json()["holder"]["user_data"]["host"], "all", "{told:?}");
    let queue = server.get("/v1/resources/boards").json()["queue"].clone();
    assert!(queue[0]["behind"].to_string().contains("one"), "{queue}");
    assert!(queue[1]["behind"].to_string().contains("all"), "{queue}");
}

#[test]
fn readers_behind_a_writer_all_wait_for_the_writer() {
    let server = Server::start();
    let reader =
        |host: &str| json!({"resource": "r", "mode": "shared", "ttl": 600, "user_data": {"host": host}});
    made(&server, &reader("first"), 201);
    made(&server, &json!({"resource": "r", "ttl": 600, "user_data": {"host": "writer"}}), 202);
    made(&server, &reader("second"), 202);
    made(&server, &reader("third"), 202);
    let queue = server.get("/v1/resources/r").json()["queue"].clone();
    for (place, host) in [(0, "first"), (1, "writer"), (2, "writer")] {
        assert!(queue[place]["behind"].to_string().contains(host), "{place}: {queue}");
    }
}

#[test]
fn a_refusal_names_the_resource_that_was_asked_for() {
    let server = Server::start();
    made(&server, &json!({"resources": ["x1", "x2"], "ttl": 600}), 201);
    let reply = server.ask("DELETE", "/resources/x2", &[], "").reply();
    assert_eq!(reply.status, 409);
    let detail = reply.json()["detail"].to_string();
    assert!(detail.contains("x2") && !detail.contains("x1"), "{detail}");
}

#[test]
fn limits_show_what_is_counted() {
    let server = Server::start();
    let items: Vec<String> = (0..10).map(|number| format!("item/{number}")).collect();
    made(&server, &json!({"resources": items, "ttl": 600}), 201);
    assert_eq!(server.get("/v1/limits").json()["claims"]["total"]["used"], 10);
}
