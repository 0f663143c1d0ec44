//! The language of the golden scripts.
//!
//! In:    the lines of one block. Out: the lines they print: the outcome of each command, then the events of its
//!        entry, indented.
//! Never: touches the table but by `apply`, queries, and freezing and restoring it.
//!
//! Every command is an entry of its own, unless it stands in `batch { … }`. Times are `5us`, `20ms`, `10s`, `2m`, `1h`.
//! A claim is known by a short name, which also is its owner's unless `owner=` says otherwise.
//!
//! ```text
//! a: claim R [ttl=T] [refuse|wait=T] [owner=O] [data=D|json=J|large=BYTES] [key=K/FINGERPRINT]
//! a: claim R[:exclusive|:shared|:TAKE/OF],S… [session=PATH] [lapses] …     a set; `nothing` is a set without items
//! activate a            await a wait=T
//! renew a|holder=R [ttl=T] [data=D|json=J] [owner=O] [version=N]
//! release|abort|withdraw|revoke a|holder=R [owner=O] [version=N] [reason=TEXT] [purge]
//! lock-all owner=O [ttl=T] [data=D|json=J] a@R b@S …
//! revoke-when-gone a [reason=TEXT]
//! revoke-all [on=R] [before=N] [reason=TEXT]
//! settle R …            configure NAME=N …          tick        refuse
//! upgrade version=N     budgets [total|per_owner|per_namespace|finished=N] …
//! budget total|finished|owner|namespace [prefix=P] [bytes=N]     without bytes: no override any more
//! repeat N COMMAND      the command N times in one entry, `{}` in it counting from 1
//! batch { … }           several commands, one to a line, in one entry
//! advance T             the stamp moves on by T, and a tick is applied
//! at T                  the stamp of the next command, which may lie in the past
//! wall T                how far the wall clock is ahead of the table clock from now on
//! snapshot              the table is frozen and restored from its bytes
//! show a                queue R        table        bytes        digest (numbered: equal tables, equal numbers)
//! list [status=S] [resource=R] [left|created|active|waiting=MIN..MAX] [offset=N] [limit=N] [budget=N]
//! ```

mod parse;
mod print;

use std::collections::BTreeMap;

use leasehold_core::limits::EXPIRIES_PER_ENTRY;
use leasehold_core::table::{ListPage, Restorer};
use leasehold_core::{Batch, ClaimId, Command, EventKind, Stamp, Status, Table};

use parse::Args;

/// Claims by the names that scripts give them, both ways.
#[derive(Default)]
pub(crate) struct Names {
    ids: BTreeMap<String, ClaimId>,
    names: BTreeMap<ClaimId, String>,
}

impl Names {
    /// The id of a name; a new name gets the next one.
    fn id(&mut self, name: &str) -> ClaimId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = ClaimId::from_u128(self.ids.len() as u128 + 1);
        self.ids.insert(name.into(), id);
        self.names.insert(id, name.into());
        id
    }

    fn name(&self, id: ClaimId) -> &str {
        self.names.get(&id).map_or("?", String::as_str)
    }

    /// A printed line with names in place of ids.
    fn put_in(&self, mut line: String) -> String {
        for start in (0..line.len()).rev() {
            let id = line.get(start..start + 32).and_then(|word| word.parse().ok());
            if let Some(id) = id {
                line.replace_range(start..start + 32, self.name(id));
            }
        }
        line
    }
}

/// A script on its way through its table.
#[derive(Default)]
pub(crate) struct Script {
    table: Table,
    /// What the next entry will be stamped with; the wall clock is kept as its lead.
    stamp: Stamp,
    names: Names,
    /// Different digests, in order of appearance.
    digests: Vec<[u8; 32]>,
    /// More was due than the last entry could end.
    backlog: bool,
}

impl Script {
    /// Runs the lines of one block.
    pub(crate) fn block(&mut self, lines: &[String]) -> Result<Vec<String>, String> {
        let mut printed = Vec::new();
        let mut batch: Option<Vec<Command>> = None;
        for line in lines.iter().map(|line| line.trim()) {
            let result = match line {
                comment if comment.is_empty() || comment.starts_with('#') => Ok(()),
                "batch {" => {
                    batch = Some(Vec::new());
                    Ok(())
                }
                "}" => match batch.take() {
                    Some(commands) => self.entry(commands, &mut printed),
                    None => Err("no batch is open".into()),
                },
                line => match &mut batch {
                    Some(commands) => self.commands(line).map(|more| commands.extend(more)),
                    None => self.line(line, &mut printed),
                },
            };
            result.map_err(|error| format!("`{line}`: {error}"))?;
        }
        Ok(printed)
    }

