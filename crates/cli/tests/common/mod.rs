//! What every test over a real socket needs: a real server process and a plain HTTP client.
//!
//! In:    the binary that cargo built, a fresh data directory. Out: [`Server`] and [`Client`].
//! Never: sleeps for a fixed time and hopes: it waits for lines, answers and exits, with generous limits.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that can't go on should say so and stop"
)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

/// How long anything may take before a test gives up on it: these machines are shared and slow at times.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a program that the tests need; a missing one is a failure, not a skip.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}: run scripts/install-test-tools"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {}{text}", String::from_utf8_lossy(&output.stderr));
    text
}

/// A path that nobody else uses. Tests in namespaces of their own may have the same process id: the time tells them apart.
fn unused_path(prefix: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("{prefix}-{}-{number}-{nanos:x}", std::process::id()))
}

/// A folder of its own for one test, removed with it.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        let path = unused_path("leasehold-test");
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// A `leasehold serve` process on a port of its own. Killed when dropped.
pub struct Server {
    child: Child,
    pub addr: SocketAddr,
    /// Its other addresses: one for each `--listen` among its flags, then one for each `--redis-listen`.
    pub other_addrs: Vec<SocketAddr>,
    pub data: PathBuf,
    args: Vec<String>,
    log: PathBuf,
    _dir: Option<TempDir>,
}

impl Server {
    /// A fresh one.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A fresh one, with more flags.
    pub fn start_with(args: &[&str]) -> Self {
        let dir = TempDir::new();
        let mut server = Self::start_in(&dir.path().join("data"), args);
        server._dir = Some(dir);
        server
    }

    /// One on this data directory.
    pub fn start_in(data: &Path, args: &[&str]) -> Self {
        Self::try_start_in(data, args).unwrap_or_else(|output| panic!("the server did not start: {output}"))
    }

    /// A fresh server that may open this many files.
    pub fn start_with_descriptors(descriptors: u32, args: &[&str]) -> Self {
        let dir = TempDir::new();
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={descriptors}:{descriptors}")).arg(env!("CARGO_BIN_EXE_leasehold"));
        let mut server = Self::try_start(command, &dir.path().join("data"), args).unwrap();
        server._dir = Some(dir);
        server
    }

    /// The same as `start_in`, or what it wrote to stderr before it exited.
    pub fn try_start_in(data: &Path, args: &[&str]) -> Result<Self, String> {
        Self::try_start(Command::new(env!("CARGO_BIN_EXE_leasehold")), data, args)
    }

    fn try_start(mut command: Command, data: &Path, args: &[&str]) -> Result<Self, String> {
        let log = unused_path("leasehold-log");
        let mut child = command
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .args(args)
            // Tests call the service by any name; those of `security/pages.rs` say which ones it has.
            .env("LEASEHOLD_ALLOWED_HOSTS", "*")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.next().unwrap_or_default();
        let Some((_, addr)) = line.split_once("://") else {
            child.wait().unwrap();
            let output = fs::read_to_string(&log).unwrap_or_default();
            fs::remove_file(&log).ok();
            return Err(output);
        };
        let addr = addr.parse().unwrap();
        let listens = args.iter().filter(|arg| matches!(**arg, "--listen" | "--redis-listen"));
        let others = lines.take(listens.count());
        let other_addrs = others.map(|line| line.split_once("://").unwrap().1.parse().unwrap()).collect();
        let args = args.iter().map(ToString::to_string).collect();
        Ok(Self { child, addr, other_addrs, data: data.into(), args, log, _dir: None })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything it logged so far.
    pub fn logged(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").arg(format!("-{signal}")).arg(self.pid().to_string()).status();
        assert!(status.unwrap().success());
    }

    /// SIGTERM, and how it exited.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.terminated()
    }

    /// How it exited, once it has.
    pub fn terminated(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not stop");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The same server again, on the same data, on a new port.
    pub fn restart(&mut self) {
        self.kill();
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let mut next = Self::start_in(&self.data, &args);
        next._dir = self._dir.take();
        *self = next;
    }

    /// A new connection.
    pub fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    pub fn get(&self, path: &str) -> Reply {
        self.client().request("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &str) -> Reply {
        self.client().request("POST", path, &[], body.as_bytes())
    }

    pub fn patch(&self, path: &str, body: &str) -> Reply {
        self.client().request("PATCH", path, &[], body.as_bytes())
    }

    pub fn put(&self, path: &str, body: &str) -> Reply {
        self.client().request("PUT", path, &[], body.as_bytes())
    }

    /// Sends a request on a connection of its own, whose response may take a while.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Client {
        let mut client = self.client();
        client.send(method, path, headers, body.as_bytes());
        client
    }

    /// A claim as it is now.
    pub fn detail(&self, path: &str) -> Value {
        let reply = self.get(path);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    }

    /// The claims that a query finds (`""`: the first thousand).
    pub fn list(&self, query: &str) -> Vec<Value> {
        let reply = self.get(&format!("/v1/claims/?{}", if query.is_empty() { "limit=1000" } else { query }));
        assert_eq!(reply.status, 200, "{query}: {reply:?}");
        reply.json().as_array().unwrap().clone()
    }

    /// Returns when so many claims wait for this resource.
    pub fn wait_for_queue(&self, resource: &str, len: usize) {
        eventually(&format!("{len} claims wait for {resource}"), || {
            self.list(&format!("limit=1000&status=waiting&resource={resource}")).len() == len
        });
    }

    /// Makes a claim and gives its path back.
    pub fn claim(&self, resource: &str, ttl: f64) -> String {
        let body = serde_json::json!({ "resource": resource, "ttl": ttl }).to_string();
        let reply = self.post("/v1/claims/", &body);
        assert!(matches!(reply.status, 201 | 202), "{reply:?}");
        reply.location_path()
    }

    /// A claim's status now.
    pub fn status(&self, path: &str) -> String {
        let reply = self.get(path);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["status"].as_str().unwrap().to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- the server logged:\n{}---", self.logged());
        }
        fs::remove_file(&self.log).ok();
    }
}

