//! What a plan rewrites, and the same plan for the rewritten graph.

use std::collections::HashMap;

use graph::{Graph, OpId};
use rules::families::{self, View};
use rules::{Analysis, DimId, Kind, Loop, Rewriting, Rewritten};

use crate::counterparts::Counterparts;
use crate::{On, OpPlan, Plan, Split, legal};

/// The operators that a plan splits along dims with their own algorithm, or whose parts exchange rows.
pub fn rewritings(graph: &Graph, analysis: &Analysis, plan: &Plan) -> Vec<Rewriting> {
    let rewriting_of = |op: OpId| {
        let rule = analysis.rules[op.index()].as_ref()?;
        let loops = &analysis.op(op).loops;
        let split = |s: &Split| match s.on {
            On::Loop(i) if s.parts > 1 && loops[i].kind == Kind::Own => Some(loops[i].dim),
            On::Exchange { experts, .. } if s.parts > 1 => Some(loops[experts].dim),
            _ => None,
        };
        let mut dims: Vec<DimId> = plan.op(op).splits.iter().filter_map(split).collect();
        dims.sort_unstable();
        dims.dedup();
        let dims: Vec<String> = dims.into_iter().map(|dim| rule.dim(dim).name.clone()).collect();
        (!dims.is_empty()).then_some(Rewriting { op, dims })
    };
    graph.op_ids().filter_map(rewriting_of).collect()
}

