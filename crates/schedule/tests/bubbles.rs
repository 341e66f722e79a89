//! Each schedule has in simulation the bubble that its formula says, and keeps no more than it may.

use schedule::{Block, Lane, Pass, Schedule, Shape, ShapeLoop, Task, Times, simulate};

const TIMES: Times = Times::EQUAL;

/// Blocks one after the other, on these devices.
fn chain(devices: impl IntoIterator<Item = Vec<usize>>) -> Shape {
    let block = |(at, devices): (usize, Vec<usize>)| Block {
        devices,
        trains: true,
        reads: at.checked_sub(1).into_iter().collect(),
    };
    Shape { blocks: devices.into_iter().enumerate().map(block).collect(), ..Shape::default() }
}

fn lanes(schedule: Schedule, shape: &Shape, batches: u64) -> Vec<Lane> {
    let batches = u32::try_from(batches).unwrap();
    simulate(shape, &schedule.order(shape, &[]).expect("an order"), batches, TIMES)
        .expect("it comes to its end")
}

/// How long a step takes, the longest time that a device waits between its first task and its last, and how many
/// micro-batches of a block a device keeps at most.
fn found(schedule: Schedule, shape: &Shape, batches: u64) -> (u64, u64, i64) {
    let lanes = lanes(schedule, shape, batches);
    let most = |of: &dyn Fn(&Lane) -> u64| lanes.iter().map(of).max().unwrap();
    (most(&|lane| lane.end), most(&Lane::waited), lanes.iter().map(kept).max().unwrap())
}

fn kept(lane: &Lane) -> i64 {
    let (mut now, mut most) = (0, 0);
    for (task, ..) in &lane.tasks {
        now += match task.pass {
            Pass::Forward => 1,
            Pass::Backward | Pass::Weights => -1,
            Pass::Inputs => 0,
        };
        most = most.max(now);
    }
    most
}

/// Numbers of devices, and of micro-batches.
fn sizes() -> impl Iterator<Item = (u64, u64)> {
    (2..=16u64).flat_map(|p| [p, p + 1, 2 * p, 3 * p - 1, 4 * p].map(|m| (p, m)))
}

fn stages(p: u64) -> Shape {
    chain((0..p).map(|stage| vec![stage as usize]))
}

#[test]
fn of_1f1b_and_gpipe_it_is_that_of_all_stages_but_one() {
    for (p, m) in sizes() {
        // Of m + p - 1 forwards and backwards p - 1 are bubbles.
        let (end, waited) = (3 * (m + p - 1), 3 * (p - 1));
        assert_eq!(found(Schedule::OneFOneB, &stages(p), m), (end, waited, p.min(m) as i64), "{p} {m}");
        assert_eq!(found(Schedule::Gpipe, &stages(p), m), (end, waited, m as i64), "{p} {m}");
    }
}

/// Stages whose blocks are slices of the sequence: each reads that of the stage before, and those before it.
fn in_slices(p: u64, n: u64) -> Shape {
    let (p, n) = (p as usize, n as usize);
    let reads = |stage: usize, slice: usize| {
        let before = stage.checked_sub(1).map(|before| before * n + slice);
        before.into_iter().chain((0..slice).map(move |own| stage * n + own)).collect()
    };
    let block = |at: usize| Block { devices: vec![at / n], trains: true, reads: reads(at / n, at % n) };
    Shape { blocks: (0..p * n).map(block).collect(), ..Shape::default() }
}

/// A task of a slice is a unit: of n m + p - 1 forwards and backwards p - 1 are bubbles.
#[test]
fn of_slices_of_the_sequence_it_is_as_if_each_were_a_micro_batch() {
    for (p, n) in [2, 3, 4, 8].into_iter().flat_map(|p| [2, 3, 4, 5, 8].map(|n| (p, n))) {
        for m in [1, 2, 3, 4, 9] {
            let end = 3 * (n * m + p - 1);
            let (gpipe, ..) = found(Schedule::Gpipe, &in_slices(p, n), m);
            let (found, _, kept) = found(Schedule::OneFOneB, &in_slices(p, n), m);
            // Backwards of an odd number of slices do not fill what forwards leave.
            assert!(found - end <= if n % 2 == 0 { 0 } else { p }, "{p} {n} {m}: {found}, {end}");
            assert!(kept as u64 <= (n + 2 * (p - 1)).min(n * m), "{p} {n} {m}: {kept}");
            assert_eq!(gpipe, end, "{p} {n} {m}");
        }
    }
}

