//! `leasehold backup` and `leasehold restore`: the table as one file, and a node from it.
//!
//! In:    a running node's URL, or a file. Out: a file, or a data directory that a node can start with.
//! Never: leaves a file under its name that is not whole or that others can read, and never writes into a directory that holds data.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use leasehold_core::Status;
use leasehold_engine::{recovery, snapshot_file};

use super::admin::{Admin, AdminArgs};
use super::connect::block_on;
use super::output;

/// Save the table of a running service as one file.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct BackupArgs {
    #[command(subcommand)]
    command: Option<BackupCommand>,
    /// Where to write it
    #[arg(required = true)]
    file: Option<PathBuf>,
    // Behind the others: its heading would be theirs too.
    #[command(flatten)]
    admin: AdminArgs,
}

/// What to do with a backup that there is.
#[derive(clap::Subcommand)]
enum BackupCommand {
    /// Check that a backup can be restored, and say what is in it
    Verify {
        /// The backup
        file: PathBuf,
    },
}

/// Make a data directory from a backup: the data of a cluster of one, which other nodes can join.
#[derive(clap::Args)]
pub(crate) struct RestoreArgs {
    /// The backup
    file: PathBuf,
    /// The new data directory; it must not exist yet, or be empty
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The number of the node that will use it
    #[arg(long, default_value_t = leasehold_engine::ALONE, value_name = "N")]
    node_id: u64,
    /// Continue with tokens above this number [default: 2^32 above the newest in the backup]
    #[arg(long, value_name = "N")]
    tokens_above: Option<u64>,
    /// Keep held and waiting claims, though others may have been granted the same since the backup [default: revoke them]
    #[arg(long)]
    keep_claims: bool,
}

pub(crate) fn backup(args: &BackupArgs) -> anyhow::Result<()> {
    match (&args.command, &args.file) {
        (Some(BackupCommand::Verify { file }), _) => verify(file),
        (None, Some(file)) => save(&args.admin, file),
        (None, None) => Err(anyhow!("name the file to write: leasehold backup FILE")),
    }
}

/// Builds the whole table, as a restore would, and throws it away.
fn verify(path: &Path) -> anyhow::Result<()> {
    ensure!(path.exists(), "there is no file {}", path.display());
    let loaded = snapshot_file::load(path);
    let (meta, _, table) = loaded.with_context(|| format!("{} can't be restored", path.display()))?;
    let finished: u64 =
        Status::ALL.into_iter().filter(|status| status.is_final()).map(|status| table.count(status)).sum();
    output::print_line(&format!(
        "{} can be restored: {} claims held or waiting, {finished} finished, on {} resources; log entry {}, newest token {}",
        path.display(),
        table.live(),
        table.resource_count(),
        meta.last_log_id.map_or(0, |id| id.index),
        table.last_token()
    ));
    Ok(())
}

fn save(admin: &AdminArgs, path: &Path) -> anyhow::Result<()> {
    let partial = path.with_extension("partial");
    // What can't be restored is no backup.
    let checked = fetch(admin, &partial)
        .and_then(|len| Ok((len, snapshot_file::load(&partial).context("the backup did not arrive whole")?)));
    if checked.is_err() {
        std::fs::remove_file(&partial).ok();
    }
    let (len, (_, _, table)) = checked?;
    std::fs::rename(&partial, path).with_context(|| path.display().to_string())?;
    output::print_line(&format!("{}: {len} bytes, {} claims held or waiting", path.display(), table.live()));
    Ok(())
}

/// Writes the backup to a file, piece by piece, and returns its length.
fn fetch(admin: &AdminArgs, partial: &Path) -> anyhow::Result<usize> {
    let api = Admin::new(admin)?;
    let (mut file, mut len) = (None, 0);
    let named = |error: io::Error| anyhow!("{}: {error}", partial.display());
    block_on(api.read("/v1/backup", |piece| {
        // Only when the server has something to give.
        if file.is_none() {
            file = Some(create_private(partial).map_err(named)?);
        }
        len += piece.len();
        file.as_mut().map_or(Ok(()), |file| file.write_all(piece)).map_err(named)
    }))?;
    file.context("the server sent no backup")?.sync_all().map_err(named)?;
    Ok(len)
}

/// Makes a file for its owner's eyes alone: a backup has everybody's claims and data.
fn create_private(path: &Path) -> io::Result<File> {
    // Whatever lies there from before may be open to others.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

pub(crate) fn restore(args: &RestoreArgs) -> anyhow::Result<()> {
    ensure!(args.file.exists(), "there is no file {}", args.file.display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let choices = recovery::Choices { tokens_above: args.tokens_above, keep_claims: args.keep_claims };
    let restored = runtime.block_on(recovery::restore(&args.file, &args.data, args.node_id, choices))?;
    let claims = match args.keep_claims {
        false if restored.revoked == 0 => "no claim was held or waiting in the backup".into(),
        false => format!(
            "{} claims were held or waiting in the backup; they are REVOKED (\"restored from a backup\"): their clients \
             must claim again. --keep-claims would keep them",
            restored.revoked
        ),
        true => format!(
            "{} claims are held or waiting as in the backup. Others MAY HOLD THE SAME: whatever was released or granted \
             since the backup is not known",
            restored.live
        ),
    };
    output::print_line(&format!(
        "{} is ready for node {}.\n{claims}.\nTOKENS JUMP from {} to above {}: the lost service may have given out those in \
         between. If it may have given out more, start over with --tokens-above",
        args.data.display(),
        args.node_id,
        restored.known_token,
        restored.last_token
    ));
    Ok(())
}
