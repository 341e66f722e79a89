//! Losses of classes: each part picks the targets' columns that it has. A mean is a sum and a count.

use graph::{Arg, Dtype, Op, TensorId};

use super::common::{
    MEAN, NONE, Terms, batch, finish, float, int, int_list, mark, operand, plain, set, shape, start, tensor,
    term, text, wide, widened,
};
use super::softmax::Shifted;
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch};
use crate::local::{LocalArg, LocalOp, Part};
use crate::rewriting::Builder;

pub(super) const FAMILY: Family = Family {
    name: "losses",
    targets: &[
        "aten.cross_entropy_loss.default",
        "aten.nll_loss.default",
        "aten.nll_loss_nd.default",
        "aten.nll_loss2d.default",
        "aten.nll_loss_forward.default",
        "aten.nll_loss2d_forward.default",
        "sw.pick",
    ],
    rule,
    local,
    rewriting: Some(rewriting),
    cost,
    costs: "6 operations for each element; keeps the logarithms of the probabilities and the targets",
    nature: Nature { has_vocabulary: true, dims: &[("v", "classes")], ..Nature::PLAIN },
};

const SUM: i64 = 2;

fn is_pick(op: &Op) -> bool {
    op.target == "sw.pick"
}

/// The dim of classes.
fn classes(rank: usize) -> usize {
    usize::from(rank > 1)
}

/// The terms of the operand: `v` for its classes, those of a batch for the others.
fn names(input: &[i64], dim: usize) -> Terms {
    let rows: Vec<i64> = input.iter().enumerate().filter(|(at, _)| *at != dim).map(|(_, s)| *s).collect();
    let mut names = batch(rows.len(), &rows);
    if let Some(&classes) = input.get(dim) {
        names.insert(dim, term(classes, "v"));
    }
    names
}

fn without(names: &[String], dim: usize) -> Terms {
    let mut rest = names.to_vec();
    rest.remove(dim);
    rest
}

fn rule(view: View<'_>) -> Option<String> {
    let input = shape(view, 0, "self")?;
    if is_pick(view.op) {
        return pick(view, input);
    }
    let dim = classes(input.len());
    let is_rewritable = has_own(view.op) && by_class(view);
    let reduction = int(view.op, 3, "reduction", MEAN);
    if reduction == NONE && matches!(view.op.outputs.get(1), Some(Some(_))) {
        return None; // Its total weight is not the rows'.
    }
    let mut all = names(input, dim);
    all.get(dim)?;
    for (at, name) in all.iter_mut().enumerate() {
        *name = match (at == dim, reduction) {
            (true, _) => mark(name, if is_rewritable { "@~" } else { "^" }),
            (false, NONE) => name.clone(),
            (false, MEAN) => mark(name, if is_rewritable { "@" } else { "^" }),
            (false, _) => mark(name, "+"),
        };
    }
    let rows = operand(&without(&all, dim));
    let mut inputs = vec![operand(&all)];
    inputs.push(if by_class(view) { rows.clone() } else { operand(&all) });
    if tensor(view.op, 2, "weight").is_some() {
        inputs.push(all[dim].clone());
    }
    let made = if reduction == NONE { rows } else { "scalar".into() };
    let outputs = [made, "scalar".to_string()];
    text(view, &inputs, outputs.get(..view.op.outputs.len())?, &[])
}

/// Whether targets are numbers of classes, not probabilities.
fn by_class(view: View<'_>) -> bool {
    tensor(view.op, 1, "target").is_some_and(|id| !view.graph.tensor(id).dtype.is_float())
}

fn has_own(op: &Op) -> bool {
    tensor(op, 2, "weight").is_none() && float(op, 5, "label_smoothing", 0.0) == 0.0
}

fn pick(view: View<'_>, input: &[i64]) -> Option<String> {
    let dim = usize::try_from(int(view.op, 2, "dim", 0)).ok().filter(|dim| *dim < input.len())?;
    let mut all = names(input, dim);
    let rows = operand(&without(&all, dim));
    all[dim] = mark(&all[dim], "+~");
    text(view, &[operand(&all), rows.clone()], &[rows], &[vec![0]])
}

