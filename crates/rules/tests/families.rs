//! The rule of each kind of call, family by family.

use crate::support;
use crate::support::check;

#[test]
fn pointwise_maps_every_dim() {
    check("x f32[2,3]; y f32[2,3]", "%z f32[2,3] = aten.add.Tensor(%x, %y)", "a b, a b -> a b ; linear 0 1");
    check(
        "x f32[2,3]; y f32[3]",
        "%z f32[2,3] = aten.mul.Tensor(%x, %y)",
        "a b, b -> a b ; linear 0 ; linear 1",
    );
    check(
        "x f32[2,1,3]; y f32[4,1]",
        "%z f32[2,4,3] = aten.sub.Tensor(%x, %y)",
        "a 1 c, b 1 -> a b c ; linear 0 1",
    );
    check("x f32[2,3]; y f32[]", "%z f32[2,3] = aten.div.Tensor(%x, %y)", "a b, scalar -> a b ; linear 0");
    check("x f32[2,3]", "%z f32[2,3] = aten.mul.Tensor(%x, 2.0)", "a b -> a b ; linear 0");
    check("x f32[2,3]", "%z f32[2,3] = aten.add.Tensor(%x, 1)", "a b -> a b");
    check("x f32[2,3]", "%z f32[2,3] = aten.gelu.default(%x)", "a b -> a b");
    check("x f32[2,3]", "%z f32[2,3] = aten.pow.Scalar(2, %x)", "a b -> a b");
    check("x f32[0,3]", "%z f32[0,3] = aten.neg.default(%x)", "a^ b -> a^ b ; linear 0");
    check("x f32[]", "%z f32[] = aten.neg.default(%x)", "scalar -> scalar ; linear 0");
}

#[test]
fn pointwise_choices_are_linear_where_nothing_is_added() {
    let choice = "c bool[3]; x f32[2,3]; y f32[2,3]";
    check(choice, "%z f32[2,3] = aten.where.self(%c, %x, %y)", "b, a b, a b -> a b ; linear 1 2");
    check(
        "x f32[2,3]; m bool[2,3]",
        "%z f32[2,3] = aten.masked_fill.Scalar(%x, %m, 0)",
        "a b, a b -> a b ; linear 0",
    );
    check(
        "x f32[2,3]; m bool[2,3]",
        "%z f32[2,3] = aten.masked_fill.Scalar(%x, %m, -inf)",
        "a b, a b -> a b",
    );
    check("x f32[2]", "%z f32[2] = aten.to.dtype(%x, f32)", "a -> a ; linear 0");
    check("x f32[2]", "%z bf16[2] = aten.to.dtype(%x, bf16)", "a -> a");
    check("x f32[2]; y f64[5,6]", "%z f64[2] = aten.type_as.default(%x, %y)", "a, - -> a");
    check("x f32[2,3,4]; w f32[3]", "%z f32[2,3,4] = aten.prelu.default(%x, %w)", "a b c, b -> a b c");
}

#[test]
fn views_follow_factors() {
    let view = |from: &str, to: &str, expect: &str| {
        check(&format!("x f32[{from}]"), &format!("%y f32[{to}] = aten.view.default(%x, [{to}])"), expect);
    };
    view("4,6", "24", "a b -> (a b) ; linear 0");
    view("2,5,96", "2,5,3,4,8", "a b (c d e) -> a b c d e ; linear 0");
    view("2,4,2", "4,4", "a (b c) d -> (a b) (c d) ; linear 0");
    view("2,3", "2,1,3", "a b -> a 1 b ; linear 0");
    view("0,3", "3,0", "i0^ i1^ -> o0^ o1^ ; linear 0");
    view("5,4,6", "5,6,4", "a b00^ b01^ -> a b10^ b11^ ; linear 0");
}

#[test]
fn views_permute_add_and_repeat() {
    check("x f32[2,3,4]", "%y f32[2,4,3] = aten.transpose.int(%x, 1, -1)", "a b c -> a c b ; linear 0");
    check("x f32[2,3,4]", "%y f32[4,2,3] = aten.permute.default(%x, [2, 0, 1])", "a b c -> c a b ; linear 0");
    check("x f32[2,3,4]", "%y f32[3,4,2] = aten.movedim.int(%x, 0, -1)", "a b c -> b c a ; linear 0");
    check("x f32[2,3]", "%y f32[3,2] = aten.t.default(%x)", "a b -> b a ; linear 0");
    check("x f32[2,3]", "%y f32[2,1,3] = aten.unsqueeze.default(%x, 1)", "a b -> a 1 b ; linear 0");
    check("x f32[2,1,3]", "%y f32[2,3] = aten.squeeze.dim(%x, 1)", "a 1 b -> a b ; linear 0");
    check("x f32[1,3]", "%y f32[4,2,3] = aten.expand.default(%x, [4, 2, -1])", "1 c -> a b c ; linear 0");
    check("x f32[3]", "%y f32[2,12] = aten.repeat.default(%x, [2, 4])", "b -> a_copy (b_copy b) ; linear 0");
    check(
        "x f32[2,3]",
        "%y f32[2,12] = aten.repeat_interleave.self_int(%x, 4, 1)",
        "a b -> a (b b_copy) ; linear 0",
    );
    check(
        "x f32[2,10]",
        "%y f32[2,4,4] = aten.unfold.default(%x, 1, 4, 2)",
        "a whole^ -> a b_out^ window^ ; linear 0",
    );
    check(
        "x i64[2]; y i64[3]",
        "%a i64[2,3], _ = aten.meshgrid.indexing([%x, %y], indexing=\"ij\")",
        "a, b -> a b, -",
    );
}

