//! From a plan to a program: where the shard that a sub-operator needs differs from the shard that
//! exists, communication is inserted, forward and backward.
//!
//! [`boundary`] says what goes in and out. The way: where the plan has slices of the sequence, the graph is cut into these
//! ([`rules::slicing`]); operators with an algorithm of their own are
//! rewritten ([`rules::rewriting`]) and the plan carried over; [`replicas`] of operators are added, which later blocks
//! run instead of being sent what they give; [`place`] says where every part is and what it
//! reads and writes; [`gradients`] where partial gradients are completed; [`uses`] groups readers; [`param_sharding`] says
//! which parameters are divided between steps;
//! [`segments`] cuts the operators where something must move; [`moves`] finds how, with [`reshard_steps`] where one
//! collective does not do, and [`exchange`] where no pattern fits; [`schedule`] fixes the one global order, with [`buckets`] of gradients,
//! what backward computes again ([`recompute`]) and what is gathered for how long ([`gathers`]); and
//! [`project`] gives what ranks execute, once for all that do the same, which are [`roles`], with what can be communicated
//! [`together`] in one message; [`pipeline`] gives them their timetables, [`no_flush`] says what cannot be where steps follow each other
//! without a pause; [`updates`] says who computes those of whole parameters. All of them speak of shards as
//! [`layout`] defines them.

mod boundary;
mod buckets;
mod event;
mod exchange;
mod gathers;
mod gradients;
mod layout;
mod moves;
mod no_flush;
mod order;
mod param_sharding;
mod pipeline;
mod place;
mod placement;
mod project;
mod recompute;
mod replicas;
mod reshard_steps;
mod roles;
mod schedule;
mod segments;
mod shares;
mod sources;
mod spans;
mod together;
mod updates;
mod uses;

use std::borrow::Cow;

use diag::Result;
use graph::{Graph, Source, TensorId};
use indexmap::IndexSet;
use plan::{Plan, carried, in_slices, rewritings};
use program::{Boundary, Program};
use rules::{Analysis, rewrite};

pub use boundary::{all, arriving, loss, wanted};
pub use pipeline::handed_on;

/// A program, the graph that its numbers refer to, and the analysis of that.
pub struct Lowered<'g> {
    pub program: Program,
    pub graph: Cow<'g, Graph>,
    pub analysis: Cow<'g, Analysis>,
}

/// Lowers a plan for the model's graph, of which `analysis` is.
pub fn lower(model: &Graph, analysis: &Analysis, plan: &Plan, boundary: &Boundary) -> Result<Program> {
    Ok(lowered(model, analysis, plan, boundary)?.program)
}

/// The same, with the graph that it is lowered for: the model's, unless it is cut or rewritten.
pub fn lowered<'g>(
    model: &'g Graph,
    analysis: &'g Analysis,
    plan: &Plan,
    boundary: &Boundary,
) -> Result<Lowered<'g>> {
    plan.validate(model, analysis)?;
    let Some(it) = in_slices(model, analysis, plan)? else {
        return rewritten(model, analysis, plan, boundary);
    };
    it.plan.validate(&it.sliced.graph, &it.analysis)?;
    let sliced = rewritten(&it.sliced.graph, &it.analysis, &it.plan, boundary)?;
    Ok(Lowered {
        program: Program { digest: model.digest(), slices: Some(it.slices), ..sliced.program },
        graph: Cow::Owned(sliced.graph.into_owned()),
        analysis: Cow::Owned(sliced.analysis.into_owned()),
    })
}

/// Lowers a valid plan for a graph whose sequence is whole, or is in slices already.
fn rewritten<'g>(
    model: &'g Graph,
    analysis: &'g Analysis,
    plan: &Plan,
    boundary: &Boundary,
) -> Result<Lowered<'g>> {
    let rewritings = rewritings(model, analysis, plan);
    let rewritten = rewrite(model, &rewritings)?;
    let (program, analysis) = if rewritings.is_empty() {
        (as_it_is(model, analysis, plan, boundary)?, Cow::Borrowed(analysis))
    } else {
        let fresh = Analysis::new(&rewritten.graph);
        let plan = carried(plan, analysis, &rewritten, &fresh);
        plan.validate(&rewritten.graph, &fresh)?;
        (as_it_is(&rewritten.graph, &fresh, &plan, boundary)?, Cow::Owned(fresh))
    };
    let program = Program { digest: model.digest(), rewritings, ..program };
    Ok(Lowered { program, graph: rewritten.graph, analysis })
}

