//! What a waiting claim waits for: on each of its resources, the first claim that
//! leaves no room for it.
//!
//! In:    the table and a waiting claim. Out: resources and claims, for an answer that explains the wait.
//! Never: decides anything: the table has done that.

use std::sync::Arc;

use leasehold_core::{Mode, Table, View};

/// How many claims of a resource are looked at. With more before it, the claim in the way may not be found.
const LOOKED_AT_MAX: usize = 1_000;

/// A resource, and the first claim there that the waiting one has to wait for.
pub(super) struct Blocker {
    pub(super) resource: Arc<str>,
    pub(super) by: View,
}

/// One for each item that is not free, in their order.
pub(super) fn blockers(table: &Table, view: &View, now_us: u64) -> Vec<Blocker> {
    if view.items().is_empty() {
        let (resource, position) = (&view.claim.resource, view.position.unwrap_or(1));
        return first_before(table, resource, Mode::Exclusive, position, now_us).into_iter().collect();
    }
    let of_item = |item: &leasehold_core::ItemView| {
        first_before(table, &item.resource, item.mode, item.position?, now_us)
    };
    view.items().iter().filter_map(of_item).collect()
}

fn first_before(table: &Table, name: &Arc<str>, mode: Mode, position: u64, now_us: u64) -> Option<Blocker> {
    let resource = table.resource(name)?;
    let place = usize::try_from(position).unwrap_or(usize::MAX);
    let own = resource.queue().nth(place - 1)?;
    if resource.reserved().any(|seq| seq == own) {
        return None;
    }
    let before = resource.holders().chain(resource.queue().take(place - 1));
    let mut before = before.take(LOOKED_AT_MAX).map(|seq| table.view_at(seq, now_us)).peekable();
    let first = before.peek().cloned();
    let mut taken = slots_of(mode);
    let in_the_way = |other: &View| {
        let other = mode_on(other, name);
        taken += slots_of(other);
        !is_alike(mode, other) || matches!(mode, Mode::Slots { of, .. } if taken > u32::from(of))
    };
    let by = before.find(in_the_way).or(first)?;
    Some(Blocker { resource: name.clone(), by })
}

fn slots_of(mode: Mode) -> u32 {
    if let Mode::Slots { take, .. } = mode { take.into() } else { 0 }
}

/// Whether two of these may hold together, given room.
fn is_alike(mode: Mode, other: Mode) -> bool {
    mode != Mode::Exclusive && std::mem::discriminant(&mode) == std::mem::discriminant(&other)
}

fn mode_on(view: &View, resource: &str) -> Mode {
    view.items().iter().find(|item| *item.resource == *resource).map_or(Mode::Exclusive, |item| item.mode)
}
