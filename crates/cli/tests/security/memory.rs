//! What a stranger can make the service keep in memory.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::common::{Client, PATIENCE, Server, eventually};

pub(crate) const MIB: u64 = 1 << 20;

/// What the service keeps in memory.
pub(crate) fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// Connections that the service has now.
fn connections(server: &Server) -> usize {
    let metrics = server.get("/metrics").text();
    let count = metrics.lines().find_map(|line| line.strip_prefix("leasehold_connections "));
    count.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
}

/// A service with this many large claims.
fn with_large_claims(args: &[&str], count: usize) -> Server {
    let server = Server::start_with(args);
    fill(&server, count);
    server
}

/// Makes this many claims of almost 64 KiB each.
pub(crate) fn fill(server: &Server, count: usize) {
    let data = "x".repeat(60 << 10);
    let mut client = server.client();
    for i in 0..count {
        let body = format!(r#"{{"resource": "large/{i:04}", "ttl": 600, "user_data": "{data}"}}"#);
        assert_eq!(client.request("POST", "/v1/claims/", &[], body.as_bytes()).status, 201);
    }
}

/// Sends a request whose answer nobody reads. The small buffer leaves as much as possible of it to the service.
fn ask_and_never_read(server: &Server, path: &str) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&server.addr.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stream
}

#[test]
fn lists_that_nobody_reads_cost_little() {
    let server = with_large_claims(&[], 400);
    assert_eq!(server.list("limit=1000").len(), 400);
    let before = resident(&server);
    let readers: Vec<TcpStream> =
        (0..60).map(|_| ask_and_never_read(&server, "/v1/claims/?limit=1000")).collect();
    // The first byte of each answer is there, so each is being made.
    for reader in &readers {
        reader.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(reader.peek(&mut [0]).unwrap(), 1);
    }
    let grown = resident(&server).saturating_sub(before);
    assert!(grown < 200 * MIB, "{} MiB for answers that nobody reads", grown / MIB);
    // A client that reads gets the whole answer.
    assert_eq!(server.list("limit=1000").len(), 400);
    assert_eq!(server.list("limit=7&offset=396").len(), 4);
}

#[test]
fn a_client_that_takes_nothing_of_its_answer_is_let_go() {
    let server = with_large_claims(&["--write-timeout", "0.5"], 200);
    let readers: Vec<TcpStream> =
        (0..20).map(|_| ask_and_never_read(&server, "/v1/claims/?limit=1000")).collect();
    for reader in &readers {
        reader.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(reader.peek(&mut [0]).unwrap(), 1);
    }
    eventually("their connections end", || connections(&server) == 1);
    // An answer that was cut off does not look complete.
    for mut reader in readers {
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).ok();
        assert!(!rest.ends_with(b"0\r\n\r\n"));
    }
}

