//! The ways to lock: each system's clients behind one pair of verbs.
//!
//! In:    a `Way` and an address. Out: a `Client` that acquires, releases and renews.
//! Never: more than one request in flight.

mod etcd;
mod http2;
mod leasehold;
mod postgres;
mod redis;
mod zookeeper;

use std::net::SocketAddr;

use anyhow::{Result, bail};
use leasehold_bench::reactor::Seat;

pub(crate) use self::etcd::Etcd;
pub(crate) use self::leasehold::{KEY, Leasehold};
pub(crate) use self::zookeeper::ZooKeeper;

/// A system, and which of its roads to a lock is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// `POST /v1/claims/`, `PATCH` to `released`.
    Leasehold,
    /// `SET NX PX`, compare and delete by script, on its port for Redis clients.
    LeaseholdResp,
    /// The same requests to a bare HTTP responder.
    Ceiling,
    /// Create if absent in a transaction, delete; the lease is reused.
    EtcdTxn,
    /// The lock service; the lease is reused.
    EtcdLock,
    /// A lease for each lock: grant, lock, revoke.
    EtcdLease,
    /// `SET NX PX`, `DEL`.
    RedisSet,
    /// `SET NX PX`, compare and delete by script.
    RedisLock,
    /// The same, and each change waits until a replica has it.
    RedisReplicated,
    /// An ephemeral node, deleted.
    ZooKeeperNode,
    /// The lock recipe: a numbered ephemeral node, the list, a watch on the one before, delete.
    ZooKeeperLock,
    /// A row, inserted and deleted.
    PostgresRow,
    /// `pg_advisory_lock`, which no disk ever sees.
    PostgresAdvisory,
}

impl Way {
    /// What tables call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Leasehold => "Leasehold, HTTP/JSON",
            Self::LeaseholdResp => "Leasehold, SET NX PX + script",
            Self::Ceiling => "bare HTTP responder",
            Self::EtcdTxn => "etcd, transaction",
            Self::EtcdLock => "etcd, lock API, lease reused",
            Self::EtcdLease => "etcd, lock API, lease each time",
            Self::RedisSet => "redis, SET NX PX + DEL",
            Self::RedisLock => "redis, SET NX PX + script",
            Self::RedisReplicated => "redis with one replica, the same, each with WAIT 1",
            Self::ZooKeeperNode => "zookeeper, ephemeral node",
            Self::ZooKeeperLock => "zookeeper, lock recipe",
            Self::PostgresRow => "postgresql, row",
            Self::PostgresAdvisory => "postgresql, advisory lock (not durable)",
        }
    }
}

/// One client on one connection.
pub(crate) enum Client {
    /// Leasehold or the bare responder.
    Leasehold(Leasehold),
    /// etcd, by one of its ways.
    Etcd(Etcd, Way),
    /// Redis, or Leasehold for Redis clients.
    Redis(redis::Redis),
    /// ZooKeeper: with a parent, the recipe below it.
    ZooKeeper(ZooKeeper, Way),
    /// PostgreSQL.
    Postgres(postgres::Postgres),
}

impl Client {
    /// Connects.
    pub(crate) async fn connect(way: Way, addr: SocketAddr, seat: Seat<'_>) -> Result<Self> {
        Ok(match way {
            Way::Leasehold | Way::Ceiling => Self::Leasehold(Leasehold::connect(addr, seat)?),
            Way::EtcdTxn | Way::EtcdLock => Self::Etcd(Etcd::connect(addr, seat, true).await?, way),
            Way::EtcdLease => Self::Etcd(Etcd::connect(addr, seat, false).await?, way),
            Way::LeaseholdResp | Way::RedisSet | Way::RedisLock | Way::RedisReplicated => {
                let settings = redis::Settings {
                    compares: way != Way::RedisSet,
                    key: KEY.get().map(String::as_str).filter(|_| way == Way::LeaseholdResp),
                    waits_for_replica: way == Way::RedisReplicated,
                };
                Self::Redis(redis::Redis::connect(addr, seat, settings).await?)
            }
            Way::ZooKeeperNode | Way::ZooKeeperLock => {
                Self::ZooKeeper(ZooKeeper::connect(addr, seat).await?, way)
            }
            Way::PostgresRow => Self::Postgres(postgres::Postgres::connect(addr, seat, false).await?),
            Way::PostgresAdvisory => Self::Postgres(postgres::Postgres::connect(addr, seat, true).await?),
        })
    }

