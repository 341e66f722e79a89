//! What is planted into a step is found.

use orders::{Fault, Limits, Problem, fault, named, repetend, whole};

fn step(name: &str) -> (Problem, Vec<Vec<i64>>) {
    let problem = named(name, 4, None).unwrap();
    let found = repetend(&problem, &Limits::default()).unwrap();
    let starts = whole(&problem, &found, 6, &Limits::default()).unwrap().starts;
    assert_eq!(fault(&problem, &starts), None);
    (problem, starts)
}

/// The block of that name.
fn at(problem: &Problem, name: &str) -> usize {
    problem.blocks.iter().position(|block| block.name == name).unwrap()
}

#[test]
fn a_block_that_begins_before_the_end_of_another_is_found() {
    let (problem, mut starts) = step("v");
    starts.iter_mut().flatten().for_each(|start| *start += 1);
    assert_eq!(fault(&problem, &starts), None);
    let (first, then) = (at(&problem, "F2"), at(&problem, "F3"));
    starts[0][then] = starts[0][first];
    assert_eq!(fault(&problem, &starts), Some(Fault::Early((0, then), (0, first))));
    let said = fault(&problem, &starts).unwrap().to_string();
    assert_eq!(said, "block 3 of micro-batch 0 begins before the end of block 2 of micro-batch 0");
}

#[test]
fn two_blocks_at_once_on_a_device_are_found() {
    let (problem, mut starts) = step("v");
    let last = at(&problem, "B0");
    // The last backwards of the step may be later, and one of them as late as the other.
    starts[4][last] = starts[5][last] + 2;
    assert_eq!(fault(&problem, &starts), Some(Fault::AtOnce(0, (5, last), (4, last))));
}

#[test]
fn a_block_on_all_devices_at_once_with_another_on_one_of_them_is_found() {
    let (problem, mut starts) = step("m");
    let (all, own) = (at(&problem, "B0"), at(&problem, "B1"));
    starts[5][all] = starts[5][own] + 3;
    starts[4][all] = starts[5][own] + 1;
    assert!(matches!(fault(&problem, &starts), Some(Fault::AtOnce(_, a, b)) if [a, b].contains(&(4, all))));
}

#[test]
fn more_than_there_is_room_for_is_found() {
    let (problem, starts) = step("v");
    for (room, is_enough) in [(4, true), (3, false)] {
        let less = Problem { room: vec![Some(room), None, None, None], ..problem.clone() };
        assert_eq!(fault(&less, &starts).is_none(), is_enough);
        if let Some(found) = fault(&less, &starts) {
            assert!(matches!(found, Fault::Full(0, _, 4)), "{found}");
        }
    }
}

#[test]
fn a_block_without_a_time_is_found() {
    let (problem, mut starts) = step("k");
    starts[2][1] = -1;
    assert_eq!(fault(&problem, &starts), Some(Fault::Missing));
    starts[2].pop();
    assert_eq!(fault(&problem, &starts), Some(Fault::Missing));
}