/// One keep-alive connection that speaks HTTP/1.1.
pub struct Client {
    stream: BufReader<TcpStream>,
}

/// A response.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Self {
        Self::try_connect(addr).unwrap()
    }

    pub fn try_connect(addr: SocketAddr) -> std::io::Result<Self> {
        Ok(Self::on(TcpStream::connect(addr)?))
    }

    /// On a connection that is there already.
    pub fn on(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    /// Sends a request and reads its response.
    pub fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.send(method, path, headers, body);
        self.read_reply(method).unwrap()
    }

    /// Sends a request; `read_reply` reads its response.
    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        self.try_send(method, path, headers, body).unwrap();
    }

    pub fn try_send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<()> {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head += "Host: leasehold.localhost\r\n";
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() || matches!(method, "POST" | "PUT" | "PATCH") {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        self.stream.get_mut().write_all(&[head.as_bytes(), b"\r\n", body].concat())
    }

    /// The same; an error if the connection failed anywhere between.
    pub fn try_request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<Reply> {
        self.try_send(method, path, headers, body)?;
        self.read_reply(method)
    }

    /// The next response, which must come.
    pub fn reply(&mut self) -> Reply {
        self.read_reply("GET").unwrap()
    }

    /// Sends bytes as they are.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// The connection itself.
    pub fn stream(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    /// Reads a response; an error if the connection ended or failed first.
    pub fn read_reply(&mut self, method: &str) -> std::io::Result<Reply> {
        let status = self.read_status()?;
        let mut headers = Vec::new();
        loop {
            let line = self.read_line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap();
            headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
        }
        let mut reply = Reply { status, headers, body: Vec::new() };
        let len = reply.header("content-length").map_or(0, |len| len.parse().unwrap());
        if method != "HEAD" && reply.header("transfer-encoding") == Some("chunked") {
            while self.read_chunk(&mut reply.body)? {}
        } else if method != "HEAD" {
            reply.body = vec![0; len];
            self.stream.read_exact(&mut reply.body)?;
        }
        Ok(reply)
    }

    /// Reads a chunk; whether another one follows.
    fn read_chunk(&mut self, body: &mut Vec<u8>) -> std::io::Result<bool> {
        let size = self.read_line()?;
        let size = usize::from_str_radix(&size, 16).unwrap_or_else(|error| panic!("{error}: {size:?}"));
        let start = body.len();
        body.resize(start + size, 0);
        self.stream.read_exact(&mut body[start..])?;
        assert_eq!(self.read_line()?, "", "a chunk is longer than its size");
        Ok(size > 0)
    }

    /// The status of a response, whose rest is left to be read.
    pub fn read_status(&mut self) -> std::io::Result<u16> {
        let line = self.read_line()?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        status.ok_or_else(|| std::io::Error::other(format!("no status line: {line:?}")))
    }

    fn read_line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_string())
    }
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The parameters that a 400 names.
    pub fn named(&self) -> Vec<String> {
        assert_eq!(self.status, 400, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        let body = self.json();
        let object = body.as_object().unwrap_or_else(|| panic!("no object: {body}"));
        assert!(object.values().all(|why| why.as_str().is_some_and(|why| why.len() > 5)), "{body}");
        object.keys().cloned().collect()
    }

    /// The kind of a problem document.
    pub fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let body = self.json();
        assert_eq!(body["status"], self.status, "{body}");
        assert!(body["detail"].as_str().is_some_and(|detail| detail.len() > 5), "{body}");
        body["type"].as_str().unwrap().strip_prefix("urn:leasehold:problem:").unwrap().to_string()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The path of the `Location` header.
    pub fn location_path(&self) -> String {
        let location = self.header("location").unwrap_or_else(|| panic!("no Location: {self:?}"));
        let after_scheme = location.split_once("://").unwrap().1;
        after_scheme[after_scheme.find('/').unwrap()..].to_string()
    }
}

/// A body for `POST /v1/claims/`.
pub fn claim_body(resource: &str, ttl: f64) -> String {
    serde_json::json!({ "resource": resource, "ttl": ttl }).to_string()
}

/// Microseconds since 1970 of a timestamp, which must be RFC 3339 in UTC with microseconds.
pub fn micros(timestamp: &Value) -> i64 {
    let text = timestamp.as_str().unwrap_or_else(|| panic!("no timestamp: {timestamp}"));
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000000Z", "{text}");
    let number = |range: std::ops::Range<usize>| text[range].parse::<i64>().unwrap();
    let (year, month, day) = (number(0..4), number(5..7), number(8..10));
    // Days since 1970, by Howard Hinnant's formula: years that start in March have their leap day last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    let seconds = ((days * 24 + number(11..13)) * 60 + number(14..16)) * 60 + number(17..19);
    seconds * 1_000_000 + number(20..26)
}

/// Numbers that only look random: the same seed gives the same ones (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// The next one below `below`.
    pub fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % below as u64) as usize
    }

    /// One of these.
    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// The seed of this run: `LEASEHOLD_SEED` repeats an earlier one.
pub fn seed() -> u64 {
    let fresh = || std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64;
    let seed = std::env::var("LEASEHOLD_SEED").map_or_else(|_| fresh(), |seed| seed.parse().unwrap());
    eprintln!("LEASEHOLD_SEED={seed}");
    seed
}

/// Asks until the answer is yes.
pub fn eventually(what: &str, mut question: impl FnMut() -> bool) {
    let start = Instant::now();
    while !question() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
