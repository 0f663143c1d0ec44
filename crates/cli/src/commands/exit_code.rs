//! The exit codes that mean something, after flock(1), timeout(1) and sysexits.
//!
//! In:    nothing. Out: numbers that never change.

/// The resource was not free in time (EX_TEMPFAIL); `-E` changes it.
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// The claim was lost while the command ran, which was stopped.
pub(crate) const LOST: u8 = 76;
/// `leasehold run` itself failed: the service can't be reached, a flag makes no sense.
pub(crate) const OWN_FAILURE: u8 = 125;
/// The command is there and can't be run.
pub(crate) const CANNOT_RUN: u8 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: u8 = 127;
/// Plus the number of the signal that ended the command, or `leasehold run` while it waited.
pub(crate) const SIGNALLED: u8 = 128;
