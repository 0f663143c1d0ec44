//! A claim as the table keeps it: in as few bytes as it can be.
//!
//! In:    made and changed by `apply.rs` and `steps.rs` alone. Out: unpacked into a [`Claim`] when somebody looks.
//! Never: larger than it must be: a million of them are held at a time. What most held claims lack (data, a key,
//!        an end, and instants that don't fit) stands behind one pointer, which a copy of the page shares.

use std::sync::Arc;

use super::claim::{Claim, End, Live, NEVER, Polls, Revoking, Status, left_us};
use super::packed::Packed;
use super::resource::Slot;
use super::restore::Row;
use super::set::Set;
use crate::budget::counted_bytes;
use crate::command::{Data, Idempotency};
use crate::limits;
use crate::name::{ClaimId, Stamp};

/// One request to hold a resource.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) id: ClaimId,
    /// Who made it.
    pub(super) owner: Arc<str>,
    /// What most held claims lack.
    rare: Option<Arc<Rare>>,
    /// [`NEVER`] if it is held until it is ended.
    ttl_us: u64,
    /// [`NEVER`] if it has none.
    deadline_us: u64,
    created: Stamp,
    /// When it last was renewed (or became active), on the wall clock.
    pub(super) renewed_wall_us: u64,
    /// From its creation to its grant, on the table clock.
    granted_after_us: u32,
    /// How much further the wall clock moved in that time.
    granted_drift_us: i32,
    /// How often it was renewed.
    pub(super) renewals: u32,
    /// Where its resource stands.
    pub(super) resource: Slot,
    /// The fencing token of its grant; 0 before.
    pub(super) token: Packed,
    /// The table's version of its last change.
    pub(super) version: Packed,
    pub(super) status: Status,
    /// Promoted out of the queue, and its client has not asked for it since.
    pub(super) unpicked: bool,
    /// Its place in its page; page and slot make the sequence number.
    pub(super) slot: u8,
}

#[derive(Debug, Clone, Default)]
struct Rare {
    data: Option<Arc<Data>>,
    idempotency: Option<Arc<Idempotency>>,
    end: Option<End>,
    /// The instant of the grant, where it is too far from the creation for a record.
    granted: Option<Box<Stamp>>,
    /// What few live claims have.
    live: Option<Arc<Live>>,
    /// What few claims have: items, a mode, a session.
    set: Option<Box<Set>>,
}

/// The bytes that a claim has beyond its names.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RareBytes {
    pub(super) data: usize,
    pub(super) reason: usize,
    pub(super) set: usize,
    pub(super) has_key: bool,
}

impl RareBytes {
    /// What the claim counts for in its budgets; `names` is the length of its resource's and its owner's name.
    pub(super) fn counted(self, names: usize) -> u64 {
        counted_bytes(names + self.set, self.data, self.reason, self.has_key)
    }
}

impl Record {
    /// A claim that waits.
    pub(super) fn new(
        id: ClaimId,
        resource: Slot,
        owner: Arc<str>,
        ttl_us: Option<u64>,
        created: Stamp,
    ) -> Self {
        Self {
            id,
            owner,
            rare: None,
            ttl_us: ttl_us.unwrap_or(NEVER),
            deadline_us: NEVER,
            created,
            renewed_wall_us: 0,
            granted_after_us: 0,
            granted_drift_us: 0,
            renewals: 0,
            resource,
            token: Packed::default(),
            version: Packed::default(),
            status: Status::Waiting,
            unpicked: false,
            slot: 0,
        }
    }