#[test]
fn equal_pieces_leave_the_inner_factor_free() {
    check(
        "x f32[2,12]",
        "%a f32[2,4], %b f32[2,4], _ = aten.split.Tensor(%x, 4, 1)",
        "a (b_piece^ b) -> a b, a b, - ; linear 0",
    );
    check(
        "x f32[2,6]",
        "%a f32[2,4], %b f32[2,2] = aten.split.Tensor(%x, 4, -1)",
        "a b^ -> a b_0^, a b_1^ ; linear 0",
    );
    check(
        "x f32[6,2]",
        "%a f32[3,2], %b f32[3,2] = aten.chunk.default(%x, 2)",
        "(a_piece^ a) b -> a b, a b ; linear 0",
    );
    check(
        "x f32[6,2]",
        "%a f32[1,2], %b f32[5,2] = aten.split_with_sizes.default(%x, [1, 5])",
        "a^ b -> 1 b, a_1^ b ; linear 0",
    );
    check("x f32[2,3]", "%a f32[2], _, %c f32[2] = aten.unbind.int(%x, 1)", "a b^ -> a, -, a ; linear 0");
    check(
        "x f32[2,3]; y f32[2,3]",
        "%z f32[2,6] = aten.cat.default([%x, %y], -1)",
        "a b, a b -> a (b_piece^ b) ; linear 0 1",
    );
    check(
        "x f32[2,3]; y f32[2,1]",
        "%z f32[2,4] = aten.cat.default([%x, %y], 1)",
        "a b_0^, a 1 -> a b^ ; linear 0 1",
    );
    check(
        "x f32[2,6]; y f32[2,4]",
        "%z f32[2,10] = aten.cat.default([%x, %y], 1)",
        "a (b_0^ b), a (b_1^ b) -> a (b_piece^ b) ; linear 0 1",
    );
    check(
        "x f32[2,4]; y f32[2,2]",
        "%z f32[2,6] = aten.cat.default([%x, %y], 1)",
        "a (b_0^ b), a b -> a (b_piece^ b) ; linear 0 1",
    );
    check(
        "x f32[4,2]; y f32[2,2]",
        "%z f32[6,2] = aten.cat.default([%x, %y], 0)",
        "a_0^ b, a_1^ b -> a^ b ; linear 0 1",
    );
    check(
        "x f32[0]; y f32[2,3]",
        "%z f32[2,3] = aten.cat.default([%x, %y], 0)",
        "skipped0^, a_1^ b -> a^ b ; linear 0 1",
    );
    check("x f32[2]; y f32[2]", "%z f32[2,2] = aten.stack.default([%x, %y], 1)", "a, a -> a b^ ; linear 0 1");
    check("x f32[2,6]", "%z f32[2,3] = aten.glu.default(%x)", "a (half^ b) -> a b");
}

