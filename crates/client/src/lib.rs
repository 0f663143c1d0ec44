//! Leasehold's client: claims that wait their turn, renew themselves, and say when they are lost.
//!
//! In:    a server's address and names of resources. Out: [`LockManager`] and [`Claim`], async here and blocking in
//!        [`blocking`].
//! Never: says that a claim is held when the server could have handed it over.
//!
#![doc = include_str!("../README.md")]
//!
//! # The road of a claim
//!
//! 1. [`LockManager::request`] hands it to the driver, one task for all claims of a manager (`driver/mod.rs`);
//! 2. the driver asks `machine::step` what an event means, a pure look-up in `transitions::TRANSITIONS`;
//! 3. it carries the row's actions out (`driver/actions.rs`): requests (`http.rs`, `node.rs`, `tls.rs`), timers (`clock.rs`), news;
//! 4. answers become events (`driver/answers.rs`, `driver/renewals.rs`), and so on until a final state;
//! 5. handles ([`Claim`]) see each change in a shared place, without asking anybody.

#![cfg_attr(
    not(feature = "internals"),
    allow(
        dead_code,
        unreachable_pub,
        reason = "the service's own commands use more of it; checked with `internals`"
    )
)]

mod address;
mod api;
pub mod blocking;
mod call;
mod changes;
mod claim;
mod clock;
mod driver;
mod error;
mod http;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
mod item;
#[cfg(feature = "internals")]
mod keychain;
mod machine;
mod manager;
mod node;
mod request;
mod retries;
mod session;
mod settings;
mod tls;
mod transitions;
mod wire;

pub use api::{Api, Page};
pub use changes::Changes;
pub use claim::{Claim, Pending};
pub use clock::BootInstant;
pub use driver::{Phase, Progress};
pub use error::{Blocker, Error, Lost};
pub use item::{GrantedItem, Item, Mode};
pub use manager::LockManager;
pub use request::{ClaimRequest, Wait, Worker};
pub use retries::{Retries, Retry};
pub use settings::{OnLost, Options};
pub use tls::TlsFiles;
pub use wire::{ClaimInfo, ItemInfo};
