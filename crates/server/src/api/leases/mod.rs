//! The leases dialect: `/v1/<namespace>/leases/<name>`, metadata in headers, versions.
//!
//! In:    POST, PUT, DELETE, GET and HEAD of a lease, GET of a list. Out: commands, and the table's answers.
//! Never: decides about locks. `path.rs`, `parse.rs` and `client.rs` read requests, `lease.rs` the table; `render.rs`,
//!        `report.rs` and `list.rs` write responses.
//!
//! A lease is a claim that refuses to queue on the resource `<namespace>/leases/<name>`. Whoever holds that name
//! through another dialect holds the lease.

mod client;
mod lease;
mod list;
mod parse;
pub mod path;
mod render;
mod report;
mod time_text;

use std::sync::Arc;

use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, StatusCode};
use leasehold_core::{
    ClaimId, Command, Data, Ending, Format as DataFormat, Guard, NewClaim, OnBusy, Outcome, Rejection,
    Status, Target, View,
};

use self::client::Client;
use self::lease::{Lease, look};
use self::parse::{Format, bad};
use self::path::PathMistake;
use crate::access::Caller;
use crate::access::rules::Verb;
use crate::api::one_resource_view::{is_alone, on_resource};
use crate::api::refused::unexpected;
use crate::app::App;
use crate::app::receive::read_body;
use crate::audit::Noted;
use crate::message::connection::Connection;
use crate::message::headers::Headers;
use crate::message::problem::problem;
use crate::message::request::{Request, reason};
use crate::message::{Response, empty};
use leasehold_engine::EngineError;

/// Largest client data, as the protocol's document sets it.
const DATA_LEN_MAX: usize = 4096;
/// Longest path and query.
const URI_LEN_MAX: usize = 2048;
/// The table version from which on every node divides namespace and name at the first `leases`.
const WHOLE_NAMES_SINCE_VERSION: u32 = 2;
/// What a lease answers.
const METHODS: &str = "GET, HEAD, POST, PUT, DELETE";

/// A request about one lease.
struct LeaseRequest<'a> {
    app: &'a App,
    connection: &'a Connection,
    /// What access control knows of the caller.
    who: &'a Caller,
    resource: Arc<str>,
    /// The caller as a client of this dialect.
    client: Client<'a>,
    /// What it wants to read.
    format: Format,
}

/// A refusal that is not about a lease, in this dialect's form.
pub fn refusal(refusal: Response) -> Response {
    render::seal(render::of_nobody(refusal))
}

/// What is wrong with a path.
pub fn mistaken_path(mistake: &PathMistake) -> Response {
    match mistake {
        PathMistake::Bad(why) => bad(why),
        PathMistake::NotALease | PathMistake::TooLong => too_long(),
    }
}

/// The refusal of a request whose URI is too long, whatever its method and whoever sends it.
pub fn overlong(request: &Request) -> Option<Response> {
    let uri = request.uri().path_and_query();
    uri.is_some_and(|uri| uri.as_str().len() > URI_LEN_MAX).then(too_long)
}

/// `GET` and `HEAD` of a lease; other methods get 501.
pub async fn read(
    app: &App,
    connection: &Connection,
    request: &Request,
    resource: Arc<str>,
    who: &Caller,
) -> Response {
    let lease_request = match LeaseRequest::new(app, connection, request, resource, who) {
        Ok(lease_request) => lease_request,
        Err(mistake) => return refusal(mistake),
    };
    let answer = match (no_query(request), request.method()) {
        (Err(mistake), _) => Err(mistake),
        (Ok(()), &Method::GET | &Method::HEAD) => lease_request.get().await,
        _ => Err(not_implemented(METHODS)),
    };
    lease_request.seal(answer).await
}

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

/// The leases of a namespace, as far as the caller may see them.
pub async fn list(app: &App, request: &Request, namespace: &str, who: &Caller) -> Response {
    match no_query(request) {
        Ok(()) => {
            render::seal(list::list(&app.engine, namespace, parse::format(request.headers()), who).await)
        }
        Err(mistake) => refusal(mistake),
    }
}

/// What a list answers to a method that it lacks.
pub fn other_of_list(request: &Request) -> Response {
    let changes = [Method::POST, Method::PUT, Method::DELETE].contains(request.method());
    let called_list =
        "no lease can be called 'list': that name shows the leases of the namespace; choose another";
    refusal(match no_query(request) {
        Err(mistake) => mistake,
        Ok(()) if changes => bad(called_list),
        Ok(()) => not_implemented("GET, HEAD"),
    })
}

fn too_long() -> Response {
    let detail = format!("the URI is longer than {URI_LEN_MAX} bytes");
    problem(StatusCode::URI_TOO_LONG, "uri-too-long", &detail)
}

fn no_query(request: &Request) -> Result<(), Response> {
    match request.uri().query() {
        None => Ok(()),
        Some(_) => Err(bad(
            "leases take no query string but 'stale=true' on GET and HEAD; write a '?' in a name as %3F",
        )),
    }
}

