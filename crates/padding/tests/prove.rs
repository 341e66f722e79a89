//! Small models, each at two lengths: what is proved, and what is refused and where.

use std::collections::BTreeSet;

use graph::Graph;
use padding::{Content, Fill, Filled, Length, prove};

const LONG: i64 = 16;
const SHORT: i64 = 9;

/// A graph of a length: `{L}` stands for it, `{L+1}` for one more, `{R}` for the rows of two batches in one dim.
fn at(text: &str, length: i64) -> Graph {
    let text = text
        .replace("{L}", &length.to_string())
        .replace("{L+1}", &(length + 1).to_string())
        .replace("{L-1}", &(length - 1).to_string())
        .replace("{R}", &(2 * length).to_string());
    let ops: String = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(line_of).collect();
    let head = "shardwright-graph 1\nmodel \"M\"\nin_spec \"\"\nout_spec \"\"\n";
    graph::text::parse(&format!("{head}{ops}")).unwrap_or_else(|error| panic!("{error}\n{ops}"))
}

fn line_of(line: &str) -> String {
    if line.starts_with("op ") { format!("{line} in \"\" at \"model.py:7\"\n") } else { format!("{line}\n") }
}

const INPUTS: &str = "
    input %tokens i64[2,{L}] 0
    input %mask i64[2,{L}] 1
    input %labels i64[2,{L}] 2
    input %x f32[2,{L},4] 3
    param %table f32[10,4] \"table\"
";

fn fill(input: usize, value: f64) -> Fill {
    Fill { input, dim: 1, value }
}

fn proved(ops: &str) -> diag::Result<(Graph, Vec<Filled>)> {
    proved_with(ops, &[0.0, 0.0, -100.0, 0.0])
}

fn proved_with(ops: &str, values: &[f64]) -> diag::Result<(Graph, Vec<Filled>)> {
    let text = format!("{INPUTS}{ops}");
    let (long, short) = (at(&text, LONG), at(&text, SHORT));
    let fills = values.iter().enumerate().map(|(at, value)| fill(at, *value)).collect();
    let lengths = [Length::new(&long, &short, fills)];
    assert_eq!((lengths[0].long, lengths[0].short), (LONG, SHORT));
    prove(&long, &short, &lengths, &BTreeSet::new()).map(|found| (long, found))
}

/// The dims of the tails of a tensor, and what stands in the tail of each alone.
fn tails(ops: &str, name: &str) -> Vec<(usize, Content)> {
    let (graph, found) = proved(ops).unwrap_or_else(|error| panic!("{error}"));
    let filled = &found[graph.find(name).expect("it is there").index()];
    filled.tails.iter().enumerate().map(|(bit, tail)| (tail.dim, filled.contents[1 << bit])).collect()
}

fn refused(ops: &str, code: &str, words: &str) {
    let error = proved(ops).err().unwrap_or_else(|| panic!("it is proved: {ops}"));
    let said = error.to_string();
    assert!(error.code == code && said.contains(words), "{said}");
    assert!(error.place.as_deref().is_none_or(|place| place == "model.py:7"));
}

fn number(value: f64) -> Content {
    Content::number(value)
}

#[test]
fn elements_keep_their_tail_and_what_is_constant_is_known() {
    let ops = "
        op %h f32[2,{L},4] = aten.embedding.default(%table, %tokens)
        op %m bool[2,{L}] = aten.ne.Scalar(%mask, 0)
        op %f f32[2,{L}] = aten._to_copy.default(%m, dtype=f32)
        op %w f32[2,{L},1] = aten.unsqueeze.default(%f, 2)
        op %p f32[2,{L},4] = aten.mul.Tensor(%h, %w)
        output %p
    ";
    assert_eq!(tails(ops, "h"), [(1, Content::FINITE)]);
    assert_eq!(tails(ops, "m"), [(1, number(0.0))]);
    assert_eq!(tails(ops, "p"), [(1, number(0.0))]);
}

