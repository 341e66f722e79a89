//! Operators with their own algorithm, rewritten: the whole new graph and what its dims mean.

use std::fmt::Write;

use graph::{Graph, OpId};
use rules::families::rule_text;
use rules::rewriting::describe;
use rules::{Analysis, Kind, Rewriting, Rule, View, rewrite};

use crate::support;

/// The rewriting of a one-operator graph for all dims that have it. Every piece must have a valid rule whose
/// terms are those of its label.
fn pieces(inputs: &str, op: &str) -> String {
    let graph = support::graph(inputs, op);
    pieces_along(inputs, op, &own(&graph, OpId(0)))
}

/// The dims that an operator is rewritten for.
fn own(graph: &Graph, op: OpId) -> Vec<String> {
    let rule = rules::rule_of(View::new(graph, op)).expect("it has a rule");
    rule.dims.into_iter().filter(|dim| dim.kind == Kind::Own).map(|dim| dim.name).collect()
}

fn pieces_along(inputs: &str, op: &str, dims: &[String]) -> String {
    let whole = support::graph(inputs, op);
    let rewriting = Rewriting { op: OpId(0), dims: dims.to_vec() };
    let rewritten = rewrite(&whole, &[rewriting]).unwrap_or_else(|error| panic!("{error}"));
    let graph = &*rewritten.graph;
    let mut text = String::new();
    for (op, origin) in graph.op_ids().zip(&rewritten.origins) {
        let labels = origin.labels.as_deref().expect("it is a piece");
        let view = View::new(graph, op);
        let name = |id: &graph::TensorId| graph.tensor(*id).name.clone();
        let read: Vec<String> = view.op.inputs().iter().map(name).collect();
        let made: Vec<String> = view.op.outputs.iter().flatten().map(name).collect();
        let off = if view.op.no_grad { " nograd" } else { "" };
        writeln!(text, "{} = {}({}){off} : {labels}", made.join(", "), view.op.target, read.join(", "))
            .expect("writing to a string never fails");
        let shapes = (view.input_shapes(), view.output_shapes());
        Rule::parse(labels, &shapes.0, &shapes.1)
            .map_err(|error| error.why)
            .or_else(|why| if why.as_deref().is_some_and(unsaid) { Ok(empty()) } else { Err(why) })
            .unwrap_or_else(|why| panic!("`{labels}`: {why:?}"));
        let rule = rule_text(view).unwrap_or_else(|| panic!("{} has no rule", view.op.target));
        let rule = Rule::parse(&rule, &shapes.0, &shapes.1).unwrap_or_else(|error| panic!("{error}"));
        let again = |dim: &rules::Dim| dim.kind == Kind::Own && dims.contains(&dim.name);
        assert!(!rule.dims.iter().any(again), "{rule} would have to be rewritten again");
    }
    text
}

/// Labels do not say what becomes of the dims that are reduced, nor how long the factors of others are.
fn unsaid(why: &str) -> bool {
    why.starts_with("a dim that only inputs have") || why.ends_with("the sizes of several dims are unknown")
}

fn empty() -> Rule {
    Rule { dims: vec![], inputs: vec![], outputs: vec![], passes: vec![] }
}

#[test]
fn softmax_goes_through_the_maximum_and_the_sum() {
    assert_eq!(
        pieces("x f32[2,3]", "%y f32[2,3] = aten.softmax.int(%x, -1)"),
        "\
y.0 = aten.amax.default(x) nograd : a b -> a 1
y.1 = aten.sub.Tensor(x, y.0) : a b, a 1 -> a b
y.2 = aten.exp.default(y.1) : a b -> a b
y.3 = aten.sum.dim_IntList(y.2) : a b -> a 1
y = aten.div.Tensor(y.2, y.3) : a b, a 1 -> a b
"
    );
    assert_eq!(
        pieces("x bf16[2,3]", "%y bf16[2,3] = aten._log_softmax.default(%x, 0, False)"),
        "\
y.0 = aten.to.dtype(x) : a b -> a b
y.1 = aten.amax.default(y.0) nograd : a b -> 1 b
y.2 = aten.sub.Tensor(y.0, y.1) : a b, 1 b -> a b
y.3 = aten.exp.default(y.2) : a b -> a b
y.4 = aten.sum.dim_IntList(y.3) : a b -> 1 b
y.5 = aten.log.default(y.4) : 1 b -> 1 b
y.6 = aten.sub.Tensor(y.2, y.5) : a b, 1 b -> a b
y = aten.to.dtype(y.6) : a b -> a b
"
    );
}

