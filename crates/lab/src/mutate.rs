//! A small mutator: bytes that are almost right reach further into a parser than bytes that are not.
//!
//! In:    a corpus (`crates/lab/corpus`) and a source of numbers. Out: bytes that nobody meant to send.
//! Never: makes them longer than [`LEN_MAX`].

use std::fs;
use std::path::Path;

use crate::random::Random;

/// The longest input.
pub const LEN_MAX: usize = 64 << 10;

/// What breaks parsers.
const NASTY: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\0",
    b"\xff\xfe",
    b"%00",
    b"%",
    b"%2f",
    b"..",
    b"//",
    b"?",
    b"&",
    b"=",
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"[[[[[[[[[[[[[[[[[[[[",
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e309",
    b"1e-400",
    b"NaN",
    b"18446744073709551616",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"0.00000000000000001",
    b"Infinity",
    b"Content-Length: 99999999999\r\n",
    b"Content-Length: -1\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Expect: 100-continue\r\n",
    b"ffffffffffffffff\r\n",
    b"Host:\r\n",
    b"Authorization: Basic \xff\r\n",
    b"?wait=1e308",
    b"?limit=-1&offset=99999999999",
    b"*-1\r\n",
    b"*1048577\r\n",
    b"$-1\r\n",
    b"$536870913\r\n",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x94\x92",
];

/// Every file of a folder, in the order of their names.
pub fn corpus(dir: &Path) -> std::io::Result<Vec<Vec<u8>>> {
    let mut paths: Vec<_> = fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths.iter().map(fs::read).collect()
}

/// One input made of the corpus.
pub fn mutated(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = random.pick(corpus).clone();
    for _ in 0..1 + random.below(6) {
        mutate(&mut bytes, corpus, random);
    }
    bytes.truncate(LEN_MAX);
    bytes
}

fn mutate(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let at = random.below(bytes.len() as u64 + 1) as usize;
    let end = at + random.below((bytes.len() - at) as u64 + 1) as usize;
    match random.below(9) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        1 if at < bytes.len() => bytes[at] = random.next() as u8,
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..end.min(at + 16))),
        4 => {
            let nasty: &[u8] = random.pick::<&[u8]>(NASTY);
            insert(bytes, at, nasty);
        }
        5 => {
            let again = bytes[at..end].to_vec();
            insert(bytes, at, &again);
        }
        6 => {
            let other = random.pick(corpus);
            let from = random.below(other.len() as u64 + 1) as usize;
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        7 => {
            let long = vec![*random.pick(b"a0[{\" \xff/"); random.below(9000) as usize];
            insert(bytes, at, &long);
        }
        _ => number(bytes, random),
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, what: &[u8]) {
    if bytes.len() + what.len() <= LEN_MAX {
        bytes.splice(at..at, what.iter().copied());
    }
}

/// Another number in place of one that is there.
fn number(bytes: &mut Vec<u8>, random: &mut Random) {
    let digits: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at].is_ascii_digit()).collect();
    if digits.is_empty() {
        return;
    }
    let at = *random.pick(&digits);
    let long = random.next().to_string();
    let new: &[u8] = match random.below(4) {
        0 => b"0",
        1 => b"99999999999999999999",
        2 => b"-7",
        _ => long.as_bytes(),
    };
    bytes.splice(at..=at, new.iter().copied());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_bytes() {
        let corpus = vec![b"POST /v1/claims/ 12".to_vec(), b"GET / 7".to_vec()];
        let make = || {
            let mut random = Random::new(3);
            (0..500).map(|_| mutated(&corpus, &mut random)).collect::<Vec<_>>()
        };
        assert_eq!(make(), make());
        assert!(make().iter().all(|bytes| bytes.len() <= LEN_MAX));
    }
}