#[test]
fn views_carry_tails_along_and_cut_none() {
    let ops = "
        op %a f32[{R},4] = aten.reshape.default(%x, [{R}, 4])
        op %b f32[2,{L},2,2] = aten.reshape.default(%a, [2, {L}, 2, 2])
        op %c f32[2,2,{L},2] = aten.transpose.int(%b, 1, 2)
        output %c
    ";
    assert_eq!(tails(ops, "a"), [(0, number(0.0))]);
    assert_eq!(tails(ops, "c"), [(2, number(0.0))]);
    let (graph, found) = proved(ops).expect("it is proved");
    let tail = &found[graph.find("a").expect("it is there").index()].tails[0];
    assert_eq!((tail.outer, tail.long, tail.short, tail.inner), (2, LONG, SHORT, 1));
}

#[test]
fn positions_are_compared_for_every_length() {
    let ops = "
        op %i i64[{L}] = aten.arange.default({L})
        op %q i64[{L},1] = aten.unsqueeze.default(%i, 1)
        op %k i64[1,{L}] = aten.unsqueeze.default(%i, 0)
        op %seen bool[{L},{L}] = aten.le.Tensor(%k, %q)
        op %gap i64[{L},{L}] = aten.sub.Tensor(%q, %k)
        op %by bool[{L},{L}] = aten.ge.Scalar(%gap, 0)
        op %late bool[{L},{L}] = aten.lt.Tensor(%k, %q)
        output %seen
    ";
    for name in ["seen", "late"] {
        assert_eq!(tails(ops, name), [(0, number(1.0)), (1, number(0.0))], "{name}");
    }
    assert_eq!(tails(ops, "by"), [(0, number(1.0)), (1, number(0.0))]);
}

#[test]
fn triangles_hide_what_is_behind() {
    let ops = "
        op %f f32[{L},{L}] = aten.full.default([{L}, {L}], -inf)
        op %t f32[{L},{L}] = aten.triu.default(%f, 1)
        op %u f32[{L},{L}] = aten.triu.default(%f, 2)
        op %ones f32[{L},{L}] = aten.ones.default([{L}, {L}])
        op %l f32[{L},{L}] = aten.tril.default(%ones)
        op %m f32[{L},{L}] = aten.tril.default(%ones, 1)
        output %t
    ";
    assert_eq!(tails(ops, "t"), [(0, number(0.0)), (1, Content::Low { infinite: true })]);
    assert_eq!(tails(ops, "l"), [(0, number(1.0)), (1, number(0.0))]);
    // The last one that is no fill would see the first one that is.
    assert!(!tails(ops, "u")[1].1.is_low() && !tails(ops, "m")[1].1.is_zero());
}

#[test]
fn a_sum_needs_zeros_and_a_mean_is_refused() {
    let sum = |of: &str| format!("op %s f32[2,4] = aten.sum.dim_IntList(%{of}, [1])\noutput %s");
    assert!(proved(&sum("x")).is_ok());
    let embedded = "op %h f32[2,{L},4] = aten.embedding.default(%table, %tokens)\n";
    refused(&format!("{embedded}{}", sum("h")), "SW0170", "is not zero where they are filled");
    refused("op %s f32[2,4] = aten.mean.dim(%x, [1])\noutput %s", "SW0170", "the mean of all positions");
    refused("op %s f32[2,4] = aten.amax.default(%x, [1])\noutput %s", "SW0170", "chooses among all");
}

#[test]
fn zeros_go_through_a_product_and_not_through_a_bias() {
    let ops = "
        param %w f32[4,4] \"w\"
        param %b f32[4] \"b\"
        op %a f32[2,{L},4] = aten.linear.default(%x, %w)
        op %c f32[2,{L},4] = aten.linear.default(%x, %w, %b)
        op %r f32[{R},4] = aten.reshape.default(%x, [-1, 4])
        op %d f32[{R},4] = aten.addmm.default(%b, %r, %w)
        output %c
    ";
    assert_eq!(tails(ops, "a"), [(1, number(0.0))]);
    assert_eq!(tails(ops, "c"), [(1, Content::FINITE)]);
    assert_eq!(tails(ops, "d"), [(0, Content::FINITE)]);
}