#[test]
fn ranges_keep_their_dim_whole() {
    check("x f32[2,3]", "%y f32[2] = aten.select.int(%x, 1, 0)", "a b^ -> a ; linear 0");
    check("x f32[2,6]", "%y f32[2,4] = aten.slice.Tensor(%x, 1, 0, 4)", "a b^ -> a b_out^ ; linear 0");
    check(
        "x f32[2,6]",
        "%y f32[2,6] = aten.slice.Tensor(%x, 1, 0, 9223372036854775807)",
        "a b -> a b ; linear 0",
    );
    check("x f32[2,6]", "%y f32[2,8] = aten.pad.default(%x, [1, 1])", "a b^ -> a b_out^ ; linear 0");
    check("x f32[2,6]", "%y f32[2,6] = aten.pad.default(%x, [1, -1, 0, 0])", "a b^ -> a b^ ; linear 0");
    check("x f32[2,6]", "%y f32[2,8] = aten.constant_pad_nd.default(%x, [1, 1], 1.0)", "a b^ -> a b_out^");
    check("x f32[2,6]", "%y f32[2,6] = aten.roll.default(%x, [1], [1])", "a b^ -> a b^ ; linear 0");
    check("x f32[2,6]", "%y f32[2,6] = aten.flip.default(%x, [0])", "a^ b -> a^ b ; linear 0");
    check(
        "x f32[2,6]; v f32[2,4]",
        "%y f32[2,6] = aten.slice_scatter.default(%x, %v, 1, 2)",
        "a b^, a b_out^ -> a b^ ; linear 0 1",
    );
    check(
        "x f32[2,6]; v f32[2,6]",
        "%y f32[2,6] = aten.slice_scatter.default(%x, %v, 1)",
        "a b^, a b^ -> a b^ ; linear 0 1",
    );
    check(
        "x f32[2,6,3]; v f32[2,3]",
        "%y f32[2,6,3] = aten.select_scatter.default(%x, %v, 1, -1)",
        "a b^ c, a c -> a b^ c ; linear 0 1",
    );
    check("x f32[2,6]", "%y f32[2,5] = aten.diff.default(%x)", "a b^ -> a b_out^ ; linear 0");
    check(
        "x f32[2,6]; v f32[2,1]",
        "%y f32[2,6] = aten.diff.default(%x, 1, -1, %v)",
        "a b^, a 1 -> a b^ ; linear 0 1",
    );
}

#[test]
fn contractions_sum_what_only_operands_have() {
    let linear = "x f32[2,5,8]; w f32[4,8]; b f32[4]";
    check(linear, "%y f32[2,5,4] = aten.linear.default(%x, %w, %b)", "b s k@, n k@, n -> b s n");
    check(
        "x f32[2,8]; w f32[4,8]",
        "%y f32[2,4] = aten.linear.default(%x, %w)",
        "b k+, n k+ -> b n ; linear 0 ; linear 1",
    );
    let product = |left: &str, right: &str, to: &str, expect: &str| {
        let inputs = format!("x f32[{left}]; y f32[{right}]");
        check(
            &inputs,
            &format!("%z f32[{to}] = aten.matmul.default(%x, %y)"),
            &format!("{expect} ; linear 0 ; linear 1"),
        );
    };
    product("8", "8", "", "k+, k+ -> scalar");
    product("8", "8,3", "3", "k+, k+ n -> n");
    product("2,8", "8", "2", "m k+, k+ -> m");
    product("2,8", "8,3", "2,3", "m k+, k+ n -> m n");
    product("5,2,8", "8,3", "5,2,3", "b m k+, k+ n -> b m n");
    product("5,1,2,8", "7,8,3", "5,7,2,3", "b 1 m k+, s k+ n -> b s m n");
    let bias = "c f32[3]; x f32[2,8]; y f32[8,3]";
    check(bias, "%z f32[2,3] = aten.addmm.default(%c, %x, %y)", "!n, m k+, k+ n -> m n");
    check(bias, "%z f32[2,3] = aten.addmm.default(%c, %x, %y, alpha=2)", "!n, m k^, k^ n -> m n");
    let bias = "c f32[5,1,3]; x f32[5,2,8]; y f32[5,8,3]";
    check(bias, "%z f32[5,2,3] = aten.baddbmm.default(%c, %x, %y)", "!b 1 n, b m k+, b k+ n -> b m n");
    check(
        "x f32[2]; y f32[3]",
        "%z f32[2,3] = aten.outer.default(%x, %y)",
        "m, n -> m n ; linear 0 ; linear 1",
    );
}

#[test]
fn einsum_reads_its_equation() {
    let einsum = |equation: &str, left: &str, right: &str, to: &str, expect: &str| {
        let inputs = format!("x f32[{left}]; y f32[{right}]");
        check(&inputs, &format!("%z f32[{to}] = aten.einsum.default(\"{equation}\", [%x, %y])"), expect);
    };
    let both = " ; linear 0 ; linear 1";
    einsum(
        "bqhd, bkhd -> bhqk",
        "2,5,3,4",
        "2,6,3,4",
        "2,3,5,6",
        &format!("b q h d+, b k h d+ -> b h q k{both}"),
    );
    einsum("ij,jk", "2,3", "3,4", "2,4", &format!("i j+, j+ k -> i k{both}"));
    einsum("...i,ij->...j", "2,5,3", "3,4", "2,5,4", &format!("dots1 dots0 i+, i+ j -> dots1 dots0 j{both}"));
    einsum("ii,ij->j", "3,3", "3,4", "4", "");
}

