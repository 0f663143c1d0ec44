//! Spans of requests, as a collector gets them.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use leasehold_lab::cluster::Cluster;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;

use crate::collector::{Collector, attribute, hex};
use crate::common::{Client, PATIENCE, Server, claim_body, eventually};

const PARENT: &str = "00f067aa0ba902b7";

fn traceparent(trace: &str, flags: &str) -> String {
    format!("00-{trace}-{PARENT}-{flags}")
}

/// The request's own span.
fn request(spans: &[Span]) -> Option<&Span> {
    spans.iter().find(|span| span.kind == SpanKind::Server as i32)
}

/// The names of the spans below it.
fn hops(spans: &[Span]) -> Vec<&str> {
    let Some(request) = request(spans) else { return Vec::new() };
    let below = spans.iter().filter(|span| span.parent_span_id == request.span_id);
    below.map(|span| span.name.as_str()).collect()
}

fn counted(server: &Server, series: &str) -> u64 {
    let metrics = server.get("/metrics").text();
    let found = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {series} in\n{metrics}")).parse().unwrap()
}

#[test]
fn a_request_is_a_span_below_its_caller_and_the_hops_of_the_engine_are_below_it() {
    let collector = Collector::start();
    let server = Server::start_with(&["--otlp", &collector.url()]);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let headers = [("traceparent", &*traceparent(trace, "01"))];
    let reply =
        server.client().request("POST", "/v1/claims/", &headers, claim_body("db/main", 60.0).as_bytes());
    assert_eq!(reply.status, 201);
    let own = reply.header("traceparent").unwrap().split('-').nth(2).unwrap().to_string();
    eventually("its span comes", || request(&collector.trace(trace)).is_some());
    let spans = collector.trace(trace);
    let span = request(&spans).unwrap();
    assert_eq!((hex(&span.parent_span_id), hex(&span.span_id)), (PARENT.into(), own));
    assert_eq!(span.name, "claim");
    for (name, value) in [
        ("http.request.method", "POST"),
        ("url.path", "/v1/claims/"),
        ("http.response.status_code", "201"),
        ("client.address", "127.0.0.1"),
    ] {
        assert_eq!(attribute(&span.attributes, name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(hops(&spans), ["queue", "commit", "apply"]);
    assert!(span.start_time_unix_nano > 1_700_000_000_000_000_000, "{span:?}");
    for hop in spans.iter().filter(|hop| hop.span_id != span.span_id) {
        assert!(hop.start_time_unix_nano >= span.start_time_unix_nano, "{hop:?} {span:?}");
        assert!(hop.end_time_unix_nano <= span.end_time_unix_nano, "{hop:?} {span:?}");
        assert!(hop.start_time_unix_nano <= hop.end_time_unix_nano, "{hop:?}");
    }
    assert_eq!(collector.resource("service.name").as_deref(), Some("leasehold"));
    assert_eq!(collector.resource("service.instance.id").as_deref(), Some("1"));
}

/// Sends a line to the port of Redis clients, and reads the first line of the reply.
fn redis(server: &Server, line: &str) -> String {
    let stream = TcpStream::connect(server.other_addrs[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    (&stream).write_all(format!("{line}\r\n").as_bytes()).unwrap();
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply).unwrap();
    reply.trim_end().into()
}

#[test]
fn a_redis_command_is_a_span_of_its_own_without_its_arguments() {
    let collector = Collector::start();
    let server = Server::start_with(&["--otlp", &collector.url(), "--redis-listen", "127.0.0.1:0"]);
    assert_eq!(redis(&server, "PING"), "+PONG");
    assert_eq!(redis(&server, "set job secret-value NX PX 60000"), "+OK");
    assert!(redis(&server, "STEAL job secret-value").starts_with("-ERR unknown command"));
    assert_eq!(redis(&server, "DELIFEQ job secret-value"), ":1");
    eventually("the last one comes", || collector.all().iter().any(|span| span.name == "DELIFEQ"));
    let all = collector.all();
    let spans: Vec<&Span> = all.iter().filter(|span| span.kind == SpanKind::Server as i32).collect();
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["SET", "unknown command", "DELIFEQ"], "a PING is a probe");
    let below = |span: &Span| {
        let trace: Vec<Span> = all.iter().filter(|other| other.trace_id == span.trace_id).cloned().collect();
        hops(&trace).join(" ")
    };
    assert_eq!(
        spans.iter().map(|span| below(span)).collect::<Vec<_>>(),
        ["queue commit apply", "", "queue commit apply"]
    );
    for (span, code) in spans.iter().zip([None, Some("ERR"), None]) {
        assert_eq!(attribute(&span.attributes, "db.system.name").as_deref(), Some("redis"));
        assert_eq!(attribute(&span.attributes, "db.operation.name").as_deref(), Some(&*span.name));
        assert_eq!(attribute(&span.attributes, "db.response.status_code").as_deref(), code);
        assert_eq!(attribute(&span.attributes, "client.address").as_deref(), Some("127.0.0.1"));
    }
    assert!(!format!("{all:?}").contains("secret-value"));
}

#[test]
fn callers_decide_what_is_recorded_and_probes_are_not() {
    let collector = Collector::start();
    let server = Server::start_with(&["--otlp", &collector.url()]);
    let unrecorded = "00000000000000000000000000000abc";
    let headers = [("traceparent", &*traceparent(unrecorded, "00"))];
    assert_eq!(server.client().request("GET", "/v1/claims/", &headers, b"").status, 200);
    server.get("/livez");
    server.get("/nowhere");
    // Spans come in order: what was asked before this and is not here by then does not come.
    assert_eq!(server.get("/v1/overview").status, 200);
    eventually("the last one comes", || collector.all().iter().any(|span| span.name == "overview"));
    let all = collector.all();
    let mut names: Vec<&str> = all.iter().map(|span| span.name.as_str()).collect();
    names.dedup();
    assert_eq!(names, ["unknown path", "overview"], "{all:#?}");
    assert!(all.iter().all(|span| span.parent_span_id.is_empty() && span.trace_id.len() == 16));
    assert!(collector.trace(unrecorded).is_empty());
    eventually("they are counted", || counted(&server, "leasehold_traces_exported_total") >= 2);
}

/// Nobody waits for a collector that is gone, and its spans are counted.
#[test]
fn a_collector_that_is_gone_costs_spans_and_nothing_else() {
    let gone = leasehold_lab::port::Port::reserve().unwrap();
    let server = Server::start_with(&["--otlp", &format!("http://{}", gone.addr)]);
    let mut client = server.client();
    for i in 0..50 {
        let body = claim_body(&format!("r{i}"), 60.0);
        assert_eq!(client.request("POST", "/v1/claims/", &[], body.as_bytes()).status, 201);
    }
    eventually("they are counted", || counted(&server, "leasehold_traces_dropped_total") >= 50);
    assert_eq!(counted(&server, "leasehold_traces_exported_total"), 0);
    assert_eq!(server.logged().matches("traces are dropped").count(), 1, "{}", server.logged());
}

#[test]
fn a_follower_shows_the_way_to_its_leader_and_the_barrier_of_its_reads() {
    let collector = Collector::start();
    let cluster = Cluster::start(
        std::path::Path::new(env!("CARGO_BIN_EXE_leasehold")),
        3,
        &["--otlp", &collector.url()],
    );
    let cluster = cluster.unwrap();
    cluster.converge().unwrap();
    let leader = cluster.leader().unwrap();
    let follower = cluster.ids().into_iter().find(|id| *id != leader).unwrap();
    let mut asked = 0u128;
    let mut seen = |method: &str, path: &str, expected: &[&str]| {
        eventually(&format!("{method} {path} has {expected:?}"), || {
            asked += 1;
            let trace = format!("{:032x}", 0xabc_0000 + asked);
            let headers = [("traceparent", &*traceparent(&trace, "01"))];
            let body = if method == "POST" { claim_body(&format!("r{asked}"), 60.0) } else { String::new() };
            let reply =
                Client::connect(cluster.addr(follower)).request(method, path, &headers, body.as_bytes());
            assert!(matches!(reply.status, 200 | 201), "{reply:?}");
            eventually("its span comes", || request(&collector.trace(&trace)).is_some());
            let spans = collector.trace(&trace);
            expected.iter().all(|hop| hops(&spans).contains(hop))
        });
    };
    seen("POST", "/v1/claims/", &["queue", "forward", "commit", "apply"]);
    seen("GET", "/v1/claims/", &["barrier"]);
}
