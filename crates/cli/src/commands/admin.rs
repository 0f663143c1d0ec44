//! Calls for administrators: flags of `cluster`, `backup` and `limits`, and how they ask.
//!
//! In:    flags, then `LEASEHOLD_*`. Out: the bodies of answers; a refusal is an error with the server's words.
//! Never: talks to the peer port, or asks a second node for a change that may have happened.

use std::time::Duration;

use anyhow::anyhow;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use hyper::{Method, StatusCode};
use leasehold_client::internals::http::Call;
use leasehold_client::internals::wire;
use serde_json::Value;

use super::connect::ConnectArgs;
use super::output;

/// Long enough for a node that joins to copy the table.
const PATIENCE: Duration = Duration::from_secs(150);
/// What is read of a refusal.
const REFUSAL_LEN_MAX: usize = 64 << 10;

/// How to reach the service.
#[derive(clap::Args)]
pub(crate) struct AdminArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Administrator, as user:password
    #[arg(
        long,
        env = "LEASEHOLD_ADMIN",
        value_name = "USER:PASSWORD",
        hide_env_values = true,
        global = true
    )]
    admin: Option<String>,
}

/// The service's API, for administrators.
pub(crate) struct Admin {
    api: leasehold_client::Api,
    password: Option<String>,
}

impl Admin {
    pub(crate) fn new(args: &AdminArgs) -> anyhow::Result<Self> {
        let password = args.admin.as_ref().filter(|admin| !admin.is_empty());
        let mut options = args.connect.options()?;
        if password.is_some() {
            args.connect.warn_of_readable(&options, "the administrator's password");
            options.key = None;
        }
        let password = password.map(|admin| format!("Basic {}", BASE64_STANDARD.encode(admin)));
        Ok(Self { api: leasehold_client::Api::new(&options)?, password })
    }

    /// Reads something.
    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let answer = self.ask(Call::new(Method::GET, path, "")).await?;
        Ok(serde_json::from_slice(&answer)?)
    }

    /// Changes something, once.
    pub(crate) async fn change(&self, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<()> {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        self.ask(Call::new(method, path, body).once()).await.map(drop)
    }

    /// Asks; anything but success is an error that says what the server said.
    pub(crate) async fn ask(&self, call: Call) -> anyhow::Result<Bytes> {
        let reply = self.api.call_within(&self.signed(call), PATIENCE).await?;
        if (200..300).contains(&reply.status) {
            return Ok(reply.body);
        }
        Err(refusal(reply.status, &reply.body))
    }

    /// Reads something that may be larger than memory: each piece is handed on.
    pub(crate) async fn read(
        &self,
        path: &str,
        mut take: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let call = self.signed(Call::new(Method::GET, path, ""));
        let mut answer = self.api.open(&call, PATIENCE).await?;
        if !(200..300).contains(&answer.status) {
            return Err(refusal(answer.status, &answer.rest(REFUSAL_LEN_MAX, PATIENCE).await));
        }
        while let Some(piece) = answer.next(PATIENCE).await.map_err(|failure| anyhow!("{}", failure.why()))? {
            take(&piece)?;
        }
        Ok(())
    }

    fn signed(&self, call: Call) -> Call {
        match &self.password {
            Some(password) => call.header("authorization", password),
            None => call,
        }
    }
}

fn refusal(status: u16, body: &[u8]) -> anyhow::Error {
    let detail = output::plain(&wire::detail(body));
    match StatusCode::from_u16(status) {
        Ok(StatusCode::UNAUTHORIZED) => anyhow!("{detail} (give --admin USER:PASSWORD or --key KEY)"),
        Ok(status) => anyhow!("{status}: {detail}"),
        Err(_) => anyhow!("{status}: {detail}"),
    }
}
