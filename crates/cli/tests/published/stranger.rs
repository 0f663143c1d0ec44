//! A stranger's program: built by `rust_crate.rs` in a workspace of its own, against the packaged crate.

use std::time::Duration;

use leasehold_client::{ClaimRequest, Error, LockManager, OnLost, Options, Phase, Wait, Worker, blocking};
use serde::Serialize;

/// Data of the program's own type: anything that serializes.
#[derive(Serialize)]
struct Job<'a> {
    host: &'a str,
    attempt: u32,
}

fn options() -> Result<Options, Error> {
    Ok(Options::from_env()?.ttl(Duration::from_secs(20)).timeout(Duration::from_secs(60)).on_lost(OnLost::Report))
}

/// Claims, looks, renews and releases, under whatever runtime this is.
async fn hold(name: &str) -> Result<(), Error> {
    let manager = LockManager::new(options()?)?;
    let job = Job { host: "alpha", attempt: 3 };
    let request = ClaimRequest::new("stranger")
        .wait(Wait::For(Duration::from_secs(60)))
        .lead(Duration::from_secs(1))
        .worker(Worker::named("main"))
        .data(&job)?;
    let claim = manager.request(request)?.acquired().await?;
    claim.validate()?;
    claim.refresh(None).await?;
    assert_eq!(claim.phases().now(), Phase::Active);
    println!("{name}: held");
    println!("data: {}", manager.api().get(claim.id()).await?.user_data);
    claim.release().await?;
    manager.close().await;
    Ok(())
}

/// Tasks of one program queue for a resource like strangers.
async fn tasks() -> Result<(), Error> {
    let manager = LockManager::new(options()?)?;
    let turns = (0..4).map(|_| {
        let manager = manager.clone();
        tokio::spawn(async move {
            let claim = manager.claim("tasks").await?;
            let token = claim.token();
            claim.release().await.map(|()| token)
        })
    });
    let mut tokens = Vec::new();
    for turn in turns.collect::<Vec<_>>() {
        tokens.push(turn.await.expect("a task does not panic")?);
    }
    tokens.sort_unstable();
    tokens.dedup();
    println!("tasks: {} in turn", tokens.len());
    Ok(())
}

fn main() -> Result<(), Error> {
    let current = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    current.block_on(hold("current thread"))?;
    current.block_on(tasks())?;
    let many = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    many.block_on(hold("many threads"))?;
    let claim = blocking::LockManager::new(options()?)?.claim("stranger")?;
    claim.validate()?;
    claim.release()?;
    println!("no runtime: held");
    // An error, not a panic.
    match LockManager::new(options()?) {
        Err(Error::Invalid(why)) => println!("without a runtime: {why}"),
        _ => println!("without a runtime: something else"),
    }
    Ok(())
}
