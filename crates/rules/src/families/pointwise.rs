//! Element by element, with broadcasting: every dim maps.

use graph::Op;

use super::common::{NOTHING, Terms, broadcast, float, operand, output, plain, tensor, terms, text};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch, numel};
use crate::local::{LocalArg, LocalOp, Part, unchanged};

pub(super) const FAMILY: Family = Family {
    name: "pointwise",
    targets: TARGETS,
    rule,
    local,
    rewriting: None,
    cost,
    costs: "an operation for each element; keeps what its derivative is of: of `relu`, `exp`, \
            `sigmoid`, `tanh` and the like the result, of a sum nothing, of a product the other \
            factor, else its inputs",
    nature: Nature::PLAIN,
};

#[rustfmt::skip]
const TARGETS: &[&str] = &[
    "aten.__and__.Scalar", "aten.__and__.Tensor", "aten.__lshift__.Scalar",
    "aten.__lshift__.Tensor", "aten.__or__.Scalar", "aten.__or__.Tensor", "aten.__rshift__.Scalar",
    "aten.__rshift__.Tensor", "aten.__xor__.Scalar", "aten.__xor__.Tensor", "aten._conj_physical.default",
    "aten._to_copy.default", "aten.abs.default", "aten.acos.default", "aten.acosh.default",
    "aten.add.Scalar", "aten.add.Tensor", "aten.addcdiv.default", "aten.addcmul.default",
    "aten.alias.default", "aten.angle.default", "aten.asin.default", "aten.asinh.default",
    "aten.atan.default", "aten.atan2.default", "aten.atanh.default", "aten.bitwise_and.Scalar",
    "aten.bitwise_and.Scalar_Tensor", "aten.bitwise_and.Tensor",
    "aten.bitwise_left_shift.Scalar_Tensor", "aten.bitwise_left_shift.Tensor",
    "aten.bitwise_left_shift.Tensor_Scalar", "aten.bitwise_not.default", "aten.bitwise_or.Scalar",
    "aten.bitwise_or.Scalar_Tensor", "aten.bitwise_or.Tensor",
    "aten.bitwise_right_shift.Scalar_Tensor", "aten.bitwise_right_shift.Tensor",
    "aten.bitwise_right_shift.Tensor_Scalar", "aten.bitwise_xor.Scalar",
    "aten.bitwise_xor.Scalar_Tensor", "aten.bitwise_xor.Tensor", "aten.broadcast_tensors.default",
    "aten.ceil.default", "aten.celu.default", "aten.clamp.Tensor", "aten.clamp.default",
    "aten.clamp_max.Tensor", "aten.clamp_max.default", "aten.clamp_min.Tensor",
    "aten.clamp_min.default", "aten.clone.default", "aten.complex.default",
    "aten.contiguous.default", "aten.copy.default", "aten.copysign.Scalar", "aten.copysign.Tensor",
    "aten.cos.default", "aten.cosh.default", "aten.deg2rad.default", "aten.detach.default",
    "aten.detach_copy.default", "aten.digamma.default", "aten.div.Scalar", "aten.div.Scalar_mode",
    "aten.div.Tensor", "aten.div.Tensor_mode", "aten.elu.default", "aten.empty_like.default",
    "aten.eq.Scalar", "aten.eq.Tensor", "aten.erf.default", "aten.erfc.default",
    "aten.erfinv.default", "aten.exp.default", "aten.exp2.default", "aten.expm1.default",
    "aten.fake_quantize_per_tensor_affine.default",
    "aten.fake_quantize_per_tensor_affine.tensor_qparams", "aten.fill.Scalar", "aten.fill.Tensor",
    "aten.float_power.Scalar", "aten.float_power.Tensor_Scalar", "aten.float_power.Tensor_Tensor",
    "aten.floor.default", "aten.floor_divide.Scalar", "aten.floor_divide.default",
    "aten.fmax.default", "aten.fmin.default", "aten.fmod.Scalar", "aten.fmod.Tensor",
    "aten.frac.default", "aten.full_like.default", "aten.gcd.default", "aten.ge.Scalar",
    "aten.ge.Tensor", "aten.gelu.default", "aten.gt.Scalar", "aten.gt.Tensor",
    "aten.hardshrink.default", "aten.hardsigmoid.default", "aten.hardswish.default",
    "aten.hardtanh.default", "aten.heaviside.default", "aten.hypot.default", "aten.i0.default",
    "aten.igamma.default", "aten.igammac.default", "aten.isclose.default", "aten.isfinite.default",
    "aten.isinf.default", "aten.isnan.default", "aten.isneginf.default", "aten.isposinf.default",
    "aten.isreal.default", "aten.lcm.default", "aten.ldexp.Tensor", "aten.le.Scalar",
    "aten.le.Tensor", "aten.leaky_relu.default", "aten.lerp.Scalar", "aten.lerp.Tensor",
    "aten.lgamma.default", "aten.lift_fresh_copy.default", "aten.log.default",
    "aten.log10.default", "aten.log1p.default", "aten.log2.default", "aten.log_sigmoid.default",
    "aten.logaddexp.default", "aten.logaddexp2.default", "aten.logical_and.default",
    "aten.logical_not.default", "aten.logical_or.default", "aten.logical_xor.default",
    "aten.logit.default", "aten.lt.Scalar", "aten.lt.Tensor", "aten.masked_fill.Scalar",
    "aten.masked_fill.Tensor", "aten.max.other", "aten.maximum.default", "aten.min.other",
    "aten.minimum.default", "aten.mish.default", "aten.mul.Scalar", "aten.mul.Tensor",
    "aten.mvlgamma.default", "aten.nan_to_num.default", "aten.ne.Scalar", "aten.ne.Tensor",
    "aten.neg.default", "aten.nextafter.default", "aten.ones_like.default", "aten.polar.default",
    "aten.polygamma.default", "aten.pow.Scalar", "aten.pow.Tensor_Scalar",
    "aten.pow.Tensor_Tensor", "aten.prelu.default", "aten.rad2deg.default", "aten.real.default",
    "aten.reciprocal.default", "aten.relu.default", "aten.relu6.default", "aten.remainder.Scalar",
    "aten.remainder.Scalar_Tensor", "aten.remainder.Tensor", "aten.round.decimals",
    "aten.round.default", "aten.rsqrt.default", "aten.rsub.Scalar", "aten.rsub.Tensor",
    "aten.selu.default", "aten.sgn.default", "aten.sigmoid.default", "aten.sign.default",
    "aten.signbit.default", "aten.silu.default", "aten.sin.default", "aten.sinc.default",
    "aten.sinh.default", "aten.softplus.default", "aten.softshrink.default",
    "aten.special_entr.default", "aten.special_erfcx.default", "aten.special_erfinv.default",
    "aten.special_gammainc.default", "aten.special_gammaincc.default", "aten.special_i0.default",
    "aten.special_i0e.default", "aten.special_i1.default", "aten.special_i1e.default",
    "aten.special_log_ndtr.default", "aten.special_multigammaln.default",
    "aten.special_ndtr.default", "aten.special_ndtri.default", "aten.special_polygamma.default",
    "aten.special_round.default", "aten.special_sinc.default", "aten.special_xlog1py.default",
    "aten.special_xlog1py.other_scalar", "aten.special_xlog1py.self_scalar",
    "aten.special_xlogy.default", "aten.special_xlogy.other_scalar",
    "aten.special_xlogy.self_scalar", "aten.special_zeta.default", "aten.sqrt.default",
    "aten.square.default", "aten.sub.Scalar", "aten.sub.Tensor", "aten.tan.default",
    "aten.tanh.default", "aten.threshold.default", "aten.to.dtype", "aten.to.dtype_layout",
    "aten.to.other", "aten.trunc.default", "aten.type_as.default", "aten.where.Scalar",
    "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.self",
    "aten.xlogy.Scalar_Other", "aten.xlogy.Scalar_Self", "aten.xlogy.Tensor",
    "aten.zero.default", "aten.zeros_like.default", "shardwright.written.default",
];

