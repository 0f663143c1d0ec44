//! Normal life: appending, reading, rotating, truncating, purging, closing.

use std::sync::{Arc, Mutex};

use leasehold_engine::wal::{Flushed, Recovered, Room, Wal, WalOptions};

use super::*;

#[test]
fn a_new_log_is_empty() {
    let dir = TempDir::new();
    let (wal, recovered) = dir.open();
    assert_eq!(recovered, Recovered::default());
    assert_eq!((wal.entries(), wal.written_upto(), wal.log_bytes()), (0..0, None, 0));
    assert_eq!(wal.room(), Room::Enough);
    assert!(read_all(&wal).is_empty());
}

#[test]
fn what_is_appended_is_there_after_reopening() {
    let dir = TempDir::new();
    let (wal, _) = dir.open();
    append(&wal, vec![vote("v1"), entry(0, "zero"), entry(1, "")]).unwrap();
    append(&wal, vec![vote("v2"), entry(2, "two")]).unwrap();
    wal.save_committed(bytes("c1"));
    wal.save_committed(bytes("c2"));
    assert_eq!((wal.written_upto(), wal.log_bytes()), (Some(2), 7));
    drop(wal);

    let (wal, recovered) = dir.open();
    assert_eq!((recovered.vote, recovered.committed), (Some(bytes("v2")), Some(bytes("c2"))));
    assert_eq!((recovered.entries, recovered.purged, recovered.torn), (0..3, None, None));
    assert_eq!(read_all(&wal), [(0, bytes("zero")), (1, bytes("")), (2, bytes("two"))]);
    assert_eq!(wal.read(1..2).unwrap(), [(1, bytes(""))]);
    assert_eq!(wal.read(3..9).unwrap(), []);
    assert_eq!(wal.log_bytes(), 7);
}

#[test]
fn a_committed_mark_is_written_without_an_append() {
    let dir = TempDir::new();
    let (wal, _) = dir.open();
    let before = fs::read(dir.segment(1)).unwrap();
    wal.save_committed(bytes("quiet"));
    eventually("the mark is written", || fs::read(dir.segment(1)).unwrap() != before);
}

#[test]
fn the_log_goes_on_in_the_next_segment() {
    let dir = TempDir::new();
    let (wal, _) = dir.open();
    append(&wal, vec![vote("v")]).unwrap();
    for index in 0..50 {
        append(&wal, vec![entry(index, vec![index as u8; 300])]).unwrap();
    }
    assert!(dir.segments().len() >= 4, "{:?}", dir.segments());
    drop(wal);
    let (wal, recovered) = dir.open();
    assert_eq!((recovered.entries, recovered.vote), (0..50, Some(bytes("v"))));
    let expected: Vec<_> = (0..50).map(|index| (index, Bytes::from(vec![index as u8; 300]))).collect();
    assert_eq!(read_all(&wal), expected);
}

#[test]
fn purging_deletes_segments_and_keeps_vote_and_marks() {
    let dir = TempDir::new();
    let (wal, _) = dir.open();
    append(&wal, vec![vote("early")]).unwrap();
    wal.save_committed(bytes("mark"));
    for index in 0..60 {
        append(&wal, vec![entry(index, [7; 300])]).unwrap();
    }
    append(&wal, vec![purge(54)]).unwrap();
    assert_eq!((wal.entries(), wal.log_bytes()), (55..60, 1500));
    eventually("dead segments are deleted", || dir.segments().first() > Some(&2));
    drop(wal);

    let (wal, recovered) = dir.open();
    assert_eq!((recovered.vote, recovered.committed), (Some(bytes("early")), Some(bytes("mark"))));
    assert_eq!((recovered.entries, recovered.purged), (55..60, Some((54, bytes("purged 54")))));
    assert_eq!(read_all(&wal).len(), 5);
    append(&wal, vec![entry(60, "next")]).unwrap();
}

