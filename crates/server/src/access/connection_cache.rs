//! The caller that was last identified on a connection.
//!
//! In:    the credentials of a request, and the policy in force. Out: the ticket that the same credentials got before.
//! Never: outlives the credentials: a new policy, an expired key or token, or new keys of the provider end it.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use zeroize::Zeroizing;

use super::caller::Ticket;
use super::policy::Policy;
use super::unix_now;

/// The last good credentials on a connection. The next request usually has the same, which then need not be hashed and
/// looked up.
#[derive(Default)]
pub struct ConnectionCache(Mutex<Option<CachedCaller>>);

struct CachedCaller {
    credentials: Zeroizing<Box<str>>,
    ticket: Arc<Ticket>,
}

impl ConnectionCache {
    pub(super) fn find(&self, policy: &Arc<Policy>, credentials: &str) -> Option<Arc<Ticket>> {
        let last = self.0.lock();
        let known = last.as_ref().filter(|known| {
            Arc::ptr_eq(&known.ticket.policy, policy)
                && is_same(known.credentials.as_bytes(), credentials.as_bytes())
        })?;
        known.ticket.validity.holds(unix_now()).then(|| known.ticket.clone())
    }

    /// Whether the credentials that came last were withdrawn since.
    pub fn is_withdrawn(&self) -> bool {
        self.0.lock().as_ref().is_some_and(|known| known.ticket.is_withdrawn())
    }

    pub(super) fn keep(&self, credentials: &str, ticket: &Arc<Ticket>) {
        let credentials = Zeroizing::new(credentials.into());
        let known = CachedCaller { credentials, ticket: ticket.clone() };
        *self.0.lock() = Some(known);
    }
}

impl fmt::Debug for ConnectionCache {
    /// Nothing of it: secrets stay out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionCache").finish_non_exhaustive()
    }
}

/// Compares every byte in constant time: a proxy may send requests of many clients over one connection, and the time must
/// not tell one client about another's key.
fn is_same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len()
        && left.iter().zip(right).fold(0, |seen, (left, right)| seen | (left ^ right)) == 0
}

#[cfg(test)]
mod tests {
    use hyper::header::AUTHORIZATION;

    use super::*;
    use crate::access::identity::How;
    use crate::access::keys::KeyFile;
    use crate::access::settings::AccessOptions;
    use crate::access::{Access, Caller, Recognised};
    use crate::message::connection::Connection;
    use crate::message::headers::Headers;

    /// Who asks with this key over this connection.
    fn ticket(access: &Access, connection_cache: &ConnectionCache, key: &str) -> Arc<Ticket> {
        let headers = Headers::from_iter([(AUTHORIZATION, format!("Bearer {key}"))]);
        let address = "127.0.0.1:9".parse().unwrap();
        let connection = Connection::new(address, address, &[]);
        match access.recognise(&connection, connection_cache, &headers) {
            Ok(Recognised::Known(Caller(Some(ticket)))) => ticket,
            _ => panic!("a key is known at once, or not at all"),
        }
    }

    #[test]
    fn who_was_known_on_a_connection_is_known_again_until_the_keys_change() {
        let path = std::env::temp_dir().join(format!("leasehold-connection-cache-{}", std::process::id()));
        let mut file = KeyFile::default();
        let (anna, entry) = file.make("anna", &[], "", 0, None).unwrap();
        let (bert, _) = file.make("bert", &[], "", 0, None).unwrap();
        file.write(&path).unwrap();
        let options = AccessOptions { keys: Some(path.clone()), ..AccessOptions::default() };
        let access = Access::new(Some(Policy::new(&options, None).unwrap()), None, None);
        let connection_cache = ConnectionCache::default();
        let ask = |key: &str| ticket(&access, &connection_cache, key);

        let first = ask(&anna);
        assert!(!format!("{connection_cache:?}").contains(&anna), "secrets are not shown");
        assert!(Arc::ptr_eq(&first, &ask(&anna)), "nothing is looked up twice");
        assert_eq!(&*ask(&bert).identity.user, "bert");
        assert_eq!(&*ask(&anna).identity.user, "anna");
        // Neither a part of the last key nor more than it, nor one that differs in its last letter.
        for bad in [&anna[..anna.len() - 1], &format!("{anna}x"), &format!("{}!", &anna[..anna.len() - 1])] {
            assert_eq!(ask(bad).identity.how, How::Refused, "{bad}");
        }
        assert_eq!(ask(&anna).identity.how, How::Key);
        file.withdraw(&entry.id).unwrap();
        file.write(&path).unwrap();
        access.reload(&options).unwrap();
        assert_eq!((ask(&anna).identity.how, ask(&bert).identity.how), (How::Refused, How::Key));
        std::fs::remove_file(path).ok();
    }
}
