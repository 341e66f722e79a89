//! Routes beside all sequences of up to three hops between all spreads of small arrangements. What one hop
//! can do is found here from the shards alone.

use std::collections::{BTreeMap, BTreeSet};

use rules::{Interval, Reduction, Region};
use sharding::{Axis, Cut, Mesh, Shard, Sharding, route};

/// Axes that are never one: routes go along axes that one of their ends has.
fn axes(sizes: &[u32]) -> Vec<Axis> {
    let mut stride = 1;
    let mut axis = |size: u32| {
        stride = stride * size + 1;
        Axis::new(size, stride)
    };
    sizes.iter().map(|&size| axis(size)).collect()
}

/// A spread with its shards, one on each device.
struct Known {
    sharding: Sharding,
    shards: Vec<Shard>,
}

/// Every spread of a tensor over these axes.
fn all(sizes: &[i64], axes: &[Axis]) -> Vec<Known> {
    let mut found: Vec<(Vec<Vec<Axis>>, Vec<Axis>)> = vec![(vec![vec![]; sizes.len() + 1], vec![])];
    for &axis in axes {
        let mut longer = vec![];
        for (chains, copies) in &found {
            longer.push((chains.clone(), [&copies[..], &[axis]].concat()));
            for (slot, at) in (0..chains.len()).flat_map(|s| (0..=chains[s].len()).map(move |at| (s, at))) {
                let mut chains = chains.clone();
                chains[slot].insert(at, axis);
                longer.push((chains, copies.clone()));
            }
        }
        found = longer;
    }
    let sharding = |(chains, copies): &(Vec<Vec<Axis>>, Vec<Axis>)| {
        let cuts = chains.iter().zip(sizes).map(|(c, &size)| Cut::nested(size, c.clone())).collect();
        let fits =
            chains.iter().zip(sizes).all(|(c, &s)| c.iter().map(|a| i64::from(a.size)).product::<i64>() <= s);
        fits.then(|| Sharding::new(0, cuts, &chains[sizes.len()], copies, Reduction::Sum)).flatten()
    };
    let mut known: Vec<Known> = vec![];
    for sharding in found.iter().filter_map(sharding) {
        if !known.iter().any(|k| k.sharding == sharding) {
            known.push(Known { shards: sharding.shards(), sharding });
        }
    }
    known
}

/// All groupings: along each set of the axes.
fn groupings(axes: &[Axis]) -> Vec<Vec<Vec<u32>>> {
    let on = Mesh::new(0, axes).unwrap();
    let along =
        |mask: usize| (0..axes.len()).filter(|a| mask >> a & 1 == 1).map(|a| axes[a]).collect::<Vec<Axis>>();
    (1..1 << axes.len()).map(|mask| on.groups(&along(mask)).unwrap()).collect()
}

/// Whether the intervals of a factor follow each other, and are all that the group has.
fn tile(regions: &[&Region], factor: usize) -> Option<Region> {
    let mut all: Vec<Interval> = regions.iter().map(|r| r.0[factor]).collect();
    all.sort_unstable();
    let follow = all.windows(2).all(|w| w[0].hi == w[1].lo);
    let equal = regions.iter().all(|r| (0..r.0.len()).all(|f| f == factor || r.0[f] == regions[0].0[f]));
    (follow && equal).then(|| regions.iter().fold(regions[0].clone(), |hull, r| hull.hull(r)))
}

/// Whether what one side calls a share always has one name on the other side.
fn named(pairs: impl Iterator<Item = (u32, u32)>) -> bool {
    let mut names = BTreeMap::new();
    pairs.into_iter().all(|(a, b)| *names.entry(a).or_insert(b) == b)
}

