//! Who may administrate: everyone, nobody, or the users of a file, by HTTP Basic.
//!
//! In:    a request's headers. Out: permission, or 401 with a challenge, or 403.
//! Never: an open door by mistake: a file that is missing, empty or full of mistakes lets nobody in, and a comparison
//!        takes as long for a good guess as for a bad one.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::access::identity::client_name;
use crate::access::rate::Rates;
use crate::config::AdminAccess;
use crate::message::Response;
use crate::message::headers::Headers;
use crate::message::problem::problem;

/// Wrong passwords that one address may send a second, in the long run ...
const GUESSES_PER_SECOND: f64 = 0.5;
/// ... and at once: a person who mistypes does not notice, and a dictionary takes years.
const GUESSES_AT_ONCE: f64 = 10.0;
/// Largest file of users: far more than anyone types.
const FILE_LEN_MAX: u64 = 1 << 20;

/// The door to administration.
pub struct Administrators {
    access: AdminAccess,
    /// What was last found in the file, so that the log speaks only when that changes.
    last: Mutex<Option<Found>>,
    /// Wrong passwords, by address.
    guesses: Rates,
}

type Found = Result<Arc<Users>, String>;
type Hash = [u8; 32];

/// The users of a file. Only hashes stay in memory.
#[derive(Debug, PartialEq, Eq)]
struct Users {
    /// Of the whole file, to tell when it changed.
    file: Hash,
    /// Of each good line.
    lines: Vec<Hash>,
    /// The numbers of malformed lines.
    broken: Vec<usize>,
}

impl Administrators {
    /// Reads the file once, so that mistakes in it are named when the node starts.
    pub fn new(access: AdminAccess) -> Self {
        let guesses = Rates::new(GUESSES_PER_SECOND, GUESSES_AT_ONCE);
        let administrators = Self { access, last: Mutex::default(), guesses };
        if let AdminAccess::Users(path) = &administrators.access {
            administrators.note(path, &read(path));
        }
        administrators
    }

    /// Why no administrator would get in, if the file of users is to blame.
    pub fn problem(access: &AdminAccess) -> Option<String> {
        let AdminAccess::Users(path) = access else { return None };
        match read(path) {
            Err(error) => Some(format!("{}: {error}", path.display())),
            Ok(users) if users.lines.is_empty() => Some(format!("{} names no user", path.display())),
            Ok(_) => None,
        }
    }

    /// Lets a request from this address in, or says why not. The file is read each time: a change counts at once. After
    /// some wrong passwords an address has to wait, and no password is looked at meanwhile.
    pub async fn admit(&self, headers: &Headers, from: &Arc<str>) -> Result<(), Response> {
        let path = match &self.access {
            AdminAccess::Open => return Ok(()),
            AdminAccess::Off => return Err(forbidden()),
            AdminAccess::Users(path) => path,
        };
        let Some(given) = credentials(headers).map(Zeroizing::new) else { return Err(challenge()) };
        // Counted before anything is looked at, so that many at once are as slow as one after the other.
        let from = &client_name(from);
        self.guesses.admit(from, Instant::now()).map_err(too_many_guesses)?;
        let found = tokio::task::spawn_blocking({
            let path = path.clone();
            move || read(&path)
        });
        let found = found.await.unwrap_or_else(|error| Err(error.to_string()));
        self.note(path, &found);
        if !found.is_ok_and(|users| users.know(&given)) {
            return Err(challenge());
        }
        self.guesses.give_back(from);
        Ok(())
    }

    fn note(&self, path: &Path, found: &Found) {
        let mut last = self.last.lock();
        if last.as_ref() == Some(found) {
            return;
        }
        let path = path.display();
        match found {
            Err(error) => {
                tracing::error!(%path, %error, "no administrator gets in: the file of users can't be read");
            }
            Ok(users) => {
                for line in &users.broken {
                    tracing::error!(%path, line, "a line of the file of users is broken and skipped: it must be user:password");
                }
                match users.lines.len() {
                    0 => tracing::error!(%path, "no administrator gets in: the file of users names none"),
                    users => tracing::info!(%path, users, "the file of users was read"),
                }
            }
        }
        *last = Some(found.clone());
    }
}

