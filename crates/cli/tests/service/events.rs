//! `GET /v1/events` over real sockets: order, ids, resuming, filters, heartbeats, slow readers, limits.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::common::{PATIENCE, Server, eventually};
use crate::trio::Trio;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

/// An open stream.
struct Stream {
    lines: BufReader<Box<dyn Read>>,
    socket: TcpStream,
}

/// One block of a stream.
#[derive(Debug, Default)]
struct Block {
    id: String,
    event: String,
    comment: String,
    data: Value,
}

impl Stream {
    fn open(server: &Server, query: &str, last_id: Option<&str>) -> Self {
        let socket = TcpStream::connect(server.addr).unwrap();
        Self::on(socket, query, last_id)
    }

    /// Sends the request and reads the head of its answer.
    fn on(mut socket: TcpStream, query: &str, last_id: Option<&str>) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let id = last_id.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        write!(socket, "GET /v1/events{query} HTTP/1.1\r\nHost: test\r\n{id}\r\n").unwrap();
        let mut head = BufReader::new(socket.try_clone().unwrap());
        let mut line = String::new();
        head.read_line(&mut line).unwrap();
        assert!(line.contains(" 200 "), "{line}");
        let mut event_stream = false;
        while line != "\r\n" {
            line.clear();
            head.read_line(&mut line).unwrap();
            event_stream |= line.to_ascii_lowercase().starts_with("content-type: text/event-stream");
        }
        assert!(event_stream);
        let chunks: Box<dyn Read> = Box::new(Chunks { socket: head, left: 0 });
        Self { lines: BufReader::new(chunks), socket }
    }

    /// The next block, comments included.
    fn block(&mut self) -> Block {
        let mut block = Block::default();
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the stream ended");
            let line = line.trim_end_matches('\n');
            match line.split_once(": ") {
                None if line.is_empty() => return block,
                Some(("id", id)) => block.id = id.into(),
                Some(("event", event)) => block.event = event.into(),
                Some(("data", data)) => block.data = serde_json::from_str(data).unwrap(),
                Some(("retry", _)) => {}
                Some(("", comment)) => block.comment = comment.into(),
                _ => panic!("what is this? {line:?}"),
            }
        }
    }

    /// The next event.
    fn event(&mut self) -> Block {
        loop {
            let block = self.block();
            if !block.event.is_empty() {
                assert_eq!((&block.data["id"], &block.data["kind"]), (&json!(block.id), &json!(block.event)));
                return block;
            }
        }
    }

    /// Kind and resource of the next events.
    fn next(&mut self, count: usize) -> Vec<String> {
        let told = |block: Block| format!("{} {}", block.event, block.data["resource"].as_str().unwrap());
        (0..count).map(|_| told(self.event())).collect()
    }
}

/// The body of a chunked answer.
struct Chunks {
    socket: BufReader<TcpStream>,
    left: usize,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            let mut line = String::new();
            while line.trim().is_empty() {
                line.clear();
                if self.socket.read_line(&mut line)? == 0 {
                    return Ok(0);
                }
            }
            self.left = usize::from_str_radix(line.trim(), 16).unwrap();
        }
        let most = buffer.len().min(self.left);
        let read = self.socket.read(&mut buffer[..most])?;
        self.left -= read;
        Ok(read)
    }
}