#[test]
fn purging_everything_keeps_the_current_segment_and_the_next_index() {
    let dir = TempDir::new();
    let (wal, _) = dir.open();
    append(&wal, (0..5).map(|index| entry(index, "x")).collect()).unwrap();
    append(&wal, vec![purge(99)]).unwrap();
    drop(wal);
    let (wal, recovered) = dir.open();
    assert_eq!((recovered.entries, wal.log_bytes()), (100..100, 0));
    assert_eq!(append(&wal, vec![entry(5, "old")]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    append(&wal, vec![entry(100, "new")]).unwrap();
    assert_eq!(read_all(&wal), [(100, bytes("new"))]);
}

#[test]
fn truncated_entries_are_replaced() {
    let dir = TempDir::new();
    let (wal, _) = dir.open();
    append(&wal, (0..10).map(|index| entry(index, "old")).collect()).unwrap();
    append(&wal, vec![Record::TruncateFrom(4)]).unwrap();
    assert_eq!(wal.entries(), 0..4);
    append(&wal, vec![entry(4, "new"), Record::TruncateFrom(5), Record::TruncateFrom(99)]).unwrap();
    drop(wal);
    let (wal, recovered) = dir.open();
    assert_eq!(recovered.entries, 0..5);
    assert_eq!(wal.read(3..9).unwrap(), [(3, bytes("old")), (4, bytes("new"))]);
    append(&wal, vec![Record::TruncateFrom(0)]).unwrap();
    append(&wal, vec![entry(0, "again")]).unwrap();
    drop(wal);
    assert_eq!(read_all(&dir.open().0), [(0, bytes("again"))]);
}

#[test]
fn a_gap_is_refused_and_harms_nobody_else() {
    let dir = TempDir::new();
    let (wal, _) = dir.open();
    append(&wal, vec![entry(5, "first")]).unwrap();
    let error = append(&wal, vec![vote("lost"), entry(7, "gap")]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    append(&wal, vec![entry(6, "second")]).unwrap();
    drop(wal);
    let (_wal, recovered) = dir.open();
    assert_eq!((recovered.entries, recovered.vote), (5..7, None));
}

#[test]
fn an_append_larger_than_a_segment_gets_one_that_fits() {
    let dir = TempDir::new();
    let (wal, _) = dir.open();
    append(&wal, vec![vote("v"), entry(0, "small")]).unwrap();
    append(&wal, vec![entry(1, vec![9; 50_000])]).unwrap();
    append(&wal, vec![entry(2, vec![8; 60_000])]).unwrap();
    append(&wal, vec![entry(3, "small")]).unwrap();
    drop(wal);
    let (wal, recovered) = dir.open();
    assert_eq!((recovered.entries, recovered.torn), (0..4, None));
    assert_eq!(wal.read(1..2).unwrap(), [(1, Bytes::from(vec![9; 50_000]))]);
    append(&wal, vec![purge(3)]).unwrap();
    drop(wal);
    assert_eq!(dir.open().1.vote, Some(bytes("v")));
}

#[test]
fn a_closed_log_refuses_appends() {
    let dir = TempDir::new();
    let (wal, _) = dir.open();
    wal.append(vec![entry(0, "queued")], |result| result.unwrap());
    wal.close();
    assert!(append(&wal, vec![entry(1, "late")]).is_err());
    drop(wal);
    assert_eq!(dir.open().1.entries, 0..1);
}

#[test]
fn the_last_handle_may_go_inside_a_callback() {
    let dir = TempDir::new();
    let (wal, _) = dir.open();
    let (tell, told) = mpsc::channel();
    let last = Arc::new(Mutex::new(None::<Wal>));
    let inside = last.clone();
    let mut held = last.lock().unwrap();
    wal.append(vec![entry(0, "x")], move |result| {
        drop(inside.lock().unwrap().take());
        tell.send(result).unwrap();
    });
    *held = Some(wal);
    drop(held);
    told.recv().unwrap().unwrap();
}

#[test]
fn a_panicking_callback_leaves_the_log_working() {
    let dir = TempDir::new();
    let (wal, _) = dir.open();
    wal.append(vec![entry(0, "x")], |_| panic!("on purpose"));
    append(&wal, vec![entry(1, "y")]).unwrap();
    assert_eq!(wal.entries(), 0..2);
}

#[test]
fn every_sync_is_observed() {
    let dir = TempDir::new();
    let seen = Arc::new(Mutex::new(Vec::<Flushed>::new()));
    let observed = seen.clone();
    let observe = Arc::new(move |flushed| observed.lock().unwrap().push(flushed));
    let (wal, _) = Wal::open(&dir.log(), WalOptions { observe: Some(observe), ..options() }).unwrap();
    append(&wal, vec![entry(0, [1; 100])]).unwrap();
    append(&wal, vec![entry(1, [1; 100]), vote("v")]).unwrap();
    let seen = seen.lock().unwrap();
    // The first frame of a segment opens it with one more record.
    assert_eq!(seen.iter().map(|flushed| flushed.records).collect::<Vec<_>>(), [2, 2]);
    assert!(seen[1].bytes > 100 && !seen[1].took.is_zero());
}
