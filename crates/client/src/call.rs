//! A request to the service and its response, as far as all calls share them.
//!
//! In:    what to ask. Out: what was answered, or why nothing was.
//! Never: calls a request failed that may have arrived.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use hyper::header::{HeaderName, HeaderValue};

use crate::clock::BootInstant;
use crate::error::Error;
use crate::wire;

/// A whole response.
#[derive(Debug, Clone)]
pub struct Reply {
    /// A moment before the request was sent for the first time: what the server did, it did after it.
    pub sent: BootInstant,
    /// Whether it was sent more than once: the first may have arrived.
    pub is_repeated: bool,
    /// The address that answered: host and port.
    pub from: String,
    /// The HTTP status.
    pub status: u16,
    /// The URL of a claim that was made.
    pub location: Option<String>,
    /// Where the next page is, as the `Link` header has it.
    pub link: Option<String>,
    /// How long the server asks to wait before the next try.
    pub retry_after: Option<Duration>,
    /// The body.
    pub body: Bytes,
}

/// Why there is no response.
#[derive(Debug, Clone)]
pub enum Failure {
    /// The request has certainly not been sent.
    NotSent(String),
    /// It may have arrived.
    Lost(String),
}

impl Failure {
    /// What happened, in words.
    pub fn why(&self) -> &str {
        match self {
            Self::NotSent(why) | Self::Lost(why) => why,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotSent(why) => Self::Unreachable(why),
            Failure::Lost(why) => Self::Unknown(why),
        }
    }
}

/// A request.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its method.
    pub method: Method,
    /// Path below the API version, with its query: `claims/?limit=1`. With a slash before it: the whole path.
    pub path: String,
    /// Further headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// JSON.
    pub body: Bytes,
    /// Whether doing it twice is different from doing it once: it is not sent again when it may have arrived.
    pub once: bool,
    /// Whether the body of the answer is something else than JSON.
    pub raw: bool,
    /// Whether nobody minds its silence: the node is not asked for a sign of life while it is out.
    pub quiet: bool,
}

impl Call {
    /// One that may be repeated, without further headers.
    pub fn new(method: Method, path: impl Into<String>, body: impl Into<Bytes>) -> Self {
        let (path, body) = (path.into(), body.into());
        Self { method, path, headers: Vec::new(), body, once: false, raw: false, quiet: false }
    }

    /// One whose silence nobody minds.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// With a header. Its value may be any text of one line.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
            self.headers.push((HeaderName::from_static(name), value));
        }
        self
    }

    /// Sent to one server only, if it may have arrived there.
    #[must_use]
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// Answered with something else than JSON.
    #[must_use]
    pub fn raw(mut self) -> Self {
        self.raw = true;
        self
    }
}

impl Reply {
    /// An error unless it is a success.
    pub fn ok(self) -> Result<Self, Error> {
        if (200..300).contains(&self.status) {
            return Ok(self);
        }
        Err(self.refusal())
    }

    /// Whether what was asked certainly did not happen, though it was not refused for good.
    pub(crate) fn is_certainly_undone(&self) -> bool {
        wire::is_certainly_undone(self.status, &self.body)
    }

    /// The refusal that it is.
    pub fn refusal(&self) -> Error {
        match (self.status, wire::status_in(&self.body)) {
            (400, Some(status)) => Error::Ended(status),
            (409, _) => wire::deadlock_in(self.status, &self.body)
                .unwrap_or_else(|| Error::Refused { status: self.status, detail: wire::detail(&self.body) }),
            (status, _) if status >= 500 && !self.is_certainly_undone() => {
                Error::Unknown(format!("{status}: {}", wire::detail(&self.body)))
            }
            (status, _) => Error::Refused { status, detail: wire::detail(&self.body) },
        }
    }
}
