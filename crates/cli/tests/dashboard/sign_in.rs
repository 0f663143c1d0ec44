//! Access control on: signing in with a key or a token, and what a reader without all rights sees.

use crate::browser::Browser;
use crate::provider::{Key, Provider};
use crate::support::Guarded;
use crate::{NONE, text, url};

const RULES: &str = r#"
[[access.rule]]
users = ["reader", "oidc-ada"]
resources = ["db"]
verbs = ["read"]

[[access.rule]]
users = ["worker"]
resources = ["db"]
verbs = ["claim"]

[[access.rule]]
users = ["root"]
resources = ["*"]
verbs = ["*"]
"#;

const FORM: &str = "document.body.dataset.signIn === 'needed'";
const LIVE: &str = "document.getElementById('live').textContent === 'Live'";

fn sign_in(browser: &mut Browser, credentials: &str) {
    browser.eventually("the form", FORM);
    browser.click("#credentials");
    browser.write(credentials);
    browser.press("Enter");
}

fn sign_out(browser: &mut Browser) {
    // By keyboard: the page is loaded anew, which a click could not see.
    browser.eval("document.getElementById('sign-out').focus()");
    browser.press("Enter");
    browser.eventually("the form again", &format!("{FORM} && {} === 'Signed out'", text("live")));
    assert_eq!(browser.eval("sessionStorage.length"), 0);
}

fn names(browser: &mut Browser, expected: &str) {
    let rows = "[...document.querySelectorAll('#list li')].map((row) => row.dataset.name).join()";
    browser.eventually(expected, &format!("{rows} === '{expected}'"));
}

/// What the reader is told to be held, waiting and there: of what they may see.
fn counts(browser: &mut Browser, expected: &str) {
    let tiles = "['held', 'waiting', 'count'].map((id) => document.getElementById(id).textContent).join()";
    browser.eventually(expected, &format!("{tiles} === '{expected}'"));
}

#[test]
fn a_key_or_token_is_typed_once_and_the_browser_never_asks() {
    let key = Key::p256("k1");
    let provider = Provider::start(&[&key]);
    let (issuer, audiences) =
        (provider.issuer(), "audiences = [\"locks\"]\nuser-claim = \"preferred_username\"");
    let oidc = format!("\n[[access.oidc]]\nissuer = {issuer:?}\n{audiences}\n");
    let guarded = Guarded::start(&["reader", "worker", "root"], &format!("{RULES}{oidc}"));
    for (user, resource) in [("root", "prod/secret"), ("root", "db/main"), ("worker", "db/worked")] {
        guarded.claim(user, resource);
    }
    let mut browser = Browser::start();
    browser.open(&url(&guarded.server, "/"));
    // Were the browser to ask by itself, the page would wait for it, and show no form.
    browser.eventually("the form", FORM);
    assert_eq!(browser.barriers(), NONE);
    browser.look("sign-in");
    sign_in(&mut browser, "not a key");
    browser.eventually(
        "what is wrong with it",
        &format!("{}.includes('without spaces')", text("sign-in-error")),
    );
    sign_in(&mut browser, "lhk_wrong");
    browser.eventually("not accepted", &format!("{}.includes('not accepted')", text("sign-in-error")));

    a_reader_sees_what_it_may(&mut browser, &guarded);
    an_owner_without_the_right_to_read_sees_its_own(&mut browser, &guarded);
    an_administrator_can_revoke(&mut browser, &guarded);

    sign_in(&mut browser, &key.token(&provider.claims("oidc-ada")));
    browser.eventually(
        "a token of the identity provider",
        &format!("{LIVE} && {} === 'oidc-ada'", text("user")),
    );
    names(&mut browser, "db/main,db/worked");
    only_the_page_goes_unasked(&guarded);
    assert_eq!(browser.complaints(), NONE);
}

fn a_reader_sees_what_it_may(browser: &mut Browser, guarded: &Guarded) {
    sign_in(browser, guarded.bare_key("reader"));
    browser.eventually("signed in", &format!("{LIVE} && {} === 'reader'", text("user")));
    names(browser, "db/main,db/worked");
    browser.eventually("the head", &format!("{}.includes('node 1')", text("node")));
    browser.eventually(
        "its board",
        &format!("{}.includes('db/main') && !{}.includes('secret')", text("by-hold"), text("by-hold")),
    );
    counts(browser, "2,0,2");
    browser.click("#list li a");
    browser.eventually("the holder", &format!("{}.includes('root')", text("holder")));
    assert_eq!(browser.eval("document.querySelectorAll('button.revoke').length"), 0, "it may not revoke");
    browser.eval("location.hash = '#/resource/prod/secret'");
    browser.eventually("told, not shown", &format!("{}.includes('rights')", text("detail-note")));
    assert_eq!(
        browser.eval("document.getElementById('notice').hidden && document.getElementById('trouble').hidden"),
        true
    );
    // Nothing is asked for that would be refused.
    let asked = browser.requested();
    assert!(!asked.iter().any(|url| url.ends_with("/v1/cluster") || url.ends_with("/metrics")), "{asked:?}");
    browser.eval("location.hash = '#/'");
    // It is kept for the tab, over a reload, and nowhere else.
    browser.eval("location.reload()");
    browser.eventually("still signed in", &format!("{LIVE} && {} === 'reader'", text("user")));
    assert_eq!(browser.eval("localStorage.length"), 0);
    browser.look("reader");
    sign_out(browser);
}

fn an_owner_without_the_right_to_read_sees_its_own(browser: &mut Browser, guarded: &Guarded) {
    sign_in(browser, guarded.bare_key("worker"));
    browser.eventually("signed in", &format!("{LIVE} && {} === 'worker'", text("user")));
    names(browser, "db/worked");
    counts(browser, "1,0,1");
    assert_eq!(browser.eval("document.getElementById('notice').hidden"), true);
    sign_out(browser);
}

fn an_administrator_can_revoke(browser: &mut Browser, guarded: &Guarded) {
    sign_in(browser, guarded.bare_key("root"));
    names(browser, "db/main,db/worked,prod/secret");
    counts(browser, "3,0,3");
    browser.click("#list li[data-name='db/worked'] a");
    browser.click("#holder button.revoke");
    browser.click("#reason");
    browser.write("by hand");
    browser.press("Enter");
    browser.eventually("free", "!document.getElementById('free').hidden");
    sign_out(browser);
}

/// Programs are told how to sign in, as ever; the page is told that it must.
fn only_the_page_goes_unasked(guarded: &Guarded) {
    let plain = guarded.ask("", "GET", "/v1/overview", "");
    let challenges = plain.headers.iter().filter(|(name, _)| name == "www-authenticate").count();
    assert_eq!((plain.status, challenges), (401, 2));
    for path in ["/v1/overview", "/v1/resources", "/v1/claims/", "/v1/events", "/resources"] {
        let page = guarded.ask_with("", "GET", path, &[("Leasehold-Page", "1")], "");
        assert_eq!((page.status, page.header("www-authenticate")), (401, None), "{path}");
    }
}
