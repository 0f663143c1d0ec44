//! Starting again from what is left: a backup, or the data of one node whose majority is lost.
//!
//! In:    a snapshot file, or a data directory that nobody uses. Out: a data directory of a cluster of one, which others
//!        can join.
//! Never: runs by itself: an operator decides that what the lost nodes knew more is given up. Never gives out a token
//!        again that they may have given out: tokens go on far above the newest one that is known.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::Path;

use leasehold_core::{Command, Outcome, Stamp, Table};
use openraft::storage::{RaftLogReader, RaftLogStorage};
use openraft::{BasicNode, EntryPayload, Membership};

use super::data_dir::DataDir;
use super::entry::Origins;
use super::log_store::LogStore;
use super::snapshot_file;
use super::types::{LogId, NodeId, SnapshotMeta, StoredMembership, Vote};
use super::wal::WalOptions;
use super::{Engine, StartError};
use crate::machine::{self, fs};

/// How far tokens jump unless the operator says where they go on. No cluster grants so much between a backup and its loss: at
/// 50,000 a second that takes a day, and a backup is made more often than that where so much is granted.
const TOKENS_LOST_MAX: u64 = 1 << 32;
/// Why restored claims are over.
const RESTORED: &str = "restored from a backup";

/// What an operator decides.
#[derive(Debug, Clone, Copy, Default)]
pub struct Choices {
    /// Tokens go on above this number; `None`: 2^32 above the newest that is known.
    pub tokens_above: Option<u64>,
    /// Held and waiting claims of a backup stay. Otherwise they are revoked: their holders may have lost them since.
    pub keep_claims: bool,
}

/// What there was to begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// Held and waiting claims.
    pub live: u64,
    /// Claims that were held or waiting, and are revoked.
    pub revoked: u64,
    /// The newest fencing token that is known.
    pub known_token: u64,
    /// Tokens go on above this one.
    pub last_token: u64,
    /// The newest log entry.
    pub last_log: u64,
}

/// Makes a data directory for node `node` out of a backup. The directory must not hold a log yet.
pub async fn restore(
    backup: &Path,
    data: &Path,
    node: NodeId,
    choices: Choices,
) -> Result<Recovered, StartError> {
    let (meta, origins, mut table) = snapshot_file::load(backup)?;
    let known_token = table.last_token();
    let live = table.live();
    if !choices.keep_claims {
        revoke_all(&mut table);
    }
    raise_tokens(&mut table, choices.tokens_above)?;
    let used = data.join("log").exists() || data.join("NODE").exists();
    if used {
        let why = format!("{} holds data already: restore into an empty directory", data.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why).into());
    }
    let dir = DataDir::open(data)?;
    dir.node_id(Some(node))?;
    snapshot_file::clean(&data.join("snapshots"))?;
    let log = LogStore::open(&data.join("log"), WalOptions::default())?;
    let begun = begin_anew(data, log, node, meta.last_log_id, &origins, &table).await?;
    Ok(Recovered { revoked: live - begun.live, known_token, ..begun })
}

/// Ends every held and waiting claim.
fn revoke_all(table: &mut Table) {
    let stamp = Stamp { now_us: table.clock().now_us, wall_us: machine::wall_us() };
    let revoke =
        [Command::Revoke { resource: None, before: table.next_sequence(), reason: Some(RESTORED.into()) }];
    while table.live() > 0 {
        let applied = table.apply_all(stamp, std::iter::once(&revoke[..]));
        if !matches!(applied.outcomes.last(), Some(Outcome::Revoked { more: true, .. })) {
            return;
        }
    }
}

fn raise_tokens(table: &mut Table, above: Option<u64>) -> io::Result<()> {
    let known = table.last_token();
    let above = above.unwrap_or(known.saturating_add(TOKENS_LOST_MAX));
    if table.raise_tokens(above) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "can't continue with tokens above {above}: the newest known token is {known}, and the highest possible is 2^47"
    )))
}

