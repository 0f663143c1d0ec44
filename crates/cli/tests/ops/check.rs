//! `leasehold serve --check`, and mistakes that keep a node from starting.

use std::fs;

use crate::common::{Server, TempDir};
use crate::support::{leasehold, make_key};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What `serve --check` prints with these flags.
fn check(args: &[&str]) -> String {
    let output = leasehold(&[&["serve", "--check"], args].concat());
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

#[test]
fn check_prints_every_setting_with_the_value_that_holds_and_no_secret() {
    let dir = TempDir::new();
    make_key(dir.path(), "ci", "");
    let (file, data) = (dir.path().join("node.toml"), dir.path().join("data"));
    let keys = dir.path().join("keys.toml");
    fs::write(
        &file,
        format!("data = {data:?}\nqueue-len-max = 7\n[access]\nkeys = {keys:?}\n[[access.rule]]\nusers = [\"ci\"]\nresources = [\"ci\"]\nverbs = [\"claim\"]\n"),
    )
    .unwrap();
    let args = ["--config", file.to_str().unwrap(), "--node-id", "1", "--peers", "1=127.0.0.1:9"];
    let args =
        [&args[..], &["--cluster-secret", "a very secret text of the test", "--header-timeout", "12.5"]]
            .concat();
    let args = [&args[..], &["--backup-every", "1h", "--backup-dir", "backups"]].concat();
    let args = [&args[..], &["--advertise-url", "http://a.example:4080/"]].concat();
    let printed = check(&args);
    for line in [
        "queue-len-max = 7",
        "header-timeout = 12.5",
        "claims-max = 10000000",
        "listen = [\"127.0.0.1:4080\"]",
        "backup-every = \"3600s\"",
        "backup-keep = 24",
        "advertise-url = \"http://a.example:4080\"",
        "log-format = \"text\"",
        "heartbeat-ms = 128",
        "secret = \"(hidden)\"",
        "verbs = [\"claim\"]",
    ] {
        assert!(printed.lines().any(|found| found == line), "{line} is missing in\n{printed}");
    }
    assert!(!printed.contains("very secret"), "{printed}");
    assert!(!data.exists() && !dir.path().join("backups").exists(), "a check makes nothing");
    // What it printed is a file that means the same.
    let again = dir.path().join("again.toml");
    fs::write(&again, printed.replace("(hidden)", "a very secret text of the test")).unwrap();
    assert_eq!(check(&["--config", again.to_str().unwrap()]), printed);
    // Every flag is in it, unless it has no default and was not given.
    let help = text(&leasehold(&["serve", "--help"]).stdout);
    let flags = help.lines().filter_map(|line| line.trim().strip_prefix("--"));
    let flags: Vec<&str> = flags.filter_map(|line| line.split([' ', '[']).next()).collect();
    assert!(flags.len() > 40, "{flags:?}");
    let silent =
        ["config", "check", "access-keys", "memory-max-mib", "client-share", "audit", "otlp", "join"];
    for flag in flags.into_iter().filter(|flag| !silent.contains(flag) && !flag.contains("tls-")) {
        let name = flag.strip_prefix("cluster-").unwrap_or(flag);
        assert!(
            flag == "cluster-secret-file" || printed.contains(&format!("\n{name} = ")),
            "--{flag} is missing in\n{printed}"
        );
    }
}

#[test]
fn what_can_not_work_is_named_and_nothing_is_made() {
    let dir = TempDir::new();
    let data = dir.path().join("data");
    let path = |name: &str| dir.path().join(name).display().to_string();
    for (args, words) in [
        (vec!["--access-keys", "no-such-keys.toml"], "no-such-keys.toml: there is no such file"),
        (vec!["--tls-certificate", "no.pem", "--tls-key", "no.key"], "no.pem"),
        (vec!["--admin-userpass-file", "no-users"], "no-users"),
        (vec!["--backup-every", "soon", "--backup-dir", "b"], "backup-every"),
        (vec!["--backup-every", "1h"], "backup-dir"),
        (vec!["--otlp", "http://collector.example.org:4318"], "must start with https://"),
        (vec!["--log-format", "xml"], "'text' or 'json'"),
        (
            vec!["--advertise-url", "a.example:4080"],
            "advertise-url: 'a.example:4080' is not of the form http://HOST:PORT",
        ),
        (
            vec!["--advertise-url", "http://0.0.0.0:4080"],
            "advertise-url: 'http://0.0.0.0:4080': nobody can connect to 0.0.0.0",
        ),
    ] {
        let output = leasehold(&[&["serve", "--check", "--data", &path("data")], &args[..]].concat());
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{args:?}: {output:?}");
        assert!(!data.exists());
    }
}

/// A node without its keys would refuse everybody, and nobody would know why.
#[test]
fn a_key_file_that_does_not_exist_is_an_error_at_the_start() {
    let dir = TempDir::new();
    let keys = dir.path().join("keys.toml");
    let args = ["--access-keys", keys.to_str().unwrap()];
    let said = Server::try_start_in(&dir.path().join("data"), &args).err().expect("it must not start");
    assert!(said.contains("there is no such file") && said.contains("leasehold access key make"), "{said}");
    make_key(dir.path(), "ci", "");
    Server::start_in(&dir.path().join("data"), &args);
}
