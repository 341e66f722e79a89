//! Where to cut, and how many devices each stage has: the pipeline that takes least, exactly.
//!
//! A pipeline is made from its last stage to its first. What was made so far is known by where it begins, in the model and
//! among the devices, and how many stages it has: so it is known how many micro-batches each stage keeps, and of those that
//! begin alike only such stay that nothing else is better than in all that counts for what comes before ([`Flow`]). What
//! cannot be quicker than a plan that is known is left out.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::ask::{Ask, Costs, Run, begins};
use super::before::{Ahead, Before};
use super::flow::{Flow, Stage};

/// A stage of a pipeline: its run, how many micro-batches it keeps, and which of the ways it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    pub run: Run,
    pub kept: u32,
    pub way: usize,
}

/// A pipeline, from its first stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    pub stages: Vec<Chosen>,
    pub flow: Flow,
}

/// What was made so far: its first stage, and what comes after that.
struct MadeStages {
    flow: Flow,
    chosen: Chosen,
    after: Option<Rc<MadeStages>>,
}

/// One that stays, with what is looked at of it beside each that begins alike: that lies together, so many are there.
struct Stays {
    flow: Flow,
    devices: (u32, u32),
    made: Rc<MadeStages>,
}

/// By where the first stage begins, in the model and among the devices.
type Partial = BTreeMap<(usize, u32), Vec<Stays>>;

/// What takes more than so many times the best is not among the quick ones.
pub(super) const NEAR: f64 = 1.1;

/// What is wanted is raised by so much, up to so many times what no step takes less than; and then faster.
const RAISED: f64 = 1.05;
const LITTLE: f64 = 2.0;

/// Nothing that is wanted is raised further than so many times what no step takes less than, but to all.
const FAR: f64 = 1e4;

/// For each number of stages the pipeline that takes least, if it is among the quick ones; and how many were looked at.
/// Before all of them those are looked at of which nothing that begins alike is quicker so far: nothing that takes much
/// longer than the best of these is wanted.
pub fn cut(ask: &Ask<'_>, costs: &mut dyn Costs) -> (Vec<Pipeline>, usize) {
    let (mut below, mut looked) = (RAISED * ask.floor, 0);
    // What is not quick is not worth to know the costs of: what is wanted is raised until there is something.
    let quick = loop {
        below = below.min(ask.below);
        let (pipelines, few) = pass(Ask { below, ..*ask }, costs, true);
        looked += few;
        let quickest = shortest_step(&pipelines);
        if quickest < f64::INFINITY || below >= ask.below || below <= 0.0 || is_over(ask, costs) {
            below = ask.below.min(NEAR * quickest);
            break pipelines;
        }
        below = match below {
            few if few < LITTLE * ask.floor => RAISED * few,
            many if many < FAR * ask.floor => 2.0 * many,
            _ => ask.below,
        };
    };
    let (mut pipelines, all) = pass(Ask { below, ..*ask }, costs, false);
    // Where there was no time for the second look, the first one counts.
    let near = NEAR * shortest_step(&pipelines).min(shortest_step(&quick));
    let is_new = |it: &Pipeline| pipelines.iter().all(|known| known.stages.len() != it.stages.len());
    let more: Vec<Pipeline> =
        quick.into_iter().filter(|it| is_new(it) && it.flow.seconds() <= near).collect();
    pipelines.extend(more);
    (pipelines, looked + all)
}

pub(super) fn shortest_step(pipelines: &[Pipeline]) -> f64 {
    pipelines.iter().map(|it| it.flow.seconds()).fold(f64::INFINITY, f64::min)
}

fn is_over(ask: &Ask<'_>, costs: &dyn Costs) -> bool {
    ask.stop.is_late() || costs.is_enough()
}

fn pass(mut ask: Ask<'_>, costs: &mut dyn Costs, is_quick: bool) -> (Vec<Pipeline>, usize) {
    let (mut pipelines, mut looked): (Vec<Pipeline>, usize) = (vec![], 0);
    let (mut candidate, mut known) = (Partial::new(), Before::new(ask));
    for stages in 0..ask.stages.min(ask.batches) {
        let mut next = Partial::new();
        let ends: Vec<(usize, u32)> =
            if stages == 0 { vec![(ask.segments, ask.devices)] } else { candidate.keys().copied().collect() };
        for end in ends {
            if is_over(&ask, costs) {
                break;
            }
            let after = candidate.get(&end).map_or(&[][..], |made| &made[..]);
            looked += longer((&ask, is_quick), (costs, &mut known), (stages, end, after), &mut next);
        }
        if let Some(best) = best(next.get(&(0, 0)).map_or(&[][..], |made| &made[..])) {
            ask.below = ask.below.min(NEAR * best.flow.seconds());
            pipelines.push(best);
        }
        next.remove(&(0, 0));
        candidate = next;
    }
    (pipelines, looked)
}

