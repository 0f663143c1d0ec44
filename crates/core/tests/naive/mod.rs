//! The rules of the table once more, in the plainest way: a list of claims and loops over it.
//!
//! In:    the same batches as the table. Out: answers and events to compare with the table's.
//! Never: shares code with `src/table`, keeps an index, or is fast. Read beside the design, not beside the table.

pub(crate) mod compare;
pub(crate) mod steps;

use std::collections::BTreeSet;
use std::sync::Arc;

use compare::{Answer, Row};
use leasehold_core::table::{Polls, Revoking};
use leasehold_core::{
    Batch, Budgets, ClaimId, Command, Data, Ending, Event, EventKind, Guard, Idempotency, Item, ItemView,
    Mode, NewClaim, NewSet, OnBusy, Scope, Settings, Stamp, Status, Target,
};

/// How many claims one entry ends because they are due.
const EXPIRIES: usize = 100;
/// How many waits that are over one entry ends because they stand in the way.
const OVERDUE_WAITS: usize = 100;
/// Bytes of a claim that count for nothing.
const BYTES_FREE: u64 = 256;
/// What an idempotency key counts for.
const KEY_BYTES: usize = 180;
/// The longest pause between two looks of a client that counts.
const PICKUP_PAUSE_US_MAX: u64 = 300_000_000;
/// How many claims one command revokes.
const REVOCATIONS: usize = 500;

/// A claim, as the model keeps it.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Order of creation.
    pub(crate) seq: u64,
    /// What a caller sees of it; its position and durations are worked out when somebody looks.
    pub(crate) row: Row,
    /// What it wants: one exclusive item, unless it came as a set.
    pub(crate) wants: Vec<Item>,
    /// Where it fits with all before it: there it holds, or reserves while it waits.
    admitted: Vec<bool>,
    /// It is withdrawn when nobody asks for it while it waits.
    lapses: bool,
}

impl Entry {
    fn place(&self, resource: &str) -> Option<usize> {
        self.wants.iter().position(|item| *item.resource == *resource)
    }

    /// A single exclusive claim: whoever names its resource means all of it.
    fn is_alone(&self) -> bool {
        matches!(&*self.wants, [Item { mode: Mode::Exclusive, .. }])
    }
}

/// The whole table.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) clock: Stamp,
    pub(crate) token: u64,
    pub(crate) version: u64,
    pub(crate) last_seq: u64,
    pub(crate) settings: Settings,
    /// Which commands and rules hold; 0 until the first upgrade.
    pub(crate) table_version: u32,
    pub(crate) budgets: Budgets,
    pub(crate) overrides: Vec<(Scope, u64)>,
    /// In order of creation.
    pub(crate) claims: Vec<Entry>,
    /// How many of those this entry may still end.
    overdue_left: usize,
    /// Resources on which something ended: who waits there may fit now. The last one is looked at first.
    woken: Vec<Arc<str>>,
    /// Items that fit and are not admitted yet: by claim and place.
    admissible: BTreeSet<(u64, usize)>,
    /// More was due than the last entry ended.
    pub(crate) backlog: bool,
    events: Vec<Event>,
}

type Reply = Result<Answer, Answer>;

impl Model {
    pub(crate) fn apply(&mut self, batch: &Batch) -> (Vec<Answer>, Vec<Event>) {
        self.clock.now_us = self.clock.now_us.max(batch.stamp.now_us);
        self.clock.wall_us = batch.stamp.wall_us;
        self.overdue_left = OVERDUE_WAITS;
        for _ in 0..EXPIRIES {
            let due = self.claims.iter().filter(|claim| self.due(claim));
            match due.min_by_key(|claim| (claim.row.deadline_us, claim.seq)).map(|claim| claim.seq) {
                Some(seq) => self.end_due(seq),
                None => break,
            }
        }
        let answers = batch.commands.iter().map(|command| self.command(command)).collect();
        for _ in 0..2 * self.events.len() + 100 {
            self.forget_one();
        }
        for _ in 0..2 * self.events.len() + 100 {
            self.trim_one();
        }
        self.backlog = self.claims.iter().any(|claim| self.due(claim));
        (answers, std::mem::take(&mut self.events))
    }

    fn command(&mut self, command: &Command) -> Answer {
        let reply = match command {
            Command::Claim(new) => self.claim(new),
            Command::Activate { id } => self.activate(*id, 0),
            Command::Renew { target, guard, ttl_us, data } => {
                self.renew(target, guard, *ttl_us, data.as_ref())
            }
            Command::Finish { target, guard, ending, reason, purge_data } => {
                self.finish(target, guard, *ending, reason.as_ref(), *purge_data)
            }
            Command::LockAll { items, owner, ttl_us, data } => {
                self.lock_all(items, owner, *ttl_us, data.as_ref())
            }
            Command::Revoke { resource, before, reason } => {
                self.revoke(resource.as_ref(), *before, reason.as_ref())
            }
            Command::Settle { resources } => {
                resources.iter().for_each(|resource| self.settle_queue(resource));
                Ok(Answer::word("done"))
            }
            Command::Tick => Ok(Answer::word("done")),
            Command::Configure(settings) => {
                self.settings = settings.clone();
                Ok(Answer::word("done"))
            }
            Command::Upgrade { version } => {
                self.table_version = self.table_version.max(*version);
                Ok(Answer::word("done"))
            }
            Command::ConfigureBudgets(_) | Command::SetBudget { .. } | Command::RevokeWhenGone { .. }
                if self.table_version < 2 =>
            {
                Err(Answer::word("rejected 17 2"))
            }
            Command::ConfigureBudgets(budgets) => {
                self.budgets = *budgets;
                Ok(Answer::word("done"))
            }
            Command::SetBudget { scope, bytes } => {
                self.overrides.retain(|(known, _)| known != scope);
                self.overrides.extend(bytes.map(|bytes| (scope.clone(), bytes)));
                Ok(Answer::word("done"))
            }
            Command::Refuse => Err(Answer::word("rejected 19")),
            Command::Await { id, wait_us } => self.activate(*id, *wait_us),
            Command::RevokeWhenGone { id, reason } => self.revoke_when_gone(*id, reason.as_ref()),
            Command::ClaimSet(_) if self.table_version < 3 => Err(Answer::word("rejected 17 3")),
            Command::ClaimSet(new) => self.claim_set(new),
        };
        reply.unwrap_or_else(|rejection| rejection)
    }

