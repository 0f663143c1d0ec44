//! A look ahead: what an entry is about to touch is asked for at once.
//!
//! In:    the commands of an entry; how many claims are about to be forgotten. Out: nothing but a warmer cache.
//! Never: changes anything.
//!
//! Ids and keys look like chance, and what is forgotten was last touched a hundred thousand claims ago: most of it is in
//! no cache, and a command that needs five such places waits for the memory five times. These walks do nothing with what
//! they read, so the processor asks for the next places while it still waits for the first.

use std::hint::black_box;

use super::Table;
use crate::command::{Command, Target};
use crate::name::ClaimId;

/// So many commands, or claims, at a time: what is asked for is still there when its turn comes.
pub(super) const AHEAD: usize = 64;

impl Table {
    /// Before these commands are applied.
    pub(super) fn look_ahead(&self, commands: &[Command]) {
        let seen = commands.iter().fold(0, |seen, command| match command {
            Command::Claim(new) => {
                let key =
                    new.idempotency.map_or(0, |known| self.by_key.glance(ClaimId::from_u128(known.key)));
                seen ^ self.by_id.glance(new.id) ^ key
            }
            Command::Activate { id }
            | Command::Await { id, .. }
            | Command::RevokeWhenGone { id, .. }
            | Command::Renew { target: Target::Claim(id), .. }
            | Command::Finish { target: Target::Claim(id), .. } => {
                seen ^ self.find(*id).map_or(0, |seq| self.glance(seq))
            }
            _ => seen,
        });
        black_box(seen);
    }

    /// Before the `count` oldest finished claims are forgotten.
    pub(super) fn look_back(&self, count: usize) {
        let seen = self.finished.iter().take(count).fold(0, |seen, seq| {
            let claim = self.claims.at(*seq);
            let key =
                claim.idempotency().map_or(0, |known| self.by_key.glance(ClaimId::from_u128(known.key)));
            seen ^ self.by_id.glance(claim.id) ^ key ^ self.glance(*seq)
        });
        black_box(seen);
    }

    /// At a claim and its resource.
    fn glance(&self, seq: u64) -> u32 {
        let slot = self.claims.at(seq).resource;
        let name = self.resources.name(slot).as_bytes().first().copied().unwrap_or(0);
        u32::from(name) ^ u32::from(self.resources.at(slot).is_empty())
    }
}