#[test]
fn a_convolution_is_of_blocks_with_rows_of_their_neighbours() {
    assert_eq!(
        pieces(
            "x f32[2,3,8,5]; w f32[4,3,3,3]; b f32[4]",
            "%y f32[2,4,8,5] = aten.conv2d.default(%x, %w, %b, [1, 1], [1, 1])"
        ),
        "\
y.0 = aten.reshape.default(x) : n i (p x0) x1 -> n i p x0 x1
y.1 = aten.slice.Tensor(y.0) : n i p x0 x1 -> n i p above x1
y.2 = aten.constant_pad_nd.default(y.1) : n i p above x1 -> n i p above x1
y.3 = aten.slice.Tensor(y.0) : n i p x0 x1 -> n i p below x1
y.4 = aten.constant_pad_nd.default(y.3) : n i p below x1 -> n i p below x1
y.5 = aten.cat.default(y.2, y.0, y.4) : n i p above x1, n i p x0 x1, n i p below x1 -> n i p high x1
y.6 = aten.permute.default(y.5) : n i p high x1 -> n p i high x1
y.7 = aten.reshape.default(y.6) : n p i high x1 -> (n p) i high x1
y.8 = aten.conv2d.default(y.7, w, b) : (n p) i high x1, o i k0 k1, !o -> (n p) o y0 y1
y.9 = aten.reshape.default(y.8) : (n p) o y0 y1 -> n p o y0 y1
y.10 = aten.permute.default(y.9) : n p o y0 y1 -> n o p y0 y1
y = aten.reshape.default(y.10) : n o p y0 y1 -> n o (p y0) y1
"
    );
}

#[test]
fn cross_entropy_over_a_split_batch_keeps_the_loss_whole() {
    assert_eq!(
        pieces_along(
            "x f32[6,10]; t i64[6]",
            "%y f32[] = aten.cross_entropy_loss.default(%x, %t)",
            &["b".into()]
        ),
        "\
y.0 = aten.cross_entropy_loss.default(x, t) : b v, b -> scalar
y.1 = aten.ne.Scalar(t) nograd : b -> b
y.2 = aten.sum.default(y.1) nograd : b -> scalar
y = aten.div.Tensor(y.0, y.2) : scalar, scalar -> scalar
"
    );
}

#[test]
fn cross_entropy_is_a_sum_and_a_count() {
    assert_eq!(
        pieces("x f32[6,10]; t i64[6]", "%y f32[] = aten.cross_entropy_loss.default(%x, %t)"),
        "\
y.0 = aten.amax.default(x) nograd : b v -> b 1
y.1 = aten.sub.Tensor(x, y.0) : b v, b 1 -> b v
y.2 = aten.exp.default(y.1) : b v -> b v
y.3 = aten.sum.dim_IntList(y.2) : b v -> b 1
y.4 = aten.log.default(y.3) : b 1 -> b 1
y.5 = aten.view.default(y.4) : b 1 -> b
y.6 = sw.pick(y.1, t) : b v, b -> b
y.7 = aten.sub.Tensor(y.5, y.6) : b, b -> b
y.8 = aten.ne.Scalar(t) nograd : b -> b
y.9 = aten.where.ScalarOther(y.8, y.7) : b, b -> b
y.10 = aten.sum.default(y.8) nograd : b -> scalar
y.11 = aten.sum.default(y.9) : b -> scalar
y = aten.div.Tensor(y.11, y.10) : scalar, scalar -> scalar
"
    );
    let none =
        pieces("x f32[6,10,4]; t i64[6,4]", "%y f32[6,4] = aten.cross_entropy_loss.default(%x, %t, None, 0)");
    assert!(none.ends_with("y = aten.where.ScalarOther(y.8, y.7) : b s, b s -> b s\n"), "{none}");
    pieces("x f32[10]; t i64[]", "%y f32[] = aten.cross_entropy_loss.default(%x, %t)");
}