    /// A claim from a snapshot, whose resource is yet to be found.
    pub(super) fn pack(row: Row<'_>, owner: Arc<str>) -> Self {
        let created = Stamp { now_us: row.created_us, wall_us: row.created_wall_us };
        let mut record = Self::new(row.id, Slot::default(), owner, None, created);
        record.ttl_us = row.ttl_us;
        record.deadline_us = row.deadline_us;
        record.renewed_wall_us = row.renewed_wall_us;
        record.renewals = row.renewals;
        record.token = Packed::new(row.token);
        record.version = Packed::new(row.version);
        record.status = row.status;
        record.unpicked = row.unpicked;
        record.slot = row.slot;
        record.set_granted(Stamp { now_us: row.activated_us, wall_us: row.activated_wall_us });
        record.set_data(row.data);
        record.set_idempotency(row.idempotency);
        if let Some(end) = row.end {
            record.rare().end = Some(end);
        }
        record
    }

    /// The claim as a caller sees it, on the resource with this name.
    pub(super) fn unpack(&self, resource: Arc<str>) -> Claim {
        let granted = self.granted();
        let rare = self.rare.as_deref();
        Claim {
            id: self.id,
            resource,
            owner: self.owner.clone(),
            ttl_us: self.ttl_us,
            deadline_us: self.deadline_us,
            created_us: self.created.now_us,
            created_wall_us: self.created.wall_us,
            activated_us: granted.now_us,
            activated_wall_us: granted.wall_us,
            renewed_wall_us: self.renewed_wall_us,
            token: self.token.get(),
            version: self.version.get(),
            data: rare.and_then(|rare| rare.data.clone()),
            idempotency: rare.and_then(|rare| rare.idempotency.clone()),
            end: rare.and_then(|rare| rare.end.clone()),
            renewals: self.renewals,
            status: self.status,
            unpicked: self.unpicked,
            slot: self.slot,
            live: self.live_part().cloned(),
        }
    }

    // ---- its times

    pub(super) fn ttl_us(&self) -> Option<u64> {
        (self.ttl_us != NEVER).then_some(self.ttl_us)
    }

    pub(super) fn deadline_us(&self) -> Option<u64> {
        (self.deadline_us != NEVER).then_some(self.deadline_us)
    }

    /// Whether its deadline has come.
    pub(super) fn is_due(&self, now_us: u64) -> bool {
        !self.status.is_final() && self.deadline_us <= now_us
    }

    /// How it ends if nobody ends it.
    pub(super) fn status_when_due(&self) -> Status {
        match self.status {
            Status::Active if self.revoking().is_some() => Status::Revoked,
            Status::Active => Status::Expired,
            _ => Status::Withdrawn,
        }
    }

    pub(super) fn created_wall_us(&self) -> u64 {
        self.created.wall_us
    }

    /// What is left of the time for which it stays active; `None` unless it is active and has a ttl.
    pub(super) fn left_us(&self, now_us: u64) -> Option<u64> {
        left_us(self.status, self.ttl_us, self.deadline_us, now_us)
    }

    /// How long it was in the queue, or is, as of `now_us`.
    pub(super) fn waited_us(&self, now_us: u64) -> u64 {
        let until_us = match self.end() {
            _ if self.was_granted() => self.granted().now_us,
            Some(end) => end.ended_us,
            None => now_us,
        };
        until_us.saturating_sub(self.created.now_us)
    }

    /// How long it was active, or is, as of `now_us`; `None` if it never was.
    pub(super) fn held_us(&self, now_us: u64) -> Option<u64> {
        let until_us = self.end().map_or(now_us, |end| end.ended_us);
        self.was_granted().then(|| until_us.saturating_sub(self.granted().now_us))
    }

    /// Whether it holds its resource or ever did.
    pub(super) fn was_granted(&self) -> bool {
        self.token > Packed::default()
    }

    /// When it became active; zero before.
    fn granted(&self) -> Stamp {
        match self.rare.as_ref().and_then(|rare| rare.granted.as_deref()) {
            Some(stamp) => *stamp,
            None if !self.was_granted() => Stamp::default(),
            None => self.granted_nearby(),
        }
    }

    fn granted_nearby(&self) -> Stamp {
        let after_us = u64::from(self.granted_after_us);
        let wall_us = self.created.wall_us.wrapping_add(after_us);
        Stamp {
            now_us: self.created.now_us.wrapping_add(after_us),
            wall_us: wall_us.wrapping_add_signed(self.granted_drift_us.into()),
        }
    }

