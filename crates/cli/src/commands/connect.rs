//! Flags that every command of a client has: where the service is, and who asks.
//!
//! In:    flags, then `LEASEHOLD_*`. Out: options of `leasehold-client`, and a runtime to use them in.
//! Never: shows a key.

use anyhow::Context;
use leasehold_client::settings::{read_key, split_urls};
use leasehold_client::{Api, Options};

/// Where the service is, and who asks.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectArgs {
    /// URL of the service; several, separated by commas, are tried in turn [default: http://127.0.0.1:4080]
    #[arg(long, env = "LEASEHOLD_ADDR", value_name = "URL")]
    addr: Option<String>,
    /// Access key or bearer token (others on this machine can see flags: rather use the variable or a file)
    #[arg(long, env = "LEASEHOLD_KEY", value_name = "KEY", hide_env_values = true)]
    key: Option<String>,
    /// File whose first line is the access key
    #[arg(long, env = "LEASEHOLD_KEY_FILE", value_name = "FILE")]
    key_file: Option<String>,
}

impl ConnectArgs {
    pub(crate) fn options(&self) -> anyhow::Result<Options> {
        let mut options = Options::default();
        if let Some(addr) = self.addr.as_ref().filter(|addr| !addr.is_empty()) {
            options.urls = split_urls(addr);
        }
        options.key = match (self.key.as_ref().filter(|key| !key.is_empty()), &self.key_file) {
            (Some(key), _) => Some(key.clone()),
            (None, Some(path)) if !path.is_empty() => Some(read_key(path)?),
            _ => None,
        };
        Ok(options)
    }

    /// For plain requests.
    pub(crate) fn api(&self) -> anyhow::Result<Api> {
        Ok(Api::new(&self.options()?)?)
    }
}

/// Runs one command to its end.
pub(crate) fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("no runtime can be started")?;
    let result = runtime.block_on(future);
    // A thread may still read from stdin.
    runtime.shutdown_background();
    result
}
