//! Simulated clients, who write down what they asked and were told.
//!
//! In:    nodes that may be down. Out: operations in the world's history.
//! Never: takes silence for a no.

use std::sync::Arc;

use leasehold_core::{
    ClaimId, Command, Ending, Guard, NewClaim, OnBusy, Outcome, Rejection, Status, Target, View,
};
use tokio::sync::oneshot;

use super::node::SimNode;
use super::runtime::{self, now_us, sleep_us};
use super::world;
use crate::history::{Answer, Call, Handle, Op};
use crate::random::Random;

/// Clocks of nodes may be so much too fast, in millionths; the checker allows for twice as much.
pub(super) const FAST_PPM_MAX: u64 = 1_000;

/// One client.
pub(super) struct Client {
    pub(super) number: u64,
    pub(super) random: Random,
    pub(super) nodes: u64,
}

struct Held {
    handle: Handle,
    resource: String,
    id: ClaimId,
}

fn of_view(view: &View) -> Answer {
    match view.claim.status {
        Status::Active => Answer::Active { token: view.claim.token },
        Status::Waiting => Answer::Waiting,
        _ => Answer::Over,
    }
}

impl Client {
    /// Works until the world stops.
    pub(super) async fn run(mut self) {
        world::with(|world| world.clients_at_work += 1);
        while !world::with(|world| world.stop) {
            self.once().await;
            sleep_us(self.random.below(100_000)).await;
        }
        world::with(|world| world.clients_at_work -= 1);
    }

    fn note(&self, held: &Held, call: Call, called_us: u64, answer: Answer) {
        let returned_us = if answer == Answer::Unknown { u64::MAX } else { now_us() };
        let (client, claim, resource) = (self.number, held.handle, held.resource.clone());
        world::with(|world| {
            world.ops.push(Op { client, resource, claim, call, called_us, returned_us, answer });
        });
    }

    /// Asks some node; `None` if there was no answer.
    async fn ask<A, F, Fut>(&mut self, ask: F) -> Option<A>
    where
        A: Send + 'static,
        F: FnOnce(Arc<SimNode>) -> Fut,
        Fut: Future<Output = Option<A>> + Send + 'static,
    {
        let node = 1 + self.random.below(self.nodes);
        let Some(at) = world::node(node) else {
            sleep_us(50_000).await;
            return None;
        };
        let (reply, answer) = oneshot::channel();
        let asked = ask(at);
        runtime::spawn_on(node, async move {
            if let Some(said) = asked.await {
                reply.send(said).ok();
            }
        });
        answer.await.ok()
    }

    async fn submit(&mut self, command: Command) -> Option<Outcome> {
        self.ask(|node| node.submit(vec![command])).await.and_then(|mut outcomes| outcomes.pop())
    }

    async fn once(&mut self) {
        let handle = world::with(|world| {
            world.handles += 1;
            world.handles
        });
        let resource = format!("r{}", self.random.below(3));
        let id = ClaimId::from_u128(u128::from(handle) << 64 | u128::from(self.random.next()));
        world::with(|world| world.claims.push((handle, resource.clone(), id)));
        let held = Held { handle, resource, id };
        let ttl_us = self.random.between(200_000, 3_000_000);
        let on_busy = if self.random.percent(80) { OnBusy::Queue } else { OnBusy::Refuse };
        let owner = format!("client {}", self.number);
        let new = Command::Claim(NewClaim::new(id, &held.resource, &owner, Some(ttl_us), on_busy));
        // What the checker may count on, with the clocks as bad as they may be.
        let sure_us = ttl_us - 2 * ttl_us * FAST_PPM_MAX / 1_000_000;
        let call = Call::Claim { ttl_us: Some(sure_us) };
        let called_us = now_us();
        let mut answer = Answer::Unknown;
        for attempt in 0..4 {
            // The same id: the same claim, however often it is asked for.
            answer = match self.submit(new.clone()).await {
                Some(Outcome::Granted(view) | Outcome::Queued(view) | Outcome::Existing(view)) => {
                    of_view(&view)
                }
                Some(Outcome::Rejected(Rejection::Busy(_))) if attempt == 0 => Answer::Refused,
                Some(Outcome::Rejected(Rejection::Busy(_))) => Answer::Unknown,
                Some(other) => return world::violate(format!("a claim was answered with {other}")),
                None => continue,
            };
            break;
        }
        self.note(&held, call, called_us, answer);
        for _ in 0..40 {
            if answer != Answer::Waiting || world::with(|world| world.stop) {
                break;
            }
            sleep_us(self.random.below(150_000)).await;
            answer = self.look(&held).await;
        }
        match answer {
            Answer::Active { .. } => self.hold(&held, &owner, ttl_us, sure_us).await,
            Answer::Waiting => self.finish(&held, Target::Claim(held.id), Ending::Withdrawn, &owner).await,
            _ => {}
        }
    }

    async fn look(&mut self, held: &Held) -> Answer {
        let (called_us, id) = (now_us(), held.id);
        let answer = match self.ask(|node| node.read(id)).await {
            Some(Some(view)) => of_view(&view),
            Some(None) => Answer::Gone,
            None => Answer::Unknown,
        };
        self.note(held, Call::Read, called_us, answer);
        // Silence says nothing new.
        if answer == Answer::Unknown { Answer::Waiting } else { answer }
    }

    async fn hold(&mut self, held: &Held, owner: &str, ttl_us: u64, sure_us: u64) {
        sleep_us(self.random.below(100_000)).await;
        if self.random.percent(40) {
            let (target, guard) = (Target::Claim(held.id), Guard::default());
            let called_us = now_us();
            let renew = Command::Renew { target, guard, ttl_us: Some(ttl_us), data: None };
            let answer = match self.submit(renew).await {
                Some(Outcome::Renewed(view)) => of_view(&view),
                Some(_) => Answer::Over,
                None => Answer::Unknown,
            };
            self.note(held, Call::Renew { ttl_us: sure_us }, called_us, answer);
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
            Some(Outcome::Finished(view)) if view.claim.id == id => Answer::Done,
            Some(Outcome::Rejected(Rejection::Waiting(_))) => Answer::Waiting,
            Some(_) => Answer::Over,
            None => Answer::Unknown,
        };
        self.note(held, call, called_us, answer);
    }
}

/// Asks for claims once everything is well again.
pub(super) async fn read_again(mut client: Client, claims: Vec<(Handle, String, ClaimId)>) {
    world::with(|world| world.clients_at_work += 1);
    for (handle, resource, id) in claims {
        client.look(&Held { handle, resource, id }).await;
    }
    world::with(|world| world.clients_at_work -= 1);
}
