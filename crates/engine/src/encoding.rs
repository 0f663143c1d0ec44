//! Entries as bytes, made once: the log of the leader, the wires to its peers and their logs get the same ones.
//!
//! In:    entries, and the requests that carry them to a peer. Out: the bytes that postcard makes of them, and back.
//! Never: writes other bytes than postcard would: logs and nodes of other versions read them.

use std::io;

use bytes::Bytes;
use leasehold_core::table::NEWEST_TABLE_VERSION;
use openraft::EntryPayload;
use openraft::raft::AppendEntriesRequest;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::entry::Proposal;
use super::types::{Entry, LogId, TypeConfig, Vote};

/// How postcard begins [`EntryPayload::Normal`], the second of its kinds; the proposal follows.
const NORMAL: u8 = 1;

/// Bytes of a request beside its entries, at the most: two log ids, a vote, a number; and beside an entry's proposal.
const BESIDE_MAX: usize = 96;

/// `head`, then the entry. A proposal's bytes are kept for the next caller.
pub(super) fn entry_after(head: Vec<u8>, entry: &Entry) -> io::Result<Bytes> {
    match &entry.payload {
        EntryPayload::Normal(proposal) if proposal.bytes().is_none() => {
            let out = put_normal(head, entry)?;
            let start = out.len();
            let all = Bytes::from(put(out, proposal)?);
            proposal.keep_bytes(all.slice(start..));
            Ok(all)
        }
        _ => put_entry(head, entry).map(Bytes::from),
    }
}

/// `head`, then the request.
pub(super) fn append_after(
    mut head: Vec<u8>,
    request: &AppendEntriesRequest<TypeConfig>,
) -> io::Result<Vec<u8>> {
    let AppendEntriesRequest { vote, prev_log_id, entries, leader_commit } = request;
    head.reserve(BESIDE_MAX + entries.iter().map(len_about).sum::<usize>());
    let out = put(head, &(vote, prev_log_id, entries.len()))?;
    let out = entries.iter().try_fold(out, put_entry)?;
    put(out, leader_commit)
}

/// A request that came. Its proposals keep their part of the bytes: they go into the log as they are.
pub(super) fn append_from(bytes: &Bytes) -> io::Result<AppendEntriesRequest<TypeConfig>> {
    let ((vote, prev_log_id, count), mut rest): ((Vote, Option<LogId>, usize), _) = take(bytes)?;
    let mut entries = Vec::new();
    for _ in 0..count {
        let (log_id, behind_id) = take(rest)?;
        let (payload, behind) = take(behind_id)?;
        let entry = Entry { log_id, payload };
        if let EntryPayload::Normal(proposal) = &entry.payload {
            check_known(proposal)?;
            let start = bytes.len() - behind_id.len() + 1;
            proposal.keep_bytes(bytes.slice(start..bytes.len() - behind.len()));
        }
        entries.push(entry);
        rest = behind;
    }
    let (leader_commit, _) = take(rest)?;
    Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
}