/// Lowers a plan that rewrites nothing more. Whose graph it is, [`lower`] says.
fn as_it_is(graph: &Graph, analysis: &Analysis, plan: &Plan, boundary: &Boundary) -> Result<Program> {
    boundary::validate(graph, boundary)?;
    let Some(it) = replicas::add(graph, analysis, plan, boundary) else {
        return placed(graph, analysis, plan, boundary, graph.ops.len());
    };
    let mut program = placed(&it.graph, &it.analysis, &it.plan, boundary, it.originals())?;
    it.renumber(&mut program);
    Ok(program)
}

/// Lowers a plan for a graph of which so many operators are the model's; the rest are replicas.
fn placed(
    graph: &Graph,
    analysis: &Analysis,
    plan: &Plan,
    boundary: &Boundary,
    originals: usize,
) -> Result<Program> {
    let needs_grad = boundary.needs_grad(graph);
    let arrives = boundary::arriving(graph, analysis, boundary, &needs_grad);
    let given_back = boundary::given_back(graph, &arrives);
    boundary::validate_blocks(graph, plan, &given_back)?;
    let order = order::order(graph, plan, boundary, originals)?;
    let mut interner = layout::Interner::default();
    let placements = place::place_all(graph, analysis, plan, &arrives, &mut interner);
    let order = order::parts_together(graph, plan, &placements, order);
    let placed = uses::Context {
        graph,
        analysis,
        plan,
        placements: &placements,
        needs_grad: &needs_grad,
        boundary,
        given_back: &given_back,
        order: &order,
        wanted: &[],
    };
    let passed = gradients::pass_on(&placed, &mut interner);
    let cx = uses::Context { placements: &passed.placements, wanted: &passed.wanted, ..placed };
    let uses = uses::find(&cx, &mut interner);
    let mut groupings = IndexSet::new();
    let param_shardings = param_sharding::ParamShardings::find(&cx, &uses, &mut interner, &mut groupings);
    let segments = segments::cut(&cx, &uses, &param_shardings, &interner);
    let asked = schedule::ScheduleInput {
        cx: &cx,
        uses: &uses,
        param_shardings: &param_shardings,
        segments: &segments,
    };
    let schedule = schedule::schedule(&asked, &mut interner, groupings);
    let global = project::Global {
        cx: &cx,
        uses: &uses,
        param_shardings: &param_shardings,
        segments: &segments,
        schedule: &schedule,
        interner: &interner,
    };
    let mut projected = project::all(&global, plan.devices);
    pipeline::timetables(&cx, &mut projected)?;
    let roles = roles::roles(projected);
    let mut program = Program {
        model: graph.model.clone(),
        digest: String::new(),
        slices: None,
        rewritings: vec![],
        plan: plan.name.clone(),
        world: plan.devices,
        boundary: boundary.clone(),
        factors: analysis.factors.clone(),
        state_on_host: state_on_host(&cx, &param_shardings),
        held_on_host: param_shardings.on_host(),
        groupings: schedule.groupings.iter().cloned().collect(),
        exchanges: schedule.exchanges.clone(),
        updates: updates::updates(graph, analysis, plan, &roles),
        roles,
    };
    together::together(&mut program);
    Ok(program)
}

/// Of what is frozen there is no state; that of what lives on the host is there with it.
fn state_on_host(cx: &uses::Context<'_>, param_shardings: &param_sharding::ParamShardings) -> Vec<TensorId> {
    let said = |name: &String| cx.plan.state_on_host.contains(name) || cx.plan.held_on_host.contains(name);
    let offloaded = |tensor: &TensorId| match &cx.graph.tensor(*tensor).source {
        Source::Param { names, frozen: false } => names.iter().any(said),
        _ => false,
    };
    let all = cx.graph.tensor_ids().filter(offloaded);
    all.filter(|tensor| !param_shardings.get(*tensor).is_some_and(|sharding| sharding.on_host)).collect()
}
