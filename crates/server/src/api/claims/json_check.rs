//! What every JSON reader can read back.
//!
//! In:    user data, JSON by its grammar. Out: whether any client can parse an answer that contains it.
//! Never: keeps anything: data is returned byte for byte as it came.
//!
//! One claim whose data common readers choke on would make every list it stands in unreadable for everybody.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Lists and objects within each other. Common readers stop at 128, and a list of claims adds a few.
const DEPTH_MAX: usize = 100;

/// Refuses numbers that no double holds, halves of surrogate pairs, and what is nested too deep.
pub(super) fn check(json: &str) -> Result<(), serde_json::Error> {
    Walk { depth_left: DEPTH_MAX }.deserialize(&mut serde_json::Deserializer::from_str(json))
}

#[derive(Clone, Copy)]
struct Walk {
    depth_left: usize,
}

impl Walk {
    fn deeper<E: Error>(self) -> Result<Self, E> {
        let too_deep = || E::custom(format_args!("nested more than {DEPTH_MAX} deep"));
        Ok(Self { depth_left: self.depth_left.checked_sub(1).ok_or_else(too_deep)? })
    }
}

impl<'de> DeserializeSeed<'de> for Walk {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while seq.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while map.next_key::<IgnoredAny>()?.is_some() {
            map.next_value_seed(inner)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn ordinary_data_passes() {
        for good in ["null", "true", "-1", "1.5e300", r#""\u00e9\ud83d\ude00""#, r#"{"a": [1, {"b": []}]}"#] {
            assert!(check(good).is_ok(), "{good}");
        }
        assert!(check(&["[".repeat(100), "]".repeat(100)].concat()).is_ok());
    }

    #[test]
    fn what_common_readers_choke_on_does_not() {
        let deep = ["[".repeat(101), "]".repeat(101)].concat();
        for bad in ["1e400", "[-1e400]", r#""\ud800""#, r#"{"\ud800": 1}"#, &deep] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
