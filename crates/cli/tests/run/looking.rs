//! The commands that look at claims and change them.

use std::process::{Command, Stdio};

use crate::common::{Server, TempDir, eventually};
use crate::proxy::{Fault, Proxy};
use crate::support::{code_of, leasehold, number_in, url};
use crate::trio::Trio;

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

fn say(server: &Server, args: &[&str]) -> (Option<i32>, String, String) {
    let output = leasehold(&url(server), args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_resource_is_enough_to_release_or_revoke_what_holds_it() {
    let server = Server::start();
    let first = server.claim("db/main", 500.0);
    let second = server.claim("db/main", 500.0);
    assert_eq!(say(&server, &["release", "db/main"]).0, Some(0));
    assert_eq!((server.status(&first), server.status(&second)), ("released".into(), "active".into()));
    assert_eq!(say(&server, &["revoke", "db/main", "--reason", "the host is gone, \u{fc}ber"]).0, Some(0));
    assert_eq!(server.status(&second), "revoked");
    for args in [&["release", "db/main"][..], &["revoke", "db/main", "--reason", "x"]] {
        let (code, _, said) = say(&server, args);
        assert!(code == Some(1) && said.contains("nobody holds 'db/main'"), "{said}");
    }
    let (_, shown, _) = say(&server, &["show", second.trim_end_matches('/').rsplit('/').next().unwrap()]);
    assert!(shown.contains("the host is gone, \u{fc}ber"), "those who wonder later find the reason: {shown}");
}

#[test]
fn the_loser_is_told_why_its_claim_was_revoked() {
    let server = Server::start();
    let dir = TempDir::new();
    let args = ["run", "--ttl", "3", "r", "--", "sh", "-c", "echo $$ > \"$D/child\"; sleep 600"];
    let mut child =
        leasehold(&url(&server), &args).env("D", dir.path()).stderr(Stdio::piped()).spawn().unwrap();
    number_in(&dir.path().join("child"));
    assert_eq!(say(&server, &["revoke", "r", "--reason", "maintenance at noon"]).0, Some(0));
    assert_eq!(code_of(&mut child), Some(76));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("maintenance at noon"), "{said}");
}

#[test]
fn a_holder_that_is_revoked_when_gone_lets_go_before_the_next_begins() {
    let server = Server::start();
    let dir = TempDir::new();
    // It takes its time to stop.
    let script = "trap 'sleep 1; rm \"$D/busy\"; exit 0' TERM; touch \"$D/busy\"; echo $$ > \"$D/child\"; while :; do sleep 0.05; done";
    let args = ["run", "--ttl", "8", "--grace", "3", "r", "--", "sh", "-c", script];
    let mut child = leasehold(&url(&server), &args).env("D", dir.path()).spawn().unwrap();
    number_in(&dir.path().join("child"));
    let busy = dir.path().join("busy");
    let next = ["run", "r", "--", "test", "!", "-e", busy.to_str().unwrap()];
    let mut next = leasehold(&url(&server), &next).spawn().unwrap();
    server.wait_for_queue("r", 1);
    let (code, _, said) = say(&server, &["revoke", "r", "--when-gone", "--reason", "yours is next"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(code_of(&mut next), Some(0), "two worked at the same time");
    assert_eq!(code_of(&mut child), Some(76));
}

#[test]
fn lists_page_by_themselves_filter_by_prefix_show_the_time_left_and_say_where_they_stop() {
    let server = Server::start();
    let mut client = server.client();
    for n in 0..1300 {
        let body = crate::common::claim_body(&format!("many/{n}"), 500.0);
        assert_eq!(client.request("POST", "/v1/claims/", &[], body.as_bytes()).status, 201);
    }
    for n in 0..3 {
        server.claim(&format!("few/{n}"), 500.0);
    }
    let (_, all, said) = say(&server, &["list"]);
    assert_eq!((all.lines().count(), said.as_str()), (1 + 1303, ""));
    let (_, few, _) = say(&server, &["list", "--prefix", "few/"]);
    assert_eq!(few.lines().count(), 1 + 3, "{few}");
    assert!(few.contains("LEFT") && few.contains("8m"), "of 500 seconds: {few}");
    let (_, some, said) = say(&server, &["list", "--limit", "10"]);
    assert_eq!(some.lines().count(), 1 + 10);
    assert!(said.contains("only the first 10 claims of each status"), "{said}");
    assert_eq!(say(&server, &["list", "--prefix", "few/", "--limit", "3"]).1.lines().count(), 1 + 3);
    assert_eq!(say(&server, &["list", "--limit", "1303"]).2, "", "that is all");
}

#[test]
fn reads_are_never_unknown_and_can_be_stale() {
    let server = Server::start();
    let id = server.claim("r", 500.0).trim_end_matches('/').rsplit('/').next().unwrap().to_string();
    let proxy = Proxy::before(server.addr);
    for fault in [Fault::Cut, Fault::Lose, Fault::Answer(500), Fault::Answer(502), Fault::Answer(503)] {
        proxy.rule(move |_| fault);
        for args in [&["show", "r"][..], &["show", &id], &["list"]] {
            let output = leasehold(&proxy.url(), args).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1));
            assert!(!said.contains("unknown"), "{fault:?}: {said}");
            assert!(said.contains(&proxy.addr.to_string()), "what answered: {said}");
        }
    }
    let mut trio = Trio::start();
    trio.nodes[0].claim("r", 500.0);
    eventually("every node knows it", || {
        trio.nodes.iter().all(|node| node.list("resource=r&stale=true").len() == 1)
    });
    let [first, second, third] = &mut trio.nodes;
    second.kill();
    third.kill();
    for args in [&["show", "r"][..], &["list"]] {
        let fresh = say(first, args);
        assert!(fresh.0 == Some(1) && !fresh.2.contains("unknown"), "{fresh:?}");
        let stale = say(first, &[args, &["--stale"]].concat());
        assert!(stale.0 == Some(0) && stale.1.contains("active"), "{stale:?}");
    }
}

/// The server makes the claim, and its answer never comes.
#[test]
fn a_claim_that_was_made_unheard_is_taken_back() {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    let mut is_first = true;
    proxy.rule(move |asked| {
        if asked == "register" && std::mem::replace(&mut is_first, false) { Fault::Mute } else { Fault::None }
    });
    let output = leasehold(&proxy.url(), &["claim", "r", "-w", "1", "--ttl", "600"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(proxy.count("register"), 2, "the same POST finds the claim: {said}");
    let statuses: Vec<_> = server.list("resource=r").iter().map(|claim| claim["status"].clone()).collect();
    assert_eq!(statuses, ["released"], "one claim was made, and it is not left to its ttl: {said}");
}

/// The same, and nothing comes at all: then nobody knows.
#[test]
fn a_claim_that_may_have_been_made_is_called_unknown() {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    proxy.rule(|asked| if asked == "register" { Fault::Mute } else { Fault::None });
    let output = leasehold(&proxy.url(), &["claim", "r", "-w", "1", "--ttl", "600"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("unknown") && said.contains("ends with its ttl"), "{said}");
}

#[test]
fn a_slip_of_the_user_is_answered_with_what_to_do() {
    let server = Server::start();
    let nobody = "http://127.0.0.1:1";
    let here = url(&server);
    let rows: [(&str, &[&str], Option<i32>, &str); 6] = [
        (nobody, &["show", "db"], Some(1), "`leasehold serve` starts one"),
        (nobody, &["cluster", "status"], Some(1), "LEASEHOLD_ADDR or --addr names it"),
        (&here, &["renew", "db"], Some(1), "'db' is not the id or URL of a claim"),
        (&here, &["run", "--", "echo", "no-such-command"], Some(127), "'echo' was taken for the resource"),
        (&here, &["run", "db"], Some(125), "leasehold run [OPTIONS] <RESOURCE> -- <COMMAND>..."),
        (&here, &["serve", "--listen", "4080"], Some(2), "like 127.0.0.1:4080"),
    ];
    for (url, args, code, hint) in rows {
        let output = leasehold(url, args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == code && said.contains(hint), "{args:?}: {:?} {said}", output.status);
    }
    let output = leasehold(&here, &["run", "db", "--", "no-such-command"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("was taken for"), "{said}");
}

#[test]
fn a_claim_whose_holder_is_asked_to_let_go_is_shown_as_revoking() {
    let server = Server::start();
    let (_, id, _) = say(&server, &["claim", "r", "--ttl", "500", "--quiet"]);
    assert_eq!(say(&server, &["revoke", "r", "--when-gone", "--reason", "maintenance"]).0, Some(0));
    let looks: [&[&str]; 3] = [&["show", "r"], &["show", id.trim()], &["list"]];
    for args in looks {
        let (_, shown, _) = say(&server, args);
        assert!(shown.contains("revoking"), "{args:?}: {shown}");
    }
    assert_eq!(say(&server, &["release", id.trim()]).0, Some(0));
    let (_, shown, _) = say(&server, &["show", id.trim()]);
    assert!(shown.contains("released") && !shown.contains("revoking"), "{shown}");
}
