//! `leasehold keychain`, as a parent of any language talks to it.
//!
//! In:    the binary. Out: what its lines said and when. Never: mends what is broken: a keychain that is killed is followed
//!        by a new one, and the claims of the old one have to end by themselves.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Grant, Heard, Holder, Process, WAIT};

pub(super) fn work(holder: &mut Holder, binary: &Path) {
    let mut keychain: Option<Process> = None;
    let mut id = 0;
    while !holder.stopped() {
        let process = match keychain.take() {
            Some(process) => process,
            None => {
                let mut command = Command::new(binary);
                command.arg("keychain");
                command.env("LEASEHOLD_ADDR", holder.book.shared.urls(holder.book.number).join(","));
                match Process::start(command) {
                    Ok(process) => process,
                    Err(error) => return holder.odd(format!("the keychain does not start: {error}")),
                }
            }
        };
        keychain = one(holder, Lines { process, id: &mut id });
        holder.rest();
    }
    if let Some(mut process) = keychain {
        process.stdin = None;
        if process.exited().is_none() {
            holder.odd("a keychain outlives its pipe".into());
        }
    }
}

/// A keychain and the newest number of a request.
struct Lines<'a> {
    process: Process,
    id: &'a mut u64,
}

impl Lines<'_> {
    fn send(&mut self, mut line: Value) -> u64 {
        *self.id += 1;
        line["id"] = (*self.id).into();
        self.process.say(&line.to_string());
        *self.id
    }

    /// The answer to a request; `None`: it is gone, or says nothing.
    fn answer(&self, id: u64) -> Option<Value> {
        loop {
            match self.process.hear() {
                Heard::Line(line) => {
                    let line: Value = serde_json::from_str(&line).ok()?;
                    if line["id"] == id {
                        return Some(line);
                    }
                }
                Heard::Closed | Heard::Nothing => return None,
            }
        }
    }

    fn ask(&mut self, line: Value) -> Option<Value> {
        let id = self.send(line);
        self.answer(id)
    }
}

/// One claim. Gives the keychain back if it still lives.
fn one(holder: &mut Holder, mut lines: Lines<'_>) -> Option<Process> {
    let (held, ttl) = holder.begin();
    let called_us = holder.now_us();
    let answer = lines.ask(json!({ "op": "claim", "resource": held.resource(), "ttl": ttl.as_secs_f64(),
        "timeout": WAIT.as_secs_f64() }));
    let Some(answer) = answer else {
        holder.odd(format!("a keychain does not answer for #{}", held.handle));
        return None;
    };
    let (Some(token), Some(id), true) =
        (answer["token"].as_u64(), answer["claim"].as_str(), answer["ok"] == true)
    else {
        if matches!(answer["error"].as_str(), Some("invalid" | "refused") | None) {
            holder.odd(format!("a keychain says of #{}: {answer}", held.handle));
        }
        holder.not_granted(&held, ttl, called_us);
        return Some(lines.process);
    };
    let mut grant = holder.granted(held, ttl, called_us, token, id);
    hold(holder, &mut grant, &mut lines)?;
    finish(holder, &grant, lines)
}

fn hold(holder: &mut Holder, grant: &mut Grant, lines: &mut Lines<'_>) -> Option<()> {
    let (looks, pause) = holder.shift(grant.ttl);
    let resource = grant.held.resource().to_string();
    for _ in 0..looks {
        let called_us = holder.now_us();
        let asked = lines.send(json!({ "op": "validate", "resource": resource }));
        if holder.random.percent(6) {
            // As a machine that is suspended, perhaps past its ttl.
            lines.process.signal("STOP");
            thread::sleep(Duration::from_millis(holder.random.below(5000)));
            lines.process.signal("CONT");
        }
        let Some(answer) = lines.answer(asked) else {
            holder.odd(format!("a keychain says nothing of #{}", grant.held.handle));
            return None;
        };
        if answer["ok"] != true {
            break;
        }
        if answer["token"] != grant.token {
            holder.odd(format!("#{} has another token now: {answer}", grant.held.handle));
        }
        holder.holds(grant, called_us);
        thread::sleep(pause);
    }
    if holder.random.percent(20) {
        let called_us = holder.now_us();
        let ttl = grant.ttl.as_secs_f64();
        if lines.ask(json!({ "op": "refresh", "resource": resource, "ttl": ttl }))?["ok"] == true {
            holder.renewed(grant, called_us);
        }
    }
    Some(())
}

fn finish(holder: &mut Holder, grant: &Grant, mut lines: Lines<'_>) -> Option<Process> {
    match holder.random.below(20) {
        // Killed, if it had not lost its claim in that very moment: nobody tells the server, and it runs out.
        0 | 1 => {
            holder.left(grant);
            return None;
        }
        // Its parent is gone, or somebody ends it: it gives up what it has.
        2 => lines.process.stdin = None,
        3 => lines.process.signal("TERM"),
        _ => {
            let called_us = holder.now_us();
            let answer = lines.ask(json!({ "op": "release", "resource": grant.held.resource() }));
            match answer.is_some_and(|answer| answer["ok"] == true) {
                true => holder.released(grant, called_us),
                false => holder.left(grant),
            }
            return Some(lines.process);
        }
    }
    holder.left(grant);
    if lines.process.exited().is_none() {
        holder.odd("a keychain does not end".into());
    }
    None
}
