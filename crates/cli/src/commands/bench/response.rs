//! The response parser: as little of HTTP/1.1 as a load generator needs.
//!
//! In:    the bytes read so far on one connection, any prefix of a response.
//! Out:   `Head` once the whole response (head and body) is there, else how many bytes to wait for.
//! Never: copies, allocates, or looks at headers other than Content-Length, Location, Transfer-Encoding.

use std::ops::Range;

/// Where the interesting parts of a complete head are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// The status code.
    pub(crate) status: u16,
    /// The value of `Location`, as a range of the buffer.
    location: Option<Range<usize>>,
    /// The body, as a range of the buffer.
    body: Range<usize>,
}

/// What a prefix of the stream amounts to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// Not yet a whole response; no use in parsing again before the buffer holds this many bytes.
    Need(usize),
    /// A whole response.
    Complete(Head),
    /// Not the HTTP/1.1 this generator speaks; the reason says what is missing.
    Broken(&'static str),
}

/// A whole response over the bytes it was parsed from.
pub(crate) struct Response<'a> {
    head: &'a Head,
    bytes: &'a [u8],
}

impl<'a> Response<'a> {
    /// Joins a head with the buffer it was parsed from.
    pub(crate) fn new(head: &'a Head, bytes: &'a [u8]) -> Self {
        Self { head, bytes }
    }

    /// The status code.
    pub(crate) fn status(&self) -> u16 {
        self.head.status
    }

    /// The body.
    pub(crate) fn body(&self) -> &'a [u8] {
        self.bytes.get(self.head.body.clone()).unwrap_or_default()
    }

    /// The path of `Location`; the host is cut off, since the connection is already there.
    pub(crate) fn location_path(&self) -> Option<&'a [u8]> {
        let url = self.bytes.get(self.head.location.clone()?)?;
        let Some(scheme_end) = find(url, b"://") else { return Some(url) };
        let host = &url[scheme_end + 3..];
        host.iter().position(|&byte| byte == b'/').map(|slash| &host[slash..])
    }

    /// The whole number after `"token":` in the body.
    pub(crate) fn token(&self) -> Option<u64> {
        let body = self.body();
        let start = find(body, b"\"token\":")? + b"\"token\":".len();
        let digits =
            body[start..].iter().skip_while(|byte| **byte == b' ').take_while(|byte| byte.is_ascii_digit());
        let mut value: Option<u64> = None;
        for digit in digits {
            value = value.unwrap_or(0).checked_mul(10)?.checked_add(u64::from(digit - b'0')).map(Some)?;
        }
        value
    }

    /// The text of a string field of the body, unescaped text only (times, statuses).
    pub(crate) fn text_field(&self, quoted_key: &[u8]) -> Option<&'a [u8]> {
        let body = self.body();
        let start = find(body, quoted_key)? + quoted_key.len();
        let rest = body[start..].strip_prefix(b":")?.trim_ascii_start().strip_prefix(b"\"")?;
        rest.iter().position(|&byte| byte == b'"').map(|end| &rest[..end])
    }
}

/// The first place of `needle` in `haystack`.
pub(crate) fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// Parses the response at the start of `bytes`.
pub(crate) fn parse(bytes: &[u8]) -> Parsed {
    let mut lines = Lines { bytes, at: 0 };
    let Some(first) = lines.next() else { return Parsed::Need(bytes.len() + 1) };
    let Some(status) = status_of(&bytes[first]) else { return Parsed::Broken("no HTTP/1.1 status line") };
    let mut location = None;
    let mut length: usize = 0;
    loop {
        let Some(line) = lines.next() else { return Parsed::Need(bytes.len() + 1) };
        if line.is_empty() {
            break;
        }
        let text = &bytes[line.clone()];
        // The first letter rules out nearly every header without a comparison.
        match text[0] | 0x20 {
            b'c' if has_name(text, b"content-length:") => match number(&text[15..]) {
                Some(value) => length = value,
                None => return Parsed::Broken("a Content-Length that is no number"),
            },
            b'l' if has_name(text, b"location:") => {
                let blank = text[9..].iter().take_while(|byte| **byte == b' ').count();
                location = Some(line.start + 9 + blank..line.end);
            }
            b't' if has_name(text, b"transfer-encoding:") => {
                return Parsed::Broken("a chunked response; the generator needs Content-Length");
            }
            _ => {}
        }
    }
    let start = lines.at;
    if status == 204 || status == 304 {
        length = 0;
    }
    let Some(end) = start.checked_add(length) else { return Parsed::Broken("an absurd Content-Length") };
    if bytes.len() < end {
        return Parsed::Need(end);
    }
    if bytes.len() > end {
        return Parsed::Broken("bytes after the response, with one request in flight");
    }
    Parsed::Complete(Head { status, location, body: start..end })
}

