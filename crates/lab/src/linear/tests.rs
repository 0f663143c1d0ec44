//! Histories that can have happened pass; each kind of impossible one is caught.

use super::*;

/// `claim call..return what answer`, all on one resource unless said otherwise.
fn op(claim: Handle, (called_us, returned_us): (u64, u64), call: Call, answer: Answer) -> Op {
    Op { client: claim, items: Item::alone("r"), claim, call, called_us, returned_us, answer }
}

const CLAIM: Call = Call::Claim { ttl_us: Some(1000) };
const FOREVER: Call = Call::Claim { ttl_us: None };

fn active(token: u64) -> Answer {
    Answer::active(token)
}

fn verdict(ops: &[Op]) -> Result<(), String> {
    check(&History { ops: ops.to_vec() }).map_err(|violation| violation.what)
}

#[track_caller]
fn caught(ops: &[Op], how: &str) {
    let what = verdict(ops).expect_err("this can't have happened");
    assert!(what.contains(how), "caught as: {what}");
}

/// One holds, the other waits, is granted after the release, and expires.
fn good() -> Vec<Op> {
    vec![
        op(1, (0, 10), CLAIM, active(1)),
        op(2, (20, 30), CLAIM, Answer::Waiting),
        op(2, (40, 50), Call::Read, Answer::Waiting),
        op(1, (100, 120), Call::Finish, Answer::Done),
        op(2, (110, 130), Call::Read, active(2)),
        op(3, (140, 150), CLAIM, Answer::Refused),
        op(2, (1150, 1160), Call::Read, Answer::Over),
        op(4, (1170, 1180), CLAIM, active(3)),
    ]
}

#[test]
fn what_can_have_happened_passes() {
    verdict(&good()).unwrap();
    verdict(&[]).unwrap();
}

#[test]
fn two_holders_are_caught() {
    let mut ops = good();
    ops[4] = op(2, (60, 90), Call::Read, active(2));
    ops.retain(|op| op.answer != Answer::Waiting || op.call == CLAIM);
    caught(&ops, "certainly held");
}

#[test]
fn a_grant_that_overlaps_the_release_passes_and_one_before_it_is_caught() {
    let two =
        |granted| [op(1, (0, 10), FOREVER, active(1)), op(1, (50, 90), Call::Finish, Answer::Done), granted];
    verdict(&two(op(2, (20, 60), CLAIM, active(2)))).unwrap();
    caught(&two(op(2, (20, 40), CLAIM, active(2))), "certainly held");
}

#[test]
fn a_release_whose_outcome_is_unknown_may_have_happened_at_any_time_or_never() {
    let unknown = |granted| {
        [op(1, (0, 10), FOREVER, active(1)), op(1, (50, 50), Call::Finish, Answer::Unknown), granted]
    };
    verdict(&unknown(op(2, (9000, 9010), CLAIM, active(2)))).unwrap();
    verdict(&unknown(op(2, (9000, 9010), CLAIM, Answer::Waiting))).unwrap();
    caught(&unknown(op(2, (20, 40), CLAIM, active(2))), "certainly held");
}

#[test]
fn a_token_that_goes_back_or_comes_twice_is_caught() {
    let other = |answer, (call, ret)| Op { items: Item::alone("other"), ..op(2, (call, ret), CLAIM, answer) };
    caught(&[op(1, (0, 10), CLAIM, active(7)), other(active(3), (20, 30))], "before a smaller one");
    caught(&[op(1, (0, 10), CLAIM, active(7)), other(active(7), (0, 10))], "given twice");
    verdict(&[op(1, (0, 10), CLAIM, active(7)), other(active(3), (5, 30))]).unwrap();
}

#[test]
fn an_acknowledged_claim_that_is_lost_is_caught() {
    let mut ops = good();
    ops.push(op(4, (1190, 1200), Call::Read, Answer::Gone));
    caught(&ops, "is lost");
    // What nobody acknowledged may be unknown.
    verdict(&[op(1, (0, 0), CLAIM, Answer::Unknown), op(1, (5, 6), Call::Read, Answer::Gone)]).unwrap();
}

