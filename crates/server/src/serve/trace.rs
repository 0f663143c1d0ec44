//! One line a request at debug level, W3C trace context carried through, and a span for the collector.
//!
//! In:    a request's head, and its answer. Out: a log line; `traceparent` on the answer, with the caller's trace id; a span.
//! Never: costs anything when none of them is asked for but a look at one header, at the log level and for an exporter.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use leasehold_engine::hops::Hops;
use tracing::Level;

use crate::api::redis::{self, Answered};
use crate::message::headers::Headers;
use crate::message::request::Request;
use crate::message::{Response, ResponseFuture};
use crate::observe::otlp::{Exchange, Exporter, Span};
use crate::resp::Reply;
use crate::route::{Misrouted, Route};

/// `traceparent`.
const HEADER: HeaderName = HeaderName::from_static("traceparent");

/// What is kept of a request while it is answered, to trace or log it. Usually nothing.
#[derive(Debug)]
pub struct Trace(Option<Box<Noted>>);

#[derive(Debug)]
struct Noted {
    parent: Option<Parent>,
    line: Option<Line>,
    open: Option<Open>,
}

/// A span that has begun.
#[derive(Debug)]
struct Open {
    exporter: Arc<Exporter>,
    hops: Arc<Hops>,
    span: Span,
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
    /// The caller's own place, 16 hex digits.
    parent_id: String,
    /// Whether the caller records this trace.
    flags: String,
    /// This request's own place, 16 hex digits.
    span_id: String,
}

impl Trace {
    /// Looks at a request before it is answered.
    pub fn of(request: &Request, route: &Result<Route, Misrouted>, exporter: Option<&Arc<Exporter>>) -> Self {
        let parent =
            request.headers().contains_key(HEADER).then(|| Parent::read(request.headers())).flatten();
        let open = exporter.and_then(|exporter| Open::new(request, route, parent.as_ref(), exporter.clone()));
        let line = tracing::enabled!(target: "leasehold::request", Level::DEBUG).then(|| Line {
            method: request.method().clone(),
            path: request.uri().path().to_string(),
            started: Instant::now(),
        });
        let noted = parent.is_some() || line.is_some() || open.is_some();
        Self(noted.then(|| Box::new(Noted { parent, line, open })))
    }

    /// Has the engine note the hops of a request that is exported.
    pub fn follow(&self, answer: impl FnOnce() -> ResponseFuture) -> ResponseFuture {
        match self.0.as_ref().and_then(|noted| noted.open.as_ref()) {
            None => answer(),
            Some(open) => Box::pin(open.hops.follow(answer)),
        }
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
        if let Some(Parent { trace_id, flags, span_id, .. }) = &noted.parent
            && let Ok(value) = HeaderValue::from_str(&format!("00-{trace_id}-{span_id}-{flags}"))
        {
            response.headers_mut().insert(HEADER, value);
        }
        if let Some(open) = noted.open {
            open.close(peer, response.status(), |exchange| {
                if let Exchange::Http { status, .. } = exchange {
                    *status = response.status().as_u16();
                }
            });
        }
    }
}

impl Open {
    /// A span for this request. None for callers that don't record their trace, nor for probes that have none.
    fn new(
        request: &Request,
        route: &Result<Route, Misrouted>,
        parent: Option<&Parent>,
        exporter: Arc<Exporter>,
    ) -> Option<Self> {
        let is_probe = route.as_ref().is_ok_and(Route::is_probe);
        if parent.map_or(is_probe, |parent| !parent.is_recorded()) {
            return None;
        }
        let name = route.as_ref().map_or("unknown path", |route| route.operation().unwrap_or("page"));
        let (method, path) = (request.method().clone(), request.uri().path().to_string());
        let mut open = Self::begin(exporter, name, Exchange::Http { method, path, status: 0 });
        if let Some(parent) = parent {
            (open.span.trace_id, open.span.span_id) = (bytes(&parent.trace_id)?, bytes(&parent.span_id)?);
            open.span.parent_id = bytes(&parent.parent_id);
        }
        Some(open)
    }

    /// A span in a trace of its own.
    fn begin(exporter: Arc<Exporter>, name: &'static str, exchange: Exchange) -> Self {
        let span = Span {
            trace_id: rand::random::<u128>().max(1).to_be_bytes(),
            span_id: rand::random::<u64>().max(1).to_be_bytes(),
            parent_id: None,
            name,
            exchange,
            failed: false,
            peer: String::new(),
            start: SystemTime::now(),
            took: std::time::Duration::ZERO,
            hops: Vec::new(),
        };
        Self { exporter, hops: Hops::begin(), span }
    }

    fn close(mut self, peer: &str, status: StatusCode, complete: impl FnOnce(&mut Exchange)) {
        complete(&mut self.span.exchange);
        let ((hops, took), failed) = (self.hops.taken(), status.is_server_error());
        self.exporter.export(Span { failed, peer: peer.into(), took, hops, ..self.span });
    }
}

/// The span of a Redis client's command. These clients send no trace context, so each command begins a trace of its own.
#[derive(Debug)]
pub(super) struct CommandSpan(Box<Open>);

impl CommandSpan {
    /// None for `PING`, which is a probe.
    pub(super) fn begin(command: &[u8], exporter: &Arc<Exporter>) -> Option<Self> {
        let name = redis::command_name(command);
        let open = || Open::begin(exporter.clone(), name, Exchange::Redis { error: None });
        (name != "PING").then(|| Self(Box::new(open())))
    }

    /// Has the engine note the hops of the command.
    pub(super) fn follow<'a, F>(&self, answer: F) -> Pin<Box<dyn Future<Output = F::Output> + Send + 'a>>
    where
        F: Future + Send + 'a,
    {
        Box::pin(self.0.hops.follow(|| answer))
    }

    pub(super) fn answered(self, peer: &str, answered: &Answered) {
        let code = match &answered.reply {
            Reply::Error(text) => text.split(' ').next().map(Into::into),
            _ => None,
        };
        self.0.close(peer, answered.status, |exchange| *exchange = Exchange::Redis { error: code });
    }
}

/// Hex digits as bytes.
fn bytes<const N: usize>(hex: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
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
        good.then(|| Self {
            trace_id: trace_id.into(),
            parent_id: parent_id.into(),
            flags: flags.into(),
            span_id: span_id(),
        })
    }

    /// Whether the caller records this trace.
    fn is_recorded(&self) -> bool {
        u8::from_str_radix(&self.flags, 16).is_ok_and(|flags| flags & 1 == 1)
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
