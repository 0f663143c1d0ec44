//! TLS: HTTP/1.1 and HTTP/2, client certificates, renewal while the service runs. Certificates from a test authority.

use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use crate::authority::Authority;
use crate::common::{Client, Server, eventually, run};
use crate::support::make_key;

const EVERYONE: &str = "[[access.rule]]\nusers = [\"*\"]\nresources = [\"*\"]\nverbs = [\"*\"]\n";
const CLAIM: &str = r#"{"resource": "x", "ttl": 60}"#;

#[test]
fn both_versions_of_http_are_spoken_and_plain_text_is_not() {
    let authority = Authority::new();
    let server = authority.start(EVERYONE);
    let key = format!("Authorization: Bearer {}", make_key(authority.dir.path(), "ci", ""));
    eventually("the key is known", || {
        authority.curl(&server, "/v1/claims/", &["-H", &key]).1.ends_with("200")
    });
    for (flag, version, status) in [("--http1.1", "1.1", "201"), ("--http2", "2", "202")] {
        let (body, last) = authority.curl(&server, "/v1/claims/", &[flag, "-H", &key, "-d", CLAIM]);
        assert_eq!(last, format!("{version} {status}"), "{body}");
        assert!(body.contains(&format!("\"url\": \"https://{}/v1/claims/", server.addr)), "{body}");
    }
    let (body, last) = authority.curl(&server, "/v1/claims/", &["--http2", "-d", CLAIM]);
    assert!(last == "2 401" && body.contains("'claim' on '*'"), "{last} {body}");
    let mut plain = Client::connect(server.addr);
    plain.send("GET", "/version", &[], b"");
    assert!(plain.read_reply("GET").is_err(), "plain text was answered");
}

