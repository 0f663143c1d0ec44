//! Requests of Redis clients, through the engine.
//!
//! In:    a [`LockCommand`] and who asks. Out: the reply that Redis would give, or the refusal.
//! Never: ends or renews a claim that it has not looked at: each command names the claim whose value and user were
//!        compared, so that another holder since then is never touched.

use std::sync::Arc;

use bytes::Bytes;
use leasehold_core::{
    ClaimId, Command, Data, Ending, Format, Guard, NewClaim, OnBusy, Outcome, Rejection, Status, Table,
    Target, View,
};
use leasehold_engine::{EngineError, Settled, machine};

use super::Refused;
use super::log_once::OncePerMinute;
use super::request::{LockCommand, NewTtl, Unit};
use crate::access::Caller;
use crate::access::rules::Verb;
use crate::api::redact::hash;
use crate::app::App;
use crate::audit::Noted;
use crate::message::connection::Connection;
use crate::message::headers::Headers;
use crate::resp::Reply;

/// The table version from which on a value can be kept as a secret.
const SECRETS_SINCE: u32 = 2;
/// Random values of this length are never made twice: the same one comes from the same client.
const RANDOM_LEN_MIN: usize = 16;
/// What GET shows of a claim that was made through another API.
const OTHER_API: &[u8] = b"leasehold:held-through-another-api";

/// Who asks, and over which connection.
pub(super) struct Asker<'a> {
    pub(super) app: &'a Arc<App>,
    pub(super) connection: &'a Connection,
    pub(super) headers: &'a Headers,
    pub(super) caller: &'a Caller,
}

