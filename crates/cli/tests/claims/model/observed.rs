//! Events have one line for each item; metrics count claims, and items by mode.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use super::{granted, queued, release};
use crate::common::{PATIENCE, Server};
use serde_json::{Value, json};

/// The first events since the start of the log.
fn events(server: &Server, count: usize) -> Vec<Value> {
    let mut socket = TcpStream::connect(server.addr).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(socket, "GET /v1/events?last=1000 HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    let lines = BufReader::new(socket).lines().map(Result::unwrap);
    let data = lines.filter_map(|line| Some(serde_json::from_str(line.strip_prefix("data: ")?).unwrap()));
    data.take(count).collect()
}

#[test]
fn one_event_for_each_item_under_one_claim() {
    let server = Server::start();
    let (path, _) = granted(
        &server,
        json!({"resources": ["a", {"resource": "b", "mode": "shared"}, {"resource": "c", "take": 2, "of": 3}]}),
    );
    release(&server, &path);
    let told = events(&server, 6);
    let words = |event: &Value| {
        format!(
            "{} {} {}",
            event["kind"].as_str().unwrap(),
            event["resource"].as_str().unwrap(),
            event["mode"].as_str().unwrap()
        )
    };
    let words: Vec<String> = told.iter().map(words).collect();
    assert_eq!(
        words,
        [
            "active a exclusive",
            "active b shared",
            "active c slots",
            "released a exclusive",
            "released b shared",
            "released c slots"
        ]
    );
    assert!(told.iter().all(|event| event["claim"] == told[0]["claim"] && event["token"].is_u64()));
    assert_eq!((&told[2]["take"], &told[2]["of"], &told[2]["slots"]), (&2.into(), &3.into(), &json!([1, 2])));
    assert!(told[0].get("take").is_none() && told[1].get("slots").is_none());
}

#[test]
fn metrics_count_claims_once_and_items_by_mode() {
    let server = Server::start();
    let (path, _) = granted(&server, json!({"resources": ["a", "b", {"resource": "c", "mode": "shared"}]}));
    queued(&server, json!({"resources": ["a", {"resource": "s", "take": 1, "of": 2}]}));
    release(&server, &path);
    queued(
        &server,
        json!({"resources": [{"resource": "a", "mode": "shared"}, {"resource": "s", "take": 2, "of": 2}]}),
    );
    let metrics = server.get("/metrics").text();
    for line in [
        "leasehold_items_held{mode=\"exclusive\"} 1",
        "leasehold_items_held{mode=\"shared\"} 0",
        "leasehold_items_held{mode=\"slots\"} 1",
        "leasehold_items_waiting{mode=\"exclusive\"} 0",
        "leasehold_items_waiting{mode=\"shared\"} 1",
        "leasehold_items_waiting{mode=\"slots\"} 1",
        "leasehold_claims_granted_total 2",
        "leasehold_claims_queued_total 2",
        "leasehold_claims_ended_total{status=\"released\"} 1",
        "leasehold_lock_handover_seconds_count 1",
        "leasehold_items_granted_total{mode=\"exclusive\"} 3",
        "leasehold_items_granted_total{mode=\"shared\"} 1",
        "leasehold_items_granted_total{mode=\"slots\"} 1",
        "leasehold_items_queued_total{mode=\"slots\"} 2",
        "leasehold_items_freed_total{mode=\"exclusive\"} 2",
        "leasehold_item_wait_seconds_count{mode=\"slots\"} 1",
        "leasehold_holders 1",
        "leasehold_waiters 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
}
