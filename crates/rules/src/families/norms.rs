//! Normalisation: what is averaged over stays whole, except in batch norm, which has its own
//! algorithm for a batch that is split.

use graph::{Arg, Op, TensorId};

use super::common::{
    Terms, along, flag, float, int, int_list, ints, is_split, mark, operand, pair, plain, set, shape, size,
    tensor, term, terms, text, wide, widened,
};
use super::moments::{MomentWriter, Shared, per_channel};
use super::{Family, Nature, View, grouped_norm};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch, numel};
use crate::local::{LocalArg, LocalOp, Part};
use crate::rewriting::Builder;

pub(super) const FAMILY: Family = Family {
    name: "norms",
    targets: &[
        "aten.layer_norm.default",
        "aten.native_layer_norm.default",
        "aten.rms_norm.default",
        "aten.group_norm.default",
        "aten.native_group_norm.default",
        "aten._weight_norm.default",
        "aten._weight_norm_interface.default",
        "aten.instance_norm.default",
        "aten.batch_norm.default",
        "aten._native_batch_norm_legit_functional.default",
        "aten._native_batch_norm_legit.no_stats",
        "aten._native_batch_norm_legit_no_training.default",
    ],
    rule,
    local,
    rewriting: Some(rewriting),
    cost,
    costs: "8 operations for each element; keeps the input, the weight and the statistics",
    nature: Nature::PLAIN,
};

fn rule(view: View<'_>) -> Option<String> {
    match view.op.target.split('.').nth(1)? {
        "layer_norm" | "native_layer_norm" | "rms_norm" => last_dims(view),
        "group_norm" | "instance_norm" => grouped_norm::rule(view),
        "native_group_norm" => native_groups(view),
        "_weight_norm" | "_weight_norm_interface" => weights(view),
        _ => batches(view),
    }
}

/// Layer norm and RMS norm: over the last dims.
fn last_dims(view: View<'_>) -> Option<String> {
    let input = shape(view, 0, "input")?;
    let kept = input.len().checked_sub(ints(view.op, 1, "normalized_shape")?.len())?;
    let (read, _) = along(input, input, |dim| dim < kept);
    let inner = operand(&read[kept..]);
    let weights = vec![inner; view.op.inputs().len() - 1];
    let ones = vec!["1".to_string(); input.len() - kept];
    let statistics = operand(&[&read[..kept], &ones].concat());
    let inputs = [vec![operand(&read)], weights].concat();
    let outputs = [operand(&read), statistics.clone(), statistics];
    text(view, &inputs, &outputs[..view.op.outputs.len().min(3)], &[])
}

/// Group norm with its statistics, of which each group has one.
fn native_groups(view: View<'_>) -> Option<String> {
    let input = shape(view, 0, "input")?;
    let (read, _) = along(input, input, |dim| dim == 0);
    let weights = vec![read.get(1)?.clone(); view.op.inputs().len() - 1];
    let inputs = [vec![operand(&read)], weights].concat();
    let groups = mark(&term(int(view.op, 6, "group", 1), "groups"), "^");
    let statistics = operand(&[read[0].clone(), groups]);
    let outputs = [operand(&read), statistics.clone(), statistics];
    text(view, &inputs, &outputs[..view.op.outputs.len().min(3)], &[])
}

/// A matrix as directions and lengths: each row, or each column, has a length.
fn weights(view: View<'_>) -> Option<String> {
    let directions = shape(view, 0, "v")?;
    let dim = int(view.op, 2, "dim", 0);
    let (all, _) = along(directions, directions, |at| i64::try_from(at) == Ok(dim));
    let lengths: Terms = match shape(view, 1, "g")? {
        [_] | [] if dim < 0 => vec!["1".into(); shape(view, 1, "g")?.len()],
        given if given.len() == all.len() => {
            let term_of = |(size, name): (&i64, &String)| if *size == 1 { "1".into() } else { name.clone() };
            given.iter().zip(&all).map(term_of).collect()
        }
        _ => return None,
    };
    let outputs = [operand(&all), operand(&lengths)];
    let made = outputs.get(..view.op.outputs.len())?;
    // The lengths of the directions, which are given besides, are those of all lengths that may be wanted.
    let alone = view.op.outputs.iter().skip(1).all(Option::is_none);
    let linear = if alone { vec![vec![1]] } else { vec![] };
    text(view, &[operand(&all), operand(&lengths)], made, &linear)
}

