//! A service that nobody has used yet.

use crate::common::Server;
use crate::{NONE, claim_of, dashboard, nothing_from_outside, text};

#[test]
fn an_empty_service_says_what_to_type() {
    let server = Server::start();
    let mut browser = dashboard(&server);
    browser.eventually("what to do", "!document.getElementById('first-use').hidden");
    let told = text("first-use");
    let command = format!("leasehold run --addr http://{} db/backup", server.addr);
    browser.eventually("the command, with this service's address", &format!("{told}.includes('{command}')"));
    browser.eventually(
        "no search, no 'nothing matches'",
        &format!("{} === 'There are no resources yet.'", text("found")),
    );
    browser.eventually("no events", "!document.getElementById('feed-none').hidden");
    assert_eq!(browser.eval("document.getElementById('mean-wait').innerText"), "–");
    assert_eq!(browser.barriers(), NONE);
    browser.look("first-use");
    // What stands there works, word by word.
    let curl = browser.eval("document.querySelectorAll('#first-use pre')[1].innerText");
    crate::common::run("sh", &["-c", &format!("{} --silent --fail", curl.as_str().unwrap())]);
    browser.eventually("the first lock", "document.querySelectorAll('#list li').length === 1");
    browser.eventually("no more advice", "document.getElementById('first-use').hidden");
    claim_of(&server, "db/backup", "beta", "10.0.0.1");
    browser.click("#search");
    browser.write("nothing like it");
    browser.eventually("nothing matches", &format!("{}.startsWith('Nothing matches')", text("found")));
    nothing_from_outside(&browser, &server);
}
