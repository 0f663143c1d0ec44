//! Prometheus gets a key that can scrape, and nothing else.

use crate::support::{Guarded, refused};

const RULES: &str = r#"
[[access.rule]]
users = ["prometheus"]
resources = ["*"]
verbs = ["metrics"]

[[access.rule]]
users = ["ci"]
resources = ["ci"]
verbs = ["read", "claim"]

[[access.rule]]
users = ["root"]
resources = ["*"]
verbs = ["admin"]
"#;

#[test]
fn scraping_takes_a_right_of_its_own_and_gives_no_other() {
    let guarded = Guarded::start(&["prometheus", "ci", "root"], RULES);
    let status = |user: &str, path: &str| guarded.ask(user, "GET", path, "").status;
    assert_eq!(status("prometheus", "/metrics"), 200);
    assert_eq!(status("root", "/metrics"), 200, "an administrator may scrape, too");
    refused(&guarded.ask("ci", "GET", "/metrics", ""), 403, "metrics", "*");
    refused(&guarded.ask("", "GET", "/metrics", ""), 401, "metrics", "*");
    for path in ["/v1/cluster", "/v1/limits", "/v1/backup", "/v1/resources/ci"] {
        assert_eq!(status("prometheus", path), 403, "{path}");
    }
    let body = crate::common::claim_body("ci/job", 60.0);
    assert_eq!(guarded.ask("prometheus", "POST", "/v1/claims/", &body).status, 403);
}

#[test]
fn everybody_can_ask_who_they_are_and_what_they_may() {
    let guarded = Guarded::start(&["prometheus", "ci", "root"], RULES);
    let who = |user: &str, query: &str| guarded.ask(user, "GET", &format!("/v1/whoami{query}"), "").json();
    let ci = who("ci", "");
    assert_eq!((&ci["user"], &ci["how"], &ci["checked"]), (&"ci".into(), &"key".into(), &true.into()));
    assert_eq!(ci["may"], serde_json::json!(["read", "claim"]));
    assert_eq!(who("ci", "?resource=ci/job")["may"], serde_json::json!(["read", "claim"]));
    assert_eq!(who("ci", "?resource=prod")["may"], serde_json::json!([]));
    assert_eq!(who("prometheus", "?resource=*")["may"], serde_json::json!(["metrics"]));
    assert_eq!(guarded.ask("", "GET", "/v1/whoami", "").status, 401);
    assert_eq!(guarded.ask("ci", "GET", "/v1/whoami?nonsense=1", "").status, 400);
    let open = crate::common::Server::start();
    let anyone = open.get("/v1/whoami").json();
    assert_eq!((&anyone["checked"], anyone["may"].as_array().unwrap().len()), (&false.into(), 5));
}
