//! Spans as OTLP's `ExportTraceServiceRequest`, in Protocol Buffers.
//!
//! In:    spans. Out: bytes.
//!
//! The message has a dozen kinds of fields and never changes its numbers, so it is written here in place of three crates that
//! would generate it; `crates/cli/tests/ops/traces.rs` decodes it with the generated code.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_engine::hops::Hop;

use super::{Exchange, Span};

/// Kinds of spans: a part of a request's way, and a request that was answered.
const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
/// The status of a span whose request failed.
const ERROR: u64 = 2;

/// The request that carries these spans.
pub(super) fn request(spans: &[Span], node: u64) -> Vec<u8> {
    let mut scope = Message::default();
    scope.message(1, |about| {
        about.text(1, "leasehold");
        about.text(2, env!("CARGO_PKG_VERSION"));
    });
    for span in spans {
        scope.message(2, |message| whole(message, span));
        for hop in &span.hops {
            scope.message(2, |message| part(message, span, hop));
        }
    }
    let mut request = Message::default();
    request.message(1, |resource_spans| {
        resource_spans.message(1, |resource| {
            resource.attribute(1, "service.name", Value::Text("leasehold"));
            resource.attribute(1, "service.version", Value::Text(env!("CARGO_PKG_VERSION")));
            resource.attribute(1, "service.instance.id", Value::Text(&node.to_string()));
        });
        resource_spans.bytes(2, &scope.0);
    });
    request.0
}

/// A request.
fn whole(message: &mut Message, span: &Span) {
    message.bytes(1, &span.trace_id);
    message.bytes(2, &span.span_id);
    if let Some(parent) = &span.parent_id {
        message.bytes(4, parent);
    }
    message.text(5, span.name);
    message.number(6, SERVER);
    message.fixed64(7, nanos(span.start));
    message.fixed64(8, nanos(span.start + span.took));
    match &span.exchange {
        Exchange::Http { method, path, status } => {
            message.attribute(9, "http.request.method", Value::Text(method.as_str()));
            message.attribute(9, "url.path", Value::Text(path));
            message.attribute(9, "http.response.status_code", Value::Number((*status).into()));
        }
        Exchange::Redis { error } => {
            message.attribute(9, "db.system.name", Value::Text("redis"));
            message.attribute(9, "db.operation.name", Value::Text(span.name));
            if let Some(error) = error {
                message.attribute(9, "db.response.status_code", Value::Text(error));
            }
        }
    }
    message.attribute(9, "client.address", Value::Text(&span.peer));
    if span.failed {
        message.message(15, |status| status.number(3, ERROR));
    }
}

/// A part of its way through the engine.
fn part(message: &mut Message, span: &Span, hop: &Hop) {
    message.bytes(1, &span.trace_id);
    message.bytes(2, &rand::random::<u64>().max(1).to_be_bytes());
    message.bytes(4, &span.span_id);
    message.text(5, hop.name);
    message.number(6, INTERNAL);
    let at = |offset: Duration| nanos(span.start + offset);
    message.fixed64(7, at(hop.start));
    message.fixed64(8, at(hop.end));
}

fn nanos(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

#[derive(Clone, Copy)]
enum Value<'a> {
    Text(&'a str),
    Number(u64),
}

/// A message, field by field.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// A field's number and how its value is written: 0 a varint, 1 eight bytes, 2 a length and bytes.
    fn key(&mut self, field: u64, kind: u64) {
        self.varint(field << 3 | kind);
    }

    fn number(&mut self, field: u64, number: u64) {
        self.key(field, 0);
        self.varint(number);
    }

    fn fixed64(&mut self, field: u64, number: u64) {
        self.key(field, 1);
        self.0.extend(number.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u64, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }

    fn attribute(&mut self, field: u64, name: &str, value: Value<'_>) {
        self.message(field, |pair| {
            pair.text(1, name);
            pair.message(2, |any| match value {
                Value::Text(text) => any.text(1, text),
                Value::Number(number) => any.number(3, number),
            });
        });
    }
}
