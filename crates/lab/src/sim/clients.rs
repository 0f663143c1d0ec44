//! Simulated clients that give the engine commands, who write down what they asked and were told.
//!
//! In:    nodes that may be down. Out: operations in the world's history.
//! Never: takes silence for a no.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    ClaimId, Command, Ending, Guard, NewClaim, OnBusy, Outcome, Rejection, Status, Target, View,
};
use leasehold_engine::machine::simulated::runtime::{self, now_us, sleep_us, timeout};
use leasehold_engine::{Engine, EngineError};
use tokio::sync::oneshot;

use super::{DRIFT_PPM_MAX, life, world};
use crate::history::{Answer, Call, Handle, Op};
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
    pub(super) resource: String,
    pub(super) id: ClaimId,
    /// How often it was to be renewed.
    renewals: u32,
}

fn of_view(view: &View) -> Answer {
    match view.claim.status {
        Status::Active => Answer::Active { token: view.claim.token },
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
pub(super) fn note(client: u64, claim: Handle, resource: &str, call: Call, called_us: u64, answer: Answer) {
    let returned_us = if answer == Answer::Unknown { u64::MAX } else { now_us() };
    let resource = resource.to_string();
    if let Answer::Active { token } = answer {
        world::with(|world| world.acknowledged.push((returned_us, token)));
    }
    world::with(|world| world.ops.push(Op { client, resource, claim, call, called_us, returned_us, answer }));
}

impl Client {
    /// Works until the world stops.
    pub(super) async fn run(mut self) {
        world::with(|world| world.clients_at_work += 1);
        while !world::with(|world| world.stop) {
            match self.number.is_multiple_of(2) {
                true => self.once().await,
                false => life::live(self.number, &mut self.random).await,
            }
            sleep_us(self.random.below(100_000)).await;
        }
        world::with(|world| world.clients_at_work -= 1);
    }

    fn note(&self, held: &Held, call: Call, called_us: u64, answer: Answer) {
        note(self.number, held.handle, &held.resource, call, called_us, answer);
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
    async fn submit(&mut self, command: Command) -> Option<Result<Outcome, EngineError>> {
        let asked = self.ask(|engine| async move { engine.submit(command).await }).await?;
        if asked == Err(EngineError::Unknown) { None } else { Some(asked) }
    }

    async fn once(&mut self) {
        let handle = new_handle();
        let resource = format!("r{}", self.random.below(3));
        let id = ClaimId::from_u128(u128::from(handle) << 64 | u128::from(self.random.next()));
        world::with(|world| world.claims.push((handle, resource.clone(), id)));
        let mut held = Held { handle, resource, id, renewals: 0 };
        let ttl_us = self.random.between(200_000, 3_000_000);
        let on_busy = if self.random.percent(80) { OnBusy::Queue } else { OnBusy::Refuse };
        // One of its own: a release "of whatever this owner holds" that comes late must not meet a later claim.
        let owner = format!("client {} #{handle}", self.number);
        let new = Command::Claim(NewClaim::new(id, &held.resource, &owner, Some(ttl_us), on_busy));
        let call = Call::Claim { ttl_us: Some(sure_us(ttl_us)) };
        let called_us = now_us();
        let mut answer = Answer::Unknown;
        let mut unknown = false;
        for _ in 0..4 {
            // The same id: the same claim, however often it is asked for.
            answer = match self.submit(new.clone()).await {
                Some(Ok(Outcome::Existing(_))) if !unknown => {
                    return world::violate(format!(
                        "refused yet done: claim #{handle} was there although nothing was to have happened"
                    ));
                }
                Some(Ok(Outcome::Granted(view) | Outcome::Queued(view) | Outcome::Existing(view))) => {
                    of_view(&view)
                }
                Some(Ok(Outcome::Rejected(Rejection::Busy(_)))) if !unknown => Answer::Refused,
                Some(Ok(Outcome::Rejected(Rejection::Busy(_)))) => Answer::Unknown,
                Some(Ok(other)) => return world::violate(format!("a claim was answered with {other}")),
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
        self.note(&held, call, called_us, answer);
        for _ in 0..40 {
            if answer != Answer::Waiting || world::with(|world| world.stop) {
                break;
            }
            sleep_us(self.random.below(150_000)).await;
            answer = self.look(&held).await;
        }
        self.look_at_age().await;
        match answer {
            Answer::Active { .. } => self.hold(&mut held, &owner, ttl_us).await,
            Answer::Waiting => self.finish(&held, Target::Claim(held.id), Ending::Withdrawn, &owner).await,
            _ => {}
        }
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

    async fn look(&mut self, held: &Held) -> Answer {
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
        self.note(held, Call::Read, called_us, answer);
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

    /// Nobody else renews it: what is sent once happens once.
    fn count_renewals(&self, held: &Held, view: &View) {
        if self.number != READER && view.claim.renewals > held.renewals {
            world::violate(format!(
                "happened twice: claim #{} was renewed {} times, and its client asked for {}",
                held.handle, view.claim.renewals, held.renewals
            ));
        }
    }

    async fn hold(&mut self, held: &mut Held, owner: &str, ttl_us: u64) {
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
            self.note(held, Call::Renew { ttl_us: sure_us(ttl_us) }, called_us, answer);
        }
        if self.random.percent(50) {
            self.look(held).await;
        }
        if self.random.percent(70) {
            let target = match self.random.percent(50) {
                true => Target::Claim(held.id),
                false => Target::Holder(held.resource.as_str().into()),
            };
            self.finish(held, target, Ending::Released, owner).await;
        }
    }

    async fn finish(&mut self, held: &Held, target: Target, ending: Ending, owner: &str) {
        let guard = Guard { owner: Some(owner.into()), version: None };
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
        self.note(held, call, called_us, answer);
    }
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

/// The number of the client that only reads.
pub(super) const READER: u64 = 99;

/// Asks for claims once everything is well again.
pub(super) async fn read_again(mut client: Client, claims: Vec<(Handle, String, ClaimId)>) {
    world::with(|world| world.clients_at_work += 1);
    for (handle, resource, id) in claims {
        client.look(&Held { handle, resource, id, renewals: 0 }).await;
    }
    world::with(|world| world.clients_at_work -= 1);
}
