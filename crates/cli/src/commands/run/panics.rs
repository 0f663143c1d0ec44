//! A panic anywhere in `leasehold run`, in any task or thread, stops the command.
//!
//! In:    the process group of the command. Out: its end, a line that says what happened, and exit code 125.
//! Never: leaves the command running while nobody renews its claim.

use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgrp, kill_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::messages;
use crate::commands::exit_code::OWN_FAILURE;

/// How long the last line may take.
const LAST_WORDS_WITHIN: Duration = Duration::from_millis(200);

/// The process group that is running; 0: none.
static GROUP: AtomicI32 = AtomicI32::new(0);

/// From now on this group does not survive a panic; `None`: there is none any more.
pub(super) fn guard(group: Option<Pid>) {
    GROUP.store(group.map_or(0, |group| group.as_raw_nonzero().get()), Ordering::SeqCst);
}

/// The task that renews the claim panics without anyone waiting for it: unwinding alone would not stop the command.
pub(super) fn stop_the_command() {
    std::panic::set_hook(Box::new(stop));
}

fn stop(panic: &PanicHookInfo<'_>) {
    if let Some(group) = Pid::from_raw(GROUP.swap(0, Ordering::SeqCst)) {
        kill_process_group(group, Signal::KILL).ok();
        let stdin = std::io::stdin();
        if tcgetpgrp(&stdin).is_ok_and(|foreground| foreground == group) {
            tcsetpgrp(&stdin, getpgrp()).ok();
        }
    }
    messages::say(&format!(
        "this is a bug in leasehold, please report it: {panic}. The command was stopped (SIGKILL); its claim ends with its ttl"
    ));
    messages::flush(LAST_WORDS_WITHIN);
    std::process::exit(i32::from(OWN_FAILURE));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    const ME: &str = "commands::run::panics::tests::the_process_that_panics";

    /// Not a test of its own: the process that the next test starts.
    #[test]
    #[ignore = "it is run by the test below, in a process of its own"]
    fn the_process_that_panics() {
        messages::start();
        stop_the_command();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // The command, and a child of it that only the group leads to.
            let script = "sh -c 'echo $$; exec sleep 600' & echo $$; wait";
            let mut command = Command::new("sh").args(["-c", script]).process_group(0).spawn().unwrap();
            guard(Pid::from_raw(i32::try_from(command.id()).unwrap()));
            // Until both have said who they are.
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
            tokio::spawn(async { panic!("of the test") });
            tokio::task::spawn_blocking(move || command.wait()).await.ok();
            std::future::pending::<()>().await;
        });
    }

    #[test]
    fn a_panic_in_a_task_that_nobody_waits_for_stops_the_whole_group() {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([ME, "--exact", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        let pids: Vec<u32> = lines
            .map_while(Result::ok)
            .filter_map(|line| line.split_whitespace().last()?.parse().ok())
            .take(2)
            .collect();
        assert_eq!(pids.len(), 2);
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"go on\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("of the test") && said.contains("bug"), "{said}");
        for pid in pids {
            let start = std::time::Instant::now();
            // A process that is dead and not yet reaped does nothing any more.
            while std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with(['Z', 'X']))
            {
                assert!(start.elapsed() < Duration::from_secs(60), "{pid} survives the panic");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
