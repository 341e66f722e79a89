//! Pipelines that were found, as they are lowered and simulated.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use diag::Result;
use graph::{OpId, Source, TensorId};
use plan::{Draft, Plan, Schedule, sets};

use super::Stats;
use super::ask::{Ask, Costs, Run};
use super::costs::Found;
use super::cuts::{NEAR, Pipeline, cut, shortest_step};
use super::explain::Claimed;
use super::flow::{Flow, Stage};
use super::folded;
use super::groups::Groups;
use super::reversed::Reversed;
use super::segments::Segments;
use crate::constraints::Constraints;
use crate::reason::Reason;
use crate::spmd::{Count, Digits, Messages, Operators, limit};
use crate::title::Title;
use crate::{Evaluated, Evaluations, LowerBounds, Own, Question, bound};

/// Pipelines have at most so many stages.
const MOST: u32 = 16;
/// So many of the pipelines that promise most are looked at each time.
const FEW: usize = 3;
/// And of those whose stages all have as many devices, where these are others: what is not counted is less there.
const EVENS: usize = 2;
/// And of those in a V, where blocks share parameters.
const VS: usize = 2;
/// They may take so many times as long as others,
const FARTHER: f64 = 1.25;
/// if they would not in an order that waits this share as long: as `zb-h1` does where both halves of a backward take as long
/// as forward.
const WAITS: f64 = 1.0 / 3.0;
/// The schedules under which the best one is looked at, too.
const OTHERS: [Schedule; 2] = [Schedule::ZbH1, Schedule::Gpipe];
/// How often less memory is asked for, where plans need more than was told of them.
const TIMES: usize = 3;
/// So much of the time that is left is for the search, the rest for what it finds and for plans with names.
const SHARE: f64 = 0.4;

/// The best pipelines of those that take less than `below` seconds. `watch` is told each.
pub fn rows(
    question: &Question<'_>,
    below: f64,
    watch: &mut dyn FnMut(&str),
) -> Result<(Evaluations, Stats)> {
    let mut stats = Stats { is_whole: true, ..Stats::default() };
    let mut looked = Evaluations::default();
    if question.batches < 2 || question.stop.is_late() {
        stats.is_whole = false;
        return Ok((looked, stats));
    }
    watch("pipelines");
    let start = Instant::now();
    let (segments, groups) = (Segments::new(question), Groups::new(question.cluster, question.devices));
    let digits: Vec<Digits> =
        groups.kinds.iter().map(|cluster| Digits::new(cluster, cluster.devices())).collect();
    let of_kind = |(cluster, digits)| Messages::new(cluster, digits, Count::Alone);
    let messages: Vec<Messages<'_>> = groups.kinds.iter().zip(&digits).map(of_kind).collect();
    let operators = Operators::new(question);
    let anywhere = question.constraints.map(Constraints::anywhere);
    let mut asking =
        Question { constraints: anywhere.as_ref(), stop: question.stop.share(SHARE), ..*question };
    let constrained = (asking, question.constraints);
    let mut costs =
        Found::new(constrained, (&segments, &groups), (&operators, &digits, &messages), bound(question)?)?;
    (stats.places, stats.groups) = (segments.count - 1, groups.kinds.len());
    stats.seconds += start.elapsed().as_secs_f64();
    let mut asked = limit(question);
    let mut leasts = LowerBounds::new(question);
    // What keeps too much in an order that is looked at besides is not worth to be lowered.
    let mut may = |plan: &Plan| -> Result<bool> { Ok(leasts.bound(plan)?.kept <= question.most()) };
    for _ in 0..=TIMES {
        (asking.memory, asking.stop) = (Some(asked), question.stop.share(SHARE));
        costs.ask(&asking);
        let asking = Question { constraints: question.constraints, ..asking };
        let plans = find(&asking, &segments, below, &mut costs, &mut stats, &mut looked.passed_over)?;
        if question.stop.is_late() {
            break;
        }
        let mut anew = vec![];
        for it in &plans {
            let is_known = looked.rows.iter().any(|known| known.plan == it.plan);
            if !is_known && (it.piped.is_some() || may(&it.plan)?) {
                anew.push(it.clone());
            }
        }
        looked.at(question, anew.into_iter(), watch)?;
        let over = (looked.rows.iter())
            .filter(|candidate| plans.iter().any(|it| it.plan == candidate.plan))
            .map(|candidate| candidate.memory.1.saturating_sub(candidate.memory.2))
            .min();
        let Some(over) = over.filter(|over| *over > 0 && !question.stop.is_late()) else { break };
        // By as much less as the least of them needs more than there is.
        asked = asked.saturating_sub(over + over / 8);
    }
    let fitting = looked.rows.iter().filter(|candidate| candidate.fits() && candidate.piped.is_some());
    let first = fitting.min_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    let first = first.filter(|candidate| may_take(candidate.seconds(), busiest(candidate)) <= below);
    if let Some(first) = first.cloned().filter(|_| !question.stop.is_late()) {
        let mut others = vec![];
        for plan in OTHERS.map(|schedule| under(&first.plan, schedule)) {
            others.extend(may(&plan)?.then(|| first.with(plan)));
        }
        looked.at(question, others.into_iter(), watch)?;
    }
    Ok((looked, stats))
}

