//! The rules of rarer operators, and what their parts execute.

use crate::support::{check, check_local};

#[test]
fn transforms_keep_their_dims_whole() {
    let rfft = "%y c64[2,3,5] = aten.fft_rfft.default(%x)";
    check("x f32[2,3,8]", rfft, "a b c^ -> a b c_out^ ; linear 0");
    check("x f32[2,3,8]", "%y c64[2,3,8] = aten.fft_fft.default(%x, None, 1)", "a b^ c -> a b^ c ; linear 0");
    check("x f32[2,3,8]", "%y c64[2,3,8] = aten.fft_fft2.default(%x)", "a b^ c^ -> a b^ c^ ; linear 0");
    check("x f32[2,3]", "%y c64[2,3] = aten.fft_fftn.default(%x)", "a^ b^ -> a^ b^ ; linear 0");
    check("x f32[2,3]", "%y f32[2,3] = aten.fft_fftshift.default(%x, [1])", "a b^ -> a b^ ; linear 0");
    check("x c64[2,3]", "%y f32[2,3,2] = aten.view_as_real.default(%x)", "a b -> a b two^ ; linear 0");
    check("x f32[2,3,2]", "%y c64[2,3] = aten.view_as_complex.default(%x)", "a b two^ -> a b ; linear 0");
}

#[test]
fn recurrent_layers_split_the_batch() {
    let states = "x f32[5,2,4]; h f32[1,2,3]; c f32[1,2,3]; v f32[12,4]; w f32[12,3]";
    let lstm = |way: &str| {
        format!(
            "%y f32[5,2,3], %s f32[1,2,3], %t f32[1,2,3] = \
             aten.lstm.input(%x, [%h, %c], [%v, %w], False, 1, {way}, False, False)"
        )
    };
    check(
        states,
        &lstm("0.0, True"),
        "x0^ b x2^, 1 b h1_2^, 1 b h2_2^, w3_0^ w3_1^, w4_0^ w4_1^ -> y0_0^ b y0_2^, 1 b y1_2^, 1 b y2_2^",
    );
    check(states, &lstm("0.5, True"), "");
    check(
        "x f32[2,4]; h f32[2,3]; v f32[9,4]; w f32[9,3]",
        "%y f32[2,3] = aten.gru_cell.default(%x, %h, %v, %w)",
        "b x1^, b h1_1^, w2_0^ w2_1^, w3_0^ w3_1^ -> b y0_1^",
    );
}

#[test]
fn matrices_map_one_by_one() {
    let solve = |right: &str| format!("%y f32[{right}] = aten.linalg_solve.default(%a, %b)");
    check("a f32[2,3,3]; b f32[3,4]", &solve("2,3,4"), "a x0_0^ x0_1^, x1_0^ x1_1^ -> a y0_0^ y0_1^");
    check("a f32[2,3,3]; b f32[2,3]", &solve("2,3"), "a x0_0^ x0_1^, a x1_0^ -> a y0_0^");
    check("x f32[2,3,3]", "%y f32[2] = aten.linalg_det.default(%x)", "a x0_0^ x0_1^ -> a");
    check("x f32[2,3,3]; t f32[2]", "%y f32[2,3,3] = aten.linalg_pinv.atol_rtol_tensor(%x, atol=%t)", "");
}

#[test]
fn further_products() {
    check(
        "x f32[2,3]; y f32[5,4]",
        "%z f32[10,12] = aten.kron.default(%x, %y)",
        "a b, c d -> (a c) (b d) ; linear 0 ; linear 1",
    );
    check(
        "x f32[2,3]; y f32[4,3]",
        "%z f32[2,4] = aten.inner.default(%x, %y)",
        "a k+, b k+ -> a b ; linear 0 ; linear 1",
    );
    check(
        "x f32[2,3,4]; y f32[4,5]",
        "%z f32[2,3,5] = aten.tensordot.default(%x, %y, [-1], [0])",
        "a b k0+, k0+ y1 -> a b y1 ; linear 0 ; linear 1",
    );
    check(
        "x f32[3]; y f32[3,4]; z f32[4]",
        "%u f32[] = aten.linalg_multi_dot.default([%x, %y, %z])",
        "k1+, k1+ k2+, k2+ -> scalar ; linear 0 ; linear 1 ; linear 2",
    );
    check(
        "x f32[2,3]; y f32[2,4]; w f32[5,3,4]; b f32[5]",
        "%z f32[2,5] = aten.bilinear.default(%x, %y, %w, %b)",
        "b i+, b j+, o i+ j+, !o -> b o",
    );
    check(
        "x f32[4,3]; y f32[4,3]",
        "%z f32[4,3] = aten.cross.default(%x, %y)",
        "a b^, a b^ -> a b^ ; linear 0 ; linear 1",
    );
}

