//! `/metrics`: everything in Prometheus' text format.
//!
//! In:    counters, the table's counts and openraft's state at the moment of asking. Out: text.
//! Never: has a label without a closed list of values, and never walks the table.

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;

use leasehold_core::Status;

use crate::app::App;
use crate::observe::Dialect;
use crate::observe::metrics::CODES;
use crate::observe::process;
use leasehold_engine::observed::ROLES;

/// The text.
pub(crate) fn text(app: &App) -> String {
    let mut out = String::with_capacity(16 << 10);
    table(&mut out, app);
    requests(&mut out, app);
    log(&mut out, app);
    raft(&mut out, app);
    let build = format!("leasehold_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    family(&mut out, "leasehold_build_info", "gauge", "The version that runs.");
    let _ = writeln!(out, "{build} 1");
    process::write(&mut out);
    out
}

fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn one(out: &mut String, name: &str, kind: &str, help: &str, value: impl Display) {
    family(out, name, kind, help);
    let _ = writeln!(out, "{name} {value}");
}

fn table(out: &mut String, app: &App) {
    let metrics = &app.observer.metrics;
    let (held, waiting, finished, resources, token, overdue_us) = app.engine.read(|table, now_us| {
        let (held, waiting) = (table.count(Status::Active), table.count(Status::Waiting));
        let finished = Status::ALL.into_iter().filter(|status| status.is_final());
        let finished: u64 = finished.map(|status| table.count(status)).sum();
        let overdue_us = table.earliest_deadline_us().map_or(0, |due_us| now_us.saturating_sub(due_us));
        (held, waiting, finished, table.resource_count(), table.last_token(), overdue_us)
    });
    one(out, "leasehold_holders", "gauge", "Claims that hold their resource.", held);
    one(out, "leasehold_waiters", "gauge", "Claims that wait in a queue.", waiting);
    one(out, "leasehold_finished_claims", "gauge", "Claims that are over and still readable.", finished);
    one(out, "leasehold_resources", "gauge", "Resources with a claim, finished ones included.", resources);
    let (live, finished) = app.engine.read(|table, _| table.bytes_used());
    for (name, help, used) in [
        ("leasehold_claim_bytes", "Counted bytes of held and waiting claims.", live),
        ("leasehold_finished_claim_bytes", "Counted bytes of finished claims.", finished),
    ] {
        one(out, name, "gauge", help, used.used);
        one(out, &format!("{name}_max"), "gauge", &format!("The budget of these. {help}"), used.max);
    }
    let full = u8::from(app.engine.memory().is_full());
    one(out, "leasehold_memory_full", "gauge", "Whether claims are refused for lack of memory.", full);
    one(out, "leasehold_last_token", "gauge", "The newest fencing token.", token);
    let overdue = overdue_us as f64 / 1e6;
    one(
        out,
        "leasehold_expiry_backlog_seconds",
        "gauge",
        "How long the oldest due claim has been due.",
        overdue,
    );
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    one(out, "leasehold_claims_queued_total", "counter", "Claims that had to queue.", count(&metrics.queued));
    one(
        out,
        "leasehold_claims_granted_total",
        "counter",
        "Claims that came to hold.",
        count(&metrics.granted),
    );
    one(out, "leasehold_renewals_total", "counter", "Ttls that started anew.", count(&metrics.renewed));
    let ended = "leasehold_claims_ended_total";
    family(out, ended, "counter", "Claims that ended, by final status.");
    for status in Status::ALL.into_iter().filter(|status| status.is_final()) {
        let _ = writeln!(out, "{ended}{{status=\"{status}\"}} {}", count(&metrics.ended[status as usize]));
    }
    let help = "Time that granted claims had waited.";
    metrics.wait.write(out, "leasehold_lock_wait_seconds", help);
    metrics.hold.write(out, "leasehold_lock_hold_seconds", "Time that ended claims had held.");
    let help = "From the end of one holder being ordered to the next one holding, on the leader.";
    metrics.hand_over.write(out, "leasehold_lock_handover_seconds", help);
}

fn requests(out: &mut String, app: &App) {
    let metrics = &app.observer.metrics;
    let name = "leasehold_requests_total";
    family(out, name, "counter", "Answered requests by dialect, outcome and status code (0: any other).");
    for (dialect, word) in Dialect::ALL {
        for (count, code) in metrics.requests[dialect as usize].iter().zip(CODES) {
            let count = count.load(Ordering::Relaxed);
            let outcome = match code {
                200..400 => "done",
                400..500 => "refused",
                _ => "failed",
            };
            if count > 0 {
                let labels = format!("dialect=\"{word}\",outcome=\"{outcome}\",code=\"{code}\"");
                let _ = writeln!(out, "{name}{{{labels}}} {count}");
            }
        }
    }
    let connections = metrics.connections.load(Ordering::Relaxed);
    one(out, "leasehold_connections", "gauge", "Open connections of clients.", connections);
    let hub = &app.observer.hub;
    one(out, "leasehold_event_streams", "gauge", "Open event streams.", hub.streams());
    let help = "How often a reader of an event stream was told that it lagged.";
    one(out, "leasehold_event_streams_lagged_total", "counter", help, hub.lagged());
}

fn log(out: &mut String, app: &App) {
    let metrics = &app.observer.metrics;
    metrics.sync.write(
        out,
        "leasehold_log_sync_seconds",
        "Write and fdatasync of the log, a group commit each.",
    );
    let help = "From a log entry being packed to being applied, on the leader.";
    metrics.commit.write(out, "leasehold_log_commit_seconds", help);
    let bytes = metrics.synced_bytes.load(Ordering::Relaxed);
    one(out, "leasehold_log_written_bytes_total", "counter", "Bytes written to the log.", bytes);
    let status = app.engine.observed();
    one(out, "leasehold_log_bytes", "gauge", "Bytes of entries in the log.", status.log_bytes);
    let full = u8::from(!status.has_room);
    one(out, "leasehold_log_full", "gauge", "1 while the disk has no room and clients are refused.", full);
}

fn raft(out: &mut String, app: &App) {
    let status = app.engine.observed();
    family(out, "leasehold_raft_role", "gauge", "1 for the role that this node has.");
    for role in ROLES {
        let _ = writeln!(out, "leasehold_raft_role{{role=\"{role}\"}} {}", u8::from(role == status.role));
    }
    one(out, "leasehold_raft_term", "gauge", "The term of this node.", status.term);
    let leader = u8::from(status.leader.is_some());
    one(out, "leasehold_raft_has_leader", "gauge", "1 while this node knows who leads.", leader);
    one(
        out,
        "leasehold_raft_last_log_index",
        "gauge",
        "The newest entry in this node's log.",
        status.last_log,
    );
    one(
        out,
        "leasehold_raft_applied_index",
        "gauge",
        "The newest entry in this node's table.",
        status.applied,
    );
    one(out, "leasehold_raft_snapshot_index", "gauge", "The newest entry in a snapshot.", status.snapshot);
    let lag = status.last_log.saturating_sub(status.applied);
    one(out, "leasehold_raft_apply_lag_entries", "gauge", "Entries in the log but not in the table.", lag);
    let peer = "leasehold_raft_peer_lag_entries";
    family(out, peer, "gauge", "On the leader: entries that another member does not have yet.");
    for (id, lag) in &status.lags {
        let _ = writeln!(out, "{peer}{{node=\"{id}\"}} {lag}");
    }
    let ready = u8::from(app.engine.ready().is_ok());
    one(out, "leasehold_ready", "gauge", "1 while this node can take commands.", ready);
}
