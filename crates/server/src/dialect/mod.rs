//! Dialects: each translates one wire protocol into commands, and outcomes into responses.
//!
//! In:    requests of one protocol. Out: commands to the engine, responses in that protocol's words.
//! Never: decides about locks, and never keeps state.

pub mod claims;
pub mod dss;
pub mod leases;
pub mod locks;
