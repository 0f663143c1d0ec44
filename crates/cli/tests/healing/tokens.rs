//! Tokens grow, also where a service begins again with less than it had: from a backup, or from one node of three.

use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_lab::cluster::Cluster;
use serde_json::Value;

use crate::support::*;

/// Runs the command line, which must succeed. Tells what it said.
fn leasehold(args: &[&str]) -> String {
    let output = Command::new(binary()).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Makes and releases this many claims. Returns the newest token.
fn newest_token(cluster: &Cluster, node: u64, name: &str, claims: u64) -> u64 {
    let grant = |number| {
        let body = claim_body(&format!("{name}-{number}"));
        let reply = cluster.ask(node, "POST", "/v1/claims/", &body).unwrap();
        assert_eq!(reply.status, 201, "{reply:?}");
        reply.json()["token"].as_u64().unwrap()
    };
    (0..claims).map(grant).max().unwrap()
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("leasehold-tokens-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn join(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// The data of a cluster's node is replaced by what was restored.
fn replace_data(cluster: &mut Cluster, node: u64, with: &str) {
    cluster.wipe(node).unwrap();
    std::fs::rename(Path::new(with), cluster.data_dir(node)).unwrap();
    cluster.spawn(node).unwrap();
}

#[test]
fn a_restored_service_grants_no_token_again_and_its_old_claims_are_revoked() {
    let _alone = alone();
    let folder = Folder::new("restore");
    let mut cluster = cluster(1, &[]);
    let held = cluster.ask(1, "POST", "/v1/claims/", &claim_body("held")).unwrap().json();
    let waiting = cluster.ask(1, "POST", "/v1/claims/", &claim_body("held")).unwrap().json();
    let (file, data) = (folder.join("backup"), folder.join("data"));
    leasehold(&["backup", &file, "--addr", &format!("http://{}", cluster.addr(1))]);
    // What the backup does not know.
    let lost = newest_token(&cluster, 1, "lost", 10);
    cluster.kill(1).unwrap();
    let said = leasehold(&["restore", &file, "--data", &data]);
    assert!(said.contains("TOKENS JUMP") && said.contains("2 claims") && said.contains("REVOKED"), "{said}");
    replace_data(&mut cluster, 1, &data);
    cluster.leader().unwrap();
    assert!(newest_token(&cluster, 1, "new", 1) > lost, "a token was given out again");
    for claim in [&held, &waiting] {
        let path = format!("/{}", claim["url"].as_str().unwrap().splitn(4, '/').nth(3).unwrap());
        let found: Value = cluster.ask(1, "GET", &path, "").unwrap().json();
        assert_eq!(found["status"], "revoked", "{found}");
    }
}

#[test]
fn an_operator_may_say_where_tokens_go_on() {
    let _alone = alone();
    let folder = Folder::new("above");
    let cluster = cluster(1, &[]);
    let token = newest_token(&cluster, 1, "some", 3);
    let (file, data) = (folder.join("backup"), folder.join("data"));
    leasehold(&["backup", &file, "--addr", &format!("http://{}", cluster.addr(1))]);
    let refused = |above: &str| {
        let args = ["restore", &file, "--data", &data, "--tokens-above", above];
        let output = Command::new(binary()).args(args).output().unwrap();
        assert!(!output.status.success(), "--tokens-above {above} was taken");
    };
    refused(&(token - 1).to_string());
    refused(&(1_u64 << 48).to_string());
    let said = leasehold(&["restore", &file, "--data", &data, "--tokens-above", "5000"]);
    assert!(said.contains("above 5000"), "{said}");
}

#[test]
fn a_cluster_that_begins_again_from_one_node_grants_no_token_again() {
    let _alone = alone();
    let mut cluster = cluster(3, &[]);
    let (leader, followers) = roles(&cluster);
    let left = followers[0];
    serves(&cluster, left, "before");
    // What the node that is left never hears of.
    cluster.isolate(&[left]);
    let lost = newest_token(&cluster, leader, "lost", 10);
    cluster.ids().into_iter().for_each(|id| cluster.kill(id).unwrap());
    cluster.network.heal();
    let data = cluster.data_dir(left).to_str().unwrap().to_string();
    let said = leasehold(&["cluster", "recover", "--data", &data, "--majority-is-lost"]);
    assert!(said.contains("TOKENS JUMP"), "{said}");
    cluster.spawn(left).unwrap();
    assert_eq!(cluster.leader().unwrap(), left);
    assert!(newest_token(&cluster, left, "new", 1) > lost, "a token was given out again");
}
