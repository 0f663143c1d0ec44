//! Random stories: batches of commands over a handful of names, so that everything collides.
//!
//! In:    proptest's randomness. Out: [`Step`]s.
//! Never: knows the state of the table: a command may well be nonsense.

use std::sync::Arc;

use leasehold_core::{
    Budgets, ClaimId, Command, Data, Ending, Format, Guard, Idempotency, Item, Mode, NewClaim, NewSet,
    OnBusy, Scope, Settings, Target,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// One step of a story.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// The stamps move by so much and one entry is applied.
    Entry {
        /// Table clock, in microseconds; below zero the stamp goes back.
        now_us: i64,
        /// Wall clock, on top of that.
        wall_us: i64,
        /// The commands.
        commands: Vec<Command>,
    },
    /// The table goes through its bytes.
    Snapshot,
}

/// A story of up to `len` steps.
pub(crate) fn story(len: usize) -> impl Strategy<Value = Vec<Step>> {
    vec(step(), 1..=len)
}

/// A story of up to `len` steps with sets in it. Never more is due at once than one entry ends.
pub(crate) fn story_of_sets(len: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        200 => entry(vec(command_with_sets(), 0..5).boxed()),
        12 => Just(Step::Snapshot),
    ];
    // Nearly always at the newest table version from the beginning.
    let upgrade = prop_oneof![1 => Just(1), 1 => Just(2), 20 => Just(3)];
    (upgrade, vec(step, 1..=len)).prop_map(|(version, steps)| {
        let commands = vec![Command::Upgrade { version }];
        std::iter::once(Step::Entry { now_us: 1, wall_us: 0, commands }).chain(steps).collect()
    })
}

/// The same with crowds in it: more is due, and more fits at once, than one entry takes.
pub(crate) fn story_of_crowds(len: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        40 => entry(vec(command_with_sets(), 0..5).boxed()),
        3 => entry(crowd().boxed()),
        4 => Just(Step::Snapshot),
    ];
    vec(step, 1..=len).prop_map(|steps| {
        let commands = vec![Command::Upgrade { version: 3 }];
        std::iter::once(Step::Entry { now_us: 1, wall_us: 0, commands }).chain(steps).collect()
    })
}

fn entry(commands: BoxedStrategy<Vec<Command>>) -> impl Strategy<Value = Step> {
    (jump(), prop_oneof![8 => Just(0), 1 => -5_000i64..5_000], commands)
        .prop_map(|(now_us, wall_us, commands)| Step::Entry { now_us, wall_us, commands })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        200 => entry(vec(command(), 0..5).boxed()),
        1 => entry(burst().boxed()),
        12 => Just(Step::Snapshot),
    ]
}

fn jump() -> impl Strategy<Value = i64> {
    prop_oneof![4 => Just(0), 3 => 1i64..4, 6 => 1i64..200, 2 => 200i64..3_000, 1 => -300i64..0]
}

fn time() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(0), 2 => 1u64..4, 8 => 1u64..400, 1 => 1_000u64..100_000]
}

fn id() -> impl Strategy<Value = ClaimId> {
    (1u128..30).prop_map(ClaimId::from_u128)
}

fn resource() -> impl Strategy<Value = Arc<str>> {
    prop_oneof![
        6 => Just("a/1"),
        3 => Just("a/2"),
        2 => Just("b/1"),
        1 => Just("b/c/1"),
        1 => Just("a/leases/1"),
        1 => Just("a/leases/1/2"),
        1 => Just("top"),
    ]
    .prop_map(Arc::from)
}

fn owner() -> impl Strategy<Value = Arc<str>> {
    prop_oneof![Just("ann"), Just("bob"), Just("cid")].prop_map(Arc::from)
}

fn data() -> impl Strategy<Value = Option<Data>> {
    // Some large enough to count in a budget.
    let bytes = prop_oneof![3 => vec(any::<u8>(), 0..3), 1 => vec(any::<u8>(), 200..600)];
    let data = (any::<bool>(), bytes).prop_map(|(json, bytes)| Data {
        format: if json { Format::Json } else { Format::Bytes },
        bytes: bytes.into(),
    });
    option::weighted(0.3, data)
}

fn reason() -> impl Strategy<Value = Option<Arc<str>>> {
    option::weighted(0.3, prop_oneof![Just("why"), Just("")].prop_map(Arc::from))
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![id().prop_map(Target::Claim), resource().prop_map(Target::Holder)]
}

fn guard() -> impl Strategy<Value = Guard> {
    (option::weighted(0.3, owner()), option::weighted(0.15, 1u64..60))
        .prop_map(|(owner, version)| Guard { owner, version })
}

