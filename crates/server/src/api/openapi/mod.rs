//! `/openapi.json`: every call of every dialect, described for programs.
//!
//! In:    the lists that the code itself goes by: statuses, kinds of events, types of locks, limits. Out: OpenAPI 3.1.
//! Never: promises an answer that nobody gives: a property-based tester compares it with the running service.

#![expect(
    clippy::needless_pass_by_value,
    reason = "values are put together once; ampersands would only hide them"
)]

mod examples;
mod operation;
mod paths;
mod schemas;

use std::sync::OnceLock;

use serde_json::{Value, json};

/// The document, made once.
pub fn document() -> &'static str {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    DOCUMENT.get_or_init(|| format!("{:#}\n", value()))
}

fn value() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Leasehold",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "One lock and lease service over plain HTTP: four dialects, one table.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "tags": [
            tag("claims", "the native API: queue for a resource, hold it, renew it, release it"),
            tag("locks", "blocking locks with a URL of their own"),
            tag("leases", "leases with versions, metadata in headers"),
            tag("dss", "typed locks, many at once, all or nothing"),
            tag("see", "who holds what, events, metrics, health"),
        ],
        "paths": paths::all(),
        "components": {
            "schemas": schemas::all(),
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
        // Where access control is off, no key is needed.
        "security": [{}, { "key": [] }],
    })
}

fn tag(name: &str, description: &str) -> Value {
    json!({ "name": name, "description": description })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                found.extend(object.get("$ref").and_then(Value::as_str).map(ToString::to_string));
                object.values().for_each(|value| references(value, found));
            }
            Value::Array(array) => array.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = value();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 50, "{found:?}");
        for reference in found {
            assert!(document.pointer(&reference[1..]).is_some(), "{reference}");
        }
    }

    #[test]
    fn every_body_and_every_part_of_a_path_has_an_example() {
        let document = value();
        let paths = document["paths"].as_object().unwrap();
        for operation in paths.values().flat_map(|path| path.as_object().unwrap().values()) {
            let content = operation["requestBody"]["content"].as_object();
            let json = content.and_then(|content| content.get("application/json"));
            assert!(json.is_none_or(|json| json["example"].is_object()), "{operation}");
            for parameter in operation["parameters"].as_array().unwrap() {
                assert!(parameter["in"] != "path" || !parameter["example"].is_null(), "{parameter}");
            }
        }
    }

    #[test]
    fn operations_have_ids_of_their_own_and_tags_that_exist() {
        let document = value();
        let tags: Vec<&Value> = document["tags"].as_array().unwrap().iter().map(|tag| &tag["name"]).collect();
        let mut ids = std::collections::BTreeSet::new();
        for operation in document["paths"]
            .as_object()
            .unwrap()
            .values()
            .flat_map(|path| path.as_object().unwrap().values())
        {
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_string()), "{operation}");
            assert!(tags.contains(&&operation["tags"][0]), "{operation}");
        }
    }
}
