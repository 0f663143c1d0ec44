//! Snapshots and digests: the same log gives the same table, and a table survives its bytes.
//!
//! In:    random stories, one story told by hand, a snapshot of every format ever released in `golden/`.
//! Out:   failures.
//! Never: accepts bytes that are no table, and never panics over them.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test may read files and its environment, and fails by panicking"
)]

#[path = "naive/steps.rs"]
mod steps;

use std::fs;

use leasehold_core::table::{Frozen, NEWEST_TABLE_VERSION, RestoreError, Restorer};
use leasehold_core::{
    Applied, Batch, Budgets, ClaimId, Command, Data, Ending, Format, Guard, Idempotency, Item, Mode,
    NewClaim, NewSet, OnBusy, Outcome, Scope, Settings, Stamp, Table, Target,
};
use proptest::prelude::*;
use steps::{Step, story, story_of_crowds, story_of_sets};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/snapshot-1.bin");
const GOLDEN_DIGEST: &str = "578a0fe88ecd2ae0b43a4f595d265a6c0a7d96772c207daa8ae2b660525a4071";

// ---- the same log

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_same_log_gives_the_same_digest(steps in story(100)) {
        let log = log(&steps);
        let (mut one, mut other) = (Table::default(), Table::default());
        for batch in &log {
            one.apply(batch);
            other.apply(batch);
            prop_assert_eq!(one.freeze().digest(), other.freeze().digest());
        }
    }

    #[test]
    fn a_restored_table_goes_on_like_the_first(steps in story(40)) {
        goes_on_alike(&log(&steps));
    }

    #[test]
    fn a_restored_table_with_sets_goes_on_like_the_first(steps in story_of_sets(40)) {
        goes_on_alike(&log(&steps));
    }

    #[test]
    fn a_frozen_table_does_not_change(steps in story(60)) {
        let log = log(&steps);
        let mut table = Table::default();
        let mut frozen: Vec<(Frozen, [u8; 32])> = Vec::new();
        for batch in &log {
            table.apply(batch);
            frozen.push((table.freeze(), table.freeze().digest()));
        }
        for (frozen, digest) in frozen {
            prop_assert_eq!(frozen.digest(), digest);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_restored_table_with_crowds_goes_on_like_the_first(steps in story_of_crowds(20)) {
        goes_on_alike(&log(&steps));
    }
}

/// Wherever a log is cut, a table that is restored there does the same as the one that was not.
fn goes_on_alike(log: &[Batch]) {
    for cut in 0..=log.len() {
        let mut table = Table::default();
        log[..cut].iter().for_each(|batch| drop(table.apply(batch)));
        let mut restored = restore(&chunks(&table.freeze())).unwrap();
        restored.check(true).unwrap();
        assert_eq!(restored.freeze().digest(), table.freeze().digest());
        for batch in &log[cut..] {
            let (expected, found) = (table.apply(batch), restored.apply(batch));
            same(&expected, &found);
        }
        restored.check(true).unwrap();
        assert_eq!(restored.freeze().digest(), table.freeze().digest());
    }
}

fn same(expected: &Applied, found: &Applied) {
    assert_eq!(expected.outcomes, found.outcomes);
    assert_eq!(expected.events, found.events);
}

fn log(steps: &[Step]) -> Vec<Batch> {
    let mut stamp = Stamp::default();
    let batch = |step: &Step| {
        let Step::Entry { now_us, wall_us, commands } = step else { return None };
        stamp.now_us = stamp.now_us.saturating_add_signed(*now_us);
        stamp.wall_us = stamp.wall_us.saturating_add_signed(now_us + wall_us);
        Some(Batch { stamp, commands: commands.clone() })
    };
    steps.iter().filter_map(batch).collect()
}

// ---- another log

#[test]
fn every_difference_shows_in_the_digest() {
    let claim = || NewClaim::new(ClaimId::from_u128(1), "a/1", "ann", Some(10), OnBusy::Queue);
    let bytes = |format, text: &str| Some(Data { format, bytes: text.as_bytes().into() });
    let key = |key, fingerprint| Some(Idempotency { key, fingerprint });
    let claims = vec![
        claim(),
        NewClaim { id: ClaimId::from_u128(2), ..claim() },
        NewClaim { resource: "a/2".into(), ..claim() },
        NewClaim { owner: "bob".into(), ..claim() },
        NewClaim { ttl_us: Some(11), ..claim() },
        NewClaim { ttl_us: None, ..claim() },
        NewClaim { data: bytes(Format::Json, "1"), ..claim() },
        NewClaim { data: bytes(Format::Bytes, "1"), ..claim() },
        NewClaim { data: bytes(Format::Bytes, "2"), ..claim() },
        NewClaim { data: bytes(Format::Bytes, ""), ..claim() },
        NewClaim { idempotency: key(1, 1), ..claim() },
        NewClaim { idempotency: key(2, 1), ..claim() },
        NewClaim { idempotency: key(1, 2), ..claim() },
    ];
    let mut logs: Vec<(u64, u64, Vec<Command>)> =
        claims.into_iter().map(|claim| (5, 5, vec![Command::Claim(claim)])).collect();
    let first = Command::Claim(claim());
    let id = ClaimId::from_u128(1);
    let renew =
        Command::Renew { target: Target::Claim(id), guard: Guard::default(), ttl_us: None, data: None };
    let finish = |ending, reason: Option<&str>| Command::Finish {
        target: Target::Claim(id),
        guard: Guard::default(),
        ending,
        reason: reason.map(Into::into),
        purge_data: false,
    };
    let set = |settings| Command::Configure(settings);
    logs.extend([
        (5, 5, vec![]),
        (6, 5, vec![first.clone()]),
        (5, 6, vec![first.clone()]),
        (5, 5, vec![first.clone(), renew]),
        (5, 5, vec![first.clone(), finish(Ending::Released, None)]),
        (5, 5, vec![first.clone(), finish(Ending::Revoked, None)]),
        (5, 5, vec![first.clone(), finish(Ending::Revoked, Some("why"))]),
        (5, 5, vec![set(Settings { pickup_grace_us: 1, ..Settings::default() })]),
        (5, 5, vec![set(Settings { finished_max: 1, ..Settings::default() })]),
    ]);
    let upgrade = Command::Upgrade { version: 2 };
    let budgets = |total| Command::ConfigureBudgets(Budgets { total, ..Budgets::default() });
    let set = |scope, bytes| Command::SetBudget { scope, bytes: Some(bytes) };
    logs.extend([
        (5, 5, vec![upgrade.clone()]),
        (5, 5, vec![upgrade.clone(), budgets(1)]),
        (5, 5, vec![upgrade.clone(), budgets(2)]),
        (5, 5, vec![upgrade.clone(), set(Scope::Total, 1)]),
        (5, 5, vec![upgrade.clone(), set(Scope::Finished, 1)]),
        (5, 5, vec![upgrade.clone(), set(Scope::Owner("a".into()), 1)]),
        (5, 5, vec![upgrade.clone(), set(Scope::Owner("b".into()), 1)]),
        (5, 5, vec![upgrade.clone(), set(Scope::Namespace("a".into()), 1)]),
    ]);
    let second = Command::Claim(NewClaim { id: ClaimId::from_u128(2), ..claim() });
    let asks = |wait_us| Command::Await { id: ClaimId::from_u128(2), wait_us };
    logs.extend([
        (5, 5, vec![upgrade.clone(), first.clone(), second.clone()]),
        (5, 5, vec![upgrade.clone(), first.clone(), second.clone(), asks(0)]),
        (5, 5, vec![upgrade.clone(), first.clone(), second, asks(1)]),
        (5, 5, vec![upgrade.clone(), first.clone()]),
        (5, 5, vec![upgrade.clone(), first.clone(), Command::RevokeWhenGone { id, reason: None }]),
        (5, 5, vec![upgrade, first, Command::RevokeWhenGone { id, reason: Some("why".into()) }]),
    ]);
    let digest = |(now_us, wall_us, commands): (u64, u64, Vec<Command>)| {
        let mut table = Table::default();
        table.apply(&Batch { stamp: Stamp { now_us, wall_us }, commands });
        table.freeze().digest()
    };
    let mut digests: Vec<[u8; 32]> = logs.into_iter().map(digest).collect();
    let count = digests.len();
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), count);
}

