//! Group and instance norm: an image's channels in groups, each of which is averaged over with its space. Rows of
//! images have their own algorithm, as sums over the parts.

use graph::{Op, TensorId};

use super::View;
use super::common::{
    flag, float, int, mark, operand, product, shape, tensor, term, terms, text, wide, widened,
};
use super::moments::{MomentWriter, Shared, per_channel};
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

    fn channels(&self) -> String {
        product(&[term(self.groups, GROUP), mark(&term(self.each, EACH), "^")])
    }

    /// The image with a dim of groups, and one number a group.
    fn shared(&self, image: &[i64]) -> Shared {
        let names = terms(image);
        let group = [names[0].clone(), term(self.groups, GROUP)];
        let elements = [&group[..], &[term(self.each, EACH)], &names[2..]].concat();
        let shape = [&[image[0], self.groups, self.each], &image[2..]].concat();
        let ones = elements.len() - 2;
        Shared {
            over: (2..shape.len() as i64).collect(),
            elements: (operand(&elements), shape),
            numbers: (
                operand(&[&group[..], &vec!["1".to_string(); ones]].concat()),
                [vec![image[0], self.groups], vec![1; ones]].concat(),
            ),
        }
    }

    /// The image as it is, and one weight a channel.
    fn weights(&self, channels: &str, image: &[i64]) -> Shared {
        let mut names = terms(image);
        names[1] = channels.to_string();
        Shared {
            over: vec![],
            elements: (operand(&names), image.to_vec()),
            numbers: per_channel(channels, image),
        }
    }
}

/// The norm as averages over channels and space, which sum up what the parts have.
pub(super) fn rewriting(op: &Op, to: &mut Builder<'_>) {
    let Some(x) = tensor(op, 0, "input") else { return };
    let shape = to.shape(x).to_vec();
    let Some(norm) = GroupedNorm::read(op, &shape) else { return };
    let channels = product(&[term(norm.groups, GROUP), term(norm.each, EACH)]);
    let (groups, image) = (norm.shared(&shape), norm.weights(&channels, &shape));
    let work = wide(to.dtype(x));
    let x = widened(to, x, work, &image.elements.0);
    let mut steps = MomentWriter { to, work };
    let x = steps.viewed(x, &image.elements.0, &groups.elements);
    let (centered, _, var) = steps.moments(&groups, x);
    let scale = steps.scale(&groups, var, norm.eps);
    let normalised = steps.with_numbers(&groups, "aten.mul.Tensor", centered, scale);
    let x = steps.viewed(normalised, &groups.elements.0, &image.elements);
    let [weight, bias] =
        [norm.weight, norm.bias].map(|it| it.map(|it| steps.spread_out(it, &channels, &image)));
    steps.weighted(&image, x, weight, bias);
}