#[test]
fn attention_maps_batch_and_heads() {
    let qkv = "q f32[2,4,5,8]; k f32[2,4,6,8]; v f32[2,4,6,8]";
    let attention = |extra: &str| {
        format!("%y f32[2,4,5,8] = aten.scaled_dot_product_attention.default(%q, %k, %v{extra})")
    };
    check(
        "q f32[2,3,4,5,8]; k f32[2,3,4,6,8]; v f32[2,3,4,6,8]; m f32[2,1,4,5,6]",
        "%y f32[2,3,4,5,8] = aten.scaled_dot_product_attention.default(%q, %k, %v, %m)",
        "b r h l e^, b r h s^ e^, b r h s^ d, b 1 h l s^ -> b r h l d ; linear 2",
    );
    check(qkv, &attention(""), "b h l e^, b h s^ e^, b h s^ d -> b h l d ; linear 2");
    check(qkv, &attention(", None, 0.0, True"), "b h l~ e^, b h s^ e^, b h s^ d -> b h l~ d ; linear 2");
    check(qkv, &attention(", None, 0.1"), "b h l e^, b h s^ e^, b h s^ d^ -> b h l d^");
    check(
        &format!("{qkv}; m bool[1,1,5,6]"),
        &attention(", %m"),
        "b h l e^, b h s^ e^, b h s^ d, 1 1 l s^ -> b h l d ; linear 2",
    );
    let grouped = |heads: i64| format!("q f32[2,4,5,8]; k f32[2,{heads},6,8]; v f32[2,{heads},6,8]");
    let gqa = attention(", enable_gqa=True");
    check(&grouped(2), &gqa, "b (h g) l e^, b h s^ e^, b h s^ d -> b (h g) l d ; linear 2");
    check(&grouped(1), &gqa, "b g l e^, b 1 s^ e^, b 1 s^ d -> b g l d ; linear 2");
    check(&grouped(4), &gqa, "b h l e^, b h s^ e^, b h s^ d -> b h l d ; linear 2");
}

#[test]
fn norms_keep_what_they_average_whole() {
    let weights = "x f32[2,5,8]; w f32[8]; b f32[8]";
    check(weights, "%y f32[2,5,8] = aten.layer_norm.default(%x, [8], %w, %b)", "a b c^, c^, c^ -> a b c^");
    check(
        weights,
        "%y f32[2,5,8], %m f32[2,5,1], _ = aten.native_layer_norm.default(%x, [8], %w, %b, 1e-05)",
        "a b c^, c^, c^ -> a b c^, a b 1, -",
    );
    check("x f32[2,5,8]", "%y f32[2,5,8] = aten.rms_norm.default(%x, [5, 8])", "a b^ c^ -> a b^ c^");
    let image = "x f32[2,4,3,3]; w f32[4]; b f32[4]";
    check(
        image,
        "%y f32[2,4,3,3] = aten.group_norm.default(%x, 2, %w, %b)",
        "a (b b_each^) c@ d@, (b b_each^), (b b_each^) -> a (b b_each^) c@ d@",
    );
    check(
        image,
        "%y f32[2,4,3,3] = aten.group_norm.default(%x, 1, %w, %b)",
        "a b_each^ c@ d@, b_each^, b_each^ -> a b_each^ c@ d@",
    );
    check(image, "%y f32[2,4,3,3] = aten.group_norm.default(%x, 4, %w, %b)", "a b c@ d@, b, b -> a b c@ d@");
    let batch = format!("{image}; m f32[4]; v f32[4]");
    let norm = |training: &str| {
        format!(
            "%y f32[2,4,3,3], _, _, %m1 f32[4], %v1 f32[4] = aten._native_batch_norm_legit_functional.default(%x, %w, %b, %m, %v, {training}, 0.1, 1e-05)"
        )
    };
    check(&batch, &norm("True"), "a@ b~ c@ d@, b~, b~, b~, b~ -> a@ b~ c@ d@, -, -, b~, b~");
    check(&batch, &norm("False"), "a@ b~ c@ d@, b~, b~, b~, b~ -> a@ b~ c@ d@, -, -, b~, b~");
    let evaluated = "%y f32[2,4,3,3], _, _ = aten._native_batch_norm_legit_no_training.default(%x, %w, %b, %m, %v, 0.1, 1e-05)";
    check(&batch, evaluated, "a b~ c d, b~, b~, b~, b~ -> a b~ c d, -, -");
    let bare = "%y f32[2,4,3,3], _, %s f32[4] = aten._native_batch_norm_legit.no_stats(%x, %w, %b, True, 0.1, 1e-05)";
    check(image, bare, "a@ b~ c@ d@, b~, b~ -> a@ b~ c@ d@, -, b~");
    let plain = "%y f32[2,4,3,3] = aten.batch_norm.default(%x, %w, %b, %m, %v, False, 0.1, 1e-05, True)";
    check(&batch, plain, "a b~ c d, b~, b~, b~, b~ -> a b~ c d");
    check(&batch, &plain.replace("False", "True"), "");
}

