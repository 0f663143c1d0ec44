//! Simulated clients that give the engine commands, who write down what they asked and were told.
//!
//! In:    nodes that may be down. Out: operations in the world's history.
//! Never: takes silence for a no.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    ClaimId, Command, Ending, Guard, ItemView, NewClaim, OnBusy, Outcome, Rejection, Status, Target, View,
};
use leasehold_engine::machine::simulated::runtime::{self, now_us, sleep_us, timeout};
use leasehold_engine::{Engine, EngineError};
use tokio::sync::oneshot;

use super::{DRIFT_PPM_MAX, life, world};
use crate::history::{Answer, Call, Grant, Handle, Item, Mode, Op};
use crate::random::Random;

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(8);

/// One client.
pub(super) struct Client {
    pub(super) number: u64,
    pub(super) random: Random,
}

pub(super) struct Held {
    pub(super) handle: Handle,
    pub(super) items: Arc<[Item]>,
    pub(super) id: ClaimId,
    /// How often it was to be renewed.
    pub(super) renewals: u32,
}

pub(super) fn of_view(view: &View) -> Answer {
    let grant = |item: &ItemView| Grant { token: item.token, slots: item.slots.clone() };
    let items = view.items().iter().map(grant);
    // What waits shows neither a token nor a slot; whoever sees one sees a part of a set.
    let shows_some = view.items().iter().any(|item| item.token > 0 || !item.slots.is_empty());
    match view.claim.status {
        Status::Active if view.items().is_empty() => Answer::active(view.claim.token),
        Status::Active => Answer::Active(items.collect()),
        Status::Waiting if shows_some => Answer::Active(items.collect()),
        Status::Waiting => Answer::Waiting,
        _ => Answer::Over,
    }
}

/// What a lease of so long is sure to last, with clocks as bad as they may be.
pub(super) fn sure_us(ttl_us: u64) -> u64 {
    ttl_us - 2 * ttl_us * DRIFT_PPM_MAX / 1_000_000
}

/// A number for a claim.
pub(super) fn new_handle() -> Handle {
    world::with(|world| {
        world.handles += 1;
        world.handles
    })
}

/// Writes an operation down.
pub(super) fn note(
    client: u64,
    (claim, items): (Handle, &Arc<[Item]>),
    call: Call,
    called_us: u64,
    answer: &Answer,
) {
    let (items, answer) = (items.clone(), answer.clone());
    let returned_us = if answer == Answer::Unknown { u64::MAX } else { now_us() };
    world::with(|world| {
        world.acknowledged.extend(answer.tokens().map(|token| (returned_us, token)));
        world.ops.push(Op { client, items, claim, call, called_us, returned_us, answer });
    });
}

impl Client {
    /// Works until the world stops.
    pub(super) async fn run(mut self) {
        world::with(|world| world.clients_at_work += 1);
        while !world::with(|world| world.stop) {
            match self.number {
                MIXED.. => self.mixed().await,
                number if number.is_multiple_of(2) => self.once().await,
                number => life::live(number, &mut self.random).await,
            }
            sleep_us(self.random.below(100_000)).await;
        }
        world::with(|world| world.clients_at_work -= 1);
    }

    pub(super) fn note(&self, held: &Held, call: Call, called_us: u64, answer: &Answer) {
        note(self.number, (held.handle, &held.items), call, called_us, answer);
    }

    /// Asks some node; `None` if there was no answer.
    async fn ask<A, F, Fut>(&mut self, ask: F) -> Option<A>
    where
        A: Send + 'static,
        F: FnOnce(Arc<Engine>) -> Fut,
        Fut: Future<Output = A> + Send + 'static,
    {
        let node = world::any_node(&mut self.random).unwrap_or(0);
        let Some(at) = world::node(node) else {
            sleep_us(100_000).await;
            return None;
        };
        let (reply, answer) = oneshot::channel();
        let asked = ask(at.engine);
        runtime::spawn_on(node, async move {
            reply.send(asked.await).ok();
        });
        timeout(PATIENCE, answer).await.ok()?.ok()
    }

