//! `leasehold doctor`: what is wrong here, and what to do about it.
//!
//! In:    a node's settings, or a client's. Out: findings, as a list or as JSON; exit code 0: all is well, 1: something is
//!        broken, 3: something is or may become wrong.
//! Never: changes anything, and never calls broken what it could not look at: that is unknown.

mod client;
mod clocks;
mod disk;
mod files;
mod peers;
mod server;

use std::process::ExitCode;

use serde::Serialize;

use super::connect::ConnectArgs;
use super::output;
use super::serve::ServeArgs;

/// Something is broken.
const EXIT_BROKEN: u8 = 1;
/// Something is or may become wrong, or could not be looked at.
const EXIT_DOUBTFUL: u8 = 3;

/// Whose health.
#[derive(clap::Subcommand)]
pub(crate) enum DoctorCommand {
    /// Check this machine and the settings of a node, running or not; takes the flags of `serve`
    Server(Box<ServerArgs>),
    /// Check the way from here to the service, and what the key may do
    Client(ClientArgs),
}

#[derive(clap::Args)]
pub(crate) struct ServerArgs {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    // Behind the others: its headings would be theirs too.
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(clap::Args)]
pub(crate) struct ClientArgs {
    /// Also say what the key may do on this resource
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    // Behind the others: its heading would be theirs too.
    #[command(flatten)]
    connect: ConnectArgs,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// As it should be.
    Ok,
    /// It works, and may not for long, or not as well as it could.
    Warning,
    /// It does not work.
    Error,
    /// It could not be looked at.
    Unknown,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "ERROR",
            Self::Unknown => "unknown",
        }
    }
}

/// What was found.
#[derive(Debug, Serialize)]
struct Finding {
    level: Level,
    /// What was looked at: a closed list of words.
    check: &'static str,
    found: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

/// Everything that was found.
#[derive(Debug, Default, Serialize)]
struct Findings {
    findings: Vec<Finding>,
}

impl Findings {
    fn ok(&mut self, check: &'static str, found: impl Into<String>) {
        self.findings.push(Finding { level: Level::Ok, check, found: found.into(), advice: None });
    }

    fn bad(
        &mut self,
        level: Level,
        check: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.findings.push(Finding { level, check, found: found.into(), advice: Some(advice.into()) });
    }

    /// The list and its exit code.
    fn print(&self, as_json: bool) -> anyhow::Result<ExitCode> {
        let any = |level| self.findings.iter().any(|finding| finding.level == level);
        if as_json {
            output::print_json(self)?;
        } else {
            let mut text = String::new();
            for Finding { level, check, found, advice } in &self.findings {
                // Some errors have several lines, such as those of a TOML file.
                let found = output::plain_lines(found.trim_end()).replace('\n', "\n         ");
                text += &format!("{:<8} {check}: {found}\n", level.as_str());
                if let Some(advice) = advice {
                    text += &format!("         -> {}\n", output::plain(advice));
                }
            }
            output::print(&text);
        }
        Ok(match (any(Level::Error), any(Level::Warning) || any(Level::Unknown)) {
            (true, _) => ExitCode::from(EXIT_BROKEN),
            (false, true) => ExitCode::from(EXIT_DOUBTFUL),
            (false, false) => ExitCode::SUCCESS,
        })
    }
}

pub(crate) fn run(command: DoctorCommand) -> anyhow::Result<ExitCode> {
    match command {
        DoctorCommand::Server(args) => server::examine(args.serve)?.print(args.json),
        DoctorCommand::Client(args) => client::examine(&args)?.print(args.json),
    }
}

/// Bytes as people say them.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..10_737_418_240 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}
