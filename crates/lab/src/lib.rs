//! The laboratory: real clusters under faults.
//!
//! - [`proxy`]    stands between two nodes: cuts, delays and heals their links, each way by itself
//! - [`cluster`]  real processes on ports of their own, killed, paused, wiped and started again
//! - [`workload`] clients that claim, hold and release while faults happen, and write down what they were told
//! - [`http`]     a client that says whether a request failed, or whether nobody knows
//!
//! Nothing here is part of the service.

pub mod cluster;
pub mod http;
pub mod proxy;
pub mod workload;
