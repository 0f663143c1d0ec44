//! Hostile input: errors look as those of Redis, nothing changes, and nobody else is slowed down.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use crate::common::{Server, eventually};
use crate::support::{REDIS, Resp, encoded, port_of};

#[test]
fn bytes_that_are_no_command_end_the_connection_with_a_reason() {
    let server = Server::start_with(&REDIS);
    for (bytes, said) in [
        (&b"*1000000\r\n"[..], "-ERR Protocol error: invalid multibulk length"),
        (b"*1\r\n$1000000000000\r\n", "-ERR Protocol error: invalid bulk length"),
        (b"*1\r\n$-1\r\n", "-ERR Protocol error: invalid bulk length"),
        (b"*1\r\n:1\r\n", "-ERR Protocol error: expected '$', got ':'"),
        (b"GET \"k\r\n", "-ERR Protocol error: unbalanced quotes in request"),
    ] {
        let mut redis = Resp::to(&server);
        redis.send(bytes);
        assert_eq!(redis.reply().as_deref(), Some(said));
        assert!(redis.ends());
    }
    let mut long = Resp::to(&server);
    long.stream().try_clone().unwrap().write_all(&[b'x'; 70_000]).ok();
    assert_eq!(long.reply().as_deref(), Some("-ERR Protocol error: too big inline request"));
    assert!(server.list("").is_empty());
}

#[test]
fn a_web_page_gets_nothing_done_here() {
    let server = Server::start_with(&REDIS);
    for request in
        ["POST / HTTP/1.1\r\n\r\nSET k v NX\r\n", "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nSET k v NX\r\n"]
    {
        let mut redis = Resp::to(&server);
        redis.send(request.as_bytes());
        redis.stream().shutdown(Shutdown::Write).unwrap();
        assert!(redis.ends());
    }
    assert!(server.list("").is_empty(), "a web page took a lock");
    assert!(server.logged().contains("an HTTP request arrived on the port for Redis clients"));
}

#[test]
fn a_transaction_is_refused_as_a_whole() {
    let server = Server::start_with(&REDIS);
    let mut redis = Resp::to(&server);
    let mut transaction = |last: &str| {
        let replies =
            ["MULTI", "SET deploy me NX PX 60000", "GET deploy", last].map(|command| redis.ask(command));
        assert!(
            replies[..3].iter().all(|reply| reply.starts_with("-ERR transactions are not supported")),
            "{replies:?}"
        );
        replies[3].clone()
    };
    assert!(transaction("EXEC").starts_with("-EXECABORT"));
    assert_eq!(transaction("DISCARD"), "+OK");
    assert_eq!(redis.ask("GET deploy"), "nil");
}

#[test]
fn half_a_command_ends_however_slowly_the_rest_comes() {
    let server = Server::start_with(&[&REDIS[..], &["--header-timeout", "1"]].concat());
    let mut redis = Resp::to(&server);
    redis.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$60000\r\n");
    let mut stream = redis.stream().try_clone().unwrap();
    eventually("the connection ends", || {
        std::thread::sleep(Duration::from_millis(200));
        stream.write_all(b"x").is_err()
    });
    let mut idle = Resp::to(&server);
    assert_eq!(idle.ask("PING"), "+PONG");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(idle.ask("PING"), "+PONG", "between two commands there is no hurry");
}

#[test]
fn a_connection_has_a_short_and_plain_name() {
    let server = Server::start_with(&REDIS);
    let mut redis = Resp::to(&server);
    assert_eq!(redis.ask("CLIENT SETNAME worker-1"), "+OK");
    for name in [&[b'x'; 257][..], b"two words", b"line\n"] {
        let refused = redis.ask_with(&[b"CLIENT", b"SETNAME", name]);
        assert!(refused.starts_with("-ERR Client names cannot contain"), "{refused}");
        assert!(redis.ask_with(&[b"HELLO", b"2", b"SETNAME", name]).starts_with("-ERR Client names"));
    }
    assert_eq!(redis.ask("CLIENT GETNAME"), "\"worker-1\"");
}

#[test]
fn a_wrong_command_is_named_and_changes_nothing() {
    let server = Server::start_with(&REDIS);
    let mut redis = Resp::to(&server);
    for (command, said) in [
        ("SET k", "-ERR wrong number of arguments for 'set' command"),
        ("GET", "-ERR wrong number of arguments for 'get' command"),
        ("SET k v", "-ERR SET without NX could take the lock of another client"),
        ("SET k v NX PX 99999999999999999999", "-ERR value is not an integer or out of range"),
        ("SET k v NX PX 9223372036854775807", "-ERR invalid expire time in 'set' command"),
        ("FLUSHALL", "-ERR unknown command 'FLUSHALL'; this port is for locks"),
        ("SUBSCRIBE x", "-ERR unknown command 'SUBSCRIBE'"),
        ("CLIENT KILL x", "-ERR CLIENT KILL is not supported on this port"),
    ] {
        let reply = redis.ask(command);
        assert!(reply.starts_with(said), "{command}: {reply}");
    }
    assert!(redis.ask_with(&[b"SET", b"\xff\xfe", b"v", b"NX"]).contains("UTF-8"));
    assert!(redis.ask_with(&[b"SET", &[b'k'; 3000], b"v", b"NX"]).contains("1 to 2048 bytes"));
    assert!(redis.ask_with(&[b"\r\n-OK\r\n"]).starts_with("-ERR unknown command"));
    assert_eq!(redis.ask("PING"), "+PONG", "the connection is still in step");
    assert!(server.list("").is_empty());
}

