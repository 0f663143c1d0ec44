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
    "config",
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
    ("api", "http", "a call does not know how it came in"),
];

/// Crates of the product, from the lowest to the highest.
const CRATES: &[&str] = &["core", "engine", "server", "cli"];

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

/// The first name behind `crate::` in each place of a line.
fn used(line: &str) -> impl Iterator<Item = &str> {
    let is_name = |letter: char| letter.is_ascii_lowercase() || letter == '_' || letter.is_ascii_digit();
    line.split("crate::")
        .skip(1)
        .map(move |rest| &rest[..rest.find(|letter| !is_name(letter)).unwrap_or(rest.len())])
}

#[test]
fn every_module_uses_only_those_below_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 50, "the source was not found: {files:?}");
    let mut mistakes = Vec::new();
    for file in files {
        let inside = file.strip_prefix(&root).unwrap();
        let name = inside.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
        if name == "lib" {
            continue;
        }
        let place = LAYERS.iter().position(|layer| *layer == name);
        let place = place.unwrap_or_else(|| panic!("{name} has no place among the layers: give it one"));
        let text = fs::read_to_string(&file).unwrap();
        // Tests may look up: they hold a module against those that use it.
        let text = text.split("#[cfg(test)]").next().unwrap();
        for (number, line) in
            text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
        {
            for other in used(line).filter(|other| *other != name) {
                let above = LAYERS.iter().position(|layer| *layer == other).is_none_or(|other| other > place);
                let stranger = STRANGERS.iter().find(|(one, two, _)| (*one, *two) == (name, other));
                if above || stranger.is_some() {
                    let why = stranger.map_or("it is above", |(_, _, why)| why);
                    mistakes.push(format!("{}:{}: {name} uses {other}: {why}", inside.display(), number + 1));
                }
            }
        }
    }
    assert!(mistakes.is_empty(), "\n{}", mistakes.join("\n"));
}

#[test]
fn our_http_1_knows_nothing_of_this_service() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/http1"), &mut files);
    assert!(files.len() >= 4, "the source was not found: {files:?}");
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
