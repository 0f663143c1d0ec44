//! The typed locks over HTTP: each policy and each error, against a real server.

use crate::common::{Reply, Server};
use serde_json::{Value, json};

/// A caller: a process on a host.
#[derive(Clone, Copy)]
struct Caller(&'static str, i32);

const ALICE: Caller = Caller("node1", 100);
const BOB: Caller = Caller("node2", 100);

fn call(server: &Server, kind: &str, verb: &str, body: &Value) -> Reply {
    server.post(&format!("/v1/dss/{kind}/{verb}"), &body.to_string())
}

fn body(ids: &[&str], caller: Caller) -> Value {
    json!({ "ids": ids, "hostname": caller.0, "owner": caller.1 })
}

fn lock(server: &Server, ids: &[&str], caller: Caller) -> Reply {
    call(server, "media", "lock", &body(ids, caller))
}

fn refresh(server: &Server, ids: &[&str], caller: Caller) -> Reply {
    call(server, "media", "refresh", &body(ids, caller))
}

fn unlock(server: &Server, ids: &[&str], caller: Caller) -> Reply {
    call(server, "media", "unlock", &body(ids, caller))
}

fn status(server: &Server, ids: &[&str]) -> Reply {
    call(server, "media", "status", &json!({ "ids": ids }))
}

/// HTTP status, the call's errno, and each lock's.
fn errnos(reply: &Reply) -> (u16, Value, Vec<Value>) {
    let answer = reply.json();
    let locks = answer["locks"].as_array().unwrap_or_else(|| panic!("no locks: {answer}"));
    (reply.status, answer["errno"].clone(), locks.iter().map(|lock| lock["errno"].clone()).collect())
}

fn ok(count: usize) -> (u16, Value, Vec<Value>) {
    (200, Value::Null, vec![Value::Null; count])
}

#[test]
fn a_lock_is_seen_with_its_owner_refreshed_and_unlocked() {
    let server = Server::start();
    let locked = lock(&server, &["t1", "t2"], ALICE);
    assert_eq!(errnos(&locked), ok(2));
    let seen = status(&server, &["t2", "t1"]);
    assert_eq!(errnos(&seen), ok(2));
    let lock = &seen.json()["locks"][0];
    assert_eq!(
        (&lock["id"], &lock["hostname"], &lock["owner"]),
        (&json!("t2"), &json!("node1"), &json!(100))
    );
    assert!(lock["token"].as_u64().unwrap() > 0);
    let timestamp = lock["timestamp"].as_str().unwrap();
    let shape: String = timestamp.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000000Z");
    assert_eq!(errnos(&unlock(&server, &["t1", "t2"], ALICE)), ok(2));
    assert_eq!(
        errnos(&status(&server, &["t1", "t2"])),
        (404, json!("ENOLCK"), vec![json!("ENOLCK"), json!("ENOLCK")])
    );
}

#[test]
fn a_lock_is_all_or_nothing() {
    let server = Server::start();
    assert_eq!(errnos(&lock(&server, &["b"], BOB)), ok(1));
    let refused = lock(&server, &["a", "b", "c"], ALICE);
    assert_eq!(errnos(&refused), (409, json!("EEXIST"), vec![Value::Null, json!("EEXIST"), Value::Null]));
    assert_eq!(refused.json()["locks"][1]["hostname"], "node2");
    assert!(refused.json()["message"].as_str().unwrap().contains("\"b\""));
    let left = status(&server, &["a", "b", "c"]);
    assert_eq!(errnos(&left), (404, json!("ENOLCK"), vec![json!("ENOLCK"), Value::Null, json!("ENOLCK")]));
    // Its own lock stands in its owner's way too.
    assert_eq!(errnos(&lock(&server, &["b"], BOB)).1, json!("EEXIST"));
}

#[test]
fn the_same_id_twice_in_one_lock_is_eexist_and_locks_nothing() {
    let server = Server::start();
    let refused = lock(&server, &["a", "b", "a"], ALICE);
    assert_eq!(errnos(&refused), (409, json!("EEXIST"), vec![Value::Null, Value::Null, json!("EEXIST")]));
    assert_eq!(errnos(&status(&server, &["a"])).1, json!("ENOLCK"));
}

#[test]
fn types_are_apart_and_all_five_exist() {
    let server = Server::start();
    for kind in ["media", "device", "object", "layout", "deprec"] {
        assert_eq!(errnos(&call(&server, kind, "lock", &body(&["same"], ALICE))), ok(1), "{kind}");
    }
    assert_eq!(errnos(&call(&server, "layout", "lock", &body(&["same"], BOB))).1, json!("EEXIST"));
}

#[test]
fn a_refresh_does_as_much_as_possible_and_timestamps_grow() {
    let server = Server::start();
    lock(&server, &["mine", "also-mine"], ALICE);
    lock(&server, &["his"], BOB);
    let stamps = |reply: &Reply| -> Vec<String> {
        let locks = reply.json()["locks"].as_array().unwrap().clone();
        locks.iter().map(|lock| lock["timestamp"].as_str().unwrap_or("").to_string()).collect()
    };
    let mut before = stamps(&status(&server, &["mine", "his", "also-mine"]));
    for _ in 0..20 {
        let refreshed = refresh(&server, &["mine", "his", "gone", "also-mine"], ALICE);
        let fates = vec![Value::Null, json!("EACCES"), json!("ENOLCK"), Value::Null];
        assert_eq!(errnos(&refreshed), (403, json!("EACCES"), fates));
        let after = stamps(&status(&server, &["mine", "his", "also-mine"]));
        assert!(
            after[0] > before[0] && after[1] == before[1] && after[2] > before[2],
            "{before:?} {after:?}"
        );
        before = after;
    }
    assert_eq!(errnos(&refresh(&server, &["gone", "his"], ALICE)).1, json!("ENOLCK"));
}

#[test]
fn an_unlock_does_as_much_as_possible_and_force_overrides_the_owner() {
    let server = Server::start();
    lock(&server, &["mine"], ALICE);
    lock(&server, &["his"], BOB);
    let unlocked = unlock(&server, &["gone", "his", "mine"], ALICE);
    let fates = vec![json!("ENOLCK"), json!("EACCES"), Value::Null];
    assert_eq!(errnos(&unlocked), (404, json!("ENOLCK"), fates));
    assert_eq!(unlocked.json()["locks"][1]["hostname"], "node2");
    assert_eq!(errnos(&status(&server, &["mine"])).1, json!("ENOLCK"));
    assert_eq!(errnos(&status(&server, &["his"])), ok(1));
    let mut by_force = body(&["his"], ALICE);
    by_force["force"] = json!(true);
    assert_eq!(errnos(&call(&server, "media", "unlock", &by_force)), ok(1));
    assert_eq!(errnos(&call(&server, "media", "unlock", &by_force)).1, json!("ENOLCK"));
    // The same id twice: once, and then it is not there.
    lock(&server, &["mine"], ALICE);
    assert_eq!(errnos(&unlock(&server, &["mine", "mine"], ALICE)).2, vec![Value::Null, json!("ENOLCK")]);
}

#[test]
fn hostname_and_pid_must_both_match() {
    let server = Server::start();
    lock(&server, &["a"], ALICE);
    for stranger in [BOB, Caller("node1", 101), Caller("node1:100", 100)] {
        assert_eq!(errnos(&unlock(&server, &["a"], stranger)).1, json!("EACCES"));
        assert_eq!(errnos(&refresh(&server, &["a"], stranger)).1, json!("EACCES"));
    }
    lock(&server, &["colons"], Caller("a:b:c", 7));
    let seen = status(&server, &["colons"]).json();
    assert_eq!((&seen["locks"][0]["hostname"], &seen["locks"][0]["owner"]), (&json!("a:b:c"), &json!(7)));
}

#[test]
fn what_makes_no_sense_is_einval_in_the_same_shape_and_locks_nothing() {
    let server = Server::start();
    let good = body(&["a"], ALICE);
    let without = |field: &str| {
        let mut body = good.clone();
        body.as_object_mut().unwrap().remove(field);
        body.to_string()
    };
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body.to_string()
    };
    let bad = [
        String::new(),
        "{".into(),
        "[]".into(),
        "null".into(),
        without("ids"),
        without("hostname"),
        without("owner"),
        with("ids", json!([])),
        with("ids", json!("a")),
        with("ids", json!(["a", 1])),
        with("ids", json!([null])),
        with("hostname", json!("")),
        with("hostname", json!(1)),
        with("hostname", json!("h".repeat(256))),
        with("owner", json!("100")),
        with("owner", json!(1.5)),
        with("owner", json!(1_u64 << 40)),
        with("owner", Value::Null),
        with("ttl", json!(0)),
        with("ttl", json!("1")),
        with("call", json!("short")),
        with("ids", json!(vec!["x"; 20_001])),
        with("forse", json!(true)),
    ];
    for verb in ["lock", "refresh", "unlock"] {
        for body in &bad {
            let reply = server.post(&format!("/v1/dss/media/{verb}"), body);
            assert_eq!(errnos(&reply), (400, json!("EINVAL"), vec![]), "{verb} {:.100}", body);
            assert!(!reply.json()["message"].as_str().unwrap().is_empty());
        }
    }
    assert_eq!(errnos(&server.post("/v1/dss/media/status", r#"{"ids": []}"#)).1, json!("EINVAL"));
    for kind in ["tape", "Media", "", "media%20"] {
        let reply = call(&server, kind, "lock", &good);
        assert_eq!(errnos(&reply), (400, json!("EINVAL"), vec![]), "{kind}");
    }
    assert_eq!(errnos(&status(&server, &["a"])).1, json!("ENOLCK"));
}

#[test]
fn other_paths_and_methods_are_told_so() {
    let server = Server::start();
    for path in ["/v1/dss/media/grab", "/v1/dss/media", "/v1/dss/", "/v1/dss/media/lock/x"] {
        assert_eq!(server.post(path, "{}").status, 404, "{path}");
    }
    let reply = server.get("/v1/dss/media/lock");
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
    assert_eq!(errnos(&server.post("/v1/dss/media/lock/", &body(&["a"], ALICE).to_string())), ok(1));
}

#[test]
fn an_id_is_any_string_that_fits_into_a_name() {
    let server = Server::start();
    let longest = "x".repeat(2048);
    let ids = ["", " ", "a/b/c", "/", "日本/テープ", "a\"b\\c\n\u{0}", "..", &longest];
    assert_eq!(errnos(&lock(&server, &ids, ALICE)), ok(ids.len()));
    let seen = status(&server, &ids).json();
    let names: Vec<&str> =
        seen["locks"].as_array().unwrap().iter().map(|l| l["id"].as_str().unwrap()).collect();
    assert_eq!(names, ids);
    let too_long = format!("{longest}x");
    let refused = lock(&server, &["fine", &too_long], ALICE);
    assert_eq!(errnos(&refused), (400, json!("EINVAL"), vec![Value::Null, json!("EINVAL")]));
    // The others are still looked at where as much as possible is done.
    let unlocked = unlock(&server, &[&too_long, "", "fine"], ALICE);
    assert_eq!(
        errnos(&unlocked),
        (400, json!("EINVAL"), vec![json!("EINVAL"), Value::Null, json!("ENOLCK")])
    );
}

#[test]
fn ten_thousand_ids_go_through_every_call() {
    let server = Server::start();
    let names: Vec<String> = (0..10_000).map(|i| format!("library/drawer-{}/tape-{i:06}", i % 100)).collect();
    let ids: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(errnos(&lock(&server, &ids, ALICE)), ok(10_000));
    assert_eq!(errnos(&status(&server, &ids)), ok(10_000));
    assert_eq!(errnos(&refresh(&server, &ids, ALICE)), ok(10_000));
    let (http, errno, fates) = errnos(&lock(&server, &[&["new"], &ids[5_000..]].concat(), BOB));
    assert_eq!((http, errno), (409, json!("EEXIST")));
    assert_eq!(fates.iter().position(|errno| *errno == "EEXIST"), Some(1));
    assert_eq!(errnos(&unlock(&server, &ids, ALICE)), ok(10_000));
    let (http, errno, fates) = errnos(&status(&server, &ids));
    assert_eq!((http, errno, fates.len()), (404, json!("ENOLCK"), 10_000));
}

#[test]
fn a_body_beyond_all_reason_is_413() {
    let server = Server::start();
    // Only announced: the server answers without waiting for what it would throw away.
    let mut client = server.client();
    let head =
        format!("POST /v1/dss/media/lock HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", (8 << 20) + 1);
    client.send_raw(head.as_bytes());
    let reply = client.read_reply("POST").unwrap();
    assert_eq!(reply.status, 413);
}

#[test]
fn locks_outlive_a_restart_and_have_no_ttl_unless_it_is_asked_for() {
    let mut server = Server::start();
    lock(&server, &["forever"], ALICE);
    let mut short = body(&["short"], ALICE);
    short["ttl"] = json!(0.2);
    assert_eq!(errnos(&call(&server, "media", "lock", &short)), ok(1));
    assert_eq!(errnos(&lock(&server, &["short"], BOB)).1, json!("EEXIST"));
    crate::common::eventually("the lock with a ttl expires", || {
        errnos(&status(&server, &["short"])).1 == json!("ENOLCK")
    });
    assert_eq!(errnos(&unlock(&server, &["short"], ALICE)).1, json!("ENOLCK"));
    assert_eq!(errnos(&lock(&server, &["short"], BOB)), ok(1));
    server.restart();
    assert_eq!(errnos(&status(&server, &["forever", "short"])), ok(2));
    assert_eq!(errnos(&unlock(&server, &["forever"], ALICE)), ok(1));
}

#[test]
fn a_lock_call_sent_again_is_the_same_call() {
    let server = Server::start();
    let mut first = body(&["a", "b"], ALICE);
    first["call"] = json!("5f1d2c3b4a596877");
    let locked = call(&server, "media", "lock", &first).json();
    let again = call(&server, "media", "lock", &first).json();
    assert_eq!(locked, again);
    // Another call of the same owner is not.
    let mut other = first.clone();
    other["call"] = json!("5f1d2c3b4a596878");
    assert_eq!(errnos(&call(&server, "media", "lock", &other)).1, json!("EEXIST"));
    // Sent again after a part was lost: the rest goes too, and the answer says so.
    unlock(&server, &["b"], ALICE);
    let lost = call(&server, "media", "lock", &first);
    assert_eq!(errnos(&lost), (404, json!("ENOLCK"), vec![Value::Null, json!("ENOLCK")]));
    assert_eq!(errnos(&status(&server, &["a", "b"])).2, vec![json!("ENOLCK"), json!("ENOLCK")]);
}

#[test]
fn an_unlock_call_sent_again_does_not_touch_what_was_locked_since() {
    let server = Server::start();
    lock(&server, &["a", "b"], ALICE);
    let mut first = body(&["a", "b", "a", "gone"], ALICE);
    first["call"] = json!("77777777-aaaa-bbbb");
    let unlocked = call(&server, "media", "unlock", &first);
    let fates = vec![Value::Null, Value::Null, json!("ENOLCK"), json!("ENOLCK")];
    assert_eq!(errnos(&unlocked), (404, json!("ENOLCK"), fates.clone()));
    // Another thread of the same process locks it, and many times over.
    for _ in 0..3 {
        lock(&server, &["a"], ALICE);
        unlock(&server, &["a"], ALICE);
    }
    lock(&server, &["a"], ALICE);
    first["retry"] = json!(true);
    assert_eq!(errnos(&call(&server, "media", "unlock", &first)).2[..2], fates[..2]);
    // The third place names the lock that is held now, and has not been done before.
    first["ids"] = json!(["a", "b"]);
    lock(&server, &["a"], ALICE);
    assert_eq!(errnos(&call(&server, "media", "unlock", &first)), ok(2));
    assert_eq!(errnos(&status(&server, &["a"])), ok(1));
}

#[test]
fn a_typed_lock_is_a_claim_like_any_other() {
    let server = Server::start();
    lock(&server, &["t1"], ALICE);
    let waiting = server.claim("dss/media/t1", 30.0);
    assert_eq!(server.status(&waiting), "waiting");
    unlock(&server, &["t1"], ALICE);
    assert_eq!(server.status(&waiting), "active");
    let seen = status(&server, &["t1"]).json();
    assert_eq!(
        (&seen["locks"][0]["hostname"], &seen["locks"][0]["owner"]),
        (&json!("127.0.0.1"), &Value::Null)
    );
    assert_eq!(errnos(&lock(&server, &["t1"], ALICE)).1, json!("EEXIST"));
}

#[test]
fn a_list_shows_the_locks_of_a_host_or_of_a_process_in_pages() {
    let server = Server::start();
    lock(&server, &["a1", "a2", "a3"], ALICE);
    lock(&server, &["a4"], Caller("node1", 7));
    lock(&server, &["b1"], BOB);
    let ids = |body: Value| {
        let reply = call(&server, "media", "list", &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        let answer = reply.json();
        let ids: Vec<String> =
            answer["locks"].as_array().unwrap().iter().map(|l| l["id"].as_str().unwrap().into()).collect();
        (ids.join(" "), answer["next"].clone())
    };
    assert_eq!(ids(json!({ "hostname": "node1" })), ("a1 a2 a3 a4".into(), Value::Null));
    assert_eq!(ids(json!({ "hostname": "node1", "owner": 7 })), ("a4".into(), Value::Null));
    assert_eq!(ids(json!({ "hostname": "node1", "limit": 2 })), ("a1 a2".into(), json!("a2")));
    assert_eq!(ids(json!({ "hostname": "node1", "limit": 2, "after": "a2" })), ("a3 a4".into(), json!("a4")));
    assert_eq!(ids(json!({ "hostname": "node1", "after": "a4" })), (String::new(), Value::Null));
    assert_eq!(ids(json!({ "hostname": "node" })), (String::new(), Value::Null));
}

#[test]
fn many_callers_at_once_never_share_and_never_hold_a_part() {
    let server = Server::start();
    let ids: Vec<String> = (0..6).map(|i| format!("id{i}")).collect();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(2);
    std::thread::scope(|scope| {
        for caller in 0..6 {
            let (server, ids) = (&server, &ids);
            scope.spawn(move || {
                let caller = Caller("host", caller);
                let mut client = server.client();
                let mut post = |verb: &str, body: &Value| {
                    client.request(
                        "POST",
                        &format!("/v1/dss/object/{verb}"),
                        &[],
                        body.to_string().as_bytes(),
                    )
                };
                let mut taken = 0;
                while std::time::Instant::now() < deadline {
                    let start = (caller.1 as usize) % 4;
                    let mine: Vec<&str> = ids[start..start + 3].iter().map(String::as_str).collect();
                    if post("lock", &body(&mine, caller)).status == 200 {
                        taken += 1;
                        let seen = post("status", &json!({ "ids": mine })).json();
                        let all = seen["locks"].as_array().unwrap();
                        assert!(all.iter().all(|lock| lock["owner"] == caller.1), "{seen}");
                        assert_eq!(post("unlock", &body(&mine, caller)).status, 200);
                    }
                }
                assert!(taken > 0);
            });
        }
    });
    let left = call(&server, "object", "status", &json!({ "ids": ids }));
    assert!(left.json()["locks"].as_array().unwrap().iter().all(|lock| lock["errno"] == "ENOLCK"));
}
