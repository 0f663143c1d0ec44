//! Routes: the method and the path of a request, understood once.
//!
//! In:    a method and a path. Out: a [`Route`], one variant for every call, or why there is none.
//! Never: looks at headers, bodies or the table. Nobody else looks at the path to decide anything: access control, the
//!        read barrier, threads, metrics and the API description all ask the route.
//!
//! The table below has one row for every call. A call without a right does not compile: [`Route::right`] names every
//! variant, and so does the table.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::Method;
use leasehold_core::ClaimId;

use crate::access::rules::Verb;
use crate::api::dashboard::{self, File};
use crate::api::dss::TypedCall;
use crate::api::leases::path::{self as lease_path, PathMistake, Place as LeasePlace};
use crate::api::locks::is_name;

pub use crate::observe::Dialect;

/// How new the node's table must be before the call is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// As it is: the log orders what the call changes, or the call is about this node alone.
    AsItIs,
    /// As new as everything that any node has acknowledged, since the call reads; `stale=true` waives that.
    Read,
    /// The same for a call that looks before it changes something; nothing waives that.
    LookThenChange,
}

/// Where an answer is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thread {
    /// On the thread that serves the connection.
    Connection,
    /// On the pool: the answer may have to look at everything in the table, or at all nodes.
    Pool,
}

/// What a caller must be allowed before a call is answered, and before its body is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Right<'a> {
    /// Nothing: the answer is the same for everybody, and no credentials are looked at.
    Open,
    /// One of these verbs on this resource.
    On(&'static [Verb], &'a str),
    /// One of these verbs on some resource below this prefix. The dialect checks each resource that the body names.
    Below(&'static [Verb], Cow<'static, str>),
    /// Valid credentials, or one of these verbs on some resource: the call is about the caller's own claims, and the
    /// dialect checks those of others. A refusal names the resource.
    Own(&'static [Verb], &'a str),
    /// Administration of locks: a user of the administrators' file, or this verb. The dialect checks.
    Locks,
    /// The verb `admin` on `*`; without access control everybody.
    Service,
    /// The same; without access control only where administration is open.
    Members,
}

