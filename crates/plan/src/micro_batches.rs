//! Whether the loss of a batch can be put together of the losses of its micro-batches, and how.
//!
//! Two graphs of one model are compared: `whole`, captured with two micro-batches, and `one` with one of them.
//! What splits the batch of `whole` in two must be, operator by operator, what `one` does, and each value of
//! `whole` follows from the two of `one` as its [`Form`] says. Where an operator needs all of the batch, or the model
//! does something else for fewer rows, that is refused with the operator's name: results would differ.

use diag::{Error, Result};
use graph::{Graph, OpId, Source, TensorId};
use rules::families::{self, View};
use rules::local::unchanged;
use rules::rewriting::Origin;
use rules::{Analysis, Interval, Kind, LocalOp, Reduction, Rewritten, rewrite};

use crate::transfer::Side;
use crate::{On, Plan, carried, place, rewritings, sets};

/// What a micro-batch counts in the loss of its batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weight {
    /// The loss is a sum.
    One,
    /// It is a mean, over as much of each.
    Equal,
    /// It is a mean over what is counted: a graph that gives the number of two micro-batches, of their inputs.
    Counted(String),
}

/// How a value of the whole batch follows from those of its micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// It is the same for all.
    Same,
    /// They are joined along this factor, counted over all dims.
    Along(usize),
    Sum,
    /// Their mean, weighted by this sum where there is one.
    Mean(Option<TensorId>),
}

/// Parts of the batch that are compared.
const PARTS: u32 = 2;

/// The rows of one micro-batch, the positions of the inputs that have them along their first dim, and what each
/// micro-batch counts.
pub fn cut(whole: Side<'_>, one: Side<'_>) -> Result<(i64, Vec<usize>, Weight)> {
    let (mut rows, mut positions) = (0, vec![]);
    for tensor in &one.graph.tensors {
        let Source::Input { position, .. } = tensor.source else { continue };
        let given = whole.graph.tensors.iter().find(|other| is_input(other, position));
        if given.is_some_and(|given| given.shape != tensor.shape) {
            rows = tensor.shape.first().copied().unwrap_or(0);
            positions.push(position);
        }
    }
    Ok((rows, positions, weight(whole, one)?))
}

fn is_input(tensor: &graph::Tensor, at: usize) -> bool {
    matches!(tensor.source, Source::Input { position, .. } if position == at)
}

/// What each micro-batch counts.
fn weight(whole: Side<'_>, one: Side<'_>) -> Result<Weight> {
    same(whole.graph, one.graph)?;
    let plan = sets::named("data", whole.graph, whole.analysis, PARTS)
        .map_err(|error| refusal(format!("no input of it has a batch that may be cut: {}", error.what)))?;
    let named = rewritings(whole.graph, whole.analysis, &plan);
    let rewritten = rewrite(whole.graph, &named)?;
    let analysis = Analysis::new(&rewritten.graph);
    let plan = carried(&plan, whole.analysis, &rewritten, &analysis);
    let graph = &*rewritten.graph;
    let mut forms = Forms { whole, one, rewritten: &rewritten, analysis: &analysis, plan: &plan, of: vec![] };
    let (loss, form) = forms.of_loss()?;
    match form {
        Form::Sum => Ok(Weight::One),
        Form::Same | Form::Mean(None) => Ok(Weight::Equal),
        Form::Mean(Some(count)) => Ok(Weight::Counted(counted(graph, count)?)),
        Form::Along(_) => {
            Err(refusal(format!("%{} is not a loss of the whole batch", graph.tensor(loss).name)))
        }
    }
}

/// Both do the same, one after the other; and nothing that would be done once for each micro-batch.
fn same(whole: &Graph, one: &Graph) -> Result<()> {
    if let Some((name, _)) = whole.updates.first() {
        let is_parameter = whole.held(name).is_some_and(|held| whole.is_parameter(held));
        let what = if is_parameter { "the parameter" } else { "the buffer" };
        return Err(refusal(format!(
            "a forward changes {what} `{name}`, and would do so for each micro-batch instead of once for \
             the batch"
        )));
    }
    let differs = |(a, b): &(OpId, OpId)| {
        let (a, b) = (whole.op(*a), one.op(*b));
        (&a.target, &a.module) != (&b.target, &b.module)
    };
    let apart = whole.op_ids().zip(one.op_ids()).find(differs);
    let more = (whole.ops.len() != one.ops.len()).then(|| OpId::new(whole.ops.len().min(one.ops.len())));
    match apart.map(|(op, _)| op).or(more) {
        None => Ok(()),
        Some(op) if op.index() < whole.ops.len() => Err(of_size(whole, op)),
        Some(_) => Err(refusal("with fewer rows the model runs more operators".into())),
    }
}

struct Forms<'a> {
    whole: Side<'a>,
    one: Side<'a>,
    rewritten: &'a Rewritten<'a>,
    analysis: &'a Analysis,
    plan: &'a Plan,
    /// For each tensor of the rewritten graph; nothing for what the loss does not depend on.
    of: Vec<Option<Form>>,
}