    /// Keeps the instant of the grant, once it has a token: as a distance from the creation if it is near enough.
    pub(super) fn set_granted(&mut self, stamp: Stamp) {
        let after_us = stamp.now_us.wrapping_sub(self.created.now_us);
        let drift_us = stamp.wall_us.wrapping_sub(self.created.wall_us).wrapping_sub(after_us);
        self.granted_after_us = after_us as u32;
        self.granted_drift_us = drift_us as i32;
        if self.granted() != stamp {
            self.rare().granted = Some(Box::new(stamp));
        }
    }

    pub(super) fn set_ttl(&mut self, ttl_us: Option<u64>) {
        self.ttl_us = ttl_us.unwrap_or(NEVER);
    }

    /// The instant that lies `after_us` behind `now_us`. At least a microsecond: a claim with a ttl of zero
    /// is active at the instant of its grant and over at the next.
    pub(super) fn set_deadline(&mut self, now_us: u64, after_us: Option<u64>) {
        self.deadline_us = after_us.map_or(NEVER, |after| now_us.saturating_add(after.max(1)));
    }

    /// The same, but not later than it is now: the pick-up of table version 1.
    pub(super) fn advance_deadline(&mut self, now_us: u64, after_us: Option<u64>) {
        let latest_us = self.deadline_us;
        self.set_deadline(now_us, after_us);
        self.deadline_us = self.deadline_us.min(latest_us);
    }

    // ---- what few live claims have

    pub(super) fn live_part(&self) -> Option<&Arc<Live>> {
        self.rare.as_ref()?.live.as_ref()
    }

    /// Takes over what stood in a snapshot.
    pub(super) fn set_live_part(&mut self, live: Live) {
        self.rare().live = Some(Arc::new(live));
    }

    /// Whether a snapshot gave it nothing that the table itself would not have.
    pub(super) fn has_sound_live_part(&self) -> bool {
        let sound = |polls: &Polls| {
            polls.last_us >= self.created.now_us && polls.longest_us <= limits::PICKUP_US_MAX / 2
        };
        match (self.live_part().map(|live| &**live), self.status) {
            (None, _) => true,
            (Some(Live { polls: Some(polls), revoking: None }), Status::Waiting) => sound(polls),
            (Some(Live { polls: None, revoking: Some(_) }), Status::Active) => true,
            _ => false,
        }
    }

    /// A revocation that waits for the holder to let go.
    pub(super) fn revoking(&self) -> Option<&Revoking> {
        self.live_part()?.revoking.as_ref()
    }

    pub(super) fn set_revoking(&mut self, revoking: Revoking) {
        Arc::make_mut(self.rare().live.get_or_insert_default()).revoking = Some(revoking);
    }

    /// Why it ended, or is to end.
    pub(super) fn reason(&self) -> Option<&Arc<str>> {
        match self.end() {
            Some(end) => end.reason.as_ref(),
            None => self.revoking()?.reason.as_ref(),
        }
    }

    /// Its client asked for it while it waits, with a request that stands open for `open_us`.
    pub(super) fn note_asked(&mut self, now_us: u64, open_us: u64) {
        let created_us = self.created.now_us;
        let live = Arc::make_mut(self.rare().live.get_or_insert_default());
        let polls = Polls::again(live.polls, created_us, now_us, open_us);
        live.polls = Some(polls);
        if self.lapses() {
            // Not earlier than it is: another request for it may stand open for longer than this one.
            let latest_us = self.deadline_us;
            self.set_deadline(polls.last_us, self.ttl_us());
            self.deadline_us = self.deadline_us.max(latest_us);
        }
    }

