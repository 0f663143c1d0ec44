//! POST, PUT and DELETE of a lease: a claim, its renewal, its end.
//!
//! In:    a request, checked by `parse.rs`. Out: a command, and its outcome as an answer about the lease.
//! Never: ends a claim that holds more than this lease, or another client's without the right to revoke it and a reason.

use std::sync::Arc;

use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, StatusCode};
use leasehold_core::{
    ClaimId, Command, Data, Ending, Format as DataFormat, Guard, NewClaim, OnBusy, Outcome, Rejection,
    Status, Target, View,
};

use super::{LeaseRequest, no_query, not_held, parse, path, refusal, render};
use crate::access::Caller;
use crate::access::rules::Verb;
use crate::api::one_resource_view::{is_alone, on_resource};
use crate::api::refused::unexpected;
use crate::app::App;
use crate::app::receive::read_body;
use crate::audit::Noted;
use crate::message::connection::Connection;
use crate::message::headers::Headers;
use crate::message::request::{Request, reason};
use crate::message::{Response, empty};
use leasehold_engine::EngineError;

/// Largest client data, as the protocol's document sets it.
const DATA_LEN_MAX: usize = 4096;
/// The table version from which on every node divides namespace and name at the first `leases`.
const WHOLE_NAMES_SINCE_VERSION: u32 = 2;

/// `POST`, `PUT` and `DELETE` of a lease.
pub async fn change(
    app: &App,
    connection: &Connection,
    request: Request,
    resource: Arc<str>,
    who: &Caller,
) -> Response {
    let lease_request = match LeaseRequest::new(app, connection, &request, resource, who) {
        Ok(lease_request) => lease_request,
        Err(mistake) => return refusal(mistake),
    };
    let answer = lease_request.change(request).await;
    lease_request.seal(answer).await
}

/// Whether a request takes the lease away from another client: it says why, and has the right to. Nobody does so by accident.
fn revokes(headers: &Headers, resource: &str, who: &Caller) -> bool {
    who.is_checked() && reason(headers).is_some() && who.may(Verb::Revoke, resource)
}

