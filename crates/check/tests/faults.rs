//! Faults planted into programs that are right; every one is found, and named.

use program::{BufId, Instr, Pass, Program};

use crate::support::{faults, graph, program};

const MLP: &str = include_str!("programs/mlp.graph");
const LAYER: &str = include_str!("programs/layer.graph");
const MEGATRON: &str = include_str!("programs/megatron.txt");
const DATA: &str = include_str!("programs/data.txt");
const TENSOR: &str = include_str!("programs/layer_tensor.txt");
const INNER: &str = include_str!("programs/mlp_inner.graph");
const INNER_TENSOR: &str = include_str!("programs/inner_tensor.txt");
const INNER_DATA: &str = include_str!("programs/inner_data.txt");
const SEQUENCE: &str = include_str!("programs/layer_sequence.txt");

/// Two values in one all-reduce, of which one rank gives one, or another.
#[test]
fn values_that_are_reduced_together_are_the_same_on_all_ranks() {
    let mut model = program(&graph(MLP), DATA);
    let found = |model: &Program| check::check(&graph(MLP), model).err().unwrap_or_default();
    assert_eq!(found(&model), []);
    let body = &mut model.roles[0].body;
    let place = body.codes[0].instrs.iter().position(|i| matches!(i, Instr::Collective(_))).unwrap();
    let Instr::Collective(all) = &body.codes[0].instrs[place] else { panic!("an all-reduce") };
    let (from, to) = (all.from[0], all.to[0]);
    let twice = |from: Vec<BufId>, to: Vec<BufId>| {
        let mut model = program(&graph(MLP), DATA);
        let code = model.roles[0].body.code_mut(0, Pass::Forward);
        let Instr::Collective(all) = &mut code.instrs[place] else { panic!("an all-reduce") };
        (all.from, all.to) = (from, to);
        found(&model).first().map(|fault| fault.code)
    };
    assert_eq!(twice(vec![from, from], vec![to]), Some("SW0502"));
    assert_eq!(twice(vec![], vec![]), Some("SW0502"));
    assert_eq!(twice(vec![from, from], vec![to, to]), Some("SW0503"));
}

