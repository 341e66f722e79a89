//! Regions and numbers of `program.json`, each written once, and those in which the ranks of a role
//! differ as rows where they are rows: so that the tables of many ranks are no longer than those of few.

use std::collections::HashMap;

use program::PerRank;
use rules::{Interval, Region};

use crate::rows::Row;

/// Ranks and groups are listed as they are up to so many.
const LISTED: usize = 32;

/// The list of regions, in the order in which they are asked for.
#[derive(Default)]
pub(super) struct Regions<'a> {
    pub(super) texts: Vec<String>,
    same: HashMap<&'a Region, usize>,
    each: HashMap<&'a [Region], usize>,
    /// The same by where they lie in memory: columns are long, and are shared.
    seen: HashMap<*const Region, usize>,
}

impl<'a> Regions<'a> {
    pub(super) fn one(&mut self, region: &'a Region) -> usize {
        if let Some(known) = self.same.get(region) {
            return *known;
        }
        let number = self.add(listed(region.0.iter().map(interval)));
        self.same.insert(region, number);
        number
    }

    pub(super) fn per_rank(&mut self, per_rank: &'a PerRank<Region>) -> usize {
        let regions = match per_rank {
            PerRank::Same(region) => return self.one(region),
            PerRank::Each(regions) => &**regions,
        };
        if let Some(known) = self.seen.get(&regions.as_ptr()) {
            return *known;
        }
        let number = match self.each.get(regions) {
            Some(known) => *known,
            None => {
                let text = factors(regions).unwrap_or_else(|| self.named(regions));
                let number = self.add(text);
                self.each.insert(regions, number);
                number
            }
        };
        self.seen.insert(regions.as_ptr(), number);
        number
    }

    /// For each rank the number of its region.
    fn named(&mut self, regions: &'a [Region]) -> String {
        let numbers: Vec<usize> = regions.iter().map(|region| self.one(region)).collect();
        let mut distinct = numbers.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let at = |number: &usize| i64::try_from(distinct.partition_point(|n| n < number)).unwrap_or(i64::MAX);
        let row = Row::from_numbers(&numbers.iter().map(at).collect::<Vec<_>>()).filter(|row| row.from == 0);
        match row {
            Some(row) if distinct.len() < numbers.len() => {
                format!("{{\"of\": {}, \"by\": {}}}", listed(distinct), steps(&row))
            }
            _ => format!("{{\"of\": {}}}", listed(numbers)),
        }
    }

    fn add(&mut self, text: String) -> usize {
        self.texts.push(text);
        self.texts.len() - 1
    }
}

/// Intervals that are as long on every rank and begin in a row, for each factor.
fn factors(regions: &[Region]) -> Option<String> {
    let count = regions[0].0.len();
    let factor = |at: usize| {
        let first = regions[0].0[at];
        let len = first.len();
        if regions.iter().any(|region| region.0.len() != count || region.0[at].len() != len) {
            return None;
        }
        if regions.iter().all(|region| region.0[at] == first) {
            return Some(interval(&first));
        }
        let row = Row::from_numbers(&regions.iter().map(|region| region.0[at].lo).collect::<Vec<_>>())?;
        Some(format!("[{}, {}, {}]", first.lo, first.hi, steps(&row)))
    };
    Some(listed((0..count).map(factor).collect::<Option<Vec<_>>>()?))
}

/// A number for each rank of a role.
pub(super) fn numbers(per_rank: &PerRank<i64>) -> String {
    match per_rank {
        PerRank::Same(number) => number.to_string(),
        PerRank::Each(numbers) => row(numbers).unwrap_or_else(|| listed(&**numbers)),
    }
}

pub(super) fn ranks(ranks: &[program::RankId]) -> String {
    let numbers: Vec<i64> = ranks.iter().map(|rank| i64::from(rank.0)).collect();
    let short = (numbers.len() > LISTED).then(|| row(&numbers)).flatten();
    short.unwrap_or_else(|| listed(&numbers))
}

/// Groups that are the same row from other ranks on, and these ranks a row.
pub(super) fn groups(grouping: &[Vec<program::RankId>]) -> String {
    let long = grouping.iter().map(Vec::len).sum::<usize>() > LISTED;
    let short = || {
        let numbers =
            |group: &Vec<program::RankId>| group.iter().map(|rank| i64::from(rank.0)).collect::<Vec<_>>();
        let groups: Vec<Vec<i64>> = grouping.iter().map(numbers).collect();
        let first = Row::from_numbers(groups.first()?)?;
        let heads: Vec<i64> = groups.iter().filter_map(|group| group.first().copied()).collect();
        let equal =
            |(group, head): (&Vec<i64>, &i64)| Row { from: *head, by: first.by.clone() }.numbers() == *group;
        if heads.len() != groups.len() || !groups.iter().zip(&heads).all(equal) {
            return None;
        }
        let by = Row::from_numbers(&heads)?;
        Some(format!("{{\"from\": {}, \"by\": {}, \"of\": {}}}", by.from, steps(&by), steps(&first)))
    };
    let text = long.then(short).flatten();
    text.unwrap_or_else(|| listed(grouping.iter().map(|group| listed(group.iter().map(|rank| rank.0)))))
}

fn row(numbers: &[i64]) -> Option<String> {
    let row = Row::from_numbers(numbers)?;
    Some(format!("{{\"from\": {}, \"by\": {}}}", row.from, steps(&row)))
}

fn steps(row: &Row) -> String {
    listed(row.by.iter().map(|(size, step)| format!("[{size}, {step}]")))
}

fn interval(interval: &Interval) -> String {
    format!("[{}, {}]", interval.lo, interval.hi)
}

fn listed<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("[{}]", items.join(", "))
}
