//! Leases under access control: they belong to client ids, the user stands beside, and no namespace opens another door.

use crate::common::{Reply, claim_body, eventually};
use crate::support::{Guarded, refused};

/// Everybody may read; `ci`, `bob` and `root` may write.
const RULES: &str = r#"
[[access.rule]]
users = ["anonymous"]
resources = ["ci"]
verbs = ["read"]

[[access.rule]]
users = ["ci", "bob"]
resources = ["ci"]
verbs = ["read", "claim"]

[[access.rule]]
users = ["eve"]
resources = ["other"]
verbs = ["read", "claim"]

[[access.rule]]
users = ["root"]
resources = ["*"]
verbs = ["*"]
"#;

const LEASE: &str = "/v1/ci/leases/a";

fn guarded() -> Guarded {
    Guarded::start(&["ci", "bob", "eve", "root"], RULES)
}

/// A request of this user (`""`: without credentials) with this client id (`""`: without one).
fn ask(guarded: &Guarded, user: &str, method: &str, id: &str, headers: &[(&str, &str)]) -> Reply {
    let id = [("X-Quorum-Client-ID", id)];
    let headers = [headers, if id[0].1.is_empty() { &[] } else { &id }].concat();
    guarded.ask_with(user, method, LEASE, &headers, "")
}

#[track_caller]
fn shows(reply: &Reply, status: u16, id: &str, is_you: &str) {
    let found = (reply.status, reply.header("x-quorum-client-id"), reply.header("x-quorum-client-is-you"));
    assert_eq!(found, (status, Some(id), Some(is_you)), "{reply:?}");
}

#[test]
fn leases_ask_for_credentials_on_writes() {
    let guarded = guarded();
    for method in ["POST", "PUT", "DELETE"] {
        let reply = guarded.ask("", method, LEASE, "");
        refused(&reply, 401, "claim", "ci/leases/a");
        assert_eq!(reply.header("x-quorum-client-is-you"), Some("No"));
        assert_eq!(reply.header("x-quorum-client-id"), None);
    }
}

#[test]
fn two_hosts_with_one_key_are_two_clients() {
    let guarded = guarded();
    shows(&ask(&guarded, "ci", "POST", "db1", &[]), 201, "db1", "Yes");
    shows(&ask(&guarded, "ci", "POST", "db1", &[]), 405, "db1", "Yes");
    shows(&ask(&guarded, "ci", "POST", "db2", &[]), 409, "db1", "No");
    shows(&ask(&guarded, "ci", "PUT", "db2", &[]), 403, "db1", "No");
    shows(&ask(&guarded, "ci", "DELETE", "db2", &[]), 403, "db1", "No");
    // Without an id the client is its address, which is another one too.
    shows(&ask(&guarded, "ci", "PUT", "", &[]), 403, "db1", "No");
    shows(&ask(&guarded, "ci", "PUT", "db1", &[]), 202, "db1", "Yes");
    shows(&ask(&guarded, "ci", "DELETE", "db1", &[]), 204, "db1", "Yes");
}

#[test]
fn without_an_id_the_client_is_its_address_also_behind_a_trusted_proxy() {
    let plain = guarded();
    shows(&ask(&plain, "ci", "POST", "", &[]), 201, "127.0.0.1", "Yes");
    shows(&ask(&plain, "ci", "PUT", "127.0.0.1", &[]), 202, "127.0.0.1", "Yes");

    let proxied = Guarded::start_with(&["ci"], RULES, &["--trusted-proxies", "127.0.0.1"]);
    let (one, two) = ([("X-Forwarded-For", "203.0.113.7")], [("X-Forwarded-For", "203.0.113.8")]);
    shows(&ask(&proxied, "ci", "POST", "", &one), 201, "203.0.113.7", "Yes");
    shows(&ask(&proxied, "ci", "PUT", "", &two), 403, "203.0.113.7", "No");
    shows(&ask(&proxied, "ci", "PUT", "", &one), 202, "203.0.113.7", "Yes");
}