#[test]
fn labels_are_shifted_and_ignored() {
    let loss = "
        op %h f32[2,{L},4] = aten.embedding.default(%table, %tokens)
        op %g i64[2,{L+1}] = aten.pad.default(%labels, [0, 1], \"constant\", -100.0)
        op %y i64[2,{L}] = aten.slice.Tensor(%g, 1, 1, 9223372036854775807)
        op %a f32[{R},4] = aten.reshape.default(%h, [-1, 4])
        op %b i64[{R}] = aten.reshape.default(%y, [-1])
        op %loss f32[] = aten.cross_entropy_loss.default(%a, %b)
        output %loss
    ";
    assert_eq!(tails(loss, "g"), [(1, number(-100.0))]);
    assert_eq!(tails(loss, "loss"), []);
    let wrong = proved_with(loss, &[0.0, 0.0, -1.0, 0.0]).expect_err("another value");
    assert!(wrong.to_string().contains("what it puts behind"), "{wrong}");
    let not_shifted = |line: &&str| !line.contains("op %g") && !line.contains("op %y");
    let plain: String = loss.split_inclusive('\n').filter(not_shifted).collect();
    let plain = plain.replace("%y, [-1]", "%labels, [-1]");
    let wrong = proved_with(&plain, &[0.0, 0.0, 0.0, 0.0]).expect_err("a label");
    assert!(wrong.to_string().contains("those that are ignored -100"), "{wrong}");
    let none = proved_with(&plain, &[10.0, 0.0, -100.0, 0.0]).expect_err("no row");
    assert!(none.to_string().contains("row 10 would be looked up"), "{none}");
}

#[test]
fn attention_needs_a_mask_or_to_be_causal() {
    let attend = |more: &str| {
        format!(
            "op %q f32[2,1,{{L}},4] = aten.unsqueeze.default(%x, 1)
             op %m bool[2,{{L}}] = aten._to_copy.default(%mask, dtype=bool)
             op %n bool[2,1,1,{{L}}] = aten.reshape.default(%m, [2, 1, 1, {{L}}])
             op %w bool[2,1,{{L}},1] = aten.reshape.default(%m, [2, 1, {{L}}, 1])
             op %o f32[2,1,{{L}},4] = aten.scaled_dot_product_attention.default(%q, %q, %q{more})
             output %o"
        )
    };
    assert_eq!(tails(&attend(", is_causal=True"), "o"), [(2, Content::FINITE)]);
    assert_eq!(tails(&attend(", %n"), "o"), [(2, Content::FINITE)]);
    refused(&attend(""), "SW0170", "`is_causal` is not set");
    refused(&attend(", %w"), "SW0170", "the same for keys that are filled in");
    let wrong = proved_with(&attend(", %n"), &[0.0, 1.0, -100.0, 0.0]).expect_err("a mask of ones");
    assert!(wrong.to_string().contains("not known to hide keys"), "{wrong}");
}

#[test]
fn a_softmax_gives_nothing_to_what_is_low() {
    let soft = |low: &str| {
        format!(
            "op %h f32[2,{{L}},4] = aten.embedding.default(%table, %tokens)
             op %t f32[2,4,{{L}}] = aten.transpose.int(%h, 1, 2)
             op %s f32[2,{{L}},{{L}}] = aten.matmul.default(%h, %t)
             op %m i64[2,1,{{L}}] = aten.unsqueeze.default(%mask, 1)
             op %z bool[2,1,{{L}}] = aten.eq.Scalar(%m, 0)
             op %f f32[2,{{L}},{{L}}] = aten.masked_fill.Scalar(%s, %z, {low})
             op %p f32[2,{{L}},{{L}}] = aten.softmax.int(%f, -1)
             op %o f32[2,{{L}},4] = aten.matmul.default(%p, %h)
             output %o"
        )
    };
    for low in ["-inf", "-1000000000.0"] {
        assert_eq!(tails(&soft(low), "p")[1], (2, number(0.0)));
        assert_eq!(tails(&soft(low), "o"), [(1, Content::FINITE)]);
    }
    refused(&soft("-10.0"), "SW0170", "gets a share of it");
    refused(&soft("0.0"), "SW0170", "gets a share of it");
}

#[test]
fn what_has_no_derivative_in_a_tail_is_refused() {
    let root = |eps: &str| {
        format!(
            "op %h f32[2,{{L}},4] = aten.embedding.default(%table, %tokens)
             op %m i64[2,{{L}},1] = aten.unsqueeze.default(%mask, 2)
             op %p f32[2,{{L}},4] = aten.mul.Tensor(%h, %m)
             op %a f32[2,{{L}},4] = aten.abs.default(%p)
             op %e f32[2,{{L}},4] = aten.add.Tensor(%a, {eps})
             op %r f32[2,{{L}},4] = aten.sqrt.default(%e)
             op %o f32[2,{{L}},4] = aten.mul.Tensor(%r, %m)
             output %o"
        )
    };
    assert_eq!(tails(&root("1e-06"), "o"), [(1, number(0.0))]);
    refused(&root("0.0"), "SW0170", "gradients of aten.sqrt.default");
    // No number of its type is that small.
    refused(&root("1e-60"), "SW0170", "gradients of aten.sqrt.default");
}

#[test]
fn numbers_of_a_length_are_no_dims() {
    refused("op %o f32[2,{L},4] = aten.div.Tensor(%x, {L})\noutput %o", "SW0171", "depends on the length");
    let two = "op %z f32[{R}] = aten.zeros.default([{R}])\noutput %z";
    refused(two, "SW0171", "and why is not known");
    refused(
        "op %o f32[2,{L-1},4] = aten.slice.Tensor(%x, 1, 0, 4)\noutput %o",
        "SW0170",
        "for others are not",
    );
}

#[test]
fn pieces_up_to_the_end_have_a_tail() {
    let ops = "
        op %a f32[2,{L-1},4] = aten.slice.Tensor(%x, 1, 0, -1)
        op %b f32[2,{L-1},4] = aten.slice.Tensor(%x, 1, 1, 9223372036854775807)
        op %c f32[2,4] = aten.select.int(%x, 1, 0)
        op %d f32[2,{L},4] = aten.cumsum.default(%x, 1)
        output %a
    ";
    // The last one that is no fill is in the tail of what lacks the last.
    assert!(!tails(ops, "a")[0].1.is_zero());
    assert_eq!(tails(ops, "b"), [(1, number(0.0))]);
    assert_eq!(tails(ops, "c"), []);
    assert_eq!(tails(ops, "d"), [(1, Content::FINITE)]);
    refused("op %c f32[2,4] = aten.select.int(%x, 1, -1)\noutput %c", "SW0170", "for others are not");
    refused(
        "op %c f32[2,{L},4] = aten.flip.default(%x, [1])\noutput %c",
        "SW0170",
        "each position by itself",
    );
}

#[test]
fn graphs_that_differ_are_refused() {
    let (long, short) = ("aten.relu.default", "aten.tanh.default");
    let text = |target: &str| format!("{INPUTS}op %o f32[2,{{L}},4] = {target}(%x)\noutput %o");
    let (a, b) = (at(&text(long), LONG), at(&text(short), SHORT));
    let lengths = [Length::new(&a, &b, (0..4).map(|input| fill(input, 0.0)).collect())];
    let error = prove(&a, &b, &lengths, &BTreeSet::new()).expect_err("they differ");
    assert!(error.code == "SW0171" && error.what.contains("aten.relu.default at model.py:7"), "{error}");
    let other = at(&format!("{INPUTS}output %x"), SHORT);
    assert_eq!(prove(&a, &other, &lengths, &BTreeSet::new()).expect_err("one has more").code, "SW0171");
    let missing = [Length::new(&a, &a, vec![fill(0, 0.0)])];
    assert_eq!(
        prove(&a, &at(&text(long), SHORT), &missing, &BTreeSet::new()).expect_err("not all are filled").code,
        "SW0171"
    );
}

#[test]
fn a_constant_of_another_value_is_refused() {
    let text =
        format!("{INPUTS}const %c f32[] \"c_0\"\nop %o f32[2,{{L}},4] = aten.mul.Tensor(%x, %c)\noutput %o");
    let (a, b) = (at(&text, LONG), at(&text, SHORT));
    let lengths = [Length::new(&a, &b, (0..4).map(|input| fill(input, 0.0)).collect())];
    assert!(prove(&a, &b, &lengths, &BTreeSet::new()).is_ok());
    let error = prove(&a, &b, &lengths, &BTreeSet::from(["c_0".into()])).expect_err("it differs");
    assert!(error.code == "SW0171" && error.place.as_deref() == Some("model.py:7"), "{error}");
}
