//! What a claim holds of a resource: all of it, a share of it, or some of its slots.
//!
//! In:    what the caller wants. Out: the words of a request, and what was granted.
//! Never: decides who fits beside whom; the server does.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::wire::ItemInfo;

/// How a resource is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// Nobody else holds any of it.
    #[default]
    Exclusive,
    /// Together with others that share it: readers beside readers.
    Shared,
    /// Some of a number of equal slots. The first claim sets the number; while anyone holds or wants slots, all name the same.
    Slots {
        /// How many are wanted.
        take: u32,
        /// How many there are.
        of: u32,
    },
}

impl Mode {
    pub(crate) fn is_exclusive(self) -> bool {
        self == Self::Exclusive
    }

    /// Adds its words to a request.
    pub(crate) fn write(self, body: &mut Map<String, Value>) {
        match self {
            Self::Exclusive => {}
            Self::Shared => drop(body.insert("mode".into(), json!("shared"))),
            Self::Slots { take, of } => {
                body.insert("take".into(), json!(take));
                body.insert("of".into(), json!(of));
            }
        }
    }
}

/// One resource of a claim, and how it is wanted. A name alone is wanted exclusively.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct Item {
    /// What to hold.
    pub resource: String,
    /// How.
    pub mode: Mode,
}

impl Item {
    /// Held alone.
    pub fn exclusive(resource: impl Into<String>) -> Self {
        Self { resource: resource.into(), mode: Mode::Exclusive }
    }

    /// Held together with others that share it.
    pub fn shared(resource: impl Into<String>) -> Self {
        Self { resource: resource.into(), mode: Mode::Shared }
    }

    /// Some of its slots.
    pub fn slots(resource: impl Into<String>, take: u32, of: u32) -> Self {
        Self { resource: resource.into(), mode: Mode::Slots { take, of } }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let invalid = |what: String| Err(Error::Invalid(what));
        match self.mode {
            _ if self.resource.is_empty() => invalid("the name of a resource must not be empty".into()),
            Mode::Slots { take: 0, .. } => {
                invalid(format!("0 slots of '{}' are asked for: take at least 1", self.resource))
            }
            Mode::Slots { take, of } if take > of => invalid(format!(
                "{take} of {of} slots of '{}' are asked for: take at most {of}",
                self.resource
            )),
            _ => Ok(()),
        }
    }

    /// As a member of `resources`.
    fn to_json(&self) -> Value {
        if self.mode.is_exclusive() {
            return json!(self.resource);
        }
        let mut body = Map::from_iter([("resource".to_string(), json!(self.resource))]);
        self.mode.write(&mut body);
        Value::Object(body)
    }
}

impl From<&str> for Item {
    fn from(resource: &str) -> Self {
        Self::exclusive(resource)
    }
}

impl From<String> for Item {
    fn from(resource: String) -> Self {
        Self::exclusive(resource)
    }
}

/// The words of a request for these items.
pub(crate) fn write(items: &[Item], body: &mut Map<String, Value>) {
    match items {
        [item] => {
            body.insert("resource".into(), json!(item.resource));
            item.mode.write(body);
        }
        items => drop(body.insert("resources".into(), items.iter().map(Item::to_json).collect())),
    }
}

/// One resource of a claim as it was granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GrantedItem {
    /// What is held.
    pub resource: String,
    /// `exclusive`, `shared` or `slots`.
    pub mode: String,
    /// The numbers of the slots, from 1; none unless slots were wanted.
    pub slots: Vec<u32>,
    /// The fencing token for this resource.
    pub token: Option<u64>,
}

/// What was granted, as the server says. A server that names no items granted what was asked for.
pub(crate) fn granted(wanted: &[Item], told: &[ItemInfo], token: Option<u64>) -> Vec<GrantedItem> {
    let with = |item: &Item, told: Option<&ItemInfo>| GrantedItem {
        resource: item.resource.clone(),
        mode: match item.mode {
            Mode::Exclusive => "exclusive".into(),
            Mode::Shared => "shared".into(),
            Mode::Slots { .. } => "slots".into(),
        },
        slots: told.and_then(|told| told.slots.clone()).unwrap_or_default(),
        token: told.map_or(token, |told| told.token),
    };
    let find = |item: &Item| told.iter().find(|told| told.resource == item.resource);
    wanted.iter().map(|item| with(item, find(item))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(items: &[Item]) -> String {
        let mut body = Map::new();
        write(items, &mut body);
        Value::Object(body).to_string()
    }

    #[test]
    fn a_plain_claim_has_no_new_words() {
        assert_eq!(body(&["r".into()]), r#"{"resource":"r"}"#);
        assert_eq!(body(&[Item::shared("r")]), r#"{"mode":"shared","resource":"r"}"#);
        assert_eq!(body(&[Item::slots("r", 1, 5)]), r#"{"of":5,"resource":"r","take":1}"#);
        let set = ["a".into(), Item::shared("b"), Item::slots("c", 2, 8)];
        let resources =
            r#"{"resources":["a",{"mode":"shared","resource":"b"},{"of":8,"resource":"c","take":2}]}"#;
        assert_eq!(body(&set), resources);
    }

    #[test]
    fn slots_that_hold_nothing_or_too_much_are_named() {
        assert!(Item::slots("r", 0, 5).check().is_err());
        assert!(Item::slots("r", 6, 5).check().unwrap_err().to_string().contains("at most 5"));
        assert!(Item::slots("r", 5, 5).check().is_ok());
    }
}
