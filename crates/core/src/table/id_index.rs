//! Claim id -> sequence number, and idempotency key -> sequence number: look-ups only.
//!
//! In:    ids, and a function that tells the id of a sequence number. Out: sequence numbers. Keys come as ids: both are
//!        128 bits. A client chooses its keys and could look for some that share a bucket; the seed keeps it from knowing.
//! Never: iterates (its order is not part of the log), and never rehashes everything at once: it grows by one bucket
//!        at a time, so that no command pays for a million others and no memory lies idle after a doubling.
//!
//! Linear hashing: with `n` buckets, an id belongs into the bucket that the low bits of its hash name; buckets that
//! do not exist yet are still one with the bucket without the highest of these bits. When the buckets are full on
//! average, number `n` is made by splitting that one.

use std::sync::OnceLock;

use super::packed::Packed;
use crate::name::ClaimId;

/// What the ids of this process are hashed with.
static SEED: OnceLock<Seed> = OnceLock::new();

/// Chooses how this process hashes ids, before it makes its first table. It has no effect on what a table does, only on who
/// can foresee where an id stands in an index: nobody, if these bits are random. The first call counts.
pub fn seed_indexes(bits: u128) {
    SEED.set(Seed(bits as u64, (bits >> 64) as u64)).ok();
}

/// What ids are hashed with, which decides their buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Seed(u64, u64);

impl Seed {
    /// That of this process.
    pub(super) fn of_process() -> Self {
        SEED.get().copied().unwrap_or_default()
    }

    /// The product of both halves, each hidden by a secret: without the seed nobody can tell
    /// which ids have the same hash.
    pub(super) fn hash(self, id: ClaimId) -> u32 {
        let bits = id.as_u128();
        let (low, high) = (bits as u64 ^ self.0, (bits >> 64) as u64 ^ self.1);
        let product = u128::from(low ^ HALF) * u128::from(high ^ OTHER_HALF);
        let folded = product as u64 ^ (product >> 64) as u64;
        (folded ^ folded >> 32) as u32
    }
}

/// Digits of pi: ids of tests have few bits, and their products would have none.
const HALF: u64 = 0x243f_6a88_85a3_08d3;
const OTHER_HALF: u64 = 0x1319_8a2e_0370_7344;

/// Claims in a bucket, on average: few enough to be looked through in no time, many enough to be cheap.
const LOAD: usize = 24;
/// A full bucket reserves room for this many more.
const GROWTH: usize = 8;

/// Sequence numbers by claim id. The ids themselves are in the claims.
#[derive(Debug)]
pub(super) struct IdIndex {
    buckets: Vec<Vec<Place>>,
    len: usize,
    seed: Seed,
}

/// Where one claim is. With its hash beside it no other claim is looked at, neither to find one nor to split a bucket:
/// claims lie scattered over hundreds of megabytes, and each look waits for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Its low bits choose the bucket.
    hash: u32,
    seq: Packed,
}

impl Default for IdIndex {
    fn default() -> Self {
        Self { buckets: vec![Vec::new()], len: 0, seed: Seed::of_process() }
    }
}

