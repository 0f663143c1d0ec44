//! The table from the bytes that `snapshot.rs` made of it.
//!
//! In:    the chunks of a snapshot, in their order. Out: the table, or what is wrong with them.
//! Never: does I/O, and never trusts a chunk: the code that stores chunks checks their sums, but a table whose indexes
//!        contradict each other would be worse than none.
//!
//! Two steps, so that two threads can share the work: a [`Decoder`] makes rows of bytes and knows no table; a
//! [`Restorer`] takes them in. What is best made in one go, sorted and at its full size, waits for the last chunk.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;

use super::Table;
use super::budgets::Allowed;
use super::claim::{End, Live, Status};
use super::claims::PAGE_LEN;
use super::id_index::{IdIndex, Seed};
use super::packed::PACKED_END;
use super::record::Record;
use super::set::SetRow;
use super::snapshot::Header;
use super::steps::key_of;
use super::version::{FIRST_TABLE_VERSION, NEWEST_TABLE_VERSION, Version};
use crate::command::{Data, Idempotency, Mode};
use crate::limits::BUDGET_OVERRIDES_MAX;
use crate::name::ClaimId;

/// No clock of a sound table comes near: sums with a ttl stay below 2^63.
const CLOCK_END: u64 = 1 << 62;

/// A header that is wrong must not make the node reserve all memory there is.
const RESERVE_MAX: u64 = 2 << 20;

impl Table {
    /// Goes on with tokens and versions above this number, so that none is given out a second time that somebody was given
    /// by a table which is lost. Says whether that is possible: numbers have an end, and never go back.
    #[must_use]
    pub fn raise_tokens(&mut self, above: u64) -> bool {
        let possible = above >= self.last_token && above < PACKED_END / 2;
        if possible {
            self.last_version += above - self.last_token;
            self.last_token = above;
        }
        possible
    }
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
                "the snapshot has format {format}, and this version reads formats up to {NEWEST_TABLE_VERSION}: \
                 start the version that wrote it, or a newer one"
            ),
            Self::Incomplete { expected, found } => {
                write!(f, "the snapshot is incomplete: it has {found} of {expected} claims")
            }
        }
    }
}

impl std::error::Error for RestoreError {}

/// A [`Claim`](super::Claim) as it stands in a chunk, field by field, with its names where they are.
#[derive(Deserialize)]
pub(super) struct Row<'a> {
    pub(super) id: ClaimId,
    pub(super) resource: &'a str,
    pub(super) owner: &'a str,
    pub(super) ttl_us: u64,
    pub(super) deadline_us: u64,
    pub(super) created_us: u64,
    pub(super) created_wall_us: u64,
    pub(super) activated_us: u64,
    pub(super) activated_wall_us: u64,
    pub(super) renewed_wall_us: u64,
    pub(super) token: u64,
    pub(super) version: u64,
    pub(super) data: Option<Arc<Data>>,
    pub(super) idempotency: Option<Arc<Idempotency>>,
    pub(super) end: Option<End>,
    pub(super) renewals: u32,
    pub(super) status: Status,
    pub(super) unpicked: bool,
    pub(super) slot: u8,
}

/// A chunk that could be read. Whether it fits the others is the [`Restorer`]'s to find out.
#[derive(Debug)]
pub struct Decoded(Chunk);

#[derive(Debug)]
enum Chunk {
    Header(Box<(Header, Allowed, Admissible)>),
    Page(Rows),
}

/// Items that fit and wait for the next entry: sequence numbers of claims, and places.
pub(super) type Admissible = Vec<(u64, u32)>;

/// The claims of a page, in order of their slots.
#[derive(Debug)]
struct Rows {
    number: u64,
    /// Without their resources and sets.
    claims: Vec<Record>,
    /// The sets of some of them, by slot, in order.
    sets: Vec<(u8, SetRow)>,
    /// The names of these, one behind the other.
    names: String,
    /// Where each ends.
    ends: Vec<u32>,
}