#[test]
fn overtaking_in_the_queue_is_caught() {
    let queue = [
        op(1, (0, 10), FOREVER, active(1)),
        op(2, (20, 30), CLAIM, Answer::Waiting),
        op(3, (40, 50), CLAIM, Answer::Waiting),
        op(1, (60, 70), Call::Finish, Answer::Done),
        op(3, (80, 90), Call::Read, active(2)),
    ];
    let mut both = queue.to_vec();
    both.push(op(3, (100, 110), Call::Finish, Answer::Done));
    both.push(op(2, (120, 130), Call::Read, active(3)));
    caught(&both, "first come");
    let mut still_waits = queue.to_vec();
    still_waits.push(op(2, (95, 100), Call::Read, Answer::Waiting));
    caught(&still_waits, "first come");
}

#[test]
fn a_stale_read_is_caught() {
    let mut ops = good();
    ops.push(op(2, (135, 140), Call::Read, Answer::Waiting));
    assert!(verdict(&ops).is_err(), "it was told that it holds");
    let mut ops = good();
    ops.push(op(1, (125, 140), Call::Read, active(1)));
    assert!(verdict(&ops).is_err(), "it was told that it is over");
}

#[test]
fn an_end_before_the_ttl_as_the_holder_counts_it_is_caught() {
    let mut ops = good();
    ops[6] = op(2, (900, 910), Call::Read, Answer::Over);
    caught(&ops, "over before");
    let renewed = |granted| {
        [
            op(1, (0, 10), CLAIM, active(1)),
            op(1, (500, 600), Call::Renew { ttl_us: 1000 }, active(1)),
            op(2, granted, CLAIM, active(2)),
        ]
    };
    verdict(&renewed((1490, 1500))).unwrap();
    caught(&renewed((1400, 1499)), "its ttl ran");
}

#[test]
fn a_grant_may_be_dated_before_it_is_seen_but_not_before_its_holder_was_gone() {
    let handed_over = |over| {
        [
            op(1, (0, 10), CLAIM, active(1)),
            op(2, (20, 30), CLAIM, Answer::Waiting),
            op(1, (100, 300), Call::Finish, Answer::Done),
            op(2, (200, 210), Call::Read, Answer::Waiting),
            op(2, (290, 310), Call::Read, active(2)),
            op(2, over, Call::Read, Answer::Over),
        ]
    };
    verdict(&handed_over((1150, 1160))).unwrap();
    caught(&handed_over((1050, 1090)), "over before");
}

#[test]
fn a_refusal_while_nobody_held_is_caught() {
    let freed = [
        op(1, (0, 10), CLAIM, active(1)),
        op(1, (20, 30), Call::Finish, Answer::Done),
        op(2, (40, 50), CLAIM, Answer::Refused),
    ];
    caught(&freed, "nobody held");
}

#[test]
fn a_claim_that_was_asked_for_twice_may_have_been_made_by_the_first_call() {
    let asked = |first| {
        [
            op(1, (first, 1500), CLAIM, Answer::Over),
            op(2, (40, 50), CLAIM, Answer::Refused),
            op(1, (1600, 1700), CLAIM, Answer::Over),
        ]
    };
    verdict(&asked(20)).unwrap();
    caught(&asked(60), "nobody held");
}

// ---- shared, slots and sets

fn want(resource: &str, mode: Mode) -> Item {
    Item { resource: resource.into(), mode }
}

const SHARED: Mode = Mode::Shared;

fn slots(take: u16) -> Mode {
    Mode::Slots { take, of: 3 }
}

/// The same for a claim on other items.
fn on(items: &[Item], op: Op) -> Op {
    Op { items: items.into(), ..op }
}

fn reader(op: Op) -> Op {
    on(&[want("r", SHARED)], op)
}

fn holds(items: &[(u64, &[u16])]) -> Answer {
    let grant = |(token, slots): &(u64, &[u16])| Grant { token: *token, slots: slots.to_vec() };
    Answer::Active(items.iter().map(grant).collect())
}

fn released(claim: Handle, us: u64) -> Op {
    op(claim, (us, us + 5), Call::Finish, Answer::Done)
}

