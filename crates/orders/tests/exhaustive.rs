//! Of small problems everything is tried: no period is shorter than the found one, and no step.

use orders::{Block, Limits, Problem, fault, repetend, whole};
use proptest::prelude::*;

/// A few blocks on two or three devices, some of them on several. What one keeps a later one frees.
fn problems(most: usize) -> impl Strategy<Value = Problem> {
    let block = (1..=3_i64, 1..8_usize, any::<u8>());
    (2..=3_usize, prop::collection::vec(block, 1..=most), 1..=3_i64).prop_map(|(devices, drawn, room)| {
        let mut blocks: Vec<Block> = vec![];
        for (at, (time, set, waits)) in drawn.into_iter().enumerate() {
            let mut own: Vec<usize> = (0..devices).filter(|it| set >> it & 1 == 1).collect();
            if own.is_empty() {
                own.push(set % devices);
            }
            let after: Vec<usize> = (0..at).filter(|it| waits >> it & 1 == 1).collect();
            // It frees what the last of those that it waits for keeps, on the same devices.
            let pair = after.last().copied().filter(|it| blocks[*it].memory == 0);
            let memory = pair.map_or(0, |it| {
                blocks[it].memory = 1;
                own.clone_from(&blocks[it].devices);
                -1
            });
            blocks.push(Block { name: format!("b{at}"), devices: own, time, memory, after });
        }
        Problem { blocks, room: vec![Some(room); devices] }
    })
}

/// Whether micro-batches can follow each other every so often, with so many under way: all times are tried.
fn is_possible(problem: &Problem, period: i64, in_flight: i64, times: &mut Vec<i64>) -> bool {
    let at = times.len();
    if at == problem.blocks.len() {
        let copy = |batch: i64| times.iter().map(|time| time + batch * period).collect();
        let starts: Vec<Vec<i64>> = (0..=2 * in_flight).map(copy).collect();
        return fault(problem, &starts).is_none();
    }
    let block = &problem.blocks[at];
    let first = block.after.iter().map(|it| times[*it] + problem.blocks[*it].time).max().unwrap_or(0);
    for time in first..=in_flight * period - block.time {
        let is_in_the_way = |other: usize| {
            let it = &problem.blocks[other];
            let apart = (time - times[other]).rem_euclid(period);
            it.devices.iter().any(|device| block.devices.contains(device))
                && (apart < it.time || apart > period - block.time)
        };
        if (0..at).any(is_in_the_way) {
            continue;
        }
        times.push(time);
        if is_possible(problem, period, in_flight, times) {
            return true;
        }
        times.pop();
    }
    false
}

/// The shortest step: blocks begin in each possible order, each as soon as it can.
fn shortest(
    problem: &Problem,
    batches: usize,
    starts: &mut Vec<Vec<Option<i64>>>,
    free: &[i64],
    kept: &[i64],
) -> Option<i64> {
    let mut best: Option<i64> = None;
    let mut is_done = true;
    for batch in 0..batches {
        for (at, block) in problem.blocks.iter().enumerate() {
            if starts[batch][at].is_some() {
                continue;
            }
            is_done = false;
            let ends: Option<Vec<i64>> =
                block.after.iter().map(|it| Some(starts[batch][*it]? + problem.blocks[*it].time)).collect();
            let Some(ends) = ends else { continue };
            let is_full = |it: &usize| kept[*it] + block.memory > problem.room[*it].unwrap();
            if block.memory > 0 && block.devices.iter().any(is_full) {
                continue;
            }
            let start = ends.into_iter().chain(block.devices.iter().map(|it| free[*it])).max().unwrap();
            let (mut free, mut kept) = (free.to_vec(), kept.to_vec());
            for device in &block.devices {
                free[*device] = start + block.time;
                kept[*device] += block.memory;
            }
            starts[batch][at] = Some(start);
            let end = shortest(problem, batches, starts, &free, &kept).map(|end| end.max(start + block.time));
            starts[batch][at] = None;
            best = best.into_iter().chain(end).min();
        }
    }
    if is_done { Some(0) } else { best }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_period_is_shorter_than_the_found_one(problem in problems(4), in_flight in 1..=2_i64) {
        let limits = Limits { in_flight: Some(in_flight), ..Limits::default() };
        let longest: i64 = problem.blocks.iter().map(|block| block.time).sum();
        let first = (problem.most_work()..=longest).find(|it| is_possible(&problem, *it, in_flight, &mut vec![]));
        let found = repetend(&problem, &limits);
        prop_assert_eq!(found.as_ref().map(|it| it.period), first);
        if let Some(found) = found {
            prop_assert!(found.is_shortest());
            let copy = |batch: i64| found.times[0].iter().map(|time| time + batch * found.period).collect();
            let starts: Vec<Vec<i64>> = (0..8).map(copy).collect();
            prop_assert_eq!(fault(&problem, &starts), None);
        }
    }

    #[test]
    fn no_step_is_shorter_than_the_found_one(problem in problems(3), batches in 1..=2_usize) {
        let Some(repetend) = repetend(&problem, &Limits::default()) else { return Ok(()) };
        let mut starts = vec![vec![None; problem.blocks.len()]; batches];
        let empty = vec![0; problem.devices()];
        let first = shortest(&problem, batches, &mut starts, &empty, &empty);
        let found = whole(&problem, &repetend, batches, &Limits::default()).expect("a step");
        prop_assert_eq!(fault(&problem, &found.starts), None);
        prop_assert_eq!((Some(found.end), Some(found.bound)), (first, first));
    }

    #[test]
    fn any_step_holds(problem in problems(7), batches in 1..=9_usize) {
        let limits = Limits { nodes: 2000, ..Limits::default() };
        let Some(repetend) = repetend(&problem, &limits) else { return Ok(()) };
        prop_assert!(repetend.bound <= repetend.period);
        let Some(found) = whole(&problem, &repetend, batches, &limits) else { return Ok(()) };
        prop_assert_eq!(fault(&problem, &found.starts), None);
        prop_assert!(found.bound <= found.end);
        // The steady state holds, however many micro-batches it has in a period.
        let row = |at: usize| {
            let later = (at / repetend.group) as i64 * repetend.period;
            repetend.times[at % repetend.group].iter().map(|time| time + later).collect()
        };
        let starts: Vec<Vec<i64>> = (0..9).map(row).collect();
        prop_assert_eq!(fault(&problem, &starts), None);
    }
}
