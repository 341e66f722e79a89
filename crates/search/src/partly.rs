//! Some layers that are computed again, and others not: where all of them need not be, only as many as memory asks for.
//!
//! What the layers of a stage keep is alike, so how many of them have to be computed again follows from two programs: one
//! that computes all of them again, which fits, and one that computes none. What follows is a plan as any other: it is lowered
//! and simulated, and taken if it fits and is quicker.

use std::collections::BTreeMap;

use compiler::Memory;
use diag::Result;
use graph::OpId;
use plan::Plan;

use crate::{Looked, Question, Row, estimated};

/// So many of the quickest plans are looked at.
const FEW: usize = 2;
/// How often one more layer of each stage is computed again, where it does not fit after all.
const TIMES: usize = 3;

/// The best of rows, with fewer layers that are computed again.
pub(crate) fn rows(question: &Question<'_>, rows: &[Row], watch: &mut dyn FnMut(&str)) -> Result<Vec<Row>> {
    let mut order: Vec<&Row> = rows.iter().filter(|row| row.fits()).collect();
    order.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    let best = order.first().map_or(f64::INFINITY, |row| row.seconds());
    let may_be_best = |row: &&Row| row.plan.recompute.len() > 1 && row.seconds() - row.again() < best;
    let few = order.into_iter().filter(may_be_best).take(FEW);
    let found = few.map(|row| fewer(question, row, watch));
    Ok(found.collect::<Result<Vec<Option<Row>>>>()?.into_iter().flatten().collect())
}

/// As few layers as fit.
fn fewer(question: &Question<'_>, row: &Row, watch: &mut dyn FnMut(&str)) -> Result<Option<Row>> {
    let none = Plan { recompute: vec![], ..row.plan.clone() };
    if question.respected(none.clone()).is_err() {
        return Ok(None);
    }
    let stages = Stages::of(&row.plan);
    if question.stop.is_late() {
        return Ok(None);
    }
    let without = estimated(question, &none)?.memory;
    let mut counts = stages.counts(question, &row.estimate.memory, &without);
    for _ in 0..TIMES {
        if counts == stages.all() {
            break;
        }
        let mut looked = Looked::default();
        let plan = stages.plan(&row.plan, &counts);
        looked.at(question, std::iter::once(row.with(plan)), watch)?;
        match looked.rows.pop() {
            Some(better) if better.fits() => {
                return Ok(Some(better).filter(|it| it.seconds() < row.seconds()));
            }
            Some(_) => {
                let one_more = |(count, all): (&mut usize, usize)| *count = all.min(*count + 1);
                counts.iter_mut().zip(stages.all()).for_each(one_more);
            }
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// The layers of each block, in the model's order, and the devices that run it.
struct Stages {
    spans: Vec<Vec<usize>>,
    devices: Vec<Vec<u32>>,
}

impl Stages {
    fn of(plan: &Plan) -> Self {
        let mut spans: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (number, span) in plan.recompute.iter().enumerate() {
            spans.entry(plan.block(span[0])).or_default().push(number);
        }
        let devices = |block: &u32| {
            let ops = (0..plan.ops.len()).map(OpId::new).filter(|op| plan.block(*op) == *block);
            let mut devices: Vec<u32> = ops.flat_map(|op| plan.op(op).devices.clone()).collect();
            devices.sort_unstable();
            devices.dedup();
            devices
        };
        Self { devices: spans.keys().map(devices).collect(), spans: spans.into_values().collect() }
    }

    fn all(&self) -> Vec<usize> {
        self.spans.iter().map(Vec::len).collect()
    }

    /// How many layers of each block have to be computed again, as far as each saves as much as any other.
    fn counts(&self, question: &Question<'_>, with: &[Memory], without: &[Memory]) -> Vec<usize> {
        let share = |device: &u32| {
            let [with, without] = [with, without].map(|memory| memory[*device as usize].total() as f64);
            let there = question.there(*device) as f64;
            if without > with { ((without - there) / (without - with)).clamp(0.0, 1.0) } else { 1.0 }
        };
        let of = |(spans, devices): (&Vec<usize>, &Vec<u32>)| {
            let most = devices.iter().map(share).fold(0.0, f64::max);
            (most * spans.len() as f64).ceil() as usize
        };
        self.spans.iter().zip(&self.devices).map(of).collect()
    }

    /// With so many of the first layers of each block.
    fn plan(&self, plan: &Plan, counts: &[usize]) -> Plan {
        let mut kept: Vec<usize> =
            self.spans.iter().zip(counts).flat_map(|(spans, count)| spans[..*count].to_vec()).collect();
        kept.sort_unstable();
        let own =
            if plan.name.starts_with("auto") || plan.name.starts_with("found") { "" } else { "found, " };
        let name = format!("{own}{}, {} of {} layers again", plan.name, kept.len(), plan.recompute.len());
        let recompute = kept.into_iter().map(|number| plan.recompute[number].clone()).collect();
        Plan { name, recompute, ..plan.clone() }
    }
}
