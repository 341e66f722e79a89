//! Programs that compute what their graph computes.

use crate::support::{graph, proof};

const MLP: &str = include_str!("programs/mlp.graph");
const LAYER: &str = include_str!("programs/layer.graph");

fn check(graph_text: &str, program: &str, communications: &[(&str, usize)]) {
    let proof = proof(&graph(graph_text), program);
    assert!(proof.backward);
    assert_eq!(proof.communications.into_iter().collect::<Vec<_>>(), communications);
}

#[test]
fn megatron_on_two_ranks() {
    check(MLP, include_str!("programs/megatron.txt"), &[("all-reduce", 1)]);
}

#[test]
fn a_proof_says_what_it_rests_on() {
    let proof = proof(&graph(MLP), include_str!("programs/data.txt"));
    let expected = "\
proved: plan test on 2 ranks computes the outputs, updates and gradients of M
  5 operators, as 10 local operators
  all-reduce: 1
  reduction of gradients: 1
  of any number of micro-batches: losses scaled once, gradients reduced with the last
this rests on
  the rules of aten.addmm.default, aten.linear.default, aten.mul.Tensor, aten.relu.default, aten.sum.default
  the runtime's communications and its functions (none)
";
    assert_eq!(proof.to_string(), expected);
}

const INNER: &str = include_str!("programs/mlp_inner.graph");
const INNER_DATA: &str = include_str!("programs/inner_data.txt");

#[test]
fn the_gradient_of_an_input_is_whole_on_every_rank() {
    check(INNER, include_str!("programs/inner_tensor.txt"), &[("all-reduce", 2)]);
    check(INNER, INNER_DATA, &[("all-gather", 1), ("reduction of gradients", 1)]);
}

#[test]
fn the_gradient_of_a_rank_s_own_part_needs_no_communication() {
    let gathered = "all_gather g0 dxp -> dx : [4, 8] 0 [2, 2]\n";
    let local = INNER_DATA.replace(gathered, "").replace("gradient dx", "gradient dxp");
    check(INNER, &format!("inputs local\n{local}"), &[("reduction of gradients", 1)]);
}

#[test]
fn gradients_of_parts_go_to_whole_shards_by_exchange() {
    let program = include_str!("programs/exchanged.txt");
    check(MLP, program, &[("all-reduce", 1), ("exchange of gradients", 4)]);
}

#[test]
fn a_residual_is_read_in_two_layouts() {
    check(LAYER, include_str!("programs/layer_tensor.txt"), &[("all-reduce", 2)]);
}

#[test]
fn rows_are_split_between_the_linears() {
    let kinds = [("all-gather", 2), ("all-reduce", 1), ("reduce-scatter", 2), ("reduction of gradients", 1)];
    check(LAYER, include_str!("programs/layer_sequence.txt"), &kinds);
}

#[test]
fn the_adjoint_of_a_slice_is_surrounded_by_nothing() {
    let kinds = [("all-gather", 1), ("all-reduce", 2), ("exchange", 1), ("reduce-scatter", 1)];
    check(LAYER, include_str!("programs/layer_late.txt"), &kinds);
}