fn on_busy() -> impl Strategy<Value = OnBusy> {
    prop_oneof![
        4 => Just(OnBusy::Queue),
        3 => time().prop_map(|wait_us| OnBusy::QueueFor { wait_us }),
        1 => Just(OnBusy::Refuse),
    ]
}

fn new_claim() -> impl Strategy<Value = NewClaim> {
    let idempotency = (0u128..4, 0u64..2).prop_map(|(key, fingerprint)| Idempotency { key, fingerprint });
    let ttl = option::weighted(0.8, time());
    (id(), resource(), owner(), ttl, on_busy(), data(), option::weighted(0.2, idempotency)).prop_map(
        |(id, resource, owner, ttl_us, on_busy, data, idempotency)| NewClaim {
            id,
            resource,
            owner,
            ttl_us,
            on_busy,
            data,
            idempotency,
        },
    )
}

fn mode() -> impl Strategy<Value = Mode> {
    let slots = (0u16..4, 2u16..4).prop_map(|(take, of)| Mode::Slots { take, of });
    prop_oneof![
        4 => Just(Mode::Exclusive),
        4 => Just(Mode::Shared),
        3 => (1u16..3).prop_map(|take| Mode::Slots { take, of: 3 }),
        1 => slots,
    ]
}

fn new_set() -> impl Strategy<Value = NewSet> {
    let items = vec((resource(), mode()).prop_map(|(resource, mode)| Item { resource, mode }), 1..4);
    // Twice the same resource is for the golden scripts: nearly all sets make sense.
    let items = (items, 0u8..20).prop_map(|(mut items, odd)| {
        if odd > 0 {
            let mut seen: Vec<Arc<str>> = Vec::new();
            items.retain(|item| {
                !seen.contains(&item.resource) && {
                    seen.push(item.resource.clone());
                    true
                }
            });
        }
        items
    });
    let session = prop_oneof![Just("s"), Just("s/a"), Just("s/b"), Just("s/a/1"), Just("t"), Just("sa")];
    let session = option::weighted(0.6, session.prop_map(Arc::from));
    (new_claim(), items, session, any::<bool>()).prop_map(|(new, items, session, lapses)| NewSet {
        id: new.id,
        items,
        owner: new.owner,
        ttl_us: new.ttl_us,
        on_busy: new.on_busy,
        data: new.data,
        idempotency: new.idempotency,
        session,
        lapses,
    })
}

fn command_with_sets() -> impl Strategy<Value = Command> {
    prop_oneof![
        40 => command(),
        30 => new_set().prop_map(|new| Command::ClaimSet(Box::new(new))),
        2 => (1u32..=3).prop_map(|version| Command::Upgrade { version }),
        3 => Just(Command::Configure(Settings { finished_max: 10, ..Settings::default() })),
        6 => (id(), ending()).prop_map(|(id, ending)| Command::Finish {
            target: Target::Claim(id),
            guard: Guard::default(),
            ending,
            reason: None,
            purge_data: false,
        }),
    ]
}

/// A writer, and behind it more claims than one entry admits; then perhaps the writer's end.
fn crowd() -> impl Strategy<Value = Vec<Command>> {
    let ttl = option::weighted(0.7, 1u64..300);
    (300u128..600, ttl, any::<bool>(), mode(), any::<bool>()).prop_map(
        |(count, ttl_us, reserve, mode, ends)| {
            let roomy = Command::Configure(Settings { finished_max: 5, ..Settings::default() });
            let item = |resource: &str, mode| Item { resource: resource.into(), mode };
            let set = |id: u128, items| {
                let new = NewSet {
                    id: ClaimId::from_u128(id),
                    items,
                    owner: "bob".into(),
                    ttl_us,
                    on_busy: OnBusy::Queue,
                    data: None,
                    idempotency: None,
                    session: None,
                    lapses: id.is_multiple_of(3),
                };
                Command::ClaimSet(Box::new(new))
            };
            let all = |mode| vec![item("c/1", mode), item("c/2", Mode::Shared), item("a/1", Mode::Shared)];
            let writer =
                Command::Claim(NewClaim::new(ClaimId::from_u128(999), "c/1", "bob", ttl_us, OnBusy::Queue));
            let second =
                set(998, if reserve { all(Mode::Exclusive) } else { vec![item("c/2", Mode::Exclusive)] });
            let crowd =
                (1_000..1_000 + count).map(|id| set(id, all(if id % 50 == 0 { mode } else { Mode::Shared })));
            let end = |id: u128| Command::Finish {
                target: Target::Claim(ClaimId::from_u128(id)),
                guard: Guard::default(),
                ending: Ending::Withdrawn,
                reason: None,
                purge_data: false,
            };
            let ends = if ends { vec![end(999), end(998)] } else { Vec::new() };
            [roomy, writer, second].into_iter().chain(crowd).chain(ends).collect()
        },
    )
}

