//! What a part of an operator costs: FLOPs, bytes moved, and what is kept for backward.
//!
//! A cost belongs to a [`Call`]: what a part executes, with the shapes of its shards and its arguments as
//! they are after the split. A family says in a [`Sketch`] only what differs from what the rule's own text
//! tells:
//!
//! - FLOPs are two for each product that is summed, where a summed dim is in several operands, else one
//!   for each element of the largest operand or result. The gradient of each operand takes as many.
//! - The gradient of an operand needs all operands in which the operator is not linear jointly with it:
//!   nothing for a sum, the other factor for a product.
//! - Forward reads each operand once, and writes the results and what is kept besides. Backward reads the
//!   gradients of the results and what was kept, and writes the gradients of the operands.

use graph::{Dtype, TensorId};

use crate::algebra::{Kind, Reduction, Rule};
use crate::local::{LocalArg, LocalOp, Part};
use crate::view::View;

/// What one part of an operator costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating point operations of forward.
    pub flops: u64,
    /// For each input of the operator those of its gradient; zero where none flows.
    pub gradients: Vec<u64>,
    pub forward: Bytes,
    pub backward: Bytes,
    pub kept: Kept,
    /// For each output the input in whose memory it lies: such an output needs none.
    pub lies_in: Vec<Option<usize>>,
    /// For each input whether its gradient is that of the first output, in the same memory.
    pub passes: Vec<bool>,
    /// The most bytes that live meanwhile besides what is given and what results.
    pub meanwhile: Meanwhile,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meanwhile {
    pub forward: u64,
    pub backward: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    pub read: u64,
    pub written: u64,
}

/// What backward needs of forward. An input or output may be kept by many operators and is there once; `more`
/// are bytes that nothing else has: a mask, the statistics of a norm, the places of maxima.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub inputs: Vec<usize>,
    pub outputs: Vec<usize>,
    pub more: u64,
}

/// What a part executes, and the shards on which it does.
pub struct Call<'a> {
    pub op: &'a LocalOp,
    pub rule: Option<&'a Rule>,
    pub part: &'a Part,
    /// The tensors among its arguments, in their order.
    pub operands: Vec<Operand>,
    /// `None` for what nothing reads.
    pub results: Vec<Option<Made>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// Which of the operator's inputs it is.
    pub input: usize,
    pub tensor: TensorId,
    pub shape: Vec<i64>,
    pub dtype: Dtype,
    /// Whether a gradient flows to it.
    pub learns: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    pub shape: Vec<i64>,
    pub dtype: Dtype,
    /// Whether a gradient flows from it.
    pub teaches: bool,
}

impl<'a> Call<'a> {
    /// `needs_grad` is [`graph::Graph::needs_grad`].
    pub fn new(
        view: View<'_>,
        rule: Option<&'a Rule>,
        part: &'a Part,
        op: &'a LocalOp,
        needs_grad: &[bool],
    ) -> Self {
        let View { graph, op: whole, .. } = view;
        let needs = |tensor: TensorId| needs_grad[tensor.index()];
        let inputs = whole.inputs();
        let learns = |input: usize| needs(inputs[input]) && whole.passes_on(needs, input);
        let operand = |input: usize| Operand {
            input,
            tensor: inputs[input],
            shape: part.inputs[input].clone(),
            dtype: graph.tensor(inputs[input]).dtype,
            learns: learns(input),
        };
        let operands: Vec<Operand> = named(op).into_iter().map(operand).collect();
        let teaches = |output: usize, tensor: TensorId| {
            needs(tensor) && operands.iter().any(|o| o.learns && whole.gives_gradient(output, o.input))
        };
        let made = |(output, tensor): (usize, &Option<TensorId>)| {
            tensor.map(|tensor| Made {
                shape: part.outputs[output].clone(),
                dtype: graph.tensor(tensor).dtype,
                teaches: teaches(output, tensor),
            })
        };
        let results = whole.outputs.iter().enumerate().map(made).collect();
        Self { op, rule, part, operands, results }
    }

    /// `mul` of `aten.mul.Tensor`.
    pub fn name(&self) -> &str {
        self.op.target.split('.').nth(1).unwrap_or_default()
    }

