//! What a normalisation is made of where it sums up what the parts have: means and variances, each of several
//! elements, and the product with weights that follows.

use graph::{Arg, Dtype, TensorId};

use super::common::{finish, int_list, operand, pair, widened};
use crate::rewriting::Builder;

/// The labels and the shape of a tensor.
pub(super) type Laid = (String, Vec<i64>);

/// Elements, and numbers that several of them share.
pub(super) struct Shared {
    pub(super) elements: Laid,
    pub(super) numbers: Laid,
    /// The dims of the elements that are averaged over.
    pub(super) over: Vec<i64>,
}

/// Writes the steps.
pub(super) struct MomentWriter<'a, 'g> {
    pub(super) to: &'a mut Builder<'g>,
    /// The type of all steps.
    pub(super) work: Dtype,
}

impl MomentWriter<'_, '_> {
    pub(super) fn op(&mut self, target: &str, args: Vec<Arg>, labels: &str, shape: &[i64]) -> TensorId {
        self.to.op(target, args, labels, self.work, shape)
    }

    pub(super) fn viewed(&mut self, x: TensorId, from: &str, (labels, shape): &Laid) -> TensorId {
        let args = vec![Arg::Tensor(x), int_list(shape)];
        self.op("aten.view.default", args, &format!("{from} -> {labels}"), shape)
    }

    /// The centred elements, their mean and their variance.
    pub(super) fn moments(&mut self, shared: &Shared, x: TensorId) -> (TensorId, TensorId, TensorId) {
        let (all, shape) = &shared.elements;
        let mean = self.average(shared, x);
        let centered = self.with_numbers(shared, "aten.sub.Tensor", x, mean);
        let labels = format!("{all}, {all} -> {all}");
        let squares = self.op("aten.mul.Tensor", pair(centered, centered), &labels, shape);
        (centered, mean, self.average(shared, squares))
    }

    fn average(&mut self, shared: &Shared, x: TensorId) -> TensorId {
        let ((all, _), (one, shape)) = (&shared.elements, &shared.numbers);
        let args = vec![Arg::Tensor(x), int_list(&shared.over), Arg::Bool(true)];
        self.op("aten.mean.dim", args, &format!("{all} -> {one}"), shape)
    }

    /// Each element with its number.
    pub(super) fn with_numbers(
        &mut self,
        shared: &Shared,
        target: &str,
        x: TensorId,
        number: TensorId,
    ) -> TensorId {
        let ((all, shape), (one, _)) = (&shared.elements, &shared.numbers);
        self.op(target, pair(x, number), &format!("{all}, {one} -> {all}"), shape)
    }

    /// One over the standard deviation.
    pub(super) fn scale(&mut self, shared: &Shared, var: TensorId, eps: f64) -> TensorId {
        let (one, shape) = &shared.numbers;
        let labels = format!("{one} -> {one}");
        let args = vec![Arg::Tensor(var), Arg::Float(eps)];
        let sum = self.op("aten.add.Tensor", args, &labels, shape);
        self.op("aten.rsqrt.default", vec![Arg::Tensor(sum)], &labels, shape)
    }

    /// One element a channel, in the rank of the elements and the type of the steps.
    pub(super) fn spread_out(&mut self, weight: TensorId, channel: &str, shared: &Shared) -> TensorId {
        let weight = widened(self.to, weight, self.work, channel);
        self.viewed(weight, channel, &shared.numbers)
    }

    /// The first result: elements times their weight, if any, and with their bias.
    pub(super) fn weighted(
        &mut self,
        shared: &Shared,
        x: TensorId,
        weight: Option<TensorId>,
        bias: Option<TensorId>,
    ) {
        let ((all, shape), (one, _)) = (&shared.elements, &shared.numbers);
        let labels = format!("{all}, {one} -> {all}");
        let (target, args, labels) = match (weight, bias) {
            (Some(weight), Some(bias)) => {
                let args = [vec![Arg::Tensor(bias)], pair(x, weight)].concat();
                ("aten.addcmul.default", args, format!("{one}, {labels}"))
            }
            (Some(weight), None) => ("aten.mul.Tensor", pair(x, weight), labels),
            (None, Some(bias)) => ("aten.add.Tensor", pair(x, bias), labels),
            (None, None) => ("aten.alias.default", vec![Arg::Tensor(x)], format!("{all} -> {all}")),
        };
        finish(self.to, 0, target, args, &labels, self.work, shape);
    }
}

/// One element a channel, the second dim, in the rank of these elements.
pub(super) fn per_channel(channel: &str, elements: &[i64]) -> Laid {
    let at = |dim| if dim == 1 { (channel.to_string(), elements[1]) } else { ("1".to_string(), 1) };
    let (names, shape): (Vec<String>, Vec<i64>) = (0..elements.len()).map(at).unzip();
    (operand(&names), shape)
}
