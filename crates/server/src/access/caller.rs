//! Who asks, and what they may do.
//!
//! In:    an identity and the policy that it was found under. Out: yes; or no, and why.
//! Never: says in a refusal more than which right on which resource was missing.

use std::sync::Arc;

use hyper::StatusCode;

use super::identity::{How, Identity, owner_with, user_of};
use super::policy::Policy;
use super::refusal::Refusal;
use super::rules::Verb;
use super::validity::Validity;
use crate::audit::Audit;
use crate::message::connection::Connection;
use crate::message::headers::Headers;

/// Who asks, for the time of one request. Without access control there is nothing to know.
#[derive(Debug, Clone)]
pub struct Caller(pub(super) Option<Arc<Ticket>>);

/// Who asks, by which credentials, under which policy.
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
    /// Somebody on a node without access control.
    pub const ANYONE: Self = Self(None);

    /// Whether valid credentials say who asks.
    pub fn is_known(&self) -> bool {
        self.0.as_ref().is_some_and(|ticket| ticket.identity.is_known())
    }

    /// Whether access control is on.
    pub fn is_checked(&self) -> bool {
        self.0.is_some()
    }

    /// Whom a claim of this caller belongs to: its user, or, without access control, its address.
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
        self.0.as_ref().is_none_or(|ticket| {
            ticket.identity.how != How::Refused
                && !ticket.is_withdrawn()
                && ticket.policy.newest().rules.decide(&ticket.identity, verb, resource).allowed
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

    /// Leave to do that there, or a refusal that names what is missing.
    pub fn require(&self, verb: Verb, resource: &str) -> Result<(), Refusal> {
        if self.may(verb, resource) { Ok(()) } else { Err(self.refuse(verb, resource)) }
    }

    /// The same with one of these verbs; the refusal names the first.
    pub fn require_one_of(&self, verbs: &[Verb], resource: &str) -> Result<(), Refusal> {
        let may = verbs.iter().any(|verb| self.may(*verb, resource));
        if may { Ok(()) } else { Err(self.refuse(verbs[0], resource)) }
    }

    /// Leave to name resources below this prefix in a body: one of these verbs on any of them.
    pub fn require_below(&self, verbs: &[Verb], prefix: &str) -> Result<(), Refusal> {
        let Some(Ticket { identity, policy, .. }) = self.0.as_deref() else { return Ok(()) };
        let could = || verbs.iter().any(|verb| policy.rules.could(identity, *verb, prefix));
        let may = identity.how != How::Refused && could();
        if may { Ok(()) } else { Err(self.refuse(verbs[0], &format!("{prefix}*"))) }
    }

    /// Leave to have a list made of what the caller may see, which may be nothing; a refusal for those who gave no
    /// credentials and can't see anything without.
    pub fn require_any(&self, verbs: &[Verb], resource: &str) -> Result<(), Refusal> {
        let Some(Ticket { identity, policy, .. }) = self.0.as_deref() else { return Ok(()) };
        let could =
            || identity.is_known() || verbs.iter().any(|verb| policy.rules.could(identity, *verb, ""));
        if identity.how != How::Refused && could() { Ok(()) } else { Err(self.refuse(verbs[0], resource)) }
    }

    /// Tells the audit that the table said no to this caller: what it wanted is somebody else's.
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
