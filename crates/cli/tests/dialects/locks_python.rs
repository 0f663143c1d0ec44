//! The Python example of docs/locks.md runs as it stands there, with the real `requests` library.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::common::Server;

/// A Python that has `requests`; looked for, and if need be made, once for all tests.
fn python() -> &'static PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(find_python)
}

/// The system's, or one of our own beside the build.
fn find_python() -> PathBuf {
    let has_requests = |python: &PathBuf| {
        Command::new(python).args(["-c", "import requests"]).output().is_ok_and(|out| out.status.success())
    };
    let system = PathBuf::from("python3");
    if has_requests(&system) {
        return system;
    }
    let venv = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("requests-venv");
    let own = venv.join("bin/python");
    if !has_requests(&own) {
        let made = Command::new("python3").args(["-m", "venv"]).arg(&venv).status();
        assert!(made.is_ok_and(|status| status.success()), "python3 with its venv module is needed");
        let pip = Command::new(&own).args(["-m", "pip", "install", "--quiet", "requests==2.32.3"]).status();
        assert!(pip.is_ok_and(|status| status.success()), "the library requests could not be installed");
    }
    own
}

fn run(server: &Server, script: &str) {
    let output = Command::new(python())
        .args(["-c", script])
        .env("BASE_URL", format!("http://{}", server.addr))
        .env("NO_PROXY", "*")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}\n{}", script, String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_example_of_the_documentation_works() {
    let docs = include_str!("../../../../docs/locks.md");
    let example = docs.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    run(&Server::start(), example);
}

#[test]
fn a_script_for_the_older_server_works() {
    let script = r#"
import json, os, requests, threading
BASE_URL = os.environ["BASE_URL"]
def post(wait):
    body = json.dumps({"title": "just an indicative client title", "lifetime": 300, "wait": wait})
    return requests.post("%s/active_locks/%s" % (BASE_URL, "resource1"), data=body)
r = post(20)
assert r.status_code == 201 and r.text == ""
lock_url = r.headers["Location"]
assert lock_url.startswith(BASE_URL + "/locks/resource1/")
assert post(0.2).status_code == 408
answers = []
waiting = threading.Thread(target=lambda: answers.append(post(60)))
waiting.start()
while len(requests.get(BASE_URL + "/resources/resource1").json()["_embedded"]["locks"]) < 2: pass
assert requests.delete(lock_url).status_code == 204
waiting.join()
assert answers[0].status_code == 201
assert requests.delete(lock_url).status_code == 404
session = requests.Session()
assert session.get(answers[0].headers["Location"]).json()["title"] == "just an indicative client title"
assert session.delete(answers[0].headers["Location"]).status_code == 204
"#;
    run(&Server::start(), script);
}
