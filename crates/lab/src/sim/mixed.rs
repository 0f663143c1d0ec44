//! Simulated clients of all other kinds: they share, take slots, take several resources at once, and hold one thing while they
//! wait for another.
//!
//! In:    the resources of the plain clients and a few more. Out: operations in the world's history.
//! Never: gives a claim of a session a ttl: a deadlock that the table does not see ends with nobody, and is found as such.

use std::sync::Arc;

use leasehold_core::{Command, Ending, NewSet, OnBusy, Target};
use leasehold_engine::machine::simulated::runtime::sleep_us;

use super::clients::{Client, Held, MIXED};
use super::{ANSWER_MAX, world};
use crate::history::{Answer, Item, Mode};
use crate::random::Random;

/// How many of them there are. The first ones have sessions.
pub(super) const CLIENTS: u64 = 6;
const SESSIONS: u64 = 2;

/// Resources that sessions take one after the other, and others take as well.
const NESTED: [&str; 2] = ["m0", "m1"];
/// A resource that is mostly shared, and one that is mostly taken in slots.
const READ: &str = "m2";
const POOL: &str = "m3";
/// Slots of every resource, as nearly all say.
const SLOTS: u16 = 3;

/// How often a client with a session asks until it is answered: for ever, nearly.
const TRIES: u64 = 10_000;

/// What the table calls it.
pub(super) fn core_mode(mode: Mode) -> leasehold_core::Mode {
    match mode {
        Mode::Exclusive => leasehold_core::Mode::Exclusive,
        Mode::Shared => leasehold_core::Mode::Shared,
        Mode::Slots { take, of } => leasehold_core::Mode::Slots { take, of },
    }
}

/// How a resource is wanted: some are mostly shared, and some mostly taken in slots.
fn any_mode(random: &mut Random, resource: &str) -> Mode {
    let kind = match (resource, random.percent(80)) {
        (READ, true) => 2,
        (POOL, true) => 9,
        _ => random.below(10),
    };
    match kind {
        0..=1 => Mode::Exclusive,
        2..=5 => Mode::Shared,
        _ => {
            let of = if random.percent(95) { SLOTS } else { SLOTS + 1 };
            Mode::Slots { take: random.between(1, 4) as u16, of }
        }
    }
}

/// What a claim wants: mostly one thing, shared or in slots; or up to three, each in its own way.
pub(super) fn any_items(random: &mut Random) -> Arc<[Item]> {
    let mut names = ["r0", "r1", "r2", NESTED[0], NESTED[1], READ, POOL].to_vec();
    let (count, kind) = match random.below(10) {
        0..=6 => (1, "one-item"),
        7..=8 => (2, "set-of-two"),
        _ => (3, "set-of-three"),
    };
    world::count(kind);
    // Where the sessions and the plain clients are, one waits long.
    let calm = count == 1 && random.percent(80);
    names.drain(..if calm { 5 } else { 0 });
    let item = |_| {
        let resource = names.swap_remove(random.below(names.len() as u64) as usize);
        Item { resource: resource.into(), mode: any_mode(random, resource) }
    };
    (0..count).map(item).collect()
}

impl Client {
    /// One claim of any kind, or one turn of a session.
    pub(super) async fn mixed(&mut self) {
        if self.number < MIXED + SESSIONS {
            return self.nested().await;
        }
        let items = any_items(&mut self.random);
        let held = self.begin(items);
        let ttl_us = self.random.between(200_000, 3_000_000);
        let on_busy = match self.random.below(10) {
            0..=2 => OnBusy::Refuse,
            _ => OnBusy::Queue,
        };
        let new = self.new_set(&held, Some(ttl_us), on_busy, None);
        self.lead(held, &new, ttl_us).await;
    }

    fn new_set(&self, held: &Held, ttl_us: Option<u64>, on_busy: OnBusy, session: Option<&str>) -> Command {
        let item = |item: &Item| leasehold_core::Item {
            resource: item.resource.as_str().into(),
            mode: core_mode(item.mode),
        };
        Command::ClaimSet(Box::new(NewSet {
            id: held.id,
            items: held.items.iter().map(item).collect(),
            owner: self.owner_of(held).into(),
            ttl_us,
            on_busy,
            data: None,
            idempotency: None,
            session: session.map(Into::into),
            lapses: true,
        }))
    }

    /// Holds one thing and asks for another, as a worker does whose job calls the next job. Another one does it the other
    /// way round: one of the two is refused, lets go, and comes again.
    async fn nested(&mut self) {
        let session = format!("worker {}", self.number);
        let first = self.random.below(2) as usize;
        let mode = if self.random.percent(70) { Mode::Exclusive } else { Mode::Shared };
        let Some(outer) = self.take(NESTED[first], mode, &session).await else { return };
        sleep_us(self.random.below(200_000)).await;
        if self.random.percent(30) {
            self.ask_below(&outer, mode, &session).await;
        }
        let inner = self.take(NESTED[1 - first], Mode::Exclusive, &session).await;
        world::count(if inner.is_some() { "session-went-on" } else { "session-refused" });
        sleep_us(self.random.below(100_000)).await;
        for held in inner.iter().chain([&outer]) {
            self.let_go(held).await;
        }
    }

    /// Claims something for a session, and waits for as long as it takes. `None`: it was refused.
    async fn take(&mut self, resource: &str, mode: Mode, session: &str) -> Option<Held> {
        let held = self.begin(Arc::new([Item { resource: resource.into(), mode }]));
        let new = self.new_set(&held, None, OnBusy::Queue, Some(session));
        let mut answer = self.make(&held, &new, None, TRIES).await;
        while answer == Answer::Waiting {
            sleep_us(self.random.between(20_000, 200_000)).await;
            answer = self.look(&held).await;
        }
        match answer {
            Answer::Active(_) => Some(held),
            Answer::Unknown => {
                self.clear_up(&held).await;
                None
            }
            _ => None,
        }
    }

    /// A job that was started under what its parent holds wants the same: it is told at once that it would wait for itself.
    async fn ask_below(&mut self, outer: &Held, mode: Mode, session: &str) {
        let below = format!("{session}/job");
        let wanted = if self.random.percent(80) { Mode::Exclusive } else { Mode::Shared };
        let held = self.begin(Arc::new([Item { resource: outer.items[0].resource.clone(), mode: wanted }]));
        let new = self.new_set(&held, None, OnBusy::Queue, Some(&below));
        let answer = self.make(&held, &new, None, TRIES).await;
        match answer {
            Answer::Waiting => world::violate(format!(
                "deadlock: #{} of {below} waits for #{} of {session}",
                held.handle, outer.handle
            )),
            Answer::Active(_) if !mode.fits_with(wanted) => {
                world::violate(format!("#{} holds beside #{}", held.handle, outer.handle));
            }
            Answer::Active(_) => self.let_go(&held).await,
            Answer::Unknown => self.clear_up(&held).await,
            _ => world::count("nested-refused"),
        }
    }

    /// A claim that was refused may have been made by an earlier request, whose outcome is unknown, and may yet be: until that
    /// one is over.
    async fn clear_up(&mut self, held: &Held) {
        sleep_us(ANSWER_MAX.as_micros() as u64).await;
        self.let_go(held).await;
    }

    /// Ends a claim that would end by nothing else.
    async fn let_go(&mut self, held: &Held) {
        loop {
            let ending = Ending::Withdrawn;
            if self.finish(held, Target::Claim(held.id), ending).await != Answer::Unknown {
                return;
            }
            sleep_us(self.random.between(50_000, 300_000)).await;
        }
    }
}
