//! What `leasehold run` says and returns when it did not get its resource.
//!
//! In:    why not, and who held it. Out: a sentence with what to do about it, and an exit code.
//! Never: says that the resource is held unless a server said so.

use leasehold_client::ClaimInfo;
use leasehold_client::Error;

use super::messages::say;
use super::{RunArgs, output};
use crate::commands::exit_code::OWN_FAILURE;

/// Says why the command does not run; the exit code.
pub(super) fn not_acquired(args: &RunArgs, error: &Error, holder: Option<&ClaimInfo>, urls: &[String]) -> u8 {
    let resource = &args.wanted.label();
    let held = holder.map_or_else(|| "held by another claim".into(), output::held_by);
    let why = match error {
        Error::Timeout { .. } if args.nonblock => format!("'{resource}' is {held}"),
        Error::Timeout { .. } => format!("{error}: {held}"),
        Error::Deadlock { detail, .. } => format!("'{resource}': {detail}"),
        _ => {
            say(&output::plain(&failure(resource, error, urls)));
            return OWN_FAILURE;
        }
    };
    if !args.quiet {
        say(&output::plain(&format!("not acquired: {why}")));
    }
    args.conflict_exit_code
}

/// What answered, and what to do.
fn failure(resource: &str, error: &Error, urls: &[String]) -> String {
    let who = urls.join(", ");
    match error {
        Error::Unreachable(why) => format!(
            "'{resource}' could not be claimed: no server answers ({why}). Asked: {who}. Check that the service runs and that \
             LEASEHOLD_ADDR or --addr names it"
        ),
        Error::Refused { status, detail } => {
            format!(
                "'{resource}' could not be claimed: {who} answers {status}: {detail}. {}",
                advice(*status)
            )
        }
        Error::Unknown(why) => format!(
            "whether '{resource}' was claimed is unknown: {who}: {why}. A claim that was made ends with its ttl. Check the \
             service and what stands before it, and try again"
        ),
        Error::Ended(status) => {
            format!("'{resource}' was not acquired: somebody ended the claim while it waited ({status})")
        }
        other => other.to_string(),
    }
}

fn advice(status: u16) -> &'static str {
    match status {
        401 => "Set LEASEHOLD_KEY or LEASEHOLD_KEY_FILE to a key that the service knows",
        403 => "Ask an administrator for the right to claim it (`leasehold access check`)",
        404 | 405 => "No claims API is there: check LEASEHOLD_ADDR or --addr",
        409 => "Give the same number of slots as the others, or wait until they are done",
        429 => "A limit is reached: end claims, or have it raised (`leasehold limits`)",
        507 => "The service is full: free space, or raise its budget (`leasehold limits`)",
        500.. => {
            "The service can't serve now (`leasehold cluster status` shows why): try again later, or wait longer with -w"
        }
        _ => "Check the address and the flags",
    }
}
