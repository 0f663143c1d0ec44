//! Leader election: of several processes one leads, and the others take over when it ends or loses its claim.
//!
//! `LEASEHOLD_ADDR=http://127.0.0.1:4080 cargo run --example leader_election -- node-1`, in several terminals. A line on
//! stdin makes the leader step down.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use leasehold_client::{Claim, ClaimRequest, Error, LockManager, Options, Wait};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let name = std::env::args().nth(1).unwrap_or_else(|| format!("process {}", std::process::id()));
    let manager = LockManager::new(Options::from_env()?.ttl(Duration::from_secs(10)))?;
    let mut stepping_down = line_on_stdin();
    loop {
        // The data shows everybody who leads: `leasehold show example/leader`.
        let request = ClaimRequest::new("example/leader").wait(Wait::Forever).data(&name)?;
        let term = manager.request(request)?.acquired().await?;
        println!("{name} leads, term {}", term.token().unwrap_or(0));
        tokio::select! {
            // Stop leading at once: another process may lead soon. Then stand for election again.
            lost = term.lost() => println!("{name} does not lead any more: {lost}"),
            () = lead(&term) => {}
            _ = &mut stepping_down => {
                term.release().await?;
                println!("{name} has stepped down");
                return Ok(());
            }
        }
    }
}

/// What only the leader does, until it is stopped. Whatever it writes carries the term, so that a leader of the past can't
/// overwrite it.
async fn lead(term: &Claim) {
    loop {
        if let Ok(Some(_term)) = term.validate() {
            // Write something, with the term.
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Resolves when a line, or the end, comes on stdin.
fn line_on_stdin() -> tokio::sync::oneshot::Receiver<()> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        std::io::stdin().read_line(&mut String::new()).ok();
        sender.send(()).ok();
    });
    receiver
}
