//! The wire format of the typed locks: JSON bodies there and back.
//!
//! In:    ids and who asks; the server's answers. Out: bodies to send; what became of each id.
//! Never: takes an answer for granted: what has another shape is a protocol error.

use serde::{Deserialize, Serialize};

use crate::Errno;
use crate::http::Reply;

/// Most ids in one call where a call may be split: the server takes twice as many.
const CHUNK_LEN_MAX: usize = 10_000;
/// Most bytes of ids in one call where a call may be split: the server takes a third more.
const CHUNK_BYTES_MAX: usize = 6 << 20;

/// The type of a lock. The numbers are those of `enum dss_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A medium: a tape, a directory.
    Media = 1,
    /// A device: a drive.
    Device = 2,
    /// An object.
    Object = 3,
    /// The layout of an object.
    Layout = 4,
    /// A deprecated object.
    Deprec = 5,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Media, Self::Device, Self::Object, Self::Layout, Self::Deprec];

    /// Its name in the path.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Media => "media",
            Self::Device => "device",
            Self::Object => "object",
            Self::Layout => "layout",
            Self::Deprec => "deprec",
        }
    }

    pub(crate) fn from_number(number: libc::c_int) -> Result<Self, Errno> {
        Self::ALL.into_iter().find(|kind| *kind as libc::c_int == number).ok_or(Errno(libc::EINVAL))
    }
}

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Lock,
    Refresh,
    Unlock,
    Status,
    List,
}

impl Verb {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Refresh => "refresh",
            Self::Unlock => "unlock",
            Self::Status => "status",
            Self::List => "list",
        }
    }
}

/// The body of a call.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Body<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ids: Option<&'a [&'a str]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hostname: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) force: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) call: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<&'a str>,
}

/// One lock, as the server tells it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Lock {
    /// Its id.
    pub id: String,
    /// What is wrong with it.
    #[serde(default, deserialize_with = "errno")]
    pub errno: Option<Errno>,
    /// The host of its owner.
    pub hostname: Option<String>,
    /// The pid of its owner; none if it is held through another of the server's protocols.
    pub owner: Option<i32>,
    /// When it was locked or last refreshed.
    pub timestamp: Option<String>,
    /// Its fencing token.
    pub token: Option<u64>,
}

/// The server's answer.
#[derive(Debug, Deserialize)]
pub(crate) struct LocksAnswer {
    #[serde(deserialize_with = "errno")]
    pub(crate) errno: Option<Errno>,
    pub(crate) locks: Vec<Lock>,
    #[serde(default)]
    pub(crate) next: Option<String>,
}

fn errno<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Errno>, D::Error> {
    let name = Option::<std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
    Ok(name.map(|name| match &*name {
        "EEXIST" => Errno(libc::EEXIST),
        "ENOLCK" => Errno(libc::ENOLCK),
        "EACCES" => Errno(libc::EACCES),
        "EINVAL" => Errno(libc::EINVAL),
        _ => Errno(libc::EPROTO),
    }))
}

/// Whether the server itself says that the call certainly did not happen. A 503 of a proxy says nothing: some proxies send
/// it after the request has reached the server.
pub(crate) fn is_certainly_undone(reply: &Reply) -> bool {
    #[derive(Deserialize)]
    struct Problem {
        r#type: String,
    }
    let problem = serde_json::from_slice::<Problem>(&reply.body);
    reply.status == 503 && problem.is_ok_and(|problem| problem.r#type.starts_with("urn:leasehold:problem:"))
}

impl LocksAnswer {
    /// Whether it is about these ids and no others, and its error is the first of theirs.
    fn is_about(&self, asked: &[&str]) -> bool {
        let first = self.locks.iter().find_map(|lock| lock.errno);
        self.errno == first && self.locks.iter().map(|lock| &*lock.id).eq(asked.iter().copied())
    }

    /// Reads a response that settles the call. `asked`: the ids, in the order in which the answer must have them.
    pub(crate) fn read(reply: &Reply, asked: Option<&[&str]>) -> Result<Self, Errno> {
        let answer: Option<Self> = serde_json::from_slice(&reply.body).ok();
        let whole = |answer: &Self| asked.is_none_or(|asked| answer.is_about(asked));
        match (answer, reply.status) {
            (Some(answer), 200) if answer.errno.is_none() && whole(&answer) => Ok(answer),
            (Some(answer), 403 | 404 | 409) if answer.errno.is_some() && whole(&answer) => Ok(answer),
            // A call that makes no sense as a whole has no locks.
            (Some(answer), 400) if answer.errno.is_some() && answer.locks.is_empty() => {
                Err(Errno(libc::EINVAL))
            }
            (Some(answer), 400) if answer.errno.is_some() && whole(&answer) => Ok(answer),
            // Not about locks: who asks, and how much.
            (None, 401 | 403) => Err(Errno(libc::EPERM)),
            (None, 413) => Err(Errno(libc::E2BIG)),
            (None, 429) => Err(Errno(libc::EDQUOT)),
            (None, 507) => Err(Errno(libc::ENOSPC)),
            _ => Err(Errno(libc::EPROTO)),
        }
    }
}

/// Parts of a list that fit into one call each.
pub(crate) fn chunks<'a, 'b>(ids: &'b [&'a str]) -> impl Iterator<Item = &'b [&'a str]> {
    let mut rest = ids;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let mut fits = |id: &&str| {
            bytes += json_len(id);
            bytes <= CHUNK_BYTES_MAX
        };
        let len = rest.iter().take(CHUNK_LEN_MAX).take_while(|id| fits(id)).count();
        // An id that is too long for any call goes alone: the server says what it is.
        let (chunk, more) = rest.split_at(len.max(1).min(rest.len()));
        rest = more;
        (!chunk.is_empty()).then_some(chunk)
    })
}

