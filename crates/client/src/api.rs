//! Plain requests: look at claims, change one, without a machine behind it.
//!
//! In:    ids and filters. Out: claims as the server shows them.
//! Never: repeats a request that may have arrived, except to another address when it certainly has not.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use crate::error::Error;
use crate::http::{Call, Http, Reply, Streamed};
use crate::settings::Options;
use crate::wire::{ClaimInfo, id_of};

/// How long a request may take.
const WITHIN: Duration = Duration::from_secs(30);
/// Claims of one page of a list: as many as a server gives.
const PAGE_LEN: usize = 1000;

/// The claims API, call by call.
#[derive(Clone)]
pub struct Api {
    http: Arc<Http>,
}

impl Api {
    /// Connects to nothing yet.
    pub fn new(options: &Options) -> Result<Self, Error> {
        Ok(Self { http: Arc::new(Http::new(options)?) })
    }

    pub(crate) fn over(http: Arc<Http>) -> Self {
        Self { http }
    }

    /// Any request that is answered at once.
    pub async fn call(&self, call: &Call) -> Result<Reply, Error> {
        self.call_within(call, WITHIN).await
    }

    /// Any request, with its own time limit. A server that has fallen silent is left sooner.
    pub async fn call_within(&self, call: &Call, within: Duration) -> Result<Reply, Error> {
        let reply = self.http.send(call, within).await;
        if call.method != Method::GET {
            return Ok(reply?);
        }
        // Nothing depends on whether a read arrived.
        match reply {
            Err(failure) => Err(Error::Unreachable(failure.why().into())),
            Ok(reply) => match reply.refusal() {
                Error::Unknown(why) => Err(Error::Unreachable(format!("{} answers {why}", reply.from))),
                _ => Ok(reply),
            },
        }
    }

    /// A read whose answer comes piece by piece; it must begin within this time.
    pub async fn open(&self, call: &Call, within: Duration) -> Result<Streamed, Error> {
        self.http.open(call, within).await.map_err(|failure| Error::Unreachable(failure.why().into()))
    }

    /// One claim, by its id or URL.
    pub async fn get(&self, id: &str) -> Result<ClaimInfo, Error> {
        let reply = self.call(&Call::new(Method::GET, path(id), "")).await?.ok()?;
        read(&reply)
    }

    /// Claims in the order of their creation, at most so many.
    pub async fn list(&self, filters: &[(&str, &str)], limit: usize) -> Result<Vec<ClaimInfo>, Error> {
        let mut found = Vec::new();
        loop {
            let page_len = PAGE_LEN.min(limit - found.len());
            let query = form_urlencoded::Serializer::new(String::new())
                .extend_pairs(filters)
                .append_pair("limit", &page_len.to_string())
                .append_pair("offset", &found.len().to_string())
                .finish();
            let reply = self.call(&Call::new(Method::GET, format!("claims/?{query}"), "")).await?.ok()?;
            let has_more = reply.link.as_ref().is_some_and(|link| link.contains("rel=\"next\""));
            let mut page: Vec<ClaimInfo> = read(&reply)?;
            let is_empty = page.is_empty();
            found.append(&mut page);
            if !has_more || is_empty || found.len() >= limit {
                return Ok(found);
            }
        }
    }

    /// Makes a claim under an idempotency key.
    pub async fn post(&self, body: &Value, key: &str) -> Result<ClaimInfo, Error> {
        let call = Call::new(Method::POST, "claims/", body.to_string()).header("idempotency-key", key);
        let reply = self.call(&call).await?.ok()?;
        read(&reply)
    }

    /// Ends a claim: `released`, `withdrawn`, `aborted` or `revoked`.
    pub async fn end(&self, id: &str, status: &str, reason: Option<&str>) -> Result<(), Error> {
        let mut call = Call::new(Method::PATCH, path(id), json!({ "status": status }).to_string());
        if let Some(reason) = reason {
            call = call.header("leasehold-reason", reason);
        }
        let reply = self.call(&call).await?;
        match reply.refusal() {
            // The first of two requests has done it, and its answer was lost.
            Error::Ended(found) if reply.is_repeated && found == status => Ok(()),
            _ => reply.ok().map(drop),
        }
    }

    /// Starts a claim's ttl anew.
    pub async fn renew(&self, id: &str, ttl: Duration) -> Result<ClaimInfo, Error> {
        let body = json!({ "ttl": ttl.as_secs_f64() }).to_string();
        let reply = self.call(&Call::new(Method::PATCH, path(id), body)).await?.ok()?;
        read(&reply)
    }

    /// Waits up to so long for a claim's turn; `None` if it still waits.
    pub async fn await_turn(&self, id: &str, wait: Duration) -> Result<Option<ClaimInfo>, Error> {
        let path = format!("{}?wait={}", path(id), wait.as_secs_f64());
        let call = Call::new(Method::PATCH, path, json!({"status": "active"}).to_string());
        let reply = self.http.send_long(&call, wait + WITHIN).await?;
        if reply.status == 409 {
            return Ok(None);
        }
        read(&reply.ok()?).map(Some)
    }
}

fn path(id: &str) -> String {
    let id: String = form_urlencoded::byte_serialize(id_of(id).as_bytes()).collect();
    format!("claims/{id}/")
}

fn read<T: serde::de::DeserializeOwned>(reply: &Reply) -> Result<T, Error> {
    serde_json::from_slice(&reply.body)
        .map_err(|error| Error::Unknown(format!("the server's answer can't be read: {error}")))
}
