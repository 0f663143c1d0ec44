//! Names of resources, and the paths of the claims on them.
//!
//! In:    numbers; `Location`s of answers. Out: names of 34 bytes that no other run uses; paths, counted round and round.
//! Never: an allocation for each of a million paths.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

/// Length of a name. The prototype's figures used 34 bytes too, so that memory compares.
pub const NAME_LEN: usize = 34;
/// Hexadecimal digits at the end of a name.
const DIGITS: usize = 16;

/// Names that begin with the same 18 bytes, which no other run uses: runs on one server never meet.
pub struct Names {
    prefix: String,
    next: Cell<u64>,
}

impl Names {
    /// Names `bench/<kind>/<run>/<number>`; `kind` has 4 letters.
    pub fn new(kind: &str) -> Self {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let run = (nanos / 1000) ^ (u64::from(std::process::id()) << 12);
        Self { prefix: format!("bench/{kind}/{:06x}/", run & 0x00ff_ffff), next: Cell::new(0) }
    }

    /// Makes `name` one that was not used before.
    pub fn fresh(&self, name: &mut String) {
        let number = self.next.get();
        self.next.set(number + 1);
        self.numbered(number, name);
    }

    /// Makes `name` that of `number`.
    pub fn numbered(&self, number: u64, name: &mut String) {
        name.clear();
        name.push_str(&self.prefix);
        for shift in (0..4 * DIGITS as u32).step_by(4).rev() {
            name.push(char::from(b"0123456789abcdef"[(number >> shift) as usize & 15]));
        }
    }

    /// A new name, where there is none to overwrite.
    pub fn one(&self) -> String {
        let mut name = String::with_capacity(NAME_LEN);
        self.fresh(&mut name);
        name
    }
}

/// Paths of many claims in one allocation: a million of them take their bytes and 4 more each.
#[derive(Default)]
pub(crate) struct Paths {
    /// All paths, end to end.
    text: String,
    /// The end of each path.
    ends: Vec<u32>,
}

/// Bytes of a claim's path, and a few to spare.
const PATH_LEN: usize = 48;

impl Paths {
    /// No paths yet, with room for this many. To grow by thirty megabytes at once takes longer than any request and would
    /// look like a stall of the server.
    pub(crate) fn with_room(count: usize) -> Self {
        Self { text: String::with_capacity(count * PATH_LEN), ends: Vec::with_capacity(count) }
    }

    /// Adds one.
    pub(crate) fn push(&mut self, path: &str) {
        self.text.push_str(path);
        self.ends.push(self.text.len() as u32);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The path at `index`, counted round and round.
    pub(crate) fn cyclic(&self, index: usize) -> Option<&str> {
        let index = index.checked_rem(self.ends.len())?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        self.text.get(start..self.ends[index] as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_fresh_and_34_bytes_long() {
        let names = Names::new("test");
        let (first, mut second) = (names.one(), names.one());
        assert_eq!((first.len(), second.len()), (NAME_LEN, NAME_LEN));
        assert!(first < second && first.starts_with("bench/test/"), "{first} {second}");
        names.numbered(0xabc, &mut second);
        assert!(second.ends_with("/0000000000000abc"), "{second}");
    }

    #[test]
    fn paths_go_round() {
        let mut paths = Paths::default();
        assert_eq!(paths.cyclic(0), None);
        paths.push("/a/");
        paths.push("/bcd/");
        assert_eq!((paths.cyclic(0), paths.cyclic(3), paths.len()), (Some("/a/"), Some("/bcd/"), 2));
    }
}
