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
use crate::wire::{ClaimInfo, id_of, refuses_session};

/// How long a request may take.
const WITHIN: Duration = Duration::from_secs(30);
/// How long a server may be silent beyond the time that it was asked to wait.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// The claims API, call by call.
#[derive(Clone)]
pub struct Api {
    http: Arc<Http>,
    is_stale: bool,
}

/// A part of a list.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Page {
    /// Claims in the order of their creation.
    pub claims: Vec<ClaimInfo>,
    /// Whether there are more behind them.
    pub has_more: bool,
}

impl Api {
    /// Claims of one page of a list: as many as a server gives.
    pub const PAGE_LEN: usize = 1000;

    /// Connects to nothing yet.
    pub fn new(options: &Options) -> Result<Self, Error> {
        Ok(Self::over(Arc::new(Http::new(options)?)))
    }

    pub(crate) fn over(http: Arc<Http>) -> Self {
        Self { http, is_stale: false }
    }

    /// Reads claims and lists as one node knows them, without asking its cluster: that works without a quorum, and may be old.
    #[must_use]
    pub fn stale(mut self, is_stale: bool) -> Self {
        self.is_stale = is_stale;
        self
    }

    /// Any request that is answered at once.
    #[doc(hidden)]
    pub async fn call(&self, call: &Call) -> Result<Reply, Error> {
        self.call_within(call, WITHIN).await
    }

    /// Any request, with its own time limit. A server that has fallen silent is left sooner.
    #[doc(hidden)]
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
    #[doc(hidden)]
    pub async fn open(&self, call: &Call, within: Duration) -> Result<Streamed, Error> {
        self.http.open(call, within).await.map_err(|failure| Error::Unreachable(failure.why().into()))
    }

    /// One claim, by its id or URL.
    pub async fn get(&self, id: &str) -> Result<ClaimInfo, Error> {
        let query = if self.is_stale { "?stale=true" } else { "" };
        self.look(format!("{}{query}", path(id))).await.map(|(claim, _)| claim)
    }

    /// Claims in the order of their creation, at most this many.
    pub async fn list(&self, filters: &[(&str, &str)], limit: usize) -> Result<Vec<ClaimInfo>, Error> {
        let mut found = Vec::new();
        loop {
            let mut page = self.part(filters, found.len(), Self::PAGE_LEN.min(limit - found.len())).await?;
            let is_empty = page.claims.is_empty();
            found.append(&mut page.claims);
            if !page.has_more || is_empty || found.len() >= limit {
                return Ok(found);
            }
        }
    }

    /// A page of a list, from this many claims on.
    pub async fn page(&self, filters: &[(&str, &str)], offset: usize) -> Result<Page, Error> {
        self.part(filters, offset, Self::PAGE_LEN).await
    }

    async fn part(&self, filters: &[(&str, &str)], offset: usize, limit: usize) -> Result<Page, Error> {
        let stale = self.is_stale.then_some(("stale", "true"));
        let query = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(filters)
            .append_pair("limit", &limit.to_string())
            .append_pair("offset", &offset.to_string())
            .extend_pairs(stale)
            .finish();
        let (claims, has_more) = self.look(format!("claims/?{query}")).await?;
        Ok(Page { claims, has_more })
    }

    /// Reads something, and whether there is more of it. What is not known of a read is no unknown outcome.
    async fn look<T: serde::de::DeserializeOwned>(&self, path: String) -> Result<(T, bool), Error> {
        let reply = self.call(&Call::new(Method::GET, path, "")).await?.ok()?;
        let has_more = reply.link.as_ref().is_some_and(|link| link.contains("rel=\"next\""));
        let unreadable =
            |error| Error::Unreachable(format!("the answer of {} can't be read: {error}", reply.from));
        Ok((serde_json::from_slice(&reply.body).map_err(unreadable)?, has_more))
    }

    /// Makes a claim under an idempotency key. A server that knows no sessions gets it without its `session`.
    pub async fn post(&self, body: &Value, key: &str) -> Result<ClaimInfo, Error> {
        let send = async |body: &Value| {
            let call = Call::new(Method::POST, "claims/", body.to_string()).header("idempotency-key", key);
            self.call(&call).await
        };
        let mut reply = send(body).await?;
        let is_plain = ["mode", "take", "of", "resources"].iter().all(|word| body.get(word).is_none());
        if body.get("session").is_some() && refuses_session(reply.status, &reply.body, is_plain) {
            let mut body = body.clone();
            body.as_object_mut().and_then(|body| body.remove("session"));
            reply = send(&body).await?;
        }
        read(&reply.ok()?)
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

    /// Revokes a claim as soon as its holder has let go, or its ttl is over. The holder is told at once.
    pub async fn revoke_when_gone(&self, id: &str, reason: &str) -> Result<(), Error> {
        let body = json!({ "status": "revoked", "when": "gone" }).to_string();
        let call = Call::new(Method::PATCH, path(id), body).header("leasehold-reason", reason);
        self.call(&call).await?.ok().map(drop)
    }

    /// Restarts a claim's ttl.
    pub async fn renew(&self, id: &str, ttl: Duration) -> Result<ClaimInfo, Error> {
        let body = json!({ "ttl": ttl.as_secs_f64() }).to_string();
        let reply = self.call(&Call::new(Method::PATCH, path(id), body)).await?.ok()?;
        read(&reply)
    }

    /// Waits up to this long for a claim's turn; `None` if it still waits.
    pub async fn await_turn(&self, id: &str, wait: Duration) -> Result<Option<ClaimInfo>, Error> {
        let path = format!("{}?wait={}", path(id), wait.as_secs_f64());
        let call = Call::new(Method::PATCH, path, json!({"status": "active"}).to_string());
        let reply = self.http.send_long(&call, wait + SILENCE_MAX).await?;
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
