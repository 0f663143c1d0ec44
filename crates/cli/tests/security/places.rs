//! What one client can take of all the places that there are: its share, and never the health pages.

use std::net::{SocketAddr, TcpStream};

use crate::common::{Client, Server, TempDir, claim_body, eventually};
use crate::trio::Trio;

const QUARTER: [&str; 2] = ["--client-share", "0.25"];

/// A connection from this address of the loopback network.
fn connect_from(server: &Server, last: u8) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, last], 0)).into()).unwrap();
    socket.connect(&server.addr.into()).unwrap();
    socket.into()
}

/// A request from there: the status of its answer.
fn get_from(server: &Server, last: u8, path: &str) -> Client {
    let mut client = Client::on(connect_from(server, last));
    client.send("GET", path, &[], b"");
    client
}

#[test]
fn connections_of_one_address_leave_places_to_others_and_to_health_pages() {
    let server = Server::start_with(&[&QUARTER[..], &["--connections-max", "40"]].concat());
    let idle: Vec<TcpStream> = (0..60).map(|_| connect_from(&server, 66)).collect();
    eventually("the attacker is turned away", || {
        let reply = get_from(&server, 66, "/v1/claims/").read_reply("GET");
        reply.is_ok_and(|reply| reply.status == 503)
    });
    // The others don't notice.
    assert_eq!(get_from(&server, 2, "/v1/claims/").reply().status, 200);
    assert_eq!(server.post("/v1/claims/", &claim_body("r", 60.0)).status, 201);
    drop(idle);
    eventually("the attacker may come back", || {
        let reply = get_from(&server, 66, "/v1/claims/").read_reply("GET");
        reply.is_ok_and(|reply| reply.status == 200)
    });
}

#[test]
fn health_pages_are_answered_when_every_connection_is_taken() {
    let server = Server::start_with(&["--connections-max", "20"]);
    let mut inside = server.client();
    assert_eq!(inside.request("GET", "/livez", &[], b"").status, 200);
    let mut idle: Vec<Client> = (0..19).map(|_| server.client()).collect();
    for client in &mut idle {
        assert_eq!(client.request("GET", "/version", &[], b"").status, 200);
    }
    for path in ["/livez", "/readyz", "/healthz", "/v1/health", "/version"] {
        let reply = server.get(path);
        assert_eq!((reply.status, reply.header("connection")), (200, Some("close")), "{path}");
    }
    for path in ["/v1/claims/", "/metrics", "/", "/v1/events"] {
        let reply = server.get(path);
        assert_eq!((reply.status, reply.problem().as_str()), (503, "too-many-connections"), "{path}");
        assert_eq!((reply.header("retry-after"), reply.header("connection")), (Some("1"), Some("close")));
    }
    assert_eq!(server.post("/v1/claims/", &claim_body("r", 60.0)).status, 503);
    assert_eq!(inside.request("GET", "/v1/claims/", &[], b"").text(), "[]\n");
}

/// It had no body, and our clients took it for the answer of a proxy, which says nothing about what happened.
#[test]
fn a_connection_beyond_all_places_is_refused_in_the_words_of_every_other_refusal() {
    let server = Server::start_with(&["--connections-max", "4"]);
    let mut taken: Vec<Client> = (0..4).map(|_| server.client()).collect();
    for client in &mut taken {
        assert_eq!(client.request("GET", "/version", &[], b"").status, 200);
    }
    let _health: Vec<Client> = (0..32).map(|_| server.client()).collect();
    // Its bytes may be lost with a request that comes too late.
    let mut refused = None;
    eventually("a refusal arrives", || {
        refused = server.client().read_reply("GET").ok();
        refused.is_some()
    });
    let refused = refused.unwrap();
    assert_eq!((refused.status, refused.problem().as_str()), (503, "too-many-connections"));
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!((refused.header("retry-after"), refused.header("connection")), (Some("1"), Some("close")));
    assert_eq!(refused.json()["detail"], "too many connections are open already: retry later");
}

#[test]
fn a_trusted_proxy_has_no_share_and_its_clients_have_one_each() {
    let flags = ["--connections-max", "40", "--long-polls-max", "8", "--trusted-proxies", "127.0.0.9"];
    let server = Server::start_with(&[&QUARTER[..], &flags].concat());
    server.claim("r", 600.0);
    let wait = |client: &str| {
        let mut connection = Client::on(connect_from(&server, 9));
        let body = claim_body("r", 60.0);
        connection.send("POST", "/v1/claims/?wait=300", &[("X-Forwarded-For", client)], body.as_bytes());
        connection
    };
    // More connections than the share of any client, and as many long polls as its clients' shares.
    let waiting: Vec<Client> = (0..15).map(|i| wait(&format!("203.0.113.{}", i / 2))).take(8).collect();
    server.wait_for_queue("r", 8);
    let idle: Vec<TcpStream> = (0..20).map(|_| connect_from(&server, 9)).collect();
    assert_eq!(get_from(&server, 9, "/v1/claims/").reply().status, 200);
    drop(waiting);
    server.wait_for_queue("r", 0);
    let greedy: Vec<Client> = (0..2).map(|_| wait("203.0.113.66")).collect();
    server.wait_for_queue("r", 2);
    let refused = wait("203.0.113.66").reply();
    assert_eq!((refused.status, refused.problem().as_str()), (503, "too-many-long-polls"));
    let _other = wait("203.0.113.7");
    server.wait_for_queue("r", 3);
    drop((greedy, idle));
}

/// A service with access control and two users, each with a key.
struct Guarded {
    server: Server,
    _dir: TempDir,
    mallory: String,
    anna: String,
}