// ---- bytes that are no table

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_no_table(chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..4)) {
        if let Ok(table) = restore(&chunks) {
            prop_assert_eq!(table.live(), 0, "a table of random claims: {:?}", chunks);
        }
    }

    #[test]
    fn a_flipped_bit_is_an_error_or_another_sound_table(
        place in any::<prop::sample::Index>(), bit in 0u8..8, version in 1..=3,
    ) {
        let story = match version {
            1 => story_by_hand(),
            2 => story_of_version_2(),
            _ => story_of_version_3(),
        };
        let mut chunks = chunks(&story.freeze());
        let len: usize = chunks.iter().map(Vec::len).sum();
        let mut place = place.index(len);
        for chunk in &mut chunks {
            if place < chunk.len() {
                chunk[place] ^= 1 << bit;
                break;
            }
            place -= chunk.len();
        }
        if let Ok(mut table) = restore(&chunks) {
            prop_assert_ne!(table.freeze().digest(), story.freeze().digest());
            use_up(&mut table);
        }
    }

    #[test]
    fn a_random_page_after_a_sound_header_is_an_error(page in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut chunks = chunks(&story_by_hand().freeze());
        chunks.truncate(1);
        chunks.push(page);
        prop_assert!(restore(&chunks).is_err());
    }
}