    // ---- commands

    /// The same request came before, by its id or its key.
    fn earlier(&mut self, id: ClaimId, wanted: Option<Idempotency>) -> Option<Reply> {
        if let Some(seq) = self.by_id(id) {
            return Some(Ok(self.found_again(seq)));
        }
        let same_key = |claim: &&Entry| matches!((claim.row.idempotency, wanted), (Some(known), Some(wanted)) if known.key == wanted.key);
        let first = self.claims.iter().find(same_key).cloned()?;
        if first.row.idempotency != wanted {
            return Some(Err(Answer::word(format!("rejected 8 {}", first.row.id))));
        }
        Some(Ok(self.found_again(first.seq)))
    }

    /// A request that comes again asks for its claim.
    fn found_again(&mut self, seq: u64) -> Answer {
        self.settle_claim(seq);
        if self.at(seq).status == Status::Waiting && self.entry(seq).lapses {
            self.still_waiting(seq, 0);
        }
        self.show("existing", seq)
    }

    fn claim(&mut self, new: &NewClaim) -> Reply {
        if let Some(earlier) = self.earlier(new.id, new.idempotency) {
            return earlier;
        }
        self.settle(&new.resource);
        let obstacle = self.obstacle(&new.resource, Mode::Exclusive);
        if let Some(obstacle) = obstacle {
            if new.on_busy == OnBusy::Refuse {
                return Err(self.show("rejected 1", obstacle));
            }
            let max = self.settings.queue_len_max;
            if self.queue(&new.resource).len() as u64 >= max {
                self.settle_queue(&new.resource);
            }
            if self.queue(&new.resource).len() as u64 >= max {
                return Err(Answer::word(format!("rejected 10 {max}")));
            }
        }
        let resources = std::slice::from_ref(&new.resource);
        self.room(resources, &new.owner).map_err(|(_, word)| rejected(&word))?;
        let beyond_names = len(new.data.as_ref()) + if new.idempotency.is_some() { KEY_BYTES } else { 0 };
        self.byte_room(resources, &new.owner, beyond_names).map_err(|(_, word)| rejected(&word))?;
        let seq = self.create(new.id, &new.resource, &new.owner, new.ttl_us, new.data.as_ref());
        self.at(seq).idempotency = new.idempotency;
        Ok(self.grant_or_queue(seq, obstacle.is_some(), new.on_busy))
    }

    fn grant_or_queue(&mut self, seq: u64, waits: bool, on_busy: OnBusy) -> Answer {
        if !waits {
            self.grant(seq, false);
            return self.show("granted", seq);
        }
        let wait_us = match on_busy {
            OnBusy::QueueFor { wait_us } => Some(wait_us),
            _ if self.entry(seq).lapses => self.at(seq).ttl_us,
            _ => None,
        };
        self.at(seq).deadline_us = wait_us.map(|wait_us| self.clock.now_us + wait_us.max(1));
        self.report(seq, EventKind::Queued);
        self.show("queued", seq)
    }

    fn claim_set(&mut self, new: &NewSet) -> Reply {
        if let Some(earlier) = self.earlier(new.id, new.idempotency) {
            return earlier;
        }
        let sound = |item: &Item| match item.mode {
            Mode::Slots { take, of } => 1 <= take && take <= of && of <= 10_000,
            _ => true,
        };
        if new.items.is_empty() || !new.items.iter().all(sound) {
            return Err(Answer::word("rejected 27"));
        }
        for (place, item) in new.items.iter().enumerate() {
            if new.items[..place].iter().any(|other| other.resource == item.resource) {
                return Err(Answer::word(format!("rejected 9 {}", item.resource)));
            }
        }
        for item in &new.items {
            if let (Mode::Slots { of, .. }, Some(present)) = (item.mode, self.capacity(&item.resource))
                && of != present
            {
                return Err(Answer::word(format!("rejected 23 {} {present}", item.resource)));
            }
        }
        let obstacles: Vec<Option<u64>> =
            new.items.iter().map(|item| self.obstacle(&item.resource, item.mode)).collect();
        let first = new.items.iter().zip(&obstacles).find_map(|(item, obstacle)| Some((item, (*obstacle)?)));
        if let (Some((item, obstacle)), OnBusy::Refuse) = (first, new.on_busy) {
            return Err(self.show(format!("rejected 21 {}", item.resource), obstacle));
        }
        let max = self.settings.queue_len_max;
        let full = |item: &Item| {
            self.claims.iter().any(|claim| claim.place(&item.resource).is_some())
                && self.queue(&item.resource).len() as u64 >= max
        };
        if first.is_some() && new.items.iter().any(full) {
            return Err(Answer::word(format!("rejected 10 {max}")));
        }
        let resources: Vec<Arc<str>> = new.items.iter().map(|item| item.resource.clone()).collect();
        self.room(&resources, &new.owner).map_err(|(_, word)| rejected(&word))?;
        let entry = Entry {
            seq: self.last_seq + 1,
            row: Row {
                idempotency: new.idempotency,
                session: new.session.clone(),
                ..self.new_row(new.id, &resources[0], &new.owner, new.ttl_us, new.data.as_ref())
            },
            wants: new.items.clone(),
            admitted: obstacles.iter().map(Option::is_none).collect(),
            lapses: new.lapses && new.on_busy == OnBusy::Queue,
        };
        let mut entry = entry;
        entry.row.items = new.items.iter().map(not_granted).collect();
        self.fits(bytes(&entry.row), &resources[0], &new.owner).map_err(|word| rejected(&word))?;
        if first.is_some() && new.session.is_some() && !self.could_be_granted(&entry) {
            return Err(Answer::word("rejected 22"));
        }
        self.last_seq += 1;
        entry.row.version = self.next_version();
        let seq = entry.seq;
        self.claims.push(entry);
        Ok(self.grant_or_queue(seq, first.is_some(), new.on_busy))
    }

