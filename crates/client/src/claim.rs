//! A claim that is held, and one that waits.
//!
//! In:    what the driver makes known. Out: [`Pending`] and [`Claim`], the handles of their owner.
//! Never: says that a claim is held when the server could have handed it over.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::changes::Changes;
use crate::clock::BootInstant;
use crate::driver::{Command, Phase, SharedClaim};
use crate::error::{Error, Lost};
use crate::item::GrantedItem;
use crate::request::check_ttl;

/// What both handles have.
#[derive(Clone)]
pub(crate) struct Handle {
    key: u64,
    shared: Arc<SharedClaim>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Handle {
    /// Gives the claim up, and waits until that is settled.
    pub(crate) async fn release(&self) -> Result<(), Error> {
        let before = self.shared.phase.borrow().clone();
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Release { key: self.key, reply: Some(reply) }).ok();
        let answer = answer.await.unwrap_or(Err(Error::Closed));
        match (before, answer) {
            (Phase::Lost(lost), Err(_)) => Err(Error::Lost(lost)),
            (_, answer) => answer,
        }
    }
}

/// A claim that waits for its turn. Dropped, it leaves the queue.
pub struct Pending {
    handle: Option<Handle>,
    reply: oneshot::Receiver<Result<(), Error>>,
}

impl Pending {
    pub(crate) fn new(
        key: u64,
        shared: Arc<SharedClaim>,
        commands: mpsc::UnboundedSender<Command>,
        reply: oneshot::Receiver<Result<(), Error>>,
    ) -> Self {
        Self { handle: Some(Handle { key, shared, commands }), reply }
    }

    /// For a caller that can't keep the claim while it waits.
    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone().expect("a handle stays until the claim is acquired")
    }

    /// What the claim does, as it changes: place in the queue, holder, troubles.
    pub fn phases(&self) -> Changes<Phase> {
        Changes::of(&self.handle.as_ref().expect("a handle stays until the claim is acquired").shared.phase)
    }

    /// Waits for the claim's turn.
    pub async fn acquired(mut self) -> Result<Claim, Error> {
        let answer = (&mut self.reply).await.unwrap_or(Err(Error::Closed));
        let handle = self.handle.take();
        answer?;
        Ok(Claim { handle: handle.expect("a handle stays until the claim is acquired"), is_released: false })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            handle.commands.send(Command::Cancel(handle.key)).ok();
        }
    }
}

/// A claim that holds its resource, until it is released, dropped or lost.
pub struct Claim {
    handle: Handle,
    is_released: bool,
}

impl std::fmt::Debug for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claim")
            .field("resource", &self.resource())
            .field("id", &self.id())
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}

impl Claim {
    /// What it holds.
    pub fn resource(&self) -> &str {
        &self.handle.shared.resource
    }

    /// Its id on the server.
    pub fn id(&self) -> &str {
        self.handle.shared.grant.get().map_or("", |grant| &grant.id)
    }

    /// The fencing token: hand it to whatever the claim protects, which refuses smaller ones than it has seen. A server
    /// that is not Leasehold may give none. A claim on several resources whose tokens differ has none either:
    /// [`Claim::items`] has one for each.
    pub fn token(&self) -> Option<u64> {
        self.handle.shared.grant.get().and_then(|grant| grant.token)
    }

    /// What it holds, one by one: the resource, the mode, the slots and the token of each.
    pub fn items(&self) -> &[GrantedItem] {
        self.handle.shared.grant.get().map_or(&[], |grant| &grant.items)
    }

    /// The numbers of the slots of the first resource that it holds, from 1: "any one of five boards" is this one.
    pub fn slots(&self) -> &[u32] {
        self.items().first().map_or(&[], |item| &item.slots)
    }

    /// The session that it belongs to: give it to a program that is started while the claim is held as `LEASEHOLD_SESSION`, so that
    /// the program does not wait for what is held here. None if sessions are turned off or the server does not know them.
    pub fn session(&self) -> Option<&str> {
        self.handle.shared.grant.get().and_then(|grant| grant.session.as_deref())
    }

    /// Whether it certainly holds at this moment, by this machine's own clock: no request is made. The answer is true
    /// for a moment only; the token is what makes a late write harmless.
    pub fn validate(&self) -> Result<Option<u64>, Error> {
        self.handle.shared.validate()
    }

    /// Until when it certainly holds if no renewal gets through.
    pub fn holds_until(&self) -> BootInstant {
        self.handle.shared.until()
    }

    /// Returns when the claim is lost: it could not be renewed in time, the server ended it, it was held for too
    /// long, its manager was closed, or a signal came. Never returns for a claim that is released. Needs no network to know.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + 'static {
        let mut phases = self.handle.shared.phase.subscribe();
        async move {
            loop {
                if let Phase::Lost(lost) = &*phases.borrow_and_update() {
                    return lost.clone();
                }
                if phases.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }

    /// Calls a function once, on a thread of its own, if and when the claim is lost. With `OnLost::Terminate` the
    /// process gets its SIGTERM when the function has returned.
    pub fn on_lost(&self, tell: impl FnOnce(Lost) + Send + 'static) {
        self.handle.shared.on_lost(Box::new(tell));
    }

    /// What it does, as it changes; each renewal counts as a change.
    pub fn phases(&self) -> Changes<Phase> {
        Changes::of(&self.handle.shared.phase)
    }

    /// Why the last renewal failed, `None` once one gets through. Every failure is a change; `holds_until` says how long the
    /// claim is safe without one.
    pub fn troubles(&self) -> Changes<Option<String>> {
        Changes::of(&self.handle.shared.trouble)
    }

    /// Renews it now; the driver does so by itself every third of the ttl. With a ttl, that is the claim's from now on; one that
    /// the server refuses leaves the claim with the ttl that it had.
    pub async fn refresh(&self, ttl: Option<Duration>) -> Result<(), Error> {
        self.start_refresh(ttl)?.await.unwrap_or(Err(Error::Closed))
    }

    /// The same, for a caller that can't keep the claim borrowed meanwhile.
    pub(crate) fn start_refresh(
        &self,
        ttl: Option<Duration>,
    ) -> Result<oneshot::Receiver<Result<(), Error>>, Error> {
        if let Some(ttl) = ttl {
            check_ttl(ttl, self.handle.shared.lead)?;
        }
        self.validate()?;
        let (reply, answer) = oneshot::channel();
        self.handle.commands.send(Command::Refresh { key: self.handle.key, ttl, reply }).ok();
        Ok(answer)
    }

    /// What the driver makes known of it, for a caller that can't keep the claim.
    pub(crate) fn shared(&self) -> Arc<SharedClaim> {
        self.handle.shared.clone()
    }

    /// Gives the resource up. An error tells that the claim was over before, or that the server could not be told.
    pub async fn release(mut self) -> Result<(), Error> {
        self.is_released = true;
        self.handle.release().await
    }
}

/// Releases it in the background; `LockManager::close` waits for that.
impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_released {
            self.handle.commands.send(Command::Release { key: self.handle.key, reply: None }).ok();
        }
    }
}
