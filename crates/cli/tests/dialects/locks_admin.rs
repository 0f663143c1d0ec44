//! Administration of locks: what it shows and ends, and who may use it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::common::{Client, Reply, Server, TempDir, eventually};
use serde_json::{Value, json};

const BODY: &[u8] = br#"{"title": "a client", "lifetime": 300, "wait": 60}"#;

fn lock(server: &Server, resource: &str) -> String {
    let reply = server.client().request("POST", &format!("/locks/{resource}"), &[], BODY);
    assert_eq!(reply.status, 201, "{reply:?}");
    reply.location_path()
}

fn blocked(server: &Server, resource: &str, place: usize) -> Client {
    let mut client = server.client();
    client.send("POST", &format!("/locks/{resource}"), &[], BODY);
    let list = format!("/v1/claims/?status=waiting&resource={resource}");
    eventually("it waits", || server.get(&list).json().as_array().unwrap().len() == place);
    client
}

fn delete(server: &Server, path: &str) -> Reply {
    server.client().request("DELETE", path, &[], b"")
}

fn names(server: &Server) -> Vec<String> {
    let reply = server.get("/resources");
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/hal+json")));
    let body = reply.json();
    assert_eq!(body["_links"]["self"]["href"], "/resources");
    let resources = body["_embedded"]["resources"].as_array().unwrap().clone();
    let name = |resource: &Value| {
        let name = resource["name"].as_str().unwrap().to_string();
        assert_eq!(resource["_links"]["self"]["href"], format!("/resources/{name}"));
        name
    };
    resources.iter().map(name).collect()
}

fn basic(server: &Server, method: &str, path: &str, credentials: &str) -> Reply {
    use std::io::Write;
    let mut child = std::process::Command::new("base64")
        .arg("-w0")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(credentials.as_bytes()).unwrap();
    let encoded = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    server.client().request(method, path, &[("Authorization", &format!("Basic {encoded}"))], b"")
}

#[test]
fn resources_with_locks_are_listed_by_name() {
    let server = Server::start();
    assert_eq!(names(&server), [] as [&str; 0]);
    let foo = lock(&server, "foo");
    lock(&server, "bar");
    server.claim("baz", 300.0);
    server.claim("db/main", 300.0);
    server.claim("short", 0.0);
    assert_eq!(names(&server), ["bar", "baz", "foo"], "what has no locks, or no name here, is not shown");
    assert_eq!(delete(&server, &foo).status, 204);
    assert_eq!(names(&server), ["bar", "baz"]);
}

#[test]
fn the_locks_of_a_resource_are_shown_the_holder_first() {
    let server = Server::start();
    let path = lock(&server, "foo");
    let _second = blocked(&server, "foo", 1);
    let claim = server.claim("foo", 300.0);
    let reply = server.get("/resources/foo");
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/hal+json")));
    let body = reply.json();
    assert_eq!((&body["name"], &body["_links"]["self"]["href"]), (&json!("foo"), &json!("/resources/foo")));
    let locks = body["_embedded"]["locks"].as_array().unwrap();
    assert_eq!(locks[0]["_links"]["self"]["href"], path);
    let active: Vec<bool> = locks.iter().map(|lock| lock["active"].as_bool().unwrap()).collect();
    assert_eq!(active, [true, false, false]);
    assert!(claim.contains(locks[2]["uid"].as_str().unwrap()));
    assert_eq!(locks[2]["wait_expires"], Value::Null, "a claim waits for as long as it takes");
}

#[test]
fn a_resource_that_nobody_knows_has_no_locks() {
    let server = Server::start();
    let reply = server.get("/resources/foo");
    assert_eq!((reply.status, &reply.json()["_embedded"]["locks"]), (200, &json!([])));
    assert_eq!(delete(&server, "/resources/foo").status, 404);
    let path = lock(&server, "foo");
    assert_eq!(delete(&server, &path).status, 204);
    assert_eq!(server.get("/resources/foo").json()["_embedded"]["locks"], json!([]));
    assert_eq!(delete(&server, "/resources/foo").status, 404, "a lock that is over is none");
}

