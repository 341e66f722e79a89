//! What ranks that do the same differ in: a region or a number for each of them, kept once.

use std::collections::HashMap;
use std::rc::Rc;

use indexmap::IndexSet;
use program::{Arg, PerRank, RankId};
use rules::Region;

graph::id!(
    /// A region of each rank.
    RegionsId
);
graph::id!(
    /// A number of each rank.
    NumbersId
);

/// Ranks that do different things, by what they do.
#[derive(Debug)]
pub struct Apart(pub Vec<Vec<RankId>>);

pub type Asked<T> = Result<T, Apart>;

/// Where something begins, and where it ends.
pub type Ends = Rc<Vec<(NumbersId, NumbersId)>>;

/// What each rank answers, given its position, if all answer the same.
pub fn agreed<T: PartialEq>(ranks: &[RankId], mut answer: impl FnMut(usize) -> T) -> Asked<T> {
    let first = answer(0);
    if (1..ranks.len()).all(|at| answer(at) == first) {
        return Ok(first);
    }
    let mut kinds: Vec<(T, Vec<RankId>)> = vec![];
    for (at, rank) in ranks.iter().enumerate() {
        let value = answer(at);
        match kinds.iter_mut().find(|kind| kind.0 == value) {
            Some(kind) => kind.1.push(*rank),
            None => kinds.push((value, vec![*rank])),
        }
    }
    Err(Apart(kinds.into_iter().map(|kind| kind.1).collect()))
}

pub struct PerRankValues<'a> {
    ranks: &'a [RankId],
    regions: IndexSet<PerRank<Region>>,
    numbers: IndexSet<PerRank<i64>>,
    same: HashMap<(RegionsId, RegionsId), bool>,
    contains: HashMap<(RegionsId, RegionsId), bool>,
    lengths: HashMap<RegionsId, Rc<Vec<NumbersId>>>,
    within: HashMap<(RegionsId, RegionsId), Ends>,
}

impl<'a> PerRankValues<'a> {
    pub fn new(ranks: &'a [RankId]) -> Self {
        Self {
            ranks,
            regions: IndexSet::new(),
            numbers: IndexSet::new(),
            same: HashMap::new(),
            contains: HashMap::new(),
            lengths: HashMap::new(),
            within: HashMap::new(),
        }
    }

    pub fn region(&self, id: RegionsId) -> &PerRank<Region> {
        &self.regions[id.index()]
    }

    pub fn add(&mut self, per_rank: PerRank<Region>) -> RegionsId {
        RegionsId::new(self.regions.insert_full(per_rank).0)
    }

    pub fn number(&mut self, per_rank: PerRank<i64>) -> NumbersId {
        NumbersId::new(self.numbers.insert_full(per_rank).0)
    }

    /// Until the role's holes are named, a number that differs is the hole of its column.
    pub fn arg(&self, id: NumbersId) -> Arg {
        match &self.numbers[id.index()] {
            PerRank::Same(number) => Arg::Int(*number),
            PerRank::Each(_) => Arg::Hole(id.0),
        }
    }

    pub fn into_numbers(self) -> Vec<PerRank<i64>> {
        self.numbers.into_iter().collect()
    }

    pub fn same(&mut self, a: RegionsId, b: RegionsId) -> Asked<bool> {
        if a == b {
            return Ok(true);
        }
        if let Some(known) = self.same.get(&(a, b)) {
            return Ok(*known);
        }
        let (left, right) = (self.region(a), self.region(b));
        let is_same = agreed(self.ranks, |at| left.get(at) == right.get(at))?;
        Ok(*self.same.entry((a, b)).or_insert(is_same))
    }

    pub fn contains(&mut self, outer: RegionsId, inner: RegionsId) -> Asked<bool> {
        if let Some(known) = self.contains.get(&(outer, inner)) {
            return Ok(*known);
        }
        let (left, right) = (self.region(outer), self.region(inner));
        let is_inside = agreed(self.ranks, |at| left.get(at).contains(right.get(at)))?;
        Ok(*self.contains.entry((outer, inner)).or_insert(is_inside))
    }

    /// The lengths of a region's intervals.
    pub fn lengths(&mut self, region: RegionsId) -> Rc<Vec<NumbersId>> {
        if let Some(known) = self.lengths.get(&region) {
            return Rc::clone(known);
        }
        let per_rank = self.region(region).clone();
        let lengths = self.each(&[&per_rank], |regions| regions[0].0.iter().map(|i| i.len()).collect());
        Rc::clone(self.lengths.entry(region).or_insert(Rc::new(lengths)))
    }

    /// Where one region begins and ends in another.
    pub fn within(&mut self, whole: RegionsId, wanted: RegionsId) -> Ends {
        if let Some(known) = self.within.get(&(whole, wanted)) {
            return Rc::clone(known);
        }
        let per_rank = [&self.region(whole).clone(), &self.region(wanted).clone()];
        let ends = |regions: &[&Region]| {
            regions[1].within(regions[0]).0.iter().flat_map(|i| [i.lo, i.hi]).collect::<Vec<i64>>()
        };
        let flat = self.each(&per_rank, ends);
        let pairs = flat.chunks(2).map(|pair| (pair[0], pair[1])).collect();
        Rc::clone(self.within.entry((whole, wanted)).or_insert(Rc::new(pairs)))
    }

    /// As many numbers for each rank, as columns.
    fn each(
        &mut self,
        per_rank: &[&PerRank<Region>],
        numbers_of: impl Fn(&[&Region]) -> Vec<i64>,
    ) -> Vec<NumbersId> {
        let role_ranks = per_rank.iter().all(|per_rank| matches!(per_rank, PerRank::Same(_)));
        let ranks = if role_ranks { 1 } else { self.ranks.len() };
        let values_at =
            |at: usize| numbers_of(&per_rank.iter().map(|per_rank| per_rank.get(at)).collect::<Vec<_>>());
        let values: Vec<Vec<i64>> = (0..ranks).map(values_at).collect();
        let per_rank = |i: usize| PerRank::from_values(values.iter().map(|row| row[i]).collect());
        let all: Vec<PerRank<i64>> = (0..values[0].len()).map(per_rank).collect();
        all.into_iter().map(|per_rank| self.number(per_rank)).collect()
    }
}
