//! What a Redis client asks of locks.
//!
//! In:    the name and the arguments of a command. Out: a [`LockCommand`]; or what is wrong, in the words of Redis where it has some.
//! Never: touches the table.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use leasehold_core::limits;

use super::Refused;
use super::scripts::{Action, Script, Scripts};
use super::session::wrong_number;

/// What is asked of the locks of some keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LockCommand {
    /// `SET key value NX [PX milliseconds]`
    Take { key: Arc<str>, value: Bytes, ttl_us: Option<u64> },
    /// All keys or none: how many.
    TakeAll { keys: Vec<Arc<str>>, value: Bytes, ttl_us: u64 },
    /// Those that have this value: how many. `or_gone`: -1 if nobody holds the only key.
    Release { keys: Vec<Arc<str>>, value: Bytes, or_gone: bool },
    /// All of them, if all have this value: how many.
    Extend { keys: Vec<Arc<str>>, value: Bytes, ttl: NewTtl, or_take: bool },
    /// The value.
    Get { key: Arc<str> },
    /// How many of them are held.
    Exists { keys: Vec<Arc<str>> },
    /// What is left of the ttl: -1 if there is none, -2 if nobody holds the key.
    Ttl { key: Arc<str>, unit: Unit },
    /// Another ttl, whatever the value: 1, or 0 if nobody holds the key.
    Expire { key: Arc<str>, ttl_us: u64 },
    /// An end, whatever the value: how many were held.
    Delete { keys: Vec<Arc<str>> },
    /// The fencing token of the lock with this value.
    Token { key: Arc<str>, value: Bytes },
    /// `SCRIPT LOAD`
    Loaded { sha: String },
    /// `SCRIPT EXISTS`
    Known { known: Vec<bool> },
    /// `SCRIPT FLUSH`: known scripts stay known.
    Flush,
}

/// A ttl that replaces another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NewTtl {
    /// From now on.
    Whole(u64),
    /// On top of what is left.
    More(u64),
}

/// What a number of a reply counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Milliseconds,
}

const PURPOSE: &str = "this port is for locks: SET key value NX PX milliseconds, GET, EXISTS, TTL, PTTL, EXPIRE, PEXPIRE, DEL, DELEX key IFEQ value, \
                       DELIFEQ key value, LEASEHOLD.TOKEN key value, and the scripts of lock clients (see docs/redis.md)";

impl LockCommand {
    pub(super) fn parse(name: &str, arguments: &[Bytes], scripts: &Scripts) -> Result<Self, Refused> {
        Ok(match (name, arguments) {
            ("SET", [key, value, options @ ..]) => set(key, value, options)?,
            ("GET", [key]) => Self::Get { key: resource(key)? },
            ("EXISTS", [_, ..]) => Self::Exists { keys: resources(arguments)? },
            ("TTL", [key]) => Self::Ttl { key: resource(key)?, unit: Unit::Seconds },
            ("PTTL", [key]) => Self::Ttl { key: resource(key)?, unit: Unit::Milliseconds },
            ("EXPIRE", [key, seconds]) => expire(key, seconds, Unit::Seconds)?,
            ("PEXPIRE", [key, milliseconds]) => expire(key, milliseconds, Unit::Milliseconds)?,
            ("DEL" | "UNLINK", [_, ..]) => Self::Delete { keys: resources(arguments)? },
            ("DELEX", [key, condition, value]) if condition.eq_ignore_ascii_case(b"IFEQ") => {
                release(key, value)?
            }
            ("DELEX", [key]) => Self::Delete { keys: vec![resource(key)?] },
            ("DELEX", _) => {
                return Err(Refused::Mistake("DELEX takes 'key' or 'key IFEQ value'".into()));
            }
            ("DELIFEQ", [key, value]) => release(key, value)?,
            ("LEASEHOLD.TOKEN", [key, value]) => Self::Token { key: resource(key)?, value: value.clone() },
            ("EVAL" | "EVAL_RO", [text, count, rest @ ..]) => match scripts.load(text) {
                Some((script, _)) => evaluate(script, count, rest)?,
                None => return Err(Refused::Mistake(format!("this script is not known; {PURPOSE}"))),
            },
            ("EVALSHA" | "EVALSHA_RO", [sha, count, rest @ ..]) => match scripts.find(sha) {
                Some(script) => evaluate(script, count, rest)?,
                None => return Err(Refused::NoScript),
            },
            ("SCRIPT", [what, rest @ ..]) => script(what, rest, scripts)?,
            (
                "SET" | "GET" | "EXISTS" | "TTL" | "PTTL" | "EXPIRE" | "PEXPIRE" | "DEL" | "UNLINK"
                | "DELIFEQ" | "LEASEHOLD.TOKEN" | "EVAL" | "EVAL_RO" | "EVALSHA" | "EVALSHA_RO" | "SCRIPT",
                _,
            ) => {
                return Err(Refused::Mistake(wrong_number(name)));
            }
            _ => {
                let name: String = name.chars().take(64).collect();
                return Err(Refused::Mistake(format!("unknown command '{name}'; {PURPOSE}")));
            }
        })
    }
}

