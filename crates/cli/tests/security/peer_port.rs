//! The peer port under attack.