/// Makes rows of the chunks of a snapshot, in their order.
#[derive(Debug, Default)]
pub struct Decoder {
    /// That of the first chunk, the header, once it has come.
    format: Option<u32>,
    /// The owner of the last claim, which usually is that of the next one too.
    owner: Option<Arc<str>>,
}

impl Decoder {
    /// Reads the next chunk.
    pub fn decode(&mut self, chunk: &[u8]) -> Result<Decoded, RestoreError> {
        let Some(format) = self.format else {
            let header = decode_header(chunk)?;
            self.format = Some(header.0.format);
            return Ok(Decoded(Chunk::Header(Box::new(header))));
        };
        let (number, rows, live, sets) = decode_page(format, chunk)?;
        let sorted = rows.is_sorted_by(|one, next| one.slot < next.slot);
        let fits = rows.last().is_some_and(|last| usize::from(last.slot) < PAGE_LEN);
        if !sorted || !fits {
            return Err(out_of_order(number));
        }
        // A record has no room for more.
        if rows.iter().any(|row| row.token.max(row.version) >= PACKED_END) {
            return Err(RestoreError::Malformed(format!("page {number} has a counter out of range")));
        }
        let mut names = String::with_capacity(rows.iter().map(|row| row.resource.len()).sum());
        let mut ends = Vec::with_capacity(rows.len());
        let mut claims = Vec::with_capacity(rows.len());
        for row in rows {
            names.push_str(row.resource);
            ends.push(names.len() as u32);
            let owner = self.owner(row.owner);
            claims.push(Record::pack(row, owner));
        }
        take_live_parts(&mut claims, live).ok_or_else(|| out_of_order(number))?;
        Ok(Decoded(Chunk::Page(Rows { number, claims, sets, names, ends })))
    }

    fn owner(&mut self, name: &str) -> Arc<str> {
        match &self.owner {
            Some(last) if **last == *name => last.clone(),
            _ => self.owner.insert(name.into()).clone(),
        }
    }
}

/// A page: its number, its claims, what few live ones have, and the sets of some.
type PageRows<'a> = (u64, Vec<Row<'a>>, Vec<(u8, Live)>, Vec<(u8, SetRow)>);

fn decode_page(format: u32, chunk: &[u8]) -> Result<PageRows<'_>, RestoreError> {
    match format {
        FIRST_TABLE_VERSION => decode(chunk).map(|(number, rows)| (number, rows, Vec::new(), Vec::new())),
        2 => decode(chunk).map(|(number, rows, live)| (number, rows, live, Vec::new())),
        _ => decode(chunk),
    }
}

/// Gives the claims of a page what few of them have; `None` unless each part belongs to a claim, in their order.
fn take_live_parts(claims: &mut [Record], live: Vec<(u8, Live)>) -> Option<()> {
    let mut claims = claims.iter_mut();
    for (slot, part) in live {
        claims.find(|claim| claim.slot == slot)?.set_live_part(part);
    }
    Some(())
}

fn decode_header(chunk: &[u8]) -> Result<(Header, Allowed, Admissible), RestoreError> {
    // The format comes first, so that a newer header is named as such whatever follows.
    let (format, _) = postcard::take_from_bytes::<u32>(chunk).map_err(malformed)?;
    if Version::known(format).is_none() {
        return Err(RestoreError::UnknownFormat(format));
    }
    let (header, allowed, admissible): (Header, Allowed, Admissible) = match format {
        FIRST_TABLE_VERSION => (decode(chunk)?, Allowed::default(), Vec::new()),
        2 => decode(chunk).map(|(header, allowed)| (header, allowed, Vec::new()))?,
        _ => decode(chunk)?,
    };
    let counters = [header.last_token, header.last_version, header.next_seq];
    if header.clock.now_us >= CLOCK_END || counters.iter().any(|counter| *counter >= PACKED_END) {
        return Err(RestoreError::Malformed("a counter is out of range".into()));
    }
    if allowed.overrides_len() > BUDGET_OVERRIDES_MAX {
        return Err(RestoreError::Malformed("there are too many overrides of budgets".into()));
    }
    Ok((header, allowed, admissible))
}

