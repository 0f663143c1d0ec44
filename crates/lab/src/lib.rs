//! The laboratory: Leasehold under faults, and what must hold all the same.
//!
//! - [`proxy`]    stands between two nodes: cuts, delays and heals their links, each way by itself
//! - [`cluster`]  real processes on ports of their own, killed, paused, wiped and started again
//! - [`port`]     ports that stay a node's own while it is down
//! - [`small_disk`] a disk that can be filled
//! - [`workload`] clients that claim, hold and release while faults happen, and write down what they were told
//! - [`upgrade`]  a cluster whose nodes change from one release to another under load (`make test-upgrade`)
//! - [`http`]     a client that says whether a request failed, or whether nobody knows
//! - [`chaos`]    random faults on a cluster of real processes, under clients of all dialects (`make chaos`)
//! - [`wire`]     the claims dialect as these clients speak it
//! - [`history`]  what clients asked and were told, and when
//! - [`linear`]   whether all of that can have happened to one lock with a queue and growing tokens
//! - [`cells`]    many clusters as queues with a rate, for docs/scaling.md
//! - [`mutate`]   bytes that are almost right, for fuzzing
//! - `sim`        a whole cluster in one thread, from one seed (`make sim`; behind the feature of that name)
//! - [`random`]   numbers from a seed
//! - [`register`] updates that are lost under a lock without tokens, and are not with them
//!
//! Nothing here is part of the service.

pub mod cells;
pub mod chaos;
pub mod cluster;
pub mod history;
pub mod http;
pub mod linear;
pub mod mutate;
pub mod port;
pub mod proxy;
pub mod random;
pub mod register;
#[cfg(feature = "sim")]
pub mod sim;
pub mod small_disk;
pub mod turns;
pub mod upgrade;
pub mod wire;
pub mod workload;
