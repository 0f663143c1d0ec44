//! ZooKeeper's own binary protocol, the few requests that its lock recipe needs.
//!
//! In:    a connection, which is a session. Out: ephemeral nodes made, listed, watched and deleted.
//! Never: polls: a waiter sleeps on the watch of the node before its own, as the recipe says.

use std::net::SocketAddr;

use anyhow::{Result, bail};

use super::wire::{Wire, be32};

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_CHILDREN: i32 = 8;
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
    node: String,
    /// A watch fired before anybody waited for it.
    notified: bool,
}

impl ZooKeeper {
    /// Opens a session.
    pub(crate) async fn connect(addr: SocketAddr) -> Result<Self> {
        let mut wire = Wire::connect(addr).await?;
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
        let length = be32(&wire.input, 0) as usize;
        wire.need(4 + length).await?;
        wire.take(4 + length);
        Ok(Self { wire, xid: 0, node: String::new(), notified: false })
    }

    /// A lasting node, there afterwards whoever made it.
    pub(crate) async fn ensure(&mut self, path: &str) -> Result<()> {
        match self.create(path, 0).await {
            Err(code) if code.downcast_ref::<Code>().is_none_or(|code| code.0 != NODE_EXISTS) => Err(code),
            _ => Ok(()),
        }
    }

    /// The plain lock: an ephemeral node of that name.
    pub(crate) async fn acquire(&mut self, path: &str) -> Result<()> {
        self.node = self.create(path, EPHEMERAL).await?;
        Ok(())
    }

    /// The recipe: a numbered ephemeral node, the list of them, and a watch on the one before.
    pub(crate) async fn acquire_fair(&mut self, parent: &str) -> Result<()> {
        self.node = self.create(&format!("{parent}/n-"), EPHEMERAL_SEQUENTIAL).await?;
        let own = self.node.rsplit('/').next().unwrap_or_default().to_owned();
        loop {
            let before = self.children(parent).await?.into_iter().filter(|name| *name < own).max();
            let Some(before) = before else { return Ok(()) };
            let mut body = Vec::new();
            buffer(&mut body, format!("{parent}/{before}").as_bytes());
            body.push(1);
            self.notified = false;
            match self.ask(EXISTS, &body).await {
                Ok(_) => self.notification().await?,
                Err(error) if error.downcast_ref::<Code>().is_some_and(|code| code.0 == NO_NODE) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Deletes the node made last.
    pub(crate) async fn release(&mut self) -> Result<()> {
        let mut body = Vec::new();
        buffer(&mut body, self.node.as_bytes());
        int(&mut body, -1);
        self.ask(DELETE, &body).await.map(drop)
    }

    async fn create(&mut self, path: &str, flags: i32) -> Result<String> {
        let mut body = Vec::new();
        buffer(&mut body, path.as_bytes());
        buffer(&mut body, b"bench-owner");
        int(&mut body, 1); // one rule: anybody may do anything
        int(&mut body, 31);
        buffer(&mut body, b"world");
        buffer(&mut body, b"anyone");
        int(&mut body, flags);
        let answer = self.ask(CREATE, &body).await?;
        Ok(String::from_utf8_lossy(answer.get(4..).unwrap_or_default()).into_owned())
    }

    async fn children(&mut self, path: &str) -> Result<Vec<String>> {
        let mut body = Vec::new();
        buffer(&mut body, path.as_bytes());
        body.push(0);
        let answer = self.ask(GET_CHILDREN, &body).await?;
        let mut at = 4;
        let mut names = Vec::new();
        for _ in 0..be32(&answer, 0) {
            let end = at + 4 + be32(&answer, at) as usize;
            names.push(String::from_utf8_lossy(answer.get(at + 4..end).unwrap_or_default()).into_owned());
            at = end;
        }
        Ok(names)
    }

    async fn ask(&mut self, kind: i32, body: &[u8]) -> Result<Vec<u8>> {
        self.xid += 1;
        int(&mut self.wire.out, 8 + body.len() as i32);
        int(&mut self.wire.out, self.xid);
        int(&mut self.wire.out, kind);
        self.wire.out.extend_from_slice(body);
        self.wire.flush().await?;
        loop {
            let message = self.message().await?;
            match be32(&message, 0) as i32 {
                -1 => self.notified = true,
                xid if xid == self.xid => {
                    let code = be32(&message, 12) as i32;
                    if code != 0 {
                        return Err(Code(code).into());
                    }
                    return Ok(message[16..].to_vec());
                }
                xid => bail!("zookeeper answered request {xid} instead of {}", self.xid),
            }
        }
    }

    async fn notification(&mut self) -> Result<()> {
        while !self.notified {
            let message = self.message().await?;
            self.notified = be32(&message, 0) as i32 == -1;
        }
        Ok(())
    }

    async fn message(&mut self) -> Result<Vec<u8>> {
        self.wire.need(4).await?;
        let length = be32(&self.wire.input, 0) as usize;
        self.wire.need(4 + length).await?;
        let message = self.wire.input[4..4 + length].to_vec();
        self.wire.take(4 + length);
        if message.len() < 16 {
            bail!("zookeeper sent a short message");
        }
        Ok(message)
    }
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