    /// Plays out the best that can happen to a claim that would wait: a session goes on when all its claims and its descendants'
    /// hold, and then all of them may end; claims without a session end once they are granted.
    fn could_be_granted(&self, new: &Entry) -> bool {
        let live = self.claims.iter().filter(|claim| !over(claim.row.status));
        let mut left: Vec<&Entry> = live.chain([new]).collect();
        loop {
            let fits = |place: usize| {
                left[place].wants.iter().all(|item| {
                    let before = left[..place]
                        .iter()
                        .filter_map(|claim| Some(claim.wants[claim.place(&item.resource)?].mode));
                    fit_together(before.chain([item.mode]))
                })
            };
            let holds: Vec<bool> = (0..left.len()).map(fits).collect();
            if holds[left.len() - 1] {
                return true;
            }
            let goes_on = |session: &Arc<str>| {
                left.iter().zip(&holds).all(|(claim, holds)| {
                    *holds || !claim.row.session.as_ref().is_some_and(|other| is_below(other, session))
                })
            };
            let ends = |place: usize| holds[place] && left[place].row.session.as_ref().is_none_or(goes_on);
            match (0..left.len()).find(|place| ends(*place)) {
                Some(place) => drop(left.remove(place)),
                None => return false,
            }
        }
    }

    fn activate(&mut self, id: ClaimId, open_us: u64) -> Reply {
        let seq = self.target(&Target::Claim(id))?;
        match self.at(seq).status {
            Status::Active => {}
            Status::Waiting => return Err(self.still_waiting(seq, open_us)),
            _ => return Err(self.show("rejected 5", seq)),
        }
        if self.at(seq).unpicked && self.at(seq).revoking.is_some() {
            return Err(self.show("rejected 20", seq));
        }
        if self.at(seq).unpicked {
            let (now_us, version, table_version) =
                (self.clock.now_us, self.next_version(), self.table_version);
            let claim = self.at(seq);
            let started = claim.ttl_us.map(|ttl_us| now_us + ttl_us.max(1));
            claim.deadline_us = if table_version < 2 { claim.deadline_us.min(started) } else { started };
            claim.unpicked = false;
            claim.version = version;
        }
        Ok(self.show("active", seq))
    }

    /// Asking for a claim that waits tells how often its client looks.
    fn still_waiting(&mut self, seq: u64, open_us: u64) -> Answer {
        let (now_us, table_version) = (self.clock.now_us, self.table_version);
        let claim = self.at(seq);
        if table_version >= 2 {
            let before = claim.polls.unwrap_or(Polls { last_us: claim.created.now_us, longest_us: 0 });
            let pause_us = now_us.saturating_sub(before.last_us).min(PICKUP_PAUSE_US_MAX);
            let longest_us = before.longest_us.max(pause_us);
            claim.polls = Some(Polls { last_us: now_us + open_us, longest_us });
            let lapse_us = claim.ttl_us.map(|ttl_us| now_us + open_us + ttl_us.max(1));
            if self.entry(seq).lapses {
                let claim = self.at(seq);
                claim.deadline_us = claim.deadline_us.max(lapse_us);
            }
        }
        self.show("rejected 2", seq)
    }

    fn renew(&mut self, target: &Target, guard: &Guard, ttl_us: Option<u64>, data: Option<&Data>) -> Reply {
        let seq = self.target(target)?;
        self.guard(seq, guard)?;
        if self.at(seq).status == Status::Waiting {
            return Err(self.still_waiting(seq, 0));
        }
        if self.at(seq).revoking.is_some() {
            return Err(self.show("rejected 20", seq));
        }
        if let Some(data) = data {
            let before = self.at(seq).clone();
            let after = Row { data: Some(data.clone()), ..before.clone() };
            let more = bytes(&after).saturating_sub(bytes(&before));
            self.fits(more, &before.resource, &before.owner).map_err(|word| rejected(&word))?;
        }
        let (clock, version) = (self.clock, self.next_version());
        let claim = self.at(seq);
        claim.ttl_us = ttl_us.or(claim.ttl_us);
        claim.data = data.cloned().or(claim.data.take());
        claim.deadline_us = claim.ttl_us.map(|ttl_us| clock.now_us + ttl_us.max(1));
        claim.unpicked = false;
        claim.renewals += 1;
        claim.renewed_wall_us = clock.wall_us.max(claim.renewed_wall_us + 1);
        claim.version = version;
        self.report(seq, EventKind::Renewed);
        Ok(self.show("renewed", seq))
    }

    fn finish(
        &mut self,
        target: &Target,
        guard: &Guard,
        ending: Ending,
        reason: Option<&Arc<str>>,
        purge: bool,
    ) -> Reply {
        let seq = self.target(target)?;
        self.guard(seq, guard)?;
        let status = match ending {
            Ending::Released => Status::Released,
            Ending::Aborted => Status::Aborted,
            Ending::Withdrawn => Status::Withdrawn,
            Ending::Revoked => Status::Revoked,
        };
        if status == Status::Released && self.at(seq).status == Status::Waiting {
            return Err(self.still_waiting(seq, 0));
        }
        if purge {
            self.at(seq).data = None;
        }
        self.end(seq, status, self.clock.now_us, reason);
        let answer = self.show("finished", seq);
        let resource = self.at(seq).resource.clone();
        self.promote(&resource);
        Ok(answer)
    }

