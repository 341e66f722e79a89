//! What operators make of shares of maxima and minima.

use crate::support::passes;

#[test]
fn what_moves_elements_passes_them() {
    passes("x f32[2,3]", "%y f32[3,2] = aten.t.default(%x)", "rising 0");
    passes("x f32[2,3]", "%y f32[2,3] = aten.detach.default(%x)", "rising 0");
    passes("x f32[2]; y f32[2]", "%z f32[4] = aten.cat.default([%x, %y])", "rising 0 1");
    passes("c bool[2]; x f32[2]; y f32[2]", "%z f32[2] = aten.where.self(%c, %x, %y)", "rising 1 2");
}

#[test]
fn functions_that_only_rise_or_fall_pass_them() {
    passes("x f32[2]", "%y f32[2] = aten.exp.default(%x)", "rising 0");
    passes("x f32[2]", "%y f32[2] = aten.neg.default(%x)", "falling 0");
    passes("x f32[2]", "%y f32[2] = aten.mul.Tensor(%x, 2.0)", "rising 0");
    passes("x f32[2]", "%y f32[2] = aten.div.Tensor(%x, -2)", "falling 0");
    passes("x f32[2]", "%y f32[2] = aten.add.Tensor(%x, -1.5)", "rising 0");
    passes("x f32[2]", "%y f32[2] = aten.rsub.Scalar(%x, 1)", "falling 0");
    passes("x f32[2]", "%y f32[2] = aten.rsub.Scalar(%x, 1, -1)", "rising 0");
    passes("x f32[2]", "%y bf16[2] = aten.to.dtype(%x, bf16)", "rising 0");
    passes("x bool[2]", "%y bool[2] = aten.logical_not.default(%x)", "falling 0");
}

/// Roots of negative numbers, integers that wrap around, infinities of both signs, and zero times infinity.
#[test]
fn others_must_be_given_the_whole() {
    passes("x f32[2]", "%y f32[2] = aten.sqrt.default(%x)", "");
    passes("x f32[2]", "%y f32[2] = aten.cos.default(%x)", "");
    passes("x f32[2]", "%y f32[2] = aten.mul.Tensor(%x, 0)", "");
    passes("x f32[2]", "%y f32[2] = aten.mul.Tensor(%x, inf)", "");
    passes("x u8[2]", "%y u8[2] = aten.neg.default(%x)", "");
    passes("x i64[2]", "%y i64[2] = aten.mul.Tensor(%x, 2)", "");
    passes("x f32[2]", "%y i64[2] = aten.to.dtype(%x, i64)", "");
    passes("x f32[2]", "%y bool[2] = aten.logical_not.default(%x)", "");
    passes("x f32[2]; y f32[2]", "%z f32[2] = aten.add.Tensor(%x, %y)", "");
}
