//! Sessions, as clients name them and as the table knows them.
//!
//! In:    the name that a client gave, and who it is. Out: a path that no other user can give, and the way back.
//! Never: changes a name where access control is off.
//!
//! Whoever could add a waiting claim to the session of another user would make waits for that user's claims look like deadlocks.

use std::sync::Arc;

use crate::access::Caller;

/// Stands before the owner's name. No client's session begins with it.
pub(super) const OF_OWNER: char = '=';

/// The session of this caller with this name.
pub(super) fn scoped(session: Arc<str>, owner: &str, caller: &Caller) -> Arc<str> {
    match caller.is_checked() {
        true => format!("{OF_OWNER}{}/{session}", owner.replace('%', "%25").replace('/', "%2F")).into(),
        false => session,
    }
}

/// The name that the client gave.
pub(super) fn shown(session: &str) -> &str {
    match session.strip_prefix(OF_OWNER).and_then(|scoped| scoped.split_once('/')) {
        Some((_, name)) => name,
        None => session,
    }
}