#[test]
fn softmax_has_its_own_algorithm_along_its_dim() {
    check("x f32[2,3]", "%y f32[2,3] = aten.softmax.int(%x, -1)", "a b@ -> a b@");
    check("x f32[2,3]", "%y f32[2,3] = aten._log_softmax.default(%x, 0, False)", "a@ b -> a@ b");
}

#[test]
fn experts_sum_over_the_experts_that_a_part_has() {
    check(
        "x f32[6,8]; w f32[4,5,8]; i i64[6]",
        "%y f32[6,5] = shardwright.expert_linear.default(%x, %w, %i, False)",
        "s k+, e+~ n k+, s -> s n ; linear 0 ; linear 1",
    );
    check(
        "x f32[6,8]; w f32[1,8,5]; i i64[6]",
        "%y f32[6,5] = shardwright.expert_linear.default(%x, %w, %i, True)",
        "s k+, 1 k+ n, s -> s n ; linear 0 ; linear 1",
    );
}

#[test]
fn mixtures_sum_over_their_experts_and_over_the_inside_of_each() {
    let inputs = "x f32[6,8]; i i64[6,2]; p f32[6,2]; u f32[4,10,8]; d f32[4,7,5]";
    let op = "%y f32[6,7] = shardwright.experts.default(%x, %i, %p, %u, %d, \"silu\", True, False, False)";
    check(inputs, op, "t k^, t j^, t j^, e+~ (g^ n+) k^, e+~ m n+ -> t m ; linear 2 ; linear 4");
    let inputs = "x f32[6,8]; i i64[6,1]; p f32[6,1]; u f32[4,8,5]; d f32[4,5,7]";
    let op = "%y f32[6,7] = shardwright.experts.default(%x, %i, %p, %u, %d, \"relu\", False, True, True)";
    check(inputs, op, "t k^, t 1, t 1, e+~ k^ n+, e+~ n+ m -> t m ; linear 2 ; linear 4");
}

#[test]
fn embedding_sums_over_rows() {
    let inputs = "w f32[10,4]; i i64[2,3]";
    check(
        inputs,
        "%y f32[2,3,4] = aten.embedding.default(%w, %i)",
        "vocab+~ width, a b -> a b width ; linear 0",
    );
    check(inputs, "%y f32[2,3,4] = aten.embedding.default(%w, %i, -1, True)", "");
}

#[test]
fn losses_pick_and_count() {
    let inputs = "x f32[6,10]; t i64[6]";
    let loss = |extra: &str| format!("%y f32[] = aten.cross_entropy_loss.default(%x, %t{extra})");
    check(inputs, &loss(""), "b@ v@~, b@ -> scalar");
    check(inputs, &loss(", None, 2"), "b+ v@~, b+ -> scalar");
    check(inputs, &loss(", None, 1, -100, 0.1"), "b^ v^, b^ -> scalar");
    check(&format!("{inputs}; w f32[10]"), &loss(", %w, 2"), "b+ v^, b+, v^ -> scalar");
    check("x f32[6,10]; t f32[6,10]", &loss(", None, 2"), "b+ v^, b+ v^ -> scalar");
    check("x f32[10]; t i64[]", &loss(""), "v@~, scalar -> scalar");
    let rows = "%y f32[6,4] = aten.cross_entropy_loss.default(%x, %t, None, 0)";
    check("x f32[6,10,4]; t i64[6,4]", rows, "b v@~ s, b s -> b s");
    let forward = "%y f32[], %n f32[] = aten.nll_loss_forward.default(%x, %t, None, 1, -100)";
    check(inputs, forward, "b@ v@~, b@ -> scalar, scalar");
    check(inputs, "%y f32[6] = sw.pick(%x, %t, 1, 0, -100, 10)", "b v+~, b -> b ; linear 0");
}

#[test]
fn distances_are_summed_or_rewritten() {
    let inputs = "x f32[6,2]; y f32[6,2]";
    check(inputs, "%z f32[] = aten.mse_loss.default(%x, %y)", "a@ b@, a@ b@ -> scalar");
    check(inputs, "%z f32[] = aten.mse_loss.default(%x, %y, 2)", "a+ b+, a+ b+ -> scalar");
    check(inputs, "%z f32[6,2] = aten.l1_loss.default(%x, %y, 0)", "a b, a b -> a b");
    check("x f32[6,2]; y f32[6,1]", "%z f32[] = aten.mse_loss.default(%x, %y)", "");
    let weighted = "x f32[6,2]; y f32[6,2]; w f32[2]";
    let loss = "%z f32[] = aten.binary_cross_entropy_with_logits.default(%x, %y, None, %w, 2)";
    check(weighted, loss, "a+ b+, a+ b+, b+ -> scalar");
}

