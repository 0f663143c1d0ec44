//! `leasehold run`: a command that says its token and then answers every line, as long as it lives.
//!
//! In:    the binary. Out: when the command certainly lived. Never: stops `run` without its command: a supervisor that stands
//!        still can't stop anything, which is why docs/client.md tells to check tokens.

use std::path::Path;
use std::process::Command;
use std::thread;

use super::{Grant, Heard, Holder, Process, WAIT};

/// What exit codes of `run` are no surprise here: its command's, "not acquired", "lost", "no server answers", and signals.
const EXPECTED: [Option<i32>; 6] = [Some(0), Some(75), Some(76), Some(125), Some(143), None];

pub(super) fn work(holder: &mut Holder, binary: &Path) {
    while !holder.stopped() {
        one(holder, binary);
        holder.rest();
    }
}

fn one(holder: &mut Holder, binary: &Path) {
    let (held, ttl) = holder.begin();
    let mut command = Command::new(binary);
    command
        .args(["run", "--quiet", "--ttl", &ttl.as_secs_f64().to_string()])
        .args(["-w", &WAIT.as_secs_f64().to_string(), held.resource()])
        .args(["--", "sh", "-c", "echo $LEASEHOLD_TOKEN $LEASEHOLD_CLAIM; exec cat"])
        .env("LEASEHOLD_ADDR", holder.book.shared.urls(holder.book.number).join(","));
    let called_us = holder.now_us();
    let mut run = match Process::start(command) {
        Ok(run) => run,
        Err(error) => return holder.odd(format!("leasehold run does not start: {error}")),
    };
    let first = match run.hear() {
        Heard::Line(line) => line,
        Heard::Closed => {
            holder.not_granted(&held, ttl, called_us);
            return check_exit(holder, &mut run);
        }
        Heard::Nothing => return holder.odd(format!("leasehold run says nothing of #{}", held.handle)),
    };
    let words = first.split_once(' ').and_then(|(token, id)| Some((token.parse().ok()?, id)));
    let Some((token, id)) = words else {
        return holder.odd(format!("a command was started without a token: {first}"));
    };
    let grant = holder.granted(held, ttl, called_us, token, id);
    hold(holder, grant, run);
}

fn hold(holder: &mut Holder, mut grant: Grant, mut run: Process) {
    let (looks, pause) = holder.shift(grant.ttl);
    for _ in 0..looks {
        let called_us = holder.now_us();
        run.say("still there?");
        match run.hear() {
            Heard::Line(_) => holder.holds(&mut grant, called_us),
            Heard::Closed => {
                // Its claim was lost, and it was stopped.
                holder.left(&grant);
                return check_exit(holder, &mut run);
            }
            Heard::Nothing => {
                return holder.odd(format!("the command of #{} neither ends nor answers", grant.held.handle));
            }
        }
        thread::sleep(pause);
    }
    holder.left(&grant);
    match holder.random.below(10) {
        // The kernel takes the command along; the claim runs out.
        0 | 1 => {
            run.signal("KILL");
            if !run.closed() {
                holder.odd("a command outlives the `leasehold run` that was killed".into());
            }
        }
        2 => run.signal("TERM"),
        // The command's input ends, and it with that.
        _ => run.stdin = None,
    }
    check_exit(holder, &mut run);
}

fn check_exit(holder: &mut Holder, run: &mut Process) {
    match run.exited() {
        Some(code) if EXPECTED.contains(&code) => {}
        Some(code) => holder.odd(format!("leasehold run ends with {code:?}")),
        None => holder.odd("leasehold run does not end".into()),
    }
}