/// Walks CRLF-terminated lines; yields them without the line end.
struct Lines<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Lines<'_> {
    fn next(&mut self) -> Option<Range<usize>> {
        let end = self.at + self.bytes[self.at..].iter().position(|&byte| byte == b'\n')?;
        let start = std::mem::replace(&mut self.at, end + 1);
        let end = if end > start && self.bytes[end - 1] == b'\r' { end - 1 } else { end };
        Some(start..end)
    }
}

fn status_of(line: &[u8]) -> Option<u16> {
    let code = line.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    number(code).and_then(|value| u16::try_from(value).ok())
}

fn has_name(line: &[u8], name: &[u8]) -> bool {
    line.len() >= name.len() && line[..name.len()].eq_ignore_ascii_case(name)
}

fn number(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREATED: &[u8] = b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\n\
        LOCATION: http://127.0.0.1:4080/v1/claims/abc/\r\nContent-Length: 64\r\n\r\n\
        {\"status\":\"active\",\"created\":\"2026-01-02T03:04:05Z\",\"token\": 42}";

    #[test]
    fn fed_byte_by_byte_it_completes_exactly_at_the_end() {
        for end in 0..CREATED.len() {
            match parse(&CREATED[..end]) {
                Parsed::Need(need) => assert!(need > end && need <= CREATED.len(), "{need} at {end}"),
                other => panic!("{other:?} after {end} bytes"),
            }
        }
        assert!(matches!(parse(CREATED), Parsed::Complete(_)));
    }

    #[test]
    fn finds_location_token_and_fields() {
        let Parsed::Complete(head) = parse(CREATED) else { panic!("incomplete") };
        let response = Response::new(&head, CREATED);
        assert_eq!(response.status(), 201);
        assert_eq!(response.location_path(), Some(&b"/v1/claims/abc/"[..]));
        assert_eq!(response.token(), Some(42));
        assert_eq!(response.text_field(b"\"status\""), Some(&b"active"[..]));
        assert_eq!(response.text_field(b"\"created\""), Some(&b"2026-01-02T03:04:05Z"[..]));
        assert_eq!(response.text_field(b"\"absent\""), None);
    }

    #[test]
    fn no_content_has_no_body_whatever_its_length_says() {
        let bytes = b"HTTP/1.1 204 No Content\r\ncontent-length: 9\r\n\r\n";
        assert!(matches!(parse(bytes), Parsed::Complete(head) if head.status == 204));
    }

    #[test]
    fn a_null_token_and_a_relative_location_are_no_surprise() {
        let bytes =
            b"HTTP/1.1 202 Accepted\r\nlocation: /v1/claims/x/\r\ncontent-length: 14\r\n\r\n{\"token\":null}";
        let Parsed::Complete(head) = parse(bytes) else { panic!("incomplete") };
        let response = Response::new(&head, bytes);
        assert_eq!(response.token(), None);
        assert_eq!(response.location_path(), Some(&b"/v1/claims/x/"[..]));
    }

    #[test]
    fn what_it_does_not_speak_is_named() {
        assert!(matches!(parse(b"SMTP ready\r\n"), Parsed::Broken(_)));
        assert!(matches!(parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), Parsed::Broken(_)));
        assert!(matches!(parse(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nextra"), Parsed::Broken(_)));
    }
}
