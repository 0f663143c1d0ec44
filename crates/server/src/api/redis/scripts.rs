//! The scripts of lock clients: known by their hash, never interpreted.
//!
//! In:    a SHA-1, or the text of a script. Out: what the script does.
//! Never: runs Lua. A script that is not known is refused, with words that say what this port is for.
//!
//! Clients send the hash of a script first, and its text when the hash is unknown. The hashes below are those of published
//! clients; the tests compute them from the installed packages. Many programs have a script of their own that does one of
//! two things: they are recognised by their text, apart from spaces, case, quotes and comments.

use std::collections::HashMap;

use parking_lot::RwLock;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

/// Scripts that were recognised by their text: clients will send their hashes from now on.
const LOADED_MAX: usize = 1000;

/// What a script does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Takes all keys or none: how many.
    Take,
    /// Releases the keys that have this value: how many.
    Release,
    /// The same; -1 if nobody holds the key.
    ReleaseOrGone,
    /// Starts the ttl of all keys again, if all have this value: how many.
    Extend,
    /// The same, with a ttl in seconds.
    ExtendSeconds,
    /// The same; a second argument says whether to add to what is left.
    ExtendBy,
    /// The same; takes a key that nobody holds.
    ExtendOrTake,
}

/// A script, and which of its arguments is the value. Behind the value comes the ttl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) action: Action,
    pub(super) value_at: usize,
}

type Sha = [u8; 20];

/// Published clients: the hash, what the script does, where its value stands.
#[rustfmt::skip]
const KNOWN: &[(&str, Action, usize)] = &[
    // redis-py and valkey-py
    ("c3f8721cbb97f72bc19e972846bd7aaf91901658", Action::Release, 0),
    ("a4e8783852e6b949f9ef3a97212805108459a890", Action::ExtendBy, 0),
    ("1cac51482acf5858da00f6d685d68f886cd6b6b2", Action::Extend, 0),
    // redlock 4 (npm)
    ("e5a322e2634ef59a516e8ea150cb085afafee684", Action::Take, 0),
    ("ce46f80993d5dac20dd066eb301a4e37994bdbed", Action::Extend, 0),
    ("0f0f23b9048b36752b5be114f357ba083449f908", Action::Release, 0),
    // redlock 5 (npm)
    ("96da70f7716f27d278a5218544df37fd8b0a5e4c", Action::Take, 0),
    ("aed6f382e410db8ba7926d4e5e9aab410bf2a78a", Action::Extend, 0),
    ("e4612211c9f8f51c257e26e056b0a654b3187242", Action::Release, 0),
    // @sesamecare-oss/redlock (npm): its first argument is a database
    ("1b77b94aa78451d55dfa97e18819bfbfc596cb5b", Action::Take, 1),
    ("820e9778d2b6733e9ed771e4be90ae73a95a6f3b", Action::Extend, 1),
    ("df51f6837dcfe303d334e6abea9aeae192bab216", Action::Release, 1),
    // rslock (crates.io)
    ("daf86bbf8740dd3ca86733367a016364b2110627", Action::Release, 0),
    ("17a49af0c4b1a9034503fa84f3570f5ca76c4cbf", Action::Extend, 0),
    // redsync (Go)
    ("e950836ed1e694540c503ef9972b8de518044d3b", Action::ReleaseOrGone, 0),
    ("d75bb8b5bd13532ddedd17762e772346e39b321e", Action::Extend, 0),
    ("b6b55c439e02c6f52ffb8be7ec8c0d0ac816ea79", Action::ExtendOrTake, 0),
];

