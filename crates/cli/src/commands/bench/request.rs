//! Request bytes, built once: a request on the wire is a few copies, never a `format!`.
//!
//! In:    the host, a resource number, the path of a claim.
//! Out:   bytes appended to a connection's output buffer.
//! Never: talks to a socket.

use std::time::{SystemTime, UNIX_EPOCH};

/// Length of a resource name; the prototype's figures used 34 bytes too, so memory compares.
pub(crate) const NAME_LEN: usize = 34;
/// Hexadecimal digits at the end of a name.
const DIGITS: usize = 16;

/// `POST /v1/claims/` with a resource name of fixed length, so that Content-Length never changes.
pub(crate) struct ClaimTemplate {
    /// The whole request.
    bytes: Vec<u8>,
    /// Where the digits of the name are.
    digits_at: usize,
}

impl ClaimTemplate {
    /// Claims named `bench/<kind>/<run>/<number>`; `kind` has 4 letters, `query` is empty or `?…`.
    pub(crate) fn new(host: &str, kind: &str, query: &str, ttl: f64, data_bytes: usize) -> Self {
        let prefix = name_prefix(kind);
        let data = if data_bytes == 0 {
            String::new()
        } else {
            format!(",\"user_data\":\"{}\"", "d".repeat(data_bytes.saturating_sub(2)))
        };
        let body = format!("{{\"resource\":\"{prefix}{:0DIGITS$x}\",\"ttl\":{ttl:?}{data}}}", 0);
        let head = head("POST", &format!("/v1/claims/{query}"), host, body.len());
        let digits_at = head.len() + "{\"resource\":\"".len() + prefix.len();
        Self { bytes: [head.as_bytes(), body.as_bytes()].concat(), digits_at }
    }

    /// The name of resource `number`.
    pub(crate) fn name(&self, number: u64) -> String {
        let start = self.digits_at + DIGITS - NAME_LEN;
        let prefix = String::from_utf8_lossy(&self.bytes[start..self.digits_at]);
        format!("{prefix}{number:0DIGITS$x}")
    }

    /// Appends the claim of resource `number`.
    pub(crate) fn write(&self, number: u64, out: &mut Vec<u8>) {
        let start = out.len() + self.digits_at;
        out.extend_from_slice(&self.bytes);
        let mut rest = number;
        for digit in out[start..start + DIGITS].iter_mut().rev() {
            *digit = b"0123456789abcdef"[(rest & 15) as usize];
            rest >>= 4;
        }
    }
}

/// Resource names of this run: 18 bytes that no other run uses, so runs on one server never meet.
fn name_prefix(kind: &str) -> String {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let run = (nanos / 1000) ^ (u64::from(std::process::id()) << 12);
    format!("bench/{kind}/{:06x}/", run & 0x00ff_ffff)
}

/// A request on one claim whose body never changes.
pub(crate) struct ClaimRequest {
    /// `PATCH ` or `GET `.
    before: Vec<u8>,
    /// Everything after the path.
    after: Vec<u8>,
}

impl ClaimRequest {
    /// `PATCH <path>` with `body`.
    pub(crate) fn patch(host: &str, body: &str) -> Self {
        let head = head("PATCH", "", host, body.len());
        let after = [&head.as_bytes()["PATCH ".len()..], body.as_bytes()].concat();
        Self { before: b"PATCH ".to_vec(), after }
    }

    /// `GET <path>`; `query` is empty or `?…`.
    pub(crate) fn get(host: &str, query: &str) -> Self {
        let after = format!("{query} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
        Self { before: b"GET ".to_vec(), after }
    }

    /// Appends the request for the claim at `path`.
    pub(crate) fn write(&self, path: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.before);
        out.extend_from_slice(path);
        out.extend_from_slice(&self.after);
    }
}

fn head(method: &str, path: &str, host: &str, length: usize) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
}

/// The paths of many claims in one allocation: a million of them cost their bytes and 4 more each.
#[derive(Default)]
pub(crate) struct Paths {
    /// All paths, end to end.
    bytes: Vec<u8>,
    /// Where each one ends.
    ends: Vec<u32>,
}

/// Bytes of a claim's path, and a few to spare.
const PATH_LEN: usize = 48;

impl Paths {
    /// None yet, with room for this many. Growing by some thirty megabytes at once takes longer than any request, and would
    /// look like a stall of the server.
    pub(crate) fn with_room(count: usize) -> Self {
        Self { bytes: Vec::with_capacity(count * PATH_LEN), ends: Vec::with_capacity(count) }
    }

    /// Adds one.
    pub(crate) fn push(&mut self, path: &[u8]) {
        self.bytes.extend_from_slice(path);
        self.ends.push(self.bytes.len() as u32);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The path at `index`, counted round and round.
    pub(crate) fn cyclic(&self, index: usize) -> Option<&[u8]> {
        let index = index.checked_rem(self.ends.len())?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        self.bytes.get(start..self.ends[index] as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body_of(request: &[u8]) -> (usize, serde_json::Value) {
        let text = std::str::from_utf8(request).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        assert_eq!(length.parse::<usize>().unwrap(), body.len());
        (body.len(), serde_json::from_str(body).unwrap())
    }

    #[test]
    fn a_claim_is_valid_json_with_its_own_name() {
        let template = ClaimTemplate::new("h:1", "cycl", "?wait=60", 30.0, 10);
        let mut out = b"earlier".to_vec();
        template.write(0xabc, &mut out);
        let (_, body) = body_of(&out[7..]);
        let resource = body["resource"].as_str().unwrap();
        assert!(resource.starts_with("bench/cycl/") && resource.ends_with("/0000000000000abc"));
        assert_eq!(resource.len(), NAME_LEN);
        assert_eq!(resource, template.name(0xabc));
        assert_eq!(body["ttl"].as_f64(), Some(30.0));
        assert_eq!(body["user_data"].to_string().len(), 10);
        assert!(out[7..].starts_with(b"POST /v1/claims/?wait=60 HTTP/1.1\r\nHost: h:1\r\n"));
    }

    #[test]
    fn a_patch_names_its_claim() {
        let mut out = Vec::new();
        ClaimRequest::patch("h:1", "{\"status\":\"released\"}").write(b"/v1/claims/x/", &mut out);
        assert!(out.starts_with(b"PATCH /v1/claims/x/ HTTP/1.1\r\nHost: h:1\r\n"));
        assert_eq!(body_of(&out).1["status"], "released");
        out.clear();
        ClaimRequest::get("h:1", "").write(b"/v1/claims/x/", &mut out);
        assert_eq!(out, b"GET /v1/claims/x/ HTTP/1.1\r\nHost: h:1\r\n\r\n");
    }

    #[test]
    fn paths_go_round() {
        let mut paths = Paths::default();
        assert_eq!(paths.cyclic(0), None);
        paths.push(b"/a/");
        paths.push(b"/bcd/");
        assert_eq!(paths.cyclic(0), Some(&b"/a/"[..]));
        assert_eq!(paths.cyclic(3), Some(&b"/bcd/"[..]));
        assert_eq!(paths.len(), 2);
    }
}