    fn revoke_when_gone(&mut self, id: ClaimId, reason: Option<&Arc<str>>) -> Reply {
        let seq = self.target(&Target::Claim(id))?;
        self.guard(seq, &Guard::default())?;
        if self.at(seq).status == Status::Waiting {
            self.end(seq, Status::Revoked, self.clock.now_us, reason);
            let answer = self.show("finished", seq);
            let resource = self.at(seq).resource.clone();
            self.promote(&resource);
            return Ok(answer);
        }
        if self.at(seq).revoking.is_none() {
            let before = self.at(seq).clone();
            let after = Row { reason: reason.cloned(), ..before.clone() };
            let more = bytes(&after).saturating_sub(bytes(&before));
            // Without room the revocation goes on without its reason.
            let reason = reason.filter(|_| self.fits(more, &before.resource, &before.owner).is_ok());
            let version = self.next_version();
            let claim = self.at(seq);
            claim.revoking = Some(Revoking { reason: reason.cloned() });
            claim.reason = reason.cloned();
            claim.version = version;
            self.report(seq, EventKind::Revoking);
        }
        Ok(self.show("revoking", seq))
    }

    fn lock_all(
        &mut self,
        items: &[(ClaimId, Arc<str>)],
        owner: &Arc<str>,
        ttl_us: Option<u64>,
        data: Option<&Data>,
    ) -> Reply {
        let known: Vec<u64> = items.iter().filter_map(|(id, _)| self.by_id(*id)).collect();
        if !known.is_empty() {
            known.iter().for_each(|seq| self.settle_claim(*seq));
            return Ok(self.show_all("locked all", &known));
        }
        for (index, (_, resource)) in items.iter().enumerate() {
            self.settle(resource);
            if let Some(obstacle) = self.obstacle(resource, Mode::Exclusive) {
                return Err(self.show(format!("locked none {index} 1"), obstacle));
            }
            if items[..index].iter().any(|(_, earlier)| earlier == resource) {
                return Err(Answer::word(format!("locked none {index} 9 {resource}")));
            }
        }
        let resources: Vec<Arc<str>> = items.iter().map(|(_, resource)| resource.clone()).collect();
        self.room(&resources, owner)
            .and_then(|()| self.byte_room(&resources, owner, len(data)))
            .map_err(|(index, word)| Answer::word(format!("locked none {index} {word}")))?;
        let mut seqs = Vec::new();
        for (id, resource) in items {
            let seq = self.create(*id, resource, owner, ttl_us, data);
            self.grant(seq, false);
            seqs.push(seq);
        }
        Ok(self.show_all("locked all", &seqs))
    }

    fn revoke(&mut self, resource: Option<&Arc<str>>, before: u64, reason: Option<&Arc<str>>) -> Reply {
        let mut resources: Vec<Arc<str>> = match resource {
            Some(resource) => vec![resource.clone()],
            None => {
                let live = self.claims.iter().filter(|claim| !over(claim.row.status) && claim.seq < before);
                live.take(REVOCATIONS).map(|claim| claim.row.resource.clone()).collect()
            }
        };
        resources.sort();
        resources.dedup();
        if let Some(resource) = resource {
            let mut live = self.on(resource, Status::Active);
            live.extend(self.queue(resource));
            let shared = live.into_iter().find(|seq| *seq < before && !self.entry(*seq).is_alone());
            if let Some(seq) = shared {
                return Err(self.show("rejected 24", seq));
            }
        }
        let (mut count, mut left) = (0, REVOCATIONS);
        for resource in resources {
            if left == 0 {
                break;
            }
            // From the tail; the holders, who came before all of them, last.
            let mut old = self.on(&resource, Status::Active);
            old.extend(self.queue(&resource));
            old.retain(|seq| *seq < before);
            old.reverse();
            // As many items as the command may end, and all of the last claim.
            let items = |seq: &u64| self.entry(*seq).wants.len();
            old.retain(|seq| {
                let taken = left > 0;
                left = left.saturating_sub(if taken { items(seq) } else { 0 });
                taken
            });
            for seq in old {
                count += u64::from(self.revoke_one(seq, reason));
            }
            // A command that ends several wakes after the last of them.
            if self.table_version < 3 {
                self.promote(&resource);
                self.settle(&resource);
            }
        }
        self.wake();
        Ok(Answer::word(format!("revoked {count} {}", left == 0)))
    }

    fn revoke_one(&mut self, seq: u64, reason: Option<&Arc<str>>) -> bool {
        let claim = self.entry(seq);
        let due = self.due(&claim);
        match (due, claim.row.deadline_us, claim.row.status) {
            (true, Some(deadline_us), Status::Active) => {
                self.end(seq, when_due(&claim.row), deadline_us, None);
            }
            (true, Some(deadline_us), _) => self.end(seq, Status::Withdrawn, deadline_us, None),
            _ => self.end(seq, Status::Revoked, self.clock.now_us, reason),
        }
        !due
    }

    // ---- steps

    fn target(&mut self, target: &Target) -> Result<u64, Answer> {
        match target {
            Target::Claim(id) => {
                let seq = self.by_id(*id).ok_or_else(|| Answer::word(format!("rejected 3 {id}")))?;
                self.settle_claim(seq);
                Ok(seq)
            }
            Target::Holder(resource) => {
                self.settle(resource);
                if let Some(seq) = self.holder(resource) {
                    let alone = self.entry(seq).is_alone();
                    return if alone { Ok(seq) } else { Err(self.show("rejected 24", seq)) };
                }
                // Every end gets a larger version than all before, so the largest is the latest end.
                let held = |claim: &&Entry| claim.place(resource).is_some() && claim.row.activated.is_some();
                let last = self.claims.iter().filter(held).max_by_key(|claim| claim.row.version);
                let seqs: Vec<u64> = last.map(|claim| claim.seq).into_iter().collect();
                Err(self.show_all(format!("rejected 4 {resource}"), &seqs))
            }
        }
    }

