//! Routes: the method and the path of a request, understood once.
//!
//! In:    a method and a path. Out: a [`Route`], one variant for every call, or why there is none.
//! Never: looks at headers, bodies or the table. Nobody else looks at the path to decide anything: access control, the
//!        read barrier, threads, metrics and the API description all ask the route.
//!
//! The table below has one row for every call. A call without a right does not compile: [`Route::right`] names every
//! variant, and so does the table.

mod properties;

use std::sync::Arc;

use hyper::Method;
use leasehold_core::ClaimId;

use crate::access::rules::Verb;
use crate::api::dashboard::{self, File};
use crate::api::dss::TypedCall;
use crate::api::leases::path::{self as lease_path, LeasePath, PathMistake};
use crate::api::locks::is_name;

pub use self::properties::{Freshness, Right, Thread};
pub use crate::observe::Dialect;

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
    /// `GET /v1/contention`
    Contention => Other, Read, Pool, Some("contention");
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
    /// `GET /v1/whoami`
    Whoami => Other, AsItIs, Connection, Some("whoami");
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
        use Verb::{Admin, Claim, Metrics, Read, Revoke};
        let typed = |verbs, kind: &str| Right::Below(verbs, format!("dss/{kind}/").into());
        match self {
            Self::MakeClaim | Self::RenewMany | Self::Endings => Right::Own(&[Claim], "*"),
            Self::ListClaims
            | Self::Resources
            | Self::Contention
            | Self::Overview
            | Self::Events
            | Self::Whoami => Right::Own(&[Read], "*"),
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
            Self::Metrics => Right::On(&[Metrics, Admin], "*"),
            Self::Cluster | Self::Limits => Right::Service,
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
        "contention" => get(method, Route::Contention),
        "resources" | "resources/" => get(method, Route::Resources),
        "health" => get(method, Route::LeasesHealthy),
        "backup" => only(method, "GET", Route::Backup),
        "whoami" => get(method, Route::Whoami),
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
        Ok(LeasePath::Lease(resource)) => Ok(match *method {
            Method::GET | Method::HEAD => Route::GetLease(resource),
            Method::POST => Route::MakeLease(resource),
            Method::PUT => Route::RenewLease(resource),
            Method::DELETE => Route::EndLease(resource),
            _ => Route::OtherOfLease(resource),
        }),
        Ok(LeasePath::List(namespace)) if is_get(method) => Ok(Route::ListLeases(namespace.into())),
        Ok(LeasePath::List(_)) => Ok(Route::OtherOfLeases),
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
mod tests;
