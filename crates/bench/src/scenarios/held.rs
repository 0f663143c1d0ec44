//! Many held claims: taking them, touching each of them, and the probe of a bystander.
//!
//! In:    a number of claims. Out: work for sessions that `renew`, `read` and `hold` put together.
//! Never: two claims on one resource.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::cycle::cycle;
use crate::http::Request;
use crate::load::{Plan, Span};
use crate::names::{Names, Paths};
use crate::session::{self, Session};
use crate::stats::{Op, Stats};
use crate::target::Target;

/// Connections that take and give back claims which are not what is measured.
const FILL_CONNECTIONS: usize = 64;
/// The ttl of claims that are only held; no run is that long.
pub(super) const HELD_TTL: f64 = 3600.0;

/// The plan of a run over `count` claims; the limit is what a server at 500 a second would need.
pub(super) fn counted(name: &str, count: u64) -> Plan<'_> {
    let limit = Duration::from_secs(30 + count / 500);
    Plan { name, warmup: Duration::ZERO, span: Span::Counted { limit }, rate: None, shows_progress: true }
}

/// Takes claims until there are enough.
pub(super) struct Fill {
    names: Names,
    /// What follows the name of the resource in a claim.
    rest: String,
    /// How many were asked for, and how many are wanted.
    asked: Cell<u64>,
    wanted: u64,
    paths: RefCell<Paths>,
}

impl Fill {
    /// Takes `wanted` claims with this ttl and so many bytes of data.
    pub(super) fn new(kind: &str, ttl: f64, data_bytes: usize, wanted: u64) -> Self {
        let data = match data_bytes {
            0 => String::new(),
            bytes => format!(",\"user_data\":\"{}\"", "d".repeat(bytes.saturating_sub(2))),
        };
        let (names, rest) = (Names::new(kind), format!("\",\"ttl\":{ttl:?}{data}}}"));
        let paths = RefCell::new(Paths::with_room(wanted as usize));
        Self { names, rest, asked: Cell::new(0), wanted, paths }
    }

    /// One connection's share of the work.
    pub(super) async fn work(&self, session: &mut Session<'_>) -> Result<()> {
        let mut name = String::new();
        while self.asked.get() < self.wanted
            && let Some(started) = session.next().await?
        {
            self.asked.set(self.asked.get() + 1);
            self.names.fresh(&mut name);
            let request = Request::claim("", &name, &self.rest);
            if let Some(path) = session.claim(Op::Claim, started, &request).await? {
                self.paths.borrow_mut().push(&path);
            }
        }
        Ok(())
    }

    /// The name of the resource of claim `number`, and all claims that were granted.
    pub(super) fn into_held(self, number: u64) -> (String, Held) {
        let mut name = String::new();
        self.names.numbered(number, &mut name);
        (name, Held(self.paths.into_inner()))
    }
}

/// Claims that are held.
pub(super) struct Held(pub(super) Paths);

impl Held {
    /// Takes claims on the side.
    pub(super) fn take(target: &Target, claims: u32) -> Result<Self> {
        let fill = Fill::new("held", HELD_TTL, 0, claims.into());
        let work = async |session: &mut Session<'_>| fill.work(session).await;
        let stats = session::run(target, FILL_CONNECTIONS, counted("fill", claims.into()), &work)?;
        ensure!(stats.errors.is_empty(), "the claims could not be taken: {:?}", stats.errors);
        Ok(fill.into_held(0).1)
    }

    /// Gives all claims back on the side.
    pub(super) fn release(&self, target: &Target) -> Result<()> {
        self.release_on(target, FILL_CONNECTIONS, "release").map(drop)
    }

    /// Gives all claims back.
    pub(super) fn release_on(&self, target: &Target, connections: usize, name: &str) -> Result<Stats> {
        let each = self.each(Op::Release, 204, true, Request::release(""));
        let work = async |session: &mut Session<'_>| each.work(session).await;
        session::run(target, connections, counted(name, self.0.len() as u64), &work)
    }

    /// The same request to claim after claim: to each of them `once`, or round and round.
    pub(super) fn each<'a>(&'a self, op: Op, right: u16, once: bool, request: Request<'a>) -> Each<'a> {
        let end = if once { self.0.len() } else { usize::MAX };
        Each { paths: &self.0, op, request, right, at: Cell::new(0), end }
    }
}

/// The same request to claim after claim.
pub(super) struct Each<'a> {
    paths: &'a Paths,
    op: Op,
    /// The request; its path is that of the claim.
    request: Request<'a>,
    /// The only status that is right.
    right: u16,
    /// The next claim.
    at: Cell<usize>,
    end: usize,
}

impl Each<'_> {
    /// One connection's share of the work.
    pub(super) async fn work(&self, session: &mut Session<'_>) -> Result<()> {
        while let Some((started, request)) = self.next(session).await? {
            session.ask(self.op, started, &request, &[self.right]).await?;
        }
        Ok(())
    }

    /// The same with a ttl that ends at `moment` for all claims, whenever each of them is asked.
    pub(super) async fn expire_at(&self, session: &mut Session<'_>, moment: Instant) -> Result<()> {
        while let Some((started, request)) = self.next(session).await? {
            let left = moment.saturating_duration_since(Instant::now()).as_secs_f64();
            let body = format!("{{\"ttl\":{left:?}}}");
            let request = Request::patch(request.target[0], &body);
            session.ask(self.op, started, &request, &[self.right]).await?;
        }
        Ok(())
    }

    async fn next(&self, session: &mut Session<'_>) -> Result<Option<(Instant, Request<'_>)>> {
        let at = self.at.get();
        let Some(path) = self.paths.cyclic(at).filter(|_| at < self.end) else { return Ok(None) };
        self.at.set(at + 1);
        let request = Request { target: [path, self.request.target[1], ""], ..self.request };
        Ok(session.next().await?.map(|started| (started, request)))
    }
}

/// Connection 0 is a bystander that claims and releases; the others do the work.
pub(super) struct Probe {
    names: Names,
    /// Connections that still work; when there are none left, the bystander leaves too.
    working: Cell<usize>,
}

impl Probe {
    /// A bystander beside `connections` working ones, or, without any, one that stays until time is up.
    pub(super) fn new(connections: Option<usize>) -> Self {
        Self { names: Names::new("prob"), working: Cell::new(connections.unwrap_or(usize::MAX)) }
    }

    /// One connection's share.
    pub(super) async fn beside(
        &self,
        session: &mut Session<'_>,
        work: &impl AsyncFn(&mut Session<'_>) -> Result<()>,
    ) -> Result<()> {
        if session.number == 0 {
            let ops = (Op::ProbeClaim, Op::ProbeRelease);
            return cycle(session, &self.names, ops, || self.working.get() > 0).await;
        }
        work(session).await?;
        self.working.set(self.working.get().saturating_sub(1));
        Ok(())
    }
}