    /// What has to be there before `name` can be locked, and is no part of locking it.
    pub(crate) async fn prepare(&mut self, name: &str) -> Result<()> {
        match self {
            Self::ZooKeeper(client, Way::ZooKeeperLock) => client.ensure(&node(name)).await,
            _ => Ok(()),
        }
    }

    /// Locks `name`; with `wait`, where somebody else has it, waits for it.
    pub(crate) async fn acquire(&mut self, name: &str, wait: bool) -> Result<()> {
        match self {
            Self::Leasehold(client) => client.acquire(name, wait).await,
            Self::Etcd(client, Way::EtcdTxn) => client.create(name).await,
            Self::Etcd(client, Way::EtcdLease) => client.lock_with_lease(name).await,
            Self::Etcd(client, _) => client.lock(name).await,
            Self::Redis(client) => client.acquire(name).await,
            Self::ZooKeeper(client, Way::ZooKeeperLock) => client.acquire_fair(&node(name)).await,
            Self::ZooKeeper(client, _) => client.acquire(&node(name)).await,
            Self::Postgres(client) => client.acquire(name).await,
        }
    }

    /// Gives back what was locked last.
    pub(crate) async fn release(&mut self) -> Result<()> {
        match self {
            Self::Leasehold(client) => client.release().await,
            Self::Etcd(client, Way::EtcdTxn) => client.delete().await,
            Self::Etcd(client, Way::EtcdLease) => client.revoke().await,
            Self::Etcd(client, _) => client.unlock().await,
            Self::Redis(client) => client.release().await,
            Self::ZooKeeper(client, _) => client.release().await,
            Self::Postgres(client) => client.release().await,
        }
    }

    /// Says goodbye where leaving has consequences: a session of ZooKeeper's that is not closed is ended forty seconds
    /// later, in the middle of somebody else's round.
    pub(crate) async fn close(&mut self) -> Result<()> {
        match self {
            Self::ZooKeeper(client, _) => client.close().await,
            _ => Ok(()),
        }
    }

    /// Holds something that can be renewed, and says under which id.
    pub(crate) async fn hold(&mut self, name: &str) -> Result<String> {
        match self {
            Self::Etcd(client, _) => return Ok(client.grant().await?.to_string()),
            Self::ZooKeeper(..) => bail!("ZooKeeper's sessions are kept alive, not its locks"),
            _ => self.acquire(name, false).await?,
        }
        Ok(if let Self::Leasehold(client) = self { client.held() } else { name.to_owned() })
    }

    /// Renews what `hold` named; several at once where the system can.
    pub(crate) async fn renew(&mut self, ids: &[String]) -> Result<()> {
        match self {
            Self::Leasehold(client) if ids.len() > 1 => return client.renew_many(ids).await,
            _ => {}
        }
        for id in ids {
            match self {
                Self::Leasehold(client) => client.renew(id).await?,
                Self::Etcd(client, _) => client.keep_alive(id.parse()?).await?,
                Self::Redis(client) => client.renew(id).await?,
                Self::Postgres(client) => client.renew(id).await?,
                Self::ZooKeeper(..) => bail!("ZooKeeper's sessions are kept alive, not its locks"),
            }
        }
        Ok(())
    }
}

/// A name as a path of ZooKeeper's, directly below the root.
fn node(name: &str) -> String {
    let mut path = String::with_capacity(1 + name.len());
    path.push('/');
    path.extend(name.chars().map(|letter| if letter == '/' { '-' } else { letter }));
    path
}
