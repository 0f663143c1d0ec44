//! Several addresses, of which the first can't help: refused, silent, broken, somebody else's. And nodes that fall silent
//! while a request waits for its turn.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{PATIENCE, Server};
use crate::proxy::{Fault, Proxy};
use leasehold_client::ClaimInfo;
use leasehold_client::{Api, Options};
use serde_json::json;

fn leasehold(addresses: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.args(args).env("LEASEHOLD_ADDR", addresses).env_remove("LEASEHOLD_KEY").output().unwrap()
}

fn succeeds(addresses: &str, args: &[&str]) -> String {
    let output = leasehold(addresses, args);
    assert!(output.status.success(), "{addresses} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Something that is no lock server: it does this with every connection.
fn stranger(handle: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
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

/// Answers the first bytes of every connection with this, and closes it.
fn answering(answer: &'static str) -> String {
    stranger(move |mut stream| {
        drop(stream.read(&mut [0; 4096]));
        stream.write_all(answer.as_bytes()).ok();
    })
}

/// Reads for ever.
fn silent() -> String {
    stranger(|mut stream| while stream.read(&mut [0; 4096]).is_ok_and(|len| len > 0) {})
}

fn refusing() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn an_address_that_cannot_help_is_left_for_the_next_one() {
    let server = Server::start();
    let closed = "Connection: close\r\nContent-Length: 0\r\n\r\n";
    let html = "Content-Type: text/html\r\nConnection: close\r\nContent-Length: 15\r\n\r\n<html>hi</html>";
    let leak = |text: String| -> &'static str { text.leak() };
    for (what, first) in [
        ("refused", refusing()),
        ("silent", silent()),
        ("closed", stranger(|mut stream| drop(stream.read(&mut [0; 4096])))),
        ("401", answering(leak(format!("HTTP/1.1 401 Unauthorized\r\n{closed}")))),
        ("404", answering(leak(format!("HTTP/1.1 404 Not Found\r\n{html}")))),
        ("502", answering(leak(format!("HTTP/1.1 502 Bad Gateway\r\n{html}")))),
        ("503", answering(leak(format!("HTTP/1.1 503 Unavailable\r\n{html}")))),
        ("a page", answering(leak(format!("HTTP/1.1 200 OK\r\n{html}")))),
        ("no HTTP", answering("220 mail.example.org ESMTP\r\n")),
        ("no TLS", answering("HTTP/1.1 400 Bad Request\r\n\r\n").replace("http:", "https:")),
        ("no such name", "http://locks.invalid:4080".into()),
    ] {
        let both = format!("{first},http://{}", server.addr);
        let resource = format!("r/{what}");
        let id = succeeds(&both, &["claim", &resource, "--quiet", "--ttl", "600"]);
        assert!(succeeds(&both, &["list"]).contains(id.trim()), "{what}");
        succeeds(&both, &["release", id.trim()]);
        assert_eq!(succeeds(&both, &["run", "-n", &resource, "--", "echo", "ran"]), "ran\n", "{what}");
        succeeds(&both, &["cluster", "status"]);
        succeeds(&both, &["limits"]);
        assert_eq!(server.list(&format!("resource={}", resource.replace(' ', "%20"))).len(), 2, "{what}");
    }
    let file = server.data.join("../backup").display().to_string();
    succeeds(&format!("{},http://{}", silent(), server.addr), &["backup", &file]);
}

#[test]
fn a_lost_answer_is_asked_for_at_the_next_address_and_happens_once() {
    let server = Server::start();
    let lossy = Proxy::before(server.addr);
    lossy.rule(|_| Fault::Lose);
    let both = format!("{},http://{}", lossy.url(), server.addr);
    let id = succeeds(&both, &["claim", "r", "--quiet", "--ttl", "600"]);
    assert_eq!(server.list("resource=r").len(), 1, "claimed once");
    // The first request released it; the second is told that it is over, just as it was asked for.
    succeeds(&both, &["release", id.trim()]);
    let again = leasehold(&both, &["release", "0123456789abcdef0123456789abcdef"]);
    assert!(!again.status.success());
}

#[test]
fn a_change_that_must_happen_once_is_not_sent_to_a_second_node() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let first = stranger(|mut stream| drop(stream.read(&mut [0; 4096])));
    let second = stranger(move |mut stream| {
        drop(stream.read(&mut [0; 4096]));
        count.fetch_add(1, Ordering::SeqCst);
    });
    let both = format!("{first},{second}");
    let output = leasehold(&both, &["cluster", "transfer", "2"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("unknown"), "{output:?}");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    // A read may ask anybody, and its outcome is never unknown.
    let output = leasehold(&both, &["cluster", "status"]);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("unknown"), "{output:?}");
    assert!(asked.load(Ordering::SeqCst) > 0);
}

/// Passes bytes on, until it is frozen: then it takes connections and passes nothing.
fn relay(to: SocketAddr, frozen: &Arc<AtomicBool>) -> String {
    let frozen = frozen.clone();
    stranger(move |client| {
        let wait = |frozen: &AtomicBool| {
            while frozen.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        wait(&frozen);
        let server = TcpStream::connect(to).unwrap();
        let pass = |mut from: TcpStream, mut to: TcpStream, frozen: Arc<AtomicBool>| {
            std::thread::spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(len) = from.read(&mut piece)
                    && len > 0
                {
                    wait(&frozen);
                    if to.write_all(&piece[..len]).is_err() {
                        return;
                    }
                }
            })
        };
        let there = pass(client.try_clone().unwrap(), server.try_clone().unwrap(), frozen.clone());
        pass(server, client, frozen.clone());
        there.join().ok();
    })
}

/// A claim in the queue, and a request that waits for its turn for longer than this test waits for anything.
async fn waiter(api: &Api, server: &Server) -> ClaimInfo {
    let claim = api.post(&json!({ "resource": "r", "ttl": 600 }), "a-key").await.unwrap();
    server.wait_for_queue("r", 1);
    let turn = api.await_turn(claim.id(), Duration::from_secs(500));
    tokio::time::timeout(PATIENCE, turn).await.expect("the node was never left").unwrap().unwrap()
}

fn release(server: &Server, claim: &str) {
    assert_eq!(server.patch(claim, r#"{"status": "released"}"#).status, 204);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn a_waiting_request_leaves_a_node_that_falls_silent() {
    let server = Server::start();
    let frozen = Arc::new(AtomicBool::new(false));
    let proxy = Proxy::before(server.addr);
    let urls = [relay(proxy.addr, &frozen), format!("http://{}", server.addr)];
    let holder = server.claim("r", 600.0);
    runtime().block_on(async {
        let api = Api::new(&Options::url(&urls.join(","))).unwrap();
        let freeze = async {
            while proxy.count("activate") == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            frozen.store(true, Ordering::SeqCst);
            release(&server, &holder);
        };
        let (claim, ()) = tokio::join!(waiter(&api, &server), freeze);
        assert_eq!(claim.status, "active");
    });
}

#[test]
fn a_request_that_waits_for_its_turn_at_a_healthy_node_is_left_alone() {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    let holder = server.claim("r", 600.0);
    runtime().block_on(async {
        let api = Api::new(&Options::url(&proxy.url())).unwrap();
        let let_go = async {
            // The node was asked whether it is alive, and said so.
            while proxy.count("other") < 3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            release(&server, &holder);
        };
        let (claim, ()) = tokio::join!(waiter(&api, &server), let_go);
        assert_eq!(claim.status, "active");
        assert_eq!(proxy.count("activate"), 1);
    });
}
