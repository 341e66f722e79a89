//! The devices as a row of digits.

use cluster::Cluster;
use sharding::{AXES, AxisSet};

/// So many digits between nodes, and inside of them.
const MOST: usize = AXES / 2;

/// Each device is a row of digits, those of its node before those inside of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Digits {
    pub(super) sizes: Vec<u32>,
    /// How many of the first are the same for all devices of a node.
    pub(super) outside: usize,
}

impl Digits {
    pub(crate) fn new(cluster: &Cluster, devices: u32) -> Self {
        let each = u32::try_from(cluster.nodes[0].devices.len()).unwrap_or(1);
        let even = (0..devices).all(|at| cluster.node(at) == (at / each) as usize) && devices % each == 0;
        let (nodes, inside) = if even { (devices / each, each) } else { (1, devices) };
        let (outer, inner) = (digits(nodes), digits(inside));
        Self { outside: outer.len(), sizes: [outer, inner].concat() }
    }

    pub(super) fn len(&self) -> usize {
        self.sizes.len()
    }

    pub(super) fn count(&self, set: AxisSet) -> u32 {
        set.axes().map(|at| self.sizes[at]).product()
    }

    fn stride(&self, at: usize) -> u32 {
        self.sizes[at + 1..].iter().product()
    }

    /// Those that are inside of a node.
    pub(super) fn inside(&self) -> AxisSet {
        (self.outside..self.len()).fold(AxisSet::default(), AxisSet::with)
    }

    /// Devices that differ in these digits alone, group after group.
    pub(super) fn groups(&self, set: AxisSet) -> Vec<Vec<u32>> {
        let walk = |set: AxisSet, from: u32| {
            set.axes().fold(vec![from], |known, at| {
                let (size, stride) = (self.sizes[at], self.stride(at));
                known.iter().flat_map(|device| (0..size).map(move |digit| device + digit * stride)).collect()
            })
        };
        let others = AxisSet((1 << self.len()) - 1 - set.0);
        walk(others, 0).into_iter().map(|first| walk(set, first)).collect()
    }
}

/// Prime factors, or products of them where there are many, the largest last.
fn digits(mut number: u32) -> Vec<u32> {
    let mut factors = vec![];
    let mut prime = 2;
    while number > 1 {
        while number % prime == 0 {
            factors.push(prime);
            number /= prime;
        }
        prime += 1;
    }
    while factors.len() > MOST {
        let smallest = factors.remove(0);
        factors[0] *= smallest;
        factors.sort_unstable();
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_rows_of_digits() {
        let digits_of =
            |name: &str, devices: u32| Digits::new(&cluster::named(name).expect("known"), devices);
        assert_eq!(digits_of("dgx-h100:8x8", 64), Digits { sizes: vec![2; 6], outside: 3 });
        assert_eq!(digits_of("dgx-h100:8x8", 8), Digits { sizes: vec![2; 3], outside: 0 });
        assert_eq!(digits_of("dgx-h100:8x64", 512), Digits { sizes: vec![4, 4, 4, 2, 2, 2], outside: 3 });
        assert_eq!(digits_of("cpu:6", 6), Digits { sizes: vec![2, 3], outside: 0 });
        assert_eq!(digits_of("dgx-h100:8x8", 12), Digits { sizes: vec![2, 2, 3], outside: 0 });
    }

    #[test]
    fn groups_differ_in_their_digits_alone() {
        let digits = Digits { sizes: vec![2, 3], outside: 1 };
        assert_eq!(digits.groups(AxisSet(1)), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(digits.groups(AxisSet(2)), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(digits.groups(AxisSet(3)), [[0, 1, 2, 3, 4, 5]]);
        assert_eq!(digits.inside(), AxisSet(2));
    }
}
