//! One evaluation for all dialects: the same rule opens and closes each of them, and no spelling slips past it.

use crate::common::{Reply, claim_body};
use crate::support::{Guarded, refused};

const RULES: &str = r#"
[[access.rule]]
users = ["ci"]
resources = ["ci", "ciLock", "dss/media/ci*"]
verbs = ["read", "claim"]

[[access.rule]]
users = ["eye"]
resources = ["*"]
verbs = ["read"]

[[access.rule]]
users = ["root"]
resources = ["*"]
verbs = ["*"]
"#;

const LOCK: &str = r#"{"title": "t", "lifetime": 600, "wait": 0}"#;

fn dss(ids: &[&str]) -> String {
    serde_json::json!({ "ids": ids, "hostname": "node", "owner": 7 }).to_string()
}

#[test]
fn one_rule_holds_in_every_dialect() {
    let guarded = Guarded::start(&["ci", "eye", "root"], RULES);
    let cases = [
        ("POST", "/v1/claims/", claim_body("ci/x", 60.0), claim_body("prod/x", 60.0), "prod/x"),
        ("POST", "/locks/ciLock", LOCK.into(), String::new(), ""),
        ("POST", "/v1/ci/leases/a", String::new(), String::new(), ""),
        ("POST", "/v1/dss/media/lock", dss(&["ci1"]), dss(&["ci2", "prod"]), "dss/media/prod"),
    ];
    for (method, path, good, bad, missing) in &cases {
        let allowed = guarded.ask("ci", method, path, good);
        assert!(matches!(allowed.status, 200 | 201), "{path}: {allowed:?}");
        if !missing.is_empty() {
            refused(&guarded.ask("ci", method, path, bad), 403, "claim", missing);
            refused(
                &guarded.ask("", method, path, bad),
                401,
                "claim",
                // Refused before the body is read, which alone names the resource.
                if *path == "/v1/dss/media/lock" { "dss/media/*" } else { "*" },
            );
        }
        assert_eq!(guarded.ask("eye", method, path, good).status, 403, "{path}");
    }
    refused(&guarded.ask("ci", "POST", "/locks/prodLock", LOCK), 403, "claim", "prodLock");
    refused(&guarded.ask("ci", "POST", "/active_locks/prodLock", LOCK), 403, "claim", "prodLock");
    refused(&guarded.ask("ci", "POST", "/v1/prod/leases/a", ""), 403, "claim", "prod/leases/a");
    refused(&guarded.ask("ci", "GET", "/v1/prod/leases/a", ""), 403, "read", "prod/leases/a");
    refused(
        &guarded.ask("ci", "POST", "/v1/dss/media/status", r#"{"ids": ["prod"]}"#),
        403,
        "read",
        "dss/media/prod",
    );
    refused(&guarded.ask("ci", "GET", "/resources/prodLock", ""), 403, "read", "prodLock");
    refused(&guarded.ask("eye", "DELETE", "/resources/ciLock", ""), 403, "revoke", "ciLock");
    refused(&guarded.ask("ci", "DELETE", "/resources/ciLock", ""), 403, "revoke", "ciLock");
    assert_eq!(guarded.ask("root", "DELETE", "/resources/ciLock", "").status, 204);
    refused(&guarded.ask("", "GET", "/v1/cluster", ""), 401, "admin", "*");
    refused(&guarded.ask("eye", "GET", "/v1/cluster", ""), 403, "admin", "*");
    refused(&guarded.ask("eye", "DELETE", "/v1/cluster/nodes/1", ""), 403, "admin", "*");
    assert_eq!(guarded.ask("root", "GET", "/v1/cluster", "").status, 200);
}

#[test]
fn a_lock_belongs_to_its_user_whoever_knows_its_url() {
    let rules = format!(
        "{RULES}\n[[access.rule]]\nusers = [\"bob\"]\nresources = [\"ciLock\"]\nverbs = [\"claim\"]\n"
    );
    let guarded = Guarded::start(&["ci", "bob", "eye", "root"], &rules);
    let lock = guarded.ask("ci", "POST", "/locks/ciLock", LOCK).location_path();
    refused(&guarded.ask("bob", "GET", &lock, ""), 403, "read", "ciLock");
    refused(
        &guarded.ask("bob", "GET", "/locks/ciLock/00000000000000000000000000000000", ""),
        403,
        "read",
        "ciLock",
    );
    refused(&guarded.ask("eye", "DELETE", &lock, ""), 403, "revoke", "ciLock");
    refused(&guarded.ask("", "DELETE", &lock, ""), 401, "read", "ciLock");
    assert_eq!(guarded.ask("eye", "GET", &lock, "").status, 200);
    assert_eq!(guarded.ask("ci", "DELETE", &lock, "").status, 204);
    let again = guarded.ask("bob", "POST", "/locks/ciLock", LOCK).location_path();
    assert_eq!(guarded.ask("bob", "GET", &again, "").status, 200);
    assert_eq!(guarded.ask("root", "DELETE", &again, "").status, 204);
}

#[test]
fn typed_locks_keep_host_and_pid_under_their_user() {
    let guarded = Guarded::start(&["ci", "eye", "root"], RULES);
    let call = |user: &str, verb: &str, body: &str| -> Reply {
        guarded.ask(user, "POST", &format!("/v1/dss/media/{verb}"), body)
    };
    let lock = call("ci", "lock", &dss(&["ci1"])).json();
    assert_eq!((&lock["locks"][0]["hostname"], &lock["locks"][0]["owner"]), (&"node".into(), &7.into()));
    assert_eq!(call("ci", "refresh", &dss(&["ci1"])).status, 200);
    // The same host and pid, said by another user, are somebody else.
    assert_eq!(call("root", "unlock", &dss(&["ci1"])).json()["errno"], "EACCES");
    let force = r#"{"ids": ["ci1"], "hostname": "x", "owner": 1, "force": true}"#;
    refused(&call("eye", "unlock", force), 403, "revoke", "dss/media/ci1");
    let list = |user| call(user, "list", r#"{"hostname": "node"}"#).json()["locks"].as_array().unwrap().len();
    assert_eq!(call("root", "lock", &dss(&["secret"])).status, 200);
    assert_eq!((list("ci"), list("root")), (1, 2));
    assert_eq!(call("root", "unlock", force).status, 200);
    assert_eq!(call("ci", "unlock", &dss(&["ci1"])).json()["errno"], "ENOLCK");
}

#[test]
fn lists_of_leases_and_resources_are_filtered() {
    let guarded = Guarded::start(&["ci", "root"], RULES);
    for path in ["/v1/ci/leases/a", "/v1/prod/leases/b", "/v1/prod/deep/leases/c"] {
        assert_eq!(guarded.ask("root", "POST", path, "").status, 201);
    }
    for name in ["ciLock", "prodLock"] {
        assert_eq!(guarded.ask("root", "POST", &format!("/locks/{name}"), LOCK).status, 201);
    }
    let leases = |user, ns: &str| {
        let list = guarded.ask(user, "GET", &format!("/v1/{ns}/leases/list"), "").json();
        let count = |name: &str| list[name].as_array().unwrap().len();
        (count("leases"), count("namespaces"))
    };
    assert_eq!((leases("ci", "ci"), leases("ci", "prod")), ((1, 0), (0, 0)));
    assert_eq!(leases("root", "prod"), (1, 1));
    let resources = |user| {
        let list = guarded.ask(user, "GET", "/resources", "").json();
        let names = list["_embedded"]["resources"].as_array().unwrap().clone();
        names.iter().map(|one| one["name"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(resources("ci"), ["ciLock"]);
    assert_eq!(resources("root"), ["ciLock", "prodLock"]);
    // Deleting all of them ends what the caller may revoke, and nothing else.
    assert_eq!(guarded.ask("ci", "DELETE", "/resources", "").status, 204);
    assert_eq!(resources("root").len(), 2);
    refused(&guarded.ask("", "GET", "/resources", ""), 401, "read", "*");
    refused(&guarded.ask("", "GET", "/v1/ci/leases/list", ""), 401, "read", "*");
}

#[test]
fn the_administrators_file_still_opens_the_administration_and_nothing_else() {
    let dir = crate::common::TempDir::new();
    let users = dir.path().join("users");
    std::fs::write(&users, "anna:secret\n").unwrap();
    let guarded = Guarded::start_with(&["ci"], RULES, &["--admin-userpass-file", users.to_str().unwrap()]);
    assert_eq!(guarded.ask("ci", "POST", "/locks/ciLock", LOCK).status, 201);
    let anna = [("Authorization", "Basic YW5uYTpzZWNyZXQ=")];
    let ask = |method, path| guarded.server.client().request(method, path, &anna, b"");
    assert_eq!(ask("GET", "/v1/claims/").status, 401);
    assert_eq!(ask("GET", "/resources").status, 200);
    assert_eq!(ask("DELETE", "/resources/ciLock").status, 204);
    assert_eq!(guarded.ask("", "GET", "/resources", "").status, 401);
}

#[test]
fn no_spelling_of_a_name_slips_past_a_rule() {
    let guarded = Guarded::start(&["ci"], RULES);
    // Rules see what the table sees: whatever these mean, it is nothing under `ci`, so it is refused ...
    for resource in [
        "cicd",
        "CI/x",
        "Ci/x",
        "/ci/x",
        "//ci/x",
        "./ci/x",
        "../ci/x",
        "prod/../ci/x",
        "prod/ci/x",
        "%63i/x",
        "ci%2Fx",
        "ci\\x",
        " ci/x",
        "ｃｉ/x",
    ] {
        let reply = guarded.ask("ci", "POST", "/v1/claims/", &claim_body(resource, 60.0));
        refused(&reply, 403, "claim", &resource.replace('\\', "\\\\"));
    }
    // ... and these are names under it, never others: nobody who asks for `prod/x` meets them.
    for resource in ["ci/../prod/x", "ci//prod/x", "ci/%2e%2e/prod/x", "ci/./x"] {
        let reply = guarded.ask("ci", "POST", "/v1/claims/", &claim_body(resource, 60.0));
        assert_eq!((reply.status, reply.json()["resource"].as_str()), (201, Some(resource)));
    }
    for path in [
        "/v1/prod/leases/x",
        "/v1/Ci/leases/x",
        "/v1/%43I/leases/x",
        "/v1/ci%2Fleases/leases/x",
        "/v1/prod%2F..%2Fci/leases/x",
        "/v1/cicd/leases/x",
        "/v1/ci%00/leases/x",
        "/locks/CILOCK",
        "/locks/prodLock",
    ] {
        assert_eq!(guarded.ask("ci", "POST", path, LOCK).status, 403, "{path}");
    }
    for path in [
        "/v1/ci/../prod/leases/x",
        "/v1/ci/%2e%2e/prod/leases/x",
        "/v1//ci/leases/x",
        "/v1/ci//leases/x",
        "/v1/./ci/leases/x",
    ] {
        assert_eq!(guarded.ask("ci", "POST", path, LOCK).status, 400, "{path}");
    }
    for path in [
        "//locks/prodLock",
        "/locks//prodLock",
        "/LOCKS/prodLock",
        "/locks/ciLock/../prodLock",
        "/locks/ciLock%2F..%2FprodLock",
        "//v1/claims/",
        "/V1/claims/",
    ] {
        let status = guarded.ask("ci", "POST", path, LOCK).status;
        assert!(matches!(status, 403..=405), "{path}: {status}");
    }
    // One encoded twice stays one name, in the namespace it is in.
    assert_eq!(guarded.ask("ci", "POST", "/v1/%63i/leases/a%2F..%2Fb", "").status, 201);
    let list = guarded.ask("ci", "GET", "/v1/ci/leases/list", "").json();
    assert_eq!(list["leases"][0]["key"], "ci/leases/a%2F..%2Fb");
}
