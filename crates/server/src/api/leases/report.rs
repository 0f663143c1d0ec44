//! Reports for people: who holds a lease, since when, for how long yet, and what came before.
//!
//! In:    a lease. Out: plain text, and the same as a page that refreshes itself and needs no script.
//! Never: puts anything into a page that was not escaped: owners, names and data come from strangers.

use leasehold_core::{Data, View};
use leasehold_engine::clock::wall_us;

use super::client::{Client, Names, names};
use super::lease::{Lease, is_held, times};
use super::path::{href, namespace_and_name};
use super::time_text::{ago, distance, span, utc, utc_cell};
use crate::access::Caller;
use crate::api::redact::redacted_data;

/// Client data beyond this is cut in reports.
const DATA_SHOWN_MAX: usize = 4096;

/// A line of facts: what, and the value.
pub(super) type Fact = (&'static str, String);

/// Columns of the history.
const HISTORY_COLUMNS: [&str; 6] = ["holder", "from (UTC)", "until (UTC)", "held for", "renewals", "ended"];

/// The report as text.
pub(super) fn text(lease: &Lease, client: &Client<'_>, line: &str) -> String {
    let mut out = format!("{}\n\n", headline(lease, client));
    if !line.is_empty() {
        out += &format!("  ({line})\n\n");
    }
    for (label, value) in facts(lease, client) {
        out += &format!("  {label:<11} {value}\n");
    }
    if let Some(data) = shown_text(lease) {
        out += "\nClient data\n\n";
        data.lines().for_each(|line| out += &format!("  {line}\n"));
    }
    out += "\nWho held it before\n\n";
    match history_rows(lease, client.who) {
        rows if rows.is_empty() => out += "  nobody\n",
        rows => out += &columns(&HISTORY_COLUMNS, &rows),
    }
    out
}

/// The report as a page.
pub(super) fn html(lease: &Lease, client: &Client<'_>, line: &str) -> String {
    let (class, word) = state(lease);
    let (namespace, _) = namespace_and_name(&lease.resource);
    let mut body = format!(
        "<nav><a href=\"{}/leases/list\">&larr; all leases of {}</a></nav>\n\
         <header><h1>{}</h1> <span class=\"state {class}\">{word}</span></header>\n",
        href(namespace),
        escape(namespace),
        escape(&lease.resource),
    );
    if !line.is_empty() {
        body += &format!("<p class=\"notice\">{}</p>\n", escape(line));
    }
    if let Some((left_s, length_s)) = left(lease) {
        body += &format!(
            "<progress value=\"{left_s}\" max=\"{length_s}\" aria-label=\"time left\">{left_s} of {length_s} \
             seconds left</progress>\n"
        );
    }
    body += "<dl>\n";
    for (label, value) in facts(lease, client) {
        body += &format!("<dt>{label}</dt><dd>{}</dd>\n", escape(&value));
    }
    body += "</dl>\n";
    if let Some(data) = shown_text(lease) {
        body += &format!("<h2>Client data</h2>\n<pre>{}</pre>\n", escape(&data));
    }
    body += "<h2>Who held it before</h2>\n";
    match history_rows(lease, client.who) {
        rows if rows.is_empty() => body += "<p class=\"none\">Nobody.</p>\n",
        rows => body += &table(&HISTORY_COLUMNS, rows.iter().map(|row| row.map_cells(escape))),
    }
    page(&lease.resource, &body)
}

fn state(lease: &Lease) -> (&'static str, &'static str) {
    match &lease.latest {
        Some(view) if is_held(view) => ("held", "held"),
        Some(_) => ("free", "free"),
        None => ("free", "never held"),
    }
}

fn headline(lease: &Lease, client: &Client<'_>) -> String {
    let owner = |view: &View| client.name_of(&view.claim.owner);
    match &lease.latest {
        Some(view) if is_held(view) => format!("{} is held by {}", lease.resource, owner(view)),
        Some(view) => format!("{} is free; {} held it last", lease.resource, owner(view)),
        None => format!("{} is free; nobody is known to have held it", lease.resource),
    }
}

/// Seconds left and in all, of a lease that is held.
fn left(lease: &Lease) -> Option<(u64, u64)> {
    let view = lease.latest.as_ref().filter(|view| is_held(view))?;
    let left_us = times(view, wall_us()).left_us?;
    Some((left_us / 1_000_000, view.claim.ttl_us()?.div_ceil(1_000_000)))
}

fn facts(lease: &Lease, client: &Client<'_>) -> Vec<Fact> {
    let Some(view) = &lease.latest else { return vec![("holder", "nobody, as far as is known".into())] };
    let now_us = wall_us();
    let (claim, times) = (&view.claim, times(view, now_us));
    let you = if client.is_you(&claim.owner) { " (that is you)" } else { "" };
    let Names { client: holder, user } = names(&claim.owner, client.who);
    let held = is_held(view);
    let mut facts = vec![
        (if held { "holder" } else { "last holder" }, format!("{holder}{you}")),
        ("since", ago(times.acquired_us, now_us)),
        ("renewed", renewed(claim.renewals, times.renewed_us, now_us)),
    ];
    if let Some(user) = user {
        facts.insert(1, ("user", user.into()));
    }
    if let Some(ttl_us) = claim.ttl_us() {
        facts.push(("length", span(ttl_us)));
    }
    match (times.left_us, times.expires_us) {
        (Some(left_us), Some(expires_us)) => {
            facts.push(("expires", format!("{} (in {})", utc(expires_us), span(left_us))));
        }
        (_, Some(ended_us)) => facts.push((claim.status.as_str(), ago(ended_us, now_us))),
        _ => facts.push(("expires", "never; it must be released".into())),
    }
    if !held && let Some(held_us) = claim.held_us(view.now_us) {
        facts.push(("held for", span(held_us)));
    }
    if let Some(reason) = claim.end.as_ref().and_then(|end| end.reason.as_deref()) {
        facts.push(("because", reason.into()));
    }
    if !lease.others.is_empty() {
        let others = lease.others.iter().map(|view| names(&view.claim.owner, client.who).client);
        facts.push(("also held by", others.collect::<Vec<_>>().join(", ")));
    }
    if lease.waiting > 0 {
        facts.push(("waiting", format!("{} in the queue", lease.waiting)));
    }
    facts.extend([("version", claim.version.to_string()), ("token", claim.token.to_string())]);
    facts.extend(redacted_data(claim).map(|data| ("data", data_size(&data))));
    facts
}

pub(super) fn renewed(renewals: u32, renewed_us: u64, now_us: u64) -> String {
    match renewals {
        0 => "never".into(),
        1 => format!("once, {}", ago(renewed_us, now_us)),
        times => format!("{times} times, last {}", ago(renewed_us, now_us)),
    }
}

fn data_size(data: &Data) -> String {
    let kind = if printable(data).is_some() { "" } else { ", not text" };
    match data.bytes.len() {
        1 => format!("1 byte{kind}"),
        bytes => format!("{bytes} bytes{kind}"),
    }
}

fn printable(data: &Data) -> Option<&str> {
    let text = std::str::from_utf8(&data.bytes).ok()?;
    text.chars().all(|char| !char.is_control() || matches!(char, '\n' | '\r' | '\t')).then_some(text)
}

fn shown_text(lease: &Lease) -> Option<String> {
    let data = redacted_data(&lease.latest.as_ref()?.claim)?;
    let text = printable(&data)?;
    match text.char_indices().nth(DATA_SHOWN_MAX) {
        Some((end, _)) => Some(format!("{} ...", &text[..end])),
        None => Some(text.into()),
    }
}

/// One row of a table.
pub(super) struct Row<const N: usize>(pub(super) [String; N]);

impl<const N: usize> Row<N> {
    fn map_cells(&self, change: impl Fn(&str) -> String) -> Self {
        Self(std::array::from_fn(|i| change(&self.0[i])))
    }
}

fn history_rows(lease: &Lease, who: &Caller) -> Vec<Row<6>> {
    let now_us = wall_us();
    let row = |view: &View| {
        let (claim, times) = (&view.claim, times(view, now_us));
        let until_us = times.expires_us.unwrap_or(times.renewed_us);
        Row([
            names(&claim.owner, who).client.to_string(),
            utc_cell(times.acquired_us),
            utc_cell(until_us),
            claim.held_us(view.now_us).map_or_else(String::new, span),
            claim.renewals.to_string(),
            format!("{} {}", claim.status, distance(until_us, now_us)),
        ])
    };
    lease.history.iter().map(row).collect()
}

/// Aligned columns under their names.
pub(super) fn columns<const N: usize>(names: &[&str; N], rows: &[Row<N>]) -> String {
    let longest = |i: usize| rows.iter().map(|row| row.0[i].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(|i| names[i].chars().count().max(longest(i)));
    let line = |cells: [&str; N]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("  {}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    let mut out = line(names.map(|name| name));
    rows.iter().for_each(|row| out += &line(row.0.each_ref().map(String::as_str)));
    out
}

/// A table of cells that are HTML already.
pub(super) fn table<const N: usize>(names: &[&str; N], rows: impl Iterator<Item = Row<N>>) -> String {
    let mut out = String::from("<div class=\"wide\"><table>\n<thead><tr>");
    names.iter().for_each(|name| out += &format!("<th>{name}</th>"));
    out += "</tr></thead>\n<tbody>\n";
    for row in rows {
        out += "<tr>";
        row.0.iter().for_each(|cell| out += &format!("<td>{cell}</td>"));
        out += "</tr>\n";
    }
    out += "</tbody></table></div>\n";
    out
}

/// A whole page around a body that is HTML already.
pub(super) fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"refresh\" content=\"5\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n\
         <footer>Leasehold, {}. This page refreshes itself every 5 seconds.</footer>\n</body>\n</html>\n",
        escape(title),
        utc(wall_us()),
    )
}

const STYLE: &str = include_str!("report.css");

/// Text that is only text in HTML, also inside quotes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        match char {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            char => out.push(char),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_its_quotes() {
        assert_eq!(escape("<a b=\"c\" d='e'>&"), "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [Row(["a".into(), "1".into()]), Row(["longer".into(), "2".into()])];
        assert_eq!(columns(&["name", "n"], &rows), "  name    n\n  a       1\n  longer  2\n");
    }

    #[test]
    fn renewals_are_words() {
        assert_eq!(renewed(0, 0, 0), "never");
        assert_eq!(renewed(1, 0, 0), "once, 1970-01-01 00:00:00 UTC (just now)");
        assert_eq!(renewed(3, 0, 5_000_000), "3 times, last 1970-01-01 00:00:00 UTC (5 seconds ago)");
    }
}
