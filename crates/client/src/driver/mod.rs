//! The driver: one task that carries out what the claim machine says, for all claims of a manager.
//!
//! In:    commands from handles, answers from the server, timers. Out: requests, and news in each claim's `SharedClaim`.
//! Never: a thread or a task that lives as long as a claim; a renewal after a release was asked for; a claim that
//!        counts as held when the server could have handed it over.
//!
//! `entry.rs` is one claim, `actions.rs` does what rows say, `answers.rs` reads responses, `renewals.rs` packs many
//! renewals into one request, `ghosts.rs` takes back claims whose registration was never answered, `take_up.rs` goes on
//! with a claim that another process has made, `again.rs` asks again for claims that ended unseen, `passing.rs` for those that
//! were refused because of an end on its way, `told.rs` has the server tell of claims that it ends.

mod actions;
mod again;
mod answers;
mod entry;
mod ghosts;
mod passing;
mod renewals;
mod take_up;
mod told;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

pub(crate) use self::entry::SharedClaim;
use self::entry::{Entry, Reporter, TimerId};
pub use self::entry::{Phase, Progress};
pub(crate) use self::take_up::Predecessor;
use crate::clock::{Alarm, BootInstant};
use crate::error::{Error, Lost};
use crate::http::{Failure, Http, Reply};
use crate::item::Item;
use crate::machine::{Event, State, Timer, step};
use crate::request::{ClaimRequest, Wait, Worker};
use crate::settings::Options;

/// What handles ask for.
pub(crate) enum Command {
    Claim {
        key: u64,
        request: Box<ClaimRequest>,
        shared: Arc<SharedClaim>,
        reply: Reporter<()>,
        /// A claim to go on with instead of making one.
        predecessor: Option<Predecessor>,
    },
    /// The caller no longer wants the claim.
    Cancel(u64),
    Release {
        key: u64,
        reply: Option<Reporter<()>>,
    },
    Refresh {
        key: u64,
        ttl: Option<Duration>,
        reply: Reporter<()>,
    },
    /// A signal to all claims.
    Signal,
    /// Give everything up in peace.
    Close,
    /// Answered when nothing is left.
    Idle(oneshot::Sender<()>),
}

/// What tasks bring back.
enum News {
    Answered { key: u64, seq: u64, result: Result<Reply, Failure> },
    Renewed { batch: Vec<(u64, u64)>, result: Result<Reply, Failure> },
    Told { page: u64, result: Result<Reply, Failure> },
    TellAgain,
    Cleaned,
}

/// All claims of one manager.
pub(crate) struct Driver {
    options: Options,
    http: Arc<Http>,
    claims: BTreeMap<u64, Entry>,
    /// The newest claim of each worker on a resource.
    by_resource: HashMap<(String, Worker), u64>,
    timers: BTreeSet<(BootInstant, u64, TimerId)>,
    news: mpsc::UnboundedSender<News>,
    /// Claims whose renewal is to be sent when this round is over.
    renewals: Vec<u64>,
    /// Claims that were renewed with a ttl that is not theirs any more.
    changed: Vec<u64>,
    /// The server knows `POST /v1/renewals`.
    knows_renewals: bool,
    /// Until when claims are made without a session, since the server knows none.
    no_sessions_until: Option<BootInstant>,
    /// Ends that the server tells of.
    told: told::Told,
    /// When a claim was last over, and claims that were refused while ends were on their way.
    last_end: Option<BootInstant>,
    refused: Vec<u64>,
    long_polls: usize,
    cleaning: usize,
    closing: bool,
    idle: Vec<oneshot::Sender<()>>,
}

/// Starts the task; it ends when all handles are gone and all claims are over.
pub(crate) fn start(options: Options, http: Arc<Http>) -> Result<mpsc::UnboundedSender<Command>, Error> {
    // Panics here rather than later in the task, if the runtime has no timers.
    drop(tokio::time::sleep(Duration::ZERO));
    let alarm = Alarm::new().map_err(|error| Error::Invalid(format!("no timer can be created: {error}")))?;
    let (commands, receiver) = mpsc::unbounded_channel();
    let (news, heard) = mpsc::unbounded_channel();
    let driver = Driver {
        options,
        http,
        claims: BTreeMap::new(),
        by_resource: HashMap::new(),
        timers: BTreeSet::new(),
        news,
        renewals: Vec::new(),
        changed: Vec::new(),
        knows_renewals: true,
        no_sessions_until: None,
        told: told::Told::default(),
        last_end: None,
        refused: Vec::new(),
        long_polls: 0,
        cleaning: 0,
        closing: false,
        idle: Vec::new(),
    };
    tokio::spawn(driver.run(alarm, receiver, heard));
    Ok(commands)
}

