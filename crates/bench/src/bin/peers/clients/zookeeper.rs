//! ZooKeeper's own binary protocol, the few requests that its lock recipe needs.
//!
//! In:    a connection, which is a session. Out: ephemeral nodes made, listed, watched and deleted.
//! Never: polls: a waiter sleeps on the watch of the node before its own, as the recipe says.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use leasehold_bench::reactor::Seat;
use leasehold_bench::wire::{Wire, be32};

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_CHILDREN: i32 = 8;
const CLOSE_SESSION: i32 = -11;
const EPHEMERAL: i32 = 1;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const NODE_EXISTS: i32 = -110;
const NO_NODE: i32 = -101;
/// The longest that the server's default tick allows.
const SESSION_MS: i32 = 40_000;

/// A session and the node it holds.
pub(crate) struct ZooKeeper {
    wire: Wire,
    xid: i32,
    /// The path of the node made last.
    node: String,
    /// The request being put together.
    request: Vec<u8>,
    /// What the last request was answered with.
    answer: Vec<u8>,
    /// A watch fired before anybody waited for it.
    notified: bool,
}

impl ZooKeeper {
    /// Opens a session.
    pub(crate) async fn connect(addr: SocketAddr, seat: Seat<'_>) -> Result<Self> {
        let mut wire = Wire::connect(addr, None, seat)?;
        let mut body = Vec::new();
        int(&mut body, 0);
        body.extend_from_slice(&0_i64.to_be_bytes());
        int(&mut body, SESSION_MS);
        body.extend_from_slice(&0_i64.to_be_bytes());
        buffer(&mut body, &[0; 16]);
        body.push(0);
        buffer(&mut wire.out, &body);
        wire.flush().await?;
        wire.need(4).await?;
        let length = be32(wire.input(), 0) as usize;
        wire.need(4 + length).await?;
        wire.take(4 + length);
        let (request, answer) = (Vec::new(), Vec::new());
        Ok(Self { wire, xid: 0, node: String::new(), request, answer, notified: false })
    }

    /// A lasting node, there afterwards whoever made it.
    pub(crate) async fn ensure(&mut self, path: &str) -> Result<()> {
        match self.create(path, "", 0).await {
            Err(code) if code.downcast_ref::<Code>().is_none_or(|code| code.0 != NODE_EXISTS) => Err(code),
            _ => Ok(()),
        }
    }

    /// The plain lock: an ephemeral node of that name.
    pub(crate) async fn acquire(&mut self, path: &str) -> Result<()> {
        self.create(path, "", EPHEMERAL).await
    }

    /// The recipe: a numbered ephemeral node, the list of them, and a watch on the one before.
    pub(crate) async fn acquire_fair(&mut self, parent: &str) -> Result<()> {
        self.create(parent, "/n-", EPHEMERAL_SEQUENTIAL).await?;
        loop {
            buffer(&mut self.request, parent.as_bytes());
            self.request.push(0);
            self.ask(GET_CHILDREN).await?;
            let own = self.node.rsplit('/').next().unwrap_or_default();
            let Some(before) = before(&self.answer, own.as_bytes()) else { return Ok(()) };
            int(&mut self.request, (parent.len() + 1 + before.len()) as i32);
            for piece in [parent.as_bytes(), b"/", before, &[1]] {
                self.request.extend_from_slice(piece);
            }
            self.notified = false;
            match self.ask(EXISTS).await {
                Ok(()) => self.notification().await?,
                Err(error) if error.downcast_ref::<Code>().is_some_and(|code| code.0 == NO_NODE) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Deletes the node made last.
    pub(crate) async fn release(&mut self) -> Result<()> {
        buffer(&mut self.request, self.node.as_bytes());
        int(&mut self.request, -1);
        self.ask(DELETE).await
    }

    /// Ends the session.
    pub(crate) async fn close(&mut self) -> Result<()> {
        self.ask(CLOSE_SESSION).await
    }

    /// Makes the node of this path, and remembers what the server called it.
    async fn create(&mut self, path: &str, suffix: &str, flags: i32) -> Result<()> {
        let body = &mut self.request;
        int(body, (path.len() + suffix.len()) as i32);
        body.extend_from_slice(path.as_bytes());
        body.extend_from_slice(suffix.as_bytes());
        buffer(body, b"bench-owner");
        int(body, 1); // one rule: anybody may do anything
        int(body, 31);
        buffer(body, b"world");
        buffer(body, b"anyone");
        int(body, flags);
        self.ask(CREATE).await?;
        self.node.clear();
        self.node.push_str(std::str::from_utf8(self.answer.get(4..).unwrap_or_default())?);
        Ok(())
    }

    /// Sends the request, and leaves what it was answered with in `answer`.
    async fn ask(&mut self, kind: i32) -> Result<()> {
        self.xid += 1;
        let out = &mut self.wire.out;
        int(out, 8 + self.request.len() as i32);
        int(out, self.xid);
        int(out, kind);
        out.append(&mut self.request);
        self.wire.flush().await?;
        loop {
            let length = self.message().await?;
            let message = &self.wire.input()[4..length];
            let (xid, code) = (be32(message, 0) as i32, be32(message, 12) as i32);
            if xid == self.xid {
                self.answer.clear();
                self.answer.extend_from_slice(&message[16..]);
            }
            self.wire.take(length);
            match xid {
                -1 => self.notified = true,
                xid if xid == self.xid && code == 0 => return Ok(()),
                xid if xid == self.xid => return Err(Code(code).into()),
                xid => bail!("zookeeper answered request {xid} instead of {}", self.xid),
            }
        }
    }

    async fn notification(&mut self) -> Result<()> {
        while !self.notified {
            let length = self.message().await?;
            self.notified = be32(self.wire.input(), 4) as i32 == -1;
            self.wire.take(length);
        }
        Ok(())
    }

    /// Waits for a whole message, with a length in front, and says how long both are.
    async fn message(&mut self) -> Result<usize> {
        self.wire.need(4).await?;
        let length = 4 + be32(self.wire.input(), 0) as usize;
        self.wire.need(length).await?;
        if length < 20 {
            bail!("zookeeper sent a short message");
        }
        Ok(length)
    }
}

/// Of a list of names, the last one before `own`.
fn before<'a>(list: &'a [u8], own: &[u8]) -> Option<&'a [u8]> {
    let mut at = 4;
    let names = (0..be32(list, 0)).map(|_| {
        let start = at + 4;
        at = start + be32(list, at) as usize;
        list.get(start..at).unwrap_or_default()
    });
    names.filter(|name| *name < own).max()
}

/// ZooKeeper's number of an error.
#[derive(Debug)]
struct Code(i32);

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "zookeeper error {}", self.0)
    }
}

impl std::error::Error for Code {}

fn int(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn buffer(out: &mut Vec<u8>, bytes: &[u8]) {
    int(out, bytes.len() as i32);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_before_is_the_last_of_the_smaller() {
        let mut list = Vec::new();
        int(&mut list, 4);
        for name in ["n-0000000012", "n-0000000009", "n-0000000010", "n-0000000011"] {
            buffer(&mut list, name.as_bytes());
        }
        assert_eq!(before(&list, b"n-0000000011"), Some(&b"n-0000000010"[..]));
        assert_eq!(before(&list, b"n-0000000009"), None);
    }
}
