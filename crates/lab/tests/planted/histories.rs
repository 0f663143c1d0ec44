//! Histories of real seeds in which one thing is changed on purpose: the checker finds it, and calls it by its name.
//!
//! In:    what clients saw in a few seeds, without a bug. Out: the same with a claim too many, or an answer that is wrong.
//! Never: leaves it to luck: each change is found in every history that has a place for it, and there is one in these seeds.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use leasehold_lab::history::{Answer, Call, Grant, Handle, History, Item, Mode, Op};
use leasehold_lab::{linear, sim};

/// Tokens are doubled, so that there is room for another one between two.
static HISTORIES: LazyLock<Vec<History>> = LazyLock::new(|| {
    let doubled = |grant: &Grant| Grant { token: 2 * grant.token, slots: grant.slots.clone() };
    let seed = |seed| {
        let mut history = sim::run(seed, None).history;
        for op in &mut history.ops {
            if let Answer::Active(items) = &op.answer {
                op.answer = Answer::Active(items.iter().map(doubled).collect());
            }
        }
        assert!(linear::check(&history).is_ok(), "seed {seed} finds something by itself");
        history
    };
    (1..=8).map(seed).collect()
});

/// A claim that certainly held from one instant to another.
struct Held {
    claim: Handle,
    items: Arc<[Item]>,
    grant: Arc<[Grant]>,
    from_us: u64,
    until_us: u64,
}

fn held(history: &History) -> Vec<Held> {
    let mut all: BTreeMap<Handle, Held> = BTreeMap::new();
    for op in &history.ops {
        let Answer::Active(grant) = &op.answer else { continue };
        let new = Held {
            claim: op.claim,
            items: op.items.clone(),
            grant: grant.clone(),
            from_us: op.returned_us,
            until_us: op.called_us,
        };
        let held = all.entry(op.claim).or_insert(new);
        held.from_us = held.from_us.min(op.returned_us);
        held.until_us = held.until_us.max(op.called_us);
    }
    all.into_values().filter(|held| held.until_us > held.from_us + 2).collect()
}

/// Those who share the first of their resources, and were the last to ask of all who have this token.
fn last_readers(history: &History) -> Vec<Held> {
    let asked_us = |claim: Handle| {
        let calls = history.ops.iter().filter(|op| op.claim == claim).map(|op| op.called_us);
        calls.min().unwrap_or(0)
    };
    let joined_later = |held: &Held| {
        history.ops.iter().any(|op| {
            let token = held.grant[0].token;
            let place = op.items.iter().position(|item| *item == held.items[0]);
            place.is_some_and(|place| op.answer.tokens().nth(place) == Some(token))
                && asked_us(op.claim) > asked_us(held.claim)
        })
    };
    let readers = held(history).into_iter().filter(|held| held.items[0].mode == Mode::Shared);
    readers.filter(|held| !joined_later(held)).collect()
}

/// A token that may have been made at this instant, and that nobody else has.
fn token_at(history: &History, us: u64) -> u64 {
    let told = history.ops.iter().filter(|op| op.returned_us <= us);
    told.flat_map(|op| op.answer.tokens()).max().unwrap_or(0) + 1
}

/// Adds a claim that is granted as soon as it is asked for.
fn add_claim(history: &mut History, called_us: u64, item: Item, slots: &[u16]) {
    let claim = history.ops.iter().map(|op| op.claim).max().unwrap_or(0) + 1;
    let token = token_at(history, called_us);
    history.ops.push(Op {
        client: 1000,
        claim,
        items: Arc::new([item]),
        call: Call::Claim { ttl_us: None },
        called_us,
        returned_us: called_us + 1,
        answer: Answer::Active(Arc::new([Grant { token, slots: slots.to_vec() }])),
    });
}

/// Changes each history in every place that fits, one at a time. Each is found with these words.
#[track_caller]
fn is_found(words: &str, places: impl Fn(&History) -> Vec<History>) {
    let mut changed = 0;
    for history in HISTORIES.iter() {
        for history in places(history) {
            changed += 1;
            let found = linear::check(&history).expect_err("this can't have happened");
            assert!(found.what.contains(words), "found as: {found}");
        }
    }
    assert!(changed > 3, "only {changed} places in these seeds");
}

