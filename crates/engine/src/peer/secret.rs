//! What all nodes of a cluster know and nobody else.
//!
//! In:    the operator's text. Out: the keys of the handshake's proofs, and a warning if the text could be guessed.
//! Never: shows it, or leaves it in memory when it is no longer needed.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};

use ring::pbkdf2;
use zeroize::Zeroizing;

use crate::machine;

/// A shorter secret could be guessed from one overheard greeting.
const LEN_MIN: usize = 16;
/// A secret that is easier to guess than this many bits gets a warning at the start.
const BITS_MIN: f64 = 80.0;
/// Bits of one word of a language, if the reader of this code chose it.
const WORD_BITS: f64 = 12.0;
/// How often a guess must be hashed: a proof can be guessed at a few tries a second and processor, not at billions.
const ROUNDS: NonZeroU32 = NonZeroU32::new(600_000).expect("it is not zero");
/// All nodes must come to the same key, so there is nothing else to put here.
const SALT: &[u8] = b"leasehold peer protocol 2";

/// What all nodes of a cluster know and nobody else.
#[derive(Clone)]
pub struct Secret {
    text: Arc<Zeroizing<Vec<u8>>>,
    stretched: Arc<OnceLock<Zeroizing<[u8; 32]>>>,
}

impl Secret {
    /// A secret of at least 16 characters.
    pub fn new(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.len() < LEN_MIN {
            return Err(format!(
                "the cluster secret has {} characters and needs at least {LEN_MIN}: make one with \
                 `openssl rand -hex 32`",
                text.len()
            ));
        }
        Ok(Self::from(text.as_bytes().to_vec()))
    }

    /// One that keeps everybody out, for a node that is alone.
    pub(crate) fn nobody_knows() -> Self {
        Self::from(machine::random::<[u8; 32]>().to_vec())
    }

    /// The key of proofs in version 1 of the handshake.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// The key of proofs since version 2. Takes a moment the first time: see [`Self::prepare`].
    pub(super) fn stretched(&self) -> &[u8] {
        let stretched = self.stretched.get_or_init(|| {
            let mut key = Zeroizing::new([0; 32]);
            pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ROUNDS, SALT, &self.text, &mut *key);
            key
        });
        &**stretched
    }

    /// Does once what takes a moment, before the first connection. `warns`: also of a secret that could be guessed.
    pub(crate) fn prepare(&self, warns: bool) {
        self.stretched();
        let bits = bits(&String::from_utf8_lossy(&self.text));
        if warns && bits < BITS_MIN {
            tracing::warn!(
                "the cluster secret is weak (about {bits:.0} bits): an attacker that poses as a node could guess it. Make \
                 one with `openssl rand -hex 32`"
            );
        }
    }
}

impl From<Vec<u8>> for Secret {
    fn from(text: Vec<u8>) -> Self {
        Self { text: Arc::new(Zeroizing::new(text)), stretched: Arc::default() }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// About how many bits somebody has to guess: letters of one case in a row are a word; characters that repeat or
/// continue the one before add nothing; everything else counts by the kinds of characters that there are.
fn bits(text: &str) -> f64 {
    let characters: Vec<char> = text.chars().collect();
    let has = |kind: fn(&char) -> bool| characters.iter().any(kind);
    let is_hex = characters.iter().all(char::is_ascii_hexdigit);
    let kinds = [
        (has(char::is_ascii_digit), 10.0),
        (has(char::is_ascii_lowercase), 26.0),
        (has(char::is_ascii_uppercase), 26.0),
        (has(|c| !c.is_ascii_alphanumeric()), 30.0),
    ];
    let count: f64 = kinds.iter().filter(|(there, _)| *there).map(|(_, count)| count).sum();
    let each = if is_hex { 4.0 } else { count.log2() };
    let is_same_word =
        |a: &char, b: &char| a.is_alphabetic() && b.is_alphabetic() && a.is_lowercase() == b.is_lowercase();
    let of_run = |run: &[char]| {
        let new = 1 + run.windows(2).filter(|pair| (pair[0] as i64 - pair[1] as i64).abs() > 1).count();
        let bits = new as f64 * each;
        if run[0].is_alphabetic() { bits.min(WORD_BITS) } else { bits }
    };
    let both_digits = |a: &char, b: &char| a.is_ascii_digit() && b.is_ascii_digit();
    characters.chunk_by(|a, b| is_same_word(a, b) || both_digits(a, b) || a == b).map(of_run).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_secrets_are_strong_and_made_up_ones_are_weak() {
        for strong in [
            "9f86d081884c7d659a2feaa0c55ad015",
            "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=",
            "f47ac10b-58cc-4372-a567-0e02b2c3d479",
        ] {
            assert!(bits(strong) > BITS_MIN, "{strong}: {}", bits(strong));
        }
        for weak in [
            "aaaaaaaaaaaaaaaaaaaaaaaa",
            "1234567890123456",
            "abcdefghijklmnopqrstuvwxyz",
            "leasehold-cluster-secret",
            "correct horse battery staple",
            "Password1234567890",
            "changemechangemechangeme",
        ] {
            assert!(bits(weak) < BITS_MIN, "{weak}: {}", bits(weak));
        }
    }

    #[test]
    fn nodes_with_one_secret_have_one_key_and_others_have_another() {
        let [one, two, other] =
            ["a secret of the tests", "a secret of the tests\n", "another secret of them"]
                .map(|text| Secret::new(text).unwrap());
        assert_eq!(one.stretched(), two.stretched());
        assert_ne!(one.stretched(), other.stretched());
        assert_ne!(one.stretched(), one.text());
    }
}
