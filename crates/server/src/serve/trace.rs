//! One line a request at debug level, and W3C trace context carried through.
//!
//! In:    a request's head, and its answer. Out: a log line; `traceparent` on the answer, with the caller's trace id.
//! Never: costs anything when neither is asked for but a look at one header and at the log level.

use std::time::Instant;

use hyper::Method;
use hyper::header::{HeaderName, HeaderValue};
use tracing::Level;

use crate::message::Response;
use crate::message::headers::Headers;
use crate::message::request::Request;

/// `traceparent`.
const HEADER: HeaderName = HeaderName::from_static("traceparent");

/// What is remembered of a request while it is answered; nothing, mostly.
#[derive(Debug)]
pub struct Trace(Option<Box<Noted>>);

#[derive(Debug)]
struct Noted {
    parent: Option<Parent>,
    line: Option<Line>,
}

#[derive(Debug)]
struct Line {
    method: Method,
    path: String,
    started: Instant,
}

/// The caller's place in its trace.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Parent {
    /// 32 hex digits.
    trace_id: String,
    /// Whether the caller records this trace.
    flags: String,
    /// This request's own place, 16 hex digits.
    span_id: String,
}

impl Trace {
    /// Looks at a request before it is answered.
    pub fn of(request: &Request) -> Self {
        let parent =
            request.headers().contains_key(HEADER).then(|| Parent::read(request.headers())).flatten();
        let line = tracing::enabled!(target: "leasehold::request", Level::DEBUG).then(|| Line {
            method: request.method().clone(),
            path: request.uri().path().to_string(),
            started: Instant::now(),
        });
        let noted = parent.is_some() || line.is_some();
        Self(noted.then(|| Box::new(Noted { parent, line })))
    }

    /// Logs the answer, and gives it the caller's trace id.
    pub fn answered(self, peer: &str, response: &mut Response) {
        let Some(noted) = self.0 else { return };
        let trace = noted.parent.as_ref().map(|parent| parent.trace_id.as_str());
        let span = noted.parent.as_ref().map(|parent| parent.span_id.as_str());
        if let Some(Line { method, path, started }) = &noted.line {
            let (status, took_us) = (response.status().as_u16(), started.elapsed().as_micros() as u64);
            tracing::debug!(target: "leasehold::request", %method, path, status, took_us, peer, trace, span, "answered");
        }
        if let Some(Parent { trace_id, flags, span_id }) = &noted.parent
            && let Ok(value) = HeaderValue::from_str(&format!("00-{trace_id}-{span_id}-{flags}"))
        {
            response.headers_mut().insert(HEADER, value);
        }
    }
}

impl Parent {
    /// `00-<trace id>-<parent id>-<flags>`; a later version may have more behind it.
    fn read(headers: &Headers) -> Option<Self> {
        let text = headers.get(HEADER)?.to_str()?;
        let mut parts = text.split('-');
        let (version, trace_id) = (parts.next()?, parts.next()?);
        let (parent_id, flags) = (parts.next()?, parts.next()?);
        let hex = |part: &str, len: usize| {
            part.len() == len && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let some = |part: &str| part.bytes().any(|byte| byte != b'0');
        let good = hex(version, 2)
            && version != "ff"
            && (version != "00" || parts.next().is_none())
            && hex(trace_id, 32)
            && some(trace_id)
            && hex(parent_id, 16)
            && some(parent_id)
            && hex(flags, 2);
        let span_id = || format!("{:016x}", rand::random::<u64>().max(1));
        good.then(|| Self { trace_id: trace_id.into(), flags: flags.into(), span_id: span_id() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<String> {
        Parent::read(&Headers::from_iter([(HEADER, text)])).map(|parent| parent.trace_id)
    }

    #[test]
    fn what_the_specification_calls_valid_is_read_and_nothing_else() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(read(&format!("00-{id}-00f067aa0ba902b7-01")).as_deref(), Some(id));
        assert_eq!(read(&format!("cc-{id}-00f067aa0ba902b7-01-more")).as_deref(), Some(id));
        for bad in [
            format!("00-{id}-00f067aa0ba902b7-01-more"),
            format!("ff-{id}-00f067aa0ba902b7-01"),
            format!("00-{id}-0000000000000000-01"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{}-00f067aa0ba902b7-01", id.to_uppercase()),
            "00".into(),
        ] {
            assert_eq!(read(&bad), None, "{bad}");
        }
    }
}
