//! `/metrics`: everything in Prometheus' text format.
//!
//! In:    counters, the table's counts and openraft's state at the moment of asking. Out: text.
//! Never: has a label without a closed list of values, and never walks the table.

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;

use leasehold_core::Status;

use crate::app::App;
use crate::observe::Dialect;
use crate::observe::metrics::{CODES, ItemCounts, MODES};
use crate::observe::process;
use leasehold_engine::node_state::ROLES;

/// The text.
pub(crate) fn text(app: &App) -> String {
    let mut out = String::with_capacity(16 << 10);
    table(&mut out, app);
    requests(&mut out, app);
    log(&mut out, app);
    raft(&mut out, app);
    upkeep(&mut out, app);
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
    let help = "Claims that this node refused because they would have waited for their own session for ever.";
    one(out, "leasehold_deadlocks_refused_total", "counter", help, count(&metrics.deadlocks));
    let unchecked = app.engine.read(|table, _| table.unchecked_waits());
    let help = "Claims that wait unchecked: the look for a deadlock would have taken too long.";
    one(out, "leasehold_deadlock_unchecked_total", "counter", help, unchecked);
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
    items(out, app);
    let help = "From the end of one holder being ordered to the next one holding, on the leader.";
    metrics.hand_over.write(out, "leasehold_lock_handover_seconds", help);
}

/// What happened to items, by the mode in which they were wanted.
fn items(out: &mut String, app: &App) {
    let metrics = &app.observer.metrics;
    let (held, awaited) = app.engine.read(|table, _| (table.held_items(), table.awaited_items()));
    let reserved = "Items of waiting claims, by mode; those reserved for a set that is not complete too.";
    for (name, help, counts) in [
        ("leasehold_items_held", "Items that are held, by mode.", held),
        ("leasehold_items_waiting", reserved, awaited),
    ] {
        family(out, name, "gauge", help);
        for (mode, count) in MODES.iter().zip(counts) {
            let _ = writeln!(out, "{name}{{mode=\"{mode}\"}} {count}");
        }
    }
    type Pick = fn(&ItemCounts) -> &std::sync::atomic::AtomicU64;
    let families: [(&str, &str, Pick); 4] = [
        ("leasehold_items_queued_total", "Items of claims that had to queue, by mode.", |items| {
            &items.queued
        }),
        ("leasehold_items_granted_total", "Items that were granted, by mode.", |items| &items.granted),
        ("leasehold_items_freed_total", "Items that ended after their grant, by mode.", |items| &items.freed),
        ("leasehold_items_unqueued_total", "Items that ended in the queue, by mode.", |items| {
            &items.unqueued
        }),
    ];
    for (name, help, pick) in families {
        family(out, name, "counter", help);
        for (mode, items) in MODES.iter().zip(&metrics.items) {
            let _ = writeln!(out, "{name}{{mode=\"{mode}\"}} {}", pick(items).load(Ordering::Relaxed));
        }
    }
    let name = "leasehold_item_wait_seconds";
    family(out, name, "histogram", "Time that granted items had waited, by mode.");
    for (mode, items) in MODES.iter().zip(&metrics.items) {
        items.wait.write_series(out, name, &format!("mode=\"{mode}\""));
    }
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
    let status = app.engine.node_state();
    one(out, "leasehold_log_bytes", "gauge", "Bytes of entries in the log.", status.log_bytes);
    let full = u8::from(!status.has_room);
    one(out, "leasehold_log_full", "gauge", "1 while the disk has no room and clients are refused.", full);
}

/// Backups, and traces of requests.
fn upkeep(out: &mut String, app: &App) {
    let (backups, traces) = (&app.observer.backups, &app.observer.traces);
    let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let help = "How often this node saves its table by itself; 0: it does not.";
    one(out, "leasehold_backup_interval_seconds", "gauge", help, of(&backups.every_s));
    let help = "When the last good backup of this node was made, unix time; 0: never.";
    one(out, "leasehold_backup_last_success_timestamp_seconds", "gauge", help, of(&backups.last_good_s));
    let help = "Bytes of the last good backup.";
    one(out, "leasehold_backup_last_bytes", "gauge", help, of(&backups.last_bytes));
    let name = "leasehold_backups_total";
    family(out, name, "counter", "Backups that this node made by itself, by outcome.");
    let (done, failed) = (of(&backups.done), of(&backups.failed));
    let _ = write!(out, "{name}{{outcome=\"done\"}} {done}\n{name}{{outcome=\"failed\"}} {failed}\n");
    let help = "Spans of requests that the collector has taken.";
    one(out, "leasehold_traces_exported_total", "counter", help, of(&traces.exported));
    let help = "Spans of requests that were dropped: the queue was full, or the collector did not take them.";
    one(out, "leasehold_traces_dropped_total", "counter", help, of(&traces.dropped));
}

fn raft(out: &mut String, app: &App) {
    let status = app.engine.node_state();
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
