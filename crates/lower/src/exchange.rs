//! Exact transfers, region by region, for layouts that form no regular pattern.

use std::collections::BTreeMap;

use rules::{Interval, Region};

use crate::layout::{Layout, Middle};
use crate::sources::{Sources, touches};

/// Which pieces of which sources make which targets.
#[derive(Debug)]
pub struct Pieces {
    /// Middle entries, in order: those that something is taken from, or all.
    pub sources: Vec<usize>,
    /// Entries of the target layout that are made, in order.
    pub targets: Vec<usize>,
    /// (position in `sources`, position in `targets`, region).
    pub pieces: Vec<(usize, usize, Region)>,
}

impl Pieces {
    /// The same with all of so many middle entries as sources, also those that nothing is taken from.
    pub fn listing(self, count: usize) -> Self {
        let piece = |(from, to, region): (usize, usize, Region)| (self.sources[from], to, region);
        Self {
            pieces: self.pieces.into_iter().map(piece).collect(),
            sources: (0..count).collect(),
            targets: self.targets,
        }
    }
}

/// Covers every target that is not kept. Each partial result goes into one target's part, and of several copies
/// the rank's own is taken, else the one whose place among the copies is that of the target among its like: so copies
/// share the work.
pub fn pieces(middle: &[Middle], parts: u32, target: &Layout, keep: &[bool], world: u32) -> Pieces {
    let mut taken = vec![];
    let sources = Sources::new(middle, world);
    let targets: Vec<usize> = (0..target.entries.len()).filter(|&i| !keep[i]).collect();
    let mut same: BTreeMap<(&Region, u32), Vec<usize>> = BTreeMap::new();
    for &index in &targets {
        let wanted = &target.entries[index];
        same.entry((&wanted.region, wanted.part)).or_default().push(index);
    }
    for (position, &index) in targets.iter().enumerate() {
        let wanted = &target.entries[index];
        let like = &same[&(&wanted.region, wanted.part)];
        let place = (like.partition_point(|&other| other < index), like.len());
        for part in (0..parts).filter(|p| p * target.parts / parts == wanted.part) {
            let mut missing = vec![wanted.region.clone()];
            for from in sources.touching(part, (wanted.rank, place), &wanted.region) {
                let region = &middle[from].entry.region;
                let mut left = vec![];
                for hole in missing {
                    if touches(&hole, region) {
                        let piece = hole.meet(region);
                        left.extend(without(&hole, &piece));
                        taken.push((from, position, piece));
                    } else {
                        left.push(hole);
                    }
                }
                missing = left;
                if missing.is_empty() {
                    break;
                }
            }
        }
    }
    let mut sources: Vec<usize> = taken.iter().map(|t| t.0).collect();
    sources.sort_unstable();
    sources.dedup();
    let place = |from: usize| sources.binary_search(&from).expect("a source that is used");
    let pieces = taken.into_iter().map(|(from, to, region)| (place(from), to, region)).collect();
    Pieces { sources, targets, pieces }
}

/// What is left of a region when a piece of it is cut out, as disjoint regions.
fn without(whole: &Region, piece: &Region) -> Vec<Region> {
    let mut rest = vec![];
    let mut core = whole.clone();
    for factor in 0..whole.0.len() {
        let (w, p) = (core.0[factor], piece.0[factor]);
        for side in [Interval { lo: w.lo, hi: p.lo }, Interval { lo: p.hi, hi: w.hi }] {
            if !side.is_empty() {
                let mut region = core.clone();
                region.0[factor] = side;
                rest.push(region);
            }
        }
        core.0[factor] = p;
    }
    rest
}
