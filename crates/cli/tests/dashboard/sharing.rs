//! What operators see of claims that share, take slots or come as a set.

use serde_json::json;

use crate::common::Server;
use crate::{NONE, dashboard, select};

fn claim(server: &Server, host: &str, wanted: serde_json::Value) {
    let mut body = json!({ "ttl": 600, "user_data": { "host": host, "user": "ada", "pid": 7 } });
    for (name, value) in wanted.as_object().unwrap() {
        body[name] = value.clone();
    }
    let answer = server.client().request("POST", "/v1/claims/", &[], body.to_string().as_bytes());
    assert!([201, 202].contains(&answer.status), "{}", answer.text());
}

#[test]
fn operators_see_all_holders_slots_as_boxes_and_sets_as_one() {
    let server = Server::start();
    for host in ["reader1", "reader2"] {
        claim(&server, host, json!({ "resource": "db/main", "mode": "shared" }));
    }
    claim(&server, "writer", json!({ "resource": "db/main" }));
    claim(&server, "reader3", json!({ "resource": "db/main", "mode": "shared" }));
    claim(&server, "board1", json!({ "resource": "boards", "take": 1, "of": 5 }));
    claim(&server, "board2", json!({ "resource": "boards", "take": 2, "of": 5 }));
    claim(&server, "tapes", json!({ "resources": ["tape/1", "tape/2", "db/main"] }));

    let mut browser = dashboard(&server);
    let row = |name: &str| format!("document.querySelector(\"#list li[data-name='{name}']\").innerText");
    browser.eventually("readers in the list", &format!("{}.includes('shared by 2')", row("db/main")));
    browser.eventually("slots in the list", &format!("{}.includes('3 of 5 slots held')", row("boards")));
    browser.eventually("a reservation in the list", &format!("{}.includes('reserved')", row("tape/1")));

    select(&mut browser, "db/main");
    let holders = "document.getElementById('holder').innerText";
    browser.eventually(
        "both readers",
        &format!("['reader1', 'reader2'].every((host) => {holders}.includes(host))"),
    );
    let queue = "document.getElementById('queue').innerText";
    for behind in ["alone, behind ada@reader2", "to share it, behind ada@writer", "behind ada@reader3"] {
        browser.eventually("who waits behind whom", &format!("{queue}.includes('{behind}')"));
    }
    browser.eventually("the rest of the set", &format!("{queue}.includes('with tape/1, tape/2')"));
    assert_eq!(browser.barriers(), NONE);

    select(&mut browser, "boards");
    let boxes = "[...document.querySelectorAll('.slot')].map((box) => box.textContent)";
    browser.eventually("five boxes", &format!("{boxes}.length === 5"));
    browser.eventually(
        "who has which",
        &format!("{boxes}[0].includes('board1') && {boxes}[2].includes('board2') && {boxes}[3] === '4 free'"),
    );
    assert_eq!(browser.barriers(), NONE);
    browser.look("slots");

    select(&mut browser, "tape/1");
    browser.eventually(
        "a reservation says what it waits for",
        &format!("{queue}.includes('alone with tape/2, db/main, reserved: waits for the others')"),
    );
    browser.size(360, 800);
    assert_eq!(browser.barriers(), NONE);
    browser.screenshot("sharing-phone");
}