/// What a pipeline may take in another order, where it takes so long and its busiest device has so much to do.
fn may_take(seconds: f64, busy: f64) -> f64 {
    busy + (seconds - busy).max(0.0) * WAITS
}

/// Seconds in which the device that has most to do does not wait.
fn busiest(candidate: &Evaluated) -> f64 {
    candidate.estimate.simulation.ranks.iter().map(|rank| candidate.seconds() - rank.idle).fold(0.0, f64::max)
}

/// The plan of each number of stages that takes least, and how long it does at least: those that take least first.
fn find(
    question: &Question<'_>,
    segments: &Segments,
    below: f64,
    costs: &mut Found<'_>,
    stats: &mut Stats,
    passed_over: &mut Vec<(String, String)>,
) -> Result<Vec<Own>> {
    let start = Instant::now();
    let mut ask = Ask {
        segments: segments.count,
        devices: question.devices,
        batches: question.batches,
        stages: question.constraints.and_then(Constraints::stages).unwrap_or(MOST).min(MOST),
        below,
        floor: costs.floor,
        busy: f64::INFINITY,
        stop: question.stop,
    };
    let (mut plans, mut evens, mut vs, mut evaluated) = (vec![], vec![], vec![], 0);
    let tied = folded::shared(question.graph, segments);
    for fix in costs.fixes()? {
        costs.fix(&fix);
        let (mut pipelines, mut even) = in_this_order(&mut ask, costs, &mut evaluated);
        if !costs.is_symmetric() {
            let mut reversed = Reversed::new(costs, ask.devices);
            let (more, more_even) = in_this_order(&mut ask, &mut reversed, &mut evaluated);
            pipelines.extend(more.into_iter().map(|it| reversed.pipeline(it)));
            even.extend(more_even.into_iter().map(|it| reversed.pipeline(it)));
        }
        let folded = match tied.filter(|_| !question.stop.is_late()) {
            Some(tied) => folded::folded(costs, &ask, tied),
            None => vec![],
        };
        if let Some(error) = costs.error.take() {
            return Err(error);
        }
        let several = pipelines.into_iter().filter(|it| it.stages.len() > 1);
        let vs_of = folded.into_iter().filter(|it| it.flow.busy <= below).map(|it| (it, Schedule::ZbV));
        let of_cuts = several.map(|it| (it, Schedule::OneFOneB, false));
        let of_evens = even.into_iter().map(|it| (it, Schedule::OneFOneB, true));
        let of_vs = vs_of.map(|(it, schedule)| (it, schedule, false));
        for (pipeline, schedule, is_even) in of_cuts.chain(of_evens).chain(of_vs) {
            let written = written(question, costs, &pipeline, schedule);
            let respected = |(plan, blocks)| Ok((question.respected(plan)?, blocks));
            match written.and_then(respected) {
                Ok(plan) if schedule == Schedule::ZbV => vs.push((pipeline.flow.busy, plan)),
                Ok(plan) if is_even => evens.push((pipeline.flow.seconds(), plan)),
                Ok(plan) => plans.push((pipeline.flow.seconds(), plan)),
                Err(error) => passed_over.push((named(&pipeline, schedule), error.what)),
            }
        }
    }
    let few = |mut all: Vec<(f64, WrittenPlan)>, few: usize| {
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all.truncate(few);
        all.into_iter()
    };
    let of_cuts: Vec<(f64, WrittenPlan)> = few(plans, FEW).collect();
    evens.retain(|(_, (even, _))| of_cuts.iter().all(|(_, (plan, _))| plan != even));
    let of_cuts = of_cuts.into_iter().chain(few(evens, EVENS));
    let to_candidate = |(plan, blocks): WrittenPlan| Own {
        reason: Some(Reason::of_blocks(&plan, blocks)),
        ..Own::new(plan)
    };
    let of_cuts = of_cuts.map(|(seconds, written)| Own { piped: Some(seconds), ..to_candidate(written) });
    let of_vs = few(vs, VS).map(|(_, written)| to_candidate(written));
    stats.looked += evaluated;
    stats.is_whole &= costs.is_exact() && !costs.is_enough() && !question.stop.is_late();
    stats.seconds += start.elapsed().as_secs_f64();
    Ok(of_cuts.chain(of_vs).collect())
}

