//! A claim's data, as others may see it.
//!
//! In:    a claim. Out: its data, as it was sent.
//! Never: shows data that proves ownership: of that, others see a hash, by which two holders can be told apart.

use std::borrow::Cow;

use leasehold_core::{Claim, Data, Format};
use ring::digest::{Context, SHA256};

/// Digits of the hash: enough to tell holders apart.
const DIGITS: usize = 16;

/// The data of a claim, for everybody who may see the claim.
pub(super) fn redacted_data(claim: &Claim) -> Option<Cow<'_, Data>> {
    let data = claim.data.as_deref()?;
    match data.format {
        Format::Json | Format::Bytes => Some(Cow::Borrowed(data)),
        Format::Secret => {
            let json = format!(r#"{{"value_sha256": "{}"}}"#, hash(claim, data));
            Some(Cow::Owned(Data { format: Format::Json, bytes: json.into_bytes().into() }))
        }
    }
}

/// The claim's id is hashed with the value, so that nobody finds a short value in a table of hashes.
pub(super) fn hash(claim: &Claim, data: &Data) -> String {
    let mut context = Context::new(&SHA256);
    context.update(claim.id.to_string().as_bytes());
    context.update(&data.bytes);
    let digest = context.finish();
    digest.as_ref()[..DIGITS / 2].iter().map(|byte| format!("{byte:02x}")).collect()
}