/// `SET key value NX` with at most one of `EX`, `PX`, `EXAT` and `PXAT`, in any order.
fn set(key: &Bytes, value: &Bytes, options: &[Bytes]) -> Result<LockCommand, Refused> {
    let (mut only_new, mut ttl_us) = (false, None);
    let mut rest = options;
    while let [word, behind @ ..] = rest {
        rest = behind;
        let word = String::from_utf8_lossy(word).to_ascii_uppercase();
        match (word.as_str(), rest) {
            ("NX", _) => only_new = true,
            ("EX" | "PX" | "EXAT" | "PXAT", [number, behind @ ..]) if ttl_us.is_none() => {
                let unit = if word.starts_with('E') { Unit::Seconds } else { Unit::Milliseconds };
                let given_us = duration_us(number, unit, "set")?;
                ttl_us = Some(if word.ends_with("AT") { until_us(given_us)? } else { given_us });
                rest = behind;
            }
            ("XX" | "GET" | "KEEPTTL" | "IFEQ" | "IFNE", _) => {
                return Err(Refused::Mistake(format!("SET with {word} is not supported; {PURPOSE}")));
            }
            _ => return Err(Refused::Mistake("syntax error".into())),
        }
    }
    if !only_new {
        return Err(Refused::Mistake(format!(
            "SET without NX could take the lock of another client; {PURPOSE}"
        )));
    }
    Ok(LockCommand::Take { key: resource(key)?, value: checked_value(value)?, ttl_us })
}

/// How long it is until an instant of the wall clock.
fn until_us(instant_us: u64) -> Result<u64, Refused> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let left_us = instant_us.checked_sub(now.as_micros() as u64).filter(|left_us| *left_us > 0);
    left_us.ok_or_else(|| Refused::Mistake("invalid expire time in 'set' command: it has passed".into()))
}

fn release(key: &Bytes, value: &Bytes) -> Result<LockCommand, Refused> {
    Ok(LockCommand::Release { keys: vec![resource(key)?], value: value.clone(), or_gone: false })
}

/// A ttl that is over at once is an end, as in Redis.
fn expire(key: &Bytes, number: &Bytes, unit: Unit) -> Result<LockCommand, Refused> {
    let key = resource(key)?;
    match integer(number)? {
        ..=0 => Ok(LockCommand::Delete { keys: vec![key] }),
        _ => Ok(LockCommand::Expire { key, ttl_us: duration_us(number, unit, "expire")? }),
    }
}

fn evaluate(script: Script, count: &Bytes, rest: &[Bytes]) -> Result<LockCommand, Refused> {
    let count = integer(count)?;
    let count = usize::try_from(count).ok().filter(|count| *count <= rest.len());
    let count = count
        .ok_or_else(|| Refused::Mistake("Number of keys can't be greater than number of args".into()))?;
    let (keys, arguments) = rest.split_at(count);
    let keys = resources(keys)?;
    let missing = || Refused::Mistake("the script takes more keys or arguments than were given".into());
    let argument = |at: usize| arguments.get(script.value_at + at).ok_or_else(missing);
    let value = argument(0)?.clone();
    let ttl_us = |unit| duration_us(argument(1)?, unit, "pexpire");
    if keys.is_empty() {
        return Err(missing());
    }
    let release = |or_gone| LockCommand::Release { keys: keys.clone(), value: value.clone(), or_gone };
    let extend =
        |ttl, or_take| LockCommand::Extend { keys: keys.clone(), value: value.clone(), ttl, or_take };
    Ok(match script.action {
        Action::Take => {
            LockCommand::TakeAll { ttl_us: ttl_us(Unit::Milliseconds)?, value: checked_value(&value)?, keys }
        }
        Action::Release => release(false),
        Action::ReleaseOrGone => release(true),
        Action::Extend => extend(NewTtl::Whole(ttl_us(Unit::Milliseconds)?), false),
        Action::ExtendSeconds => extend(NewTtl::Whole(ttl_us(Unit::Seconds)?), false),
        Action::ExtendOrTake => {
            checked_value(&value)?;
            extend(NewTtl::Whole(ttl_us(Unit::Milliseconds)?), true)
        }
        Action::ExtendBy => {
            let given_us = ttl_us(Unit::Milliseconds)?;
            let adds = arguments.get(2).is_some_and(|replaces| **replaces == *b"0");
            extend(if adds { NewTtl::More(given_us) } else { NewTtl::Whole(given_us) }, false)
        }
    })
}

fn script(what: &Bytes, rest: &[Bytes], scripts: &Scripts) -> Result<LockCommand, Refused> {
    match (what.to_ascii_uppercase().as_slice(), rest) {
        (b"LOAD", [text]) => match scripts.load(text) {
            Some((_, sha)) => Ok(LockCommand::Loaded { sha }),
            None => Err(Refused::Mistake(format!("this script is not known; {PURPOSE}"))),
        },
        (b"EXISTS", [_, ..]) => {
            Ok(LockCommand::Known { known: rest.iter().map(|sha| scripts.find(sha).is_some()).collect() })
        }
        (b"FLUSH", _) => Ok(LockCommand::Flush),
        _ => Err(Refused::Mistake("SCRIPT takes LOAD text, EXISTS sha ... or FLUSH".into())),
    }
}

