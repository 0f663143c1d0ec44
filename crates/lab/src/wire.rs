//! The claims dialect, as the clients of the simulation and of chaos speak it.
//!
//! In:    items of a claim; answers. Out: the members of a request's body that name them; what an answer says.
//! Never: looks away: a waiting claim that shows a token or a slot is told as one that holds a part of its set.

use serde_json::{Value, json};

use crate::history::{Answer, Grant, Item, Mode};

/// The body of a request for a claim.
pub fn claim_body(items: &[Item], ttl_seconds: f64, session: Option<&str>) -> Value {
    let element = |item: &Item| match item.mode {
        Mode::Exclusive => json!({ "resource": item.resource }),
        Mode::Shared => json!({ "resource": item.resource, "mode": "shared" }),
        Mode::Slots { take, of } => json!({ "resource": item.resource, "take": take, "of": of }),
    };
    let mut body = match items {
        [one] => element(one),
        several => json!({ "resources": several.iter().map(element).collect::<Vec<_>>() }),
    };
    body["ttl"] = json!(ttl_seconds);
    if let Some(session) = session {
        body["session"] = json!(session);
    }
    body
}

/// What an answer says of a claim.
pub fn state(claim: &Value) -> Option<Answer> {
    let granted = |item: &Value| {
        let slots = item["slots"].as_array().map_or(&[][..], |slots| slots);
        let number = |slot: &Value| slot.as_u64().unwrap_or(0) as u16;
        Grant { token: item["token"].as_u64().unwrap_or(0), slots: slots.iter().map(number).collect() }
    };
    let items: Option<Vec<Grant>> =
        claim["items"].as_array().map(|items| items.iter().map(granted).collect());
    let shows_some = |items: &Vec<Grant>| items.iter().any(|item| item.token > 0 || !item.slots.is_empty());
    match (claim["status"].as_str()?, items) {
        ("waiting", Some(items)) if shows_some(&items) => Some(Answer::Active(items.into())),
        ("waiting", _) => Some(Answer::Waiting),
        ("active", Some(items)) => Some(Answer::Active(items.into())),
        ("active", None) => Some(Answer::active(claim["token"].as_u64()?)),
        _ => Some(Answer::Over),
    }
}