/// Whatever came through can be worked with.
fn use_up(table: &mut Table) {
    let clock = table.clock();
    for i in 1..4u64 {
        let stamp = Stamp { now_us: clock.now_us.saturating_add(i * 1_000_000_000), ..clock };
        let revoke = Command::Revoke { resource: None, before: u64::MAX, reason: None };
        let commands = vec![
            Command::Tick,
            revoke,
            Command::Configure(Settings { finished_max: 0, ..Settings::default() }),
        ];
        table.apply(&Batch { stamp, commands });
    }
    assert_eq!(table.live(), 0);
    assert_eq!(table.resource_count(), 0);
    table.check(false).unwrap();
}

/// Sets have the most to go wrong with: slots twice, items that hold what they can't, sessions of nobody.
#[test]
fn every_flipped_bit_of_sets_is_an_error_or_another_sound_table() {
    let frozen = with_sets(Table::default()).freeze();
    let (whole, digest) = (chunks(&frozen), frozen.digest());
    let mut sound = 0;
    for (count, chunk) in whole.iter().enumerate() {
        for bit in 0..chunk.len() * 8 {
            let mut flipped = whole.clone();
            flipped[count][bit / 8] ^= 1 << (bit % 8);
            if let Ok(mut table) = restore(&flipped) {
                assert_ne!(table.freeze().digest(), digest);
                use_up(&mut table);
                sound += 1;
            }
        }
    }
    assert!(sound > 0, "no bit is free to be another");
}

#[test]
fn every_truncation_is_an_error() {
    for whole in
        [story_by_hand(), story_of_version_2(), story_of_version_3()].map(|table| chunks(&table.freeze()))
    {
        for count in 0..whole.len() {
            assert!(restore(&whole[..count]).is_err(), "{count} chunks");
            for len in 0..whole[count].len() {
                let mut cut = whole[..count].to_vec();
                cut.push(whole[count][..len].to_vec());
                cut.extend(whole[count + 1..].iter().cloned());
                assert!(restore(&cut).is_err(), "chunk {count} cut to {len} bytes");
            }
        }
    }
}

#[test]
fn chunks_out_of_place_are_an_error() {
    let whole = chunks(&story_by_hand().freeze());
    assert!(whole.len() >= 4, "a header and three pages");
    let swapped = [&whole[..1], &whole[2..3], &whole[1..2], &whole[3..]].concat();
    let doubled = [&whole[..2], &whole[1..]].concat();
    let headless = whole[1..].to_vec();
    let missing = [&whole[..2], &whole[3..]].concat();
    let mut longer = whole.clone();
    longer[1].push(0);
    for broken in [swapped, doubled, headless, missing, longer] {
        assert!(restore(&broken).is_err());
    }
    assert!(restore(&whole).is_ok());
}

#[test]
fn a_format_from_elsewhere_is_named() {
    let mut whole = chunks(&story_by_hand().freeze());
    for format in [0, NEWEST_TABLE_VERSION as u8 + 1] {
        whole[0][0] = format;
        assert_eq!(restore(&whole).unwrap_err(), RestoreError::UnknownFormat(u32::from(format)));
    }
}

// ---- every format that was ever released

#[test]
fn a_snapshot_of_format_1_loads() {
    let written = fs::read(GOLDEN).unwrap();
    let table = restore(&unframed(&written)).unwrap();
    table.check(false).unwrap();
    assert_eq!(table.version(), 1);
    // A table that was never upgraded stays readable for the release that knows no other format.
    assert_eq!(framed(&chunks(&table.freeze())), written, "other bytes than release 0.1.0 writes");
    assert_eq!(framed(&chunks(&story_by_hand().freeze())), written, "other bytes than release 0.1.0 writes");
    let digest: String = table.freeze().digest().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digest, GOLDEN_DIGEST);
    assert_eq!(table.freeze().digest(), story_by_hand().freeze().digest(), "the story leads elsewhere now");
}

