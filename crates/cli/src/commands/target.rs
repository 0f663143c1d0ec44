//! Which claim a command line means: an id, a URL, or the holder of a resource.
//!
//! In:    what somebody typed. Out: a claim.
//! Never: takes a resource for a claim: what looks like an id is looked up as one first.

use anyhow::bail;
use leasehold_client::ClaimInfo;
use leasehold_client::internals::wire::id_of;
use leasehold_client::{Api, Error};

use super::output;

/// The claim with this id or URL, or the one that holds this resource.
pub(crate) async fn claim(api: &Api, what: &str) -> anyhow::Result<ClaimInfo> {
    if let Some(claim) = by_id(api, what).await? {
        return Ok(claim);
    }
    let holders = api.list(&[("resource", what), ("status", "active")], 2).await?;
    let is_shared = holders.len() > 1;
    match holders.into_iter().next() {
        Some(_) if is_shared => bail!(
            "several claims hold '{}': name one of them by its id (`leasehold show` lists them)",
            output::plain(what)
        ),
        Some(holder) => Ok(holder),
        None if looks_like_a_claim(what) => {
            bail!("there is no such claim, and nobody holds a resource of that name")
        }
        None => bail!("nobody holds '{}'", output::plain(what)),
    }
}

/// The claim with this id or URL, if it can be one and there is one.
pub(crate) async fn by_id(api: &Api, what: &str) -> Result<Option<ClaimInfo>, Error> {
    if !looks_like_a_claim(what) {
        return Ok(None);
    }
    match api.get(what).await {
        Ok(claim) => Ok(Some(claim)),
        // A resource may be called like that, too.
        Err(Error::Refused { status: 404, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn looks_like_a_claim(what: &str) -> bool {
    let id = id_of(what);
    (what == id || what.contains("/claims/"))
        && id.len() == 32
        && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}
