//! What a run counted: latencies by operation, errors by kind, the first few bodies of errors.
//!
//! In:    every answer, from `load.rs`; hand-overs, from `scenarios/queue.rs`.
//! Out:   `Stats`, read by the scenarios and `output.rs`.
//! Never: counts a request that started outside the measured window.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::histogram::Histogram;
use crate::load::CpuUse;

/// A stall a bystander would notice.
pub(crate) const STALL: Duration = Duration::from_millis(10);
/// Error bodies kept for the reader; the first few explain the rest.
const ERROR_SAMPLES_MAX: usize = 5;
/// Bytes kept of each, so a page of HTML does not drown the result.
const ERROR_SAMPLE_BYTES_MAX: usize = 300;

/// What is measured. All but `Handover` are requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// `POST /v1/claims/`.
    Claim,
    /// `PATCH` to `released`.
    Release,
    /// `PATCH` of `ttl`.
    Renew,
    /// `POST /v1/claims/?wait=`: a claim that is answered once active.
    WaitingClaim,
    /// From the release being written until the next holder has read its 201.
    Handover,
    /// `PATCH` to `active`, the poll of a waiting client.
    Activate,
    /// `PATCH` to `withdrawn` or `aborted`.
    Cancel,
    /// `GET` of one claim.
    Get,
    /// `GET /v1/claims/?status=active&limit=100`.
    ListActive,
    /// `GET /v1/claims/?resource=`.
    ListResource,
    /// The claim of the one-connection probe that runs beside other work.
    ProbeClaim,
    /// The release of that probe.
    ProbeRelease,
}

/// Every operation, in the order of the output.
pub(crate) const OPS: [Op; 12] = [
    Op::Claim,
    Op::Release,
    Op::Renew,
    Op::WaitingClaim,
    Op::Handover,
    Op::Activate,
    Op::Cancel,
    Op::Get,
    Op::ListActive,
    Op::ListResource,
    Op::ProbeClaim,
    Op::ProbeRelease,
];

impl Op {
    /// The name in tables and JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Release => "release",
            Self::Renew => "renew",
            Self::WaitingClaim => "waiting claim",
            Self::Handover => "hand-over",
            Self::Activate => "activate",
            Self::Cancel => "cancel",
            Self::Get => "get",
            Self::ListActive => "list active",
            Self::ListResource => "list resource",
            Self::ProbeClaim => "probe claim",
            Self::ProbeRelease => "probe release",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The counts of one run.
pub struct Stats {
    /// Length of the measured window, for rates.
    pub measured: Duration,
    /// One histogram per operation, indexed by `Op as usize`.
    latencies: Vec<Histogram>,
    /// When a request of the probe took longer than `STALL`: from when until when.
    pub stalls: Vec<Range<Instant>>,
    /// Errors by operation and kind.
    pub errors: BTreeMap<String, u64>,
    /// The first few errors in full.
    pub error_samples: Vec<String>,
    /// Open loop: scheduled requests that were never sent, since every connection was still busy.
    pub unsent: u64,
    /// Processor time in the measured window: it shows whether the generator was the limit.
    pub cpu: CpuUse,
}

impl Stats {
    /// The latencies of one operation.
    pub fn of(&self, op: Op) -> &Histogram {
        &self.latencies[op as usize]
    }

    /// Operations per second over the measured window.
    pub fn per_second(&self, op: Op) -> f64 {
        self.of(op).count() as f64 / self.measured.as_secs_f64().max(1e-9)
    }

    /// How many errors there were.
    pub(crate) fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }
}

/// Collects counts while a run is under way.
pub(crate) struct Recorder {
    /// Requests that start before this belong to the warm-up.
    from: Instant,
    /// Requests that start at or after this belong to the clean-up; unset while nobody knows the end.
    until: Option<Instant>,
    /// Answers so far, of the warm-up too, for the progress line.
    answers: u64,
    /// What was counted.
    stats: Stats,
}

impl Recorder {
    /// Records requests that start in `from..until`.
    pub(crate) fn new(from: Instant, until: Option<Instant>) -> Self {
        let stats = Stats {
            measured: Duration::ZERO,
            latencies: vec![Histogram::new(); OPS.len()],
            stalls: Vec::new(),
            errors: BTreeMap::new(),
            error_samples: Vec::new(),
            unsent: 0,
            cpu: CpuUse::default(),
        };
        Self { from, until, answers: 0, stats }
    }

    /// Counts what began at `started` and is over `now`.
    pub(crate) fn answer(&mut self, op: Op, started: Instant, now: Instant) {
        if op != Op::Handover {
            self.answers += 1;
        }
        if started >= self.from && self.until.is_none_or(|until| started < until) {
            let took = now.saturating_duration_since(started);
            self.stats.latencies[op as usize].record(took);
            if took > STALL && matches!(op, Op::ProbeClaim | Op::ProbeRelease) {
                self.stats.stalls.push(started..now);
            }
        }
    }

    /// Counts one error; errors count whenever they happen, warm-up and clean-up included.
    pub(crate) fn error(&mut self, kind: String, detail: &[u8]) {
        if self.stats.error_samples.len() < ERROR_SAMPLES_MAX {
            let detail = &detail[..detail.len().min(ERROR_SAMPLE_BYTES_MAX)];
            self.stats.error_samples.push(format!("{kind}: {}", String::from_utf8_lossy(detail)));
        }
        *self.stats.errors.entry(kind).or_insert(0) += 1;
    }

    /// Notes the processor time, if it was measured.
    pub(crate) fn used(&mut self, cpu: Option<CpuUse>) {
        self.stats.cpu = cpu.unwrap_or_default();
    }

    /// Answers so far.
    pub(crate) fn answers(&self) -> u64 {
        self.answers
    }

    /// Errors so far.
    pub(crate) fn errors(&self) -> u64 {
        self.stats.error_count()
    }

    /// Ends the measured window at `now`, if it had no end yet, and hands out the counts.
    pub(crate) fn finish(mut self, now: Instant) -> Stats {
        let until = self.until.unwrap_or(now).min(now);
        self.stats.measured = until.saturating_duration_since(self.from);
        self.stats
    }
}
