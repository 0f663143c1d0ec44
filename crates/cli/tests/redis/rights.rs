//! Access control, TLS and audit on the port of Redis clients.

use std::process::Command;

use crate::authority::Authority;
use crate::common::{Server, TempDir, eventually};
use crate::support::{REDIS, Resp, port_of};

const RULES: &str = r#"
[[access.rule]]
users = ["ann", "bob"]
resources = ["job/*"]
verbs = ["claim"]
[[access.rule]]
users = ["eve"]
resources = ["*"]
verbs = ["read"]
[[access.rule]]
users = ["ops"]
resources = ["*"]
verbs = ["*"]
"#;

struct Guarded {
    server: Server,
    dir: TempDir,
}

fn key_of(dir: &TempDir, user: &str) -> String {
    let file = dir.path().join("keys.toml");
    let args = ["access", "key", "make", "--user", user, "--keys", file.to_str().unwrap()];
    let made = Command::new(env!("CARGO_BIN_EXE_leasehold")).args(args).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    String::from_utf8(made.stdout).unwrap().trim().to_string()
}

impl Guarded {
    fn start(flags: &[&str]) -> (Self, [String; 4]) {
        let dir = TempDir::new();
        let keys = ["ann", "bob", "eve", "ops"].map(|user| key_of(&dir, user));
        let config = dir.path().join("leasehold.toml");
        let audit = dir.path().join("audit.jsonl");
        let text = format!(
            "[access]\nkeys = {:?}\n{RULES}\n[audit]\nto = {audit:?}\n",
            dir.path().join("keys.toml")
        );
        std::fs::write(&config, text).unwrap();
        let flags = [&["--config", config.to_str().unwrap()], &REDIS[..], flags].concat();
        (Self { server: Server::start_in(&dir.path().join("data"), &flags), dir }, keys)
    }

    /// A connection of the user with this key.
    fn of(&self, key: &str) -> Resp {
        let mut redis = Resp::to(&self.server);
        assert_eq!(redis.ask(&format!("AUTH {key}")), "+OK");
        redis
    }
}

#[test]
fn without_a_key_nothing_is_told_and_nothing_changes() {
    let (guarded, [ann, ..]) = Guarded::start(&[]);
    assert_eq!(guarded.of(&ann).ask("SET job/1 v NX PX 60000"), "+OK");
    let mut stranger = Resp::to(&guarded.server);
    for command in [
        "SET job/2 v NX PX 60000",
        "GET job/1",
        "GET job/2",
        "EXISTS job/1",
        "TTL job/1",
        "PEXPIRE job/1 1",
        "DEL job/1",
        "DELIFEQ job/1 v",
        "LEASEHOLD.TOKEN job/1 v",
        "EVALSHA c3f8721cbb97f72bc19e972846bd7aaf91901658 1 job/1 v",
    ] {
        let reply = stranger.ask(command);
        assert!(reply.starts_with("-NOAUTH Authentication required."), "{command}: {reply}");
    }
    assert!(stranger.ask("AUTH wrong").starts_with("-WRONGPASS"));
    assert!(stranger.ask("HELLO 3 AUTH default wrong").starts_with("-WRONGPASS"));
    let many: Vec<&[u8]> = std::iter::repeat_n(&b"x"[..], 17).collect();
    stranger.send(&crate::support::encoded(&many));
    assert!(stranger.reply().unwrap().starts_with("-ERR Protocol error"), "a stranger may send little");
    let mut again = Resp::to(&guarded.server);
    assert!(again.ask(&format!("HELLO 3 AUTH anyone {ann}")).contains("\"proto\", :3"));
    assert_eq!(again.ask("GET job/1"), "\"v\"");
}

#[test]
fn a_lock_takes_the_same_user_and_the_same_value() {
    let (guarded, [ann, bob, eve, ops]) = Guarded::start(&[]);
    let (mut ann, mut bob, mut eve, mut ops) =
        (guarded.of(&ann), guarded.of(&bob), guarded.of(&eve), guarded.of(&ops));
    assert_eq!(ann.ask("SET job/1 secret NX PX 60000"), "+OK");
    // The value alone is not enough, and others don't get to see it.
    assert_eq!(bob.ask("DELIFEQ job/1 secret"), ":0");
    assert_eq!(bob.ask("EVALSHA 1cac51482acf5858da00f6d685d68f886cd6b6b2 1 job/1 secret 9000"), ":0");
    assert!(bob.ask("GET job/1").starts_with("\"sha256:"));
    assert!(eve.ask("GET job/1").starts_with("\"sha256:"));
    assert_eq!(eve.ask("EXISTS job/1"), ":1");
    for command in ["DEL job/1", "PEXPIRE job/1 1"] {
        assert!(bob.ask(command).starts_with("-NOPERM the right 'revoke' on 'job/1'"), "{command}");
    }
    assert!(eve.ask("SET job/9 v NX").starts_with("-NOPERM the right 'claim' on 'job/9'"));
    assert!(ann.ask("SET other v NX").starts_with("-NOPERM the right 'claim' on 'other'"));
    assert!(
        ann.ask("EVALSHA 96da70f7716f27d278a5218544df37fd8b0a5e4c 2 job/2 other v 9000")
            .starts_with("-NOPERM")
    );
    assert_eq!(ops.ask("EXISTS job/2"), ":0", "none of several keys was taken");
    assert_eq!(ann.ask("GET job/1"), "\"secret\"");
    assert_eq!(ann.ask("DELIFEQ job/1 secret"), ":1");
    assert_eq!(ann.ask("SET job/1 again NX PX 60000"), "+OK");
    assert_eq!(ops.ask("DEL job/1"), ":1", "who may revoke may end it");
    let audit = std::fs::read_to_string(guarded.dir.path().join("audit.jsonl")).unwrap();
    assert!(!audit.contains("secret") && !audit.contains("again"), "{audit}");
    eventually("the audit says who did what", || {
        let audit = std::fs::read_to_string(guarded.dir.path().join("audit.jsonl")).unwrap();
        audit.contains("\"ops\"") && audit.contains("revoked") && audit.contains("\"ann\"")
    });
}