#[test]
fn of_zb_h1_it_is_a_third_with_as_much_kept() {
    for (p, m) in sizes() {
        let (end, waited, kept) = found(Schedule::ZbH1, &stages(p), m);
        assert_eq!((end, waited), (3 * m + p - 1, p - 1), "{p} {m}");
        assert!(kept <= p as i64, "{p} {m}: {kept}");
    }
}

/// Steps that follow each other are one long one: stages wait at its beginning and its end.
#[test]
fn of_2bw_it_is_that_of_one_step_for_all_of_them() {
    for (p, m) in sizes() {
        let (end, waited, kept) = found(Schedule::TwoBw, &stages(p), 5 * m);
        assert_eq!((end, waited, kept), (3 * (5 * m + p - 1), 3 * (p - 1), p as i64), "{p} {m}");
    }
    assert_eq!(Schedule::TwoBw.order(&in_a_v(2), &[]), None);
}

/// Down through the first blocks of all devices, and up through the second ones.
fn in_a_v(p: u64) -> Shape {
    chain((0..2 * p).map(|block| vec![block.min(2 * p - 1 - block) as usize]))
}

/// The tasks of blocks of which a device has two are half as long as those of stages.
#[test]
fn of_zb_v_it_is_about_three_quarters_of_that_with_as_much_kept() {
    let small = (2..=8).flat_map(|p| (p..4 * p).map(move |m| (p, m)));
    for (p, m) in sizes().chain(small) {
        let (end, waited, kept) = found(Schedule::ZbV, &in_a_v(p), m);
        // That of the last device to begin, which none can avoid, and half of that again; in a step that is a little
        // longer than its beginning up to twice that.
        let bubble = if p < m && 2 * m < 3 * p { 2 * (p - 1) } else { p - 1 + p / 2 };
        assert!(end <= 6 * m + bubble && waited <= bubble, "{p} {m}: {end} {waited}");
        assert!(kept <= 2 * p as i64, "{p} {m}: {kept}");
        let (without, ..) = found(Schedule::ZbH1, &stages(p), m);
        assert!(end <= 2 * without, "{p} {m}");
    }
}

/// As under `zb-h1`.
#[test]
fn what_is_no_v_or_must_keep_an_order_has_another_schedule() {
    let round = chain((0..6).map(|block| vec![block % 3]));
    let before = [(task("I0"), task("F0+1"))];
    for (shape, before) in [(stages(4), &[][..]), (round, &[][..]), (in_a_v(2), &before)] {
        assert_eq!(Schedule::ZbV.order(&shape, before), Schedule::ZbH1.order(&shape, before));
    }
}

#[test]
fn a_device_that_begins_earlier_runs_more_of_the_beginning_in_loops_of_its_own() {
    let iterations = |loops: &Vec<ShapeLoop>| loops.iter().map(|it| it.iterations).collect::<Vec<_>>();
    let orders = Schedule::ZbV.order(&in_a_v(3), &[]).expect("an order");
    let found: Vec<_> = orders.iter().map(iterations).collect();
    assert_eq!(found, [vec![Some(5), Some(2), None], vec![Some(4), Some(1), None], vec![Some(3), None]]);
}

#[test]
fn of_interleaved_it_is_less_by_the_number_of_blocks_of_a_device() {
    for (p, m) in sizes().filter(|(p, m)| m % p == 0) {
        for v in 2..=4 {
            // Numbers of devices are names.
            for first in [0, p - 1] {
                let shape = chain((0..v * p).map(|block| vec![((block + first) % p) as usize]));
                let (end, ..) = found(Schedule::Interleaved, &shape, m);
                assert_eq!(end, 3 * (v * m + p - 1), "{p} {m} {v}");
            }
        }
    }
}

