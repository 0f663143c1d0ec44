//! Clients that go away: while they wait, at the moment of their grant, and with the server.

use std::io::Read;
use std::net::Shutdown;

use crate::common::{Client, Server, eventually};
use serde_json::Value;

const BODY: &[u8] = br#"{"title": "a client", "lifetime": 3600, "wait": 3600}"#;

fn send(server: &Server, resource: &str) -> Client {
    let mut client = server.client();
    client.send("POST", &format!("/locks/{resource}"), &[], BODY);
    client
}

fn held(server: &Server, resource: &str) -> String {
    let reply = send(server, resource).read_reply("POST").unwrap();
    assert_eq!(reply.status, 201, "{reply:?}");
    reply.location_path()
}

fn claims(server: &Server, resource: &str, status: &str) -> Vec<Value> {
    let list = server.get(&format!("/v1/claims/?limit=1000&status={status}&resource={resource}")).json();
    list.as_array().unwrap().clone()
}

/// Connections among them. The fewest of a few looks: earlier connections may be just about to end.
fn open_files(server: &Server) -> usize {
    let count = |_| {
        std::thread::sleep(std::time::Duration::from_millis(2));
        std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count()
    };
    (0..50).map(count).min().unwrap()
}

fn wait_for_queue(server: &Server, resource: &str, len: usize) {
    eventually("the queue is as long", || claims(server, resource, "waiting").len() == len);
}

#[test]
fn who_goes_away_while_waiting_leaves_the_queue_and_is_passed_over() {
    let server = Server::start();
    let holder = held(&server, "foo");
    let second = send(&server, "foo");
    wait_for_queue(&server, "foo", 1);
    let mut third = send(&server, "foo");
    wait_for_queue(&server, "foo", 2);
    drop(second);
    // No request of its own, no timeout: the end of the connection alone.
    wait_for_queue(&server, "foo", 1);
    assert_eq!(claims(&server, "foo", "withdrawn").len(), 1);
    assert_eq!(server.client().request("DELETE", &holder, &[], b"").status, 204);
    assert_eq!(third.read_reply("POST").unwrap().status, 201);
}

#[test]
fn who_closes_only_its_sending_side_counts_as_gone() {
    let server = Server::start();
    held(&server, "foo");
    let second = send(&server, "foo");
    wait_for_queue(&server, "foo", 1);
    second.stream().shutdown(Shutdown::Write).unwrap();
    wait_for_queue(&server, "foo", 0);
}

/// The client is gone before the server has read its request: the end of the stream is there before the answer is
/// written, whatever the server looks at first.
#[test]
fn who_is_gone_before_the_answer_leaves_no_lock_behind() {
    let server = Server::start();
    held(&server, "first");
    server.client().request("DELETE", "/resources", &[], b"");
    let before = open_files(&server);
    for i in 0..200 {
        let resource = format!("r{i}");
        drop(send(&server, &resource));
    }
    // Some are gone before there is a claim; the others' claims end. Nothing is left once all connections are over.
    eventually("all connections are over", || open_files(&server) <= before);
    eventually("all are taken back", || {
        server.get("/v1/claims/?limit=1000&status=active").json().as_array().unwrap().is_empty()
    });
}

/// The same when the grant comes out of the queue and the client closes at about the same moment. Who closes
/// first never leaves a lock behind; who closes second may, and that is printed.
#[test]
fn who_closes_at_the_moment_of_the_grant_leaves_no_lock_behind() {
    let server = Server::start();
    for round in 0..100 {
        let resource = format!("r{round}");
        let holder = held(&server, &resource);
        let leaving = send(&server, &resource);
        wait_for_queue(&server, &resource, 1);
        let mut next = send(&server, &resource);
        wait_for_queue(&server, &resource, 2);
        let (mut releasing, mut arrived) = (server.client(), false);
        if round % 2 == 0 {
            releasing.send("DELETE", &holder, &[], b"");
            leaving.stream().set_nonblocking(true).unwrap();
            arrived = leaving.stream().peek(&mut [0]).is_ok();
            drop(leaving);
        } else {
            drop(leaving);
            releasing.send("DELETE", &holder, &[], b"");
        }
        assert_eq!(releasing.read_reply("DELETE").unwrap().status, 204);
        // Who closed first is certainly gone. Who closed with the answer already in its own machine can't be told
        // from one that read it (see docs/locks.md): such a round is let go.
        if round % 2 == 0 {
            next.stream().set_read_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
        }
        match next.read_reply("POST") {
            Ok(reply) => assert_eq!(reply.status, 201),
            Err(error) if round % 2 == 0 => {
                eprintln!(
                    "round {round}: the lock stayed; answer there just before the close: {arrived} ({error})"
                );
            }
            Err(error) => panic!("round {round}: nobody got the lock: {error}"),
        }
    }
}

