//! What the operations on claims do.
//!
//! In:    lines that were understood. Out: answers, and events about what becomes of each claim.
//! Never: leaves a request without an answer, or a claim that nobody can name.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::line::{Line, Name, refusal};
use super::{BACKLOG_BYTES_MAX, Inner};
use crate::claim::{Claim, Handle, Pending};
use crate::clock::BootInstant;
use crate::driver::{Phase, Progress, SharedClaim};
use crate::error::{Error, Lost};
use crate::wire::ClaimInfo;

/// Holders of a resource that are shown.
const HOLDERS_MAX: usize = 1000;

/// Where a claim of the parent's is.
pub(super) enum Held {
    /// Its request is not answered yet.
    Waiting {
        serial: u64,
        request: Value,
        task: tokio::task::AbortHandle,
        /// The claim that is taken up: the server has it already.
        taken: Option<Handle>,
    },
    /// It was acquired, and may be lost meanwhile.
    Here(Claim),
}

/// A claim on its way.
struct Wanted {
    name: Name,
    serial: u64,
    request: Value,
    terminates: bool,
    /// The answer names the items.
    wants_items: bool,
}

impl Inner {
    /// `claim` and `take-up`.
    pub(super) fn claim(self: &Arc<Self>, line: &Line, name: Name) {
        let serial = self.next_serial.fetch_add(1, Ordering::Relaxed);
        let mut claims = self.claims();
        let is_taken = match claims.get(&name) {
            Some(Held::Waiting { .. }) => true,
            // One that is over, or lost, makes room.
            Some(Held::Here(old)) => old.validate().is_ok(),
            None => false,
        };
        let begun = if is_taken {
            Err(Error::AlreadyClaimed(name.resource.clone()))
        } else {
            self.begin(line, &name, serial)
        };
        let pending = match begun {
            Ok(pending) => pending,
            Err(error) => {
                drop(claims);
                return self.answer(&line.id, refusal(&error));
            }
        };
        let terminates = line.terminates(&self.settings);
        let (request, wants_items) = (line.id.clone(), line.wants_items());
        let wanted = Wanted { name: name.clone(), serial, request, terminates, wants_items };
        let taken = (line.op == "take-up").then(|| pending.handle());
        let task = self.spawn(self.clone().acquire(wanted, pending));
        claims.insert(name, Held::Waiting { serial, request: line.id.clone(), task, taken });
    }

    fn begin(&self, line: &Line, name: &Name, serial: u64) -> Result<Pending, Error> {
        let request = line.request(name, serial, &self.settings)?;
        match line.op.as_str() {
            "take-up" => self.manager.take_up(request, line.predecessor()?),
            _ => self.manager.request(request),
        }
    }

    async fn acquire(self: Arc<Self>, wanted: Wanted, pending: Pending) {
        let acquired = self.wait(&wanted.name, pending).await;
        let is_mine = |held: Option<&Held>| matches!(held, Some(Held::Waiting { serial, .. }) if *serial == wanted.serial);
        let mut claims = self.claims();
        // A release came first, and has answered: dropped here, the claim is released.
        if !is_mine(claims.get(&wanted.name)) {
            return;
        }
        let claim = match acquired {
            Ok(claim) => claim,
            Err(error) => {
                claims.remove(&wanted.name);
                drop(claims);
                return self.answer(&wanted.request, refusal(&error));
            }
        };
        let (id, token) = (claim.id().to_string(), claim.token());
        let resource = &wanted.name.resource;
        self.tell(&json!({ "event": "acquired", "resource": resource, "claim": id, "token": token }));
        let mut answer = json!({ "ok": true, "resource": resource, "claim": id, "token": token });
        show_until(&mut answer, claim.holds_until());
        if wanted.wants_items {
            answer["items"] = json!(claim.items());
        }
        if let Some(session) = claim.session() {
            answer["session"] = json!(session);
        }
        self.answer(&wanted.request, answer);
        let followed = Followed { shared: claim.shared(), id, token, terminates: wanted.terminates };
        claims.insert(wanted.name, Held::Here(claim));
        drop(claims);
        // A task of its own, since it stays as long as the claim, and this one is large.
        self.spawn(self.clone().follow(followed));
    }

    /// Waits for the claim's turn, and tells how it waits.
    async fn wait(&self, name: &Name, pending: Pending) -> Result<Claim, Error> {
        let mut phases = pending.phases();
        let acquired = pending.acquired();
        tokio::pin!(acquired);
        loop {
            tokio::select! {
                claim = &mut acquired => return claim,
                Some(Phase::Waiting(progress)) = phases.next() => {
                    if self.backlog.load(Ordering::Acquire) <= BACKLOG_BYTES_MAX {
                        self.tell_waiting(name, &progress);
                    }
                }
            }
        }
    }

    fn tell_waiting(&self, name: &Name, progress: &Progress) {
        let holder = progress.holder.as_ref().map(about_holder);
        let mut event = json!({ "event": "waiting", "resource": name.resource, "position": progress.position,
            "holder": holder, "trouble": progress.trouble });
        if !name.worker.is_empty() {
            event["worker"] = json!(name.worker);
        }
        self.tell(&event);
    }

