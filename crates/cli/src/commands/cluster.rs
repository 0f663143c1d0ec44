//! `leasehold cluster`: how the nodes are, and who belongs to them.
//!
//! In:    URLs of nodes. Out: a table for people or JSON for programs; exit code 1 if a change was refused.
//! Never: talks to the peer port: everything goes through the service's own API, on any node.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use hyper::Method;
use leasehold_engine::recovery;
use serde_json::{Value, json};

use super::admin::{Admin, AdminArgs};
use super::connect::block_on;
use super::output;

/// The nodes of a cluster.
#[derive(clap::Args)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    admin: AdminArgs,
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(clap::Subcommand)]
enum ClusterCommand {
    /// Show the nodes: role, term, log, lag, last contact
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Also show a digest of each node's table: equal after the same entries
        #[arg(long)]
        digest: bool,
    },
    /// Add a node that runs with an empty data directory
    Add {
        /// Number of the node
        id: u64,
        /// Address at which its peers reach it, HOST:PORT
        address: String,
    },
    /// Remove a node from the cluster
    Remove {
        /// Number of the node
        id: u64,
    },
    /// Hand leadership to a node
    Transfer {
        /// Number of the node
        id: u64,
    },
    /// After a majority is lost for good: start again from the data of one stopped node (see docs/operations.md)
    Recover {
        /// The data directory of that node
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        /// Confirm that it is lost. Changes that only the lost nodes had are given up
        #[arg(long)]
        majority_is_lost: bool,
        /// Continue with tokens above this number [default: 2^32 above the newest in that node's log]
        #[arg(long, value_name = "N")]
        tokens_above: Option<u64>,
    },
}

pub(crate) fn run(args: ClusterArgs) -> anyhow::Result<()> {
    block_on(carry_out(args))
}

async fn carry_out(args: ClusterArgs) -> anyhow::Result<()> {
    if let ClusterCommand::Recover { data, majority_is_lost, tokens_above } = &args.command {
        return recover(data, *majority_is_lost, *tokens_above).await;
    }
    let api = Admin::new(&args.admin)?;
    match args.command {
        ClusterCommand::Recover { .. } => {}
        ClusterCommand::Status { json, digest } => {
            let query = if digest { "?digest=true" } else { "" };
            let status = api.get(&format!("/v1/cluster{query}")).await?;
            output::print(&if json {
                format!("{}\n", output::json_text(&format!("{status:#}")))
            } else {
                table(&status)
            });
        }
        ClusterCommand::Add { id, address } => {
            let node = json!({ "id": id, "address": address });
            api.change(Method::POST, "/v1/cluster/nodes", Some(node)).await?;
            output::print(&format!("node {id} belongs to the cluster\n"));
        }
        ClusterCommand::Remove { id } => {
            api.change(Method::DELETE, &format!("/v1/cluster/nodes/{id}"), None).await?;
            output::print(&format!("node {id} is removed; stop its process now\n"));
        }
        ClusterCommand::Transfer { id } => {
            api.change(Method::POST, "/v1/cluster/leader", Some(json!({ "id": id }))).await?;
            output::print(&format!("node {id} leads\n"));
        }
    }
    Ok(())
}

/// Starts a new cluster of one from the data of one node.
async fn recover(data: &Path, majority_is_lost: bool, tokens_above: Option<u64>) -> anyhow::Result<()> {
    ensure!(
        majority_is_lost,
        "this gives up all changes that only the other nodes have: claims that were granted there may be granted \
         again. Bring a majority back instead if there is any way to. If there is none, stop every node, choose the one \
         with the longest log, and give --majority-is-lost"
    );
    let recovered = recovery::recover(data, tokens_above).await?;
    output::print(&format!(
        "{} is the data of a cluster of one now: {} claims held or waiting.\nTOKENS JUMP from {} to above {}: the lost nodes \
         may have given out those in between.\nStart that node, then start the others with EMPTY data directories and \
         --join\n",
        data.display(),
        recovered.live,
        recovered.known_token,
        recovered.last_token
    ));
    Ok(())
}

/// The nodes as a table.
fn table(status: &Value) -> String {
    let text = |value: &Value| match value {
        Value::Null => "-".to_string(),
        Value::String(text) => output::plain(text),
        other => other.to_string(),
    };
    let header =
        ["NODE", "ROLE", "LOG", "APPLIED", "LAG", "LAST CONTACT", "PEERS REACH IT AT", "URL", "VERSION"];
    let mut rows = vec![header.map(String::from).to_vec()];
    for node in status["nodes"].as_array().into_iter().flatten() {
        let contact = node["last_contact_ms"].as_u64().map_or("-".into(), |ms| format!("{ms} ms ago"));
        let role = match node["voter"].as_bool() {
            Some(false) => format!("{} (no vote)", text(&node["role"])),
            _ => text(&node["role"]),
        };
        rows.push(vec![
            text(&node["id"]),
            role,
            text(&node["log"]),
            text(&node["applied"]),
            text(&node["lag"]),
            contact,
            text(&node["address"]),
            text(&node["url"]),
            text(&node["version"]),
        ]);
        if let Some(digest) = node["digest"].as_str() {
            let digest = output::plain(digest);
            rows.push(vec![String::new(), format!("{digest} after entry {}", text(&node["digest_at"]))]);
        }
    }
    let widths: Vec<usize> = (0..header.len())
        .map(|column| rows.iter().filter(|row| row.len() == header.len()).map(|row| row[column].len()).max())
        .map(Option::unwrap_or_default)
        .collect();
    let [term, leader, version] = ["term", "leader", "table_version"].map(|name| text(&status[name]));
    let mut out = format!("term {term}, leader {leader}, table version {version}\n");
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}", width = *width));
        let line = cells.collect::<Vec<_>>().join("  ");
        writeln!(out, "{}", line.trim_end()).ok();
    }
    out
}
