//! Access control as the operator writes it.
//!
//! In:    the `[access]` part of the TOML file. Out: plain options; `mod.rs` makes a policy of them.
//! Never: has an effect by itself.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::certificate::UserFrom;
use super::oidc::OidcOptions;
use super::proxy::ProxyOptions;
use super::rules::RuleOptions;

/// `[access]`. Its presence turns access control on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AccessOptions {
    /// The file of access keys.
    pub keys: Option<PathBuf>,
    /// Identity providers: `[[access.oidc]]`.
    #[serde(default)]
    pub oidc: Vec<OidcOptions>,
    /// Trusted headers: `[access.proxy]`.
    pub proxy: Option<ProxyOptions>,
    /// Client certificates: `[access.certificate]`.
    pub certificate: Option<CertificateOptions>,
    /// Rules, in order: `[[access.rule]]`.
    #[serde(default)]
    pub rule: Vec<RuleOptions>,
}

/// `[access.certificate]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CertificateOptions {
    /// What of a certificate names the user.
    #[serde(default)]
    pub user_from: UserFrom,
}
