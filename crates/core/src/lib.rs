//! The pure, deterministic lock table.
