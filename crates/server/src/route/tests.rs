//! Paths and methods lead where they should, and every call is in the API description.

use std::collections::BTreeSet;

use super::*;

fn route(method: &str, path: &str) -> Result<Route, Misrouted> {
    Route::of(&method.parse().unwrap(), path)
}

/// A path of the API description with something in place of each parameter.
fn sample(template: &str) -> String {
    let id = "0123456789abcdef0123456789abcdef";
    let values = [("{id}", id), ("{uid}", id), ("{type}", "media"), ("{node}", "3")];
    let filled = values.iter().fold(template.to_string(), |path, (name, value)| path.replace(name, value));
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
        "/v1/contention",
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
    let services = ["claims", "dss", "dss/media", "events", "cluster", "cluster/nodes", "cluster/nodes/3"];
    let others = [
        "health",
        "renewals",
        "limits",
        "overview",
        "contention",
        "backup",
        "resources",
        "resources/x",
        "leases",
    ];
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
    let paths = ["/locks", "/locks/", "/locks/a-b", "/locks/a%20b", "/locks//", "/locks/é"].map(String::from);
    let longer = [format!("/active_locks/a/{uid}"), format!("/locks/a/{uid}/b"), "/resources/a/b".into()];
    for path in paths.into_iter().chain(longer) {
        let found = route("GET", &path);
        assert!(matches!(found, Err(Misrouted::NotFound(Dialect::Locks, _))), "{path}: {found:?}");
    }
    for path in ["/lock/a", "/v1/ops", "/locksmith"] {
        assert_eq!(route("GET", path).unwrap_err().dialect(), Dialect::Other, "{path}");
    }
}