fn resources(keys: &[Bytes]) -> Result<Vec<Arc<str>>, Refused> {
    keys.iter().map(resource).collect()
}

/// A key is the name of a resource.
fn resource(key: &Bytes) -> Result<Arc<str>, Refused> {
    let fits = (1..=limits::RESOURCE_LEN_MAX).contains(&key.len());
    let name = std::str::from_utf8(key).ok().filter(|_| fits);
    let wrong = || {
        let max = limits::RESOURCE_LEN_MAX;
        Refused::Mistake(format!("a key is the name of a resource, and must have 1 to {max} bytes of UTF-8"))
    };
    name.map(Into::into).ok_or_else(wrong)
}

fn checked_value(value: &Bytes) -> Result<Bytes, Refused> {
    match value.len() <= limits::DATA_LEN_MAX {
        true => Ok(value.clone()),
        false => Err(Refused::Mistake(format!(
            "a value may have at most {} bytes, and has {}",
            limits::DATA_LEN_MAX,
            value.len()
        ))),
    }
}

fn integer(text: &Bytes) -> Result<i64, Refused> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Refused::Mistake("value is not an integer or out of range".into()))
}

fn duration_us(text: &Bytes, unit: Unit, command: &str) -> Result<u64, Refused> {
    // Lua calculates with floating point numbers: a client that divided may send `1500.0`.
    let whole = text.strip_suffix(b".0").map_or_else(|| text.clone(), |whole| text.slice_ref(whole));
    let per_unit_us = if unit == Unit::Seconds { 1_000_000 } else { 1000 };
    let micros = u64::try_from(integer(&whole)?).ok().and_then(|number| number.checked_mul(per_unit_us));
    let micros = micros.filter(|micros| (1..=limits::TTL_US_MAX).contains(micros));
    micros.ok_or_else(|| Refused::Mistake(format!("invalid expire time in '{command}' command")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<LockCommand, String> {
        let mut words = line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes()));
        let name = String::from_utf8(words.next().unwrap().to_vec()).unwrap();
        let arguments: Vec<Bytes> = words.collect();
        LockCommand::parse(&name, &arguments, &Scripts::default()).map_err(|refused| match refused {
            Refused::Mistake(text) => text,
            other => format!("{other:?}"),
        })
    }

    #[test]
    fn options_of_set_come_in_any_order() {
        let wanted = LockCommand::Take { key: "k".into(), value: "v".into(), ttl_us: Some(5_000_000) };
        for line in ["SET k v NX PX 5000", "SET k v px 5000 nx", "SET k v EX 5 NX"] {
            assert_eq!(parse(line).as_ref(), Ok(&wanted), "{line}");
        }
        assert_eq!(
            parse("SET k v NX"),
            Ok(LockCommand::Take { key: "k".into(), value: "v".into(), ttl_us: None })
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, wrong) in [
            ("SET k v", "SET without NX"),
            ("SET k v XX PX 5", "SET with XX"),
            ("SET k v NX PX 0", "invalid expire time"),
            ("SET k v NX PX -5", "invalid expire time"),
            ("SET k v NX PX x", "not an integer"),
            ("SET k v NX PX", "syntax error"),
            ("SET k v NX PX 5 EX 5", "syntax error"),
            ("SET k v NX PXAT 5", "it has passed"),
            ("SET k", "wrong number of arguments for 'set' command"),
            ("GET ", "1 to 2048 bytes"),
            ("DELEX k IFNE v", "DELEX takes"),
            ("LPUSH k v", "unknown command 'LPUSH'; this port is for locks"),
            ("EVAL return 0", "script is not known"),
            ("EVALSHA 1cac51482acf5858da00f6d685d68f886cd6b6b2 2 k", "Number of keys"),
            ("EVALSHA 1cac51482acf5858da00f6d685d68f886cd6b6b2 1 k", "more keys or arguments"),
            ("EVALSHA 1cac51482acf5858da00f6d685d68f886cd6b6b2 0 k", "more keys or arguments"),
            ("EVALSHA ffff 1 k v", "NoScript"),
        ] {
            let said = parse(line).unwrap_err();
            assert!(said.contains(wrong), "{line}: {said}");
        }
    }

    #[test]
    fn an_extension_adds_only_where_the_client_says_so() {
        let extend = |line: &str| match parse(&format!(
            "EVALSHA a4e8783852e6b949f9ef3a97212805108459a890 1 k v {line}"
        )) {
            Ok(LockCommand::Extend { ttl, .. }) => ttl,
            other => panic!("{other:?}"),
        };
        assert_eq!(extend("1500 0"), NewTtl::More(1_500_000));
        assert_eq!(extend("1500 1"), NewTtl::Whole(1_500_000));
        assert_eq!(extend("1500.0 1"), NewTtl::Whole(1_500_000));
    }
}
