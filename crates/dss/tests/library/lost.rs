//! Servers that are not there, do not answer, answer nonsense, or whose answers are lost on the way.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold_dss::{Caller, Client, Errno, Kind, Options};
use leasehold_lab::port::Port;

use crate::harness::Server;

pub(crate) const ME: Caller<'static> = Caller { hostname: "here", pid: 42 };

pub(crate) fn client(url: &str, timeout_ms: u64) -> Client {
    let timeout = Some(Duration::from_millis(timeout_ms));
    Client::new(Options { url: Some(url.into()), timeout, ..Options::default() }).unwrap()
}

/// What each call gives.
pub(crate) fn errnos(client: &Client) -> [i32; 4] {
    let errno = |result: Result<(), Errno>| result.map_or_else(|errno| errno.0, |()| 0);
    [
        errno(client.lock(Kind::Media, &["a"], ME).map(drop)),
        errno(client.refresh(Kind::Media, &["a"], ME).1),
        errno(client.unlock(Kind::Media, &["a"], ME, false).1),
        errno(client.status(Kind::Media, &["a"]).1),
    ]
}

/// A server that does this with every connection, in a thread that ends with the test program.
pub(crate) fn serve(handle: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let handle = Arc::new(handle);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handle = handle.clone();
            std::thread::spawn(move || handle(stream));
        }
    });
    url
}

/// Reads one request; `None` when the client has gone.
pub(crate) fn read_request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    loop {
        if let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
            let len = head.split("content-length: ").nth(1)?.lines().next()?.trim().parse::<usize>().ok()?;
            if request.len() >= end + 4 + len {
                return Some(request);
            }
        }
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return None,
            Ok(len) => request.extend_from_slice(&piece[..len]),
        }
    }
}

#[test]
fn a_server_that_is_not_there_is_econnrefused_at_once() {
    let start = Instant::now();
    let nobody = Port::reserve().unwrap();
    assert_eq!(errnos(&client(&format!("http://{}", nobody.addr), 30_000)), [libc::ECONNREFUSED; 4]);
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_server_that_never_answers_is_etimedout_in_time() {
    let url = serve(|mut stream| while read_request(&mut stream).is_some() {});
    let start = Instant::now();
    assert_eq!(errnos(&client(&url, 300)), [libc::ETIMEDOUT; 4]);
    assert!((1_200..20_000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
}

#[test]
fn a_server_that_drops_every_connection_is_econnreset_in_time() {
    let url = serve(|mut stream| drop(read_request(&mut stream)));
    let start = Instant::now();
    assert_eq!(errnos(&client(&url, 1_000)), [libc::ECONNRESET; 4]);
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn answers_that_make_no_sense_are_eproto_and_refusals_are_told_apart() {
    for (answer, errno) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", libc::EPROTO),
        ("HTTP/1.1 200 OK\r\nContent-Length: 28\r\n\r\n{\"errno\": null, \"locks\": []}", libc::EPROTO),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope", libc::EPROTO),
        ("220 mail.example.org ESMTP\r\n\r\n", libc::EPROTO),
        ("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", libc::EPERM),
        ("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n", libc::E2BIG),
        ("HTTP/1.1 507 Full\r\nContent-Length: 0\r\n\r\n", libc::ENOSPC),
        ("HTTP/1.1 503 Not Now\r\nContent-Length: 0\r\n\r\n", libc::ETIMEDOUT),
    ] {
        let url = serve(move |mut stream| {
            while read_request(&mut stream).is_some() && stream.write_all(answer.as_bytes()).is_ok() {}
        });
        assert_eq!(errnos(&client(&url, 500)), [errno; 4], "{answer}");
    }
}

#[test]
fn the_key_goes_with_every_request_as_a_bearer() {
    let url = serve(|mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let head = String::from_utf8_lossy(&request).into_owned();
            let known = head.contains("\r\nAuthorization: Bearer open-sesame\r\n");
            let status = if known { "507 Known" } else { "401 Unknown" };
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").unwrap();
        }
    });
    let options = Options { url: Some(url), key: Some("open-sesame".into()), ..Options::default() };
    assert_eq!(errnos(&Client::new(options).unwrap()), [libc::ENOSPC; 4]);
}

/// A proxy that passes requests on, and drops the connection instead of the answer for the first of each kind.
pub(crate) fn forgetful_proxy(server: SocketAddr, lost: usize) -> (String, Arc<AtomicUsize>) {
    let passed = Arc::new(AtomicUsize::new(0));
    let count = passed.clone();
    let url = serve(move |mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let mut upstream = TcpStream::connect(server).unwrap();
            let text = String::from_utf8(request).unwrap();
            upstream.write_all(text.replacen("\r\n", "\r\nConnection: close\r\n", 1).as_bytes()).unwrap();
            let mut answer = Vec::new();
            upstream.read_to_end(&mut answer).unwrap();
            if count.fetch_add(1, Ordering::SeqCst) % (lost + 1) < lost {
                stream.shutdown(Shutdown::Both).ok();
                return;
            }
            stream.write_all(&answer).ok();
        }
    });
    (url, passed)
}

