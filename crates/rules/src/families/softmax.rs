//! Softmax: a split of its own dim goes through the maximum and the sum over all parts.

use graph::{Arg, Dtype, Op, TensorId};

use super::common::{finish, int, mark, operand, output, plain, shape, terms, unary, wide, widened, wrap};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch};
use crate::local::{LocalOp, Part};
use crate::rewriting::Builder;

pub(super) const FAMILY: Family = Family {
    name: "softmax",
    targets: &[
        "aten.softmax.int",
        "aten.log_softmax.int",
        "aten._softmax.default",
        "aten._log_softmax.default",
        "aten.special_softmax.default",
        "aten.special_log_softmax.default",
    ],
    rule,
    local,
    rewriting: Some(rewriting),
    cost,
    costs: "5 operations for each element; keeps the result",
    nature: Nature::PLAIN,
};

fn rule(view: View<'_>) -> Option<String> {
    let mut names = terms(output(view)?);
    if let Some(name) = names.get_mut(wrap(int(view.op, 1, "dim", -1), shape(view, 0, "self")?.len())?) {
        *name = mark(name, "@");
    }
    unary(view, &names, &names, false)
}

fn rewriting(op: &Op, to: &mut Builder<'_>) {
    let (Some(x), Some(result)) = (op.inputs().first().copied(), to.result_dtype(0)) else { return };
    let shape = to.shape(x).to_vec();
    let Some(dim) = wrap(int(op, 1, "dim", -1), shape.len()) else { return };
    let names = terms(&shape);
    let all = operand(&names);
    let x = widened(to, x, wide(result), &all);
    let parts = Shifted::new(to, x, dim, &names);
    let labels = format!("{all}, {} -> {all}", parts.one);
    let work = to.dtype(x);
    let last = if op.target.contains("log_softmax") {
        let log = parts.log_sum(to, work);
        ("aten.sub.Tensor", vec![Arg::Tensor(parts.value), Arg::Tensor(log)])
    } else {
        ("aten.div.Tensor", vec![Arg::Tensor(parts.exp), Arg::Tensor(parts.sum)])
    };
    finish(to, 0, last.0, last.1, &labels, work, &shape);
}

/// `x` minus its maximum along a dim, its exponential, and the sum of that.
pub(super) struct Shifted {
    pub(super) value: TensorId,
    exp: TensorId,
    sum: TensorId,
    /// The terms and the shape of the sum, which keeps the dim.
    pub(super) one: String,
    shape: Vec<i64>,
}

impl Shifted {
    pub(super) fn new(to: &mut Builder<'_>, x: TensorId, dim: usize, names: &[String]) -> Self {
        let (whole, dtype) = (to.shape(x).to_vec(), to.dtype(x));
        let (mut shape, mut one) = (whole.clone(), names.to_vec());
        shape[dim] = 1;
        one[dim] = "1".into();
        let (all, one) = (operand(names), operand(&one));
        let over = |x| {
            let dims = Arg::List(vec![Arg::Int(dim as i64)]);
            vec![Arg::Tensor(x), dims, Arg::Bool(true)]
        };
        let reduced = format!("{all} -> {one}");
        let max = to.op_no_grad("aten.amax.default", over(x), &reduced, dtype, &shape);
        let args = vec![Arg::Tensor(x), Arg::Tensor(max)];
        let value = to.op("aten.sub.Tensor", args, &format!("{all}, {one} -> {all}"), dtype, &whole);
        let same = format!("{all} -> {all}");
        let exp = to.op("aten.exp.default", vec![Arg::Tensor(value)], &same, dtype, &whole);
        let sum = to.op("aten.sum.dim_IntList", over(exp), &reduced, dtype, &shape);
        Self { value, exp, sum, one, shape }
    }

    pub(super) fn log_sum(&self, to: &mut Builder<'_>, dtype: Dtype) -> TensorId {
        let labels = format!("{} -> {}", self.one, self.one);
        to.op("aten.log.default", vec![Arg::Tensor(self.sum)], &labels, dtype, &self.shape)
    }
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    plain(view, rule, part)
}

fn cost(call: &Call<'_>) -> Sketch {
    const OPERATIONS: u64 = 5;
    Sketch::new(call).flops(OPERATIONS * call.made()).keeps("*: r0")
}