/// The operands of a batch norm, whichever of its forms.
struct BatchNorm {
    x: TensorId,
    weight: Option<TensorId>,
    bias: Option<TensorId>,
    mean: Option<TensorId>,
    var: Option<TensorId>,
    training: bool,
    momentum: f64,
    eps: f64,
}

impl BatchNorm {
    fn read(op: &Op) -> Option<Self> {
        let without_stats = op.target == "aten._native_batch_norm_legit.no_stats";
        let no_training = op.target == "aten._native_batch_norm_legit_no_training.default";
        let stats = |position, name| if without_stats { None } else { tensor(op, position, name) };
        let flag_at = if without_stats { 3 } else { 5 };
        let numbers = if no_training { 5 } else { flag_at + 1 };
        Some(Self {
            x: tensor(op, 0, "input")?,
            weight: tensor(op, 1, "weight"),
            bias: tensor(op, 2, "bias"),
            mean: stats(3, "running_mean"),
            var: stats(4, "running_var"),
            training: !no_training && flag(op, flag_at, "training", false),
            momentum: float(op, numbers, "momentum", 0.0),
            eps: float(op, numbers + 1, "eps", 0.0),
        })
    }
}

fn batches(view: View<'_>) -> Option<String> {
    let norm = BatchNorm::read(view.op)?;
    let input = &view.graph.tensor(norm.x).shape;
    if norm.training && view.op.target == "aten.batch_norm.default" && norm.mean.is_some() {
        return None; // It changes its operands.
    }
    let mut names = terms(input);
    // PyTorch's backward reads a weight as if its elements followed each other.
    let channel = mark(names.get(1)?, "~");
    names[1].clone_from(&channel);
    let outputs = view.output_shapes();
    // In evaluation the saved statistics have no elements, and the running ones are copies.
    let [_, rest @ ..] = &outputs[..] else { return None };
    if rest.contains(&Some(&[0])) {
        return None;
    }
    if norm.training || rest.iter().any(Option::is_some) {
        let over = |(_, name): (usize, &mut String)| *name = mark(name, "@");
        names.iter_mut().enumerate().filter(|(dim, _)| *dim != 1).for_each(over);
    }
    let weights = vec![channel.clone(); view.op.inputs().len() - 1];
    let inputs = [vec![operand(&names)], weights].concat();
    let made = [vec![operand(&names)], vec![channel; rest.len()]].concat();
    text(view, &inputs, &made, &[])
}

fn rewriting(op: &Op, to: &mut Builder<'_>) {
    match &op.target[..] {
        "aten.group_norm.default" | "aten.instance_norm.default" => grouped_norm::rewriting(op, to),
        _ => of_batches(op, to),
    }
}

/// Batch norm in training, as sums over the batch.
fn of_batches(op: &Op, to: &mut Builder<'_>) {
    let Some(norm) = BatchNorm::read(op) else { return };
    let (shape, work) = (to.shape(norm.x).to_vec(), wide(to.dtype(norm.x)));
    let names = terms(&shape);
    let shared = Shared {
        over: (0..shape.len() as i64).filter(|dim| *dim != 1).collect(),
        numbers: per_channel(&names[1], &shape),
        elements: (operand(&names), shape),
    };
    let mut batches = Batches { of: shared, channel: names[1].clone(), steps: MomentWriter { to, work } };
    match norm.training {
        true => batches.training(op, &norm),
        false => batches.evaluation(op, &norm),
    }
}

/// The steps of one batch norm.
struct Batches<'a, 'g> {
    steps: MomentWriter<'a, 'g>,
    of: Shared,
    channel: String,
}

impl Batches<'_, '_> {
    fn training(&mut self, op: &Op, norm: &BatchNorm) {
        let x = widened(self.steps.to, norm.x, self.steps.work, &self.of.elements.0);
        let (centered, mean, var) = self.steps.moments(&self.of, x);
        let scale = self.steps.scale(&self.of, var, norm.eps);
        self.normalised(norm, centered, scale);
        self.saved(op, 1, mean);
        self.saved(op, 2, scale);
        self.running(op, norm, mean, var);
    }

