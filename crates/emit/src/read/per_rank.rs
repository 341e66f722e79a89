//! Regions and numbers of `program.json`, read back: rows become what they are rows of.

use std::cell::RefCell;
use std::collections::HashMap;

use diag::Result;
use program::{Grouping, PerRank, RankId};
use rules::{Interval, Region};

use super::json::{Node, index, int};
use crate::rows::Row;

/// The list of regions.
pub(super) struct Regions {
    all: Vec<TableEntry>,
    /// Columns as they were made for roles of so many ranks: equal ones are one in memory.
    made: RefCell<HashMap<(usize, usize), PerRank<Region>>>,
}

enum TableEntry {
    One(Region),
    /// For each factor the interval on the first rank, and how it moves on from there.
    Factors(Vec<(Interval, Option<Row>)>),
    /// Of which regions, and which of them on each rank.
    Named(Vec<usize>, Option<Row>),
}

impl Regions {
    pub(super) fn read(node: &Node<'_>) -> Result<Self> {
        Ok(Self { all: node.list(entry)?, made: RefCell::default() })
    }

    pub(super) fn one(&self, node: &Node<'_>) -> Result<Region> {
        match self.all.get(node.index()?) {
            Some(TableEntry::One(region)) => Ok(region.clone()),
            Some(_) => Err(node.refuse("one region is expected here, not one for each rank")),
            None => Err(node.refuse("there is no region of this number")),
        }
    }

    /// The regions of so many ranks.
    pub(super) fn per_rank(&self, node: &Node<'_>, ranks: usize) -> Result<PerRank<Region>> {
        let number = node.index()?;
        if let Some(known) = self.made.borrow().get(&(number, ranks)) {
            return Ok(known.clone());
        }
        let entry = self.all.get(number).ok_or_else(|| node.refuse("there is no region of this number"))?;
        let per_rank = self.expanded(entry, ranks);
        let per_rank = per_rank
            .ok_or_else(|| node.refuse(format!("the region is not one for each of {ranks} ranks")))?;
        self.made.borrow_mut().insert((number, ranks), per_rank.clone());
        Ok(per_rank)
    }

    fn expanded(&self, entry: &TableEntry, ranks: usize) -> Option<PerRank<Region>> {
        let regions: Vec<Region> = match entry {
            TableEntry::One(region) => return Some(PerRank::Same(region.clone())),
            TableEntry::Factors(factors) => {
                let moved = |(interval, row): &(Interval, Option<Row>)| match row {
                    None => Some(vec![*interval; ranks]),
                    Some(row) if row.count() == Some(ranks) => {
                        let len = interval.hi.checked_sub(interval.lo)?;
                        let at = |lo: i64| Some(Interval { lo, hi: lo.checked_add(len)? });
                        row.numbers().into_iter().map(at).collect()
                    }
                    Some(_) => None,
                };
                let factors: Vec<Vec<Interval>> = factors.iter().map(moved).collect::<Option<_>>()?;
                (0..ranks).map(|at| Region(factors.iter().map(|of_factor| of_factor[at]).collect())).collect()
            }
            TableEntry::Named(numbers, row) => {
                let at: Vec<usize> = match row {
                    None => (0..numbers.len()).collect(),
                    Some(row) if row.count() == Some(ranks) => {
                        row.numbers().into_iter().map(|n| usize::try_from(n).ok()).collect::<Option<_>>()?
                    }
                    Some(_) => return None,
                };
                let one = |at: usize| match self.all.get(*numbers.get(at)?)? {
                    TableEntry::One(region) => Some(region.clone()),
                    _ => None,
                };
                at.into_iter().map(one).collect::<Option<_>>()?
            }
        };
        (regions.len() == ranks && ranks > 0).then(|| PerRank::from_values(regions))
    }
}

fn entry(node: &Node<'_>) -> Result<TableEntry> {
    if node.is_object() {
        return Ok(TableEntry::Named(
            node.get("of")?.list(index)?,
            node.maybe("by")?.map(|by| row(0, &by)).transpose()?,
        ));
    }
    let factors = node.list(|factor| {
        let ends = |lo: &Node<'_>, hi: &Node<'_>| Ok(Interval { lo: lo.int()?, hi: hi.int()? });
        if factor.len()? == 3 {
            let [lo, hi, by] = factor.tuple()?;
            let interval = ends(&lo, &hi)?;
            return Ok((interval, Some(row(interval.lo, &by)?)));
        }
        let [lo, hi] = factor.tuple()?;
        Ok((ends(&lo, &hi)?, None))
    })?;
    if factors.iter().any(|(_, row)| row.is_some()) {
        return Ok(TableEntry::Factors(factors));
    }
    Ok(TableEntry::One(Region(factors.into_iter().map(|(interval, _)| interval).collect())))
}

/// Steps from a number on.
fn row(from: i64, by: &Node<'_>) -> Result<Row> {
    let by = by.list(|step| {
        let [size, step] = step.tuple()?;
        Ok((size.index()?, step.int()?))
    })?;
    Ok(Row { from, by })
}

/// A number for each of so many ranks.
pub(super) fn numbers(node: &Node<'_>, ranks: usize) -> Result<PerRank<i64>> {
    if node.is_int() {
        return Ok(PerRank::Same(node.int()?));
    }
    let numbers = list(node, ranks)?;
    let fits = numbers.len() == ranks && ranks > 0;
    if fits {
        Ok(PerRank::from_values(numbers))
    } else {
        Err(node.refuse(format!("there must be a number for each of {ranks} ranks")))
    }
}

/// Ranks of a role or of a group, as a list or as a row of at most all ranks.
pub(super) fn ranks(node: &Node<'_>, world: u32) -> Result<Vec<RankId>> {
    list(node, world as usize)?.into_iter().map(|n| rank(node, n, world)).collect()
}

fn rank(node: &Node<'_>, number: i64, world: u32) -> Result<RankId> {
    match u32::try_from(number) {
        Ok(rank) if rank < world => Ok(RankId(rank)),
        _ => Err(node.refuse(format!("there is no rank {number} among {world}"))),
    }
}

pub(super) fn grouping(node: &Node<'_>, world: u32) -> Result<Grouping> {
    if !node.is_object() {
        return node.list(|group| ranks(group, world));
    }
    let heads = list(node, world as usize)?;
    let offsets = row(0, &node.get("of")?)?;
    let many = || node.refuse(format!("these are more ranks than {world}"));
    let count = offsets.count().and_then(|count| count.checked_mul(heads.len()));
    count.filter(|count| *count <= world as usize).ok_or_else(many)?;
    let group = |head: i64| {
        let members = Row { from: head, by: offsets.by.clone() }.numbers();
        members.into_iter().map(|n| rank(node, n, world)).collect()
    };
    heads.into_iter().map(group).collect()
}

/// A list of numbers, or a row of at most so many.
fn list(node: &Node<'_>, most: usize) -> Result<Vec<i64>> {
    if !node.is_object() {
        return node.list(int);
    }
    let row = row(node.get("from")?.int()?, &node.get("by")?)?;
    if row.count().is_none_or(|count| count > most) {
        return Err(node.refuse(format!("this is a row of more than {most} numbers")));
    }
    Ok(row.numbers())
}
