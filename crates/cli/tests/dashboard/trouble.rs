//! What the page says when something is wrong: a node down, no quorum, the service gone.

use crate::browser::Browser;
use crate::common::{self, Server};
use crate::trio::Trio;
use crate::{NONE, claim_of, dashboard, select, text, url};

/// Whether the head's sentence can be seen, however far the page is scrolled.
const IN_SIGHT: &str = "(() => { const r = document.getElementById('trouble').getBoundingClientRect(); \
                        return r.height > 0 && r.top >= 0 && r.bottom <= innerHeight; })()";

const ALL_OFF: &str = "document.querySelectorAll('button.revoke').length > 0 && \
                       [...document.querySelectorAll('button.revoke')].every((button) => button.disabled)";

#[test]
fn a_cluster_tells_of_a_lost_node_and_then_of_a_lost_quorum() {
    let mut trio = Trio::start();
    let [first, second, third] = &mut trio.nodes;
    common::eventually("a leader", || first.get("/readyz").status == 200);
    claim_of(first, "db/main", "alpha", "10.0.7.11");
    let mut browser = Browser::start();
    browser.open(&url(first, "/#/resource/db/main"));
    let (summary, node) = (text("cluster-summary"), text("node"));
    browser.eventually("all is well", &format!("{summary}.includes('all nodes are well; node')"));
    browser.eventually("also in the head", &format!("{node}.includes('leads · 3 nodes up')"));
    assert_eq!(browser.eval("document.querySelectorAll('#nodes li.leader').length"), 1);
    third.kill();
    browser.eventually(
        "one is down",
        &format!(
            "{summary}.includes(\"1 of 3 nodes can't be reached\") && {node}.includes('1 of 3 nodes lost')"
        ),
    );
    browser.eventually(
        "which one",
        "document.querySelector('#nodes li.unreachable').innerText.includes('Node 3')",
    );
    // The two that are left elect a leader, if it was that one, and go on; the page shows it.
    common::eventually("a leader", || first.get("/readyz").status == 200);
    first.claim("still/here", 60.0);
    browser.eventually("it goes on", "document.querySelector(\"#list li[data-name='still/here']\") !== null");
    browser.eventually("and is live", "document.body.dataset.health === 'live'");
    browser.look("cluster-node-down");

    second.kill();
    browser.eventually("out of date", "document.body.dataset.health === 'stale'");
    browser.eval("window.scrollTo(0, document.body.scrollHeight)");
    let trouble = text("trouble");
    browser.eventually(
        "what is wrong, and how old the data is",
        &format!("{IN_SIGHT} && {trouble}.includes('no leader is known') && {trouble}.includes(' old')"),
    );
    browser.eventually(
        "the head",
        &format!("{node}.includes('no leader') && {} === 'Out of date'", text("live")),
    );
    browser.eventually("the list is still there", "document.querySelectorAll('#list li').length === 2");
    browser.eventually("nothing can be pressed", ALL_OFF);
    let nodes = text("nodes");
    browser.eventually(
        "nobody leads",
        &format!("{summary}.includes('no leader') && !{nodes}.includes(': leader\\n')"),
    );
    browser.eventually(
        "what is not known is not zero, nor up to date",
        &format!("{nodes}.includes('last heard') || {nodes}.includes('log unknown')"),
    );
    let lost = "[...document.querySelectorAll('#nodes .unreachable')].map((node) => node.innerText).join()";
    assert_eq!(browser.eval(&format!("/log 0\\b|up to date/.test({lost})")), false);
    // A page that is opened now shows the same.
    browser.open(&url(first, "/"));
    browser.open(&url(first, "/#/resource/db/main"));
    browser.eventually(
        "from a stale read",
        &format!("document.body.dataset.health === 'stale' && {}.includes('ada@alpha')", text("holder")),
    );
    browser.eventually("with its age", &format!("/may be [1-9][0-9.]* (s|min).* old/.test({trouble})"));
    browser.eventually("the list too", "document.querySelectorAll('#list li').length === 2");
    assert_eq!(browser.barriers(), NONE);
    browser.look("no-quorum");
    assert_eq!(browser.complaints(), NONE);
}

#[test]
fn a_service_that_is_gone_leaves_no_running_numbers() {
    let mut server = Server::start();
    claim_of(&server, "db/main", "alpha", "10.0.7.11");
    claim_of(&server, "db/main", "beta", "10.0.7.12");
    let mut browser = dashboard(&server);
    select(&mut browser, "db/main");
    browser.eval("window.scrollTo(0, document.body.scrollHeight)");
    server.kill();
    let trouble = text("trouble");
    browser.eventually("the head says so", &format!("document.body.dataset.health === 'gone' && {IN_SIGHT} && {trouble}.includes(\"can't be reached\")"));
    browser.eventually("nothing can be pressed", ALL_OFF);
    // The age grows, the numbers stand still.
    browser.eval("new Promise((done) => setTimeout(done, 1100))");
    let numbers = "document.getElementById('holder').innerText + document.getElementById('queue').innerText";
    let (before, age) = (browser.eval(numbers), browser.eval(&trouble));
    browser.eventually("older", &format!("{trouble} !== {age}"));
    assert_eq!(browser.eval(numbers), before);
    browser.look("gone");
}