#[test]
fn deleting_a_resource_ends_its_locks_and_no_others() {
    let server = Server::start();
    let (foo, bar) = (lock(&server, "foo"), lock(&server, "bar"));
    let mut second = blocked(&server, "foo", 1);
    let reply = delete(&server, "/resources/foo");
    assert_eq!((reply.status, reply.text().as_str()), (204, ""));
    assert_eq!(second.read_reply("POST").unwrap().status, 409);
    assert_eq!((server.get(&foo).status, server.get(&bar).status), (404, 200));
    let uid = foo.rsplit('/').next().unwrap();
    assert_eq!(server.status(&format!("/v1/claims/{uid}/")), "revoked");
}

#[test]
fn deleting_all_resources_ends_all_locks_and_leaves_other_names_alone() {
    let server = Server::start();
    assert_eq!(delete(&server, "/resources").status, 204, "also when there are none");
    lock(&server, "foo");
    let mut second = blocked(&server, "foo", 1);
    lock(&server, "bar");
    let claim = server.claim("baz", 300.0);
    let other = server.claim("ns/leases/x", 300.0);
    assert_eq!(delete(&server, "/resources").status, 204);
    assert_eq!(second.read_reply("POST").unwrap().status, 409);
    assert_eq!(names(&server), [] as [&str; 0]);
    assert_eq!((server.status(&claim), server.status(&other)), ("revoked".into(), "active".into()));
}

#[test]
fn deleting_ends_more_than_one_command_can() {
    let server = Server::start();
    lock(&server, "foo");
    let claims: Vec<String> = (0..1200).map(|_| server.claim("foo", 300.0)).collect();
    assert_eq!(delete(&server, "/resources/foo").status, 204);
    assert_eq!(server.get("/resources/foo").json()["_embedded"]["locks"], json!([]));
    for claim in [&claims[0], &claims[600], &claims[1199]] {
        assert_eq!(server.status(claim), "revoked");
    }
}

#[test]
fn administration_can_be_switched_off() {
    let server = Server::start_with(&["--admin-userpass-file", "no"]);
    let path = lock(&server, "foo");
    for (method, path) in [
        ("GET", "/resources"),
        ("DELETE", "/resources"),
        ("GET", "/resources/foo"),
        ("DELETE", "/resources/foo"),
    ] {
        assert_eq!(server.client().request(method, path, &[], b"").status, 403, "{method} {path}");
        assert_eq!(basic(&server, method, path, "anna:secret").status, 403, "{method} {path}");
    }
    assert_eq!(delete(&server, &path).status, 204, "locks themselves need no administrator");
}

#[test]
fn administration_is_off_by_default_where_others_can_reach_it() {
    let mut server = Server::start_with(&[]);
    let free = server.addr.port();
    server.kill();
    for (admin, status) in [(&[][..], 403), (&["--admin-userpass-file", "yes"], 200)] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args(["serve", "--insecure", "--listen", &format!("0.0.0.0:{free}"), "--data"])
            .arg(&server.data)
            .args(admin)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let addr = std::net::SocketAddr::from(([127, 0, 0, 1], free));
        let reply = Client::connect(addr).request("GET", "/resources", &[], b"");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(reply.status, status);
    }
}

