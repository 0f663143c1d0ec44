//! The list of a namespace: its leases, and the namespaces below it.
//!
//! In:    `GET /v1/<namespace>/leases/list`. Out: JSON, text or a page, in order of the names.
//! Never: holds the table for long: it reads a few hundred resources at a time and lets writers pass. So a list is not
//!        of one instant; each lease on it is as it was when the list came by.

use std::collections::BTreeSet;
use std::sync::Arc;

use hyper::StatusCode;
use leasehold_core::{Command, Table, View};
use serde::Serialize;

use super::client::names;
use super::lease::{Holder, holder, is_held, past, times};
use super::parse::Format;
use super::path::{self, LeasePath, href, namespace_and_name};
use super::render::{self, Summary};
use super::report::{self, Row};
use super::time_text::{distance, span, utc_cell};
use crate::access::Caller;
use crate::access::rules::Verb;
use crate::api::one_resource_view::on_resource;
use crate::message::{Response, typed};
use leasehold_engine::clock::wall_us;
use leasehold_engine::{Engine, EngineError};

/// Leases and namespaces in one list. More would be a response of tens of megabytes that nobody reads.
const LIST_LEN_MAX: usize = 50_000;
/// Resources looked at while the table can't be written.
const RESOURCES_PER_LOOK: usize = 512;

/// What a namespace contains.
#[derive(Debug, Default)]
struct Listing {
    /// Its leases, with their holders or last holders.
    leases: Vec<View>,
    /// The namespaces right below it that have leases somewhere below.
    namespaces: BTreeSet<String>,
    /// Whether there was room for everything.
    complete: bool,
}

/// One look at the table.
#[derive(Debug, Default)]
struct Look {
    leases: Vec<View>,
    namespace: Option<String>,
    /// Leases whose holders' time is up: to be settled before the same look again.
    unsettled: Vec<Arc<str>>,
    /// The name after which to go on; `None`: there is nothing more.
    next: Option<String>,
}

/// The list of a namespace.
pub(super) async fn list(engine: &Engine, namespace: &str, format: Format, who: &Caller) -> Response {
    let listing = match read(engine, namespace, who).await {
        Ok(listing) => listing,
        Err(error) => return render::unanswered(&error),
    };
    match format {
        Format::Raw | Format::Json => {
            typed(StatusCode::OK, "application/json", json(namespace, &listing, who))
        }
        Format::Text => typed(StatusCode::OK, render::TEXT, text(namespace, &listing, who)),
        Format::Html => render::html(StatusCode::OK, html(namespace, &listing, who)),
    }
}

async fn read(engine: &Engine, namespace: &str, who: &Caller) -> Result<Listing, EngineError> {
    if engine.read(|table, now_us| table.earliest_deadline_us().is_some_and(|due_us| due_us <= now_us)) {
        engine.submit(Command::Tick).await?;
    }
    let prefix = format!("{namespace}/");
    let mut listing = Listing { complete: true, ..Listing::default() };
    let mut after: Option<String> = None;
    loop {
        let look = engine.read(|table, now_us| look(table, now_us, &prefix, after.as_deref(), who));
        if !look.unsettled.is_empty() {
            engine.submit(Command::Settle { resources: look.unsettled }).await?;
            continue;
        }
        listing.leases.extend(look.leases);
        listing.namespaces.extend(look.namespace);
        if listing.leases.len() + listing.namespaces.len() > LIST_LEN_MAX {
            listing.leases.truncate(LIST_LEN_MAX);
            listing.complete = false;
            return Ok(listing);
        }
        match look.next {
            Some(next) => after = Some(next),
            None => return Ok(listing),
        }
        tokio::task::yield_now().await;
    }
}

/// Reads on after a name, up to a number of resources or the first lease in a namespace below.
fn look(table: &Table, now_us: u64, prefix: &str, after: Option<&str>, who: &Caller) -> Look {
    let mut look = Look::default();
    for (i, (resource, entry)) in table.resources_after(prefix, after).enumerate() {
        let rest = &resource[prefix.len()..];
        let (own, below) = (rest.starts_with("leases/"), rest.contains("/leases/"));
        if (own || below) && is_lease(resource) && (!who.is_checked() || who.may(Verb::Read, resource)) {
            if !own {
                let child = rest.split('/').next().unwrap_or(rest);
                look.namespace = Some(format!("{prefix}{child}"));
                // One lease proves the namespace: go on behind everything in it, '0' being the character after '/'.
                look.next = Some(format!("{prefix}{child}0"));
                return look;
            }
            match holder(table, entry, now_us) {
                Holder::Due => look.unsettled.push(resource.into()),
                Holder::Is(view) => {
                    let latest = view.or_else(|| past(table, entry, now_us, 1).pop());
                    look.leases.extend(latest.map(|view| on_resource(view, resource, who)));
                }
            }
        }
        if i + 1 == RESOURCES_PER_LOOK {
            look.next = Some(resource.to_string());
            return look;
        }
    }
    look
}

