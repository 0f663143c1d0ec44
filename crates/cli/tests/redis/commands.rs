//! What each command does, and that all of it happens on the one table.

use crate::common::{Server, eventually};
use crate::support::{REDIS, Resp, encoded, port_of};

#[test]
fn a_lock_is_taken_refused_shown_extended_and_released_by_its_value_alone() {
    let server = Server::start_with(&REDIS);
    let mut redis = Resp::to(&server);
    for (command, reply) in [
        ("SET job mine NX PX 60000", "+OK"),
        ("SET job other NX PX 60000", "nil"),
        ("SET job mine NX PX 60000", "nil"),
        ("GET job", "\"mine\""),
        ("GET free", "nil"),
        ("EXISTS job free job", ":2"),
        ("TTL job", ":60"),
        ("TTL free", ":-2"),
        ("PTTL free", ":-2"),
        ("PEXPIRE job 120000", ":1"),
        ("TTL job", ":120"),
        ("EXPIRE job 30", ":1"),
        ("EXPIRE free 30", ":0"),
        ("TTL job", ":30"),
        ("DELIFEQ job other", ":0"),
        ("DELEX job IFEQ other", ":0"),
        ("LEASEHOLD.TOKEN job other", "nil"),
        ("LEASEHOLD.TOKEN job mine", ":1"),
        ("DELEX job IFEQ mine", ":1"),
        ("DELEX job IFEQ mine", ":0"),
        ("SET for-ever x NX", "+OK"),
        ("TTL for-ever", ":-1"),
        ("PTTL for-ever", ":-1"),
        ("LEASEHOLD.TOKEN for-ever x", ":2"),
        ("DEL for-ever free", ":1"),
        ("SET gone x EX 60 NX", "+OK"),
        ("PEXPIRE gone 0", ":1"),
        ("EXISTS gone", ":0"),
    ] {
        assert_eq!(redis.ask(command), reply, "{command}");
    }
}

#[test]
fn both_protocols_greet_as_clients_expect() {
    let server = Server::start_with(&REDIS);
    let mut redis = Resp::to(&server);
    assert_eq!(redis.ask("PING"), "+PONG");
    assert_eq!(redis.ask("ECHO hallo"), "\"hallo\"");
    let hello = redis.ask("HELLO 2");
    assert!(hello.starts_with("*[") && hello.contains("\"proto\", :2"), "{hello}");
    let hello = redis.ask("HELLO 3 SETNAME worker");
    assert!(hello.starts_with("%[") && hello.contains("\"proto\", :3"), "{hello}");
    assert_eq!(redis.ask("CLIENT GETNAME"), "\"worker\"");
    assert_eq!(redis.ask("CLIENT SETINFO LIB-NAME test"), "+OK");
    assert_eq!(redis.ask("SELECT 0"), "+OK");
    assert!(redis.ask("SELECT 1").starts_with("-ERR DB index is out of range"));
    assert!(redis.ask("HELLO 4").starts_with("-NOPROTO"));
    assert!(redis.ask("INFO").contains("loading:0"));
    assert_eq!(redis.ask("COMMAND DOCS"), "*[]");
    assert!(redis.ask("AUTH key").contains("no access control"));
    assert_eq!(redis.ask("QUIT"), "+OK");
    assert!(redis.ends());
    let mut typed = Resp::to(&server);
    typed.send(b"set \"a b\" v nx\r\nget \"a b\"\r\n");
    assert_eq!([typed.reply(), typed.reply()], [Some("+OK".into()), Some("\"v\"".into())]);
}

