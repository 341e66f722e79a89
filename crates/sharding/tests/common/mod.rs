//! Random spreads.

pub mod simulate;

use plan::random::Random;
use rules::Reduction;
use sharding::{Axis, Cut, Mesh, Pieces, Sharding};

pub fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len())]
}

/// Sizes of one to three factors.
pub fn sizes(random: &mut Random) -> Vec<i64> {
    let largest: &[i64] = match random.below(3) {
        0 => &[8, 12, 13, 24],
        1 => &[2, 3, 4, 5, 6, 7, 8],
        _ => &[1, 2, 3, 4, 5],
    };
    let count = if largest[0] == 8 { 1 } else { 2 + random.below(2) };
    (0..count).map(|_| pick(random, largest)).collect()
}

/// A random row of axes, some with holes between them, of at most `most` devices.
pub fn mesh(random: &mut Random, most: u32) -> Mesh {
    let (mut axes, mut count, mut next) = (vec![], 1, 1);
    for _ in 0..random.below(4) {
        let size = pick(random, &[2, 2, 3, 4, 6]);
        if count * size > most {
            break;
        }
        count *= size;
        axes.push(Axis::new(size, next + u32::try_from(random.below(5) / 4).unwrap()));
        next = axes.iter().map(|a| (a.size - 1) * a.stride).sum::<u32>() + 1;
    }
    Mesh::new(pick(random, &[0, 0, 3, 8]), &axes).unwrap()
}

/// The same devices with axes split at random.
pub fn split(random: &mut Random, axes: &[Axis]) -> Vec<Axis> {
    let mut found = vec![];
    for &axis in axes {
        match axis.split(pick(random, &[2, 3, 4])).filter(|_| random.below(3) > 0) {
            Some((outer, inner)) => found.extend(split(random, &[outer, inner])),
            None => found.push(axis),
        }
    }
    found
}

/// A random spread of a tensor over these devices.
pub fn sharding(random: &mut Random, sizes: &[i64], on: &Mesh, reduction: Reduction) -> Sharding {
    let mut axes = split(random, on.axes());
    for at in (1..axes.len()).rev() {
        axes.swap(at, random.below(at + 1));
    }
    if random.below(5) == 0 {
        axes.insert(random.below(axes.len() + 1), Axis::new(2, 0));
    }
    let mut chains: Vec<Vec<Axis>> = vec![vec![]; sizes.len()];
    let (mut partial, mut copies) = (vec![], vec![]);
    for axis in axes {
        let role = random.below(sizes.len() + 2);
        let room =
            sizes.get(role).map(|s| s / chains[role].iter().map(|a| i64::from(a.size)).product::<i64>());
        match room {
            Some(room) if room >= i64::from(axis.size) => chains[role].push(axis),
            None if role == sizes.len() => partial.push(axis),
            _ => copies.push(axis),
        }
    }
    let cuts = chains.into_iter().zip(sizes).map(|(axes, &size)| cut(random, size, axes)).collect();
    Sharding::new(on.base(), cuts, &partial, &copies, reduction).expect("a spread")
}

/// Balanced as a whole or one axis after another, or with sizes of their own.
fn cut(random: &mut Random, size: i64, axes: Vec<Axis>) -> Cut {
    let count: u32 = axes.iter().map(|a| a.size).product();
    let pieces = match random.below(4) {
        0 => {
            let mut sizes = vec![1; count as usize];
            (0..size - i64::from(count)).for_each(|_| sizes[random.below(count as usize)] += 1);
            Pieces::from_sizes(&sizes)
        }
        1 => Pieces::balanced(size, count),
        _ => return Cut::nested(size, axes),
    };
    Cut { axes, pieces }
}