    /// The outcome, or an error of which the service says that nothing happened, or nobody knows.
    pub(super) async fn submit(&mut self, command: Command) -> Option<Result<Outcome, EngineError>> {
        let asked = |engine: Arc<Engine>| async move {
            engine.require_table_version(command.table_version()).await?;
            engine.submit(command).await
        };
        let asked = self.ask(asked).await?;
        if asked == Err(EngineError::Unknown) { None } else { Some(asked) }
    }

    /// A claim that is about to be made.
    pub(super) fn begin(&mut self, items: Arc<[Item]>) -> Held {
        let handle = new_handle();
        let id = ClaimId::from_u128(u128::from(handle) << 64 | u128::from(self.random.next()));
        world::with(|world| world.claims.push((handle, items.clone(), id)));
        Held { handle, items, id, renewals: 0 }
    }

    /// One of its own: a release "of whatever this owner holds" that comes late must not meet a later claim.
    pub(super) fn owner_of(&self, held: &Held) -> String {
        format!("client {} #{}", self.number, held.handle)
    }

    async fn once(&mut self) {
        let resource = format!("r{}", self.random.below(3));
        let held = self.begin(Item::alone(&resource));
        let ttl_us = self.random.between(200_000, 3_000_000);
        let on_busy = if self.random.percent(80) { OnBusy::Queue } else { OnBusy::Refuse };
        let new =
            Command::Claim(NewClaim::new(held.id, &resource, &self.owner_of(&held), Some(ttl_us), on_busy));
        self.lead(held, &new, ttl_us).await;
    }

    /// Makes a claim and leads it to its end.
    pub(super) async fn lead(&mut self, mut held: Held, new: &Command, ttl_us: u64) {
        let mut answer = self.make(&held, new, Some(ttl_us), 4).await;
        for _ in 0..40 {
            if answer != Answer::Waiting || world::with(|world| world.stop) {
                break;
            }
            sleep_us(self.random.below(150_000)).await;
            // Claims with items wait only as long as somebody asks for them.
            answer = match matches!(new, Command::ClaimSet(_)) && self.random.percent(70) {
                true => self.activate(&held, ttl_us).await,
                false => self.look(&held).await,
            };
        }
        self.look_at_age().await;
        match answer {
            Answer::Active(_) => self.hold(&mut held, ttl_us).await,
            Answer::Waiting => {
                self.finish(&held, Target::Claim(held.id), Ending::Withdrawn).await;
            }
            _ => {}
        }
    }

    /// Asks for a claim until there is an answer, so many times at most.
    pub(super) async fn make(
        &mut self,
        held: &Held,
        new: &Command,
        ttl_us: Option<u64>,
        tries: u64,
    ) -> Answer {
        let handle = held.handle;
        let call = Call::Claim { ttl_us: ttl_us.map(sure_us) };
        let called_us = now_us();
        let mut answer = Answer::Unknown;
        let mut unknown = false;
        for _ in 0..tries {
            // The same id: the same claim, however often it is asked for.
            answer = match self.submit(new.clone()).await {
                Some(Ok(Outcome::Existing(_))) if !unknown => {
                    world::violate(format!(
                        "refused yet done: claim #{handle} was there although nothing was to have happened"
                    ));
                    return Answer::Unknown;
                }
                Some(Ok(Outcome::Granted(view) | Outcome::Queued(view) | Outcome::Existing(view))) => {
                    of_view(&view)
                }
                // Claims on this resource are still ending.
                Some(Ok(Outcome::Rejected(Rejection::Unsettled(_)))) => {
                    sleep_us(self.random.between(50_000, 300_000)).await;
                    continue;
                }
                Some(Ok(Outcome::Rejected(rejection))) if is_refusal(&rejection) => match unknown {
                    false => Answer::Refused,
                    true => Answer::Unknown,
                },
                Some(Ok(other)) => {
                    world::violate(format!("a claim was answered with {other}"));
                    return Answer::Unknown;
                }
                // Nothing happened.
                Some(Err(_)) => {
                    sleep_us(self.random.between(50_000, 300_000)).await;
                    continue;
                }
                None => {
                    unknown = true;
                    continue;
                }
            };
            break;
        }
        if answer == Answer::Unknown && !unknown {
            world::with(|world| world.never.insert(handle));
        }
        self.note(held, call, called_us, &answer);
        answer
    }