    pub fn arg(&self, position: usize, name: &str) -> Option<&LocalArg> {
        let keyword = || self.op.kwargs.iter().find(|(key, _)| key == name).map(|(_, arg)| arg);
        self.op.args.get(position).or_else(keyword)
    }

    /// Which operand an argument is.
    pub fn at(&self, position: usize, name: &str) -> Option<usize> {
        let Some(LocalArg::Input(input)) = self.arg(position, name) else { return None };
        self.operands.iter().position(|operand| operand.input == *input)
    }

    pub fn flag(&self, position: usize, name: &str) -> bool {
        matches!(self.arg(position, name), Some(LocalArg::Bool(true)))
    }

    pub fn int(&self, position: usize, name: &str, default: i64) -> i64 {
        match self.arg(position, name) {
            Some(LocalArg::Int(value)) => *value,
            _ => default,
        }
    }

    pub fn float(&self, position: usize, name: &str, default: f64) -> f64 {
        match self.arg(position, name) {
            Some(LocalArg::Float(value)) => *value,
            Some(LocalArg::Int(value)) => *value as f64,
            _ => default,
        }
    }

    pub fn learns(&self, operand: usize) -> bool {
        self.operands.get(operand).is_some_and(|operand| operand.learns)
    }

    /// Elements of the first result that is there.
    pub fn made(&self) -> u64 {
        self.results.iter().flatten().next().map_or(0, |made| numel(&made.shape))
    }

    /// Elements of an operand.
    pub fn given(&self, operand: usize) -> u64 {
        self.operands.get(operand).map_or(0, |operand| numel(&operand.shape))
    }

    /// Elements of the largest operand or result.
    pub fn largest(&self) -> u64 {
        let operands = self.operands.iter().map(|operand| numel(&operand.shape));
        operands.chain(self.results.iter().flatten().map(|made| numel(&made.shape))).max().unwrap_or(0)
    }

    /// The width of the first operand's type.
    pub fn width(&self) -> u64 {
        self.operands.first().map_or(0, |operand| operand.dtype.bytes() as u64)
    }

    /// The operands of the shape and type of the first result.
    pub fn like_result(&self) -> impl Iterator<Item = usize> {
        let made = self.results.iter().flatten().next();
        let equal =
            move |it: &Operand| made.is_some_and(|made| it.shape == made.shape && it.dtype == made.dtype);
        self.operands.iter().enumerate().filter(move |(_, it)| equal(it)).map(|(at, _)| at)
    }

    /// The input that an operand is; of a tensor that is given twice, the first.
    fn first_of(&self, operand: usize) -> Option<usize> {
        let tensor = self.operands.get(operand)?.tensor;
        self.operands.iter().filter(|other| other.tensor == tensor).map(|other| other.input).min()
    }

    /// The number of products, where a dim that is summed is in several operands.
    fn products(&self) -> Option<u64> {
        let rule = self.rule?;
        let summed = |(at, dim): (usize, &crate::Dim)| {
            let holders = rule.inputs.iter().filter(|operand| operand.has(crate::DimId::new(at)));
            dim.kind == Kind::Reduce(Reduction::Sum) && holders.count() > 1
        };
        self.volume().filter(|_| rule.dims.iter().enumerate().any(summed))
    }

    /// The product of all dims of the rule.
    pub fn volume(&self) -> Option<u64> {
        // Shapes that no device could hold still have a cost.
        const LARGEST: u64 = u64::MAX >> 8;
        let product = |all: u64, &size: &i64| all.saturating_mul(size.unsigned_abs());
        self.rule.map(|_| self.part.size.iter().fold(1, product).min(LARGEST))
    }

    /// Whether the operator is linear in these two operands jointly.
    fn jointly(&self, one: &Operand, other: &Operand) -> bool {
        let mut sets = self.rule.into_iter().flat_map(Rule::linear);
        sets.any(|set| set.contains(&one.input) && set.contains(&other.input))
    }
}

/// The inputs that a call names, in its order.
fn named(op: &LocalOp) -> Vec<usize> {
    fn visit(arg: &LocalArg, inputs: &mut Vec<usize>) {
        match arg {
            LocalArg::Input(input) => inputs.push(*input),
            LocalArg::List(items) => items.iter().for_each(|item| visit(item, inputs)),
            _ => {}
        }
    }
    let mut inputs = vec![];
    op.args.iter().chain(op.kwargs.iter().map(|(_, arg)| arg)).for_each(|arg| visit(arg, &mut inputs));
    inputs
}

