//! What a claim wants to hold: `resource` or `resources`, `mode`, `take` and `of`, and `session`.
//!
//! In:    the members of a request's body. Out: the items of a set; or, by parameter, everything that is wrong with them.
//! Never: stops at the first mistake, and never decides who may hold what: the table does.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_core::limits::{ITEMS_MAX, RESOURCE_LEN_MAX, SESSION_LEN_MAX, SLOTS_MAX};
use leasehold_core::{Item, Mode};
use serde_json::value::RawValue;

use super::parse::{MemberList, Mistakes, members};
use crate::api::session_name::OF_OWNER;

/// The words that make a claim more than a plain one.
const SET_WORDS: [&str; 5] = ["resources", "mode", "take", "of", "session"];
/// The words of one item.
const ITEM_WORDS: [&str; 4] = ["resource", "mode", "take", "of"];

/// What a claim wants to hold, beyond one resource exclusively.
pub(super) struct SetBody {
    pub(super) items: Vec<Item>,
    pub(super) session: Option<Arc<str>>,
    /// Withdrawn when nobody asks for it while it waits: a plain exclusive claim with a session is not.
    pub(super) lapses: bool,
}

/// The set that a request asks for; `None` if it uses none of the words, or if something is wrong with them.
pub(super) fn set(given: &MemberList<'_>, mistakes: &mut Mistakes) -> Option<SetBody> {
    if !given.iter().any(|(name, _)| SET_WORDS.contains(&name.as_str())) {
        return None;
    }
    let session = value(given, "session").and_then(|session| read_session(session, mistakes));
    let (items, any_mode) = match value(given, "resources") {
        Some(list) => {
            let alone = "goes with `resource` only; in `resources`, each item has its own";
            for name in ["mode", "take", "of"].into_iter().filter(|name| value(given, name).is_some()) {
                mistakes.insert(name.into(), alone.into());
            }
            read_list(list, mistakes)?
        }
        None => {
            let mode = read_mode(given, "", mistakes);
            let resource = value(given, "resource").and_then(text)?;
            let any_mode = value(given, "mode").or(value(given, "take")).is_some();
            (vec![Item { resource: (*resource).into(), mode: mode? }], any_mode)
        }
    };
    let lapses = items.len() > 1 || any_mode;
    Some(SetBody { items, session, lapses })
}

/// The value of a member, if it is given.
fn value<'a>(given: &MemberList<'a>, wanted: &str) -> Option<&'a RawValue> {
    given.iter().find(|(name, _)| name == wanted).map(|(_, value)| *value)
}

fn text(value: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str(value.get()).ok()
}

/// A session is a path: its ancestors are the sessions that it was started from.
fn read_session(session: &RawValue, mistakes: &mut Mistakes) -> Option<Arc<str>> {
    let mistake = match text(session) {
        None => "must be a string".into(),
        Some(path) if path.len() > SESSION_LEN_MAX => {
            format!("must be at most {SESSION_LEN_MAX} bytes long, and is {}", path.len())
        }
        Some(path) if path.split('/').any(str::is_empty) || path.starts_with(OF_OWNER) => {
            format!(
                "must be names separated by single slashes, like 'worker-7' or 'worker-7/build', and not start with '{OF_OWNER}'"
            )
        }
        Some(path) => return Some((*path).into()),
    };
    mistakes.insert("session".into(), mistake);
    None
}

/// The items of a list, and whether any of them says how it is wanted.
fn read_list(list: &RawValue, mistakes: &mut Mistakes) -> Option<(Vec<Item>, bool)> {
    let wrong = |mistakes: &mut Mistakes, why: String| {
        mistakes.insert("resources".into(), why);
        None
    };
    let Ok(elements) = serde_json::from_str::<Vec<&RawValue>>(list.get()) else {
        return wrong(mistakes, "must be a list of resources, each a string or an object".into());
    };
    if !(1..=ITEMS_MAX).contains(&elements.len()) {
        return wrong(
            mistakes,
            format!("must name 1 to {ITEMS_MAX} resources, and names {}", elements.len()),
        );
    }
    let mut any_mode = false;
    let items: Vec<Option<Item>> = elements
        .iter()
        .enumerate()
        .map(|(place, element)| read_element(element, place, &mut any_mode, mistakes))
        .collect();
    let mut first: BTreeMap<Arc<str>, usize> = BTreeMap::new();
    for (place, item) in items.iter().enumerate().filter_map(|(place, item)| Some((place, item.as_ref()?))) {
        match first.get(&item.resource) {
            None => drop(first.insert(item.resource.clone(), place)),
            Some(other) => {
                let why = format!("names the same resource as resources[{other}]; each may be named once");
                mistakes.insert(format!("resources[{place}]"), why);
            }
        }
    }
    items.into_iter().collect::<Option<_>>().map(|items| (items, any_mode))
}