/// A request that follows its own answer's place in the stream hides the end of the stream from the server until it
/// has answered: the answer is refused by the client's machine then, and the lock taken back.
#[test]
fn an_answer_that_the_clients_machine_refuses_gives_the_lock_back() {
    let server = Server::start();
    let holder = held(&server, "foo");
    let mut second = send(&server, "foo");
    // Stray bytes behind the request, more than the server keeps: it can't look past them while the request stands open.
    second.send_raw(&b"\r\n".repeat(16 << 10));
    wait_for_queue(&server, "foo", 1);
    let mut third = send(&server, "foo");
    wait_for_queue(&server, "foo", 2);
    drop(second);
    assert_eq!(server.client().request("DELETE", &holder, &[], b"").status, 204);
    assert_eq!(third.read_reply("POST").unwrap().status, 201, "the second was passed over");
    assert_eq!(claims(&server, "foo", "withdrawn").len(), 1);
    assert!(
        server.logged().contains("its client was gone before the answer came"),
        "it was granted, then taken back"
    );
}

#[test]
fn who_read_its_answer_and_closes_keeps_its_lock() {
    let server = Server::start();
    for (i, headers) in [&[][..], &[("Connection", "close")]].iter().enumerate() {
        let resource = format!("r{i}");
        let mut client = server.client();
        client.send("POST", &format!("/locks/{resource}"), headers, BODY);
        let reply = client.read_reply("POST").unwrap();
        assert_eq!(reply.status, 201);
        drop(client);
        // The server has seen the connection end once it answers on a new one after it; look often all the same.
        for _ in 0..50 {
            assert_eq!(server.get(&reply.location_path()).status, 200);
        }
    }
}

#[test]
fn who_goes_on_after_its_answer_keeps_its_lock_however_the_connection_ends() {
    let server = Server::start();
    let mut client = send(&server, "foo");
    let path = client.read_reply("POST").unwrap().location_path();
    // The answer to this one stays unread: closing resets the connection.
    client.send("GET", &path, &[], b"");
    let mut first_byte = [0];
    client.stream().peek(&mut first_byte).unwrap();
    drop(client);
    for _ in 0..50 {
        assert_eq!(server.get(&path).status, 200);
    }
}

#[test]
fn a_server_that_stops_tells_who_waits_to_come_back_and_forgets_them() {
    let mut server = Server::start();
    let holder = held(&server, "foo");
    let mut clients: Vec<Client> = (0..20).map(|_| send(&server, "foo")).collect();
    wait_for_queue(&server, "foo", 20);
    assert!(server.terminate().success());
    for client in &mut clients {
        let reply = client.read_reply("POST").unwrap();
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
        let mut rest = [0];
        assert_eq!(client.stream().read(&mut rest).unwrap_or(0), 0, "the connection is over");
    }
    server.restart();
    assert_eq!(claims(&server, "foo", "waiting").len(), 0);
    assert_eq!(server.get(&holder).status, 200, "what is held stays held");
}

#[test]
fn a_server_that_was_killed_forgets_who_waited_and_remembers_who_held() {
    let mut server = Server::start();
    let holder = held(&server, "foo");
    let _clients: Vec<Client> = (0..20).map(|_| send(&server, "foo")).collect();
    wait_for_queue(&server, "foo", 20);
    let claim = server.claim("foo", 300.0);
    server.restart();
    assert_eq!(server.get(&holder).status, 200);
    let waiting = claims(&server, "foo", "waiting");
    assert_eq!(waiting.len(), 1, "claims wait without a connection");
    assert!(claim.ends_with(waiting[0]["url"].as_str().unwrap().split_once("/v1/").unwrap().1));
}
