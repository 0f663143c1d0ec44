//! The layers stay where a reader sees them: modules use those below them, and nobody else.
//!
//! In:    the source of this crate and the manifests of all. Out: a failure that names the line.

use std::fs;
use std::path::{Path, PathBuf};

/// The modules of this crate, from the lowest to the highest. Each may use those before it.
const LAYERS: &[&str] = &[
    "pem",
    "message",
    "audit",
    "access",
    "observe",
    "http",
    "resp",
    "config",
    "backups",
    "withdrawal",
    "app",
    "api",
    "route",
    "dispatch",
    "serve",
];

/// Pairs that don't know each other although the order would allow it, and why.
const STRANGERS: &[(&str, &str, &str)] = &[
    ("http", "access", "a transport does not know who asks"),
    ("http", "audit", "a transport does not know what is asked for"),
    ("http", "observe", "a transport does not count"),
    ("resp", "message", "a transport knows bytes alone"),
    ("resp", "access", "a transport does not know who asks"),
    ("resp", "audit", "a transport does not know what is asked for"),
    ("resp", "observe", "a transport does not count"),
    ("api", "http", "a call does not know how it came in"),
];

/// Crates of the product, from the lowest to the highest.
const CRATES: &[&str] = &["core", "engine", "server", "cli"];

/// Crates that talk to the service over HTTP alone: they know none of its insides.
const OUTSIDE: &[&str] = &["client", "dss", "bench"];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a folder of sources") {
        let path = entry.expect("a folder of sources").path();
        match path.is_dir() {
            true => sources(&path, found),
            false if path.extension().is_some_and(|ending| ending == "rs") => found.push(path),
            false => {}
        }
    }
}

/// The modules that a line names: behind `crate::`, or behind as many `super::` as lead out of the file's own module.
fn used(line: &str, depth: usize) -> impl Iterator<Item = &str> {
    let is_name = |letter: char| letter.is_ascii_lowercase() || letter == '_' || letter.is_ascii_digit();
    let out = "super::".repeat(depth);
    let behind = |line: &'_ str, way: &str| -> Vec<usize> {
        line.match_indices(way).map(|(at, _)| at + way.len()).collect()
    };
    let mut starts = behind(line, "crate::");
    starts.extend(behind(line, &out));
    starts.into_iter().map(move |start| {
        let rest = &line[start..];
        &rest[..rest.find(|letter| !is_name(letter)).unwrap_or(rest.len())]
    })
}

/// What is wrong with the text of a file, whose path is inside `src`.
fn mistakes(inside: &Path, text: &str) -> Vec<String> {
    let parts = inside.iter().map(|part| part.to_str().expect("plain names").trim_end_matches(".rs"));
    let parts: Vec<&str> = parts.collect();
    let name = parts[0];
    // Tests may look up: they hold a module against those that use it.
    if name == "lib" || parts.last() == Some(&"tests") {
        return Vec::new();
    }
    let depth = parts.iter().filter(|part| **part != "mod").count();
    let place = LAYERS.iter().position(|layer| *layer == name);
    let place = place.unwrap_or_else(|| panic!("{name} has no place among the layers: give it one"));
    let code = text.find("#[cfg(test)]").map_or(text, |tests| &text[..tests]);
    let lines = code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
    let mut found = Vec::new();
    for (number, line) in lines {
        for other in used(line, depth).filter(|other| *other != name) {
            let above = LAYERS.iter().position(|layer| *layer == other).is_none_or(|other| other > place);
            let stranger = STRANGERS.iter().find(|(one, two, _)| (*one, *two) == (name, other));
            if above || stranger.is_some() {
                let why = stranger.map_or("it is above", |(_, _, why)| why);
                found.push(format!("{}:{}: {name} uses {other}: {why}", inside.display(), number + 1));
            }
        }
    }
    found
}

#[test]
fn every_module_uses_only_those_below_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 50, "the source was not found: {files:?}");
    let found: Vec<String> = files
        .iter()
        .flat_map(|file| mistakes(file.strip_prefix(&root).unwrap(), &fs::read_to_string(file).unwrap()))
        .collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn a_cycle_is_found_however_it_is_written() {
    let found = |inside: &str, line: &str| mistakes(Path::new(inside), line).len();
    for (inside, line) in [
        ("message/body.rs", "use crate::app::App;"),
        ("message/body.rs", "use super::super::app::App;"),
        ("message/mod.rs", "    let app: super::app::App;"),
        ("pem.rs", "use super::dispatch;"),
        ("pem.rs", "use crate::{dispatch, serve};"),
        ("app/pool.rs", "fn f() -> crate::api::claims::RequestHead {"),
        ("api/claims/wait.rs", "use super::super::super::dispatch::call;"),
        ("http/tls.rs", "use crate::access::Access;"),
    ] {
        assert_eq!(found(inside, line), 1, "{inside}: {line}");
    }
    for (inside, line) in [
        ("app/pool.rs", "use crate::message::Response;"),
        ("api/claims/wait.rs", "use super::parse_change::Patch;"),
        ("api/claims/wait.rs", "use super::super::refused::limit;"),
        ("route/tests.rs", "use crate::serve::run;"),
        ("pem.rs", "// see crate::dispatch"),
    ] {
        assert_eq!(found(inside, line), 0, "{inside}: {line}");
    }
}

#[test]
fn our_http_1_knows_nothing_of_this_service() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/http1"), &mut files);
    assert!(files.len() >= 5, "the source was not found: {files:?}");
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let mistake = text.lines().find(|line| line.contains("crate::") || line.contains("leasehold"));
        assert_eq!(mistake, None, "{}", file.display());
        // What its folder is in is the rest of the service, too.
        let supers = if file.ends_with("mod.rs") { "super::" } else { "super::super::" };
        let code = text.split("#[cfg(test)]").next().unwrap();
        assert!(!code.contains(supers), "{} looks above its folder", file.display());
    }
}

#[test]
fn every_crate_uses_only_those_below_it_and_only_the_engine_knows_openraft() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for (place, name) in CRATES.iter().enumerate() {
        let manifest = fs::read_to_string(crates.join(name).join("Cargo.toml")).unwrap();
        let product = manifest.split("[dev-dependencies]").next().unwrap();
        for above in &CRATES[place + 1..] {
            assert!(
                !product.contains(&format!("leasehold-{above}.")),
                "{name} uses {above}, which is above it"
            );
        }
        assert_eq!(product.contains("\nopenraft"), *name == "engine", "{name} and openraft");
        assert!(*name != "engine" || !product.contains("hyper"), "the engine knows no HTTP");
    }
}

#[test]
fn clients_and_the_load_generator_know_nothing_of_the_service_s_insides() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for name in OUTSIDE {
        let manifest = fs::read_to_string(crates.join(name).join("Cargo.toml")).unwrap();
        let product = manifest.split("[dev-dependencies]").next().unwrap();
        for inside in CRATES {
            assert!(!product.contains(&format!("leasehold-{inside}.")), "{name} uses {inside}");
        }
    }
}
