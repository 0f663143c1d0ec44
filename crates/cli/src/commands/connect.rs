//! Flags that every command of a client has: where the service is, and who asks.
//!
//! In:    flags, then `LEASEHOLD_*`. Out: options of `leasehold-client`, and a runtime to use them in.
//! Never: shows a key.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Once;

use anyhow::Context;
use leasehold_client::internals::settings::{read_key, split_urls};
use leasehold_client::{Api, Options};

/// Where the service is, and who asks.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectArgs {
    /// URL of the service; several, separated by commas, are tried in turn [default: http://127.0.0.1:4080]
    #[arg(long, env = "LEASEHOLD_ADDR", value_name = "URL", global = true)]
    addr: Option<String>,
    /// Access key or bearer token (other users of this machine can see flags: use the variable or a file)
    #[arg(long, env = "LEASEHOLD_KEY", value_name = "KEY", hide_env_values = true, global = true)]
    key: Option<String>,
    /// File whose first line is the access key
    #[arg(long, env = "LEASEHOLD_KEY_FILE", value_name = "FILE", global = true)]
    key_file: Option<String>,
    /// For https: PEM file of the authorities to trust instead of the system's
    #[arg(long, env = "LEASEHOLD_CACERT", value_name = "FILE", global = true)]
    cacert: Option<OsString>,
    /// For https: PEM file of this client's certificate
    #[arg(long, env = "LEASEHOLD_CLIENT_CERT", value_name = "FILE", global = true)]
    client_cert: Option<OsString>,
    /// For https: PEM file of its private key [default: the same file]
    #[arg(long, env = "LEASEHOLD_CLIENT_KEY", value_name = "FILE", global = true)]
    client_key: Option<OsString>,
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
        // An empty variable is as good as none.
        let file = |path: &Option<OsString>| path.clone().filter(|path| !path.is_empty()).map(PathBuf::from);
        options.tls.ca = file(&self.cacert);
        options.tls.client_certificate = file(&self.client_cert);
        options.tls.client_key = file(&self.client_key);
        if options.key.is_some() {
            self.warn_of_readable(&options, "the access key");
        }
        Ok(options)
    }

    /// Warns, once, of a secret that everybody on the way can read.
    pub(crate) fn warn_of_readable(&self, options: &Options, secret: &str) {
        static ONCE: Once = Once::new();
        if let Some(url) = options.readable_on_the_way() {
            ONCE.call_once(|| {
                super::complain(&format!(
                    "warning: {secret} goes to {url} without encryption, and everybody on the way can read it; use https://"
                ));
            });
        }
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
