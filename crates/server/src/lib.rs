//! The Leasehold service.

pub mod engine;