/// The same decisions for a rewritten graph: pieces are split as their operator was, where they have the dim.
pub fn carried(plan: &Plan, analysis: &Analysis, rewritten: &Rewritten<'_>, fresh: &Analysis) -> Plan {
    let new = &*rewritten.graph;
    let mut ops: Vec<OpPlan> = (new.op_ids().zip(&rewritten.origins))
        .map(|(op, origin)| {
            let old = plan.op(origin.op);
            let labels = origin.labels.as_ref().map(|labels| labelled(new, op, labels));
            let mut splits: Vec<Split> = vec![];
            for split in &old.splits {
                let on = match (split.on, &labels) {
                    (On::Loop(index), labels) => {
                        same_loop(analysis, origin.op, index, fresh, op, labels.as_ref())
                    }
                    (On::Exchange { tokens, experts }, labels) => {
                        exchanged(analysis, origin.op, tokens, experts, fresh, op, labels.as_ref())
                    }
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
    let uses = new.uses();
    // From the last one: who reads a piece that several add may be such itself.
    for op in new.op_ids().rev().filter(|op| rewritten.origins[op.index()].labels.is_some()) {
        if let Some(splits) = as_read(new, fresh, &uses, op, &ops) {
            ops[op.index()].splits = splits;
        }
    }
    let pieces = Counterparts::new(plan.ops.len(), rewritten.origins.iter().map(|origin| Some(origin.op)));
    let order = pieces.order(&plan.order);
    let (recompute, offload) = (pieces.spans(&plan.recompute), pieces.spans(&plan.offload));
    let of_blocks = if plan.blocks.is_empty() { &[][..] } else { &rewritten.origins };
    let blocks = of_blocks.iter().map(|origin| plan.block(origin.op)).collect();
    Plan { ops, order, recompute, offload, blocks, ..plan.clone() }
}

/// How a piece is split that would be copied, where all that read it read the same part of it on each device: what is
/// added once to a sum is added to the part that is read.
fn as_read(
    graph: &Graph,
    analysis: &Analysis,
    uses: &[Vec<(OpId, usize)>],
    op: OpId,
    ops: &[OpPlan],
) -> Option<Vec<Split>> {
    let op_plan = &ops[op.index()];
    let ([Some(made)], [carried]) = (&graph.op(op).outputs[..], &analysis.op(op).outputs[..]) else {
        return None;
    };
    let is_copied = op_plan.splits.iter().any(|split| split.on == On::Copies && split.parts > 1);
    let is_kept = graph.updates.iter().any(|(_, value)| value == made);
    if !is_copied || is_kept || graph.outputs.contains(&Some(*made)) {
        return None;
    }
    let of_reader = |reader: OpId, position: usize| -> Option<Vec<Split>> {
        let theirs = &ops[reader.index()];
        let same = theirs.devices == op_plan.devices && theirs.splits.len() == op_plan.splits.len();
        let read = analysis.op(reader).inputs.get(position).filter(|_| same)?;
        let same = |(ours, theirs): (&Split, &Split)| match (ours.on, theirs.on) {
            _ if ours.parts != theirs.parts => None,
            (On::Copies, On::Loop(index)) => {
                let factor = read.iter().position(|l| *l == Some(index))?;
                let index = carried[factor].filter(|it| analysis.op(op).loops[*it].kind == Kind::Map)?;
                Some(Split { on: On::Loop(index), ..*ours })
            }
            _ => Some(*ours),
        };
        op_plan.splits.iter().zip(&theirs.splits).map(same).collect()
    };
    let mut all = uses[made.index()].iter().map(|(reader, position)| of_reader(*reader, *position));
    let first = all.next()??;
    let agree = all.all(|other| other.as_ref() == Some(&first));
    (agree && first != op_plan.splits && legal(graph, analysis, op, &first).is_ok()).then_some(first)
}

/// Where a dim of the original operator stands in a piece: a dim of the piece's rule, and the original's dims that
/// are outside of it there.
type DimPlace = (DimId, Vec<String>);

/// The names of the original operator's dims on the dims of a piece's rule.
fn labelled(new: &Graph, op: OpId, labels: &str) -> HashMap<String, DimPlace> {
    let Some(rule) = families::rule_of(View::new(new, op)) else { return HashMap::new() };
    let (left, right) = labels.split_once("->").expect("labels of a rewriting have `->`");
    let terms = |side: &str| -> Vec<Vec<Vec<String>>> { side.split(',').map(products).collect() };
    let operands =
        terms(left).into_iter().zip(&rule.inputs).chain(terms(right).into_iter().zip(&rule.outputs));
    let mut places = HashMap::new();
    for (words, operand) in operands {
        for (words, dims) in words.into_iter().zip(&operand.dims) {
            match dims[..] {
                [dim] => {
                    let outside = |at: usize| (words[at].clone(), (dim, words[..at].to_vec()));
                    places.extend((0..words.len()).map(outside));
                }
                _ if dims.len() == words.len() => {
                    places.extend(words.into_iter().zip(dims).map(|(word, dim)| (word, (*dim, vec![]))));
                }
                _ => {}
            }
        }
    }
    places
}

/// The dims of an operand, each with the names that it is a product of: `(n p) c` has two and one.
fn products(operand: &str) -> Vec<Vec<String>> {
    let (mut products, mut is_open) = (vec![], false);
    for word in operand.trim().trim_start_matches('!').split_whitespace().filter(|word| *word != "scalar") {
        let name = word.trim_matches(['(', ')']).to_owned();
        match products.last_mut() {
            Some(names) if is_open => Vec::push(names, name),
            _ => products.push(vec![name]),
        }
        is_open = (is_open || word.starts_with('(')) && !word.ends_with(')');
    }
    products
}

/// What is of both tokens and experts is divided by experts, the rest by tokens: rows move between these.
fn exchanged(
    analysis: &Analysis,
    from: OpId,
    tokens: usize,
    experts: usize,
    fresh: &Analysis,
    op: OpId,
    labels: Option<&HashMap<String, DimPlace>>,
) -> On {
    let by_experts = same_loop(analysis, from, experts, fresh, op, labels);
    if by_experts != On::Copies { by_experts } else { same_loop(analysis, from, tokens, fresh, op, labels) }
}

/// The loop of a new operator that stands for a loop of the original one.
fn same_loop(
    analysis: &Analysis,
    from: OpId,
    index: usize,
    fresh: &Analysis,
    op: OpId,
    labels: Option<&HashMap<String, DimPlace>>,
) -> On {
    let old = analysis.op(from);
    let wanted = &old.loops[index];
    let Some(rule) = &analysis.rules[from.index()] else { return On::Copies };
    let count = |dim: DimId, loops: &[Loop]| loops.iter().filter(|l| l.dim == dim).count();
    let position = count(wanted.dim, &old.loops[..index]);
    let here = match labels {
        None => Some((wanted.dim, position)),
        Some(labels) => labels.get(&rule.dim(wanted.dim).name).map(|(dim, outside)| {
            let outer = outside.iter().filter_map(|name| rule.find(name));
            (*dim, outer.map(|dim| count(dim, &old.loops)).sum::<usize>() + position)
        }),
    };
    let Some((dim, position)) = here else { return On::Copies };
    let loops = &fresh.op(op).loops;
    let index = (0..loops.len()).filter(|&i| loops[i].dim == dim).nth(position);
    match index {
        Some(i) if loops[i].size == wanted.size => On::Loop(i),
        _ => On::Copies,
    }
}
