//! Why somebody may not: what access control says instead of yes.
//!
//! In:    what was missing. Out: words. `app/refusal.rs` makes a response of them.
//! Never: says more than which right on which resource was missing.

use std::time::Duration;

use super::rules::Verb;

/// No, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Too many requests: wait this long.
    TooMany {
        /// Until there is room for one more.
        wait: Duration,
    },
    /// The right takes credentials, and there are none that are good.
    Unauthorized {
        /// The right.
        verb: Verb,
        /// On what.
        resource: Box<str>,
        /// There were some.
        bad_credentials: bool,
    },
    /// Somebody who is known has no such right.
    Forbidden {
        /// The right.
        verb: Verb,
        /// On what.
        resource: Box<str>,
    },
    /// The credentials ended while the request stood open.
    Withdrawn,
}