    fn line(&mut self, line: &str, printed: &mut Vec<String>) -> Result<(), String> {
        let mut args = Args::new(line);
        match args.word()?.as_str() {
            "advance" => {
                self.stamp.now_us += parse::time(&args.word()?)?;
                let before = printed.len();
                self.entry(vec![Command::Tick], printed)?;
                // The tick's own outcome says nothing; what happened does.
                printed.remove(before);
                if printed.len() == before {
                    printed.push("nothing happened".into());
                }
            }
            "at" => self.stamp.now_us = parse::time(&args.word()?)?,
            "wall" => self.stamp.wall_us = parse::time(&args.word()?)?,
            "snapshot" => printed.push(self.snapshot()?),
            "show" => printed.push(self.show(&args.word()?)),
            "queue" => printed.push(self.queue(&args.word()?)),
            "table" => printed.push(print::table(&self.table)),
            "bytes" => printed.push(print::bytes(&self.table)),
            "digest" => printed.push(self.digest()),
            "list" => printed.push(self.list(&mut args)?),
            _ => {
                let commands = self.commands(line)?;
                return self.entry(commands, printed);
            }
        }
        args.end()
    }

    fn commands(&mut self, line: &str) -> Result<Vec<Command>, String> {
        let next_sequence = self.table.next_sequence();
        let settings = self.table.settings().clone();
        let mut one = |line: &str| parse::command(line, &mut self.names, next_sequence, &settings);
        match line.strip_prefix("repeat ").and_then(|rest| rest.split_once(' ')) {
            None => Ok(vec![one(line)?]),
            Some((times, line)) => {
                let times: u64 = times.parse().map_err(|_| format!("{times} is no number"))?;
                (1..=times).map(|i| one(&line.replace("{}", &i.to_string()))).collect()
            }
        }
    }

    fn entry(&mut self, commands: Vec<Command>, printed: &mut Vec<String>) -> Result<(), String> {
        let Stamp { now_us, wall_us: lead_us } = self.stamp;
        let applied =
            self.table.apply(&Batch { stamp: Stamp { now_us, wall_us: now_us + lead_us }, commands });
        let by_deadline =
            |kind| matches!(kind, EventKind::Ended { status: Status::Expired | Status::Withdrawn, .. });
        // One event for each item: the budget counts items too.
        let expired = applied.events.iter().filter(|event| by_deadline(event.kind)).count();
        self.backlog = expired >= EXPIRIES_PER_ENTRY;
        printed.extend(print::applied(&applied).into_iter().map(|line| self.names.put_in(line)));
        self.table.check(self.backlog)
    }

    fn snapshot(&mut self) -> Result<String, String> {
        let frozen = self.table.freeze();
        let mut restorer = Restorer::default();
        for chunk in frozen.chunks() {
            restorer.push(&chunk).map_err(|error| error.to_string())?;
        }
        self.table = restorer.finish().map_err(|error| error.to_string())?;
        self.table.check(self.backlog)?;
        match self.table.freeze().digest() == frozen.digest() {
            true => Ok("restored, with the same digest".into()),
            false => Err("the restored table has another digest".into()),
        }
    }

    fn show(&mut self, name: &str) -> String {
        let id = self.names.id(name);
        match self.table.claim_view(id, self.stamp.now_us) {
            Some(view) => format!("{name}: {}", print::claim(&view)),
            None => format!("{name}: unknown"),
        }
    }

    fn queue(&self, resource: &str) -> String {
        let Some(entry) = self.table.resource(resource) else { return format!("{resource}: unknown") };
        let name = |seq: u64| format!(" {}", self.names.name(self.table.view_at(seq, 0).claim.id));
        let slots = |seq: u64| {
            let view = self.table.view_at(seq, 0);
            let item = view.items().iter().find(|item| &*item.resource == resource);
            item.filter(|item| !item.slots.is_empty())
                .map_or(String::new(), |item| format!("{:?}", item.slots))
        };
        let mut holders: String = entry.holders().map(|seq| name(seq) + &slots(seq)).collect();
        if holders.is_empty() {
            holders = " nobody".into();
        }
        let of = entry.capacity().map_or(String::new(), |of| format!("; {of} slots"));
        let mut reserved: String = entry.reserved().map(name).collect();
        if !reserved.is_empty() {
            reserved = format!("; reserved by{reserved}");
        }
        let waiting: String = entry.queue().map(name).collect();
        let finished: String = entry.finished().map(name).collect();
        format!("{resource}: held by{holders}{of}{reserved}; waiting:{waiting}; finished:{finished}")
    }

    fn digest(&mut self) -> String {
        let digest = self.table.freeze().digest();
        let known = self.digests.iter().position(|known| *known == digest);
        let place = known.unwrap_or_else(|| {
            self.digests.push(digest);
            self.digests.len() - 1
        });
        format!("digest #{}", place + 1)
    }

    fn list(&mut self, args: &mut Args) -> Result<String, String> {
        let filter = parse::filter(args)?;
        let offset = args.number("offset")?.unwrap_or(0);
        let limit = args.number("limit")?.unwrap_or(100) as usize;
        let budget = args.number("budget")?;
        let mut page = ListPage::new(offset, limit);
        let mut calls = 0;
        while !page.done {
            self.table.list(&filter, &mut page, self.stamp.now_us, budget.unwrap_or(4096) as usize);
            calls += 1;
        }
        let names: String =
            page.views.iter().map(|view| format!(" {}", self.names.name(view.claim.id))).collect();
        let more = if page.more { ", and more" } else { "" };
        let calls = budget.map_or(String::new(), |_| format!(" ({calls} calls)"));
        Ok(format!("listed:{names}{more}{calls}"))
    }
}
