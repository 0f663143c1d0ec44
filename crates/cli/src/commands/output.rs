//! What people see: tables, colours on a terminal, durations; and JSON for programs.
//!
//! In:    claims. Out: text on stdout.
//! Never: a control character of somebody else's on a terminal, and never a colour where nobody looks.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

use leasehold_client::{ClaimInfo, ItemInfo};
use serde::Serialize;

/// Writes to stdout. A reader that has enough (`| head`) is no error.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
}

/// Writes one line to stdout.
pub(crate) fn print_line(text: &str) {
    print(&format!("{text}\n"));
}

/// One value as JSON, readable.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print_line(&json_text(&serde_json::to_string_pretty(value)?));
    Ok(())
}

/// JSON without anything that a terminal takes for more than text; what it means stays the same.
pub(crate) fn json_text(json: &str) -> String {
    let escaped = |c: char| match c {
        // JSON itself has line breaks between values alone.
        '\n' => vec![c],
        c if is_active(c) => format!("\\u{:04x}", c as u32).chars().collect(),
        c => vec![c],
    };
    json.chars().flat_map(escaped).collect()
}

/// Whether stdout takes colours: a terminal, and nobody said no.
pub(crate) fn has_colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty())
}

/// Nothing of a stranger's text reaches a terminal as a control character.
pub(crate) fn plain(text: &str) -> String {
    text.chars().flat_map(|c| if is_active(c) { c.escape_default().collect() } else { vec![c] }).collect()
}

/// The same for messages of our own, which may have several lines.
pub(crate) fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// Whether a terminal does something else with it than showing it: control characters, and those that hide text or turn
/// its direction. All of them have at most four hex digits.
fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A table with a head; colours by status.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]], colours: bool) -> String {
    let mut widths = head.map(str::len);
    let rows: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(|cell| plain(cell))).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let mut line = |cells: &[String], is_head: bool| {
        let mut text = String::new();
        for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let padded = if at + 1 == N { cell.clone() } else { format!("{cell:<width$}  ") };
            let code = if is_head { Some("1") } else { colour_of(cell) };
            match code.filter(|_| colours) {
                Some(code) => write!(text, "\x1b[{code}m{padded}\x1b[0m").ok(),
                None => write!(text, "{padded}").ok(),
            };
        }
        out.push_str(text.trim_end());
        out.push('\n');
    };
    line(&head.map(String::from), true);
    for row in &rows {
        line(row, false);
    }
    out
}

fn colour_of(cell: &str) -> Option<&'static str> {
    match cell {
        "active" => Some("32"),
        "waiting" => Some("33"),
        "expired" | "revoked" | "revoking" | "aborted" => Some("31"),
        "released" | "withdrawn" => Some("2"),
        _ => None,
    }
}

/// Claims, one a line.
pub(crate) fn claims(claims: &[ClaimInfo], colours: bool) -> String {
    let rows: Vec<[String; 8]> = claims
        .iter()
        .map(|claim| {
            [
                claim.id().to_string(),
                resources(claim),
                status(claim).to_string(),
                claim.position.map_or("-".into(), |position| position.to_string()),
                claim.token.map_or("-".into(), |token| token.to_string()),
                span(claim),
                claim.initial_ttl.and(claim.ttl).map_or("-".into(), seconds),
                holder(claim),
            ]
        })
        .collect();
    table(["CLAIM", "RESOURCE", "STATUS", "PLACE", "TOKEN", "FOR", "LEFT", "OWNER"], &rows, colours)
}

/// The status, and that an active claim is being revoked: its holder is asked to let go.
pub(crate) fn status(claim: &ClaimInfo) -> &str {
    if claim.revoking { "revoking" } else { &claim.status }
}

/// What a claim is about: its resources, and how it wants or holds each unless that is exclusively.
pub(crate) fn resources(claim: &ClaimInfo) -> String {
    if claim.items.is_empty() {
        return claim.resource.clone();
    }
    let one = |item: &ItemInfo| match how(item) {
        how if how == EXCLUSIVE => item.resource.clone(),
        how => format!("{} ({how})", item.resource),
    };
    claim.items.iter().map(one).collect::<Vec<_>>().join(" + ")
}

const EXCLUSIVE: &str = "exclusive";

/// How a claim wants or holds a resource.
fn how(item: &ItemInfo) -> String {
    let slots = item.slots.iter().flatten().map(ToString::to_string).collect::<Vec<_>>();
    match (item.take, item.of) {
        (Some(1), Some(of)) if !slots.is_empty() => format!("slot {} of {of}", slots[0]),
        (Some(_), Some(of)) if !slots.is_empty() => format!("slots {} of {of}", slots.join(",")),
        (Some(take), Some(of)) => format!("{take} of {of} slots"),
        _ => item.mode.clone().unwrap_or_else(|| EXCLUSIVE.into()),
    }
}