/// A name, or an object with the words of an item.
fn read_element(
    element: &RawValue,
    place: usize,
    any_mode: &mut bool,
    mistakes: &mut Mistakes,
) -> Option<Item> {
    let key = format!("resources[{place}]");
    if let Some(name) = text(element) {
        return read_resource(&name, &key, mistakes).map(|resource| Item { resource, mode: Mode::Exclusive });
    }
    let Ok((given, doubled)) = members(element.get().as_bytes()) else {
        mistakes
            .insert(key, "must be a resource's name, or an object with resource, mode, take and of".into());
        return None;
    };
    let within = format!("{key}.");
    mistakes.extend(doubled.into_iter().map(|(name, mistake)| (format!("{within}{name}"), mistake)));
    for (name, _) in given.iter().filter(|(name, _)| !ITEM_WORDS.contains(&name.as_str())) {
        let why = "unknown parameter; an item takes resource, mode, take and of";
        mistakes.insert(format!("{within}{name}"), why.into());
    }
    let resource_key = format!("{within}resource");
    let resource = match value(&given, "resource").map(text) {
        Some(Some(name)) => read_resource(&name, &resource_key, mistakes),
        found => {
            let why = if found.is_some() { "must be a string" } else { "is missing; it is mandatory" };
            mistakes.insert(resource_key, why.into());
            None
        }
    };
    *any_mode |= value(&given, "mode").or(value(&given, "take")).is_some();
    let mode = read_mode(&given, &within, mistakes);
    Some(Item { resource: resource?, mode: mode? })
}

fn read_resource(name: &str, key: &str, mistakes: &mut Mistakes) -> Option<Arc<str>> {
    match resource_mistake(name) {
        None => Some(name.into()),
        Some(mistake) => {
            mistakes.insert(key.into(), mistake);
            None
        }
    }
}

/// What is wrong with a resource's name.
pub(super) fn resource_mistake(resource: &str) -> Option<String> {
    match resource.len() {
        0 => Some("must not be empty".into()),
        len if len > RESOURCE_LEN_MAX => {
            Some(format!("must be at most {RESOURCE_LEN_MAX} bytes long, and is {len}"))
        }
        _ => None,
    }
}