    /// Evaluation, apart from the statistics that it passes on.
    fn evaluation(&mut self, op: &Op, norm: &BatchNorm) {
        let (all, channel) = (&self.of.elements.0, &self.channel);
        let or_none = |id: Option<TensorId>| id.map_or(Arg::None, Arg::Tensor);
        let tensors = [norm.weight, norm.bias, norm.mean, norm.var];
        let labels = vec![&channel[..]; tensors.iter().flatten().count()];
        let labels = format!("{} -> {all}", [vec![&all[..]], labels].concat().join(", "));
        let mut args = vec![Arg::Tensor(norm.x)];
        args.extend(tensors.map(or_none));
        let numbers = [norm.momentum, norm.eps].map(Arg::Float);
        args.extend([vec![Arg::Bool(false)], numbers.to_vec(), vec![Arg::Bool(true)]].concat());
        self.steps.to.result(0, "aten.batch_norm.default", args, &labels);
        for (index, id) in [(3, norm.mean), (4, norm.var)] {
            if let (Some(id), Some(Some(_))) = (id, op.outputs.get(index)) {
                let labels = format!("{channel} -> {channel}");
                self.steps.to.result(index, "aten.clone.default", vec![Arg::Tensor(id)], &labels);
            }
        }
    }

    /// How many elements are averaged.
    fn count(&self) -> i64 {
        let shape = &self.of.elements.1;
        shape.iter().product::<i64>() / shape[1].max(1)
    }

    fn normalised(&mut self, norm: &BatchNorm, x: TensorId, mut scale: TensorId) {
        let Self { steps, of: shared, channel } = self;
        if let Some(weight) = norm.weight {
            let weight = steps.spread_out(weight, channel, shared);
            let (one, shape) = &shared.numbers;
            let labels = format!("{one}, {one} -> {one}");
            scale = steps.op("aten.mul.Tensor", pair(scale, weight), &labels, shape);
        }
        let bias = norm.bias.map(|bias| steps.spread_out(bias, channel, shared));
        steps.weighted(shared, x, Some(scale), bias);
    }

    /// A statistic as an output, one element per channel.
    fn saved(&mut self, op: &Op, index: usize, value: TensorId) {
        let (one, channel) = (&self.of.numbers.0, &self.channel);
        if op.outputs.get(index).is_some_and(Option::is_some) {
            let args = vec![Arg::Tensor(value), int_list(&[self.of.elements.1[1]])];
            self.steps.to.result(index, "aten.view.default", args, &format!("{one} -> {channel}"));
        }
    }

    /// `old + momentum * (new - old)`, with the unbiased variance.
    fn running(&mut self, op: &Op, norm: &BatchNorm, mean: TensorId, var: TensorId) {
        let count = self.count() as f64;
        for (index, old, new, factor) in
            [(3, norm.mean, mean, 1.0), (4, norm.var, var, count / (count - 1.0).max(1.0))]
        {
            let (Some(old), Some(Some(_))) = (old, op.outputs.get(index)) else { continue };
            let new = self.statistic(new, factor, old);
            let channel = &self.channel;
            let labels = format!("{channel}, {channel} -> {channel}");
            let args = [pair(old, new), vec![Arg::Float(norm.momentum)]].concat();
            // A view of a batch's statistic requires a gradient for PyTorch, wherever it was made.
            self.steps.to.result_no_grad(index, "aten.lerp.Scalar", args, &labels);
        }
    }

    /// A statistic of this batch, outside of the gradient, in the type of the running one.
    fn statistic(&mut self, value: TensorId, factor: f64, like: TensorId) -> TensorId {
        let (one, channel, shape) = (&self.of.numbers.0, &self.channel, [self.of.elements.1[1]]);
        let (work, same) = (self.steps.work, format!("{channel} -> {channel}"));
        let args = vec![Arg::Tensor(value), int_list(&shape)];
        let labels = format!("{one} -> {channel}");
        let mut new = self.steps.to.op_no_grad("aten.view.default", args, &labels, work, &shape);
        if factor != 1.0 {
            let args = vec![Arg::Tensor(new), Arg::Float(factor)];
            new = self.steps.to.op_no_grad("aten.mul.Tensor", args, &same, work, &shape);
        }
        let dtype = self.steps.to.dtype(like);
        if dtype != work {
            let args = vec![Arg::Tensor(new), Arg::Dtype(dtype)];
            new = self.steps.to.op_no_grad("aten.to.dtype", args, &same, dtype, &shape);
        }
        new
    }
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let mut local = plain(view, rule, part);
    if view.op.target == "aten.group_norm.default" && is_split(rule, part, "b") {
        set(&mut local, 1, "num_groups", LocalArg::Int(size(rule, part, "b")));
    }
    if view.op.target == "aten.native_group_norm.default" {
        set(&mut local, 3, "N", LocalArg::Int(part.inputs[0][0]));
    }
    local
}

