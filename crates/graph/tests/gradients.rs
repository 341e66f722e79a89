//! Which tensors need a gradient, by example.

use graph::text::parse;

/// The names of tensors that need one.
fn needing(body: &str) -> Vec<String> {
    let head = "shardwright-graph 1\nmodel \"M\"\nin_spec \"*\"\nout_spec \"*\"\nmodule \"\" \"M\"\n";
    let graph = parse(&format!("{head}{body}")).unwrap();
    let needs = graph.needs_grad();
    graph.tensors.iter().zip(needs).filter(|(_, needs)| *needs).map(|(t, _)| t.name.clone()).collect()
}

#[test]
fn statistics_beside_a_result_need_none_even_where_something_reads_them() {
    let norm = "aten._native_batch_norm_legit_functional.default";
    let body = format!(
        "param %w f64[4,3] \"w\"\nbuffer %m f64[3] \"m\"\nbuffer %v f64[3] \"v\"\n\
         op %a f64[4,3], _, _, %am f64[3], %av f64[3] = {norm}(%w, None, None, %m, %v, True, 0.1, 0.1) in \"\" at \"\"\n\
         op %b f64[4,3], _, _, _, _ = {norm}(%a, None, None, %am, %av, True, 0.1, 0.1) in \"\" at \"\"\n\
         output %b\n"
    );
    assert_eq!(needing(&body), ["w", "a", "b"]);
}

#[test]
fn what_has_only_a_shape_from_an_operand_needs_none() {
    let body = "param %w f64[4] \"w\"\nop %z f64[4] = aten.zeros_like.default(%w) in \"\" at \"\"\n\
                op %s f64[4] = aten.add.Tensor(%w, %z) in \"\" at \"\"\noutput %s\n";
    assert_eq!(needing(body), ["w", "s"]);
}

#[test]
fn operands_that_are_treated_one_by_one_have_their_own_result() {
    let body = "param %w f64[4] \"w\"\nparam %u f64[3] \"u\"\nbuffer %c f64[2] \"c\"\n\
                op %a f64[4,3,2], %b f64[4,3,2], %d f64[4,3,2] = aten.meshgrid.indexing([%w, %u, %c], indexing=\"ij\") in \"\" at \"\"\n\
                op %s f64[4,3,2] = aten.mul.Tensor(%a, %d) in \"\" at \"\"\noutput %s\noutput %b\n";
    assert_eq!(needing(body), ["w", "u", "a", "b", "s"]);
    assert_eq!(needing(&body.replace("output %b\n", "")), ["w", "a", "s"]);
}

#[test]
fn what_a_forward_has_written_into_a_parameter_gives_its_gradient_to_that() {
    let body = "param %w f64[4] \"w\"\nparam %u f64[4] \"u\"\n\
                op %v f64[4] = aten.tanh.default(%u) in \"\" at \"\"\n\
                op %n f64[4] = shardwright.written.default(%w, %v) in \"\" at \"\"\n\
                op %s f64[4] = aten.tanh.default(%n) in \"\" at \"\"\noutput %s\nupdate \"w\" %v\n";
    assert_eq!(needing(body), ["w", "n", "s"]);
}