/// Each chunk behind its length.
fn framed(chunks: &[Vec<u8>]) -> Vec<u8> {
    chunks.iter().flat_map(|chunk| [&(chunk.len() as u32).to_le_bytes()[..], chunk].concat()).collect()
}

fn unframed(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut chunks = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let (chunk, rest) = rest.split_at(u32::from_le_bytes(*len) as usize);
        chunks.push(chunk.to_vec());
        bytes = rest;
    }
    chunks
}

fn chunks(frozen: &Frozen) -> Vec<Vec<u8>> {
    frozen.chunks().collect()
}

fn restore(chunks: &[Vec<u8>]) -> Result<Table, RestoreError> {
    let mut restorer = Restorer::default();
    chunks.iter().try_for_each(|chunk| restorer.push(chunk))?;
    restorer.finish()
}

/// A table with a claim of every kind: held, waiting, promoted and not picked up, over in every way, with and without
/// everything that may be absent, on several pages of which one lost claims.
fn story_by_hand() -> Table {
    let claim = |id: u128, resource: &str, ttl_us: Option<u64>, on_busy| {
        NewClaim::new(ClaimId::from_u128(id << 64 | id), resource, "ann", ttl_us, on_busy)
    };
    let queue = |id, resource: &str, ttl_us| Command::Claim(claim(id, resource, ttl_us, OnBusy::Queue));
    let finish = |id: u128, ending, reason: Option<&str>| Command::Finish {
        target: Target::Claim(ClaimId::from_u128(id << 64 | id)),
        guard: Guard::default(),
        ending,
        reason: reason.map(Into::into),
        purge_data: false,
    };
    let settings = Settings { finished_max: 8, pickup_grace_us: 5_000_000, ..Settings::default() };
    let mut with_all = claim(3, "db/other", Some(60_000_000), OnBusy::Refuse);
    with_all.data = Some(Data { format: Format::Json, bytes: br#"{"pid":1}"#[..].into() });
    with_all.idempotency = Some(Idempotency { key: u128::MAX - 6, fingerprint: 99 });
    let mut in_bytes = claim(4, "gr\u{fc}n/\u{2603}", None, OnBusy::Queue);
    in_bytes.owner = "o".repeat(300).as_str().into();
    in_bytes.data = Some(Data { format: Format::Bytes, bytes: vec![0, 255, 128].into() });
    let many = (100..230).map(|id| queue(id, &format!("many/{id}"), Some(3_600_000_000)));
    let some_end = (100..120).map(|id| finish(id, Ending::Released, None));
    let renew = Command::Renew {
        target: Target::Holder("db/other".into()),
        guard: Guard { owner: Some("ann".into()), version: None },
        ttl_us: Some(90_000_000),
        data: None,
    };
    let wait = claim(7, "db/main", Some(1), OnBusy::QueueFor { wait_us: 1_000_000_000 });
    let log = [
        vec![Command::Configure(settings)],
        vec![queue(1, "db/main", Some(10_000_000)), queue(2, "db/main", Some(20_000_000))],
        vec![Command::Claim(with_all), Command::Claim(in_bytes)],
        many.collect(),
        some_end.collect(),
        vec![renew, queue(5, "x", Some(0)), queue(6, "x", None), Command::Claim(wait), queue(8, "y", None)],
        vec![queue(9, "y", None), queue(10, "y", None), queue(11, "y", None)],
        vec![finish(9, Ending::Aborted, Some("disk full")), finish(10, Ending::Withdrawn, None)],
        vec![finish(8, Ending::Revoked, Some("")), finish(1, Ending::Released, None)],
    ];
    let mut table = Table::default();
    for (i, commands) in (1..).zip(log) {
        let now_us = i * 1_000_000;
        table.apply(&Batch { stamp: Stamp { now_us, wall_us: 1_700_000_000_000_000 + now_us }, commands });
    }
    table
}

/// The same, upgraded, with what claims have had only since then.
fn story_of_version_2() -> Table {
    let mut table = story_by_hand();
    let now_us = table.clock().now_us + 30_000_000;
    let id = |id: u128| ClaimId::from_u128(id << 64 | id);
    let queue = |id, on_busy| Command::Claim(NewClaim::new(id, "db/other", "bob", Some(1_000_000), on_busy));
    let commands = vec![
        Command::Upgrade { version: 2 },
        queue(id(300), OnBusy::Queue),
        queue(id(301), OnBusy::QueueFor { wait_us: 90_000_000 }),
        queue(id(302), OnBusy::Queue),
        Command::Activate { id: id(300) },
        Command::Await { id: id(301), wait_us: 60_000_000 },
        Command::Activate { id: id(6) },
        Command::RevokeWhenGone { id: id(3), reason: Some("the disk is full".into()) },
        Command::RevokeWhenGone { id: id(4), reason: None },
    ];
    table.apply(&Batch { stamp: Stamp { now_us, wall_us: 1_700_000_000_000_000 + now_us }, commands });
    table.check(false).unwrap();
    table
}

fn item(resource: &str, mode: Mode) -> Item {
    Item { resource: resource.into(), mode }
}

fn new_set(id: u128, items: Vec<Item>) -> NewSet {
    NewSet {
        id: ClaimId::from_u128(id << 64 | id),
        items,
        owner: "ann".into(),
        ttl_us: Some(600_000_000),
        on_busy: OnBusy::Queue,
        data: None,
        idempotency: None,
        session: None,
        lapses: false,
    }
}

/// The same, with sets that hold, wait, reserve and are over.
fn story_of_version_3() -> Table {
    with_sets(story_of_version_2())
}

fn with_sets(mut table: Table) -> Table {
    use Mode::{Exclusive, Shared};
    let now_us = table.clock().now_us + 1_000_000;
    let slots = |take| Mode::Slots { take, of: 5 };
    let session = |path: &str| Some(path.into());
    let sets = [
        new_set(400, vec![item("set/over", Exclusive), item("set/pool", slots(1))]),
        NewSet {
            session: session("w"),
            ..new_set(401, vec![item("set/r", Shared), item("set/x", Exclusive)])
        },
        new_set(402, vec![item("set/r", Shared)]),
        NewSet { session: session("w/1"), ..new_set(403, vec![item("set/pool", slots(2))]) },
        new_set(404, vec![item("set/pool", slots(1)), item("set/r", Shared), item("set/y", Exclusive)]),
        NewSet {
            session: session("v"),
            lapses: true,
            ..new_set(405, vec![item("set/x", Exclusive), item("set/z", Shared), item("set/pool", slots(1))])
        },
        NewSet { lapses: true, ..new_set(406, vec![item("set/z", Exclusive)]) },
    ];
    let sets = sets.into_iter().map(|set| Command::ClaimSet(Box::new(set)));
    let end = Command::Finish {
        target: Target::Claim(ClaimId::from_u128(400 << 64 | 400)),
        guard: Guard::default(),
        ending: Ending::Released,
        reason: None,
        purge_data: false,
    };
    let commands = std::iter::once(Command::Upgrade { version: 3 }).chain(sets).chain([end]).collect();
    let applied =
        table.apply(&Batch { stamp: Stamp { now_us, wall_us: 1_700_000_000_000_000 + now_us }, commands });
    let waiting = applied.outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Queued(_)));
    assert_eq!(waiting.count(), 2, "{:?}", applied.outcomes);
    table.check(false).unwrap();
    table
}

