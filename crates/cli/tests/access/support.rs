//! A server with access control, and callers with keys.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{Reply, Server, TempDir};

/// Runs `leasehold` with these arguments.
pub(crate) fn leasehold(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_leasehold")).args(args).output().unwrap()
}

/// A server whose configuration has an `[access]` part.
pub(crate) struct Guarded {
    pub(crate) server: Server,
    pub(crate) dir: TempDir,
    keys: BTreeMap<String, String>,
}

impl Guarded {
    /// With keys for these users (`name`, or `name:group,group`) and this text after `[access]` and its keys.
    pub(crate) fn start(users: &[&str], rest: &str) -> Self {
        Self::start_with(users, rest, &[])
    }

    /// The same, with flags.
    pub(crate) fn start_with(users: &[&str], rest: &str, flags: &[&str]) -> Self {
        let dir = TempDir::new();
        let keys = users.iter().map(|user| {
            let (name, groups) = user.split_once(':').unwrap_or((user, ""));
            (name.to_string(), make_key(dir.path(), name, groups))
        });
        let keys = keys.collect();
        let config = write_config(dir.path(), rest);
        let args = [&["--config", config.to_str().unwrap()], flags].concat();
        let server = Server::start_in(&dir.path().join("data"), &args);
        Self { server, dir, keys }
    }

    pub(crate) fn configure(&self, rest: &str) {
        write_config(self.dir.path(), rest);
    }

    /// The header with a user's key.
    pub(crate) fn key(&self, user: &str) -> String {
        format!("Bearer {}", self.bare_key(user))
    }

    pub(crate) fn bare_key(&self, user: &str) -> &str {
        self.keys.get(user).unwrap_or_else(|| panic!("{user} has no key"))
    }

    /// A request of this user; `""` has no credentials.
    pub(crate) fn ask(&self, user: &str, method: &str, path: &str, body: &str) -> Reply {
        self.ask_with(user, method, path, &[], body)
    }

    pub(crate) fn ask_with(
        &self,
        user: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Reply {
        let key = if user.is_empty() { String::new() } else { self.key(user) };
        let credentials: &[(&str, &str)] = if user.is_empty() { &[] } else { &[("Authorization", &key)] };
        let headers = [credentials, headers].concat();
        self.server.client().request(method, path, &headers, body.as_bytes())
    }

    /// Claims a resource, which must work, and gives the claim's path back.
    pub(crate) fn claim(&self, user: &str, resource: &str) -> String {
        let reply = self.ask(user, "POST", "/v1/claims/", &crate::common::claim_body(resource, 600.0));
        assert!(matches!(reply.status, 201 | 202), "{reply:?}");
        reply.location_path()
    }
}

fn write_config(dir: &Path, rest: &str) -> PathBuf {
    let path = dir.join("leasehold.toml");
    let keys = dir.join("keys.toml");
    // A node whose file of keys does not exist does not start; an empty one has no keys.
    std::fs::OpenOptions::new().create(true).append(true).open(&keys).unwrap();
    std::fs::write(&path, format!("[access]\nkeys = {keys:?}\n{rest}\n")).unwrap();
    path
}

/// Makes a key with the command that is there for it.
pub(crate) fn make_key(dir: &Path, user: &str, groups: &str) -> String {
    let file = dir.join("keys.toml");
    let mut args = vec!["access", "key", "make", "--user", user, "--keys", file.to_str().unwrap()];
    if !groups.is_empty() {
        args.extend(["--groups", groups]);
    }
    let made = leasehold(&args);
    assert!(made.status.success(), "{made:?}");
    String::from_utf8(made.stdout).unwrap().trim().to_string()
}

/// A refusal of access control: it names the right and the resource.
pub(crate) fn refused(reply: &Reply, status: u16, verb: &str, resource: &str) {
    assert_eq!(reply.status, status, "{reply:?}");
    let kind = if status == 401 { "unauthorized" } else { "forbidden" };
    assert_eq!(reply.problem(), kind);
    let text = reply.text();
    assert!(text.contains(&format!("'{verb}'")) && text.contains(&format!("'{resource}'")), "{text}");
    assert_eq!(reply.header("www-authenticate").is_some(), status == 401, "{reply:?}");
}