/// How an item is wanted: `mode`, or `take` and `of`. `within` stands before the names of its parameters.
fn read_mode(given: &MemberList<'_>, within: &str, mistakes: &mut Mistakes) -> Option<Mode> {
    let before = mistakes.len();
    let mut wrong = |name: &str, why: String| {
        mistakes.insert(format!("{within}{name}"), why);
    };
    let mut number = |name: &str| {
        let number = serde_json::from_str::<u16>(value(given, name)?.get()).unwrap_or(0);
        if number == 0 || number > SLOTS_MAX {
            wrong(name, format!("must be a whole number from 1 to {SLOTS_MAX}"));
            return None;
        }
        Some(number)
    };
    let (take, of) = (number("take"), number("of"));
    let [takes, has_of] = ["take", "of"].map(|name| value(given, name).is_some());
    match (take, of) {
        (Some(take), Some(of)) if take > of => wrong("take", format!("must be at most `of`, which is {of}")),
        _ if takes && !has_of => {
            wrong("of", "is missing; `take` 1 `of` 5 takes one of the resource's five slots".into());
        }
        _ if has_of && !takes => {
            wrong("take", "is missing; `of` needs the number of slots to take".into());
        }
        _ => {}
    }
    let slots = || Some(Mode::Slots { take: take?, of: of? });
    let mode = match value(given, "mode").map(|mode| text(mode).unwrap_or_default()) {
        None if takes || has_of => slots(),
        None => Some(Mode::Exclusive),
        Some(word) => match (&*word, takes || has_of) {
            ("exclusive", false) => Some(Mode::Exclusive),
            ("shared", false) => Some(Mode::Shared),
            ("slots", true) => slots(),
            ("slots", false) => {
                wrong("mode", "'slots' needs `take` and `of`".into());
                None
            }
            ("exclusive" | "shared", true) => {
                wrong("mode", format!("'{word}' can't be given with `take` and `of`, which ask for slots"));
                None
            }
            _ => {
                wrong(
                    "mode",
                    "must be 'exclusive' or 'shared'; slots are asked for by `take` and `of`".into(),
                );
                None
            }
        },
    };
    mode.filter(|_| mistakes.len() == before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> (Option<SetBody>, Vec<String>) {
        let (given, mut mistakes) = members(body.as_bytes()).unwrap();
        let set = set(&given, &mut mistakes);
        (set, mistakes.into_keys().collect())
    }

    #[test]
    fn a_plain_claim_is_no_set() {
        let (set, mistakes) = read(r#"{"resource": "r", "ttl": 1, "user_data": {"mode": "x"}}"#);
        assert!(set.is_none() && mistakes.is_empty());
    }

    #[test]
    fn names_and_objects_stand_in_one_list() {
        let list = r#"{"resources": ["a", {"resource": "b", "mode": "shared"}, {"resource": "c", "take": 2, "of": 8}]}"#;
        let (set, mistakes) = read(list);
        let set = set.unwrap();
        assert!(mistakes.is_empty() && set.lapses && set.session.is_none());
        let items: Vec<(&str, Mode)> = set.items.iter().map(|item| (&*item.resource, item.mode)).collect();
        let slots = Mode::Slots { take: 2, of: 8 };
        assert_eq!(items, [("a", Mode::Exclusive), ("b", Mode::Shared), ("c", slots)]);
    }

    #[test]
    fn a_session_alone_lets_nothing_lapse() {
        for body in [r#"{"resource": "r", "session": "a/b"}"#, r#"{"resources": ["r"], "session": "a/b"}"#] {
            let (set, mistakes) = read(body);
            assert!(mistakes.is_empty() && !set.unwrap().lapses, "{body}");
        }
        for body in [r#"{"resource": "r", "mode": "exclusive"}"#, r#"{"resource": "r", "take": 1, "of": 1}"#]
        {
            assert!(read(body).0.unwrap().lapses, "{body}");
        }
    }

    #[test]
    fn every_mistake_is_named() {
        for (body, wrong) in [
            (r#"{"resource": "r", "mode": "both", "session": "a//b"}"#, vec!["mode", "session"]),
            (r#"{"resource": "r", "mode": "shared", "take": 1, "of": 2}"#, vec!["mode"]),
            (r#"{"resource": "r", "mode": "slots"}"#, vec!["mode"]),
            (r#"{"resource": "r", "take": 1}"#, vec!["of"]),
            (r#"{"resource": "r", "of": 1}"#, vec!["take"]),
            (r#"{"resource": "r", "take": 6, "of": 5}"#, vec!["take"]),
            (r#"{"resource": "r", "take": 0, "of": 1.5}"#, vec!["of", "take"]),
            (r#"{"resource": "r", "take": null, "of": 70000, "mode": 7}"#, vec!["mode", "of", "take"]),
            (r#"{"resources": [], "mode": "shared"}"#, vec!["mode", "resources"]),
            (r#"{"resources": "r"}"#, vec!["resources"]),
            (
                r#"{"resources": ["", 7, {"resource": "a", "color": 1, "take": 3, "of": 2}, {"mode": "shared"}, "b", "b"]}"#,
                vec![
                    "resources[0]",
                    "resources[1]",
                    "resources[2].color",
                    "resources[2].take",
                    "resources[3].resource",
                    "resources[5]",
                ],
            ),
        ] {
            assert_eq!(read(body).1, wrong, "{body}");
        }
    }
}
