//! What the table and the model say, in one form that can be compared.
//!
//! In:    views, outcomes and whole tables. Out: [`Row`]s and [`Answer`]s.
//! Never: leaves out a field of a claim.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_core::table::{ListFilter, ListPage, Polls, Revoking};
use leasehold_core::{
    Budgets, ClaimId, Data, Idempotency, ItemView, Outcome, Rejection, Scope, Settings, Stamp, Status, Table,
    View,
};

use super::Model;

/// Everything a caller can see of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: ClaimId,
    pub(crate) resource: Arc<str>,
    pub(crate) owner: Arc<str>,
    pub(crate) ttl_us: Option<u64>,
    pub(crate) deadline_us: Option<u64>,
    pub(crate) created: Stamp,
    pub(crate) activated: Option<Stamp>,
    pub(crate) renewed_wall_us: u64,
    pub(crate) token: u64,
    pub(crate) version: u64,
    pub(crate) data: Option<Data>,
    pub(crate) idempotency: Option<Idempotency>,
    pub(crate) ended: Option<Stamp>,
    pub(crate) reason: Option<Arc<str>>,
    pub(crate) renewals: u32,
    pub(crate) status: Status,
    pub(crate) unpicked: bool,
    /// When its client last asked for it, and the longest pause before that.
    pub(crate) polls: Option<Polls>,
    pub(crate) left_us: Option<u64>,
    /// It is to let go, and why.
    pub(crate) revoking: Option<Revoking>,
    pub(crate) waiters: u64,
    pub(crate) position: Option<u64>,
    pub(crate) waited_us: u64,
    pub(crate) held_us: Option<u64>,
    pub(crate) session: Option<Arc<str>>,
    /// Empty for a plain claim.
    pub(crate) items: Vec<ItemView>,
}

/// The answer to one command: a word, and the claims it shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) word: String,
    pub(crate) rows: Vec<Row>,
}

impl Answer {
    pub(crate) fn word(word: impl Into<String>) -> Self {
        Self { word: word.into(), rows: Vec::new() }
    }
}

/// A whole table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct State {
    clock: Stamp,
    token: u64,
    next_seq: u64,
    settings: Settings,
    table_version: u32,
    budgets: Budgets,
    overrides: BTreeMap<Scope, u64>,
    earliest_us: Option<u64>,
    /// In order of creation.
    pub(crate) rows: Vec<Row>,
}

impl State {
    pub(crate) fn of_table(table: &Table) -> Self {
        let mut page = ListPage::new(0, usize::MAX);
        while !page.done {
            table.list(&ListFilter::default(), &mut page, table.clock().now_us, usize::MAX);
        }
        Self {
            clock: table.clock(),
            token: table.last_token(),
            next_seq: table.next_sequence(),
            settings: table.settings().clone(),
            table_version: table.version(),
            budgets: table.budgets(),
            overrides: table.budget_overrides().into_iter().collect(),
            earliest_us: table.earliest_deadline_us(),
            rows: page.views.iter().map(row).collect(),
        }
    }

    pub(crate) fn of_model(model: &Model) -> Self {
        Self {
            clock: model.clock,
            token: model.token,
            next_seq: model.last_seq + 1,
            settings: model.settings.clone(),
            table_version: model.table_version.max(1),
            budgets: model.budgets,
            overrides: model.overrides.iter().cloned().collect(),
            earliest_us: model.claims.iter().filter_map(|claim| claim.row.deadline_us).min(),
            rows: model.claims.iter().map(|claim| model.view(claim.seq)).collect(),
        }
    }
}

