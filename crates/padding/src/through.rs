//! How tails go through an operator by its rule: a dim of the rule that has a tail keeps it, or is summed
//! away where nothing is added.

use diag::Result;
use graph::OpId;
use rules::families::{self, View};
use rules::{DimId, Kind, Rule};

use crate::Proof;
use crate::content::Content;
use crate::state::{Filled, MOST, Tail};
use crate::values::{self, name};

/// They make elements of dims that have none in their operands.
const EXPANDING: [&str; 4] = ["expand", "expand_as", "broadcast_to", "broadcast_tensors"];

/// What is added to a sum, or said besides others, without any effect.
fn neutral(name: &str) -> Option<f64> {
    match name {
        "sum" | "nansum" | "count_nonzero" | "any" => Some(0.0),
        "all" => Some(1.0),
        _ if PRODUCTS.contains(&name) => Some(0.0),
        _ => None,
    }
}

/// Sums of products of their operands, but for what is added to these.
const PRODUCTS: [&str; 14] = [
    "linear",
    "matmul",
    "mm",
    "bmm",
    "addmm",
    "addmv",
    "baddbmm",
    "einsum",
    "dot",
    "mv",
    "outer",
    "inner",
    "tensordot",
    "linalg_vecdot",
];

/// They take no numbers but sizes, which the shapes of their results say.
const SIZED: [&str; 2] = ["expand", "broadcast_to"];

pub(crate) fn by_rule(proof: &Proof<'_>, id: OpId) -> Result<Vec<Filled>> {
    let op = proof.long.op(id);
    if proof.numbers[id.index()] && !SIZED.contains(&name(op)) {
        return Err(proof.other_numbers(id));
    }
    let inputs = proof.inputs(id);
    let rule = families::rule_of(View::new(proof.long, id));
    let spread = match (&rule, inputs.iter().flat_map(|filled| &filled.tails).next()) {
        (Some(rule), _) => PaddedDims::new(proof, id, rule, &inputs)?,
        (None, Some(tail)) => return Err(proof.mixed_along(id, tail)),
        (None, None) => {
            PaddedDims { operands: inputs.iter().map(|it| (*it, vec![])).collect(), ..PaddedDims::default() }
        }
    };
    op.outputs
        .iter()
        .enumerate()
        .map(|(at, out)| {
            out.map_or_else(|| Ok(Filled::real()), |_| spread.output(proof, id, rule.as_ref(), at))
        })
        .collect()
}

/// The tails of an operator, each a dim of its rule, and which of them each operand has.
#[derive(Default)]
struct PaddedDims<'a> {
    dims: Vec<(DimId, Tail)>,
    operands: Vec<(&'a Filled, Vec<usize>)>,
}

