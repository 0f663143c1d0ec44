//! The header that C programs see is the one that the library's source gives.
//!
//! `LEASEHOLD_WRITE_HEADER=1 cargo test -p leasehold-dss --test header` writes it anew.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]

use std::path::Path;

#[test]
fn the_committed_header_is_generated_from_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let generated = cbindgen::Builder::new().with_config(config).with_src(root.join("src/lib.rs")).generate();
    let mut header = Vec::new();
    generated.unwrap().write(&mut header);
    let header = without_rust_words(&String::from_utf8(header).unwrap());
    let committed = root.join("include/leasehold_dss.h");
    if std::env::var_os("LEASEHOLD_WRITE_HEADER").is_some() {
        std::fs::write(&committed, &header).unwrap();
    }
    let committed = std::fs::read_to_string(committed).unwrap_or_default();
    assert!(
        committed == header,
        "include/leasehold_dss.h is out of date; LEASEHOLD_WRITE_HEADER=1 writes it"
    );
}

/// The sections on safety are for readers of the Rust source; C has no other functions.
fn without_rust_words(header: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut skipping = false;
    for line in header.lines() {
        if line.trim() == "* # Safety" {
            skipping = true;
            // The empty line before it goes too.
            while lines.last().is_some_and(|line| line.trim() == "*") {
                lines.pop();
            }
        }
        skipping &= line.trim() != "*/";
        if !skipping {
            lines.push(line);
        }
    }
    lines.join("\n") + "\n"
}
