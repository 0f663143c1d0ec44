//! A resource that has as many holders as a resource may have.

use std::path::Path;

use super::{post, release};
use crate::common::{Server, TempDir};
use leasehold_core::limits::HOLDERS_MAX;
use leasehold_core::{Budgets, ClaimId, Command, Item, Mode, NewSet, OnBusy, Outcome, Settings};
use leasehold_engine::{Engine, EngineConfig};
use serde_json::json;

/// Commands in one entry: a log entry has its limits, too.
const CHUNK: usize = 5000;

/// Leaves a data directory in which `x` is shared by so many. Requests one by one would take minutes.
fn share(data: &Path, holders: u64) {
    let command = |number: u64| {
        Command::ClaimSet(Box::new(NewSet {
            id: ClaimId::from_u128(u128::from(number)),
            items: vec![Item { resource: "x".into(), mode: Mode::Shared }],
            owner: "many".into(),
            ttl_us: None,
            on_busy: OnBusy::Refuse,
            data: None,
            idempotency: None,
            session: None,
            lapses: false,
        }))
    };
    let commands: Vec<Command> = (1..=holders).map(command).collect();
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
        let engine = Engine::start(EngineConfig {
            data_dir: data.into(),
            settings: Settings::default(),
            budgets: Budgets::default(),
            memory_max_bytes: None,
            snapshot_log_bytes: 1 << 30,
            listeners: Vec::new(),
            cluster: None,
        })
        .await
        .unwrap();
        for chunk in commands.chunks(CHUNK) {
            for outcome in engine.submit_many(chunk.to_vec()).await.unwrap() {
                assert!(matches!(outcome, Outcome::Granted(_)), "{outcome}");
            }
        }
        engine.stop().await;
    });
}

#[test]
fn one_holder_too_many_is_refused_until_another_lets_go() {
    let dir = TempDir::new();
    let data = dir.path().join("data");
    share(&data, HOLDERS_MAX - 1);
    let server = Server::start_in(&data, &[]);
    let last = post(&server, json!({"resource": "x", "mode": "shared"}));
    assert_eq!(last.status, 201, "{last:?}");
    for words in [
        json!({"resource": "x", "mode": "shared"}),
        json!({"resources": ["free", {"resource": "x", "mode": "shared"}]}),
    ] {
        let reply = post(&server, words);
        assert_eq!((reply.status, reply.problem().as_str()), (429, "holders-full"), "{reply:?}");
        assert!(reply.json()["detail"].as_str().unwrap().contains("100000"), "{reply:?}");
    }
    assert!(server.list("resource=free").is_empty(), "nothing of a refused set is left");
    release(&server, &last.location_path());
    let next = post(&server, json!({"resource": "x", "mode": "shared"}));
    assert_eq!(next.status, 201, "{next:?}");
}
