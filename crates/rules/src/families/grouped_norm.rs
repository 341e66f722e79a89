//! Group and instance norm: an image's channels in groups, each of which is averaged over with its space. Rows of
//! images have their own algorithm, as sums over the parts.

use graph::{Arg, Dtype, Op, TensorId};

use super::View;
use super::common::{
    Terms, finish, flag, float, int, int_list, mark, operand, pair, product, shape, tensor, term, terms,
    text, wide, widened,
};
use super::registered::with_sizes;
use crate::rewriting::Builder;

/// Channels divide by whole groups, and what belongs to space by parts of the averages.
pub(super) fn rule(view: View<'_>) -> Option<String> {
    let norm = GroupedNorm::read(view.op, shape(view, 0, "input")?)?;
    let mut read = terms(shape(view, 0, "input")?);
    read[1] = norm.channels();
    read.iter_mut().skip(2).for_each(|space| *space = mark(space, "@"));
    let weights = vec![read[1].clone(); view.op.inputs().len() - 1];
    let inputs = [vec![operand(&read)], weights].concat();
    let rule = text(view, &inputs, &[operand(&read)], &[])?;
    let is_product = read[1].starts_with('(');
    Some(if is_product { with_sizes(&rule, &[(GROUP.into(), norm.groups)]) } else { rule })
}

/// The dims of groups, and of the channels in one.
const GROUP: &str = "b";
const EACH: &str = "b_each";

/// The operands of a group norm, or of an instance norm: one whose groups are channels.
struct GroupedNorm {
    groups: i64,
    each: i64,
    weight: Option<TensorId>,
    bias: Option<TensorId>,
    eps: f64,
}

impl GroupedNorm {
    fn read(op: &Op, input: &[i64]) -> Option<Self> {
        let channels = *input.get(1)?;
        if op.target == "aten.group_norm.default" {
            let groups = int(op, 1, "num_groups", 1).max(1);
            let (weight, bias) = (tensor(op, 2, "weight"), tensor(op, 3, "bias"));
            return Some(Self {
                groups,
                each: channels / groups,
                weight,
                bias,
                eps: float(op, 4, "eps", 1e-5),
            });
        }
        let running = tensor(op, 3, "running_mean").is_some();
        if running && flag(op, 5, "use_input_stats", true) {
            return None; // It changes its operands.
        }
        let (weight, bias) = (tensor(op, 1, "weight"), tensor(op, 2, "bias"));
        Some(Self { groups: channels, each: 1, weight, bias, eps: float(op, 7, "eps", 1e-5) })
    }

    fn terms(&self) -> [String; 2] {
        [term(self.groups, GROUP), mark(&term(self.each, EACH), "^")]
    }

    fn channels(&self) -> String {
        product(&self.terms())
    }
}

/// The norm as averages over channels and space, which sum up what the parts have.
pub(super) fn rewriting(op: &Op, to: &mut Builder<'_>) {
    let Some(x) = tensor(op, 0, "input") else { return };
    let shape = to.shape(x).to_vec();
    let Some(norm) = GroupedNorm::read(op, &shape) else { return };
    let mut steps = Steps::new(&norm, &shape, wide(to.dtype(x)), to);
    let x = steps.grouped(x);
    let mean = steps.average(x);
    let centered = steps.on_elements("aten.sub.Tensor", x, mean);
    let squares = steps.squares(centered);
    let var = steps.average(squares);
    let scale = steps.scale(var, norm.eps);
    let normalised = steps.on_elements("aten.mul.Tensor", centered, scale);
    steps.weighted(&norm, normalised);
}

/// The shapes and labels that all steps share: of images, of channels in groups, and of one number a group.
struct Steps<'a, 'g> {
    to: &'a mut Builder<'g>,
    image: (String, Vec<i64>),
    grouped: (String, Vec<i64>),
    averages: (String, Vec<i64>),
    channels: (String, i64),
    /// The type of all steps.
    work: Dtype,
}

impl<'a, 'g> Steps<'a, 'g> {
    fn new(norm: &GroupedNorm, shape: &[i64], work: Dtype, to: &'a mut Builder<'g>) -> Self {
        let names = terms(shape);
        let [group, each] = [term(norm.groups, GROUP), term(norm.each, EACH)];
        let channels = product(&[group.clone(), each.clone()]);
        let (image, all) =
            (named(&names, std::slice::from_ref(&channels)), named(&names, &[group.clone(), each]));
        let ones = vec!["1".to_string(); names.len() - 1];
        let one = operand(&[vec![names[0].clone(), group], ones].concat());
        let grouped = [&[shape[0], norm.groups, norm.each], &shape[2..]].concat();
        let averages = [vec![shape[0], norm.groups], vec![1; names.len() - 1]].concat();
        Self {
            to,
            image: (image, shape.to_vec()),
            grouped: (all, grouped),
            averages: (one, averages),
            channels: (channels, shape[1]),
            work,
        }
    }

