//! Byte budgets and the memory guard over a real socket: no user fills a node's memory, and a full node goes on.

use crate::common::{Reply, Server, TempDir, eventually};
use crate::support::{Guarded, leasehold};
use leasehold_lab::cluster::Cluster;
use serde_json::{Value, json};

/// User data of 60,000 bytes.
fn large() -> String {
    format!("\"{}\"", "x".repeat(60_000 - 2))
}

/// A claim with large data, as a client behind the proxy that the server trusts.
fn claim_as(server: &Server, client: &str, resource: &str, ttl: f64) -> Reply {
    let body = format!("{{\"resource\": \"{resource}\", \"ttl\": {ttl}, \"user_data\": {}}}", large());
    let headers = [("X-Forwarded-For", client), ("Content-Type", "application/json")];
    server.client().request("POST", "/v1/claims/", &headers, body.as_bytes())
}

const PROXY: [&str; 2] = ["--trusted-proxies", "127.0.0.1"];

fn start(flags: &[&str]) -> Server {
    Server::start_with(&[&PROXY, flags].concat())
}

#[track_caller]
fn refused(reply: &Reply, status: u16, kind: &str, flag: &str) {
    assert_eq!((reply.status, reply.problem().as_str()), (status, kind), "{reply:?}");
    let text = reply.text();
    assert!(text.contains(flag) && text.contains("bytes are used"), "{text}");
}