pub fn numel(shape: &[i64]) -> u64 {
    shape.iter().map(|&size| size.unsigned_abs()).product()
}

/// A cost in the making: what the rule's text tells, and what a family says instead.
pub struct Sketch {
    flops: u64,
    /// For each operand, if its gradient flows.
    gradients: Vec<u64>,
    needs: Vec<Need>,
    more: u64,
    /// For each result the operand in whose memory it lies.
    lies_in: Vec<Option<usize>>,
    read: Option<u64>,
    backward_moves: bool,
    /// The operands whose gradient is that of the result.
    passes: Vec<usize>,
    meanwhile: Meanwhile,
}

/// Whose gradient needs what.
#[derive(Clone, Copy)]
struct Need {
    of: Option<usize>,
    what: CostValue,
}

#[derive(Clone, Copy)]
enum CostValue {
    Operand(usize),
    Result(usize),
}

impl Sketch {
    /// What the rule's text tells.
    pub fn new(call: &Call<'_>) -> Self {
        let flops = call.products().map_or_else(|| call.largest(), |products| 2 * products);
        Self {
            flops,
            gradients: vec![flops; call.operands.len()],
            needs: not_linear(call),
            more: 0,
            lies_in: vec![None; call.results.len()],
            read: None,
            backward_moves: true,
            passes: vec![],
            meanwhile: Meanwhile::default(),
        }
    }

    /// So many FLOPs, forward and for each gradient.
    pub fn flops(self, flops: u64) -> Self {
        Self { gradients: vec![flops; self.gradients.len()], flops, ..self }
    }

    /// So many for the gradients of the operands.
    pub fn gradients(self, gradients: Vec<u64>) -> Self {
        Self { gradients, ..self }
    }

    /// What gradients need, as text instead of what the rule tells: `0: 1 r0` is the gradient of the first
    /// operand, and needs the second and the first result; `*: 0` is any; nothing is nothing.
    pub fn keeps(mut self, text: &str) -> Self {
        self.needs = text
            .split(';')
            .filter_map(|clause| clause.split_once(':'))
            .flat_map(|(position, values)| needs(position, values))
            .collect();
        self
    }

    /// A further operand or none, that is kept where any gradient flows.
    pub fn keeps_operand(mut self, operand: Option<usize>) -> Self {
        self.needs.extend(operand.map(|at| Need { of: None, what: CostValue::Operand(at) }));
        self
    }

    /// A result, or its bytes where nothing reads it.
    pub fn keeps_result(mut self, call: &Call<'_>, result: usize, bytes: u64) -> Self {
        match call.results.get(result) {
            Some(Some(_)) => self.needs.push(Need { of: None, what: CostValue::Result(result) }),
            _ => self.more += bytes,
        }
        self
    }

    /// Bytes that only backward reads.
    pub fn keeps_more(mut self, bytes: u64) -> Self {
        self.more += bytes;
        self
    }

    /// Its results lie in the memory of an operand: nothing is computed or moved.
    pub fn view(mut self, operand: usize) -> Self {
        self.lies_in.iter_mut().for_each(|it| *it = Some(operand));
        self.flops(0)
    }

    /// Each result lies in the operand of its number.
    pub fn view_each(mut self) -> Self {
        self.lies_in = (0..self.lies_in.len()).map(Some).collect();
        self.flops(0)
    }

    /// The gradient is a view, too.
    pub fn view_back(mut self) -> Self {
        self.backward_moves = false;
        self.passes.extend(self.lies_in.iter().take(1).flatten());
        self
    }

    /// The gradients of these operands lie in the memory of that of the result.
    pub fn passes(mut self, operands: impl IntoIterator<Item = usize>) -> Self {
        self.passes.extend(operands);
        self
    }

    /// So many bytes live meanwhile, forward and backward, besides what is given and what results.
    pub fn meanwhile(mut self, forward: u64, backward: u64) -> Self {
        self.meanwhile = Meanwhile { forward, backward };
        self
    }

    /// How much forward reads, where that is not each operand once.
    pub fn reads(mut self, bytes: u64) -> Self {
        self.read = Some(bytes);
        self
    }

