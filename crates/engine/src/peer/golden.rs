//! The messages between nodes stay what release 0.1.0 sends: its nodes and ours are peers during a rolling upgrade.
//!
//! In:    `tests/golden/0.1.0/messages.txt`, one message a line as its name and its bytes, written by that release.
//! Out:   failures: a message that this build does not understand, or writes differently.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use leasehold_core::{
    ClaimId, Command, Data, Ending, Format, Guard, Idempotency, NewClaim, OnBusy, Settings, Stamp, Target,
};
use openraft::raft::{
    AppendEntriesRequest, SnapshotResponse, StreamAppendError, StreamAppendResult, TransferLeaderRequest,
    VoteRequest, VoteResponse,
};
use openraft::{BasicNode, EntryPayload, Membership};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Ask, Lane, PeerAnswer};
use crate::EngineError;
use crate::encoding::{append_after, append_from};
use crate::entry::{Origin, Origins, Parcel, Proposal};
use crate::membership::MembershipChange;
use crate::status::NodeStatus;
use crate::types::{Entry, LeaderId, LogId, SnapshotMeta, StoredMembership, TypeConfig, Vote};

fn log_id(index: u64) -> LogId {
    LogId { leader_id: LeaderId { term: 3, node_id: 2 }, index }
}

/// One command of every kind that release 0.1.0 knows.
fn commands() -> Vec<Command> {
    let id = ClaimId::from_u128(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
    let data = Some(Data { format: Format::Json, bytes: br#"{"pid":1}"#[..].into() });
    let guard = Guard { owner: Some("ann".into()), version: Some(7) };
    let (target, holder) = (Target::Claim(id), Target::Holder("db/main".into()));
    let plain = NewClaim::new(id, "db/main", "ann", Some(5_000_000), OnBusy::Queue);
    let full = NewClaim {
        on_busy: OnBusy::QueueFor { wait_us: 1_000 },
        data: data.clone(),
        idempotency: Some(Idempotency { key: u128::MAX - 6, fingerprint: 99 }),
        ..plain.clone()
    };
    let refused = NewClaim { on_busy: OnBusy::Refuse, ttl_us: None, ..plain.clone() };
    let endings = [Ending::Released, Ending::Aborted, Ending::Withdrawn, Ending::Revoked];
    let mut commands = vec![
        Command::Claim(plain),
        Command::Claim(full),
        Command::Claim(refused),
        Command::Activate { id },
        Command::Renew { target, guard: guard.clone(), ttl_us: Some(9), data },
        Command::Renew { target: holder, guard: Guard::default(), ttl_us: None, data: None },
    ];
    commands.extend(endings.map(|ending| Command::Finish {
        target: Target::Claim(id),
        guard: guard.clone(),
        ending,
        reason: Some("why".into()),
        purge_data: true,
    }));
    commands.extend([
        Command::LockAll {
            items: vec![(id, "dss/media/tape".into())],
            owner: "host:1".into(),
            ttl_us: None,
            data: Some(Data { format: Format::Bytes, bytes: vec![0, 255].into() }),
        },
        Command::Revoke { resource: Some("db/main".into()), before: 300, reason: None },
        Command::Revoke { resource: None, before: u64::MAX, reason: Some("all".into()) },
        Command::Settle { resources: vec!["db/main".into()] },
        Command::Tick,
        Command::Configure(Settings { pickup_grace_us: 5, ..Settings::default() }),
    ]);
    commands
}

fn parcel() -> Parcel {
    Parcel { origin: Some(Origin { node: 1, run: 2, number: 200 }), commands: Arc::new(commands()) }
}

fn membership() -> Membership<u64, BasicNode> {
    let nodes = [1, 2, 300].map(|id| (id, BasicNode::new("127.0.0.1:4081")));
    Membership::new(vec![BTreeSet::from([1, 2])], BTreeMap::from(nodes)).unwrap()
}

fn asks() -> Vec<(&'static str, Ask)> {
    let vote = || VoteRequest::new(Vote::new(3, 2), Some(log_id(125)));
    let transfer = TransferLeaderRequest::new(Vote::new(3, 2), 1, Some(log_id(125)));
    let change = |change| Ask::Change(change);
    vec![
        ("vote", Ask::Vote(vote())),
        ("pre_vote", Ask::PreVote(vote())),
        ("transfer", Ask::Transfer(transfer)),
        ("forward", Ask::Forward(parcel())),
        ("barrier", Ask::Barrier),
        ("status", Ask::Status { digest: true }),
        ("welcome", Ask::Welcome { run: 77 }),
        ("join", Ask::Join { id: 4, run: 5, address: "127.0.0.1:4090".into() }),
        ("add", change(MembershipChange::Add { id: 4, address: "127.0.0.1:4090".into() })),
        ("remove", change(MembershipChange::Remove { id: 4 })),
        ("lead", change(MembershipChange::Transfer { to: 4 })),
        ("move", change(MembershipChange::Move { id: 4, address: "127.0.0.1:4091".into() })),
    ]
}

fn answers() -> Vec<(&'static str, PeerAnswer)> {
    let status = NodeStatus {
        id: 2,
        run: 77,
        admitted: true,
        role: "leader".into(),
        term: 3,
        leader: Some(2),
        last_log: Some(126),
        applied: 125,
        url: "http://127.0.0.1:4082".into(),
        version: "0.1.0".into(),
        digest: Some((125, "00ff".into())),
        others: BTreeMap::from([(1, (Some(126), Some(3))), (3, (None, None))]),
    };
    let errors = [
        ("taken_not_leader", EngineError::NotLeader),
        ("taken_overloaded", EngineError::Overloaded),
        ("taken_disk_full", EngineError::DiskFull),
        ("taken_stopping", EngineError::Stopping),
        ("taken_unknown", EngineError::Unknown),
    ];
    let mut answers = vec![
        ("voted", PeerAnswer::Vote(VoteResponse::new(Vote::new(3, 2), Some(log_id(125)), true))),
        ("done", PeerAnswer::Done),
        ("rejected", PeerAnswer::Rejected("no".into())),
        ("taken", PeerAnswer::Taken(Ok(()))),
        ("barrier_at", PeerAnswer::Barrier { index: 9, now_us: 77 }),
        ("status_is", PeerAnswer::Status(Box::new(status))),
        ("ask_leader", PeerAnswer::AskLeader(Some(2), Some("127.0.0.1:4082".into()))),
        ("not_ready", PeerAnswer::NotReady),
    ];
    answers.extend(errors.map(|(name, error)| (name, PeerAnswer::Taken(Err(error)))));
    answers
}

fn append() -> AppendEntriesRequest<TypeConfig> {
    let proposal = Proposal::new(Stamp { now_us: 300, wall_us: 70_000 }, vec![parcel()]);
    let payloads = [
        EntryPayload::Blank,
        EntryPayload::Normal(Arc::new(proposal)),
        EntryPayload::Membership(membership()),
    ];
    let entries = (126..).zip(payloads).map(|(index, payload)| Entry { log_id: log_id(index), payload });
    AppendEntriesRequest {
        vote: Vote::new(3, 2),
        prev_log_id: Some(log_id(125)),
        entries: entries.collect(),
        leader_commit: Some(log_id(124)),
    }
}

fn origins() -> Origins {
    let mut origins = Origins::default();
    for number in [1, 2, 70, 69] {
        origins.is_first(&Origin { node: 1, run: 7, number });
    }
    origins
}

/// All messages, as this build writes them.
fn messages() -> Vec<(String, Vec<u8>)> {
    let meta = SnapshotMeta {
        last_log_id: Some(log_id(125)),
        last_membership: StoredMembership::new(Some(log_id(3)), membership()),
    };
    let appended: [StreamAppendResult<TypeConfig>; 3] = [
        Ok(Some(log_id(128))),
        Err(StreamAppendError::HigherVote(Vote::new(4, 1))),
        Err(StreamAppendError::Conflict(log_id(125))),
    ];
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    for (number, (name, ask)) in (200_u64..).zip(asks()) {
        all.push((format!("ask_{name}"), bytes(&(number, &ask))));
    }
    for (number, (name, answer)) in (200_u64..).zip(answers()) {
        all.push((format!("answer_{name}"), bytes(&(number, &answer))));
    }
    all.push(("append".into(), append_after(vec![], &append()).unwrap()));
    for (name, result) in ["ok", "higher_vote", "conflict"].iter().zip(&appended) {
        all.push((format!("appended_{name}"), bytes(result)));
    }
    all.push(("snapshot_head".into(), bytes(&(Vote::new(3, 2), &meta, 4711_u64))));
    all.push(("snapshot_taken".into(), bytes(&SnapshotResponse::<TypeConfig>::new(Vote::new(3, 2)))));
    all.push(("snapshot_origins".into(), bytes(&origins())));
    for lane in [Lane::Ask, Lane::Append, Lane::Snapshot] {
        all.push((format!("lane_{lane:?}").to_lowercase(), bytes(&lane)));
    }
    all
}

fn bytes(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).unwrap()
}

/// The messages of release 0.1.0, by their names.
pub(super) fn released() -> BTreeMap<String, Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap() as u8;
    let unhex =
        |text: &str| text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect();
    let lines = include_str!("../../tests/golden/0.1.0/messages.txt").lines();
    lines.map(|line| line.split_once(' ').unwrap()).map(|(name, text)| (name.into(), unhex(text))).collect()
}

/// What comes back when bytes are understood and written again.
fn again<T: Serialize + DeserializeOwned>(came: &[u8]) -> Vec<u8> {
    bytes(&postcard::from_bytes::<T>(came).unwrap())
}

#[test]
fn this_build_writes_every_message_as_release_0_1_0_does() {
    let released = released();
    for (name, written) in messages() {
        assert_eq!(Some(&written), released.get(&name), "{name}");
    }
}

#[test]
fn this_build_understands_every_message_of_release_0_1_0() {
    let mut understood = 0;
    for (name, came) in released() {
        let again = match name.split('_').next().unwrap_or_default() {
            "ask" => again::<(u64, Ask)>(&came),
            "answer" => again::<(u64, PeerAnswer)>(&came),
            "append" => append_after(vec![], &append_from(&Bytes::from(came.clone())).unwrap()).unwrap(),
            "appended" => again::<StreamAppendResult<TypeConfig>>(&came),
            "lane" => again::<Lane>(&came),
            "snapshot" if name.ends_with("head") => again::<(Vote, SnapshotMeta, u64)>(&came),
            "snapshot" if name.ends_with("taken") => again::<SnapshotResponse<TypeConfig>>(&came),
            "snapshot" => again::<Origins>(&came),
            // Greetings: `handshake.rs`.
            _ => continue,
        };
        assert_eq!(again, came, "{name}");
        understood += 1;
    }
    assert_eq!(understood, messages().len());
}

/// A command that release 0.1.0 does not know must not look like one that it knows.
#[test]
fn a_new_command_has_a_number_of_its_own() {
    let known: BTreeSet<u8> = commands().iter().map(|command| bytes(command)[0]).collect();
    let new = bytes(&Command::Upgrade { version: 2 })[0];
    assert!(!known.contains(&new) && known.iter().all(|number| *number < new), "{known:?} and {new}");
}
