//! The kernels of all simulated machines, and the wires between them.
//!
//! In:    calls of processes ([`act`]), and segments that arrive. Out: segments on their way, processes that are woken.
//! Never: stops with a process: a paused one's kernel goes on to acknowledge, and one that was killed is said goodbye for.
//!        Only a machine without power, or one that stands still as a whole, says nothing.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::task::Waker;

use super::super::runtime::{call_at, now_us};
use super::super::world;
use super::socket::{Segment, Socket};

/// One end of a connection. The end that called has an even number, and the other one the number after that.
pub(super) type End = u64;

/// How long a machine that stands still keeps its timers waiting, each time it is looked at.
const STILL_US: u64 = 50_000;

struct Entry {
    socket: Socket,
    node: u64,
    address: IpAddr,
    peer: u64,
    peer_address: IpAddr,
    /// Whether a process has it, or may get it.
    owned: bool,
    /// When the newest of its segments arrives: none overtakes another.
    arrives_us: u64,
    timer_us: Option<u64>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

#[derive(Default)]
struct Listener {
    backlog: VecDeque<End>,
    accepting: Option<Waker>,
}

#[derive(Default)]
struct Kernels {
    ends: BTreeMap<End, Entry>,
    listeners: BTreeMap<u64, Listener>,
    /// Machines without power, those that stand still, and those whose port refuses calls.
    off: BTreeSet<u64>,
    still: BTreeSet<u64>,
    refusing: BTreeSet<u64>,
    /// How often each machine has moved to another address.
    moves: BTreeMap<u64, u8>,
    newest: u64,
}

thread_local! {
    static KERNELS: RefCell<Kernels> = RefCell::default();
}

fn with<T>(look: impl FnOnce(&mut Kernels) -> T) -> T {
    KERNELS.with(|kernels| look(&mut kernels.borrow_mut()))
}

/// A segment on its way.
struct Letter {
    from: (u64, IpAddr, End),
    to: (u64, IpAddr, End),
    segment: Segment,
}

/// Forgets everything.
pub(super) fn reset() {
    let old = with(std::mem::take);
    drop(old);
}

/// Where a machine is now.
pub(super) fn address_of(node: u64) -> IpAddr {
    let moves = with(|kernels| kernels.moves.get(&node).copied().unwrap_or(0));
    Ipv4Addr::new(10, 0, moves, node as u8).into()
}

/// A machine loses its power: nobody is told.
pub(super) fn power_off(node: u64) {
    let gone = with(|kernels| {
        kernels.off.insert(node);
        kernels.still.remove(&node);
        let (gone, rest) =
            std::mem::take(&mut kernels.ends).into_iter().partition(|(_, end)| end.node == node);
        kernels.ends = rest;
        let gone: BTreeMap<End, Entry> = gone;
        (gone, kernels.listeners.remove(&node))
    });
    drop(gone);
}

/// It is on again; `moved`: and has another address.
pub(super) fn power_on(node: u64, moved: bool) {
    with(|kernels| {
        if kernels.off.remove(&node) && moved {
            *kernels.moves.entry(node).or_default() += 1;
        }
    });
}

/// A machine stands still as a whole, or goes on.
pub(super) fn set_still(node: u64, still: bool) {
    with(|kernels| if still { kernels.still.insert(node) } else { kernels.still.remove(&node) });
}

/// A machine's port refuses calls, or takes them again.
pub(super) fn set_refusing(node: u64, refusing: bool) {
    with(|kernels| if refusing { kernels.refusing.insert(node) } else { kernels.refusing.remove(&node) });
}

/// Something between a machine and the others breaks all its connections. Says how many there were.
pub(super) fn break_connections(node: u64) -> u64 {
    let of_node = |entry: &Entry| entry.node == node || entry.peer == node;
    let ends: Vec<End> = with(|kernels| {
        kernels.ends.iter().filter(|(_, entry)| of_node(entry)).map(|(end, _)| *end).collect()
    });
    for end in &ends {
        act(*end, |socket, _, _| socket.cut_off());
    }
    ends.len() as u64
}

/// A process calls an address.
pub(super) fn call(node: u64, peer: u64, peer_address: IpAddr) -> End {
    let address = address_of(node);
    let segment_len = world().segment_len();
    let (mut out, end) = (
        Vec::new(),
        with(|kernels| {
            kernels.newest += 2;
            kernels.newest
        }),
    );
    let socket = Socket::call(now_us(), segment_len, &mut out);
    insert(end, socket, (node, address), (peer, peer_address), true);
    settle(end, out);
    end
}

fn insert(end: End, socket: Socket, here: (u64, IpAddr), there: (u64, IpAddr), owned: bool) {
    let entry = Entry {
        socket,
        node: here.0,
        address: here.1,
        peer: there.0,
        peer_address: there.1,
        owned,
        arrives_us: 0,
        timer_us: None,
        reader: None,
        writer: None,
    };
    with(|kernels| kernels.ends.insert(end, entry));
}

/// Does something with one end, sends what comes of it, and wakes whoever waits there. `None`: there is no such end.
pub(super) fn act<T>(end: End, act: impl FnOnce(&mut Socket, u64, &mut Vec<Segment>) -> T) -> Option<T> {
    let mut out = Vec::new();
    let done = with(|kernels| {
        let entry = kernels.ends.get_mut(&end)?;
        let was_open = entry.socket.is_open();
        let done = act(&mut entry.socket, now_us(), &mut out);
        let wakers = [entry.reader.take(), entry.writer.take()];
        // A caller knows that it was answered: the process may have the connection now.
        let mut accepting = None;
        if !was_open && !entry.owned && entry.socket.is_open() {
            entry.owned = true;
            let node = entry.node;
            if let Some(listener) = kernels.listeners.get_mut(&node) {
                listener.backlog.push_back(end);
                accepting = listener.accepting.take();
            }
        }
        wakers.into_iter().flatten().chain(accepting).for_each(Waker::wake);
        Some(done)
    });
    settle(end, out);
    done
}

/// The same for a process that waits until something comes of it.
pub(super) fn act_or_wait<T>(
    end: End,
    waker: &Waker,
    reads: bool,
    doing: impl FnOnce(&mut Socket, u64, &mut Vec<Segment>) -> Option<T>,
) -> Option<Option<T>> {
    let mut out = Vec::new();
    let done = with(|kernels| {
        let entry = kernels.ends.get_mut(&end)?;
        let done = doing(&mut entry.socket, now_us(), &mut out);
        if done.is_none() {
            *(if reads { &mut entry.reader } else { &mut entry.writer }) = Some(waker.clone());
        }
        Some(done)
    });
    settle(end, out);
    done
}

/// Sends segments of an end, and sees to it that the kernel looks after it in time.
fn settle(end: End, out: Vec<Segment>) {
    for segment in out {
        post(end, segment);
    }
    let timer_us = with(|kernels| {
        let entry = kernels.ends.get_mut(&end)?;
        let unknown_to_anybody = !entry.owned && entry.socket.connected().is_some_and(|known| known.is_err());
        if entry.socket.is_over() || unknown_to_anybody {
            kernels.ends.remove(&end);
            return None;
        }
        let due_us = entry.socket.due_us()?.max(now_us());
        if entry.timer_us.is_some_and(|timer_us| timer_us <= due_us) {
            return None;
        }
        entry.timer_us = Some(due_us);
        Some(due_us)
    });
    if let Some(timer_us) = timer_us {
        call_at(timer_us, move || look_after(end, timer_us));
    }
}

fn look_after(end: End, timer_us: u64) {
    let is_still = with(|kernels| {
        let entry = kernels.ends.get_mut(&end).filter(|entry| entry.timer_us == Some(timer_us))?;
        entry.timer_us = None;
        let still = kernels.still.contains(&entry.node);
        if still {
            entry.timer_us = Some(now_us() + STILL_US);
        }
        Some(still)
    });
    match is_still {
        None => {}
        Some(true) => {
            let again_us = now_us() + STILL_US;
            call_at(again_us, move || look_after(end, again_us));
        }
        Some(false) => {
            act(end, |socket, now_us, out| {
                if socket.due_us().is_some_and(|due_us| due_us <= now_us) {
                    socket.look_after(now_us, out);
                }
            });
        }
    }
}

/// Sends a segment of an end.
fn post(end: End, segment: Segment) {
    let found = with(|kernels| {
        let entry = kernels.ends.get(&end)?;
        Some(((entry.node, entry.address, end), (entry.peer, entry.peer_address, end ^ 1)))
    });
    if let Some((from, to)) = found {
        send(Letter { from, to, segment });
    }
}

fn send(letter: Letter) {
    let (from, to) = (letter.from.0, letter.to.0);
    let is_silent = |kernels: &mut Kernels| kernels.off.contains(&from) || kernels.still.contains(&from);
    if with(is_silent) {
        return;
    }
    let Some(delay_us) = world().segment(from, to, letter.segment.len()) else { return };
    let end = letter.from.2;
    let at_us = with(|kernels| {
        let at_us = now_us() + delay_us;
        match kernels.ends.get_mut(&end) {
            None => at_us,
            Some(entry) => {
                entry.arrives_us = entry.arrives_us.max(at_us);
                entry.arrives_us
            }
        }
    });
    call_at(at_us, move || arrive(letter));
}

fn arrive(letter: Letter) {
    let (node, address, end) = letter.to;
    let gone = with(|kernels| kernels.off.contains(&node) || kernels.still.contains(&node));
    if gone || address_of(node) != address {
        return;
    }
    if with(|kernels| kernels.ends.contains_key(&end)) {
        act(end, |socket, now_us, out| socket.take(letter.segment, now_us, out));
        return;
    }
    match letter.segment {
        Segment::Syn
            if with(|kernels| kernels.listeners.contains_key(&node) && !kernels.refusing.contains(&node)) =>
        {
            let mut out = Vec::new();
            let socket = Socket::called(now_us(), world().segment_len(), &mut out);
            insert(end, socket, (node, address), (letter.from.0, letter.from.1), false);
            settle(end, out);
        }
        Segment::Rst | Segment::Ack { .. } => {}
        Segment::Syn | Segment::SynAck | Segment::Data { .. } | Segment::Probe => {
            send(Letter { from: letter.to, to: letter.from, segment: Segment::Rst });
        }
    }
}

/// A process listens. Says whether nobody else does there.
pub(super) fn listen(node: u64) -> bool {
    with(|kernels| {
        let free = !kernels.listeners.contains_key(&node);
        kernels.listeners.entry(node).or_default();
        free
    })
}

/// It does no more: calls that it has not accepted are reset.
pub(super) fn stop_listening(node: u64) {
    let listener = with(|kernels| kernels.listeners.remove(&node));
    for end in listener.into_iter().flat_map(|listener| listener.backlog) {
        act(end, Socket::close);
    }
}

/// The next call that was answered, and where it came from.
pub(super) fn accept(node: u64, waker: &Waker) -> Option<(End, IpAddr)> {
    with(|kernels| {
        let listener = kernels.listeners.get_mut(&node)?;
        loop {
            let Some(end) = listener.backlog.pop_front() else {
                listener.accepting = Some(waker.clone());
                return None;
            };
            if let Some(entry) = kernels.ends.get(&end) {
                return Some((end, entry.peer_address));
            }
        }
    })
}