#[test]
fn a_part_computes_distances_as_the_whole_does() {
    let cdist = |rows: i64| format!("%z f32[{rows},4] = aten.cdist.default(%x, %y)");
    check_local("x f32[8,3]; y f32[4,3]", &cdist(8), "p 0..4", "aten.cdist.default(%0, %1, compute_mode=2)");
    check_local(
        "x f32[80,3]; y f32[4,3]",
        &cdist(80),
        "p 0..4",
        "aten.cdist.default(%0, %1, compute_mode=1)",
    );
}

#[test]
fn losses_of_rows_are_averaged_apart() {
    let triplet = |way: i64, made: &str| {
        format!(
            "%y f32[{made}] = aten.triplet_margin_loss.default(%a, %b, %c, 1.0, 2.0, 1e-06, False, {way})"
        )
    };
    let rows = "a f32[4,3]; b f32[4,3]; c f32[4,3]";
    check(rows, &triplet(0, "4"), "a x0^, a x0^, a x0^ -> a");
    check(rows, &triplet(1, ""), "a@ x0^, a@ x0^, a@ x0^ -> scalar");
    check(rows, &triplet(2, ""), "a+ x0^, a+ x0^, a+ x0^ -> scalar");
}

#[test]
fn statistics_keep_their_dims_whole() {
    check("x f32[2,3]", "%y f32[2], %i i64[2] = aten.median.dim(%x, 1)", "a b^ -> a, a");
    check("x f32[2,3]", "%y f32[2,1], _ = aten.kthvalue.default(%x, 2, -1, True)", "a b^ -> a 1, -");
    check("x f32[2,3]; q f32[4]", "%y f32[4,2] = aten.quantile.default(%x, %q, 1)", "a b^, q0^ -> q0^ a");
    check("x f32[2,3]; t f32[3]", "%y f32[2] = aten.trapezoid.x(%x, %t)", "a b^, b^ -> a");
    check("x f32[2,3]", "%y f32[2,2] = aten.cumulative_trapezoid.dx(%x)", "a b^ -> a b_out^ ; linear 0");
    check("x f32[2,3]", "%y f32[2,3] = aten.renorm.default(%x, 2, 0, 1.0)", "a b^ -> a b^");
    check("x f32[3,3]", "%y f32[] = aten.trace.default(%x)", "x0_0^ x0_1^ -> scalar ; linear 0");
}

#[test]
fn rows_that_are_written_are_known_to_all_parts() {
    check(
        "x f32[5,4]; i i64[3]; s f32[5,3]",
        "%y f32[5,4] = aten.index_add.default(%x, 1, %i, %s)",
        "a b^, index^, a index^ -> a b^ ; linear 0 2",
    );
    check(
        "x f32[5,4]; i i64[3]",
        "%y f32[5,4] = aten.index_fill.int_Scalar(%x, 0, %i, 1.0)",
        "a^ b, index^ -> a^ b",
    );
    check(
        "x f32[5,4]; i i64[5,3]; s f32[5,3]",
        "%y f32[5,4] = aten.scatter_reduce.two(%x, 1, %i, %s, \"amax\")",
        "a rows^, a index^, a index^ -> a rows^",
    );
    check("x f32[5,4]; b f32[3]", "%y i64[5,4] = aten.bucketize.Tensor(%x, %b)", "a b, bounds^ -> a b");
    check(
        "b f32[5,3]; x f32[5,4]",
        "%y i64[5,4] = aten.searchsorted.Tensor(%b, %x)",
        "a bounds^, a b -> a b",
    );
    check("b f32[3]; x f32[5]; s i64[3]", "%y i64[5] = aten.searchsorted.Tensor(%b, %x, sorter=%s)", "");
}

#[test]
fn parts_have_their_own_groups_and_sizes() {
    check_local(
        "x f32[2,6,5]",
        "%y f32[2,6,5] = aten.channel_shuffle.default(%x, 3)",
        "g 1..3",
        "aten.channel_shuffle.default(%0, 2)",
    );
    check_local(
        "x f32[4,2,3]",
        "%y f32[4,3,5,2] = aten.affine_grid_generator.default(%x, [4, 1, 3, 5], False)",
        "a 1..4",
        "aten.affine_grid_generator.default(%0, [3, 1, 3, 5], false)",
    );
    check_local(
        "c f32[3]; x f32[3,8]; y f32[8]",
        "%z f32[3] = aten.addmv.default(%c, %x, %y, beta=2)",
        "k 4..8",
        "aten.mv.default(%1, %2)",
    );
}