/// Builds a table from the chunks of a snapshot, in their order.
#[derive(Debug)]
pub struct Restorer {
    decoder: Decoder,
    header: Option<Header>,
    table: Table,
    last_page: Option<u64>,
    seed: Seed,
    /// (hash, sequence number) of every claim's id, and of every idempotency key.
    ids: Vec<(u32, u64)>,
    keys: Vec<(u32, u64)>,
    /// (version of its end, sequence number) of every finished claim.
    finished: Vec<(u64, u64)>,
    /// (deadline, sequence number) of every claim that has one.
    deadlines: Vec<(u64, u64)>,
    /// Every token that only one claim may have.
    tokens: Vec<u64>,
    /// What waits to be admitted.
    admissible: Admissible,
}

impl Default for Restorer {
    fn default() -> Self {
        let (decoder, header, table, last_page, ids, keys) = Default::default();
        let (finished, deadlines, tokens, admissible) = Default::default();
        let seed = Seed::of_process();
        Self { decoder, header, table, last_page, seed, ids, keys, finished, deadlines, tokens, admissible }
    }
}

impl Restorer {
    /// Reads and takes the next chunk.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        let decoded = self.decoder.decode(chunk)?;
        self.take(decoded)
    }

    /// Takes the next chunk, which a [`Decoder`] has read.
    pub fn take(&mut self, decoded: Decoded) -> Result<(), RestoreError> {
        match decoded.0 {
            Chunk::Header(header) => self.take_header(*header),
            Chunk::Page(rows) if self.header.is_some() => return self.take_page(rows),
            Chunk::Page(_) => return Err(RestoreError::Malformed("it does not begin with a header".into())),
        }
        Ok(())
    }

    fn take_header(&mut self, (header, allowed, admissible): (Header, Allowed, Admissible)) {
        self.table.allowed = allowed;
        self.admissible = admissible;
        self.table.version = Version::known(header.format).unwrap_or_default();
        self.table.clock = header.clock;
        self.table.last_token = header.last_token;
        self.table.last_version = header.last_version;
        self.table.settings = header.settings.clone();
        self.table.claims.set_next_seq(header.next_seq);
        let count = header.claim_count.min(RESERVE_MAX) as usize;
        self.ids.reserve(count);
        self.tokens.reserve(count);
        self.deadlines.reserve(count);
        self.header = Some(header);
    }

    fn take_page(&mut self, mut rows: Rows) -> Result<(), RestoreError> {
        if self.last_page.is_some_and(|last| last >= rows.number) {
            return Err(out_of_order(rows.number));
        }
        self.last_page = Some(rows.number);
        let mut start = 0;
        let mut sets = rows.sets.into_iter().peekable();
        for (claim, end) in rows.claims.iter_mut().zip(rows.ends) {
            let name = &rows.names[start..end as usize];
            start = end as usize;
            let seq = rows.number.saturating_mul(PAGE_LEN as u64) | u64::from(claim.slot);
            let set = sets.next_if(|(slot, _)| *slot == claim.slot).map(|(_, set)| set);
            self.take_claim(seq, claim, name, set).map_err(|why| wrong_claim(seq, why))?;
        }
        self.table.claims.put_page(rows.number, rows.claims);
        if sets.next().is_some() { Err(out_of_order(rows.number)) } else { Ok(()) }
    }

    /// Tells every index but those that are made at the end.
    fn take_claim(
        &mut self,
        seq: u64,
        claim: &mut Record,
        name: &str,
        set: Option<SetRow>,
    ) -> Result<(), &'static str> {
        let table = &mut self.table;
        let slot = table.resources.obtain(name);
        table.check_restored(seq, claim)?;
        claim.resource = slot;
        if let Some(set) = set {
            table.restore_set(claim, set, name)?;
        }
        if let Some(token) = claim.own_token() {
            self.tokens.push(token);
        }
        if !claim.status.is_final() {
            claim.owner = table.count_live(name, &claim.owner, claim.counted_bytes(name.len()));
        }
        match claim.status {
            Status::Active | Status::Waiting => table.restore_live(seq, claim)?,
            _ => self.finished.push((claim.version.get(), seq)),
        }
        self.deadlines.extend(claim.deadline_us().map(|deadline_us| (deadline_us, seq)));
        self.ids.push((self.seed.hash(claim.id), seq));
        if claim.idempotency().is_some() {
            self.keys.push((self.seed.hash(key_of(claim)), seq));
        }
        Ok(())
    }

    /// The table, once every chunk is in.
    pub fn finish(self) -> Result<Table, RestoreError> {
        let Self { header, mut table, ids, keys, mut finished, deadlines, mut tokens, admissible, .. } = self;
        let Some(header) = header else {
            return Err(RestoreError::Malformed("it is empty".into()));
        };
        if header.claim_count != ids.len() as u64 {
            return Err(RestoreError::Incomplete { expected: header.claim_count, found: ids.len() as u64 });
        }
        tokens.sort_unstable();
        if !tokens.is_sorted_by(|one, next| one < next) {
            return Err(RestoreError::Malformed("a token was granted twice".into()));
        }
        let claims = &table.claims;
        table.by_id = IdIndex::build(&ids, |seq| claims.at(seq).id)
            .map_err(|seq| wrong_claim(seq, "has another claim's id"))?;
        table.by_key = IdIndex::build(&keys, |seq| key_of(claims.at(seq)))
            .map_err(|seq| wrong_claim(seq, "has another claim's idempotency key"))?;
        finished.sort_unstable();
        for (_, seq) in finished {
            let claim = table.claims.at(seq);
            let held = claim.was_granted();
            for (slot, _) in claim.items() {
                table.resources.at_mut(slot).push_finished(seq, held);
            }
            table.finished.push_back(seq);
            table.count_finished(seq);
        }
        table.deadlines = deadlines.into_iter().collect();
        table.restore_admissible(admissible)?;
        Ok(table)
    }
}