impl Forms<'_> {
    /// The one scalar output, which a step starts from, and how it follows.
    fn of_loss(&mut self) -> Result<(TensorId, Form)> {
        let graph = &*self.rewritten.graph;
        let needs_grad = graph.needs_grad();
        let is_loss = |id: &TensorId| graph.tensor(*id).shape.is_empty() && needs_grad[id.index()];
        let losses: Vec<TensorId> = graph.outputs.iter().flatten().copied().filter(is_loss).collect();
        let [loss] = losses[..] else {
            return Err(
                refusal(format!("it has {} scalar results", losses.len())).why("a step starts from one loss")
            );
        };
        self.of = self.sources(graph)?;
        let wanted = ancestors(graph, loss);
        for op in graph.op_ids().filter(|op| wanted[op.index()]) {
            self.follow(graph, op)?;
        }
        Ok((loss, self.of[loss.index()].unwrap_or(Form::Same)))
    }

    fn sources(&self, graph: &Graph) -> Result<Vec<Option<Form>>> {
        let form_of = |id: TensorId| {
            let tensor = graph.tensor(id);
            let Source::Input { position, .. } = &tensor.source else {
                return Ok((!matches!(tensor.source, Source::Op { .. })).then_some(Form::Same));
            };
            let part = self.one.graph.tensors.iter().find(|tensor| is_input(tensor, *position));
            let part = part.map(|tensor| &tensor.shape[..]);
            match (&tensor.shape[..], part) {
                (whole, Some(part)) if whole == part => Ok(Some(Form::Same)),
                ([whole, rest @ ..], Some([part, others @ ..]))
                    if *whole == part * i64::from(PARTS) && rest == others =>
                {
                    Ok(Some(Form::Along(0)))
                }
                _ => Err(refusal(format!("the input %{} is not cut along its first dim", tensor.name))),
            }
        };
        graph.tensor_ids().map(form_of).collect()
    }

    fn follow(&mut self, graph: &Graph, op: OpId) -> Result<()> {
        let split = self.plan.op(op).splits.iter().find_map(|split| match split.on {
            On::Loop(index) => Some(index),
            _ => None,
        });
        let inputs = graph.op(op).inputs();
        // Of what a new tensor is like it takes only the type.
        let is_new = graph.op(op).target.starts_with("aten.new_");
        let form = |id: &TensorId| self.of[id.index()].filter(|_| !is_new).unwrap_or(Form::Same);
        let given: Vec<Form> = inputs.iter().map(form).collect();
        if !self.computes_the_same(graph, op, split) {
            return Err(of_size(self.whole.graph, self.origin(op)));
        }
        let made = match split {
            Some(index) => self.divided(op, index, &given),
            None => self.undivided(graph, op, &given).map(|form| vec![form; graph.op(op).outputs.len()]),
        };
        let made = made.ok_or_else(|| mixes(self.whole.graph, self.origin(op), &given))?;
        for (output, form) in graph.op(op).outputs.iter().zip(made) {
            if let Some(output) = output {
                self.of[output.index()] = Some(form);
            }
        }
        Ok(())
    }

    /// Of an operator that each micro-batch computes its part of. `None` where it is none of that.
    fn divided(&self, op: OpId, index: usize, given: &[Form]) -> Option<Vec<Form>> {
        let dims = self.analysis.op(op);
        let at = |carried: &Vec<Option<usize>>| carried.iter().position(|l| *l == Some(index));
        let fits = |(carried, form): (&Vec<Option<usize>>, &Form)| match (at(carried), form) {
            (Some(factor), Form::Along(along)) => factor == *along,
            (None, form) => *form == Form::Same,
            _ => false,
        };
        if !dims.inputs.iter().zip(given).all(fits) {
            return None;
        }
        let rule = self.analysis.rules[op.index()].as_ref()?;
        let graph = &*self.rewritten.graph;
        match dims.loops[index].kind {
            Kind::Map => graph
                .op(op)
                .outputs
                .iter()
                .zip(&dims.outputs)
                // What nobody reads may be anything.
                .map(|(made, carried)| made.map_or(Some(Form::Same), |_| at(carried).map(Form::Along)))
                .collect(),
            Kind::Reduce(Reduction::Sum) if rule.inputs.iter().any(|input| input.once) => None,
            Kind::Reduce(Reduction::Sum) => {
                let is_mean = graph.op(op).target.starts_with("aten.mean.");
                let form = if is_mean { Form::Mean(None) } else { Form::Sum };
                Some(vec![form; dims.outputs.len()])
            }
            _ => None,
        }
    }

    /// Of an operator that each micro-batch computes as it is: it must be linear in what is a sum or a mean.
    fn undivided(&self, graph: &Graph, op: OpId, given: &[Form]) -> Option<Form> {
        let of_them: Vec<usize> = (0..given.len()).filter(|at| given[*at] != Form::Same).collect();
        let Some(form) = of_them.first().map(|at| given[*at]) else { return Some(Form::Same) };
        let it = graph.op(op);
        if let ("aten.div.Tensor", [Form::Sum, Form::Sum]) = (&it.target[..], given) {
            let count = it.inputs()[1];
            return (!graph.needs_grad()[count.index()]).then_some(Form::Mean(Some(count)));
        }
        let all_alike = of_them.iter().all(|at| given[*at] == form);
        let rule = self.analysis.rules[op.index()].as_ref()?;
        // What is the same for all is added once to a mean, and to a sum once for each.
        let is_linear = |set: &&Vec<usize>| match form {
            Form::Sum => **set == of_them,
            Form::Mean(_) => of_them.iter().all(|at| set.contains(at)),
            _ => false,
        };
        (all_alike && rule.linear().any(|set| is_linear(&set))).then_some(form)
    }

    /// Whether the part of an operator that a micro-batch has is what the model does for that.
    fn computes_the_same(&self, graph: &Graph, op: OpId, split: Option<usize>) -> bool {
        let Origin { op: theirs, labels } = &self.rewritten.origins[op.index()];
        let as_it_is =
            |graph: &Graph, op: OpId| unchanged(graph.op(op)) == unchanged(self.one.graph.op(*theirs));
        let Some(index) = split.filter(|_| labels.is_none()) else {
            return as_it_is(self.whole.graph, *theirs);
        };
        let mut at = self.analysis.op(op).whole();
        at[index] = at[index].part(0, PARTS);
        let ours = executes(graph, self.analysis, op, &at);
        // A part of a mean is told of how much it is the mean.
        let is_mean = ours.target == "sw.mean" && as_it_is(self.whole.graph, *theirs);
        let all = self.one.analysis.op(*theirs).whole();
        is_mean || ours == executes(self.one.graph, self.one.analysis, *theirs, &all)
    }

    fn origin(&self, op: OpId) -> OpId {
        self.rewritten.origins[op.index()].op
    }
}