/// A driver that panics renews nothing any more: holders are told that their claims are lost.
impl Drop for Driver {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for entry in self.claims.values().filter(|entry| entry.state.is_holding() && !entry.is_lost) {
                entry.set_phase(Phase::Lost(Lost::Ended(
                    "this client has failed and no longer renews the claim: this is a bug, please report it"
                        .into(),
                )));
            }
        }
    }
}

impl Driver {
    async fn run(
        mut self,
        mut alarm: Alarm,
        mut commands: mpsc::UnboundedReceiver<Command>,
        mut heard: mpsc::UnboundedReceiver<News>,
    ) {
        let mut deserted = false;
        loop {
            let next = self.timers.first().map(|(due, ..)| *due);
            alarm.set(next).expect("the kernel's timer can be set");
            tokio::select! {
                command = commands.recv(), if !deserted => match command {
                    Some(command) => self.obey(command),
                    None => { deserted = true; self.close(); }
                },
                Some(news) = heard.recv() => self.hear(news),
                rung = alarm.rings(), if next.is_some() => rung.expect("the kernel's timer can be read"),
            }
            // What has arrived goes before what is due: a renewal may have got through in the last moment.
            while let Ok(news) = heard.try_recv() {
                self.hear(news);
            }
            self.fire_due();
            self.repeat_refused();
            self.renew_changed();
            self.send_renewals();
            self.ask_for_ends();
            if self.claims.is_empty() && self.cleaning == 0 {
                for waiting in self.idle.drain(..) {
                    waiting.send(()).ok();
                }
                if deserted {
                    return;
                }
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Claim { key, request, shared, reply, predecessor } => {
                if self.claim(key, *request, shared, reply) {
                    match predecessor {
                        None => self.on(key, Event::Start),
                        Some(predecessor) => self.take_up(key, predecessor),
                    }
                }
            }
            Command::Cancel(key) => self.cancel(key),
            Command::Release { key, reply } => self.release(key, reply),
            Command::Refresh { key, ttl, reply } => self.refresh(key, ttl, reply),
            Command::Signal => {
                self.closing = true;
                self.for_all(|driver, key| driver.on(key, Event::Signal));
            }
            Command::Close => self.close(),
            Command::Idle(reply) => self.idle.push(reply),
        }
    }

    /// Notes a new claim, unless its worker has one on the resource already.
    fn claim(
        &mut self,
        key: u64,
        request: ClaimRequest,
        shared: Arc<SharedClaim>,
        reply: Reporter<()>,
    ) -> bool {
        let items = request.items();
        let worker = request.worker.unwrap_or_else(Worker::current);
        let name = |item: &Item| (item.resource.clone(), worker.clone());
        let is_claimed = |item: &&Item| {
            let before = self.by_resource.get(&name(item)).and_then(|key| self.claims.get(key));
            before.is_some_and(|entry| !entry.is_ending())
        };
        let refusal = match items.iter().find(is_claimed) {
            _ if self.closing => Some(Error::Closed),
            claimed => claimed.map(|item| Error::AlreadyClaimed(item.resource.clone())),
        };
        if let Some(refusal) = refusal {
            shared.phase.send_replace(Phase::Ended);
            reply.send(Err(refusal)).ok();
            return false;
        }
        self.by_resource.extend(items.iter().map(|item| (name(item), key)));
        let now = BootInstant::now();
        let ttl = request.ttl.unwrap_or(self.options.ttl);
        let wait = match request.wait {
            Wait::Default => self.options.timeout.map_or(Wait::Forever, Wait::For),
            wait => wait,
        };
        let entry = Entry {
            state: State::New,
            shared,
            ttl,
            sent_ttl: ttl,
            // No time to wait at all is not too short for the server to answer.
            wait: if wait == Wait::For(Duration::ZERO) { Wait::No } else { wait },
            items,
            session: request.session,
            data: request.data,
            max_hold: request.max_hold,
            lead: request.lead,
            agreed_ttl: ttl,
            worker,
            idempotency_key: request.idempotency_key.unwrap_or_else(fresh_key),
            started: now,
            id: None,
            seq: 0,
            in_flight: None,
            long_poll: None,
            attempts: 0,
            end_was_sent: false,
            polls: 0,
            deadlocks: 0,
            may_be_registered: false,
            was_taken: false,
            asked: now,
            not_taken: None,
            trouble: None,
            grant: None,
            retry_after: None,
            renewed: now,
            unconfirmed: false,
            is_lost: false,
            verdict: None,
            on_claim: Some(reply),
            on_release: Vec::new(),
            on_refresh: Vec::new(),
            timers: Vec::new(),
        };
        self.claims.insert(key, entry);
        true
    }

    /// The wait is over before its time, or the claim is held by nobody: out of the queue, or released.
    fn cancel(&mut self, key: u64) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        entry.verdict.get_or_insert(Error::Aborted);
        if entry.state.is_holding() {
            self.on(key, Event::ReleaseRequested);
        } else if !entry.is_ending() {
            // In an ending state the timeout would cut the end short.
            self.on(key, Event::Fired(Timer::Timeout));
        }
    }

