//! Models whose sequence is cut into slices: the graph that results, and what is refused because it looks ahead.

use graph::Graph;
use rules::slicing::{derive, rests_on, slice};
use rules::{Rewriting, Slices};

const CAUSAL: &str = "\
op %x f64[2,6,4] = aten.embedding.default(%w, %i) in \"\" at \"m.py:1\"
op %at i64[6] = aten.arange.default(6) in \"\" at \"m.py:2\"
op %p f64[6,4] = aten.embedding.default(%places, %at) in \"\" at \"m.py:2\"
op %h f64[2,6,4] = aten.add.Tensor(%x, %p) in \"\" at \"m.py:2\"
op %heads f64[2,1,6,4] = aten.unsqueeze.default(%h, 1) in \"attn\" at \"m.py:3\"
op %y f64[2,1,6,4] = aten.scaled_dot_product_attention.default(%heads, %heads, %heads, is_causal=True, scale=0.5) in \"attn\" at \"m.py:3\"
op %z f64[2,6,4] = aten.squeeze.dim(%y, 1) in \"attn\" at \"m.py:3\"
op %logits f64[2,6,7] = aten.linear.default(%z, %w) in \"\" at \"m.py:4\"
op %rows f64[12,7] = aten.reshape.default(%logits, [-1, 7]) in \"\" at \"m.py:5\"
op %flat i64[12] = aten.reshape.default(%t, [-1]) in \"\" at \"m.py:5\"
op %loss f64[] = aten.cross_entropy_loss.default(%rows, %flat, None, 1, -1) in \"\" at \"m.py:5\"
";

fn model(ops: &str, outputs: &str) -> Graph {
    let head = "shardwright-graph 1\ninput %i i64[2,6] 0\ninput %t i64[2,6] 1\n\
        param %w f64[7,4] \"w\"\nparam %places f64[6,4] \"places\"\nparam %kernel f64[4,4,3] \"kernel\"\n";
    format!("{head}{ops}{outputs}").parse().unwrap_or_else(|error| panic!("{error}"))
}

fn causal() -> Graph {
    model(CAUSAL, "output %logits\noutput %loss\n")
}

fn at(ends: &[i64]) -> Slices {
    Slices { input: 0, dim: 1, ends: ends.to_vec() }
}

/// The operators, slice after slice.
fn sliced(graph: &Graph, ends: &[i64]) -> String {
    let sliced = slice(graph, &at(ends)).unwrap_or_else(|error| panic!("{error}"));
    let text = sliced.graph.to_string();
    let lines = text.lines().filter(|line| line.starts_with("op ") || line.starts_with("output "));
    let mut slices = sliced.pieces.iter().map(|piece| piece.slice);
    let mut last = None;
    let mut found = String::new();
    for line in lines {
        let slice = if line.starts_with("op ") { slices.next() } else { None };
        if slice != last {
            found += &slice.map_or("leaves:\n".into(), |slice| format!("slice {slice}:\n"));
            last = slice;
        }
        found += &format!("  {}\n", line.split(" in \"").next().unwrap_or(line));
    }
    found
}

#[test]
fn a_slice_attends_to_the_keys_and_values_up_to_it() {
    insta::assert_snapshot!(sliced(&causal(), &[2, 4, 6]));
}

#[test]
fn rows_and_tokens_in_one_dim_are_joined_as_they_were() {
    let graph = model(CAUSAL, "output %rows\n");
    let text = sliced(&graph, &[4, 6]);
    let joined = text.rsplit_once("slice 1:").expect("two slices").1;
    insta::assert_snapshot!(joined);
}

#[test]
fn what_a_sliced_graph_prints_parses_and_reads_nothing_later() {
    for ends in [&[6][..], &[1, 6], &[5, 6], &[2, 3, 5, 6], &[1, 2, 3, 4, 5, 6]] {
        let graph = causal();
        let sliced = slice(&graph, &at(ends)).unwrap();
        assert_eq!(sliced.graph.to_string().parse::<Graph>().unwrap(), sliced.graph);
        for op in sliced.graph.op_ids() {
            let makers = sliced.graph.op(op).inputs().into_iter().filter_map(|id| sliced.graph.producer(id));
            for (maker, _) in makers {
                assert!(maker < op && sliced.pieces[maker.index()].slice <= sliced.pieces[op.index()].slice);
            }
        }
    }
}

