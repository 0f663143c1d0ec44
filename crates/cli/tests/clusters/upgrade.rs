//! A node of release 0.1.0 is stopped and started as this build: with its data, which has claims in it. A new cluster begins
//! with the oldest table version, and nobody notices.

use std::fs;
use std::path::Path;

use leasehold_lab::cluster::Cluster;
use serde_json::json;

use crate::common::{Server, TempDir};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../engine/tests/golden/0.1.0/data");

/// The data directory as that release left it when it was killed.
fn old_data(dir: &TempDir) -> std::path::PathBuf {
    let data = dir.path().join("data");
    for folder in ["log", "snapshots"] {
        fs::create_dir_all(data.join(folder)).unwrap();
        for file in fs::read_dir(Path::new(GOLDEN).join(folder)).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), data.join(folder).join(file.file_name())).unwrap();
        }
    }
    for file in ["FORMAT", "NODE"] {
        fs::copy(Path::new(GOLDEN).join(file), data.join(file)).unwrap();
    }
    let segment = fs::File::options().write(true).open(data.join("log/00000001.log")).unwrap();
    segment.set_len(8 << 20).unwrap();
    data
}

#[test]
fn a_node_of_release_0_1_0_goes_on_as_this_build_with_everything_it_held() {
    let dir = TempDir::new();
    let mut server = Server::start_in(&old_data(&dir), &[]);
    for _ in 0..2 {
        let held = server.list("status=active");
        let held: Vec<_> =
            held.iter().map(|claim| (&claim["resource"], &claim["token"], &claim["user_data"])).collect();
        assert_eq!(
            held,
            [
                (&json!("db/main"), &json!(1), &json!({ "pid": 1 })),
                (&json!("db/later"), &json!(3), &json!("later"))
            ]
        );
        assert_eq!(server.list("status=waiting").len(), 2);
        assert_eq!(
            server.get("/v1/cluster").json()["table_version"],
            3,
            "a node that is alone raises it by itself"
        );
        // The second time from what this build has written.
        server.restart();
    }
    let claim = server.post("/v1/claims/", r#"{"resource": "db/new", "ttl": 60}"#);
    assert!(claim.json()["token"].as_u64() > Some(3), "{}", claim.text());
}

#[test]
fn a_new_cluster_takes_sets_as_soon_as_it_serves() {
    let cluster = Cluster::start(Path::new(env!("CARGO_BIN_EXE_leasehold")), 3, &[]).unwrap();
    // Requests that come before the table version is raised wait for it.
    for id in cluster.ids() {
        let body = json!({ "resources": [format!("a/{id}"), format!("b/{id}")], "ttl": 60 }).to_string();
        let reply = cluster.ask(id, "POST", "/v1/claims/", &body).unwrap();
        assert_eq!(reply.status, 201, "{reply:?}");
    }
}