/// Operations for each element.
const OPERATIONS: u64 = 8;

fn cost(call: &Call<'_>) -> Sketch {
    let (sketch, width) = (Sketch::new(call).flops(OPERATIONS * call.given(0)), call.width());
    let rows = |from: usize| numel(call.operands[0].shape.get(..from).unwrap_or_default());
    match call.name() {
        "rms_norm" => root_mean_square(call, sketch),
        "layer_norm" | "native_layer_norm" => {
            let over = call.arg(1, "normalized_shape").map_or(0, |arg| match arg {
                LocalArg::List(dims) => dims.len(),
                _ => 1,
            });
            let statistics = rows(call.operands[0].shape.len().saturating_sub(over)) * width;
            let weights = [(2, "weight"), (3, "bias")].map(|(at, name)| call.at(at, name));
            let sketch = sketch.keeps("*: 0").keeps_operand(weights[0]).keeps_operand(weights[1]);
            sketch.keeps_result(call, 1, statistics).keeps_result(call, 2, statistics)
        }
        "group_norm" => {
            let groups = rows(1) * call.int(1, "num_groups", 1).unsigned_abs();
            sketch.keeps("*: 0").keeps_operand(call.at(2, "weight")).keeps_more(2 * groups * width)
        }
        "native_group_norm" => {
            let statistics = rows(1) * call.int(6, "group", 1).unsigned_abs() * width;
            let sketch = sketch.keeps("*: 0").keeps_operand(call.at(1, "weight"));
            sketch.keeps_result(call, 1, statistics).keeps_result(call, 2, statistics)
        }
        "_weight_norm" | "_weight_norm_interface" => {
            sketch.keeps("*: 0 1").keeps_result(call, 1, call.given(1) * width)
        }
        // A batch norm of each image's channels: what belongs to a channel is repeated.
        "instance_norm" => {
            let given = [(1, "weight"), (3, "running_mean"), (4, "running_var")];
            let repeated = given.into_iter().filter(|(at, name)| call.at(*at, name).is_some()).count() as u64;
            sketch.keeps("*: 0").keeps_more((repeated + 2) * rows(2) * width)
        }
        name => {
            let given = [(1, "weight"), (3, "running_mean"), (4, "running_var")];
            let given = given.map(|(at, keyword)| call.at(at, keyword));
            let channels = call.operands[0].shape.get(1).map_or(1, |size| size.unsigned_abs());
            let without = name.ends_with("no_stats") || call.op.target.ends_with("no_stats");
            let given = if without { [given[0], None, None] } else { given };
            let sketch = given.into_iter().fold(sketch.keeps("*: 0"), Sketch::keeps_operand);
            if name.ends_with("no_training") || (name == "batch_norm" && !call.flag(5, "training")) {
                return sketch;
            }
            sketch.keeps_result(call, 1, channels * width).keeps_result(call, 2, channels * width)
        }
    }
}

/// Written as operators on the elements: the input, one number a row, and with a weight what it multiplies.
fn root_mean_square(call: &Call<'_>, sketch: Sketch) -> Sketch {
    let x = &call.operands[0];
    let over = match call.arg(1, "normalized_shape") {
        Some(LocalArg::List(dims)) => dims.len(),
        _ => 1,
    };
    let (elements, width) = (numel(&x.shape), wide(x.dtype).bytes() as u64);
    let rows = numel(&x.shape[..x.shape.len().saturating_sub(over)]);
    let weight = call.at(2, "weight");
    let mut more = if weight.is_some_and(|at| call.learns(at)) { elements * width } else { 0 };
    if !x.learns {
        return sketch.keeps("*:").keeps_more(more);
    }
    more += rows * width;
    let steps = if wide(x.dtype) == x.dtype { 0 } else { 2 };
    let sketch = sketch.keeps("*:").keeps_operand(weight);
    let sketch = sketch.meanwhile(steps * elements * width, 4 * elements * width);
    match wide(x.dtype) == x.dtype {
        true => sketch.keeps_operand(Some(0)).keeps_more(more),
        false => sketch.keeps_more(more + elements * width),
    }
}