#[test]
fn a_proof_rests_on_the_slices_and_on_means_as_sums() {
    let loss = Rewriting { op: graph::OpId(0), dims: vec![] };
    assert_eq!(
        rests_on(&causal(), Some(&at(&[2, 6])), &[]).unwrap(),
        ["the model in slices of i.1 that end at 2, 6", "%loss (aten.cross_entropy_loss.default) along b"]
    );
    assert_eq!(rests_on(&causal(), None, &[]).unwrap(), [] as [&str; 0]);
    assert_eq!(derive(&causal(), Some(&at(&[2, 6])), &[loss]).expect_err("an embedding").code, "SW0521");
}

#[test]
fn each_operator_comes_from_one_of_the_model() {
    let graph = causal();
    let derived = derive(&graph, Some(&at(&[3, 6])), &[]).unwrap();
    assert_eq!(derived.origins.len(), derived.graph.ops.len());
    for (op, origin) in derived.graph.ops.iter().zip(&derived.origins) {
        assert_eq!(op.line, graph.op(origin.op).line);
    }
}

#[test]
fn slices_that_no_sequence_has_are_refused() {
    let graph = causal();
    let refused = |slices: &Slices| slice(&graph, slices).err().map(|error| error.code);
    for ends in [&[][..], &[0, 6], &[4, 4, 6], &[4, 2, 6], &[2, 5], &[2, 7], &[-1, 6]] {
        assert_eq!(refused(&at(ends)), Some("SW0527"), "{ends:?}");
    }
    assert_eq!(refused(&Slices { input: 2, ..at(&[3, 6]) }), Some("SW0527"));
    assert_eq!(refused(&Slices { dim: 2, ..at(&[3, 6]) }), Some("SW0527"));
    // The batch is no sequence: attention is causal along another dim.
    assert_eq!(refused(&Slices { dim: 0, ..at(&[1, 2]) }), None);
}

/// Of a model that does this to `%x` and then goes on token by token: the operator that is named.
fn refused(ops: &str, last: &str) -> String {
    let first = "op %x f64[2,6,4] = aten.embedding.default(%w, %i) in \"\" at \"m.py:1\"\n";
    let then = format!("op %end f64[2,6,7] = aten.linear.default(%{last}, %w) in \"head\" at \"m.py:9\"\n");
    let mut lines = String::new();
    for (number, op) in ops.lines().enumerate() {
        lines += &format!("op {op} in \"body\" at \"m.py:{}\"\n", number + 2);
    }
    let graph = model(&format!("{first}{lines}{then}"), "output %end\n");
    match slice(&graph, &at(&[2, 6])) {
        Ok(_) => "nothing".into(),
        Err(error) => {
            assert_eq!(error.code, "SW0331", "{error}");
            assert!(error.why.as_ref().unwrap().contains("m.py:"), "{error}");
            format!("{} at {}", error.what, error.place.clone().unwrap_or_default())
        }
    }
}

