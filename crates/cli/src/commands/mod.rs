//! The subcommands of `leasehold`, one file or folder each.

pub(crate) mod access;
pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod cluster;
pub(crate) mod dss;
mod notify;
pub(crate) mod serve;