#[test]
fn one_table_is_behind_all_dialects_and_the_value_stays_a_secret() {
    let server = Server::start_with(&REDIS);
    let mut redis = Resp::to(&server);
    assert_eq!(redis.ask("SET db/main very-secret-value NX PX 60000"), "+OK");
    let claim = &server.list("resource=db/main")[0];
    assert_eq!(claim["status"], "active");
    assert_eq!(claim["user_data"]["value_sha256"].as_str().map(str::len), Some(16), "{claim}");
    for page in ["/v1/claims/", "/v1/resources", "/v1/resources/db%2Fmain", "/v1/contention", "/metrics"] {
        let reply = server.get(page);
        assert_eq!(reply.status, 200, "{page}");
        assert!(!reply.text().contains("very-secret"), "{page}");
    }
    // A claim waits behind the lock, and has it once it is released.
    let waiting = server.claim("db/main", 60.0);
    assert_eq!(server.status(&waiting), "waiting");
    assert_eq!(redis.ask("DELIFEQ db/main very-secret-value"), ":1");
    assert_eq!(server.status(&waiting), "active");
    // Now it is the claim that keeps Redis clients out. They can't end it.
    assert_eq!(redis.ask("SET db/main x NX PX 60000"), "nil");
    assert_eq!(redis.ask("GET db/main"), "\"leasehold:held-through-another-api\"");
    assert_eq!(redis.ask("EXISTS db/main"), ":1");
    assert!(redis.ask("DEL db/main").contains("another API"));
    assert!(redis.ask("PEXPIRE db/main 1000").contains("another API"));
    assert_eq!(server.status(&waiting), "active");
    assert_eq!(server.patch(&waiting, r#"{"status": "released"}"#).status, 204);
    assert_eq!(redis.ask("SET db/main x NX PX 60000"), "+OK");
    let metrics = server.get("/metrics").text();
    assert!(metrics.contains(r#"dialect="redis""#), "{metrics}");
}

#[test]
fn a_lock_expires_by_itself_and_survives_a_crash() {
    let mut server = Server::start_with(&REDIS);
    let mut redis = Resp::to(&server);
    assert_eq!(redis.ask("SET short v NX PX 200"), "+OK");
    assert_eq!(redis.ask("SET long v NX PX 600000"), "+OK");
    eventually("it expires", || redis.ask("SET short w NX PX 600000") == "+OK");
    assert_eq!(redis.ask("DELIFEQ short v"), ":0", "the lock is another's now");
    server.restart();
    let mut redis = Resp::to(&server);
    assert_eq!(redis.ask("SET long w NX PX 1000"), "nil");
    assert_eq!(redis.ask("GET long"), "\"v\"");
    assert_eq!(redis.ask("DELIFEQ long v"), ":1");
}

#[test]
fn known_scripts_are_carried_out_and_others_are_refused_with_a_reason() {
    let server = Server::start_with(&REDIS);
    let mut redis = Resp::to(&server);
    let classic = "if redis.call(\"get\",KEYS[1]) == ARGV[1] then\n return redis.call(\"del\",KEYS[1])\nelse\n return 0\nend";
    let mut eval = |words: &[&str]| {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        redis.ask_with(&words)
    };
    assert_eq!(eval(&["SET", "k", "v", "NX", "PX", "60000"]), "+OK");
    assert_eq!(eval(&["EVAL", classic, "1", "k", "w"]), ":0");
    let sha = eval(&["SCRIPT", "LOAD", classic]);
    let sha = sha.trim_matches('"').to_string();
    assert_eq!(eval(&["SCRIPT", "EXISTS", &sha, "ffff"]), "*[:1, :0]");
    assert_eq!(eval(&["EVALSHA", &sha, "1", "k", "v"]), ":1");
    assert!(
        eval(&["EVALSHA", "ffffffffffffffffffffffffffffffffffffffff", "1", "k", "v"])
            .starts_with("-NOSCRIPT")
    );
    let other = eval(&["EVAL", "return redis.call('flushall')", "0"]);
    assert!(other.starts_with("-ERR this script is not known; this port is for locks"), "{other}");
    // All keys or none.
    let take = "96da70f7716f27d278a5218544df37fd8b0a5e4c";
    assert_eq!(eval(&["EVALSHA", take, "3", "a", "b", "c", "v", "60000"]), ":3");
    assert_eq!(eval(&["EVALSHA", take, "2", "d", "a", "w", "60000"]), ":0");
    assert_eq!(eval(&["EXISTS", "d"]), ":0");
    assert!(eval(&["EVALSHA", take, "2", "d", "d", "w", "60000"]).contains("the key 'd' is given twice"));
    let release = "e4612211c9f8f51c257e26e056b0a654b3187242";
    assert_eq!(eval(&["EVALSHA", release, "4", "a", "b", "c", "d", "v"]), ":3");
    // redsync tells "gone" from "another's".
    let gone = "e950836ed1e694540c503ef9972b8de518044d3b";
    assert_eq!(eval(&["EVALSHA", gone, "1", "r", "v"]), ":-1");
    let touch_or_set = "b6b55c439e02c6f52ffb8be7ec8c0d0ac816ea79";
    assert_eq!(eval(&["EVALSHA", touch_or_set, "1", "r", "v", "60000"]), ":1");
    assert_eq!(eval(&["EVALSHA", touch_or_set, "1", "r", "v", "60000"]), ":1");
    assert_eq!(eval(&["EVALSHA", touch_or_set, "1", "r", "w", "60000"]), ":0");
    assert_eq!(eval(&["EVALSHA", gone, "1", "r", "w"]), ":0");
    assert_eq!(eval(&["EVALSHA", gone, "1", "r", "v"]), ":1");
}

#[test]
fn a_pipeline_is_answered_in_order() {
    let server = Server::start_with(&REDIS);
    let mut redis = Resp::connect(port_of(&server));
    let mut bytes = Vec::new();
    for round in 0..200 {
        let value = format!("v{round}");
        bytes.extend(encoded(&[b"SET", b"p", value.as_bytes(), b"NX", b"PX", b"60000"]));
        bytes.extend(encoded(&[b"GET", b"p"]));
        bytes.extend(encoded(&[b"DELIFEQ", b"p", value.as_bytes()]));
    }
    redis.send(&bytes);
    for round in 0..200 {
        let replies = [redis.reply(), redis.reply(), redis.reply()].map(Option::unwrap);
        assert_eq!(replies, ["+OK".to_string(), format!("\"v{round}\""), ":1".into()]);
    }
}