/// Why a path or a method leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misrouted {
    /// There is nothing at this path; the text says what there is.
    NotFound(Dialect, &'static str),
    /// The path has no such method; these it has.
    Method(Dialect, &'static str),
    /// A path of a lease with a mistake in it.
    Lease(PathMistake),
    /// Typed locks have no such type.
    UnknownType(String),
}

impl Misrouted {
    /// Whose words the refusal is in.
    pub fn dialect(&self) -> Dialect {
        match self {
            Self::NotFound(dialect, _) | Self::Method(dialect, _) => *dialect,
            Self::Lease(_) => Dialect::Leases,
            Self::UnknownType(_) => Dialect::Dss,
        }
    }
}

/// One row for every call: its dialect, how new the table must be, where it is answered, its id in the API description.
macro_rules! routes {
    ($($(#[$about:meta])* $name:ident $(($($field:ty),+))? => $dialect:ident, $freshness:ident, $thread:ident, $operation:expr;)+) => {
        /// One call of the service.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Route {
            $($(#[$about])* $name $(($($field),+))?,)+
        }

        impl Route {
            /// Whose words the call is in.
            pub fn dialect(&self) -> Dialect {
                match self { $(Self::$name { .. } => Dialect::$dialect,)+ }
            }

            /// How new the node's table must be.
            pub fn freshness(&self) -> Freshness {
                match self { $(Self::$name { .. } => Freshness::$freshness,)+ }
            }

            /// Where the answer is made.
            pub fn thread(&self) -> Thread {
                match self { $(Self::$name { .. } => Thread::$thread,)+ }
            }

            /// The call's id in the API description; `None`: a page for people, or another name of a call.
            pub fn operation(&self) -> Option<&'static str> {
                match self { $(Self::$name { .. } => $operation,)+ }
            }

            /// Every id there is.
            #[cfg(test)]
            pub(crate) const OPERATIONS: &[Option<&str>] = &[$($operation),+];
        }
    };
}

routes! {
    /// `POST /v1/claims/`
    MakeClaim => Claims, AsItIs, Connection, Some("claim");
    /// `GET /v1/claims/`
    ListClaims => Claims, Read, Pool, Some("listClaims");
    /// `GET /v1/claims/<id>/`; `None`: what stands there can't be an id.
    GetClaim(Option<ClaimId>) => Claims, Read, Connection, Some("getClaim");
    /// `PATCH /v1/claims/<id>/`
    PatchClaim(Option<ClaimId>) => Claims, AsItIs, Connection, Some("updateClaim");
    /// `PUT /v1/claims/<id>/`
    PutClaim(Option<ClaimId>) => Claims, AsItIs, Connection, Some("refreshClaim");
    /// `POST /v1/renewals`
    RenewMany => Claims, AsItIs, Connection, Some("renewMany");
    /// `POST /v1/endings`
    Endings => Claims, AsItIs, Connection, Some("endings");

    /// `POST /locks/<resource>`
    MakeLock(Arc<str>) => Locks, AsItIs, Connection, Some("lock");
    /// `POST /active_locks/<resource>`
    MakeActiveLock(Arc<str>) => Locks, AsItIs, Connection, Some("activeLock");
    /// `GET /locks/<resource>/<uid>`; `None`: what stands there can't be a uid.
    GetLock(Arc<str>, Option<ClaimId>) => Locks, Read, Connection, Some("getLock");
    /// `DELETE /locks/<resource>/<uid>`
    DeleteLock(Arc<str>, Option<ClaimId>) => Locks, LookThenChange, Connection, Some("unlock");
    /// `GET /resources`
    LockedResources => Locks, Read, Pool, Some("lockedResources");
    /// `DELETE /resources`
    UnlockAll => Locks, LookThenChange, Pool, Some("unlockAll");
    /// `GET /resources/<resource>`
    LocksOf(Arc<str>) => Locks, Read, Pool, Some("locksOf");
    /// `DELETE /resources/<resource>`
    UnlockResource(Arc<str>) => Locks, LookThenChange, Pool, Some("unlockResource");

    /// `GET /v1/<namespace>/leases/<name>`, by its name in the table.
    GetLease(Arc<str>) => Leases, Read, Connection, Some("getLease");
    /// `POST /v1/<namespace>/leases/<name>`
    MakeLease(Arc<str>) => Leases, AsItIs, Connection, Some("acquireLease");
    /// `PUT /v1/<namespace>/leases/<name>`
    RenewLease(Arc<str>) => Leases, AsItIs, Connection, Some("renewLease");
    /// `DELETE /v1/<namespace>/leases/<name>`
    EndLease(Arc<str>) => Leases, AsItIs, Connection, Some("releaseLease");
    /// Any other method on a lease: 501.
    OtherOfLease(Arc<str>) => Leases, LookThenChange, Connection, None;
    /// `GET /v1/<namespace>/leases/list`
    ListLeases(Arc<str>) => Leases, Read, Pool, Some("listLeases");
    /// Any other method on a list of leases: 400 or 501.
    OtherOfLeases => Leases, AsItIs, Connection, None;

    /// `POST /v1/dss/<type>/lock`
    TypedLock(&'static str) => Dss, AsItIs, Connection, Some("typedLock");
    /// `POST /v1/dss/<type>/refresh`
    TypedRefresh(&'static str) => Dss, AsItIs, Connection, Some("typedRefresh");
    /// `POST /v1/dss/<type>/unlock`
    TypedUnlock(&'static str) => Dss, LookThenChange, Connection, Some("typedUnlock");
    /// `POST /v1/dss/<type>/status`
    TypedStatus(&'static str) => Dss, Read, Connection, Some("typedStatus");
    /// `POST /v1/dss/<type>/list`
    TypedList(&'static str) => Dss, Read, Pool, Some("typedList");

    /// `GET /v1/resources`
    Resources => Other, Read, Pool, Some("resources");
    /// `GET /v1/resources/<name>`, decoded.
    Resource(Arc<str>) => Other, Read, Pool, Some("resource");
    /// `GET /v1/overview`
    Overview => Other, AsItIs, Pool, Some("overview");
    /// `GET /v1/events`
    Events => Other, AsItIs, Connection, Some("events");
    /// `GET /metrics`
    Metrics => Other, AsItIs, Pool, Some("metrics");

    /// `GET /v1/cluster`
    Cluster => Other, AsItIs, Pool, Some("cluster");
    /// `POST /v1/cluster/nodes`
    AddNode => Other, AsItIs, Pool, Some("addNode");
    /// `DELETE /v1/cluster/nodes/<id>`
    RemoveNode(u64) => Other, AsItIs, Pool, Some("removeNode");
    /// `POST /v1/cluster/leader`
    TransferLeadership => Other, AsItIs, Pool, Some("transferLeadership");
    /// `GET /v1/limits`
    Limits => Other, AsItIs, Connection, Some("limits");
    /// `PUT /v1/limits`
    SetLimit => Other, AsItIs, Connection, Some("setLimit");
    /// `GET /v1/backup`
    Backup => Other, Read, Pool, Some("backup");

    /// `GET /livez`
    Live => Other, AsItIs, Connection, Some("livez");
    /// `GET /readyz`
    Ready => Other, AsItIs, Connection, Some("readyz");
    /// `GET /healthz` and `/health`: other names of `/readyz`.
    Healthy => Other, AsItIs, Connection, None;
    /// `GET /v1/health`
    LeasesHealthy => Other, AsItIs, Connection, Some("health");
    /// `GET /version`
    Version => Other, AsItIs, Connection, Some("version");
    /// `GET /openapi.json`
    ApiDescription => Other, AsItIs, Connection, None;
    /// The dashboard and its files.
    Page(&'static File) => Other, AsItIs, Connection, None;
}

impl Route {
    /// What the caller must be allowed.
    pub fn right(&self) -> Right<'_> {
        use Verb::{Claim, Read, Revoke};
        let typed = |verbs, kind: &str| Right::Below(verbs, format!("dss/{kind}/").into());
        match self {
            Self::MakeClaim | Self::RenewMany | Self::Endings => Right::Own(&[Claim], "*"),
            Self::Overview => Right::Below(&[Read], "".into()),
            Self::ListClaims | Self::Resources | Self::Events => Right::Own(&[Read], "*"),
            Self::GetClaim(_) | Self::PatchClaim(_) | Self::PutClaim(_) => Right::Own(&[Read, Claim], "*"),
            Self::MakeLock(resource) | Self::MakeActiveLock(resource) => Right::On(&[Claim], resource),
            // A holder sees what is its own without the right to read.
            Self::GetLock(resource, _) | Self::DeleteLock(resource, _) | Self::GetLease(resource) => {
                Right::Own(&[Read, Claim], resource)
            }
            Self::LockedResources | Self::UnlockAll | Self::LocksOf(_) | Self::UnlockResource(_) => {
                Right::Locks
            }
            Self::ListLeases(_) | Self::OtherOfLeases => Right::Own(&[Read], "*"),
            Self::MakeLease(resource) | Self::RenewLease(resource) => Right::On(&[Claim], resource),
            Self::EndLease(resource) => Right::On(&[Claim, Revoke], resource),
            Self::OtherOfLease(resource) => Right::On(&[Read, Claim], resource),
            Self::TypedLock(kind) | Self::TypedRefresh(kind) => typed(&[Claim], kind),
            // A holder gives up its own locks also after it lost the right to take them.
            Self::TypedUnlock(_) => Right::Own(&[Claim, Revoke], "dss/*"),
            Self::TypedStatus(kind) => typed(&[Read], kind),
            Self::TypedList(_) => Right::Own(&[Read], "dss/*"),
            Self::Resource(name) => Right::On(&[Read], name),
            Self::Metrics | Self::Cluster | Self::Limits => Right::Service,
            Self::AddNode
            | Self::RemoveNode(_)
            | Self::TransferLeadership
            | Self::SetLimit
            | Self::Backup => Right::Members,
            Self::Live
            | Self::Ready
            | Self::Healthy
            | Self::LeasesHealthy
            | Self::Version
            | Self::ApiDescription
            | Self::Page(_) => Right::Open,
        }
    }

    /// Whether the call is a probe: it is answered also where there is no place for anything else.
    pub fn is_probe(&self) -> bool {
        matches!(self, Self::Live | Self::Ready | Self::Healthy | Self::LeasesHealthy | Self::Version)
    }

    /// Whether the call only reads: `stale=true` is for such calls alone.
    pub fn is_read(&self) -> bool {
        self.freshness() == Freshness::Read
    }

    /// What a method and a path stand for.
    pub fn of(method: &Method, path: &str) -> Result<Self, Misrouted> {
        match path.strip_prefix("/v1/") {
            Some(rest) => v1(method, rest, path),
            None => top(method, path),
        }
    }
}

const READS: &str = "GET, HEAD";

fn is_get(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// This route for `GET` and `HEAD`.
fn get(method: &Method, route: Route) -> Result<Route, Misrouted> {
    if is_get(method) { Ok(route) } else { Err(Misrouted::Method(route.dialect(), READS)) }
}

/// This route for one other method.
fn only(method: &Method, wanted: &'static str, route: Route) -> Result<Route, Misrouted> {
    if method.as_str() == wanted { Ok(route) } else { Err(Misrouted::Method(route.dialect(), wanted)) }
}

fn v1(method: &Method, rest: &str, path: &str) -> Result<Route, Misrouted> {
    let dialect = Dialect::Claims;
    match rest {
        "claims" | "claims/" => match *method {
            Method::POST => Ok(Route::MakeClaim),
            Method::GET | Method::HEAD => Ok(Route::ListClaims),
            _ => Err(Misrouted::Method(dialect, "GET, HEAD, POST")),
        },
        "renewals" | "renewals/" => only(method, "POST", Route::RenewMany),
        "endings" | "endings/" => only(method, "POST", Route::Endings),
        "events" => only(method, "GET", Route::Events),
        "overview" => get(method, Route::Overview),
        "resources" | "resources/" => get(method, Route::Resources),
        "health" => get(method, Route::LeasesHealthy),
        "backup" => only(method, "GET", Route::Backup),
        "limits" => match *method {
            Method::GET | Method::HEAD => Ok(Route::Limits),
            Method::PUT => Ok(Route::SetLimit),
            _ => Err(Misrouted::Method(Dialect::Other, "GET, HEAD, PUT")),
        },
        "cluster" => get(method, Route::Cluster),
        _ => match rest.split_once('/') {
            // None of our own paths has a lease's word there: `/v1/cluster/leases/x` is a lease, and nothing of the cluster.
            Some(_) if lease_path::is_lease_path(path) => lease(method, path),
            Some(("claims", id)) => claim(method, id.strip_suffix('/').unwrap_or(id)),
            Some(("dss", call)) => typed(method, call.strip_suffix('/').unwrap_or(call)),
            Some(("resources", name)) if !name.contains('/') => resource(method, name),
            Some(("cluster", rest)) => cluster(method, rest.trim_end_matches('/')),
            _ => lease(method, path),
        },
    }
}

fn claim(method: &Method, id: &str) -> Result<Route, Misrouted> {
    if id.is_empty() || id.contains('/') {
        let detail = "there is nothing here: a claim's URL is /v1/claims/<id>/";
        return Err(Misrouted::NotFound(Dialect::Claims, detail));
    }
    let id = id.parse().ok();
    match *method {
        Method::GET | Method::HEAD => Ok(Route::GetClaim(id)),
        Method::PATCH => Ok(Route::PatchClaim(id)),
        Method::PUT => Ok(Route::PutClaim(id)),
        _ => Err(Misrouted::Method(Dialect::Claims, "GET, HEAD, PATCH, PUT")),
    }
}

fn typed(method: &Method, call: &str) -> Result<Route, Misrouted> {
    let Some((kind, call)) = call.split_once('/').and_then(|(kind, call)| Some((kind, TypedCall::of(call)?)))
    else {
        let detail =
            "there is nothing here: typed locks are under /v1/dss/<type>/<lock, refresh, unlock or status>";
        return Err(Misrouted::NotFound(Dialect::Dss, detail));
    };
    if method != Method::POST {
        return Err(Misrouted::Method(Dialect::Dss, "POST"));
    }
    let known = crate::api::dss::TYPES.into_iter().find(|known| *known == kind);
    let kind = known.ok_or_else(|| Misrouted::UnknownType(kind.into()))?;
    Ok(match call {
        TypedCall::Lock => Route::TypedLock(kind),
        TypedCall::Refresh => Route::TypedRefresh(kind),
        TypedCall::Unlock => Route::TypedUnlock(kind),
        TypedCall::Status => Route::TypedStatus(kind),
        TypedCall::List => Route::TypedList(kind),
    })
}

fn resource(method: &Method, segment: &str) -> Result<Route, Misrouted> {
    let not_utf8 = "the name is not UTF-8 when decoded: percent-encode it as UTF-8";
    let name = dashboard::percent_decoded(segment).ok_or(Misrouted::NotFound(Dialect::Other, not_utf8))?;
    get(method, Route::Resource(name.into()))
}

fn cluster(method: &Method, rest: &str) -> Result<Route, Misrouted> {
    match rest {
        "" => get(method, Route::Cluster),
        "nodes" => only(method, "POST", Route::AddNode),
        "leader" => only(method, "POST", Route::TransferLeadership),
        _ => match rest.strip_prefix("nodes/").and_then(|id| id.parse().ok()) {
            Some(id) => only(method, "DELETE", Route::RemoveNode(id)),
            None => {
                let detail = "there is nothing here: see /v1/cluster, /v1/cluster/nodes, /v1/cluster/leader";
                Err(Misrouted::NotFound(Dialect::Other, detail))
            }
        },
    }
}

fn lease(method: &Method, path: &str) -> Result<Route, Misrouted> {
    match lease_path::parse(path) {
        Ok(LeasePlace::Lease(resource)) => Ok(match *method {
            Method::GET | Method::HEAD => Route::GetLease(resource),
            Method::POST => Route::MakeLease(resource),
            Method::PUT => Route::RenewLease(resource),
            Method::DELETE => Route::EndLease(resource),
            _ => Route::OtherOfLease(resource),
        }),
        Ok(LeasePlace::List(namespace)) if is_get(method) => Ok(Route::ListLeases(namespace.into())),
        Ok(LeasePlace::List(_)) => Ok(Route::OtherOfLeases),
        Err(PathMistake::NotALease) => {
            let detail = "there is nothing here: claims are under /v1/claims/, leases are \
                          /v1/<namespace>/leases/<name>";
            Err(Misrouted::NotFound(Dialect::Other, detail))
        }
        Err(mistake) => Err(Misrouted::Lease(mistake)),
    }
}

fn top(method: &Method, path: &str) -> Result<Route, Misrouted> {
    if let Some(found) = locks(method, path) {
        return found;
    }
    match path {
        "/livez" => get(method, Route::Live),
        "/readyz" => get(method, Route::Ready),
        "/healthz" | "/health" => get(method, Route::Healthy),
        "/version" => get(method, Route::Version),
        "/metrics" => get(method, Route::Metrics),
        "/openapi.json" => get(method, Route::ApiDescription),
        _ => match dashboard::file_at(path) {
            Some(file) => get(method, Route::Page(file)),
            None => {
                let detail = "there is nothing here: claims are under /v1/claims/, locks under /locks/";
                Err(Misrouted::NotFound(Dialect::Other, detail))
            }
        },
    }
}

/// The locks dialect's paths; `None`: it is none of them. A slash at the end makes no difference.
fn locks(method: &Method, path: &str) -> Option<Result<Route, Misrouted>> {
    let path = path.strip_prefix('/')?;
    let path = path.strip_suffix('/').unwrap_or(path);
    let mut parts = path.split('/');
    let word = parts.next().filter(|word| ["locks", "active_locks", "resources"].contains(word))?;
    let get_or_delete = |read: Route, delete: Route| match *method {
        Method::GET | Method::HEAD => Ok(read),
        Method::DELETE => Ok(delete),
        _ => Err(Misrouted::Method(Dialect::Locks, "DELETE, GET, HEAD")),
    };
    Some(match (word, parts.next(), parts.next(), parts.next()) {
        ("resources", None, ..) => get_or_delete(Route::LockedResources, Route::UnlockAll),
        ("resources", Some(name), None, _) if is_name(name) => {
            get_or_delete(Route::LocksOf(name.into()), Route::UnlockResource(name.into()))
        }
        ("locks", Some(name), None, _) if is_name(name) => only(method, "POST", Route::MakeLock(name.into())),
        ("active_locks", Some(name), None, _) if is_name(name) => {
            only(method, "POST", Route::MakeActiveLock(name.into()))
        }
        ("locks", Some(name), Some(uid), None) if is_name(name) => {
            let (name, uid): (Arc<str>, _) = (name.into(), uid.parse().ok());
            get_or_delete(Route::GetLock(name.clone(), uid), Route::DeleteLock(name, uid))
        }
        _ => Err(Misrouted::NotFound(
            Dialect::Locks,
            "there is nothing here: locks are under /locks/{resource}, and a resource's name is made of the \
             letters a-z and A-Z and the digits",
        )),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn route(method: &str, path: &str) -> Result<Route, Misrouted> {
        Route::of(&method.parse().unwrap(), path)
    }

    /// A path of the API description with something in place of each parameter.
    fn sample(template: &str) -> String {
        let id = "0123456789abcdef0123456789abcdef";
        let values = [("{id}", id), ("{uid}", id), ("{type}", "media"), ("{node}", "3")];
        let filled =
            values.iter().fold(template.to_string(), |path, (name, value)| path.replace(name, value));
        filled
            .split('/')
            .map(|part| if part.starts_with('{') { "name" } else { part })
            .collect::<Vec<_>>()
            .join("/")
    }

    #[test]
    fn the_api_description_and_the_routes_name_the_same_calls() {
        let document: serde_json::Value = serde_json::from_str(crate::api::openapi::document()).unwrap();
        let mut described = BTreeSet::new();
        for (template, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let id = operation["operationId"].as_str().unwrap();
                let found = route(&method.to_uppercase(), &sample(template));
                assert_eq!(found.as_ref().map(Route::operation), Ok(Some(id)), "{method} {template}");
                described.insert(id.to_string());
            }
        }
        let known: BTreeSet<String> = Route::OPERATIONS.iter().flatten().map(ToString::to_string).collect();
        assert_eq!(described, known);
    }

    #[test]
    fn open_calls_are_probes_and_pages_and_nothing_else() {
        for path in [
            "/livez",
            "/readyz",
            "/healthz",
            "/v1/health",
            "/version",
            "/openapi.json",
            "/",
            "/docs",
            "/assets/app.js",
        ] {
            assert_eq!(route("GET", path).unwrap().right(), Right::Open, "{path}");
        }
        for path in [
            "/metrics",
            "/v1/claims/",
            "/v1/overview",
            "/v1/events",
            "/v1/cluster",
            "/v1/backup",
            "/resources",
        ] {
            assert_ne!(route("GET", path).unwrap().right(), Right::Open, "{path}");
        }
    }

    #[test]
    fn a_lease_is_read_behind_the_barrier_whatever_its_namespace_is_called() {
        for path in
            ["/v1/ops/leases/x", "/v1/clusters/leases/x", "/v1/cluster-a/lease/x", "/v1/eventsource/leases/x"]
        {
            assert_eq!(route("GET", path).unwrap().freshness(), Freshness::Read, "{path}");
        }
    }

    #[test]
    fn a_lease_in_a_namespace_called_like_a_service_is_a_lease_and_needs_its_right() {
        let services =
            ["claims", "dss", "dss/media", "events", "cluster", "cluster/nodes", "cluster/nodes/3"];
        let others =
            ["health", "renewals", "limits", "overview", "backup", "resources", "resources/x", "leases"];
        for namespace in services.into_iter().chain(others) {
            for (word, name) in
                [("leases", "x"), ("lease", "lock"), ("%6Ceases", "nodes/3"), ("leases", "leader")]
            {
                let resource: Arc<str> = format!("{namespace}/leases/{name}").into();
                let path = format!("/v1/{namespace}/{word}/{name}");
                assert_eq!(route("GET", &path), Ok(Route::GetLease(resource.clone())), "{path}");
                assert_eq!(route("DELETE", &path), Ok(Route::EndLease(resource.clone())), "{path}");
                let make = route("POST", &path).unwrap();
                assert_eq!(make.right(), Right::On(&[Verb::Claim], &resource), "{path}");
            }
            let list = route("GET", &format!("/v1/{namespace}/leases/list"));
            assert_eq!(list, Ok(Route::ListLeases(namespace.into())), "{namespace}");
        }
    }

    #[test]
    fn our_own_paths_stay_what_they_are() {
        let id = "0123456789abcdef0123456789abcdef";
        for (method, path, expected) in [
            ("GET", format!("/v1/claims/{id}/"), Route::GetClaim(id.parse().ok())),
            ("GET", "/v1/claims/leases".into(), Route::GetClaim(None)),
            ("GET", "/v1/resources/leases".into(), Route::Resource("leases".into())),
            ("GET", "/v1/resources/a%2Fleases%2Fb".into(), Route::Resource("a/leases/b".into())),
            ("DELETE", "/v1/cluster/nodes/3".into(), Route::RemoveNode(3)),
            ("POST", "/v1/cluster/leader/".into(), Route::TransferLeadership),
            ("GET", "/v1/cluster/".into(), Route::Cluster),
            ("POST", "/v1/dss/media/lock".into(), Route::TypedLock("media")),
        ] {
            assert_eq!(route(method, &path), Ok(expected), "{path}");
        }
        for path in ["/v1/cluster/leases", "/v1/clusterleases/x", "/v1/cluster/x"] {
            assert!(
                matches!(route("GET", path), Err(Misrouted::NotFound(..))),
                "{path}: {:?}",
                route("GET", path)
            );
        }
    }

    #[test]
    fn paths_have_the_dialect_that_answers_them() {
        for (method, path, dialect) in [
            ("POST", "/v1/claims/", Dialect::Claims),
            ("POST", "/v1/renewals", Dialect::Claims),
            ("POST", "/v1/endings", Dialect::Claims),
            ("POST", "/locks/a", Dialect::Locks),
            ("GET", "/resources", Dialect::Locks),
            ("POST", "/v1/dss/media/lock", Dialect::Dss),
            ("GET", "/v1/a/b/leases/c", Dialect::Leases),
            ("GET", "/v1/ns/lease/c", Dialect::Leases),
            ("GET", "/v1/resources", Dialect::Other),
            ("GET", "/v1/events", Dialect::Other),
            ("GET", "/", Dialect::Other),
        ] {
            assert_eq!(route(method, path).unwrap().dialect(), dialect, "{path}");
        }
        assert_eq!(route("GET", "/v1/claims/a/b").unwrap_err().dialect(), Dialect::Claims);
        assert_eq!(route("POST", "/v1/dss/tapes/lock").unwrap_err().dialect(), Dialect::Dss);
    }

    #[test]
    fn a_method_that_a_path_lacks_is_told_what_there_is() {
        for (method, path, allow) in [
            ("DELETE", "/v1/claims/", "GET, HEAD, POST"),
            ("POST", "/v1/claims/0123456789abcdef0123456789abcdef/", "GET, HEAD, PATCH, PUT"),
            ("GET", "/v1/renewals", "POST"),
            ("GET", "/v1/endings", "POST"),
            ("GET", "/locks/a", "POST"),
            ("POST", "/resources", "DELETE, GET, HEAD"),
            ("GET", "/v1/dss/media/lock", "POST"),
            ("POST", "/", "GET, HEAD"),
            ("HEAD", "/v1/events", "GET"),
        ] {
            assert!(
                matches!(route(method, path), Err(Misrouted::Method(_, found)) if found == allow),
                "{method} {path}: {:?}",
                route(method, path)
            );
        }
    }

    #[test]
    fn paths_of_locks_mean_what_they_meant_to_the_older_server() {
        let (name, uid): (Arc<str>, _) = ("resource1".into(), "0123456789abcdef0011223344556677");
        assert_eq!(route("POST", "/locks/resource1"), Ok(Route::MakeLock(name.clone())));
        assert_eq!(route("POST", "/active_locks/resource1/"), Ok(Route::MakeActiveLock(name.clone())));
        let lock = Route::GetLock(name.clone(), uid.parse().ok());
        assert_eq!(route("GET", &format!("/locks/resource1/{uid}")), Ok(lock));
        assert_eq!(route("DELETE", "/locks/resource1/short"), Ok(Route::DeleteLock(name.clone(), None)));
        assert_eq!(route("GET", "/resources"), Ok(Route::LockedResources));
        assert_eq!(route("DELETE", "/resources/"), Ok(Route::UnlockAll));
        assert_eq!(route("GET", "/resources/resource1"), Ok(Route::LocksOf(name)));
    }

    #[test]
    fn names_of_locks_are_letters_and_digits() {
        let uid = "0123456789abcdef0011223344556677";
        let paths =
            ["/locks", "/locks/", "/locks/a-b", "/locks/a%20b", "/locks//", "/locks/é"].map(String::from);
        let longer = [format!("/active_locks/a/{uid}"), format!("/locks/a/{uid}/b"), "/resources/a/b".into()];
        for path in paths.into_iter().chain(longer) {
            let found = route("GET", &path);
            assert!(matches!(found, Err(Misrouted::NotFound(Dialect::Locks, _))), "{path}: {found:?}");
        }
        for path in ["/lock/a", "/v1/ops", "/locksmith"] {
            assert_eq!(route("GET", path).unwrap_err().dialect(), Dialect::Other, "{path}");
        }
    }
}
