//! Access keys and rules: made, listed, withdrawn; reloaded; explained.

use crate::common::{Server, TempDir, claim_body, eventually};
use crate::support::{Guarded, leasehold, make_key, refused};

const RULES: &str = r#"
[[access.rule]]
users = ["anonymous", "*"]
resources = ["public"]
verbs = ["read"]

[[access.rule]]
users = ["ci"]
resources = ["ci"]
verbs = ["read", "claim"]

[[access.rule]]
groups = ["ops"]
resources = ["*"]
verbs = ["read", "revoke"]
"#;

#[test]
fn a_key_is_shown_once_kept_as_a_hash_and_withdrawn_while_the_service_runs() {
    let guarded = Guarded::start(&["ci"], "");
    let (file, key) = (guarded.dir.path().join("keys.toml"), guarded.bare_key("ci").to_string());
    let path = file.to_str().unwrap();
    assert!(key.starts_with("lhk_") && key.len() > 50, "{key}");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains(&key[10..]) && text.contains("sha256"), "{text}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);

    assert_eq!(guarded.ask("ci", "POST", "/v1/claims/", &claim_body("x", 60.0)).status, 201);
    // One that is made now counts soon, and without a restart.
    let second = format!("Bearer {}", make_key(guarded.dir.path(), "anna", "ops"));
    let list = || guarded.server.client().request("GET", "/v1/claims/", &[("Authorization", &second)], b"");
    eventually("the new key is known", || list().status == 200);

    let listed = String::from_utf8(leasehold(&["access", "key", "list", "--keys", path]).stdout).unwrap();
    assert!(listed.contains("anna") && listed.contains("ops") && !listed.contains(&key[20..]), "{listed}");
    let id = key.split('_').nth(1).unwrap();
    assert!(leasehold(&["access", "key", "withdraw", id, "--keys", path]).status.success());
    eventually("the key is withdrawn", || guarded.ask("ci", "GET", "/v1/claims/", "").status == 401);
    assert_eq!(list().status, 200);
    assert!(!leasehold(&["access", "key", "withdraw", id, "--keys", path]).status.success());
}

/// Each change made the file one that only the caller could read, and a service under another user kept its old keys for ever.
#[test]
fn a_changed_file_of_keys_keeps_its_owner_and_its_mode() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let dir = TempDir::new();
    let file = dir.path().join("keys.toml");
    make_key(dir.path(), "ci", "");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    // Only root can give a file away; everybody else still sees the mode.
    chown(&file, Some(4711), Some(4712)).ok();
    let before = std::fs::metadata(&file).unwrap();
    make_key(dir.path(), "anna", "");
    let after = std::fs::metadata(&file).unwrap();
    assert_ne!(after.len(), before.len());
    let of = |file: &std::fs::Metadata| (file.uid(), file.gid(), file.mode() & 0o777);
    assert_eq!(of(&after), of(&before));
    assert_eq!(after.mode() & 0o777, 0o640);
}

#[test]
fn an_expired_key_is_no_key() {
    let dir = TempDir::new();
    let file = dir.path().join("keys.toml");
    let args = ["access", "key", "make", "--user", "ci", "--days", "0", "--keys", file.to_str().unwrap()];
    let key = format!("Bearer {}", String::from_utf8(leasehold(&args).stdout).unwrap().trim());
    let server = Server::start_with(&["--access-keys", file.to_str().unwrap()]);
    let reply = server.client().request("GET", "/v1/claims/", &[("Authorization", &key)], b"");
    refused(&reply, 401, "read", "*");
}

#[test]
fn refusals_name_the_right_and_the_resource_and_nothing_else() {
    let guarded = Guarded::start(&["ci", "anna:ops"], RULES);
    let secret = guarded.claim("ci", "ci/secret");
    let post = |user, resource| guarded.ask(user, "POST", "/v1/claims/", &claim_body(resource, 60.0));
    // Bad or missing credentials are refused before the body is read, which alone names the resource.
    refused(&post("", "ci/a"), 401, "claim", "*");
    refused(&post("ci", "prod/a"), 403, "claim", "prod/a");
    refused(&post("anna", "ci/a"), 403, "claim", "ci/a");
    let bad = |value: &str| {
        let headers = [("Authorization", value)];
        guarded.server.client().request("POST", "/v1/claims/", &headers, claim_body("public", 6.0).as_bytes())
    };
    for credentials in
        ["Bearer lhk_0_0", "Bearer", "Bearer x", "Basic eDp5", "Digest x", "Negotiate abc", "x y z"]
    {
        let reply = bad(credentials);
        refused(&reply, 401, "claim", "*");
        assert!(reply.header("www-authenticate").unwrap().contains("invalid_token"), "{reply:?}");
    }
    // Bad credentials are not the same as none: what anyone may read is closed to them.
    let reply = guarded.server.client().request("GET", "/v1/claims/", &[("Authorization", "Bearer x")], b"");
    refused(&reply, 401, "read", "*");
    assert_eq!(guarded.ask("", "GET", "/v1/claims/", "").json(), serde_json::json!([]));
    // Who may not read a claim does not learn that there is one, nor whose or on what.
    let nobody = guarded.ask("", "GET", &secret, "");
    let unknown = guarded.ask("", "GET", "/v1/claims/00000000000000000000000000000000/", "");
    assert_eq!((nobody.status, nobody.text()), (unknown.status, unknown.text()));
}

