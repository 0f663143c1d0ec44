//! A claim as dialects show it that know resources and their holders, and neither modes nor sets.
//!
//! In:    a claim as the table has it, and the resource that a caller asked about. Out: the claim on that resource alone.
//! Never: tells a reader of one resource about the others of a set: those who may not read all of them learn that the resource
//!        is held, since when and for how long, and not by whom.

use std::sync::Arc;

use leasehold_core::{Mode, View};

use crate::access::Caller;

/// The owner of a set that a reader may not see.
const CONCEALED: &str = "another client";

/// Whether a claim is exclusive on one resource alone: a dialect that names a resource changes no others.
pub(super) fn is_alone(view: &View) -> bool {
    match view.items() {
        [] => true,
        [item] => item.mode == Mode::Exclusive,
        _ => false,
    }
}

/// The claim on this resource: its token there, and its place in the queue there.
pub(super) fn on_resource(mut view: View, resource: &str, caller: &Caller) -> View {
    conceal(&mut view, caller);
    if let Some(item) = view.items().iter().find(|item| *item.resource == *resource) {
        let (name, token, position) = (item.resource.clone(), item.token, item.position);
        view.claim.resource = name;
        view.claim.token = token;
        view.position = position;
    }
    view.set = None;
    view
}

/// Takes out of a set what a caller may not know who may not read all of its resources: whose it is, for which worker, with
/// which data, and why it ended. Its items stay: each of them is for those who may read its resource.
pub(super) fn conceal(view: &mut View, caller: &Caller) {
    if view.set.is_none() || caller.may_see_view(view) {
        return;
    }
    let claim = &mut view.claim;
    claim.owner = CONCEALED.into();
    claim.data = None;
    claim.live = None;
    claim.end = claim.end.take().map(|end| leasehold_core::End { reason: None, ..end });
    if let Some(set) = &mut view.set {
        set.session = None;
    }
}

/// The same, shared with the table's answer.
pub(super) fn boxed_on_resource(view: Box<View>, resource: &Arc<str>, caller: &Caller) -> Box<View> {
    match view.set {
        None => view,
        Some(_) => Box::new(on_resource(*view, resource, caller)),
    }
}
