//! Programs of small models, in whatever shapes values have there: partial, the same everywhere, random, laid out in
//! factors. What a program says is replaced, and must be refused.

mod everywhere;
mod factors;
mod moved;
mod partial;
mod random;
mod recomputed;
mod updates;

use everywhere::{POSITIONS, SPREAD};
use factors::{FUSED, GATHERED, HEADS};
use moved::{PIPELINE, STAGES, SWAP, SWAPPED};
use partial::{PARTIAL, SUM, TIED, VOCABULARY};
use random::{DROPOUT, DROPPED};
use recomputed::{AGAIN, RECOMPUTED};
use updates::{NORM, TRACKED};

use crate::support::{faults, graph, proof};

fn refused(graph_text: &str, program: &str, code: &str) {
    let found = faults(&graph(graph_text), program);
    assert_eq!(found.first().map(|fault| fault.code), Some(code), "{found:?}");
}

/// `old` becomes `new`, which must be refused.
fn breaks(graph_text: &str, program: &str, old: &str, new: &str, code: &str) {
    assert!(program.contains(old), "{old}");
    refused(graph_text, &program.replace(old, new), code);
}

const TWINS: &str = "input %x f64[4,8] 0
param %w f64[8] \"w\"
op %a f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %b f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:2\"
op %c f64[4,8] = aten.relu.default(%a) in \"\" at \"m.py:3\"
op %d f64[4,8] = aten.tanh.default(%b) in \"\" at \"m.py:4\"
op %z f64[4,8] = aten.add.Tensor(%c, %d) in \"\" at \"m.py:5\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:6\"
output %s
";

#[test]
fn equal_computations_are_one() {
    let program = |ops: &str| {
        format!(
            "ranks 0\nshard w %w :\ninput x %x :,:\ncall 0 x, w -> s : {ops} ; z = aten.add.Tensor(c, d) ; \
             s = aten.sum.default(z)\noutput s\nseed ds\ngrad 0 ds ->\n"
        )
    };
    let twice = "a = aten.mul.Tensor(x, w) ; b = aten.mul.Tensor(x, w) ; c = aten.relu.default(a) ; d = aten.tanh.default(b)";
    proof(&graph(TWINS), &program(twice));
    let once = "a = aten.mul.Tensor(x, w) ; c = aten.relu.default(a) ; d = aten.tanh.default(a)";
    proof(&graph(TWINS), &program(once));
}

/// Without any one of its instructions, a program is not proved.
#[test]
fn every_instruction_matters() {
    const WORDS: [&str; 15] = [
        "keep",
        "take",
        "call",
        "recompute",
        "forget",
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "exchange",
        "slice",
        "add",
        "update",
        "grad",
        "piece",
    ];
    let mlp = include_str!("../programs/mlp.graph");
    let layer = include_str!("../programs/layer.graph");
    let programs = [
        (SUM, PARTIAL),
        (POSITIONS, SPREAD),
        (HEADS, FUSED),
        (HEADS, GATHERED),
        (DROPOUT, DROPPED),
        (NORM, TRACKED),
        (TIED, VOCABULARY),
        (STAGES, PIPELINE),
        (SWAP, SWAPPED),
        (AGAIN, RECOMPUTED),
        (mlp, include_str!("../programs/megatron.txt")),
        (mlp, include_str!("../programs/data.txt")),
        (mlp, include_str!("../programs/exchanged.txt")),
        (layer, include_str!("../programs/layer_tensor.txt")),
        (layer, include_str!("../programs/layer_sequence.txt")),
        (layer, include_str!("../programs/layer_late.txt")),
    ];
    for (graph_text, program) in programs {
        let lines: Vec<&str> = program.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let word = line.split(' ').next().unwrap_or_default();
            if WORDS.contains(&word) || word.ends_with("_gradients") {
                let without: Vec<&str> = [&lines[..at], &lines[at + 1..]].concat();
                let found = faults(&graph(graph_text), &without.join("\n"));
                assert!(!found.is_empty(), "{line} is not missed");
            }
        }
    }
}