#[test]
fn likelihood_gives_its_total_weight() {
    assert_eq!(
        pieces(
            "x f32[6,10]; t i64[6]",
            "%y f32[], %n f32[] = aten.nll_loss_forward.default(%x, %t, None, 1, -100)"
        ),
        "\
y.0 = sw.pick(x, t) : b v, b -> b
y.1 = aten.neg.default(y.0) : b -> b
y.2 = aten.ne.Scalar(t) nograd : b -> b
y.3 = aten.sum.default(y.2) nograd : b -> scalar
y.4 = aten.sum.default(y.1) : b -> scalar
y = aten.div.Tensor(y.4, y.3) : scalar, scalar -> scalar
n = aten.to.dtype(y.3) : scalar -> scalar
"
    );
}

#[test]
fn distances_are_averaged_apart() {
    assert_eq!(
        pieces("x f32[6,2]; y f32[6,2]", "%z f32[] = aten.mse_loss.default(%x, %y)"),
        "\
z.0 = aten.mse_loss.default(x, y) : a b, a b -> a b
z = aten.mean.default(z.0) : a b -> scalar
"
    );
}

#[test]
fn batch_norm_sums_over_the_batch() {
    let inputs = "x f32[2,4,3]; w f32[4]; b f32[4]; m f32[4]; v f32[4]";
    let op = "%y f32[2,4,3], _, _, %m1 f32[4], %v1 f32[4] = aten._native_batch_norm_legit_functional.default(%x, %w, %b, %m, %v, True, 0.1, 1e-05)";
    assert_eq!(
        pieces(inputs, op),
        "\
y.0 = aten.mean.dim(x) : a b c -> 1 b 1
y.1 = aten.sub.Tensor(x, y.0) : a b c, 1 b 1 -> a b c
y.2 = aten.mul.Tensor(y.1, y.1) : a b c, a b c -> a b c
y.3 = aten.mean.dim(y.2) : a b c -> 1 b 1
y.4 = aten.add.Tensor(y.3) : 1 b 1 -> 1 b 1
y.5 = aten.rsqrt.default(y.4) : 1 b 1 -> 1 b 1
y.6 = aten.view.default(w) : b -> 1 b 1
y.7 = aten.mul.Tensor(y.5, y.6) : 1 b 1, 1 b 1 -> 1 b 1
y.8 = aten.view.default(b) : b -> 1 b 1
y = aten.addcmul.default(y.8, y.1, y.7) : 1 b 1, a b c, 1 b 1 -> a b c
y.10 = aten.view.default(y.0) nograd : 1 b 1 -> b
m1 = aten.lerp.Scalar(m, y.10) nograd : b, b -> b
y.12 = aten.view.default(y.3) nograd : 1 b 1 -> b
y.13 = aten.mul.Tensor(y.12) nograd : b -> b
v1 = aten.lerp.Scalar(v, y.13) nograd : b, b -> b
"
    );
    assert_eq!(
        pieces(inputs, &op.replace("True", "False")),
        "\
y = aten.batch_norm.default(x, w, b, m, v) : a b c, b, b, b, b -> a b c
m1 = aten.clone.default(m) : b -> b
v1 = aten.clone.default(v) : b -> b
"
    );
}

/// A model with all that matters for numbers: parameters between operators, several results, an update.
const MODEL: &str = r#"shardwright-graph 1
input %x f64[6,4,3] 0
param %w f64[4] "bn.weight"
param %b f64[4] "bn.bias"
buffer %m f64[4] "bn.running_mean"
buffer %v f64[4] "bn.running_var"
op %n f64[6,4,3], _, _, %m1 f64[4], %v1 f64[4] = aten._native_batch_norm_legit_functional.default(%x, %w, %b, %m, %v, True, 0.1, 1e-05) in "bn" at "m.py:1"
param %f f64[5,12] "fc.weight"
op %y f64[6,12] = aten.view.default(%n, [6, 12]) in "" at "m.py:2"
op %z f64[6,5] = aten.linear.default(%y, %f) in "fc" at "m.py:2"
op %loss.0 f64[6,5] = aten.softmax.int(%z, -1) in "" at "m.py:3"
input %t i64[6] 1
op %loss f64[] = aten.cross_entropy_loss.default(%loss.0, %t) in "" at "m.py:4"
output %loss
update "bn.running_mean" %m1
update "bn.running_var" %v1
"#;

fn model() -> Graph {
    MODEL.parse().expect("it parses")
}

