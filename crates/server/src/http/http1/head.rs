//! The head of a request: what is asked, and how long its body is.
//!
//! In:    bytes that may hold a head. Out: the head, taken out of them; or why they will never be one.
//! Never: accepts what another reader on the way could read differently (RFC 9112, 6.3 and 11.2).

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use httparse::Status;
use hyper::http::uri::Uri;
use hyper::{Method, StatusCode, Version};

/// Bytes of request line and headers that are kept: far beyond what any client of the dialects sends.
pub(super) const HEAD_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 100;
/// Targets up to this are served everywhere (RFC 9112, 3): in a head that is too large, a longer one is to blame.
const TARGET_BYTES_USUAL: usize = 8000;
/// How a client of HTTP/2 opens, where nobody told it that HTTP/1.1 is spoken here.
const HTTP2_OPENING: &[u8] = b"PRI * HTTP/2.0\r\n";

/// Where the name and the value of a header are in a head, each from its first byte to behind its last.
pub type Field = ((u32, u32), (u32, u32));

/// What stands before a body.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) version: Version,
    /// All bytes of the head, and where its headers are in them.
    pub(super) bytes: Bytes,
    pub(super) fields: Vec<Field>,
    pub(super) length: Length,
    /// Whether the connection may go on behind this request.
    pub(super) keeps: bool,
    /// Whether the client waits for a word before it sends its body.
    pub(super) expects: bool,
}

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    /// This many bytes.
    Known(u64),
    /// It says so itself, chunk by chunk.
    Chunked,
}

/// Why there will be no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadHead {
    /// It would not understand an answer.
    Http2,
    /// Everything else, with the status and what to say.
    Refused(StatusCode, &'static str),
}

impl BadHead {
    const fn bad(detail: &'static str) -> Self {
        Self::Refused(StatusCode::BAD_REQUEST, detail)
    }
}

/// Takes a head out of `input`, once all of it is there.
pub(super) fn take(input: &mut BytesMut) -> Result<Option<Head>, BadHead> {
    let mut space = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut []);
    let len = match request.parse_with_uninit_headers(input, &mut space) {
        Ok(Status::Complete(len)) if len <= HEAD_BYTES_MAX => len,
        Ok(Status::Partial) if input.len() < HEAD_BYTES_MAX => return Ok(None),
        Ok(_) => return Err(too_large(request.path)),
        Err(error) => return Err(unreadable(error, input)),
    };
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return Err(BadHead::bad("the request line is not complete"));
    };
    let method =
        Method::from_bytes(method.as_bytes()).map_err(|_| BadHead::bad("there is no such method"))?;
    let version = if minor == 0 { Version::HTTP_10 } else { Version::HTTP_11 };
    // Where the pieces are, while they are still somebody else's: they stay in the bytes that came.
    let base = input.as_ptr() as usize;
    let place = |piece: &[u8]| {
        let start = piece.as_ptr() as usize - base;
        start..start + piece.len()
    };
    let target = place(target.as_bytes());
    let mut said = Said::default();
    let mut fields = Vec::with_capacity(request.headers.len());
    for header in request.headers.iter() {
        said.hear(header.name, header.value)?;
        let [name, value] = [header.name.as_bytes(), header.value].map(place);
        fields.push(((name.start as u32, name.end as u32), (value.start as u32, value.end as u32)));
    }
    let bytes = input.split_to(len).freeze();
    let uri = Uri::from_maybe_shared(bytes.slice(target))
        .map_err(|_| BadHead::bad("the request target is neither a path nor a URL"))?;
    let length = said.length(version)?;
    let keeps = !said.close && (version >= Version::HTTP_11 || said.keep_alive);
    // Whoever sends both speaks with somebody else's voice: nothing behind it is believed.
    let keeps = keeps && !(length == Length::Chunked && said.bytes.is_some());
    let expects = version == Version::HTTP_11 && said.expects;
    Ok(Some(Head { method, uri, version, bytes, fields, length, keeps, expects }))
}

/// What headers say about the connection and the body: where a doubt becomes somebody else's request.
#[derive(Default)]
struct Said {
    /// `Content-Length`.
    bytes: Option<u64>,
    /// `Transfer-Encoding`: how often, and whether it is one that is understood.
    codings: usize,
    chunked: bool,
    close: bool,
    keep_alive: bool,
    expects: bool,
}

impl Said {
    fn hear(&mut self, name: &str, value: &[u8]) -> Result<(), BadHead> {
        let is = |known: &str| name.len() == known.len() && name.eq_ignore_ascii_case(known);
        let lists = |token: &[u8]| {
            value.split(|byte| *byte == b',').any(|one| one.trim_ascii().eq_ignore_ascii_case(token))
        };
        if is("content-length") {
            let length = std::str::from_utf8(value).ok().filter(|_| value.iter().all(u8::is_ascii_digit));
            let length: u64 = length
                .and_then(|digits| digits.parse().ok())
                .ok_or(BadHead::bad("Content-Length is not a number of bytes"))?;
            if self.bytes.replace(length).is_some_and(|other| other != length) {
                return Err(BadHead::bad("two Content-Lengths contradict each other"));
            }
        } else if is("transfer-encoding") {
            self.codings += 1;
            self.chunked = value.eq_ignore_ascii_case(b"chunked");
        } else if is("connection") {
            self.close |= lists(b"close");
            // What is not plain text only ever closes.
            self.keep_alive |= value.is_ascii() && lists(b"keep-alive");
        } else if is("expect") {
            self.expects |= lists(b"100-continue");
        }
        Ok(())
    }