#[test]
fn reductions_leave_partial_results() {
    check("x f32[2,3]", "%y f32[] = aten.sum.default(%x)", "a+ b+ -> scalar ; linear 0");
    check("x f32[2,3]", "%y f32[2,1] = aten.sum.dim_IntList(%x, [-1], True)", "a b+ -> a 1 ; linear 0");
    check("x f32[2,3]", "%y f32[3] = aten.mean.dim(%x, [0])", "a+ b -> b ; linear 0");
    check("x bool[2,3]", "%y bool[2] = aten.any.dim(%x, 1)", "a b| -> a");
    check("x bool[2,3]", "%y bool[] = aten.all.default(%x)", "a& b& -> scalar");
    check("x f32[2,3]", "%y f32[2] = aten.amax.default(%x, [1])", "a b> -> a");
    check("x f32[2,3]", "%y f32[2] = aten.amin.default(%x, [1])", "a b< -> a");
    check("param x f32[2,3]", "%y f32[2] = aten.amax.default(%x, [1])", "a b^ -> a");
    check("x f32[2,3]", "%y f32[] = aten.max.default(%x)", "a> b> -> scalar");
    check("x f32[2,3]", "%v f32[2], %i i64[2] = aten.max.dim(%x, 1)", "a b^ -> a, a");
    check("x f32[2,3]", "%y i64[] = aten.argmax.default(%x)", "a^ b^ -> scalar");
    check("x f32[2,3]", "%y f32[2] = aten.var.correction(%x, [1], correction=0)", "a b^ -> a");
    check("x f32[2,3]", "%y f32[] = aten.linalg_vector_norm.default(%x)", "a^ b^ -> scalar");
    check("x f32[2,3]", "%y f32[2,3] = aten.cumsum.default(%x, 1)", "a b^ -> a b^ ; linear 0");
    check("x f32[2,3]", "%v f32[2,2], %i i64[2,2] = aten.topk.default(%x, 2)", "a b^ -> a b_out^, a b_out^");
    check("x f32[2,3]", "%y f32[4] = aten.histc.default(%x, 4, 0, 4)", "a+ b+ -> bins^");
    check("x f32[2,3]", "%y f32[4] = aten.histc.default(%x, 4)", "");
    check("x f32[2,3]", "%v f32[2,3], %i i64[2,3] = aten.sort.default(%x, 0)", "a^ b -> a^ b, a^ b");
}

#[test]
fn convolutions_sum_input_channels() {
    let conv = |from: &str, weight: &str, to: &str, extra: &str, expect: &str| {
        let inputs =
            format!("x f32[{from}]; w f32[{weight}]; b f32[{}]", to.split(',').nth(1).unwrap_or("1"));
        check(&inputs, &format!("%y f32[{to}] = aten.conv2d.default(%x, %w, %b{extra})"), expect);
    };
    conv("2,4,9,9", "6,4,3,3", "2,6,7,7", "", "n i+ x0^ x1^, o i+ k0^ k1^, !o -> n o y0^ y1^");
    let groups = ", [1, 1], [0, 0], [1, 1], 2";
    conv(
        "2,4,9,9",
        "6,2,3,3",
        "2,6,7,7",
        groups,
        "n (g i+) x0^ x1^, (g o) i+ k0^ k1^, !(g o) -> n (g o) y0^ y1^",
    );
    conv("2,2,9,9", "2,1,3,3", "2,2,7,7", groups, "n g x0^ x1^, g 1 k0^ k1^, !g -> n g y0^ y1^");
    check(
        "x f32[4,9]; w f32[6,4,3]",
        "%y f32[6,7] = aten.conv1d.default(%x, %w)",
        "i+ x0^, o i+ k0^ -> o y0^ ; linear 0 ; linear 1",
    );
    let transposed = "x f32[2,4,9]; w f32[4,6,3]";
    check(
        transposed,
        "%y f32[2,6,11] = aten.convolution.default(%x, %w, None, [1], [0], [1], True, [0], 1)",
        "n i+ x0^, i+ o k0^ -> n o y0^ ; linear 0 ; linear 1",
    );
    check(
        "x f32[2,4,9]; w f32[4,3,3]",
        "%y f32[2,6,11] = aten.conv_transpose1d.default(%x, %w, None, [1], [0], [0], 2)",
        "n i^ x0^, i^ o^ k0^ -> n c^ y0^ ; linear 0 ; linear 1",
    );
}

