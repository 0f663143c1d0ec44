//! What waits for the proposer: commands of this node, and on a leader parcels of other nodes.
//!
//! In:    jobs and parcels, within their limits. Out: as many commands as one parcel takes, with their waiters.
//! Never: waits, or looks at anything but its own queues.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Command, Outcome};
use tokio::sync::oneshot;

use crate::EngineError;
use crate::entry::Parcel;
use crate::hops::{Hops, Traced};
use crate::in_flight::OutcomeSender;
use crate::machine::Instant;

/// Commands in one parcel: enough for every connection of a busy node.
pub(super) const PARCEL_LEN_MAX: usize = 2048;
/// Bytes of one parcel, roughly: a fraction of a log segment.
const PARCEL_BYTES_MAX: usize = 1 << 20;
/// Commands waiting to be packed; beyond that a node says it is overloaded instead of growing.
const PENDING_MAX: usize = 100_000;
/// Parcels of other nodes waiting to be packed: each node sends only a few at a time.
const FORWARDED_MAX: usize = 64;

/// Commands that were submitted together, and when.
pub(super) struct Job {
    pub(super) since: Instant,
    pub(super) what: What,
    /// The request that submitted them, if it is traced.
    pub(super) traced: Option<Arc<Hops>>,
}

/// Commands and who waits for them.
pub(super) enum What {
    One(Command, oneshot::Sender<Result<Outcome, EngineError>>),
    Many(Vec<Command>, oneshot::Sender<Result<Vec<Outcome>, EngineError>>),
}

impl Job {
    pub(super) fn fail(self, error: EngineError) {
        match self.what {
            What::One(_, reply) => drop(reply.send(Err(error))),
            What::Many(_, reply) => drop(reply.send(Err(error))),
        }
    }

    fn len(&self) -> usize {
        match &self.what {
            What::One(..) => 1,
            What::Many(commands, _) => commands.len(),
        }
    }

    fn grows(&self) -> bool {
        match &self.what {
            What::One(command, _) => command.grows(),
            What::Many(commands, _) => commands.iter().any(Command::grows),
        }
    }

    fn is_tick(&self) -> bool {
        matches!(self.what, What::One(Command::Tick | Command::Settle { .. }, _))
    }
}

/// A parcel of another node, and where to say whether it was taken.
type Forwarded = (Parcel, oneshot::Sender<Result<(), EngineError>>);

/// What waits to be packed.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) jobs: VecDeque<Job>,
    /// Commands in them.
    pub(super) len: usize,
    pub(super) forwarded: VecDeque<Forwarded>,
    /// Set when the node stops: nothing more is taken.
    pub(super) closed: bool,
}

/// Which jobs are refused instead of packed.
#[derive(Clone, Copy)]
pub(super) struct Refuses {
    /// The disk is full: everything but ticks, so that time goes on.
    pub(super) all: bool,
    /// The memory is full: what makes the table larger.
    pub(super) growth: bool,
}

/// The commands of one parcel.
pub(super) struct Packed {
    pub(super) commands: Vec<Command>,
    /// Who waits for their outcomes, in the same order.
    pub(super) waiters: Vec<OutcomeSender>,
    /// When the oldest of them was submitted.
    pub(super) since: Instant,
    /// The requests among them that are traced.
    pub(super) traced: Traced,
}

impl Pending {
    /// Takes a job, or gives it back with the reason.
    pub(super) fn push(&mut self, job: Job) -> Result<(), (Job, EngineError)> {
        if self.closed {
            return Err((job, EngineError::Stopping));
        }
        if self.len + job.len() > PENDING_MAX {
            return Err((job, EngineError::Overloaded));
        }
        self.len += job.len();
        self.jobs.push_back(job);
        Ok(())
    }

    /// Takes a parcel of another node.
    pub(super) fn push_forwarded(
        &mut self,
        parcel: Parcel,
        taken: oneshot::Sender<Result<(), EngineError>>,
    ) -> Result<(), EngineError> {
        if self.closed {
            return Err(EngineError::NotLeader);
        }
        if self.forwarded.len() >= FORWARDED_MAX {
            return Err(EngineError::Overloaded);
        }
        self.forwarded.push_back((parcel, taken));
        Ok(())
    }

    /// The jobs that have waited for longer than this.
    pub(super) fn take_older(&mut self, age: Duration) -> Vec<Job> {
        let mut older = Vec::new();
        while let Some(job) = self.jobs.pop_front_if(|job| job.since.elapsed() > age) {
            self.len -= job.len();
            older.push(job);
        }
        older
    }

    /// Everything; what comes next is still taken.
    pub(super) fn take_all(&mut self) -> Self {
        let closed = self.closed;
        std::mem::replace(self, Self { closed, ..Self::default() })
    }

    /// The commands of the next parcel; none if nothing waits that may be packed.
    pub(super) fn pack(&mut self, refuses: Refuses) -> Option<Packed> {
        if self.jobs.is_empty() {
            return None;
        }
        let mut commands = Vec::with_capacity(self.len.min(PARCEL_LEN_MAX));
        let mut waiters = Vec::with_capacity(self.jobs.len().min(PARCEL_LEN_MAX));
        let (mut bytes, mut since, mut traced) = (0, None, Traced::default());
        while commands.len() < PARCEL_LEN_MAX
            && bytes < PARCEL_BYTES_MAX
            && let Some(job) = self.jobs.pop_front()
        {
            self.len -= job.len();
            if refuses.all && !job.is_tick() {
                job.fail(EngineError::DiskFull);
                continue;
            }
            if refuses.growth && job.grows() {
                job.fail(EngineError::MemoryFull);
                continue;
            }
            since = since.or(Some(job.since));
            if let Some(request) = job.traced {
                traced.pack(request, job.since);
            }
            match job.what {
                What::One(command, reply) => {
                    bytes += weight(&command);
                    commands.push(command);
                    waiters.push(OutcomeSender::One(reply));
                }
                What::Many(many, reply) => {
                    bytes += many.iter().map(weight).sum::<usize>();
                    waiters.push(OutcomeSender::Many(many.len(), reply));
                    commands.extend(many);
                }
            }
        }
        Some(Packed { commands, waiters, traced, since: since? })
    }

    /// The parcels of other nodes for the next entry. Their nodes are told that they were taken, or that the disk is full.
    pub(super) fn take_forwarded(&mut self, is_disk_full: bool) -> Vec<Parcel> {
        let (mut parcels, mut bytes) = (Vec::new(), 0);
        while bytes < PARCEL_BYTES_MAX
            && let Some((parcel, taken)) = self.forwarded.pop_front()
        {
            if is_disk_full {
                taken.send(Err(EngineError::DiskFull)).ok();
            } else if taken.send(Ok(())).is_ok() {
                bytes += parcel.commands.iter().map(weight).sum::<usize>();
                parcels.push(parcel);
            }
        }
        parcels
    }
}

/// About how many bytes a command takes in the log.
fn weight(command: &Command) -> usize {
    let data = |data: &Option<leasehold_core::Data>| data.as_ref().map_or(0, |data| data.bytes.len());
    64 + match command {
        Command::Claim(new) => new.resource.len() + new.owner.len() + data(&new.data),
        Command::Renew { data: new, .. } => data(new),
        Command::LockAll { items, data: shared, .. } => {
            items.iter().map(|(_, resource)| 32 + resource.len()).sum::<usize>() + data(shared)
        }
        Command::Settle { resources } => resources.iter().map(|resource| resource.len()).sum(),
        _ => 0,
    }
}
