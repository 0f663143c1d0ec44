//! A disk that hangs: probes are answered all the while and say so, and everybody else is answered afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_lab::cluster::Cluster;

use crate::support::*;

/// Makes `fdatasync` wait while a file is there.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int fdatasync(int fd) {
    const char *hang = getenv("HANG_FILE");
    struct timespec pause = { 0, 10000000 };
    while (hang && access(hang, F_OK) == 0) nanosleep(&pause, 0);
    return syscall(SYS_fdatasync, fd);
}
"#;

struct HangingDisk {
    dir: PathBuf,
}

impl HangingDisk {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("leasehold-hang-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("shim.c"), SHIM).unwrap();
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([dir.join("shim.so"), dir.join("shim.c")])
            .status();
        assert!(compiled.unwrap().success(), "a C compiler is needed");
        Self { dir }
    }

    fn hang_file(&self, node: &str) -> PathBuf {
        self.dir.join(format!("hang-{node}"))
    }

    fn envs(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_str().unwrap().to_string();
        vec![
            ("LD_PRELOAD".into(), text(&self.dir.join("shim.so"))),
            // The laboratory puts in the node's number.
            ("HANG_FILE".into(), text(&self.hang_file("{id}"))),
        ]
    }

    fn hang(&self, node: u64) {
        fs::write(self.hang_file(&node.to_string()), "").unwrap();
    }

    fn go_on(&self, node: u64) {
        fs::remove_file(self.hang_file(&node.to_string())).unwrap();
    }
}

impl Drop for HangingDisk {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.dir).ok();
    }
}

/// Waits until the probes of this node say that its disk hangs, and that its process is well.
fn says_that_its_disk_hangs(cluster: &Cluster, node: u64) {
    eventually("the node says that its disk hangs", || {
        let reply = cluster.ask_briefly(node, "GET", "/readyz?verbose", "").expect("a probe is answered");
        reply.status == 503 && reply.body.contains("[-]disk failed: a write has taken the disk")
    });
    let alive = cluster.ask_briefly(node, "GET", "/livez", "").unwrap();
    assert_eq!(alive.status, 200, "the process itself is well");
}

fn is_ready_again(cluster: &Cluster, node: u64) {
    serves(cluster, node, "after");
    eventually("the node is ready", || {
        cluster.ask(node, "GET", "/readyz", "").is_ok_and(|reply| reply.status == 200)
    });
}

#[test]
fn probes_answer_while_a_disk_hangs_and_say_that_it_does() {
    let _alone = alone();
    let disk = HangingDisk::new("alone");
    let cluster = Cluster::start_with(binary(), 1, &[], &disk.envs()).unwrap();
    serves(&cluster, 1, "before");
    disk.hang(1);
    let asked = in_background(cluster.addr(1), "POST", "/v1/claims/", &claim_body("hanging"));
    says_that_its_disk_hangs(&cluster, 1);
    // A request that comes while the disk hangs is answered as well: nobody knows what will become of it.
    let reply = cluster.ask(1, "POST", "/v1/claims/", &claim_body("later")).unwrap();
    assert!([503, 504].contains(&reply.status), "{reply:?}");
    disk.go_on(1);
    let reply = asked.join().unwrap().expect("every request is answered");
    assert!([201, 504].contains(&reply.status), "{reply:?}");
    is_ready_again(&cluster, 1);
}

/// A follower syncs what its leader sends on the same thread.
#[test]
fn probes_of_a_follower_answer_while_its_disk_hangs_and_the_others_serve() {
    let _alone = alone();
    let disk = HangingDisk::new("follower");
    let cluster = Cluster::start_with(binary(), 3, &[], &disk.envs()).unwrap();
    let (leader, followers) = roles(&cluster);
    serves(&cluster, followers[0], "before");
    disk.hang(followers[0]);
    serves(&cluster, leader, "meanwhile");
    says_that_its_disk_hangs(&cluster, followers[0]);
    serves(&cluster, followers[1], "meanwhile");
    disk.go_on(followers[0]);
    is_ready_again(&cluster, followers[0]);
}
