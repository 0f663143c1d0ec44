//! The caller of a request, and what it may do.
//!
//! In:    an identity and the policy that it was found under. Out: yes; or no, and why.
//! Never: says in a refusal more than which right on which resource was missing.

use std::sync::Arc;

use hyper::StatusCode;
use leasehold_core::table::Whose;
use leasehold_core::{Table, View};

use super::identity::{How, Identity, owner_with, user_of};
use super::policy::Policy;
use super::refusal::Refusal;
use super::rules::{Rules, Verb};
use super::validity::Validity;
use crate::audit::Audit;
use crate::message::connection::Connection;
use crate::message::headers::Headers;

/// The caller of one request. Without access control nothing is known of it.
#[derive(Debug, Clone)]
pub struct Caller(pub(super) Option<Arc<Ticket>>);

/// An identity, its credentials' validity, and the policy under which it was found.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) identity: Arc<Identity>,
    /// How long the credentials stay good.
    pub(super) validity: Validity,
    pub(super) policy: Arc<Policy>,
    pub(super) from: Arc<str>,
    pub(super) audit: Option<Arc<Audit>>,
}

impl Caller {
    /// Any caller of a node without access control.
    pub const ANYONE: Self = Self(None);

    /// Whether the caller gave valid credentials.
    pub fn is_known(&self) -> bool {
        self.0.as_ref().is_some_and(|ticket| ticket.identity.is_known())
    }

    /// Whether access control is on.
    pub fn is_checked(&self) -> bool {
        self.0.is_some()
    }

    /// Who this is; `None` without access control.
    pub fn identity(&self) -> Option<&Identity> {
        self.0.as_ref().map(|ticket| &*ticket.identity)
    }

    /// What this caller may do on a resource; without one, on any that there could be.
    pub fn verbs(&self, resource: Option<&str>) -> Vec<Verb> {
        let may = |verb: &Verb| match (resource, &self.0) {
            (Some(resource), _) => self.may(*verb, resource),
            (None, None) => true,
            (None, Some(ticket)) => ticket.policy.newest().rules.could(&ticket.identity, *verb, ""),
        };
        Verb::ALL.into_iter().filter(may).collect()
    }

    /// The owner of the caller's claims: its user or, without access control, its address.
    pub fn owner(&self, connection: &Connection, headers: &Headers) -> Arc<str> {
        match &self.0 {
            Some(ticket) if ticket.identity.is_known() => ticket.identity.user.clone(),
            Some(ticket) => owner_with(&ticket.identity.user, &ticket.from),
            None => connection.client(headers),
        }
    }

    /// The same where the client gave itself a name.
    pub fn owner_named(&self, client: Arc<str>) -> Arc<str> {
        match &self.0 {
            Some(ticket) => owner_with(&ticket.identity.user, &client),
            None => client,
        }
    }

    /// The caller's name; `None` without access control.
    pub fn user(&self) -> Option<&str> {
        self.0.as_ref().map(|ticket| &*ticket.identity.user)
    }

    /// Whether a claim with this owner is this caller's. Without access control every claim is everybody's.
    pub fn owns(&self, owner: &str) -> bool {
        match &self.0 {
            Some(ticket) if ticket.identity.is_known() => *user_of(owner) == *ticket.identity.user,
            // Bad credentials are nobody's. Those without any are told apart by their addresses alone.
            Some(ticket) if ticket.identity.how == How::Refused => false,
            Some(ticket) => owner_with(&ticket.identity.user, &ticket.from)[..] == *owner,
            None => true,
        }
    }

    /// Whether the caller may do that there, by the rules in force now.
    pub fn may(&self, verb: Verb, resource: &str) -> bool {
        self.is_allowed(|rules, identity| rules.decide(identity, verb, resource).allowed)
    }

    /// Whether the caller may do that to every resource, by the rules in force now.
    pub fn may_everywhere(&self, verb: Verb) -> bool {
        self.is_allowed(|rules, identity| rules.everywhere(identity, verb))
    }

    fn is_allowed(&self, by: impl FnOnce(&Rules, &Identity) -> bool) -> bool {
        self.0.as_ref().is_none_or(|ticket| {
            ticket.identity.how != How::Refused
                && !ticket.is_withdrawn()
                && by(&ticket.policy.newest().rules, &ticket.identity)
        })
    }

    /// Whether the caller may see a claim: its own, or any where it may read.
    pub fn may_see(&self, resource: &str, owner: &str) -> bool {
        self.0.is_none() || self.owns(owner) || self.may(Verb::Read, resource)
    }

