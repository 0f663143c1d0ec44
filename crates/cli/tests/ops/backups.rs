//! Backups that a node makes by itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use leasehold_lab::cluster::Cluster;

use crate::common::{Server, TempDir, eventually};
use crate::support::leasehold;

fn metric(server: &Server, series: &str) -> f64 {
    let metrics = server.get("/metrics").text();
    let found = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {series} in\n{metrics}")).parse().unwrap()
}

const DONE: &str = "leasehold_backups_total{outcome=\"done\"}";
const FAILED: &str = "leasehold_backups_total{outcome=\"failed\"}";
const LAST: &str = "leasehold_backup_last_success_timestamp_seconds";

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn verify(file: &Path) -> Result<String, String> {
    let output = leasehold(&["backup", "verify", file.to_str().unwrap()]);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(stdout.into_owned()) } else { Err(stderr.into_owned()) }
}

#[test]
fn backups_are_made_verified_counted_and_the_oldest_are_deleted() {
    let dir = TempDir::new();
    let backups = dir.path().join("backups");
    let flags = ["--backup-every", "1s", "--backup-dir", backups.to_str().unwrap(), "--backup-keep", "2"];
    let mut server = Server::start_in(&dir.path().join("data"), &flags);
    server.claim("db/main", 600.0);
    server.claim("db/main", 600.0);
    let before = metric(&server, DONE);
    eventually("some backups", || metric(&server, DONE) >= before + 3.0);
    let last = metric(&server, LAST);
    assert!(last > 1.7e9 && metric(&server, "leasehold_backup_last_bytes") > 100.0);
    assert_eq!(metric(&server, "leasehold_backup_interval_seconds"), 1.0);
    server.kill();
    let whole: Vec<PathBuf> =
        files(&backups).into_iter().filter(|path| path.extension().unwrap() == "snapshot").collect();
    assert!((1..=3).contains(&whole.len()), "{whole:?}");
    for file in &whole {
        let mode = fs::metadata(file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", file.display());
        assert!(verify(file).unwrap().contains("2 claims held or waiting"), "{:?}", verify(file));
    }
    // The same file makes a node.
    let newest = whole.last().unwrap().to_str().unwrap();
    let restored = dir.path().join("restored");
    let output = leasehold(&["restore", newest, "--data", restored.to_str().unwrap(), "--keep-claims"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(Server::start_in(&restored, &[]).list("resource=db/main").len(), 2);
    // A restart goes on counting from the newest file, also before it makes another one.
    let flags = ["--backup-every", "1h", "--backup-dir", backups.to_str().unwrap()];
    let server = Server::start_in(&dir.path().join("data"), &flags);
    eventually("the age of the last one is known", || metric(&server, LAST) >= last - 2.0);
    assert_eq!(metric(&server, DONE), 0.0, "the newest is younger than an hour");
}

#[test]
fn a_backup_without_claims_revokes_none() {
    let dir = TempDir::new();
    let server = Server::start();
    let (file, data) = (dir.path().join("empty.snapshot"), dir.path().join("data"));
    let (file, data) = (file.to_str().unwrap(), data.to_str().unwrap());
    assert!(leasehold(&["backup", "--addr", &format!("http://{}", server.addr), file]).status.success());
    let output = leasehold(&["restore", file, "--data", data]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("no claim was held or waiting") && !said.contains("REVOKED"), "{said}");
}

#[test]
fn a_damaged_backup_is_told_from_a_good_one() {
    let dir = TempDir::new();
    let server = Server::start();
    server.claim("db/main", 600.0);
    let file = dir.path().join("good.snapshot");
    let url = format!("http://{}", server.addr);
    assert!(leasehold(&["backup", file.to_str().unwrap(), "--addr", &url]).status.success());
    let good = fs::read(&file).unwrap();
    assert!(verify(&file).unwrap().contains("can be restored: 1 claims held or waiting"));
    let bad = dir.path().join("bad.snapshot");
    for (what, bytes) in [
        ("cut off", good[..good.len() - 9].to_vec()),
        (
            "changed",
            good.iter()
                .enumerate()
                .map(|(i, byte)| if i == good.len() / 2 { byte ^ 1 } else { *byte })
                .collect(),
        ),
        ("something else", b"not a backup at all".to_vec()),
        ("empty", Vec::new()),
    ] {
        fs::write(&bad, bytes).unwrap();
        let said = verify(&bad).expect_err(what);
        assert!(
            said.contains("bad.snapshot can't be restored")
                && said.contains("damaged")
                && said.contains("Use another backup"),
            "{what}: {said}"
        );
    }
    assert!(verify(&dir.path().join("none")).unwrap_err().contains("there is no file"));
}

#[test]
fn a_backup_that_fails_is_counted_said_once_and_leaves_the_last_good_one() {
    let dir = TempDir::new();
    let backups = dir.path().join("backups");
    let flags = ["--backup-every", "1s", "--backup-dir", backups.to_str().unwrap()];
    let server = Server::start_in(&dir.path().join("data"), &flags);
    eventually("a backup", || metric(&server, DONE) >= 1.0);
    let aside = dir.path().join("aside");
    fs::rename(&backups, &aside).unwrap();
    fs::write(&backups, b"no directory").unwrap();
    eventually("two failures", || metric(&server, FAILED) >= 2.0);
    let last = metric(&server, LAST);
    assert!(last > 1.7e9);
    assert_eq!(server.logged().matches("a backup failed").count(), 1, "{}", server.logged());
    fs::remove_file(&backups).unwrap();
    fs::rename(&aside, &backups).unwrap();
    let done = metric(&server, DONE);
    eventually("it goes on by itself", || metric(&server, DONE) > done);
}

#[test]
fn a_node_whose_backups_have_no_place_does_not_start() {
    let dir = TempDir::new();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    let flags = ["--backup-every", "1h", "--backup-dir", file.to_str().unwrap()];
    let said = Server::try_start_in(&dir.path().join("data"), &flags).err().expect("it must not start");
    assert!(said.contains("backup-dir"), "{said}");
}

/// Each node saves its own table, and none a table that may be out of date.
#[test]
fn every_node_of_a_cluster_makes_its_own_and_a_node_without_a_majority_makes_none() {
    let dir = TempDir::new();
    let pattern = dir.path().join("{id}").display().to_string();
    let flags = ["--backup-every", "1s", "--backup-dir", &pattern, "--backup-keep", "3"];
    let mut cluster = Cluster::start(Path::new(env!("CARGO_BIN_EXE_leasehold")), 3, &flags).unwrap();
    let number = |cluster: &Cluster, series: &str| -> f64 {
        let metrics = cluster.ask(1, "GET", "/metrics", "").unwrap().body;
        metrics
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
            .unwrap()
            .parse()
            .unwrap()
    };
    for id in 1..=3 {
        let made = dir.path().join(id.to_string());
        eventually("each node has made one", || {
            fs::read_dir(&made).unwrap().flatten().any(|file| {
                let name = file.file_name().into_string().unwrap();
                name.starts_with(&format!("node-{id}-")) && name.ends_with(".snapshot")
            })
        });
    }
    cluster.kill(2).unwrap();
    cluster.kill(3).unwrap();
    let failed = number(&cluster, FAILED);
    eventually("backups fail without a majority", || number(&cluster, FAILED) > failed);
    let done = number(&cluster, DONE);
    let failed = number(&cluster, FAILED);
    eventually("and go on failing", || number(&cluster, FAILED) > failed);
    assert_eq!(number(&cluster, DONE), done);
    cluster.spawn(2).unwrap();
    eventually("with a majority they are made again", || number(&cluster, DONE) > done);
}
