//! What operators do: see who holds what, follow links, close panels, revoke.

use crate::browser::Browser;
use crate::common::Server;
use crate::{NONE, claim_of, dashboard, nothing_from_outside, select, text};

const HOLDER: &str = "document.getElementById('holder').innerText";
const QUEUE: &str = "document.querySelectorAll('#queue tbody tr').length";

#[test]
fn operators_see_people_and_programs_and_act_on_them() {
    let server = Server::start_with(&["--trusted-proxies", "127.0.0.1"]);
    let hosts = [("alpha", "10.0.7.11"), ("beta", "10.0.7.12"), ("gamma", "10.0.7.13")];
    let claims = hosts.map(|(host, address)| claim_of(&server, "db/main", host, address));
    for name in ["db/replica", "tape/1", "tape/2"] {
        server.claim(name, 300.0);
    }
    for (name, host) in
        [("deploy/prod/web", "build3"), ("deploy/prod/web", "build4"), ("cron/nightly", "batch7")]
    {
        claim_of(&server, name, host, "10.0.8.1");
    }
    let mut browser = dashboard(&server);
    browser.eval("window.notReloaded = true");
    what_happened_before_is_there_at_once(&mut browser);
    a_hand_over_is_seen(&mut browser, &server, &claims);
    closed_is_closed(&mut browser, &server);
    the_address_says_what_is_open(&mut browser);
    holders_have_cards_and_are_found(&mut browser);
    contention_and_namespaces(&mut browser);
    charts_have_axes_and_values(&mut browser);
    claims_are_revoked(&mut browser, &server, &claims);
    assert_eq!(browser.eval("window.notReloaded"), true);
    assert_eq!(browser.nameless(), NONE);
    assert_eq!(browser.barriers(), NONE);
    browser.eventually("the board has it too", &format!("!{}.includes('db/main')", text("by-queue")));
    browser.size(1280, 1180);
    browser.eval("window.scrollTo(0, 0)");
    browser.screenshot("dashboard");
    browser.dark(true);
    assert_eq!(browser.barriers(), NONE);
    browser.screenshot("dashboard-dark");
    nothing_from_outside(&browser, &server);
}

fn what_happened_before_is_there_at_once(browser: &mut Browser) {
    let feed = text("feed");
    browser.eventually(
        "the events from before the page was opened, with names",
        &format!("{feed}.includes('ada@alpha pid 4711 (pg_dump --host alpha) got db/main')"),
    );
    browser.eventually(
        "who waits",
        &format!("{feed}.includes('ada@beta pid 4711') && {feed}.includes('waits for db/main')"),
    );
}