fn rule(view: View<'_>) -> Option<String> {
    let result = output(view)?;
    let names = terms(result);
    let inputs: Vec<String> = view
        .input_shapes()
        .iter()
        .enumerate()
        .map(|(i, shape)| match i {
            1 if only_type(view.op) => NOTHING.into(),
            1 if is_prelu(view.op) => operand(&channel(shape, &names)),
            _ => operand(&broadcast(shape, result, &names)),
        })
        .collect();
    let outputs = vec![operand(&names); view.op.outputs.len()];
    text(view, &inputs, &outputs, &linear(view))
}

/// Whether the second operand gives a dtype and nothing else.
fn only_type(op: &Op) -> bool {
    matches!(&op.target[..], "aten.type_as.default" | "aten.to.other")
}

fn is_prelu(op: &Op) -> bool {
    op.target == "aten.prelu.default"
}

/// A weight per channel: the second dim, or the only one.
fn channel(shape: &[i64], names: &[String]) -> Terms {
    match shape {
        [1] => vec!["1".into()],
        [] => vec![],
        _ => names.get(1).or(names.first()).cloned().into_iter().collect(),
    }
}

fn linear(view: View<'_>) -> Vec<Vec<usize>> {
    let op = view.op;
    let both = op.inputs().len() == 2;
    match &op.target[..] {
        "aten.add.Tensor" | "aten.sub.Tensor" | "aten.rsub.Tensor" if both => {
            vec![vec![0, 1]]
        }
        "aten.complex.default" => vec![vec![0, 1]],
        "aten.mul.Tensor" if both => vec![vec![0], vec![1]],
        "aten.mul.Tensor" | "aten.mul.Scalar" | "aten.div.Tensor" | "aten.div.Scalar"
            if tensor(op, 0, "self").is_some() =>
        {
            vec![vec![0]]
        }
        "aten.neg.default"
        | "aten.deg2rad.default"
        | "aten.rad2deg.default"
        | "aten.clone.default"
        | "aten.contiguous.default"
        | "aten.detach.default"
        | "aten.detach_copy.default"
        | "aten.alias.default"
        | "aten.lift_fresh_copy.default"
        | "aten.real.default"
        | "aten._conj_physical.default" => {
            vec![vec![0]]
        }
        "aten.to.dtype"
        | "aten.to.dtype_layout"
        | "aten.to.other"
        | "aten.type_as.default"
        | "aten._to_copy.default"
            if keeps_dtype(view) =>
        {
            vec![vec![0]]
        }
        "aten.zero.default" => vec![vec![0]],
        "aten.copy.default" | "aten.fill.Tensor" if keeps_dtype_of(view, 1) => vec![vec![1]],
        "aten.where.self" => vec![vec![1, 2]],
        "aten.where.ScalarOther" if float(op, 2, "other", 1.0) == 0.0 => vec![vec![1]],
        "aten.where.ScalarSelf" if float(op, 1, "self", 1.0) == 0.0 => vec![vec![1]],
        "aten.masked_fill.Scalar" if float(op, 2, "value", 1.0) == 0.0 => vec![vec![0]],
        "aten.masked_fill.Tensor" => vec![vec![0, 2]],
        "aten.lerp.Scalar" | "aten.lerp.Tensor" | "aten.addcdiv.default" => vec![vec![0, 1]],
        "aten.addcmul.default" => vec![vec![0, 1], vec![0, 2]],
        "aten.broadcast_tensors.default" => vec![(0..op.inputs().len()).collect()],
        _ => vec![],
    }
}