#[test]
fn a_file_of_users_guards_administration() {
    let dir = TempDir::new();
    let file = dir.path().join("users");
    std::fs::write(&file, "anna:secret\nbert:with:colons: and spaces \n").unwrap();
    for (method, path) in [
        ("GET", "/resources"),
        ("GET", "/resources/foo"),
        ("DELETE", "/resources/foo"),
        ("DELETE", "/resources"),
    ] {
        // A server for each: after ten wrong passwords an address has to wait.
        let server = Server::start_with(&["--admin-userpass-file", file.to_str().unwrap()]);
        let reply = server.client().request(method, path, &[], b"");
        assert_eq!(reply.status, 401, "{method} {path}");
        assert!(reply.header("www-authenticate").unwrap().starts_with("Basic realm="));
        for stranger in ["anna:Secret", "anna:", "anna", "", ":", "bert:with", "bert:secret", "carl:secret"] {
            let reply = basic(&server, method, path, stranger);
            assert_eq!(reply.status, 401, "{method} {path} {stranger}");
            assert!(reply.header("www-authenticate").is_some());
        }
    }
    let server = Server::start_with(&["--admin-userpass-file", file.to_str().unwrap()]);
    lock(&server, "foo");
    for header in ["Basic", "Basic !!!", "Bearer YW5uYTpzZWNyZXQ=", "YW5uYTpzZWNyZXQ="] {
        let headers = [("Authorization", header)];
        assert_eq!(server.client().request("GET", "/resources", &headers, b"").status, 401, "{header}");
    }
    assert_eq!(basic(&server, "GET", "/resources", "anna:secret").status, 200);
    assert_eq!(basic(&server, "GET", "/resources/foo", "bert:with:colons: and spaces ").status, 200);
    assert_eq!(basic(&server, "DELETE", "/resources/foo", "anna:secret").status, 204);
    assert_eq!(basic(&server, "DELETE", "/resources", "anna:secret").status, 204);
}

#[test]
fn a_changed_file_counts_at_once_and_a_lost_one_is_no_open_door() {
    let dir = TempDir::new();
    let file = dir.path().join("users");
    std::fs::write(&file, "anna:secret\n").unwrap();
    let server = Server::start_with(&["--admin-userpass-file", file.to_str().unwrap()]);
    let get = |credentials| basic(&server, "GET", "/resources", credentials).status;
    assert_eq!((get("anna:secret"), get("bert:hidden")), (200, 401));
    std::fs::write(&file, "bert:hidden\n").unwrap();
    assert_eq!((get("anna:secret"), get("bert:hidden")), (401, 200), "the same length, another user");
    std::fs::write(&file, "").unwrap();
    assert_eq!((get("anna:secret"), get("bert:hidden"), get(":"), get("")), (401, 401, 401, 401));
    std::fs::remove_file(&file).unwrap();
    assert_eq!((get("bert:hidden"), get("")), (401, 401));
    std::fs::create_dir(&file).unwrap();
    assert_eq!(get("bert:hidden"), 401);
    std::fs::remove_dir(&file).unwrap();
    std::fs::write(&file, "anna:secret\r\n").unwrap();
    assert_eq!(get("anna:secret"), 200);
    let log = server.logged();
    assert!(log.contains("names none") && log.contains("can't be read"), "{log}");
}

#[test]
fn a_broken_line_is_named_in_the_log_without_its_words_and_lets_nobody_in() {
    let dir = TempDir::new();
    let file = dir.path().join("users");
    std::fs::write(&file, "# who may\nanna:secret\njustaword\n:nameless\nwordless:\n").unwrap();
    let server = Server::start_with(&["--admin-userpass-file", file.to_str().unwrap()]);
    for stranger in ["justaword", "justaword:", ":nameless", "wordless:", "# who may", "# who may:"] {
        assert_eq!(basic(&server, "GET", "/resources", stranger).status, 401, "{stranger}");
    }
    assert_eq!(basic(&server, "GET", "/resources", "anna:secret").status, 200);
    let log = server.logged();
    for line in ["line=3", "line=4", "line=5"] {
        assert_eq!(log.matches(line).count(), 1, "once, when the file is first seen: {log}");
    }
    for word in ["secret", "justaword", "nameless", "wordless"] {
        assert!(!log.contains(word), "{word} stands in the log");
    }
}