/// Two readers together, a writer behind them, and a reader behind the writer.
fn readers() -> Vec<Op> {
    vec![
        reader(op(1, (0, 10), FOREVER, active(1))),
        reader(op(2, (20, 30), FOREVER, active(1))),
        op(3, (40, 50), FOREVER, Answer::Waiting),
        reader(op(4, (60, 70), FOREVER, Answer::Waiting)),
        reader(op(5, (75, 80), FOREVER, Answer::Refused)),
        reader(released(1, 100)),
        reader(released(2, 110)),
        op(3, (120, 130), Call::Read, active(2)),
        released(3, 140),
        reader(op(4, (150, 160), Call::Read, active(3))),
        reader(released(4, 170)),
        reader(op(6, (180, 190), FOREVER, active(4))),
    ]
}

/// Two of three slots, then the third, and the first again.
fn pool() -> Vec<Op> {
    let of = |take, op| on(&[want("r", slots(take))], op);
    vec![
        of(2, op(1, (0, 10), FOREVER, holds(&[(1, &[1, 2])]))),
        of(1, op(2, (20, 30), FOREVER, holds(&[(2, &[3])]))),
        of(1, op(3, (40, 50), FOREVER, Answer::Waiting)),
        of(1, op(7, (52, 54), FOREVER, Answer::Refused)),
        of(2, released(1, 60)),
        of(1, op(3, (70, 80), Call::Read, holds(&[(3, &[1])]))),
        of(1, op(4, (90, 95), FOREVER, holds(&[(4, &[2])]))),
    ]
}

/// A set that waits for one of its two resources, and keeps others from the other one.
fn sets() -> Vec<Op> {
    let both = |op| on(&[want("r", Mode::Exclusive), want("s", SHARED)], op);
    let other = |mode, op| on(&[want("s", mode)], op);
    vec![
        op(1, (0, 10), FOREVER, active(1)),
        other(SHARED, op(2, (0, 10), FOREVER, active(2))),
        both(op(3, (20, 30), FOREVER, Answer::Waiting)),
        other(SHARED, op(4, (40, 50), FOREVER, active(2))),
        other(Mode::Exclusive, op(5, (60, 70), FOREVER, Answer::Waiting)),
        released(1, 80),
        both(op(3, (90, 100), Call::Read, holds(&[(3, &[]), (2, &[])]))),
        other(SHARED, released(2, 110)),
        other(SHARED, released(4, 120)),
        both(released(3, 130)),
        other(Mode::Exclusive, op(5, (140, 150), Call::Read, active(4))),
    ]
}

#[test]
fn sharing_slots_and_sets_pass() {
    for ops in [readers(), pool(), sets()] {
        verdict(&ops).unwrap();
    }
}

#[test]
fn a_writer_beside_a_reader_is_caught() {
    let mut ops = readers();
    ops[7] = op(3, (90, 95), Call::Read, active(2));
    caught(&ops, "certainly held");
    let mut ops = readers();
    ops[9] = reader(op(4, (120, 135), Call::Read, active(3)));
    caught(&ops, "certainly held");
}

#[test]
fn one_slot_too_many_is_caught() {
    let of = |take, op| on(&[want("r", slots(take))], op);
    let mut ops = pool();
    ops[5] = of(1, op(3, (52, 58), Call::Read, holds(&[(3, &[3])])));
    caught(&ops, "certainly held");
    let mut ops = pool();
    ops[5] = of(1, op(3, (70, 80), Call::Read, holds(&[(3, &[4])])));
    caught(&ops, "has slots");
    ops[5] = of(1, op(3, (70, 80), Call::Read, holds(&[(3, &[1, 2])])));
    caught(&ops, "has slots");
}

#[test]
fn a_part_of_a_set_is_caught() {
    let both = |op| on(&[want("r", Mode::Exclusive), want("s", SHARED)], op);
    for part in [holds(&[(3, &[]), (0, &[])]), holds(&[(3, &[])])] {
        let mut ops = sets();
        ops[6] = both(op(3, (90, 100), Call::Read, part));
        caught(&ops, "part of its set");
    }
    // One of its items is somebody else's before it is over.
    let mut ops = sets();
    ops[10] = on(&[want("s", Mode::Exclusive)], op(5, (122, 127), Call::Read, active(4)));
    caught(&ops, "certainly held");
}

