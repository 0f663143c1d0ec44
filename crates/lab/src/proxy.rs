//! A TCP proxy in front of one node's peer port: whoever calls that node passes here, and can be kept from it.
//!
//! In:    connections of the other nodes; each says its number in its first bytes. Out: the same bytes, later or never.
//! Never: breaks a connection to cut a link: bytes just stop, as they do on a network that is down. Connections break
//!        only where they are told to ([`Network::refuse`], [`Network::break_all`]).

use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Where the caller's number stands in its first frame: length, magic, two versions, two formats.
const NODE_AT: usize = 4 + 8 + 2 + 2;

/// How long a half-open connection lasts.
const SILENT_MAX: Duration = Duration::from_secs(30);
/// How long connections may take to end once their node refuses them: half-open ones take longer, and carry nothing.
const REFUSED_WITHIN: Duration = Duration::from_secs(5);

/// What happens to bytes on their way from one node to another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Passage {
    /// Whether they stop.
    pub cut: bool,
    /// How much later they arrive.
    pub delay: Duration,
}

/// How connections to a node end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Break {
    /// Both ends are told at once: FIN.
    Close = 1,
    /// Both ends are told at once that nothing of it counts: RST.
    Reset = 2,
    /// The called end is told. Its caller hears nothing any more, and may send for ever.
    HalfOpenCaller = 3,
    /// The other way round.
    HalfOpenCalled = 4,
}

/// What happens to all links.
#[derive(Debug, Default)]
struct Links {
    /// By (from, to).
    passages: HashMap<(u64, u64), Passage>,
    /// By (called, caller): the answers to this caller's questions stop. Its own calls go on to be answered.
    muted: HashSet<(u64, u64)>,
    /// Nodes whose peer port refuses connections.
    refusing: HashSet<u64>,
    /// By node: how its connections were last broken, and the how manieth time it was.
    broken: HashMap<u64, (u64, Break)>,
    /// How often each node was called.
    calls: HashMap<u64, u64>,
    /// How many connections to each node are open.
    open: HashMap<u64, u64>,
    /// Whether a connection with bytes on their way when its link was cut stays silent after the link has healed. TCP
    /// waits longer and longer before it sends again: after a long cut, that looks like for ever.
    stuck: bool,
}

impl Links {
    /// How many times connections to this node were broken.
    fn breaks(&self, node: u64) -> u64 {
        self.broken.get(&node).map_or(0, |(times, _)| *times)
    }

    /// How a connection ends now that was made after so many breaks, if it does.
    fn end_of(&self, node: u64, breaks: u64) -> Option<Break> {
        let refused = self.refusing.contains(&node).then_some(Break::Close);
        refused.or_else(|| self.broken.get(&node).filter(|(times, _)| *times > breaks).map(|(_, how)| *how))
    }

    fn is_cut(&self, way: Way) -> bool {
        let cut = self.passages.get(&(way.from, way.to)).is_some_and(|passage| passage.cut);
        cut || (way.to == way.caller && self.muted.contains(&(way.from, way.to)))
    }
}

/// One direction of one connection.
#[derive(Debug, Clone, Copy)]
struct Way {
    from: u64,
    to: u64,
    /// Which of the two opened the connection.
    caller: u64,
}