    /// A table that is said to be no older than so much has every token that was acknowledged before that.
    async fn look_at_age(&mut self) {
        let read = |engine: Arc<Engine>| async move {
            // As a stale read: first how old the table may be, then what is in it, and then what has passed since.
            let freshness = engine.freshness();
            let token = engine.read(|table, _| table.last_token());
            (token, freshness.bound(), now_us())
        };
        let Some((token, Some(bound), at_us)) = self.ask(read).await else { return };
        let bound_us = bound.as_micros() as u64;
        // The node's clock may be slow.
        let sure_us = at_us.saturating_sub(bound_us + 2 * bound_us * DRIFT_PPM_MAX / 1_000_000 + 1);
        let missed = world::with(|world| {
            let known = world.acknowledged.iter().filter(|(us, _)| *us < sure_us);
            known.map(|(_, token)| *token).max().filter(|newest| *newest > token)
        });
        if let Some(newest) = missed {
            world::violate(format!(
                "false age: a table with token {token} was said to be {bound_us} us old at most, and lacked {newest}"
            ));
        }
        world::count("age-read");
    }

    pub(super) async fn look(&mut self, held: &Held) -> Answer {
        let (called_us, id) = (now_us(), held.id);
        let read = |engine: Arc<Engine>| async move {
            engine.barrier().await.ok()?;
            engine.claim_settled(id).await.ok()
        };
        let answer = match self.ask(read).await.flatten() {
            Some(Some(view)) => {
                self.count_renewals(held, &view);
                of_view(&view)
            }
            Some(None) => Answer::Gone,
            None => Answer::Unknown,
        };
        self.note(held, Call::Read, called_us, &answer);
        if answer != Answer::Unknown
            && answer != Answer::Gone
            && world::with(|world| world.never.contains(&held.handle))
        {
            world::violate(format!(
                "refused yet done: claim #{} is there although nothing was to have happened",
                held.handle
            ));
        }
        // Silence says nothing new.
        if answer == Answer::Unknown { Answer::Waiting } else { answer }
    }

    /// Asks for a claim that waits, as whoever wants to stay in line does.
    async fn activate(&mut self, held: &Held, ttl_us: u64) -> Answer {
        let called_us = now_us();
        let command = match self.random.percent(50) {
            true => Command::Activate { id: held.id },
            false => Command::Await { id: held.id, wait_us: self.random.below(100_000) },
        };
        let answer = match self.submit(command).await {
            Some(Ok(Outcome::Active(view) | Outcome::Rejected(Rejection::Waiting(view)))) => of_view(&view),
            Some(Ok(Outcome::Rejected(Rejection::Final(_)))) => Answer::Over,
            Some(Ok(other)) => {
                world::violate(format!("a question for a claim was answered with {other}"));
                Answer::Unknown
            }
            Some(Err(_)) | None => Answer::Unknown,
        };
        self.note(held, Call::Activate { ttl_us: sure_us(ttl_us) }, called_us, &answer);
        // Silence says nothing new.
        if answer == Answer::Unknown { Answer::Waiting } else { answer }
    }

    /// Nobody else renews it: what is sent once happens once.
    fn count_renewals(&self, held: &Held, view: &View) {
        if self.number != READER && view.claim.renewals > held.renewals {
            world::violate(format!(
                "happened twice: claim #{} was renewed {} times, and its client asked for {}",
                held.handle, view.claim.renewals, held.renewals
            ));
        }
    }