#[test]
fn a_slow_reader_gets_everything() {
    let server = with_large_claims(&["--write-timeout", "2"], 100);
    let mut reader = ask_and_never_read(&server, "/v1/claims/?limit=1000");
    reader.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut all = Vec::new();
    let mut piece = vec![0; 256 << 10];
    while !all.ends_with(b"0\r\n\r\n") {
        let len = reader.read(&mut piece).unwrap();
        assert!(len > 0, "cut off after {} bytes", all.len());
        all.extend_from_slice(&piece[..len]);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(all.len() > 100 * (60 << 10));
}

#[test]
fn event_streams_that_nobody_reads_are_let_go_and_idle_ones_are_not() {
    let server = Server::start_with(&["--write-timeout", "0.5"]);
    let mut idle = server.client();
    idle.send("GET", "/v1/events?prefix=idle&heartbeat=60", &[], b"");
    let streams: Vec<TcpStream> = (0..8).map(|_| ask_and_never_read(&server, "/v1/events")).collect();
    let open = || {
        let metrics = server.get("/metrics").text();
        let count = metrics.lines().find_map(|line| line.strip_prefix("leasehold_event_streams "));
        count.unwrap().parse::<usize>().unwrap()
    };
    eventually("all streams are open", || open() == 9);
    let name = "x".repeat(2000);
    let mut writer = server.client();
    let mut i = 0;
    eventually("streams that nobody reads end", || {
        for _ in 0..200 {
            i += 1;
            let body = format!(r#"{{"resource": "{name}/{i}", "ttl": 600}}"#);
            assert_eq!(writer.request("POST", "/v1/claims/", &[], body.as_bytes()).status, 201);
        }
        open() == 1
    });
    assert_eq!(open(), 1, "who has nothing to read yet stays");
    drop((streams, idle));
}

#[test]
fn bodies_beyond_the_budget_are_refused_and_small_ones_are_not() {
    let server = Server::start_with(&["--body-bytes-max", "8388608"]);
    // Each has sent all but the last byte of a large body.
    let start = || {
        let mut client = server.client();
        let len = 4 * MIB as usize;
        let head =
            format!("POST /v1/dss/media/lock HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len}\r\n\r\n");
        client.send_raw(head.as_bytes());
        client.stream().try_clone().unwrap().write_all(&vec![b' '; len - 1]).ok();
        client
    };
    let mut clients: Vec<Client> = (0..4).map(|_| start()).collect();
    let is_answered = |client: &Client| {
        client.stream().set_nonblocking(true).unwrap();
        let answered = client.stream().peek(&mut [0]).is_ok();
        client.stream().set_nonblocking(false).unwrap();
        answered
    };
    // Only two of them fit, whichever they are.
    eventually("two are refused", || clients.iter().filter(|client| is_answered(client)).count() >= 2);
    // What comes with its head needs no budget.
    assert_eq!(server.post("/v1/claims/", r#"{"resource": "r", "ttl": 60}"#).status, 201);
    let (mut refused, kept): (Vec<Client>, Vec<Client>) = clients.drain(..).partition(is_answered);
    for client in &mut refused {
        let reply = client.reply();
        assert_eq!((reply.status, reply.problem().as_str()), (503, "too-many-bodies"));
        assert_eq!(reply.header("retry-after"), Some("1"));
    }
    // The budget is free again when bodies are dealt with: these are no JSON.
    for mut client in kept {
        client.send_raw(b" ");
        assert_eq!(client.reply().status, 400);
    }
    let mut last = start();
    last.send_raw(b" ");
    assert_eq!(last.reply().status, 400);
}

/// Claims all of these, a hundred at a time so that they share syncs.
fn claim_all(server: &Server, resources: impl Iterator<Item = String>) {
    let mut clients: Vec<Client> = (0..100).map(|_| server.client()).collect();
    let resources: Vec<String> = resources.collect();
    for some in resources.chunks(clients.len()) {
        for (client, resource) in clients.iter_mut().zip(some) {
            let body = format!(r#"{{"resource": "{resource}", "ttl": 3600}}"#);
            client.send("POST", "/v1/claims/", &[], body.as_bytes());
        }
        for (client, _) in clients.iter_mut().zip(some) {
            let reply = client.reply();
            assert!(matches!(reply.status, 201 | 202), "{reply:?}");
        }
    }
}

#[test]
fn long_queues_and_many_names_are_listed_whole_and_cost_little() {
    const MANY: usize = 10_000;
    let server = Server::start();
    claim_all(&server, (0..MANY).map(|_| "busy".into()));
    claim_all(&server, (0..MANY).map(|i| format!("name{i:05}")));
    let before = resident(&server);
    let readers: Vec<TcpStream> = (0..60)
        .map(|i| ask_and_never_read(&server, if i % 2 == 0 { "/resources/busy" } else { "/resources" }))
        .collect();
    for reader in &readers {
        reader.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(reader.peek(&mut [0]).unwrap(), 1);
    }
    let grown = resident(&server).saturating_sub(before);
    assert!(grown < 60 * MIB, "{} MiB for lists that nobody reads", grown / MIB);
    let queue = server.get("/resources/busy").json();
    let locks = queue["_embedded"]["locks"].as_array().unwrap();
    assert_eq!((locks.len(), &queue["name"]), (MANY, &"busy".into()));
    let active = |lock: &&serde_json::Value| lock["active"] == true;
    assert!(active(&&locks[0]) && locks.iter().filter(active).count() == 1, "the holder is first, and one");
    let names = server.get("/resources").json();
    let names = names["_embedded"]["resources"].as_array().unwrap();
    assert_eq!(names.len(), MANY + 1);
    assert!(names.iter().zip(&names[1..]).all(|(one, next)| one["name"].as_str() < next["name"].as_str()));
}

#[test]
fn long_answers_that_are_not_streamed_are_counted() {
    let server = Server::start();
    // A list of some three MiB.
    let name = "x".repeat(900);
    claim_all(&server, (0..2000).map(|i| format!("ns/leases/{name}{i:04}")));
    let list = "/v1/ns/leases/list";
    let len = server.get(list).body.len();
    assert!(len as u64 > 2 * MIB, "{len} bytes are few");
    let mut readers = Vec::new();
    let refused = loop {
        let reader = ask_and_never_read(&server, list);
        reader.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut start = [0; 12];
        (&reader).read_exact(&mut start).unwrap();
        readers.push(reader);
        if &start == b"HTTP/1.1 503" {
            break readers.len();
        }
        assert!(readers.len() < 400, "as many as one likes");
    };
    assert!(refused as u64 * len as u64 > 200 * MIB, "{refused} are too few");
    drop(readers);
    eventually("there is room again", || server.get(list).status == 200);
}
