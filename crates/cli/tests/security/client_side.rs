//! What a hostile server, or a neighbour on the same machine, can do to those who use the command line.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use serde_json::json;

use crate::common::{Server, TempDir};

/// Everything that a terminal could take for a command: escapes, the one-byte CSI, DEL, a turn of the direction.
const ACTIVE: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{7f}\u{202e}\r";

fn leasehold(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_leasehold")).args(args).env_remove("LEASEHOLD_KEY").output().unwrap()
}

/// Answers every request on every connection with this.
fn hostile_server(status: &str, body: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/problem+json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = Vec::new();
            let mut piece = [0; 4096];
            // Every request here has a body that ends with a brace, or none.
            while let Ok(len) = stream.read(&mut piece)
                && len > 0
            {
                request.extend_from_slice(&piece[..len]);
                if request.ends_with(b"\r\n\r\n") || request.ends_with(b"}") {
                    break;
                }
            }
            stream.write_all(answer.as_bytes()).ok();
        }
    });
    url
}

/// What was printed has nothing that a terminal acts on.
fn assert_harmless(args: &[&str], output: &Output) {
    for bytes in [&output.stdout, &output.stderr] {
        let text = String::from_utf8(bytes.clone()).unwrap();
        let active = |c: &char| (c.is_control() && *c != '\n') || *c == '\u{202e}';
        assert_eq!(text.chars().find(active), None, "{args:?}: {text:?}");
    }
}

#[test]
fn nothing_that_a_server_says_reaches_a_terminal_as_an_escape() {
    let problem =
        json!({"type": "about:blank", "title": ACTIVE, "status": 403, "detail": format!("no{ACTIVE}")});
    let refusing = hostile_server("403 Forbidden", &problem.to_string());
    let id = "0123456789abcdef0123456789abcdef";
    let claims: &[&[&str]] = &[
        &["claim", "r", "--addr", &refusing],
        &["list", "--addr", &refusing],
        &["show", "r", "--addr", &refusing],
        &["renew", id, "--addr", &refusing],
        &["release", id, "--addr", &refusing],
        &["revoke", id, "--reason", "r", "--addr", &refusing],
        &["run", "r", "--addr", &refusing, "--", "true"],
        &["cluster", "status", "--addr", &refusing],
        &["backup", "/nonexistent/backup", "--addr", &refusing],
    ];
    for args in claims {
        let output = leasehold(args);
        assert!(!output.status.success(), "{args:?}");
        assert_harmless(args, &output);
        assert!(String::from_utf8_lossy(&output.stderr).contains("no\\u{1b}"), "{args:?}: {output:?}");
    }
    let claim = json!([{
        "id": id, "href": ACTIVE, "url": ACTIVE, "resource": ACTIVE, "status": format!("active{ACTIVE}"), "owner": ACTIVE,
        "expires": ACTIVE, "ttl": 1.0, "user_data": {"host": ACTIVE, "command": ACTIVE},
        "status_history": [{"timestamp": ACTIVE, "status": ACTIVE}],
    }]);
    let listing = hostile_server("200 OK", &claim.to_string());
    for args in [&["list", "--addr", &listing][..], &["list", "--json", "--addr", &listing]] {
        let output = leasehold(args);
        assert_harmless(args, &output);
    }
    let status = json!({"term": ACTIVE, "leader": ACTIVE, "nodes": [{"id": ACTIVE, "role": ACTIVE, "version": ACTIVE,
        "address": ACTIVE, "url": ACTIVE, "digest": ACTIVE, "digest_at": ACTIVE}]});
    let cluster = hostile_server("200 OK", &status.to_string());
    for args in
        [&["cluster", "status", "--addr", &cluster][..], &["cluster", "status", "--json", "--addr", &cluster]]
    {
        let output = leasehold(args);
        assert!(output.status.success(), "{output:?}");
        assert_harmless(args, &output);
    }
}

#[test]
fn a_backup_is_for_its_owners_eyes_alone() {
    let (server, dir) = (Server::start(), TempDir::new());
    server.claim("r", 600.0);
    let file = dir.path().join("table.backup");
    // What lies there from before, and what an interrupted backup left, may be open to all.
    for name in ["table.backup", "table.partial"] {
        std::fs::write(dir.path().join(name), "old").unwrap();
        std::fs::set_permissions(dir.path().join(name), std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    let made = leasehold(&["backup", file.to_str().unwrap(), "--addr", &format!("http://{}", server.addr)]);
    assert!(made.status.success(), "{made:?}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}
