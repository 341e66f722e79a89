//! The proof is about the model's graph: what a program rewrites, the check rewrites itself.

use graph::{Graph, OpId};
use program::Program;
use rules::Rewriting;

use crate::support::{graph, program, proof};

const LOSS: &str = include_str!("programs/loss.graph");
const ROWS: &str = include_str!("programs/loss_rows.txt");
const CLASSES: &str = include_str!("programs/loss_classes.txt");
/// Each rank computes all of it.
const WHOLE: &str = "\
ranks 0,1
shard w %w :,:
input x %x :,:
input t %t :
call 0 x, w, t -> y : z = aten.linear.default(x, w) ; y = aten.cross_entropy_loss.default(z, t)
output y
seed dy
grad 0 dy ->
";

fn of(op: u32, dims: &[&str]) -> Rewriting {
    Rewriting { op: OpId(op), dims: dims.iter().map(|dim| (*dim).to_owned()).collect() }
}

/// The first fault of a program that says to rewrite something else than it was made with.
fn fault(model: &Graph, program: &Program, named: &[Rewriting]) -> check::Fault {
    let edited = Program { rewritings: named.to_vec(), ..program.clone() };
    let faults = check::check(model, &edited).expect_err("a fault is found");
    faults.into_iter().next().expect("it is named")
}

#[test]
fn a_proof_rests_on_the_rewritings_of_the_model() {
    let model = graph(LOSS);
    for (text, dim) in [(ROWS, "b"), (CLASSES, "v")] {
        let (proof, program) = (proof(&model, text), program(&model, text));
        assert_eq!(program.digest, model.digest());
        assert_eq!(proof.rewritings, [format!("%loss (aten.cross_entropy_loss.default) along {dim}")]);
        let rests = format!("  the rewriting of %loss (aten.cross_entropy_loss.default) along {dim}\n");
        assert!(proof.to_string().contains(&rests), "{proof}");
    }
    assert!(proof(&model, WHOLE).rewritings.is_empty());
}

#[test]
fn a_program_of_the_rewritten_graph_is_not_one_of_the_model() {
    let model = graph(LOSS);
    let rewritten = rules::rewrite(&model, &[of(1, &["b"])]).expect("it is rewritten").graph.into_owned();
    let program = Program { digest: rewritten.digest(), ..program(&model, ROWS) };
    assert_eq!(check::check(&model, &program).expect_err("another model")[0].code, "SW0501");
    assert_eq!(check::check(&rewritten, &program).expect_err("rewritten twice")[0].code, "SW0521");
}

#[test]
fn a_rewriting_that_is_not_named_is_no_way_to_compute_the_model() {
    let model = graph(LOSS);
    for text in [ROWS, CLASSES] {
        let program = program(&model, text);
        let fault = fault(&model, &program, &[]);
        assert!(["SW0501", "SW0502", "SW0504"].contains(&fault.code), "{fault}");
        // Also where tensors and factors are those of the model.
        let plain = Program { factors: rules::Analysis::new(&model).factors, ..program };
        let fault = self::fault(&model, &plain, &[]);
        assert!(["SW0502", "SW0504"].contains(&fault.code), "{fault}");
    }
}

#[test]
fn a_rewriting_that_the_code_does_not_use_is_found() {
    let model = graph(LOSS);
    let whole = program(&model, WHOLE);
    for dims in [&["b"][..], &["v"], &["b", "v"]] {
        let named = [of(1, dims)];
        assert_eq!(fault(&model, &whole, &named).code, "SW0501");
        let graph = rules::rewrite(&model, &named).expect("it is rewritten").graph.into_owned();
        // Also where the program is as if its operator were one of the rewritten graph.
        let text = format!("rewrite 1 {}\n{WHOLE}", dims.join(", "));
        let program = program(&model, &text);
        assert_eq!(program.factors, rules::Analysis::new(&graph).factors);
        assert_eq!(fault(&model, &program, &named).code, "SW0504");
    }
}

#[test]
fn a_rewriting_along_another_dim_than_the_code_s_is_found() {
    let model = graph(LOSS);
    for (text, used, other) in [(ROWS, "b", "v"), (CLASSES, "v", "b")] {
        assert_eq!(fault(&model, &program(&model, text), &[of(1, &[other])]).code, "SW0501");
        let mixed = text.replace(&format!("rewrite 1 {used}"), &format!("rewrite 1 {other}"));
        let program = program(&model, &mixed);
        assert_eq!(fault(&model, &program, &program.rewritings.clone()).code, "SW0504");
    }
}

#[test]
fn lists_of_rewritings_that_cannot_be_are_refused() {
    let model = graph(LOSS);
    let program = program(&model, ROWS);
    let refused = |named: &[Rewriting], code: &str| {
        let fault = fault(&model, &program, named);
        assert_eq!(fault.code, code, "{fault}");
    };
    refused(&[of(0, &["b"])], "SW0521"); // another operator
    refused(&[of(2, &["b"])], "SW0520"); // one that the model does not have
    refused(&[of(1, &["b", "b"])], "SW0522");
    refused(&[of(1, &["v", "b"])], "SW0522"); // in another order
    refused(&[of(1, &[])], "SW0522");
    refused(&[of(1, &["k"])], "SW0521");
    refused(&[of(1, &["b"]), of(1, &["b"])], "SW0522"); // twice
    refused(&[of(1, &["b"]), of(1, &["v"])], "SW0522");
    refused(&[of(1, &["b"]), of(0, &["b"])], "SW0522");
}

/// Two losses of the same model, of which the code rewrites one.
#[test]
fn a_rewriting_of_another_operator_is_found() {
    let two = LOSS.replace(
        "output %loss\n",
        "op %more f64[] = aten.cross_entropy_loss.default(%z, %t, None, 1, 3) in \"\" at \"m.py:9\"\n\
         output %loss\noutput %more\n",
    );
    let model = graph(&two);
    let text = "\
rewrite 1 b
group 0,1
ranks 0,1
shard w %w :,:
input x %x 0..2,: | 2..4,:
input t %t 0..2 | 2..4
call 0 x, w, t -> s, n : z = aten.linear.default(x, w) ; s = aten.cross_entropy_loss.default(z, t, None, 2, -100) ; v = aten.ne.Scalar(t, -100) nograd ; n = aten.sum.default(v, dtype=f64) nograd
all_reduce g0 sum s -> s2
all_reduce g0 sum n -> n2
call 1 s2, n2 -> y : y = aten.div.Tensor(s2, n2)
output y
output none
seed dy
grad 1 dy -> ds
grad 0 ds ->
reduce_gradients g0 w
";
    proof(&model, text);
    let other = program(&model, &text.replace("rewrite 1 b", "rewrite 2 b"));
    assert_eq!(fault(&model, &other, &other.rewritings.clone()).code, "SW0504");
    assert_eq!(fault(&model, &program(&model, text), &[of(2, &["b"])]).code, "SW0501");
}
