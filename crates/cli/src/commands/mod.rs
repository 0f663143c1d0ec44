//! One file a subcommand.

pub(crate) mod serve;

/// How a subcommand ends: with its exit code, or with an error that `main` prints.
pub(crate) type CommandResult = Result<std::process::ExitCode, Box<dyn std::error::Error>>;
