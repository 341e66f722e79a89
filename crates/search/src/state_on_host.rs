//! The optimizer's state on the host between steps, where that leaves room for what layers keep.
//!
//! The state goes to the host and comes back once in a step, what layers keep with each micro-batch. So where a step has many of
//! these, that takes little time, and less has to be recomputed or offloaded of layers.

use check::Purpose;
use diag::Result;
use plan::sets::{SetTerm, auto};
use plan::{Plan, PlanName, sets};

use crate::title::Title;
use crate::{Evaluated, Evaluations, Question, offload};

/// So many plans are evaluated at.
const FEW: usize = 2;
/// A plan whose state takes less of the memory than this share is not changed.
const MUCH: f64 = 0.02;

/// Of the plans that would be quickest if nothing were recomputed, with their state on the host; and those with what their layers
/// keep there, too. `best` is how long the quickest takes.
pub(crate) fn rows(
    question: &Question<'_>,
    rows: &[Evaluated],
    best: f64,
    watch: &mut dyn FnMut(&str),
) -> Result<Vec<Evaluated>> {
    // Of plans with names that do not fit, which ones are evaluated depends on how many are wanted.
    let may_fit = |candidate: &Evaluated| candidate.fits() || candidate.reason.is_some();
    let may_be_best =
        |candidate: &&Evaluated| may_fit(candidate) && is_open(candidate) && offload::once(candidate) < best;
    let mut open: Vec<&Evaluated> = rows.iter().filter(may_be_best).collect();
    open.sort_by(|a, b| offload::once(a).total_cmp(&offload::once(b)));
    open.truncate(FEW);
    let Some(&state) = auto::offload().get(1).filter(|_| !open.is_empty() && !question.stop.is_late()) else {
        return Ok(vec![]);
    };
    let mut plans = vec![];
    for candidate in open {
        let Some(plan) = with_state(question, &candidate.plan, state) else { continue };
        plans.extend(question.respected(plan).ok().map(|plan| candidate.with(plan)));
    }
    let mut evaluated = Evaluations::default();
    evaluated.at(question, plans.into_iter(), watch)?;
    let offloaded = offload::rows(question, evaluated.rows.iter(), best, watch)?;
    evaluated.rows.extend(offloaded);
    evaluated.rows.retain(Evaluated::fits);
    Ok(evaluated.rows)
}

/// Whether layers are recomputed for want of memory, of which the state takes much.
fn is_open(candidate: &Evaluated) -> bool {
    let (rank, _, there) = candidate.memory;
    let state = candidate.estimate.memory[rank as usize].peak[Purpose::Optimizer as usize];
    let plan = &candidate.plan;
    plan.recompute.len() > 1
        && plan.offload.is_empty()
        && plan.state_on_host.is_empty()
        && plan.held_on_host.is_empty()
        && state as f64 > MUCH * there as f64
}

fn with_state(question: &Question<'_>, plan: &Plan, state: SetTerm) -> Option<Plan> {
    let name = PlanName::new(vec![SetTerm::bare(auto::alone()), state]);
    let model = sets::Model::new(question.graph, question.analysis);
    let state_on_host = sets::named_of(&name, &model, 1).ok()?.state_on_host;
    let name = Title::parse(&plan.name).with(state).to_string();
    Some(Plan { name, state_on_host, ..plan.clone() })
}
