//! Requests of the locks dialect: what a body asks for.
//!
//! In:    bytes from strangers. Out: a claim to be made, or a refusal that names every mistake.
//! Never: stricter than the older server was: unknown keys pass, numbers may come as text, no Content-Type is needed.

use std::sync::Arc;

use hyper::StatusCode;
use leasehold_core::{ClaimId, Data, Format, NewClaim, OnBusy, limits};
use serde_json::{Value, json};

use crate::message::Response;
use crate::message::problem::problem;

/// Letters and digits only: what stands for a resource in a path of this dialect.
pub fn is_name(name: &str) -> bool {
    let fits = (1..=limits::RESOURCE_LEN_MAX).contains(&name.len());
    fits && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// A lock as asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    title: String,
    lifetime_us: u64,
    wait_us: u64,
}

impl Wanted {
    /// The claim to be made. Title and wait go along as its data, so that they can be shown again.
    pub(super) fn into_claim(self, id: ClaimId, resource: Arc<str>, owner: Arc<str>) -> NewClaim {
        let data = json!({ "title": self.title, "wait": seconds(self.wait_us) });
        NewClaim {
            id,
            resource,
            owner,
            ttl_us: Some(self.lifetime_us),
            on_busy: match self.wait_us {
                0 => OnBusy::Refuse,
                wait_us => OnBusy::QueueFor { wait_us },
            },
            data: Some(Data { format: Format::Json, bytes: data.to_string().into_bytes().into() }),
            idempotency: None,
        }
    }
}

/// Seconds as a JSON number: whole ones without a point, as the older server wrote them.
pub(super) fn seconds(micros: u64) -> Value {
    if micros.is_multiple_of(1_000_000) { json!(micros / 1_000_000) } else { json!(micros as f64 / 1e6) }
}

/// Reads the body of a POST.
pub(super) fn wanted(body: &[u8]) -> Result<Wanted, Response> {
    let bad = |detail: String| problem(StatusCode::BAD_REQUEST, "bad-lock-request", &detail);
    let object = match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => object,
        Ok(_) => return Err(bad("the body must be a JSON object with title, lifetime and wait".into())),
        Err(_) if body.is_empty() => {
            return Err(bad(
                "the body is empty; a JSON object with title, lifetime and wait is expected".into()
            ));
        }
        Err(error) => return Err(bad(format!("the body is not valid JSON: {error}"))),
    };
    let title = match object.get("title") {
        Some(Value::String(title)) => Ok(title.clone()),
        Some(_) => Err("title must be a string".into()),
        None => Err("title is missing".into()),
    };
    let number = |name: &str| match object.get(name) {
        Some(value) => micros(value).ok_or(format!("{name} must be a number of seconds, 0 or more")),
        None => Err(format!("{name} is missing")),
    };
    match (title, number("lifetime"), number("wait")) {
        (Ok(title), Ok(lifetime_us), Ok(wait_us)) => Ok(Wanted { title, lifetime_us, wait_us }),
        (title, lifetime, wait) => {
            let mistakes = [title.err(), lifetime.err(), wait.err()];
            Err(bad(mistakes.into_iter().flatten().collect::<Vec<String>>().join("; ")))
        }
    }
}

/// A number of seconds, given as a number or as its text. What is longer than the table can count is cut to that.
fn micros(value: &Value) -> Option<u64> {
    let seconds = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    let fits = seconds.is_finite() && seconds >= 0.0;
    fits.then(|| ((seconds * 1e6).round() as u64).min(limits::TTL_US_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_as_numbers_or_as_text() {
        for (value, expected) in [
            (json!(0), Some(0)),
            (json!(20), Some(20_000_000)),
            (json!(0.25), Some(250_000)),
            (json!("20"), Some(20_000_000)),
            (json!(" 1.5 "), Some(1_500_000)),
            (json!(1e300), Some(limits::TTL_US_MAX)),
            (json!(-1), None),
            (json!("-0.5"), None),
            (json!(""), None),
            (json!("soon"), None),
            (json!("NaN"), None),
            (json!("inf"), None),
            (json!(true), None),
            (json!(null), None),
            (json!([20]), None),
        ] {
            assert_eq!(micros(&value), expected, "{value}");
        }
    }
}
