//! The engine: makes commands durable and ordered.

pub mod data_dir;
pub mod wal;