#[test]
fn wrong_credentials_are_nobodys_and_are_in_the_audit() {
    let (guarded, [ann, ..]) = Guarded::start(&[]);
    let mut redis = guarded.of(&ann);
    assert!(redis.ask("AUTH lhk_wrong").starts_with("-WRONGPASS"));
    assert!(redis.ask("SET job/1 v NX PX 60000").starts_with("-NOAUTH"), "not those of before either");
    assert_eq!(redis.ask(&format!("AUTH {ann}")), "+OK");
    assert_eq!(redis.ask("SET job/1 v NX PX 60000"), "+OK");
    eventually("the audit has the wrong password", || {
        let refused = std::fs::read_to_string(guarded.dir.path().join("audit.refused.jsonl"));
        refused.is_ok_and(|lines| lines.lines().any(|line| line.contains("401")))
    });
}

#[test]
fn a_stranger_keeps_neither_a_connection_nor_a_script() {
    let (guarded, [ann, ..]) = Guarded::start(&["--header-timeout", "1"]);
    assert!(Resp::to(&guarded.server).ends(), "a connection that never says who it is");
    let mut stranger = Resp::to(&guarded.server);
    let script =
        b"if redis.call('get',KEYS[1])==ARGV[1] then  return redis.call('del',KEYS[1]) else return 0 end";
    assert!(stranger.ask_with(&[b"SCRIPT", b"LOAD", script]).starts_with("-NOAUTH"));
    let mut ann = guarded.of(&ann);
    let sha = ann.ask_with(&[b"SCRIPT", b"LOAD", script]);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(
        ann.ask(&format!("SCRIPT EXISTS {}", sha.trim_matches('"'))),
        "*[:1]",
        "who is known may be silent"
    );
}

#[test]
fn a_refusal_names_the_key_and_no_other_item_of_its_set() {
    let (guarded, [ann, _, _, ops]) = Guarded::start(&[]);
    let authorization = format!("Bearer {ops}");
    let body = r#"{"resources": ["a-secret", "job/1"], "ttl": 600}"#;
    let headers = [("Authorization", &*authorization)];
    assert_eq!(guarded.server.ask("POST", "/v1/claims/", &headers, body).reply().status, 201);
    let mut ann = guarded.of(&ann);
    for command in ["DEL job/1", "EXPIRE job/1 10"] {
        let refused = ann.ask(command);
        assert!(refused.contains("'job/1'") && !refused.contains("secret"), "{command}: {refused}");
    }
}

#[test]
fn a_withdrawn_key_ends_its_connection() {
    let (guarded, [ann, ..]) = Guarded::start(&[]);
    let mut redis = guarded.of(&ann);
    assert_eq!(redis.ask("SET job/1 v NX PX 60000"), "+OK");
    std::fs::write(guarded.dir.path().join("keys.toml"), "").unwrap();
    assert!(redis.ends());
}

#[test]
fn a_public_address_needs_access_control() {
    let dir = TempDir::new();
    let refused = Server::try_start_in(dir.path(), &["--redis-listen", "0.0.0.0:0"]).err().unwrap();
    assert!(
        refused.contains("redis-listen") && refused.contains("can be reached from other machines"),
        "{refused}"
    );
}

#[test]
fn real_clients_speak_tls() {
    let authority = Authority::new();
    let server = authority
        .start_with("[[access.rule]]\nusers = [\"*\"]\nresources = [\"*\"]\nverbs = [\"*\"]\n", &REDIS);
    let key = {
        let file = authority.path("keys.toml");
        let args = ["access", "key", "make", "--user", "ci", "--keys", &file];
        let made = Command::new(env!("CARGO_BIN_EXE_leasehold")).args(args).output().unwrap();
        String::from_utf8(made.stdout).unwrap().trim().to_string()
    };
    let program = "import redis, sys\n\
        client = redis.Redis(host='localhost', port=int(sys.argv[1]), password=sys.argv[2], ssl=True, ssl_ca_certs=sys.argv[3])\n\
        with client.lock('tls/job', timeout=30) as lock: print(lock.owned())\n";
    let port = port_of(&server).port().to_string();
    eventually("the key is known, and a lock is held over TLS", || {
        let python = crate::clients::python();
        let output = Command::new(python)
            .args(["-c", program, &port, &key, &authority.path("ca.pem")])
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).trim() == "True"
    });
}