impl Table {
    /// Whether a claim from a snapshot makes sense by itself.
    fn check_restored(&self, seq: u64, claim: &Record) -> Result<(), &'static str> {
        let live = !claim.status.is_final();
        match claim.status {
            _ if seq == 0 || seq >= self.claims.next_seq() => Err("has an impossible number"),
            _ if claim.version.get() > self.last_version => Err("has a version above the newest one"),
            _ if claim.token.get() > self.last_token => Err("has a token above the newest one"),
            _ if live != claim.end().is_none() => {
                Err("has a final status and no end, or an end and no final status")
            }
            _ if !live && claim.deadline_us().is_some() => Err("has ended and still has a deadline"),
            _ if !claim.has_sound_live_part() => Err("has a part that a claim of its status cannot have"),
            Status::Active if !claim.was_granted() => Err("is active and was never granted"),
            Status::Waiting if claim.was_granted() => Err("is waiting and was granted"),
            _ => Ok(()),
        }
    }
}

impl Record {
    /// A token that no other claim may have: that of a plain claim, or of an item that nobody shares.
    pub(super) fn own_token(&self) -> Option<u64> {
        match self.set() {
            None => self.was_granted().then_some(self.token.get()),
            Some(set) => {
                let alone = set.items.iter().find(|item| item.mode != Mode::Shared);
                alone.map(|item| item.token).filter(|token| *token > 0)
            }
        }
    }
}

fn out_of_order(page: u64) -> RestoreError {
    RestoreError::Malformed(format!("page {page} is out of order"))
}

pub(super) fn wrong_claim(seq: u64, why: &str) -> RestoreError {
    RestoreError::Malformed(format!("claim {seq} {why}"))
}

fn decode<'a, T: Deserialize<'a>>(chunk: &'a [u8]) -> Result<T, RestoreError> {
    match postcard::take_from_bytes(chunk).map_err(malformed)? {
        (value, []) => Ok(value),
        (_, rest) => Err(RestoreError::Malformed(format!("{} bytes are left over at the end", rest.len()))),
    }
}

#[allow(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
fn malformed(error: postcard::Error) -> RestoreError {
    RestoreError::Malformed(error.to_string())
}
