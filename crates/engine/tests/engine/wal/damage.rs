//! Broken files. A crash damages the last frame only: that is repaired. Everything else is refused, with the
//! place named and nothing changed.

use super::*;

/// Where the header of a segment ends and the first frame starts.
const FIRST_FRAME: usize = 32;

/// Start and end of every frame in a segment.
fn frames(bytes: &[u8]) -> Vec<(usize, usize)> {
    let (mut at, mut frames) = (FIRST_FRAME, Vec::new());
    while bytes.len() > at + 24 && bytes[at..at + 24].iter().any(|b| *b != 0) {
        let len = 24 + u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
        frames.push((at, at + len));
        at += len;
    }
    frames
}

/// Three frames in one segment.
fn small_log() -> TempDir {
    let dir = TempDir::new();
    let (wal, _) = dir.open();
    append(&wal, vec![vote("v"), entry(0, "zero")]).unwrap();
    append(&wal, vec![entry(1, "one")]).unwrap();
    append(&wal, vec![entry(2, "the last frame, a little longer"), vote("w")]).unwrap();
    eventually("the next segment is ready", || dir.segments() == [1, 2]);
    drop(wal);
    dir
}

/// Several full segments.
fn long_log() -> TempDir {
    let dir = TempDir::new();
    let (wal, _) = dir.open();
    for index in 0..40 {
        append(&wal, vec![entry(index, [3; 300])]).unwrap();
    }
    eventually("the next segment is ready", || dir.segments() == [1, 2, 3, 4, 5]);
    drop(wal);
    dir
}

/// Opens a log whose last frame is damaged, and checks that it is cut and that the log then lives on.
fn assert_cut(dir: &TempDir, offset: usize, what: &str) {
    let (wal, recovered) = dir.open();
    let torn = recovered.torn.unwrap_or_else(|| panic!("not seen as torn: {what}"));
    assert_eq!((torn.file, torn.offset), (dir.segment(1), offset as u64), "{what}");
    assert_eq!((recovered.entries, recovered.vote), (0..2, Some(bytes("v"))), "{what}");
    append(&wal, vec![entry(2, "instead")]).unwrap();
    drop(wal);
    let (wal, recovered) = dir.open();
    assert_eq!((recovered.entries, recovered.torn), (0..3, None), "{what}");
    assert_eq!(wal.read(2..3).unwrap(), [(2, bytes("instead"))], "{what}");
}

/// Opens a damaged log, which must fail, name the place and change nothing.
fn assert_refused(dir: &TempDir, file: u32, offset: usize, what: &str) {
    let before = dir.contents();
    let error = try_open(&dir.log()).map(drop).expect_err(what).to_string();
    let place = format!("{} at byte {offset}:", dir.segment(file).display());
    assert!(error.contains(&place), "{what}: {error} does not name {place}");
    assert!(error.contains("backup") && error.contains("never edit"), "{error}");
    assert!(dir.contents() == before, "{what}: files were changed");
}

