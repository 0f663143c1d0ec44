//! A collector of traces on loopback: takes OTLP over HTTP and decodes it with the code that OpenTelemetry generates.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

/// Spans that have come.
#[derive(Default)]
struct Taken {
    spans: Vec<Span>,
    /// The resources that they came with.
    resources: Vec<Vec<KeyValue>>,
    /// What was wrong with what came.
    mistakes: Vec<String>,
}

pub(crate) struct Collector {
    pub(crate) addr: SocketAddr,
    taken: Arc<Mutex<Taken>>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let taken = Arc::new(Mutex::new(Taken::default()));
        let shared = taken.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if let Err(mistake) = take(stream, &shared) {
                    shared.lock().unwrap().mistakes.push(mistake);
                }
            }
        });
        Self { addr, taken }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The spans of one trace so far.
    pub(crate) fn trace(&self, trace_id: &str) -> Vec<Span> {
        let taken = self.taken.lock().unwrap();
        assert!(taken.mistakes.is_empty(), "{:?}", taken.mistakes);
        taken.spans.iter().filter(|span| hex(&span.trace_id) == trace_id).cloned().collect()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Span> {
        self.taken.lock().unwrap().spans.clone()
    }

    /// An attribute of the service that sent the first ones.
    pub(crate) fn resource(&self, name: &str) -> Option<String> {
        self.taken.lock().unwrap().resources.first().and_then(|resource| attribute(resource, name))
    }
}

fn take(stream: TcpStream, taken: &Mutex<Taken>) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut reader = BufReader::new(stream);
    let (mut len, mut kind, mut first) = (0, String::new(), String::new());
    reader.read_line(&mut first).map_err(failed)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).map_err(failed)?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => len = value.parse().map_err(|_| line.clone())?,
            "content-type" => kind = value.into(),
            _ => {}
        }
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).map_err(failed)?;
    if first.trim() != "POST /v1/traces HTTP/1.1" || kind != "application/x-protobuf" {
        return Err(format!("{first} {kind}"));
    }
    let request = ExportTraceServiceRequest::decode(&body[..]).map_err(|error| error.to_string())?;
    let mut taken = taken.lock().unwrap();
    for resource_spans in request.resource_spans {
        taken.resources.push(resource_spans.resource.unwrap_or_default().attributes);
        for scope_spans in resource_spans.scope_spans {
            taken.spans.extend(scope_spans.spans);
        }
    }
    reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").map_err(failed)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The value of an attribute, as text.
pub(crate) fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}
