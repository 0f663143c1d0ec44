//! Very many claims.

use serde_json::json;

use crate::common::Server;
use crate::{dashboard, select, text};

const WAITING: usize = 3000;

#[test]
fn a_hundred_thousand_resources_are_paged_and_searched_by_the_server() {
    let server = Server::start();
    for part in 0..10 {
        let ids: Vec<String> = (0..10_000).map(|i| format!("tape-{:06}", part * 10_000 + i)).collect();
        let body = json!({ "ids": ids, "hostname": "vault", "owner": 4711 }).to_string();
        assert_eq!(server.post("/v1/dss/media/lock", &body).status, 200);
    }
    let mut client = server.client();
    for i in 0..=WAITING {
        let body = json!({ "resource": "db/main", "ttl": 600, "user_data": { "host": format!("h{i}") } })
            .to_string();
        client.send("POST", "/v1/claims/", &[], body.as_bytes());
    }
    (0..=WAITING).for_each(|_| assert!(matches!(client.reply().status, 201 | 202)));
    let mut browser = dashboard(&server);
    browser.eventually(
        "the count",
        "document.getElementById('count').textContent.replace(/\\D/g, '') === '100001'",
    );
    browser.eventually("one page", "document.querySelectorAll('#list li').length === 50");
    browser.eventually(
        "the queue on the board",
        &format!("{}.replace(/,/g, '').includes('{WAITING} waiting')", text("by-queue")),
    );
    browser.eventually(
        "a mean wait",
        "/^[1-9][0-9.]* (ms|s|min)$/.test(document.getElementById('mean-wait').innerText)",
    );
    browser.click("#more");
    browser.eventually("the next one", "document.querySelectorAll('#list li').length === 100");
    browser.eval("location.hash = '#/resource/db/main'");
    browser
        .eventually("the first of the queue", "document.querySelectorAll('#queue tbody tr').length === 100");
    browser.eventually(
        "and how many there are",
        &format!("{}.replace(/,/g, '') === '{WAITING} waiting the first 100 are shown'", text("queue-count")),
    );
    browser.screenshot("hundred-thousand");
    browser.click("#search");
    browser.write("tape-0999");
    browser.eventually(
        "what was looked for",
        "document.querySelectorAll('#list li').length === 50 && document.querySelector('#list li').dataset.name === 'dss/media/tape-099900'",
    );
    browser.write("42");
    browser.eventually("the only one", "document.querySelectorAll('#list li').length === 1");
    select(&mut browser, "dss/media/tape-099942");
    browser.eventually("its holder", &format!("{}.includes('vault:4711')", text("holder")));
}
