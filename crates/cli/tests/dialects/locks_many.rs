//! Ten thousand blocked requests at the same time: their order, what a hand-over costs, and what each one weighs.
//!
//! The server and this client are processes of their own, with a file descriptor a connection each.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::common::{PATIENCE, Server, eventually};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

const BLOCKED: usize = 10_000;
/// The goal, all in: the connection, its buffers and task, the claim and its place in every index.
const BYTES_EACH_MAX: u64 = 16 << 10;

/// What one client is told: who it is, and its lock's path.
type Granted = mpsc::UnboundedReceiver<(usize, String)>;

fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = BLOCKED as u64 + 500;
    assert!(limit.maximum.is_none_or(|maximum| maximum >= wanted), "too few file descriptors: {limit:?}");
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum }).unwrap();
}

/// Sends a request on a connection of its own and reads the answer's status and head.
async fn request(stream: &mut TcpStream, method: &str, path: &str, body: &str) -> (u16, String) {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "the connection ended");
    }
    let answer = String::from_utf8(answer).unwrap();
    (answer[9..12].parse().unwrap(), answer)
}

fn path_of(answer: &str) -> String {
    let is_location = |line: &&str| line.to_ascii_lowercase().starts_with("location: ");
    let location = &answer.lines().find(is_location).unwrap()["location: ".len()..];
    location.trim().strip_prefix("http://t").unwrap().to_string()
}

/// A client that blocks, tells when it is granted, and releases when it is told to.
async fn client(
    addr: SocketAddr,
    who: usize,
    resource: String,
    granted: mpsc::UnboundedSender<(usize, String)>,
    mut release: mpsc::UnboundedReceiver<()>,
) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let body = format!(r#"{{"title": "{who}", "lifetime": 3600, "wait": 3600}}"#);
    let (status, answer) = request(&mut stream, "POST", &format!("/locks/{resource}"), &body).await;
    assert_eq!(status, 201);
    let path = path_of(&answer);
    granted.send((who, path.clone())).unwrap();
    release.recv().await;
    assert_eq!(request(&mut stream, "DELETE", &path, "").await.0, 204);
}

/// What the server is and did so far.
#[derive(Debug, Clone, Copy)]
struct Usage {
    rss_bytes: u64,
    cpu_ticks: u64,
    switches: u64,
}

impl Usage {
    fn of(server: &Server) -> Self {
        let proc = format!("/proc/{}", server.pid());
        let number = |text: &str, name: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let status = std::fs::read_to_string(format!("{proc}/status")).unwrap();
        let stat = std::fs::read_to_string(format!("{proc}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let tasks = std::fs::read_dir(format!("{proc}/task")).unwrap();
        let switches =
            tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok());
        Self {
            rss_bytes: number(&status, "VmRSS:") * 1024,
            cpu_ticks: fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap(),
            switches: switches.map(|text| number(&text, "voluntary_ctxt_switches:")).sum(),
        }
    }
}

/// Blocks ten thousand clients on so many resources; hands over; tells in which order grants came, by resource.
async fn block_and_hand_over(resources: usize) {
    let server = Server::start();
    let (tell, mut granted): (_, Granted) = mpsc::unbounded_channel();
    let mut control = TcpStream::connect(server.addr).await.unwrap();
    let mut holders = Vec::new();
    for i in 0..resources {
        let body = r#"{"title": "holder", "lifetime": 3600, "wait": 0}"#;
        let (status, answer) = request(&mut control, "POST", &format!("/locks/r{i}"), body).await;
        assert_eq!(status, 201);
        holders.push(path_of(&answer));
    }
    let before = Usage::of(&server);
    let (mut releases, mut clients) = (Vec::new(), tokio::task::JoinSet::new());
    for who in 0..BLOCKED {
        let (release, released) = mpsc::unbounded_channel();
        releases.push(release);
        let resource = format!("r{}", who % resources);
        clients.spawn(client(server.addr, who, resource, tell.clone(), released));
        if who % 200 == 199 {
            // The listener's backlog is short; nobody should have to try twice.
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    let mut order: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let blocked = tokio::task::block_in_place(|| {
        let all = "all are in their queues";
        eventually(all, || {
            server.get("/v1/claims/?status=waiting&limit=1&offset=9999").json()[0].is_object()
        });
        let blocked = Usage::of(&server);
        for resource in 0..resources {
            let locks = server.get(&format!("/resources/r{resource}")).json()["_embedded"]["locks"].clone();
            let titles = locks.as_array().unwrap().iter().skip(1).map(|lock| lock["title"].clone());
            let queue = titles.map(|title| title.as_str().unwrap().parse().unwrap()).collect();
            order.insert(resource, queue);
        }
        blocked
    });
    let each = (blocked.rss_bytes - before.rss_bytes) / BLOCKED as u64;
    eprintln!("{BLOCKED} blocked on {resources} resources: {each} bytes each ({before:?} -> {blocked:?})");
    assert!(each < BYTES_EACH_MAX, "{each} bytes a blocked request");

    for holder in holders {
        assert_eq!(request(&mut control, "DELETE", &holder, "").await.0, 204);
    }
    let mut queues: BTreeMap<usize, std::vec::IntoIter<usize>> =
        order.into_iter().map(|(resource, queue)| (resource, queue.into_iter())).collect();
    for served in 0..BLOCKED {
        let next = tokio::time::timeout(PATIENCE, granted.recv()).await;
        let (who, _) = next.unwrap_or_else(|_| panic!("nobody after {served}")).unwrap();
        let expected = queues.get_mut(&(who % resources)).unwrap().next();
        assert_eq!(Some(who), expected, "out of order after {served}");
        if resources == 1 {
            assert!(granted.try_recv().is_err(), "two hold one resource");
        }
        releases[who].send(()).unwrap();
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let done = Usage::of(&server);
    let per = |after: u64, before: u64| (after - before) as f64 / BLOCKED as f64;
    let wakes = per(done.switches, blocked.switches);
    let cpu_us = per(done.cpu_ticks, blocked.cpu_ticks) * 1e4;
    eprintln!("a hand-over: {cpu_us:.0} us of CPU, {wakes:.1} times a thread went to sleep ({done:?})");
    // A herd would wake ten thousand a hand-over.
    assert!(wakes < 100.0, "{wakes} wake-ups a hand-over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn ten_thousand_block_on_one_resource_and_on_many() {
    raise_file_limit();
    // One after the other: each needs most of the file descriptors of a process.
    block_and_hand_over(1).await;
    block_and_hand_over(1000).await;
}
