//! The locks dialect, sentence by sentence, over a real socket.

use std::time::{Duration, Instant};

use crate::common::{Client, Reply, Server, eventually};
use serde_json::{Value, json};

fn body(lifetime: f64, wait: f64) -> String {
    json!({ "title": "a client", "lifetime": lifetime, "wait": wait }).to_string()
}

/// A lock that is granted at once; its path.
fn held(server: &Server, resource: &str, lifetime: f64) -> String {
    let reply = server.post(&format!("/locks/{resource}"), &body(lifetime, 0.0));
    assert_eq!(reply.status, 201, "{reply:?}");
    reply.location_path()
}

/// A request that stands open, and is in the queue.
fn blocked(server: &Server, resource: &str, lifetime: f64, wait: f64) -> Client {
    let before = waiting(server, resource).len();
    let mut client = server.client();
    client.send("POST", &format!("/locks/{resource}"), &[], body(lifetime, wait).as_bytes());
    eventually("the request is in the queue", || waiting(server, resource).len() == before + 1);
    client
}

/// The waiting claims on a resource, next one first.
fn waiting(server: &Server, resource: &str) -> Vec<Value> {
    let list = server.get(&format!("/v1/claims/?status=waiting&limit=1000&resource={resource}")).json();
    list.as_array().unwrap().clone()
}

fn delete(server: &Server, path: &str) -> Reply {
    server.client().request("DELETE", path, &[], b"")
}

fn answered(client: &mut Client) -> Reply {
    client.read_reply("POST").unwrap()
}

fn is_uid(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
}

#[test]
fn a_free_resource_is_locked_at_once_on_both_paths() {
    let server = Server::start();
    for (path, resource) in [("/locks/resource1", "resource1"), ("/active_locks/Resource2", "Resource2")] {
        let reply = server.post(path, &body(300.0, 20.0));
        assert_eq!((reply.status, reply.text().as_str()), (201, ""), "{reply:?}");
        assert_eq!(reply.header("content-length"), Some("0"));
        let location = reply.header("location").unwrap();
        let uid = location.strip_prefix(&format!("http://leasehold.localhost/locks/{resource}/")).unwrap();
        assert!(is_uid(uid), "{uid}");
        assert!(reply.header("leasehold-token").unwrap().parse::<u64>().unwrap() > 0);
    }
}

#[test]
fn the_location_follows_the_host_that_the_client_knows() {
    let server = Server::start_with(&["--trusted-proxies", "127.0.0.1"]);
    let headers = [("X-Forwarded-Proto", "https"), ("X-Forwarded-Host", "locks.example")];
    let reply = server.client().request("POST", "/locks/a", &headers, body(1.0, 0.0).as_bytes());
    assert!(reply.header("location").unwrap().starts_with("https://locks.example/locks/a/"), "{reply:?}");
}

#[test]
fn a_held_resource_passes_to_the_next_when_it_is_released() {
    let server = Server::start();
    let first = held(&server, "foo", 300.0);
    let mut second = blocked(&server, "foo", 300.0, 60.0);
    assert_eq!(delete(&server, &first).status, 204);
    let reply = answered(&mut second);
    assert_eq!(reply.status, 201);
    let path = reply.location_path();
    assert_ne!(path, first);
    assert_eq!(server.get(&path).json()["active"], true);
}

#[test]
fn a_held_resource_passes_to_the_next_when_its_lifetime_is_over() {
    let server = Server::start();
    let first = held(&server, "foo", 0.5);
    let mut second = server.client();
    second.send("POST", "/locks/foo", &[], body(300.0, 60.0).as_bytes());
    assert_eq!(answered(&mut second).status, 201);
    assert_eq!(server.get(&first).status, 404);
}

#[test]
fn who_waits_in_vain_is_told_408_when_the_wait_is_over_and_not_before() {
    let server = Server::start();
    held(&server, "foo", 300.0);
    let mut late = Vec::new();
    for wait in [0.2, 0.35, 0.5, 0.2, 0.35] {
        let started = Instant::now();
        let reply = server.post("/locks/foo", &body(300.0, wait));
        let (took, wait) = (started.elapsed(), Duration::from_secs_f64(wait));
        assert_eq!((reply.status, reply.text().as_str()), (408, ""), "{reply:?}");
        assert!(took >= wait, "answered after {took:?}, before the wait of {wait:?} was over");
        late.push(took - wait);
    }
    late.sort();
    eprintln!("408 came after the wait by {late:?}");
    assert!(waiting(&server, "foo").is_empty());
}

