//! Queue workers: several tasks work on jobs, at most three at a time over all machines, and never two on one job.
//!
//! `LEASEHOLD_ADDR=http://127.0.0.1:4080 cargo run --example queue_worker`, in as many terminals as you like.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::time::Duration;

use leasehold_client::{Claim, ClaimRequest, Error, LockManager, Options, Wait};

/// How many jobs may run at the same time, over all machines: each place is a resource.
const PLACES: u32 = 3;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let manager = Arc::new(LockManager::new(Options::from_env()?)?);
    let jobs = (1..=8).map(|job| {
        let manager = manager.clone();
        // Each task is a worker of its own: tasks queue for a resource like strangers.
        tokio::spawn(async move { work(&manager, job).await })
    });
    for job in jobs.collect::<Vec<_>>() {
        job.await.map_err(|error| Error::Invalid(error.to_string()))??;
    }
    manager.close().await;
    Ok(())
}

async fn work(manager: &LockManager, number: u32) -> Result<(), Error> {
    let job =
        match manager.request(ClaimRequest::new(format!("job/{number}")).wait(Wait::No))?.acquired().await {
            Err(Error::Timeout { .. }) => {
                println!("job {number} is being done elsewhere");
                return Ok(());
            }
            other => other?,
        };
    // By its number, so that jobs spread over the places. The job is claimed first: whoever waits here has it already.
    let place = manager.claim(&format!("job-place/{}", number % PLACES)).await?;
    tokio::select! {
        lost = job.lost() => println!("job {number} stops: {lost}"),
        lost = place.lost() => println!("job {number} stops: {lost}"),
        () = done(number, &job) => {}
    }
    place.release().await?;
    job.release().await
}

async fn done(number: u32, job: &Claim) {
    tokio::time::sleep(Duration::from_millis(50)).await;
    println!("job {number} is done, with the fencing token {}", job.token().unwrap_or(0));
}
