//! Traces of requests, sent to an OpenTelemetry collector.
//!
//! In:    a [`Span`] for each answered request, with the hops of the engine. Out: OTLP over HTTP, in batches (`protobuf.rs`).
//! Never: keeps a request waiting: a full queue and an unreachable collector cost spans, which are counted.

mod protobuf;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use leasehold_engine::hops::Hop;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::access::fetch::Fetcher;

/// Spans that wait for their batch: about 2 MB.
const QUEUE_MAX: usize = 8192;
/// Spans in one batch.
const BATCH_MAX: usize = 512;
/// How long a batch is waited for to fill.
const BATCH_EVERY: Duration = Duration::from_millis(500);
/// How long a stop waits for the last batches.
const STOP_MAX: Duration = Duration::from_secs(2);
/// The standard's path on a collector.
const PATH: &str = "/v1/traces";

/// An answered request.
#[derive(Debug)]
pub struct Span {
    /// The caller's trace, or one of its own.
    pub trace_id: [u8; 16],
    /// This request's place in it.
    pub span_id: [u8; 8],
    /// The caller's, if it has one.
    pub parent_id: Option<[u8; 8]>,
    /// What was asked: a closed list of names.
    pub name: &'static str,
    /// What was asked and answered, in the words of the protocol.
    pub exchange: Exchange,
    /// Whether the service failed, and not the client.
    pub failed: bool,
    /// The client's address.
    pub peer: String,
    /// When the request came.
    pub start: SystemTime,
    /// How long its answer took.
    pub took: Duration,
    /// Its way through the engine.
    pub hops: Vec<Hop>,
}

/// A request and its answer, as a trace shows them.
#[derive(Debug)]
pub enum Exchange {
    /// Over HTTP.
    Http {
        /// The method.
        method: hyper::Method,
        /// The path.
        path: String,
        /// The answer's status.
        status: u16,
    },
    /// A command of a Redis client. Its arguments may be secrets: they are left out.
    Redis {
        /// The first word of an error, such as `TRYAGAIN`.
        error: Option<String>,
    },
}

/// What became of spans.
#[derive(Debug, Default)]
pub struct Counts {
    /// Those that a collector has taken.
    pub exported: AtomicU64,
    /// Those that were dropped.
    pub dropped: AtomicU64,
}

/// The way to a collector.
#[derive(Debug)]
pub struct Exporter {
    queue: Mutex<Option<mpsc::Sender<Span>>>,
    counts: Arc<Counts>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Exporter {
    /// Begins to send to the collector at this URL.
    pub fn start(url: &str, node: u64, counts: Arc<Counts>) -> Result<Arc<Self>, String> {
        let fetcher = Fetcher::new(None)?;
        let (queue, spans) = mpsc::channel(QUEUE_MAX);
        let sender = Batches { fetcher, url: endpoint(url), node, counts: counts.clone(), failed: false };
        let task = Mutex::new(Some(tokio::spawn(sender.run(spans))));
        leasehold_engine::hops::switch_on();
        Ok(Arc::new(Self { queue: Mutex::new(Some(queue)), counts, task }))
    }

    /// Hands a span over.
    pub fn export(&self, span: Span) {
        let sent = self.queue.lock().as_ref().is_some_and(|queue| queue.try_send(span).is_ok());
        if !sent {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends what is left, for a moment.
    pub async fn stop(&self) {
        self.queue.lock().take();
        let task = self.task.lock().take();
        if let Some(task) = task {
            let _ = tokio::time::timeout(STOP_MAX, task).await;
        }
    }
}

/// A collector's URL without a path means the standard's.
fn endpoint(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    match rest.trim_end_matches('/').contains('/') {
        true => url.into(),
        false => format!("{}{PATH}", url.trim_end_matches('/')),
    }
}

struct Batches {
    fetcher: Fetcher,
    url: String,
    node: u64,
    counts: Arc<Counts>,
    /// Whether the last batch did not get through: said once.
    failed: bool,
}

impl Batches {
    async fn run(mut self, mut spans: mpsc::Receiver<Span>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while spans.recv_many(&mut batch, BATCH_MAX).await > 0 {
            if batch.len() < BATCH_MAX && !spans.is_closed() {
                tokio::time::sleep(BATCH_EVERY).await;
                while batch.len() < BATCH_MAX
                    && let Ok(span) = spans.try_recv()
                {
                    batch.push(span);
                }
            }
            self.send(&batch).await;
            batch.clear();
        }
    }

    async fn send(&mut self, batch: &[Span]) {
        let body = protobuf::request(batch, self.node).into();
        let sent = self.fetcher.post(&self.url, "application/x-protobuf", body).await;
        let counter = if sent.is_ok() { &self.counts.exported } else { &self.counts.dropped };
        counter.fetch_add(batch.len() as u64, Ordering::Relaxed);
        match (sent, std::mem::replace(&mut self.failed, false)) {
            (Err(why), before) => {
                self.failed = true;
                if !before {
                    tracing::warn!("traces are dropped until the collector takes them: {why}");
                }
            }
            (Ok(_), true) => tracing::info!("the collector takes traces again"),
            (Ok(_), false) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_without_a_path_has_the_standard_one() {
        for (given, meant) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
            ("https://otel.example.org/tenant/v1/traces", "https://otel.example.org/tenant/v1/traces"),
        ] {
            assert_eq!(endpoint(given), meant);
        }
    }
}
