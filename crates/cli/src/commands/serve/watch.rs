//! Watches a running node: whether it can be used, and whether it can go on.
//!
//! In:    the checks of `/readyz`. Out: one log line when the node is ready, when it is not for long, and when it is again.
//! Never: says "ready" before `/readyz` does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_engine::Engine;
use leasehold_server::serve::Readiness;

/// How often the node is looked at until it is ready for the first time ...
const LOOK_EVERY_AT_START: Duration = Duration::from_millis(50);
/// ... and afterwards: seldom, so that an idle node sleeps. Until it stops, every request to a node whose log failed fails.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Shorter than this is an election, in which requests wait and are answered: the log tells of it in other words.
const UNREADY_AFTER: Duration = Duration::from_secs(3);

/// What has been told of the node.
struct Told {
    started: Instant,
    /// Since when the node is not ready.
    unready: Option<Instant>,
    was_ready: bool,
    /// Whether the log says that it is not.
    warned: bool,
}

/// Returns why the node can't go on, when it can't.
pub(crate) async fn watch(engine: Arc<Engine>, readiness: Readiness, url: String) -> String {
    let started = Instant::now();
    let mut told = Told { started, unready: Some(started), was_ready: false, warned: false };
    loop {
        if let Some(why) = engine.fatal() {
            return why;
        }
        told.look(readiness.problem(), &url);
        tokio::time::sleep(if told.was_ready { LOOK_EVERY } else { LOOK_EVERY_AT_START }).await;
    }
}

impl Told {
    fn look(&mut self, problem: Option<String>, url: &str) {
        let Some(why) = problem else {
            let away = self.unready.take().map(|since| seconds(since.elapsed()));
            match (std::mem::replace(&mut self.was_ready, true), std::mem::take(&mut self.warned), away) {
                (false, ..) => {
                    tracing::info!(%url, took = %seconds(self.started.elapsed()), "ready: this node takes requests");
                }
                (true, true, Some(away)) => tracing::info!("ready again after {away}"),
                _ => {}
            }
            return;
        };
        let since = *self.unready.get_or_insert_with(Instant::now);
        if since.elapsed() > UNREADY_AFTER && !std::mem::replace(&mut self.warned, true) {
            let yet = if self.was_ready { "" } else { " yet" };
            tracing::warn!("not ready{yet} for {}: {why}", seconds(since.elapsed()));
        }
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