/// Makes the data of one node of a cluster whose majority is lost for good into the data of a cluster of one. What it
/// has in its log and can't know to be agreed on counts as agreed on from now on.
pub async fn recover(data: &Path, tokens_above: Option<u64>) -> Result<Recovered, StartError> {
    if !data.join("log").exists() {
        let why = format!("{} is not the data directory of a node: there is no log in it", data.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, why).into());
    }
    let dir = DataDir::open(data)?;
    let node = dir.node_id(None)?;
    let mut log = LogStore::open(&data.join("log"), WalOptions::default())?;
    let (mut applied, mut origins, mut table) = match snapshot_file::newest(&data.join("snapshots"))? {
        None => (None, Origins::default(), Table::default()),
        Some((_, file)) => {
            let (meta, origins, table) = snapshot_file::load(&file.path)?;
            (meta.last_log_id, origins, table)
        }
    };
    let end = log.get_log_state().await?.last_log_id;
    while applied < end {
        let next = applied.map_or(0, |id: LogId| id.index + 1);
        let entries = log.try_get_log_entries(next..next + 256).await?;
        if entries.is_empty() {
            return Err(io::Error::other(format!(
                "log entry {next} is missing: recover from the data of another node"
            ))
            .into());
        }
        for entry in entries {
            if let EntryPayload::Normal(proposal) = &entry.payload {
                let parcels = origins.first_of(proposal);
                table.apply_all(proposal.stamp, parcels.iter().map(|parcel| &**parcel.commands));
            }
            applied = Some(entry.log_id);
        }
    }
    let known_token = table.last_token();
    raise_tokens(&mut table, tokens_above)?;
    let begun = begin_anew(data, log, node, applied, &origins, &table).await?;
    Ok(Recovered { known_token, ..begun })
}

/// Writes the table as a snapshot of a cluster of one, and a log that goes on from there, in a later term.
async fn begin_anew(
    data: &Path,
    mut log: LogStore,
    node: NodeId,
    last: Option<LogId>,
    origins: &Origins,
    table: &Table,
) -> Result<Recovered, StartError> {
    let Some(last) = last else {
        return Err(io::Error::other(
            "there is no data to start from: start a node with an empty data directory instead",
        )
        .into());
    };
    let members = BTreeMap::from([(node, BasicNode::default())]);
    let membership = Membership::new(vec![BTreeSet::from([node])], members).map_err(io::Error::other)?;
    let last_membership = StoredMembership::new(Some(last), membership);
    let meta = SnapshotMeta { last_log_id: Some(last), last_membership };
    snapshot_file::write(&data.join("snapshots"), &meta, origins, &table.freeze())?;
    let term = log.read_vote().await?.map_or(0, |vote| vote.leader_id.term).max(last.leader_id.term);
    log.save_vote(&Vote::new(term, node)).await?;
    log.purge(last).await?;
    log.wal().close();
    let last_token = table.last_token();
    Ok(Recovered {
        live: table.live(),
        revoked: 0,
        known_token: last_token,
        last_token,
        last_log: last.index,
    })
}

impl Engine {
    /// The bytes of a snapshot that has everything this node has applied so far.
    pub async fn backup(&self) -> io::Result<Vec<u8>> {
        let mut snapshot = self.fresh_snapshot().await?;
        machine::blocking(move || {
            let mut bytes = Vec::new();
            snapshot.read_to_end(&mut bytes)?;
            Ok(bytes)
        })
        .await?
    }

    /// The same in a file, synced and read back. The file must not exist.
    pub async fn backup_to(&self, path: &Path) -> io::Result<u64> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut snapshot = self.fresh_snapshot().await?;
        let path = path.to_path_buf();
        machine::blocking(move || {
            // For its owner's eyes alone: it has everybody's claims and data.
            let mut file =
                std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            io::copy(&mut snapshot, &mut file)?;
            file.sync_all()?;
            snapshot_file::verify(&path)
        })
        .await?
    }

    async fn fresh_snapshot(&self) -> io::Result<fs::File> {
        let wanted = self.shared.applied.load(std::sync::atomic::Ordering::Acquire);
        let dir = self.snapshot_dir();
        for _ in 0..600 {
            if let Some((meta, file)) = snapshot_file::newest(&dir)?
                && meta.last_log_id.is_some_and(|id| id.index >= wanted)
            {
                return fs::open_whole(&file.path);
            }
            self.raft().trigger().snapshot().await.map_err(io::Error::other)?;
            machine::sleep(std::time::Duration::from_millis(50)).await;
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "the snapshot was not ready within 30 s: try again"))
    }
}