/// Whether a path of this dialect leads to a resource: other dialects make names that none does.
fn is_lease(resource: &str) -> bool {
    matches!(path::parse(&href(resource)), Ok(LeasePath::Lease(found)) if *found == *resource)
}

fn json(namespace: &str, listing: &Listing, who: &Caller) -> Vec<u8> {
    #[derive(Serialize)]
    struct Item<'a> {
        key: &'a str,
        name: &'a str,
        #[serde(flatten)]
        summary: Summary<'a>,
    }
    #[derive(Serialize)]
    struct Object<'a> {
        namespace: &'a str,
        leases: Vec<Item<'a>>,
        namespaces: &'a BTreeSet<String>,
        complete: bool,
    }
    let now_us = wall_us();
    let items = listing.leases.iter().map(|view| Item {
        key: &view.claim.resource,
        name: name_of(view),
        summary: Summary::new(Some(view), who, now_us),
    });
    let object = Object {
        namespace,
        leases: items.collect(),
        namespaces: &listing.namespaces,
        complete: listing.complete,
    };
    let mut body = serde_json::to_vec(&object).expect("an object with text keys has a JSON form");
    body.push(b'\n');
    body
}

fn name_of(view: &View) -> &str {
    namespace_and_name(&view.claim.resource).1
}

const COLUMNS: [&str; 6] = ["lease", "state", "holder", "since (UTC)", "expires", "renewals"];

fn row(view: &View, who: &Caller, now_us: u64) -> Row<6> {
    let (claim, times) = (&view.claim, times(view, now_us));
    let (held, owner) = (is_held(view), names(&claim.owner, who).client);
    let expires = match (times.left_us, times.expires_us) {
        (Some(left_us), _) => format!("in {}", span(left_us)),
        (None, Some(ended_us)) => format!("{} {}", claim.status, distance(ended_us, now_us)),
        (None, None) => "never".into(),
    };
    Row([
        name_of(view).into(),
        if held { "held" } else { "free" }.into(),
        if held { owner.into() } else { format!("last {owner}") },
        utc_cell(times.acquired_us),
        expires,
        claim.renewals.to_string(),
    ])
}

fn headline(listing: &Listing) -> String {
    let held = listing.leases.iter().filter(|view| is_held(view)).count();
    let mut line = match listing.leases.len() {
        0 => "no leases".into(),
        1 => format!("1 lease, {}", if held == 1 { "held" } else { "free" }),
        all => format!("{all} leases, {held} of them held"),
    };
    if !listing.complete {
        line += "; there are more than a list can show";
    }
    line
}

fn text(namespace: &str, listing: &Listing, who: &Caller) -> String {
    let now_us = wall_us();
    let mut out = format!("{namespace}: {}\n", headline(listing));
    if !listing.leases.is_empty() {
        let rows: Vec<_> = listing.leases.iter().map(|view| row(view, who, now_us)).collect();
        out += "\n";
        out += &report::columns(&COLUMNS, &rows);
    }
    if !listing.namespaces.is_empty() {
        out += "\nNamespaces below\n\n";
        listing.namespaces.iter().for_each(|child| out += &format!("  {child}\n"));
    }
    out
}

fn html(namespace: &str, listing: &Listing, who: &Caller) -> String {
    let now_us = wall_us();
    let escape = report::escape;
    let list_link =
        |namespace: &str| format!("<a href=\"{}/leases/list\">{}</a>", href(namespace), escape(namespace));
    let mut body = String::new();
    if let Some((parent, _)) = namespace.rsplit_once('/') {
        body += &format!("<nav>&uarr; {}</nav>\n", list_link(parent));
    }
    body += &format!(
        "<header><h1>{}</h1> <span class=\"state free\">{}</span></header>\n",
        escape(namespace),
        escape(&headline(listing))
    );
    if !listing.leases.is_empty() {
        let cells = |view: &View| {
            let Row([name, state, holder, since, expires, renewals]) = row(view, who, now_us);
            Row([
                format!("<a href=\"{}\">{}</a>", href(&view.claim.resource), escape(&name)),
                format!("<span class=\"state {state}\">{state}</span>"),
                escape(&holder),
                since,
                expires,
                renewals,
            ])
        };
        body += &report::table(&COLUMNS, listing.leases.iter().map(cells));
    }
    if !listing.namespaces.is_empty() {
        body += "<h2>Namespaces below</h2>\n<ul>\n";
        listing.namespaces.iter().for_each(|child| body += &format!("<li>{}</li>\n", list_link(child)));
        body += "</ul>\n";
    }
    report::page(&format!("Leases of {namespace}"), &body)
}
