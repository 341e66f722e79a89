//! Rewritings: an operator becomes several simpler ones, for dims that only these can be split along.
//!
//! [`rewrite`] is a pure function of the model's graph and a list of [`Rewriting`]s. A program names those that
//! it is made with, and its numbers of operators and tensors are those of the rewritten graph, so whoever needs
//! that graph derives it. That a rewriting computes what its operator computes is not proved: proofs name it
//! among what they rest on, and tests compare it with the operator on tensors.
//!
//! Invariants of a rewritten graph: operators and tensors are numbered in the order in which they are defined, as
//! in the graph's text; what is not rewritten keeps its name, and its place among the others.

mod builder;

use std::borrow::Cow;
use std::collections::HashSet;

use diag::{Error, Result};
use graph::{Arg, Graph, Op, OpId, Source, Tensor, TensorId};

use crate::algebra::Kind;
use crate::families::{self, View};

pub use builder::{Builder, Rewrite};

/// One operator of the model that is rewritten, for a split along these dims of its rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewriting {
    pub op: OpId,
    /// Dims with their own algorithm ([`Kind::Own`]), in the order of the rule, each once; or the dim for which rows of
    /// another one are exchanged ([`families::exchanged`]).
    /// Where several choices of dims lead to the same operators, a program may divide these along any of them.
    pub dims: Vec<String>,
}

/// A graph in which some operators are rewritten.
#[derive(Clone, Debug)]
pub struct Rewritten<'g> {
    /// The model's own, if nothing is rewritten.
    pub graph: Cow<'g, Graph>,
    /// Where each operator of `graph` comes from.
    pub origins: Vec<Origin>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The operator of the model.
    pub op: OpId,
    /// What the dims of a piece of it mean: terms as in a rule, such as `b v, b -> b v`, in the names of the
    /// model's operator. `None` for the operator itself.
    pub labels: Option<String>,
}

/// Rewrites some operators of the model's graph, listed in its order.
pub fn rewrite<'g>(graph: &'g Graph, rewritings: &[Rewriting]) -> Result<Rewritten<'g>> {
    if rewritings.is_empty() {
        let origins = graph.op_ids().map(|op| Origin { op, labels: None }).collect();
        return Ok(Rewritten { graph: Cow::Borrowed(graph), origins });
    }
    validate(graph, rewritings)?;
    let mut to = InOrder::new(graph);
    let mut left = rewritings.iter().peekable();
    for op in graph.op_ids() {
        to.sources_above(op);
        match left.next_if(|rewriting| rewriting.op == op) {
            Some(rewriting) => to.rewritten(rewriting)?,
            None => to.copied(op),
        }
    }
    Ok(to.finish())
}

/// What the rewritings are of, those that are alike on one line: `%a, %b (aten.softmax.int) along c`.
pub fn describe(graph: &Graph, rewritings: &[Rewriting]) -> Vec<String> {
    let mut equal: Vec<(&str, &[String], Vec<String>)> = vec![];
    for Rewriting { op, dims } in rewritings {
        let (target, name) = (&graph.op(*op).target[..], name(graph, *op));
        match equal.iter_mut().find(|(other, along, _)| *other == target && along == dims) {
            Some((_, _, names)) => names.push(name),
            None => equal.push((target, dims, vec![name])),
        }
    }
    let line = |(target, dims, names): &(&str, &[String], Vec<String>)| {
        format!("{} ({target}) along {}", names.join(", "), dims.join(", "))
    };
    equal.iter().map(line).collect()
}

fn name(graph: &Graph, op: OpId) -> String {
    let made = graph.op(op).outputs.iter().flatten().next();
    made.map_or_else(|| "_".into(), |id| format!("%{}", graph.tensor(*id).name))
}

fn validate(graph: &Graph, rewritings: &[Rewriting]) -> Result<()> {
    let mut before: Option<OpId> = None;
    for Rewriting { op, dims } in rewritings {
        if op.index() >= graph.ops.len() {
            let what = format!("operator {} is rewritten, but the model has {}", op.0, graph.ops.len());
            return Err(Error::new("SW0520", what).fix(FIX));
        }
        if before.is_some_and(|before| before >= *op) {
            let what = format!("the rewriting of {} is not in order", graph.describe(*op));
            return Err(Error::new("SW0522", what)
                .why("operators are listed once, in the order of the model")
                .fix(FIX));
        }
        before = Some(*op);
        along(graph, *op, dims)?;
    }
    Ok(())
}

const FIX: &str = "undo the edit of program.json, or compile again";

