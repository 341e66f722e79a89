//! What backward computes again: which operators, and in which order it comes to need them.
//!
//! Of a segment in a span forward keeps nothing. Before its backward it is called again, and before that
//! whatever makes what it reads, as far as that is in a span with it. What comes from outside is kept.
//!
//! What is dear to compute, stands in no span and reads from one keeps what it gives, and nothing of what it
//! reads: before its backward that is computed again, and given to it.

use std::collections::{BTreeSet, HashMap, HashSet};

use program::Saves;

use crate::event::{Event, ReshardPath};
use crate::layout::{Interner, LayoutId};
use crate::segments::Segments;
use crate::uses::{Context, UseId, Uses};

/// What has been computed again so far, while backward is scheduled.
pub struct Recomputed {
    /// Of each segment, if its values are there, in how many spans a reader may be with it: what is inside of
    /// further ones was for those that were computed with it, and is gone.
    values: Vec<Option<usize>>,
    /// Whether they are there with what its backward needs.
    saved: Vec<bool>,
    moved: HashSet<UseId>,
}

/// What is known when backward is scheduled.
pub struct Known<'a> {
    pub cx: &'a Context<'a>,
    pub uses: &'a Uses,
    pub segments: &'a Segments,
    pub interner: &'a Interner,
}

impl Recomputed {
    pub fn new(segments: usize) -> Self {
        Self { values: vec![None; segments], saved: vec![false; segments], moved: HashSet::new() }
    }

    /// What is computed and moved again before the backward of a segment, and whether the segment itself is
    /// called again for it, or is given again what it reads.
    pub fn before(
        &mut self,
        known: &Known<'_>,
        segment: usize,
        ways: &HashMap<UseId, ReshardPath>,
    ) -> (Vec<Event>, bool) {
        let current = &known.segments.all[segment];
        if matches!(current.saves, Saves::All { .. }) || self.saved[segment] {
            return (vec![], false);
        }
        let mut events = vec![];
        let all = self.needed(known, segment);
        let moved_of = |id: &UseId| known.maker(*id).is_some_and(|maker| all.contains(&maker));
        self.moved.retain(|id| !moved_of(id));
        for &needed in &all {
            self.moves(known, needed, ways, &mut events);
            if needed != segment {
                let it = &known.segments.all[needed];
                // Its own backward follows before that of the spans around both ends: what that needs is made at once.
                let saves = it.saves == Saves::Nothing
                    && (matches!(current.saves, Saves::Made { .. })
                        || current.inside.starts_with(&it.inside));
                events.push(Event::Recompute { segment: needed, saves });
                self.saved[needed] |= saves;
            }
            let shared = known.shared(needed, segment);
            self.values[needed] = Some(if self.saved[needed] { usize::MAX } else { shared });
        }
        (self.saved[segment], self.values[segment]) = (true, Some(usize::MAX));
        (events, true)
    }

    /// The segment and all that must be computed again for it, in order.
    fn needed(&self, known: &Known<'_>, segment: usize) -> BTreeSet<usize> {
        let (mut needed, mut open) = (BTreeSet::from([segment]), vec![segment]);
        while let Some(reader) = open.pop() {
            for id in known.reads(reader) {
                let Some(maker) = known.maker(id) else { continue };
                let shared = known.shared(maker, reader);
                let there = self.values[maker].is_some_and(|within| shared <= within);
                if shared > 0 && !there && needed.insert(maker) {
                    open.push(maker);
                }
            }
        }
        needed
    }

    /// Moves again what a segment reads of others that are computed again, and what is smaller before it is moved.
    fn moves(
        &mut self,
        known: &Known<'_>,
        reader: usize,
        ways: &HashMap<UseId, ReshardPath>,
        events: &mut Vec<Event>,
    ) {
        for id in known.reads(reader) {
            let Some(maker) = known.maker(id) else { continue };
            let Some(path) = ways.get(&id).cloned() else { continue };
            let recomputed = known.shared(maker, reader) > 0 || known.size(path.to) > known.size(path.from);
            if recomputed && self.moved.insert(id) {
                events.push(Event::MoveRecomputed { id, path });
            }
        }
    }
}

impl Known<'_> {
    /// The uses through which a segment's operators read, in order and each once.
    fn reads(&self, segment: usize) -> Vec<UseId> {
        let (mut uses, mut seen) = (vec![], HashSet::new());
        for op in &self.segments.all[segment].ops {
            let reads = &self.cx.placements[op.index()].inputs;
            for (tensor, read) in self.cx.graph.op(*op).inputs().into_iter().zip(reads) {
                let id = self.uses.through(tensor, read.ports, read.carries_grad);
                if seen.insert(id) {
                    uses.push(id);
                }
            }
        }
        uses
    }

    fn maker(&self, id: UseId) -> Option<usize> {
        let (op, _) = self.cx.graph.producer(self.uses.get(id).tensor)?;
        Some(self.segments.of[op.index()])
    }

    /// How many spans hold both. What reads all again is as one of the span that it reads from.
    fn shared(&self, maker: usize, reader: usize) -> usize {
        let inside = |segment: usize| self.segments.all[segment].inside.iter();
        if self.segments.all[maker].block != self.segments.all[reader].block {
            return 0;
        }
        if matches!(self.segments.all[reader].saves, Saves::Made { .. }) {
            return inside(maker).count();
        }
        inside(maker).zip(inside(reader)).take_while(|(a, b)| a == b).count()
    }

    /// Elements on all ranks.
    fn size(&self, layout: LayoutId) -> i64 {
        self.interner.get(layout).entries.iter().map(|entry| entry.region.numel()).sum()
    }
}