#[test]
fn a_writer_beside_a_reader_is_found() {
    is_found("certainly held", |history| {
        let readers = last_readers(history).into_iter();
        let place = |held: Held| {
            let mut changed = history.clone();
            let item = Item { mode: Mode::Exclusive, ..held.items[0].clone() };
            add_claim(&mut changed, held.from_us, item, &[]);
            changed
        };
        readers.take(10).map(place).collect()
    });
}

#[test]
fn one_slot_too_many_is_found() {
    is_found("certainly held", |history| {
        let pools = held(history).into_iter().filter(|held| matches!(held.items[0].mode, Mode::Slots { .. }));
        let place = |held: Held| {
            let mut changed = history.clone();
            let Mode::Slots { of, .. } = held.items[0].mode else { return changed };
            let item = Item { mode: Mode::Slots { take: 1, of }, ..held.items[0].clone() };
            add_claim(&mut changed, held.from_us, item, &held.grant[0].slots[..1]);
            changed
        };
        pools.take(10).map(place).collect()
    });
}

#[test]
fn a_part_of_a_set_is_found() {
    is_found("holds a part of its set", |history| {
        let is_set = |op: &Op| op.items.len() > 1 && matches!(op.answer, Answer::Active(_));
        let places: Vec<usize> = (0..history.ops.len()).filter(|at| is_set(&history.ops[*at])).collect();
        let place = |at: usize| {
            let mut changed = history.clone();
            // All answers that tell of this grant.
            let claim = changed.ops[at].claim;
            for op in changed.ops.iter_mut().filter(|op| op.claim == claim) {
                if let Answer::Active(items) = &op.answer {
                    op.answer = Answer::Active(items[1..].into());
                }
            }
            changed
        };
        places.into_iter().take(10).map(place).collect()
    });
}

#[test]
fn an_overtaken_set_is_found() {
    is_found("not first come, first served", |history| {
        let mut places = Vec::new();
        for op in history.ops.iter().filter(|op| op.items.len() > 1 && op.answer == Answer::Waiting) {
            let later =
                history.ops.iter().filter(|other| other.claim == op.claim && other.answer == Answer::Waiting);
            let until_us = later.map(|other| other.called_us).max().unwrap_or(0);
            let of_its_own = op.items.iter().any(|item| item.mode != Mode::Shared);
            if !matches!(op.call, Call::Claim { .. }) || until_us < op.returned_us + 10 || !of_its_own {
                continue;
            }
            // It wants one thing more, which nobody has, and which somebody gets who comes later.
            let more = Item { resource: "one thing more".into(), mode: Mode::Exclusive };
            let mut changed = history.clone();
            for other in changed.ops.iter_mut().filter(|other| other.claim == op.claim) {
                other.items = other.items.iter().chain([&more]).cloned().collect();
                if let Answer::Active(items) = &other.answer {
                    let token = items.iter().map(|item| item.token).max().unwrap_or(0);
                    let grant = Grant { token, slots: Vec::new() };
                    other.answer = Answer::Active(items.iter().chain([&grant]).cloned().collect());
                }
            }
            add_claim(&mut changed, op.returned_us + 2, more, &[]);
            places.push(changed);
        }
        places.truncate(10);
        places
    });
}

#[test]
fn a_reader_that_is_locked_out_by_its_token_is_found() {
    is_found("locked out", |history| {
        let readers: Vec<Held> =
            held(history).into_iter().filter(|held| held.items[0].mode == Mode::Shared).collect();
        let beside = |one: &Held, other: &Held| {
            one.claim != other.claim
                && one.items[0].resource == other.items[0].resource
                && one.grant[0].token == other.grant[0].token
                && one.from_us < other.from_us
                && one.until_us > other.from_us + 2
                && other.items.len() == 1
        };
        let (mut places, last) = (Vec::new(), last_readers(history));
        for one in &readers {
            for other in last.iter().filter(|other| beside(one, other)) {
                let mut changed = history.clone();
                let token = token_at(history, other.from_us);
                for op in changed.ops.iter_mut().filter(|op| op.claim == other.claim) {
                    if matches!(op.answer, Answer::Active(_)) {
                        op.answer = Answer::active(token);
                    }
                }
                places.push(changed);
            }
        }
        places.truncate(10);
        places
    });
}
