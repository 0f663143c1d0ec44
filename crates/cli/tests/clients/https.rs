//! Every command, and the Rust client, over https: with a key, with a client certificate, and with everything that can be
//! wrong about certificates. Certificates come from a test authority.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::authority::Authority;
use crate::common::{PATIENCE, Server, TempDir};
use leasehold_client::{ClaimRequest, LockManager, Options, TlsFiles};

const EVERYONE: &str = "[[access.rule]]\nusers = [\"*\"]\nresources = [\"*\"]\nverbs = [\"*\"]\n";
const HERE: &str = "DNS:localhost,IP:127.0.0.1";

/// A server with TLS and access control, and the key of its one user.
struct Guarded {
    authority: Authority,
    server: Server,
    key_file: String,
}

impl Guarded {
    fn start() -> Self {
        let authority = Authority::new();
        let keys = authority.path("keys.toml");
        let made = leasehold(&[]).args(["access", "key", "make", "--user", "ci", "--keys", &keys]).output();
        let key_file = authority.path("ci.key");
        fs::write(&key_file, made.unwrap().stdout).unwrap();
        let server = authority.start(EVERYONE);
        Self { authority, server, key_file }
    }

    fn url(&self) -> String {
        format!("https://localhost:{}", self.server.addr.port())
    }