impl<'a> PaddedDims<'a> {
    fn new(proof: &Proof<'_>, id: OpId, rule: &Rule, inputs: &[&'a Filled]) -> Result<Self> {
        let mut spread = PaddedDims::default();
        for (filled, operand) in inputs.iter().zip(&rule.inputs) {
            // Of what only lends its type or its shape no element is read.
            let tails = if operand.absent { &[] } else { &filled.tails[..] };
            let mut bits = vec![];
            for tail in tails {
                let &[dim] = &operand.dims[tail.dim][..] else { return Err(proof.mixed_along(id, tail)) };
                let known = spread.dims.iter().position(|(other, _)| *other == dim);
                bits.push(known.unwrap_or(spread.dims.len()));
                match known {
                    Some(at) if !spread.dims[at].1.is_like(tail) => return Err(proof.mixed_along(id, tail)),
                    Some(_) => {}
                    None => spread.dims.push((dim, tail.clone())),
                }
            }
            spread.operands.push((filled, bits));
        }
        spread.require_known(proof, id, rule)?;
        Ok(spread)
    }

    /// All operands of a dim have its tail, and it is kept, or summed.
    fn require_known(&self, proof: &Proof<'_>, id: OpId, rule: &Rule) -> Result<()> {
        for (at, (dim, tail)) in self.dims.iter().enumerate() {
            let lacks = |((_, bits), operand): (&(&Filled, Vec<usize>), &rules::Operand)| {
                !operand.absent && operand.has(*dim) && !bits.contains(&at)
            };
            let known = match rule.dim(*dim).kind {
                Kind::Map => !rule.dim(*dim).contiguous,
                Kind::Reduce(_) => neutral(name(proof.long.op(id))).is_some(),
                Kind::Whole | Kind::Own => false,
            };
            if !known || self.dims.len() > MOST || self.operands.iter().zip(&rule.inputs).any(lacks) {
                return Err(proof.mixed_along(id, tail));
            }
        }
        Ok(())
    }

    fn output(&self, proof: &Proof<'_>, id: OpId, rule: Option<&Rule>, at: usize) -> Result<Filled> {
        let mut tails = vec![];
        // Which tails of the operator they are; of new ones no operand has any.
        let mut bits = vec![];
        let op = proof.long.op(id);
        let rank = op.outputs[at].map_or(0, |out| proof.long.tensor(out).shape.len());
        for dim in 0..rank {
            let product = rule
                .filter(|rule| !rule.outputs[at].absent)
                .map_or(&[][..], |rule| &rule.outputs[at].dims[dim]);
            let tail_index = self.dims.iter().position(|(it, _)| product.contains(it));
            match tail_index {
                Some(which) if product.len() == 1 => {
                    tails.push(Tail { dim, ..self.dims[which].1.clone() });
                    bits.push(Some(which));
                }
                Some(which) => return Err(proof.mixed_along(id, &self.dims[which].1)),
                None if EXPANDING.contains(&name(op)) => {
                    let new = op.outputs[at].and_then(|out| proof.tail_by_shape(out, dim));
                    bits.extend(new.iter().map(|_| None));
                    tails.extend(new);
                }
                None => {}
            }
        }
        let gone = (0..self.dims.len()).filter(|which| !bits.contains(&Some(*which))).collect::<Vec<_>>();
        self.require_neutral(proof, id, &gone)?;
        let set_of = |set: usize| {
            let there = bits.iter().enumerate().filter(|(bit, _)| set >> bit & 1 == 1);
            there.filter_map(|(_, which)| *which).fold(0, |all, which| all | 1 << which)
        };
        Ok(Filled::build(tails, |set| self.summed(proof, id, set_of(set), &gone)))
    }

    /// What is summed away changes nothing outside of other tails.
    fn require_neutral(&self, proof: &Proof<'_>, id: OpId, gone: &[usize]) -> Result<()> {
        let kind = name(proof.long.op(id));
        for part in parts(gone).skip(1) {
            let content = self.element(proof, id, part);
            if neutral(kind).is_none_or(|it| content.constant() != Some(it)) {
                let tail = &self.dims[gone[0]].1;
                let why = "it adds up all positions, and what it adds is not zero where they are filled";
                let fix = "set it to zero there: multiply with the mask, before or after";
                return Err(if neutral(kind).is_some() {
                    proof.mixed(id, tail.length, why, fix)
                } else {
                    proof.mixed_along(id, tail)
                });
            }
        }
        Ok(())
    }

    fn summed(&self, proof: &Proof<'_>, id: OpId, set: usize, gone: &[usize]) -> Content {
        let mut all = parts(gone).map(|part| self.element(proof, id, set | part));
        let first = all.next().unwrap_or(Content::Wild);
        all.fold(first, |sum, more| {
            match (sum.is_zero() && more.is_zero(), sum.is_finite() && more.is_finite()) {
                (true, _) => sum,
                (_, true) => Content::FINITE,
                _ => Content::Wild,
            }
        })
    }

    /// What stands in the tails of a set and in no other, before what is summed away is.
    fn element(&self, proof: &Proof<'_>, id: OpId, set: usize) -> Content {
        let at = |(filled, bits): &(&Filled, Vec<usize>)| {
            let in_set = bits.iter().enumerate().filter(|(_, which)| set >> **which & 1 == 1);
            filled.contents[in_set.fold(0, |all, (bit, _)| all | 1 << bit)]
        };
        let given: Vec<Content> = self.operands.iter().map(at).collect();
        let op = proof.long.op(id);
        values::content_of(proof.long, op, &given).unwrap_or_else(|| made(op, &given))
    }
}

