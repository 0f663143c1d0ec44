//! The Leasehold service: HTTP, access, dialects.
//!
//! The path of a request, one way, no loops:
//!
//! 1. [`serve`] accepts the connection, [`http`] reads the request, [`route`] understands method and path.
//! 2. [`access`] finds out who asks, [`dispatch`] whether they may.
//! 3. [`api`] parses, validates, checks what the body names, and makes a command of it.
//! 4. [`leasehold_engine`] packs it with all that waits into one stamped entry, writes and syncs the entry on a majority
//!    of nodes, and applies it to the table of `leasehold-core`.
//! 5. [`leasehold_engine::publish`] wakes those who wait for what happened, and tells [`audit`] and [`observe`].
//! 6. [`api`] renders the outcome.

// In a simulated build, the code that the simulation replaces is compiled but not called.
#![cfg_attr(feature = "sim", allow(dead_code, unused_imports))]

pub mod access;
pub mod api;
pub mod app;
pub mod audit;
pub mod backups;
pub mod config;
pub mod dispatch;
pub mod http;
pub mod message;
pub mod observe;
mod pem;
pub mod resp;
pub mod route;
pub mod serve;
pub mod withdrawal;