    /// Whether the caller may change a claim: its own, or any where it may revoke.
    pub fn may_change(&self, resource: &str, owner: &str) -> bool {
        self.0.is_none() || self.owns(owner) || self.may(Verb::Revoke, resource)
    }

    /// Whether the caller may see a claim: its own, or one on resources all of which it may read.
    pub fn may_see_all(&self, claim: &Whose<'_>) -> bool {
        claim.resources().all(|resource| self.may_see(resource, claim.owner))
    }

    /// The same for a claim as it was read.
    pub fn may_see_view(&self, view: &View) -> bool {
        self.0.is_none() || view.resources().all(|resource| self.may_see(resource, &view.claim.owner))
    }

    /// The first resource of a claim that keeps the caller from changing it.
    pub fn first_unchangeable<'a>(&self, claim: &Whose<'a>) -> Option<&'a str> {
        claim.resources().find(|resource| !self.may_change(resource, claim.owner))
    }

    /// Checks a right on a resource. The refusal names what is missing.
    pub fn require(&self, verb: Verb, resource: &str) -> Result<(), Refusal> {
        if self.may(verb, resource) { Ok(()) } else { Err(self.refuse(verb, resource)) }
    }

    /// The same with one of these verbs; the refusal names the first.
    pub fn require_one_of(&self, verbs: &[Verb], resource: &str) -> Result<(), Refusal> {
        let may = verbs.iter().any(|verb| self.may(*verb, resource));
        if may { Ok(()) } else { Err(self.refuse(verbs[0], resource)) }
    }

    /// Checks whether the caller has one of these verbs on any resource below this prefix, so that its body may name some.
    pub fn require_below(&self, verbs: &[Verb], prefix: &str) -> Result<(), Refusal> {
        let may = verbs.iter().any(|verb| self.may_below(*verb, prefix));
        if may { Ok(()) } else { Err(self.refuse(verbs[0], &format!("{prefix}*"))) }
    }

    /// Whether the caller may do that to any resource below this prefix.
    pub fn may_below(&self, verb: Verb, prefix: &str) -> bool {
        self.0.as_deref().is_none_or(|Ticket { identity, policy, .. }| {
            identity.how != How::Refused && policy.rules.could(identity, verb, prefix)
        })
    }

    /// Whether there may be a resource below this prefix that the caller may see: one that it may read, or has a claim on.
    pub fn could_see_below(&self, prefix: &str, table: &Table) -> bool {
        let Some(Ticket { identity, .. }) = self.0.as_deref() else { return true };
        let user = &*identity.user;
        let own = || {
            table.owners_from(user).take_while(|owner| owner.starts_with(user)).any(|owner| self.owns(owner))
        };
        self.may_below(Verb::Read, prefix) || own()
    }

    /// Checks whether the caller may have a list of what it may see, which may be empty. Callers without credentials who can't
    /// see anything are refused.
    pub fn require_any(&self, verbs: &[Verb], resource: &str) -> Result<(), Refusal> {
        let Some(Ticket { identity, policy, .. }) = self.0.as_deref() else { return Ok(()) };
        let could =
            || identity.is_known() || verbs.iter().any(|verb| policy.rules.could(identity, *verb, ""));
        if identity.how != How::Refused && could() { Ok(()) } else { Err(self.refuse(verbs[0], resource)) }
    }

    /// Tells the audit that the table refused this caller: the claim belongs to another owner.
    pub fn note_refusal(&self, verb: Verb, resource: &str, status: StatusCode) {
        if let Some(Ticket { identity, from, audit: Some(audit), .. }) = self.0.as_deref() {
            audit.refused(
                &identity.user,
                identity.how.as_str(),
                from,
                verb.as_str(),
                resource,
                status.as_u16(),
            );
        }
    }

    /// The refusal itself, by whether the caller is known.
    pub fn refuse(&self, verb: Verb, resource: &str) -> Refusal {
        let ticket = self.0.as_deref();
        let known = ticket.is_some_and(|ticket| ticket.identity.is_known());
        self.note_refusal(
            verb,
            resource,
            if known { StatusCode::FORBIDDEN } else { StatusCode::UNAUTHORIZED },
        );
        let resource = resource.into();
        match known {
            true => Refusal::Forbidden { verb, resource },
            false => {
                let bad_credentials = ticket.is_some_and(|ticket| ticket.identity.how == How::Refused);
                Refusal::Unauthorized { verb, resource, bad_credentials }
            }
        }
    }
}
