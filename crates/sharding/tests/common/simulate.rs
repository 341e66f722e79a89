//! Hops applied to real tensors on simulated devices. A device sees what is on it, and in a collective what
//! is in its group.

use std::collections::BTreeMap;

use plan::random::Random;
use rules::{Reduction, Region};
use sharding::{Along, Hop, HopKind, Sharding};

/// What is on the devices: of each shard its values. Partial results of one region that are on one device
/// are numbered.
pub type Held = BTreeMap<(u32, Region, usize), Vec<i64>>;

/// The places of a region, in the order of its values.
fn places(region: &Region) -> Vec<Vec<i64>> {
    region.0.iter().fold(vec![vec![]], |found, interval| {
        let longer = |at: &Vec<i64>, i: i64| at.iter().copied().chain([i]).collect();
        found.iter().flat_map(|at| (interval.lo..interval.hi).map(move |i| longer(at, i))).collect()
    })
}

fn value(held: &Held, device: u32, number: usize, at: &[i64]) -> Option<i64> {
    let inside = |r: &Region| r.0.iter().zip(at).all(|(i, &x)| i.lo <= x && x < i.hi);
    let first = (device, Region([].into()), 0);
    let here = held.range(first..).take_while(|((d, _, _), _)| *d == device);
    let ((_, region, _), values) = here.into_iter().find(|((_, r, n), _)| *n == number && inside(r))?;
    let index = region.0.iter().zip(at).fold(0, |index, (i, x)| index * i.len() + x - i.lo);
    Some(values[index as usize])
}

/// Device, region, number on the device, and share.
fn keys(sharding: &Sharding) -> Vec<((u32, Region, usize), u32)> {
    let mut seen: BTreeMap<(u32, Region), usize> = BTreeMap::new();
    let mut number = |d: u32, r: &Region| {
        let next = seen.entry((d, r.clone())).or_default();
        *next += 1;
        *next - 1
    };
    sharding
        .shards()
        .into_iter()
        .map(|s| ((s.device, s.region.clone(), number(s.device, &s.region)), s.share))
        .collect()
}

fn combine(reduction: Reduction, values: impl Iterator<Item = i64>) -> i64 {
    match reduction {
        Reduction::Max => values.max().unwrap(),
        _ => values.sum(),
    }
}

/// A tensor's values, and what devices hold of them.
pub fn scatter(random: &mut Random, sharding: &Sharding) -> (BTreeMap<Vec<i64>, i64>, Held) {
    let shares = sharding.shares() as usize;
    let all = Region::whole(&sharding.sizes());
    let parts: BTreeMap<Vec<i64>, Vec<i64>> = (places(&all).into_iter())
        .map(|at| (at, (0..shares).map(|_| random.below(1000) as i64).collect()))
        .collect();
    let whole =
        parts.iter().map(|(at, p)| (at.clone(), combine(sharding.reduction(), p.iter().copied()))).collect();
    let values =
        |region: &Region, share: u32| places(region).iter().map(|at| parts[at][share as usize]).collect();
    let held = keys(sharding).into_iter().map(|(k, share)| (k.clone(), values(&k.1, share))).collect();
    (whole, held)
}

/// Whether the devices hold this tensor, in this spread.
pub fn is_there(sharding: &Sharding, held: &Held, whole: &BTreeMap<Vec<i64>, i64>) -> bool {
    let mut shares: BTreeMap<(Region, u32), &Vec<i64>> = BTreeMap::new();
    for (key, share) in keys(sharding) {
        let Some(values) = held.get(&key) else { return false };
        if *shares.entry((key.1, share)).or_insert(values) != values {
            return false;
        }
    }
    shares.keys().filter(|(_, share)| *share == 0).all(|(region, _)| {
        let part = |share: u32| shares[&(region.clone(), share)];
        let total = |i: usize| combine(sharding.reduction(), (0..sharding.shares()).map(|s| part(s)[i]));
        places(region).iter().enumerate().all(|(i, at)| total(i) == whole[at])
    }) && held.len() == keys(sharding).len()
}

pub fn apply(hop: &Hop, held: &Held) -> Held {
    let groups = hop.groups();
    let in_turn = hop.axes.iter().any(|a| a.in_turn());
    let from = keys(&hop.from);
    let how = if hop.to.partial().is_empty() { hop.from.reduction() } else { hop.to.reduction() };
    let made = |(key, share): ((u32, Region, usize), u32)| {
        let (device, region, number) = &key;
        let mine = groups.iter().find(|g| g.contains(device)).cloned().unwrap_or_default();
        let here = |at: &[i64], n: usize| value(held, *device, n, at);
        // All partial results on this device, as one.
        let summed = |at: &[i64]| combine(how, (0..).map_while(|n| here(at, n)));
        let first_of_all = |at: &[i64]| if *number == 0 || how != Reduction::Sum { summed(at) } else { 0 };
        let at = |at: &Vec<i64>| match hop.kind {
            HopKind::Slice => here(at, *number).expect("it is here"),
            HopKind::Share | HopKind::Collective(Along::AllReduce(_)) if in_turn => first_of_all(at),
            HopKind::Share if mine[0] == *device || how != Reduction::Sum => {
                here(at, *number).expect("it is here")
            }
            HopKind::Share => 0,
            HopKind::Collective(Along::AllReduce(_) | Along::ReduceScatter(_)) => {
                combine(how, mine.iter().map(|&d| value(held, d, *number, at).expect("each has a part")))
            }
            HopKind::Collective(Along::AllGather(_) | Along::AllToAll { .. }) => {
                let found: Vec<i64> = mine.iter().filter_map(|&d| value(held, d, *number, at)).collect();
                assert_eq!(found.len(), 1, "one of the group has it");
                found[0]
            }
            HopKind::Permute | HopKind::Send => {
                let of = |((_, r, _), s): &&((u32, Region, usize), u32)| r == region && *s == share;
                let (source, _) = from.iter().find(of).expect("a device has the shard");
                value(held, source.0, source.2, at).expect("it has its values")
            }
        };
        (key.clone(), places(region).iter().map(at).collect())
    };
    keys(&hop.to).into_iter().map(made).collect()
}
