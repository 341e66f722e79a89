//! Fourier transforms: the dims that are transformed stay whole, all others map.

use graph::{Arg, Dtype, Op};

use super::common::{along, dims, ints, mark, operand, output, plain, shape, term, terms, text, whole, wrap};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch, numel};
use crate::local::{LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "fourier",
    targets: &[
        "aten.fft_fft.default",
        "aten.fft_ifft.default",
        "aten.fft_rfft.default",
        "aten.fft_irfft.default",
        "aten.fft_hfft.default",
        "aten.fft_ihfft.default",
        "aten.fft_fft2.default",
        "aten.fft_ifft2.default",
        "aten.fft_rfft2.default",
        "aten.fft_irfft2.default",
        "aten.fft_fftn.default",
        "aten.fft_ifftn.default",
        "aten.fft_rfftn.default",
        "aten.fft_irfftn.default",
        "aten.fft_fftshift.default",
        "aten.fft_ifftshift.default",
        "aten.stft.default",
        "aten.istft.default",
    ],
    rule,
    local,
    rewriting: None,
    cost,
    costs: "five operations for each element and each doubling of the transformed size; keeps nothing",
    nature: Nature { dear: true, ..Nature::PLAIN },
};

fn name(op: &Op) -> &str {
    op.target.split('.').nth(1).unwrap_or_default()
}

fn rule(view: View<'_>) -> Option<String> {
    let input = shape(view, 0, "self")?;
    if matches!(name(view.op), "stft" | "istft") {
        return windowed(view, input);
    }
    let transformed = transformed(view.op, input.len())?;
    let (read, written) = along(input, output(view)?, |dim| !transformed.contains(&dim));
    text(view, &[operand(&read)], &[operand(&written)], &[vec![0]])
}

fn transformed(op: &Op, rank: usize) -> Option<Vec<usize>> {
    let last = |count: usize| (rank.saturating_sub(count)..rank).collect();
    match name(op) {
        "fft_fft2" | "fft_ifft2" | "fft_rfft2" | "fft_irfft2" => match ints(op, 2, "dim") {
            Some(_) => dims(op, 2, "dim", rank),
            None => Some(last(2)),
        },
        "fft_fftn" | "fft_ifftn" | "fft_rfftn" | "fft_irfftn" => {
            match (ints(op, 2, "dim"), ints(op, 1, "s")) {
                (Some(dim), _) => dim.into_iter().map(|dim| wrap(dim, rank)).collect(),
                (None, Some(sizes)) => Some(last(sizes.len())),
                (None, None) => Some(last(rank)),
            }
        }
        "fft_fftshift" | "fft_ifftshift" => dims(op, 1, "dim", rank),
        _ => match op.arg(2, "dim") {
            Some(Arg::Int(dim)) => Some(vec![wrap(*dim, rank)?]),
            _ => Some(last(1)),
        },
    }
}

/// Short pieces of each row, under a window that all rows share.
fn windowed(view: View<'_>, input: &[i64]) -> Option<String> {
    let result = output(view)?;
    let kept = if name(view.op) == "stft" { 1 } else { 2 };
    let rows = input.len().checked_sub(kept)?;
    let names = &terms(input)[..rows];
    let operand_of = |shape: &[i64], stem: &str| operand(&[names, &whole(&shape[rows..], stem)].concat());
    let mut inputs = vec![operand_of(input, "x")];
    if let Some(window) = shape(view, 4, "window") {
        inputs.push(mark(&term(*window.first()?, "window"), "^"));
    }
    text(view, &inputs, &[operand_of(result, "y")], &[vec![0]])
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    plain(view, rule, part)
}

fn cost(call: &Call<'_>) -> Sketch {
    let sketch = Sketch::new(call).keeps("*:");
    if call.name().ends_with("shift") {
        return sketch.flops(0);
    }
    // Pieces of the rows overlap, and are kept before they meet the window.
    let windowed = matches!(call.name(), "stft" | "istft");
    // How many elements a row of real numbers has is read from it.
    let is_real = call.operands.first().is_some_and(|it| !matches!(it.dtype, Dtype::C64 | Dtype::C128));
    let inverse = matches!(call.name(), "fft_irfft" | "fft_hfft" | "fft_irfft2" | "fft_irfftn");
    let sketch = if is_real && !windowed && !inverse { sketch.keeps("*: 0") } else { sketch };
    let sketch = if windowed { sketch.keeps_more(2 * call.largest() * call.width()) } else { sketch };
    let Some(rule) = call.rule else { return sketch };
    let size = |operand: &crate::Operand, shape: &[i64]| -> u64 {
        let whole = |product: &&Vec<crate::DimId>| {
            product.iter().any(|dim| rule.dim(*dim).kind == crate::Kind::Whole)
        };
        let pairs = operand.dims.iter().zip(shape).filter(|(product, _)| whole(product));
        numel(&pairs.map(|(_, size)| *size).collect::<Vec<_>>())
    };
    let input = call.operands.first().zip(rule.inputs.first());
    let points = input.map_or(1, |(given, operand)| size(operand, &given.shape)).max(2);
    sketch.flops(5 * call.largest() * u64::from(points.ilog2()))
}
