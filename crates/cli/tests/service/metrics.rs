//! Metrics, probes, logs and traces of a real server; the files for Prometheus and Grafana, checked by `promtool`.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::{Server, eventually};
use serde_json::{Value, json};

fn value(metrics: &str, series: &str) -> f64 {
    let found = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {series} in\n{metrics}")).parse().unwrap()
}

fn promtool(args: &[&str], input: &str) {
    let mut child = Command::new("promtool")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is needed: scripts/install-test-tools installs it");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn deploy(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy")).join(name)
}

/// A server on which everything that is counted has happened.
fn used() -> Server {
    let server = Server::start();
    let first = server.claim("db/main", 60.0);
    let second = server.claim("db/main", 60.0);
    server.claim("db/main", 60.0);
    server.patch(&first, r#"{"ttl": 60}"#);
    server.patch(&first, r#"{"status": "released"}"#);
    server.patch(&second, r#"{"status": "revoked"}"#);
    server.claim("short", 0.01);
    server.post("/locks/R1", r#"{"title": "t", "lifetime": 9, "wait": 0}"#);
    server.post("/locks/R1", r#"{"title": "t", "lifetime": 9, "wait": 0}"#);
    server.post("/v1/ns/leases/a", "");
    server.post("/v1/dss/media/lock", r#"{"ids": ["x"], "hostname": "h", "owner": 1}"#);
    server.post("/v1/claims/", "nonsense");
    eventually("the short one expires", || {
        value(&metrics(&server), "leasehold_claims_ended_total{status=\"expired\"}") == 1.0
    });
    server
}

fn metrics(server: &Server) -> String {
    let reply = server.get("/metrics");
    assert_eq!(reply.status, 200);
    assert!(reply.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    reply.text()
}

#[test]
fn everything_that_happens_is_counted() {
    let server = used();
    let metrics = metrics(&server);
    for (series, expected) in [
        ("leasehold_holders", 4.0),
        ("leasehold_waiters", 0.0),
        ("leasehold_resources", 5.0),
        ("leasehold_claims_queued_total", 2.0),
        ("leasehold_claims_granted_total", 7.0),
        ("leasehold_renewals_total", 1.0),
        ("leasehold_claims_ended_total{status=\"released\"}", 1.0),
        ("leasehold_claims_ended_total{status=\"revoked\"}", 1.0),
        ("leasehold_lock_wait_seconds_count", 7.0),
        ("leasehold_lock_hold_seconds_count", 3.0),
        ("leasehold_lock_handover_seconds_count", 2.0),
        ("leasehold_requests_total{dialect=\"claims\",outcome=\"done\",code=\"201\"}", 2.0),
        ("leasehold_requests_total{dialect=\"claims\",outcome=\"done\",code=\"202\"}", 2.0),
        ("leasehold_requests_total{dialect=\"claims\",outcome=\"refused\",code=\"400\"}", 1.0),
        ("leasehold_requests_total{dialect=\"locks\",outcome=\"done\",code=\"201\"}", 1.0),
        ("leasehold_requests_total{dialect=\"locks\",outcome=\"refused\",code=\"408\"}", 1.0),
        ("leasehold_requests_total{dialect=\"leases\",outcome=\"done\",code=\"201\"}", 1.0),
        ("leasehold_requests_total{dialect=\"dss\",outcome=\"done\",code=\"200\"}", 1.0),
        ("leasehold_raft_role{role=\"leader\"}", 1.0),
        ("leasehold_raft_role{role=\"follower\"}", 0.0),
        ("leasehold_raft_has_leader", 1.0),
        ("leasehold_raft_apply_lag_entries", 0.0),
        ("leasehold_log_full", 0.0),
        ("leasehold_ready", 1.0),
        ("leasehold_expiry_backlog_seconds", 0.0),
        ("leasehold_event_streams", 0.0),
    ] {
        assert_eq!(value(&metrics, series), expected, "{series}");
    }
    for series in [
        "leasehold_raft_term",
        "leasehold_raft_last_log_index",
        "leasehold_log_sync_seconds_count",
        "leasehold_log_sync_seconds_sum",
        "leasehold_log_commit_seconds_count",
        "leasehold_log_bytes",
        "leasehold_log_written_bytes_total",
        "leasehold_connections",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "process_open_fds",
        "process_start_time_seconds",
    ] {
        assert!(value(&metrics, series) > 0.0, "{series}");
    }
    promtool(&["check", "metrics"], &metrics);
}

#[test]
fn what_is_replayed_at_a_start_is_not_counted_again_but_charted() {
    let mut server = used();
    server.restart();
    let metrics = metrics(&server);
    assert_eq!(value(&metrics, "leasehold_claims_granted_total"), 0.0);
    assert_eq!(value(&metrics, "leasehold_holders"), 4.0);
    let granted = server.get("/v1/overview").json()["series"]["granted"].clone();
    let granted: u64 = granted.as_array().unwrap().iter().map(|step| step.as_u64().unwrap()).sum();
    assert_eq!(granted, 7);
}

#[test]
fn names_and_numbers_of_strangers_are_no_labels() {
    let server = used();
    let before = metrics(&server).lines().count();
    for i in 0..50 {
        server.claim(&format!("unique-{i}"), 60.0);
        server.get(&format!("/nowhere/{i}"));
        server.client().request(
            "POST",
            &format!("/v1/ns{i}/leases/x"),
            &[("X-Quorum-Client-ID", &format!("c{i}"))],
            b"",
        );
    }
    let after = metrics(&server);
    assert!(after.lines().count() <= before + 2, "{after}");
    assert!(!after.contains("unique-"));
}

#[test]
fn probes_say_what_is_wrong_check_by_check() {
    let server = Server::start();
    for path in ["/livez", "/readyz", "/healthz", "/health", "/v1/health"] {
        assert_eq!((server.get(path).status, server.get(path).text().as_str()), (200, "ok\n"), "{path}");
        assert_eq!(server.post(path, "").status, 405, "{path}");
    }
    let verbose = server.get("/readyz?verbose").text();
    for line in ["[+]log ok", "[+]disk ok", "[+]leader ok", "[+]engine ok", "readyz check passed"] {
        assert!(verbose.contains(line), "{line} is missing in\n{verbose}");
    }
    assert!(server.get("/readyz?verbose&exclude=disk").text().contains("[+]disk excluded: ok"));
    let version = server.get("/version").json();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_request_is_one_line_at_debug_and_carries_its_trace() {
    let dir = crate::common::TempDir::new();
    let log = dir.path().join("log");
    let mut child = Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(dir.path().join("data"))
        .env("RUST_LOG", "info,leasehold::request=debug")
        .env("LEASEHOLD_ALLOWED_HOSTS", "*")
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    let addr = line.trim().split("http://").nth(1).unwrap().parse().unwrap();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let headers = [("traceparent", &*format!("00-{trace}-00f067aa0ba902b7-01"))];
    let body = json!({ "resource": "r", "ttl": 1 }).to_string();
    let reply =
        crate::common::Client::connect(addr).request("POST", "/v1/claims/?wait=1", &headers, body.as_bytes());
    let carried = reply.header("traceparent").unwrap().to_string();
    assert!(carried.starts_with(&format!("00-{trace}-")) && carried.ends_with("-01"), "{carried}");
    let span = carried.split('-').nth(2).unwrap();
    assert_ne!(span, "00f067aa0ba902b7", "this service's own part of the trace");
    let plain = crate::common::Client::connect(addr).request("GET", "/livez", &[], b"");
    assert_eq!(plain.header("traceparent"), None);
    child.kill().unwrap();
    child.wait().unwrap();
    let logged = fs::read_to_string(log).unwrap();
    let lines: Vec<&str> = logged.lines().filter(|line| line.contains("leasehold::request")).collect();
    assert_eq!(lines.len(), 2, "{logged}");
    for part in
        ["method=POST", "path=\"/v1/claims/\"", "status=201", "took_us=", "peer=\"127.0.0.1\"", trace, span]
    {
        assert!(lines[0].contains(part), "{part} is missing in {}", lines[0]);
    }
}

/// Names of metrics that a query mentions.
fn mentioned(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("leasehold_")).map(ToString::to_string).collect()
}

/// Names of metrics that the service has, with those that Prometheus makes of histograms.
fn known(metrics: &str) -> BTreeSet<String> {
    let named = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let mut known = BTreeSet::new();
    for (name, kind) in named.filter_map(|line| line.split_once(' ')) {
        known.insert(name.to_string());
        if kind == "histogram" {
            known.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
        }
    }
    known
}

#[test]
fn alert_rules_are_sound_and_speak_of_metrics_that_exist() {
    let (rules, tests) = (deploy("prometheus/alerts.yml"), deploy("prometheus/alerts-test.yml"));
    promtool(&["check", "rules", "--lint-fatal", rules.to_str().unwrap()], "");
    promtool(&["test", "rules", tests.to_str().unwrap()], "");
    let known = known(&metrics(&used()));
    let unknown: Vec<String> = mentioned(&fs::read_to_string(rules).unwrap())
        .into_iter()
        .filter(|name| !known.contains(name))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn the_grafana_dashboard_speaks_of_metrics_that_exist_and_its_queries_parse() {
    let text = fs::read_to_string(deploy("grafana/leasehold.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let queries: Vec<&str> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    assert!(queries.len() >= 12, "{queries:?}");
    let known = known(&metrics(&used()));
    for query in &queries {
        let unknown: Vec<String> =
            mentioned(query).into_iter().filter(|name| !known.contains(name)).collect();
        assert!(unknown.is_empty(), "{query}: {unknown:?}");
    }
    // promtool reads queries as the expressions of recording rules.
    let rules = queries.iter().enumerate().map(|(i, query)| {
        let query = query.replace("$__rate_interval", "5m").replace("$instance", ".*");
        json!({ "record": format!("panel:{i}"), "expr": query })
    });
    let file = json!({ "groups": [{ "name": "panels", "rules": rules.collect::<Vec<_>>() }] }).to_string();
    let dir = crate::common::TempDir::new();
    let path = dir.path().join("panels.yml");
    fs::write(&path, file).unwrap();
    promtool(&["check", "rules", path.to_str().unwrap()], "");
}
