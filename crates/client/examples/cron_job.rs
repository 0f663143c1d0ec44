//! A cron job that many machines start at the same minute, and one of them runs.
//!
//! `LEASEHOLD_ADDR=http://127.0.0.1:4080 cargo run --example cron_job -- nightly`. Exit code 0: it ran, or another machine
//! runs it. Anything else means that nobody knows, and deserves a mail.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

use std::process::ExitCode;
use std::time::Duration;

use leasehold_client::blocking::LockManager;
use leasehold_client::{ClaimRequest, Error, OnLost, Options, Wait};

fn main() -> ExitCode {
    let job = std::env::args().nth(1).unwrap_or_else(|| "nightly".into());
    match run(&job) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{job}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(job: &str) -> Result<(), Error> {
    let manager = LockManager::new(Options::from_env()?)?;
    let request = ClaimRequest::new(format!("cron/{job}"))
        .wait(Wait::No)
        // A job without its claim must not go on: SIGTERM ends this process.
        .on_lost(OnLost::Terminate)
        .data(&std::process::id())?;
    let claim = match manager.request(request) {
        Err(Error::Timeout { .. }) => {
            println!("{job}: another machine runs it");
            return Ok(());
        }
        other => other?,
    };
    println!("{job}: runs here, with the fencing token {}", claim.token().unwrap_or(0));
    // The job. Machines whose clocks are a bit late must still find the claim held: so it lasts for a moment.
    std::thread::sleep(Duration::from_millis(500));
    claim.release()
}