fn guarded(flags: &[&str]) -> Guarded {
    let dir = TempDir::new();
    let keys = dir.path().join("keys.toml").display().to_string();
    let key = |user: &str| {
        let made = std::process::Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args(["access", "key", "make", "--user", user, "--keys", &keys])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        format!("Bearer {}", String::from_utf8(made.stdout).unwrap().trim())
    };
    let (mallory, anna) = (key("mallory"), key("anna"));
    let flags = [&["--access-keys", &keys], flags].concat();
    Guarded { server: Server::start_in(&dir.path().join("data"), &flags), _dir: dir, mallory, anna }
}

#[test]
fn event_streams_of_one_user_leave_places_to_others() {
    let Guarded { server, mallory, anna, .. } = &guarded(&[]);
    let open = |key: &str| {
        let mut client = server.client();
        client.send("GET", "/v1/events", &[("Authorization", key)], b"");
        let status = client.read_status().unwrap();
        (status, client)
    };
    let mut streams = Vec::new();
    let refused = loop {
        match open(mallory) {
            (200, stream) => streams.push(stream),
            (refused, _) => break refused,
        }
        assert!(streams.len() < 512, "one user has them all");
    };
    assert_eq!((refused, streams.len()), (503, 128));
    assert_eq!(open(anna).0, 200);
}

#[test]
fn long_polls_of_one_user_leave_places_to_others() {
    let Guarded { server, mallory, anna, .. } = &guarded(&["--long-polls-max", "16"]);
    let wait = |key: &str| {
        let body = claim_body("r", 60.0);
        server.ask("POST", "/v1/claims/?wait=300", &[("Authorization", key)], &body)
    };
    let holder = claim_body("r", 600.0);
    let held = server.client().request("POST", "/v1/claims/", &[("Authorization", anna)], holder.as_bytes());
    assert_eq!(held.status, 201);
    let queued = |count: usize| {
        eventually("they wait", || {
            let path = "/v1/claims/?status=waiting&limit=100";
            let reply = server.client().request("GET", path, &[("Authorization", anna)], b"");
            reply.json().as_array().unwrap().len() == count
        });
    };
    let _waiting: Vec<Client> = (0..4).map(|_| wait(mallory)).collect();
    queued(4);
    let refused = wait(mallory).reply();
    assert_eq!((refused.status, refused.problem().as_str()), (503, "too-many-long-polls"));
    let lock = r#"{"title": "t", "lifetime": 60, "wait": 60}"#;
    let refused = server.ask("POST", "/locks/r", &[("Authorization", mallory)], lock).reply();
    assert_eq!((refused.status, refused.problem().as_str()), (503, "too-many-long-polls"));
    let _others = wait(anna);
    queued(5);
}

#[test]
fn idle_connections_take_no_descriptor_from_the_log() {
    let mut server = Server::start_with_descriptors(256, &[]);
    assert!(server.logged().contains("fewer connections than --connections-max"), "{}", server.logged());
    let mut inside = server.client();
    assert_eq!(inside.request("GET", "/livez", &[], b"").status, 200);
    let idle: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(server.addr).unwrap()).collect();
    // The log goes on to its next files, and a snapshot is written.
    let data = "x".repeat(60 << 10);
    for i in 0..700 {
        let body = format!(r#"{{"resource": "large/{i:04}", "ttl": 600, "user_data": "{data}"}}"#);
        let reply = inside.request("POST", "/v1/claims/", &[], body.as_bytes());
        assert_eq!(reply.status, 201, "{i}: {reply:?}\n{}", server.logged());
    }
    assert!(!server.logged().contains("could not be accepted"), "{}", server.logged());
    drop(idle);
    assert!(server.terminate().success());
}

/// Sets how many files this server may open from now on.
fn limit_descriptors(server: &Server, limit: &str) {
    let args = ["--pid", &server.pid().to_string(), &format!("--nofile={limit}")];
    assert!(std::process::Command::new("prlimit").args(args).status().unwrap().success());
}

/// Fills some files of the log, in the background; the statuses of all answers.
fn write_much(mut client: Client) -> std::thread::JoinHandle<Vec<u16>> {
    std::thread::spawn(move || {
        let data = "x".repeat(60 << 10);
        let write = |i| {
            let body = format!(r#"{{"resource": "large/{i:04}", "ttl": 600, "user_data": "{data}"}}"#);
            client.request("POST", "/v1/claims/", &[], body.as_bytes()).status
        };
        (0..700).map(write).collect()
    })
}

const STARVED: &str = "no file descriptor is free";

#[test]
fn a_lack_of_descriptors_is_not_taken_for_a_full_disk() {
    let mut server = Server::start();
    let mut inside = server.client();
    assert_eq!(inside.request("GET", "/livez", &[], b"").status, 200);
    limit_descriptors(&server, "3:4096");
    let writer = write_much(inside);
    eventually("the log wants a descriptor", || server.logged().contains(STARVED));
    limit_descriptors(&server, "4096:4096");
    let answered = writer.join().unwrap();
    assert!(answered.iter().all(|status| *status == 201), "{answered:?}\n{}", server.logged());
    assert!(server.terminate().success());
}

#[test]
fn a_follower_without_descriptors_waits_for_some() {
    let trio = Trio::start();
    let leader = trio.nodes[0].get("/v1/cluster").json()["leader"].as_u64().unwrap() as usize - 1;
    let follower = &trio.nodes[(leader + 1) % 3];
    limit_descriptors(follower, "3:4096");
    let writer = write_much(trio.nodes[leader].client());
    eventually("the follower's log wants a descriptor", || follower.logged().contains(STARVED));
    limit_descriptors(follower, "4096:4096");
    let answered = writer.join().unwrap();
    assert!(answered.iter().all(|status| *status == 201), "{answered:?}");
    eventually("the follower has everything", || follower.list("limit=1000").len() == 700);
}