fn not_implemented(allow: &'static str) -> Response {
    let detail = format!("this path answers {allow}");
    let mut response = problem(StatusCode::NOT_IMPLEMENTED, "not-implemented", &detail);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

/// Who takes a lease away from another says why, and has the right to: by accident nobody does.
fn revokes(headers: &Headers, resource: &str, who: &Caller) -> bool {
    who.is_checked() && reason(headers).is_some() && who.may(Verb::Revoke, resource)
}

impl<'a> LeaseRequest<'a> {
    fn new(
        app: &'a App,
        connection: &'a Connection,
        request: &Request,
        resource: Arc<str>,
        who: &'a Caller,
    ) -> Result<Self, Response> {
        let client = Client::new(request.headers(), connection, who, app.engine.table_version())?;
        let format = parse::format(request.headers());
        Ok(Self { app, connection, who, resource, client, format })
    }

    /// A refusal that is not about the lease still tells about it, as far as the caller may see it.
    async fn seal(&self, answer: Result<Response, Response>) -> Response {
        render::seal(match answer {
            Ok(response) => response,
            Err(refusal) => self.with_metadata(refusal).await,
        })
    }

    /// Whether the caller may see this holder, or former holder, of the lease.
    fn sees(&self, view: &View) -> bool {
        self.who.may_see(&self.resource, &view.claim.owner)
    }

    /// What of a lease the caller may see: all of it with the right to read, else its own claims.
    fn visible(&self, lease: Lease) -> Lease {
        let on_lease = |view: View| on_resource(view, &self.resource, self.who);
        let lease = Lease {
            latest: lease.latest.map(on_lease),
            history: lease.history.into_iter().map(on_lease).collect(),
            others: lease.others.into_iter().map(on_lease).collect(),
            ..lease
        };
        if self.who.may(Verb::Read, &self.resource) {
            return lease;
        }
        let own = |views: Vec<View>| views.into_iter().filter(|view| self.sees(view)).collect();
        let latest = lease.latest.filter(|view| self.sees(view));
        let (history, others) = (own(lease.history), own(lease.others));
        Lease { resource: lease.resource, latest, history, waiting: 0, others }
    }
}

impl LeaseRequest<'_> {
    async fn get(&self) -> Result<Response, Response> {
        let lease = self.look().await?;
        // Without the right to read, the holder alone sees its lease; nobody else learns even whether it is free.
        if !self.who.may(Verb::Read, &self.resource) && !lease.is_held() {
            return Ok(render::of_nobody(self.who.refuse(Verb::Read, &self.resource).into()));
        }
        let mut response = match &lease.latest {
            Some(view) if self.format == Format::Raw && lease.is_held() => render::client_data(view),
            _ if lease.is_held() => render::answer(StatusCode::OK, self.format, &lease, &self.client, ""),
            latest => {
                // Reports say it in their first line.
                let line = if self.format == Format::Raw {
                    not_held(latest.as_ref(), &self.client)
                } else {
                    String::new()
                };
                render::answer(StatusCode::NOT_FOUND, self.format, &lease, &self.client, &line)
            }
        };
        render::metadata(response.headers_mut(), lease.latest.as_ref(), &self.client);
        Ok(response)
    }

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

    /// An answer about the lease as the table gave it, in the caller's format.
    async fn answer(&self, status: StatusCode, view: Option<View>, line: &str) -> Response {
        let around = match self.format {
            Format::Raw => None,
            _ => self.look().await.ok(),
        };
        let around = around.unwrap_or(Lease::never_held(&self.resource));
        // The table answered as of the entry's stamp; since then the entry was written and synced.
        let now_us = self.app.engine.read(|_, now_us| now_us);
        let latest = view.map(|view| View { now_us: now_us.max(view.now_us), ..view });
        let lease = Lease { latest, ..around };
        let mut response = render::answer(status, self.format, &lease, &self.client, line);
        render::metadata(response.headers_mut(), lease.latest.as_ref(), &self.client);
        response
    }

    /// The lease as it is now, as far as the caller may see it.
    async fn look(&self) -> Result<Lease, Response> {
        let history = self.format != Format::Raw;
        let lease = look(&self.app.engine, &self.resource, history).await;
        lease.map(|lease| self.visible(lease)).map_err(|error| render::unanswered(&error))
    }

    /// The holder's name, for callers who may know it.
    fn name_of(&self, view: &View) -> String {
        if self.sees(view) && self.who.may_see_view(view) {
            self.client.name_of(&view.claim.owner)
        } else {
            "another client".into()
        }
    }

    /// Without a quorum, or after a bug, nothing is known of the lease.
    async fn with_metadata(&self, mut refusal: Response) -> Response {
        let unknown = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::INTERNAL_SERVER_ERROR];
        if !unknown.contains(&refusal.status())
            && let Ok(lease) = look(&self.app.engine, &self.resource, false).await
        {
            let lease = self.visible(lease);
            render::metadata(refusal.headers_mut(), lease.latest.as_ref(), &self.client);
        }
        refusal
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

fn not_held(last: Option<&View>, client: &Client<'_>) -> String {
    match last {
        Some(view) => {
            format!("nobody holds this lease; the last holder was {}", client.name_of(&view.claim.owner))
        }
        None => "nobody holds this lease".into(),
    }
}
