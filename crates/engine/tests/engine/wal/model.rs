//! Random lives of a log against a naive one that keeps everything in memory.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// One step; indexes are relative to what the log holds then, so that most steps make sense.
#[derive(Clone, Debug)]
enum Step {
    Append {
        entries: usize,
        len: usize,
    },
    Vote(u8),
    Committed(u8),
    TruncateBack(u64),
    PurgeForward(u64),
    Gap,
    Reopen,
    /// Reopen with the file cut somewhere behind the last frame, or with garbage there.
    ReopenTorn(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1..6_usize, 0..900_usize).prop_map(|(entries, len)| Step::Append { entries, len }),
        1 => (1..3_usize, 4000..9000_usize).prop_map(|(entries, len)| Step::Append { entries, len }),
        2 => any::<u8>().prop_map(Step::Vote),
        2 => any::<u8>().prop_map(Step::Committed),
        2 => (0..8_u64).prop_map(Step::TruncateBack),
        2 => (0..12_u64).prop_map(Step::PurgeForward),
        1 => Just(Step::Gap),
        2 => Just(Step::Reopen),
        1 => any::<u8>().prop_map(Step::ReopenTorn),
    ]
}

#[derive(Default)]
struct Model {
    entries: BTreeMap<u64, Bytes>,
    next: u64,
    purged: Option<(u64, Bytes)>,
    vote: Option<Bytes>,
    committed: Option<Bytes>,
    stamp: u8,
}

impl Model {
    fn append(&mut self, entries: usize, len: usize) -> Vec<Record> {
        let mut records = Vec::new();
        for _ in 0..entries {
            self.stamp = self.stamp.wrapping_add(1);
            let payload = Bytes::from(vec![self.stamp; len]);
            self.entries.insert(self.next, payload.clone());
            records.push(Record::Entry { index: self.next, payload });
            self.next += 1;
        }
        records
    }

    fn truncate(&mut self, back: u64) -> Record {
        let floor = self.purged.as_ref().map_or(0, |(index, _)| index + 1);
        let from = self.next.saturating_sub(back).max(floor);
        self.entries.split_off(&from);
        self.next = self.next.min(from);
        Record::TruncateFrom(from)
    }

    fn purge(&mut self, forward: u64) -> Record {
        let index = self.purged.as_ref().map_or(0, |(index, _)| index + forward);
        if self.purged.as_ref().is_none_or(|(before, _)| *before < index) {
            self.purged = Some((index, bytes(&format!("purged {index}"))));
        }
        self.entries = self.entries.split_off(&(index + 1));
        self.next = self.next.max(index + 1);
        purge(index)
    }

    fn check(&self, wal: &Wal) {
        let expected: Vec<_> = self.entries.clone().into_iter().collect();
        assert_eq!(read_all(wal), expected);
        assert_eq!(wal.log_bytes(), expected.iter().map(|(_, payload)| payload.len() as u64).sum::<u64>());
    }

    fn check_recovered(&self, recovered: &Recovered) {
        assert_eq!((&recovered.vote, &recovered.committed), (&self.vote, &self.committed));
        assert_eq!(recovered.purged, self.purged);
        assert_eq!(recovered.entries.end - recovered.entries.start, self.entries.len() as u64);
    }
}

/// Writes what a torn frame may leave behind the last byte in use.
fn tear(dir: &TempDir, seed: u8) {
    for number in dir.segments().into_iter().rev() {
        let path = dir.segment(number);
        let mut file = fs::read(&path).unwrap();
        let Some(last) = file[32..].iter().rposition(|b| *b != 0) else { continue };
        // Frames end at a multiple of 8; garbage starts in the next one.
        let end = (32 + last + 1).next_multiple_of(8) + 8;
        match seed % 3 {
            0 => file.truncate(end.min(file.len())),
            _ => file.iter_mut().skip(end).take(usize::from(seed)).for_each(|byte| *byte = seed),
        }
        return fs::write(path, file).unwrap();
    }
}

fn live(steps: Vec<Step>) {
    let dir = TempDir::new();
    let mut model = Model::default();
    let (mut wal, _) = dir.open();
    for step in steps {
        match step {
            Step::Append { entries, len } => append(&wal, model.append(entries, len)).unwrap(),
            Step::Vote(value) => {
                model.vote = Some(Bytes::from(vec![value; 9]));
                append(&wal, vec![Record::Vote(Bytes::from(vec![value; 9]))]).unwrap();
            }
            Step::Committed(value) => {
                model.committed = Some(Bytes::from(vec![value; 5]));
                wal.save_committed(Bytes::from(vec![value; 5]));
            }
            Step::TruncateBack(back) => append(&wal, vec![model.truncate(back)]).unwrap(),
            Step::PurgeForward(forward) => append(&wal, vec![model.purge(forward)]).unwrap(),
            Step::Gap => {
                let refused = append(&wal, vec![entry(model.next + 1, "gap")]);
                // An empty log may start anywhere; then the model starts there too.
                if refused.is_ok() {
                    model.entries.insert(model.next + 1, bytes("gap"));
                    model.next += 2;
                }
            }
            Step::Reopen | Step::ReopenTorn(_) => {
                drop(wal);
                if let Step::ReopenTorn(seed) = step {
                    tear(&dir, seed);
                }
                let (reopened, recovered) = dir.open();
                model.check_recovered(&recovered);
                wal = reopened;
            }
        }
        model.check(&wal);
    }
    drop(wal);
    model.check_recovered(&dir.open().1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_random_life_matches_the_naive_log(steps in prop::collection::vec(step(), 1..60)) {
        live(steps);
    }
}
