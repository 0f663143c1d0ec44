//! The Leasehold service: engine, dialects, HTTP.
//!
//! The path of a request, one way, no loops:
//!
//! 1. [`http::server`]           accepts the connection, [`route`] understands method and path
//! 2. [`access`]                 finds out who asks, [`dispatch`] whether they may
//! 3. [`dialect`]                parses, validates, checks what the body names, and makes a command of it
//! 4. [`engine::Engine::submit`] packs it with all that waits into one stamped entry
//! 5. `engine/log_store.rs`      writes and syncs the entry; openraft commits it
//! 6. [`engine::state_machine`]  applies it to the table of `leasehold-core`
//! 7. [`publish`]                wakes whoever waits for what happened, and tells [`audit`] and [`observe`]
//! 8. [`dialect`]                renders the outcome

// What a simulated machine replaces is still built, and nobody calls it.
#![cfg_attr(feature = "sim", allow(dead_code, unused_imports))]

pub mod access;
pub mod audit;
pub mod config;
pub mod dashboard;
pub mod dialect;
pub mod dispatch;
pub mod engine;
pub mod http;
pub mod observe;
pub mod openapi;
pub mod outside;
pub mod publish;
pub mod route;
pub mod withdrawal;