    /// Tells what becomes of a claim that was acquired.
    async fn follow(self: Arc<Self>, claim: Followed) {
        let (mut phases, mut told) = (claim.shared.phase.subscribe(), claim.shared.until());
        loop {
            let phase = phases.borrow_and_update().clone();
            match phase {
                Phase::Lost(lost) => return self.lost(&claim, &lost).await,
                Phase::Released => {
                    return self.tell(&json!({ "event": "released", "resource": claim.shared.resource,
                        "claim": claim.id, "token": claim.token }));
                }
                Phase::Ended => return,
                Phase::Active if self.settings.tell_renewals => {
                    let until = claim.shared.until();
                    if std::mem::replace(&mut told, until) != until {
                        self.tell_renewed(&claim.id, until);
                    }
                }
                _ => {}
            }
            if phases.changed().await.is_err() {
                return;
            }
        }
    }

    async fn lost(&self, claim: &Followed, lost: &Lost) {
        self.tell(&json!({ "event": "lost", "resource": claim.shared.resource, "claim": claim.id, "token": claim.token,
            "reason": lost.kind(), "detail": lost.to_string() }));
        if claim.terminates && !self.is_deserted.load(Ordering::Acquire) {
            self.flushed().await;
            (self.settings.terminate)();
        }
    }

    pub(super) fn release(self: &Arc<Self>, id: Value, name: &Name) {
        let held = self.claims().remove(name);
        match held {
            None => self.answer(&id, refusal(&Error::Ended("there is no claim on it".into()))),
            Some(Held::Waiting { request, taken: Some(taken), .. }) => {
                self.answer(&request, refusal(&Error::Aborted));
                self.settle(id, async move { taken.release().await });
            }
            Some(Held::Waiting { request, task, .. }) => {
                // Its pending claim goes with the task, and leaves the queue.
                task.abort();
                self.answer(&request, refusal(&Error::Aborted));
                self.answer(&id, json!({ "ok": true }));
            }
            Some(Held::Here(claim)) => self.settle(id, claim.release()),
        }
    }

    /// Answers when the server knows of a release, or can't be told.
    fn settle(
        self: &Arc<Self>,
        id: Value,
        releasing: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) {
        let keychain = self.clone();
        self.spawn(async move {
            let answer = releasing.await.map_or_else(|error| refusal(&error), |()| json!({ "ok": true }));
            keychain.answer(&id, answer);
        });
    }

    pub(super) fn refresh(self: &Arc<Self>, line: Line, name: &Name) {
        let refreshing = line.ttl().and_then(|ttl| match self.claims().get(name) {
            Some(Held::Here(claim)) => claim.start_refresh(ttl),
            _ => Err(Error::Ended("it is not held".into())),
        });
        let (keychain, name) = (self.clone(), name.clone());
        self.spawn(async move {
            let result = match refreshing {
                Ok(refreshing) => refreshing.await.unwrap_or(Err(Error::Closed)),
                Err(error) => Err(error),
            };
            match result {
                Ok(()) => keychain.validate(&line.id, &name),
                Err(error) => keychain.answer(&line.id, refusal(&error)),
            }
        });
    }

    pub(super) fn validate(&self, id: &Value, name: &Name) {
        let answer = match self.claims().get(name) {
            Some(Held::Here(claim)) => claim.validate().map_or_else(
                |error| refusal(&error),
                |token| {
                    let mut answer = json!({ "ok": true, "claim": claim.id(), "token": token });
                    show_until(&mut answer, claim.holds_until());
                    answer
                },
            ),
            _ => refusal(&Error::Ended("it is not held".into())),
        };
        self.answer(id, answer);
    }

    /// Asks the server who holds a resource: the first holder, and all of them where it is shared or has slots.
    pub(super) fn show(self: &Arc<Self>, id: Value, name: Name) {
        let keychain = self.clone();
        self.spawn(async move {
            let filters = [("resource", name.resource.as_str()), ("status", "active")];
            let answer = match keychain.manager.api().list(&filters, HOLDERS_MAX).await {
                Ok(claims) => {
                    let holders: Vec<Value> = claims.iter().map(about_holder).collect();
                    json!({ "ok": true, "holder": holders.first(), "holders": holders })
                }
                Err(error) => refusal(&error),
            };
            keychain.answer(&id, answer);
        });
    }

    pub(super) fn list(&self, id: &Value) {
        let claims = self.claims();
        let rows: Vec<Value> = claims
            .iter()
            .map(|(name, held)| {
                let mut row = match held {
                    Held::Waiting { .. } => json!({ "held": false, "claim": null, "token": null }),
                    Held::Here(claim) => json!({ "held": claim.validate().is_ok(), "claim": claim.id(),
                        "token": claim.token() }),
                };
                row["resource"] = json!(name.resource);
                if !name.worker.is_empty() {
                    row["worker"] = json!(name.worker);
                }
                row
            })
            .collect();
        drop(claims);
        self.answer(id, json!({ "ok": true, "claims": rows }));
    }
}

/// A claim that was acquired, as events name it.
struct Followed {
    shared: Arc<SharedClaim>,
    id: String,
    token: Option<u64>,
    terminates: bool,
}

/// What is told of the claim that holds a resource.
fn about_holder(holder: &ClaimInfo) -> Value {
    let mut about = json!({ "claim": holder.id(), "owner": holder.owner, "token": holder.token,
        "user_data": holder.user_data });
    if !holder.items.is_empty() {
        about["items"] = json!(holder.items);
    }
    about
}

/// For how long the claim certainly holds, and until when on the clock that all processes of this machine share.
fn show_until(answer: &mut Value, until: BootInstant) {
    answer["remaining"] = json!(until.remaining().as_secs_f64());
    answer["until"] = json!(until.as_secs_f64());
}
