//! The query of `/v1/resources`.
//!
//! In:    the part of a URI after `?`. Out: what is wanted, or every mistake in it by name.
//! Never: looks at the table.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde_json::json;

use super::who::Person;
use crate::message::query::parameters;
use crate::message::{Response, json as json_response};

const LIMIT_DEFAULT: usize = 50;
const LIMIT_MAX: usize = 500;

#[derive(Debug)]
pub(super) struct Query {
    pub(super) prefix: String,
    pub(super) search: String,
    pub(super) after: Option<String>,
    pub(super) limit: usize,
    pub(super) state: State,
    /// Whose claims are wanted.
    pub(super) person: Person,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Any,
    Held,
    Queued,
}

pub(super) fn parse(query: Option<&str>) -> Result<Query, Response> {
    let mut wanted = Query {
        prefix: String::new(),
        search: String::new(),
        after: None,
        limit: LIMIT_DEFAULT,
        state: State::Any,
        person: Person::default(),
    };
    read(query, |name, value| set(&mut wanted, name, value))?;
    Ok(wanted)
}

/// Hands over each parameter; 400 with all that is wrong.
pub(super) fn read(
    query: Option<&str>,
    mut take: impl FnMut(&str, &str) -> Result<(), String>,
) -> Result<(), Response> {
    let (parameters, mut mistakes) = parameters(query);
    for (name, value) in parameters {
        if let Err(mistake) = take(&name, &value) {
            mistakes.insert(name.into_owned(), mistake);
        }
    }
    if mistakes.is_empty() { Ok(()) } else { Err(mistaken(&mistakes)) }
}

fn mistaken(mistakes: &BTreeMap<String, String>) -> Response {
    json_response(StatusCode::BAD_REQUEST, format!("{}\n", json!(mistakes)))
}

fn set(query: &mut Query, name: &str, value: &str) -> Result<(), String> {
    let text = || Some(value.to_string()).filter(|text| !text.is_empty());
    match name {
        "prefix" => query.prefix = value.to_string(),
        "search" => query.search = value.to_string(),
        "after" => query.after = text(),
        "owner" => query.person.owner = text(),
        "host" => query.person.host = text(),
        "user" => query.person.user = text(),
        "pid" => query.person.pid = text(),
        "limit" => {
            let limit = value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
            query.limit = limit.ok_or(format!("must be a whole number from 1 to {LIMIT_MAX}"))?;
        }
        "state" => {
            query.state = match value {
                "any" => State::Any,
                "held" => State::Held,
                "queued" => State::Queued,
                _ => return Err("must be any, held or queued".into()),
            };
        }
        _ => {
            let there_are = "prefix, search, state, owner, host, user, pid, after, limit";
            return Err(format!("unknown parameter; there are {there_are}"));
        }
    }
    Ok(())
}
