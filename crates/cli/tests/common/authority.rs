//! A certificate authority for tests, made with openssl, and servers with its certificates.
//!
//! In:    names and times. Out: certificates, keys, a server with TLS.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]

use std::path::PathBuf;

use crate::common::{Server, TempDir, run};

/// `faketime` with the given arguments. It leaves a semaphore behind, named by its process: an older process may have had the same
/// number.
const FAKETIME: &str = "rm -f /dev/shm/sem.faketime_sem_$$ /dev/shm/faketime_shm_$$ && exec faketime \"$@\"";

/// An authority with a folder of its own.
pub struct Authority {
    pub dir: TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let authority = Self { dir: TempDir::new() };
        let (key, certificate) = (authority.path("ca.key"), authority.path("ca.pem"));
        run("openssl", &["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", &key]);
        run(
            "openssl",
            &[
                "req",
                "-x509",
                "-new",
                "-key",
                &key,
                "-days",
                "2",
                "-subj",
                "/CN=Test CA",
                "-out",
                &certificate,
            ],
        );
        authority
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// A certificate and key, at `<name>.pem` and `<name>.key`.
    pub fn issue(&self, name: &str, subject: &str, alternatives: &str) {
        self.issue_at(name, subject, alternatives, "+0s");
    }

    /// The same, so long from now.
    pub fn issue_at(&self, name: &str, subject: &str, alternatives: &str, when: &str) {
        let (key, request, extensions) =
            (self.path(&format!("{name}.key")), self.path("request"), self.path("extensions"));
        std::fs::write(&extensions, format!("subjectAltName={alternatives}\n")).unwrap();
        run("openssl", &["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", &key]);
        run("openssl", &["req", "-new", "-key", &key, "-subj", subject, "-out", &request]);
        run(
            "sh",
            &[
                "-c",
                FAKETIME,
                "faketime",
                "-f",
                when,
                "openssl",
                "x509",
                "-req",
                "-in",
                &request,
                "-CA",
                &self.path("ca.pem"),
                "-CAkey",
                &self.path("ca.key"),
                "-days",
                "2",
                "-CAcreateserial",
                "-extfile",
                &extensions,
                "-out",
                &self.path(&format!("{name}.pem")),
            ],
        );
    }

    pub fn config(&self, access: &str) -> PathBuf {
        let path = self.dir.path().join("leasehold.toml");
        let text = format!(
            "[tls]\ncertificate = {:?}\nkey = {:?}\nclient-ca = {:?}\n[access]\nkeys = {:?}\n[access.certificate]\n{access}",
            self.path("node.pem"),
            self.path("node.key"),
            self.path("ca.pem"),
            self.path("keys.toml"),
        );
        std::fs::write(&path, text).unwrap();
        // A node whose file of keys does not exist does not start; an empty one has no keys.
        std::fs::OpenOptions::new().create(true).append(true).open(self.path("keys.toml")).unwrap();
        path
    }

    pub fn start(&self, access: &str) -> Server {
        self.start_with(access, &[])
    }

    /// The same, with flags.
    pub fn start_with(&self, access: &str, flags: &[&str]) -> Server {
        self.issue("node", "/CN=node", "DNS:localhost,IP:127.0.0.1");
        let config = self.config(access);
        let flags = [&["--config", config.to_str().unwrap()], flags].concat();
        Server::start_in(&self.dir.path().join("data"), &flags)
    }

    /// curl, which trusts this authority: the body, then a line with the version and the status.
    pub fn curl(&self, server: &Server, path: &str, args: &[&str]) -> (String, String) {
        let (url, ca) = (format!("https://{}{path}", server.addr), self.path("ca.pem"));
        let args =
            [&["-sS", "--cacert", &ca, "-w", "\n%{http_version} %{http_code}"], args, &[&url]].concat();
        let output = run("curl", &args);
        let (body, last) = output.rsplit_once('\n').unwrap();
        (body.into(), last.into())
    }
}
