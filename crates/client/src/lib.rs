//! Leasehold's client: claims that wait their turn, renew themselves, and say when they are lost.
//!
//! In:    a server's address and names of resources. Out: [`LockManager`] and [`Claim`], async here and blocking in
//!        [`blocking`].
//! Never: says that a claim is held when the server could have handed it over.
//!
//! The road of a claim:
//! 1. [`LockManager::request`] hands it to the driver, one task for all claims of a manager (`driver/mod.rs`);
//! 2. the driver asks [`machine::step`] what an event means, a pure look-up in [`transitions::TRANSITIONS`];
//! 3. it carries the row's actions out (`driver/actions.rs`): requests (`http.rs`, `node.rs`, `tls.rs`), timers (`clock.rs`), news;
//! 4. answers become events (`driver/answers.rs`, `driver/renewals.rs`), and so on until a final state;
//! 5. handles ([`Claim`]) see each change in a shared place, without asking anybody.
//!
//! ```no_run
//! use leasehold_client::{LockManager, Options};
//!
//! # async fn work() -> Result<(), leasehold_client::Error> {
//! let manager = LockManager::new(Options::url("http://127.0.0.1:4080"))?;
//! let claim = manager.claim("db/main").await?;
//! tokio::select! {
//!     lost = claim.lost() => eprintln!("stop everything: {lost}"),
//!     () = do_the_work(claim.token()) => claim.release().await?,
//! }
//! # Ok(())
//! # }
//! # async fn do_the_work(_: Option<u64>) {}
//! ```

pub mod address;
pub mod api;
pub mod blocking;
mod call;
mod claim;
pub mod clock;
mod driver;
mod error;
pub mod http;
pub mod keychain;
pub mod machine;
mod manager;
mod node;
pub mod settings;
mod tls;
pub mod transitions;
pub mod wire;

pub use api::{Api, Page};
pub use claim::{Claim, Pending};
pub use driver::{Phase, Progress, fresh_key};
pub use error::{Error, Lost};
pub use manager::LockManager;
pub use settings::{ClaimRequest, OnLost, Options, Retries, Retry, Wait, Worker};
pub use tls::TlsFiles;
