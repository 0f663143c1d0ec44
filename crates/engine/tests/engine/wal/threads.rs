//! Many callers at once: answers come in order, and what was acknowledged is there after reopening.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;

#[test]
fn eight_callers_are_answered_in_order_and_lose_nothing() {
    eight_callers(options());
}

#[test]
fn the_same_when_the_callers_flush_themselves() {
    eight_callers(WalOptions { flush_in_caller: true, ..options() });
}

fn eight_callers(options: WalOptions) {
    const EACH: u64 = 300;
    let dir = TempDir::new();
    let (wal, _) = Wal::open(&dir.log(), options).unwrap();
    // Callers take the next index and append under one lock, as the log store does.
    let next = Arc::new(Mutex::new(0_u64));
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let purged = Arc::new(AtomicU64::new(0));
    thread::scope(|scope| {
        for caller in 0..8_u8 {
            let (wal, next, acknowledged, purged) = (&wal, &next, &acknowledged, &purged);
            scope.spawn(move || {
                for turn in 0..EACH {
                    let mut next = next.lock().unwrap();
                    let index = *next;
                    *next += 1;
                    let acknowledged = acknowledged.clone();
                    let payload = vec![caller; 20 + (index % 90) as usize];
                    wal.append(vec![entry(index, payload)], move |result| {
                        result.unwrap();
                        acknowledged.lock().unwrap().push(index);
                    });
                    if turn % 100 == 99 && index > 200 {
                        wal.append(vec![purge(index - 200)], |result| result.unwrap());
                        purged.fetch_max(index - 200, Ordering::Relaxed);
                    }
                    drop(next);
                    // Reading goes on meanwhile, and never sees a hole.
                    let read = wal.read(index.saturating_sub(50)..index).unwrap();
                    assert!(read.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0));
                }
            });
        }
    });
    drop(wal);
    let acknowledged = acknowledged.lock().unwrap();
    assert!(acknowledged.is_sorted(), "answers out of order");
    assert_eq!(acknowledged.len() as u64, 8 * EACH);

    let (wal, recovered) = dir.open();
    let first = purged.load(Ordering::Relaxed) + 1;
    assert_eq!(recovered.entries, first..8 * EACH);
    let there: BTreeSet<u64> = read_all(&wal).into_iter().map(|(index, _)| index).collect();
    assert!(acknowledged.iter().filter(|index| **index >= first).all(|index| there.contains(index)));
}

#[test]
fn appends_that_wait_together_share_a_sync() {
    let dir = TempDir::new();
    let syncs = Arc::new(AtomicU64::new(0));
    let counted = syncs.clone();
    let observe = Arc::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let (wal, _) =
        Wal::open(&dir.log(), WalOptions { observe: Some(observe), ..WalOptions::default() }).unwrap();
    // The first answer holds up the flusher until a hundred more are waiting.
    let (go, wait) = mpsc::channel::<()>();
    wal.append(vec![entry(0, "x")], move |_| wait.recv().unwrap());
    eventually("the first is written", || syncs.load(Ordering::Relaxed) == 1);
    for index in 1..=100 {
        wal.append(vec![entry(index, "x")], |result| result.unwrap());
    }
    go.send(()).unwrap();
    wal.close();
    assert_eq!((syncs.load(Ordering::Relaxed), wal.entries()), (2, 0..101));
}
