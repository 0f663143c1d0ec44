//! Ids and instants: the small values that name things on the whole road.
//!
//! In:    bytes chosen by the node that received a request, stamps chosen by the leader.
//! Out:   newtypes that can't be mixed up, with one printed form each.
//! Never: draws randomness or reads a clock; both come in from outside.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The unguessable id of one claim: 128 random bits, printed as 32 hex digits.
///
/// Kept as bytes, not as a `u128`, so that a claim needs no 16-byte alignment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClaimId([u8; 16]);

impl ClaimId {
    /// The id made of these bits, which the caller drew at random.
    pub const fn from_u128(bits: u128) -> Self {
        Self(bits.to_be_bytes())
    }

    /// The same 128 bits again.
    pub const fn as_u128(self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    /// The 32 hex digits that it is printed as.
    pub fn hex(self) -> [u8; 32] {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 32];
        for (i, byte) in self.0.iter().enumerate() {
            text[2 * i] = HEX[usize::from(byte >> 4)];
            text[2 * i + 1] = HEX[usize::from(byte & 15)];
        }
        text
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(std::str::from_utf8(&self.hex()).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What is not 32 lower-case hex digits is no claim id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseClaimIdError;

impl fmt::Display for ParseClaimIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a claim id is 32 lower-case hex digits")
    }
}

impl std::error::Error for ParseClaimIdError {}

impl FromStr for ClaimId {
    type Err = ParseClaimIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits: &[u8; 32] = text.as_bytes().try_into().map_err(|_| ParseClaimIdError)?;
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

fn nibble(digit: u8) -> Result<u8, ParseClaimIdError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(ParseClaimIdError),
    }
}

/// When an entry was made, on both clocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// The table clock, in microseconds: all ttls count on it. It only grows.
    pub now_us: u64,
    /// The leader's wall clock, in microseconds since 1970: shown to people, never compared.
    pub wall_us: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_prints_as_it_parses() {
        let id = ClaimId::from_u128(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        assert_eq!(id.to_string(), "0123456789abcdef0011223344556677");
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn what_is_no_id_does_not_parse() {
        for text in ["", "0", "0123456789ABCDEF0011223344556677", "g123456789abcdef0011223344556677"] {
            assert_eq!(text.parse::<ClaimId>(), Err(ParseClaimIdError), "{text}");
        }
    }
}