/// Every link of a cluster.
#[derive(Debug, Clone, Default)]
pub struct Network {
    shared: Arc<(Mutex<Links>, Condvar)>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Network {
    /// Changes the passage of bytes from one node to another. The way back is another passage.
    pub fn set(&self, from: u64, to: u64, passage: Passage) {
        self.change(|links| links.passages.insert((from, to), passage));
    }

    /// The answers of `called` on connections that `caller` opened stop.
    pub fn mute(&self, called: u64, caller: u64) {
        self.change(|links| links.muted.insert((called, caller)));
    }

    /// They come again.
    pub fn unmute(&self, called: u64, caller: u64) {
        self.change(|links| links.muted.remove(&(called, caller)));
    }

    /// Connections to this node break, and new ones are closed at once. Returns when the open ones have ended, so that nothing
    /// that is sent later gets through on one of them.
    pub fn refuse(&self, node: u64) {
        self.change(|links| links.refusing.insert(node));
        let are_open = |links: &mut Links| links.open.get(&node).is_some_and(|open| *open > 0);
        let links = locked(&self.shared.0);
        drop(self.shared.1.wait_timeout_while(links, REFUSED_WITHIN, are_open));
    }

    /// It takes connections again.
    pub fn accept(&self, node: u64) {
        self.change(|links| links.refusing.remove(&node));
    }

    /// All connections to this node that are open now end. New ones can be made at once.
    pub fn break_all(&self, node: u64, how: Break) {
        self.change(|links| {
            let times = links.breaks(node) + 1;
            links.broken.insert(node, (times, how))
        });
    }

    /// From now on a connection with bytes on their way when its link was cut stays silent for ever.
    pub fn cuts_last(&self) {
        self.change(|links| links.stuck = true);
    }

    /// Everything passes again, at once.
    pub fn heal(&self) {
        self.change(|links| {
            links.passages.clear();
            links.muted.clear();
            links.refusing.clear();
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut Links) -> T) {
        change(&mut locked(&self.shared.0));
        self.shared.1.notify_all();
    }

    fn delay(&self, from: u64, to: u64) -> Duration {
        locked(&self.shared.0).passages.get(&(from, to)).map_or(Duration::ZERO, |passage| passage.delay)
    }

    /// How often a node was called so far, refused or not.
    pub fn calls(&self, node: u64) -> u64 {
        locked(&self.shared.0).calls.get(&node).copied().unwrap_or(0)
    }

    /// Counts a call. Says whether the node refuses it; else the connection is open.
    fn refuses(&self, node: u64) -> bool {
        let mut links = locked(&self.shared.0);
        *links.calls.entry(node).or_default() += 1;
        let refuses = links.refusing.contains(&node);
        if !refuses {
            *links.open.entry(node).or_default() += 1;
        }
        refuses
    }

    /// A connection to this node has ended.
    fn closed(&self, node: u64) {
        self.change(|links| *links.open.entry(node).or_default() -= 1);
    }

    /// Waits while the way is cut. Says whether the connection is of use after that.
    fn pass(&self, way: Way) -> bool {
        let mut links = locked(&self.shared.0);
        let mut waited = false;
        while links.is_cut(way) {
            waited = true;
            let woken = self.shared.1.wait_timeout(links, Duration::from_millis(200));
            links = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        !(waited && links.stuck)
    }
}

/// Starts a proxy in front of node `node`, which listens for peers on `target`. Tells where the proxy listens.
pub fn start(network: &Network, node: u64, target: SocketAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let network = network.clone();
    thread::spawn(move || {
        for caller in listener.incoming().flatten() {
            let network = network.clone();
            thread::spawn(move || {
                if !network.refuses(node) {
                    serve(&network, node, target, caller);
                    network.closed(node);
                }
            });
        }
    });
    Ok(address)
}

/// One connection, until either end is gone.
fn serve(network: &Network, node: u64, target: SocketAddr, mut caller: TcpStream) -> Option<()> {
    let mut first = [0; NODE_AT + 1];
    caller.read_exact(&mut first).ok()?;
    let from = u64::from(first[NODE_AT]);
    let (there, back) = (Way { from, to: node, caller: from }, Way { from: node, to: from, caller: from });
    if !network.pass(there) {
        swallow(caller);
        return None;
    }
    let mut called = TcpStream::connect(target).ok()?;
    caller.set_nodelay(true).ok();
    called.set_nodelay(true).ok();
    thread::sleep(network.delay(from, node));
    called.write_all(&first).ok()?;
    let (caller_in, called_out) = (caller.try_clone().ok()?, called.try_clone().ok()?);
    let breaker = Breaker::watch(network, node, [caller.try_clone().ok()?, called.try_clone().ok()?]);
    let (outward, end) = (network.clone(), breaker.end.clone());
    let outward = thread::spawn(move || carry(&outward, there, caller_in, called_out, &end));
    carry(network, back, called, caller, &breaker.end);
    breaker.over.store(true, Ordering::Release);
    outward.join().ok()
}

/// Reads and forgets until the other end is gone, or has said nothing for so long that TCP's keep-alive would have given up.
fn swallow(mut input: TcpStream) {
    input.set_read_timeout(Some(SILENT_MAX)).ok();
    let mut buffer = vec![0; 64 << 10];
    while input.read(&mut buffer).is_ok_and(|len| len > 0) {}
}

/// Ends a connection when that is asked for.
struct Breaker {
    over: Arc<AtomicBool>,
    /// How it ended ([`Break`]); 0 while it goes on.
    end: Arc<AtomicU8>,
}

impl Breaker {
    /// The ends are the caller's and the called node's.
    fn watch(network: &Network, node: u64, ends: [TcpStream; 2]) -> Self {
        let (over, end): (Arc<AtomicBool>, Arc<AtomicU8>) = Default::default();
        let (network, ended, how) = (network.clone(), over.clone(), end.clone());
        let breaks = locked(&network.shared.0).breaks(node);
        thread::spawn(move || {
            let mut links = locked(&network.shared.0);
            while !ended.load(Ordering::Acquire) {
                if let Some(end) = links.end_of(node, breaks) {
                    drop(links);
                    how.store(end as u8, Ordering::Release);
                    return finish(end, ends);
                }
                let woken = network.shared.1.wait_timeout(links, Duration::from_millis(200));
                links = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
        });
        Self { over, end }
    }
}

/// Ends a connection in one of the ways in which connections end.
fn finish(end: Break, [caller, called]: [TcpStream; 2]) {
    match end {
        Break::Close => [caller, called].iter().for_each(|end| drop(end.shutdown(Shutdown::Both))),
        Break::Reset => [caller, called].iter().for_each(|end| {
            // The last handle that is dropped resets the connection. Those who read it let go of theirs.
            socket2::SockRef::from(end).set_linger(Some(Duration::ZERO)).ok();
            end.shutdown(Shutdown::Read).ok();
        }),
        Break::HalfOpenCaller => {
            called.shutdown(Shutdown::Both).ok();
            swallow(caller);
        }
        Break::HalfOpenCalled => {
            caller.shutdown(Shutdown::Both).ok();
            swallow(called);
        }
    }
}

/// Bytes of one direction. They are read as they come and written when they are due.
fn carry(network: &Network, way: Way, mut input: TcpStream, mut output: TcpStream, end: &AtomicU8) {
    let (chunks, due): (_, Receiver<(Instant, Vec<u8>)>) = sync_channel(1024);
    let writer_network = network.clone();
    let mut closing = output.try_clone().ok();
    let writer = thread::spawn(move || {
        let mut silent = false;
        for (at, bytes) in due {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            silent = silent || !writer_network.pass(way);
            if !silent && output.write_all(&bytes).is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 64 << 10];
    loop {
        match input.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(len) => {
                let at = Instant::now() + network.delay(way.from, way.to);
                if chunks.send((at, buffer[..len].to_vec())).is_err() {
                    break;
                }
            }
        }
    }
    drop(chunks);
    writer.join().ok();
    // Where it was broken on purpose, an end must not hear of it, or not in this way.
    if end.load(Ordering::Acquire) > Break::Close as u8 {
        return;
    }
    if let Some(output) = closing.take() {
        output.shutdown(Shutdown::Both).ok();
    }
    input.shutdown(Shutdown::Both).ok();
}
