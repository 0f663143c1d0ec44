//! A budget: places for something that clients use up, and the share of them that one client may take.
//!
//! In:    a client's name: its user, or its address. Out: a place, given back when it is dropped; or why there is none.
//! Never: lets one client take more than its share, or remembers a client that has no place.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::access::identity::client_name;
use crate::config::Share;
use crate::message::connection::Full;

/// The places of one kind, and how many of them are taken.
#[derive(Debug)]
pub struct Budget {
    max: usize,
    share: Share,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    by_client: HashMap<Arc<str>, usize>,
}

/// Some places, until this is dropped.
#[derive(Debug)]
pub struct Place {
    budget: Arc<Budget>,
    /// Whose share it is part of.
    client: Option<Arc<str>>,
    count: usize,
}

impl Budget {
    /// This many places, and the share of one client.
    pub fn new(max: usize, share: Share) -> Arc<Self> {
        Arc::new(Self { max, share, taken: Mutex::default() })
    }

    /// Takes a place for a client, whose name is that of an owner: a user, an address, or `anonymous for ADDRESS`.
    pub fn take(self: &Arc<Self>, owner: &Arc<str>) -> Result<Place, Full> {
        let mut place = self.none_yet(owner);
        place.extend(1).map(|()| place)
    }

    /// Takes a place for nobody in particular: a proxy, which speaks for many.
    pub fn take_for_many(self: &Arc<Self>) -> Result<Place, Full> {
        let mut place = Place { budget: self.clone(), client: None, count: 0 };
        place.extend(1).map(|()| place)
    }

    /// Takes as many places as these, or, for more than a client may have, all that it may have.
    pub fn take_many(self: &Arc<Self>, owner: &Arc<str>, count: usize) -> Result<Place, Full> {
        let mut place = self.none_yet(owner);
        let most = place.client.as_ref().map_or(self.max, |client| self.share_of(client));
        place.extend(count.min(most)).map(|()| place)
    }

    /// A place of this client that may grow: it has none yet.
    pub fn none_yet(self: &Arc<Self>, owner: &Arc<str>) -> Place {
        Place { budget: self.clone(), client: Some(client_name(owner)), count: 0 }
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.taken.lock().total
    }

    /// What this client may take; one place at the least.
    fn share_of(&self, client: &str) -> usize {
        let local = client.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        let share = if local { self.share.loopback } else { self.share.client };
        ((self.max as f64 * share) as usize).max(1)
    }
}

impl Place {
    /// Takes more, or leaves everything as it is.
    pub fn extend(&mut self, count: usize) -> Result<(), Full> {
        let budget = &self.budget;
        let mut taken = budget.taken.lock();
        if taken.total + count > budget.max {
            return Err(Full::Total);
        }
        if let Some(client) = &self.client {
            let own = taken.by_client.get(client).copied().unwrap_or(0) + count;
            if own > budget.share_of(client) {
                return Err(Full::Client);
            }
            taken.by_client.insert(client.clone(), own);
        }
        taken.total += count;
        self.count += count;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.budget.taken.lock();
        taken.total -= self.count;
        let Some(client) = self.client.as_ref().filter(|_| self.count > 0) else { return };
        if let Some(own) = taken.by_client.get_mut(client) {
            *own -= self.count;
            if *own == 0 {
                taken.by_client.remove(client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUARTER: Share = Share { client: 0.25, loopback: 1.0 };

    fn take(budget: &Arc<Budget>, name: &str) -> Result<Place, Full> {
        budget.take(&name.into())
    }

    #[test]
    fn one_client_takes_its_share_and_no_more() {
        let budget = Budget::new(8, QUARTER);
        let anna: Vec<_> = (0..2).map(|_| take(&budget, "anna").unwrap()).collect();
        assert_eq!(take(&budget, "anna").unwrap_err(), Full::Client);
        let local: Vec<_> = (0..6).map(|_| take(&budget, "127.0.0.1").unwrap()).collect();
        assert_eq!(take(&budget, "bert").unwrap_err(), Full::Total);
        drop((anna, local));
        assert_eq!(budget.taken(), 0);
        assert!(budget.taken.lock().by_client.is_empty());
    }

    #[test]
    fn a_place_grows_and_gives_everything_back() {
        let budget = Budget::new(100, QUARTER);
        let mut place = budget.none_yet(&"10.0.0.1".into());
        assert!(place.extend(20).is_ok());
        assert_eq!((place.extend(6), place.extend(5)), (Err(Full::Client), Ok(())));
        drop(place);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn addresses_of_one_network_are_one_client() {
        let name = |owner: &str| client_name(&owner.into()).to_string();
        assert_eq!(name("2001:db8:1:2::7"), name("2001:db8:1:2:ffff::1"));
        assert_ne!(name("2001:db8:1:2::7"), name("2001:db8:1:3::7"));
        assert_eq!(name("anonymous for 10.0.0.9"), "10.0.0.9");
        assert_eq!((name("anna for db1").as_str(), name("::1").as_str()), ("anna for db1", "::1"));
    }
}
