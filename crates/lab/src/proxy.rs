//! A TCP proxy in front of one node's peer port: whoever calls that node passes here, and can be kept from it.
//!
//! In:    connections of the other nodes; each says its number in its first bytes. Out: the same bytes, later or never.
//! Never: breaks a connection to cut a link: bytes just stop, as they do on a network that is down.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Where the caller's number stands in its first frame: length, magic, two versions, two formats.
const NODE_AT: usize = 4 + 8 + 2 + 2;

/// What happens to bytes on their way from one node to another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Passage {
    /// Whether they stop.
    pub cut: bool,
    /// How much later they arrive.
    pub delay: Duration,
}

type Passages = HashMap<(u64, u64), Passage>;

/// Every passage of a cluster, by (from, to).
#[derive(Debug, Clone, Default)]
pub struct Network {
    shared: Arc<(Mutex<Passages>, Condvar)>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Network {
    /// Changes the passage of bytes from one node to another. The way back is another passage.
    pub fn set(&self, from: u64, to: u64, passage: Passage) {
        locked(&self.shared.0).insert((from, to), passage);
        self.shared.1.notify_all();
    }

    /// Everything passes again, at once.
    pub fn heal(&self) {
        locked(&self.shared.0).clear();
        self.shared.1.notify_all();
    }

    fn passage(&self, from: u64, to: u64) -> Passage {
        locked(&self.shared.0).get(&(from, to)).copied().unwrap_or_default()
    }

    /// Waits while the passage is cut.
    fn pass(&self, from: u64, to: u64) {
        let mut passages = locked(&self.shared.0);
        while passages.get(&(from, to)).is_some_and(|passage| passage.cut) {
            let waited = self.shared.1.wait_timeout(passages, Duration::from_millis(200));
            passages = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
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
            thread::spawn(move || serve(&network, node, target, caller));
        }
    });
    Ok(address)
}

/// One connection, until either end is gone.
fn serve(network: &Network, node: u64, target: SocketAddr, mut caller: TcpStream) -> Option<()> {
    let mut first = [0; NODE_AT + 1];
    caller.read_exact(&mut first).ok()?;
    let from = u64::from(first[NODE_AT]);
    network.pass(from, node);
    let mut called = TcpStream::connect(target).ok()?;
    caller.set_nodelay(true).ok();
    called.set_nodelay(true).ok();
    let delay = network.passage(from, node).delay;
    thread::sleep(delay);
    called.write_all(&first).ok()?;
    let (caller_in, called_out) = (caller.try_clone().ok()?, called.try_clone().ok()?);
    let there = network.clone();
    let there = thread::spawn(move || carry(&there, (from, node), caller_in, called_out));
    carry(network, (node, from), called, caller);
    there.join().ok()
}

/// Bytes of one direction. They are read as they come and written when they are due.
fn carry(network: &Network, (from, to): (u64, u64), mut input: TcpStream, mut output: TcpStream) {
    let (chunks, due): (_, Receiver<(Instant, Vec<u8>)>) = sync_channel(1024);
    let writer_network = network.clone();
    let mut closing = output.try_clone().ok();
    let writer = thread::spawn(move || {
        for (at, bytes) in due {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            writer_network.pass(from, to);
            if output.write_all(&bytes).is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 64 << 10];
    loop {
        match input.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(len) => {
                let at = Instant::now() + network.passage(from, to).delay;
                if chunks.send((at, buffer[..len].to_vec())).is_err() {
                    break;
                }
            }
        }
    }
    drop(chunks);
    writer.join().ok();
    if let Some(output) = closing.take() {
        output.shutdown(Shutdown::Both).ok();
    }
    input.shutdown(Shutdown::Both).ok();
}