#[test]
fn the_user_owns_its_claims_and_only_a_holder_of_revoke_ends_those_of_others() {
    let rules = format!(
        "{RULES}\n[[access.rule]]\nusers = [\"dora\"]\nresources = [\"ci\"]\nverbs = [\"read\", \"claim\"]\n"
    );
    let guarded = Guarded::start(&["ci", "dora", "anna:ops"], &rules);
    let path = guarded.claim("ci", "ci/build");
    let detail = guarded.ask("ci", "GET", &path, "").json();
    assert_eq!(detail["owner"], "ci");
    for body in [r#"{"ttl": 1}"#, r#"{"status": "released"}"#, r#"{"status": "revoked"}"#] {
        refused(&guarded.ask("dora", "PATCH", &path, body), 403, "revoke", "ci/build");
    }
    let id = detail["url"].as_str().unwrap().split('/').nth_back(1).unwrap().to_string();
    let renew = |user| {
        let body = serde_json::json!({ "ids": [&id], "ttl": 500 }).to_string();
        guarded.ask(user, "POST", "/v1/renewals", &body).json()["claims"][0].clone()
    };
    assert_eq!(
        (renew("dora")["renewed"].clone(), renew("dora")["status"].clone()),
        (false.into(), ().into())
    );
    assert_eq!(renew("ci")["renewed"], true);
    // Who may not renew a claim is not told of its end: to a stranger it is unknown, at once.
    let ends = |user| {
        let body = serde_json::json!({ "ids": [&id] }).to_string();
        guarded.ask(user, "POST", "/v1/endings?wait=0.1", &body).json()["claims"].clone()
    };
    assert_eq!((ends("dora")[0]["status"].clone(), ends("ci")), (().into(), serde_json::json!([])));
    let headers = [("Leasehold-Reason", "the build host burnt down")];
    let revoked = guarded.ask_with("anna", "PATCH", &path, &headers, r#"{"status": "revoked"}"#);
    assert_eq!(revoked.status, 204, "{revoked:?}");
    assert_eq!(guarded.ask("ci", "GET", &path, "").json()["status"], "revoked");
}

#[test]
fn lists_show_what_the_caller_may_read_and_pages_count_only_that() {
    let guarded = Guarded::start(
        &["ci", "root", "anna:ops"],
        &format!("{RULES}\n[[access.rule]]\nusers = [\"root\"]\nresources = [\"*\"]\nverbs = [\"*\"]\n"),
    );
    for i in 0..6 {
        guarded.claim("root", &format!("{}/{i}", if i % 2 == 0 { "ci" } else { "prod" }));
    }
    let resources = |user: &str, query: &str| {
        let reply = guarded.ask(user, "GET", &format!("/v1/claims/{query}"), "");
        let names = reply.json().as_array().unwrap().clone();
        let names: Vec<_> =
            names.iter().map(|claim| claim["resource"].as_str().unwrap().to_string()).collect();
        (names, reply.header("link").is_some())
    };
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(resources("ci", ""), (owned(&["ci/0", "ci/2", "ci/4"]), false));
    assert_eq!(resources("ci", "?limit=2"), (owned(&["ci/0", "ci/2"]), true));
    assert_eq!(resources("ci", "?limit=2&offset=2"), (owned(&["ci/4"]), false));
    assert_eq!(resources("ci", "?status=active&limit=1&offset=1"), (owned(&["ci/2"]), true));
    assert_eq!(resources("ci", "?resource=prod/1").0.len(), 0);
    assert_eq!(resources("anna", "").0.len(), 6);
}

#[test]
fn credentials_come_in_any_of_the_usual_ways_but_only_once() {
    let guarded = Guarded::start(&["ci", "anna"], "");
    let key = guarded.bare_key("ci").to_string();
    let ask =
        |headers: &[(&str, &str)]| guarded.server.client().request("GET", "/v1/claims/", headers, b"").status;
    let basic = |pair: String| {
        format!("Basic {}", base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pair))
    };
    let bearer = format!("bearer  {key}");
    assert_eq!(ask(&[("Authorization", &bearer)]), 200);
    assert_eq!(ask(&[("Authorization", &basic(format!("ci:{key}")))]), 200);
    assert_eq!(ask(&[("Authorization", &basic(format!("anna:{key}")))]), 401);
    assert_eq!(ask(&[("X-Quorum-Your-Auth-Credentials", &bearer)]), 200);
    assert_eq!(ask(&[("X-Quorum-Your-Auth-Credentials", &key)]), 200);
    assert_eq!(ask(&[("Authorization", &bearer), ("Authorization", &bearer)]), 401);
    assert_eq!(ask(&[("Authorization", &bearer), ("X-Quorum-Your-Auth-Credentials", "x")]), 401);
    // Trusted headers are off unless configured.
    assert_eq!(ask(&[("X-Remote-User", "ci")]), 401);
    for open in ["/livez", "/readyz", "/v1/health", "/version"] {
        assert_eq!(guarded.server.get(open).status, 200, "{open}");
    }
}