/// Half a micro-batch in each direction: the halves of a device take as long as a stage's.
#[test]
fn of_both_directions_it_is_about_half() {
    for (p, m) in sizes().filter(|(p, _)| p % 2 == 0) {
        let shape = chain((0..p).map(|block| vec![block.min(p - 1 - block) as usize]));
        let (end, ..) = found(Schedule::OneFOneB, &shape, m);
        let bubble = end - 6 * m;
        assert!(bubble <= 6 * (p / 2 - 1) + 2, "{p} {m}: {bubble}");
    }
}

/// The shapes of Tessel's paper: the time that each further micro-batch takes, and the time of that in which the
/// busiest device works. Some wait a little: the best order is for a search to find.
#[test]
fn devices_that_are_in_several_blocks_hardly_wait_in_the_steady_state() {
    let all = vec![0, 1, 2, 3];
    let one = |device: usize| vec![device];
    let m = chain([all.clone(), one(0), one(1), one(2), one(3)]);
    let mllm = chain([all.clone(), one(0), one(1), one(2), one(3), all.clone()]);
    let nn = chain([all.clone(), one(0), one(1), all, one(2), one(3)]);
    let both = chain([vec![0, 3], vec![1, 2], vec![1, 2], vec![0, 3]]);
    for (name, shape, takes, works) in
        [("m", m, 7, 6), ("mllm", mllm, 10, 9), ("nn", nn, 10, 9), ("both", both, 6, 6)]
    {
        let end = |batches: u64| found(Schedule::OneFOneB, &shape, batches).0;
        let busy: Vec<u64> = lanes(Schedule::OneFOneB, &shape, 10).iter().map(|lane| lane.busy).collect();
        assert_eq!((end(40) - end(30), busy.into_iter().max()), (10 * takes, Some(10 * works)), "{name}");
    }
}

/// Several forwards of which only the last one is trained: recycling. A device does so many forwards and a backward for
/// each micro-batch, and waits as under 1F1B, but for the beginning, where micro-batches come to their second forward later
/// than they could.
#[test]
fn forwards_without_gradients_find_their_place() {
    for (p, m) in sizes() {
        for k in 2..=4 {
            let mut shape = chain((0..k * p).map(|block| vec![(block % p) as usize]));
            shape.blocks[..((k - 1) * p) as usize].iter_mut().for_each(|block| block.trains = false);
            let (end, ..) = found(Schedule::OneFOneB, &shape, m);
            let least = (k + 2) * m + 3 * (p - 1);
            assert!(least <= end && end <= least + 3 * (k - 1) * p / 4, "{p} {m} {k}: {end}, {least}");
        }
    }
}

#[test]
fn every_schedule_comes_to_its_end_on_any_blocks() {
    let all = vec![0, 1, 2, 3];
    let odd = chain([vec![0], vec![1, 2], vec![0, 3], all, vec![2], vec![2], vec![0, 1]]);
    for (schedule, name) in Schedule::NAMES {
        for shape in [&odd, &stages(1), &stages(5), &in_a_v(1), &in_a_v(3)] {
            if schedule.goes_on() && (0..shape.devices()).any(|device| shape.blocks_of(device).count() > 1) {
                assert_eq!(schedule.order(shape, &[]), None);
                continue;
            }
            for batches in 1..12 {
                let lanes = lanes(schedule, shape, batches);
                for (device, lane) in lanes.iter().enumerate() {
                    let per_block = if schedule.splits_backward() { 3 } else { 2 };
                    let tasks = shape.blocks_of(device).count() * per_block * batches as usize;
                    assert_eq!(lane.tasks.len(), tasks, "{name}");
                }
            }
        }
    }
}

fn task(word: &str) -> Task {
    word.parse().expect("a task")
}

/// The place of a task among those of its device.
fn place(shape: &Shape, orders: &[Vec<ShapeLoop>], of: &str, batch: u32) -> usize {
    let lanes = simulate(shape, orders, 8, TIMES).expect("it comes to its end");
    let is =
        |row: &(Task, u32, u64)| (row.0.block, row.0.pass, row.1) == (task(of).block, task(of).pass, batch);
    lanes.iter().find_map(|lane| lane.tasks.iter().position(is)).expect("it runs")
}