#[test]
fn who_does_not_want_to_wait_is_told_408_at_once() {
    let server = Server::start();
    held(&server, "foo", 300.0);
    assert_eq!(server.post("/locks/foo", &body(300.0, 0.0)).status, 408);
    let claims = server.get("/v1/claims/?resource=foo").json();
    assert_eq!(claims.as_array().unwrap().len(), 1, "a refused request leaves nothing behind");
}

#[test]
fn who_waits_is_told_409_when_an_administrator_deletes_the_request() {
    let server = Server::start();
    let first = held(&server, "foo", 300.0);
    let mut second = blocked(&server, "foo", 300.0, 60.0);
    let mut third = blocked(&server, "foo", 300.0, 60.0);
    assert_eq!(delete(&server, "/resources/foo").status, 204);
    for client in [&mut second, &mut third] {
        let reply = answered(client);
        assert_eq!((reply.status, reply.text().as_str()), (409, ""), "{reply:?}");
    }
    assert_eq!(server.get(&first).status, 404);
}

#[test]
fn a_waiting_request_has_a_url_and_can_be_deleted_by_it() {
    let server = Server::start();
    let first = held(&server, "foo", 300.0);
    let mut second = blocked(&server, "foo", 120.0, 60.0);
    let locks = server.get("/resources/foo").json()["_embedded"]["locks"].clone();
    let path = locks[1]["_links"]["self"]["href"].as_str().unwrap().to_string();
    let lock = server.get(&path);
    assert_eq!((lock.status, lock.header("content-type")), (200, Some("application/hal+json")));
    let lock = lock.json();
    assert_eq!((&lock["active"], &lock["title"]), (&json!(false), &json!("a client")));
    assert_eq!((&lock["lifetime"], &lock["wait"]), (&json!(120), &json!(60)));
    assert!(lock["wait_since"].as_str() < lock["wait_expires"].as_str());
    assert!(lock.get("active_since").is_none() && lock.get("active_expires").is_none());
    assert_eq!(delete(&server, &path).status, 204);
    assert_eq!(answered(&mut second).status, 409);
    assert_eq!(delete(&server, &path).status, 404);
    assert_eq!(server.get(&path).status, 404);
    assert_eq!(server.get(&first).json()["active"], true, "the holder keeps its lock");
}

