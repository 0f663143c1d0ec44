//! The table as bytes; `restore.rs` is the way back.
//!
//! In:    a table. Out: [`Frozen`], a copy that shares pages with it, as a row of chunks.
//! Never: does I/O: chunks are handed out one by one, whoever stores them frames and checks them.
//!
//! The first chunk is the [`Header`] (with budgets since version 2, and with what waits to be admitted since version 3), then one
//! chunk a page: its number, its claims and, by their places in the page, what few live ones of them have (since version 2)
//! and the sets of those that have one (since version 3). The format is the table's version: a table that was never
//! upgraded is written byte for byte as release 0.1.0 writes it, which can load it.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Table;
use super::budgets::Allowed;
use super::claim::{Claim, Live};
use super::claims::{Claims, Page};
use super::names::Names;
use super::set::SetRow;
use super::version::FIRST_TABLE_VERSION;
use crate::command::Settings;
use crate::name::Stamp;

/// Everything in a table but its claims.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Header {
    /// The table's version.
    pub(super) format: u32,
    pub(super) clock: Stamp,
    pub(super) last_token: u64,
    pub(super) last_version: u64,
    pub(super) next_seq: u64,
    pub(super) claim_count: u64,
    pub(super) settings: Settings,
}

/// A table at one instant, which goes on living beside it for the price of the pages that change.
#[derive(Debug, Clone)]
pub struct Frozen {
    header: Header,
    claims: Claims,
    /// Of the resources that the claims name.
    names: Names,
    beside: Box<Beside>,
}

/// What stands behind the header.
#[derive(Debug, Clone)]
struct Beside {
    /// From version 2 on.
    allowed: Allowed,
    /// From version 3 on.
    admissible: Vec<(u64, u32)>,
}

impl Table {
    /// A copy of the table as it is now: one pointer a page.
    pub fn freeze(&self) -> Frozen {
        let header = Header {
            format: self.version.number(),
            clock: self.clock,
            last_token: self.last_token,
            last_version: self.last_version,
            next_seq: self.claims.next_seq(),
            claim_count: self.claims.len() as u64,
            settings: self.settings.clone(),
        };
        let (claims, names) = (self.claims.clone(), self.resources.names().clone());
        let admissible = self.admissible.iter().copied().collect();
        Frozen {
            header,
            claims,
            names,
            beside: Box::new(Beside { allowed: self.allowed.clone(), admissible }),
        }
    }
}

impl Frozen {
    /// The table clock at the instant of freezing.
    pub fn clock(&self) -> Stamp {
        self.header.clock
    }

    /// The whole table, chunk by chunk.
    pub fn chunks(&self) -> impl Iterator<Item = Vec<u8>> {
        let header = match self.header.format {
            FIRST_TABLE_VERSION => encode(&self.header),
            2 => encode(&(&self.header, &self.beside.allowed)),
            _ => encode(&(&self.header, &self.beside.allowed, &self.beside.admissible)),
        };
        let page = |(number, page)| match self.header.format {
            FIRST_TABLE_VERSION => encode(&(number, self.unpack(page))),
            2 => encode(&(number, self.unpack(page), live_parts(page))),
            _ => encode(&(number, self.unpack(page), live_parts(page), Self::sets(page))),
        };
        std::iter::once(header).chain(self.claims.pages_from(0).map(page))
    }

    fn unpack(&self, page: &Page) -> Vec<Claim> {
        page.claims.iter().map(|claim| claim.unpack(self.names.get(claim.resource).into())).collect()
    }

    fn sets(page: &Page) -> Vec<(u8, SetRow)> {
        page.claims.iter().filter_map(|claim| Some((claim.slot, claim.set()?.to_row()))).collect()
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

fn live_parts(page: &Page) -> Vec<(u8, &Live)> {
    page.claims.iter().filter_map(|claim| Some((claim.slot, &**claim.live_part()?))).collect()
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data in memory can be encoded")
}