impl LeaseRequest<'_> {
    async fn change(&self, request: Request) -> Result<Response, Response> {
        no_query(&request)?;
        let (head, body) = request.into_parts();
        if head.method == Method::POST && path::differs_in_first_release(head.uri.path()) {
            let upgraded = self.app.engine.reach_table_version(WHOLE_NAMES_SINCE_VERSION).await;
            upgraded.map_err(|error| render::unanswered(&error))?;
        }
        let draft = self.command(&head.method, &head.headers).await?;
        let body = match head.method {
            Method::DELETE => None,
            _ => Some(read_body(self.app, body, &head.headers, DATA_LEN_MAX, self.who).await?),
        };
        let body = body.filter(|body| !body.is_empty());
        let data = body.map(|bytes| Data { format: DataFormat::Bytes, bytes: bytes.as_ref().into() });
        let noted = self.note(&draft, &head.headers);
        let outcome = self.submit(with_data(draft, data)).await;
        let outcome = outcome.map_err(|error| render::unanswered(&error))?;
        noted.settled();
        match outcome {
            Outcome::Granted(view) => Ok(self.answer(StatusCode::CREATED, Some(*view), "acquired").await),
            Outcome::Renewed(view) => Ok(self.answer(StatusCode::ACCEPTED, Some(*view), "renewed").await),
            Outcome::Finished(view) => {
                let mut response = empty(StatusCode::NO_CONTENT);
                render::metadata(response.headers_mut(), Some(&view), &self.client);
                Ok(response)
            }
            Outcome::Rejected(rejection) => self.rejected(rejection).await,
            other => Err(unexpected(&other, "leases")),
        }
    }

    /// Has the table do it. A lease that release 0.1.0 granted to this client may have another owner: the table says which,
    /// and is asked once more.
    async fn submit(&self, command: Command) -> Result<Outcome, EngineError> {
        let again = self.client.has_other_owner().then(|| command.clone());
        match (self.app.engine.submit(command).await?, again) {
            (Outcome::Rejected(Rejection::NotOwner(view)), Some(command))
                if self.client.is_owner(&view.claim.owner) =>
            {
                self.app.engine.submit(guarded_by(command, view.claim.owner)).await
            }
            (outcome, _) => Ok(outcome),
        }
    }

    /// Tells the audit who asks.
    fn note(&self, draft: &Command, headers: &Headers) -> Noted {
        match draft {
            _ if self.app.guards.audit.is_none() => Noted::default(),
            Command::Claim(new) => self.app.note(new.id, self.who, self.connection, headers),
            Command::Finish { ending, guard, .. } => {
                let holder = self.app.engine.read(|table, now_us| table.holder_view(&self.resource, now_us));
                let Some(holder) = holder else { return Noted::default() };
                let (by, from) = (self.who.owner(self.connection, headers), self.connection.client(headers));
                let owner = &holder.claim.owner;
                let only_of =
                    guard.owner.as_ref().map(|own| if self.client.is_owner(owner) { owner } else { own });
                self.app.note_end(holder.claim.id, *ending, only_of, by, from)
            }
            _ => Noted::default(),
        }
    }

    /// The command of a request, still without its data.
    async fn command(&self, method: &Method, headers: &Headers) -> Result<Command, Response> {
        if *method == Method::POST {
            return Ok(Command::Claim(NewClaim {
                id: ClaimId::from_u128(leasehold_engine::machine::random()),
                resource: self.resource.clone(),
                owner: self.client.owner().clone(),
                ttl_us: Some(parse::length_us(headers)?),
                on_busy: OnBusy::Refuse,
                data: None,
                idempotency: None,
            }));
        }
        let target = Target::Holder(self.resource.clone());
        let guard = Guard { owner: Some(self.client.owner().clone()), version: parse::version(headers)? };
        if *method == Method::PUT {
            return Ok(Command::Renew { target, guard, ttl_us: parse::new_length_us(headers)?, data: None });
        }
        let reason = reason(headers);
        // What is shared or part of a set is left to the table, which refuses to end it by the name of a resource.
        if revokes(headers, &self.resource, self.who)
            && let Some(holder) = self.holder().await?
            && !self.client.is_owner(&holder.claim.owner)
            && is_alone(&holder)
        {
            let (target, guard) = (Target::Claim(holder.claim.id), Guard { owner: None, ..guard });
            return Ok(Command::Finish { target, guard, ending: Ending::Revoked, reason, purge_data: true });
        }
        Ok(Command::Finish { target, guard, ending: Ending::Released, reason, purge_data: true })
    }

    /// The holder whom a revocation means: as new as everything that was acknowledged.
    async fn holder(&self) -> Result<Option<View>, Response> {
        self.app.engine.barrier().await.map_err(|error| render::unanswered(&error))?;
        Ok(self.app.engine.read(|table, now_us| table.holder_view(&self.resource, now_us)))
    }

    async fn rejected(&self, rejection: Rejection) -> Result<Response, Response> {
        let (status, view, line) = match rejection {
            Rejection::Busy(view) if view.claim.status == Status::Waiting => {
                let line = format!("not acquired: {} came first, and reserves it", self.name_of(&view));
                (StatusCode::CONFLICT, None, line)
            }
            Rejection::Busy(view) if self.client.is_owner_now(&view.claim.owner) && is_alone(&view) => (
                StatusCode::METHOD_NOT_ALLOWED,
                Some(*view),
                "you hold this lease already: renew it with PUT".into(),
            ),
            Rejection::Busy(view) => {
                let line = format!("not acquired: {} holds this lease", self.name_of(&view));
                (StatusCode::CONFLICT, Some(*view), line)
            }
            Rejection::NotAlone(view) => {
                let line = format!(
                    "{} holds this lease shared, in slots or as part of a set: only the claim's own URL can change that",
                    self.name_of(&view)
                );
                (StatusCode::CONFLICT, Some(*view), line)
            }
            Rejection::NotOwner(view) => {
                self.who.note_refusal(Verb::Revoke, &self.resource, StatusCode::FORBIDDEN);
                let line = format!("{} holds this lease, you are {}", self.name_of(&view), self.client.id());
                (StatusCode::FORBIDDEN, Some(*view), line)
            }
            Rejection::VersionMismatch(view) => {
                let line = format!(
                    "the lease was changed: its version is {} now, fetch it again",
                    view.claim.version
                );
                (StatusCode::CONFLICT, Some(*view), line)
            }
            Rejection::Revoking(view) => {
                (StatusCode::CONFLICT, Some(*view), "the lease is being revoked: release it".into())
            }
            // The claim that was to be revoked is over.
            Rejection::Final(view) => (StatusCode::NOT_FOUND, Some(*view), String::new()),
            Rejection::NotHeld(_, view) => (StatusCode::NOT_FOUND, view.map(|view| *view), String::new()),
            limit => return Err(render::refused(&limit)),
        };
        let view =
            view.map(|view| on_resource(view, &self.resource, self.who)).filter(|view| self.sees(view));
        let line = if line.is_empty() { not_held(view.as_ref(), &self.client) } else { line };
        let mut response = self.answer(status, view, &line).await;
        if status == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, PUT, DELETE"));
        }
        Ok(response)
    }
}

fn with_data(command: Command, data: Option<Data>) -> Command {
    match command {
        Command::Claim(new) => Command::Claim(NewClaim { data, ..new }),
        Command::Renew { target, guard, ttl_us, .. } => Command::Renew { target, guard, ttl_us, data },
        other => other,
    }
}

/// The same command, for a claim of this owner.
fn guarded_by(command: Command, owner: Arc<str>) -> Command {
    match command {
        Command::Renew { target, guard, ttl_us, data } => {
            Command::Renew { target, guard: Guard { owner: Some(owner), ..guard }, ttl_us, data }
        }
        Command::Finish { target, guard, ending, reason, purge_data } => {
            let guard = Guard { owner: Some(owner), ..guard };
            Command::Finish { target, guard, ending, reason, purge_data }
        }
        other => other,
    }
}
