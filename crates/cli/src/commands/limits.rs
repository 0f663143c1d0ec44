//! `leasehold limits`: what claims may take, and what they take.
//!
//! In:    a node's URL. Out: a table for people or JSON for programs; exit code 1 if a change was refused.
//! Never: changes a flag: overrides live in the log, hold on every node, and take precedence over the flags.

use std::fmt::Write as _;

use anyhow::{Context, bail};
use hyper::Method;
use leasehold_client::internals::http::Call;
use serde_json::{Value, json};

use super::admin::{Admin, AdminArgs};
use super::connect::block_on;
use super::output;

/// Limits and byte budgets of the service.
#[derive(clap::Args)]
pub(crate) struct LimitsArgs {
    #[command(subcommand)]
    command: Option<LimitsCommand>,
    /// Also what this owner uses
    #[arg(long, value_name = "OWNER")]
    owner: Option<String>,
    /// Also what this namespace uses: a resource's name up to its last slash
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    // Behind the others: its heading would be theirs too.
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(clap::Subcommand)]
enum LimitsCommand {
    /// Override a byte budget; an override takes precedence over the flags of every node
    Set {
        #[command(flatten)]
        scope: ScopeArgs,
        /// How many bytes: a number, or one with KiB, MiB or GiB
        #[arg(value_parser = parse_bytes)]
        bytes: u64,
    },
    /// Remove an override
    Unset {
        #[command(flatten)]
        scope: ScopeArgs,
    },
}

/// What a budget is for.
#[derive(clap::Args)]
struct ScopeArgs {
    /// All held and waiting claims ('total'), finished ones, each owner, or each namespace
    scope: Scope,
    /// Only owners or namespaces that start with this; the longest prefix counts
    #[arg(long, default_value = "", value_name = "TEXT")]
    prefix: String,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Scope {
    Total,
    Finished,
    Owner,
    Namespace,
}

impl ScopeArgs {
    fn body(&self, bytes: Option<u64>) -> Value {
        let scope = match self.scope {
            Scope::Total => "total",
            Scope::Finished => "finished",
            Scope::Owner => "owner",
            Scope::Namespace => "namespace",
        };
        json!({ "scope": scope, "prefix": self.prefix, "bytes": bytes })
    }
}

pub(crate) fn run(args: LimitsArgs) -> anyhow::Result<()> {
    block_on(carry_out(args))
}

async fn carry_out(args: LimitsArgs) -> anyhow::Result<()> {
    let api = Admin::new(&args.admin)?;
    let body = match &args.command {
        Some(LimitsCommand::Set { scope, bytes }) => scope.body(Some(*bytes)),
        Some(LimitsCommand::Unset { scope }) => scope.body(None),
        None => return show(&api, &path(args.owner.as_deref(), args.namespace.as_deref()), args.json).await,
    };
    // The same override twice is one.
    api.ask(Call::new(Method::PUT, "/v1/limits", body.to_string())).await.map(drop)
}

fn path(owner: Option<&str>, namespace: Option<&str>) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in [("owner", owner), ("namespace", namespace)] {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    format!("/v1/limits?{}", query.finish()).trim_end_matches('?').into()
}

async fn show(api: &Admin, path: &str, as_json: bool) -> anyhow::Result<()> {
    let limits = api.get(path).await?;
    output::print(&if as_json { format!("{limits:#}\n") } else { table(&limits) });
    Ok(())
}

/// The limits as a table.
fn table(limits: &Value) -> String {
    let (claims, bytes) = (&limits["claims"], &limits["bytes"]);
    let number = |value: &Value| value.as_u64().map_or("-".to_string(), |number| number.to_string());
    let mut out = format!("{:<44}{:>14}{:>14}\n", "", "USED", "MAX");
    let mut row = |what: &str, used: String, max: String| writeln!(out, "{what:<44}{used:>14}{max:>14}").ok();
    for (what, part) in
        [("claims held and waiting", &claims["total"]), ("claims finished", &claims["finished"])]
    {
        row(what, number(&part["used"]), number(&part["max"]));
    }
    for (what, name) in
        [("claims of one owner", "per_owner_max"), ("claims of one namespace", "per_namespace_max")]
    {
        row(what, "-".into(), number(&claims[name]));
    }
    row("claims waiting for one resource", "-".into(), number(&claims["queue_len_max"]));
    for (what, part) in [
        ("bytes of held and waiting claims", &bytes["total"]),
        ("bytes of finished claims", &bytes["finished"]),
    ] {
        row(what, size(&part["used"]), size(&part["max"]));
    }
    for (what, name) in
        [("bytes of one owner", "per_owner_max"), ("bytes of one namespace", "per_namespace_max")]
    {
        row(what, "-".into(), size(&bytes[name]));
    }
    for part in limits["overrides"].as_array().into_iter().flatten() {
        let (scope, prefix) = (part["scope"].as_str().unwrap_or_default(), part["prefix"].as_str());
        let what =
            prefix.map_or(format!("  override: {scope}"), |prefix| format!("  override: {scope} {prefix}*"));
        row(&what, "-".into(), size(&part["bytes"]));
    }
    for scope in ["owner", "namespace"] {
        if let Some(name) = limits[scope]["name"].as_str() {
            row(
                &format!("bytes of {scope} {name}"),
                size(&limits[scope]["used"]),
                size(&limits[scope]["max"]),
            );
        }
    }
    if limits["memory"]["full"] == true {
        out += "the memory of this node is full: it accepts no more claims\n";
    }
    out
}

/// Bytes for people.
fn size(value: &Value) -> String {
    let Some(bytes) = value.as_u64() else { return "-".into() };
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 10 << shift || (bytes > 0 && bytes % (1 << shift) == 0) {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// `1000`, `64KiB`, `512MiB`, `2GiB`.
fn parse_bytes(text: &str) -> anyhow::Result<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic() || letter == ' ');
    let shift = match text[digits.len()..].trim() {
        "" | "B" => 0,
        "KiB" | "K" | "k" => 10,
        "MiB" | "M" => 20,
        "GiB" | "G" => 30,
        unit => bail!("'{unit}' is not a unit: give KiB, MiB or GiB"),
    };
    let number: u64 = digits.parse().context("not a number")?;
    number.checked_mul(1 << shift).context("too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [("1000", 1000), ("64KiB", 65_536), ("512 MiB", 512 << 20), ("2G", 2 << 30)] {
            assert_eq!(parse_bytes(text).unwrap(), bytes);
        }
        for text in ["", "x", "5 pounds", "99999999999GiB", "-1"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        for (bytes, text) in [(0, "0"), (700, "700"), (64 << 20, "64 MiB"), (12_345_678, "11 MiB")] {
            assert_eq!(size(&json!(bytes)), text);
        }
    }
}
