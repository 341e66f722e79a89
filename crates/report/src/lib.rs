//! A plan as a person reads it: modules that are decided alike are one row, with what they are divided along, where they
//! run, and what they take of a step.
//!
//! Nothing rests on it: a plan file has each operator.

mod coverage;
mod decided;
mod modules;
pub mod page;
mod param_sharding;
mod profiled;
mod rows;
pub mod svg;
mod took;

use graph::{Graph, OpId};
use plan::Plan;
use plan::dim_names::DimNames;
use rules::Analysis;
use simulate::{Share, Shares};

pub use coverage::{Amount, Coverage, Lack, Planned, Unruled, coverage};
pub use decided::Decided;
pub use param_sharding::{KeptParams, kept};
pub use profiled::{ProfiledStep, profiled};

use modules::Module;

/// Modules that are decided alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Their paths, layers that are alike as `h.{0-11}`.
    pub modules: Vec<String>,
    pub ops: Vec<OpId>,
    pub decided: Decided,
    /// Operators among them that are decided otherwise, and have next to no work.
    pub others: usize,
    /// Those that backward computes again.
    pub recomputed: usize,
    /// Those of which what is kept for backward is on the host meanwhile.
    pub offloaded: usize,
    /// What of the model's operations theirs are.
    pub work: f64,
    /// What they take of a step, on the rank with most of it.
    pub share: Option<Share>,
}

/// The rows of a plan in the model's order, with what ranks do in a step if that is known.
pub fn rows(graph: &Graph, analysis: &Analysis, plan: &Plan, shares: Option<&[Shares]>) -> Vec<Row> {
    let names = DimNames::new(graph, analysis);
    let decided: Vec<Decided> = graph.op_ids().map(|op| Decided::new(analysis, &names, plan, op)).collect();
    let costs = compiler::operations_of_each(graph, analysis);
    let view = rows::View {
        decided: &decided,
        costs: &costs,
        recomputed: marks(plan, &plan.recompute),
        offloaded: marks(plan, &plan.offload),
    };
    let all: f64 = costs.iter().sum();
    let mut decisions = view.rows(&Module::from_graph(graph));
    for entry in &mut decisions {
        entry.work =
            if all > 0.0 { entry.ops.iter().map(|op| costs[op.index()]).sum::<f64>() / all } else { 0.0 };
        entry.share = shares.map(|shares| share(shares, &entry.ops));
    }
    decisions
}

/// For each operator whether it is in a span.
fn marks(plan: &Plan, spans: &[Vec<OpId>]) -> Vec<bool> {
    let mut marks = vec![false; plan.ops.len()];
    spans.iter().flatten().for_each(|op| marks[op.index()] = true);
    marks
}

/// What operators take, on the rank with most of it.
fn share(shares: &[Shares], ops: &[OpId]) -> Share {
    let share_of = |rank: &Shares| ops.iter().map(|op| rank.of[op.index()]).sum::<Share>();
    let more = |a: Share, b: Share| if b.works + b.exposed > a.works + a.exposed { b } else { a };
    shares.iter().map(share_of).fold(Share::default(), more)
}
