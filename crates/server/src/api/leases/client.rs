//! Who asks for a lease: the client id, and the user of its credentials.
//!
//! In:    headers, the client's address, and what access control knows of the caller.
//! Out:   the owner of the leases that the client acquires, which owners in the table are this client, and what answers
//!        show of an owner.
//! Never: takes a client for an owner whose user is another than its own.
//!
//! A lease belongs to a client id. With access control the user stands in front of it in the table, `ci for db1`, so that
//! another user with the same client id is a stranger; without access control the owner is the client id. Release 0.1.0
//! left the client id out where it was the client's address: such a lease, owned by `ci`, still belongs to every client of
//! that user that names no id.

use std::sync::Arc;

use leasehold_core::limits::OWNER_LEN_MAX;

use super::parse::{bad, only};
use crate::access::Caller;
use crate::access::identity::{client_of, user_of};
use crate::message::Response;
use crate::message::connection::Connection;
use crate::message::headers::Headers;

/// The table version from which on no node of release 0.1.0 is in the cluster.
const CLIENT_IDS_SINCE_VERSION: u32 = 2;

/// A client of this dialect.
#[derive(Debug)]
pub(super) struct Client<'a> {
    /// What access control knows of it.
    pub(super) who: &'a Caller,
    /// `X-Quorum-Client-ID`, or else the address that the request came from.
    id: Arc<str>,
    /// The owner of the leases that it acquires.
    owner: Arc<str>,
    /// Another owner in the table that is this client.
    other_owner: Option<Arc<str>>,
}

/// What an owner in the table is to a reader of this dialect.
pub(super) struct Names<'a> {
    /// The client id.
    pub(super) client: &'a str,
    /// The user, where access control is on.
    pub(super) user: Option<&'a str>,
}

/// The names in an owner.
pub(super) fn names<'a>(owner: &'a str, who: &Caller) -> Names<'a> {
    match who.is_checked() {
        true => Names { client: client_of(owner), user: Some(user_of(owner)) },
        false => Names { client: owner, user: None },
    }
}

impl<'a> Client<'a> {
    /// The client that sent these headers, to a table of this version.
    pub(super) fn new(
        headers: &Headers,
        connection: &Connection,
        who: &'a Caller,
        table_version: u32,
    ) -> Result<Self, Response> {
        if let Some(id) = given_id(headers)? {
            return Ok(Self { who, owner: who.owner_named(id.clone()), id, other_owner: None });
        }
        let id = connection.client(headers);
        let (owner, first_release) = (who.owner_named(id.clone()), who.owner(connection, headers));
        // A node of release 0.1.0 must know the leases that others grant while it is in the cluster.
        let (owner, other) = match table_version >= CLIENT_IDS_SINCE_VERSION {
            true => (owner, first_release),
            false => (first_release, owner),
        };
        let other_owner = Some(other).filter(|other| *other != owner);
        Ok(Self { who, id, owner, other_owner })
    }

    /// Its client id.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The owner of the leases that it acquires.
    pub(super) fn owner(&self) -> &Arc<str> {
        &self.owner
    }

    /// Whether leases in the table may have another owner and still be this client's.
    pub(super) fn has_other_owner(&self) -> bool {
        self.other_owner.is_some()
    }

    /// Whether a lease with this owner was made by this very client. Other hosts of its user may have made one that has only the
    /// user for an owner: with release 0.1.0, or as a claim.
    pub(super) fn is_owner_now(&self, owner: &str) -> bool {
        *self.owner == *owner
    }

    /// Whether a lease with this owner is this client's, to renew and to give up.
    pub(super) fn is_owner(&self, owner: &str) -> bool {
        self.is_owner_now(owner) || self.other_owner.as_deref() == Some(owner)
    }

    /// Whether a lease with this owner has this client's id. A caller without credentials has no user that could
    /// be another one.
    pub(super) fn is_you(&self, owner: &str) -> bool {
        let same_id = *names(owner, self.who).client == *self.id;
        self.is_owner(owner) || (same_id && (!self.who.is_known() || self.who.owns(owner)))
    }

    /// What answers call this owner: its client id. Another user's client with the same id is told apart.
    pub(super) fn name_of(&self, owner: &str) -> String {
        match names(owner, self.who).client {
            id if *id == *self.id && !self.is_you(owner) => format!("{id} of another user"),
            id => id.into(),
        }
    }
}

/// `X-Quorum-Client-ID`, if it is there.
fn given_id(headers: &Headers) -> Result<Option<Arc<str>>, Response> {
    let Some(value) = only(headers, "X-Quorum-Client-ID")? else { return Ok(None) };
    match std::str::from_utf8(value.as_bytes()) {
        Ok("") => Err(bad("X-Quorum-Client-ID is empty: name the client, or leave the header out")),
        Ok(id) if id.len() > OWNER_LEN_MAX => Err(bad(&format!(
            "X-Quorum-Client-ID must be at most {OWNER_LEN_MAX} bytes long, and is {}",
            id.len()
        ))),
        Ok(id) => Ok(Some(id.into())),
        Err(_) => Err(bad("X-Quorum-Client-ID is not valid UTF-8")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_access_control_an_owner_is_shown_as_it_is() {
        let [peer, local] = [7, 8].map(|port| std::net::SocketAddr::from(([127, 0, 0, 1], port)));
        let connection = Connection::new(peer, local, &[]);
        let headers = Headers::from_iter([("X-Quorum-Client-ID", "backup for db1")]);
        for version in [1, 2] {
            let client = Client::new(&headers, &connection, &Caller::ANYONE, version).unwrap();
            assert_eq!((&**client.owner(), client.id()), ("backup for db1", "backup for db1"));
            assert!(client.is_you("backup for db1") && !client.is_you("db1") && !client.has_other_owner());
            let nameless = Client::new(&Headers::default(), &connection, &Caller::ANYONE, version).unwrap();
            assert_eq!((&**nameless.owner(), nameless.id()), ("127.0.0.1", "127.0.0.1"));
            assert!(!nameless.has_other_owner());
        }
    }
}