/// All subsets, the empty one first.
fn parts(members: &[usize]) -> impl Iterator<Item = usize> + '_ {
    (0..1usize << members.len()).map(|part| {
        members
            .iter()
            .enumerate()
            .filter(|(bit, _)| part >> bit & 1 == 1)
            .fold(0, |all, (_, which)| all | 1 << which)
    })
}

/// Of operators that put several elements together, all outside of the dims that have tails.
fn made(op: &graph::Op, given: &[Content]) -> Content {
    let all = || given.iter().copied().reduce(Content::or).unwrap_or(Content::Wild);
    let finite = given.iter().all(|content| content.is_finite());
    let if_finite = |content: Content| if finite { content } else { Content::Wild };
    let nature = families::nature_of(&op.target);
    match name(op) {
        it if PRODUCTS.contains(&it) => product(op, given),
        _ if nature.rearranges => all(),
        "sum" | "nansum" => match given[0].range() {
            _ if given[0].is_zero() => given[0],
            Some((lo, _)) => Content::within(if lo >= 0.0 { lo } else { f64::NEG_INFINITY }, f64::INFINITY),
            None => Content::Wild,
        },
        // Autograd gives a vector of zeros no gradient.
        "linalg_vector_norm" | "norm" if is_of_squares(op) && finite => Content::within(0.0, f64::INFINITY),
        "mean" | "amax" | "amin" => {
            given[0].range().map_or(Content::Wild, |(lo, hi)| Content::within(lo, hi))
        }
        "any" | "all" if given[0].constant().is_some() => given[0],
        "dropout" | "native_dropout" => {
            if given[0].is_zero() {
                given[0]
            } else {
                if_finite(Content::FINITE)
            }
        }
        "layer_norm" | "native_layer_norm" | "rms_norm" if !has_no_epsilon(op) => if_finite(Content::FINITE),
        "softmax" | "_softmax" if given.iter().all(|content| !content.may_be_infinite()) => {
            Content::within(0.0, 1.0)
        }
        "log_softmax"
        | "_log_softmax"
        | "max"
        | "min"
        | "var"
        | "cumsum"
        | "logsumexp"
        | "topk"
        | "sort"
        | "mse_loss"
        | "smooth_l1_loss"
        | "huber_loss"
        | "binary_cross_entropy_with_logits" => if_finite(Content::FINITE),
        "index" | "_unsafe_index" | "gather" | "index_select" | "take_along_dim" => {
            if_finite(Content::FINITE)
        }
        // A row of experts sees no other.
        _ if nature.keeps_finite => if_finite(Content::FINITE),
        _ => Content::Wild,
    }
}

fn product(op: &graph::Op, given: &[Content]) -> Content {
    // What is added to the product.
    let aside = match name(op) {
        "linear" => Some(2),
        "addmm" | "addmv" | "baddbmm" => Some(0),
        _ => None,
    };
    let added = aside.and_then(|at| given.get(at));
    let factors = given.iter().enumerate().filter(|(at, _)| Some(*at) != aside);
    let product = factors.fold(Content::number(1.0), |product, (_, factor)| values::times(product, *factor));
    match (product.is_zero(), added) {
        (true, None) => product,
        _ if product.is_finite() && added.is_none_or(|it| it.is_finite()) => Content::FINITE,
        _ => Content::Wild,
    }
}

/// Whether it is the root of a sum of squares.
fn is_of_squares(op: &graph::Op) -> bool {
    match op.args.get(1) {
        None => name(op) == "linalg_vector_norm",
        Some(graph::Arg::Int(order)) => *order == 2,
        Some(graph::Arg::Float(order)) => *order == 2.0,
        Some(_) => false,
    }
}

/// An epsilon of zero leaves rows of equal elements without a derivative.
fn has_no_epsilon(op: &graph::Op) -> bool {
    op.args.iter().any(|arg| matches!(arg, graph::Arg::Float(eps) if *eps <= 0.0))
}
