//! `tests/c/suite.c`: every call, plainly, linked statically, and under valgrind.

use std::process::Command;

use leasehold_lab::port::Port;

use crate::harness::{Certificate, Link, Server, compile, finish, installed, run, source, spawn, valgrind};

#[test]
fn what_make_install_installs_has_no_debugging_symbols() {
    for file in ["bin/leasehold", "lib/libleasehold_dss.so", "lib/libleasehold_dss.a"] {
        let mut command = Command::new("readelf");
        command.args(["--sections", "--wide"]).arg(installed(file));
        let sections = run(command);
        assert!(sections.contains(".text") && !sections.contains(".debug_info"), "{file}");
    }
}

#[test]
fn every_call_works_with_the_shared_library() {
    let program = compile(&source("suite.c"), "suite", Link::Shared);
    let needed = run({
        let mut command = Command::new("readelf");
        command.arg("-d").arg(&program);
        command
    });
    assert!(needed.contains("libleasehold_dss.so.0"), "{needed}");
    let server = Server::start();
    let mut command = Command::new(program);
    command.arg(server.url());
    // Nothing but what the program itself prints.
    let output = spawn(command).wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((&*String::from_utf8_lossy(&output.stdout), &*stderr), ("all is well\n", ""));
    assert!(output.status.success());
}

#[test]
fn every_call_works_with_the_static_library() {
    let program = compile(&source("suite.c"), "suite-static", Link::Static);
    let server = Server::start();
    let mut command = Command::new(program);
    command.arg(server.url());
    assert_eq!(finish(spawn(command), "the suite"), "all is well\n");
}

#[test]
fn every_call_is_clean_under_valgrind() {
    let program = compile(&source("suite.c"), "suite-valgrind", Link::Shared);
    let server = Server::start();
    let mut command = valgrind(&program);
    command.arg(server.url()).arg("3");
    assert_eq!(finish(spawn(command), "the suite under valgrind"), "all is well\n");
}

/// Over TLS, in forked children too, with an address before the right one at which nobody listens.
fn runs_over_tls(mut command: Command) {
    let certificate = Certificate::new("IP:127.0.0.1", "+0s");
    let (server, nobody) = (Server::start_secure(&certificate), Port::reserve().unwrap());
    command.arg(format!("http://{},{}", nobody.addr, server.url()));
    command.env("LEASEHOLD_CACERT", certificate.pem());
    assert_eq!(finish(spawn(command), "the program over TLS"), "all is well\n");
}

#[test]
fn every_call_works_over_tls_behind_a_dead_address() {
    runs_over_tls(Command::new(compile(&source("suite.c"), "suite-tls", Link::Shared)));
}

#[test]
fn calls_over_tls_before_and_after_fork_are_clean_under_valgrind() {
    // A whole suite with unoptimised cryptography takes valgrind minutes.
    runs_over_tls(valgrind(&compile(&source("fork.c"), "fork-valgrind", Link::Shared)));
}

#[test]
fn a_hostname_without_memory_is_enomem_and_spoils_nothing_else() {
    let program = compile(&source("nomem.c"), "nomem", Link::Shared);
    let server = Server::start();
    let mut command = Command::new(program);
    command.arg(server.url());
    assert_eq!(finish(spawn(command), "the program without memory"), "all is well\n");
}

#[test]
fn the_header_is_good_c_and_good_cpp_by_itself() {
    for (compiler, language) in [("cc", "c"), ("c++", "c++")] {
        let mut command = Command::new(compiler);
        command.args(["-x", language, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]);
        command.arg(installed("include/leasehold_dss.h"));
        run(command);
    }
}
