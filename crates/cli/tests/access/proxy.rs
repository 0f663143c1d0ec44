//! Trusted headers, behind a real nginx: what the proxy says counts, what anyone else says does not.

use std::process::{Child, Command};

use crate::common::{TempDir, claim_body, eventually, run};
use crate::support::Guarded;

/// nginx on a Unix socket, asking for passwords and naming the user to the server behind it.
struct Nginx {
    child: Child,
    dir: TempDir,
}

impl Nginx {
    fn start(upstream: std::net::SocketAddr) -> Self {
        let dir = TempDir::new();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let hash = run("openssl", &["passwd", "-apr1", "secret"]);
        std::fs::write(path("users"), format!("anna:{}\nbert:{}\n", hash.trim(), hash.trim())).unwrap();
        let config = format!(
            r#"
daemon off;
master_process off;
pid {pid};
error_log {error} warn;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {tmp}; proxy_temp_path {tmp}; fastcgi_temp_path {tmp}; uwsgi_temp_path {tmp}; scgi_temp_path {tmp};
  map $remote_user $groups {{ default "staff"; anna "staff;ops\;night"; }}
  server {{
    listen unix:{socket};
    location / {{
      auth_basic "sso";
      auth_basic_user_file {users};
      proxy_bind 127.0.0.2;
      proxy_pass http://{upstream};
      proxy_set_header Host $host;
      proxy_set_header X-Remote-User $remote_user;
      proxy_set_header X-Remote-Groups $groups;
    }}
  }}
}}
"#,
            pid = path("pid"),
            error = path("error.log"),
            tmp = path("tmp"),
            socket = path("socket"),
            users = path("users"),
        );
        std::fs::write(path("nginx.conf"), config).unwrap();
        let child = Command::new("nginx").args(["-c", &path("nginx.conf"), "-e", &path("error.log")]).spawn();
        let child = child.unwrap_or_else(|error| panic!("nginx: {error}: run scripts/install-test-tools"));
        let nginx = Self { child, dir };
        let socket = nginx.dir.path().join("socket");
        eventually("nginx listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        nginx
    }

    /// A claim through nginx: the status, and the answer.
    fn claim(&self, user: &str, resource: &str, headers: &[&str]) -> (u16, String) {
        let socket = self.dir.path().join("socket");
        let (body, login) = (claim_body(resource, 60.0), format!("{user}:secret"));
        let mut args =
            vec!["-s", "--unix-socket", socket.to_str().unwrap(), "-d", &body, "-w", "\n%{http_code}"];
        if !user.is_empty() {
            args.extend(["-u", &login]);
        }
        headers.iter().for_each(|header| args.extend(["-H", header]));
        args.push("http://locks.example.org/v1/claims/");
        let output = run("curl", &args);
        let (answer, status) = output.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), answer.into())
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

const ACCESS: &str = r#"
[access.proxy]
from = ["127.0.0.2", "10.0.0.0/8"]

[[access.rule]]
users = ["anna"]
resources = ["anna"]
verbs = ["*"]

[[access.rule]]
groups = ["ops;night"]
resources = ["night"]
verbs = ["claim"]

[[access.rule]]
groups = ["staff"]
resources = ["staff"]
verbs = ["claim"]
"#;

#[test]
fn the_proxy_names_the_user_and_nobody_else_does() {
    let guarded = Guarded::start(&["ci"], ACCESS);
    let nginx = Nginx::start(guarded.server.addr);
    let (status, answer) = nginx.claim("anna", "anna/a", &[]);
    assert!(status == 201 && answer.contains(r#""owner": "anna""#), "{status} {answer}");
    assert_eq!(nginx.claim("anna", "night/a", &[]).0, 201);
    assert_eq!(nginx.claim("bert", "staff/a", &[]).0, 201);
    assert_eq!(nginx.claim("bert", "anna/a", &[]).0, 403);
    assert_eq!(nginx.claim("", "anna/a", &[]).0, 401);
    // Through the proxy: its own word replaces whatever the client sent, in any spelling.
    for spoof in
        ["X-Remote-User: anna", "x-remote-user: anna", "X-Remote-Groups: ops;night", "X_Remote_User: anna"]
    {
        assert_eq!(nginx.claim("bert", "anna/b", &[spoof]).0, 403, "{spoof}");
        assert_eq!(nginx.claim("bert", "night/b", &[spoof]).0, 403, "{spoof}");
    }
    // Round the proxy: the same header from anywhere else is nothing.
    let direct = |headers: &[(&str, &str)]| {
        let body = claim_body("anna/c", 60.0);
        guarded.server.client().request("POST", "/v1/claims/", headers, body.as_bytes())
    };
    assert_eq!(direct(&[("X-Remote-User", "anna")]).status, 401);
    assert_eq!(direct(&[("X-Remote-User", "anna"), ("X-Forwarded-For", "127.0.0.2")]).status, 401);
    let key = guarded.key("ci");
    let reply = direct(&[("X-Remote-User", "anna"), ("Authorization", &key)]);
    assert_eq!(reply.status, 403, "{reply:?}");
}

#[test]
fn a_proxy_that_names_two_users_names_none() {
    let access = ACCESS.replace("127.0.0.2", "127.0.0.1");
    let guarded = Guarded::start(&["ci"], &access);
    let ask = |headers: &[(&str, &str)]| {
        let body = claim_body("anna/c", 60.0);
        guarded.server.client().request("POST", "/v1/claims/", headers, body.as_bytes()).status
    };
    assert_eq!(ask(&[("X-Remote-User", "anna")]), 201);
    assert_eq!(ask(&[("X-Remote-User", "anna"), ("X-Remote-User", "bert")]), 401);
    assert_eq!(ask(&[("X-Remote-User", "anna for bert")]), 401);
    assert_eq!(ask(&[("X-Remote-User", "")]), 401);
    // A login that the proxy checked and passed on is not taken for an access key.
    assert_eq!(ask(&[("X-Remote-User", "anna"), ("Authorization", "Basic YW5uYTpzZWNyZXQ=")]), 202);
    // Who does not come from the login still has a key.
    assert_eq!(ask(&[("Authorization", &guarded.key("ci"))]), 403);
}
