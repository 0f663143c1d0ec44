//! What is left of a claim when it is granted, by the word of servers of any release.
//!
//! In:    a server on a real socket that answers as release 0.1.0 does (`ttl` is the length), or as later ones do (`ttl` is what
//!        is left, beside `initial_ttl`). Out: whether the client relies on the claim for that time and no longer.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_client::blocking::LockManager;
use leasehold_client::{ClaimRequest, Options};

/// A server that queues every claim, grants it at the first question with these fields, and takes renewals.
struct Scripted {
    url: String,
    /// The methods and bodies of all requests.
    seen: Arc<Mutex<Vec<String>>>,
}

fn serve(granted: &'static str) -> Scripted {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let requests = seen.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, requests) = (stream.unwrap(), requests.clone());
            std::thread::spawn(move || while answer(&stream, granted, &requests).is_some() {});
        }
    });
    Scripted { url, seen }
}

/// Answers one request; `None` once the client has closed.
fn answer(stream: &TcpStream, granted: &str, seen: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut len) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            len = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
        head += &line;
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    let body = String::from_utf8(body).unwrap();
    let method = head.split(' ').next().unwrap().to_string();
    let claim = |status: &str, fields: &str| {
        let url = "http://x/v1/claims/0123456789abcdef0123456789abcdef/";
        format!(r#"{{"url": "{url}", "resource": "r", "status": "{status}", "token": 7{fields}}}"#)
    };
    let (status, text) = match (method.as_str(), body.as_str()) {
        ("POST", _) if head.contains("renewals") => ("404 Not Found", String::new()),
        ("POST", _) => ("202 Accepted", claim("waiting", "")),
        (_, body) if body.contains("released") => ("204 No Content", String::new()),
        (_, body) if body.contains("\"ttl\"") => ("200 OK", claim("active", r#", "ttl": 60.0"#)),
        _ => ("200 OK", claim("active", granted)),
    };
    seen.lock().unwrap().push(format!("{method} {body}"));
    let mut stream = stream;
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{text}", text.len()).ok()
}

/// How long the client relies on a claim that was granted so, and whether it had to be renewed first.
fn relied_on(granted: &'static str) -> (Duration, bool) {
    let server = serve(granted);
    let options = Options::url(&server.url).ttl(Duration::from_secs(60));
    let manager = LockManager::new(options).unwrap();
    let claim = manager.request(ClaimRequest::new("r")).unwrap();
    let left = claim.holds_until().remaining();
    let renewed = server.seen.lock().unwrap().iter().any(|request| request.contains(r#"{"ttl":"#));
    claim.release().unwrap();
    (left, renewed)
}

#[test]
fn a_claim_that_was_picked_up_late_has_its_whole_ttl() {
    // Promoted 110 s ago; the first request has just started the ttl.
    let (left, renewed) = relied_on(r#", "ttl": 60.0, "initial_ttl": 60.0, "active_duration": 110.0"#);
    assert!(!renewed && left > Duration::from_secs(30), "{left:?}, renewed: {renewed}");
}

#[test]
fn what_is_left_counts_and_not_the_length() {
    let (left, renewed) = relied_on(r#", "ttl": 40.0, "initial_ttl": 60.0, "active_duration": 0.5"#);
    assert!(!renewed && left < Duration::from_secs(40), "{left:?}, renewed: {renewed}");
    // Too little to rely on: a renewal has to succeed first.
    let (left, renewed) = relied_on(r#", "ttl": 3.0, "initial_ttl": 60.0, "active_duration": 0.5"#);
    assert!(renewed && left > Duration::from_secs(30), "{left:?}, renewed: {renewed}");
}

#[test]
fn a_server_of_release_0_1_0_tells_the_length_and_how_long_it_was_held() {
    let (left, renewed) = relied_on(r#", "ttl": 60.0, "active_duration": 20.0"#);
    assert!(!renewed && left < Duration::from_secs(40), "{left:?}, renewed: {renewed}");
    let (left, renewed) = relied_on(r#", "ttl": 60.0, "active_duration": 57.0"#);
    assert!(renewed && left > Duration::from_secs(30), "{left:?}, renewed: {renewed}");
    // A server that tells neither: nothing is known to be left.
    let (left, renewed) = relied_on("");
    assert!(renewed && left > Duration::from_secs(30), "{left:?}, renewed: {renewed}");
}
