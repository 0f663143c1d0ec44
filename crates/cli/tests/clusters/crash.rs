//! Nothing is lost: whatever was acknowledged is there after `kill -9`, at any moment, again and again; nothing that
//! was refused is; tokens never repeat. And what a crash can't explain stops the start with a clear message.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Client, Random, Reply, Server, TempDir, claim_body, eventually, seed};
use serde_json::{Value, json};

const CLIENTS: usize = 8;
const FINALS: &[&str] = &["released", "aborted", "withdrawn", "revoked"];

// ---- what a client knows

/// The last thing that a client was told about one of its claims.
#[derive(Debug, Clone, PartialEq)]
enum Known {
    /// Nothing: the answer to its POST never came.
    Nothing,
    /// It was refused.
    Refused,
    Waiting,
    Active,
    Over(String),
}

/// What was asked last and never answered: it may have happened.
#[derive(Debug, Clone, PartialEq)]
enum Maybe {
    Nothing,
    /// The POST, which could also have been taken back since its client went away.
    Made,
    Ttl(f64),
    Over(&'static str),
}

/// One claim in the books of its client.
#[derive(Debug, Clone)]
struct Record {
    /// Its number, which is in its user data.
    number: u64,
    resource: String,
    path: String,
    key: Option<String>,
    known: Known,
    maybe: Maybe,
    ttl: f64,
    token: u64,
    /// Its ttl is so short that it may have run out by itself.
    brief: bool,
}

impl Record {
    fn body(&self, padding: usize) -> String {
        let data = json!({ "n": self.number, "padding": "p".repeat(padding) });
        json!({ "resource": self.resource, "ttl": self.ttl, "user_data": data }).to_string()
    }

    fn is_live(&self) -> bool {
        matches!(self.known, Known::Waiting | Known::Active)
    }

    /// Takes over a claim as the server shows it.
    fn learn(&mut self, claim: &Value) {
        let status = claim["status"].as_str().unwrap();
        self.known = match status {
            "waiting" => Known::Waiting,
            "active" => Known::Active,
            over => Known::Over(over.into()),
        };
        self.path = claim["url"].as_str().unwrap().split_once("leasehold.localhost").unwrap().1.into();
        self.ttl = claim["initial_ttl"].as_f64().unwrap_or(self.ttl);
        self.token = claim["token"].as_u64().unwrap_or(0);
    }
}

/// One client's work on one connection until the server dies.
struct Worker<'a> {
    records: &'a mut Vec<Record>,
    next: &'a mut u64,
    random: Random,
    addr: SocketAddr,
    padding: usize,
    name: usize,
}