pub(crate) fn row(view: &View) -> Row {
    let claim = &view.claim;
    let granted = claim.token > 0;
    Row {
        id: claim.id,
        resource: claim.resource.clone(),
        owner: claim.owner.clone(),
        ttl_us: claim.ttl_us(),
        deadline_us: claim.deadline_us(),
        created: Stamp { now_us: claim.created_us, wall_us: claim.created_wall_us },
        activated: granted.then_some(Stamp { now_us: claim.activated_us, wall_us: claim.activated_wall_us }),
        renewed_wall_us: claim.renewed_wall_us,
        token: claim.token,
        version: claim.version,
        data: claim.data.as_deref().cloned(),
        idempotency: claim.idempotency.as_deref().copied(),
        ended: claim.end.as_ref().map(|end| Stamp { now_us: end.ended_us, wall_us: end.ended_wall_us }),
        reason: claim.reason().cloned(),
        renewals: claim.renewals,
        status: claim.status,
        unpicked: claim.unpicked,
        polls: claim.live.as_ref().and_then(|live| live.polls),
        left_us: claim.left_us(view.now_us),
        revoking: claim.live.as_ref().and_then(|live| live.revoking.clone()),
        waiters: view.waiters,
        position: view.position,
        waited_us: claim.waited_us(view.now_us),
        held_us: claim.held_us(view.now_us),
        session: view.session().cloned(),
        items: view.items().to_vec(),
    }
}

pub(crate) fn answer(outcome: &Outcome) -> Answer {
    let one = |word: &str, view: &View| Answer { word: word.into(), rows: vec![row(view)] };
    match outcome {
        Outcome::Granted(view) => one("granted", view),
        Outcome::Queued(view) => one("queued", view),
        Outcome::Existing(view) => one("existing", view),
        Outcome::Active(view) => one("active", view),
        Outcome::Renewed(view) => one("renewed", view),
        Outcome::Finished(view) => one("finished", view),
        Outcome::LockedAll(views) => {
            Answer { word: "locked all".into(), rows: views.iter().map(row).collect() }
        }
        Outcome::LockedNone { index, rejection } => rejected(&format!("locked none {index}"), rejection),
        Outcome::Revoked { count, more } => Answer::word(format!("revoked {count} {more}")),
        Outcome::Done => Answer::word("done"),
        Outcome::Rejected(rejection) => rejected("rejected", rejection),
        Outcome::Revoking(view) => one("revoking", view),
    }
}

fn rejected(word: &str, rejection: &Rejection) -> Answer {
    let code = rejection.code();
    let (more, view) = match rejection {
        Rejection::Busy(view)
        | Rejection::Waiting(view)
        | Rejection::Final(view)
        | Rejection::NotOwner(view)
        | Rejection::Revoking(view)
        | Rejection::NotAlone(view)
        | Rejection::VersionMismatch(view) => (String::new(), Some(view)),
        Rejection::NotHeld(resource, view) => (format!(" {resource}"), view.as_ref()),
        Rejection::Unknown(id) | Rejection::KeyReused(id) => (format!(" {id}"), None),
        Rejection::Repeated(resource) | Rejection::Unsettled(resource) => (format!(" {resource}"), None),
        Rejection::Blocked { resource, by } => (format!(" {resource}"), Some(by)),
        Rejection::Capacity { resource, of } => (format!(" {resource} {of}"), None),
        // Which of several cycles is shown is the table's choice.
        Rejection::Deadlock(_) => (String::new(), None),
        Rejection::QueueFull(max)
        | Rejection::OwnerFull(max)
        | Rejection::NamespaceFull(max)
        | Rejection::OverridesFull(max)
        | Rejection::HoldersFull(max)
        | Rejection::TableFull(max) => (format!(" {max}"), None),
        Rejection::OwnerBytes(bytes) | Rejection::NamespaceBytes(bytes) | Rejection::TableBytes(bytes) => {
            (format!(" {} of {}", bytes.used, bytes.max), None)
        }
        Rejection::TooEarly(version) => (format!(" {version}"), None),
        Rejection::NoMemory | Rejection::BadItems => (String::new(), None),
    };
    Answer { word: format!("{word} {code}{more}"), rows: view.into_iter().map(|view| row(view)).collect() }
}
