//! What is said of the steps of pipelines, beside such as are gone through task by task; and cuts, beside all there are.

use std::collections::BTreeMap;
use std::rc::Rc;

use proptest::prelude::*;
use search::Stop;
use search::pipeline::{Ask, Costs, Flow, Run, Stage, cut};

fn stage((forward, backward, tail): (u32, u32, u32)) -> Stage {
    let seconds = |it: u32| f64::from(it);
    let (forward, backward, tail) = (seconds(forward), seconds(backward), seconds(tail));
    Stage { forward, backward, tail, ..Stage::default() }
}

/// Seconds of a step of `1f1b`, each task as soon as what it reads is there; what a stage sends goes one after the other.
fn gone_through(stages: &[Stage], sent: f64, batches: usize) -> f64 {
    let count = stages.len();
    let order = |stage: usize| {
        let ahead = batches.min(count - stage);
        let mut tasks: Vec<(bool, usize)> = (0..ahead).map(|batch| (true, batch)).collect();
        for batch in 0..batches {
            tasks.push((false, batch));
            tasks.extend((batch + ahead < batches).then_some((true, batch + ahead)));
        }
        tasks
    };
    // When what a stage made of a micro-batch is with the next one, and with the one before.
    let mut forward = vec![vec![f64::NAN; batches]; count];
    let mut backward = forward.clone();
    let (mut at, mut clocks, mut lines) = (vec![0; count], vec![0.0_f64; count], vec![0.0_f64; count]);
    while at.iter().any(|at| *at < 2 * batches) {
        for stage in 0..count {
            let Some(&(is_forward, batch)) = order(stage).get(at[stage]) else { continue };
            let there = match (is_forward, stage) {
                (true, 0) => 0.0,
                (true, _) => forward[stage - 1][batch],
                (false, last) if last + 1 == count => 0.0,
                (false, _) => backward[stage + 1][batch],
            };
            if there.is_nan() {
                continue;
            }
            let takes = if is_forward { stages[stage].forward } else { stages[stage].backward };
            clocks[stage] = clocks[stage].max(there) + takes;
            let is_end = if is_forward { stage + 1 == count } else { stage == 0 };
            if !is_end {
                lines[stage] = lines[stage].max(clocks[stage]) + sent;
            }
            (if is_forward { &mut forward } else { &mut backward })[stage][batch] = lines[stage];
            at[stage] += 1;
        }
    }
    clocks.iter().zip(stages).map(|(clock, stage)| clock + stage.tail).fold(0.0, f64::max)
}

fn flow(stages: &[Stage], sent: f64, batches: u32) -> Flow {
    stages.iter().rev().fold(Flow::default(), |flow, stage| flow.after(stage, sent, sent, batches))
}

/// What a segment adds to what is drawn: to forward, and to what a stage does in a step of few micro-batches.
const FORWARD: f64 = 1.0;
const BUSY: f64 = 7.0;

/// Segments on devices, whose costs are drawn, and more for more segments; a stage may have one, two or four devices.
struct Drawn {
    seed: u64,
}

impl Drawn {
    fn number(&self, parts: &[u64], most: u64) -> f64 {
        let mixed = parts
            .iter()
            .fold(self.seed, |all, part| (all ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23));
        (mixed % most) as f64
    }
}

impl Costs for Drawn {
    fn groups(&self, end: u32) -> Vec<u32> {
        [1, 2, 4].into_iter().filter(|size| *size <= end).collect()
    }

    fn ways(&mut self, run: Run, kept: u32, _: f64) -> Rc<[Stage]> {
        let size = u64::from(run.devices.1 - run.devices.0);
        let at = [run.segments.0 as u64, run.segments.1 as u64, size];
        let way = |way: u64| {
            let of = |what: u64, most: u64| 1.0 + self.number(&[at[0], at[1], at[2], way, what], most);
            let count = (at[1] - at[0]) as f64;
            let (busy, takes, gives) = (of(3, 90) + BUSY * count, of(4, 9), of(5, 9));
            Stage {
                forward: of(0, 20) + FORWARD * count,
                backward: of(1, 30),
                tail: of(2, 40),
                busy,
                takes,
                gives,
            }
        };
        // What is kept of many micro-batches does not always fit.
        let fits = |way: &u64| self.number(&[at[0], at[1], at[2], *way, 7], 8) + f64::from(kept) < 9.0;
        (0..3).filter(fits).map(way).collect()
    }

    fn busy(&mut self, run: Run) -> f64 {
        BUSY * (run.segments.1 - run.segments.0) as f64
    }

