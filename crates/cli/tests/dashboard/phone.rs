//! 360 pixels, in the dark, without a mouse.

use crate::browser::Browser;
use crate::common::Server;
use crate::{NONE, claim_of, dashboard, text};

#[test]
fn it_works_on_a_phone_in_the_dark_and_by_keyboard() {
    let server = Server::start_with(&["--trusted-proxies", "127.0.0.1"]);
    server.claim("a-resource-with-a-name-that-is-much-longer-than-a-phone-is-wide/and-longer-still", 300.0);
    for (host, address) in [("alpha", "10.0.7.11"), ("beta-with-a-long-name.example.net", "10.0.7.12")] {
        claim_of(&server, "db/main", host, address);
    }
    let mut browser = dashboard(&server);
    browser.size(360, 740);
    browser.dark(true);
    browser.eventually("the list", "document.querySelectorAll('#list li').length === 2");
    browser.screenshot("phone-dark-list");
    assert_eq!(browser.barriers(), NONE);
    browser.press("/");
    assert_eq!(browser.eval("document.activeElement.id"), "search");
    browser.write("DB/M");
    browser.eventually("one is left", "document.querySelectorAll('#list li').length === 1");
    browser.eval("document.querySelector('#list a').focus()");
    browser.press("Enter");
    browser.eventually("its details, with the focus", "document.activeElement.id === 'detail'");
    browser.eventually("the queue", "document.querySelectorAll('#queue tbody tr').length === 1");
    queue_can_be_read(&mut browser);
    for selector in ["body", "#detail", "#queue"] {
        let wide = browser.eval(&format!("document.querySelector('{selector}').scrollWidth"));
        assert!(wide.as_u64().unwrap() <= 360, "{selector} is {wide} wide");
    }
    assert_eq!(browser.eval("document.documentElement.scrollWidth"), 360);
    assert_eq!(browser.eval("getComputedStyle(document.body).backgroundColor"), "rgb(18, 24, 22)");
    browser.screenshot("phone-dark");
    assert_eq!(browser.barriers(), NONE);
    // Revoked without a mouse: to the button, into the dialog, the reason, Enter.
    browser.eval("document.querySelector('#queue button.revoke').focus()");
    browser.press("Enter");
    browser.eventually("the reason has the focus", "document.activeElement.id === 'reason'");
    browser.screenshot("phone-dark-revoke");
    browser.write("by keyboard");
    browser.press("Enter");
    browser.eventually("gone", &format!("{} === 'nobody waits'", text("queue-count")));
    browser.press("Escape");
    browser.eventually("closed", "document.getElementById('detail').hidden");
    assert_eq!(browser.eval("document.activeElement.id"), "resources");
    assert_eq!(browser.nameless(), NONE);
}

/// Each value has its name beside it and is in sight, not cut off and not beyond the edge.
fn queue_can_be_read(browser: &mut Browser) {
    let cell = "document.querySelector('#queue td[data-label=Who]')";
    browser.eventually(
        "a name for the value",
        &format!("getComputedStyle({cell}, '::before').content === '\"Who\"'"),
    );
    browser.eventually(
        "all of it in sight",
        &format!("{cell}.getBoundingClientRect().right <= 360 && {cell}.scrollWidth <= {cell}.clientWidth"),
    );
}
