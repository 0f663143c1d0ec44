//! Many clusters ("cells") behind a stateless router, as a simulation: how evenly names spread, what moves when a cell
//! comes, what the clients of a cell feel when its leader or its region is lost.
//!
//! In:    a seed, and figures measured on one cluster. Out: the tables of docs/scaling.md, the same for the same seed.
//! Never: claims more than it plays: cells are queues with a rate, not nodes with a log. Those are `sim/` and `chaos/`.

use std::fmt::Write;

use crate::random::Random;

/// Rendezvous hashing: the cell with the highest score has the namespace. A new cell takes from all others, and nothing
/// moves between them.
pub fn cell_of(namespace: u64, cells: &[u64]) -> u64 {
    let score = |cell: &&u64| Random::new(namespace ^ cell.wrapping_mul(0xd6e8_feb8_6659_fd93)).next();
    cells.iter().max_by_key(score).copied().unwrap_or(0)
}

/// How the load lies on the namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// The same on each.
    Even,
    /// The n-th busiest has 1/n of the busiest one's.
    Zipf,
}

impl Load {
    fn of(self, rank: usize) -> f64 {
        match self {
            Self::Even => 1.0,
            Self::Zipf => 1.0 / (rank + 1) as f64,
        }
    }
}

/// What the busiest cell carries, as a multiple of the average.
pub fn busiest(namespaces: usize, cells: usize, load: Load, seed: u64) -> f64 {
    let mut random = Random::new(seed);
    let names: Vec<u64> = (0..cells).map(|_| random.next()).collect();
    let mut carried = std::collections::BTreeMap::new();
    let mut total = 0.0;
    for rank in 0..namespaces {
        *carried.entry(cell_of(random.next(), &names)).or_insert(0.0) += load.of(rank);
        total += load.of(rank);
    }
    carried.values().copied().fold(0.0, f64::max) * cells as f64 / total
}

/// Which part of the namespaces moves when one more cell comes, and whether any of them moves elsewhere than there.
pub fn moved(namespaces: usize, cells: usize, seed: u64) -> (f64, bool) {
    let mut random = Random::new(seed);
    let after: Vec<u64> = (0..=cells).map(|_| random.next()).collect();
    let before = &after[..cells];
    let (mut count, mut astray) = (0, false);
    for _ in 0..namespaces {
        let namespace = random.next();
        let now = cell_of(namespace, &after);
        if now != cell_of(namespace, before) {
            count += 1;
            astray |= now != after[cells];
        }
    }
    (f64::from(count) / namespaces as f64, astray)
}

/// What the clients of one cell feel.
#[derive(Debug, Clone, Copy)]
pub struct Felt {
    /// Part of the requests in the simulated minute that took longer than 100 ms.
    pub slow: f64,
    /// The longest any request took, in seconds.
    pub worst_s: f64,
    /// How long after the cell was back its backlog was gone, in seconds.
    pub drained_s: f64,
}

/// A minute of a cell that carries `rate` requests a second at most, is asked `busy` of that, and has no leader for
/// `gone_s` from the tenth second on. Requests wait for the leader, as nodes let them, and are then served in order.
pub fn without_leader(rate: f64, busy: f64, gone_s: f64, seed: u64) -> Felt {
    const MINUTE: f64 = 60.0;
    const LOST_AT: f64 = 10.0;
    let mut random = Random::new(seed);
    let back_at = LOST_AT + gone_s;
    let (mut now, mut free_at, mut drained_at) = (0.0, 0.0_f64, back_at);
    let (mut count, mut slow, mut worst_s) = (0_u64, 0_u64, 0.0_f64);
    while now < MINUTE {
        let uniform = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
        now += -(1.0 - uniform).ln() / (rate * busy);
        let mut start = free_at.max(now);
        if (LOST_AT..back_at).contains(&start) {
            start = back_at;
        }
        free_at = start + 1.0 / rate;
        let took = free_at - now;
        count += 1;
        slow += u64::from(took > 0.1);
        worst_s = worst_s.max(took);
        if start >= back_at && took > 0.1 {
            drained_at = free_at;
        }
    }
    Felt { slow: slow as f64 / count as f64, worst_s, drained_s: drained_at - back_at }
}

/// The tables of docs/scaling.md.
pub fn tables() -> String {
    let mut out = String::from(
        "| cells | namespaces | busiest cell, even load: median (worst of 20) | with a Zipf load | moves to one more cell |\n|---|---|---|---|---|\n",
    );
    for (cells, namespaces) in [(3, 1_000), (10, 1_000), (10, 10_000), (30, 10_000), (100, 100_000)] {
        let spread = |load| {
            let mut found: Vec<f64> = (1..=20).map(|seed| busiest(namespaces, cells, load, seed)).collect();
            found.sort_by(f64::total_cmp);
            format!("{:.2} ({:.2})", f64::midpoint(found[9], found[10]), found[19])
        };
        let (part, _) = moved(namespaces, cells, 1);
        let (even, zipf) = (spread(Load::Even), spread(Load::Zipf));
        writeln!(out, "| {cells} | {namespaces} | {even} | {zipf} | {:.1} % |", 100.0 * part).ok();
    }
    out.push_str(
        "\n| without a leader for | cell busy to | slower than 100 ms in that minute | longest wait | backlog gone after |\n|---|---|---|---|---|\n",
    );
    for (gone_s, busy) in
        [(0.86, 0.3), (0.86, 0.7), (0.86, 0.9), (1.7, 0.3), (1.7, 0.7), (5.6, 0.3), (5.6, 0.7)]
    {
        let felt = without_leader(10_000.0, busy, gone_s, 1);
        let (slow, worst, drained) = (100.0 * felt.slow, felt.worst_s, felt.drained_s);
        writeln!(out, "| {gone_s} s | {:.0} % | {slow:.1} % | {worst:.2} s | {drained:.2} s |", 100.0 * busy)
            .ok();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_cell_takes_its_share_and_nothing_else_moves() {
        let (part, astray) = moved(20_000, 10, 7);
        assert!((part - 1.0 / 11.0).abs() < 0.02, "{part}");
        assert!(!astray);
    }

    #[test]
    fn a_cell_that_was_away_works_its_backlog_off() {
        let felt = without_leader(1000.0, 0.5, 2.0, 3);
        assert!((2.0..2.2).contains(&felt.worst_s), "{felt:?}");
        // Half of its rate is left for the backlog of two seconds.
        assert!((1.0..2.6).contains(&felt.drained_s), "{felt:?}");
        assert!(without_leader(1000.0, 0.5, 0.0, 3).slow < 0.001);
    }

    #[test]
    fn the_page_shows_what_the_simulation_says() {
        let page = include_str!("../../../docs/scaling.md");
        for row in tables().lines().filter(|line| !line.is_empty()) {
            assert!(page.contains(row), "docs/scaling.md lacks: {row}");
        }
    }
}
