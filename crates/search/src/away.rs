//! What layers keep on the host, instead of computing it again: where the way there is wide enough, that takes no time.
//!
//! First all of the layers that a plan computes again. Where devices then wait for the host or it has too little memory, others
//! are computed again after all: as many as leave the rest of them just enough time. And where devices have the
//! memory, they keep what they can. What follows is a plan as any other: lowered and simulated, and taken if it fits and is
//! quicker.

use diag::Result;
use plan::Plan;
use plan::sets::auto;

use crate::layers::Layers;
use crate::title::Title;
use crate::{Looked, Question, Row, estimated};

/// So many of the plans that would be quickest if nothing were computed again are looked at.
const FEW: usize = 2;
/// Who waits for less than this share of a step does not wait.
const LITTLE: f64 = 0.01;

/// Of plans that compute layers again, with what these keep on the host; `best` is how long the quickest takes.
pub(crate) fn rows<'r>(
    question: &Question<'_>,
    rows: impl Iterator<Item = &'r Row>,
    best: f64,
    watch: &mut dyn FnMut(&str),
) -> Result<Vec<Row>> {
    let is_open = |row: &&Row| row.plan.recompute.len() > 1 && row.plan.offload.is_empty();
    let mut open: Vec<&Row> = rows.filter(is_open).filter(|row| once(row) < best).collect();
    open.sort_by(|a, b| b.fits().cmp(&a.fits()).then(once(a).total_cmp(&once(b))));
    let mut found = vec![];
    for row in open.into_iter().take(FEW) {
        if question.stop.is_late() {
            break;
        }
        found.extend(Away { question, row, layers: Layers::of(&row.plan), watch }.looked_at()?);
    }
    Ok(found)
}

/// Seconds of a step if nothing were computed again.
fn once(row: &Row) -> f64 {
    row.seconds() - row.again()
}

struct Away<'r, 'q, 'w> {
    question: &'r Question<'q>,
    row: &'r Row,
    layers: Layers,
    watch: &'w mut dyn FnMut(&str),
}

impl Away<'_, '_, '_> {
    /// Those that fit and are quicker.
    fn looked_at(mut self) -> Result<Vec<Row>> {
        let (all, mut found) = (self.layers.all(), vec![]);
        let Some(whole) = self.with(&all, false)? else { return Ok(found) };
        let waits = whole.seconds() > (1.0 + LITTLE) * once(self.row);
        let (some, fits) = (self.in_time(&whole), whole.fits());
        if fits && waits && !self.question.stop.is_late() {
            found.extend(self.kept(&whole)?);
        }
        if (!fits || waits) && some != all {
            found.extend(self.with(&some, true)?);
        }
        found.push(whole);
        found.retain(|row| row.fits() && (!self.row.fits() || row.seconds() < self.row.seconds()));
        Ok(found)
    }

    /// With so many layers of each block on the host, and the others computed again or kept. With none it is no other plan.
    fn with(&mut self, counts: &[usize], again: bool) -> Result<Option<Row>> {
        if counts.iter().all(|count| *count == 0) {
            return Ok(None);
        }
        let plan = away(&self.row.plan, &self.layers.between(counts), again);
        if self.question.respected(plan.clone()).is_err() {
            return Ok(None);
        }
        let mut looked = Looked::default();
        looked.at(self.question, std::iter::once(self.row.with(plan)), self.watch)?;
        Ok(looked.rows.pop())
    }

    /// So many layers of each block that the host has memory for them, and that devices that compute the others again do not
    /// wait.
    fn in_time(&self, whole: &Row) -> Vec<usize> {
        let (_, needed, there) = whole.host;
        let room = there as f64 / needed.max(1) as f64;
        // Where there is too little memory for what is on its way, less is at a time.
        let own = if whole.memory.1 <= whole.memory.2 { 1.0 } else { 0.5 };
        let time = self.hidden(whole.seconds());
        let share = room.min(time).min(own);
        self.layers.all().iter().map(|all| (share * *all as f64).floor() as usize).collect()
    }

    /// The share of layers that takes no time, if all of them are on their way for so long.
    fn hidden(&self, seconds: f64) -> f64 {
        let again = self.row.again();
        let ranks = &self.row.estimate.simulation.ranks;
        let forward = ranks.iter().map(|rank| rank.forward).fold(f64::INFINITY, f64::min);
        // They go there while forward computes, unless it takes longer to compute them again; and computing all others again
        // takes as long as bringing them, too.
        let there = if again < seconds / 2.0 { forward / (seconds / 2.0) } else { 1.0 };
        there.min(self.row.seconds() / (seconds + again))
    }

    /// With as few layers on the host as memory asks for.
    fn kept(&mut self, whole: &Row) -> Result<Option<Row>> {
        let none = Plan { recompute: vec![], ..self.row.plan.clone() };
        let without = estimated(self.question, &none)?.memory;
        let counts = self.layers.counts(self.question, &whole.estimate.memory, &without);
        if counts == self.layers.all() { Ok(None) } else { self.with(&counts, false) }
    }
}

/// What these layers keep goes to the host, and the others are computed again or keep it.
fn away(plan: &Plan, layers: &[usize], again: bool) -> Plan {
    let all = plan.recompute.len();
    let is_away = |number: &usize| layers.binary_search(number).is_ok();
    let spans = |numbers: Vec<usize>| numbers.into_iter().map(|at| plan.recompute[at].clone()).collect();
    let recompute: Vec<_> = if again { spans((0..all).filter(|at| !is_away(at)).collect()) } else { vec![] };
    let title = Title::parse(&plan.name);
    let title = if recompute.is_empty() { title.without(auto::recomputes()) } else { title };
    let name = title.changed(format!("{} of {all} layers on the host", layers.len())).to_string();
    Plan { name, recompute, offload: spans(layers.to_vec()), ..plan.clone() }
}
