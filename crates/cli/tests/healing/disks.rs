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
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("leasehold-hang-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("shim.c"), SHIM).unwrap();
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([dir.join("shim.so"), dir.join("shim.c")])
            .status();
        assert!(compiled.unwrap().success(), "a C compiler is needed");
        Self { dir }
    }

    fn hang_file(&self) -> PathBuf {
        self.dir.join("hang")
    }

    fn envs(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_str().unwrap().to_string();
        vec![
            ("LD_PRELOAD".into(), text(&self.dir.join("shim.so"))),
            ("HANG_FILE".into(), text(&self.hang_file())),
        ]
    }

    fn hang(&self) {
        fs::write(self.hang_file(), "").unwrap();
    }

    fn go_on(&self) {
        fs::remove_file(self.hang_file()).unwrap();
    }
}

impl Drop for HangingDisk {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.dir).ok();
    }
}

#[test]
fn probes_answer_while_a_disk_hangs_and_say_that_it_does() {
    let _alone = alone();
    let disk = HangingDisk::new();
    let cluster = Cluster::start_with(binary(), 1, &[], &disk.envs()).unwrap();
    serves(&cluster, 1, "before");
    disk.hang();
    let asked = in_background(cluster.addr(1), "POST", "/v1/claims/", &claim_body("hanging"));
    eventually("the node says that its disk hangs", || {
        let reply = cluster.ask_briefly(1, "GET", "/readyz?verbose", "").expect("a probe is answered");
        reply.status == 503 && reply.body.contains("[-]disk failed: a write has taken the disk")
    });
    assert_eq!(
        cluster.ask_briefly(1, "GET", "/livez", "").unwrap().status,
        200,
        "the process itself is well"
    );
    // A request that comes while the disk hangs is answered as well: nobody knows what will become of it.
    let reply = cluster.ask(1, "POST", "/v1/claims/", &claim_body("later")).unwrap();
    assert!([503, 504].contains(&reply.status), "{reply:?}");
    disk.go_on();
    let reply = asked.join().unwrap().expect("every request is answered");
    assert!([201, 504].contains(&reply.status), "{reply:?}");
    serves(&cluster, 1, "after");
    eventually("the node is ready", || cluster.ask(1, "GET", "/readyz", "").is_ok_and(|r| r.status == 200));
}
