//! The table as bytes and back.
//!
//! In:    a table. Out: [`Frozen`], a copy that shares pages with it, as a row of chunks; from such chunks, the table.
//! Never: does I/O: chunks are handed out and taken in one by one, whoever stores them frames and checks them.
//!
//! The first chunk is the [`Header`], then one chunk a page. Format 1.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Table;
use super::claim::{Claim, Status};
use super::claims::{Claims, PAGE_LEN, Page};
use super::names::Names;
use super::packed::PACKED_END;
use super::record::Record;
use super::resource::Slot;
use crate::command::Settings;
use crate::name::Stamp;

/// The format that this version writes. It reads this one and every older one.
pub const SNAPSHOT_FORMAT: u32 = 1;

/// No clock of a sound table comes near: sums with a ttl stay below 2^63.
const CLOCK_END: u64 = 1 << 62;

/// A header that is wrong must not make the node reserve all memory there is.
const RESERVE_MAX: u64 = 16 << 20;

/// Everything in a table but its claims.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Header {
    format: u32,
    clock: Stamp,
    last_token: u64,
    last_version: u64,
    next_seq: u64,
    claim_count: u64,
    settings: Settings,
}

/// A table at one instant, which goes on living beside it for the price of the pages that change.
#[derive(Debug, Clone)]
pub struct Frozen {
    header: Header,
    claims: Claims,
    /// Of the resources that the claims name.
    names: Names,
}

impl Table {
    /// Whether a claim from a snapshot fits those before it, so that no index can contradict another.
    fn check_restored(&self, seq: u64, claim: &Claim, slot: Slot) -> Result<(), &'static str> {
        let live = !claim.status.is_final();
        let granted = claim.token > 0;
        let held = self.resources.at(slot).active().is_some();
        let reused = |key| self.find_key(key).is_some();
        match claim.status {
            _ if seq == 0 || seq >= self.claims.next_seq() => Err("has an impossible number"),
            _ if claim.version > self.last_version => Err("has a version from the future"),
            _ if claim.token > self.last_token => Err("has a token from the future"),
            _ if live != claim.end.is_none() => Err("is over without an end, or the reverse"),
            _ if !live && claim.deadline_us().is_some() => Err("is over and has a deadline"),
            Status::Active if held || !granted => Err("holds what is held, or was not granted"),
            Status::Waiting if granted => Err("waits and was granted"),
            // One whose wait is over may have been passed over by a newer holder, until its turn to end comes.
            Status::Waiting if !held && !claim.is_due(self.clock.now_us) => Err("waits for nobody"),
            _ if self.find(claim.id).is_some() => Err("has another claim's id"),
            _ if claim.idempotency.as_ref().is_some_and(|known| reused(known.key)) => {
                Err("has another claim's idempotency key")
            }
            _ => Ok(()),
        }
    }

    /// A copy of the table as it is now: one pointer a page.
    pub fn freeze(&self) -> Frozen {
        let header = Header {
            format: SNAPSHOT_FORMAT,
            clock: self.clock,
            last_token: self.last_token,
            last_version: self.last_version,
            next_seq: self.claims.next_seq(),
            claim_count: self.claims.len() as u64,
            settings: self.settings.clone(),
        };
        Frozen { header, claims: self.claims.clone(), names: self.resources.names().clone() }
    }
}

impl Frozen {
    /// The table clock at the instant of freezing.
    pub fn clock(&self) -> Stamp {
        self.header.clock
    }

    /// The whole table, chunk by chunk.
    pub fn chunks(&self) -> impl Iterator<Item = Vec<u8>> {
        let header = std::iter::once(encode(&self.header));
        header.chain(self.claims.pages_from(0).map(|(number, page)| encode(&(number, self.unpack(page)))))
    }

    fn unpack(&self, page: &Page) -> Vec<Claim> {
        page.claims.iter().map(|claim| claim.unpack(self.names.get(claim.resource).into())).collect()
    }

    /// A fingerprint of the whole state: equal on two nodes exactly when their tables are.
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        for chunk in self.chunks() {
            hasher.update((chunk.len() as u64).to_le_bytes());
            hasher.update(&chunk);
        }
        hasher.finalize().into()
    }
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data in memory can be encoded")
}

/// Why bytes are no table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestoreError {
    /// A chunk can't be read.
    Malformed(String),
    /// Written by a newer version.
    UnknownFormat(u32),
    /// Chunks are missing.
    Incomplete {
        /// Claims that the header promised.
        expected: u64,
        /// Claims that came.
        found: u64,
    },
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => write!(f, "the snapshot can't be read: {why}"),
            Self::UnknownFormat(format) => write!(
                f,
                "the snapshot has format {format}, and this version reads formats up to {SNAPSHOT_FORMAT}: \
                 start the version that wrote it, or a newer one"
            ),
            Self::Incomplete { expected, found } => {
                write!(f, "the snapshot is incomplete: {found} of {expected} claims")
            }
        }
    }
}

impl std::error::Error for RestoreError {}