#[test]
fn what_looks_ahead_is_refused_by_name_and_line() {
    let rows: &[(&str, &str, &str)] = &[
        ("%y f64[2,6,4] = aten.relu.default(%x)", "y", "nothing"),
        ("%y f64[2,6,4] = aten.softmax.int(%x, 2)", "y", "nothing"),
        ("%y f64[2,6,4] = aten.softmax.int(%x, 1)", "y", "aten.softmax.int of body looks ahead at m.py:2"),
        (
            "%y f64[2,6,4] = aten.cumsum.default(%x, 1)",
            "y",
            "aten.cumsum.default of body looks ahead at m.py:2",
        ),
        ("%y f64[2,6,4] = aten.cumsum.default(%x, 2)", "y", "nothing"),
        (
            "%y f64[2,6,4] = aten.flip.default(%x, [1])",
            "y",
            "aten.flip.default of body looks ahead at m.py:2",
        ),
        (
            "%y f64[2,6,4] = aten.roll.default(%x, [1], [1])",
            "y",
            "aten.roll.default of body looks ahead at m.py:2",
        ),
        (
            "%m f64[2,1,4] = aten.mean.dim(%x, [1], True)\n%y f64[2,6,4] = aten.sub.Tensor(%x, %m)",
            "y",
            "aten.mean.dim of body looks ahead at m.py:2",
        ),
        (
            "%s f64[2,1,4] = aten.sum.dim_IntList(%x, [1], True)\n%y f64[2,6,4] = aten.sub.Tensor(%x, %s)",
            "y",
            "aten.sum.dim_IntList of body looks ahead at m.py:2",
        ),
        (
            "%m f64[2,1,4] = aten.amax.default(%x, [1], True)\n%y f64[2,6,4] = aten.sub.Tensor(%x, %m)",
            "y",
            "aten.amax.default of body looks ahead at m.py:2",
        ),
        (
            "%t1 f64[2,4,6] = aten.transpose.int(%x, 1, 2)\n\
             %c f64[2,4,6] = aten.conv1d.default(%t1, %kernel, None, [1], [1])\n\
             %t2 f64[2,6,4] = aten.transpose.int(%c, 1, 2)\n%y f64[2,6,4] = aten.add.Tensor(%x, %t2)",
            "y",
            "aten.conv1d.default of body looks ahead at m.py:3",
        ),
        (
            "%y f64[2,6,4] = aten.scaled_dot_product_attention.default(%x, %x, %x)",
            "y",
            "aten.scaled_dot_product_attention.default of body looks ahead at m.py:2",
        ),
        (
            "%k f64[2,6,4] = aten.flip.default(%x, [1])\n\
             %y f64[2,6,4] = aten.scaled_dot_product_attention.default(%x, %k, %x, None, 0.0, True)",
            "y",
            "aten.flip.default of body looks ahead at m.py:2",
        ),
        // Scores of all tokens with all: which of them a mask hides is not seen.
        (
            "%k f64[2,4,6] = aten.transpose.int(%x, 1, 2)\n%s f64[2,6,6] = aten.matmul.default(%x, %k)\n\
             %a f64[2,6,6] = aten.softmax.int(%s, -1)\n%y f64[2,6,4] = aten.matmul.default(%a, %x)",
            "y",
            "aten.matmul.default of body looks ahead at m.py:3",
        ),
        // Tokens of another row of the batch.
        (
            "%r f64[12,4] = aten.reshape.default(%x, [12, 4])\n%c f64[12,4] = aten.cumsum.default(%r, 0)\n\
             %y f64[2,6,4] = aten.reshape.default(%c, [2, 6, 4])",
            "y",
            "aten.cumsum.default of body looks ahead at m.py:3",
        ),
        // An operator that no family covers may do anything.
        (
            "%m f64[2,6,4] = my.mixer.default(%x)\n%y f64[2,6,4] = aten.add.Tensor(%x, %m)",
            "y",
            "my.mixer.default of body looks ahead at m.py:2",
        ),
    ];
    for (ops, last, expect) in rows {
        assert_eq!(refused(ops, last), *expect, "{ops}");
    }
}

#[test]
fn what_needs_all_tokens_may_come_last() {
    let ops = "op %x f64[2,6,4] = aten.embedding.default(%w, %i) in \"\" at \"m.py:1\"\n\
        op %m f64[2,4] = aten.mean.dim(%x, [1]) in \"\" at \"m.py:2\"\n\
        op %top f64[2,4] = aten.amax.default(%x, [1]) in \"\" at \"m.py:3\"\n\
        op %s f64[2,4] = aten.add.Tensor(%m, %top) in \"\" at \"m.py:4\"\n";
    insta::assert_snapshot!(sliced(&model(ops, "output %s\n"), &[4, 6]));
}