/// A leader that took this node for a newer build must not have the entry counted as taken here.
fn check_known(proposal: &Proposal) -> io::Result<()> {
    let version = proposal.table_version();
    if version <= NEWEST_TABLE_VERSION {
        return Ok(());
    }
    let why = format!(
        "a log entry needs table version {version}, and this node reads versions up to {NEWEST_TABLE_VERSION}: upgrade it"
    );
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

fn len_about(entry: &Entry) -> usize {
    let proposal = match &entry.payload {
        EntryPayload::Normal(proposal) => proposal.bytes().map_or(0, Bytes::len),
        _ => 0,
    };
    BESIDE_MAX + proposal
}

fn put_entry(out: Vec<u8>, entry: &Entry) -> io::Result<Vec<u8>> {
    match &entry.payload {
        EntryPayload::Normal(proposal) if let Some(bytes) = proposal.bytes() => {
            let mut out = put_normal(out, entry)?;
            out.extend_from_slice(bytes);
            Ok(out)
        }
        _ => put(out, entry),
    }
}

/// What stands before an entry's proposal.
fn put_normal(out: Vec<u8>, entry: &Entry) -> io::Result<Vec<u8>> {
    let mut out = put(out, &entry.log_id)?;
    out.push(NORMAL);
    Ok(out)
}

fn put(out: Vec<u8>, value: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_extend(value, out).map_err(io::Error::other)
}

fn take<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<(T, &[u8])> {
    postcard::take_from_bytes(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use leasehold_core::{ClaimId, Command, NewClaim, OnBusy, Stamp};
    use leasehold_lab::mutate::mutated;
    use leasehold_lab::random::Random;
    use openraft::{BasicNode, Membership};

    use super::*;
    use crate::entry::{Origin, Parcel};

    fn log_id(index: u64) -> LogId {
        LogId { leader_id: openraft::impls::leader_id_adv::LeaderId { term: 3, node_id: 1 }, index }
    }

    fn proposal(number: u64) -> Arc<Proposal> {
        let claim = NewClaim::new(ClaimId::from_u128(7), "r", "o", Some(5_000_000), OnBusy::Queue);
        let commands = Arc::new(vec![Command::Claim(claim), Command::Tick]);
        let parcel = Parcel { origin: Some(Origin { node: 1, run: 2, number }), commands };
        Arc::new(Proposal::new(Stamp { now_us: 300, wall_us: 70_000 }, vec![parcel]))
    }

    /// Fresh ones each time: bytes that one test kept are no help to another.
    fn entries() -> Vec<Entry> {
        let members = vec![BTreeSet::from([1, 2, 300])];
        let nodes = [1, 2, 300].map(|id| (id, BasicNode::new("127.0.0.1:4081")));
        let membership = Membership::new(members, std::collections::BTreeMap::from(nodes)).unwrap();
        let payloads = [
            EntryPayload::Blank,
            EntryPayload::Normal(proposal(200)),
            EntryPayload::Membership(membership),
            EntryPayload::Normal(proposal(201)),
        ];
        (126..).zip(payloads).map(|(index, payload)| Entry { log_id: log_id(index), payload }).collect()
    }

    fn request(entries: Vec<Entry>) -> AppendEntriesRequest<TypeConfig> {
        let prev_log_id = Some(log_id(125));
        AppendEntriesRequest { vote: Vote::new(3, 1), prev_log_id, entries, leader_commit: Some(log_id(124)) }
    }

    fn kept(entry: &Entry) -> Option<Bytes> {
        match &entry.payload {
            EntryPayload::Normal(proposal) => proposal.bytes().cloned(),
            _ => None,
        }
    }

    #[test]
    fn an_entry_is_what_postcard_makes_of_it_and_a_proposal_is_made_once() {
        for entry in entries() {
            let expected = postcard::to_extend(&entry, vec![9]).unwrap();
            assert_eq!(entry_after(vec![9], &entry).unwrap(), expected);
            assert_eq!(kept(&entry).is_some(), matches!(entry.payload, EntryPayload::Normal(_)));
            assert_eq!(entry_after(vec![9], &entry).unwrap(), expected, "from the bytes that were kept");
        }
    }

    #[test]
    fn a_request_is_what_postcard_makes_of_it_whatever_was_kept() {
        assert_eq!(append_after(vec![9], &request(vec![])).unwrap(), {
            postcard::to_extend(&request(vec![]), vec![9]).unwrap()
        });
        let request = request(entries());
        let expected = postcard::to_extend(&request, vec![9]).unwrap();
        assert_eq!(append_after(vec![9], &request).unwrap(), expected, "with nothing kept");
        entry_after(vec![], &request.entries[3]).unwrap();
        assert_eq!(append_after(vec![9], &request).unwrap(), expected, "with the last one kept");
        entry_after(vec![], &request.entries[1]).unwrap();
        assert_eq!(append_after(vec![9], &request).unwrap(), expected, "with both kept");
    }

    #[test]
    fn a_request_that_came_goes_into_the_log_as_it_is() {
        let sent = request(entries());
        let bytes = Bytes::from(append_after(vec![], &sent).unwrap());
        let came = append_from(&bytes).unwrap();
        assert_eq!(
            (came.vote, came.prev_log_id, came.leader_commit),
            (sent.vote, sent.prev_log_id, sent.leader_commit)
        );
        assert_eq!(came.entries, sent.entries);
        for entry in &came.entries {
            let own = kept(entry);
            assert_eq!(own.is_some(), matches!(entry.payload, EntryPayload::Normal(_)));
            assert!(own.is_none_or(|own| bytes.as_ptr_range().contains(&own.as_ptr())), "a copy was made");
            assert_eq!(entry_after(vec![], entry).unwrap(), postcard::to_stdvec(entry).unwrap());
        }
    }

    #[test]
    fn an_entry_of_an_unknown_table_version_is_not_taken() {
        let upgrade = |version| {
            let parcel = Parcel { origin: None, commands: Arc::new(vec![Command::Upgrade { version }]) };
            let proposal = Proposal::new(Stamp::default(), vec![parcel]);
            let entry = Entry { log_id: log_id(126), payload: EntryPayload::Normal(Arc::new(proposal)) };
            append_from(&Bytes::from(append_after(vec![], &request(vec![entry])).unwrap()))
        };
        assert!(upgrade(NEWEST_TABLE_VERSION).is_ok());
        let refused = upgrade(NEWEST_TABLE_VERSION + 1).unwrap_err();
        assert!(refused.to_string().contains("upgrade it"), "{refused}");
    }

    #[test]
    fn mutated_requests_are_requests_or_errors() {
        let corpus = [vec![], entries()].map(|entries| append_after(vec![], &request(entries)).unwrap());
        let mut random = Random::new(11);
        let mut understood = 0;
        for _ in 0..20_000 {
            understood += u64::from(append_from(&Bytes::from(mutated(&corpus, &mut random))).is_ok());
        }
        assert!(understood > 0, "the corpus is not even understood as it is");
    }
}