    fn release(&mut self, key: u64, reply: Option<Reporter<()>>) {
        let Some(entry) = self.claims.get_mut(&key) else {
            // It has ended; its handle says how.
            if let Some(reply) = reply {
                reply.send(Err(Error::Ended("it had ended before".into()))).ok();
            }
            return;
        };
        entry.on_release.extend(reply);
        self.on(key, Event::ReleaseRequested);
    }

    fn refresh(&mut self, key: u64, ttl: Option<Duration>, reply: Reporter<()>) {
        let Some(entry) =
            self.claims.get_mut(&key).filter(|entry| entry.state.is_holding() && !entry.is_lost)
        else {
            reply.send(Err(Error::Ended("it is no longer held".into()))).ok();
            return;
        };
        entry.ttl = ttl.unwrap_or(entry.ttl);
        entry.on_refresh.push(reply);
        match entry.state {
            State::Active => self.fire(key, TimerId::Machine(Timer::Renew)),
            State::RetryingRenew => self.fire(key, TimerId::Machine(Timer::Retry)),
            _ => {}
        }
    }

    fn close(&mut self) {
        self.closing = true;
        self.for_all(|driver, key| {
            // Whoever still works under the claim has to stop.
            if driver.claims.get(&key).is_some_and(|entry| entry.on_claim.is_none()) {
                driver.lose(key, Lost::Aborted);
            }
            driver.cancel(key);
        });
    }

    fn for_all(&mut self, each: impl Fn(&mut Self, u64)) {
        let keys: Vec<u64> = self.claims.keys().copied().collect();
        for key in keys {
            each(self, key);
        }
    }

    /// One step of one claim's machine.
    fn on(&mut self, key: u64, event: Event) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        let Some(row) = step(entry.state, event) else { return };
        if let Some(observer) = &self.options.observer {
            observer(&entry.shared.resource, row);
        }
        self.leave(key, row.to, event);
        for action in row.then {
            self.perform(key, row, *action);
        }
        if row.to.is_final() {
            self.finish(key);
        }
    }

    fn fire_due(&mut self) {
        let now = BootInstant::now();
        let mut is_renewing = false;
        while let Some((due, key, timer)) = self.timers.first().copied().filter(|(due, ..)| *due <= now) {
            self.timers.remove(&(due, key, timer));
            is_renewing |= timer == TimerId::Machine(Timer::Renew)
                || self.claims.get(&key).is_some_and(|entry| entry.state == State::RetryingRenew);
            self.fire(key, timer);
        }
        if is_renewing {
            self.renew_ahead(now);
        }
    }

    fn fire(&mut self, key: u64, timer: TimerId) {
        self.stop_timer(key, timer);
        match timer {
            TimerId::Machine(timer) => self.on(key, Event::Fired(timer)),
            TimerId::Lost => {
                let trouble = self.claims.get(&key).and_then(|entry| entry.trouble.clone());
                self.lose(key, Lost::NotRenewed(trouble));
            }
            TimerId::MaxHold => self.lose(key, Lost::MaxHold),
            TimerId::End if self.expired_unseen(key, Some("expired")) => self.ask_again(key),
            TimerId::End => {
                self.lose(key, Lost::NotRenewed(None));
                self.on(key, Event::Signal);
            }
        }
    }

    /// The claim counts as held no longer. The server hears of it when the client lets go, or the ttl is over: what the
    /// claim protects may still be stopping.
    fn lose(&mut self, key: u64, lost: Lost) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        if entry.is_lost || !entry.state.is_holding() {
            return;
        }
        entry.is_lost = true;
        if entry.on_claim.is_some() {
            entry.verdict.get_or_insert(Error::Lost(lost));
        } else {
            for reply in entry.on_refresh.drain(..) {
                reply.send(Err(Error::Lost(lost.clone()))).ok();
            }
            entry.set_phase(Phase::Lost(lost));
        }
        self.drop_request(key);
        for timer in [Timer::Renew, Timer::Retry] {
            self.stop_timer(key, TimerId::Machine(timer));
        }
        self.stop_timer(key, TimerId::MaxHold);
    }

    fn start_timer(&mut self, key: u64, timer: TimerId, due: BootInstant) {
        self.stop_timer(key, timer);
        if let Some(entry) = self.claims.get_mut(&key) {
            entry.timers.push((timer, due));
            self.timers.insert((due, key, timer));
        }
    }

    fn stop_timer(&mut self, key: u64, timer: TimerId) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        if let Some(at) = entry.timers.iter().position(|(known, _)| *known == timer) {
            let (_, due) = entry.timers.swap_remove(at);
            self.timers.remove(&(due, key, timer));
        }
    }
}

/// A key for a POST that nobody else has.
pub fn fresh_key() -> String {
    format!("{:032x}", rand::random::<u128>())
}