impl Worker<'_> {
    fn work(&mut self) {
        let Ok(mut client) = Client::try_connect(self.addr) else { return };
        while self.step(&mut client).is_ok() {}
    }

    fn step(&mut self, client: &mut Client) -> std::io::Result<()> {
        let live: Vec<usize> = (0..self.records.len()).filter(|i| self.records[*i].is_live()).collect();
        let crowded = live.len() > 12;
        let one = if live.is_empty() { 0 } else { live[self.random.below(live.len())] };
        match self.random.below(if crowded { 6 } else { 12 }) {
            0..=2 if !live.is_empty() => self.finish(client, one),
            3 if !live.is_empty() => self.renew(client, one),
            4 | 5 if !live.is_empty() => self.activate(client, one),
            6 => self.refused_claim(client),
            7 => self.abandoned_claim(),
            _ => self.claim(client),
        }
    }

    fn new_record(&mut self) -> usize {
        let number = *self.next * CLIENTS as u64 + self.name as u64;
        *self.next += 1;
        // Half of them fight for a few resources, half have one of their own.
        let resource = match self.random.below(2) {
            0 => format!("shared/{}", self.random.below(4)),
            _ => format!("own/{number}"),
        };
        let brief = self.random.below(10) == 0;
        self.records.push(Record {
            number,
            resource,
            path: String::new(),
            key: (self.random.below(3) == 0).then(|| format!("key {number}")),
            known: Known::Nothing,
            maybe: Maybe::Nothing,
            ttl: if brief { 0.03 } else { 9000.0 },
            token: 0,
            brief,
        });
        self.records.len() - 1
    }

    fn claim(&mut self, client: &mut Client) -> std::io::Result<()> {
        let at = self.new_record();
        let path = ["/v1/claims/", "/v1/claims/?wait=0.02"][self.random.below(2)];
        let record = &mut self.records[at];
        record.maybe = Maybe::Made;
        let reply = post(client, path, record, self.padding)?;
        assert!(matches!(reply.status, 200..=202), "{reply:?}");
        record.maybe = Maybe::Nothing;
        record.learn(&reply.json());
        Ok(())
    }

    fn refused_claim(&mut self, client: &mut Client) -> std::io::Result<()> {
        let at = self.new_record();
        let record = &mut self.records[at];
        record.known = Known::Refused;
        let body = record.body(0).replace("\"ttl\":", "\"ttl\":-");
        let reply = client.try_request("POST", "/v1/claims/", &[], body.as_bytes())?;
        assert_eq!(reply.status, 400, "{reply:?}");
        Ok(())
    }

    /// Asks, and is gone before the answer comes.
    fn abandoned_claim(&mut self) -> std::io::Result<()> {
        let at = self.new_record();
        let record = &mut self.records[at];
        (record.key, record.maybe) = (None, Maybe::Made);
        let mut client = Client::try_connect(self.addr)?;
        let body = record.body(self.padding);
        client.try_send("POST", "/v1/claims/?wait=9", &[], body.as_bytes())
    }

    fn finish(&mut self, client: &mut Client, at: usize) -> std::io::Result<()> {
        let status = self.random.pick(FINALS);
        let record = &mut self.records[at];
        record.maybe = Maybe::Over(status);
        let reply = patch(client, &record.path, &json!({ "status": status }))?;
        record.maybe = Maybe::Nothing;
        match reply.status {
            204 => record.known = Known::Over(status.into()),
            400 if status == "released" && record.known == Known::Waiting => {}
            _ => ran_out(record, &reply),
        }
        Ok(())
    }

    fn renew(&mut self, client: &mut Client, at: usize) -> std::io::Result<()> {
        let ttl = 9000.0 + self.random.below(1_000_000) as f64;
        let record = &mut self.records[at];
        record.maybe = Maybe::Ttl(ttl);
        let reply = patch(client, &record.path, &json!({ "ttl": ttl }))?;
        record.maybe = Maybe::Nothing;
        match reply.status {
            200 => {
                record.learn(&reply.json());
                assert_eq!(record.ttl, ttl);
                record.brief = false;
            }
            400 if record.known == Known::Waiting && reply.json()["status"].is_null() => {}
            _ => ran_out(record, &reply),
        }
        Ok(())
    }

    fn activate(&mut self, client: &mut Client, at: usize) -> std::io::Result<()> {
        let record = &mut self.records[at];
        let path = format!("{}?wait=0.01", record.path);
        let reply = patch(client, &path, &json!({ "status": "active" }))?;
        match reply.status {
            200 | 409 => record.learn(&reply.json()),
            _ => ran_out(record, &reply),
        }
        Ok(())
    }
}

fn post(client: &mut Client, path: &str, record: &Record, padding: usize) -> std::io::Result<Reply> {
    let body = record.body(padding);
    match &record.key {
        Some(key) => client.try_request("POST", path, &[("Idempotency-Key", key)], body.as_bytes()),
        None => client.try_request("POST", path, &[], body.as_bytes()),
    }
}

fn patch(client: &mut Client, path: &str, body: &Value) -> std::io::Result<Reply> {
    client.try_request("PATCH", path, &[], body.to_string().as_bytes())
}

/// The only way in which a claim ends that its client did not end.
fn ran_out(record: &mut Record, reply: &Reply) {
    assert!(record.brief && reply.status == 400, "{record:?} {reply:?}");
    assert_eq!(reply.json()["status"], "expired", "{record:?}");
    record.known = Known::Over("expired".into());
}

// ---- what must be true after a crash

