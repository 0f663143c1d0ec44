//! What runs on the engine's own thread: commands that come one after the other there share an entry.
//!
//! In:    a real engine with a real log. Out: how many entries it made of what.
//! Never: depends on how fast the machine is: on one thread, turns are taken in order.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_core::{Command, Event};
use leasehold_engine::publish::Listener;
use leasehold_engine::{Engine, EngineConfig};
use tokio::sync::oneshot;

/// Remembers the newest entry.
#[derive(Debug, Default)]
struct Newest(AtomicU64);

impl Listener for Newest {
    fn applied(&self, index: u64, _: &[Event]) {
        self.0.store(index, Ordering::Release);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_come_while_others_do_share_their_entry() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("near-{}", std::process::id()));
    let newest = Arc::new(Newest::default());
    let engine = Engine::start(EngineConfig {
        data_dir: dir.clone(),
        settings: leasehold_core::Settings::default(),
        budgets: leasehold_core::Budgets::default(),
        memory_max_bytes: None,
        snapshot_log_bytes: 64 << 20,
        listeners: vec![newest.clone()],
        cluster: None,
    });
    let engine = engine.await.unwrap();
    engine.submit(Command::Tick).await.unwrap();
    let before = newest.0.load(Ordering::Acquire);
    // Each is woken by the one before it, as connections are whose requests arrive in a row.
    let near = engine.clone();
    let all = engine.spawn_near(async move {
        let (first, mut turn) = oneshot::channel();
        let mut tasks = Vec::new();
        for _ in 0..6 {
            let (next, next_turn) = oneshot::channel();
            let turn = std::mem::replace(&mut turn, next_turn);
            let engine = near.clone();
            tasks.push(near.spawn_near(async move {
                turn.await.unwrap();
                let outcome = engine.submit(Command::Tick);
                next.send(()).ok();
                outcome.await.unwrap();
            }));
        }
        // The last one has nobody to wake.
        drop(turn);
        // By then all of them wait.
        tokio::task::yield_now().await;
        first.send(()).unwrap();
        for task in tasks {
            task.await.unwrap();
        }
    });
    all.await.unwrap();
    assert_eq!(newest.0.load(Ordering::Acquire) - before, 1, "entries for six commands");
    engine.stop().await;
    std::fs::remove_dir_all(dir).ok();
}
