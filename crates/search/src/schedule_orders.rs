//! Orders of a pipeline's blocks that have no name, where those with names leave more than blocks must wait.
//!
//! What each pass of a block takes is known of the simulated step, and so is what a device has room for. Of that the shortest
//! step is searched ([`orders`]), with messages between blocks as blocks of the links between their devices. What is
//! found is the plan with lines of `timetable`: it is lowered and simulated as any other, and taken if it is quicker.

use std::collections::BTreeMap;

use check::Purpose;
use diag::Result;
use graph::OpId;
use orders::{Block, Limits, Problem, Repetend, Whole};
use plan::{Plan, Schedule};
use schedule::{Orders, Pass, Shape, Times, simulate};

use crate::{Evaluated, Evaluations, Question, least_of};

/// All passes of a micro-batch together take so many units of time.
const UNITS: f64 = 32_768.0;
/// A plan whose step is by no more than this share longer than its blocks must take is as it is.
const NEAR: f64 = 0.01;
/// Steps that differ by no more than this share are as quick as each other.
const SAME: f64 = 0.005;
/// The orders of longer steps are not written out, which nobody would read.
const STEP: usize = 64;
/// How often less is kept at a time, where it does not fit after all.
const TIMES: usize = 3;

/// Of the quickest pipelines, with a backward in one pass and in two, those that are quicker in another order.
pub(crate) fn rows(
    question: &Question<'_>,
    rows: &[Evaluated],
    watch: &mut dyn FnMut(&str),
) -> Result<Evaluations> {
    let quickest = least_of(rows);
    let mut evaluations = Evaluations::default();
    for split_backward in [false, true] {
        let candidates =
            rows.iter().filter(|candidate| candidate.fits() && is_open(&candidate.plan, split_backward));
        let Some(first) = candidates.min_by(|a, b| a.seconds().total_cmp(&b.seconds())) else { continue };
        ordered(question, first, quickest, &mut evaluations, watch)?;
    }
    Ok(evaluations)
}

/// Whether its order can be another one.
fn is_open(plan: &Plan, split_backward: bool) -> bool {
    plan.block_count() > 1
        && plan.tokens < 2
        && plan.before.is_empty()
        && plan.timetables.is_empty()
        && !plan.schedule.goes_on()
        && plan.schedule.splits_backward() == split_backward
}

/// A plan in the best order that is found, if it is quicker.
fn ordered(
    question: &Question<'_>,
    candidate: &Evaluated,
    quickest: f64,
    evaluations: &mut Evaluations,
    watch: &mut dyn FnMut(&str),
) -> Result<()> {
    let Some(blocks) = OrderedBlocks::new(question, candidate) else { return Ok(()) };
    let mut room = blocks.room(question, candidate);
    // Of all orders, whatever was found not to fit of them.
    let mut bound = None;
    for _ in 0..TIMES {
        let problem = blocks.problem(&room);
        let least = orders::makespan_bound(&problem, question.batches as usize) as f64 * blocks.unit;
        if question.stop.is_late() || least * (1.0 + NEAR) >= candidate.seconds().min(quickest) {
            break;
        }
        let limits = Limits { until: question.stop.end(), ..Limits::default() };
        let Ok((repetend, whole)) = orders::found(&problem, question.batches as usize, &limits) else {
            break;
        };
        let bound = *bound.get_or_insert(whole.bound as f64 * blocks.unit);
        let mut looked = Evaluations::default();
        let plans = blocks.plans(&candidate.plan, &problem, &repetend, &whole);
        looked.at(question, plans.into_iter().map(|plan| candidate.with(plan)), watch)?;
        evaluations.passed_over.append(&mut looked.passed_over);
        if let Some(better) = quicker(&looked.rows, candidate.seconds()) {
            // In an order of their own blocks may take less than they took: then nothing is known.
            let order = Some(bound).filter(|bound| blocks.all_wait && *bound <= better.seconds());
            evaluations.rows.push(Evaluated { order, ..better.clone() });
            break;
        }
        let Some(over) = looked.rows.iter().find(|it| !it.fits()) else { break };
        blocks.tighten(question, over, &mut room);
    }
    Ok(())
}

/// The first that is about as quick as any: an order that goes on is shorter to read than one of a whole step.
fn quicker(rows: &[Evaluated], below: f64) -> Option<&Evaluated> {
    let all = || rows.iter().filter(|it| it.fits() && it.seconds() < below);
    let least = all().map(Evaluated::seconds).fold(f64::INFINITY, f64::min);
    let mut near = all().filter(|it| it.seconds() <= least * (1.0 + SAME));
    near.next()
}

/// The blocks of a pipeline, on devices of which those are one that run the same.
struct OrderedBlocks {
    shape: Shape,
    devices: Vec<Vec<u32>>,
    /// What passes take, and what comes to them.
    times: BTreeMap<(usize, Pass), (f64, f64)>,
    /// Seconds.
    unit: f64,
    split_backward: bool,
    /// Whether blocks wait for all that they read: for something of each that cannot be computed where it is read.
    all_wait: bool,
}

