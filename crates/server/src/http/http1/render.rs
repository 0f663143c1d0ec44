//! Answers as bytes.
//!
//! In:    status and headers of a response, and what its request said. Out: status line and headers, at the end of a buffer.
//! Never: touches a socket.

use std::cell::RefCell;
use std::io::Write;
use std::time::{Duration, SystemTime};

use hyper::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderMap, HeaderName, TRANSFER_ENCODING};
use hyper::{StatusCode, Version};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;

/// How the end of an answer's body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// It has none.
    Bodyless,
    /// It has this many bytes.
    Length(usize),
    /// In chunks, the last of which is empty.
    Chunks,
    /// With the connection.
    Close,
}

/// Appends the head of an answer.
pub(super) fn head(
    out: &mut Vec<u8>,
    (status, headers): (StatusCode, &HeaderMap),
    version: Version,
    ending: Ending,
    keeps: bool,
) {
    status_line(out, status);
    for (name, value) in headers {
        if [CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION].contains(name) {
            continue;
        }
        title_case(out, name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    match ending {
        Ending::Length(len) => {
            // A vector takes every write.
            write!(out, "Content-Length: {len}\r\n").ok();
        }
        Ending::Chunks => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        Ending::Bodyless | Ending::Close => {}
    }
    match (keeps, version) {
        (false, _) => out.extend_from_slice(b"Connection: close\r\n"),
        (true, Version::HTTP_10) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        (true, _) => {}
    }
    if !headers.contains_key(DATE) {
        date(out);
    }
    out.extend_from_slice(b"\r\n");
}

fn status_line(out: &mut Vec<u8>, status: StatusCode) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or("Status").as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Names of headers ignore case, but scripts that grep for `Location:` don't.
fn title_case(out: &mut Vec<u8>, name: &HeaderName) {
    let mut first = true;
    out.extend(name.as_str().bytes().map(|byte| {
        let shown = if first { byte.to_ascii_uppercase() } else { byte };
        first = byte == b'-';
        shown
    }));
}

/// Appends `Date`, which is written once a second.
fn date(out: &mut Vec<u8>) {
    thread_local! {
        static LINE: RefCell<(u64, Vec<u8>)> = const { RefCell::new((u64::MAX, Vec::new())) };
    }
    let second =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).as_ref().map_or(0, Duration::as_secs);
    LINE.with_borrow_mut(|(written, line)| {
        if *written != second {
            *written = second;
            line.clear();
            let now = i64::try_from(second).ok().and_then(|second| Timestamp::from_second(second).ok());
            if let Some(Ok(text)) = now.map(|now| DateTimePrinter::new().timestamp_to_rfc9110_string(&now)) {
                line.extend_from_slice(format!("Date: {text}\r\n").as_bytes());
            }
        }
        out.extend_from_slice(line);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(
        status: u16,
        headers: &[(&'static str, &str)],
        version: Version,
        ending: Ending,
        keeps: bool,
    ) -> Vec<String> {
        let status = StatusCode::from_u16(status).unwrap();
        let headers =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        let mut out = Vec::new();
        head(&mut out, (status, &headers.collect()), version, ending, keeps);
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("\r\n\r\n") && text.contains(" GMT\r\n"), "{text}");
        text.lines().filter(|line| !line.starts_with("Date: ")).map(Into::into).collect()
    }

    #[test]
    fn an_answer_reads_as_clients_expect() {
        let headers = [("content-type", "application/json"), ("x-request-id", "7"), ("connection", "close")];
        let found = shown(201, &headers, Version::HTTP_11, Ending::Length(10_203), false);
        let wanted = [
            "HTTP/1.1 201 Created",
            "Content-Type: application/json",
            "X-Request-Id: 7",
            "Content-Length: 10203",
            "Connection: close",
            "",
        ];
        assert_eq!(found, wanted);
        let none = shown(204, &[], Version::HTTP_11, Ending::Bodyless, true);
        assert_eq!(none, ["HTTP/1.1 204 No Content", ""]);
        let old = shown(200, &[], Version::HTTP_10, Ending::Length(0), true);
        assert_eq!(old, ["HTTP/1.1 200 OK", "Content-Length: 0", "Connection: keep-alive", ""]);
    }
}
