//! Matrices one by one: the dims before the last two map, each matrix stays whole.
//!
//! Vectors that are only known up to a sign or an order (of `svd`, `eigh`) are left out: which ones are found may
//! depend on how many matrices are given at once.

use graph::{Dtype, Op};

use super::common::{Terms, broadcast, letter, operand, plain, term, text, whole};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch};
use crate::local::{LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "linear_algebra",
    targets: &[
        "aten.linalg_inv.default",
        "aten.linalg_inv_ex.default",
        "aten.inverse.default",
        "aten.linalg_det.default",
        "aten.det.default",
        "aten.logdet.default",
        "aten.linalg_slogdet.default",
        "aten.slogdet.default",
        "aten.linalg_solve.default",
        "aten.linalg_solve_ex.default",
        "aten.linalg_solve_triangular.default",
        "aten.linalg_cholesky.default",
        "aten.linalg_cholesky_ex.default",
        "aten.cholesky_solve.default",
        "aten.cholesky_inverse.default",
        "aten.linalg_matrix_exp.default",
        "aten.linalg_matrix_power.default",
        "aten.linalg_pinv.atol_rtol_tensor",
        "aten.linalg_svdvals.default",
        "aten.linalg_eigvalsh.default",
    ],
    rule,
    local,
    rewriting: None,
    cost,
    costs: "two operations for each element of a matrix and each of its rows; keeps operands and results",
    nature: Nature { dear: true, ..Nature::PLAIN },
};

fn name(op: &Op) -> &str {
    op.target.split('.').nth(1).unwrap_or_default()
}

/// How many dims of each operand and of each result belong to one matrix.
fn ranks(view: View<'_>) -> (Vec<usize>, &'static [usize]) {
    match name(view.op) {
        "linalg_det" | "det" | "logdet" => (vec![2], &[0]),
        "linalg_slogdet" | "slogdet" => (vec![2], &[0, 0]),
        "linalg_svdvals" | "linalg_eigvalsh" => (vec![2], &[1]),
        "linalg_solve" if vectors(view) => (vec![2, 1], &[1]),
        "linalg_solve_ex" if vectors(view) => (vec![2, 1], &[1, 0]),
        "linalg_solve_ex" => (vec![2, 2], &[2, 0]),
        "linalg_inv_ex" | "linalg_cholesky_ex" => (vec![2], &[2, 0]),
        _ => (vec![2; view.op.inputs().len()], &[2]),
    }
}

/// Whether a right hand side is one vector for each matrix.
fn vectors(view: View<'_>) -> bool {
    let [matrix, right] = view.input_shapes()[..] else { return false };
    right.len() == 1 || matrix.split_last().is_some_and(|(_, rest)| right == rest)
}

fn rule(view: View<'_>) -> Option<String> {
    let (given, made) = ranks(view);
    let (shapes, results) = (view.input_shapes(), view.output_shapes());
    if name(view.op) == "linalg_pinv" && shapes.len() > 1 {
        return None; // Tolerances of each matrix.
    }
    let at = results.iter().position(Option::is_some)?;
    let first = results[at]?;
    let batch = &first[..first.len().checked_sub(*made.get(at)?)?];
    let names: Terms = batch.iter().enumerate().map(|(dim, &size)| term(size, &letter(dim))).collect();
    let mut inputs = vec![];
    for (at, (shape, rank)) in shapes.iter().zip(given).enumerate() {
        let cut = shape.len().checked_sub(rank)?;
        let leading = broadcast(&shape[..cut], batch, &names);
        inputs.push(operand(&[leading, whole(&shape[cut..], &format!("x{at}_"))].concat()));
    }
    let mut outputs = vec![];
    for (at, (shape, rank)) in results.iter().zip(made).enumerate() {
        let Some(shape) = shape else {
            outputs.push(super::common::NOTHING.into());
            continue;
        };
        let inner = whole(&shape[shape.len().checked_sub(*rank)?..], &format!("y{at}_"));
        outputs.push(operand(&[names.clone(), inner].concat()));
    }
    text(view, &inputs, &outputs, &[])
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    plain(view, rule, part)
}

fn cost(call: &Call<'_>) -> Sketch {
    let size = call.operands.first().and_then(|it| it.shape.last()).map_or(1, |size| size.unsigned_abs());
    let sketch = Sketch::new(call).flops(2 * call.largest() * size);
    // A factorisation, and which rows it has exchanged.
    let given = call.given(0);
    let factors = given * call.width() + given / size.max(1) * Dtype::I32.bytes() as u64;
    match call.name() {
        "linalg_inv" | "linalg_inv_ex" | "inverse" | "linalg_cholesky" | "linalg_cholesky_ex" => {
            sketch.keeps("*: r0")
        }
        "linalg_det" | "det" | "linalg_slogdet" | "slogdet" => {
            sketch.keeps("*: 0").keeps_result(call, 0, call.made() * call.width()).keeps_more(factors)
        }
        "logdet" => sketch.keeps_more(factors + call.made() * (call.width() + 1)),
        "linalg_solve" | "linalg_solve_ex" => sketch.keeps("*: 0 r0").keeps_more(factors),
        "linalg_solve_triangular" => sketch.keeps("*: 0 r0"),
        "cholesky_solve" => sketch.keeps("*: 0 1 r0"),
        "cholesky_inverse" => sketch.keeps("*: 0 r0"),
        "linalg_svdvals" => sketch.keeps("*: r0").keeps_more(2 * given * call.width()),
        "linalg_eigvalsh" => sketch.keeps("*: r0").keeps_more(given * call.width()),
        "linalg_matrix_power" | "linalg_pinv" => sketch.keeps_more(given * call.width()),
        _ => sketch,
    }
}
