//! `/openapi.json` against the running service, by a property-based tester: no server error, no undocumented answer.

use std::path::PathBuf;
use std::process::Command;

use crate::common::Server;
use serde_json::{Value, json};

/// The tester and its exact version.
const TESTER: &str = "schemathesis==4.32.5";

/// `schemathesis`, in a Python environment of its own beside the build; made once.
fn schemathesis() -> PathBuf {
    let venv = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("schemathesis-venv");
    let program = venv.join("bin/schemathesis");
    if !Command::new(&program).arg("--version").output().is_ok_and(|output| output.status.success()) {
        let made = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv).status();
        assert!(made.is_ok_and(|status| status.success()), "python3 with its venv module is needed");
        let pip =
            Command::new(venv.join("bin/python")).args(["-m", "pip", "install", "--quiet", TESTER]).status();
        assert!(pip.is_ok_and(|status| status.success()), "{TESTER} could not be installed from PyPI");
    }
    program
}

/// What every answer must be like.
const CHECKS: &str =
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// Calls that wait for as long as they are asked to: the tester would wait with them.
const BLOCKING: [&str; 2] = ["/locks/{resource}", "/active_locks/{resource}"];

/// Runs the tester with this document; `known`: what exists, as its configuration.
fn run(server: &Server, document: &Value, mode: &str, known: &str) {
    let dir = crate::common::TempDir::new();
    std::fs::write(dir.path().join("openapi.json"), document.to_string()).unwrap();
    std::fs::write(dir.path().join("schemathesis.toml"), known).unwrap();
    let output = Command::new(schemathesis())
        .current_dir(dir.path())
        .args(["run", "openapi.json", "--url", &format!("http://{}", server.addr), "--checks", CHECKS])
        .args(["--phases", "fuzzing", "--mode", mode, "--max-examples", "6", "--workers", "2"])
        // A stream has no end, a change of the members waits for nodes that are not there, and a budget of zero bytes would
        // refuse all that follows: they have tests of their own.
        .args(["--exclude-path", "/v1/events", "--exclude-path-regex", "^/v1/cluster/"])
        .args(["--exclude-operation-id", "setLimit"])
        .args(["--request-timeout", "30", "--no-color"])
        .args(["--seed", &crate::common::seed().to_string()])
        .env("NO_PROXY", "*")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let generated =
        said.split(" generated, ").next().and_then(|before| before.split_whitespace().next_back());
    assert!(generated.unwrap().parse::<u32>().unwrap() >= 60, "{said}");
    assert_eq!(server.get("/livez").status, 200);
}

/// The parameters of every operation.
fn parameters(document: &mut Value) -> impl Iterator<Item = &mut Vec<Value>> {
    let paths = document["paths"].as_object_mut().unwrap().values_mut();
    let operations = paths.flat_map(|path| path.as_object_mut().unwrap().values_mut());
    operations.map(|operation| operation["parameters"].as_array_mut().unwrap())
}

#[test]
fn a_property_based_tester_finds_no_server_error_and_no_undocumented_answer() {
    let server = Server::start();
    let document = server.get("/openapi.json").json();
    // Some things must exist for the calls about them to get anywhere.
    let id_of = |path: String| path.trim_end_matches('/').rsplit('/').next().unwrap().to_string();
    let claim = id_of(server.claim("a/claim/that/exists", 600.0));
    let lock = server.post("/locks/exists", r#"{"title": "t", "lifetime": 600, "wait": 0}"#);
    let known = [
        ("/v1/claims/{id}/", format!("\"path.id\" = \"{claim}\"")),
        (
            "/locks/{resource}/{uid}",
            format!("\"path.resource\" = \"exists\"\n\"path.uid\" = \"{}\"", id_of(lock.location_path())),
        ),
        ("/v1/resources/{resource}", "\"path.resource\" = \"a%2Fclaim%2Fthat%2Fexists\"".into()),
    ];
    let known = known.map(|(path, set)| {
        format!("[[operations]]\ninclude-path = \"{path}\"\n[operations.parameters]\n{set}\n")
    });

    let mut patient = document.clone();
    patient["components"]["schemas"]["NewLock"]["properties"]["wait"]["maximum"] = json!(0.1);
    for wait in parameters(&mut patient).flatten().filter(|parameter| parameter["name"] == "wait") {
        wait["schema"]["maximum"] = json!(0.1);
    }
    run(&server, &patient, "positive", &known.concat());

    let mut wrong = document;
    BLOCKING.iter().for_each(|path| drop(wrong["paths"].as_object_mut().unwrap().remove(*path)));
    parameters(&mut wrong).for_each(|parameters| parameters.retain(|parameter| parameter["name"] != "wait"));
    run(&server, &wrong, "negative", &known.concat());
}

#[test]
fn the_document_says_what_the_service_is() {
    let server = Server::start();
    let reply = server.get("/openapi.json");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let document = reply.json();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    for (path, methods) in [
        ("/v1/claims/", 2),
        ("/v1/claims/{id}/", 3),
        ("/v1/renewals", 1),
        ("/locks/{resource}", 1),
        ("/locks/{resource}/{uid}", 2),
        ("/resources", 2),
        ("/v1/{namespace}/leases/{name}", 4),
        ("/v1/dss/{type}/lock", 1),
        ("/v1/events", 1),
        ("/metrics", 1),
    ] {
        assert_eq!(document["paths"][path].as_object().map(serde_json::Map::len), Some(methods), "{path}");
    }
}