impl OrderedBlocks {
    /// None where passes are not those that a plan's blocks have.
    fn new(question: &Question<'_>, candidate: &Evaluated) -> Option<Self> {
        let (plan, passes) = (&candidate.plan, &candidate.estimate.passes);
        let pass_of = |pass: program::Pass| match pass {
            program::Pass::Forward => Some(Pass::Forward),
            program::Pass::Backward => Some(Pass::Backward),
            program::Pass::Inputs => Some(Pass::Inputs),
            program::Pass::Weights => Some(Pass::Weights),
            program::Pass::Begin | program::Pass::End => None,
        };
        let times: BTreeMap<(usize, Pass), (f64, f64)> = passes
            .iter()
            .filter_map(|it| Some(((it.block as usize, pass_of(it.pass)?), (it.seconds, it.receives))))
            .collect();
        let all: f64 = times.values().map(|(seconds, receives)| seconds + receives).sum();
        let (shape, devices) =
            shape(question, plan, |block| times.keys().any(|it| it.0 == block && it.1 != Pass::Forward));
        let shape = shape.handing_on(candidate.estimate.handed.iter().copied());
        let is_known = (0..shape.blocks.len()).all(|block| times.contains_key(&(block, Pass::Forward)));
        let split_backward = plan.schedule.splits_backward();
        let constant = rules::of_constants(question.graph, question.analysis);
        let count = |all: Vec<Vec<usize>>| all.iter().map(Vec::len).sum::<usize>();
        let all_wait = count(reads(question, plan, |_| true))
            == count(reads(question, plan, |maker| !constant[maker.index()]));
        let unit = all / UNITS;
        (is_known && all > 0.0).then_some(Self { shape, devices, times, unit, split_backward, all_wait })
    }

    fn units(&self, seconds: f64) -> i64 {
        (seconds / self.unit).round() as i64
    }

    /// Each micro-batch that a block keeps is one, whatever its bytes.
    fn problem(&self, room: &[Option<i64>]) -> Problem {
        let time =
            |block: usize, pass: Pass| self.units(self.times.get(&(block, pass)).map_or(0.0, |it| it.0));
        let costs = orders::BlockCosts { time: &time, kept: &|_| 1, split_backward: self.split_backward };
        let mut problem = orders::of_pipeline(&self.shape, &costs, room.to_vec());
        self.with_links(&mut problem);
        problem
    }

    /// Messages are blocks, too, one after the other on each link. They come after all others.
    fn with_links(&self, problem: &mut Problem) {
        let mut links: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for at in 0..problem.blocks.len() {
            let Ok(task) = problem.blocks[at].name.parse::<schedule::Task>() else { continue };
            let time = self.units(self.times.get(&(task.block, task.pass)).map_or(0.0, |it| it.1));
            for place in 0..problem.blocks[at].after.len() {
                let from = problem.blocks[at].after[place];
                let ends = (problem.blocks[from].devices[0], problem.blocks[at].devices[0]);
                if time == 0 || problem.blocks[from].devices == problem.blocks[at].devices {
                    continue;
                }
                let next = problem.room.len();
                let link = *links.entry(ends).or_insert(next);
                problem.room.resize(problem.room.len().max(link + 1), None);
                let name = format!("{}-{}", problem.blocks[from].name, problem.blocks[at].name);
                let message = Block { name, devices: vec![link], time, memory: 0, after: vec![from] };
                problem.blocks[at].after[place] = problem.blocks.len();
                problem.blocks.push(message);
            }
        }
    }

    /// How many micro-batches each device can keep: as many as it does, and those that fit besides.
    fn room(&self, question: &Question<'_>, candidate: &Evaluated) -> Vec<Option<i64>> {
        let order = candidate.plan.schedule.order(&self.shape, &[]).unwrap_or_default();
        let kept = kept(&self.shape, &order, question.batches);
        let capacity = |(ranks, kept): (&Vec<u32>, &i64)| {
            let more = ranks.iter().map(|rank| {
                let memory = &candidate.estimate.memory[*rank as usize];
                let each = memory.most[Purpose::Activations as usize] as f64 / (*kept).max(1) as f64;
                let free = question.there(*rank).saturating_sub(memory.total()) as f64;
                if each > 0.0 { (free / each) as i64 } else { i64::from(question.batches) }
            });
            Some((kept + more.min().unwrap_or(0)).max(1))
        };
        self.devices.iter().zip(&kept).map(capacity).collect()
    }

