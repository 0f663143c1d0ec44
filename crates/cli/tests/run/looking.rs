//! The commands that look at claims and change them.

use std::process::{Command, Stdio};

use crate::common::{PATIENCE, Server, TempDir};
use crate::proxy::{Fault, Proxy};
use crate::support::{leasehold, url};

#[test]
fn people_and_programs_can_look() {
    let server = Server::start();
    let say = |args: &[&str]| {
        let output = leasehold(&url(&server), args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, id) = say(&["claim", "r", "--ttl", "500", "--quiet", "--data", "{\"host\": \"a\\u001b[2J\"}"]);
    assert_eq!((code, id.trim().len()), (Some(0), 32));
    server.claim("r", 5.0);
    let (_, table) = say(&["show", "r"]);
    assert!(table.starts_with("CLAIM") && table.lines().count() == 3 && table.contains("waiting"), "{table}");
    assert!(!table.contains('\u{1b}'), "neither colours in a pipe nor somebody else's control characters");
    let (_, shown) = say(&["show", id.trim(), "--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap()["status"], "active");
    let (_, queue) = say(&["show", "r", "--json"]);
    let queue: serde_json::Value = serde_json::from_str(&queue).unwrap();
    assert_eq!(
        (queue["holder"]["token"].as_u64(), queue["queue"][0]["position"].as_u64()),
        (Some(1), Some(1))
    );
    assert_eq!(say(&["claim", "r", "-n"]).0, Some(75));
    assert_eq!(say(&["claim", "r", "-w", "0.1", "-E", "3"]).0, Some(3));
    let (_, renewed) = say(&["renew", id.trim(), "--ttl", "77", "--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&renewed).unwrap()["ttl"], 77.0);
    let (_, listed) = say(&["list", "--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&listed).unwrap().as_array().unwrap().len(), 2);
    assert_eq!(say(&["release", id.trim()]).0, Some(0));
    assert_eq!(say(&["release", id.trim()]).0, Some(1));
    assert_eq!(say(&["show", "nobody-has-it"]).1, "nobody-has-it is free\n");
    assert_eq!(say(&["show", &"0".repeat(32)]).0, Some(1));
    for shell in ["bash", "zsh", "fish"] {
        assert!(say(&["completions", shell]).1.contains("keychain"), "{shell}");
    }
    let dir = TempDir::new();
    assert_eq!(say(&["man", "--dir", dir.path().to_str().unwrap()]).0, Some(0));
    let page = std::fs::read_to_string(dir.path().join("leasehold-run.1")).unwrap();
    assert!(page.contains("128+n") && page.contains("LEASEHOLD_TOKEN"));
    assert!(!dir.path().join("leasehold-exec-for.1").exists());
}

#[test]
fn watching_tells_of_every_change_and_survives_a_restart() {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    let args = ["watch", "r", "--json", "--interval", "0.05"];
    let mut child =
        leasehold(&proxy.url(), &args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (sender, lines) = std::sync::mpsc::channel();
    let out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || {
        for line in std::io::BufRead::lines(out).map_while(Result::ok) {
            sender.send(serde_json::from_str::<serde_json::Value>(&line).unwrap()).ok();
        }
    });
    let claim = server.claim("r", 500.0);
    assert_eq!(lines.recv_timeout(PATIENCE).unwrap()["status"], "active");
    proxy.rule(|_| Fault::Cut);
    server.patch(&claim, r#"{"status": "released"}"#);
    proxy.heal();
    assert_eq!(lines.recv_timeout(PATIENCE).unwrap()["status"], "released");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn keys_travel_as_bearer_tokens() {
    let dir = TempDir::new();
    let file = dir.path().join("key");
    std::fs::write(&file, "from-a-file\nand more\n").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let show = || leasehold(&url, &["show", "r"]);
    let asked = |command: &mut Command| {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let (stream, _) = listener.accept().unwrap();
        let lines = std::io::BufRead::lines(std::io::BufReader::new(stream));
        let head: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        head.into_iter().find(|line| line.to_ascii_lowercase().starts_with("authorization:"))
    };
    let header = |key: &str| Some(format!("authorization: Bearer {key}"));
    assert_eq!(asked(show().env("LEASEHOLD_KEY", "from-the-variable")), header("from-the-variable"));
    assert_eq!(asked(show().env("LEASEHOLD_KEY_FILE", &file)), header("from-a-file"));
    assert_eq!(asked(show().args(["--key", "from-a-flag"])), header("from-a-flag"));
    assert_eq!(asked(&mut show()), None);
}
