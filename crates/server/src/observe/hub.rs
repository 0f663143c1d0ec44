//! The event hub: the newest events in a ring, and a bell for those who read them.
//!
//! In:    the events of each applied entry, on the thread that applies. Out: events after a place, in their order.
//! Never: waits for a reader, and never grows: who is too slow finds its place overwritten and is told so.
//!
//! An event's place is the index of its log entry and its number in that entry, so it is the same on every node.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use leasehold_core::Event;
use parking_lot::Mutex;
use tokio::sync::Notify;

use leasehold_engine::publish::Listener;

/// Events that are kept: some seconds of a busy node, hours of a quiet one, 2 MiB at most.
pub const RING_LEN: usize = 16_384;
/// Streams at a time, of which one client has its share. Each is a connection and a task; a dashboard needs one.
pub const STREAMS_MAX: usize = 512;

/// Where an event stands in the log: printed as `<index>.<n>`, the id of a server-sent event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventPosition {
    /// The log entry.
    pub index: u64,
    /// The event's number in it, from 0.
    pub n: u32,
}

impl fmt::Display for EventPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.n)
    }
}

impl FromStr for EventPosition {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (index, n) = text.split_once('.').unwrap_or((text, "0"));
        Ok(Self { index: index.parse()?, n: n.parse()? })
    }
}

/// The newest events.
#[derive(Debug, Default)]
pub struct Hub {
    ring: Mutex<Ring>,
    /// Readers; while there are none, nobody is rung.
    streams: AtomicUsize,
    /// How often a reader was told that it lagged.
    lagged: AtomicU64,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Ring {
    /// Filled up once, then overwritten in place: nothing is allocated for an event.
    events: Vec<(EventPosition, Event)>,
    /// Where the oldest one stands.
    oldest: usize,
    /// Everything up to here is gone; `None`: nothing is, since the log's first entry.
    gone: Option<EventPosition>,
    /// The table came from a snapshot: what led to it is gone.
    skipped: bool,
    /// The newest entry applied, with or without events.
    newest: EventPosition,
}

/// What a reader finds.
#[derive(Debug, Default)]
pub struct Found {
    /// Events after the reader's place, in order.
    pub events: Vec<(EventPosition, Event)>,
    /// Some were missed: this is where reading goes on.
    pub lagged: Option<EventPosition>,
    /// The newest place known: a reader whose own place is behind it reads something that never happened here.
    pub newest: EventPosition,
}

impl Hub {
    /// Where a reader starts that wants only what is yet to come.
    pub fn newest(&self) -> EventPosition {
        self.ring.lock().newest
    }

    /// Where a reader starts that wants the newest `count` of these events, and all that follow.
    pub fn place_before(&self, count: usize, wanted: impl Fn(&Event) -> bool) -> EventPosition {
        let ring = self.ring.lock();
        let oldest = match ring.events.is_empty() {
            true => ring.newest,
            false => ring.gone.unwrap_or_default(),
        };
        let picked = (0..ring.events.len()).rev().filter(|i| wanted(&ring.at(*i).1));
        match picked.take(count).last() {
            None => ring.newest,
            Some(0) => oldest,
            Some(first) => ring.at(first - 1).0,
        }
    }

