//! Requests of the leases dialect: headers, checked one by one.
//!
//! In:    headers from strangers. Out: values that the table takes, or a 400 that names the header.
//! Never: guesses what a malformed header meant, and never looks at credentials: `access` has.

use hyper::StatusCode;
use hyper::header::ACCEPT;
use leasehold_core::limits::TTL_US_MAX;

use crate::message::Response;
use crate::message::headers::{Headers, Value};
use crate::message::problem::problem;

/// How long a lease lasts where nobody says.
const LENGTH_DEFAULT_US: u64 = 300_000_000;

/// What the caller wants to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// The client data as it is, or a line of text.
    Raw,
    /// The lease as an object.
    Json,
    /// A report.
    Text,
    /// The same as a page.
    Html,
}

/// A 400.
pub(super) fn bad(detail: &str) -> Response {
    problem(StatusCode::BAD_REQUEST, "bad-request", detail)
}

/// `X-Quorum-Lease-Length` of an acquisition.
pub(super) fn length_us(headers: &Headers) -> Result<u64, Response> {
    Ok(new_length_us(headers)?.unwrap_or(LENGTH_DEFAULT_US))
}

/// `X-Quorum-Lease-Length` of a renewal; `None` keeps the length.
pub(super) fn new_length_us(headers: &Headers) -> Result<Option<u64>, Response> {
    let Some(value) = only(headers, "X-Quorum-Lease-Length")? else { return Ok(None) };
    let most = TTL_US_MAX / 1_000_000;
    match whole_number(value).filter(|seconds| (1..=most).contains(seconds)) {
        Some(seconds) => Ok(Some(seconds * 1_000_000)),
        None => {
            Err(bad(&format!("X-Quorum-Lease-Length must be a whole number of seconds from 1 to {most}")))
        }
    }
}

/// `X-Quorum-Lease-Version`: the change happens only if it still is the lease's; `None` does not check.
pub(super) fn version(headers: &Headers) -> Result<Option<u64>, Response> {
    let Some(value) = only(headers, "X-Quorum-Lease-Version")? else { return Ok(None) };
    let why = "X-Quorum-Lease-Version must be a whole number, as a response gave it";
    whole_number(value).map(Some).ok_or_else(|| bad(why))
}

/// A header that makes no sense twice.
pub(super) fn only<'a>(headers: &'a Headers, name: &str) -> Result<Option<Value<'a>>, Response> {
    let mut values = headers.get_all(name);
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(bad(&format!("{name} is given more than once"))),
    }
}

/// Digits and nothing else: no sign, no fraction.
fn whole_number(value: Value<'_>) -> Option<u64> {
    let text = value.to_str()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// What the caller wants to read. A format has to be asked for by name (`text/*` names two): who accepts anything, or
/// only things that don't exist here, gets the client data. Of several, the first of HTML, JSON, text.
pub(super) fn format(headers: &Headers) -> Format {
    let ranges: Vec<(String, bool)> = headers
        .get_all(ACCEPT)
        .filter_map(Value::to_str)
        .flat_map(|value| value.split(','))
        .map(media_range)
        .collect();
    let wanted = |name: &str, group: &str| {
        let by = |wanted: &str| ranges.iter().find(|(range, _)| range == wanted).map(|(_, wanted)| *wanted);
        by(name).or_else(|| by(group)).unwrap_or(false)
    };
    if wanted("text/html", "text/*") {
        Format::Html
    } else if wanted("application/json", "application/*") {
        Format::Json
    } else if wanted("text/plain", "text/*") {
        Format::Text
    } else {
        Format::Raw
    }
}

/// A media range, and whether it is wanted: `q=0` says no.
fn media_range(text: &str) -> (String, bool) {
    let mut parts = text.split(';').map(str::trim);
    let range = parts.next().unwrap_or("").to_ascii_lowercase();
    let refused = parts.any(|parameter| {
        let value = parameter.split_once('=').filter(|(name, _)| name.trim().eq_ignore_ascii_case("q"));
        value.is_some_and(|(_, q)| q.trim().parse() == Ok(0.0))
    });
    (range, !refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepting(text: &'static str) -> Format {
        format(&Headers::from_iter([(ACCEPT, text)]))
    }

    #[test]
    fn formats_are_asked_for_by_name() {
        assert_eq!(format(&Headers::default()), Format::Raw);
        assert_eq!(accepting("*/*"), Format::Raw);
        assert_eq!(accepting("application/json"), Format::Json);
        assert_eq!(accepting("application/json, */*;q=0.1"), Format::Json);
        assert_eq!(accepting("text/plain"), Format::Text);
        assert_eq!(accepting("TEXT/HTML; charset=utf-8"), Format::Html);
        assert_eq!(
            accepting("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
            Format::Html
        );
    }

    #[test]
    fn html_goes_before_json_before_text() {
        assert_eq!(accepting("text/plain, application/json, text/html"), Format::Html);
        assert_eq!(accepting("text/plain;q=1, application/json;q=0.2"), Format::Json);
        assert_eq!(accepting("text/*"), Format::Html);
        assert_eq!(accepting("application/*"), Format::Json);
    }

    #[test]
    fn zero_refuses_and_unknown_types_get_the_data() {
        assert_eq!(accepting("text/html;q=0, text/*"), Format::Text);
        assert_eq!(accepting("application/json; q=0.000, text/plain"), Format::Text);
        assert_eq!(accepting("application/json;Q=0"), Format::Raw);
        assert_eq!(accepting("image/png"), Format::Raw);
        assert_eq!(accepting(";;,=,"), Format::Raw);
    }

    #[test]
    fn lengths_and_versions_are_digits() {
        let with = |name: &'static str, value: &'static str| Headers::from_iter([(name, value)]);
        let length = |value| length_us(&with("x-quorum-lease-length", value));
        assert_eq!(length_us(&Headers::default()).unwrap(), 300_000_000);
        assert_eq!(length("60").unwrap(), 60_000_000);
        for bad in ["0", "-1", "+5", "1.5", "1e3", "ten", "", "99999999999999999999", "3162240001"] {
            assert_eq!(length(bad).unwrap_err().status(), 400, "{bad}");
        }
        assert_eq!(version(&with("x-quorum-lease-version", "17")).unwrap(), Some(17));
        assert_eq!(version(&with("x-quorum-lease-version", "v17")).unwrap_err().status(), 400);
    }
}