    fn guard(&mut self, seq: u64, guard: &Guard) -> Result<(), Answer> {
        let Row { owner, status, version, .. } = self.at(seq).clone();
        match guard {
            Guard { owner: Some(wanted), .. } if *wanted != owner => Err(self.show("rejected 6", seq)),
            _ if over(status) => Err(self.show("rejected 5", seq)),
            Guard { version: Some(wanted), .. } if *wanted != version => Err(self.show("rejected 7", seq)),
            _ => Ok(()),
        }
    }

    /// Whether claims on all of these fit; else the place of the first that does not, and which limit said so.
    fn room(&self, resources: &[Arc<str>], owner: &str) -> Result<(), (usize, String)> {
        // Limits count items.
        let live = self.claims.iter().filter(|claim| !over(claim.row.status));
        let live: Vec<(&Arc<str>, &Arc<str>)> = live
            .flat_map(|claim| claim.wants.iter().map(|item| (&item.resource, &claim.row.owner)))
            .collect();
        let all = resources.len();
        let settings = &self.settings;
        let full = |used: usize, max: u64| all > 0 && used as u64 > max;
        if full(live.len() + all, settings.claims_max) {
            return Err((0, format!("13 {}", settings.claims_max)));
        }
        for (index, resource) in resources.iter().enumerate() {
            let wanted = self.namespace(resource);
            let more = resources[..=index].iter().filter(|other| self.namespace(other) == wanted).count();
            let used = live.iter().filter(|(resource, _)| self.namespace(resource) == wanted).count();
            if full(used + more, settings.claims_per_namespace_max) {
                return Err((index, format!("12 {}", settings.claims_per_namespace_max)));
            }
        }
        if full(
            live.iter().filter(|(_, other)| ***other == *owner).count() + all,
            settings.claims_per_owner_max,
        ) {
            return Err((0, format!("11 {}", settings.claims_per_owner_max)));
        }
        Ok(())
    }

    /// The same for bytes; each claim has `beyond_names` more than its names.
    fn byte_room(
        &self,
        resources: &[Arc<str>],
        owner: &str,
        beyond_names: usize,
    ) -> Result<(), (usize, String)> {
        let bytes = |resource: &Arc<str>| beyond_free(resource.len() + owner.len() + beyond_names);
        let all = resources.iter().map(bytes).sum();
        self.total_fits(all).map_err(|word| (0, word))?;
        for (index, resource) in resources.iter().enumerate() {
            let same = |other: &&Arc<str>| self.namespace(other) == self.namespace(resource);
            let more = resources[..=index].iter().filter(same).map(bytes).sum();
            self.namespace_fits(more, resource).map_err(|word| (index, word))?;
        }
        self.owner_fits(all, owner).map_err(|word| (0, word))
    }

    fn fits(&self, more: u64, resource: &str, owner: &str) -> Result<(), String> {
        self.total_fits(more)?;
        self.namespace_fits(more, resource)?;
        self.owner_fits(more, owner)
    }

    fn total_fits(&self, more: u64) -> Result<(), String> {
        self.within(16, more, |_| true, self.single(&Scope::Total).unwrap_or(self.budgets.total))
    }

