//! `make chaos MINUTES=n`: random faults on real nodes, under clients of all dialects.
//!
//! In:    `--binary PATH --minutes N` and, if you like, `--seconds N --nodes N --seed N --clients N --holders N
//!        --faketime PATH --pace storm|soak --first FAULT,FAULT
//!        --without FAULT --healed-within SECONDS`.
//! Out:   faults as they happen, a summary and a verdict; status 1 after a violation.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it talks to a person")]

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use leasehold_lab::chaos::by_node::HEALED_WITHIN;
use leasehold_lab::chaos::{self, Fault, Pace, Plan};

fn faults(names: &str) -> anyhow::Result<Vec<Fault>> {
    let named = |name| Fault::named(name).with_context(|| format!("{name} is no fault"));
    names.split(',').map(named).collect()
}

fn plan() -> anyhow::Result<Plan> {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let mut plan = Plan {
        binary: "target/release/leasehold".into(),
        length: Duration::from_secs(60),
        nodes: 3,
        seed,
        clients: 3,
        holders: 1,
        pace: Pace::Storm,
        first: Vec::new(),
        without: Vec::new(),
        healed_within: HEALED_WITHIN,
        faketime: None,
        verbose: true,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().with_context(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().with_context(|| format!("{name} {value}: no number"));
        match name.as_str() {
            "--binary" => plan.binary = value.into(),
            "--minutes" => plan.length = Duration::from_secs(60 * number()?),
            "--seconds" => plan.length = Duration::from_secs(number()?),
            "--nodes" => plan.nodes = number()?,
            "--seed" => plan.seed = number()?,
            "--clients" => plan.clients = number()?,
            "--holders" => plan.holders = number()?,
            "--first" => plan.first = faults(&value)?,
            "--without" => plan.without = faults(&value)?,
            "--pace" if value == "storm" => plan.pace = Pace::Storm,
            "--pace" if value == "soak" => plan.pace = Pace::Soak,
            "--healed-within" => plan.healed_within = Duration::from_secs(number()?),
            "--faketime" if value.is_empty() => {}
            "--faketime" => plan.faketime = Some(value.into()),
            _ => bail!("{name} is unknown: see the head of crates/lab/src/bin/chaos.rs"),
        }
    }
    Ok(plan)
}

fn main() -> ExitCode {
    let plan = match plan() {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::from(2);
        }
    };
    println!("{} nodes, {} s of faults, seed {}", plan.nodes, plan.length.as_secs(), plan.seed);
    match chaos::run(&plan) {
        Ok(summary) => {
            println!("{summary}\nno violation");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("FAILED (seed {}): {error:?}", plan.seed);
            ExitCode::FAILURE
        }
    }
}