    fn at_least(&mut self, run: Run, kept: u32) -> Option<Stage> {
        let all = self.ways(run, kept, 0.0);
        let least = |of: fn(&Stage) -> f64| all.iter().map(of).fold(f64::INFINITY, f64::min);
        let (forward, backward) = (least(|it| it.forward), least(|it| it.backward));
        let (tail, busy) = (least(|it| it.tail), least(|it| it.busy));
        (!all.is_empty()).then(|| Stage { forward, backward, tail, busy, ..Stage::default() })
    }

    fn sent(&self, (from, stage): (Run, &Stage), (to, flow): (Run, &Flow)) -> (f64, f64) {
        let size = |run: Run| f64::from(run.devices.1 - run.devices.0);
        (flow.takes / size(from), stage.gives / size(to))
    }

    fn least(&self, segments: usize, _: u32) -> f64 {
        FORWARD * segments as f64
    }
}

/// For each number of stages the least of all pipelines, each of them looked at.
fn least_of_all(
    ask: &Ask<'_>,
    costs: &mut Drawn,
    segment: usize,
    device: u32,
    after: Option<(Run, Flow)>,
    least: &mut BTreeMap<u32, f64>,
) {
    let stages = after.map_or(0, |(_, flow)| flow.stages);
    if segment == 0 && device == 0 {
        let best = least.entry(stages).or_insert(f64::INFINITY);
        *best = after.map_or(f64::INFINITY, |(_, flow)| flow.seconds()).min(*best);
        return;
    }
    if stages == ask.stages.min(ask.batches) {
        return;
    }
    for size in costs.groups(device) {
        for from in 0..segment {
            let run = Run { segments: (from, segment), devices: (device - size, device) };
            for stage in costs.ways(run, ask.batches.min(stages + 1), ask.below).iter() {
                let sent = after.map(|(to, flow)| costs.sent((run, stage), (to, &flow))).unwrap_or_default();
                let flow =
                    after.map_or_else(Flow::default, |it| it.1).after(stage, sent.0, sent.1, ask.batches);
                least_of_all(ask, costs, from, device - size, Some((run, flow)), least);
            }
        }
    }
}

proptest! {
    #[test]
    fn no_step_takes_less_than_is_said(
        drawn in prop::collection::vec((1_u32..20, 1_u32..30, 0_u32..20), 1..7),
        sent in 0_u32..15,
        batches in 1_u32..12,
    ) {
        let stages: Vec<Stage> = drawn.into_iter().map(stage).collect();
        let said = flow(&stages, f64::from(sent), batches).seconds();
        let takes = gone_through(&stages, f64::from(sent), batches as usize);
        prop_assert!(said <= takes, "{said} of {takes}");
    }

    #[test]
    fn of_stages_that_are_alike_it_is_what_a_step_takes(
        (forward, backward) in (1_u32..20, 1_u32..30),
        count in 1_usize..7,
        batches in 1_u32..12,
    ) {
        let stages = vec![stage((forward, backward, 3)); count];
        let said = flow(&stages, 0.0, batches).seconds();
        prop_assert_eq!(said, gone_through(&stages, 0.0, batches as usize));
    }

    #[test]
    fn what_is_found_is_the_least_of_all(seed in any::<u64>(), segments in 1_usize..6, devices in 1_u32..6, batches in 1_u32..6) {
        let (below, busy) = (1e6, f64::INFINITY);
        let ask = Ask { segments, devices, batches, stages: 4, below, floor: 1.0, busy, stop: Stop::default() };
        let (found, _) = cut(&ask, &mut Drawn { seed });
        let mut least = BTreeMap::new();
        least_of_all(&ask, &mut Drawn { seed }, segments, devices, None, &mut least);
        let best = least.values().copied().fold(f64::INFINITY, f64::min);
        // The best one, and of each other number of stages the best, where it is about as quick.
        let near = |it: &(u32, f64)| it.1 <= 1.099 * best && it.1 < f64::INFINITY;
        for (stages, seconds) in least.into_iter().filter(near) {
            let own = found.iter().filter(|it| it.stages.len() == stages as usize);
            prop_assert_eq!(own.map(|it| it.flow.seconds()).fold(f64::INFINITY, f64::min), seconds);
        }
        for pipeline in &found {
            let ends = pipeline.stages.windows(2).all(|two| {
                two[0].run.segments.1 == two[1].run.segments.0 && two[0].run.devices.1 == two[1].run.devices.0
            });
            prop_assert!(ends && pipeline.stages[0].run.segments.0 == 0 && pipeline.stages[0].run.devices.0 == 0);
        }
    }
}