impl IdIndex {
    /// The number of the claim with this id, where `id_of` tells the id of a number.
    pub(super) fn find(&self, id: ClaimId, id_of: impl Fn(u64) -> ClaimId) -> Option<u64> {
        let hash = self.seed.hash(id);
        let candidates = self.buckets[self.bucket_of(hash)].iter().filter(|place| place.hash == hash);
        candidates.map(|place| place.seq.get()).find(|seq| id_of(*seq) == id)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn insert(&mut self, id: ClaimId, seq: u64) {
        let hash = self.seed.hash(id);
        let at = self.bucket_of(hash);
        push(&mut self.buckets[at], Place { hash, seq: Packed::new(seq) });
        self.len += 1;
        if self.len > self.buckets.len() * LOAD {
            self.split();
        }
    }

    /// Adds one bucket, and moves into it what belongs there from now on.
    fn split(&mut self) {
        let new = self.buckets.len();
        let old = new & !(1 << new.ilog2());
        self.buckets.push(Vec::new());
        let mut stay = std::mem::take(&mut self.buckets[old]);
        let mut moved = Vec::with_capacity(stay.len() / 2 + GROWTH);
        stay.retain(|place| {
            let stays = self.bucket_of(place.hash) == old;
            if !stays {
                push(&mut moved, *place);
            }
            stays
        });
        stay.shrink_to(stay.len() + GROWTH / 2);
        self.buckets[old] = stay;
        self.buckets[new] = moved;
    }

    /// All of these in one go, as (hash of the id by [`Seed::of_process`], number) of each; or the number of one whose id another has too. One
    /// by one, each would wait for memory, and every bucket be moved a few times while it grows.
    pub(super) fn build(all: &[(u32, u64)], id_of: impl Fn(u64) -> ClaimId) -> Result<Self, u64> {
        let count = all.len().div_ceil(LOAD).max(1);
        // Where each bucket ends in one row of them all; while it is filled, where its next entry goes.
        let mut ends = vec![0u32; count + 1];
        all.iter().for_each(|(hash, _)| ends[bucket_of(count, *hash) + 1] += 1);
        (1..ends.len()).for_each(|at| ends[at] += ends[at - 1]);
        let mut row = vec![Place { hash: 0, seq: Packed::default() }; all.len()];
        for (hash, seq) in all {
            let next = &mut ends[bucket_of(count, *hash)];
            row[*next as usize] = Place { hash: *hash, seq: Packed::new(*seq) };
            *next += 1;
        }
        let mut buckets = Vec::with_capacity(count);
        let mut start = 0;
        for end in ends.into_iter().take(count) {
            let bucket = &mut row[start..end as usize];
            bucket.sort_unstable();
            find_twin(bucket, &id_of).map_or(Ok(()), Err)?;
            buckets.push(bucket.to_vec());
            start = end as usize;
        }
        Ok(Self { buckets, len: all.len(), seed: Seed::of_process() })
    }

    pub(super) fn remove(&mut self, id: ClaimId, seq: u64) {
        let wanted = Place { hash: self.seed.hash(id), seq: Packed::new(seq) };
        let at = self.bucket_of(wanted.hash);
        let bucket = &mut self.buckets[at];
        if let Some(at) = bucket.iter().position(|place| *place == wanted) {
            bucket.swap_remove(at);
            self.len -= 1;
            if bucket.len() + 2 * GROWTH <= bucket.capacity() {
                bucket.shrink_to(bucket.len() + GROWTH / 2);
            }
        }
    }

    fn bucket_of(&self, hash: u32) -> usize {
        bucket_of(self.buckets.len(), hash)
    }
}

/// The bucket of a hash where there are so many.
fn bucket_of(len: usize, hash: u32) -> usize {
    let hash = hash as usize;
    let mask = len.next_power_of_two() - 1;
    let place = hash & mask;
    if place < len { place } else { hash & (mask >> 1) }
}

/// The newer of two claims with one id, in a sorted bucket: those whose hashes are alike stand together.
fn find_twin(bucket: &[Place], id_of: impl Fn(u64) -> ClaimId) -> Option<u64> {
    bucket.iter().enumerate().find_map(|(at, place)| {
        let alike = bucket[..at].iter().rev().take_while(|other| other.hash == place.hash);
        let mut twins = alike.filter(|other| id_of(other.seq.get()) == id_of(place.seq.get()));
        twins.next().map(|_| place.seq.get())
    })
}

fn push(bucket: &mut Vec<Place>, place: Place) {
    if bucket.len() == bucket.capacity() {
        bucket.reserve_exact(GROWTH);
    }
    bucket.push(place);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids that differ in few bits, as tests have them, and ids that differ in all.
    #[test]
    fn every_claim_is_found_until_it_is_removed() {
        let scattered = |seq: u64| ClaimId::from_u128(u128::from(seq.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let counted = |seq: u64| ClaimId::from_u128(u128::from(seq));
        for id_of in [scattered, counted] {
            let mut index = IdIndex::default();
            for seq in 1..5_000 {
                index.insert(id_of(seq), seq);
                assert_eq!(index.find(id_of(seq), id_of), Some(seq));
                assert_eq!(index.find(id_of(seq + 1), id_of), None);
            }
            assert!((1..5_000).all(|seq| index.find(id_of(seq), id_of) == Some(seq)));
            let all: Vec<(u32, u64)> =
                (1..5_000).map(|seq| (Seed::of_process().hash(id_of(seq)), seq)).collect();
            let mut built = IdIndex::build(&all, id_of).unwrap();
            (5_000..6_000).for_each(|seq| built.insert(id_of(seq), seq));
            assert!((1..6_000).all(|seq| built.find(id_of(seq), id_of) == Some(seq)));
            assert_eq!((built.find(id_of(6_000), id_of), built.len()), (None, 5_999));
            (1..5_000).step_by(2).for_each(|seq| index.remove(id_of(seq), seq));
            assert!((1..5_000).all(|seq| index.find(id_of(seq), id_of).is_some() == (seq % 2 == 0)));
        }
    }

    /// Keys that a client chose because they share a bucket where nothing is seeded.
    #[test]
    fn ids_that_share_a_bucket_under_one_seed_are_spread_by_another() {
        let bucket = |seed: Seed, id| seed.hash(id) % 1024;
        let ids: Vec<ClaimId> = (0..2_000_000u128)
            .map(|i| ClaimId::from_u128(i << 64 | i))
            .filter(|id| bucket(Seed::default(), *id) == 0)
            .collect();
        assert!(ids.len() > 1_000);
        for seed in [Seed(1, 2), Seed(0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9), Seed(u64::MAX, 5)] {
            let mut counts = vec![0; 1024];
            ids.iter().for_each(|id| counts[bucket(seed, *id) as usize] += 1);
            let fullest = counts.iter().max().copied().unwrap_or(0);
            assert!(fullest < 30, "{fullest} of {} in one bucket under {seed:?}", ids.len());
        }
    }

    #[test]
    fn an_id_that_comes_twice_is_named() {
        let id_of = |seq: u64| ClaimId::from_u128(u128::from(if seq == 900 { 17 } else { seq }));
        let all: Vec<(u32, u64)> = (1..1_000).map(|seq| (Seed::of_process().hash(id_of(seq)), seq)).collect();
        assert_eq!(IdIndex::build(&all, id_of).err(), Some(900));
        assert!(IdIndex::build(&all[..899], id_of).is_ok());
        assert!(IdIndex::build(&[], id_of).is_ok_and(|index| index.len() == 0));
    }
}