fn rewriting(op: &Op, to: &mut Builder<'_>) {
    let (Some(x), Some(target)) = (tensor(op, 0, "self"), tensor(op, 1, "target")) else { return };
    let shape = to.shape(x).to_vec();
    let dim = classes(shape.len());
    if is_pick(op) || dim >= shape.len() {
        return;
    }
    let (work, all) = (wide(to.dtype(x)), names(&shape, dim));
    let x = widened(to, x, work, &operand(&all));
    let mut loss = Loss { to, op, target, dim, work, all, valid: None };
    if op.target.contains("cross_entropy") && int(op, 3, "reduction", MEAN) == MEAN && !loss.to.splits("v") {
        return loss.sum_over_count(x);
    }
    let rows = if op.target.contains("cross_entropy") { loss.cross_entropy(x) } else { loss.likelihood(x) };
    loss.reduce(rows);
}

/// What the steps of one loss share.
struct Loss<'a, 'g> {
    to: &'a mut Builder<'g>,
    op: &'a Op,
    target: TensorId,
    dim: usize,
    work: Dtype,
    all: Terms,
    /// Which targets are not ignored, once something asked for it.
    valid: Option<TensorId>,
}

impl Loss<'_, '_> {
    fn rows(&self) -> String {
        operand(&without(&self.all, self.dim))
    }

    fn shape(&self) -> Vec<i64> {
        self.to.shape(self.target).to_vec()
    }

    fn ignored(&self) -> i64 {
        int(self.op, 4, "ignore_index", -100)
    }

    /// An operator on rows.
    fn each(&mut self, target: &str, args: Vec<Arg>, operands: usize) -> TensorId {
        let (rows, shape) = (self.rows(), self.shape());
        let labels = format!("{} -> {rows}", vec![&rows[..]; operands].join(", "));
        self.to.op(target, args, &labels, self.work, &shape)
    }

    fn pick(&mut self, x: TensorId) -> TensorId {
        let (dim, ignored, columns) = (self.dim as i64, self.ignored(), self.to.shape(x)[self.dim]);
        let numbers = [dim, 0, ignored, columns].map(Arg::Int);
        let args = [vec![Arg::Tensor(x), Arg::Tensor(self.target)], numbers.to_vec()].concat();
        let labels = format!("{}, {} -> {}", operand(&self.all), self.rows(), self.rows());
        let shape = self.shape();
        self.to.op("sw.pick", args, &labels, self.work, &shape)
    }

    /// A mean over a split batch only: the sum of the parts over the count of the parts.
    fn sum_over_count(&mut self, x: TensorId) {
        let labels = format!("{}, {} -> scalar", operand(&self.all), self.rows());
        let (reduction, ignored) = (Arg::Int(SUM), Arg::Int(self.ignored()));
        let args = vec![Arg::Tensor(x), Arg::Tensor(self.target), Arg::None, reduction, ignored];
        let sum = self.to.op("aten.cross_entropy_loss.default", args, &labels, self.work, &[]);
        let args = vec![Arg::Tensor(sum), Arg::Tensor(self.count())];
        finish(self.to, 0, "aten.div.Tensor", args, "scalar, scalar -> scalar", self.work, &[]);
    }

    /// `log(sum(exp(x))) - x[target]`, zero where the target is ignored.
    fn cross_entropy(&mut self, x: TensorId) -> TensorId {
        let shifted = Shifted::new(self.to, x, self.dim, &self.all);
        let log = shifted.log_sum(self.to, self.work);
        let (labels, shape) = (format!("{} -> {}", shifted.one, self.rows()), self.shape());
        let args = vec![Arg::Tensor(log), int_list(&shape)];
        let log = self.to.op("aten.view.default", args, &labels, self.work, &shape);
        let picked = self.pick(shifted.value);
        let args = vec![Arg::Tensor(log), Arg::Tensor(picked)];
        let loss = self.each("aten.sub.Tensor", args, 2);
        let valid = self.valid();
        let args = vec![Arg::Tensor(valid), Arg::Tensor(loss), Arg::Float(0.0)];
        self.last_rows("aten.where.ScalarOther", args, 2)
    }

    /// `-x[target]`, zero where the target is ignored.
    fn likelihood(&mut self, x: TensorId) -> TensorId {
        let picked = self.pick(x);
        self.last_rows("aten.neg.default", vec![Arg::Tensor(picked)], 1)
    }

    /// The loss of each row: the result, if it is not reduced.
    fn last_rows(&mut self, target: &str, args: Vec<Arg>, operands: usize) -> TensorId {
        if int(self.op, 3, "reduction", MEAN) != NONE {
            return self.each(target, args, operands);
        }
        let (rows, shape) = (self.rows(), self.shape());
        let labels = format!("{} -> {rows}", vec![&rows[..]; operands].join(", "));
        finish(self.to, 0, target, args, &labels, self.work, &shape);
        self.target
    }