    async fn hold(&mut self, held: &mut Held, ttl_us: u64) {
        for _ in 0..self.random.below(4) {
            sleep_us(self.random.below(60_000)).await;
            let (target, guard) = (Target::Claim(held.id), Guard::default());
            let called_us = now_us();
            held.renewals += 1;
            let renew = Command::Renew { target, guard, ttl_us: Some(ttl_us), data: None };
            let answer = match self.submit(renew).await {
                Some(Ok(Outcome::Renewed(view))) => {
                    self.count_renewals(held, &view);
                    of_view(&view)
                }
                Some(Ok(_)) => Answer::Over,
                Some(Err(_)) | None => Answer::Unknown,
            };
            self.note(held, Call::Renew { ttl_us: sure_us(ttl_us) }, called_us, &answer);
        }
        if self.random.percent(50) {
            self.look(held).await;
        }
        if self.random.percent(if self.number < MIXED { 70 } else { 90 }) {
            // A call that names a resource ends plain claims only.
            let target = match &held.items[..] {
                [Item { resource, mode: Mode::Exclusive }] if self.random.percent(50) => {
                    Target::Holder(resource.as_str().into())
                }
                _ => Target::Claim(held.id),
            };
            self.finish(held, target, Ending::Released).await;
        }
    }

    /// Ends a claim, and says what was answered.
    pub(super) async fn finish(&mut self, held: &Held, target: Target, ending: Ending) -> Answer {
        let guard = Guard { owner: Some(self.owner_of(held).into()), version: None };
        let finish = Command::Finish { target, guard, ending, reason: None, purge_data: false };
        let called_us = now_us();
        let (call, id) = (Call::Finish, held.id);
        let answer = match self.submit(finish).await {
            // An older claim of the same owner may have been meant: then this one is over already.
            Some(Ok(Outcome::Finished(view))) if view.claim.id == id => Answer::Done,
            Some(Ok(Outcome::Rejected(Rejection::Waiting(_)))) => Answer::Waiting,
            Some(Ok(_)) => Answer::Over,
            Some(Err(_)) | None => Answer::Unknown,
        };
        self.note(held, call, called_us, &answer);
        answer
    }
}

/// Whether a claim was refused because of others.
fn is_refusal(rejection: &Rejection) -> bool {
    matches!(
        rejection,
        Rejection::Busy(_) | Rejection::Blocked { .. } | Rejection::Deadlock(_) | Rejection::Capacity { .. }
    )
}

/// Asks a node once for a claim that nobody else wants, and remembers it if the answer is that nothing happened.
pub(super) fn claim_once(node: u64) {
    let Some(running) = world::node(node) else { return };
    let id = ClaimId::from_u128(runtime::random());
    // A long name fills the log.
    let owner = "once".repeat(60);
    let new = NewClaim::new(id, &format!("once {id}"), &owner, Some(1_000_000), OnBusy::Refuse);
    runtime::spawn_on(node, async move {
        if running.engine.submit(Command::Claim(new)).await.is_err_and(|error| error.is_certain()) {
            world::with(|world| world.refused_ids.push(id));
            world::count("certainly-refused");
        }
    });
}

/// A claim that is there although the service said that nothing happened, if there is one.
pub(super) fn refused_yet_done(engine: &Engine) -> Option<ClaimId> {
    let refused = world::with(|world| world.refused_ids.clone());
    engine.read(|table, now_us| refused.into_iter().find(|id| table.claim_view(*id, now_us).is_some()))
}

/// Numbers of the clients of all other kinds (`mixed.rs`) begin here.
pub(super) const MIXED: u64 = 6;
/// The number of the client that only reads.
pub(super) const READER: u64 = 99;

/// Asks for claims once everything is well again.
pub(super) async fn read_again(mut client: Client, claims: Vec<(Handle, Arc<[Item]>, ClaimId)>) {
    world::with(|world| world.clients_at_work += 1);
    for (handle, items, id) in claims {
        client.look(&Held { handle, items, id, renewals: 0 }).await;
    }
    world::with(|world| world.clients_at_work -= 1);
}