/// Builds a table from the chunks of a snapshot, in their order.
#[derive(Debug, Default)]
pub struct Restorer {
    header: Option<Header>,
    table: Table,
    last_page: Option<u64>,
    /// (version of its end, sequence number) of every finished claim.
    finished: Vec<(u64, u64)>,
    /// (deadline, sequence number) of every claim that has one.
    deadlines: Vec<(u64, u64)>,
    /// Every token.
    tokens: Vec<u64>,
    /// How many claims came so far.
    found: u64,
}

impl Restorer {
    /// Takes the next chunk.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        if self.header.is_none() {
            return self.push_header(chunk);
        }
        let (number, claims): (u64, Vec<Claim>) = decode(chunk)?;
        let sorted = claims.is_sorted_by(|one, next| one.slot < next.slot);
        let fits = claims.last().is_some_and(|last| usize::from(last.slot) < PAGE_LEN);
        if !sorted || !fits || self.last_page.is_some_and(|last| last >= number) {
            return Err(RestoreError::Malformed(format!("page {number} is out of order")));
        }
        self.last_page = Some(number);
        let len = claims.len();
        claims.into_iter().try_for_each(|claim| self.push_claim(number, claim, len))
    }

    fn push_header(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        // The format comes first, so that a newer header is named as such whatever follows.
        let (format, _) = postcard::take_from_bytes::<u32>(chunk).map_err(malformed)?;
        if !(1..=SNAPSHOT_FORMAT).contains(&format) {
            return Err(RestoreError::UnknownFormat(format));
        }
        let header: Header = decode(chunk)?;
        let counters = [header.last_token, header.last_version, header.next_seq];
        if header.clock.now_us >= CLOCK_END || counters.iter().any(|counter| *counter >= PACKED_END) {
            return Err(RestoreError::Malformed("a counter is out of range".into()));
        }
        self.table.clock = header.clock;
        self.table.last_token = header.last_token;
        self.table.last_version = header.last_version;
        self.table.settings = header.settings.clone();
        self.table.claims.set_next_seq(header.next_seq);
        self.table.by_id.reserve(header.claim_count.min(RESERVE_MAX) as usize);
        self.header = Some(header);
        Ok(())
    }

    fn push_claim(&mut self, page_number: u64, claim: Claim, page_len: usize) -> Result<(), RestoreError> {
        let table = &mut self.table;
        let slot = table.resources.obtain(&claim.resource);
        let seq = page_number.saturating_mul(PAGE_LEN as u64) | u64::from(claim.slot);
        if let Err(why) = table.check_restored(seq, &claim, slot) {
            return Err(RestoreError::Malformed(format!("claim {seq} {why}")));
        }
        self.found += 1;
        if claim.token > 0 {
            self.tokens.push(claim.token);
        }
        let live_owner = (!claim.status.is_final()).then(|| table.count_live(&claim.resource, &claim.owner));
        let entry = table.resources.at_mut(slot);
        match claim.status {
            Status::Active => entry.set_active(Some(seq)),
            Status::Waiting => entry.push_waiting(seq),
            _ => self.finished.push((claim.version, seq)),
        }
        self.deadlines.extend(claim.deadline_us().map(|deadline_us| (deadline_us, seq)));
        let (id, key) = (claim.id, claim.idempotency.as_ref().map(|known| known.key));
        let mut record = Record::pack(claim, slot);
        if let Some(owner) = live_owner {
            record.owner = owner;
        }
        table.claims.put(page_number, record, page_len);
        if let Some(key) = key {
            table.index_key(key, seq);
        }
        let claims = &table.claims;
        table.by_id.insert(id, seq, |seq| claims.at(seq).id);
        Ok(())
    }

    /// The table, once every chunk is in.
    pub fn finish(mut self) -> Result<Table, RestoreError> {
        let Some(header) = self.header else {
            return Err(RestoreError::Malformed("it is empty".into()));
        };
        if header.claim_count != self.found {
            return Err(RestoreError::Incomplete { expected: header.claim_count, found: self.found });
        }
        self.tokens.sort_unstable();
        if !self.tokens.is_sorted_by(|one, next| one < next) {
            return Err(RestoreError::Malformed("a token was granted twice".into()));
        }
        self.finished.sort_unstable();
        for (_, seq) in self.finished {
            let claim = self.table.claims.at(seq);
            let (slot, held) = (claim.resource, claim.was_granted());
            self.table.resources.at_mut(slot).push_finished(seq, held);
            self.table.finished.push_back(seq);
        }
        // Sorted and in one go: one by one they would take as long as all the rest.
        self.table.deadlines = self.deadlines.into_iter().collect();
        Ok(self.table)
    }
}

fn decode<'a, T: Deserialize<'a>>(chunk: &'a [u8]) -> Result<T, RestoreError> {
    match postcard::take_from_bytes(chunk).map_err(malformed)? {
        (value, []) => Ok(value),
        (_, rest) => Err(RestoreError::Malformed(format!("{} bytes are left over", rest.len()))),
    }
}

#[allow(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
fn malformed(error: postcard::Error) -> RestoreError {
    RestoreError::Malformed(error.to_string())
}