#[test]
fn half_a_command_does_not_stay_for_ever_and_an_idle_connection_may() {
    let server = Server::start_with(&[&REDIS[..], &["--header-timeout", "0.5"]].concat());
    let mut idle = Resp::to(&server);
    assert_eq!(idle.ask("PING"), "+PONG");
    let mut half = Resp::to(&server);
    half.send(b"*3\r\n$3\r\nSET\r\n$1");
    assert!(half.ends());
    assert_eq!(idle.ask("PING"), "+PONG");
}

#[test]
fn commands_that_never_end_have_a_budget() {
    // Three quarters of 8 MiB are the share of loopback: 64 clients want 256 KiB each.
    let server = Server::start_with(&[&REDIS[..], &["--body-bytes-max", "8388608"]].concat());
    let half = [&b"*10\r\n"[..], &[&b"$65000\r\n"[..], &[b'x'; 65_000], b"\r\n"].concat().repeat(3)].concat();
    let mut clients: Vec<Resp> = (0..64).map(|_| Resp::to(&server)).collect();
    for client in &mut clients {
        client.stream().set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        client.stream().write_all(&half).ok();
    }
    let closed = |client: &Resp| {
        client.stream().set_nonblocking(true).unwrap();
        let gone = !matches!(client.stream().peek(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
        client.stream().set_nonblocking(false).unwrap();
        gone
    };
    eventually("some are turned away", || clients.iter().filter(|client| closed(client)).count() >= 10);
    assert_eq!(Resp::to(&server).ask("SET k v NX PX 60000"), "+OK", "a small command needs no room");
}

#[test]
fn a_client_that_never_reads_is_left_and_others_are_served() {
    let server = Server::start_with(&[&REDIS[..], &["--write-timeout", "1"]].concat());
    let deaf = Resp::to(&server);
    let (mut sender, pings) =
        (deaf.stream().try_clone().unwrap(), encoded(&[b"ECHO", &[b'x'; 1000]]).repeat(100));
    sender.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    // An endless pipeline whose replies nobody takes.
    let flood = std::thread::spawn(move || while sender.write_all(&pings).is_ok() {});
    let mut other = Resp::to(&server);
    for round in 0..100 {
        assert_eq!(other.ask(&format!("SET k{round} v NX PX 60000")), "+OK");
    }
    flood.join().unwrap();
    drop(deaf);
    let addr = port_of(&server);
    assert_eq!(Resp::connect(addr).ask("PING"), "+PONG");
}

#[test]
fn a_pipeline_without_an_end_does_not_keep_others_waiting() {
    let server = Server::start_with(&REDIS);
    let greedy = Resp::to(&server);
    let (mut sender, commands) =
        (greedy.stream().try_clone().unwrap(), encoded(&[b"EXISTS", b"somebody-else's"]).repeat(1000));
    let sending = std::thread::spawn(move || while sender.write_all(&commands).is_ok() {});
    let (mut taker, mut taken) = (greedy.stream().try_clone().unwrap(), [0; 64 << 10]);
    let reading = std::thread::spawn(move || while taker.read(&mut taken).is_ok_and(|len| len > 0) {});
    let mut other = Resp::to(&server);
    for round in 0..100 {
        assert_eq!(other.ask(&format!("SET k{round} v NX PX 60000")), "+OK");
    }
    greedy.stream().shutdown(Shutdown::Both).unwrap();
    sending.join().unwrap();
    reading.join().unwrap();
}

#[test]
fn one_connection_too_many_is_told_so() {
    let server =
        Server::start_with(&[&REDIS[..], &["--connections-max", "4", "--client-share", "1"]].concat());
    let mut clients: Vec<Resp> = (0..4).map(|_| Resp::to(&server)).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.ask("PING"), "+PONG"));
    let mut fifth = Resp::to(&server);
    assert_eq!(fifth.reply().as_deref(), Some("-ERR max number of clients reached"));
    drop(clients.pop());
    eventually("there is a place again", || {
        let mut next = Resp::to(&server);
        next.stream().write_all(b"PING\r\n").is_ok() && next.reply().as_deref() == Some("+PONG")
    });
}