/// What a script of one's own says if the key has the value, and what that means.
const IDIOMS: &[(&str, Action)] = &[
    (r#"redis.call("del",keys[1])"#, Action::Release),
    (r#"redis.call("unlink",keys[1])"#, Action::Release),
    (r#"redis.call("pexpire",keys[1],argv[2])"#, Action::Extend),
    (r#"redis.call("expire",keys[1],argv[2])"#, Action::ExtendSeconds),
];

/// The scripts that this node knows by their hash.
#[derive(Debug)]
pub struct Scripts(RwLock<HashMap<Sha, Script>>);

impl Default for Scripts {
    fn default() -> Self {
        Self(RwLock::new(published()))
    }
}

impl Scripts {
    /// The script with this hash, in hexadecimal digits of either case.
    pub(super) fn find(&self, sha: &[u8]) -> Option<Script> {
        self.0.read().get(&unhex(sha)?).copied()
    }

    /// The script with this text, if it is one of those that locks are made of; and its hash.
    pub(super) fn load(&self, text: &[u8]) -> Option<(Script, String)> {
        let sha = digest(&SHA1_FOR_LEGACY_USE_ONLY, text);
        let sha: Sha = sha.as_ref().try_into().expect("SHA-1 has 20 bytes");
        let known = self.0.read().get(&sha).copied();
        let script = match known {
            Some(script) => script,
            None => {
                let script = Script { action: idiom(text)?, value_at: 0 };
                let mut all = self.0.write();
                if all.len() >= LOADED_MAX {
                    // Clients send the text again.
                    *all = published();
                }
                all.insert(sha, script);
                script
            }
        };
        Some((script, sha.iter().map(|byte| format!("{byte:02x}")).collect()))
    }
}

fn published() -> HashMap<Sha, Script> {
    let sha = |text: &str| unhex(text.as_bytes()).expect("40 hexadecimal digits");
    KNOWN
        .iter()
        .map(|(text, action, value_at)| (sha(text), Script { action: *action, value_at: *value_at }))
        .collect()
}

fn unhex(text: &[u8]) -> Option<Sha> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut sha = [0; 20];
    if text.len() != 40 {
        return None;
    }
    for (byte, pair) in sha.iter_mut().zip(text.chunks(2)) {
        *byte = 16 * digit(pair[0])? + digit(pair[1])?;
    }
    Some(sha)
}

/// `if redis.call("get", KEYS[1]) == ARGV[1] then return THAT else return 0 end`, in any spelling.
fn idiom(text: &[u8]) -> Option<Action> {
    let text = std::str::from_utf8(text).ok()?;
    let code = text.lines().map(|line| line.split("--").next().unwrap_or_default());
    let plain: String =
        code.flat_map(str::chars).filter(|letter| !letter.is_whitespace() && *letter != ';').collect();
    let plain = plain.to_ascii_lowercase().replace('\'', "\"");
    let then = plain.strip_prefix(r#"ifredis.call("get",keys[1])==argv[1]thenreturn"#)?;
    let then = then.strip_suffix("elsereturn0end").or_else(|| then.strip_suffix("endreturn0"))?;
    IDIOMS.iter().find(|(idiom, _)| *idiom == then).map(|(_, action)| *action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_of_ones_own_is_recognised_in_any_spelling() {
        let scripts = Scripts::default();
        let of = |text: &str| scripts.load(text.as_bytes()).map(|(script, _)| script.action);
        let classic = "if redis.call(\"get\",KEYS[1]) == ARGV[1] then\n    return redis.call(\"del\",KEYS[1])\nelse\n    return 0\nend";
        assert_eq!(of(classic), Some(Action::Release));
        let other = "-- mine\nif redis.call('GET', KEYS[1]) == ARGV[1] then -- still mine\n return redis.call('PEXPIRE', KEYS[1], ARGV[2]);\nend\nreturn 0\n";
        assert_eq!(of(other), Some(Action::Extend));
        for unknown in [
            "return redis.call('del', KEYS[1])",
            "if redis.call('get', KEYS[1]) == ARGV[2] then return redis.call('del', KEYS[1]) else return 0 end",
            "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[2]) else return 0 end",
            "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 1 end",
            "",
        ] {
            assert_eq!(of(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_loaded_script_is_found_by_its_hash_and_there_is_an_end_to_them() {
        let scripts = Scripts::default();
        for spaces in 0..3 * LOADED_MAX {
            let text = format!(
                "if redis.call('get',KEYS[1])==ARGV[1] then{} return redis.call('del',KEYS[1]) else return 0 end",
                " ".repeat(spaces)
            );
            let (script, sha) = scripts.load(text.as_bytes()).unwrap();
            assert_eq!(scripts.find(sha.to_uppercase().as_bytes()), Some(script));
            assert!(scripts.0.read().len() <= LOADED_MAX);
        }
        assert_eq!(
            scripts.find(b"c3f8721cbb97f72bc19e972846bd7aaf91901658").unwrap().action,
            Action::Release
        );
        assert_eq!(scripts.find(b"c3f8"), None);
    }
}