    /// Up to the last slash; from version 2 on up to the first segment `leases` that stands between two others.
    fn namespace<'a>(&self, resource: &'a str) -> &'a str {
        let segments: Vec<&str> = resource.split('/').collect();
        let between = (1..segments.len() - 1).find(|at| segments[*at] == "leases");
        let count = match between {
            Some(at) if self.table_version >= 2 => at + 1,
            _ => segments.len() - 1,
        };
        let len = segments[..count].join("/").len();
        &resource[..len]
    }

    fn namespace_fits(&self, more: u64, resource: &str) -> Result<(), String> {
        let wanted = self.namespace(resource);
        let prefix = |scope: &Scope| match scope {
            Scope::Namespace(prefix) if wanted.starts_with(&**prefix) => Some(prefix.len()),
            _ => None,
        };
        let max = self.longest(prefix).unwrap_or(self.budgets.per_namespace);
        self.within(15, more, |row| self.namespace(&row.resource) == wanted, max)
    }

    fn owner_fits(&self, more: u64, owner: &str) -> Result<(), String> {
        let prefix = |scope: &Scope| match scope {
            Scope::Owner(prefix) if owner.starts_with(&**prefix) => Some(prefix.len()),
            _ => None,
        };
        let max = self.longest(prefix).unwrap_or(self.budgets.per_owner);
        self.within(14, more, |row| *row.owner == *owner, max)
    }

    fn within(&self, code: u32, more: u64, counts: impl Fn(&Row) -> bool, max: u64) -> Result<(), String> {
        let rows = self.claims.iter().map(|claim| &claim.row).filter(|row| !over(row.status));
        let used: u64 = rows.filter(|row| counts(row)).map(bytes).sum();
        let refused = self.table_version >= 2 && more > 0 && used + more > max;
        if refused { Err(format!("{code} {used} of {max}")) } else { Ok(()) }
    }

    fn single(&self, wanted: &Scope) -> Option<u64> {
        self.overrides.iter().find(|(scope, _)| scope == wanted).map(|(_, bytes)| *bytes)
    }

    fn longest(&self, prefix: impl Fn(&Scope) -> Option<usize>) -> Option<u64> {
        let matching = self.overrides.iter().filter_map(|(scope, bytes)| Some((prefix(scope)?, *bytes)));
        matching.max_by_key(|(len, _)| *len).map(|(_, bytes)| bytes)
    }

    fn create(
        &mut self,
        id: ClaimId,
        resource: &Arc<str>,
        owner: &Arc<str>,
        ttl_us: Option<u64>,
        data: Option<&Data>,
    ) -> u64 {
        let mut row = self.new_row(id, resource, owner, ttl_us, data);
        row.version = self.next_version();
        self.last_seq += 1;
        let wants = vec![Item { resource: resource.clone(), mode: Mode::Exclusive }];
        let (seq, admitted) = (self.last_seq, vec![false]);
        self.claims.push(Entry { seq, row, wants, admitted, lapses: false });
        seq
    }

    fn new_row(
        &self,
        id: ClaimId,
        resource: &Arc<str>,
        owner: &Arc<str>,
        ttl_us: Option<u64>,
        data: Option<&Data>,
    ) -> Row {
        Row {
            id,
            resource: resource.clone(),
            owner: owner.clone(),
            ttl_us,
            deadline_us: None,
            created: self.clock,
            activated: None,
            renewed_wall_us: 0,
            token: 0,
            version: 0,
            data: data.cloned(),
            idempotency: None,
            ended: None,
            reason: None,
            renewals: 0,
            status: Status::Waiting,
            unpicked: false,
            polls: None,
            left_us: None,
            revoking: None,
            waiters: 0,
            position: None,
            waited_us: 0,
            held_us: None,
            session: None,
            items: Vec::new(),
        }
    }

    fn grant(&mut self, seq: u64, queued: bool) {
        let token = self.grant_items(seq);
        let (clock, version, lapses) = (self.clock, self.next_version(), self.entry(seq).lapses);
        let (grace_us, table_version) = (self.settings.pickup_grace_us, self.table_version);
        let claim = self.at(seq);
        let has_rule = grace_us > 0 || table_version >= 2;
        let unseen = queued && (claim.deadline_us.is_none() || lapses);
        claim.unpicked = unseen && has_rule && claim.ttl_us.is_some();
        // Whoever asks with an open request is told at once; whoever comes by now and then gets twice the longest pause.
        let pickup_us = match claim.polls.take() {
            Some(polls) if polls.last_us <= clock.now_us => 2 * polls.longest_us,
            _ => 0,
        };
        let stays_us = |ttl_us: u64| match (claim.unpicked, grace_us) {
            (false, _) => ttl_us,
            (true, 0) => ttl_us.max(pickup_us),
            (true, grace_us) => ttl_us + grace_us,
        };
        claim.deadline_us = claim.ttl_us.map(|ttl_us| clock.now_us + stays_us(ttl_us).max(1));
        claim.status = Status::Active;
        claim.activated = Some(clock);
        claim.renewed_wall_us = clock.wall_us;
        claim.token = token;
        claim.version = version;
        let waited_us = clock.now_us - claim.created.now_us;
        self.report(seq, EventKind::Activated { waited_us });
    }

    /// Tokens and slots of a grant. Gives back the largest token.
    fn grant_items(&mut self, seq: u64) -> u64 {
        let mut entry = self.entry(seq);
        entry.admitted.fill(true);
        let joined: Vec<Option<u64>> = entry.wants.iter().map(|item| self.phase(item)).collect();
        // All items that begin something have one new token.
        if joined.iter().any(Option::is_none) {
            self.token += 1;
        }
        let tokens: Vec<u64> = joined.into_iter().map(|token| token.unwrap_or(self.token)).collect();
        for (item, token) in entry.row.items.iter_mut().zip(&tokens) {
            item.token = *token;
            if let Mode::Slots { take, of } = item.mode {
                let used = self.used_slots(&item.resource);
                item.slots = (1..=of).filter(|slot| !used.contains(slot)).take(take.into()).collect();
            }
        }
        let known = self.claims.iter_mut().find(|claim| claim.seq == seq).expect("the claim exists");
        *known = entry;
        tokens.into_iter().max().expect("a claim has an item")
    }

    /// The token of those who share a resource at the moment.
    fn phase(&self, wanted: &Item) -> Option<u64> {
        let active = self.claims.iter().filter(|claim| claim.row.status == Status::Active);
        let mut items = active.flat_map(|claim| &claim.row.items);
        let shares = |item: &&ItemView| item.resource == wanted.resource && item.mode == Mode::Shared;
        items.find(shares).filter(|_| wanted.mode == Mode::Shared).map(|item| item.token)
    }

    fn used_slots(&self, resource: &str) -> Vec<u16> {
        let active = self.claims.iter().filter(|claim| claim.row.status == Status::Active);
        let items = active.flat_map(|claim| &claim.row.items).filter(|item| *item.resource == *resource);
        items.flat_map(|item| item.slots.clone()).collect()
    }

    fn end(&mut self, seq: u64, status: Status, ended_us: u64, reason: Option<&Arc<str>>) {
        let (clock, version) = (self.clock, self.next_version());
        let entry = self.entry(seq);
        for item in &entry.wants {
            // In a queue of nothing but plain claims only the end of the holder lets anybody through.
            let line = self.claims.iter().filter(|claim| !over(claim.row.status));
            let mut line = line.filter(|claim| claim.place(&item.resource).is_some());
            if entry.row.status == Status::Active || line.any(|claim| !claim.row.items.is_empty()) {
                self.woken.push(item.resource.clone());
            }
        }
        self.admissible.retain(|(other, _)| *other != seq);
        let claim = self.at(seq);
        let late_us = clock.now_us - ended_us;
        claim.status = status;
        claim.deadline_us = None;
        claim.unpicked = false;
        claim.polls = None;
        claim.ended = Some(Stamp { now_us: ended_us, wall_us: clock.wall_us.saturating_sub(late_us) });
        claim.reason = reason.cloned().or(claim.reason.take());
        claim.revoking = None;
        claim.version = version;
        let held_us = claim.activated.map_or(0, |activated| ended_us - activated.now_us);
        self.report(seq, EventKind::Ended { status, held_us });
    }

    fn end_due(&mut self, seq: u64) {
        self.end_quietly(seq);
        self.wake();
    }

    fn end_quietly(&mut self, seq: u64) {
        let due = self.at(seq).clone();
        let deadline_us = due.deadline_us.expect("what is due has a deadline");
        let status = if due.status == Status::Waiting { Status::Withdrawn } else { when_due(&due) };
        self.end(seq, status, deadline_us, None);
    }

    fn promote(&mut self, resource: &Arc<str>) {
        self.woken.push(resource.clone());
        self.wake();
    }

    /// Whoever fits since the last ends is admitted, in log order, and granted with the last of its items.
    fn wake(&mut self) {
        loop {
            while let Some(resource) = self.woken.pop() {
                self.find_admissible(&resource);
            }
            let Some((seq, place)) = self.admissible.pop_first() else { break };
            let entry = self.entry(seq);
            if !self.due(&entry) {
                let claim = self.claims.iter_mut().find(|claim| claim.seq == seq).expect("the claim exists");
                claim.admitted[place] = true;
                if claim.admitted.iter().all(|admitted| *admitted) {
                    self.grant(seq, true);
                }
            }
            self.woken.push(entry.wants[place].resource.clone());
        }
    }

    /// Notes the first that stands in line, if it fits. Not one whose wait is over: those end first, but not too many of them.
    fn find_admissible(&mut self, resource: &Arc<str>) {
        loop {
            let admitted = self.modes(resource, true);
            let blocked = self.blocked(resource);
            let Some(head) = blocked.first().filter(|_| !admitted.contains(&Mode::Exclusive)) else { return };
            if self.due(&self.entry(*head)) && self.overdue_left > 0 {
                self.overdue_left = self.overdue_left.saturating_sub(self.entry(*head).wants.len());
                self.end_quietly(*head);
                continue;
            }
            let Some(seq) = blocked.into_iter().find(|seq| !self.due(&self.entry(*seq))) else { return };
            let entry = self.entry(seq);
            let place = entry.place(resource).expect("it stands in line here");
            if fit_together(admitted.into_iter().chain([entry.wants[place].mode])) {
                self.admissible.insert((seq, place));
            }
            return;
        }
    }

    fn settle(&mut self, resource: &str) {
        if let Some(holder) = self.holder(resource)
            && self.due(&self.entry(holder))
        {
            self.end_due(holder);
        }
    }

    fn settle_queue(&mut self, resource: &str) {
        self.settle(resource);
        let mut due = self.queue(resource);
        due.retain(|seq| self.due(&self.entry(*seq)));
        due.truncate(self.overdue_left.max(1));
        self.overdue_left = self.overdue_left.saturating_sub(due.len());
        due.into_iter().for_each(|seq| self.end_due(seq));
    }

    fn settle_claim(&mut self, seq: u64) {
        // A claim that is over, or holds, is itself all there is to settle; one that waits may get its turn.
        if self.at(seq).status == Status::Waiting {
            for item in self.entry(seq).wants {
                self.settle(&item.resource);
            }
        }
        if self.due(&self.entry(seq)) {
            self.end_due(seq);
        }
    }

    fn forget_one(&mut self) {
        let over = self.claims.iter().filter(|claim| over(claim.row.status));
        if over.clone().count() as u64 > self.settings.finished_max
            && let Some(oldest) = over.map(|claim| claim.row.version).min()
        {
            self.claims.retain(|claim| claim.row.version != oldest);
        }
    }

    /// Beyond their budget the oldest finished claims lose their data; when none has any, they are forgotten.
    fn trim_one(&mut self) {
        let max = self.single(&Scope::Finished).unwrap_or(self.budgets.finished);
        let mut finished: Vec<&mut Row> =
            self.claims.iter_mut().map(|claim| &mut claim.row).filter(|row| over(row.status)).collect();
        let used: u64 = finished.iter().map(|row| bytes(row)).sum();
        if self.table_version < 2 || used <= max {
            return;
        }
        finished.sort_by_key(|row| row.version);
        let oldest = finished.first().map(|row| row.version);
        match finished.into_iter().find(|row| len(row.data.as_ref()) > 0) {
            Some(row) => row.data = None,
            None => self.claims.retain(|claim| Some(claim.row.version) != oldest),
        }
    }

    // ---- looking

    fn due(&self, claim: &Entry) -> bool {
        claim.row.deadline_us.is_some_and(|deadline_us| deadline_us <= self.clock.now_us)
    }

    fn by_id(&self, id: ClaimId) -> Option<u64> {
        self.claims.iter().find(|claim| claim.row.id == id).map(|claim| claim.seq)
    }

    fn holder(&self, resource: &str) -> Option<u64> {
        self.on(resource, Status::Active).first().copied()
    }

    fn queue(&self, resource: &str) -> Vec<u64> {
        self.on(resource, Status::Waiting)
    }

    fn on(&self, resource: &str, status: Status) -> Vec<u64> {
        let wanted = |claim: &&Entry| claim.place(resource).is_some() && claim.row.status == status;
        self.claims.iter().filter(wanted).map(|claim| claim.seq).collect()
    }

    /// The live claims on a resource that fit there with all before them, or that don't.
    fn line(&self, resource: &str, admitted: bool) -> Vec<u64> {
        let live = self.claims.iter().filter(|claim| !over(claim.row.status));
        live.filter(|claim| claim.place(resource).is_some_and(|place| claim.admitted[place] == admitted))
            .map(|claim| claim.seq)
            .collect()
    }

    fn blocked(&self, resource: &str) -> Vec<u64> {
        self.line(resource, false)
    }

    fn modes(&self, resource: &str, admitted: bool) -> Vec<Mode> {
        let entries = self.line(resource, admitted).into_iter().map(|seq| self.entry(seq));
        entries.filter_map(|claim| Some(claim.wants[claim.place(resource)?].mode)).collect()
    }

    /// Whoever is in the way of one more claim: it has to fit with all live claims, holding or waiting.
    fn obstacle(&self, resource: &str, mode: Mode) -> Option<u64> {
        let in_time = |seq: &u64| !self.due(&self.entry(*seq));
        if fit_together(self.modes(resource, true).into_iter().chain([mode])) {
            return self.blocked(resource).into_iter().find(in_time);
        }
        let reserved = || self.queue(resource).into_iter().next();
        self.holder(resource).or_else(reserved)
    }

    /// How many slots a resource has, as long as somebody holds or wants some.
    fn capacity(&self, resource: &str) -> Option<u16> {
        let live = self.claims.iter().filter(|claim| !over(claim.row.status));
        let modes = live.filter_map(|claim| Some(claim.wants[claim.place(resource)?].mode));
        modes.into_iter().find_map(|mode| if let Mode::Slots { of, .. } = mode { Some(of) } else { None })
    }

    fn entry(&self, seq: u64) -> Entry {
        self.claims.iter().find(|claim| claim.seq == seq).expect("the claim exists").clone()
    }

    fn at(&mut self, seq: u64) -> &mut Row {
        &mut self.claims.iter_mut().find(|claim| claim.seq == seq).expect("the claim exists").row
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// The claim as a caller sees it now.
    pub(crate) fn view(&self, seq: u64) -> Row {
        let mut row = self.entry(seq).row;
        let now_us = self.clock.now_us;
        let entry = self.entry(seq);
        if row.status == Status::Waiting {
            let place = |resource: &str| {
                let ahead = self.queue(resource).into_iter().filter(|other| *other < seq).count();
                ahead as u64 + 1
            };
            row.items.iter_mut().for_each(|item| item.position = Some(place(&item.resource)));
            row.position = entry.wants.iter().map(|item| place(&item.resource)).max();
        }
        let until_us = row.ended.map_or(now_us, |ended| ended.now_us);
        row.waited_us = row.activated.map_or(until_us, |activated| activated.now_us) - row.created.now_us;
        row.held_us = row.activated.map(|activated| until_us - activated.now_us);
        let active_until_us = row.deadline_us.filter(|_| row.status == Status::Active);
        let first_us = u64::from(row.ttl_us == Some(0));
        if row.status == Status::Active {
            row.waiters = entry.wants.iter().map(|item| self.queue(&item.resource).len() as u64).sum();
        }
        row.left_us =
            active_until_us.map(|until_us| until_us.saturating_sub(now_us).saturating_sub(first_us));
        row
    }

    fn show(&self, word: impl Into<String>, seq: u64) -> Answer {
        self.show_all(word, &[seq])
    }

    fn show_all(&self, word: impl Into<String>, seqs: &[u64]) -> Answer {
        Answer { word: word.into(), rows: seqs.iter().map(|seq| self.view(*seq)).collect() }
    }

    /// One event for each item.
    fn report(&mut self, seq: u64, kind: EventKind) {
        let Entry { row, wants, .. } = self.entry(seq);
        for (place, item) in wants.into_iter().enumerate() {
            self.events.push(Event {
                stamp: self.clock,
                kind,
                claim: row.id,
                resource: item.resource,
                owner: row.owner.clone(),
                token: row.items.get(place).map_or(row.token, |item| item.token),
                mode: item.mode,
                item: place as u16,
                reason: row.reason.clone(),
            });
        }
    }
}