fn lock_all() -> impl Strategy<Value = Command> {
    let items = vec((id(), resource()), 0..4).prop_map(|mut items| {
        // Ids are drawn at random by one node: they don't repeat within a command.
        items.sort_by_key(|(id, _)| *id);
        items.dedup_by_key(|(id, _)| *id);
        items.reverse();
        items
    });
    (items, owner(), option::weighted(0.5, time()), data())
        .prop_map(|(items, owner, ttl_us, data)| Command::LockAll { items, owner, ttl_us, data })
}

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![
        3 => Just(Ending::Released),
        1 => Just(Ending::Aborted),
        1 => Just(Ending::Withdrawn),
        1 => Just(Ending::Revoked),
    ]
}

fn limit() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(1_000_000), 1 => 0u64..6]
}

fn settings() -> impl Strategy<Value = Settings> {
    let finished_max = prop_oneof![2 => 0u64..10, 1 => Just(100)];
    let grace = prop_oneof![Just(0), 1u64..300];
    (finished_max, limit(), limit(), limit(), limit(), grace).prop_map(
        |(finished_max, queue, owner, namespace, all, pickup_grace_us)| Settings {
            finished_max,
            queue_len_max: queue,
            claims_per_owner_max: owner,
            claims_per_namespace_max: namespace,
            claims_max: all,
            pickup_grace_us,
        },
    )
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(1_000_000), 3 => 0u64..1_500]
}

fn budgets() -> impl Strategy<Value = Budgets> {
    (bytes(), bytes(), bytes(), bytes()).prop_map(|(total, per_owner, per_namespace, finished)| Budgets {
        total,
        per_owner,
        per_namespace,
        finished,
    })
}

fn set_budget() -> impl Strategy<Value = Command> {
    let owner = prop_oneof![Just(""), Just("a"), Just("ann"), Just("b")].prop_map(Arc::from);
    let namespace = prop_oneof![Just(""), Just("a"), Just("b"), Just("b/c")].prop_map(Arc::from);
    let scope = prop_oneof![
        Just(Scope::Total),
        Just(Scope::Finished),
        owner.prop_map(Scope::Owner),
        namespace.prop_map(Scope::Namespace),
    ];
    (scope, option::weighted(0.6, bytes())).prop_map(|(scope, bytes)| Command::SetBudget { scope, bytes })
}

fn command() -> impl Strategy<Value = Command> {
    let renew = (target(), guard(), option::weighted(0.4, time()), data())
        .prop_map(|(target, guard, ttl_us, data)| Command::Renew { target, guard, ttl_us, data });
    let finish = (target(), guard(), ending(), reason(), any::<bool>()).prop_map(
        |(target, guard, ending, reason, purge_data)| Command::Finish {
            target,
            guard,
            ending,
            reason,
            purge_data,
        },
    );
    let revoke = (option::weighted(0.7, resource()), prop_oneof![0u64..300, Just(u64::MAX)], reason())
        .prop_map(|(resource, before, reason)| Command::Revoke { resource, before, reason });
    prop_oneof![
        40 => new_claim().prop_map(Command::Claim),
        10 => id().prop_map(|id| Command::Activate { id }),
        5 => (id(), reason()).prop_map(|(id, reason)| Command::RevokeWhenGone { id, reason }),
        6 => (id(), time()).prop_map(|(id, wait_us)| Command::Await { id, wait_us }),
        12 => renew,
        14 => finish,
        8 => lock_all(),
        2 => revoke,
        3 => vec(resource(), 0..3).prop_map(|resources| Command::Settle { resources }),
        3 => Just(Command::Tick),
        3 => settings().prop_map(Command::Configure),
        2 => (1u32..=2).prop_map(|version| Command::Upgrade { version }),
        2 => budgets().prop_map(Command::ConfigureBudgets),
        2 => set_budget(),
        1 => Just(Command::Refuse),
    ]
}

/// More claims at once than one entry ends or one command revokes.
fn burst() -> impl Strategy<Value = Vec<Command>> {
    (500u128..800, 1u64..300, any::<bool>()).prop_map(|(count, ttl_us, queue)| {
        let roomy = Command::Configure(Settings { finished_max: 5, ..Settings::default() });
        let claims = (1_000..1_000 + count).map(|i| {
            let resource = if queue { format!("q/{}", i % 3) } else { format!("burst/{i}") };
            let wait_us = ttl_us + u64::from(i % 2 == 0);
            let on_busy = if queue { OnBusy::QueueFor { wait_us } } else { OnBusy::Queue };
            Command::Claim(NewClaim::new(ClaimId::from_u128(i), &resource, "bob", Some(ttl_us), on_busy))
        });
        std::iter::once(roomy).chain(claims).collect()
    })
}