fn keeps_dtype(view: View<'_>) -> bool {
    keeps_dtype_of(view, 0)
}

fn keeps_dtype_of(view: View<'_>, input: usize) -> bool {
    let input = view.op.inputs().get(input).map(|id| view.graph.tensor(*id).dtype);
    let output = view.op.outputs.iter().flatten().next().map(|id| view.graph.tensor(*id).dtype);
    input == output
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    if only_type(view.op) {
        return cast(view);
    }
    plain(view, rule, part)
}

fn cast(view: View<'_>) -> LocalOp {
    let first = unchanged(view.op).args.into_iter().next().unwrap_or(LocalArg::None);
    let output = view.op.outputs.iter().flatten().next();
    let dtype = output.map_or(LocalArg::None, |id| LocalArg::Dtype(view.graph.tensor(*id).dtype));
    super::common::call("aten.to.dtype", vec![first, dtype])
}

/// What gradients need, where it is not what the rule tells.
#[rustfmt::skip]
const KEEPS: &[(&str, &[&str])] = &[
    ("*:", &[
        "add", "sub", "rsub", "fill", "copy", "ceil", "floor", "round", "trunc", "frac", "sign", "to", "_to_copy",
        "special_round", "type_as", "clone", "contiguous", "broadcast_tensors", "_conj_physical",
    ]),
    ("*: r0", &[
        "exp", "exp2", "expm1", "polar", "reciprocal", "relu", "rsqrt", "sigmoid",
        "special_ndtri", "sqrt", "tan", "tanh",
    ]),
    ("*: 0 r0", &[
        "sgn", "special_erfcx", "special_i0e", "special_i1", "special_i1e", "special_log_ndtr",
    ]),
    ("0: 0 r0; 1: r0", &["copysign"]),
    ("0: 0; 1: 1", &["complex"]),
    ("0: 1 r0; 1: r0", &["ldexp"]),
    ("0: 0 r0; 1: 1 r0", &["hypot"]),
    ("0: 2; 1: 2; 2: 0 1", &["lerp"]),
    ("1: 2; 2: 1 2", &["addcdiv"]),
];