    fn length(&self, version: Version) -> Result<Length, BadHead> {
        match (self.codings, self.chunked) {
            (0, _) => Ok(Length::Known(self.bytes.unwrap_or(0))),
            (1, true) if version == Version::HTTP_11 => Ok(Length::Chunked),
            _ => Err(BadHead::bad("the only supported Transfer-Encoding is chunked, with HTTP/1.1")),
        }
    }
}

/// A head that is too large because of its target, or because of its headers. `target`: as far as its end has come.
fn too_large(target: Option<&str>) -> BadHead {
    if target.is_none_or(|target| target.len() > TARGET_BYTES_USUAL) {
        let detail = "the URI is too long: request line and headers may have 64 KiB";
        return BadHead::Refused(StatusCode::URI_TOO_LONG, detail);
    }
    TOO_MANY_HEADERS
}

const TOO_MANY_HEADERS: BadHead = BadHead::Refused(
    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    "request line and headers may have 64 KiB and 100 headers",
);

/// Whether this is, or may become, the opening of a client of HTTP/2.
fn opens_http2(input: &[u8]) -> bool {
    input.starts_with(HTTP2_OPENING) || HTTP2_OPENING.starts_with(input)
}

fn unreadable(error: httparse::Error, input: &[u8]) -> BadHead {
    match error {
        httparse::Error::TooManyHeaders => TOO_MANY_HEADERS,
        httparse::Error::Version if opens_http2(input) => BadHead::Http2,
        httparse::Error::Version => BadHead::bad("this is not HTTP/1.1 or HTTP/1.0"),
        httparse::Error::HeaderName => BadHead::bad("invalid header name"),
        httparse::Error::HeaderValue => BadHead::bad("the value of a header has a control character"),
        _ => BadHead::bad("the request line is not a method, a path and HTTP/1.1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Head>, BadHead> {
        take(&mut BytesMut::from(text))
    }

    #[test]
    fn a_head_is_taken_and_what_follows_is_left() {
        let text = "POST /v1/claims/?wait=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nX-Two: a\r\nX-No:\r\nX-Two: \r\n\r\n{}GET";
        let mut input = BytesMut::from(text);
        let head = take(&mut input).unwrap().unwrap();
        assert_eq!((&head.method, head.uri.to_string().as_str()), (&Method::POST, "/v1/claims/?wait=1"));
        assert_eq!((head.length, head.keeps, head.expects), (Length::Known(2), true, false));
        let at = |(start, end)| std::str::from_utf8(&head.bytes[start as usize..end as usize]).unwrap();
        let headers: Vec<_> = head.fields.iter().map(|(name, value)| (at(*name), at(*value))).collect();
        let expected = [("Host", "x"), ("Content-Length", "2"), ("X-Two", "a"), ("X-No", ""), ("X-Two", "")];
        assert_eq!(headers, expected);
        assert_eq!(&input[..], b"{}GET");
        for len in 0..text.len() - 5 {
            assert!(matches!(read(&text[..len]), Ok(None)), "{:?}", &text[..len]);
        }
    }

    #[test]
    fn who_may_go_on_is_said_by_version_and_header() {
        for (line, keeps) in [
            ("GET / HTTP/1.1\r\n\r\n", true),
            ("GET / HTTP/1.1\r\nConnection: foo, Close\r\n\r\n", false),
            ("GET / HTTP/1.0\r\n\r\n", false),
            ("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true),
            ("GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n", false),
            ("GET / HTTP/1.0\r\nConnection: keep-alive, \u{e9}\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nConnection: close, \u{e9}\r\n\r\n", false),
            ("GET / HTTP/1.0\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\nContent-Length: 3\r\n\r\n", false),
        ] {
            assert_eq!(read(line).unwrap().unwrap().keeps, keeps, "{line}");
        }
    }

    #[test]
    fn a_doubtful_length_is_refused() {
        for (header, length) in [
            ("Content-Length: 7\r\nContent-Length: 7", Some(Length::Known(7))),
            ("Transfer-Encoding: chunked", Some(Length::Chunked)),
            ("X: 1", Some(Length::Known(0))),
            ("Content-Length: 7, 7", None),
            ("Content-Length: 7\r\nContent-Length: 8", None),
            ("Content-Length: 18446744073709551616", None),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", None),
            ("Transfer-Encoding: gzip, chunked", None),
        ] {
            let found = read(&format!("POST / HTTP/1.1\r\n{header}\r\n\r\n"));
            assert_eq!(found.ok().flatten().map(|head| head.length), length, "{header}");
        }
        assert!(read("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
    }

    #[test]
    fn a_head_that_is_too_large_is_blamed_on_its_target_or_its_headers() {
        let status = |target: usize, header: usize| {
            let head = format!("GET /{} HTTP/1.1\r\nX: {}\r\n\r\n", "t".repeat(target), "h".repeat(header));
            match read(&head) {
                Err(BadHead::Refused(status, _)) => status.as_u16(),
                other => panic!("{target} {header}: {other:?}"),
            }
        };
        for target in [65_500, 65_536, 100_000, 1_000_000] {
            assert_eq!(status(target, 100), 414, "{target}");
        }
        assert_eq!((status(9_000, 60_000), status(100, 70_000)), (414, 431));
        assert_eq!(read(&"G".repeat(HEAD_BYTES_MAX)).unwrap_err(), too_large(None));
    }

    #[test]
    fn what_opens_in_http2_is_recognised() {
        assert_eq!(read("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap_err(), BadHead::Http2);
        assert_eq!(read("PRI * HTTP/2").unwrap_err(), BadHead::Http2);
        assert_ne!(read("PRI * HTTP/3").unwrap_err(), BadHead::Http2);
    }
}
