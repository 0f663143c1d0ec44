//! Requests to a simulated node, as bytes of HTTP over a connection that dies with its node.
//!
//! In:    a method, a path and a body. Out: status and body, or nothing: then nobody knows.
//! Never: tells a refused connection from a lost one.

use std::time::Duration;

use leasehold_engine::machine::simulated::runtime::{self, sleep_us, timeout};
use leasehold_server::serve::connection::serve_simulated;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::world;
use crate::random::Random;

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(8);
/// Bytes that a connection holds on their way.
const ON_THEIR_WAY: usize = 16 << 10;

/// What a node said.
pub(super) struct Said {
    pub(super) status: u16,
    pub(super) body: Value,
}

/// Asks some node.
pub(super) async fn request(
    random: &mut Random,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> Option<Said> {
    let node = world::any_node(random).unwrap_or(0);
    sleep_us(100 + random.below(3_000)).await;
    let Some(running) = world::node(node) else {
        sleep_us(100_000).await;
        return None;
    };
    let (mut here, there) = tokio::io::duplex(ON_THEIR_WAY);
    runtime::spawn_on(node, serve_simulated(running.app, there));
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: node{node}\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    // The bytes of a request may come in two pieces.
    let cut = random.below(text.len() as u64) as usize;
    let pause_us = random.below(2_000);
    let conversation = async move {
        here.write_all(&text.as_bytes()[..cut]).await.ok()?;
        sleep_us(pause_us).await;
        here.write_all(&text.as_bytes()[cut..]).await.ok()?;
        let mut answer = Vec::new();
        here.read_to_end(&mut answer).await.ok()?;
        Some(answer)
    };
    let answer = timeout(PATIENCE, conversation).await.ok()??;
    sleep_us(100 + random.below(3_000)).await;
    parse(&answer)
}

/// Asks a node to do something, and goes away after a while. Says whether no answer had come by then.
pub(super) async fn abandoned_request(
    random: &mut Random,
    node: u64,
    path: &str,
    body: &str,
    stay_us: u64,
) -> bool {
    sleep_us(100 + random.below(3_000)).await;
    let Some(running) = world::node(node) else { return false };
    let (mut here, there) = tokio::io::duplex(ON_THEIR_WAY);
    runtime::spawn_on(node, serve_simulated(running.app, there));
    let len = body.len();
    let text = format!("POST {path} HTTP/1.1\r\nHost: node{node}\r\nContent-Length: {len}\r\n\r\n{body}");
    if here.write_all(text.as_bytes()).await.is_err() {
        return false;
    }
    timeout(Duration::from_micros(stay_us), here.read_u8()).await.is_err()
}

/// A whole answer, or none.
fn parse(answer: &[u8]) -> Option<Said> {
    let text = std::str::from_utf8(answer).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    if length.is_some_and(|length| length.parse() != Ok(body.len())) {
        return None;
    }
    Some(Said { status, body: serde_json::from_str(body).unwrap_or(Value::Null) })
}