fn metric(server: &Server, name: &str) -> u64 {
    let text = server.get("/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::to_string);
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

#[test]
fn one_owner_fills_its_own_budget_and_nobody_elses() {
    let server = start(&["--bytes-per-owner-max", "1000000"]);
    let granted: Vec<Reply> = (0..40)
        .map(|i| claim_as(&server, "10.0.0.1", &format!("mine/{i}"), 600.0))
        .take_while(|reply| reply.status == 201)
        .collect();
    assert_eq!(granted.len(), 16, "sixteen claims of 60,000 bytes fit a million");
    let beyond = claim_as(&server, "10.0.0.1", "mine/more", 600.0);
    refused(&beyond, 507, "owner-bytes-full", "--bytes-per-owner-max");
    assert_eq!(claim_as(&server, "10.0.0.2", "theirs/1", 600.0).status, 201);
    assert_eq!(
        server
            .client()
            .request(
                "POST",
                "/v1/claims/",
                &[("X-Forwarded-For", "10.0.0.1")],
                br#"{"resource": "mine/small", "ttl": 60}"#
            )
            .status,
        201,
        "small claims count for nothing"
    );
    let released = server.client().request(
        "PATCH",
        &granted[0].location_path(),
        &[("X-Forwarded-For", "10.0.0.1")],
        br#"{"status": "released"}"#,
    );
    assert_eq!(released.status, 204, "{released:?}");
    assert_eq!(claim_as(&server, "10.0.0.1", "mine/more", 600.0).status, 201);
}

#[test]
fn a_namespace_and_all_claims_together_have_budgets() {
    let server = start(&["--bytes-per-namespace-max", "100000", "--bytes-max", "200000"]);
    assert_eq!(claim_as(&server, "10.0.0.1", "one/1", 600.0).status, 201);
    let beyond = claim_as(&server, "10.0.0.2", "one/2", 600.0);
    refused(&beyond, 507, "namespace-bytes-full", "--bytes-per-namespace-max");
    assert_eq!(claim_as(&server, "10.0.0.2", "two/1", 600.0).status, 201);
    assert_eq!(claim_as(&server, "10.0.0.3", "three/1", 600.0).status, 201);
    refused(&claim_as(&server, "10.0.0.4", "four/1", 600.0), 507, "table-bytes-full", "--bytes-max");
}

#[test]
fn every_dialect_says_that_a_budget_is_used_up() {
    let server = start(&["--bytes-per-namespace-max", "100", "--bytes-max", "3000"]);
    let lease = |path: &str, len: usize| {
        let body = "x".repeat(len);
        server.client().request("POST", path, &[("X-Quorum-Client-ID", "me")], body.as_bytes())
    };
    refused(&lease("/v1/ops/db/leases/a", 2000), 509, "namespace-bytes-full", "--bytes-per-namespace-max");
    refused(&lease("/v1/ops/db/leases/a", 4000), 507, "table-bytes-full", "--bytes-max");
    assert_eq!(lease("/v1/ops/db/leases/a", 100).status, 201);
    // A renewal that replaces the data counts too.
    let renewal = server.client().request(
        "PUT",
        "/v1/ops/db/leases/a",
        &[("X-Quorum-Client-ID", "me")],
        "x".repeat(2000).as_bytes(),
    );
    refused(&renewal, 509, "namespace-bytes-full", "--bytes-per-namespace-max");
    let typed = |len: usize| {
        let ids: Vec<String> = (0..8).map(|i| format!("{i}{}", "x".repeat(len))).collect();
        let body = json!({ "ids": ids, "hostname": "host", "owner": 1 });
        server.post("/v1/dss/media/lock", &body.to_string())
    };
    refused(&typed(300), 507, "namespace-bytes-full", "--bytes-per-namespace-max");
    assert_eq!(typed(100).status, 200);
    let lock = |len: usize| {
        let body = json!({ "title": "t".repeat(len), "lifetime": 600, "wait": 0 });
        server.post("/locks/aLock", &body.to_string())
    };
    refused(&lock(4000), 507, "table-bytes-full", "--bytes-max");
    refused(&lock(1000), 507, "namespace-bytes-full", "--bytes-per-namespace-max");
    assert_eq!(lock(100).status, 201);
}

#[test]
fn claims_that_end_at_once_do_not_fill_the_memory_either() {
    let server = start(&["--finished-bytes-max", "1000000"]);
    let paths: Vec<String> = (0..60)
        .map(|i| claim_as(&server, "10.0.0.1", &format!("short/{i}"), 0.0))
        .map(|reply| reply.location_path())
        .collect();
    eventually("all of them are over", || server.list("status=active").is_empty());
    let data = |path: &String| server.get(path).json()["user_data"].clone();
    assert_eq!(data(&paths[0]), Value::Null, "the oldest has lost its data");
    assert_eq!(data(&paths[59]), json!("x".repeat(60_000 - 2)), "the newest has its data");
    assert!(metric(&server, "leasehold_finished_claim_bytes") <= 1_000_000);
    assert_eq!(metric(&server, "leasehold_finished_claim_bytes_max"), 1_000_000);
}

#[test]
fn overrides_hold_over_a_restart_and_go_before_the_flags() {
    let mut server = start(&["--bytes-per-owner-max", "1000"]);
    let url = |server: &Server| format!("http://{}", server.addr);
    let limits = |server: &Server, args: &[&str]| {
        let output = leasehold(&[&["limits", "--addr", &url(server)], args].concat());
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    refused(&claim_as(&server, "10.0.0.1", "a", 600.0), 507, "owner-bytes-full", "--bytes-per-owner-max");
    assert!(limits(&server, &["set", "owner", "--prefix", "10.0.0.", "100KiB"]).0);
    server.restart();
    assert_eq!(claim_as(&server, "10.0.0.1", "a", 600.0).status, 201);
    refused(&claim_as(&server, "10.0.1.1", "b", 600.0), 507, "owner-bytes-full", "--bytes-per-owner-max");
    let (_, table) = limits(&server, &["--owner", "10.0.0.1"]);
    assert!(table.contains("override: owner 10.0.0.*") && table.contains("100 KiB"), "{table}");
    assert!(table.contains("bytes of owner 10.0.0.1") && table.contains("58 KiB"), "{table}");
    assert!(limits(&server, &["unset", "owner", "--prefix", "10.0.0."]).0);
    refused(&claim_as(&server, "10.0.0.1", "c", 600.0), 507, "owner-bytes-full", "--bytes-per-owner-max");
    let shown = server.get("/v1/limits?owner=10.0.0.1").json();
    assert_eq!((&shown["overrides"], &shown["owner"]["max"]), (&json!([]), &json!(1000)));
    assert_eq!(shown["owner"]["used"], shown["bytes"]["total"]["used"]);
    for bad in
        [r#"{"scope": "all", "bytes": 1}"#, r#"{"scope": "total", "prefix": "x", "bytes": 1}"#, "{}", "x"]
    {
        assert_eq!(server.put("/v1/limits", bad).status, 400, "{bad}");
    }
}

#[test]
fn only_an_administrator_changes_budgets() {
    let rules = "[[access.rule]]\nusers = [\"ann\"]\nresources = [\"a/*\"]\nverbs = [\"read\", \"claim\", \"revoke\"]\n\
                 [[access.rule]]\nusers = [\"root\"]\nresources = [\"*\"]\nverbs = [\"admin\"]\n";
    let guarded = Guarded::start(&["ann", "root"], rules);
    let body = r#"{"scope": "total", "bytes": 1}"#;
    for (user, status) in [("", 401), ("ann", 403)] {
        assert_eq!(guarded.ask(user, "PUT", "/v1/limits", body).status, status, "{user}");
        assert_eq!(guarded.ask(user, "GET", "/v1/limits", "").status, status, "{user}");
    }
    assert_eq!(guarded.ask("root", "PUT", "/v1/limits", body).status, 204);
    assert_eq!(guarded.ask("root", "GET", "/v1/limits", "").json()["bytes"]["total"]["max"], 1);
}

#[test]
fn a_node_whose_table_is_too_large_for_it_starts_and_refuses_to_grow() {
    let dir = TempDir::new();
    let mut first = Server::start_in(&dir.path().join("data"), &[]);
    let held = first.claim("held", 600.0);
    first.terminate();
    // Any process is larger than this.
    let server = Server::start_in(&dir.path().join("data"), &["--memory-max-mib", "1"]);
    let claim = server.post("/v1/claims/", r#"{"resource": "more", "ttl": 60}"#);
    assert_eq!((claim.status, claim.problem().as_str()), (507, "memory-full"), "{claim:?}");
    assert_eq!(server.get("/readyz").status, 200, "it serves what does not make the table larger");
    assert_eq!(server.patch(&held, r#"{"ttl": 1200}"#).status, 200);
    assert_eq!(server.patch(&held, r#"{"status": "released"}"#).status, 204);
    assert_eq!(metric(&server, "leasehold_memory_full"), 1);
    assert_eq!(server.get("/v1/limits").json()["memory"], json!({ "max": 1 << 20, "full": true }));
    let said = server.logged().matches("this node's memory is full").count();
    assert_eq!(said, 1, "it says so once: {}", server.logged());
}

#[test]
fn a_leader_without_memory_refuses_claims_of_other_nodes_and_takes_their_renewals() {
    let mut cluster = Cluster::start(env!("CARGO_BIN_EXE_leasehold").as_ref(), 3, &[]).unwrap();
    eventually("table version 2", || {
        cluster
            .ids()
            .iter()
            .all(|id| cluster.status(*id).is_some_and(|status| status["table_version"].as_u64() >= Some(2)))
    });
    let body = r#"{"resource": "held", "ttl": 600}"#;
    let held = cluster.ask(2, "POST", "/v1/claims/", body).unwrap();
    assert_eq!(held.status, 201, "{held:?}");
    let path =
        held.json()["url"].as_str().unwrap().splitn(4, '/').nth(3).map(|path| format!("/{path}")).unwrap();
    cluster.terminate(1).unwrap();
    cluster.use_args(&["--memory-max-mib", "1"]);
    cluster.spawn(1).unwrap();
    cluster.settle().unwrap();
    eventually("node 1 leads", || {
        cluster.ask_briefly(2, "POST", "/v1/cluster/leader", r#"{"id": 1}"#).ok();
        cluster.leader().is_ok_and(|leader| leader == 1)
    });
    let claim = cluster.ask(2, "POST", "/v1/claims/", r#"{"resource": "more", "ttl": 60}"#).unwrap();
    assert_eq!(claim.status, 507, "{claim:?}");
    assert!(claim.body.contains("memory-full"), "{claim:?}");
    assert_eq!(cluster.ask(2, "PATCH", &path, r#"{"ttl": 1200}"#).unwrap().status, 200);
    assert_eq!(cluster.ask(3, "PATCH", &path, r#"{"status": "released"}"#).unwrap().status, 204);
    cluster.converge().unwrap();
}
