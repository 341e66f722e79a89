//! Laws of arrangements and spreads.

use std::collections::BTreeSet;

use plan::random::Random;
use proptest::prelude::*;
use rules::{Interval, Reduction, Region};
use sharding::mesh::{row, walk};
use sharding::{Axis, Cut, Mesh, Pieces, Shard, Sharding};

use crate::common;

fn axes(text: &str) -> Vec<Axis> {
    let number = |n: &str| n.parse().unwrap();
    text.split_whitespace()
        .map(|a| a.split_once(':').map(|(s, t)| Axis::new(number(s), number(t))).unwrap())
        .collect()
}

#[test]
fn devices_are_found_to_be_a_row_of_axes() {
    for (devices, base, expected) in [
        (vec![5], 5, ""),
        (vec![0, 1, 2, 3], 0, "4:1"),
        (vec![8, 9, 12, 13], 8, "2:4 2:1"),
        (vec![0, 4, 1, 5, 2, 6, 3, 7], 0, "4:1 2:4"),
        (vec![0, 0, 3, 3], 0, "2:3 2:0"),
        (vec![0, 1, 0, 1], 0, "2:0 2:1"),
    ] {
        assert_eq!(row(&devices), Some((base, axes(expected))), "{devices:?}");
        assert_eq!(walk(base, &axes(expected)), devices);
    }
    for devices in [vec![], vec![1, 0], vec![0, 1, 3], vec![0, 1, 1, 0], vec![0, 1, 2, 3, 5, 6]] {
        assert_eq!(row(&devices), None, "{devices:?}");
    }
    assert_eq!(Mesh::from_devices(&[0, 2, 3, 5]).map(|a| a.axes().to_vec()), Some(axes("2:3 2:2")));
    assert_eq!(Mesh::new(0, &axes("2:2 2:3 2:1")), None, "0, 1, 2, 3 are not one number each");
}

#[test]
fn groups_are_along_some_axes_for_all_values_of_the_others() {
    let on = Mesh::all(8);
    assert_eq!(on.groups(&axes("4:1")), Some(vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]]));
    assert_eq!(on.groups(&axes("2:2")), Some(vec![vec![0, 2], vec![1, 3], vec![4, 6], vec![5, 7]]));
    assert_eq!(on.groups(&axes("2:1 2:4")), Some(vec![vec![0, 4, 1, 5], vec![2, 6, 3, 7]]));
    assert_eq!(on.groups(&axes("2:8")), None);
}

#[test]
fn pieces_are_cut_and_joined() {
    assert_eq!(Pieces::nested(6, &[2, 2]).sizes(), [2, 1, 2, 1]);
    assert_eq!(Pieces::balanced(6, 4).sizes(), [2, 2, 1, 1]);
    assert_eq!(Pieces::nested(8, &[2, 2]), Pieces::balanced(8, 4));
    assert_eq!(Pieces::from_sizes(&[2, 2, 1, 1]), Pieces::balanced(6, 4));
    assert_eq!(Pieces::from_sizes(&[1, 2, 3, 4]).coarser(2).sizes(), [3, 7]);
    assert_eq!(Pieces::from_sizes(&[1, 3]).coarser(2), Pieces::balanced(4, 1));
}

#[test]
fn what_is_irregular_is_no_spread() {
    let shard = |device, lo, hi, share| Shard { device, region: Region([Interval { lo, hi }].into()), share };
    let of = |shards: &[Shard], shares| Sharding::from_shards(&[4], shards, shares, Reduction::Sum);
    assert!(of(&[shard(0, 0, 2, 0), shard(1, 2, 4, 0)], 1).is_some());
    for (shards, shares) in [
        (vec![], 1),
        (vec![shard(0, 2, 4, 0), shard(1, 0, 2, 0)], 1),
        (vec![shard(0, 0, 3, 0), shard(1, 2, 4, 0)], 1),
        (vec![shard(0, 0, 2, 0), shard(1, 3, 4, 0)], 1),
        (vec![shard(0, 0, 2, 0), shard(1, 0, 2, 0)], 1),
        (vec![shard(0, 0, 4, 0), shard(1, 0, 4, 0)], 2),
        (vec![shard(0, 0, 2, 0), shard(1, 2, 4, 1)], 2),
        (vec![shard(0, 0, 2, 0), shard(0, 2, 4, 0), shard(1, 0, 2, 0)], 1),
        (vec![shard(0, 0, 2, 0), shard(1, 2, 4, 0), shard(2, 0, 2, 0)], 1),
    ] {
        assert_eq!(of(&shards, shares), None, "{shards:?}");
    }
}

#[test]
fn axes_that_could_be_one_are_one() {
    let by = |text: &str| Sharding::new(0, vec![Cut::nested(8, axes(text))], &[], &[], Reduction::Sum);
    assert_eq!(by("2:2 2:1"), by("4:1"));
    assert_ne!(by("2:1 2:2"), by("4:1"));
    assert_eq!(by("2:1 2:1"), None);
    assert_eq!(by("16:1"), None, "no piece is empty");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn expansion_and_recognition_are_inverse(seed: u64) {
        let mut random = Random::new(seed);
        let (sizes, on) = (common::sizes(&mut random), common::mesh(&mut random, 48));
        let sharding = common::sharding(&mut random, &sizes, &on, Reduction::Max);
        let shards = sharding.shards();
        let found = Sharding::from_shards(&sizes, &shards, sharding.shares(), Reduction::Max);
        prop_assert_eq!(found.as_ref(), Some(&sharding));
        prop_assert_eq!(sharding.mesh(), on.clone());
        let devices: BTreeSet<u32> = shards.iter().map(|s| s.device).collect();
        prop_assert_eq!(devices.into_iter().collect::<Vec<u32>>(), on.devices());
        for device in 0..on.devices().last().unwrap() + 2 {
            let here: Vec<Shard> = shards.iter().filter(|s| s.device == device).cloned().collect();
            prop_assert_eq!(sharding.on(device), here);
            prop_assert_eq!(on.contains(device), on.devices().contains(&device));
        }
        prop_assert_eq!(sharding.largest(), shards.iter().map(|s| s.region.numel()).max().unwrap());
    }

    #[test]
    fn shards_that_are_moved_about_are_not_the_same_spread(seed: u64) {
        let mut random = Random::new(seed);
        let (sizes, on) = (common::sizes(&mut random), common::mesh(&mut random, 24));
        let sharding = common::sharding(&mut random, &sizes, &on, Reduction::Sum);
        let mut shards = sharding.shards();
        let (a, b) = (random.below(shards.len()), random.below(shards.len()));
        let device = shards[a].device;
        shards[a].device = shards[b].device;
        shards[b].device = device;
        shards.sort();
        shards.dedup();
        let found = Sharding::from_shards(&sizes, &shards, sharding.shares(), Reduction::Sum);
        prop_assert_eq!(found.as_ref() == Some(&sharding), shards == sharding.shards());
        if let Some(found) = found {
            prop_assert_eq!(found.shards(), shards);
        }
    }
}