fn a_hand_over_is_seen(browser: &mut Browser, server: &Server, [first, ..]: &[String; 3]) {
    let row = "document.querySelector(\"#list li[data-name='db/main']\").innerText";
    browser.eventually("a person in the list", &format!("{row}.includes('ada@alpha pid 4711 (pg_dump')"));
    let free = "document.querySelector(\"#list li[data-name='tape/1']\").innerText";
    browser.eventually("an address where the claim says nothing", &format!("{free}.includes('127.0.0.1')"));
    select(browser, "db/main");
    let named = ["ada@alpha pid 4711", "10.0.7.11", "Token", "not renewed yet"];
    let all = named.map(|part| format!("{HOLDER}.includes('{part}')")).join(" && ");
    browser.eventually("who holds it", &format!("{all} && !{HOLDER}.includes('null')"));
    browser.eventually("the queue", &format!("{QUEUE} === 2"));
    // The hand-over happens elsewhere; the page sees it by itself.
    assert_eq!(server.patch(first, r#"{"ttl": 600}"#).status, 200);
    browser.eventually(
        "one renewal",
        &format!("{HOLDER}.includes('renewed 1 time') && !{HOLDER}.includes('1 times')"),
    );
    assert_eq!(server.patch(first, r#"{"status": "released"}"#).status, 204);
    browser.eventually("the next holder", &format!("{HOLDER}.includes('ada@beta') && {QUEUE} === 1"));
    browser.eventually("two spans", "document.querySelectorAll('#timeline svg rect.span').length === 2");
    let timeline = "document.querySelector('#timeline svg').getAttribute('aria-label')";
    browser.eventually("people in the timeline", &format!("{timeline}.includes('ada@alpha pid 4711')"));
    browser
        .eventually("people in the history", &format!("{}.includes('ada@alpha pid 4711')", text("history")));
    browser.eventually("the feed tells", &format!("{}.includes('released db/main')", text("feed")));
}

/// Whatever the page reads afterwards, and after the seconds in which its numbers count.
fn closed_is_closed(browser: &mut Browser, server: &Server) {
    let (closed, open) =
        ("document.getElementById('detail').hidden", "!document.getElementById('detail').hidden");
    for how in ["×", "Escape"] {
        select(browser, "db/main");
        match how {
            "×" => browser.click("#close"),
            key => browser.press(key),
        }
        browser.eventually(how, closed);
        // Something happens, the page draws it and counts on, and the panel stays closed.
        let path = server.claim("noise", 60.0);
        browser.eventually("news", &format!("{}.includes('got noise')", text("feed")));
        browser.eval("new Promise((done) => setTimeout(done, 1300))");
        assert_eq!(browser.eval(closed), true, "it came back after {how}");
        server.patch(&path, r#"{"status": "released"}"#);
        browser.eventually("and its end", &format!("{}.includes('released noise')", text("feed")));
        browser.eval("document.getElementById('feed').replaceChildren()");
    }
    assert_eq!(browser.eval("location.hash"), "#/");
    browser.eval("history.back()");
    browser.eventually("Back opens it", open);
    browser.eval("history.forward()");
    browser.eventually("Forward closes it", closed);
}

fn the_address_says_what_is_open(browser: &mut Browser) {
    browser.eval("location.hash = '#/resource/db/replica'");
    browser.eventually("a link from elsewhere", &format!("{} === 'db/replica'", text("detail-title")));
    browser.eval("location.hash = '#/resource/no/such%20thing'");
    browser.eventually(
        "a resource that is not there",
        &format!("{}.includes('Nobody holds')", text("detail-note")),
    );
    browser.eval("location.hash = '#/'");
    browser.eventually("nothing is open", "document.getElementById('detail').hidden");
}

fn holders_have_cards_and_are_found(browser: &mut Browser) {
    let rows = "[...document.querySelectorAll('#list li')].map((row) => row.dataset.name).join()";
    for (search, found) in
        [("BUILD4", "deploy/prod/web"), ("host batch7", "cron/nightly"), ("db/R", "db/replica")]
    {
        browser.click("#search");
        browser.eval("document.getElementById('search').select()");
        browser.write(search);
        browser.eventually(search, &format!("{rows} === '{found}'"));
    }
    browser.eval("document.getElementById('search').value = ''");
    browser.eval("document.getElementById('search').dispatchEvent(new Event('input'))");
    select(browser, "db/main");
    browser.click("#holder a.person");
    let card = text("person");
    for part in ["ada@beta pid 4711", "10.0.7.12", "pg_dump --host beta", "db/main"] {
        browser.eventually(part, &format!("{card}.includes('{part}')"));
    }
    browser.click("#person-close");
    browser.eventually("closed", "document.getElementById('person').hidden");
}

fn contention_and_namespaces(browser: &mut Browser) {
    for (id, part) in [("by-queue", "1 waiting"), ("by-wait", "ada@build3"), ("by-hold", "127.0.0.1")] {
        browser.eventually(id, &format!("{}.includes('{part}')", text(id)));
    }
    browser.eventually(
        "a mean wait",
        "/^[1-9][0-9.]* (ms|s|min)$/.test(document.getElementById('mean-wait').innerText)",
    );
    browser.click("#by-queue a.name");
    browser.eventually(
        "its resource",
        "location.hash.startsWith('#/resource/') && !document.getElementById('detail').hidden",
    );
    browser.click("#namespaces > summary");
    browser.click("#tree [data-prefix='deploy/'] > summary");
    browser.eventually(
        "one level deeper",
        "document.querySelector(\"#tree [data-prefix='deploy/prod/']\") !== null",
    );
    browser.click("#tree [data-prefix='deploy/'] > p a");
    browser.eventually("only that namespace", "document.querySelectorAll('#list li').length === 1");
    browser.click("#scope a");
    browser.eventually("all again", "document.querySelectorAll('#list li').length > 5");
}

fn charts_have_axes_and_values(browser: &mut Browser) {
    let charts = ["grants", "queue-chart", "waits", "holds", "losses"];
    for id in charts {
        browser.eventually(
            id,
            &format!(
                "document.querySelectorAll('#{id} svg .axis').length === 3 && {}.includes('30 min ago')",
                text(id)
            ),
        );
    }
    browser.eventually("peaks", &format!("/peak [1-9]/.test({})", text("grants")));
    browser.eventually("who waits", &format!("/peak [1-9]/.test({})", text("queue-chart")));
    browser.hover("#grants .chart");
    browser.eventually(
        "a value under the pointer",
        "/:.+: 0$/.test(document.querySelector('#grants .readout').textContent)",
    );
    browser.eval("document.querySelector('#queue-chart .chart').focus()");
    browser.press("ArrowLeft");
    browser.eventually(
        "a value by keyboard",
        "/:.+: [1-9]/.test(document.querySelector('#queue-chart .readout').textContent)",
    );
}

fn claims_are_revoked(browser: &mut Browser, server: &Server, [_, second, third]: &[String; 3]) {
    select(browser, "db/main");
    browser.eventually(
        "times of this resource",
        "document.querySelectorAll('#resource-waits svg .bar').length === 2",
    );
    browser.click("#holder button.revoke");
    browser.eventually("the question", "document.getElementById('revoke').open");
    let what = text("revoke-what");
    browser.eventually(
        "what it revokes",
        &format!("{what}.includes('ada@beta pid 4711 (pg_dump --host beta), owner 10.0.7.12 holds db/main')"),
    );
    assert_eq!(browser.barriers(), NONE);
    // Esc closes the dialog, and nothing else.
    browser.press("Escape");
    browser.eventually(
        "closed",
        "!document.getElementById('revoke').open && !document.getElementById('detail').hidden",
    );
    browser.click("#queue button.revoke");
    browser.eventually(
        "one that waits",
        &format!("{what}.includes('ada@gamma') && {what}.includes('waits for db/main')"),
    );
    browser.click("#revoke-cancel");
    browser.click("#holder button.revoke");
    browser.click("#revoke-do");
    browser.eventually("no reason, no revocation", &format!("{}.length > 5", text("revoke-error")));
    assert_eq!(server.status(second), "active");
    browser.click("#reason");
    browser.write("beta hangs ☹");
    browser.press("Enter");
    browser.eventually("the third holds", &format!("{HOLDER}.includes('ada@gamma')"));
    browser
        .eventually("why, in the history", &format!("{}.includes('revoked: beta hangs ☹')", text("history")));
    // Or when the holder is gone: it is told, and holds on for now.
    browser.click("#holder button.revoke");
    browser.click("#revoke-when input[value=gone]");
    browser.click("#reason");
    browser.write("an upgrade");
    browser.click("#revoke-do");
    browser.eventually("it is told", &format!("{HOLDER}.includes('told to let go')"));
    let told = server.detail(third);
    assert_eq!((&told["revoking"], &told["reason"]), (&true.into(), &"an upgrade".into()));
    assert_eq!((server.status(second), server.status(third)), ("revoked".into(), "active".into()));
}