#[test]
fn rules_are_read_anew_on_sighup_and_a_broken_file_changes_nothing() {
    let guarded = Guarded::start(&["ci"], RULES);
    let post = |resource| guarded.ask("ci", "POST", "/v1/claims/", &claim_body(resource, 60.0)).status;
    assert_eq!((post("ci/a"), post("prod/a")), (201, 403));
    guarded.configure("[[access.rule]]\nusers = [\"ci\"]\nresources = [\"prod\"]\nverbs = [\"claim\"]\n");
    guarded.server.signal("HUP");
    eventually("the new rules hold", || {
        (post("ci/b"), post("prod/b")) == (403, 201) || post("prod/b") == 202
    });
    for broken in [
        "[[access.rule]]\nusers = [\"ci\"]\nresources = [\"*\"]\nverbs = [\"write\"]\n",
        "][",
        "nonsense = 1",
    ] {
        let before = guarded.server.logged().matches("NOTHING WAS CHANGED").count();
        guarded.configure(broken);
        guarded.server.signal("HUP");
        eventually("it says so", || guarded.server.logged().matches("NOTHING WAS CHANGED").count() > before);
        assert_eq!((post("ci/c"), post("prod/b")), (403, 202));
    }
}

#[test]
fn the_check_explains_a_decision() {
    let guarded = Guarded::start(&["ci"], RULES);
    let config = guarded.dir.path().join("leasehold.toml");
    let check = |args: &[&str]| {
        let output = leasehold(&[&["access", "check", "--config", config.to_str().unwrap()], args].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, text) = check(&["ci", "claim", "ci/a"]);
    assert!(code == Some(0) && text.starts_with("allowed") && text.contains("rule 2"), "{text}");
    let (code, text) = check(&["ci", "claim", "cicd"]);
    assert!(code == Some(1) && text.starts_with("denied") && text.contains("no rule covers that"), "{text}");
    let (code, text) = check(&["anna", "revoke", "ci/a", "--groups", "ops"]);
    assert!(code == Some(0) && text.contains("rule 3"), "{text}");
    assert_eq!(check(&["anonymous", "read", "public/x"]).0, Some(0));
    assert_eq!(check(&["ci", "write", "x"]).0, Some(2));
}

#[test]
fn mistakes_in_the_access_part_stop_the_start_with_their_name() {
    let dir = TempDir::new();
    let config = dir.path().join("leasehold.toml");
    for (text, word) in [
        ("[access]\n[[access.rule]]\nusers = [\"a\"]\nresources = [\"x\"]\nverbs = [\"grab\"]\n", "'grab'"),
        ("[access]\n[access.proxy]\nfrom = []\n", "no proxy is trusted"),
        ("[access]\n[[access.oidc]]\nissuer = \"http://id.example.org\"\naudiences = [\"x\"]\n", "https://"),
        ("[access]\n[[access.oidc]]\nissuer = \"https://id.example.org\"\naudiences = []\n", "audiences"),
        ("[access]\nkeyz = \"x\"\n", "keyz"),
        ("[tls]\ncertificate = \"/nonexistent/c\"\nkey = \"/nonexistent/k\"\n", "/nonexistent/c"),
    ] {
        std::fs::write(&config, text).unwrap();
        let started = Server::try_start_in(&dir.path().join("data"), &["--config", config.to_str().unwrap()]);
        let output = started.err().unwrap_or_else(|| panic!("it started with {text}"));
        assert!(output.contains(word), "{text}: {output}");
    }
}

#[test]
fn those_without_credentials_own_what_they_claim_by_their_address_where_a_rule_lets_them() {
    let rules = "[[access.rule]]\nusers = [\"anonymous\"]\nresources = [\"open\"]\nverbs = [\"claim\"]\n";
    let guarded = Guarded::start(&["ci"], rules);
    let path = guarded.claim("", "open/x");
    assert_eq!(guarded.ask("", "GET", &path, "").json()["owner"], "anonymous for 127.0.0.1");
    assert_eq!(guarded.ask("ci", "PATCH", &path, r#"{"ttl": 1}"#).status, 404);
    assert_eq!(guarded.ask("", "PATCH", &path, r#"{"status": "released"}"#).status, 204);
}
