//! The time in which `leasehold run` holds its resource: its command runs, and no longer than that.
//!
//! In:    a claim that holds, signals. Out: an exit code.
//! Never: says that all went well unless the claim was held until the command had ended.

use std::ffi::OsString;
use std::time::Duration;

use leasehold_client::BootInstant;
use leasehold_client::{Api, Claim, Error, Lost};

use super::child::Child;
use super::messages::say;
use super::signals::Signals;
use super::{RunArgs, output};
use crate::commands::exit_code::{CANNOT_RUN, LOST, NOT_FOUND, OWN_FAILURE};

/// Between two lines about renewals that fail, after the first one.
const TROUBLE_EVERY: Duration = Duration::from_secs(1);
/// How long the server may take to say why a claim was revoked.
const REASON_WITHIN: Duration = Duration::from_secs(1);

/// Runs the command and keeps an eye on the claim.
pub(super) async fn run(
    args: &RunArgs,
    claim: Claim,
    grace: Duration,
    signals: &mut Signals,
    api: &Api,
) -> u8 {
    let mut child = match Child::start(&args.command, &claim) {
        Ok(child) => child,
        Err(error) => {
            claim.release().await.ok();
            return not_started(args, &error);
        }
    };
    let lost = claim.lost();
    tokio::pin!(lost);
    let mut troubles = claim.troubles();
    let label = args.wanted.label();
    let mut told = Troubles { resource: &label, last: None };
    loop {
        tokio::select! {
            // A claim that is lost wins over whatever the command says.
            biased;
            why = &mut lost => return stop(args, child, claim, grace, why, api).await,
            code = child.exited() => {
                child.give_terminal_back();
                return match code {
                    Ok(code) => ended(&label, claim, code).await,
                    Err(error) => {
                        // Dropped, the child is killed.
                        say(&format!("the command can't be waited for ({error}); stopping it"));
                        OWN_FAILURE
                    }
                };
            }
            signal = signals.next() => child.pass_on(signal),
            Some(trouble) = troubles.next() => told.tell(trouble.as_deref(), &claim),
        }
    }
}

fn not_started(args: &RunArgs, error: &std::io::Error) -> u8 {
    let name = args.command[0].to_string_lossy();
    let is_missing = error.kind() == std::io::ErrorKind::NotFound;
    let why = if is_missing { "there is no such command".into() } else { error.to_string() };
    let hint = if is_resource_left_out(&args.wanted.resource, std::env::args_os()) {
        format!(
            ". '{}' was taken for the resource: name it before the --, as in `leasehold run RESOURCE -- COMMAND`",
            output::plain(&args.wanted.resource)
        )
    } else {
        String::new()
    };
    say(&format!("{}: {why}{hint}", output::plain(&name)));
    if is_missing { NOT_FOUND } else { CANNOT_RUN }
}

/// Whether the first word behind `--` was taken for the resource, as in `run -- sh job`.
fn is_resource_left_out(resource: &str, words: impl Iterator<Item = OsString>) -> bool {
    let words: Vec<_> = words.collect();
    let dashes = words.iter().position(|word| word == "--");
    dashes.is_some_and(|at| words[..at].iter().all(|word| word != resource))
}

/// The command has ended: its exit code counts if the claim was held until then. The server's word on that is best; without
/// it, the clock decides.
async fn ended(resource: &str, claim: Claim, code: u8) -> u8 {
    let (held, until) = (claim.validate(), claim.holds_until());
    let resource = output::plain(resource);
    match claim.release().await {
        Ok(()) => code,
        // A server that does not know the claim can't have kept it for us.
        Err(error @ (Error::Ended(_) | Error::Lost(_) | Error::Refused { status: 404, .. })) => {
            say(&format!("'{resource}' was lost before the command ended (it exited with {code}): {error}"));
            LOST
        }
        Err(error) if held.is_ok() => {
            let left = output::seconds(until.remaining().as_secs_f64());
            say(&format!(
                "the command ended in time, but no server could be told ({error}); '{resource}' is free when the ttl is over, \
                 in some {left}"
            ));
            code
        }
        Err(error) => {
            say(&format!(
                "'{resource}' was not held until the command ended (it exited with {code}): {error}"
            ));
            LOST
        }
    }
}

/// The claim is lost: the command goes before anyone else can hold the resource, as far as that can still be had.
async fn stop(args: &RunArgs, mut child: Child, claim: Claim, grace: Duration, why: Lost, api: &Api) -> u8 {
    let resource = output::plain(&args.wanted.label());
    say(&format!("'{resource}' is lost: {why}; stopping the command"));
    // The server may have handed it over already (revoked), or will at the end of the ttl.
    let latest = match why {
        Lost::NotRenewed(_) | Lost::MaxHold => claim.holds_until() + grace,
        _ => BootInstant::now() + grace,
    };
    child.stop(grace.min(latest.remaining())).await;
    child.give_terminal_back();
    let id = claim.id().to_string();
    claim.release().await.ok();
    if matches!(why, Lost::Ended(_)) {
        tokio::time::timeout(REASON_WITHIN, last_words(&resource, &id, api)).await.ok();
    }
    LOST
}

/// Says why the claim was taken away; and lets go of a claim that the server keeps until we do.
async fn last_words(resource: &str, id: &str, api: &Api) {
    let Ok(claim) = api.get(id).await else { return };
    if let Some(reason) = output::reason(&claim) {
        say(&format!("the reason that '{resource}' was taken away: {reason}"));
    }
    if claim.status == "active" {
        api.end(id, "released", None).await.ok();
    }
}

/// What was said about renewals that fail.
struct Troubles<'a> {
    resource: &'a str,
    last: Option<BootInstant>,
}

impl Troubles<'_> {
    fn tell(&mut self, trouble: Option<&str>, claim: &Claim) {
        let resource = output::plain(self.resource);
        let Some(why) = trouble else {
            if self.last.take().is_some() {
                say(&format!("'{resource}' is renewed again"));
            }
            return;
        };
        let now = BootInstant::now();
        if self.last.is_some_and(|last| now.since(last) < TROUBLE_EVERY) {
            return;
        }
        self.last = Some(now);
        let left = output::seconds(claim.holds_until().remaining().as_secs_f64());
        say(&format!(
            "'{resource}' could not be renewed: {}; retrying, the command is stopped in {left} otherwise",
            output::plain(why)
        ));
    }
}
