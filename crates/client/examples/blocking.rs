//! The blocking calls: threads without a runtime that queue for one resource, and one that finds out what it can rely on.
//!
//! `LEASEHOLD_ADDR=http://127.0.0.1:4080 cargo run --example blocking`

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

use std::thread;
use std::time::Duration;

use leasehold_client::blocking::LockManager;
use leasehold_client::{ClaimRequest, Error, Options, Wait};

fn main() -> Result<(), Error> {
    // One manager for all threads; one thread behind it renews everything.
    let manager = LockManager::new(Options::from_env()?.timeout(Duration::from_secs(60)))?;
    thread::scope(|scope| {
        let threads: Vec<_> = (1..=3)
            .map(|number| {
                scope.spawn({
                    let manager = &manager;
                    move || turn(manager, number)
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread does not panic"))
    })?;
    let held = manager.claim("example/blocking")?;
    held.on_lost(|why| eprintln!("lost: {why}"));
    held.refresh(Some(Duration::from_secs(20)))?;
    println!("it certainly holds for {} s", held.holds_until().remaining().as_secs());
    let refused = thread::scope(|scope| {
        scope.spawn(|| manager.request(ClaimRequest::new("example/blocking").wait(Wait::No)).map(drop)).join()
    });
    println!("another thread: {}", refused.expect("a thread does not panic").expect_err("it is held"));
    held.release()
}

fn turn(manager: &LockManager, number: u32) -> Result<(), Error> {
    let claim = manager.claim("example/blocking")?;
    println!("thread {number} holds it");
    // Right before something that can't be taken back.
    claim.validate()?;
    claim.release()
}
