//! What is found goes to devices as loops, and devices that run these loops take as long as it says.

use orders::{
    BlockCosts, Limits, SHAPES, figure, loops, loops_of_step, named, of_pipeline, repetend, timetables, whole,
};
use schedule::{Block, Pass, Shape, Times, not_in_turn, simulate};

fn pipeline(devices: &[Vec<usize>]) -> Shape {
    let block = |(at, devices): (usize, &Vec<usize>)| Block {
        devices: devices.clone(),
        trains: true,
        reads: at.checked_sub(1).into_iter().collect(),
    };
    Shape { blocks: devices.iter().enumerate().map(block).collect(), ..Shape::default() }
}

#[test]
fn devices_take_as_long_as_was_found() {
    let four: Vec<Vec<usize>> = (0..4).map(|device| vec![device]).collect();
    let down_and_up = [0, 1, 2, 2, 1, 0].map(|device| vec![device]).to_vec();
    let shared = vec![vec![0, 1, 2], vec![0], vec![1], vec![2], vec![0, 1, 2]];
    for (devices, split_backward, room) in [
        (four.clone(), false, 8),
        (four, false, 3),
        (down_and_up.clone(), false, 8),
        (down_and_up, true, 8),
        (shared, false, 8),
    ] {
        let (shape, count) = (pipeline(&devices), devices.iter().flatten().max().unwrap() + 1);
        let time = |_, pass| i64::try_from(Times::EQUAL.length(pass)).unwrap();
        let costs = BlockCosts { time: &time, kept: &|_| 1, split_backward };
        let problem = of_pipeline(&shape, &costs, vec![Some(room); count]);
        let repetend = repetend(&problem, &Limits::default()).unwrap();
        assert!(repetend.is_shortest());
        let steady = loops(&problem, &repetend).unwrap();
        assert!(steady.iter().all(|loops| not_in_turn(loops).is_none()));
        for batches in [1, 5, 12] {
            let step = whole(&problem, &repetend, batches, &Limits::default()).unwrap();
            let number = u32::try_from(batches).unwrap();
            let of_step = loops_of_step(&problem, &step.starts).unwrap();
            let own = if step.in_turn { &steady } else { &of_step };
            let lanes = simulate(&shape, own, number, Times::EQUAL).expect("it comes to its end");
            let end = lanes.iter().map(|lane| lane.end).max().unwrap();
            assert_eq!(i64::try_from(end).unwrap(), step.end, "{devices:?}, {batches}");
            // The steady state goes on for any number of micro-batches, one period for each.
            assert!(simulate(&shape, &steady, number + 7, Times::EQUAL).is_ok());
        }
    }
}

#[test]
fn one_f_one_b_is_found() {
    let problem = named("v", 4, None).unwrap();
    let found = repetend(&problem, &Limits::default()).unwrap();
    let text = timetables(&loops(&problem, &found).unwrap());
    assert_eq!(
        text,
        "timetable 0: F0+3 B0\ntimetable 1: F1+2 B1\ntimetable 2: F2+1 B2\ntimetable 3: F3 B3\n"
    );
}

#[test]
fn a_step_is_drawn() {
    let problem = named("v", 2, None).unwrap();
    let found = repetend(&problem, &Limits::default()).unwrap();
    let step = whole(&problem, &found, 3, &Limits::default()).unwrap();
    let drawn = "device 0   F0 F1 .  .  .  B0------ F2 B1------ .  B2------\n\
                 device 1   .  F0 B0------ F1 B1------ F2 B2------\n";
    assert_eq!(figure(&problem, &step.starts), drawn);
}

#[test]
fn all_shapes_have_names_that_plans_know() {
    for (name, _) in SHAPES {
        let problem = named(name, 4, None).unwrap();
        let found = repetend(&problem, &Limits::default()).unwrap();
        let forwards =
            problem.blocks.iter().filter(|block| block.name.starts_with(Pass::Forward.letter())).count();
        let steady = loops(&problem, &found).unwrap();
        let all = steady.iter().flatten().flat_map(|it| &it.tasks);
        assert_eq!(all.map(|task| task.block).max(), Some(forwards - 1));
    }
}