impl Asker<'_> {
    pub(super) async fn carry_out(&self, request: LockCommand) -> Result<Reply, Refused> {
        match request {
            LockCommand::Take { key, value, ttl_us } => self.take(key, value, ttl_us).await,
            LockCommand::TakeAll { keys, value, ttl_us } => self.take_all(keys, &value, ttl_us).await,
            LockCommand::Release { keys, value, or_gone } => self.release(&keys, &value, or_gone).await,
            LockCommand::Extend { keys, value, ttl, or_take } => {
                self.extend(&keys, value, ttl, or_take).await
            }
            LockCommand::Get { key } => self.get(&key).await,
            LockCommand::Exists { keys } => {
                let held = self.visible(&keys).await?.into_iter().flatten().count();
                Ok(Reply::Integer(held as i64))
            }
            LockCommand::Ttl { key, unit } => self.ttl(&key, unit).await,
            LockCommand::Expire { key, ttl_us } => self.expire(&key, ttl_us).await,
            LockCommand::Delete { keys } => self.delete(&keys).await,
            LockCommand::Token { key, value } => {
                let views = self.own_among(&[key], &value).await?;
                let own = views[0].as_ref().filter(|view| self.is_own(view, &value));
                Ok(own.map_or(Reply::Nil, |view| Reply::Integer(view.claim.token.cast_signed())))
            }
            LockCommand::Loaded { sha } => Ok(Reply::Bulk(sha.into_bytes())),
            LockCommand::Known { known } => {
                Ok(Reply::Array(known.into_iter().map(|known| Reply::Integer(known.into())).collect()))
            }
            LockCommand::Flush => Ok(Reply::OK),
        }
    }

    // ---- taking

    async fn take(&self, resource: Arc<str>, value: Bytes, ttl_us: Option<u64>) -> Result<Reply, Refused> {
        self.caller.require(Verb::Claim, &resource)?;
        self.app.engine.reach_table_version(SECRETS_SINCE).await?;
        let id = claim_id();
        let new = NewClaim {
            id,
            resource,
            owner: self.owner(),
            ttl_us,
            on_busy: OnBusy::Refuse,
            data: Some(secret(&value)),
            idempotency: None,
        };
        let noted = self.app.note(id, self.caller, self.connection, self.headers);
        let outcome = self.app.engine.submit(Command::Claim(new)).await?;
        noted.settled();
        match outcome {
            Outcome::Granted(_) => Ok(Reply::OK),
            Outcome::Rejected(Rejection::Busy(holder)) => {
                self.require_another(&holder, &value)?;
                Ok(Reply::Nil)
            }
            other => Err(refused(other)),
        }
    }

    async fn take_all(&self, keys: Vec<Arc<str>>, value: &Bytes, ttl_us: u64) -> Result<Reply, Refused> {
        keys.iter().try_for_each(|key| self.caller.require(Verb::Claim, key))?;
        self.app.engine.reach_table_version(SECRETS_SINCE).await?;
        let count = keys.len();
        let items: Vec<(ClaimId, Arc<str>)> = keys.into_iter().map(|key| (claim_id(), key)).collect();
        let note = |(id, _): &(ClaimId, _)| self.app.note(*id, self.caller, self.connection, self.headers);
        let noted: Vec<Noted> = items.iter().map(note).collect();
        let command =
            Command::LockAll { items, owner: self.owner(), ttl_us: Some(ttl_us), data: Some(secret(value)) };
        let outcome = self.app.engine.submit(command).await?;
        noted.into_iter().for_each(Noted::settled);
        match outcome {
            Outcome::LockedAll(_) => Ok(Reply::Integer(count as i64)),
            Outcome::LockedNone { rejection: Rejection::Busy(holder), .. } => {
                self.require_another(&holder, value)?;
                Ok(Reply::Integer(0))
            }
            Outcome::LockedNone { rejection: Rejection::Repeated(key), .. } => {
                Err(Refused::Mistake(format!("the key '{key}' is given twice")))
            }
            Outcome::LockedNone { rejection, .. } => Err(Refused::Table(rejection)),
            other => Err(refused(other)),
        }
    }

    // ---- with the value as proof

    async fn release(&self, keys: &[Arc<str>], value: &Bytes, or_gone: bool) -> Result<Reply, Refused> {
        let views = self.own_among(keys, value).await?;
        let own: Vec<&View> = views.iter().flatten().filter(|view| self.is_own(view, value)).collect();
        let gone = or_gone && views.iter().all(Option::is_none);
        match self.end(&own).await? {
            0 if gone => Ok(Reply::Integer(-1)),
            count => Ok(Reply::Integer(count)),
        }
    }

    async fn extend(
        &self,
        keys: &[Arc<str>],
        value: Bytes,
        ttl: NewTtl,
        or_take: bool,
    ) -> Result<Reply, Refused> {
        let views = self.own_among(keys, &value).await?;
        if let ([key], [None], NewTtl::Whole(ttl_us), true) = (keys, &views[..], ttl, or_take) {
            let taken = self.take(key.clone(), value, Some(ttl_us)).await?;
            return Ok(Reply::Integer((taken == Reply::OK).into()));
        }
        let own: Vec<&View> = views.iter().flatten().filter(|view| self.is_own(view, &value)).collect();
        let ttls: Option<Vec<u64>> = own.iter().map(|view| ttl.of(view)).collect();
        let Some(ttls) = ttls.filter(|_| own.len() == keys.len()) else { return Ok(Reply::Integer(0)) };
        let renew = |(view, ttl_us): (&&View, u64)| renewal(view, ttl_us);
        let outcomes = self.submit(own.iter().zip(ttls).map(renew).collect()).await?;
        Ok(Reply::Integer(if renewed(outcomes)? == keys.len() as i64 { keys.len() as i64 } else { 0 }))
    }

    // ---- whatever the value

    async fn get(&self, key: &Arc<str>) -> Result<Reply, Refused> {
        let view = self.visible(std::slice::from_ref(key)).await?.remove(0);
        let Some(View { claim, .. }) = view else { return Ok(Reply::Nil) };
        Ok(Reply::Bulk(match claim.data.as_deref() {
            Some(data) if data.format == Format::Secret && self.caller.owns(&claim.owner) => {
                data.bytes.to_vec()
            }
            Some(data) if data.format == Format::Secret => {
                format!("sha256:{}", hash(&claim, data)).into_bytes()
            }
            _ => OTHER_API.to_vec(),
        }))
    }

    async fn ttl(&self, key: &Arc<str>, unit: Unit) -> Result<Reply, Refused> {
        let view = self.visible(std::slice::from_ref(key)).await?.remove(0);
        let Some(view) = view else { return Ok(Reply::Integer(-2)) };
        let Some(left_us) = left_us(&view) else { return Ok(Reply::Integer(-1)) };
        Ok(Reply::Integer(match unit {
            Unit::Milliseconds => left_us / 1000,
            // Redis rounds, too.
            Unit::Seconds => (left_us + 500_000) / 1_000_000,
        } as i64))
    }

    async fn expire(&self, key: &Arc<str>, ttl_us: u64) -> Result<Reply, Refused> {
        let views = self.changeable(std::slice::from_ref(key)).await?;
        let Some(view) = views.first() else { return Ok(Reply::Integer(0)) };
        let outcomes = self.submit(vec![renewal(view, ttl_us)]).await?;
        Ok(Reply::Integer(renewed(outcomes)?))
    }

    async fn delete(&self, keys: &[Arc<str>]) -> Result<Reply, Refused> {
        let views = self.changeable(keys).await?;
        Ok(Reply::Integer(self.end(&views.iter().collect::<Vec<_>>()).await?))
    }

    // ---- looking

    /// The holder of each key. What can be seen without asking the leader is enough if it is the caller's own: whose a claim
    /// is never changes, and a command that names it finds it over if it is.
    async fn own_among(&self, keys: &[Arc<str>], value: &Bytes) -> Result<Vec<Option<View>>, Refused> {
        let own = |view: &Option<View>| view.as_ref().is_some_and(|view| self.is_own(view, value));
        let views = self.look(keys).await?;
        if views.iter().all(own) {
            return Ok(views);
        }
        self.visible(keys).await
    }

    /// The holder of each key, as it is now, if the caller may know it.
    async fn visible(&self, keys: &[Arc<str>]) -> Result<Vec<Option<View>>, Refused> {
        if !self.app.engine.is_alone() {
            self.app.engine.barrier().await?;
        }
        let views = self.look(keys).await?;
        for (key, view) in keys.iter().zip(&views) {
            if !view
                .as_ref()
                .is_some_and(|view| self.caller.is_known() && self.caller.owns(&view.claim.owner))
            {
                self.caller.require_one_of(&[Verb::Claim, Verb::Read, Verb::Revoke], key)?;
            }
        }
        Ok(views)
    }

    /// The holders of these keys, all of which the caller may end or renew.
    async fn changeable(&self, keys: &[Arc<str>]) -> Result<Vec<View>, Refused> {
        let views = self.visible(keys).await?;
        let held = keys.iter().zip(views).filter_map(|(key, view)| Some((key, view?)));
        let changeable = |(key, view): (&Arc<str>, View)| {
            // A set has other resources, too, of which this caller may know nothing: only the key is named.
            if !self.caller.may_change(key, &view.claim.owner) {
                return Err(self.caller.refuse(Verb::Revoke, key).into());
            }
            if view.claim.data.as_ref().is_none_or(|data| data.format != Format::Secret) {
                let text = format!("'{key}' is held through another API of Leasehold: end it there");
                return Err(Refused::Mistake(text));
            }
            Ok(view)
        };
        held.map(changeable).collect()
    }

    /// The holder of each key, as this node knows it.
    async fn look(&self, keys: &[Arc<str>]) -> Result<Vec<Option<View>>, EngineError> {
        let question = |table: &Table, now_us: u64| {
            let views: Vec<Option<View>> = keys.iter().map(|key| table.holder_view(key, now_us)).collect();
            let due = views.iter().flatten().filter(|view| view.claim.is_due(now_us));
            let due: Vec<Arc<str>> = due.map(|view| view.claim.resource.clone()).collect();
            if due.is_empty() { Settled::Yes(views) } else { Settled::No(due) }
        };
        self.app.engine.read_settled(question).await
    }

    /// Whether a claim was taken with this value by this user.
    fn is_own(&self, view: &View, value: &[u8]) -> bool {
        let has_value = view.claim.data.as_ref().is_some_and(|data| is_same(data, value));
        has_value && view.claim.status == Status::Active && self.caller.owns(&view.claim.owner)
    }

    // ---- ending and renewing

    /// Ends these claims: how many of them were not over already.
    async fn end(&self, views: &[&View]) -> Result<i64, Refused> {
        if views.is_empty() {
            return Ok(0);
        }
        let (owner, client) = (self.owner(), self.connection.client(self.headers));
        let ending = |view: &View| match self.caller.owns(&view.claim.owner) {
            true => Ending::Released,
            false => Ending::Revoked,
        };
        let note = |view: &&View| {
            self.app.note_end(view.claim.id, ending(view), None, owner.clone(), client.clone())
        };
        let noted: Vec<Noted> = views.iter().map(note).collect();
        let finish = |view: &&View| Command::Finish {
            target: Target::Claim(view.claim.id),
            guard: Guard::default(),
            ending: ending(view),
            reason: None,
            purge_data: true,
        };
        let outcomes = self.submit(views.iter().map(finish).collect()).await?;
        noted.into_iter().for_each(Noted::settled);
        let mut ended = 0;
        for outcome in outcomes {
            match outcome {
                Outcome::Finished(_) => ended += 1,
                outcome if is_over(&outcome) => {}
                other => return Err(refused(other)),
            }
        }
        Ok(ended)
    }

    async fn submit(&self, mut commands: Vec<Command>) -> Result<Vec<Outcome>, EngineError> {
        match commands.len() {
            1 => Ok(vec![self.app.engine.submit(commands.remove(0)).await?]),
            _ => self.app.engine.submit_many(commands).await,
        }
    }

    fn owner(&self) -> Arc<str> {
        self.caller.owner(self.connection, self.headers)
    }

    /// Nil means "held by another". A lock that is held with the very value that was asked for, a random one, is held by the
    /// client that asks: it sent the command again because it lost the answer, or takes nodes of one cluster for independent masters.
    fn require_another(&self, holder: &View, value: &[u8]) -> Result<(), Refused> {
        static TRAP: OncePerMinute = OncePerMinute::new();
        if !is_random(value) || !self.is_own(holder, value) {
            return Ok(());
        }
        if !self.app.engine.is_alone() && TRAP.is_time() {
            tracing::warn!(
                key = ?holder.claim.resource,
                from = %self.connection.peer_name,
                "a lock was asked for with the value that holds it: a Redlock client must be given one address of this \
                 cluster, not each node as a master; or a client repeats a command whose answer was lost (docs/redis.md)"
            );
        }
        Err(Refused::SameValue)
    }
}

