//! `leasehold dss clean`: unlocks what a dead process left behind.
//!
//! In:    a host, perhaps a pid. Out: a table of its typed locks and what was done with each; exit code 1 if some were kept.
//! Never: unlocks what a process holds that lives, as far as this host can know, or what changed hands meanwhile: it
//!        unlocks as the owner that was listed, not by force.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use leasehold_dss::{Caller, Client, EACCES, ENOLCK, Errno, Kind, Lock, Options, hostname};

use super::connect::ConnectArgs;
use super::output;

/// Typed locks.
#[derive(clap::Subcommand)]
pub(crate) enum DssCommand {
    /// Unlock what a dead process, or everything that a dead host, left behind
    ///
    /// Run on that host itself, it keeps the locks of processes that live, names them, and exits with 1. Run elsewhere it
    /// can't know, and takes your word that the host, or the process, is gone.
    Clean(CleanArgs),
}

#[derive(clap::Args)]
pub(crate) struct CleanArgs {
    /// The host whose locks to unlock, as its processes name it
    #[arg(long, value_name = "HOST")]
    host: String,
    /// Only those of this process
    #[arg(long, value_name = "PID")]
    pid: Option<i32>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// One line of the table.
struct Row {
    kind: Kind,
    lock: Lock,
    fate: String,
}

pub(crate) fn run(command: DssCommand) -> anyhow::Result<()> {
    let DssCommand::Clean(args) = command;
    let client = client(&args.connect)?;
    let is_here = hostname()? == args.host;
    if is_here && !Path::new("/proc/self/stat").exists() {
        bail!("there is no /proc, so it is unknown which processes of this host are alive");
    }
    let mut living = BTreeSet::new();
    let mut rows = Vec::new();
    for kind in Kind::ALL {
        let locks = client
            .list(kind, &args.host, args.pid)
            .with_context(|| format!("the locks of {} can't be listed", args.host))?;
        let mut by_pid: BTreeMap<i32, Vec<Lock>> = BTreeMap::new();
        for lock in locks {
            by_pid.entry(lock.owner.unwrap_or(0)).or_default().push(lock);
        }
        for (pid, locks) in by_pid {
            if is_here && lives(pid) {
                living.insert(pid);
                rows.extend(locks.into_iter().map(|lock| Row {
                    kind,
                    lock,
                    fate: format!("kept: process {pid} is alive"),
                }));
            } else {
                rows.extend(clean(&client, &args, kind, pid, locks));
            }
        }
    }
    print(&rows, is_here, &args.host);
    let failed = rows.iter().filter(|row| row.fate.starts_with(FAILED)).count();
    ensure!(failed == 0, "{failed} locks could not be unlocked");
    let names: Vec<String> = living.iter().map(ToString::to_string).collect();
    ensure!(living.is_empty(), "the locks of processes that are alive were kept: {}", names.join(", "));
    Ok(())
}

/// The C library's client, with the flags that all commands have.
fn client(connect: &ConnectArgs) -> anyhow::Result<Client> {
    let options = connect.options()?;
    let path = |path: Option<PathBuf>| path.map(|path| path.to_string_lossy().into_owned());
    let client = Client::new(Options {
        url: Some(options.urls.join(",")),
        key: options.key,
        ca: path(options.tls.ca),
        client_certificate: path(options.tls.client_certificate),
        client_key: path(options.tls.client_key),
        ..Options::default()
    });
    client.context("the server's address, the access key or a certificate can't be used")
}

/// How the fate of a lock begins that should be unlocked and is not.
const FAILED: &str = "failed: ";

/// What becomes of the locks of one process that is gone.
fn clean(client: &Client, args: &CleanArgs, kind: Kind, pid: i32, locks: Vec<Lock>) -> Vec<Row> {
    if args.dry_run {
        return locks.into_iter().map(|lock| Row { kind, lock, fate: "would be unlocked".into() }).collect();
    }
    let ids: Vec<&str> = locks.iter().map(|lock| &*lock.id).collect();
    let (done, _) = client.unlock(kind, &ids, Caller { hostname: &args.host, pid }, false);
    let fate = |done: &Lock| match done.errno {
        None => "unlocked".into(),
        Some(Errno(ENOLCK)) => "was unlocked meanwhile".into(),
        Some(Errno(EACCES)) => "has another owner meanwhile".into(),
        Some(errno) => format!("{FAILED}{errno}"),
    };
    let fates: Vec<String> = done.iter().map(fate).collect();
    locks.into_iter().zip(fates).map(|(lock, fate)| Row { kind, lock, fate }).collect()
}

/// Whether this process of this host is alive. A zombie counts as dead.
fn lives(pid: i32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // `pid (name) state ...`, and a name may hold anything.
        Ok(stat) => {
            let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
            !matches!(state, Some('Z' | 'X'))
        }
        // What exists and can't be read exists.
        Err(error) => error.kind() != std::io::ErrorKind::NotFound && pid > 0,
    }
}

fn print(rows: &[Row], is_here: bool, host: &str) {
    if !is_here {
        super::complain(&format!("this machine is not {host}: whether its processes are alive is unknown"));
    }
    if rows.is_empty() {
        super::complain(&format!("{host} holds no such locks"));
        return;
    }
    output::print(&table(rows));
}

fn table(rows: &[Row]) -> String {
    let head = ["TYPE", "ID", "PID", "SINCE", "RESULT"].map(String::from);
    let line = |row: &Row| {
        let Row { kind, lock, fate } = row;
        let pid = lock.owner.map_or("-".into(), |pid| pid.to_string());
        let since = lock.timestamp.clone().unwrap_or_else(|| "-".into());
        // An id may hold anything: nothing of it reaches the terminal as a control character.
        [kind.as_str(), &lock.id, &pid, &since, fate].map(output::plain)
    };
    let lines: Vec<[String; 5]> = std::iter::once(head).chain(rows.iter().map(line)).collect();
    let mut widths = [0; 5];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for line in &lines {
        for (cell, width) in line.iter().zip(widths).take(4) {
            write!(out, "{cell:<width$}  ").ok();
        }
        writeln!(out, "{}", line[4]).ok();
    }
    out
}