fn executes(graph: &Graph, analysis: &Analysis, op: OpId, at: &[Interval]) -> LocalOp {
    let part = analysis.part(graph, op, at, true, 0);
    families::executed(View::new(graph, op), analysis.rules[op.index()].as_ref(), &part)
}

/// For each operator whether a tensor depends on it.
fn ancestors(graph: &Graph, tensor: TensorId) -> Vec<bool> {
    let mut wanted = vec![false; graph.ops.len()];
    let mut open = vec![tensor];
    while let Some(id) = open.pop() {
        if let Some((op, _)) = graph.producer(id).filter(|(op, _)| !wanted[op.index()]) {
            wanted[op.index()] = true;
            open.extend(graph.op(op).inputs());
        }
    }
    wanted
}

/// The text of a graph that gives a count, of the inputs alone.
fn counted(graph: &Graph, count: TensorId) -> Result<String> {
    let wanted = ancestors(graph, count);
    let reads = |id: &TensorId| {
        matches!(
            graph.tensor(*id).source,
            Source::Param { .. } | Source::Buffer { .. } | Source::Const { .. }
        )
    };
    let mut ops = graph.op_ids().filter(|op| wanted[op.index()]);
    if let Some(op) = ops.find(|op| graph.op(*op).inputs().iter().any(reads)) {
        return Err(refusal(format!(
            "its loss is divided by a sum of the result of {}, which does not follow from the inputs alone",
            graph.describe(op)
        ))
        .at(place(graph, op)));
    }
    let (mut lines, mut next) = (vec![], 0);
    let mut plain = graph.clone();
    // Pieces of rewritten operators have names that no program in Python could have.
    plain.tensors.iter_mut().enumerate().for_each(|(at, tensor)| tensor.name = format!("t{at}"));
    for line in plain.to_string().lines().map(str::to_owned) {
        let word = line.split(' ').next().unwrap_or_default();
        let keep = match word {
            "op" => {
                next += 1;
                wanted[next - 1]
            }
            "param" | "buffer" | "const" | "output" | "update" => false,
            _ => true,
        };
        if keep {
            lines.push(line);
        }
    }
    lines.push(format!("output %{}", plain.tensor(count).name));
    Ok(lines.join("\n") + "\n")
}

fn refusal(why: String) -> Error {
    Error::new("SW0360", "the model cannot be trained in micro-batches").why(why).fix(
        "set `micro_batches` to 1, or give `train_step` a list of batches: it takes the mean of their losses",
    )
}

fn of_size(graph: &Graph, op: OpId) -> Error {
    refusal(format!("{} is another operator for fewer rows of the batch", graph.describe(op)))
        .at(place(graph, op))
}

fn mixes(graph: &Graph, op: OpId, given: &[Form]) -> Error {
    let what = if given.contains(&Form::Sum) || given.iter().any(|form| matches!(form, Form::Mean(_))) {
        "turns a sum or mean over the batch into something else"
    } else {
        "needs all rows of the batch at once"
    };
    refusal(format!("{} {what}", graph.describe(op))).at(place(graph, op))
}
