//! The manual's example is a program that runs.

use std::process::Command;

use crate::harness::{Link, Server, compile, finish, spawn, temp_path, valgrind};

#[test]
fn the_example_of_the_manual_compiles_and_runs_as_it_stands_there() {
    let manual = include_str!("../../../../docs/typed-locks.md");
    let examples: Vec<&str> =
        manual.split("```c\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let example = examples.iter().find(|text| text.contains("int main(")).expect("a whole program");
    let source = temp_path("example").with_extension("c");
    std::fs::write(&source, example).unwrap();
    let program = compile(&source, "example", Link::Shared);
    std::fs::remove_file(&source).ok();
    let server = Server::start();
    for mut command in [Command::new(&program), valgrind(&program)] {
        command.env("LEASEHOLD_ADDR", server.url());
        let output = finish(spawn(command), "the example");
        for line in output.lines() {
            assert!(
                manual.contains(line.split(" since ").next().unwrap().split(" by ").next().unwrap()),
                "{line}"
            );
        }
        assert!(output.ends_with("unlocked\n"), "{output}");
    }
}