    /// At most `max` events after `place`.
    pub fn after(&self, place: EventPosition, max: usize) -> Found {
        let ring = self.ring.lock();
        let mut found = Found { newest: ring.newest, ..Found::default() };
        let from = match ring.gone {
            Some(gone) if gone > place => {
                found.lagged = Some(gone);
                gone
            }
            _ => place,
        };
        let start = ring.first_after(from);
        let len = ring.events.len();
        found.events.extend((start..len).take(max).map(|i| ring.at(i).clone()));
        drop(ring);
        if found.lagged.is_some() {
            self.lagged.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    /// The resources of all items of the claim that the event at `place` is about. The events of its items stand side by
    /// side, in order, within one entry. `None`: some of them are gone.
    pub fn items_at(&self, place: EventPosition) -> Option<Vec<Arc<str>>> {
        let ring = self.ring.lock();
        let at = ring.first_after(place).checked_sub(1).filter(|at| ring.at(*at).0 == place)?;
        let first = at.checked_sub(usize::from(ring.at(at).1.item))?;
        let claim = ring.at(at).1.claim;
        let run = (first..ring.events.len()).map(|i| ring.at(i)).zip(0..);
        let of_claim = run.take_while(|((other, event), item)| {
            other.index == place.index && event.claim == claim && event.item == *item
        });
        let items: Vec<Arc<str>> = of_claim.map(|((_, event), _)| event.resource.clone()).collect();
        Some(items).filter(|items| first + items.len() > at)
    }

    /// Returns when something has happened since `place`. May return early.
    pub async fn rung(&self, place: EventPosition) {
        let bell = self.bell.notified();
        tokio::pin!(bell);
        bell.as_mut().enable();
        if self.ring.lock().newest <= place {
            bell.await;
        }
    }

    /// Counts a reader, which has a place for it (`events.rs`).
    pub fn join(self: &Arc<Self>) -> Membership {
        self.streams.fetch_add(1, Ordering::SeqCst);
        Membership(self.clone())
    }

    /// Readers now.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// How often a reader was told that it lagged.
    pub fn lagged(&self) -> u64 {
        self.lagged.load(Ordering::Relaxed)
    }
}

impl Ring {
    /// By age, 0 = oldest.
    fn at(&self, i: usize) -> &(EventPosition, Event) {
        &self.events[(self.oldest + i) % self.events.len()]
    }

    fn first_after(&self, place: EventPosition) -> usize {
        let (mut low, mut high) = (0, self.events.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.at(middle).0 > place { high = middle } else { low = middle + 1 }
        }
        low
    }

    fn push(&mut self, place: EventPosition, event: &Event) {
        if self.events.len() < RING_LEN {
            self.events.push((place, event.clone()));
            return;
        }
        let slot = &mut self.events[self.oldest];
        self.gone = Some(slot.0);
        *slot = (place, event.clone());
        self.oldest = (self.oldest + 1) % RING_LEN;
    }
}

impl Listener for Hub {
    fn applied(&self, index: u64, events: &[Event]) {
        let mut ring = self.ring.lock();
        if index <= ring.newest.index {
            // The same entry again.
            return;
        }
        if std::mem::take(&mut ring.skipped) {
            ring.gone = Some(EventPosition { index: index - 1, n: u32::MAX });
        }
        for (n, event) in events.iter().enumerate() {
            ring.push(EventPosition { index, n: n as u32 }, event);
        }
        ring.newest = EventPosition { index, n: events.len().saturating_sub(1) as u32 };
        drop(ring);
        if !events.is_empty() && self.streams.load(Ordering::SeqCst) > 0 {
            self.bell.notify_waiters();
        }
    }

    fn replaced(&self) {
        let mut ring = self.ring.lock();
        // The next entry is not the one after the newest: everything in between was skipped.
        *ring = Ring { newest: ring.newest, skipped: true, ..Ring::default() };
    }
}

/// A reader; counted off when dropped.
#[derive(Debug)]
pub struct Membership(std::sync::Arc<Hub>);

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::{ClaimId, EventKind, Mode, Stamp};

    use super::*;

    fn event(token: u64) -> Event {
        let stamp = Stamp::default();
        let claim = ClaimId::from_u128(1);
        let (resource, owner) = ("r".into(), "o".into());
        Event {
            stamp,
            kind: EventKind::Renewed,
            claim,
            resource,
            owner,
            token,
            mode: Mode::Exclusive,
            item: 0,
            reason: None,
        }
    }

    fn tokens(found: &Found) -> Vec<u64> {
        found.events.iter().map(|(_, event)| event.token).collect()
    }

    #[test]
    fn a_reader_goes_on_where_it_was() {
        let hub = Hub::default();
        hub.applied(5, &[event(1), event(2)]);
        hub.applied(6, &[]);
        hub.applied(7, &[event(3)]);
        let place = |index, n| EventPosition { index, n };
        assert_eq!(tokens(&hub.after(place(5, 0), 10)), [2, 3]);
        assert_eq!(tokens(&hub.after(place(5, 1), 1)), [3]);
        assert!(hub.after(place(7, 0), 10).events.is_empty());
        assert_eq!(hub.newest(), place(7, 0));
        // A start replays entries: they are the same.
        hub.applied(7, &[event(3)]);
        assert_eq!(tokens(&hub.after(place(5, 0), 10)), [2, 3]);
    }

    #[test]
    fn a_reader_can_begin_with_the_newest_few() {
        let hub = Hub::default();
        assert_eq!(hub.place_before(2, |_| true), EventPosition::default());
        (5..9).for_each(|index| hub.applied(index, &[event(index)]));
        assert_eq!(tokens(&hub.after(hub.place_before(2, |_| true), 10)), [7, 8]);
        assert_eq!(tokens(&hub.after(hub.place_before(1, |event| event.token < 7), 10)), [6, 7, 8]);
        assert_eq!(tokens(&hub.after(hub.place_before(99, |_| true), 10)), [5, 6, 7, 8]);
        assert!(hub.after(hub.place_before(99, |event| event.token > 99), 10).events.is_empty());
    }

    #[test]
    fn what_is_gone_is_said() {
        let hub = Hub::default();
        hub.applied(5, &[event(1)]);
        assert!(hub.after(EventPosition::default(), 10).lagged.is_none(), "this is the first one of all");
        for index in 6..6 + RING_LEN as u64 {
            hub.applied(index, &[event(index)]);
        }
        let found = hub.after(EventPosition { index: 4, n: u32::MAX }, 1);
        assert_eq!((found.lagged, tokens(&found)), (Some(EventPosition { index: 5, n: 0 }), vec![6]));
        assert!(hub.after(EventPosition { index: 5, n: 0 }, 1).lagged.is_none());
        hub.replaced();
        hub.applied(90_000, &[event(9)]);
        let newest = EventPosition { index: 80_000, n: 0 };
        assert!(hub.after(newest, 1).lagged.is_some());
    }

    #[test]
    fn the_items_of_a_claim_are_told_by_any_of_its_events_until_one_is_gone() {
        let item = |claim, name: &str, item| Event {
            claim: ClaimId::from_u128(claim),
            resource: name.into(),
            item,
            ..event(1)
        };
        let hub = Hub::default();
        let set = [item(1, "a", 0), item(2, "a", 0), item(2, "b", 1), item(2, "c", 2), item(2, "a", 0)];
        hub.applied(5, &set);
        hub.applied(6, &[item(2, "b", 1)]);
        let items = |index, n| hub.items_at(EventPosition { index, n }).map(|items| items.join(" "));
        assert_eq!(items(5, 0).as_deref(), Some("a"));
        for n in 1..4 {
            assert_eq!(items(5, n).as_deref(), Some("a b c"), "{n}");
        }
        assert_eq!(items(5, 4).as_deref(), Some("a"), "a second event of the same claim");
        assert_eq!(items(5, 5), None, "there is no such event");
        assert_eq!(items(6, 0), None, "its first item is not beside it");
        let others: Vec<Event> = (0..RING_LEN as u128 - 4).map(|claim| item(claim + 9, "x", 0)).collect();
        hub.applied(7, &others);
        assert_eq!(items(5, 2), None, "the first of its items is gone");
        assert_eq!(items(5, 4).as_deref(), Some("a"));
    }

    #[test]
    fn places_print_as_they_parse() {
        let place = EventPosition { index: 17, n: 3 };
        assert_eq!(place.to_string().parse(), Ok(place));
        assert_eq!("17".parse(), Ok(EventPosition { index: 17, n: 0 }));
        assert!("".parse::<EventPosition>().is_err() && "1.x".parse::<EventPosition>().is_err());
    }
}
