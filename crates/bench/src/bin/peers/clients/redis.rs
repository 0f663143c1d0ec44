//! Redis, and Leasehold's port for Redis clients, over RESP2.
//!
//! In:    a connection. Out: the usual lock: `SET NX PX`, and a delete, plain or only of one's own value.
//! Never: takes an error reply, or a nil, for success.

use std::net::SocketAddr;
use std::ops::Range;

use anyhow::{Result, bail};
use leasehold_bench::reactor::Seat;
use leasehold_bench::wire::{Wire, digits};
use memchr::memchr;

/// What every text on locks with Redis tells to release with.
const RELEASE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// How long a replica may take: longer than any round, so that a slow one fails the round.
const REPLICA_WAIT_MS: &str = "10000";

/// What a client asks for beside the plain lock.
#[derive(Default)]
pub(crate) struct Settings<'a> {
    /// Releases delete only what is still one's own.
    pub(crate) compares: bool,
    /// A password.
    pub(crate) key: Option<&'a str>,
    /// Every change is followed by `WAIT 1`, in the same packet.
    pub(crate) waits_for_replica: bool,
}

/// A client and the key it holds.
pub(crate) struct Redis {
    wire: Wire,
    key: String,
    /// The script's name on the server, where releases compare first.
    script: Option<String>,
    waits_for_replica: bool,
}

impl Redis {
    /// Connects.
    pub(crate) async fn connect(addr: SocketAddr, seat: Seat<'_>, settings: Settings<'_>) -> Result<Self> {
        let Settings { compares, key, waits_for_replica } = settings;
        let wire = Wire::connect(addr, None, seat)?;
        let mut client = Self { wire, key: String::new(), script: None, waits_for_replica };
        if let Some(key) = key {
            send(&mut client.wire.out, &["AUTH", key]);
            client.expect("AUTH", b"OK").await?;
        }
        if compares {
            send(&mut client.wire.out, &["SCRIPT", "LOAD", RELEASE]);
            let reply = client.reply().await?;
            client.script = Some(std::str::from_utf8(client.value(&reply))?.to_owned());
            client.wire.take(reply.whole);
        }
        Ok(client)
    }

    /// Takes the lock.
    pub(crate) async fn acquire(&mut self, name: &str) -> Result<()> {
        name.clone_into(&mut self.key);
        send(&mut self.wire.out, &["SET", name, "bench-owner", "NX", "PX", "600000"]);
        self.change("SET", b"OK").await
    }

    /// Gives it back.
    pub(crate) async fn release(&mut self) -> Result<()> {
        match &self.script {
            Some(script) => {
                send(&mut self.wire.out, &["EVALSHA", script, "1", &self.key, "bench-owner"]);
                self.change("EVALSHA", b"1").await
            }
            None => {
                send(&mut self.wire.out, &["DEL", &self.key]);
                self.change("DEL", b"1").await
            }
        }
    }

    /// Starts the key's time anew.
    pub(crate) async fn renew(&mut self, key: &str) -> Result<()> {
        send(&mut self.wire.out, &["PEXPIRE", key, "600000"]);
        self.expect("PEXPIRE", b"1").await
    }

    /// Sends a change, and waits until the replica has it where that is wanted.
    async fn change(&mut self, verb: &str, expected: &[u8]) -> Result<()> {
        if self.waits_for_replica {
            send(&mut self.wire.out, &["WAIT", "1", REPLICA_WAIT_MS]);
        }
        self.expect(verb, expected).await?;
        if self.waits_for_replica {
            self.expect("WAIT", b"1").await?;
        }
        Ok(())
    }

    async fn expect(&mut self, verb: &str, expected: &[u8]) -> Result<()> {
        let reply = self.reply().await?;
        let value = self.value(&reply);
        if value != expected {
            bail!("redis answered {verb} with {:?}", String::from_utf8_lossy(value));
        }
        self.wire.take(reply.whole);
        Ok(())
    }

    /// Sends, and waits for one whole reply, which stays in the wire's input.
    async fn reply(&mut self) -> Result<Reply> {
        self.wire.flush().await?;
        loop {
            if let Some(reply) = parse(self.wire.input())? {
                return Ok(reply);
            }
            self.wire.fill().await?;
        }
    }

    fn value(&self, reply: &Reply) -> &[u8] {
        &self.wire.input()[reply.value.clone()]
    }
}

/// A reply at the start of the input: where its value stands, and how long all of it is.
#[derive(Debug, PartialEq)]
struct Reply {
    value: Range<usize>,
    whole: usize,
}

/// The reply that `input` starts with, once it is whole. Nil has an empty value, as no other reply here has.
fn parse(input: &[u8]) -> Result<Option<Reply>> {
    let Some(end) = memchr(b'\n', input) else { return Ok(None) };
    let line = input[1..end].trim_ascii_end();
    match input[0] {
        b'+' | b':' => Ok(Some(Reply { value: 1..1 + line.len(), whole: end + 1 })),
        b'$' if line == b"-1" => Ok(Some(Reply { value: 1..1, whole: end + 1 })),
        b'$' => {
            let start = end + 1;
            let value = start..start + std::str::from_utf8(line)?.parse::<usize>()?;
            let whole = value.end + 2;
            Ok((input.len() >= whole).then_some(Reply { value, whole }))
        }
        _ => bail!("redis: {}", String::from_utf8_lossy(&input[..end])),
    }
}

/// A command, word by word.
fn send(out: &mut Vec<u8>, words: &[&str]) {
    out.push(b'*');
    digits(out, words.len());
    for word in words {
        out.extend_from_slice(b"\r\n$");
        digits(out, word.len());
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(word.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_words_with_their_lengths() {
        let mut out = Vec::new();
        send(&mut out, &["DEL", "0123456789"]);
        assert_eq!(out, b"*2\r\n$3\r\nDEL\r\n$10\r\n0123456789\r\n");
    }

    #[test]
    fn takes_whole_replies_only() {
        for (input, value) in [("+OK\r\n", "OK"), (":1\r\n", "1"), ("$-1\r\n", ""), ("$3\r\nabc\r\n", "abc")]
        {
            for cut in 0..input.len() {
                assert_eq!(parse(&input.as_bytes()[..cut]).unwrap(), None, "{input:?} {cut}");
            }
            let reply = parse(input.as_bytes()).unwrap().unwrap();
            assert_eq!((&input[reply.value], reply.whole), (value, input.len()));
        }
        assert!(parse(b"-ERR no\r\n").unwrap_err().to_string().contains("ERR no"));
    }
}