fn of(op: u32, dims: &str) -> Rewriting {
    Rewriting { op: OpId(op), dims: dims.split_whitespace().map(str::to_owned).collect() }
}

#[test]
fn a_rewritten_graph_is_numbered_as_its_text() {
    let graph = model();
    let all = [of(0, "a c"), of(3, "b"), of(4, "b v")];
    for chosen in 0..8_usize {
        let some: Vec<Rewriting> =
            (0..3).filter(|bit| chosen >> bit & 1 == 1).map(|bit| all[bit].clone()).collect();
        let rewritten = rewrite(&graph, &some).unwrap_or_else(|error| panic!("{error}"));
        let read: Graph = rewritten.graph.to_string().parse().expect("what prints parses");
        assert_eq!(read, *rewritten.graph);
        assert_eq!(rewritten.origins.len(), read.ops.len());
        // What is defined between the operators stays there.
        let text = rewritten.graph.to_string();
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what}"));
        assert!(at("%m1 f64") < at("param %f") && at("op %loss.0") < at("input %t"));
        Analysis::new(&rewritten.graph);
    }
}

#[test]
fn nothing_rewritten_is_the_graph_itself() {
    let graph = model();
    let rewritten = rewrite(&graph, &[]).expect("nothing can be wrong");
    assert!(matches!(rewritten.graph, std::borrow::Cow::Borrowed(it) if std::ptr::eq(it, &raw const graph)));
}

#[test]
fn values_between_pieces_have_names_of_their_own() {
    let graph = model();
    let rewritten = rewrite(&graph, &[of(4, "v")]).expect("it is rewritten").graph.into_owned();
    let mut names: Vec<&str> = rewritten.tensors.iter().map(|tensor| &tensor.name[..]).collect();
    assert!(names.contains(&"loss.1") && names.contains(&"loss.2"));
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn rewritings_are_told_to_people() {
    let lines = describe(&model(), &[of(0, "a c"), of(3, "b")]);
    assert_eq!(
        lines,
        [
            "%n (aten._native_batch_norm_legit_functional.default) along a, c",
            "%loss.0 (aten.softmax.int) along b"
        ]
    );
    let twice = format!(
        "{}\n",
        MODEL.trim_end().replace(
            "output %loss",
            "op %s f64[6,5] = aten.softmax.int(%z, -1) in \"\" at \"m.py:5\"\noutput %loss"
        )
    );
    let graph: Graph = twice.parse().expect("it parses");
    assert_eq!(describe(&graph, &[of(3, "b"), of(5, "b")]), ["%loss.0, %s (aten.softmax.int) along b"]);
}

#[test]
fn lists_that_are_no_rewritings_are_refused() {
    let refused = |rewritings: &[Rewriting], code: &str| {
        let error = rewrite(&model(), rewritings).expect_err("it is refused");
        assert_eq!(error.code, code, "{error}");
    };
    refused(&[of(5, "b")], "SW0520");
    refused(&[of(u32::MAX, "b")], "SW0520");
    refused(&[of(1, "a")], "SW0521"); // a view has no rewriting
    refused(&[of(3, "a")], "SW0521"); // a dim that is split without one
    refused(&[of(0, "b")], "SW0521");
    refused(&[of(4, "v z")], "SW0521"); // no dim of the rule
    refused(&[of(4, "")], "SW0522");
    refused(&[of(4, "v b")], "SW0522");
    refused(&[of(4, "b b")], "SW0522");
    refused(&[of(4, "b"), of(4, "b")], "SW0522");
    refused(&[of(4, "b"), of(4, "v")], "SW0522");
    refused(&[of(4, "b"), of(3, "b")], "SW0522");
}

#[test]
fn a_mixture_becomes_rows_for_experts_and_sums_of_them() {
    let inputs = "x f32[6,8]; i i64[6,2]; p f32[6,2]; u f32[3,10,8]; d f32[3,7,5]";
    let op = "%y f32[6,7] = shardwright.experts.default(%x, %i, %p, %u, %d, \"silu\", True, False, True)";
    assert_eq!(
        pieces_along(inputs, op, &["e".into()]),
        "y.0 = sw.dispatch(x, i) : t k, t j -> x t r\n\
         y.1 = sw.expert_rows(y.0, u, d) : e t r, e a b, e c d -> e t q\n\
         y = sw.combine(y.1, i, p) : x t q, t j, t j -> t m\n"
    );
}
