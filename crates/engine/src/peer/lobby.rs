//! Where callers wait who have not proved yet that they are nodes.
//!
//! In:    addresses of callers. Out: a place for each, which a newer caller may take.
//! Never: keeps a newcomer waiting. A full room throws out the caller that has waited longest, of the address that has the
//!        most callers there; so silent strangers crowd out each other. Addresses of nodes have a room of their own.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Callers at once from addresses that no node is known at.
const STRANGERS_MAX: usize = 64;
/// Callers at once from addresses of nodes. A node calls a few times at once; strangers on its machine have to get past this.
const NEIGHBOURS_MAX: usize = 256;
/// Addresses of nodes that are remembered.
const ADDRESSES_MAX: usize = 256;

/// The rooms.
#[derive(Debug, Default)]
pub(super) struct Lobby(Mutex<Rooms>);

#[derive(Debug, Default)]
struct Rooms {
    strangers: BTreeMap<u64, UnprovenCaller>,
    neighbours: BTreeMap<u64, UnprovenCaller>,
    /// Where nodes have called from.
    nodes: BTreeSet<IpAddr>,
    next: u64,
}

/// A caller that has not proved yet that it knows the secret.
#[derive(Debug)]
struct UnprovenCaller {
    address: IpAddr,
    /// Dropped to throw the caller out.
    _stay: oneshot::Sender<()>,
}

/// A caller's place, given back when it is dropped.
#[derive(Debug)]
pub(super) struct LobbyPlace {
    lobby: Arc<Lobby>,
    number: u64,
    address: IpAddr,
    thrown_out: oneshot::Receiver<()>,
}

impl Lobby {
    /// Lets a caller in.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> LobbyPlace {
        let address = origin(address);
        let (stay, thrown_out) = oneshot::channel();
        let mut rooms = self.0.lock();
        rooms.next += 1;
        let number = rooms.next;
        let is_node = rooms.nodes.contains(&address);
        let (room, max) = match is_node {
            true => (&mut rooms.neighbours, NEIGHBOURS_MAX),
            false => (&mut rooms.strangers, STRANGERS_MAX),
        };
        if room.len() >= max {
            make_room(room);
        }
        room.insert(number, UnprovenCaller { address, _stay: stay });
        drop(rooms);
        LobbyPlace { lobby: self.clone(), number, address, thrown_out }
    }

    /// Whether a node is known to be at this address.
    pub(super) fn knows(&self, address: IpAddr) -> bool {
        self.0.lock().nodes.contains(&origin(address))
    }

    /// A node is known to be at this address.
    pub(super) fn know(&self, address: IpAddr) {
        let mut rooms = self.0.lock();
        if rooms.nodes.len() < ADDRESSES_MAX {
            rooms.nodes.insert(origin(address));
        }
    }
}

impl LobbyPlace {
    /// The caller is a node: its address has places of its own from now on.
    pub(super) fn is_node(&self) {
        self.lobby.know(self.address);
    }

    /// Returns when the place went to a newer caller.
    pub(super) async fn thrown_out(&mut self) {
        (&mut self.thrown_out).await.ok();
    }
}

impl Drop for LobbyPlace {
    fn drop(&mut self) {
        let mut rooms = self.lobby.0.lock();
        if rooms.strangers.remove(&self.number).is_none() {
            rooms.neighbours.remove(&self.number);
        }
    }
}

/// Throws out the caller that has waited longest, of the address with the most callers.
fn make_room(room: &mut BTreeMap<u64, UnprovenCaller>) {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for waiting in room.values() {
        *counts.entry(waiting.address).or_default() += 1;
    }
    let most = counts.values().copied().max().unwrap_or(0);
    let oldest = room.iter().find(|(_, waiting)| counts[&waiting.address] == most);
    if let Some(number) = oldest.map(|(number, _)| *number) {
        room.remove(&number);
    }
}

/// What counts as one address: a client with one IPv6 address has 2^64 of them.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_in(place: &mut LobbyPlace) -> bool {
        place.thrown_out.try_recv() == Err(oneshot::error::TryRecvError::Empty)
    }

    #[test]
    fn many_callers_of_one_address_crowd_out_each_other_alone() {
        let lobby = Arc::new(Lobby::default());
        let address = |last: u8| IpAddr::from([192, 0, 2, last]);
        let mut quiet = lobby.enter(address(1));
        let mut flood: Vec<LobbyPlace> = (0..1000).map(|_| lobby.enter(address(2))).collect();
        let mut late = lobby.enter(address(3));
        assert!(is_in(&mut quiet) && is_in(&mut late));
        let left: Vec<usize> = (0..1000).filter(|place| is_in(&mut flood[*place])).collect();
        assert_eq!(left, (1000 - (STRANGERS_MAX - 2)..1000).collect::<Vec<_>>());
        drop((flood, quiet, late));
        assert!(lobby.0.lock().strangers.is_empty());
    }

    #[test]
    fn addresses_of_nodes_have_places_that_no_stranger_takes() {
        let lobby = Arc::new(Lobby::default());
        lobby.enter([192, 0, 2, 1].into()).is_node();
        let mut node = lobby.enter([192, 0, 2, 1].into());
        // As many addresses as a stranger likes: each has one caller.
        let _flood: Vec<LobbyPlace> =
            (0..60_000u32).map(|n| lobby.enter((0x0a00_0000 + n).to_be_bytes().into())).collect();
        assert!(is_in(&mut node));
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let lobby = Arc::new(Lobby::default());
        let mut other = lobby.enter("2001:db8:0:2::1".parse().unwrap());
        let at = |n: u16| IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, n));
        let _flood: Vec<LobbyPlace> = (0..1000).map(|n| lobby.enter(at(n))).collect();
        assert!(is_in(&mut other));
    }
}