#[test]
fn pooling_maps_planes() {
    check(
        "x f32[2,3,8,8]",
        "%y f32[2,3,4,4] = aten.max_pool2d.default(%x, [2, 2])",
        "a b (y0 x0^) (y1 x1^) -> a b y0 y1",
    );
    check(
        "x f32[2,3,8,8]",
        "%y f32[2,3,4,4] = aten.max_pool2d.default(%x, [3, 3], [2, 2], [1, 1])",
        "a b (p@ x0^) d^ -> a b p@ d_out^",
    );
    check(
        "x f32[2,3,8,8]",
        "%y f32[2,3,16,16] = aten.upsample_nearest2d.vec(%x, None, [2.0, 2.0])",
        "a b x0 x1 -> a b (x0 y0^) (x1 y1^) ; linear 0",
    );
    check(
        "x f32[2,3,8,8]",
        "%y f32[2,3,1,1] = aten.adaptive_avg_pool2d.default(%x, [1, 1])",
        "a b c^ d^ -> a b 1 1 ; linear 0",
    );
    check(
        "x f32[2,3,8]",
        "%y f32[2,3,16] = aten.upsample_nearest1d.vec(%x, None, [2.0])",
        "a b c^ -> a b c_out^ ; linear 0",
    );
    check(
        "x f32[2,3,8,8]",
        "%y f32[2,12,49] = aten.im2col.default(%x, [2, 2], [1, 1], [0, 0], [1, 1])",
        "a b x0^ x1^ -> a (b k^) l^ ; linear 0",
    );
    check(
        "x f32[2,12,4,4]",
        "%y f32[2,3,8,8] = aten.pixel_shuffle.default(%x, 2)",
        "a (b k^) x0^ x1^ -> a b y0^ y1^ ; linear 0",
    );
    check(
        "x f32[2,3,8,8]; g f32[2,5,6,2]",
        "%y f32[2,3,5,6] = aten.grid_sampler_2d.default(%x, %g, 0, 0, False)",
        "a b x0^ x1^, a c d xy^ -> a b c d ; linear 0",
    );
}

#[test]
fn dropout_maps_and_is_linear_only_when_off() {
    check("x f32[2,3]", "%y f32[2,3] = aten.dropout.default(%x, 0.1, True)", "a b -> a b");
    check("x f32[2,3]", "%y f32[2,3] = aten.dropout.default(%x, 0.1, False)", "a b -> a b ; linear 0");
    check(
        "x f32[2,3]",
        "%y f32[2,3], %m bool[2,3] = aten.native_dropout.default(%x, 0.1, True)",
        "a b -> a b, a b",
    );
}

#[test]
fn creation_needs_no_operand() {
    check("", "%y f32[2,3] = aten.zeros.default([2, 3])", " -> a b");
    check("x f64[9]", "%y f64[2,3] = aten.new_full.default(%x, [2, 3], 1)", "- -> a b");
    check("", "%y i64[6] = aten.arange.start(2, 8)", " -> a~");
    check("", "%y f32[6] = aten.arange.default(6.0)", " -> a^");
    check("", "%y f32[3,3] = aten.eye.default(3)", " -> a^ b^");
    check("", "%y f32[] = aten.scalar_tensor.default(3)", " -> scalar");
}

#[test]
fn indexed_dims_stay_whole() {
    check(
        "x f32[5,4]; i i64[3,4]",
        "%y f32[3,4] = aten.gather.default(%x, 0, %i)",
        "rows^ b, index b -> index b ; linear 0",
    );
    check(
        "x f32[5,4]; i i64[3,2]",
        "%y f32[3,2] = aten.gather.default(%x, 0, %i)",
        "rows^ b^, index b_out^ -> index b_out^ ; linear 0",
    );
    check(
        "x f32[5,4]; i i64[3]",
        "%y f32[3,4] = aten.index_select.default(%x, 0, %i)",
        "rows^ b, index -> index b ; linear 0",
    );
    check(
        "x f32[5,4]; i i64[2,3]",
        "%y f32[2,3,4] = aten.index.Tensor(%x, [%i])",
        "a^ b, i0 i1 -> i0 i1 b ; linear 0",
    );
    check(
        "x f32[5,4]; i i64[3]",
        "%y f32[5,3] = aten.index.Tensor(%x, [None, %i])",
        "a b^, i0 -> a i0 ; linear 0",
    );
    check(
        "x f32[5,4,6]; i i64[3]; j i64[2,1]",
        "%y f32[2,3,4] = aten.index.Tensor(%x, [%i, None, %j])",
        "a^ b c^, i1, i0 1 -> i0 i1 b ; linear 0",
    );
    check("x f32[5,4]; m bool[5]", "%y f32[3,4] = aten.index.Tensor(%x, [%m])", "");
    check(
        "x f32[5,4]; i i64[3]; v f32[3,4]",
        "%y f32[5,4] = aten.index_put.default(%x, [%i], %v)",
        "a^ b, i0^, i0^ b -> a^ b ; linear 0 2",
    );
    check(
        "x f32[5,4]; i i64[3,4]; s f32[3,4]",
        "%y f32[5,4] = aten.scatter_add.default(%x, 0, %i, %s)",
        "rows^ b, index^ b, index^ b -> rows^ b ; linear 0 2",
    );
    for (how, linear) in [("sum", " ; linear 0 2"), ("amax", "")] {
        check(
            "x f32[5,4]; i i64[3,4]; s f32[3,4]",
            &format!("%y f32[5,4] = aten.scatter_reduce.two(%x, 0, %i, %s, \"{how}\")"),
            &format!("rows^ b, index^ b, index^ b -> rows^ b{linear}"),
        );
    }
    for target in ["index_add", "index_copy"] {
        check(
            "x f32[5,4]; i i64[3]; s f32[3,4]",
            &format!("%y f32[5,4] = aten.{target}.default(%x, 0, %i, %s)"),
            "a^ b, index^, index^ b -> a^ b ; linear 0 2",
        );
    }
    check(
        "x f32[5,4]; i i64[3,4]",
        "%y f32[5,4] = aten.scatter.value(%x, 0, %i, 1)",
        "rows^ b, index^ b -> rows^ b",
    );
    check("x f32[2,3,3]", "%y f32[2,3,3] = aten.tril.default(%x)", "a b^ c^ -> a b^ c^ ; linear 0");
    check("x i64[2,3]", "%y i64[2,3,7] = aten.one_hot.default(%x, 7)", "a b -> a b c^");
}

