//! Before lowering: operators that are split along a dim with its own algorithm are rewritten into
//! simpler ones, and the plan is carried over to them.

use std::collections::HashMap;

use diag::Result;
use graph::{Graph, OpId, Source};
use plan::{On, OpPlan, Plan, Split, legal};
use rules::expand::{Builder, Piece};
use rules::families::{self, View};
use rules::{Analysis, DimId, Kind};

/// The graph, its analysis and the plan after rewriting, and which original operator each new one
/// belongs to.
pub struct Expanded {
    pub graph: Graph,
    pub analysis: Analysis,
    pub plan: Plan,
    pub origin: Vec<OpId>,
}

pub fn expand(graph: &Graph, analysis: &Analysis, plan: &Plan) -> Result<Expanded> {
    let mut origin: Vec<OpId> = vec![];
    let mut pieces: Vec<Option<Piece>> = vec![];
    let mut new = Graph { ops: vec![], ..graph.clone() };
    for op in graph.op_ids() {
        let it = graph.op(op).clone();
        match families::family_of(&it.target)
            .and_then(|f| f.expand)
            .filter(|_| splits_own(analysis, plan, op))
        {
            None => {
                for (output, tensor) in it.outputs.iter().enumerate() {
                    if let Some(tensor) = tensor {
                        new.tensors[tensor.index()].source =
                            Source::Op { op: OpId::new(new.ops.len()), output };
                    }
                }
                new.ops.push(it);
                pieces.push(None);
            }
            Some(rewrite) => {
                let mut builder = Builder::new(&mut new, it.clone(), split_dims(analysis, plan, op));
                rewrite(&it, &mut builder);
                pieces.extend(builder.pieces.into_iter().map(Some));
            }
        }
        origin.resize(new.ops.len(), op);
    }
    if new.ops.len() == graph.ops.len() && pieces.iter().all(Option::is_none) {
        let (graph, analysis, plan) = (graph.clone(), analysis.clone(), plan.clone());
        return Ok(Expanded { graph, analysis, plan, origin });
    }
    // Tensors are numbered as in the graph's text, so that a program can be proved against that.
    let new: Graph = new.to_string().parse()?;
    let fresh = Analysis::of(&new);
    let plan = carry(analysis, plan, &new, &fresh, &origin, &pieces);
    plan.validate(&new, &fresh)?;
    Ok(Expanded { graph: new, analysis: fresh, plan, origin })
}

fn splits_own(analysis: &Analysis, plan: &Plan, op: OpId) -> bool {
    let loops = &analysis.op(op).loops;
    let own = |s: &Split| s.parts > 1 && matches!(s.on, On::Loop(i) if loops[i].kind == Kind::Own);
    plan.op(op).splits.iter().any(own)
}

fn split_dims(analysis: &Analysis, plan: &Plan, op: OpId) -> Vec<String> {
    let loops = &analysis.op(op).loops;
    let name = |s: &Split| match s.on {
        On::Loop(i) if s.parts > 1 => {
            Some(analysis.rules[op.index()].as_ref()?.dim(loops[i].dim).name.clone())
        }
        _ => None,
    };
    plan.op(op).splits.iter().filter_map(name).collect()
}

fn carry(
    analysis: &Analysis,
    plan: &Plan,
    new: &Graph,
    fresh: &Analysis,
    origin: &[OpId],
    pieces: &[Option<Piece>],
) -> Plan {
    let ops = (new.op_ids().zip(origin).zip(pieces))
        .map(|((op, &from), piece)| {
            let old = plan.op(from);
            let labels = piece.as_ref().map(|p| labelled(new, op, &p.labels));
            let mut splits: Vec<Split> = vec![];
            for split in &old.splits {
                let on = match (split.on, &labels) {
                    (On::Loop(index), labels) => same_loop(analysis, from, index, fresh, op, labels.as_ref()),
                    (On::Value, Some(_)) => On::Copies,
                    (on, _) => on,
                };
                splits.push(Split { on, parts: split.parts });
                if legal(new, fresh, op, &splits).is_err() {
                    splits.pop();
                    splits.push(Split { on: On::Copies, parts: split.parts });
                }
            }
            OpPlan { splits, devices: old.devices.clone() }
        })
        .collect();
    let mut order = vec![];
    for &(a, b) in &plan.order {
        let of =
            |wanted: OpId| new.op_ids().zip(origin).filter(move |(_, o)| **o == wanted).map(|(op, _)| op);
        of(a).for_each(|a| of(b).for_each(|b| order.push((a, b))));
    }
    Plan { name: plan.name.clone(), devices: plan.devices, ops, order }
}

/// The names of the original operator's dims on the dims of a piece's rule.
fn labelled(new: &Graph, op: OpId, labels: &str) -> HashMap<String, DimId> {
    let Some(rule) = families::rule_of(View::new(new, op)) else { return HashMap::new() };
    let terms = |side: &str| -> Vec<Vec<String>> {
        let operand = |o: &str| o.split_whitespace().filter(|w| *w != "scalar").map(str::to_owned).collect();
        side.split(',').map(operand).collect()
    };
    let (left, right) = labels.split_once("->").expect("labels of a rewriting have `->`");
    let operands =
        terms(left).into_iter().zip(&rule.inputs).chain(terms(right).into_iter().zip(&rule.outputs));
    let mut found = HashMap::new();
    for (words, operand) in operands {
        for (word, product) in words.into_iter().zip(&operand.dims) {
            if let [dim] = product[..] {
                found.insert(word, dim);
            }
        }
    }
    found
}

/// The loop of a new operator that stands for a loop of the original one.
fn same_loop(
    analysis: &Analysis,
    from: OpId,
    index: usize,
    fresh: &Analysis,
    op: OpId,
    labels: Option<&HashMap<String, DimId>>,
) -> On {
    let old = analysis.op(from);
    let wanted = &old.loops[index];
    let position = old.loops[..index].iter().filter(|l| l.dim == wanted.dim).count();
    let name = analysis.rules[from.index()].as_ref().map(|r| r.dim(wanted.dim).name.clone());
    let dim = match labels {
        None => Some(wanted.dim),
        Some(labels) => name.and_then(|n| labels.get(&n).copied()),
    };
    let loops = &fresh.op(op).loops;
    let found = (0..loops.len()).filter(|&i| Some(loops[i].dim) == dim).nth(position);
    match found {
        Some(i) if loops[i].size == wanted.size => On::Loop(i),
        _ => On::Copies,
    }
}