/// Whether claims in these modes fit together on one resource.
fn fit_together(modes: impl Iterator<Item = Mode>) -> bool {
    let modes: Vec<Mode> = modes.collect();
    let slots: Option<Vec<(u16, u16)>> = modes
        .iter()
        .map(|mode| if let Mode::Slots { take, of } = mode { Some((*take, *of)) } else { None })
        .collect();
    match slots {
        _ if modes.len() < 2 => true,
        Some(slots) => {
            let taken: u16 = slots.iter().map(|(take, _)| take).sum();
            slots.iter().all(|(_, of)| taken <= *of)
        }
        None => modes.iter().all(|mode| *mode == Mode::Shared),
    }
}

/// Whether a session is another one or one of its descendants.
fn is_below(session: &str, other: &str) -> bool {
    session == other || session.starts_with(&format!("{other}/"))
}

/// An item as it looks before its grant.
fn not_granted(item: &Item) -> ItemView {
    ItemView { resource: item.resource.clone(), mode: item.mode, slots: Vec::new(), token: 0, position: None }
}

fn rejected(word: &str) -> Answer {
    Answer::word(format!("rejected {word}"))
}

/// What a claim counts for in its budgets.
fn bytes(row: &Row) -> u64 {
    let key = if row.idempotency.is_some() { KEY_BYTES } else { 0 };
    let reason = row.reason.as_ref().map_or(0, |reason| reason.len());
    let others: usize = row.items.iter().skip(1).map(|item| item.resource.len()).sum();
    let slots =
        |item: &ItemView| if let Mode::Slots { take, .. } = item.mode { 4 * usize::from(take) } else { 0 };
    let slots: usize = row.items.iter().map(slots).sum();
    let set = others + slots + row.session.as_ref().map_or(0, |session| session.len());
    beyond_free(row.resource.len() + row.owner.len() + len(row.data.as_ref()) + reason + key + set)
}

fn beyond_free(bytes: usize) -> u64 {
    (bytes as u64).saturating_sub(BYTES_FREE)
}

fn len(data: Option<&Data>) -> usize {
    data.map_or(0, |data| data.bytes.len())
}

/// How a holder ends that nobody ends.
fn when_due(row: &Row) -> Status {
    if row.revoking.is_some() { Status::Revoked } else { Status::Expired }
}

fn over(status: Status) -> bool {
    status != Status::Waiting && status != Status::Active
}