#[test]
fn an_unknown_operator_has_no_rule() {
    check("x f32[2,3]", "%y f32[2,3] = aten.erfcx_of_another.default(%x)", "");
}

#[test]
fn random_numbers_are_drawn_whole() {
    check("", "%y f32[2,3] = aten.rand.default([2, 3])", " -> a^ b^");
    check("x f32[2,3]", "%y f32[2,3] = aten.randn_like.default(%x)", "- -> a^ b^");
    check("x f32[2,3]", "%y f32[2,3] = aten.bernoulli.p(%x, 0.3)", "- -> a^ b^");
}

#[test]
fn functions_have_the_rule_that_is_registered() {
    let call = |rest: &str| {
        format!("%y f32[2,12] = shardwright.function.default(\"m:f\", [%x, %w], \"(T0, T1)\"{rest})")
    };
    let check = |rest: &str, expect: &str| check("x f32[2,12]; w f32[12]", &call(rest), expect);
    check("", "");
    check(r#", """#, "");
    check(r#", "a b, b -> a b""#, "a b, b -> a b");
    check(r#", "a (h d), (h d) -> a (h d)", ["h"], [4]"#, "a (h d), (h d) -> a (h d)");
}

#[test]
fn rows_for_experts_are_of_tokens_and_experts() {
    let inputs = "x f32[6,8]; i i64[6,2]";
    check(inputs, "%r f32[4,6,4] = sw.dispatch(%x, %i, 4, False)", "t k^, t j^ -> e^ t r^");
    let inputs = "r f32[4,6,4]; u f32[4,10,8]; d f32[4,7,5]";
    let op = "%m f32[4,6,4] = sw.expert_rows(%r, %u, %d, \"silu\", True, False)";
    check(inputs, op, "e t r^, e a^ b^, e c^ d^ -> e t m^");
    let inputs = "m f32[4,6,4]; i i64[6,1]; p f32[6,1]";
    check(inputs, "%y f32[6,7] = sw.combine(%m, %i, %p, 4, False)", "e^ t r^, t 1, t 1 -> t m^");
}

#[test]
fn modules_have_the_rule_of_their_tensors_and_whole_parameters() {
    let call = |tensors: &str, rest: &str| {
        format!(
            "%y f32[2,12] = shardwright.module.default(\"m.f\", [\"w\", \"b\", \"n\"], [%w, %b, %n], [{tensors}], \
             \"(T0) -> float32[2,12]\", [], True, None{rest})"
        )
    };
    let inputs = "w f32[12,1]; b f32[12]; n f32[]; x f32[2,12]";
    let check = |rest: &str, expect: &str| check(inputs, &call("%x", rest), expect);
    check("", "");
    check(r#", "a b^ -> a b^""#, "held0^ 1, held1^, scalar, a b^ -> a b^");
    check(r#", "a (h d^) -> a (h d^)", ["h"], [4]"#, "held0^ 1, held1^, scalar, a (h d^) -> a (h d^)");
    check(
        r#", "a held^ -> a held^ ; linear 0 ; found""#,
        "held_0^ 1, held_1^, scalar, a held^ -> a held^ ; linear 3",
    );
    // What it keeps may have no elements; what it is given may not.
    let nothing = inputs.replace("b f32[12]", "b f32[0]");
    let rule = ", \"a b^ -> a b^\"";
    support::check(&nothing, &call("%x", rule), "held0^ 1, held1^, scalar, a b^ -> a b^");
    support::check(
        "w f32[12,1]; b f32[12]; n f32[]; x f32[0,12]",
        &call("%x", rule).replace("y f32[2", "y f32[0"),
        "",
    );
}
