//! The page of the API, and the files of both pages.

use serde_json::Value;

use crate::browser::Browser;
use crate::common::Server;
use crate::{NONE, nothing_from_outside, text, url};

#[test]
fn the_api_page_shows_every_operation_with_a_request_to_copy() {
    let server = Server::start();
    let mut browser = Browser::start();
    browser.open(&url(&server, "/docs"));
    let document = server.get("/openapi.json").json();
    let paths = document["paths"].as_object().unwrap();
    let operations: usize = paths.values().map(|methods| methods.as_object().unwrap().len()).sum();
    let shown = "document.querySelectorAll('#operations section:not([hidden])').length";
    browser.eventually("all of them", &format!("{shown} === {operations}"));
    let examples = "document.querySelectorAll('#operations section pre').length";
    browser.eventually("an example each", &format!("{examples} === {operations}"));
    assert_eq!(browser.barriers(), NONE);
    browser.screenshot("api");
    // The first one is the first thing that a reader tries: it works, word by word.
    let first = browser.eval("[...document.querySelectorAll('pre')].map((pre) => pre.innerText).find((text) => text.includes('/v1/claims/ -d'))");
    crate::common::run("sh", &["-c", &format!("{} --silent --fail", first.as_str().unwrap())]);
    assert_eq!(server.list("resource=db/main").len(), 1);
    every_example_is_understood(&server, &document);
    browser.click("#filter");
    browser.write("renewals");
    browser.eventually("some of them", &format!("{shown} > 0 && {shown} < {operations}"));
    assert!(browser.eval(&text("operations")).as_str().unwrap().contains("curl http"));
    nothing_from_outside(&browser, &server);
}

/// No example is bad input: whatever the service says to it, it is not 400.
fn every_example_is_understood(server: &Server, document: &Value) {
    let claim = server.claim("example", 60.0);
    let id = claim.trim_end_matches('/').rsplit('/').next().unwrap();
    for (template, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let body = &operation["requestBody"]["content"]["application/json"]["example"];
            // A change of the cluster waits for nodes that are not there.
            if body.is_null() || template.starts_with("/v1/cluster") {
                continue;
            }
            let parameters = operation["parameters"].as_array().unwrap();
            let in_path = parameters.iter().filter(|parameter| parameter["in"] == "path");
            let path = in_path.fold(template.replace("{id}", id), |path, parameter| {
                let name = parameter["name"].as_str().unwrap();
                path.replace(&format!("{{{name}}}"), parameter["example"].as_str().unwrap())
            });
            let reply =
                server.client().request(&method.to_uppercase(), &path, &[], body.to_string().as_bytes());
            assert!(![400, 404, 405, 415].contains(&reply.status), "{method} {path}: {reply:?}");
        }
    }
}

#[test]
fn pages_allow_nothing_from_elsewhere_and_are_asked_for_once() {
    let server = Server::start();
    let page = server.get("/").text();
    let mut paths =
        vec!["/".to_string(), "/docs".into(), "/assets/icon.svg".into(), "/assets/style.css".into()];
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/src/api/dashboard/files");
    let files =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    paths.extend(files.filter(|name| name.ends_with(".js")).map(|name| format!("/assets/{name}")));
    assert!(paths.len() > 15 && page.contains("/assets/app.js"), "{paths:?}");
    for path in &paths {
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
