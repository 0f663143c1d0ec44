//! `leasehold watch` tells of every change, once, through breaks and restarts.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use crate::common::{PATIENCE, Server};
use crate::support::{leasehold, url};

/// A watch on `r`, and what it tells.
struct Watching {
    child: Child,
    lines: Receiver<Value>,
}

impl Watching {
    fn start(url: &str) -> Self {
        let mut child = leasehold(url, &["watch", "r", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                sender.send(serde_json::from_str(&line).unwrap()).ok();
            }
        });
        Self { child, lines }
    }

    fn next(&self) -> (String, Option<u64>) {
        let line = self.lines.recv_timeout(PATIENCE).unwrap();
        assert_eq!(line["resource"], "r", "{line}");
        (line["status"].as_str().unwrap().into(), line["token"].as_u64())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().unwrap();
    }
}

const RELEASED: &str = r#"{"status": "released"}"#;

fn news(status: &str, token: u64) -> (String, Option<u64>) {
    (status.into(), Some(token))
}

#[test]
fn every_change_is_told_once_also_those_between_two_looks() {
    let server = Server::start();
    let holder = server.claim("r", 500.0);
    let watching = Watching::start(&url(&server));
    assert_eq!(watching.next(), news("active", 1), "what is there already");
    // Names that only begin like it are others.
    server.claim("r-and-more", 500.0);
    let waiter = server.claim("r", 500.0);
    assert_eq!(watching.next(), ("waiting".into(), None));
    server.patch(&holder, RELEASED);
    assert_eq!(watching.next(), news("released", 1));
    assert_eq!(watching.next().0, "active");
    server.patch(&waiter, r#"{"ttl": 400}"#);
    server.patch(&waiter, RELEASED);
    assert_eq!(watching.next().0, "released");
    // Claims that live for less than any two looks are apart.
    for _ in 0..30 {
        server.patch(&server.claim("r", 500.0), RELEASED);
    }
    for _ in 0..30 {
        let (status, token) = watching.next();
        assert_eq!((status.as_str(), watching.next()), ("active", ("released".into(), token)));
    }
}

#[test]
fn a_node_that_falls_silent_is_left() {
    let server = Server::start();
    let forward = Forward::to(server.addr);
    let watching = Watching::start(&format!("{},{}", forward.url(), url(&server)));
    let holder = server.claim("r", 500.0);
    assert_eq!(watching.next(), news("active", 1));
    forward.set(Way::Silent);
    server.patch(&holder, RELEASED);
    assert_eq!(watching.next(), news("released", 1));
}

#[test]
fn what_happens_while_the_service_is_away_is_told_afterwards() {
    let mut server = Server::start();
    let forward = Forward::to(server.addr);
    let watching = Watching::start(&forward.url());
    let holder = server.claim("r", 500.0);
    assert_eq!(watching.next(), news("active", 1));
    // This one is certainly told by an event: the watch knows where to go on.
    let waiter = server.claim("r", 500.0);
    assert_eq!(watching.next(), ("waiting".into(), None));
    server.patch(&waiter, r#"{"status": "withdrawn"}"#);
    assert_eq!(watching.next(), ("withdrawn".into(), None));
    forward.set(Way::Closed);
    server.patch(&holder, RELEASED);
    server.patch(&server.claim("r", 500.0), RELEASED);
    forward.set(Way::Open(server.addr));
    assert_eq!(watching.next(), news("released", 1));
    assert_eq!(watching.next(), news("active", 2));
    assert_eq!(watching.next(), news("released", 2));
    // A service that has started again may not have the events any more; it has the claims.
    forward.set(Way::Closed);
    server.patch(&server.claim("r", 500.0), RELEASED);
    server.restart();
    server.claim("r", 500.0);
    forward.set(Way::Open(server.addr));
    let mut told = vec![watching.next()];
    while told.last() != Some(&news("active", 4)) {
        told.push(watching.next());
    }
    assert!(told.contains(&news("released", 3)), "a claim that came and went meanwhile: {told:?}");
}

/// What becomes of connections, those that are open too.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Open(SocketAddr),
    /// They stay, and nothing passes.
    Silent,
    /// They break.
    Closed,
}

/// A way to the service that can be changed.
struct Forward {
    addr: SocketAddr,
    way: Arc<Mutex<Way>>,
}

impl Forward {
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (addr, way) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Way::Open(target))));
        let shared = way.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Way::Open(target) = *shared.lock().unwrap() else { continue };
                let Ok(server) = TcpStream::connect(target) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let way = shared.clone();
                    std::thread::spawn(move || pass(from, to, target, &way));
                }
            }
        });
        Self { addr, way }
    }

    fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    fn set(&self, way: Way) {
        *self.way.lock().unwrap() = way;
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, target: SocketAddr, way: &Mutex<Way>) {
    from.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let mut bytes = [0; 4096];
    loop {
        let now = *way.lock().unwrap();
        let read = match now {
            Way::Silent => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            Way::Open(same) if same == target => from.read(&mut bytes),
            _ => Ok(0),
        };
        // It may have fallen silent while this waited for bytes.
        while *way.lock().unwrap() == Way::Silent {
            std::thread::sleep(Duration::from_millis(10));
        }
        match read {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Ok(len) if len > 0 && to.write_all(&bytes[..len]).is_ok() => {}
            _ => {
                to.shutdown(Shutdown::Both).ok();
                return drop(from.shutdown(Shutdown::Both));
            }
        }
    }
}
