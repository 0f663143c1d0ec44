//! `/v1/limits`: what claims may take, and what they take.
//!
//! In:    requests that `dispatch.rs` has admitted: GET, with the names of an owner and a namespace to look at; PUT with one
//!        override.
//! Out:   JSON.
//! Never: changes anything itself: an override is a command in the log, the same on every node.

use std::sync::Arc;

use hyper::StatusCode;
use leasehold_core::{Command, Outcome, Scope, Status, Table, Used, limits};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::access::Caller;
use crate::app::App;
use crate::app::receive::read_body;
use crate::message::problem::{engine_problem, problem};
use crate::message::query::pairs;
use crate::message::request::Request;
use crate::message::{Response, empty, json};

const BODY_LEN_MAX: usize = 8 << 10;
/// The table version that overrides need.
const TABLE_VERSION: u32 = 2;

/// One override. Without `bytes` it is taken back.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Override {
    scope: String,
    #[serde(default)]
    prefix: String,
    bytes: Option<u64>,
}

impl Override {
    fn scope(&self) -> Result<Scope, String> {
        let too_long =
            |max: usize| format!("prefix has {} bytes, and at most {max} are allowed", self.prefix.len());
        match self.scope.as_str() {
            "total" | "finished" if !self.prefix.is_empty() => Err(format!("{} has no prefix", self.scope)),
            "total" => Ok(Scope::Total),
            "finished" => Ok(Scope::Finished),
            "owner" if self.prefix.len() > limits::OWNER_LEN_MAX => Err(too_long(limits::OWNER_LEN_MAX)),
            "owner" => Ok(Scope::Owner(self.prefix.as_str().into())),
            "namespace" if self.prefix.len() > limits::RESOURCE_LEN_MAX => {
                Err(too_long(limits::RESOURCE_LEN_MAX))
            }
            "namespace" => Ok(Scope::Namespace(self.prefix.as_str().into())),
            other => Err(format!("scope is total, finished, owner or namespace, not {other:?}")),
        }
    }
}

/// `GET /v1/limits`
pub async fn show(app: &Arc<App>, request: &Request) -> Result<Response, Response> {
    let (mut owner, mut namespace) = (None, None);
    for (name, value) in pairs(request.uri().query()) {
        match &*name {
            "owner" => owner = Some(value.into_owned()),
            "namespace" => namespace = Some(value.into_owned()),
            other => {
                let detail = format!("unknown parameter {other:?}; there are owner and namespace");
                return Err(problem(StatusCode::BAD_REQUEST, "bad-limits", &detail));
            }
        }
    }
    let mut body = app.engine.read(|table, _| {
        let mut body = all(table);
        if let Some(owner) = &owner {
            body["owner"] = one(owner, table.bytes_of_owner(owner));
        }
        if let Some(namespace) = &namespace {
            body["namespace"] = one(namespace, table.bytes_of_namespace(namespace));
        }
        body
    });
    let memory = app.engine.memory();
    body["memory"] = json!({ "max": memory.max_bytes(), "full": memory.is_full() });
    Ok(json(StatusCode::OK, format!("{body}\n")))
}

fn all(table: &Table) -> Value {
    let (settings, budgets) = (table.settings(), table.budgets());
    let (live, finished) = table.bytes_used();
    let over: u64 =
        Status::ALL.into_iter().filter(|status| status.is_final()).map(|status| table.count(status)).sum();
    let overrides: Vec<Value> = table.budget_overrides().iter().map(shown).collect();
    json!({
        "table_version": table.version(),
        "claims": {
            "total": Used { used: table.live_items(), max: settings.claims_max },
            "finished": Used { used: over, max: settings.finished_max },
            "per_owner_max": settings.claims_per_owner_max,
            "per_namespace_max": settings.claims_per_namespace_max,
            "queue_len_max": settings.queue_len_max,
        },
        "bytes": {
            "total": live,
            "finished": finished,
            "per_owner_max": budgets.per_owner,
            "per_namespace_max": budgets.per_namespace,
            "free_per_claim": limits::BYTES_FREE,
        },
        "overrides": overrides,
    })
}

fn one(name: &str, used: Used) -> Value {
    json!({ "name": name, "used": used.used, "max": used.max })
}

fn shown((scope, bytes): &(Scope, u64)) -> Value {
    let (scope, prefix) = match scope {
        Scope::Total => ("total", None),
        Scope::Finished => ("finished", None),
        Scope::Owner(prefix) => ("owner", Some(prefix)),
        Scope::Namespace(prefix) => ("namespace", Some(prefix)),
    };
    json!({ "scope": scope, "prefix": prefix, "bytes": bytes })
}

/// `PUT /v1/limits`
pub async fn set(app: &Arc<App>, request: Request, caller: &Caller) -> Result<Response, Response> {
    let (head, body) = request.into_parts();
    let body = read_body(app, body, &head.headers, BODY_LEN_MAX, caller).await?;
    let bad = |detail: &str| problem(StatusCode::BAD_REQUEST, "bad-limits", detail);
    let wanted: Override = serde_json::from_slice(&body).map_err(|error| bad(&error.to_string()))?;
    let scope = wanted.scope().map_err(|why| bad(&why))?;
    let engine = &app.engine;
    engine.reach_table_version(TABLE_VERSION).await.map_err(|error| engine_problem(&error))?;
    match engine.submit(Command::SetBudget { scope, bytes: wanted.bytes }).await {
        Ok(Outcome::Done) => Ok(empty(StatusCode::NO_CONTENT)),
        Ok(other) => Err(problem(StatusCode::CONFLICT, "limits-refused", &other.to_string())),
        Err(error) => Err(engine_problem(&error)),
    }
}