#[test]
fn what_must_come_before_something_does() {
    let shape = stages(4);
    // At most two micro-batches under way: the backward of each before the forward of the one after the next.
    let orders = Schedule::OneFOneB.order(&shape, &[(task("B0"), task("F0+2"))]).expect("an order");
    for batch in 0..6 {
        assert!(place(&shape, &orders, "B0", batch) < place(&shape, &orders, "F0", batch + 2));
    }
    // One behind the other.
    let orders = Schedule::OneFOneB.order(&shape, &[(task("B0"), task("F0+1"))]).expect("an order");
    let ends: Vec<u64> = simulate(&shape, &orders, 8, TIMES).unwrap().iter().map(|lane| lane.end).collect();
    assert_eq!(ends.into_iter().max(), Some(8 * 12));
}

#[test]
fn what_goes_round_in_a_circle_has_no_order() {
    for (first, then) in [("B0", "F0"), ("B2", "F0"), ("F3", "F3"), ("F0+1", "F0"), ("B0+3", "F1+3")] {
        assert_eq!(
            Schedule::OneFOneB.order(&stages(4), &[(task(first), task(then))]),
            None,
            "{first} {then}"
        );
    }
}

#[test]
fn a_device_may_have_nothing_to_do_in_a_pass_of_its_block() {
    let shape = chain([vec![0, 1], vec![1]]);
    let mut orders = Schedule::OneFOneB.order(&shape, &[]).expect("an order");
    orders[0][0].tasks.retain(|task| task.pass == Pass::Forward);
    assert!(simulate(&shape, &orders, 4, TIMES).is_ok());
}

/// As those are that only make positions.
#[test]
fn a_block_without_gradients_leaves_interleaved_as_it_is() {
    let mut shape = chain((0..8).map(|block| vec![block % 4]));
    let orders = Schedule::Interleaved.order(&shape, &[]).expect("an order");
    shape.blocks[0].trains = false;
    let mut less = orders.clone();
    less[0][0].tasks.retain(|task| task.to_string()[..2] != *"B0");
    assert_eq!(Schedule::Interleaved.order(&shape, &[]), Some(less));
}

#[test]
fn tasks_that_are_not_for_each_micro_batch_once_are_seen() {
    let wrong = |every: u32, words: &str| {
        let tasks = words.split(' ').map(task).collect();
        schedule::not_in_turn(&[ShapeLoop { every, iterations: None, tasks }]).map(|task| task.to_string())
    };
    assert_eq!(wrong(1, "F0+3 B0"), None);
    assert_eq!(wrong(2, "F0+3 F0+4 B0 B0+1"), None);
    assert_eq!(wrong(1, "F0 F0 B0"), Some("F0".into()));
    assert_eq!(wrong(2, "F0 F0+1 B0 B0+2"), Some("B0".into()));
    assert_eq!(wrong(2, "F0+1 F0 B0 B0+1"), Some("F0+1".into()));
    assert_eq!(wrong(2, "F0 B0"), Some("F0".into()));
}

#[test]
fn which_of_two_tasks_comes_first_is_seen_from_loops() {
    let is = |every: u32, words: &str, first: &str, then: &str| {
        let one =
            |words: &str| ShapeLoop { every, iterations: None, tasks: words.split(' ').map(task).collect() };
        let loops: Vec<ShapeLoop> = words.split(" | ").map(one).collect();
        schedule::comes_before(&loops, task(first), task(then))
    };
    assert!(is(1, "F0+1 B0", "F0", "B0") && is(1, "F0 | B0", "F0", "B0"));
    assert!(is(1, "F0+1 B0", "B0", "F0+2") && !is(1, "F0+1 B0", "B0", "F0+1"));
    assert!(is(1, "B0 F0+1", "B0", "F0+1") && !is(1, "B0 F0", "F0", "B0"));
    assert!(is(2, "F0 F0+1 B0 B0+1", "F0", "B0") && !is(2, "F0 F0+1 B0 B0+1", "B0", "F0+1"));
    assert!(!is(1, "F0 | B0", "B0", "F0+1") && is(1, "F0 B0", "F1", "B0"));
}
