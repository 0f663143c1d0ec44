//! The manual's example is a program that runs, and prints what the manual says.

use std::process::Command;

use crate::harness::{Link, Server, compile, finish, spawn, temp_path, valgrind};

const MANUAL: &str = include_str!("../../../../docs/typed-locks.md");

/// The first block of this language that has this in it.
fn block(language: &str, with: &str) -> &'static str {
    let opening = format!("```{language}\n");
    let blocks = MANUAL.split(&opening).skip(1).map(|rest| rest.split("```").next().unwrap());
    let found = blocks.into_iter().find(|text| text.contains(with));
    found.unwrap()
}

#[test]
fn the_example_of_the_manual_does_what_the_manual_says() {
    let source = temp_path("example").with_extension("c");
    std::fs::write(&source, block("c", "int main(")).unwrap();
    let program = compile(&source, "example", Link::Shared);
    std::fs::remove_file(&source).ok();
    for mut command in [Command::new(&program), valgrind(&program)] {
        let server = Server::start();
        command.env("LEASEHOLD_ADDR", server.url());
        let child = spawn(command);
        let said = block("text", "unlocked").replace("4711", &child.id().to_string());
        let said = said.replace("node17", &leasehold_dss::hostname().unwrap());
        assert_eq!(finish(child, "the example"), said);
    }
}

#[test]
fn every_call_of_the_header_is_in_the_manual() {
    let header = include_str!("../../include/leasehold_dss.h");
    let calls = header.lines().filter(|line| line.starts_with("int ") || line.starts_with("void "));
    let names: Vec<&str> = calls.map(|line| line.split(['(', ' ']).nth(1).unwrap()).collect();
    assert_eq!(names.len(), 8, "{names:?}");
    assert!(names.iter().all(|name| MANUAL.contains(&format!("| `{name}("))), "{names:?}");
}