    fn op(&mut self, target: &str, args: Vec<Arg>, labels: &str, shape: &[i64]) -> TensorId {
        self.to.op(target, args, labels, self.work, shape)
    }

    /// The operand, with a dim of groups.
    fn grouped(&mut self, x: TensorId) -> TensorId {
        let (all, shape) = self.grouped.clone();
        let x = widened(self.to, x, self.work, &self.image.0);
        let args = vec![Arg::Tensor(x), int_list(&shape)];
        let labels = format!("{} -> {all}", self.image.0);
        self.op("aten.view.default", args, &labels, &shape)
    }

    fn average(&mut self, x: TensorId) -> TensorId {
        let ((one, shape), (all, _)) = (self.averages.clone(), self.grouped.clone());
        let dims = (2..shape.len()).map(|dim| Arg::Int(dim as i64)).collect();
        let args = vec![Arg::Tensor(x), Arg::List(dims), Arg::Bool(true)];
        self.op("aten.mean.dim", args, &format!("{all} -> {one}"), &shape)
    }

    /// Each element with the number of its group.
    fn on_elements(&mut self, target: &str, x: TensorId, each: TensorId) -> TensorId {
        let ((all, shape), (one, _)) = (self.grouped.clone(), self.averages.clone());
        self.op(target, pair(x, each), &format!("{all}, {one} -> {all}"), &shape)
    }

    fn squares(&mut self, x: TensorId) -> TensorId {
        let (all, shape) = self.grouped.clone();
        self.op("aten.mul.Tensor", pair(x, x), &format!("{all}, {all} -> {all}"), &shape)
    }

    /// One over the standard deviation.
    fn scale(&mut self, var: TensorId, eps: f64) -> TensorId {
        let (one, shape) = self.averages.clone();
        let labels = format!("{one} -> {one}");
        let args = vec![Arg::Tensor(var), Arg::Float(eps)];
        let sum = self.op("aten.add.Tensor", args, &labels, &shape);
        self.op("aten.rsqrt.default", vec![Arg::Tensor(sum)], &labels, &shape)
    }

    /// The result: channels without groups again, times their weights.
    fn weighted(&mut self, norm: &GroupedNorm, x: TensorId) {
        let (image, shape) = self.image.clone();
        let args = vec![Arg::Tensor(x), int_list(&shape)];
        let labels = format!("{} -> {image}", self.grouped.0);
        let view = ("aten.view.default", args, &labels[..]);
        let [weight, bias] = [norm.weight, norm.bias].map(|it| it.map(|it| self.spread_out(it)));
        let Some(only) = weight.or(bias) else {
            return finish(self.to, 0, view, (self.work, &shape));
        };
        let x = self.op(view.0, view.1, view.2, &shape);
        let one = self.spread().0;
        let with_one = format!("{image}, {one} -> {image}");
        let (target, args, labels) = match (weight, bias) {
            (Some(weight), Some(bias)) => {
                let args = [vec![Arg::Tensor(bias)], pair(x, weight)].concat();
                ("aten.addcmul.default", args, format!("{one}, {with_one}"))
            }
            (Some(_), None) => ("aten.mul.Tensor", pair(x, only), with_one),
            (None, _) => ("aten.add.Tensor", pair(x, only), with_one),
        };
        finish(self.to, 0, (target, args, &labels), (self.work, &shape));
    }

    /// One element a channel, in the rank of an image.
    fn spread(&self) -> (String, Vec<i64>) {
        let (channels, count) = &self.channels;
        let rank = self.image.1.len();
        let at = |dim| if dim == 1 { (channels.clone(), *count) } else { ("1".to_string(), 1) };
        let (names, shape): (Terms, Vec<i64>) = (0..rank).map(at).unzip();
        (operand(&names), shape)
    }

    fn spread_out(&mut self, weight: TensorId) -> TensorId {
        let ((one, shape), channels) = (self.spread(), self.channels.0.clone());
        let weight = widened(self.to, weight, self.work, &channels);
        let args = vec![Arg::Tensor(weight), int_list(&shape)];
        self.op("aten.view.default", args, &format!("{channels} -> {one}"), &shape)
    }
}

/// An image's terms with these in the place of the channels'.
fn named(names: &[String], channels: &[String]) -> String {
    operand(&[&names[..1], channels, &names[2..]].concat())
}