impl Users {
    /// Each line is `user:password`. Empty lines and those that start with `#` are skipped.
    fn parse(text: &[u8]) -> Self {
        let (mut lines, mut broken) = (Vec::new(), Vec::new());
        for (i, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            match line.iter().position(|byte| *byte == b':') {
                _ if line.trim_ascii().is_empty() || line.starts_with(b"#") => {}
                Some(colon) if colon > 0 && colon + 1 < line.len() => lines.push(hash(line)),
                _ => broken.push(i + 1),
            }
        }
        Self { file: hash(text), lines, broken }
    }

    /// Looks at every line and every byte, whatever it finds.
    fn know(&self, given: &[u8]) -> bool {
        let given = hash(given);
        let differs = |line: &Hash| line.iter().zip(&given).fold(0, |bits, (a, b)| bits | (a ^ b));
        let matches = |found: u8, line: &Hash| found | u8::from(std::hint::black_box(differs(line)) == 0);
        self.lines.iter().fold(0, matches) != 0
    }
}

fn read(path: &Path) -> Found {
    let read = || {
        let len = std::fs::metadata(path)?.len();
        if len > FILE_LEN_MAX {
            return Err(std::io::Error::other(format!("it is larger than {FILE_LEN_MAX} bytes")));
        }
        std::fs::read(path)
    };
    read().map(Zeroizing::new).map(|text| Arc::new(Users::parse(&text))).map_err(|error| error.to_string())
}

fn hash(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

/// `user:password`, from `Authorization: Basic`.
fn credentials(headers: &Headers) -> Option<Vec<u8>> {
    let (scheme, rest) = headers.get(AUTHORIZATION)?.to_str()?.trim().split_once(' ')?;
    let basic = scheme.eq_ignore_ascii_case("basic");
    STANDARD.decode(rest.trim()).ok().filter(|_| basic)
}

fn challenge() -> Response {
    let detail = "administration asks for a user and a password";
    let mut response = problem(StatusCode::UNAUTHORIZED, "unauthorized", detail);
    let basic = HeaderValue::from_static("Basic realm=\"leasehold\", charset=\"UTF-8\"");
    response.headers_mut().insert(WWW_AUTHENTICATE, basic);
    response
}

fn too_many_guesses(wait: Duration) -> Response {
    let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
    let detail = format!("too many wrong passwords came from your address: wait {seconds} s");
    let mut response = problem(StatusCode::TOO_MANY_REQUESTS, "too-many-guesses", &detail);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    response
}

fn forbidden() -> Response {
    let detail = "administration is off on this node: see --admin-userpass-file";
    problem(StatusCode::FORBIDDEN, "administration-off", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_lines_count_and_broken_ones_are_numbered() {
        let users = Users::parse(b"anna:secret\n\nnocolon\r\n:nouser\nnopassword:\n# bert:old\ncarl:a:b\r\n");
        assert_eq!((users.lines.len(), &*users.broken), (2, &[3, 4, 5][..]));
        assert!(users.know(b"anna:secret") && users.know(b"carl:a:b"));
        for stranger in
            [&b"anna:"[..], b"anna:Secret", b"nocolon", b"", b":", b"bert:old", b"# bert:old", b"carl:a"]
        {
            assert!(!users.know(stranger), "{}", String::from_utf8_lossy(stranger));
        }
    }

    #[test]
    fn an_empty_file_knows_nobody() {
        for text in [&b""[..], b"\n", b"#\n", b":\n"] {
            let users = Users::parse(text);
            assert!(!users.know(b"") && !users.know(b":") && !users.know(b"#"));
        }
    }

    #[test]
    fn credentials_are_basic_or_none() {
        let of = |value: &str| {
            let value = HeaderValue::from_str(value).unwrap();
            credentials(&Headers::from_iter([(AUTHORIZATION, value)]))
        };
        assert_eq!(of("Basic YW5uYTpzZWNyZXQ="), Some(b"anna:secret".to_vec()));
        assert_eq!(of("basic  YW5uYTpzZWNyZXQ="), Some(b"anna:secret".to_vec()));
        for other in ["Bearer YW5uYTpzZWNyZXQ=", "Basic", "Basic !", "Basic YW5uYTpzZWNyZXQ"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
