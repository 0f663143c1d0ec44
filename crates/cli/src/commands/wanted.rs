//! What `run` and `claim` are to hold: one resource or several, each in its own way.
//!
//! In:    flags. Out: items of a claim.
//! Never: reads anything out of a resource's name, which may have any character.

use std::str::FromStr;

use leasehold_client::{ClaimRequest, Item, Mode};
use serde_json::{Value, json};

/// Names of a set that are shown; of further ones the number.
const NAMES_SHOWN: usize = 3;

#[derive(clap::Args)]
pub(crate) struct WantedArgs {
    /// What to hold
    pub(crate) resource: String,
    /// Hold it together with others that share it: readers beside readers
    #[arg(long, conflicts_with = "slots")]
    shared: bool,
    /// Hold K of its N equal slots, as in 1/5; all who use it name the same N
    #[arg(long, value_name = "K/N")]
    slots: Option<Slots>,
    /// Hold this resource too; everything together or nothing. May be repeated
    #[arg(long, value_name = "RESOURCE")]
    also: Vec<String>,
    /// Hold this resource too, together with others that share it. May be repeated
    #[arg(long, value_name = "RESOURCE")]
    also_shared: Vec<String>,
    /// Hold K of the N slots of this resource too. May be repeated
    #[arg(long, num_args = 2, value_names = ["K/N", "RESOURCE"])]
    also_slots: Vec<String>,
}

/// `K/N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slots {
    take: u32,
    of: u32,
}

impl FromStr for Slots {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not K/N, as in 1/5");
        let (take, of) = text.split_once('/').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        let slots = Self { take: number(take)?, of: number(of)? };
        if slots.take == 0 || slots.take > slots.of {
            return Err(format!("'{text}' is not possible: K must be 1 to N"));
        }
        Ok(slots)
    }
}

impl WantedArgs {
    fn mode(&self) -> Mode {
        match self.slots {
            Some(Slots { take, of }) => Mode::Slots { take, of },
            None if self.shared => Mode::Shared,
            None => Mode::Exclusive,
        }
    }

    fn others(&self) -> anyhow::Result<Vec<Item>> {
        let mut items: Vec<Item> = self.also.iter().map(Item::exclusive).collect();
        items.extend(self.also_shared.iter().map(Item::shared));
        for pair in self.also_slots.chunks(2) {
            let Slots { take, of } = pair[0].parse().map_err(|why| anyhow::anyhow!("--also-slots: {why}"))?;
            items.extend(pair[1..].iter().map(|resource| Item::slots(resource, take, of)));
        }
        Ok(items)
    }

    pub(crate) fn request(&self) -> anyhow::Result<ClaimRequest> {
        let mut request = ClaimRequest::new(&self.resource);
        request.mode = self.mode();
        request.others = self.others()?;
        Ok(request)
    }

    /// Everything that is to be held, the first one first.
    pub(crate) fn items(&self) -> anyhow::Result<Vec<Item>> {
        let mut first = Item::exclusive(&self.resource);
        first.mode = self.mode();
        Ok(std::iter::once(first).chain(self.others()?).collect())
    }

    /// The words of `POST /v1/claims/`.
    pub(crate) fn body(&self) -> anyhow::Result<Value> {
        let words = |resource: &str, mode: Mode| match mode {
            Mode::Shared => json!({ "resource": resource, "mode": "shared" }),
            Mode::Slots { take, of } => json!({ "resource": resource, "take": take, "of": of }),
            _ => json!({ "resource": resource }),
        };
        let first = words(&self.resource, self.mode());
        let others = self.others()?;
        if others.is_empty() {
            return Ok(first);
        }
        let others = others.iter().map(|item| words(&item.resource, item.mode));
        Ok(json!({ "resources": std::iter::once(first).chain(others).collect::<Vec<_>>() }))
    }

    /// All resources, the first one first.
    pub(crate) fn names(&self) -> Vec<&str> {
        let slots = self.also_slots.iter().skip(1).step_by(2);
        let others = self.also.iter().chain(&self.also_shared).chain(slots);
        std::iter::once(&self.resource).chain(others).map(String::as_str).collect()
    }

    /// What people are told it is about.
    pub(crate) fn label(&self) -> String {
        label(&self.names())
    }
}

/// The resources of a claim in a few words.
pub(crate) fn label(names: &[&str]) -> String {
    let shown = names[..names.len().min(NAMES_SHOWN)].join(" + ");
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} + {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_read_and_mistakes_are_named() {
        assert_eq!("2/8".parse(), Ok(Slots { take: 2, of: 8 }));
        for bad in ["2", "2/", "/2", "0/5", "6/5", "a/5", "-1/5"] {
            assert!(bad.parse::<Slots>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_long_set_is_shortened() {
        assert_eq!(label(&["a"]), "a");
        assert_eq!(label(&["a", "b", "c", "d", "e"]), "a + b + c + 2 more");
    }
}
