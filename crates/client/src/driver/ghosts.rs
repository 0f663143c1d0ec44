//! Takes back claims that may have been made and whose id nobody knows.
//!
//! In:    a POST that was sent and never answered, of a claim that is no longer wanted. Out: the claim, withdrawn.
//! Never: gives up before `end_timeout`; after that the claim's ttl ends it.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::json;

use super::actions::register_call;
use super::{Driver, News};
use crate::clock::BootInstant;
use crate::http::{Call, Http};
use crate::machine::is_refusal;
use crate::retries::Retry;
use crate::wire::{self, ClaimInfo};

impl Driver {
    /// The same POST under the same key finds the claim, if it is there; then it can be ended.
    pub(super) fn take_back(&mut self, key: u64, is_signal: bool) {
        let Some(entry) = self.claims.get_mut(&key).filter(|entry| entry.may_be_registered) else { return };
        let post = register_call(entry);
        let status = if is_signal { "aborted" } else { "withdrawn" };
        let retry = self.options.retries.abort;
        let until = BootInstant::now() + self.options.end_timeout;
        let (http, news) = (self.http.clone(), self.news.clone());
        self.cleaning += 1;
        tokio::spawn(async move {
            end(&http, &post, status, retry, until).await;
            news.send(News::Cleaned).ok();
        });
    }
}

async fn end(http: &Arc<Http>, post: &Call, status: &str, retry: Retry, until: BootInstant) {
    let mut patch: Option<Call> = None;
    for attempt in 0.. {
        let answer =
            http.send(patch.as_ref().unwrap_or(post), retry.attempt.max(Duration::from_secs(1))).await;
        match (&patch, answer) {
            (None, Ok(reply)) if matches!(reply.status, 201 | 202) => {
                let info = serde_json::from_slice::<ClaimInfo>(&reply.body).ok();
                let Some(url) = reply.location.or(info.map(|info| info.url)) else { return };
                let path = format!("claims/{}/", wire::id_of(&url));
                patch = Some(Call::new(Method::PATCH, path, json!({ "status": status }).to_string()));
                continue;
            }
            // Over, or refused: nothing is there.
            (_, Ok(reply)) if reply.status < 400 || is_refusal(reply.status) => return,
            _ => {}
        }
        if until.is_past() {
            return;
        }
        tokio::time::sleep(retry.pause(attempt, rand::random())).await;
    }
}