/// Whether a value looks like the ones that lock clients make by chance: digits of a UUID or of random bytes, or no text at all. The
/// name of a machine does not, and two processes on it may use it as their value.
fn is_random(value: &[u8]) -> bool {
    let is_hex = || value.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-');
    value.len() >= RANDOM_LEN_MIN && (is_hex() || std::str::from_utf8(value).is_err())
}

impl NewTtl {
    /// `None`: there is nothing to add to, since the claim has no ttl.
    fn of(self, view: &View) -> Option<u64> {
        match self {
            Self::Whole(ttl_us) => Some(ttl_us),
            Self::More(more_us) => left_us(view).map(|left_us| left_us.saturating_add(more_us)),
        }
    }
}

fn left_us(view: &View) -> Option<u64> {
    view.claim.deadline_us().map(|deadline_us| deadline_us.saturating_sub(view.now_us))
}

fn renewal(view: &View, ttl_us: u64) -> Command {
    let ttl_us = Some(ttl_us.min(leasehold_core::limits::TTL_US_MAX));
    Command::Renew { target: Target::Claim(view.claim.id), guard: Guard::default(), ttl_us, data: None }
}

/// How many were renewed. A claim that is being revoked is as good as over.
fn renewed(outcomes: Vec<Outcome>) -> Result<i64, Refused> {
    let mut count = 0;
    for outcome in outcomes {
        match outcome {
            Outcome::Renewed(_) => count += 1,
            Outcome::Rejected(Rejection::Revoking(_)) => {}
            outcome if is_over(&outcome) => {}
            other => return Err(refused(other)),
        }
    }
    Ok(count)
}

/// The claim that was looked at has ended since.
fn is_over(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Rejected(Rejection::Final(_) | Rejection::Unknown(_)))
}

fn refused(outcome: Outcome) -> Refused {
    match outcome {
        Outcome::Rejected(rejection) => Refused::Table(rejection),
        other => {
            tracing::error!(
                %other,
                "a bug, please report it: the table gave an answer that the Redis dialect can't render"
            );
            Refused::Engine(EngineError::Unknown)
        }
    }
}

fn claim_id() -> ClaimId {
    ClaimId::from_u128(machine::random())
}

fn secret(value: &Bytes) -> Data {
    Data { format: Format::Secret, bytes: value.as_ref().into() }
}

/// Looks at every byte, so that the time it takes tells nothing about the value.
fn is_same(data: &Data, value: &[u8]) -> bool {
    data.format == Format::Secret
        && data.bytes.len() == value.len()
        && data.bytes.iter().zip(value).fold(0, |seen, (left, right)| seen | (left ^ right)) == 0
}
