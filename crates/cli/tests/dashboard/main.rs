//! The dashboard in a real browser: what a person sees and does.

#![allow(unreachable_pub, reason = "the browser is written like a library")]
#![allow(clippy::needless_pass_by_value, reason = "messages to the browser are made where they are sent")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/trio.rs"]
mod trio;

mod browser;

use browser::Browser;
use common::Server;
use serde_json::json;
use trio::Trio;

fn url(server: &Server, path: &str) -> String {
    format!("http://{}{path}", server.addr)
}

/// A page that is connected to the stream.
fn dashboard(server: &Server) -> Browser {
    let mut browser = Browser::start();
    browser.open(&url(server, "/"));
    browser.eventually("the stream is open", "document.getElementById('live').textContent === 'live'");
    browser
}

fn select(browser: &mut Browser, name: &str) {
    browser.click(&format!("#list li[data-name='{name}'] button"));
    browser.eventually(
        "its details",
        &format!("document.getElementById('detail-title').textContent === '{name}'"),
    );
}

const HOLDER: &str = "document.getElementById('holder').innerText";

#[test]
fn a_hand_over_and_a_revocation_are_seen_without_a_reload() {
    let server = Server::start_with(&["--trusted-proxies", "127.0.0.1"]);
    let [first, second, third] = [("alpha", 11), ("beta", 12), ("gamma", 13)].map(|(host, address)| {
        let body = json!({ "resource": "db/main", "ttl": 600, "user_data": { "host": host } }).to_string();
        let from = format!("10.0.7.{address}");
        let headers = [("X-Forwarded-For", from.as_str())];
        server.client().request("POST", "/v1/claims/", &headers, body.as_bytes()).location_path()
    });
    for name in ["db/replica", "tape/1", "tape/2"] {
        server.claim(name, 300.0);
    }
    let lease =
        server.client().request("POST", "/v1/cron/leases/nightly", &[("X-Quorum-Client-ID", "batch7")], b"");
    assert_eq!(lease.status, 201);
    let mut browser = dashboard(&server);
    browser.eval("window.notReloaded = true");
    select(&mut browser, "db/main");
    browser.eventually("who holds it", &format!("{HOLDER}.includes('alpha') && {HOLDER}.includes('Token')"));
    let queue = "document.querySelectorAll('#queue tbody tr').length";
    browser.eventually("the queue", &format!("{queue} === 2"));

    // The hand-over happens elsewhere; the page sees it by itself.
    assert_eq!(server.patch(&first, r#"{"status": "released"}"#).status, 204);
    browser.eventually("the next holder", &format!("{HOLDER}.includes('beta') && {queue} === 1"));
    browser.eventually(
        "two of them in the picture",
        "document.querySelectorAll('#timeline svg rect.span').length === 2",
    );
    browser.eventually(
        "the feed tells",
        "document.getElementById('feed').innerText.includes('released: db/main')",
    );
    assert_eq!(browser.eval("window.notReloaded"), true);

    // Revoked by hand, with a reason, which is asked for.
    browser.click("#holder button.revoke");
    browser.eventually("the question", "document.getElementById('revoke').open");
    browser.click("#revoke-do");
    browser.eventually(
        "no reason, no revocation",
        "document.getElementById('revoke-error').textContent.length > 5",
    );
    assert_eq!(server.status(&second), "active");
    browser.click("#reason");
    browser.write("beta hangs ☹");
    browser.click("#revoke-do");
    browser.eventually("the third holds", &format!("{HOLDER}.includes('gamma')"));
    browser.eventually(
        "why, in the history",
        "document.getElementById('history').innerText.includes('revoked: beta hangs ☹')",
    );
    // Or when the holder is gone: it is told, and holds on for now.
    browser.click("#holder button.revoke");
    browser.eventually("the question again", "document.getElementById('revoke').open");
    browser.click("#revoke-when input[value=gone]");
    browser.click("#reason");
    browser.write("an upgrade");
    browser.click("#revoke-do");
    browser.eventually("it is told", &format!("{HOLDER}.includes('told to let go')"));
    let told = server.detail(&third);
    assert_eq!((&told["revoking"], &told["reason"]), (&true.into(), &"an upgrade".into()));
    browser.eventually("the charts", "document.querySelectorAll('.chart svg polyline').length === 3");
    assert_eq!(server.status(&second), "revoked");
    assert_eq!(server.status(&third), "active");
    assert_eq!(browser.eval("document.getElementById('held').textContent"), "5");
    assert_eq!(browser.nameless(), Vec::<String>::new());
    browser.size(1280, 1080);
    browser.eval("window.scrollTo(0, 0)");
    browser.screenshot("dashboard");
    nothing_from_outside(&browser, &server);
}

fn nothing_from_outside(browser: &Browser, server: &Server) {
    let home = url(server, "/");
    let requested = browser.requested();
    assert!(requested.len() > 3, "{requested:?}");
    let outside: Vec<&String> =
        requested.iter().filter(|asked| !asked.starts_with(&home) && !asked.starts_with("data:")).collect();
    assert!(outside.is_empty(), "{outside:?}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn it_works_on_a_phone_in_the_dark_and_by_keyboard() {
    let server = Server::start();
    server.claim("a-resource-with-a-name-that-is-much-longer-than-a-phone-is-wide/and-longer-still", 300.0);
    server.claim("db/main", 300.0);
    server.claim("db/main", 300.0);
    let mut browser = dashboard(&server);
    browser.size(360, 740);
    browser.dark(true);
    browser.eventually("the list", "document.querySelectorAll('#list li').length === 2");
    browser.press("/");
    assert_eq!(browser.eval("document.activeElement.id"), "search");
    browser.write("DB/M");
    browser.eventually("one is left", "document.querySelectorAll('#list li').length === 1");
    browser.eval("document.querySelector('#list button').focus()");
    browser.press("Enter");
    browser.eventually("its details, with the focus", "document.activeElement.id === 'detail'");
    browser.eventually("the queue", "document.querySelectorAll('#queue tbody tr').length === 1");
    for selector in ["body", "#detail", "#resources"] {
        let wide = browser.eval(&format!("document.querySelector('{selector}').scrollWidth"));
        assert!(wide.as_u64().unwrap() <= 360, "{selector} is {wide} wide");
    }
    assert_eq!(browser.eval("document.documentElement.scrollWidth"), 360);
    let ground = browser.eval("getComputedStyle(document.body).backgroundColor");
    assert_eq!(ground, "rgb(18, 24, 22)");
    browser.screenshot("phone-dark");
    browser.press("Escape");
    browser.eventually("closed", "document.getElementById('detail').hidden");
    assert_eq!(browser.nameless(), Vec::<String>::new());
}

#[test]
fn a_hundred_thousand_resources_are_paged_and_searched_by_the_server() {
    let server = Server::start();
    for part in 0..10 {
        let ids: Vec<String> = (0..10_000).map(|i| format!("tape-{:06}", part * 10_000 + i)).collect();
        let body = json!({ "ids": ids, "hostname": "vault", "owner": 4711 }).to_string();
        assert_eq!(server.post("/v1/dss/media/lock", &body).status, 200);
    }
    let mut browser = dashboard(&server);
    browser.eventually(
        "the count",
        "document.getElementById('count').textContent.replace(/\\D/g, '') === '100000'",
    );
    browser.eventually("one page", "document.querySelectorAll('#list li').length === 50");
    browser.click("#more");
    browser.eventually("the next one", "document.querySelectorAll('#list li').length === 100");
    browser.click("#search");
    browser.write("tape-0999");
    browser.eventually(
        "what was looked for",
        "document.querySelectorAll('#list li').length === 50 && document.querySelector('#list li').dataset.name === 'dss/media/tape-099900'",
    );
    browser.write("42");
    browser.eventually("the only one", "document.querySelectorAll('#list li').length === 1");
    select(&mut browser, "dss/media/tape-099942");
    browser.eventually("its holder", &format!("{HOLDER}.includes('vault:4711')"));
    browser.click("#search");
    browser.write("nothing like it");
    browser.eventually("nothing", "document.getElementById('found').textContent === 'nothing matches'");
    browser.screenshot("hundred-thousand");
}

#[test]
fn a_cluster_with_a_node_down_says_so() {
    let mut trio = Trio::start();
    let [first, _, third] = &mut trio.nodes;
    let mut browser = Browser::start();
    browser.open(&url(first, "/"));
    let summary = "document.getElementById('cluster-summary').textContent";
    browser.eventually("all is well", &format!("{summary}.includes('all nodes are well; node')"));
    assert_eq!(browser.eval("document.querySelectorAll('#nodes li.leader').length"), 1);
    third.kill();
    browser.eventually("one is down", &format!("{summary}.includes(\"1 of 3 nodes can't be reached\")"));
    browser.eventually(
        "which one",
        "document.querySelector('#nodes li.unreachable').innerText.includes('Node 3')",
    );
    // The two that are left elect a leader, if it was that one, and go on; the page shows it.
    common::eventually("a leader", || first.get("/readyz").status == 200);
    first.claim("still/here", 60.0);
    browser.eventually("it goes on", "document.querySelector(\"#list li[data-name='still/here']\") !== null");
    browser.screenshot("cluster-node-down");
}

#[test]
fn the_api_page_shows_every_operation() {
    let server = Server::start();
    let mut browser = Browser::start();
    browser.open(&url(&server, "/docs"));
    let paths = server.get("/openapi.json").json()["paths"].as_object().unwrap().clone();
    let operations: usize = paths.values().map(|methods| methods.as_object().unwrap().len()).sum();
    let shown = "document.querySelectorAll('#operations section:not([hidden])').length";
    browser.eventually("all of them", &format!("{shown} === {operations}"));
    browser.screenshot("api");
    browser.click("#filter");
    browser.write("renewals");
    browser.eventually("some of them", &format!("{shown} > 0 && {shown} < {operations}"));
    nothing_from_outside(&browser, &server);
}

#[test]
fn pages_allow_nothing_from_elsewhere_and_are_asked_for_once() {
    let server = Server::start();
    for path in [
        "/",
        "/docs",
        "/assets/app.js",
        "/assets/draw.js",
        "/assets/style.css",
        "/assets/docs.js",
        "/assets/icon.svg",
    ] {
        let reply = server.get(path);
        assert_eq!(reply.status, 200, "{path}");
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        let text = reply.text();
        assert!(!text.contains(" style=\"") && !text.contains(" onclick"), "{path} has something inline");
        let tag = reply.header("etag").unwrap().to_string();
        let again = server.client().request("GET", path, &[("If-None-Match", &tag)], b"");
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
        assert_eq!(server.post(path, "").status, 405, "{path}");
    }
}
