//! `leasehold completions` and `leasehold man`: made from the same definitions as `--help`.
//!
//! In:    the command line's own description. Out: a script for a shell; pages for man(1).

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;

use super::output;

#[derive(clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell: bash, zsh, fish, elvish or powershell
    shell: Shell,
}

#[derive(clap::Args)]
pub(crate) struct ManArgs {
    /// Write one page for each command into this folder, instead of the first page to stdout
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "leasehold", &mut script);
    output::print(&String::from_utf8(script)?);
    Ok(())
}

pub(crate) fn man(args: &ManArgs, command: Command) -> anyhow::Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    match &args.dir {
        None => output::print(&String::from_utf8(page(command)?)?),
        Some(dir) => {
            std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
            write_pages(dir, "leasehold", &command)?;
        }
    }
    Ok(())
}

fn page(command: Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).date("").render(&mut page)?;
    Ok(page)
}

fn write_pages(dir: &Path, name: &str, command: &Command) -> anyhow::Result<()> {
    let path = dir.join(format!("{name}.1"));
    std::fs::write(&path, page(command.clone())?).with_context(|| path.display().to_string())?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        write_pages(dir, &format!("{name}-{}", sub.get_name()), sub)?;
    }
    Ok(())
}