#[test]
fn a_blocking_lock_waits_over_http2_and_is_withdrawn_with_its_stream() {
    let authority = Authority::new();
    let server = authority.start(EVERYONE);
    let key = format!("Authorization: Bearer {}", make_key(authority.dir.path(), "ci", ""));
    let lock = r#"{"title": "t", "lifetime": 600, "wait": 0}"#;
    eventually("the key is known", || {
        authority.curl(&server, "/locks/res", &["--http2", "-H", &key, "-d", lock]).1.ends_with("201")
    });
    let waiting = || {
        let (body, _) = authority.curl(&server, "/v1/claims/?status=waiting", &["-H", &key]);
        serde_json::from_str::<serde_json::Value>(&body).unwrap().as_array().unwrap().len()
    };
    let url = format!("https://{}/locks/res", server.addr);
    let mut waiter = Command::new("curl")
        .args(["-s", "--http2", "--cacert", &authority.path("ca.pem"), "-H", &key])
        .args(["-d", r#"{"title": "t", "lifetime": 600, "wait": 600}"#, &url])
        .spawn()
        .unwrap();
    eventually("it waits", || waiting() == 1);
    waiter.kill().unwrap();
    waiter.wait().unwrap();
    eventually("it is withdrawn", || waiting() == 0);
}

#[test]
fn a_certificate_that_expires_is_told_of_at_the_start_after_each_change_and_by_the_check() {
    let authority = Authority::new();
    let server = authority.start("");
    eventually("it expires in two days", || server.logged().contains("expires on"));
    authority.issue_at("node", "/CN=localhost", "IP:127.0.0.1", "-30d");
    eventually("the new one is over", || server.logged().contains("expired on"));
    let config = authority.config("");
    let check = Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .args(["serve", "--check", "--config", config.to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(!check.status.success() && said.contains("expired on"), "{said}");
}

#[test]
fn a_connection_ends_with_its_client_certificate_open_requests_and_streams_too() {
    let authority = Authority::new();
    let server =
        authority.start("[[access.rule]]\nusers = [\"robot7\"]\nresources = [\"*\"]\nverbs = [\"*\"]\n");
    authority.issue("observer", "/CN=robot7", "email:robot7@example.org");
    // Made almost two days ago, for two days.
    authority.issue_at("short", "/CN=robot7", "email:robot7@example.org", "-172785s");
    let as_user = |name: &str| {
        let (pem, key) = (authority.path(&format!("{name}.pem")), authority.path(&format!("{name}.key")));
        ["--cert".to_string(), pem, "--key".into(), key]
    };
    let observer = as_user("observer");
    let observer: Vec<&str> = observer.iter().map(String::as_str).collect();
    let lock = r#"{"title": "t", "lifetime": 600, "wait": 0}"#;
    assert!(
        authority.curl(&server, "/locks/res", &[&observer[..], &["-d", lock]].concat()).1.ends_with("201")
    );
    let waiting = || {
        let (body, _) = authority.curl(&server, "/v1/claims/?status=waiting", &observer);
        serde_json::from_str::<serde_json::Value>(&body).unwrap().as_array().unwrap().len()
    };
    let open = |version: &str, path: &str, rest: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-N", version, "--cacert", &authority.path("ca.pem")])
            .args(as_user("short"))
            .args(rest);
        curl.arg(format!("https://{}{path}", server.addr))
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let wait = ["-d", r#"{"title": "t", "lifetime": 600, "wait": 600}"#];
    let mut calls = Vec::new();
    for version in ["--http1.1", "--http2"] {
        calls.push(open(version, "/locks/res", &wait));
        calls.push(open(version, "/v1/events", &[]));
    }
    eventually("the requests stand open", || waiting() == 2);
    eventually("all of them end", || calls.iter_mut().all(|call| call.try_wait().unwrap().is_some()));
    eventually("nothing of them waits", || waiting() == 0);
    assert!(server.logged().contains("its client certificate has expired"), "{}", server.logged());
}

#[test]
fn an_authority_that_is_removed_takes_its_clients_connections_and_waiting_claims_with_it() {
    let authority = Authority::new();
    let everyone = "[[access.rule]]\nusers = [\"*\"]\nresources = [\"*\"]\nverbs = [\"*\"]\n";
    let server = authority.start(everyone);
    let key = format!("Authorization: Bearer {}", make_key(authority.dir.path(), "root", ""));
    let as_root = ["-H", key.as_str()];
    eventually("the key is known", || authority.curl(&server, "/v1/claims/", &as_root).1.ends_with("200"));
    // Both end with the authority; the first one trusts the server by itself.
    let other = Authority::new();
    let trusted = [authority.path("ca.pem"), other.path("ca.pem")].map(|path| std::fs::read(path).unwrap());
    std::fs::copy(authority.path("ca.pem"), authority.path("server-ca.pem")).unwrap();
    std::fs::write(authority.path("ca.pem"), trusted.concat()).unwrap();
    eventually("it is read", || server.logged().contains("the certificate was read"));
    other.issue("robot", "/CN=robot7", "email:robot7@example.org");
    let robot = [
        "-s".to_string(),
        "-N".into(),
        "--cacert".into(),
        authority.path("server-ca.pem"),
        "--cert".into(),
        other.path("robot.pem"),
        "--key".into(),
        other.path("robot.key"),
    ];
    let open = |path: &str, rest: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(&robot).args(rest).arg(format!("https://{}{path}", server.addr));
        curl.stdout(std::process::Stdio::null()).spawn().unwrap()
    };
    let claim = r#"{"resource": "busy", "ttl": 600}"#;
    let as_root_with = |rest: &[&str]| authority.curl(&server, "/v1/claims/", &[&as_root[..], rest].concat());
    assert!(as_root_with(&["-d", claim]).1.ends_with("201"));
    assert!(open("/v1/claims/", &["-d", claim]).wait().unwrap().success());
    let mut calls = [open("/v1/claims/?wait=600", &["-d", claim]), open("/v1/events", &[])];
    let waiting = || {
        let (body, _) = authority.curl(&server, "/v1/claims/?status=waiting", &as_root);
        serde_json::from_str::<serde_json::Value>(&body).unwrap().as_array().unwrap().len()
    };
    eventually("two claims wait", || waiting() == 2);
    std::fs::copy(authority.path("server-ca.pem"), authority.path("ca.pem")).unwrap();
    eventually("all of it ends", || calls.iter_mut().all(|call| call.try_wait().unwrap().is_some()));
    eventually("nothing waits", || waiting() == 0);
    assert!(!open("/v1/claims/", &[]).wait().unwrap().success(), "another authority's certificate");
}

#[test]
fn a_client_certificate_is_an_identity_and_a_strangers_is_none() {
    let authority = Authority::new();
    let rules = "[[access.rule]]\ngroups = [\"robots\"]\nresources = [\"*\"]\nverbs = [\"*\"]\n";
    let server = authority.start(rules);
    authority.issue("robot", "/O=robots/OU=night/CN=robot7", "email:robot7@example.org");
    authority.issue("human", "/O=humans/CN=anna", "email:anna@example.org");
    let with = |authority: &Authority, name: &str| {
        let (pem, key) = (authority.path(&format!("{name}.pem")), authority.path(&format!("{name}.key")));
        vec!["--cert".to_string(), pem, "--key".into(), key, "-d".into(), CLAIM.into()]
    };
    let claim = |args: &[String]| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        authority.curl(&server, "/v1/claims/", &args)
    };
    let (body, last) = claim(&with(&authority, "robot"));
    assert!(last.ends_with("201") && body.contains(r#""owner": "robot7""#), "{last} {body}");
    assert!(claim(&with(&authority, "human")).1.ends_with("403"));
    assert!(claim(&["-d".into(), CLAIM.into()]).1.ends_with("401"));
    // A certificate with the same names from another authority does not get past the handshake.
    let stranger = Authority::new();
    stranger.issue("robot", "/O=robots/CN=robot7", "email:robot7@example.org");
    let mut args = vec!["-s".to_string(), "--cacert".into(), authority.path("ca.pem")];
    args.extend(with(&stranger, "robot"));
    args.push(format!("https://{}/v1/claims/", server.addr));
    let output = Command::new("curl").args(&args).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
}

#[test]
fn a_proxys_certificate_speaks_for_others_and_is_nobody_itself() {
    let authority = Authority::new();
    let access = "user-from = \"dns\"\n[access.proxy]\ncertificates = [\"proxy.example.org\"]\n";
    let server = authority.start(&format!("{access}{EVERYONE}"));
    authority.issue("proxy", "/CN=whatever", "DNS:proxy.example.org");
    authority.issue("other", "/CN=proxy.example.org", "DNS:other.example.org");
    let claim = |name: &str, headers: &[&str]| {
        let (pem, key) = (authority.path(&format!("{name}.pem")), authority.path(&format!("{name}.key")));
        let mut args = vec!["--cert", &pem, "--key", &key, "-d", CLAIM];
        headers.iter().for_each(|header| args.extend(["-H", header]));
        authority.curl(&server, "/v1/claims/", &args)
    };
    let (body, last) = claim("proxy", &["X-Remote-User: anna"]);
    assert!(last.ends_with("201") && body.contains(r#""owner": "anna""#), "{last} {body}");
    assert!(claim("proxy", &[]).1.ends_with("401"));
    let (body, last) = claim("other", &["X-Remote-User: anna"]);
    assert!(last.ends_with("202") && body.contains(r#""owner": "other.example.org""#), "{last} {body}");
}

#[test]
fn a_renewed_certificate_is_served_without_a_restart_and_a_broken_one_is_not() {
    let authority = Authority::new();
    let server = authority.start(EVERYONE);
    let serial = || {
        let handshake = format!(
            "openssl s_client -connect {} </dev/null 2>/dev/null | openssl x509 -noout -serial",
            server.addr
        );
        run("sh", &["-c", &handshake])
    };
    let first = serial();
    authority.issue("node", "/CN=node", "DNS:localhost,IP:127.0.0.1");
    eventually("the new certificate is served", || serial() != first);
    let second = serial();
    std::fs::write(Path::new(&authority.path("node.pem")), "no certificate").unwrap();
    eventually("it says so", || server.logged().contains("the old one stays in use"));
    assert_eq!(serial(), second);
}

#[test]
fn slow_handshakes_and_bombs_of_headers_over_http2_are_cut_off() {
    let authority = Authority::new();
    authority.issue("node", "/CN=node", "DNS:localhost,IP:127.0.0.1");
    let (certificate, key) = (authority.path("node.pem"), authority.path("node.key"));
    let flags = ["--tls-certificate", &certificate, "--tls-key", &key, "--header-timeout", "0.3"];
    let server = Server::start_with(&flags);
    let mut silent = Client::connect(server.addr);
    assert!(silent.read_reply("GET").is_err(), "a handshake that never came was waited for");
    let bomb = format!("X-Bomb: {}", "x".repeat(90_000));
    let url = format!("https://{}/v1/claims/", server.addr);
    let args =
        ["-s", "--http2", "--cacert", &authority.path("ca.pem"), "-H", &bomb, "-w", "%{http_code}", &url];
    let output = Command::new("curl").args(args).output().unwrap();
    let status = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() || status == "431", "{output:?}");
    assert!(authority.curl(&server, "/v1/claims/", &["--http2"]).1.ends_with("200"));
}

#[test]
fn an_overlong_uri_is_414_over_http2_too() {
    let authority = Authority::new();
    let server = authority.start(EVERYONE);
    for len in [2_049, 8_001, 40_000, 65_000] {
        let path = format!("/v1/ops/leases/{}", "n".repeat(len));
        let (body, last) = authority.curl(&server, &path, &["--http2"]);
        assert!(last.ends_with("414") && body.contains("uri-too-long"), "{len}: {last} {body}");
    }
}

#[test]
fn every_address_speaks_tls_and_nothing_else() {
    let authority = Authority::new();
    authority.issue("node", "/CN=node", "DNS:localhost,IP:127.0.0.1");
    let (certificate, key) = (authority.path("node.pem"), authority.path("node.key"));
    let flags = ["--tls-certificate", &certificate, "--tls-key", &key, "--listen", "127.0.0.1:0"];
    let server = Server::start_with(&flags);
    for addr in [server.addr, server.other_addrs[0]] {
        let (url, ca) = (format!("https://{addr}/v1/claims/"), authority.path("ca.pem"));
        let status = run("curl", &["-sS", "-o", "/dev/null", "--cacert", &ca, "-w", "%{http_code}", &url]);
        assert_eq!(status, "200", "{addr}");
        let mut plain = Client::connect(addr);
        plain.send("GET", "/livez", &[], b"");
        assert!(plain.read_reply("GET").is_err(), "{addr} answers without TLS");
    }
}

/// A client that spoke TLS got plain text there, and told its user to use http://.
#[test]
fn a_connection_beyond_all_places_gets_no_plain_text_where_tls_is_spoken() {
    let authority = Authority::new();
    authority.issue("node", "/CN=node", "DNS:localhost,IP:127.0.0.1");
    let tls = ["--tls-certificate", &authority.path("node.pem"), "--tls-key", &authority.path("node.key")];
    let server = Server::start_with(&[&tls[..], &["--connections-max", "4"]].concat());
    let _taken: Vec<TcpStream> = (0..36).map(|_| TcpStream::connect(server.addr).unwrap()).collect();
    let mut refused = TcpStream::connect(server.addr).unwrap();
    let mut said = Vec::new();
    refused.read_to_end(&mut said).unwrap();
    assert_eq!(String::from_utf8_lossy(&said), "");
    let url = format!("https://{}", server.addr);
    let told = crate::support::leasehold(&[
        "cluster",
        "status",
        "--addr",
        &url,
        "--cacert",
        &authority.path("ca.pem"),
    ]);
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(!told.contains("http://") && told.contains("too many connections"), "{told}");
}