#[test]
fn a_life_is_told_in_order_with_ids_that_grow() {
    let server = Server::start();
    let mut stream = Stream::open(&server, "", None);
    let first = server.claim("db/main", 60.0);
    let second = server.claim("db/main", 60.0);
    server.patch(&first, r#"{"ttl": 50}"#);
    server.patch(&first, r#"{"status": "released"}"#);
    server.patch(&second, r#"{"status": "revoked"}"#);
    let events: Vec<Block> = (0..6).map(|_| stream.event()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event.event.as_str()).collect();
    assert_eq!(kinds, ["active", "queued", "renewed", "released", "active", "revoked"]);
    let place = |event: &Block| -> (u64, u64) {
        let (index, n) = event.id.split_once('.').unwrap();
        (index.parse().unwrap(), n.parse().unwrap())
    };
    assert!(events.is_sorted_by(|a, b| place(a) < place(b)), "{events:?}");
    assert_eq!(place(&events[3]).0, place(&events[4]).0, "a release and the next grant are one entry");
    let tokens: Vec<&Value> = events.iter().map(|event| &event.data["token"]).collect();
    assert_eq!(json!(tokens), json!([1, null, 1, 1, 2, 2]));
    assert!(
        events[4].data["waited"].as_f64().unwrap() > 0.0 && events[3].data["held"].as_f64().unwrap() > 0.0
    );
    assert!(first.contains(events[0].data["claim"].as_str().unwrap()));
    // An expiry needs no request.
    server.claim("job", 0.05);
    assert_eq!(stream.next(2), ["active job", "expired job"]);
}

#[test]
fn a_reader_resumes_where_it_was_also_after_a_restart() {
    let mut server = Server::start();
    let mut stream = Stream::open(&server, "", None);
    for name in ["a", "b", "c"] {
        server.claim(name, 600.0);
    }
    let seen = stream.event();
    assert_eq!(seen.data["resource"], "a");
    drop(stream);
    for _ in 0..2 {
        let mut again = Stream::open(&server, "", Some(&seen.id));
        assert_eq!(again.next(2), ["active b", "active c"]);
        let mut from_query = Stream::open(&server, &format!("?after={}", seen.id), None);
        assert_eq!(from_query.next(2), ["active b", "active c"]);
        // The log brings the same events under the same ids.
        server.restart();
    }
    // Who was told more than this log has is told so, and goes on with what comes.
    let mut ahead = Stream::open(&server, "?heartbeat=0.2", Some("900000.0"));
    assert_eq!(ahead.event().event, "lagged");
    server.claim("d", 600.0);
    assert_eq!(ahead.next(1), ["active d"]);
}

#[test]
fn filters_choose_and_heartbeats_move_the_id_on() {
    let server = Server::start();
    let mut by_prefix = Stream::open(&server, "?prefix=db/", None);
    let mut by_kind = Stream::open(&server, "?kind=expired,released&heartbeat=0.1", None);
    let held = server.claim("db/main", 60.0);
    server.claim("tape/1", 60.0);
    server.patch(&held, r#"{"status": "released"}"#);
    assert_eq!(by_prefix.next(2), ["active db/main", "released db/main"]);
    assert_eq!(by_kind.next(1), ["released db/main"]);
    server.claim("tape/2", 60.0);
    // Nothing of that is for this reader, yet it learns how far the log has come.
    let newest = by_prefix_of_all(&server);
    let start = std::time::Instant::now();
    while by_kind.block().id != newest {
        assert!(start.elapsed() < PATIENCE, "no heartbeat with {newest}");
    }
    for (query, named) in
        [("?kind=lost", "kind"), ("?heartbeat=0", "heartbeat"), ("?after=x", "after"), ("?x=1", "x")]
    {
        assert_eq!(server.get(&format!("/v1/events{query}")).named(), [named]);
    }
    assert_eq!(server.post("/v1/events", "").status, 405);
}

/// The id of the newest event.
fn by_prefix_of_all(server: &Server) -> String {
    let mut all = Stream::open(server, "?after=0.0&prefix=tape/2", None);
    all.event().id
}

#[test]
fn a_slow_reader_is_told_that_it_lagged_and_slows_nobody() {
    let server = Server::start();
    // A reader with small buffers that does not read.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&server.addr.into()).unwrap();
    let mut slow = Stream::on(socket.into(), "?kind=renewed,released", None);
    let ids: Vec<String> = (0..2000)
        .map(|i| {
            let path = server.claim(&format!("r{i}"), 600.0);
            path.trim_matches('/').rsplit('/').next().unwrap().to_string()
        })
        .collect();
    // Five times what the ring has room for, and far more than all buffers on the way.
    let body = json!({ "ids": ids, "ttl": 600 }).to_string();
    let mut client = server.client();
    for _ in 0..40 {
        let reply = client.request("POST", "/v1/renewals", &[], body.as_bytes());
        assert_eq!(reply.status, 200);
    }
    let kinds = (0..250_000).map(|_| slow.event().event);
    assert!(kinds.into_iter().any(|kind| kind == "lagged"), "it can't have kept up");
    // It goes on from there.
    let last = server.claim("last", 600.0);
    server.patch(&last, r#"{"status": "released"}"#);
    let mut rest = (0..250_000).map(|_| slow.event());
    assert!(rest.any(|block| block.event == "released" && block.data["resource"] == "last"));
    let metrics = server.get("/metrics").text();
    let lagged = metrics.lines().find_map(|line| line.strip_prefix("leasehold_event_streams_lagged_total "));
    assert!(lagged.unwrap().parse::<u64>().unwrap() >= 1);
}

#[test]
fn there_is_a_limit_and_places_are_given_back() {
    let server = Server::start();
    let streams: Vec<Stream> = (0..512).map(|_| Stream::open(&server, "", None)).collect();
    let refused = server.get("/v1/events");
    assert_eq!((refused.status, refused.problem().as_str()), (503, "too-many-streams"));
    assert_eq!(server.claim("a", 60.0).len(), "/v1/claims/0123456789abcdef0123456789abcdef/".len());
    for stream in streams {
        stream.socket.shutdown(std::net::Shutdown::Both).unwrap();
    }
    let gauge = || server.get("/metrics").text().lines().any(|line| line == "leasehold_event_streams 0");
    eventually("every place is free again", gauge);
    Stream::open(&server, "", None);
}

#[test]
fn a_node_that_stops_ends_its_streams() {
    let mut server = Server::start();
    let mut stream = Stream::open(&server, "", None);
    assert!(!stream.block().comment.is_empty());
    assert!(server.terminate().success());
    let mut rest = String::new();
    stream.lines.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    assert!(!server.logged().contains("did not end in time"), "{}", server.logged());
}

#[test]
fn ids_are_the_same_on_every_node_and_a_reader_may_move() {
    let trio = Trio::start();
    let mut streams = trio.nodes.each_ref().map(|node| Stream::open(node, "?prefix=job/", None));
    let held = trio.nodes[0].claim("job/1", 600.0);
    trio.nodes[1].claim("job/1", 600.0);
    assert_eq!(trio.nodes[2].patch(&held, r#"{"status": "released"}"#).status, 204);
    let told = streams.each_mut().map(|stream| (0..4).map(|_| stream.event().data).collect::<Vec<Value>>());
    let kinds: Vec<&Value> = told[0].iter().map(|event| &event["kind"]).collect();
    assert_eq!(json!(kinds), json!(["active", "queued", "released", "active"]));
    assert_eq!(told[0], told[1]);
    assert_eq!(told[0], told[2]);
    let mut moved = Stream::open(&trio.nodes[2], "?prefix=job/", told[0][1]["id"].as_str());
    assert_eq!(moved.next(2), ["released job/1", "active job/1"]);
}
