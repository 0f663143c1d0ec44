//! One service on several addresses: clients of the older servers find it where they look.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Client, Server, TempDir, claim_body};

/// A service with a second address.
fn two_addresses() -> (Server, [SocketAddr; 2]) {
    let server = Server::start_with(&["--listen", "127.0.0.1:0"]);
    let addrs = [server.addr, server.other_addrs[0]];
    assert_ne!(addrs[0].port(), addrs[1].port());
    (server, addrs)
}

/// An address that nobody has at the moment.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn every_dialect_is_served_on_every_address_over_one_table() {
    let (server, addrs) = two_addresses();
    for (number, addr) in addrs.into_iter().enumerate() {
        let other = addrs[1 - number];
        let ask = |addr: SocketAddr, method: &str, path: &str, body: &str| {
            Client::connect(addr).request(method, path, &[("X-Quorum-Client-ID", "db1")], body.as_bytes())
        };
        let claim = ask(addr, "POST", "/v1/claims/", &claim_body(&format!("r{number}"), 60.0));
        assert_eq!((claim.status, ask(other, "GET", &claim.location_path(), "").status), (201, 200));
        let wanted = r#"{"title": "t", "lifetime": 600, "wait": 0}"#;
        let lock = ask(addr, "POST", &format!("/locks/lock{number}"), wanted);
        assert_eq!((lock.status, ask(other, "DELETE", &lock.location_path(), "").status), (201, 204));
        let lease = format!("/v1/ns/leases/l{number}");
        assert_eq!((ask(addr, "POST", &lease, "").status, ask(other, "PUT", &lease, "").status), (201, 202));
        let typed = format!(r#"{{"ids": ["t{number}"], "hostname": "h", "owner": 1}}"#);
        let [held, busy] = [addr, other].map(|addr| ask(addr, "POST", "/v1/dss/media/lock", &typed).status);
        assert_eq!((held, busy), (200, 409));
        for path in ["/livez", "/readyz", "/v1/health", "/", "/metrics"] {
            assert_eq!(ask(addr, "GET", path, "").status, 200, "{path}");
        }
    }
    // Others are told the first.
    let cluster = server.get("/v1/cluster").json();
    assert_eq!(cluster["nodes"][0]["url"], format!("http://{}", server.addr), "{cluster}");
}

#[test]
fn a_node_on_all_addresses_names_none_unless_it_is_told_one() {
    let shown = |flags: &[&str]| {
        let dir = TempDir::new();
        let (_service, addrs) = announced(&dir, |command| {
            command.args(["--insecure", "--listen", "0.0.0.0:0,127.0.0.1:0"]).args(flags);
        });
        let reply = Client::connect(addrs[1]).request("GET", "/v1/cluster", &[], b"");
        reply.json()["nodes"][0]["url"].clone()
    };
    assert_eq!(shown(&[]), serde_json::Value::Null);
    assert_eq!(shown(&["--advertise-url", "http://a.example:4080"]), "http://a.example:4080");
}

#[test]
fn both_addresses_end_with_the_service() {
    let (mut server, addrs) = two_addresses();
    assert!(server.terminate().success());
    for addr in addrs {
        assert!(TcpStream::connect(addr).is_err(), "{addr} is still open");
    }
}

#[test]
fn an_address_that_is_taken_is_named_and_no_other_is_opened() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = (taken.local_addr().unwrap(), taken);
    let (first, dir, done) = (free_address(), TempDir::new(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reached = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if TcpStream::connect(first).is_ok() {
                    return true;
                }
            }
            false
        });
        let args = ["--listen", &first.to_string(), "--listen", &taken.0.to_string()];
        let output = Server::try_start_in(&dir.path().join("data"), &args).err();
        done.store(true, Ordering::Relaxed);
        let output = output.expect("it started on an address that is taken");
        assert!(output.contains(&format!("can't listen on {}", taken.0)), "{output}");
        assert!(output.contains("in use"), "{output}");
        assert!(!reached.join().unwrap(), "a client got through to a service that did not start");
    });
}

#[test]
fn each_address_that_others_can_reach_needs_access_control() {
    let dir = TempDir::new();
    let refused = Server::try_start_in(dir.path(), &["--listen", "0.0.0.0:0"]).err().unwrap();
    assert!(refused.contains("0.0.0.0:0 can be reached from other machines"), "{refused}");
    let same = free_address().to_string();
    let twice = Server::try_start_in(dir.path(), &["--listen", &same, "--listen", &same]).err().unwrap();
    assert!(twice.contains(&format!("{same} is given twice")), "{twice}");
}

/// A service that is set up by `configure` alone, and the addresses that it names.
fn announced(dir: &TempDir, configure: impl FnOnce(&mut Command)) -> (Killed, Vec<SocketAddr>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.arg("serve").arg("--data").arg(dir.path().join("data"));
    configure(&mut command);
    let mut child = Killed(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines().take(2);
    let addrs = lines.map(|line| line.unwrap().split_once("://").unwrap().1.parse().unwrap()).collect();
    (child, addrs)
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn the_environment_and_the_file_name_several_addresses_too() {
    for by_file in [false, true] {
        let dir = TempDir::new();
        let (_service, addrs) = announced(&dir, |command| {
            if by_file {
                let file = dir.path().join("leasehold.toml");
                std::fs::write(&file, "listen = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\n").unwrap();
                command.arg("--config").arg(file);
            } else {
                command.env("LEASEHOLD_LISTEN", "127.0.0.1:0,127.0.0.1:0");
            }
        });
        assert_eq!(addrs.len(), 2);
        for addr in addrs {
            let host = [("Host", "localhost")];
            assert_eq!(Client::connect(addr).request("GET", "/livez", &host, b"").status, 200);
        }
    }
}