    fn valid(&mut self) -> TensorId {
        let (rows, shape) = (self.rows(), self.shape());
        let args = vec![Arg::Tensor(self.target), Arg::Int(self.ignored())];
        let labels = format!("{rows} -> {rows}");
        let make = || self.to.op_no_grad("aten.ne.Scalar", args, &labels, Dtype::Bool, &shape);
        *self.valid.get_or_insert_with(make)
    }

    fn reduce(&mut self, rows: TensorId) {
        let reduction = int(self.op, 3, "reduction", MEAN);
        let labels = format!("{} -> scalar", self.rows());
        let work = self.work;
        let counts = reduction == MEAN || self.to.result_dtype(1).is_some();
        let count = counts.then(|| self.count());
        if reduction == MEAN {
            let sum = vec![Arg::Tensor(rows)];
            let sum = self.to.op("aten.sum.default", sum, &labels, work, &[]);
            let args = [sum].into_iter().chain(count).map(Arg::Tensor).collect();
            finish(self.to, 0, "aten.div.Tensor", args, "scalar, scalar -> scalar", work, &[]);
        } else if reduction != NONE {
            let args = vec![Arg::Tensor(rows)];
            finish(self.to, 0, "aten.sum.default", args, &labels, work, &[]);
        }
        if let (Some(count), Some(total)) = (count, self.to.result_dtype(1)) {
            let args = vec![Arg::Tensor(count), Arg::Dtype(total)];
            self.to.result(1, "aten.to.dtype", args, "scalar -> scalar");
        }
    }

    /// How many targets are not ignored: in the type of the loss where that counts far enough, so that
    /// both are summed in one message.
    fn count(&mut self) -> TensorId {
        let valid = Arg::Tensor(self.valid());
        let labels = format!("{} -> scalar", self.rows());
        let (dtype, kwargs) = match self.work {
            Dtype::F32 | Dtype::F64 => (self.work, vec![("dtype".to_owned(), Arg::Dtype(self.work))]),
            _ => (Dtype::I64, vec![]),
        };
        self.to.op_no_grad("aten.sum.default", (vec![valid], kwargs), &labels, dtype, &[])
    }
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let mut local = plain(view, rule, part);
    if is_pick(view.op) {
        let first = int(view.op, 3, "start", 0) + start(rule, part, "v");
        set(&mut local, 3, "start", LocalArg::Int(first));
    }
    local
}

fn cost(call: &Call<'_>) -> Sketch {
    const OPERATIONS: u64 = 6;
    let sketch = Sketch::new(call);
    if call.name() == "pick" {
        return picked(call, sketch);
    }
    let (sketch, width) = (sketch.flops(OPERATIONS * call.given(0)), call.width());
    let weight = call.at(2, "weight");
    if !call.name().contains("cross_entropy") {
        let sketch = sketch.meanwhile(0, call.given(0) * width);
        return sketch.keeps("*: 0 1").keeps_operand(weight).keeps_result(call, 1, width);
    }
    // The logarithms of the probabilities, and the weight of all targets.
    let logarithms = call.given(0) * width;
    // Before the gradient of the logits there is that of the logarithms.
    let sketch = sketch.meanwhile(0, logarithms);
    if call.operands.get(1).is_some_and(|target| target.dtype.is_float()) {
        return sketch.keeps("0: 1").keeps_operand(weight).keeps_more(logarithms);
    }
    let sketch = sketch.keeps("*: 1").keeps_operand(weight);
    let smooth = call.float(5, "label_smoothing", 0.0) > 0.0;
    let mean = call.int(3, "reduction", MEAN) == MEAN;
    let ignored = if smooth { call.given(1) } else { 0 };
    let count = if smooth && mean { Dtype::I64.bytes() as u64 } else { 0 };
    sketch.keeps_more(logarithms + width + ignored + count)
}

/// The columns of its own targets, and which targets are not.
fn picked(call: &Call<'_>, sketch: Sketch) -> Sketch {
    let columns = usize::try_from(call.int(2, "dim", 0)).ok();
    let none = columns.and_then(|dim| call.operands[0].shape.get(dim)) == Some(&0);
    if none {
        return sketch.keeps("*:");
    }
    // What is picked of a gradient of zeros is added to these, which gives a new one.
    let sketch = sketch.flops(0).meanwhile(0, call.given(0) * call.width());
    sketch.keeps("*: 0").keeps_more(call.given(1) * (1 + Dtype::I64.bytes() as u64))
}