/// Refuses dims that the operator's rewriting is not for.
fn along(graph: &Graph, op: OpId, dims: &[String]) -> Result<()> {
    let family = families::family_of(&graph.op(op).target).filter(|family| family.rewriting.is_some());
    let rule = family.and_then(|_| families::rule_of(View::new(graph, op)));
    let exchanged = families::exchanged(&graph.op(op).target).map(|(_, to)| to);
    let rewritable: Vec<&str> = rule
        .iter()
        .flat_map(|rule| &rule.dims)
        .filter(|dim| dim.kind == Kind::Own || Some(&dim.name[..]) == exchanged)
        .map(|dim| &dim.name[..])
        .collect();
    let refuse = |code, what: String, why: &str| {
        let who = graph.describe(op);
        Err(Error::new(code, format!("{who} {what}")).why(why).fix(FIX))
    };
    if rewritable.is_empty() {
        return refuse("SW0521", "is not rewritten for any split".into(), "no dim of its rule is marked `@`");
    }
    if let Some(dim) = dims.iter().find(|dim| !rewritable.contains(&&dim[..])) {
        let what = format!("is not rewritten for a split along `{}`", dim.escape_debug());
        return refuse(
            "SW0521",
            what,
            &format!("it is rewritten for splits along {}", rewritable.join(", ")),
        );
    }
    let listed: Vec<&str> =
        rewritable.into_iter().filter(|name| dims.iter().any(|dim| dim == name)).collect();
    if listed.is_empty() || !dims.iter().eq(listed) {
        let what = format!("is rewritten for a split along `{}`", dims.join(" "));
        return refuse("SW0522", what, "some of its dims are listed once, in the order of the rule");
    }
    Ok(())
}

/// The new graph, while it is made from the first definition to the last.
struct InOrder<'g> {
    old: &'g Graph,
    /// Names of `old` that a value between pieces could have.
    taken: HashSet<&'g str>,
    new: Graph,
    /// For each tensor of the old graph its number in the new one, once it is defined there.
    numbers: Vec<Option<TensorId>>,
    origins: Vec<Origin>,
    /// The tensors of the old graph up to here are defined, if they are sources.
    done: usize,
}

impl<'g> InOrder<'g> {
    fn new(old: &'g Graph) -> Self {
        let empty = Graph {
            model: old.model.clone(),
            in_spec: old.in_spec.clone(),
            out_spec: old.out_spec.clone(),
            modules: old.modules.clone(),
            ..Graph::default()
        };
        let taken = old.tensors.iter().map(|tensor| &tensor.name[..]).filter(|name| name.contains('.'));
        let numbers = vec![None; old.tensors.len()];
        Self { old, taken: taken.collect(), new: empty, numbers, origins: vec![], done: 0 }
    }

    fn sources_above(&mut self, op: OpId) {
        self.sources(self.old.defined_above(self.old.op(op)));
    }

    fn sources(&mut self, end: usize) {
        for index in self.done..end {
            let tensor = &self.old.tensors[index];
            if !matches!(tensor.source, Source::Op { .. }) {
                self.numbers[index] = Some(TensorId::new(self.new.tensors.len()));
                self.new.tensors.push(tensor.clone());
            }
        }
        self.done = self.done.max(end);
    }

    fn copied(&mut self, op: OpId) {
        let mut copy = self.read_anew(op);
        let number = OpId::new(self.new.ops.len());
        for (output, tensor) in copy.outputs.iter_mut().enumerate() {
            let Some(old) = *tensor else { continue };
            *tensor = Some(TensorId::new(self.new.tensors.len()));
            let source = Source::Op { op: number, output };
            self.numbers[old.index()] = *tensor;
            self.new.tensors.push(Tensor { source, ..self.old.tensor(old).clone() });
        }
        self.new.ops.push(copy);
        self.origins.push(Origin { op, labels: None });
    }

    fn rewritten(&mut self, rewriting: &Rewriting) -> Result<()> {
        let op = self.read_anew(rewriting.op);
        let rewrite = families::family_of(&op.target).and_then(|family| family.rewriting);
        let results = op.outputs.iter().map(|id| id.map(|id| self.old.tensor(id).clone())).collect();
        let mut builder = Builder::new(&mut self.new, &self.taken, op.clone(), results, &rewriting.dims);
        if let Some(rewrite) = rewrite {
            rewrite(&op, &mut builder);
        }
        let (labels, made) = builder.finish();
        self.origins
            .extend(labels.into_iter().map(|labels| Origin { op: rewriting.op, labels: Some(labels) }));
        for (output, made) in op.outputs.iter().zip(made) {
            let Some(old) = output else { continue };
            if made.is_none() {
                let what =
                    format!("{} is not rewritten for this call of it", self.old.describe(rewriting.op));
                return Err(Error::new("SW0521", what).fix(FIX));
            }
            self.numbers[old.index()] = made;
        }
        Ok(())
    }

    /// An operator whose operands are those of the new graph; its outputs are still the old ones.
    fn read_anew(&self, op: OpId) -> Op {
        let mut op = self.old.op(op).clone();
        let args = op.args.iter_mut().chain(op.kwargs.iter_mut().map(|(_, arg)| arg));
        args.for_each(|arg| self.read(arg));
        op
    }

    fn read(&self, arg: &mut Arg) {
        match arg {
            Arg::Tensor(id) => *id = self.number(*id),
            Arg::List(items) => items.iter_mut().for_each(|item| self.read(item)),
            _ => {}
        }
    }

    fn number(&self, old: TensorId) -> TensorId {
        self.numbers[old.index()].expect("a tensor is defined before it is read")
    }

    fn finish(mut self) -> Rewritten<'g> {
        self.sources(self.old.tensors.len());
        self.new.outputs = self.old.outputs.iter().map(|id| id.map(|id| self.number(id))).collect();
        let update = |(name, id): &(String, TensorId)| (name.clone(), self.number(*id));
        self.new.updates = self.old.updates.iter().map(update).collect();
        Rewritten { graph: Cow::Owned(self.new), origins: self.origins }
    }
}