/// The same, where the overload matters.
#[rustfmt::skip]
const KEEPS_OVERLOADS: &[(&str, &[&str])] = &[
    ("*:", &["aten.remainder.Scalar", "aten.fmod.Scalar", "shardwright.written.default"]),
    ("1: 0 1", &["aten.remainder.Tensor", "aten.fmod.Tensor"]),
    ("*: 0 r0", &["aten.pow.Scalar", "aten.float_power.Scalar"]),
    ("*: 0 1 r0", &["aten.pow.Tensor_Tensor", "aten.float_power.Tensor_Tensor"]),
    ("0: 1; 1: 0 1", &["aten.div.Tensor_mode"]),
    ("*: 0", &["aten.where.ScalarSelf", "aten.where.ScalarOther"]),
    ("*: 1", &["aten.masked_fill.Scalar"]),
    ("0: 1; 2: 1", &["aten.masked_fill.Tensor"]),
];

fn cost(call: &Call<'_>) -> Sketch {
    let sketch = sketch(call);
    match call.name() {
        "add" if call.float(2, "alpha", 1.0) == 1.0 => sketch.passes(call.like_result()),
        "clone" | "contiguous" => sketch.passes(call.like_result()),
        "sub" => sketch.passes(call.like_result().filter(|at| *at == 0)),
        "rsub" => sketch.passes(call.like_result().filter(|at| *at == 1)),
        _ => sketch.meanwhile(0, steps(call)),
    }
}

/// How many values of the result's size live in backward besides the gradients, where it is more than none.
#[rustfmt::skip]
const STEPS: &[(u64, &[&str])] = &[
    (1, &[
        "abs", "addcmul", "cosh", "digamma", "exp2", "expm1", "lgamma", "log10", "log1p", "log2", "sin", "sinh",
        "sqrt",
    ]),
    (2, &["addcdiv", "atan", "cos", "pow", "reciprocal", "rsqrt", "square", "tan"]),
    (3, &["acosh", "asinh", "atanh", "fmax", "fmin", "hypot", "maximum", "minimum"]),
    (4, &["asin", "erf", "erfc", "erfinv", "logaddexp"]),
    (5, &["acos", "atan2"]),
];

/// Bytes of the values that backward computes one from the other, and of a gradient of an operand that is
/// repeated along dims of the result, before it is summed.
fn steps(call: &Call<'_>) -> u64 {
    let repeated = call.operands.iter().any(|operand| operand.learns && numel(&operand.shape) < call.made());
    let listed = STEPS.iter().find(|(_, names)| names.contains(&call.name()));
    let steps = match call.name() {
        "div" if call.learns(1) => 2,
        _ => listed.map_or(0, |(steps, _)| *steps),
    };
    call.made() * call.width() * (steps + u64::from(repeated))
}

fn sketch(call: &Call<'_>) -> Sketch {
    let sketch = Sketch::new(call);
    let listed = |name: &str, table: &[(&'static str, &[&str])]| {
        table.iter().find(|(_, names)| names.contains(&name)).map(|(text, _)| *text)
    };
    match call.name() {
        "alias" | "detach" | "real" => sketch.view(0).view_back(),
        "to" if same_dtype(call) => sketch.view(0).view_back(),
        "broadcast_tensors" => sketch.view_each(),
        "zero" | "zeros_like" | "ones_like" | "full_like" | "empty_like" => sketch.flops(0).reads(0),
        // Beside its input it keeps the exponential.
        "log_sigmoid" => sketch.keeps_more(call.made() * call.width()),
        "special_ndtr" => sketch.keeps("*:").keeps_more(call.made() * call.width()),
        // Which elements are within the range.
        "fake_quantize_per_tensor_affine" => sketch.keeps("*:").keeps_more(call.made()),
        name => match listed(&call.op.target, KEEPS_OVERLOADS).or_else(|| listed(name, KEEPS)) {
            Some(text) => sketch.keeps(text),
            None => sketch,
        },
    }
}

/// A cast to the type that it has gives the tensor itself.
fn same_dtype(call: &Call<'_>) -> bool {
    let made = call.results.iter().flatten().next().map(|made| made.dtype);
    call.operands.first().map(|operand| operand.dtype) == made
}
