//! What a route says of its call: how new the table must be, where it is answered, what its caller must be allowed.
//!
//! In:    nothing. Out: the words in which the table of `route.rs` is written.

use std::borrow::Cow;

use crate::access::rules::Verb;

/// How new the node's table must be before the call is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// As it is: the log orders what the call changes, or the call is about this node alone.
    AsItIs,
    /// As new as everything that any node has acknowledged, since the call reads; `stale=true` waives that.
    Read,
    /// The same for a call that looks before it changes something; nothing waives that.
    LookThenChange,
}

/// Where an answer is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thread {
    /// On the thread that serves the connection.
    Connection,
    /// On the pool: the answer may have to look at everything in the table, or at all nodes.
    Pool,
}

/// What a caller must be allowed before a call is answered, and before its body is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Right<'a> {
    /// Nothing: the answer is the same for everybody, and no credentials are looked at.
    Open,
    /// One of these verbs on this resource.
    On(&'static [Verb], &'a str),
    /// One of these verbs on some resource below this prefix. The dialect checks each resource that the body names.
    Below(&'static [Verb], Cow<'static, str>),
    /// Valid credentials, or one of these verbs on some resource: the call is about the caller's own claims, and the
    /// dialect checks those of others. A refusal names the resource.
    Own(&'static [Verb], &'a str),
    /// Administration of locks: a user of the administrators' file, or this verb. The dialect checks.
    Locks,
    /// The verb `admin` on `*`; without access control everybody.
    Service,
    /// The same; without access control only where administration is open.
    Members,
}
