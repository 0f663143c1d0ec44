//! A table taken apart, so that a measurement can see what each of its parts took.
//!
//! In:    a table nobody needs any more. Out: the name of each part, after it is gone.
//! Never: part of the service: `tests/memory.rs` counts bytes with it.

use super::Table;

impl Table {
    /// Drops the table part by part, and tells after each which one it was.
    pub fn dismantle(self, mut gone: impl FnMut(&'static str)) {
        let Self { claims, by_id, by_key, resources, owners, namespaces, deadlines, finished, .. } = self;
        drop(deadlines);
        gone("deadlines");
        drop(by_id);
        gone("index by id");
        drop(by_key);
        gone("index by idempotency key");
        resources.dismantle(&mut gone);
        drop(finished);
        gone("order of ends");
        drop(claims);
        gone("claims");
        drop((owners, namespaces));
        gone("owners and namespaces");
    }
}