#[test]
fn the_same_id_of_another_user_is_a_stranger() {
    let guarded = guarded();
    shows(&ask(&guarded, "ci", "POST", "db1", &[]), 201, "db1", "Yes");
    let busy = ask(&guarded, "bob", "POST", "db1", &[]);
    shows(&busy, 409, "db1", "No");
    assert_eq!(busy.text(), "not acquired: db1 of another user holds this lease\n");
    shows(&ask(&guarded, "bob", "PUT", "db1", &[]), 403, "db1", "No");
    shows(&ask(&guarded, "bob", "DELETE", "db1", &[]), 403, "db1", "No");
    shows(&ask(&guarded, "bob", "GET", "db1", &[]), 200, "db1", "No");
    shows(&ask(&guarded, "ci", "PUT", "db1", &[]), 202, "db1", "Yes");
    // Nobody revokes by accident: it takes the right and a reason.
    assert_eq!(ask(&guarded, "root", "DELETE", "db1", &[]).status, 403);
    assert_eq!(ask(&guarded, "bob", "DELETE", "db1", &[("Leasehold-Reason", "mine now")]).status, 403);
    assert_eq!(
        ask(&guarded, "root", "DELETE", "db1", &[("Leasehold-Reason", "the host is gone")]).status,
        204
    );
    assert_eq!(ask(&guarded, "ci", "GET", "db1", &[]).status, 404);
}

#[test]
fn callers_without_credentials_are_told_by_their_id_whether_they_hold_the_lease() {
    let guarded = guarded();
    shows(&ask(&guarded, "ci", "POST", "db1", &[]), 201, "db1", "Yes");
    shows(&ask(&guarded, "", "GET", "db1", &[]), 200, "db1", "Yes");
    shows(&ask(&guarded, "", "HEAD", "db2", &[]), 200, "db1", "No");
    shows(&ask(&guarded, "", "GET", "", &[]), 200, "db1", "No");
    assert_eq!(ask(&guarded, "ci", "DELETE", "db1", &[]).status, 204);
    shows(&ask(&guarded, "ci", "POST", "", &[]), 201, "127.0.0.1", "Yes");
    shows(&ask(&guarded, "", "GET", "", &[]), 200, "127.0.0.1", "Yes");
    assert_eq!(ask(&guarded, "ci", "DELETE", "", &[]).status, 204);
    shows(&ask(&guarded, "", "GET", "", &[]), 404, "127.0.0.1", "Yes");
}

#[test]
fn reports_and_lists_show_the_client_and_the_user() {
    let guarded = guarded();
    assert_eq!(ask(&guarded, "ci", "POST", "db1", &[]).status, 201);
    let json = ask(&guarded, "", "GET", "db1", &[("Accept", "application/json")]).json();
    assert_eq!(
        (&json["owner"], &json["owner_name"], &json["user"]),
        (&"db1".into(), &"db1".into(), &"ci".into())
    );
    let text = ask(&guarded, "", "GET", "db1", &[("Accept", "text/plain")]).text();
    assert!(text.contains("is held by db1\n") && text.contains("db1 (that is you)"), "{text}");
    assert!(text.contains("user        ci\n"), "{text}");
    let list = guarded.ask("", "GET", "/v1/ci/leases/list", "").json();
    assert_eq!((&list["leases"][0]["owner"], &list["leases"][0]["user"]), (&"db1".into(), &"ci".into()));
}

#[test]
fn the_audit_knows_client_and_user() {
    let dir = crate::common::TempDir::new();
    let path = dir.path().join("audit.jsonl");
    let guarded = Guarded::start_with(&["ci"], RULES, &["--audit", path.to_str().unwrap()]);
    assert_eq!(ask(&guarded, "ci", "POST", "db1", &[]).status, 201);
    assert_eq!(ask(&guarded, "ci", "DELETE", "db1", &[]).status, 204);
    assert_eq!(ask(&guarded, "ci", "POST", "", &[]).status, 201);
    let lines = || -> Vec<(String, String, String)> {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let word = |line: &serde_json::Value, name: &str| line[name].as_str().unwrap_or("").to_string();
        lines.map(|line| (word(&line, "what"), word(&line, "who"), word(&line, "by"))).collect()
    };
    let expected = [
        ("granted", "ci for db1", "ci"),
        ("released", "ci for db1", "ci"),
        ("granted", "ci for 127.0.0.1", "ci"),
    ]
    .map(|(what, who, by)| (what.to_string(), who.to_string(), by.to_string()));
    eventually("the audit has all three", || lines() == expected);
}

