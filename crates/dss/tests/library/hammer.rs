//! `tests/c/hammer.c`: processes and threads that fight over sets of ids, watched from outside; then with a server that dies.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use leasehold_dss::{Client, Kind, Lock, Options};

use crate::harness::{Link, Server, compile, finish, source, spawn, temp_path, valgrind};

/// As in hammer.c.
const IDS: usize = 12;
const SET: usize = 4;

struct Fight {
    file: std::path::PathBuf,
}

impl Fight {
    fn new() -> Self {
        let file = temp_path("holders");
        std::fs::write(&file, [0; 4 * IDS]).unwrap();
        Self { file }
    }

    fn args(&self, command: &mut Command, url: &str, process: usize, threads: usize, seconds: u64) {
        command.arg(url).arg(&self.file);
        command.args([process.to_string(), threads.to_string(), seconds.to_string()]);
    }
}

impl Drop for Fight {
    fn drop(&mut self) {
        std::fs::remove_file(&self.file).ok();
    }
}

fn program(name: &str) -> std::path::PathBuf {
    compile(&source("hammer.c"), name, Link::Shared)
}

fn client(url: &str) -> Client {
    Client::new(Options { url: Some(url.into()), ..Options::default() }).unwrap()
}

/// Every lock that is seen belongs to a whole set of one owner: the tokens of one call follow each other.
fn is_whole(locks: &[Lock]) -> bool {
    let of_call = |place: usize, start: usize| {
        let first = locks[place].token.unwrap_or(0).checked_sub(((place + IDS - start) % IDS) as u64);
        first.is_some_and(|first| {
            (0..SET).all(|i| {
                let lock = &locks[(start + i) % IDS];
                lock.token == Some(first + i as u64) && lock.owner == locks[place].owner
            })
        })
    };
    let held = (0..IDS).filter(|place| locks[*place].errno.is_none());
    held.into_iter().all(|place| (0..SET).any(|back| of_call(place, (place + IDS - back) % IDS)))
}

#[test]
fn two_processes_with_eight_threads_each_never_share_a_lock_nor_hold_a_part_of_a_set() {
    const SECONDS: u64 = 10;
    let (server, fight) = (Server::start(), Fight::new());
    let program = program("hammer");
    let processes: Vec<_> = (0..2)
        .map(|process| {
            let mut command = Command::new(&program);
            fight.args(&mut command, &server.url(), process, 8, SECONDS);
            spawn(command)
        })
        .collect();
    let client = client(&server.url());
    let names: Vec<String> = (0..IDS).map(|i| format!("id-{i}")).collect();
    let ids: Vec<&str> = names.iter().map(String::as_str).collect();
    let (start, mut looks, mut seen) = (Instant::now(), 0, 0);
    while start.elapsed() < Duration::from_secs(SECONDS) {
        let (locks, _) = client.status(Kind::Media, &ids);
        assert!(is_whole(&locks), "a part of a set: {locks:?}");
        looks += 1;
        seen += locks.iter().filter(|lock| lock.errno.is_none()).count();
    }
    for (number, process) in processes.into_iter().enumerate() {
        let counts = finish(process, "the hammer");
        assert!(!counts.starts_with("taken 0 "), "process {number}: {counts}");
    }
    assert!(looks > 100 && seen > 100, "{looks} looks at {seen} locks");
    assert!(client.status(Kind::Media, &ids).0.iter().all(|lock| lock.errno.is_some()));
}

#[test]
fn a_part_of_a_set_would_be_noticed() {
    let lock = |token: Option<u64>| Lock {
        id: String::new(),
        errno: token.is_none().then_some(leasehold_dss::Errno(libc::ENOLCK)),
        hostname: None,
        owner: token.map(|_| 1),
        timestamp: None,
        token,
    };
    let mut locks = vec![lock(None); IDS];
    assert!(is_whole(&locks));
    for i in 0..SET {
        assert!(i == 0 || !is_whole(&locks));
        locks[(10 + i) % IDS] = lock(Some(7 + i as u64));
    }
    assert!(is_whole(&locks));
    locks[2] = lock(Some(100));
    assert!(!is_whole(&locks));
}

/// The server is killed again and again in the middle of calls. No call may lock twice, report its own lock as somebody
/// else's, lose an unlock, or end the program by SIGPIPE.
fn survives(program: &Path, wrap: fn(&Path) -> Command, threads: usize, seconds: u64, kills: u32) {
    let (mut server, fight) = (Server::start(), Fight::new());
    let processes: Vec<_> = (0..2)
        .map(|process| {
            let mut command = wrap(program);
            fight.args(&mut command, &server.url(), process, threads, seconds);
            spawn(command)
        })
        .collect();
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(seconds * 1000 / u64::from(kills + 1)));
        server.kill();
        server.start_again();
    }
    for process in processes {
        let counts = finish(process, "the hammer");
        assert!(!counts.starts_with("taken 0 "), "{counts}");
    }
    let names: Vec<String> = (0..IDS).map(|i| format!("id-{i}")).collect();
    let ids: Vec<&str> = names.iter().map(String::as_str).collect();
    let left = client(&server.url()).status(Kind::Media, &ids).0;
    assert!(left.iter().all(|lock| lock.errno.is_some()), "left behind: {left:?}");
}

#[test]
fn a_server_that_is_killed_in_the_middle_of_calls_confuses_nobody() {
    survives(&program("hammer-killed"), |program| Command::new(program), 6, 8, 6);
}

#[test]
fn a_server_that_is_killed_in_the_middle_of_calls_leaves_no_errors_under_valgrind() {
    survives(&program("hammer-valgrind"), valgrind, 3, 12, 3);
}