#[test]
fn a_lock_is_shown_as_hal() {
    let server = Server::start();
    let reply = server.post("/locks/foo", r#"{"title": "nightly \"job\" é", "lifetime": 2.5, "wait": 20}"#);
    let (path, token) = (reply.location_path(), reply.header("leasehold-token").unwrap().to_string());
    let reply = server.get(&path);
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/hal+json")));
    assert_eq!(reply.header("leasehold-token"), Some(&*token));
    let lock = reply.json();
    let uid = path.rsplit('/').next().unwrap();
    let (since, expires) = (lock["active_since"].clone(), lock["active_expires"].clone());
    assert_eq!(
        lock,
        json!({
            "uid": uid, "title": "nightly \"job\" é", "active": true, "active_since": since,
            "active_expires": expires, "lifetime": 2.5, "wait": 20,
            "_links": { "self": { "href": path }, "resource": { "href": "/resources/foo" } },
        })
    );
    for time in [&since, &expires] {
        let text = time.as_str().unwrap();
        assert!(text.len() == 27 && text.ends_with('Z'), "{text}");
    }
    assert!(since.as_str() < expires.as_str());
    let head = server.client().request("HEAD", &path, &[], b"");
    assert_eq!((head.status, head.text().as_str()), (200, ""));
}

#[test]
fn a_lock_is_released_once_and_404_afterwards() {
    let server = Server::start();
    let path = held(&server, "foo", 300.0);
    let reply = delete(&server, &path);
    assert_eq!((reply.status, reply.text().as_str()), (204, ""));
    assert_eq!(delete(&server, &path).status, 404);
    assert_eq!(server.get(&path).status, 404);
    let claim = server.get(&format!("/v1/claims/{}/", path.rsplit('/').next().unwrap())).json();
    assert_eq!(claim["status"], "released");
}

#[test]
fn a_lock_that_is_over_or_unknown_or_on_another_resource_is_404() {
    let server = Server::start();
    let short = held(&server, "foo", 0.0);
    let path = held(&server, "bar", 300.0);
    let uid = path.rsplit('/').next().unwrap();
    let upper = uid.to_ascii_uppercase();
    for path in [
        short,
        format!("/locks/other/{uid}"),
        format!("/locks/ba/{uid}"),
        format!("/active_locks/bar/{uid}"),
        "/locks/bar/00000000000000000000000000000000".into(),
        "/locks/bar/x".into(),
        format!("/locks/bar/{uid}0"),
        format!("/locks/bar/{uid}/more"),
        format!("/locks/bar/-{upper}"),
    ] {
        for method in ["GET", "DELETE"] {
            let reply = server.client().request(method, &path, &[], b"");
            assert_eq!(reply.status, 404, "{method} {path}");
            assert_eq!(reply.header("content-type"), Some("application/problem+json"));
        }
    }
    assert_eq!(server.get(&path).status, 200);
}

#[test]
fn a_resource_name_outside_letters_and_digits_is_404() {
    let server = Server::start();
    let long = "a".repeat(2049);
    for name in ["a-b", "a_b", "a%20b", "a.b", "", "a:b", &long] {
        for path in
            [format!("/locks/{name}"), format!("/active_locks/{name}"), format!("/resources/{name}/x")]
        {
            assert_eq!(server.post(&path, &body(1.0, 0.0)).status, 404, "{path}");
        }
    }
    assert_eq!(server.get("/resources/a-b").status, 404);
    assert_eq!(server.post(&format!("/locks/{}", &long[1..]), &body(1.0, 0.0)).status, 201);
}

#[test]
fn another_method_is_405_and_names_those_that_work() {
    let server = Server::start();
    let lock = held(&server, "foo", 300.0);
    for (path, methods, allow) in [
        ("/locks/foo", &["GET", "PUT", "DELETE", "PATCH", "HEAD"][..], "POST"),
        ("/active_locks/foo", &["GET", "PUT", "DELETE"], "POST"),
        (&lock, &["POST", "PUT", "PATCH"], "DELETE, GET, HEAD"),
        ("/resources", &["POST", "PUT"], "DELETE, GET, HEAD"),
        ("/resources/foo", &["POST", "PUT"], "DELETE, GET, HEAD"),
    ] {
        for method in methods {
            let reply = server.client().request(method, path, &[], b"");
            assert_eq!((reply.status, reply.header("allow")), (405, Some(allow)), "{method} {path}");
        }
    }
}

#[test]
fn what_is_no_lock_request_is_400_and_says_why() {
    let server = Server::start();
    for (body, why) in [
        ("", "empty"),
        ("{", "not valid JSON"),
        ("title=a&lifetime=1&wait=1", "not valid JSON"),
        ("\u{feff}{}", "not valid JSON"),
        ("[]", "JSON object"),
        ("3", "JSON object"),
        ("null", "JSON object"),
        ("{}", "title is missing; lifetime is missing; wait is missing"),
        (r#"{"title": "a", "lifetime": 1}"#, "wait is missing"),
        (r#"{"title": "a", "wait": 1}"#, "lifetime is missing"),
        (r#"{"lifetime": 1, "wait": 1}"#, "title is missing"),
        (r#"{"title": 7, "lifetime": 1, "wait": 1}"#, "title must be a string"),
        (r#"{"title": null, "lifetime": 1, "wait": 1}"#, "title must be a string"),
        (r#"{"title": "a", "lifetime": "soon", "wait": 1}"#, "lifetime must be a number"),
        (r#"{"title": "a", "lifetime": -1, "wait": 1}"#, "lifetime must be a number"),
        (r#"{"title": "a", "lifetime": 1, "wait": "-0.1"}"#, "wait must be a number"),
        (r#"{"title": "a", "lifetime": 1, "wait": [1]}"#, "wait must be a number"),
        (r#"{"title": "a", "lifetime": 1, "wait": true}"#, "wait must be a number"),
        (
            r#"{"title": "a", "lifetime": null, "wait": {}}"#,
            "lifetime must be a number of seconds, 0 or more; wait",
        ),
    ] {
        let reply = server.post("/locks/foo", body);
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
        let detail = reply.json()["detail"].as_str().unwrap().to_string();
        assert!(detail.contains(why), "{body}: {detail}");
    }
    let large = format!(r#"{{"title": "{}", "lifetime": 1, "wait": 1}}"#, "x".repeat(16 << 10));
    assert_eq!(server.post("/locks/foo", &large).status, 413);
    assert_eq!(server.get("/v1/claims/").json(), json!([]), "nothing came of any of them");
}

#[test]
fn old_clients_send_text_for_numbers_and_keys_nobody_knows_under_any_content_type() {
    let server = Server::start();
    let body = br#"{"title": "t", "lifetime": "300", "wait": " 0.5 ", "pid": 7, "tags": [1]}"#;
    for (i, content_type) in
        ["application/x-www-form-urlencoded", "text/plain", "application/json"].iter().enumerate()
    {
        let path = format!("/locks/foo{i}");
        let reply = server.client().request("POST", &path, &[("Content-Type", content_type)], body);
        assert_eq!(reply.status, 201, "{content_type}");
        let lock = server.get(&reply.location_path()).json();
        assert_eq!((&lock["lifetime"], &lock["wait"]), (&json!(300), &json!(0.5)));
    }
}

#[test]
fn a_slash_at_the_end_makes_no_difference() {
    let server = Server::start();
    let reply = server.post("/active_locks/foo/", &body(300.0, 0.0));
    assert_eq!(reply.status, 201);
    let path = format!("{}/", reply.location_path());
    assert_eq!(server.get(&path).status, 200);
    assert_eq!(server.get("/resources/foo/").status, 200);
    assert_eq!(delete(&server, &path).status, 204);
}

#[test]
fn waiting_requests_are_served_in_the_order_in_which_they_came() {
    let server = Server::start();
    let mut holder = held(&server, "foo", 300.0);
    let mut clients: Vec<Client> = (0..5).map(|_| blocked(&server, "foo", 300.0, 60.0)).collect();
    for client in &mut clients {
        assert_eq!(delete(&server, &holder).status, 204);
        let reply = answered(client);
        assert_eq!(reply.status, 201);
        holder = reply.location_path();
    }
}

#[test]
fn a_full_queue_is_429() {
    let server = Server::start_with(&["--queue-len-max", "1"]);
    held(&server, "foo", 300.0);
    let _second = blocked(&server, "foo", 300.0, 60.0);
    let reply = server.post("/locks/foo", &body(300.0, 60.0));
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")));
}

// ---- one table

#[test]
fn a_claim_blocks_a_lock_and_the_other_way_round() {
    let server = Server::start();
    let claim = server.claim("foo", 300.0);
    let mut lock = blocked(&server, "foo", 300.0, 60.0);
    let behind = server.claim("foo", 300.0);
    assert_eq!(server.patch(&claim, r#"{"status": "released"}"#).status, 204);
    let reply = answered(&mut lock);
    assert_eq!(reply.status, 201);
    assert_eq!(server.status(&behind), "waiting");
    assert_eq!(delete(&server, &reply.location_path()).status, 204);
    assert_eq!(server.status(&behind), "active");
}

#[test]
fn a_lock_shows_up_among_the_claims_and_a_claim_among_the_locks() {
    let server = Server::start();
    let path = held(&server, "foo", 300.0);
    let uid = path.rsplit('/').next().unwrap();
    let claim = server.get("/v1/claims/?resource=foo").json()[0].clone();
    assert!(claim["url"].as_str().unwrap().ends_with(&format!("/v1/claims/{uid}/")));
    assert_eq!((&claim["status"], &claim["initial_ttl"]), (&json!("active"), &json!(300.0)));
    assert_eq!(claim["user_data"], json!({ "title": "a client", "wait": 0 }));

    let claim = server.claim("bar", 7.5);
    let uid = claim.trim_end_matches('/').rsplit('/').next().unwrap();
    let lock = server.get(&format!("/locks/bar/{uid}")).json();
    assert_eq!((&lock["title"], &lock["wait"]), (&json!("127.0.0.1"), &json!(0)));
    assert_eq!((&lock["lifetime"], &lock["active"]), (&json!(7.5), &json!(true)));
    assert_eq!(delete(&server, &format!("/locks/bar/{uid}")).status, 204);
    assert_eq!(server.status(&claim), "released");
}

#[test]
fn tokens_grow_across_the_dialects() {
    let server = Server::start();
    let token = |reply: &Reply| reply.header("leasehold-token").unwrap().parse::<u64>().unwrap();
    let first = token(&server.post("/locks/a", &body(300.0, 0.0)));
    let second = token(&server.post("/v1/claims/", r#"{"resource": "b", "ttl": 1}"#));
    let third = token(&server.post("/active_locks/c", &body(300.0, 0.0)));
    assert!(first < second && second < third);
}

/// What one step of the scenario means in each dialect; resources are `a`, `b`, `c`.
struct AsLocks<'a>(&'a Server);
struct AsClaims<'a>(&'a Server);

trait Scenario {
    fn hold(&self, resource: &str, lifetime: f64) -> String;
    fn queue(&self, resource: &str, lifetime: f64) -> (String, Option<Client>);
    fn release(&self, path: &str);
    fn revoke(&self, path: &str);
}

fn user_data(wait: u32) -> Value {
    json!({ "title": "a client", "wait": wait })
}

impl Scenario for AsLocks<'_> {
    fn hold(&self, resource: &str, lifetime: f64) -> String {
        held(self.0, resource, lifetime)
    }

    fn queue(&self, resource: &str, lifetime: f64) -> (String, Option<Client>) {
        let client = blocked(self.0, resource, lifetime, 60.0);
        let claim = waiting(self.0, resource).pop().unwrap();
        let uid =
            claim["url"].as_str().unwrap().trim_end_matches('/').rsplit('/').next().unwrap().to_string();
        (format!("/locks/{resource}/{uid}"), Some(client))
    }

    fn release(&self, path: &str) {
        assert_eq!(delete(self.0, path).status, 204);
    }

    fn revoke(&self, path: &str) {
        self.release(path);
    }
}

impl Scenario for AsClaims<'_> {
    fn hold(&self, resource: &str, lifetime: f64) -> String {
        let body = json!({ "resource": resource, "ttl": lifetime, "user_data": user_data(0) });
        let reply = self.0.post("/v1/claims/", &body.to_string());
        assert_eq!(reply.status, 201);
        reply.location_path()
    }

    fn queue(&self, resource: &str, lifetime: f64) -> (String, Option<Client>) {
        let body = json!({ "resource": resource, "ttl": lifetime, "user_data": user_data(60) });
        let reply = self.0.post("/v1/claims/", &body.to_string());
        assert_eq!(reply.status, 202);
        (reply.location_path(), None)
    }

    fn release(&self, path: &str) {
        assert_eq!(self.0.patch(path, r#"{"status": "released"}"#).status, 204);
    }

    fn revoke(&self, path: &str) {
        assert_eq!(self.0.patch(path, r#"{"status": "revoked"}"#).status, 204);
    }
}

/// Hold, queue, hand over, expire, take away; then the table as the claims API shows it, without ids, times and the words of a dialect.
fn play(server: &Server, dialect: &dyn Scenario) -> Value {
    let first = dialect.hold("a", 300.0);
    let (second, _open2) = dialect.queue("a", 200.0);
    let (third, _open3) = dialect.queue("a", 100.0);
    let (_fourth, _open4) = dialect.queue("a", 50.0);
    dialect.release(&first);
    dialect.revoke(&third);
    dialect.release(&second);
    let _expired = dialect.hold("b", 0.0);
    let last = dialect.hold("c", 1.5);
    dialect.release(&last);
    dialect.hold("c", 10.0);
    let mut list = server.get("/v1/claims/").json();
    for claim in list.as_array_mut().unwrap() {
        let claim = claim.as_object_mut().unwrap();
        for name in ["url", "created", "ttl", "active_duration", "waiting_duration", "expires", "reason"] {
            claim.remove(name).unwrap();
        }
        let history = claim["status_history"].as_array_mut().unwrap();
        history.iter_mut().for_each(|step| *step = step["status"].take());
    }
    list
}

#[test]
fn one_scenario_through_both_dialects_leaves_the_same_table() {
    let (one, other) = (Server::start(), Server::start());
    let (locks, claims) = (play(&one, &AsLocks(&one)), play(&other, &AsClaims(&other)));
    let statuses: Vec<&str> =
        locks.as_array().unwrap().iter().map(|c| c["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["released", "released", "revoked", "active", "expired", "released", "active"]);
    assert_eq!(locks, claims);
}