/// All that have one stage more.
fn longer(
    (ask, is_quick): (&Ask<'_>, bool),
    (costs, known): (&mut dyn Costs, &mut Before<'_>),
    (stages, (segment, device), after): (u32, (usize, u32), &[Stays]),
    next: &mut Partial,
) -> usize {
    let (mut looked, kept) = (0, ask.batches.min(stages + 1));
    let before: Vec<Option<&Stays>> = if stages == 0 { vec![None] } else { after.iter().map(Some).collect() };
    for size in costs.groups(device) {
        let first = device - size;
        for from in begins(ask, costs, segment, (first, device)) {
            if ask.stop.is_late() {
                break;
            }
            let run = Run { segments: (from, segment), devices: (first, device) };
            let Some(least) = costs.at_least(run, kept) else { continue };
            // Of what is not quick enough at best nothing more need be known.
            let Some(left) = known.ahead_of(costs, from, first) else { continue };
            let may =
                |after: &Option<&Stays>| is_wanted(ask, left, &flow_of(ask, &least, (0.0, 0.0), *after));
            let before: Vec<Option<&Stays>> = before.iter().copied().filter(may).collect();
            if before.is_empty() {
                continue;
            }
            let ways = costs.ways(run, kept, ask.below);
            for (way, stage) in (0..).zip(ways.iter()).filter(|(way, _)| !is_beaten(&ways, *way)) {
                let chosen = Chosen { run, kept, way };
                for after in &before {
                    looked += 1;
                    let flow = with(ask, costs, run, stage, *after);
                    if is_wanted(ask, left, &flow) {
                        let made =
                            || MadeStages { flow, chosen, after: after.map(|after| Rc::clone(&after.made)) };
                        keep(next.entry((from, first)).or_default(), flow, run.devices, made, is_quick);
                    }
                }
            }
        }
    }
    looked
}

/// Whether another way is no worse in anything, or the same and before it.
fn is_beaten(ways: &[Stage], way: usize) -> bool {
    let beats = |other: usize| {
        ways[other].is_no_worse(&ways[way]) && (other < way || !ways[way].is_no_worse(&ways[other]))
    };
    (0..ways.len()).any(|other| other != way && beats(other))
}

/// With a stage before what was made.
fn with(ask: &Ask<'_>, costs: &dyn Costs, run: Run, stage: &Stage, after: Option<&Stays>) -> Flow {
    let to = after.map(|after| costs.sent((run, stage), (after.made.chosen.run, &after.flow)));
    flow_of(ask, stage, to.unwrap_or_default(), after)
}

fn flow_of(ask: &Ask<'_>, stage: &Stage, sent: (f64, f64), after: Option<&Stays>) -> Flow {
    after.map_or_else(Flow::default, |after| after.flow).after(stage, sent.0, sent.1, ask.batches)
}

/// Whether it may be part of one that is quick enough: what comes before takes its time.
fn is_wanted(ask: &Ask<'_>, left: Ahead, flow: &Flow) -> bool {
    let busy = flow.busy.max(f64::from(ask.batches) * left.busy);
    let end = (left.through + flow.last).max(left.forward + flow.end);
    end.max(busy) <= ask.below && busy <= ask.busy
}

/// Beside others that begin alike: what is sent to them depends on the devices of their first stage.
fn keep(
    all: &mut Vec<Stays>,
    flow: Flow,
    devices: (u32, u32),
    made: impl FnOnce() -> MadeStages,
    is_quick: bool,
) {
    let is_no_worse = |one: &Flow, other: &Flow| match is_quick {
        true => one.seconds() <= other.seconds(),
        false => one.is_no_worse(other),
    };
    if all.iter().any(|other| other.devices == devices && is_no_worse(&other.flow, &flow)) {
        return;
    }
    all.retain(|other| !(other.devices == devices && is_no_worse(&flow, &other.flow)));
    all.push(Stays { flow, devices, made: Rc::new(made()) });
}

fn best(all: &[Stays]) -> Option<Pipeline> {
    let made = &all.iter().min_by(|a, b| a.flow.seconds().total_cmp(&b.flow.seconds()))?.made;
    let chain = std::iter::successors(Some(made), |made| made.after.as_ref());
    Some(Pipeline { stages: chain.map(|made| made.chosen).collect(), flow: made.flow })
}
