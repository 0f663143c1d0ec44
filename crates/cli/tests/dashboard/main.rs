//! The dashboard in a real browser: what a person sees and does.

#![allow(unreachable_pub, reason = "the browser is written like a library")]
#![allow(clippy::needless_pass_by_value, reason = "messages to the browser are made where they are sent")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../access/provider.rs"]
#[allow(dead_code, reason = "the tests of access control use more of it")]
mod provider;
#[path = "../access/support.rs"]
#[allow(dead_code, reason = "the tests of access control use more of it")]
mod support;
#[path = "../common/trio.rs"]
mod trio;

mod browser;
mod docs;
mod first_use;
mod many;
mod operating;
mod phone;
mod sharing;
mod sign_in;
mod trouble;

use browser::Browser;
use common::Server;
use serde_json::json;

fn url(server: &Server, path: &str) -> String {
    format!("http://{}{path}", server.addr)
}

/// A page that is connected to the stream.
fn dashboard(server: &Server) -> Browser {
    let mut browser = Browser::start();
    browser.open(&url(server, "/"));
    browser.eventually("the stream is open", "document.getElementById('live').textContent === 'Live'");
    browser
}

fn select(browser: &mut Browser, name: &str) {
    browser.click(&format!("#list li[data-name='{name}'] a"));
    browser.eventually(
        "its details",
        &format!(
            "document.getElementById('detail-title').textContent === '{name}' && \
             !document.getElementById('detail').hidden && !document.getElementById('detail-body').hidden"
        ),
    );
}

/// A claim of a program, as `leasehold run` makes it; gives the claim's path back.
fn claim_of(server: &Server, resource: &str, host: &str, address: &str) -> String {
    let data =
        json!({ "host": host, "user": "ada", "pid": 4711, "command": format!("pg_dump --host {host}") });
    let body = json!({ "resource": resource, "ttl": 600, "user_data": data }).to_string();
    let headers = [("X-Forwarded-For", address)];
    server.client().request("POST", "/v1/claims/", &headers, body.as_bytes()).location_path()
}

/// The text of an element.
fn text(id: &str) -> String {
    format!("document.getElementById('{id}').innerText")
}

const NONE: Vec<String> = Vec::new();

fn nothing_from_outside(browser: &Browser, server: &Server) {
    let home = url(server, "/");
    let requested = browser.requested();
    assert!(requested.len() > 3, "{requested:?}");
    let outside: Vec<&String> =
        requested.iter().filter(|asked| !asked.starts_with(&home) && !asked.starts_with("data:")).collect();
    assert!(outside.is_empty(), "{outside:?}");
    assert_eq!(browser.complaints(), NONE);
}
