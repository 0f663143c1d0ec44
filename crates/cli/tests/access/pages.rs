//! The same rules for what is only looked at: the dashboard's calls, the stream of events, the metrics.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::common::PATIENCE;
use crate::support::Guarded;

const RULES: &str = r#"
[[access.rule]]
users = ["ci"]
resources = ["ci"]
verbs = ["read", "claim"]

[[access.rule]]
users = ["root"]
resources = ["*"]
verbs = ["*"]
"#;

#[test]
fn lists_and_details_show_what_the_caller_may_read() {
    let guarded = Guarded::start(&["ci", "root"], RULES);
    guarded.claim("root", "prod/secret");
    guarded.claim("ci", "ci/job");
    let names = |user: &str| {
        let reply = guarded.ask(user, "GET", "/v1/resources", "");
        assert_eq!(reply.status, 200, "{reply:?}");
        let rows = reply.json()["resources"].as_array().unwrap().clone();
        rows.iter().map(|row| row["name"].as_str().unwrap_or_default().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names("root"), ["ci/job", "prod/secret"]);
    assert_eq!(names("ci"), ["ci/job"]);
    assert_eq!(guarded.ask("ci", "GET", "/v1/resources/ci%2Fjob", "").status, 200);
    assert_eq!(guarded.ask("ci", "GET", "/v1/resources/prod%2Fsecret", "").status, 403);
    for path in
        ["/v1/resources", "/v1/resources/ci%2Fjob", "/v1/overview", "/v1/events", "/metrics", "/v1/backup"]
    {
        assert_eq!(guarded.ask("", "GET", path, "").status, 401, "{path}");
    }
    assert_eq!(guarded.ask("ci", "GET", "/metrics", "").status, 403);
    assert_eq!(guarded.ask("root", "GET", "/metrics", "").status, 200);
    assert_eq!(guarded.ask("ci", "GET", "/v1/backup", "").status, 403);
}

#[test]
fn probes_and_the_page_itself_are_for_everybody() {
    let guarded = Guarded::start(&["root"], RULES);
    for path in ["/", "/assets/app.js", "/docs", "/openapi.json", "/livez", "/readyz", "/version"] {
        assert_eq!(guarded.ask("", "GET", path, "").status, 200, "{path}");
    }
}

#[test]
fn a_stream_tells_of_nothing_that_its_reader_may_not_read() {
    let guarded = Guarded::start(&["ci", "root"], RULES);
    guarded.claim("root", "prod/secret");
    guarded.claim("ci", "ci/job");
    let mut stream = TcpStream::connect(guarded.server.addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "GET /v1/events?after=0.0 HTTP/1.1\r\nHost: here\r\nAuthorization: {}\r\n\r\n",
        guarded.key("ci")
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.contains("ci/job") {
        let len = stream.read(&mut buffer).unwrap();
        assert!(len > 0, "the stream ended: {text}");
        text += &String::from_utf8_lossy(&buffer[..len]);
    }
    assert!(!text.contains("secret"), "{text}");
}