fn with_damage(dir: &TempDir, segment: u32, damage: impl FnOnce(&mut Vec<u8>)) {
    let path = dir.segment(segment);
    let mut bytes = fs::read(&path).unwrap();
    damage(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_last_frame_torn_at_any_byte_is_cut() {
    let dir = small_log();
    let whole = fs::read(dir.segment(1)).unwrap();
    let (start, end) = *frames(&whole).last().unwrap();
    let mut noise = 0x9e37_79b9_u32;
    for at in start + 1..end {
        let reset = |bytes: &mut Vec<u8>| bytes.clone_from(&whole);
        // What lies behind the last byte that is not zero can't be missed.
        if whole[at..end].iter().any(|b| *b != 0) {
            with_damage(&dir, 1, reset);
            with_damage(&dir, 1, |bytes| bytes.truncate(at));
            assert_cut(&dir, start, &format!("file cut at {at}"));

            with_damage(&dir, 1, reset);
            with_damage(&dir, 1, |bytes| bytes[at..end].fill(0));
            assert_cut(&dir, start, &format!("zeros from {at}"));
        }
        with_damage(&dir, 1, reset);
        with_damage(&dir, 1, |bytes| {
            for byte in &mut bytes[at..end + 64] {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (noise >> 24) as u8;
            }
        });
        assert_cut(&dir, start, &format!("garbage from {at}"));
    }
}

#[test]
fn any_flipped_byte_in_the_last_frame_is_cut() {
    let dir = small_log();
    let whole = fs::read(dir.segment(1)).unwrap();
    let (start, end) = *frames(&whole).last().unwrap();
    for at in start..end {
        with_damage(&dir, 1, |bytes| {
            bytes.clone_from(&whole);
            bytes[at] ^= 0x10;
        });
        assert_cut(&dir, start, &format!("flipped byte {at}"));
    }
}

#[test]
fn any_flipped_byte_before_the_last_frame_is_refused() {
    let dir = small_log();
    let whole = fs::read(dir.segment(1)).unwrap();
    let frames = frames(&whole);
    for at in 0..frames[2].0 {
        with_damage(&dir, 1, |bytes| {
            bytes.clone_from(&whole);
            bytes[at] ^= 0x10;
        });
        let offset = frames.iter().find(|frame| (frame.0..frame.1).contains(&at)).map_or(0, |frame| frame.0);
        assert_refused(&dir, 1, offset, &format!("flipped byte {at}"));
    }
}

#[test]
fn a_zeroed_frame_in_the_middle_is_refused() {
    let dir = small_log();
    let (start, end) = frames(&fs::read(dir.segment(1)).unwrap())[1];
    with_damage(&dir, 1, |bytes| bytes[start..end].fill(0));
    assert_refused(&dir, 1, start, "zeroed frame");
}

#[test]
fn damage_in_a_segment_that_others_follow_is_refused() {
    let whole = long_log();
    let bytes = fs::read(whole.segment(2)).unwrap();
    let frames = frames(&bytes);
    let (start, end) = *frames.last().unwrap();
    for at in (0..end).step_by(97).chain(start..end) {
        with_damage(&whole, 2, |now| {
            now.clone_from(&bytes);
            now[at] ^= 1;
        });
        let offset = frames.iter().find(|frame| (frame.0..frame.1).contains(&at)).map_or(0, |frame| frame.0);
        assert_refused(&whole, 2, offset, &format!("flipped byte {at}"));
    }
    with_damage(&whole, 2, |now| {
        now.clone_from(&bytes);
        now[start..].fill(0);
    });
    assert_refused(&whole, 2, start, "last frame zeroed");
    with_damage(&whole, 2, |now| now.truncate(start));
    assert_refused(&whole, 2, start, "file cut before its last frame");
}

#[test]
fn garbage_after_the_last_frame_is_cut() {
    let dir = small_log();
    let (_, end) = *frames(&fs::read(dir.segment(1)).unwrap()).last().unwrap();
    with_damage(&dir, 1, |bytes| bytes[end + 100..end + 200].fill(0xee));
    let (_wal, recovered) = dir.open();
    let torn = recovered.torn.unwrap();
    assert_eq!((torn.offset, torn.bytes, recovered.entries), (end as u64, 200, 0..3));
}

#[test]
fn a_short_last_file_gets_its_zeros_back() {
    let dir = small_log();
    let (_, end) = *frames(&fs::read(dir.segment(1)).unwrap()).last().unwrap();
    with_damage(&dir, 1, |bytes| bytes.truncate(end));
    let (_wal, recovered) = dir.open();
    assert_eq!((recovered.entries, recovered.torn), (0..3, None));
    assert_eq!(fs::metadata(dir.segment(1)).unwrap().len(), SEGMENT_BYTES);
}

#[test]
fn a_torn_first_frame_of_a_new_segment_is_cut() {
    let dir = small_log();
    with_damage(&dir, 2, |bytes| bytes[40..90].fill(0x55));
    let (wal, recovered) = dir.open();
    let torn = recovered.torn.unwrap();
    assert_eq!((torn.file, torn.offset, recovered.entries), (dir.segment(2), 32, 0..3));
    append(&wal, vec![entry(3, "in the second segment")]).unwrap();
    drop(wal);
    assert_eq!(dir.open().1.entries, 0..4);
}

#[test]
fn damage_is_not_a_torn_tail_when_the_next_segment_was_begun() {
    let dir = small_log();
    let (start, _) = *frames(&fs::read(dir.segment(1)).unwrap()).last().unwrap();
    with_damage(&dir, 1, |bytes| bytes[start + 30] ^= 1);
    with_damage(&dir, 2, |bytes| bytes[40..90].fill(0x55));
    assert_refused(&dir, 1, start, "two damaged ends");
}

#[test]
fn whatever_a_crash_while_preparing_leaves_is_replaced() {
    let leftovers: [(&str, Vec<u8>); 4] = [
        ("00000002.log", vec![]),
        ("00000002.log", vec![0; 100]),
        ("00000002.log", vec![0; 4096]),
        ("00000002.log.tmp", vec![1; 4096]),
    ];
    for (name, bytes) in leftovers {
        let dir = small_log();
        fs::remove_file(dir.segment(2)).unwrap();
        fs::write(dir.log().join(name), bytes).unwrap();
        let (wal, recovered) = dir.open();
        assert_eq!((recovered.entries, recovered.torn), (0..3, None));
        append(&wal, vec![entry(3, [1; 4000])]).unwrap();
        eventually("a segment is prepared after it", || dir.segments() == [1, 2, 3]);
        drop(wal);
        assert!(!dir.log().join("00000002.log.tmp").exists());
        assert_eq!(dir.open().1.entries, 0..4);
    }
}

#[test]
fn a_missing_segment_is_refused() {
    for lost in [1, 2, 3] {
        let dir = long_log();
        fs::remove_file(dir.segment(lost)).unwrap();
        let before = dir.contents();
        let error = try_open(&dir.log()).map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("{} is missing", dir.segment(lost).display())), "{error}");
        assert!(dir.contents() == before);
    }
}

