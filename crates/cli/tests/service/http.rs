//! HTTP/1.1 as clients of all kinds speak it: in one piece, byte by byte, in chunks, after asking first.
//!
//! In:    a real service, and bytes on a real socket. Out: what every client may rely on, whatever its library does.
//! Never: what is refused; that is `bad_input.rs`.

use std::io::{Read, Write};
use std::time::Duration;

use crate::common::{Server, claim_body};

fn post(body: &str) -> String {
    format!("POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Gives the other side time to see what was sent so far on its own. Nothing depends on it: if it does not, a check is
/// weaker in this run.
fn pause() {
    std::thread::sleep(Duration::from_millis(2));
}

#[test]
fn a_request_may_come_in_pieces_of_any_size() {
    let server = Server::start();
    let mut client = server.client();
    for size in [1, 7, 50, 90] {
        let request = post(&claim_body(&format!("r{size}"), 9.0));
        for piece in request.as_bytes().chunks(size) {
            client.send_raw(piece);
            pause();
        }
        assert_eq!(client.reply().status, 201, "in pieces of {size}");
    }
    // Most libraries send a head and then, in a piece of its own, the body.
    let request = post(&claim_body("two", 9.0));
    let (head, body) = request.split_at(request.find("\r\n\r\n").unwrap() + 4);
    client.send_raw(head.as_bytes());
    pause();
    client.send_raw(body.as_bytes());
    assert_eq!(client.reply().status, 201);
}

#[test]
fn a_body_in_chunks_is_a_body_and_the_next_request_follows_it() {
    let server = Server::start();
    let mut client = server.client();
    for size in [1, 5, 1000] {
        let body = claim_body(&format!("r{size}"), 9.0);
        let mut request =
            "POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".to_string();
        for chunk in body.as_bytes().chunks(size) {
            request += &format!("{:x};any=thing\r\n{}\r\n", chunk.len(), std::str::from_utf8(chunk).unwrap());
        }
        request += "0\r\nTrailer: ignored\r\n\r\n";
        client.send_raw(request.as_bytes());
        assert_eq!(client.reply().status, 201, "in chunks of {size}");
    }
}

#[test]
fn who_asks_before_it_sends_a_body_is_told_to_go_on() {
    let server = Server::start();
    let body = claim_body("r", 9.0);
    let request = post(&body).replace("Host: x", "Host: x\r\nExpect: 100-continue");
    let mut client = server.client();
    client.send_raw(request.strip_suffix(&body).unwrap().as_bytes());
    let mut word = [0; 25];
    client.stream().read_exact(&mut word).unwrap();
    assert_eq!(std::str::from_utf8(&word).unwrap(), "HTTP/1.1 100 Continue\r\n\r\n");
    client.send_raw(body.as_bytes());
    assert_eq!(client.reply().status, 201);
    // Who sends it anyway, at once, is answered at once.
    client.send_raw(request.replace("\"r\"", "\"s\"").as_bytes());
    assert_eq!(client.reply().status, 201);
}

#[test]
fn a_refusal_that_needs_no_body_does_not_cost_the_connection() {
    let server = Server::start();
    let mut client = server.client();
    for _ in 0..3 {
        client.send_raw(b"POST /nothing/here HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\n");
        assert_eq!(client.reply().status, 404);
        client.send_raw(&[b'x'; 40]);
        assert_eq!(client.request("GET", "/livez", &[], b"").status, 200);
    }
}

#[test]
fn a_head_alone_tells_how_long_the_body_would_be() {
    let server = Server::start();
    let path = server.claim("r", 60.0);
    let mut client = server.client();
    let whole = client.request("GET", &path, &[], b"");
    client.send("HEAD", &path, &[], b"");
    let head = client.read_reply("HEAD").unwrap();
    assert_eq!((head.status, head.text().as_str()), (200, ""));
    assert_eq!(head.header("content-type"), whole.header("content-type"));
    assert!(head.header("content-length").unwrap().parse::<usize>().unwrap() > 100);
    // Nothing of a body came: the next answer begins where it should.
    assert_eq!(client.request("GET", "/livez", &[], b"").status, 200);
}

#[test]
fn old_clients_are_kept_if_they_ask() {
    let server = Server::start();
    let mut client = server.client();
    for _ in 0..3 {
        client.send_raw(b"GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        let reply = client.reply();
        assert_eq!((reply.status, reply.header("connection")), (200, Some("keep-alive")));
    }
    // A stream to one of them ends with the connection: it would not understand chunks.
    let mut stream = server.client();
    stream.send_raw(b"GET /v1/events HTTP/1.0\r\n\r\n");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.stream().read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Connection: close"), "{head}");
    assert!(!head.contains("Transfer-Encoding"), "{head}");
}

#[test]
fn what_is_no_request_is_answered_with_what_is_wrong() {
    let server = Server::start();
    for (sent, status, said) in [
        (&b"hello\r\n\r\n"[..], 400, "method"),
        (b"GET / HTTP/3.0\r\n\r\n", 400, "HTTP/1.1"),
        (b"GET / HTTP/1.1\r\nBad Name: 1\r\n\r\n", 400, "header"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n", 400, "Content-Length"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 400, "chunked"),
    ] {
        let mut client = server.client();
        client.send_raw(sent);
        let reply = client.reply();
        assert_eq!((reply.status, reply.problem().as_str()), (status, "not-http"));
        assert!(reply.json()["detail"].as_str().unwrap().contains(said), "{reply:?}");
    }
}

#[test]
fn a_slow_reader_of_a_long_list_gets_all_of_it() {
    let server = Server::start();
    for i in 0..300 {
        server.claim(&format!("{i:0>200}"), 60.0);
    }
    let mut client = server.client();
    let request = "GET /v1/claims/?limit=1000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    client.stream().write_all(request.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let reply = client.read_reply("GET").unwrap();
    assert_eq!(reply.json().as_array().unwrap().len(), 300);
}

#[test]
fn connections_near_the_engine_and_far_from_it_hand_over_to_each_other() {
    // The first ones are served by the engine's own thread, and more than it takes by others.
    const CONNECTIONS: usize = 300;
    let server = Server::start();
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| server.client()).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        client.send_raw(post(&claim_body(&format!("own{i}"), 60.0)).as_bytes());
    }
    for client in &mut clients {
        assert_eq!(client.reply().status, 201);
    }
    let (near, far) = (0, CONNECTIONS - 1);
    for (holder, waiter) in [(near, far), (far, near)] {
        let body = claim_body(&format!("shared{holder}"), 60.0);
        clients[holder].send_raw(post(&body).as_bytes());
        let held = clients[holder].reply();
        assert_eq!(held.status, 201);
        let waiting = post(&body).replace("/v1/claims/", "/v1/claims/?wait=60");
        clients[waiter].send_raw(waiting.as_bytes());
        pause();
        let path = held.header("location").unwrap().to_string();
        let path = &path[path.find("/v1/").unwrap()..];
        let released = clients[holder].request("PATCH", path, &[], br#"{"status": "released"}"#);
        assert_eq!(released.status, 204, "{}", released.text());
        assert_eq!(clients[waiter].reply().status, 201);
        // And a list, which is made elsewhere, shows both.
        let list = clients[holder].request("GET", &format!("/v1/claims/?resource=shared{holder}"), &[], b"");
        assert_eq!((list.status, list.json().as_array().unwrap().len()), (200, 2));
    }
}