/// How long it has held, or waited.
pub(crate) fn span(claim: &ClaimInfo) -> String {
    claim.active_duration.or(claim.waiting_duration).map_or("-".into(), seconds)
}

/// Seconds for people.
pub(crate) fn seconds(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{seconds:.1}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3600..86400 => format!("{}h{:02}m", whole / 3600, whole / 60 % 60),
        _ => format!("{}d{:02}h", whole / 86400, whole / 3600 % 24),
    }
}

/// Who made a claim: what it says of itself, and where it came from.
pub(crate) fn holder(claim: &ClaimInfo) -> String {
    let said = |name: &str| match claim.user_data.get(name) {
        Some(serde_json::Value::String(text)) => Some(text.clone()),
        Some(serde_json::Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let owner = claim.owner.as_deref().unwrap_or("-").to_string();
    let mut words = vec![match (said("user"), said("host")) {
        (Some(user), Some(host)) => format!("{user}@{host}"),
        (None, Some(host)) => host,
        _ => owner,
    }];
    words.extend(said("pid").map(|pid| format!("pid {pid}")));
    words
        .extend(said("command").map(|command| format!("({})", command.chars().take(60).collect::<String>())));
    plain(&words.join(" "))
}

/// That a claim holds its resource, or comes first for it: who, and since when.
pub(crate) fn held_by(claim: &ClaimInfo) -> String {
    if claim.status == "waiting" {
        let waited = claim.waiting_duration.map_or(String::new(), |waited| format!(" ({})", seconds(waited)));
        return format!("reserved by {}, who waits for {}{waited}", holder(claim), plain(&resources(claim)));
    }
    let since = claim.status_history.iter().find(|entry| entry["status"] == "active");
    let since = since.and_then(|entry| entry["timestamp"].as_str());
    let since = since.map_or(String::new(), |since| format!(" since {}", plain(since)));
    let held = claim.active_duration.map_or(String::new(), |held| format!(" ({})", seconds(held)));
    format!("held by {}{since}{held}", holder(claim))
}

/// Why a claim was ended, if the server tells.
pub(crate) fn reason(claim: &ClaimInfo) -> Option<String> {
    claim.reason.as_deref().filter(|reason| !reason.is_empty()).map(plain)
}

/// One claim, field by field.
pub(crate) fn claim(claim: &ClaimInfo) -> String {
    let mut out = String::new();
    let mut field = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            writeln!(out, "{name:<9}  {}", plain(&value)).ok();
        }
    };
    field("claim", Some(claim.id().into()));
    field("resource", Some(resources(claim)));
    field("status", Some(status(claim).to_string()));
    field("token", claim.token.map(|token| token.to_string()));
    for item in claim.items.iter().filter(|_| claim.items.len() > 1) {
        let token = item.token.map_or(String::new(), |token| format!("  token {token}"));
        let place = item.position.map_or(String::new(), |place| format!("  place {place}"));
        field("item", Some(format!("{}  {}{token}{place}", item.resource, how(item))));
    }
    field("session", claim.session.clone());
    field("place", claim.position.map(|position| position.to_string()));
    field("ttl", claim.length().map(seconds));
    field("left", claim.initial_ttl.and(claim.ttl).map(seconds));
    field("expires", claim.expires.clone());
    field("reason", reason(claim));
    field("owner", claim.owner.as_deref().map(String::from));
    field("waited", claim.waiting_duration.map(seconds));
    field("held", claim.active_duration.map(seconds));
    for entry in &claim.status_history {
        let text = |name: &str| entry[name].as_str().unwrap_or("?");
        field("history", Some(format!("{}  {}", text("timestamp"), text("status"))));
    }
    field("data", Some(&claim.user_data).filter(|data| !data.is_null()).map(ToString::to_string));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up_and_escape() {
        let rows =
            [["a".to_string(), "active".into()], ["bbb\u{1b}".escape_default().to_string(), "x".into()]];
        let text = table(["N", "STATUS"], &rows, false);
        assert_eq!(text.lines().next(), Some("N          STATUS"));
        assert!(!text.contains('\u{1b}'));
        assert!(table(["N", "STATUS"], &rows, true).contains("\u{1b}[32mactive"));
        assert_eq!(plain("a\u{1b}[2J"), "a\\u{1b}[2J");
        assert_eq!(plain("a\u{9b}2J\u{202e}b\nc"), "a\\u{9b}2J\\u{202e}b\\nc");
        assert_eq!(plain_lines("a\nb\u{7f}"), "a\nb\\u{7f}");
        assert_eq!(json_text("{\n\"a\": \"\u{9b}2J\u{7f}\"}"), "{\n\"a\": \"\\u009b2J\\u007f\"}");
        assert_eq!(seconds(3725.0), "1h02m");
        assert_eq!(seconds(2.25), "2.2s");
    }
}
