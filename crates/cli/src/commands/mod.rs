//! The subcommands of `leasehold`, one file or folder each.

pub(crate) mod access;
mod admin;
pub(crate) mod backup;
pub(crate) mod claim;
pub(crate) mod cluster;
pub(crate) mod completions;
mod connect;
pub(crate) mod doctor;
pub(crate) mod dss;
pub(crate) mod exec;
pub(crate) mod exit_code;
pub(crate) mod keychain;
pub(crate) mod limits;
pub(crate) mod list;
mod notify;
pub(crate) mod output;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod revoke;
pub(crate) mod run;
mod seconds;
pub(crate) mod serve;
pub(crate) mod show;
mod target;
mod wanted;
pub(crate) mod watch;

/// A line for the person who typed the command. Output that can't be written changes nothing else.
pub(crate) fn complain(what: &str) {
    use std::io::Write as _;
    let line = format!("leasehold: {}\n", output::plain_lines(what));
    std::io::stderr().write_all(line.as_bytes()).ok();
}