/// Of each number of stages the best pipeline, and of each number of devices the best one whose stages all have so many.
/// Nothing that takes much longer is wanted of others.
fn in_this_order(
    ask: &mut Ask<'_>,
    costs: &mut dyn Costs,
    count: &mut usize,
) -> (Vec<Pipeline>, Vec<Pipeline>) {
    let (pipelines, few) = cut(ask, costs);
    *count += few;
    ask.below = ask.below.min(NEAR * shortest_step(&pipelines));
    let even = even(costs, ask);
    (pipelines, even)
}

/// Of each number of devices the best pipeline whose stages all have so many.
fn even(costs: &mut dyn Costs, ask: &Ask<'_>) -> Vec<Pipeline> {
    let mut evens = vec![];
    for devices in costs.groups(ask.devices).into_iter().filter(|size| ask.devices % size == 0) {
        let stages = ask.devices / devices;
        if (2..=ask.stages).contains(&stages) {
            let (below, busy) = (FARTHER * ask.below, ask.below);
            let (pipelines, _) = cut(&Ask { below, busy, stages, ..*ask }, &mut Even { costs, devices });
            let may = |it: &Pipeline| may_take(it.flow.seconds(), it.flow.busy) <= ask.below;
            evens.extend(pipelines.into_iter().filter(may));
        }
    }
    evens
}

/// Costs of stages that have so many devices.
struct Even<'c> {
    costs: &'c mut dyn Costs,
    devices: u32,
}

impl Costs for Even<'_> {
    fn groups(&self, end: u32) -> Vec<u32> {
        self.costs.groups(end).into_iter().filter(|size| *size == self.devices).collect()
    }

    fn ways(&mut self, run: Run, kept: u32, below: f64) -> Rc<[Stage]> {
        self.costs.ways(run, kept, below)
    }

    fn busy(&mut self, run: Run) -> f64 {
        self.costs.busy(run)
    }

    fn at_least(&mut self, run: Run, kept: u32) -> Option<Stage> {
        self.costs.at_least(run, kept)
    }

    fn sent(&self, from: (Run, &Stage), to: (Run, &Flow)) -> (f64, f64) {
        self.costs.sent(from, to)
    }

    fn least(&self, segments: usize, devices: u32) -> f64 {
        self.costs.least(segments, devices)
    }

    fn is_enough(&self) -> bool {
        self.costs.is_enough()
    }
}

fn named(pipeline: &Pipeline, schedule: Schedule) -> String {
    match schedule {
        Schedule::ZbV => Title::stages(pipeline.stages.len() / 2).with(sets::of_schedule(schedule)),
        _ => Title::stages(pipeline.stages.len()),
    }
    .to_string()
}

/// A plan, and what its blocks are least in.
type WrittenPlan = (Plan, Arc<[Claimed]>);

/// The plan that a pipeline is.
fn written(
    question: &Question<'_>,
    costs: &mut Found<'_>,
    pipeline: &Pipeline,
    schedule: Schedule,
) -> Result<WrittenPlan> {
    let name = named(pipeline, schedule);
    let mut draft = Draft::new(question.graph, question.analysis, &name, question.devices);
    let (mut blocks, mut claimed) = (vec![], vec![]);
    for chosen in &pipeline.stages {
        let (ways, _) = costs.inner(chosen.run, chosen.kept)?;
        let kind = costs.kind(chosen.run.devices);
        let way = &ways[chosen.way];
        blocks.push(costs.runs[kind].write(&mut draft, chosen.run.segments, way, chosen.run.devices.0)?);
        let fixed = costs.runs[kind].fixed().cloned();
        claimed.push(Claimed { run: chosen.run, way: way.claim(chosen.kept), fixed });
    }
    blocks.iter().for_each(|block| draft.block(block));
    draft.schedule(schedule);
    draft.recompute(vec![]);
    for tensor in shared(question, &blocks) {
        draft.sharding(tensor, None);
    }
    Ok((draft.finish()?, claimed.into()))
}

/// The parameters that several blocks read: each holds them whole.
fn shared(question: &Question<'_>, blocks: &[Vec<OpId>]) -> Vec<TensorId> {
    let mut readers: BTreeMap<TensorId, usize> = BTreeMap::new();
    let mut shared = vec![];
    for (number, block) in blocks.iter().enumerate() {
        for tensor in block.iter().flat_map(|op| question.graph.op(*op).inputs()) {
            let is_param = matches!(question.graph.tensor(tensor).source, Source::Param { .. });
            if is_param && *readers.entry(tensor).or_insert(number) != number {
                shared.push(tensor);
            }
        }
    }
    shared
}

/// The same with another schedule.
fn under(plan: &Plan, schedule: Schedule) -> Plan {
    let name = Title::parse(&plan.name).with(sets::of_schedule(schedule)).to_string();
    Plan { name, schedule, ..plan.clone() }
}
