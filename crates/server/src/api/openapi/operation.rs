//! One operation of the document, put together step by step.
//!
//! In:    what a call takes and answers. Out: an OpenAPI operation object.
//! Never: knows a path.

use serde_json::{Map, Value, json};

use super::examples;

/// An operation in the making.
pub(super) struct Operation {
    tag: &'static str,
    id: &'static str,
    summary: &'static str,
    parameters: Vec<Value>,
    body: Option<Value>,
    responses: Map<String, Value>,
}

/// A reference to a schema by its name.
pub(super) fn schema(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

impl Operation {
    pub(super) fn new(tag: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self { tag, id, summary, parameters: Vec::new(), body: None, responses: Map::new() }
    }

    /// A parameter in the path, whose name stands in braces there.
    pub(super) fn path(self, name: &str, schema: Value, about: &str) -> Self {
        self.parameter("path", name, true, schema, about)
    }

    pub(super) fn query(self, name: &str, schema: Value, about: &str) -> Self {
        self.parameter("query", name, false, schema, about)
    }

    pub(super) fn header(self, name: &str, schema: Value, about: &str) -> Self {
        self.parameter("header", name, false, schema, about)
    }

    fn parameter(mut self, place: &str, name: &str, required: bool, schema: Value, about: &str) -> Self {
        let mut parameter = json!({
            "in": place, "name": name, "required": required, "schema": schema, "description": about,
        });
        if let Some(example) = examples::parameter(name).filter(|_| place != "query") {
            parameter["example"] = example;
        }
        self.parameters.push(parameter);
        self
    }

    /// A mandatory JSON body; and what any body can be refused for.
    pub(super) fn json(mut self, name: &str) -> Self {
        self.body = Some(json!({
            "required": true,
            "content": { "application/json": { "schema": schema(name), "example": examples::body(name) } },
        }));
        self.refusals_of_bodies()
    }

    /// An optional body of any bytes.
    pub(super) fn bytes(mut self) -> Self {
        self.body = Some(json!({
            "required": false,
            "content": { "application/octet-stream": { "schema": { "type": "string", "maxLength": 4096 } } },
        }));
        self.refusals_of_bodies()
    }

    fn refusals_of_bodies(self) -> Self {
        self.problem(408, "The body did not arrive in time.")
            .problem(413, "The body is too large.")
            .problem(415, "The body has a Content-Encoding.")
    }

    /// An answer without a body.
    pub(super) fn empty(self, status: u16, about: &str) -> Self {
        self.response(status, json!({ "description": about }))
    }

    /// An answer whose body has this schema.
    pub(super) fn answer(self, status: u16, about: &str, content_type: &str, schema: Value) -> Self {
        self.response(
            status,
            json!({ "description": about, "content": { content_type: { "schema": schema } } }),
        )
    }

    /// The same, in any of several media types.
    pub(super) fn any(self, status: u16, about: &str, content: Value) -> Self {
        self.response(status, json!({ "description": about, "content": content }))
    }

    pub(super) fn problem(self, status: u16, about: &str) -> Self {
        self.answer(status, about, "application/problem+json", schema("Problem"))
    }

    /// 400 whose keys name the parameters that are wrong.
    pub(super) fn mistakes(self) -> Self {
        let content = json!({
            "application/json": { "schema": schema("Mistakes") },
            "application/problem+json": { "schema": schema("Problem") },
        });
        self.any(400, "Each key names a parameter, its value says what is wrong with it.", content)
    }

    /// What any call that asks the engine can be told.
    pub(super) fn engine(self) -> Self {
        self.engine_or_503()
            .problem(503, "No leader, overloaded or stopping: it certainly did not happen, try again.")
            .problem(504, "The outcome is unknown: it may have happened, or may yet.")
    }

    /// The same in the dialect that has one status for both: a header tells them apart.
    pub(super) fn engine_or_503(self) -> Self {
        let about = "No quorum. It certainly did not happen, unless the header `Leasehold-Outcome: unknown` says that \
                     it may have.";
        self.problem(401, "Credentials are needed.")
            .problem(429, "Too many claims in this queue, of this owner or in this namespace.")
            .problem(503, about)
            .problem(507, "The disk or the table is full: nothing happened.")
    }

    fn response(mut self, status: u16, mut response: Value) -> Self {
        // A later description of the same status adds its media types.
        if let Some(before) = self.responses.get(&status.to_string())
            && let (Some(known), Some(new)) = (before.get("content"), response.get_mut("content"))
            && let (Some(known), Some(new)) = (known.as_object(), new.as_object_mut())
        {
            known.iter().for_each(|(name, media)| drop(new.insert(name.clone(), media.clone())));
        }
        self.responses.insert(status.to_string(), response);
        self
    }

    /// The operation object.
    pub(super) fn build(self) -> Value {
        let mut operation = json!({
            "tags": [self.tag],
            "operationId": self.id,
            "summary": self.summary,
            "parameters": self.parameters,
            "responses": self.responses,
        });
        if let Some(body) = self.body {
            operation["requestBody"] = body;
        }
        operation
    }
}