#[test]
fn planted_faults_are_found() {
    let mut report = String::new();
    let mut plant = |name: &str, graph_text: &str, program: &str, changes: &[(&str, &str)]| {
        let mut text = program.to_string();
        for (old, new) in changes {
            assert!(text.contains(old), "{name}: nothing to change: {old}");
            text = text.replace(old, new);
        }
        let found = faults(&graph(graph_text), &text);
        assert!(!found.is_empty(), "{name}: not found");
        let all: Vec<String> = found.iter().map(ToString::to_string).collect();
        report += &format!("== {name}\n{}\n", all.join("\n"));
    };
    plant(
        "a missing all-reduce",
        MLP,
        MEGATRON,
        &[("all_reduce g0 sum y -> y2\n", ""), ("call 2 y2 -> s", "call 2 y -> s"), ("(y2, y2)", "(y, y)")],
    );
    plant(
        "a missing all-reduce of the loss",
        MLP,
        DATA,
        &[("all_reduce g0 sum s -> s2\n", ""), ("output s2", "output s")],
    );
    plant(
        "an all-reduce in place of an all-gather",
        LAYER,
        SEQUENCE,
        &[("all_gather g0 n -> nf : [4, 8] 0 [2, 2]", "all_reduce g0 sum n -> nf")],
    );
    plant(
        "an all-gather in place of an all-reduce",
        LAYER,
        TENSOR,
        &[("all_reduce g0 sum y -> y2", "all_gather g0 y -> y2 : [8, 8] 0 [4, 4]")],
    );
    plant(
        "a missing reduction in backward",
        LAYER,
        TENSOR,
        &[("all_reduce g0 sum dn2 -> dn3\n", ""), ("add dn1, dn3", "add dn1, dn2")],
    );
    plant(
        "a missing reduction of gradients",
        MLP,
        DATA,
        &[("reduce_gradients g0 w1, b1, w2, b2", "reduce_gradients g0 w1, b1, w2")],
    );
    plant("the wrong ranks in a group", MLP, DATA, &[("group 0,1", "group 0 1")]);
    plant("another order in a group", LAYER, SEQUENCE, &[("group 0,1", "group 1,0")]);
    plant(
        "an operand that is another tensor",
        LAYER,
        TENSOR,
        &[("z = aten.add.Tensor(n, y2)", "z = aten.add.Tensor(y2, y2)")],
    );
    plant(
        "operands in the wrong order",
        MLP,
        DATA,
        &[("y = aten.addmm.default(b2, a, w2)", "y = aten.addmm.default(b2, w2, a)")],
    );
    plant(
        "a cut along the wrong dim",
        LAYER,
        SEQUENCE,
        &[("reduce_scatter g0 y -> yp : [4, 8] 0 [2, 2]", "reduce_scatter g0 y -> yp : [4, 8] 1 [4, 4]")],
    );
    plant("a wrong operator", MLP, DATA, &[("aten.relu.default", "aten.gelu.default")]);
    plant("rows that both ranks have", MLP, DATA, &[("0..2,: | 2..4,:", "0..2,: | 0..2,:")]);
    plant("an offset of one", MLP, DATA, &[("0..2,: | 2..4,:", "0..2,: | 1..3,:")]);
    plant("a wrong scale", MLP, DATA, &[("q = aten.mul.Tensor(y, y)", "q = aten.mul.Tensor(y, 2.0)")]);
    plant(
        "a gradient reduced before its last contribution",
        LAYER,
        SEQUENCE,
        &[(
            "add dn1, dn2 -> dn\ngrad 0 dn ->\nreduce_gradients g0 g",
            "add dn1, dn2 -> dn\nreduce_gradients g0 g\ngrad 0 dn ->",
        )],
    );
    plant(
        "a buffer read before it is written",
        LAYER,
        SEQUENCE,
        &[("grad 4 ds -> dn1, dyp\n", ""), ("grad 0 dn ->\n", "grad 0 dn ->\ngrad 4 ds -> dn1, dyp\n")],
    );
    plant(
        "a communication that one rank leaves out",
        MLP,
        MEGATRON,
        &[("aten.mm.default(a, w2)\nall_reduce g0 sum y -> y2", "aten.mm.default(a, w2)\nadd y -> y2")],
    );
    plant(
        "two groups that meet in different orders",
        MLP,
        MEGATRON,
        &[
            ("group 0,1\n", "group 0,1\ngroup 0,1\n"),
            ("aten.mm.default(a, w2)\n", "aten.mm.default(a, w2)\nall_reduce g1 max y -> other\n"),
            (
                "aten.addmm.default(b2, a, w2)\nall_reduce g0 sum y -> y2\n",
                "aten.addmm.default(b2, a, w2)\nall_reduce g0 sum y -> y2\nall_reduce g1 max y -> other\n",
            ),
        ],
    );
    plant("calls in another order", LAYER, SEQUENCE, &[("grad 4 ds -> dn1, dyp", "grad 0 ds -> dn1, dyp")]);
    plant(
        "a bias added twice",
        MLP,
        MEGATRON,
        &[
            ("shard w2 %w2 8..16,:\n", "shard w2 %w2 8..16,:\nshard b2 %b2 :\n"),
            ("call 0 x, w1, b1, w2 -> y", "call 0 x, w1, b1, w2, b2 -> y"),
            ("aten.mm.default(a, w2)", "aten.addmm.default(b2, a, w2)"),
        ],
    );
    plant(
        "a bias that is not added",
        MLP,
        MEGATRON,
        &[("aten.addmm.default(b2, a, w2)", "aten.mm.default(a, w2)")],
    );
    plant(
        "replicas summed",
        MLP,
        MEGATRON,
        &[("seed ds\n", "seed ds\n"), ("grad 0 dy ->", "all_reduce g0 sum dy -> dz\ngrad 0 dz ->")],
    );
    plant(
        "gradients of one use added twice",
        LAYER,
        TENSOR,
        &[("add dn1, dn3 -> dn", "add dn1, dn3, dn1 -> dn")],
    );
    plant("the maximum in place of the sum", MLP, MEGATRON, &[("all_reduce g0 sum", "all_reduce g0 max")]);
    plant("a backward that is left out", LAYER, TENSOR, &[("grad 0 dn ->\n", "")]);
    plant(
        "a parameter that nobody holds all of",
        MLP,
        MEGATRON,
        &[
            ("shard w1 %w1 8..16,:", "shard w1 %w1 0..8,:"),
            ("shard b1 %b1 8..16", "shard b1 %b1 0..8"),
            ("shard w2 %w2 8..16,:", "shard w2 %w2 0..8,:"),
        ],
    );
    plant(
        "ranks that do different things",
        MLP,
        MEGATRON,
        &[(
            "aten.mm.default(a, w2)\nall_reduce g0 sum y -> y2",
            "aten.mm.default(a, w2)\nall_gather g0 y -> y2 : [8, 8] 0 [4, 4]",
        )],
    );
    plant("gradients off", MLP, DATA, &[("a = aten.relu.default(h)", "a = aten.relu.default(h) nograd")]);
    plant(
        "an input's gradient that is a part of the sum",
        INNER,
        INNER_TENSOR,
        &[("all_reduce g0 sum dxp -> dx\n", ""), ("gradient dx", "gradient dxp")],
    );
    plant(
        "an input's gradient that is counted twice",
        INNER,
        INNER_TENSOR,
        &[("gradient dx", "all_reduce g0 sum dx -> dz\ngradient dz")],
    );
    plant(
        "an input's gradient for the rank's rows only",
        INNER,
        INNER_DATA,
        &[("all_gather g0 dxp -> dx : [4, 8] 0 [2, 2]\n", ""), ("gradient dx", "gradient dxp")],
    );
    plant("an input's gradient that is left out", INNER, INNER_DATA, &[("gradient dx %x\n", "")]);
    plant(
        "the gradient of something else for an input",
        INNER,
        INNER_TENSOR,
        &[("gradient dx", "gradient dy")],
    );
    plant(
        "parts of an output that are not all of it",
        INNER,
        INNER_DATA,
        &[("local 0..2,: | 2..4,:", "local 0..2,: | 2..3,:")],
    );
    plant(
        "rows of an output that no rank has",
        INNER,
        INNER_DATA.split_once("seed").expect("a backward").0,
        &[("0..2,: | 2..4,:", "0..2,:")],
    );
    plant(
        "a part of an output that is partial",
        INNER,
        INNER_TENSOR,
        &[("output y\n", "output yp local :,:\n")],
    );
    plant(
        "rows that leave on both ranks, from one of them only",
        INNER,
        INNER_DATA,
        &[("local 0..2,: | 2..4,:", "local 2..4,: | 2..4,:")],
    );
    plant("an output that is said to be whole", INNER, INNER_DATA, &[(" local 0..2,: | 2..4,:", "")]);
    plant(
        "two parts of an input of which one is given",
        INNER,
        &format!("inputs local\n{INNER_DATA}"),
        &[("input x %x", "input x2 %x 0..4,:\ninput x %x")],
    );
    golden(&report);
}

/// Compares with the file; `UPDATE=1` writes it.
fn golden(report: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/faults.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, report).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(report, expected, "run with UPDATE=1 to accept");
}
