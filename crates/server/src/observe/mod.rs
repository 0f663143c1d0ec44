//! What people and machines see of a node: the event stream, metrics, health.
//!
//! In:    events of every applied entry, what the log's syncs took, answered requests. Out: `GET /v1/events`,
//!        `/metrics`, the numbers of the dashboard.
//! Never: makes the table wait: listeners push into bounded places and count; everything else is done by whoever asks.

pub mod backups;
pub mod histogram;
pub mod hub;
pub mod metrics;
pub mod otlp;
pub mod process;
pub mod series;

use std::sync::{Arc, OnceLock};

use self::hub::Hub;
use self::metrics::Metrics;
use self::otlp::Exporter;
use self::series::Series;
use leasehold_engine::publish::Listener;

/// Whose words a request and its answer are in; the label of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `/v1/claims/`, `/v1/renewals`.
    Claims,
    /// `/locks/`, `/active_locks/`, `/resources`.
    Locks,
    /// `/v1/<namespace>/leases/`.
    Leases,
    /// `/v1/dss/`.
    Dss,
    /// The port of Redis clients.
    Redis,
    /// Pages, streams, probes, the cluster, and paths that don't exist.
    Other,
}

impl Dialect {
    /// Each of them with its label, in order.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Claims, "claims"),
        (Self::Locks, "locks"),
        (Self::Leases, "leases"),
        (Self::Dss, "dss"),
        (Self::Redis, "redis"),
        (Self::Other, "other"),
    ];
}

/// Everything that watches one node.
#[derive(Debug, Default)]
pub struct Observer {
    /// The newest events, and who reads them as they come.
    pub hub: Arc<Hub>,
    /// Counters and histograms.
    pub metrics: Arc<Metrics>,
    /// The last half hour in steps, for charts.
    pub series: Arc<Series>,
    /// Where traces of requests go, if they go anywhere.
    pub exporter: OnceLock<Arc<Exporter>>,
    /// What became of them.
    pub traces: Arc<otlp::Counts>,
    /// What became of backups.
    pub backups: Arc<backups::Counts>,
}

impl Observer {
    /// Who must hear of every event.
    pub fn listeners(&self) -> Vec<Arc<dyn Listener>> {
        vec![self.hub.clone(), self.metrics.clone(), self.series.clone()]
    }
}