    /// How long a promoted claim stays active for its client to come by, at least. Asked once, at the grant.
    pub(super) fn take_pickup_us(&mut self, now_us: u64) -> u64 {
        if self.live_part().is_none() {
            return 0;
        }
        let live = self.rare().live.take();
        live.and_then(|live| live.polls).map_or(0, |polls| polls.pickup_us(now_us))
    }

    // ---- items

    pub(super) fn set(&self) -> Option<&Set> {
        self.rare.as_ref()?.set.as_deref()
    }

    /// Its set, to be changed; a claim without one has none to change.
    pub(super) fn set_mut(&mut self) -> Option<&mut Set> {
        self.set()?;
        self.rare().set.as_deref_mut()
    }

    pub(super) fn put_set(&mut self, set: Box<Set>) {
        self.rare().set = Some(set);
    }

    /// Takes its set out, to be changed together with other parts of the table and put back.
    pub(super) fn take_set(&mut self) -> Option<Box<Set>> {
        self.set()?;
        self.rare().set.take()
    }

    // ---- what is rare

    pub(super) fn idempotency(&self) -> Option<&Idempotency> {
        self.rare.as_ref()?.idempotency.as_deref()
    }

    pub(super) fn end(&self) -> Option<&End> {
        self.rare.as_ref()?.end.as_ref()
    }

    /// What it has beyond its names.
    pub(super) fn rare_bytes(&self) -> RareBytes {
        let Some(rare) = &self.rare else { return RareBytes::default() };
        RareBytes {
            data: rare.data.as_ref().map_or(0, |data| data.bytes.len()),
            reason: self.reason().map_or(0, |reason| reason.len()),
            set: rare.set.as_ref().map_or(0, |set| set.bytes as usize),
            has_key: rare.idempotency.is_some(),
        }
    }

    pub(super) fn set_data(&mut self, data: Option<Arc<Data>>) {
        if data.is_some() || self.rare.as_ref().is_some_and(|rare| rare.data.is_some()) {
            self.rare().data = data;
        }
    }

    pub(super) fn set_idempotency(&mut self, idempotency: Option<Arc<Idempotency>>) {
        if idempotency.is_some() {
            self.rare().idempotency = idempotency;
        }
    }

    /// Final: no deadline any more, and nobody to be seen.
    pub(super) fn set_end(&mut self, status: Status, end: End) {
        self.status = status;
        self.unpicked = false;
        self.deadline_us = NEVER;
        let rare = self.rare();
        rare.live = None;
        rare.end = Some(end);
    }

    fn rare(&mut self) -> &mut Rare {
        Arc::make_mut(self.rare.get_or_insert_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_stays_small() {
        assert!(size_of::<Record>() <= 112, "{} bytes", size_of::<Record>());
    }

    #[test]
    fn every_instant_of_a_grant_comes_back() {
        let far = u64::MAX - 5;
        for created in [0, 1, 1_000_000, far] {
            for granted in
                [0, 1, 999_999, 1_000_000 + u64::from(u32::MAX), 1_000_001 + u64::from(u32::MAX), far]
            {
                for token in [0, 7] {
                    let created = Stamp { now_us: created, wall_us: created / 2 };
                    let granted = Stamp { now_us: granted, wall_us: granted / 3 };
                    let mut record =
                        Record::new(ClaimId::from_u128(1), Slot::default(), "ann".into(), Some(5), created);
                    record.token = Packed::new(token);
                    record.set_granted(granted);
                    assert_eq!(record.granted(), granted);
                }
            }
        }
    }

    #[test]
    fn a_grant_soon_after_the_creation_needs_no_room_of_its_own() {
        let created = Stamp { now_us: 5, wall_us: 1_700_000_000_000_000 };
        let mut record = Record::new(ClaimId::from_u128(1), Slot::default(), "ann".into(), None, created);
        record.token = Packed::new(1);
        record.set_granted(Stamp { now_us: 5_000_005, wall_us: created.wall_us + 4_999_000 });
        assert!(record.rare.is_none());
        assert_eq!(record.waited_us(0), 5_000_000);
    }
}
