//! Redis over RESP2.
//!
//! In:    a connection. Out: the usual lock: `SET NX PX`, and a delete, plain or only of one's own value.
//! Never: takes an error reply, or a nil, for success.

use std::net::SocketAddr;

use anyhow::{Result, bail};

use super::wire::Wire;

/// What every text on locks with Redis tells to release with.
const RELEASE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// A client and the key it holds.
pub(crate) struct Redis {
    wire: Wire,
    key: String,
    /// The script's name on the server, where releases compare first.
    script: Option<String>,
}

impl Redis {
    /// Connects; with `compare`, releases delete only what is still one's own.
    pub(crate) async fn connect(addr: SocketAddr, compare: bool) -> Result<Self> {
        let mut client = Self { wire: Wire::connect(addr).await?, key: String::new(), script: None };
        if compare {
            client.script = Some(client.ask(&["SCRIPT", "LOAD", RELEASE]).await?);
        }
        Ok(client)
    }

    /// Takes the lock.
    pub(crate) async fn acquire(&mut self, name: &str) -> Result<()> {
        name.clone_into(&mut self.key);
        self.expect(&["SET", name, "bench-owner", "NX", "PX", "600000"], "OK").await
    }

    /// Gives it back.
    pub(crate) async fn release(&mut self) -> Result<()> {
        let key = std::mem::take(&mut self.key);
        match self.script.clone() {
            Some(script) => self.expect(&["EVALSHA", &script, "1", &key, "bench-owner"], "1").await,
            None => self.expect(&["DEL", &key], "1").await,
        }
    }

    /// Starts the key's time anew.
    pub(crate) async fn renew(&mut self, key: &str) -> Result<()> {
        self.expect(&["PEXPIRE", key, "600000"], "1").await
    }

    async fn expect(&mut self, words: &[&str], expected: &str) -> Result<()> {
        let answer = self.ask(words).await?;
        if answer != expected {
            bail!("redis answered {words:?} with {answer:?}");
        }
        Ok(())
    }

    async fn ask(&mut self, words: &[&str]) -> Result<String> {
        use std::io::Write as _;
        write!(self.wire.out, "*{}\r\n", words.len())?;
        for word in words {
            write!(self.wire.out, "${}\r\n{word}\r\n", word.len())?;
        }
        self.wire.flush().await?;
        let line = self.line().await?;
        match line.split_at_checked(1) {
            Some(("+" | ":", value)) => Ok(value.to_owned()),
            Some(("$", "-1")) => Ok("nil".to_owned()),
            Some(("$", _)) => self.line().await,
            _ => bail!("redis: {line}"),
        }
    }

    async fn line(&mut self) -> Result<String> {
        loop {
            if let Some(end) = self.wire.input.windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8_lossy(&self.wire.input[..end]).into_owned();
                self.wire.take(end + 2);
                return Ok(line);
            }
            self.wire.fill().await?;
        }
    }
}
