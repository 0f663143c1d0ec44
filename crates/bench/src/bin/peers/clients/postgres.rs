//! PostgreSQL's protocol, version 3: prepared statements, bound and executed in one round trip.
//!
//! In:    a connection to a server that trusts its local users. Out: rows put in and taken out, or advisory locks.
//! Never: a statement parsed twice.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use leasehold_bench::reactor::Seat;
use leasehold_bench::wire::{Wire, be32};

/// The table the rows go into.
pub(crate) const TABLE: &str = "CREATE TABLE IF NOT EXISTS locks (name text PRIMARY KEY, owner text NOT NULL, expires timestamptz NOT NULL)";

/// A client and the name it holds.
pub(crate) struct Postgres {
    wire: Wire,
    name: String,
    /// What the last command did, in the server's words.
    tag: String,
    /// Whether the server has said that it is ready: before that, an error is its last word.
    is_ready: bool,
}

impl Postgres {
    /// Connects and prepares `acquire`, `release` and `renew`: rows, or advisory locks.
    pub(crate) async fn connect(addr: SocketAddr, seat: Seat<'_>, advisory: bool) -> Result<Self> {
        let wire = Wire::connect(addr, None, seat)?;
        let mut client = Self { wire, name: String::new(), tag: String::new(), is_ready: false };
        let mut body = 196_608_u32.to_be_bytes().to_vec();
        body.extend_from_slice(b"user\0postgres\0database\0postgres\0\0");
        client.wire.out.extend_from_slice(&(4 + body.len() as u32).to_be_bytes());
        client.wire.out.extend_from_slice(&body);
        client.answer().await?;
        let statements = if advisory {
            [
                ("acquire", "SELECT pg_advisory_lock(hashtextextended($1::text, 0))"),
                ("release", "SELECT pg_advisory_unlock(hashtextextended($1::text, 0))"),
                ("renew", "SELECT $1::text"),
            ]
        } else {
            client.query(TABLE).await?;
            [
                (
                    "acquire",
                    "INSERT INTO locks VALUES ($1::text, 'bench', now() + interval '600 s') ON CONFLICT DO NOTHING",
                ),
                ("release", "DELETE FROM locks WHERE name = $1::text AND owner = 'bench'"),
                ("renew", "UPDATE locks SET expires = now() + interval '600 s' WHERE name = $1::text"),
            ]
        };
        for (name, text) in statements {
            message(&mut client.wire.out, b'P', &[name.as_bytes(), b"\0", text.as_bytes(), b"\0\0\0"]);
        }
        message(&mut client.wire.out, b'S', &[]);
        client.answer().await?;
        Ok(client)
    }

    /// Puts the row in, or waits for the advisory lock.
    pub(crate) async fn acquire(&mut self, name: &str) -> Result<()> {
        name.clone_into(&mut self.name);
        self.execute("acquire", name).await
    }

    /// Takes the row out, or gives the advisory lock back.
    pub(crate) async fn release(&mut self) -> Result<()> {
        let name = std::mem::take(&mut self.name);
        self.execute("release", &name).await?;
        self.name = name;
        Ok(())
    }

    /// Moves the row's time of expiry.
    pub(crate) async fn renew(&mut self, name: &str) -> Result<()> {
        self.execute("renew", name).await
    }

    async fn query(&mut self, text: &str) -> Result<()> {
        message(&mut self.wire.out, b'Q', &[text.as_bytes(), b"\0"]);
        self.answer().await
    }

    async fn execute(&mut self, statement: &str, name: &str) -> Result<()> {
        let length = (name.len() as u32).to_be_bytes();
        let bind: [&[u8]; 6] =
            [b"\0", statement.as_bytes(), b"\0\0\0\0\x01", &length, name.as_bytes(), b"\0\0"];
        let out = &mut self.wire.out;
        message(out, b'B', &bind);
        message(out, b'E', &[b"\0\0\0\0\0"]);
        message(out, b'S', &[]);
        self.answer().await?;
        // INSERT 0 1, DELETE 1, UPDATE 1, SELECT 1: one row each time, or somebody else has it.
        if !self.tag.ends_with(" 1") {
            bail!("postgresql: {statement} {name}: {}", self.tag);
        }
        Ok(())
    }

    /// Sends, and reads up to "ready for query", which leaves the tag of the last command.
    async fn answer(&mut self) -> Result<()> {
        self.wire.flush().await?;
        self.tag.clear();
        let mut error = None;
        loop {
            self.wire.need(5).await?;
            let length = 1 + be32(self.wire.input(), 1) as usize;
            self.wire.need(length).await?;
            let kind = self.wire.input()[0];
            let body = &self.wire.input()[5..length];
            match kind {
                b'C' => {
                    self.tag.clear();
                    self.tag.push_str(std::str::from_utf8(body)?.trim_end_matches('\0'));
                }
                b'E' => error = Some(String::from_utf8_lossy(body).replace('\0', " ")),
                b'R' if be32(body, 0) != 0 => bail!("postgresql asks for a password"),
                _ => {}
            }
            self.wire.take(length);
            self.is_ready |= kind == b'Z';
            if kind == b'Z' || (kind == b'E' && !self.is_ready) {
                return match error {
                    Some(error) => bail!("postgresql: {error}"),
                    None => Ok(()),
                };
            }
        }
    }
}

/// A message of some pieces.
fn message(out: &mut Vec<u8>, kind: u8, body: &[&[u8]]) {
    let length = 4 + body.iter().map(|piece| piece.len()).sum::<usize>();
    out.push(kind);
    out.extend_from_slice(&(length as u32).to_be_bytes());
    body.iter().for_each(|piece| out.extend_from_slice(piece));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_count_themselves() {
        let mut out = Vec::new();
        message(&mut out, b'S', &[]);
        message(&mut out, b'Q', &[b"SELECT 1", b"\0"]);
        assert_eq!(out, b"S\0\0\0\x04Q\0\0\0\x0dSELECT 1\0");
    }
}
