//! What can be called: the dialects, each of which translates one wire protocol into commands and outcomes into
//! responses; and the services of the node itself.
//!
//! In:    requests, admitted by `dispatch.rs`. Out: commands to the engine, responses.
//! Never: decides about locks, and never keeps state.

pub mod claims;
pub mod cluster;
pub mod dashboard;
pub mod dss;
pub mod events;
pub mod leases;
pub mod limits;
pub mod locks;
mod metrics;
mod one_resource_view;
pub mod openapi;
pub mod probes;
mod redact;
pub mod redis;
pub mod refused;
mod session_name;
pub mod whoami;