    pub(crate) fn finish(self, call: &Call<'_>, inputs: usize) -> Cost {
        let learns = call.operands.iter().any(|operand| operand.learns);
        let kept = if learns { self.kept(call) } else { Kept::default() };
        let mut gradients = vec![0; inputs];
        for (operand, flops) in call.operands.iter().zip(&self.gradients).filter(|(o, _)| o.learns) {
            gradients[operand.input] = *flops;
        }
        let lies_in = (self.lies_in.iter().zip(&call.results))
            .map(|(at, made)| at.filter(|_| made.is_some()).map(|at| call.operands[at].input))
            .collect();
        let backward = if learns && self.backward_moves { backward(call, &kept) } else { Bytes::default() };
        let mut passes = vec![false; inputs];
        self.passes.iter().for_each(|at| passes[call.operands[*at].input] = true);
        let (forward, meanwhile) = (self.forward(call, &kept), self.meanwhile);
        Cost { flops: self.flops, gradients, forward, backward, kept, lies_in, passes, meanwhile }
    }

    fn kept(&self, call: &Call<'_>) -> Kept {
        let mut kept = Kept { more: self.more, ..Kept::default() };
        for need in self.needs.iter().filter(|need| need.of.is_none_or(|at| call.learns(at))) {
            match need.what {
                CostValue::Operand(at) => kept.inputs.extend(call.first_of(at)),
                CostValue::Result(at) => kept.outputs.push(at),
            }
        }
        kept.inputs.sort_unstable();
        kept.inputs.dedup();
        kept.outputs.sort_unstable();
        kept.outputs.dedup();
        kept
    }

    fn forward(&self, call: &Call<'_>, kept: &Kept) -> Bytes {
        let moved = self.lies_in.iter().zip(&call.results).filter(|(at, _)| at.is_none());
        let written: u64 = moved.filter_map(|(_, made)| made.as_ref().map(Made::bytes)).sum();
        let all_views = !self.lies_in.is_empty() && self.lies_in.iter().all(Option::is_some);
        let read = self.read.unwrap_or_else(|| if all_views { 0 } else { once(call, |_| true) });
        Bytes { read, written: written + kept.more }
    }
}

impl Made {
    pub fn bytes(&self) -> u64 {
        numel(&self.shape) * self.dtype.bytes() as u64
    }
}

impl Operand {
    pub fn bytes(&self) -> u64 {
        numel(&self.shape) * self.dtype.bytes() as u64
    }
}

fn backward(call: &Call<'_>, kept: &Kept) -> Bytes {
    let arriving: u64 = call.results.iter().flatten().filter(|made| made.teaches).map(Made::bytes).sum();
    let inputs = once(call, |operand| kept.inputs.contains(&operand.input));
    let made = |at: &usize| call.results[*at].as_ref().map_or(0, Made::bytes);
    let outputs: u64 = kept.outputs.iter().map(made).sum();
    Bytes { read: arriving + inputs + outputs + kept.more, written: once(call, |operand| operand.learns) }
}

/// Bytes of some operands; a tensor that is given twice is one.
fn once(call: &Call<'_>, counts: impl Fn(&Operand) -> bool) -> u64 {
    let mut seen: Vec<TensorId> = vec![];
    let mut bytes = 0;
    for operand in call.operands.iter().filter(|operand| counts(operand)) {
        if !seen.contains(&operand.tensor) {
            seen.push(operand.tensor);
            bytes += operand.bytes();
        }
    }
    bytes
}

/// The gradient of each operand needs those in which the operator is not linear jointly with it.
fn not_linear(call: &Call<'_>) -> Vec<Need> {
    let all = || call.operands.iter().enumerate();
    let others = |(operand_index, one)| {
        let other = move |(_, other): &(usize, &Operand)| !call.jointly(one, other);
        all().filter(other).map(move |(at, _)| Need { of: Some(operand_index), what: CostValue::Operand(at) })
    };
    all().flat_map(others).collect()
}

fn needs(position: &str, values: &str) -> Vec<Need> {
    let number = |text: &str| text.parse::<usize>().expect("a position");
    let operand = Some(position.trim()).filter(|text| *text != "*").map(number);
    let value = |text: &str| match text.strip_prefix('r') {
        Some(result) => CostValue::Result(number(result)),
        None => CostValue::Operand(number(text)),
    };
    values.split_whitespace().map(|text| Need { of: operand, what: value(text) }).collect()
}