/// Every claim there is, in order of creation. Each page is of one moment, so nothing may end between two of them:
/// what is brief has run out before the first.
fn everything(server: &Server) -> Vec<Value> {
    eventually("what is brief runs out", || server.list("status=active&maximum_ttl=1").is_empty());
    let mut all = Vec::new();
    loop {
        let page = server.list(&format!("limit=1000&offset={}", all.len()));
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

/// Compares what a client was told with what is there, and takes over what it did not know.
fn check_record(record: &mut Record, found: Option<&Value>) {
    let Some(claim) = found else {
        let may_be_absent = record.known == Known::Refused || record.maybe == Maybe::Made;
        assert!(may_be_absent && record.token == 0, "lost: {record:?}");
        record.known = Known::Refused;
        return;
    };
    let status = claim["status"].as_str().unwrap();
    let mut possible: Vec<&str> = match &record.known {
        Known::Refused => panic!("refused, and there all the same: {record:?} {claim}"),
        Known::Nothing => vec!["waiting", "active", "withdrawn"],
        Known::Waiting => vec!["waiting", "active"],
        Known::Active => vec!["active"],
        Known::Over(status) => vec![status],
    };
    if !matches!(record.known, Known::Over(_)) {
        possible.extend(record.brief.then_some("expired"));
        possible.extend(if let Maybe::Over(status) = record.maybe { Some(status) } else { None });
    }
    assert!(possible.contains(&status), "{record:?} but {claim}");
    assert_eq!(claim["resource"], record.resource);
    assert!(record.token == 0 || claim["token"] == record.token, "{record:?} but {claim}");
    if claim["ttl"].is_number() {
        let ttl = claim["initial_ttl"].as_f64().unwrap();
        let renewed = matches!(record.maybe, Maybe::Ttl(new) if new == ttl);
        assert!(ttl == record.ttl || renewed, "{record:?} but {claim}");
        record.brief &= !renewed;
    }
    record.learn(claim);
    record.maybe = Maybe::Nothing;
}

/// One holder a resource, none without while others wait, first come first served, each token once.
fn check_table(claims: &[Value]) {
    let mut tokens = BTreeSet::new();
    let mut resources: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for claim in claims {
        if let Some(token) = claim["token"].as_u64() {
            assert!(tokens.insert(token), "token {token} was given twice");
        }
        let status = claim["status"].as_str().unwrap();
        if matches!(status, "active" | "waiting") {
            resources.entry(claim["resource"].as_str().unwrap()).or_default().push(status);
        }
    }
    for (resource, live) in resources {
        assert_eq!(live[0], "active", "{resource}: {live:?}");
        assert!(live[1..].iter().all(|status| *status == "waiting"), "{resource}: {live:?}");
    }
}

struct Life {
    server: Server,
    books: Vec<Vec<Record>>,
    next: Vec<u64>,
    /// The largest token that anyone was ever shown.
    token_max: u64,
}

impl Life {
    fn start(args: &[&str]) -> Self {
        let books = (0..CLIENTS).map(|_| Vec::new()).collect();
        Self { server: Server::start_with(args), books, next: vec![0; CLIENTS], token_max: 0 }
    }

    /// Clients at work, a kill in the middle of it, a restart, and a look at everything.
    fn round(&mut self, random: &mut Random, padding: usize) {
        let addr = self.server.addr;
        let until_kill = Duration::from_millis(30 + random.below(400) as u64);
        std::thread::scope(|scope| {
            for (name, (records, next)) in self.books.iter_mut().zip(&mut self.next).enumerate() {
                let random = Random(random.below(usize::MAX) as u64);
                scope.spawn(move || Worker { records, next, random, addr, padding, name }.work());
            }
            std::thread::sleep(until_kill);
            self.server.kill();
        });
        self.server.restart();
        self.retry_keyed(padding);
        self.check();
    }

    /// Who has a key may ask again, and gets what the first request made, if it made anything.
    fn retry_keyed(&mut self, padding: usize) {
        let mut client = self.server.client();
        for record in self.books.iter_mut().flatten() {
            if record.key.is_some() && record.known == Known::Nothing {
                let reply = post(&mut client, "/v1/claims/", record, padding).unwrap();
                assert!(matches!(reply.status, 200..=202), "{record:?} {reply:?}");
                record.maybe = Maybe::Nothing;
                record.learn(&reply.json());
            }
        }
    }

    fn check(&mut self) {
        let claims = everything(&self.server);
        check_table(&claims);
        let mut by_number: BTreeMap<u64, &Value> = BTreeMap::new();
        for claim in claims.iter().filter(|claim| claim["user_data"]["n"].is_u64()) {
            let number = claim["user_data"]["n"].as_u64().unwrap();
            assert!(by_number.insert(number, claim).is_none(), "made twice: {claim}");
        }
        for record in self.books.iter_mut().flatten() {
            self.token_max = self.token_max.max(record.token);
            check_record(record, by_number.remove(&record.number).as_ref().copied());
        }
        assert!(by_number.is_empty(), "nobody asked for these: {by_number:?}");
        let shown = claims.iter().filter_map(|claim| claim["token"].as_u64()).max().unwrap_or(0);
        self.token_max = self.token_max.max(shown);
        let probe = self.server.post("/v1/claims/", &claim_body("probe", 0.0)).json();
        let token = probe["token"].as_u64().unwrap();
        assert!(token > self.token_max, "token {token} after {}", self.token_max);
        self.token_max = token;
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill_at_any_moment() {
    let mut random = Random(seed());
    for _ in 0..2 {
        let mut life = Life::start(&[]);
        for _ in 0..8 {
            life.round(&mut random, 0);
        }
        assert!(life.books.iter().flatten().count() > 100, "they hardly did anything");
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill_while_snapshots_are_taken() {
    let mut random = Random(seed() ^ 1);
    for _ in 0..2 {
        let mut life = Life::start(&["--snapshot-log-mib", "1"]);
        // On a slow machine, or with short lives, it takes more rounds until the log is long enough for one.
        for round in 0..20 {
            life.round(&mut random, 8_000);
            if round >= 7 && !snapshots(&life.server.data).is_empty() {
                break;
            }
        }
        // Where no life was long enough, this one is; and what follows is recovered from a snapshot in any case.
        eventually("a snapshot is taken", || {
            life.server.claim("filler", 0.0);
            !snapshots(&life.server.data).is_empty()
        });
        life.round(&mut random, 8_000);
    }
}

#[test]
fn claims_that_are_over_stay_within_their_limit_across_restarts() {
    let mut server = Server::start_with(&["--finished-max", "10"]);
    let held = server.claim("held", 9000.0);
    for _ in 0..200 {
        server.claim("r", 0.0);
    }
    server.restart();
    server.claim("r", 0.0);
    eventually("old ones are forgotten", || server.list("status=expired").len() <= 11);
    assert_eq!(server.status(&held), "active", "what is held is never forgotten");
}

// ---- starts

#[test]
fn a_ttl_does_not_run_while_the_server_is_down() {
    let mut server = Server::start();
    let held = server.claim("r", 4.0);
    let waiting = server.claim("r", 9000.0);
    server.kill();
    std::thread::sleep(Duration::from_secs(4));
    server.restart();
    assert_eq!((server.status(&held).as_str(), server.status(&waiting).as_str()), ("active", "waiting"));
    eventually("it runs on", || server.status(&waiting) == "active");
    assert_eq!(server.status(&held), "expired");
}

#[test]
fn a_second_process_on_the_same_data_is_refused() {
    let server = Server::start();
    let path = server.claim("r", 9000.0);
    let error = Server::try_start_in(&server.data, &[]).err().unwrap();
    assert!(error.contains(&format!("in use by process {}", server.pid())), "{error}");
    assert!(error.contains(server.data.to_str().unwrap()), "{error}");
    assert_eq!(server.status(&path), "active", "the first one does not notice");
}

#[test]
fn a_start_that_is_killed_again_and_again_loses_nothing() {
    let mut random = Random(seed() ^ 2);
    let mut server = Server::start_with(&["--snapshot-log-mib", "1"]);
    let mut client = server.client();
    for i in 0..60 {
        let body =
            json!({ "resource": format!("r{i}"), "ttl": 9000, "user_data": "x".repeat(40_000) }).to_string();
        assert_eq!(client.request("POST", "/v1/claims/", &[], body.as_bytes()).status, 201);
    }
    let still = |server: &Server| -> Vec<Value> {
        let keep = |claim: &Value| json!([claim["url"], claim["status"], claim["token"], claim["created"]]);
        server.list("").iter().map(keep).collect()
    };
    let before = still(&server);
    server.kill();
    for _ in 0..20 {
        let mut starting = Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args(["serve", "--listen", "127.0.0.1:0", "--snapshot-log-mib", "1", "--data"])
            .arg(&server.data)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(random.below(150) as u64));
        starting.kill().unwrap();
        starting.wait().unwrap();
    }
    server.restart();
    assert_eq!(still(&server), before);
}

#[test]
fn a_first_start_that_is_killed_again_and_again_can_be_finished() {
    let mut random = Random(seed() ^ 3);
    for _ in 0..8 {
        let dir = TempDir::new();
        let data = dir.path().join("data");
        for _ in 0..2 {
            let mut starting = Command::new(env!("CARGO_BIN_EXE_leasehold"))
                .args(["serve", "--listen", "127.0.0.1:0", "--data"])
                .arg(&data)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(random.below(80) as u64));
            starting.kill().unwrap();
            starting.wait().unwrap();
        }
        let server = Server::start_in(&data, &[]);
        assert_eq!(server.post("/v1/claims/", &claim_body("r", 9.0)).status, 201);
    }
}

// ---- damage

/// Files with this ending, in order.
fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == ending));
    paths.sort();
    paths
}

fn snapshots(data: &Path) -> Vec<PathBuf> {
    files(&data.join("snapshots"), "snapshot")
}

/// The segment in which the log ends, and where its last byte is: all segments are filled with zeros first.
fn log_end(data: &Path) -> (PathBuf, usize) {
    const HEADER: usize = 32;
    let ends = |path: PathBuf| {
        let end = fs::read(&path).unwrap().iter().rposition(|byte| *byte != 0)?;
        (end >= HEADER).then_some((path, end))
    };
    files(&data.join("log"), "log").into_iter().rev().find_map(ends).expect("there is a log")
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// Every file in the data directory that holds data.
fn contents(data: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let all = [files(&data.join("log"), "log"), snapshots(data)].concat();
    all.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// The message with which a start is refused, having changed nothing.
fn refusal(server: &Server) -> String {
    let before = contents(&server.data);
    let message = Server::try_start_in(&server.data, &[]).err().expect("it starts on damaged data");
    assert!(contents(&server.data) == before, "it changed something");
    message
}

#[test]
fn a_torn_last_record_is_cut_off_with_a_warning() {
    for torn in [1, 9, 17] {
        let mut server = Server::start();
        let kept: Vec<String> = (0..5).map(|i| server.claim(&format!("r{i}"), 9000.0)).collect();
        server.claim("last", 9000.0);
        server.kill();
        let (path, end) = log_end(&server.data);
        change(&path, |bytes| bytes[end + 1 - torn..=end].fill(0));
        server.restart();
        let log = server.logged();
        assert!(log.contains("WARN") && log.contains(path.file_name().unwrap().to_str().unwrap()), "{log}");
        for path in &kept {
            assert_eq!(server.status(path), "active");
        }
        let new = server.claim("new", 9000.0);
        server.restart();
        assert!(!server.logged().contains("WARN"), "it is repaired: {}", server.logged());
        assert_eq!(server.status(&new), "active");
    }
}

#[test]
fn a_file_that_was_cut_short_is_as_good_as_torn() {
    let mut server = Server::start();
    let kept = server.claim("r", 9000.0);
    server.claim("last", 9000.0);
    server.kill();
    let (path, end) = log_end(&server.data);
    change(&path, |bytes| bytes.truncate(end - 2));
    server.restart();
    assert!(server.logged().contains("WARN"), "{}", server.logged());
    assert_eq!(server.status(&kept), "active");
}

#[test]
fn damage_in_the_middle_of_the_log_stops_the_start_and_is_named() {
    let mut server = Server::start();
    for i in 0..20 {
        server.claim(&format!("r{i}"), 9000.0);
    }
    server.kill();
    let (path, end) = log_end(&server.data);
    let whole = fs::read(&path).unwrap();
    for at in [40, end / 3, end / 2] {
        change(&path, |bytes| bytes[at] ^= 0x10);
        let message = refusal(&server);
        let (_, named) = message.split_once(path.to_str().unwrap()).unwrap_or_else(|| panic!("{message}"));
        let offset = named.split_once("at byte ").unwrap().1;
        let offset: usize = offset[..offset.find(|c: char| !c.is_ascii_digit()).unwrap()].parse().unwrap();
        assert!(offset <= at && at < offset + 1000, "{offset} is not where {at} is: {message}");
        fs::write(&path, &whole).unwrap();
    }
    server.restart();
    assert_eq!(server.list("status=active").len(), 20, "whole again, it starts again");
}

#[test]
fn a_missing_log_file_stops_the_start_and_is_named() {
    let mut server = Server::start();
    let mut client = server.client();
    for i in 0..200 {
        let body =
            json!({ "resource": format!("r{i}"), "ttl": 9000, "user_data": "x".repeat(60_000) }).to_string();
        assert_eq!(client.request("POST", "/v1/claims/", &[], body.as_bytes()).status, 201);
    }
    server.kill();
    let first = files(&server.data.join("log"), "log")[0].clone();
    fs::rename(&first, server.data.join("elsewhere")).unwrap();
    let message = refusal(&server);
    assert!(message.contains(first.to_str().unwrap()) && message.contains("missing"), "{message}");
}

type Damage = fn(&mut Vec<u8>);

#[test]
fn a_damaged_snapshot_stops_the_start_and_is_named() {
    let mut server = Server::start_with(&["--snapshot-log-mib", "1"]);
    let mut client = server.client();
    for i in 0..60 {
        let body =
            json!({ "resource": format!("r{i}"), "ttl": 9000, "user_data": "x".repeat(40_000) }).to_string();
        assert_eq!(client.request("POST", "/v1/claims/", &[], body.as_bytes()).status, 201);
    }
    eventually("a snapshot is taken", || !snapshots(&server.data).is_empty());
    server.kill();
    let path = snapshots(&server.data).pop().unwrap();
    let whole = fs::read(&path).unwrap();
    let damages: [Damage; 6] = [
        |bytes| bytes[0] ^= 1,
        |bytes| bytes[12] ^= 1,
        |bytes| bytes[20] ^= 1,
        |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        },
        |bytes| bytes.truncate(bytes.len() - 1),
        |bytes| bytes.truncate(bytes.len() / 2),
    ];
    for damage in damages {
        change(&path, damage);
        let message = refusal(&server);
        assert!(message.contains(path.to_str().unwrap()) && message.contains("at byte "), "{message}");
        fs::write(&path, &whole).unwrap();
    }
    server.restart();
    assert_eq!(server.list("status=active").len(), 60, "whole again, it starts again");
}

#[test]
fn data_of_another_format_is_left_alone() {
    let mut server = Server::start();
    server.claim("r", 9000.0);
    server.kill();
    let format = server.data.join("FORMAT");
    let known = fs::read(&format).unwrap();
    fs::write(&format, "leasehold data format 99\n").unwrap();
    let message = refusal(&server);
    assert!(
        message.contains("leasehold data format 99") && message.contains("nothing was changed"),
        "{message}"
    );
    fs::remove_file(&format).unwrap();
    assert!(refusal(&server).contains("no FORMAT file"));
    fs::write(&format, known).unwrap();
    server.restart();
    assert_eq!(server.list("status=active").len(), 1);
}

// ---- a full disk

/// Servers, one after the other, on a disk of 28 MiB (three log segments and a bit) that lives as long as this does.
struct SmallDisk {
    shell: std::process::Child,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
    root: PathBuf,
    addr: SocketAddr,
    log: PathBuf,
    _dir: TempDir,
}

impl SmallDisk {
    fn start() -> Self {
        use std::io::BufRead;
        let dir = TempDir::new();
        let (disk, log) = (dir.path().join("disk"), dir.path().join("log"));
        fs::create_dir(&disk).unwrap();
        let script = r#"mount -t tmpfs -o size=28m tmpfs "$0" || exit 1
            for run in 1 2 3; do "$1" serve --listen 127.0.0.1:0 --data "$0/data"; done"#;
        let mut shell = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
            .arg(&disk)
            .arg(env!("CARGO_BIN_EXE_leasehold"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .expect("this test needs `unshare` (util-linux) to mount a small disk that only it sees");
        let lines = std::io::BufReader::new(shell.stdout.take().unwrap()).lines();
        // The disk is mounted for the shell alone; this is the way in from outside.
        let root = PathBuf::from(format!("/proc/{}/root{}", shell.id(), disk.display()));
        let mut small = Self { shell, lines, root, addr: ([127, 0, 0, 1], 0).into(), log, _dir: dir };
        small.next_server();
        small
    }

    fn next_server(&mut self) {
        let line = self.lines.next().and_then(Result::ok);
        let log = || fs::read_to_string(&self.log).unwrap_or_default();
        let line = line
            .unwrap_or_else(|| panic!("no server on a small disk, are user namespaces allowed? {}", log()));
        self.addr = line.split("http://").nth(1).unwrap().parse().unwrap();
    }

    fn kill_server(&self) {
        let pid = fs::read_to_string(self.root.join("data/LOCK")).unwrap();
        assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    }

    fn fill(&self) {
        use std::io::Write;
        let mut file = fs::File::options().create(true).append(true).open(self.root.join("fill")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    fn post(&self, resource: &str, padding: usize) -> Reply {
        let body = json!({ "resource": resource, "ttl": 9000, "user_data": "x".repeat(padding) }).to_string();
        Client::connect(self.addr).request("POST", "/v1/claims/", &[], body.as_bytes())
    }

    fn get(&self, path: &str) -> Reply {
        Client::connect(self.addr).request("GET", path, &[], b"")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the servers logged:\n{}---", fs::read_to_string(&self.log).unwrap_or_default());
        }
        // The shell first, or it starts the next one.
        let pid = fs::read_to_string(self.root.join("data/LOCK"));
        self.shell.kill().ok();
        if let Ok(pid) = pid {
            Command::new("kill").args(["-KILL", &pid]).stderr(Stdio::null()).status().ok();
        }
        self.shell.wait().ok();
    }
}

#[test]
fn a_full_disk_refuses_changes_and_keeps_what_was_there() {
    let mut small = SmallDisk::start();
    let mut kept = vec![small.post("first", 0).location_path()];
    small.fill();
    let refused = loop {
        assert!(kept.len() < 1000, "the disk is never full");
        let reply = small.post(&format!("r{}", kept.len()), 60_000);
        match reply.status {
            201 => kept.push(reply.location_path()),
            _ => break reply,
        }
    };
    assert_eq!((refused.status, refused.problem().as_str()), (507, "disk-full"));
    assert!(refused.header("retry-after").is_some());
    let all_there = |small: &SmallDisk| {
        for path in &kept {
            let reply = small.get(path);
            assert_eq!((reply.status, &reply.json()["status"]), (200, &"active".into()), "{path}");
        }
    };
    all_there(&small);
    assert_eq!((small.get("/readyz").status, small.get("/livez").status), (503, 200));
    // An operator who frees too little learns how much is missing.
    let needed = "a little more than 8 MiB are needed";
    let says = |text: &str| text.contains("0 MiB are free on its disk") && text.contains(needed);
    assert!(says(&small.get("/readyz").text()), "{}", small.get("/readyz").text());
    let log = fs::read_to_string(&small.log).unwrap();
    assert!(
        log.lines().any(|line| line.contains("can't prepare the next log segment") && says(line)),
        "{log}"
    );
    let ballast = fs::File::options().write(true).open(small.root.join("fill")).unwrap();
    ballast.set_len(ballast.metadata().unwrap().len() - (5 << 20)).unwrap();
    eventually("it says what is free now", || {
        let reply = small.get("/readyz");
        assert_eq!(reply.status, 503, "5 MiB are not enough");
        reply.text().contains("5 MiB are free on its disk") && reply.text().contains(needed)
    });
    eventually("the log says so too", || {
        fs::read_to_string(&small.log).unwrap().contains("log segment: 5 MiB are free on its disk")
    });
    // An open file would keep its space after it was removed.
    drop(ballast);
    small.fill();
    // Also who starts on a full disk serves what is there.
    small.kill_server();
    small.next_server();
    all_there(&small);
    assert_eq!(small.post("more", 0).status, 507);
    fs::remove_file(small.root.join("fill")).unwrap();
    let mut late = None;
    eventually("there is room again", || {
        let reply = small.post("more", 0);
        assert!(matches!(reply.status, 201 | 507), "{reply:?}");
        late = (reply.status == 201).then(|| reply.location_path());
        late.is_some()
    });
    assert_eq!(small.get("/readyz").status, 200);
    small.kill_server();
    small.next_server();
    all_there(&small);
    assert_eq!(small.get(&late.unwrap()).json()["status"], "active");
    assert_eq!(small.get("/v1/claims/?resource=more&status=active").json().as_array().unwrap().len(), 1);
}
