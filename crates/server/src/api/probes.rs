//! Probes: `/livez`, `/readyz`, `/healthz`, `/v1/health`, `/version`, and `/metrics`.
//!
//! In:    a GET. Out: 200 or 503; with `?verbose` check by check, in the form that etcd and Kubernetes use.
//! Never: asks for more than is at hand: a probe must answer while everything else is slow.

use std::fmt::Write;

use hyper::StatusCode;

use super::metrics;
use crate::app::App;
use crate::message::problem::problem;
use crate::message::query::pairs;
use crate::message::request::Request;
use crate::message::{Response, json, typed};
use leasehold_engine::EngineError;
use leasehold_engine::wal::NoRoom;

/// `GET /metrics`
pub fn metrics(app: &App) -> Response {
    typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", metrics::text(app))
}

/// `GET /livez`
pub fn live(request: &Request) -> Response {
    checked(request, &[("process", Ok(()))])
}

/// `GET /readyz`, and its other names.
pub fn ready(app: &App, request: &Request) -> Response {
    checked(request, &checks(app))
}

/// The first thing that keeps this node from taking commands.
pub fn problem_now(app: &App) -> Option<String> {
    checks(app).into_iter().find_map(|(_, check)| check.err())
}

/// `GET /version`
pub fn version() -> Response {
    let body = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "table_version": leasehold_core::table::NEWEST_TABLE_VERSION,
        "snapshot_format": leasehold_core::table::NEWEST_TABLE_VERSION,
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
    });
    json(StatusCode::OK, format!("{body}\n"))
}

/// The first check of `/readyz` that fails, and why.
pub fn unready(app: &App) -> Option<String> {
    let failed = checks(app).into_iter().find_map(|(name, check)| Some((name, check.err()?)));
    failed.map(|(name, why)| format!("{name}: {why}"))
}

type Check = (&'static str, Result<(), String>);

/// What must be true for this node to take commands.
fn checks(app: &App) -> Vec<Check> {
    let status = app.engine.node_state();
    let stopping = *app.stopping.borrow();
    let disk = match status.disk_hangs {
        Some(length) => Err(format!("a write has taken the disk {:.1} s so far", length.as_secs_f64())),
        None if status.has_room => Ok(()),
        None => Err(disk_full(status.no_room)),
    };
    const REMOVED: &str =
        "this node was removed from its cluster: stop it, or empty its data directory to have it join again";
    let is_removed = app.engine.is_removed();
    let leader = match status.leader {
        _ if is_removed => Err(REMOVED.to_string()),
        None => Err("no leader is known: a majority of the nodes must reach each other".into()),
        Some(_) => Ok(()),
    };
    let engine =
        app.engine.ready().map_err(|error| if is_removed { REMOVED.into() } else { error.to_string() });
    vec![
        ("stopping", if stopping { Err(EngineError::Stopping.to_string()) } else { Ok(()) }),
        ("log", status.fatal.map_or(Ok(()), Err)),
        ("disk", disk),
        ("leader", leader),
        ("engine", engine),
    ]
}

/// Says how much has to be freed: an operator who frees less sees why it was not enough.
fn disk_full(no_room: Option<NoRoom>) -> String {
    let needed = no_room.map_or_else(|| "free space there".into(), |no_room| no_room.to_string());
    format!("the disk of the data directory is full: {needed}")
}

fn checked(request: &Request, checks: &[Check]) -> Response {
    let mut verbose = false;
    let mut excluded = Vec::new();
    for (name, value) in pairs(request.uri().query()) {
        match &*name {
            "verbose" => verbose = true,
            "exclude" => excluded.push(value.into_owned()),
            _ => {}
        }
    }
    let failed =
        checks.iter().find(|(name, check)| check.is_err() && !excluded.iter().any(|out| out == name));
    if let (false, Some((name, Err(why)))) = (verbose, failed) {
        return problem(StatusCode::SERVICE_UNAVAILABLE, "not-ready", &format!("{name}: {why}"));
    }
    if !verbose {
        return typed(StatusCode::OK, "text/plain", "ok\n");
    }
    let mut text = String::new();
    for (name, check) in checks {
        let _ = match check {
            _ if excluded.iter().any(|out| out == name) => writeln!(text, "[+]{name} excluded: ok"),
            Ok(()) => writeln!(text, "[+]{name} ok"),
            Err(why) => writeln!(text, "[-]{name} failed: {why}"),
        };
    }
    let verdict = if failed.is_some() { "check failed" } else { "check passed" };
    let _ = writeln!(text, "{} {verdict}", request.uri().path().trim_start_matches('/'));
    let status = if failed.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    typed(status, "text/plain", text)
}