    /// One less where it was too much.
    fn tighten(&self, question: &Question<'_>, over: &Evaluated, room: &mut [Option<i64>]) {
        for (ranks, room) in self.devices.iter().zip(room) {
            let needs = |rank: &u32| over.estimate.memory[*rank as usize].total();
            if ranks.iter().any(|rank| needs(rank) > question.there(*rank)) {
                *room = room.map(|room| (room - 1).max(1));
            }
        }
    }

    /// In the order of the steady state, and of the whole step where that is another one.
    fn plans(&self, plan: &Plan, problem: &Problem, repetend: &Repetend, whole: &Whole) -> Vec<Plan> {
        let passes =
            problem.blocks.iter().filter(|block| block.name.parse::<schedule::Task>().is_ok()).count();
        let only = Problem {
            blocks: problem.blocks[..passes].to_vec(),
            room: problem.room[..self.devices.len()].to_vec(),
        };
        let first =
            |rows: &[Vec<i64>]| rows.iter().map(|candidate| candidate[..passes].to_vec()).collect::<Vec<_>>();
        let steady = Repetend { times: first(&repetend.times), ..repetend.clone() };
        let is_short = whole.batches() <= STEP;
        let step = (!whole.in_turn && is_short)
            .then(|| orders::loops_of_step(&only, &first(&whole.starts)))
            .flatten();
        let all = orders::loops(&only, &steady).into_iter().chain(step);
        all.map(|orders| self.plan(plan, &orders)).collect()
    }

    fn plan(&self, plan: &Plan, orders: &Orders) -> Plan {
        let mut timetables = plan.timetables.clone();
        for (ranks, loops) in self.devices.iter().zip(orders) {
            timetables.extend(ranks.iter().map(|rank| (*rank, loops.clone())));
        }
        // What a timetable names is what the schedule makes of a backward: one pass, or two.
        let schedule = if self.split_backward { Schedule::ZbH1 } else { Schedule::OneFOneB };
        Plan { name: format!("{}, in an order of its own", plan.name), schedule, timetables, ..plan.clone() }
    }
}

/// Blocks and what they read of each other, and of each of their devices the ranks that are one.
fn shape(question: &Question<'_>, plan: &Plan, trains: impl Fn(usize) -> bool) -> (Shape, Vec<Vec<u32>>) {
    let count = plan.block_count() as usize;
    let mut of_rank: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    let mut blocks = vec![schedule::Block::default(); count];
    for (block, reads) in blocks.iter_mut().zip(reads(question, plan, |_| true)) {
        block.reads = reads;
    }
    for op in question.graph.op_ids() {
        let block = plan.block(op) as usize;
        for rank in plan.op(op).devices.iter() {
            let rank_blocks = of_rank.entry(*rank).or_default();
            rank_blocks.extend((!rank_blocks.contains(&block)).then_some(block));
        }
    }
    let mut devices: Vec<(Vec<usize>, Vec<u32>)> = vec![];
    for (rank, mut rank_blocks) in of_rank {
        rank_blocks.sort_unstable();
        match devices.iter_mut().find(|it| it.0 == rank_blocks) {
            Some(equal) => equal.1.push(rank),
            None => devices.push((rank_blocks, vec![rank])),
        }
    }
    for (device, (device_blocks, _)) in devices.iter().enumerate() {
        device_blocks.iter().for_each(|block| blocks[*block].devices.push(device));
    }
    blocks.iter_mut().enumerate().for_each(|(block, it)| it.trains = trains(block));
    (Shape { blocks, ..Shape::default() }, devices.into_iter().map(|it| it.1).collect())
}

/// Of each block the others that make what it reads, as far as their operators count.
fn reads(question: &Question<'_>, plan: &Plan, counts: impl Fn(OpId) -> bool) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]; plan.block_count() as usize];
    for op in question.graph.op_ids() {
        let block = plan.block(op) as usize;
        let makers = question.graph.op(op).inputs().into_iter().filter_map(|it| question.graph.producer(it));
        for maker in makers.filter(|(maker, _)| counts(*maker)).map(|(maker, _)| plan.block(maker) as usize) {
            let reads: &mut Vec<usize> = &mut all[block];
            reads.extend((maker != block && !reads.contains(&maker)).then_some(maker));
        }
    }
    all
}

/// How many micro-batches each device keeps at a time at most, counted for each of its blocks.
fn kept(shape: &Shape, order: &Orders, batches: u32) -> Vec<i64> {
    let Ok(lanes) = simulate(shape, order, batches, Times::EQUAL) else { return vec![1; shape.devices()] };
    let most_kept = |lane: &schedule::Lane| {
        let change = |pass: Pass| match pass {
            Pass::Forward => 1,
            Pass::Backward | Pass::Weights => -1,
            Pass::Inputs => 0,
        };
        let mut now = 0;
        let after = lane.tasks.iter().map(|(task, ..)| {
            now += change(task.pass);
            now
        });
        after.max().unwrap_or(1).max(1)
    };
    lanes.iter().map(most_kept).collect()
}