/// The fewest elements of one hop.
fn one_hop(a: &Known, b: &Known, groupings: &[Vec<Vec<u32>>]) -> Option<u64> {
    let (x, y) = (&a.shards, &b.shards);
    let pairs = || x.iter().zip(y);
    let (more, fewer) =
        (named(pairs().map(|(a, b)| (b.share, a.share))), named(pairs().map(|(a, b)| (a.share, b.share))));
    let largest = |of: &[Shard]| of.iter().map(|s| s.region.numel().unsigned_abs()).max().unwrap();
    // Slices, and whole values that become partial ones.
    if more
        && (fewer || pairs().all(|(a, b)| a.region == b.region))
        && pairs().all(|(a, b)| a.region.contains(&b.region))
    {
        return Some(0);
    }
    let mut best: Option<u64> = None;
    let mut found = |elements: u64| best = Some(best.map_or(elements, |known| known.min(elements)));
    let regions = |of: &[Shard]| of.iter().map(|s| s.region.clone()).collect::<BTreeSet<Region>>();
    if a.sharding.shares() == b.sharding.shares() && regions(x) == regions(y) {
        found(largest(x));
    }
    for groups in groupings {
        let n = groups[0].len() as u64;
        let others = |elements: u64| (elements * (n - 1)).div_ceil(n);
        let of = |shards: &'_ [Shard], g: &[u32]| {
            g.iter().map(|&d| shards.iter().find(|s| s.device == d).unwrap().clone()).collect::<Vec<Shard>>()
        };
        let pairs: Vec<(Vec<Shard>, Vec<Shard>)> = groups.iter().map(|g| (of(x, g), of(y, g))).collect();
        let every = |holds: &dyn Fn(&[&Region], &[&Region]) -> bool| {
            pairs.iter().all(|(p, q)| {
                let regions = |of: &'_ [Shard]| of.iter().map(|s| s.region.clone()).collect::<Vec<Region>>();
                let (p, q) = (regions(p), regions(q));
                holds(&p.iter().collect::<Vec<_>>(), &q.iter().collect::<Vec<_>>())
            })
        };
        let same = |regions: &[&Region]| regions.iter().all(|r| *r == regions[0]);
        let factors = 0..x[0].region.0.len();
        if more && fewer {
            for f in factors.clone() {
                if every(&|p, q| same(q) && tile(p, f).as_ref() == Some(q[0])) {
                    found(others(largest(y)));
                }
                for g in factors.clone().filter(|g| *g != f) {
                    let order = |of: &[&Region], f: usize| {
                        let mut order: Vec<usize> = (0..of.len()).collect();
                        order.sort_by_key(|&i| of[i].0[f]);
                        order
                    };
                    let fits = |p: &[&Region], q: &[&Region]| {
                        tile(p, f).is_some() && tile(p, f) == tile(q, g) && order(p, f) == order(q, g)
                    };
                    if every(&fits) {
                        found(others(largest(x).max(largest(y))));
                    }
                }
            }
        }
        // The shares of a group are one share afterwards.
        let fewest = fewer && b.sharding.shares() * n as u32 == a.sharding.shares();
        let distinct = |p: &[Shard]| p.iter().map(|s| s.share).collect::<BTreeSet<u32>>().len() == p.len();
        let one = |q: &[Shard]| q.iter().all(|s| s.share == q[0].share);
        if fewest && pairs.iter().all(|(p, q)| distinct(p) && one(q)) {
            if every(&|p, q| same(p) && same(q) && p[0] == q[0]) {
                found(others(2 * largest(x)));
            }
            for f in factors {
                if every(&|p, q| same(p) && tile(q, f).as_ref() == Some(p[0])) {
                    found(others(largest(x)));
                }
            }
        }
    }
    best
}

fn never_dearer(sizes: &[i64], axes: &[Axis]) {
    let known = all(sizes, axes);
    let groupings = groupings(axes);
    let count = known.len();
    let costs: Vec<Vec<Option<u64>>> =
        known.iter().map(|a| known.iter().map(|b| one_hop(a, b, &groupings)).collect()).collect();
    let after = |so_far: &[Option<u64>]| -> Vec<Option<u64>> {
        let through = |b: usize| (0..count).filter_map(|m| Some(so_far[m]? + costs[m][b]?)).min();
        (0..count).map(|b| so_far[b].into_iter().chain(through(b)).min()).collect()
    };
    for (from, row) in known.iter().zip(&costs) {
        let best = after(&after(row));
        for (to, best) in known.iter().zip(&best) {
            let hops = route(&from.sharding, &to.sharding, 1).unwrap();
            let found: u64 = hops.iter().map(|h| h.bytes).sum();
            let ends = || {
                format!(
                    "{:?}\n{:?}\n{}",
                    from.sharding,
                    to.sharding,
                    hops.iter()
                        .map(|h| format!("{:?} {:?} {}", h.kind, h.axes, h.bytes))
                        .collect::<Vec<_>>()
                        .join("; ")
                )
            };
            assert!(best.is_none_or(|best| found <= best), "{found} elements, not {best:?}\n{}", ends());
            assert!(
                hops.len() > 3 || best.is_some_and(|best| best <= found),
                "{found} for {best:?}\n{}",
                ends()
            );
        }
    }
}

#[test]
fn routes_are_never_dearer_than_up_to_three_hops() {
    never_dearer(&[8], &axes(&[2, 2]));
    never_dearer(&[8, 8], &axes(&[2, 2]));
    never_dearer(&[6, 12], &axes(&[3, 2]));
    never_dearer(&[16, 16], &axes(&[2, 4]));
    never_dearer(&[8, 4, 6], &axes(&[2, 2]));
    never_dearer(&[32], &axes(&[2, 2, 2]));
    never_dearer(&[8, 16], &axes(&[2, 2, 2]));
}

#[test]
fn nor_are_routes_of_uneven_shards() {
    never_dearer(&[5], &axes(&[2, 2]));
    never_dearer(&[7, 9], &axes(&[2, 2]));
    never_dearer(&[7, 13], &axes(&[2, 3]));
}
