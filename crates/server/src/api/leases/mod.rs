//! The leases dialect: `/v1/<namespace>/leases/<name>`, metadata in headers, versions.
//!
//! In:    POST, PUT, DELETE, GET and HEAD of a lease, GET of a list. Out: commands, and the table's answers.
//! Never: decides about locks. `path.rs`, `parse.rs` and `client.rs` read requests, `lease.rs` the table; `change.rs` has POST,
//!        PUT and DELETE; `render.rs`, `report.rs` and `list.rs` write responses.
//!
//! A lease is a claim that refuses to queue on the resource `<namespace>/leases/<name>`. Whoever holds that name
//! through another dialect holds the lease.

mod change;
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
use leasehold_core::View;

pub use self::change::change;
use self::client::Client;
use self::lease::{Lease, look};
use self::parse::{Format, bad};
use self::path::PathMistake;
use crate::access::Caller;
use crate::access::rules::Verb;
use crate::api::one_resource_view::on_resource;
use crate::app::App;
use crate::message::Response;
use crate::message::connection::Connection;
use crate::message::problem::problem;
use crate::message::request::Request;

/// Longest path and query.
const URI_LEN_MAX: usize = 2048;
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

fn not_held(last: Option<&View>, client: &Client<'_>) -> String {
    match last {
        Some(view) => {
            format!("nobody holds this lease; the last holder was {}", client.name_of(&view.claim.owner))
        }
        None => "nobody holds this lease".into(),
    }
}