#[test]
fn leases_of_the_first_release_keep_working_for_their_holders() {
    let guarded = guarded();
    // Release 0.1.0 made the user the owner where the client named no id; a claim of the user looks the same.
    let first_release = || {
        let claim = guarded.ask("ci", "POST", "/v1/claims/", &claim_body("ci/leases/a", 600.0));
        assert_eq!((claim.status, claim.json()["owner"].as_str()), (201, Some("ci")), "{claim:?}");
    };
    first_release();
    shows(&ask(&guarded, "ci", "GET", "", &[]), 200, "ci", "Yes");
    // Another host of this user may have made it: it is not this one's to take again.
    shows(&ask(&guarded, "ci", "POST", "", &[]), 409, "ci", "Yes");
    shows(&ask(&guarded, "ci", "PUT", "", &[]), 202, "ci", "Yes");
    for (user, id) in [("ci", "db1"), ("bob", ""), ("bob", "ci")] {
        shows(&ask(&guarded, user, "PUT", id, &[]), 403, "ci", "No");
        shows(&ask(&guarded, user, "DELETE", id, &[]), 403, "ci", "No");
    }
    let version = ask(&guarded, "ci", "GET", "", &[]).header("x-quorum-lease-version").unwrap().to_string();
    assert_eq!(ask(&guarded, "ci", "PUT", "", &[("X-Quorum-Lease-Version", "1")]).status, 409);
    shows(&ask(&guarded, "ci", "DELETE", "", &[("X-Quorum-Lease-Version", &version)]), 204, "ci", "Yes");
    first_release();
    shows(&ask(&guarded, "ci", "DELETE", "", &[]), 204, "ci", "Yes");
    shows(&ask(&guarded, "ci", "POST", "", &[]), 201, "127.0.0.1", "Yes");
}

#[test]
fn the_older_header_for_credentials_authenticates() {
    let guarded = guarded();
    let key = guarded.key("ci");
    for given in [key.as_str(), guarded.bare_key("ci")] {
        let headers = [("X-Quorum-Your-Auth-Credentials", given), ("X-Quorum-Client-ID", "db1")];
        let post = guarded.ask_with("", "POST", LEASE, &headers, "");
        shows(&post, 201, "db1", "Yes");
        assert_eq!(guarded.ask_with("", "DELETE", LEASE, &headers, "").status, 204);
    }
    let wrong = [("X-Quorum-Your-Auth-Credentials", "lh_wrong")];
    assert_eq!(guarded.ask_with("", "POST", LEASE, &wrong, "").status, 401);
}

#[test]
fn a_rule_for_a_lease_holds_whatever_its_namespace_and_name_are_called() {
    let guarded = guarded();
    // Names of leases have slashes: a rule covers what is below it, and nothing beside it.
    assert_eq!(guarded.ask("ci", "POST", "/v1/ci/leases/db/master", "").status, 201);
    refused(&guarded.ask("eve", "POST", "/v1/ci/leases/db/other", ""), 403, "claim", "ci/leases/db/other");
    refused(&guarded.ask("eve", "GET", "/v1/ci/leases/db/master", ""), 403, "read", "ci/leases/db/master");
    let spaces =
        ["cluster", "cluster/nodes", "claims", "dss", "dss/media", "events", "health", "renewals", "limits"];
    for namespace in spaces {
        for name in ["x", "leader", "nodes/1", "ci/leases/a"] {
            let (path, resource) =
                (format!("/v1/{namespace}/leases/{name}"), format!("{namespace}/leases/{name}"));
            for method in ["POST", "PUT", "DELETE"] {
                refused(&guarded.ask("ci", method, &path, ""), 403, "claim", &resource);
                refused(&guarded.ask("", method, &path, ""), 401, "claim", &resource);
            }
            assert_eq!(guarded.ask("root", "POST", &path, "").status, 201, "{path}");
        }
    }
    // Nothing of the cluster was touched or is reached that way.
    let cluster = guarded.ask("root", "GET", "/v1/cluster", "").json();
    assert_eq!(cluster["nodes"].as_array().unwrap().len(), 1, "{cluster}");
    refused(&guarded.ask("ci", "DELETE", "/v1/cluster/nodes/1", ""), 403, "admin", "*");
}
