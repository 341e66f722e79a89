//! Ranks of a role that compute, move and hold as much as each other, as the program's tables say.

use std::collections::{BTreeMap, HashSet};

use hashing::Map;
use program::{Arg, Cut, Instr, PerRank, RankId, Role};
use rules::{Interval, Region};

use crate::alone::Positions;
use crate::count;
use crate::state::Context;

/// Of each rank of a role the number of its kind, counted in the order in which kinds come.
pub(crate) fn kinds(cx: &mut Context<'_>, role: usize, positions: &mut Positions) -> Vec<usize> {
    let it = &cx.program.roles[role];
    let mut keys = Keys { role: it, of: vec![vec![]; it.ranks.len()] };
    keys.regions();
    keys.numbers();
    keys.exchanges(cx);
    keys.groups(cx, positions);
    let mut known: Map<Vec<u64>, usize> = Map::default();
    let number = |key: Vec<u64>| {
        let next = known.len();
        *known.entry(key).or_insert(next)
    };
    keys.of.into_iter().map(number).collect()
}

/// What ranks differ in.
struct Keys<'r> {
    role: &'r Role,
    of: Vec<Vec<u64>>,
}

/// How much it is. Where it lies, and whether it is the first, its code says: that is the role's, with its numbers.
fn size(interval: &Interval) -> u64 {
    interval.len().unsigned_abs()
}

impl Keys<'_> {
    fn regions(&mut self) {
        let mut seen = HashSet::new();
        for per_rank in self.role.table.regions() {
            let PerRank::Each(regions) = per_rank else { continue };
            if seen.insert(regions.as_ptr()) {
                self.extend(regions.iter().map(|region| region.0.iter().map(size)));
            }
        }
    }

    /// Mostly all ranks have the same: then it tells none of them apart.
    fn extend<K: IntoIterator<Item = u64>>(&mut self, more: impl Iterator<Item = K> + Clone) {
        let mut each = more.clone();
        let Some(first) = each.next().map(|first| first.into_iter().collect::<Vec<u64>>()) else { return };
        if !each.all(|it| it.into_iter().eq(first.iter().copied())) {
            self.of.iter_mut().zip(more).for_each(|(key, more)| key.extend(more));
        }
    }

    /// Of numbers that only say where slices lie, how long these are.
    fn numbers(&mut self) {
        let constants = &self.role.table.constants;
        let hole = |arg: &Arg| if let Arg::Hole(hole) = arg { Some(*hole as usize) } else { None };
        let (mut ends, mut others) = (vec![], HashSet::new());
        for instr in self.role.body.instrs() {
            match instr {
                Instr::Slice(slice) => {
                    others.extend(slice.extents.iter().flatten().filter_map(hole));
                    ends.extend(slice.region.iter().filter(|(lo, hi)| hole(lo).or(hole(hi)).is_some()));
                }
                _ => others.extend(instr.args().filter_map(|(arg, _)| hole(arg))),
            }
        }
        let all: HashSet<usize> = ends.iter().flat_map(|(lo, hi)| [hole(lo), hole(hi)]).flatten().collect();
        for (number, per_rank) in constants.iter().enumerate() {
            if let (PerRank::Each(values), true) =
                (per_rank, others.contains(&number) || !all.contains(&number))
            {
                self.extend(values.iter().map(|value| [*value as u64]));
            }
        }
        let get = |arg: &Arg, at: usize| match arg {
            Arg::Int(value) => *value,
            arg => hole(arg).map_or(0, |hole| *constants[hole].get(at)),
        };
        for (lo, hi) in ends {
            let count = self.of.len();
            self.extend((0..count).map(|at| [size(&Interval { lo: get(lo, at), hi: get(hi, at) })]));
        }
    }

    /// What goes and comes by tables.
    fn exchanges(&mut self, cx: &mut Context<'_>) {
        let places: BTreeMap<RankId, usize> =
            self.role.ranks.iter().enumerate().map(|(at, rank)| (*rank, at)).collect();
        // What has the same lists tells the same ranks apart.
        let mut seen = HashSet::new();
        for id in self.role.body.instrs().filter_map(Instr::exchange) {
            if !seen.insert(cx.program.exchanges[id.index()].lists_id()) {
                continue;
            }
            let sent = count::sent(cx, id);
            self.extend(self.role.ranks.iter().map(|rank| [sent.given(*rank), sent.got(*rank)]));
            for (rank, Region(region)) in cx.program.exchanges[id.index()].targets.iter() {
                if let Some(at) = places.get(rank) {
                    self.of[*at].extend(region.iter().map(size));
                }
            }
        }
    }

    /// How large groups are, and pieces of unequal sizes.
    fn groups(&mut self, cx: &Context<'_>, positions: &mut Positions) {
        let mut seen = HashSet::new();
        for instr in self.role.body.instrs() {
            let Some(grouping) = instr.group() else { continue };
            let places = positions.places(cx, grouping);
            let place = |rank: &RankId| places.get(&rank.0).copied().unwrap_or_default();
            let unequal = |cut: &&Cut| cut.sizes.windows(2).any(|two| two[0] != two[1]);
            let cuts: Vec<&Cut> = match instr {
                Instr::Collective(collective) => collective.how.cuts().filter(unequal).collect(),
                _ => vec![],
            };
            if cuts.is_empty() && !seen.insert(grouping) {
                continue;
            }
            let of_rank = |rank: &RankId| {
                let (at, count) = place(rank);
                let pieces = cuts.iter().map(move |cut| cut.sizes.get(at).copied().unwrap_or(0) as u64);
                std::iter::once(count as u64).chain(pieces)
            };
            self.of.iter_mut().zip(&self.role.ranks).for_each(|(key, rank)| key.extend(of_rank(rank)));
        }
    }
}
