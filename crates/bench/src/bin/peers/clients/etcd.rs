//! etcd's gRPC services KV, Lease, Lock and Maintenance, with messages encoded by hand.
//!
//! In:    a connection. Out: locks by transaction or by the lock service, leases, keep-alives.
//! Never: more of protocol buffers than numbers, bytes and nesting.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use leasehold_bench::reactor::Seat;

use super::http2::Http2;

/// Seconds that a lease lasts: longer than any run, as everywhere here, so that nothing ends by itself.
const TTL: u64 = 600;

/// A client, its lease, and the key it holds.
pub(crate) struct Etcd {
    http: Http2,
    lease: u64,
    key: Vec<u8>,
    /// The request being put together, and the message inside it.
    request: Vec<u8>,
    inner: Vec<u8>,
    /// The stream of keep-alives, once one was sent.
    keep_alive: Option<u32>,
}

impl Etcd {
    /// Connects and, with `lease`, takes a lease for everything this client locks.
    pub(crate) async fn connect(addr: SocketAddr, seat: Seat<'_>, lease: bool) -> Result<Self> {
        let (http, key) = (Http2::connect(addr, seat)?, Vec::new());
        let mut client =
            Self { http, lease: 0, key, request: Vec::new(), inner: Vec::new(), keep_alive: None };
        if lease {
            client.lease = client.grant().await?;
        }
        Ok(client)
    }

    /// Takes a lease.
    pub(crate) async fn grant(&mut self) -> Result<u64> {
        self.request.clear();
        number(&mut self.request, 1, TTL);
        let answer = self.http.call("/etcdserverpb.Lease/LeaseGrant", &self.request).await?;
        number_in(answer, 2).context("a lease without an id")
    }

    /// Creates `key` if it does not exist, in one transaction.
    pub(crate) async fn create(&mut self, key: &str) -> Result<()> {
        let (request, inner) = (&mut self.request, &mut self.inner);
        request.clear();
        // Compare: created never.
        inner.clear();
        number(inner, 2, 1);
        bytes(inner, 3, key.as_bytes());
        number(inner, 5, 0);
        bytes(request, 1, inner);
        // Then: put.
        inner.clear();
        bytes(inner, 1, key.as_bytes());
        bytes(inner, 2, b"bench");
        number(inner, 3, self.lease);
        let put_length = inner.len();
        request.push(2 << 3 | 2);
        varint(request, (1 + varint_length(put_length as u64) + put_length) as u64);
        bytes(request, 2, inner);
        let answer = self.http.call("/etcdserverpb.KV/Txn", request).await?;
        if number_in(answer, 2) != Some(1) {
            bail!("etcd: {key} exists already");
        }
        self.key.clear();
        self.key.extend_from_slice(key.as_bytes());
        Ok(())
    }

    /// Deletes the key made last.
    pub(crate) async fn delete(&mut self) -> Result<()> {
        self.request.clear();
        bytes(&mut self.request, 1, &self.key);
        let answer = self.http.call("/etcdserverpb.KV/DeleteRange", &self.request).await?;
        if number_in(answer, 2) != Some(1) {
            bail!("etcd: the key to delete was not there");
        }
        Ok(())
    }

    /// Locks `name` with the lock service, waiting as long as it takes.
    pub(crate) async fn lock(&mut self, name: &str) -> Result<()> {
        self.request.clear();
        bytes(&mut self.request, 1, name.as_bytes());
        number(&mut self.request, 2, self.lease);
        let answer = self.http.call("/v3lockpb.Lock/Lock", &self.request).await?;
        self.key.clear();
        self.key.extend_from_slice(field(answer, 2).context("a lock without a key")?.1);
        Ok(())
    }

    /// Unlocks what was locked last.
    pub(crate) async fn unlock(&mut self) -> Result<()> {
        self.request.clear();
        bytes(&mut self.request, 1, &self.key);
        self.http.call("/v3lockpb.Lock/Unlock", &self.request).await?;
        Ok(())
    }

    /// As a client does that comes and goes: a lease for this one lock.
    pub(crate) async fn lock_with_lease(&mut self, name: &str) -> Result<()> {
        self.lease = self.grant().await?;
        self.lock(name).await
    }

    /// Ends the lease, and the lock with it.
    pub(crate) async fn revoke(&mut self) -> Result<()> {
        self.request.clear();
        number(&mut self.request, 1, self.lease);
        self.http.call("/etcdserverpb.Lease/LeaseRevoke", &self.request).await?;
        Ok(())
    }

    /// Keeps a lease alive.
    pub(crate) async fn keep_alive(&mut self, lease: u64) -> Result<()> {
        let stream = match self.keep_alive {
            Some(stream) => stream,
            None => *self.keep_alive.insert(self.http.open("/etcdserverpb.Lease/LeaseKeepAlive")),
        };
        self.request.clear();
        number(&mut self.request, 1, lease);
        let answer = self.http.exchange(stream, &self.request).await?;
        if number_in(answer, 3).is_none_or(|ttl| ttl == 0) {
            bail!("etcd: lease {lease} is gone");
        }
        Ok(())
    }

    /// Whether this member leads.
    pub(crate) async fn leads(&mut self) -> Result<bool> {
        let answer = self.http.call("/etcdserverpb.Maintenance/Status", &[]).await?;
        let header = field(answer, 1).context("a status without a header")?.1;
        Ok(number_in(header, 2).is_some() && number_in(header, 2) == number_in(answer, 4))
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// How many bytes `varint` takes for `value`.
fn varint_length(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

fn number(out: &mut Vec<u8>, tag: u8, value: u64) {
    out.push(tag << 3);
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn read_varint(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = input.split_first()?;
        *input = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The field `tag`: its number, or its bytes.
fn field(mut input: &[u8], tag: u64) -> Option<(u64, &[u8])> {
    loop {
        let key = read_varint(&mut input)?;
        let value = read_varint(&mut input)?;
        let bytes = if key & 7 == 2 { input.split_at_checked(value as usize)? } else { (&input[..0], input) };
        if key >> 3 == tag {
            return Some((value, bytes.0));
        }
        input = bytes.1;
    }
}

fn number_in(input: &[u8], tag: u64) -> Option<u64> {
    field(input, tag).map(|found| found.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_fields_behind_others() {
        let (mut header, mut message) = (Vec::new(), Vec::new());
        number(&mut header, 2, 300);
        bytes(&mut message, 1, &header);
        number(&mut message, 2, 1);
        bytes(&mut message, 3, b"key");
        assert_eq!(number_in(&message, 2), Some(1));
        assert_eq!(field(&message, 1).and_then(|header| number_in(header.1, 2)), Some(300));
        assert_eq!(field(&message, 3).unwrap().1, b"key");
        assert_eq!(number_in(&message, 4), None);
    }

    #[test]
    fn knows_how_long_a_number_gets() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            varint(&mut out, value);
            assert_eq!(varint_length(value), out.len(), "{value}");
            assert_eq!(read_varint(&mut out.as_slice()), Some(value));
        }
    }
}
