//! What a memory dump of a node tells: nothing of the access keys of connections that are closed.

use std::io::{Read, Seek, SeekFrom};

use crate::common::{claim_body, eventually};
use crate::support::Guarded;

/// How often this text is in the memory of a process that can be written.
fn count_in_memory(pid: u32, text: &str) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut count = 0;
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        if !rest.starts_with("rw") {
            continue;
        }
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|place| u64::from_str_radix(place, 16).unwrap());
        let mut bytes = vec![0; (end - start) as usize];
        memory.seek(SeekFrom::Start(start)).unwrap();
        // A mapping may have gone since.
        if memory.read_exact(&mut bytes).is_ok() {
            count += bytes.windows(text.len()).filter(|window| *window == text.as_bytes()).count();
        }
    }
    count
}

#[test]
fn the_keys_of_closed_connections_are_not_in_memory() {
    let guarded = Guarded::start(&["ci"], "");
    let secret = guarded.bare_key("ci").rsplit_once('_').unwrap().1.to_string();
    let key = guarded.key("ci");
    let mut client = guarded.server.client();
    let body = claim_body("r", 600.0);
    let reply = client.request("POST", "/v1/claims/", &[("Authorization", &key)], body.as_bytes());
    assert_eq!(reply.status, 201, "{reply:?}");
    assert!(
        count_in_memory(guarded.server.pid(), &secret) > 0,
        "it can be found while the connection is open"
    );
    drop(client);
    for _ in 0..3 {
        guarded.ask("ci", "POST", "/v1/claims/", &body);
        guarded.ask("ci", "GET", "/v1/claims/", "");
    }
    eventually("no key is left in memory", || count_in_memory(guarded.server.pid(), &secret) == 0);
}