#[test]
fn a_segment_under_a_wrong_name_is_refused() {
    let dir = long_log();
    fs::copy(dir.segment(2), dir.segment(3)).unwrap();
    assert_refused(&dir, 3, 0, "copied segment");
}

#[test]
fn another_format_version_is_refused_and_both_versions_named() {
    let dir = small_log();
    with_damage(&dir, 1, |bytes| {
        bytes[8] = 7;
        let crc = crc32fast::hash(&bytes[..28]);
        bytes[28..32].copy_from_slice(&crc.to_le_bytes());
    });
    let error = try_open(&dir.log()).map(drop).unwrap_err().to_string();
    assert!(error.contains("version 7") && error.contains("reads version 1"), "{error}");
}

#[test]
fn a_lone_segment_without_its_header_is_refused() {
    // Not a crash: a segment gets its name only when it is whole. Starting empty would forget the vote.
    let dir = small_log();
    fs::remove_file(dir.segment(2)).unwrap();
    with_damage(&dir, 1, |bytes| bytes.fill(0));
    assert_refused(&dir, 1, 0, "all zeros");
}

#[test]
fn a_payload_that_looks_like_a_frame_does_not_make_a_torn_tail_look_like_corruption() {
    let dir = small_log();
    let other = small_log();
    let foreign = fs::read(other.segment(1)).unwrap();
    let (start, end) = frames(&foreign)[2];
    let at = *frames(&fs::read(dir.segment(1)).unwrap()).last().unwrap();
    with_damage(&dir, 1, |bytes| {
        bytes[at.0 + 16] ^= 1;
        bytes[at.1..at.1 + end - start].copy_from_slice(&foreign[start..end]);
    });
    assert_cut(&dir, at.0, "a frame of another segment");
}

#[test]
fn an_entry_that_changes_under_a_running_node_is_not_served() {
    let dir = TempDir::new();
    let (wal, _) = dir.open();
    append(&wal, vec![entry(0, "zero"), entry(1, "one")]).unwrap();
    let at = fs::read(dir.segment(1)).unwrap().windows(3).position(|w| w == b"one").unwrap();
    with_damage(&dir, 1, |bytes| bytes[at] = b'0');
    assert_eq!(wal.read(0..1).unwrap().len(), 1);
    assert_eq!(wal.read(0..2).unwrap_err().kind(), io::ErrorKind::InvalidData);
}