#[test]
fn every_difference_of_a_set_shows_in_the_digest() {
    use Mode::{Exclusive, Shared};
    let slots = |take, of| vec![item("a/1", Mode::Slots { take, of })];
    let one = || new_set(1, vec![item("a/1", Shared), item("a/2", Exclusive)]);
    let sets = vec![
        one(),
        NewSet { items: vec![item("a/2", Exclusive), item("a/1", Shared)], ..one() },
        NewSet { items: vec![item("a/1", Shared), item("a/2", Shared)], ..one() },
        NewSet { items: vec![item("a/1", Shared), item("a/3", Exclusive)], ..one() },
        NewSet { items: vec![item("a/1", Shared)], ..one() },
        NewSet { items: vec![item("a/1", Exclusive)], ..one() },
        NewSet { items: slots(1, 2), ..one() },
        NewSet { items: slots(2, 2), ..one() },
        NewSet { items: slots(1, 3), ..one() },
        NewSet { session: Some("s".into()), ..one() },
        NewSet { session: Some("s/t".into()), ..one() },
        NewSet { lapses: true, ..one() },
    ];
    let count = sets.len();
    let digest = |set: NewSet| {
        let mut table = Table::default();
        let commands = vec![Command::Upgrade { version: 3 }, Command::ClaimSet(Box::new(set))];
        table.apply(&Batch { stamp: Stamp { now_us: 5, wall_us: 5 }, commands });
        table.freeze().digest()
    };
    let mut digests: Vec<[u8; 32]> = sets.into_iter().map(digest).collect();
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), count);
}