#[test]
fn an_overtaken_set_is_caught() {
    let other = |op| on(&[want("s", Mode::Exclusive)], op);
    // The exclusive claim on the other resource came after the set and was granted before it.
    let mut ops = sets();
    ops.retain(|op| !matches!(op.claim, 2 | 4));
    ops[2] = other(op(5, (60, 70), FOREVER, active(2)));
    ops.truncate(3);
    ops.push(on(
        &[want("r", Mode::Exclusive), want("s", SHARED)],
        op(3, (75, 78), Call::Read, Answer::Waiting),
    ));
    caught(&ops, "first come");
    ops.push(other(released(5, 80)));
    ops.push(released(1, 90));
    ops.push(on(&ops[1].items.clone(), op(3, (100, 110), Call::Read, holds(&[(3, &[]), (3, &[])]))));
    ops.remove(3);
    caught(&ops, "first come");
}

#[test]
fn a_small_take_that_overtakes_a_large_one_is_caught() {
    let of = |take, op| on(&[want("r", slots(take))], op);
    let ops = [
        of(2, op(1, (0, 10), FOREVER, holds(&[(1, &[1, 2])]))),
        of(3, op(2, (20, 30), FOREVER, Answer::Waiting)),
        of(1, op(3, (40, 50), FOREVER, holds(&[(2, &[3])]))),
        of(3, op(2, (60, 70), Call::Read, Answer::Waiting)),
    ];
    caught(&ops, "first come");
}

#[test]
fn a_reader_that_is_locked_out_by_its_token_is_caught() {
    // The second reader came while the first one held, and has a larger token.
    let mut ops = readers();
    ops[1] = reader(op(2, (20, 30), FOREVER, active(2)));
    ops[7] = op(3, (120, 130), Call::Read, active(3));
    ops.truncate(8);
    caught(&ops, "locked out");
    // A set joins those who share, with the token of those who are gone.
    let both = |op| on(&[want("r", SHARED), want("s", Mode::Exclusive)], op);
    let mut ops = readers();
    ops.push(both(op(7, (200, 210), FOREVER, holds(&[(3, &[]), (5, &[])]))));
    caught(&ops, "locked out");
    ops.pop();
    ops.push(both(op(7, (200, 210), FOREVER, holds(&[(4, &[]), (5, &[])]))));
    verdict(&ops).unwrap();
}

#[test]
fn equal_tokens_beyond_one_phase_are_caught() {
    let phase = |bridge: Option<Op>| {
        let mut ops = vec![
            reader(op(1, (0, 10), FOREVER, active(1))),
            reader(released(1, 20)),
            reader(op(2, (40, 50), FOREVER, active(1))),
        ];
        ops.extend(bridge);
        ops
    };
    caught(&phase(None), "nobody shared");
    verdict(&phase(Some(reader(op(3, (5, 5), FOREVER, Answer::Unknown))))).unwrap();
    caught(&phase(Some(op(3, (5, 5), FOREVER, Answer::Unknown))), "nobody shared");
    // One token for two claims that don't share.
    caught(
        &[op(1, (0, 10), CLAIM, active(7)), on(&[want("s", SHARED)], op(2, (0, 10), CLAIM, active(7)))],
        "given twice",
    );
}

#[test]
fn a_waiting_claim_that_is_withdrawn_while_its_client_asks_is_caught() {
    let asks = |over: (u64, u64)| {
        [
            op(1, (0, 10), FOREVER, active(1)),
            reader(op(2, (20, 30), CLAIM, Answer::Waiting)),
            reader(op(2, (500, 510), Call::Activate { ttl_us: 1000 }, Answer::Waiting)),
            reader(op(2, over, Call::Read, Answer::Over)),
        ]
    };
    verdict(&asks((1490, 1500))).unwrap();
    caught(&asks((1400, 1499)), "was withdrawn");
}

#[test]
fn a_refusal_of_what_fits_is_caught() {
    let of = |take, op| on(&[want("r", slots(take))], op);
    caught(
        &[
            of(2, op(1, (0, 10), FOREVER, holds(&[(1, &[1, 2])]))),
            of(1, op(2, (20, 30), FOREVER, Answer::Refused)),
        ],
        "nobody held",
    );
    caught(
        &[reader(op(1, (0, 10), FOREVER, active(1))), reader(op(2, (20, 30), FOREVER, Answer::Refused))],
        "nobody held",
    );
}