/// About how many bytes an id takes in a body.
fn json_len(id: &str) -> usize {
    let len = |byte: u8| match byte {
        0..0x20 => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    3 + id.bytes().map(len).sum::<usize>()
}

/// Seconds and microseconds since 1970 of `2026-01-02T03:04:05.678901Z`.
pub(crate) fn timeval(text: &str) -> Option<(i64, i64)> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let punctuation: String = text.chars().filter(|c| !c.is_ascii_digit()).collect();
    if text.len() != 27 || punctuation != "--T::.Z" {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    // Days since 1970 in the Gregorian calendar, counted in years that start in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second, number(20..26)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_become_seconds_and_microseconds() {
        assert_eq!(timeval("1970-01-01T00:00:00.000000Z"), Some((0, 0)));
        assert_eq!(timeval("2023-11-14T22:13:20.500001Z"), Some((1_700_000_000, 500_001)));
        assert_eq!(timeval("2024-02-29T23:59:59.999999Z"), Some((1_709_251_199, 999_999)));
        assert_eq!(timeval("2000-03-01T00:00:00.000000Z"), Some((951_868_800, 0)));
        for bad in ["", "2023-11-14T22:13:20Z", "2023-11-14T22:13:20.500001+0", "日本日本日本日本日本"]
        {
            assert_eq!(timeval(bad), None, "{bad}");
        }
    }

    #[test]
    fn chunks_hold_everything_in_order_and_stay_within_their_limits() {
        let (short, long) = ("x".repeat(10), "\u{1}".repeat(1_000));
        for (id, count, parts) in [(&short, 10_000, 1), (&short, 10_001, 2), (&long, 3_000, 3)] {
            let ids: Vec<&str> = vec![id; count];
            let lens: Vec<usize> = chunks(&ids).map(<[&str]>::len).collect();
            assert_eq!((lens.len(), lens.iter().sum::<usize>()), (parts, count));
        }
        let huge = "x".repeat(CHUNK_BYTES_MAX + 1);
        assert_eq!(chunks(&[&huge, "a"]).count(), 2);
        assert_eq!(chunks(&[]).count(), 0);
    }

    #[test]
    fn only_an_answer_is_taken_for_one() {
        let read = |status, body: &str| {
            let answer = LocksAnswer::read(&Reply { status, body: body.into() }, Some(&["a"]));
            answer.map(|answer| answer.errno.map_or(0, |errno| errno.0)).map_err(|errno| errno.0)
        };
        let lock = |id: &str, errno: &str| {
            format!(
                r#"[{{"id": "{id}", "errno": {errno}, "hostname": null, "owner": null, "timestamp": null}}]"#
            )
        };
        let (one, none) = (lock("a", "null"), lock("a", r#""ENOLCK""#));
        assert_eq!(read(200, &format!(r#"{{"errno": null, "locks": {one}}}"#)), Ok(0));
        assert_eq!(read(404, &format!(r#"{{"errno": "ENOLCK", "locks": {none}}}"#)), Ok(libc::ENOLCK));
        // About another lock; a refusal that is none; a success that is none; two minds about one lock.
        for (status, errno, locks) in [
            (200, "null", &lock("b", "null")),
            (409, "null", &one),
            (403, "null", &one),
            (404, "null", &one),
            (400, "null", &one),
            (200, r#""ENOLCK""#, &none),
            (200, "null", &none),
            (409, r#""EEXIST""#, &one),
        ] {
            let body = format!(r#"{{"errno": {errno}, "locks": {locks}}}"#);
            assert_eq!(read(status, &body), Err(libc::EPROTO), "{status} {body}");
        }
        assert_eq!(read(200, r#"{"errno": null, "locks": []}"#), Err(libc::EPROTO));
        assert_eq!(read(400, r#"{"errno": "EINVAL", "locks": [], "message": "m"}"#), Err(libc::EINVAL));
        assert_eq!(read(404, "<html>no such page</html>"), Err(libc::EPROTO));
        assert_eq!(read(401, "who?"), Err(libc::EPERM));
        assert_eq!(read(403, "{}"), Err(libc::EPERM));
        assert_eq!(read(507, "{}"), Err(libc::ENOSPC));
    }

    #[test]
    fn only_the_server_itself_can_say_that_nothing_happened() {
        let undone = |status, body: &str| is_certainly_undone(&Reply { status, body: body.into() });
        assert!(undone(503, r#"{"type": "urn:leasehold:problem:no-leader", "status": 503}"#));
        assert!(!undone(504, r#"{"type": "urn:leasehold:problem:outcome-unknown", "status": 504}"#));
        for foreign in ["", "<html>Service Unavailable</html>", "{}", r#"{"type": "about:blank"}"#] {
            assert!(!undone(503, foreign), "{foreign}");
        }
    }
}
