//! `leasehold exec-for`: the last step of `leasehold run` before its command, in the command's own process.
//!
//! In:    the pid of `leasehold run`, and a command. Out: the command, in this very process; or 126, 127.
//! Never: lets the command outlive a `leasehold run` that was killed: the kernel ends it then. Only the process that is to
//!        die can ask for that.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::exit_code::{CANNOT_RUN, NOT_FOUND, OWN_FAILURE};

/// What it is called; nobody types it.
pub(crate) const NAME: &str = "exec-for";

#[derive(clap::Args)]
pub(crate) struct ExecArgs {
    /// Whose death is ours
    parent: i32,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &ExecArgs) -> ExitCode {
    let asked = set_parent_process_death_signal(Some(Signal::KILL));
    // It may have died before we could ask.
    if asked.is_err() || getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != args.parent) {
        return ExitCode::from(OWN_FAILURE);
    }
    let error = Command::new(&args.command[0]).args(&args.command[1..]).exec();
    super::complain(&format!("{}: {error}", args.command[0].to_string_lossy()));
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN })
}

/// Whether there is such a command, before anything is started for it.
pub(crate) fn look_up(command: &OsStr) -> io::Result<()> {
    let is_executable = |path: &Path| {
        std::fs::metadata(path).map(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if command.as_encoded_bytes().contains(&b'/') {
        return match is_executable(Path::new(command)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(io::ErrorKind::PermissionDenied.into()),
            Err(error) => Err(error),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/bin:/usr/bin".into());
    let mut error = io::ErrorKind::NotFound;
    for dir in std::env::split_paths(&path) {
        match is_executable(&dir.join(command)) {
            Ok(true) => return Ok(()),
            Ok(false) => error = io::ErrorKind::PermissionDenied,
            Err(_) => {}
        }
    }
    Err(error.into())
}