    /// A command that knows all it needs from its environment.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = leasehold(args);
        command.env("LEASEHOLD_ADDR", self.url());
        command.env("LEASEHOLD_CACERT", self.authority.path("ca.pem"));
        command.env("LEASEHOLD_KEY_FILE", &self.key_file);
        command
    }

    fn succeeds(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

fn leasehold(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.args(args);
    for name in ["ADDR", "KEY", "KEY_FILE", "CACERT", "CLIENT_CERT", "CLIENT_KEY", "ADMIN"] {
        command.env_remove(format!("LEASEHOLD_{name}"));
    }
    command
}

fn fails(command: &mut Command) -> String {
    let output: Output = command.output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_load_generator_speaks_https() {
    let (guarded, dir) = (Guarded::start(), TempDir::new());
    let key = fs::read_to_string(&guarded.key_file).unwrap();
    let bench = |args: &[&str]| {
        let mut command = guarded.command(&["bench", "cycle", "--connections", "4", "--seconds", "0.2"]);
        command.args(["--warmup", "0", "--json", "--dir"]).arg(dir.path()).args(args);
        command.env("LEASEHOLD_KEY", key.trim());
        command
    };
    let output = bench(&[]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["outcomes"][0]["latencies"][0]["count"].as_u64().unwrap() > 0, "{found}");
    let refused = fails(bench(&[]).env_remove("LEASEHOLD_CACERT"));
    assert!(refused.contains("no TLS with"), "{refused}");
}

/// A server with TLS and without access control, whose certificate is called `node`.
fn open_server(authority: &Authority) -> Server {
    let (certificate, key) = (authority.path("node.pem"), authority.path("node.key"));
    Server::start_with(&["--tls-certificate", &certificate, "--tls-key", &key])
}

fn https(server: &Server, host: &str) -> String {
    format!("https://{host}:{}", server.addr.port())
}

#[test]
fn every_command_speaks_https() {
    let guarded = Guarded::start();
    let id = guarded.succeeds(&["claim", "r", "--quiet", "--ttl", "600"]);
    let id = id.trim();
    assert!(guarded.succeeds(&["show", id]).contains("active"));
    assert!(guarded.succeeds(&["list"]).contains(id));
    guarded.succeeds(&["renew", id]);
    guarded.succeeds(&["release", id]);
    let other = guarded.succeeds(&["claim", "r", "--quiet", "--ttl", "600"]);
    guarded.succeeds(&["revoke", other.trim(), "--reason", "a test"]);
    let output = guarded.succeeds(&["run", "r", "--", "sh", "-c", "echo token $LEASEHOLD_TOKEN"]);
    assert_eq!(output, "token 3\n");
    assert!(guarded.succeeds(&["cluster", "status"]).contains("leader"));
    assert!(guarded.succeeds(&["limits"]).contains("claims held and waiting"));
    guarded.succeeds(&["limits", "set", "total", "1GiB"]);
    let file = guarded.authority.path("table.backup");
    assert!(guarded.succeeds(&["backup", &file]).contains("0 claims held"));
    assert!(Path::new(&file).exists());
    assert!(leasehold_dss_clean(&guarded).contains("holds no such locks"));
    let address = https(&guarded.server, "127.0.0.1");
    let flags = ["list", "--addr", &address, "--cacert", &guarded.authority.path("ca.pem")];
    let output = leasehold(&flags).env("LEASEHOLD_KEY_FILE", &guarded.key_file).output().unwrap();
    assert!(output.status.success(), "flags do the same: {output:?}");
}

/// It says what it found on stderr.
fn leasehold_dss_clean(guarded: &Guarded) -> String {
    let output = guarded.command(&["dss", "clean", "--host", "node17"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A program of another language that takes a claim by way of the keychain and says its token.
fn says_token(guarded: &Guarded, mut command: Command) {
    command.env("LEASEHOLD_BIN", env!("CARGO_BIN_EXE_leasehold")).env_remove("LEASEHOLD_KEY");
    command.env("LEASEHOLD_ADDR", format!("{},https://localhost:1", guarded.url()));
    command.env("LEASEHOLD_CACERT", guarded.authority.path("ca.pem"));
    command.env("LEASEHOLD_KEY_FILE", &guarded.key_file);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "token 1\n");
    let claims: serde_json::Value =
        serde_json::from_str(&guarded.succeeds(&["list", "--status", "all", "--json"])).unwrap();
    assert_eq!((&claims[0]["status"], &claims[0]["owner"]), (&"released".into(), &"ci".into()));
}

#[test]
fn python_speaks_https_through_the_keychain() {
    let mut command = Command::new("python3");
    command.args([
        "-c",
        "import leasehold\nwith leasehold.LockManager() as m, m.claim('r') as c: print('token', c.token)",
    ]);
    command.env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    says_token(&Guarded::start(), command);
}

#[test]
fn perl_speaks_https_through_the_keychain() {
    let mut command = Command::new("perl");
    command.args(["-I", concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/perl/lib"), "-MLeasehold", "-e"]);
    command.arg("my $m = Leasehold::LockManager->new; { my $c = $m->claim(resource => 'r'); printf \"token %d\\n\", $c->token }");
    says_token(&Guarded::start(), command);
}

#[test]
fn an_unknown_authority_a_wrong_name_and_an_expired_certificate_are_told_apart() {
    let authority = Authority::new();
    let ca = authority.path("ca.pem");
    authority.issue("node", "/CN=node", HERE);
    let server = open_server(&authority);
    let list = |url: &str, ca: &str| {
        let mut command = leasehold(&["list", "--addr", url]);
        command.env("LEASEHOLD_CACERT", ca);
        command
    };
    assert!(list(&https(&server, "localhost"), &ca).status().unwrap().success());

    let stranger = Authority::new();
    for ca in [&stranger.path("ca.pem"), ""] {
        let said = fails(&mut list(&https(&server, "localhost"), ca));
        assert!(
            said.contains("authority that is not trusted here") && said.contains("LEASEHOLD_CACERT"),
            "{said}"
        );
    }

    authority.issue("node", "/CN=node", "DNS:locks.example.org");
    let server = open_server(&authority);
    let said = fails(&mut list(&https(&server, "127.0.0.1"), &ca));
    let expected = ["locks.example.org", "not for 127.0.0.1", "use a name of the certificate"];
    assert!(expected.iter().all(|words| said.contains(words)), "{said}");

    authority.issue_at("node", "/CN=node", HERE, "-5d");
    let server = open_server(&authority);
    let said = fails(&mut list(&https(&server, "localhost"), &ca));
    assert!(said.contains("expired 3 days ago: renew it on the server"), "{said}");

    authority.issue_at("node", "/CN=node", HERE, "+5d");
    let server = open_server(&authority);
    let said = fails(&mut list(&https(&server, "localhost"), &ca));
    assert!(said.contains("not valid yet") && said.contains("clock"), "{said}");
}

#[test]
fn plain_text_and_tls_that_meet_by_mistake_are_told() {
    let authority = Authority::new();
    authority.issue("node", "/CN=node", HERE);
    let (secure, plain) = (open_server(&authority), Server::start());
    let said = fails(&mut leasehold(&["list", "--addr", &https(&plain, "localhost")]));
    assert!(said.contains("does not speak TLS: use http://"), "{said}");
    let said = fails(&mut leasehold(&["list", "--addr", &format!("http://{}", secure.addr)]));
    assert!(said.contains("https://"), "{said}");
    let ca = authority.path("missing.pem");
    let said = fails(&mut leasehold(&["list", "--addr", &https(&secure, "localhost"), "--cacert", &ca]));
    assert!(said.contains(&ca), "{said}");
    let said =
        fails(leasehold(&["list", "--addr", &https(&secure, "localhost")]).env("LEASEHOLD_CLIENT_KEY", &ca));
    assert!(said.contains("no client certificate"), "{said}");
}

#[test]
fn a_client_certificate_is_shown_where_it_is_given() {
    let authority = Authority::new();
    let server = authority.start(EVERYONE);
    authority.issue("robot", "/CN=robot7", "email:robot7@example.org");
    let (pem, key) = (authority.path("robot.pem"), authority.path("robot.key"));
    let both = authority.path("both.pem");
    fs::write(&both, fs::read_to_string(&pem).unwrap() + &fs::read_to_string(&key).unwrap()).unwrap();
    let claim = |resource: &str| {
        let mut command = leasehold(&["claim", resource, "--json"]);
        command.env("LEASEHOLD_ADDR", https(&server, "localhost"));
        command.env("LEASEHOLD_CACERT", authority.path("ca.pem"));
        command
    };
    let owner = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let claim: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        claim["owner"].as_str().unwrap().to_string()
    };
    let files = [("LEASEHOLD_CLIENT_CERT", &pem), ("LEASEHOLD_CLIENT_KEY", &key)];
    assert_eq!(owner(claim("by-variables").envs(files)), "robot7");
    assert_eq!(owner(claim("by-flags").args(["--client-cert", &pem, "--client-key", &key])), "robot7");
    assert_eq!(owner(claim("in-one-file").args(["--client-cert", &both])), "robot7");
    assert!(fails(&mut claim("with-none")).contains("401"));
    let stranger = Authority::new();
    stranger.issue("robot", "/CN=robot7", "email:robot7@example.org");
    let (pem, key) = (stranger.path("robot.pem"), stranger.path("robot.key"));
    let said = fails(claim("a-strangers").args(["--client-cert", &pem, "--client-key", &key]));
    assert!(said.contains("refuses this client's certificate"), "{said}");
}

#[test]
fn a_key_in_plain_text_to_another_machine_is_warned_of_once() {
    let dir = TempDir::new();
    let file = dir.path().join("key");
    fs::write(&file, "secret").unwrap();
    // There is nobody there, and need not be.
    let there = "http://locks.invalid:1,http://locks2.invalid:1";
    let warnings = |args: &[&str]| {
        let output = leasehold(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!said.contains("secret"), "{said}");
        said.matches("without encryption").count()
    };
    assert_eq!(warnings(&["list", "--addr", there, "--key", "secret"]), 1);
    assert_eq!(warnings(&["show", "r", "--addr", there, "--key-file", file.to_str().unwrap()]), 1);
    assert_eq!(warnings(&["cluster", "status", "--addr", there, "--admin", "root:secret"]), 1);
    assert_eq!(
        warnings(&["cluster", "status", "--addr", there, "--admin", "root:secret", "--key", "secret"]),
        1
    );
    assert_eq!(warnings(&["list", "--addr", there]), 0);
    assert_eq!(warnings(&["list", "--addr", "https://locks.invalid:1", "--key", "secret"]), 0);
    let server = Server::start();
    assert_eq!(warnings(&["list", "--addr", &format!("http://{}", server.addr), "--key", "secret"]), 0);
}

#[test]
fn the_rust_client_holds_claims_over_https_and_takes_up_a_renewed_certificate() {
    let authority = Authority::new();
    let server = authority.start(EVERYONE);
    authority.issue("robot", "/CN=robot7", "email:robot7@example.org");
    let file = |name: &str| authority.path(name);
    let tls = TlsFiles::default().ca(file("ca.pem")).client_certificate(file("robot.pem"));
    let options = Options::url(&format!("https://{}", server.addr))
        .tls(tls.client_key(file("robot.key")))
        .ttl(Duration::from_secs(600));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let manager = LockManager::new(options).unwrap();
        let claiming = manager.request(ClaimRequest::new("first")).unwrap().acquired();
        let claim = tokio::time::timeout(PATIENCE, claiming).await.unwrap().unwrap();
        let api = manager.api();
        assert_eq!(api.get(claim.id()).await.unwrap().owner.unwrap(), "robot7");
        // Whoever renews the files tells nobody. Of two requests at once one needs a new connection.
        authority.issue("robot", "/CN=robot8", "email:robot8@example.org");
        let [second, third] =
            ["second", "third"].map(|resource| serde_json::json!({ "resource": resource, "ttl": 600 }));
        let (second, third) = tokio::join!(api.post(&second, "key-2"), api.post(&third, "key-3"));
        let mut owners = [second, third].map(|claim| claim.unwrap().owner.unwrap());
        owners.sort();
        assert_eq!(owners, ["robot7", "robot8"]);
        claim.release().await.unwrap();
    });
}