#[test]
fn calls_whose_answers_are_lost_happen_once_and_are_answered_rightly() {
    let server = Server::start();
    for lost in 1..4 {
        let (url, passed) = forgetful_proxy(server.port.addr, lost);
        let (client, direct) = (client(&url, 60_000), client(&server.url(), 60_000));
        let locks = client.lock(Kind::Media, &["a", "b"], ME).unwrap();
        assert_eq!(passed.load(Ordering::SeqCst), lost + 1);
        // Once: these are the tokens that the server gave the first time.
        let seen = direct.status(Kind::Media, &["a", "b"]).0;
        assert_eq!(seen, locks);
        // Another call of the same owner is refused, though its answers are lost as well.
        assert_eq!(client.lock(Kind::Media, &["b", "c"], ME).unwrap_err(), Errno(libc::EEXIST));
        assert_eq!(client.unlock(Kind::Media, &["a", "b"], ME, false).1, Ok(()));
        assert_eq!(client.unlock(Kind::Media, &["a"], ME, false).1, Err(Errno(libc::ENOLCK)));
        assert_eq!(direct.status(Kind::Media, &["a"]).1, Err(Errno(libc::ENOLCK)));
    }
}

#[test]
fn an_unlock_whose_answer_was_lost_leaves_what_another_thread_locked_since() {
    let server = Server::start();
    let direct = Arc::new(client(&server.url(), 60_000));
    direct.lock(Kind::Media, &["a"], ME).unwrap();
    let (addr, other, requests) = (server.port.addr, direct.clone(), Arc::new(AtomicUsize::new(0)));
    let url = serve(move |mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let mut upstream = TcpStream::connect(addr).unwrap();
            let text = String::from_utf8(request).unwrap();
            upstream.write_all(text.replacen("\r\n", "\r\nConnection: close\r\n", 1).as_bytes()).unwrap();
            let mut answer = Vec::new();
            upstream.read_to_end(&mut answer).unwrap();
            if requests.fetch_add(1, Ordering::SeqCst) == 0 {
                // Unlocked; and before the caller knows, another thread of the same process locks it.
                other.lock(Kind::Media, &["a"], ME).unwrap();
                return;
            }
            stream.write_all(&answer).ok();
        }
    });
    assert_eq!(client(&url, 60_000).unlock(Kind::Media, &["a"], ME, false).1, Ok(()));
    assert_eq!(direct.status(Kind::Media, &["a"]).1, Ok(()));
}

#[test]
fn connections_are_used_again_and_a_restart_of_the_server_is_not_noticed() {
    let mut server = Server::start();
    let client = client(&server.url(), 60_000);
    for round in 0..3 {
        client.lock(Kind::Object, &["x"], ME).unwrap();
        server.kill();
        server.start_again();
        assert_eq!(client.unlock(Kind::Object, &["x"], ME, false).1, Ok(()), "round {round}");
    }
}
