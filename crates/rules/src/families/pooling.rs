//! Images and sequences, plane by plane: the batch and the channels map; of space, what windows of their own make and
//! what is repeated is divided, and the rows of a maximum in blocks.

use graph::{Arg, Dtype, Op};

use super::common::{
    Terms, along, int, int_list, ints, letter, mark, operand, output, plain, product, set, shape, size, term,
    terms, text, whole,
};
use super::image_rows::{Images, Rows, Window, each};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch};
use crate::local::{LocalArg, LocalOp, Part};
use crate::rewriting::Builder;

pub(super) const FAMILY: Family = Family {
    name: "pooling",
    targets: &[
        "aten.max_pool1d.default",
        "aten.max_pool2d.default",
        "aten.max_pool3d.default",
        "aten.max_pool1d_with_indices.default",
        "aten.max_pool2d_with_indices.default",
        "aten.max_pool3d_with_indices.default",
        "aten.avg_pool1d.default",
        "aten.avg_pool2d.default",
        "aten.avg_pool3d.default",
        "aten.adaptive_avg_pool1d.default",
        "aten.adaptive_avg_pool2d.default",
        "aten.adaptive_avg_pool3d.default",
        "aten._adaptive_avg_pool2d.default",
        "aten._adaptive_avg_pool3d.default",
        "aten.adaptive_max_pool1d.default",
        "aten.adaptive_max_pool2d.default",
        "aten.adaptive_max_pool3d.default",
        "aten.fractional_max_pool2d.default",
        "aten.fractional_max_pool3d.default",
        "aten.max_unpool2d.default",
        "aten.max_unpool3d.default",
        "aten.reflection_pad1d.default",
        "aten.reflection_pad2d.default",
        "aten.reflection_pad3d.default",
        "aten.replication_pad1d.default",
        "aten.replication_pad2d.default",
        "aten.replication_pad3d.default",
        "aten.upsample_nearest1d.vec",
        "aten.upsample_nearest1d.default",
        "aten.upsample_nearest2d.vec",
        "aten.upsample_nearest2d.default",
        "aten.upsample_nearest3d.vec",
        "aten.upsample_nearest3d.default",
        "aten._upsample_nearest_exact1d.vec",
        "aten._upsample_nearest_exact1d.default",
        "aten._upsample_nearest_exact2d.vec",
        "aten._upsample_nearest_exact2d.default",
        "aten._upsample_nearest_exact3d.vec",
        "aten._upsample_nearest_exact3d.default",
        "aten.upsample_linear1d.vec",
        "aten.upsample_linear1d.default",
        "aten.upsample_bilinear2d.vec",
        "aten.upsample_bilinear2d.default",
        "aten._upsample_bilinear2d_aa.vec",
        "aten._upsample_bilinear2d_aa.default",
        "aten.upsample_trilinear3d.vec",
        "aten.upsample_trilinear3d.default",
        "aten.upsample_bicubic2d.vec",
        "aten.upsample_bicubic2d.default",
        "aten._upsample_bicubic2d_aa.vec",
        "aten._upsample_bicubic2d_aa.default",
        "aten.im2col.default",
        "aten.col2im.default",
        "aten.pixel_shuffle.default",
        "aten.pixel_unshuffle.default",
        "aten.channel_shuffle.default",
        "aten.affine_grid_generator.default",
        "aten.grid_sampler_2d.default",
        "aten.grid_sampler_3d.default",
        "aten.grid_sampler.default",
    ],
    rule,
    local,
    rewriting: Some(rewriting),
    cost,
    costs: "an operation for each element; keeps the input, of a maximum the places too; interpolation \
            keeps nothing",
    nature: Nature::PLAIN,
};

fn name(op: &Op) -> &str {
    op.target.split('.').nth(1).unwrap_or_default()
}

/// How many of the last dims are space.
fn spatial(name: &str) -> usize {
    match name {
        _ if name.contains("1d") => 1,
        _ if name.contains("3d") => 3,
        _ => 2,
    }
}

fn rule(view: View<'_>) -> Option<String> {
    let (input, result) = (*view.input_shapes().first()?, output(view)?);
    if input.contains(&0) || result.contains(&0) {
        return None;
    }
    let name = name(view.op);
    let (read, written) = match name {
        "im2col" => unfolded(input, result)?,
        "col2im" => {
            let (written, read) = unfolded(result, input)?;
            (read, written)
        }
        "channel_shuffle" => mixed(view.op, input)?,
        "affine_grid_generator" => {
            let rows = terms(input)[..1].to_vec();
            let terms_of = |shape: &[i64], stem: &str| [&rows[..], &whole(&shape[1..], stem)].concat();
            (terms_of(input, "x"), terms_of(result, "y"))
        }
        "max_unpool2d" | "max_unpool3d" | "fractional_max_pool2d" | "fractional_max_pool3d" => {
            return placed(view, input, result);
        }
        "pixel_shuffle" | "pixel_unshuffle" => shuffled(input, result)?,
        _ if name.starts_with("grid_sampler") => return sampled(view),
        _ => {
            let planes = input.len().checked_sub(spatial(name))?;
            let (mut read, mut written) = along(input, result, |dim| dim < planes);
            for (at, rows) in space(view.op, input, result).into_iter().enumerate() {
                if rows != Rows::Whole {
                    let dim = planes + at;
                    [read[dim], written[dim]] = rows.terms(input[dim], result[dim], at);
                }
            }
            (read, written)
        }
    };
    let linear = if name.contains("max") { vec![] } else { vec![vec![0]] };
    let outputs = vec![operand(&written); view.op.outputs.len()];
    let text = text(view, &[operand(&read)], &outputs, &linear)?;
    // Both factors of the channels are only known by what the operator is told.
    Some(match name {
        "channel_shuffle" if read[1].contains("g ") => {
            format!("{text} ; size g={}", int(view.op, 1, "groups", 1))
        }
        _ => text + &space(view.op, input, result).first().copied().map_or_else(String::new, Rows::clause),
    })
}

/// How each dim of space is divided.
fn space(op: &Op, input: &[i64], result: &[i64]) -> Vec<Rows> {
    let dims = spatial(name(op));
    let Some(planes) = input.len().checked_sub(dims) else { return vec![] };
    let sizes_at = |at: usize| (input[planes + at], result[planes + at]);
    match name(op) {
        "max_pool2d" | "max_pool3d" | "avg_pool2d" | "avg_pool3d" => {
            let is_maximum = name(op).starts_with("max");
            let blocks = |at: usize| at == 0 && planes == 2 && is_maximum;
            let rows = |at: usize| match Rows::from_window(
                window_of(op, at, dims),
                sizes_at(at).0,
                sizes_at(at).1,
            ) {
                Rows::Blocks(_) if !blocks(at) => Rows::Whole,
                rows => rows,
            };
            (0..dims).map(rows).collect()
        }
        "upsample_nearest2d"
        | "upsample_nearest3d"
        | "_upsample_nearest_exact2d"
        | "_upsample_nearest_exact3d" => {
            (0..dims).map(|at| Rows::repeated(sizes_at(at).0, sizes_at(at).1)).collect()
        }
        _ => vec![],
    }
}

fn window_of(op: &Op, at: usize, dims: usize) -> Window {
    let sizes = each(op, 1, "kernel_size", &vec![1; dims]);
    let dilation = if name(op).starts_with("max") { each(op, 4, "dilation", &vec![1; dims])[at] } else { 1 };
    Window {
        size: sizes[at],
        step: each(op, 2, "stride", &sizes)[at],
        padding: each(op, 3, "padding", &vec![0; dims])[at],
        dilation,
    }
}

/// Blocks of rows become images of their own, of which the maximum is without padding of their rows.
fn rewriting(op: &Op, to: &mut Builder<'_>) {
    let ([x], Some(result)) = (&op.inputs()[..], to.result_shape(0)) else { return };
    let (result, input) = (result.to_vec(), to.shape(*x).to_vec());
    let space = space(op, &input, &result);
    let Some(Rows::Blocks(blocks)) = space.first() else { return };
    let (mut read, mut made) = (terms(&input), terms(&result));
    for (at, rows) in space.iter().enumerate().skip(1) {
        [read[2 + at], made[2 + at]] = rows.terms(input[2 + at], result[2 + at], at);
    }
    let name = |term: &String| term.replace('^', "");
    let names = |terms: &[String]| -> Terms { terms.iter().map(name).collect() };
    let planes = [read[0].clone(), read[1].clone()];
    let images = Images { tensor: *x, names: planes.clone(), others: names(&read[3..]) };
    let apart = blocks.apart(to, &images, &Arg::Float(f64::NEG_INFINITY));
    let made = Images { tensor: apart, names: planes, others: names(&made[3..]) };
    let dims = space.len();
    let sizes = each(op, 1, "kernel_size", &vec![1; dims]);
    let mut padding = each(op, 3, "padding", &vec![0; dims]);
    padding[0] = 0;
    let args = vec![
        Arg::Tensor(apart),
        int_list(&sizes),
        int_list(&each(op, 2, "stride", &sizes)),
        int_list(&padding),
        int_list(&each(op, 4, "dilation", &vec![1; dims])),
    ];
    let labels = format!("{} -> {}", images.folded("high"), made.folded("y0"));
    let dtype = to.dtype(*x);
    let tensor = to.op(&op.target, args, &labels, dtype, &blocks.shape(&result));
    blocks.together(to, &Images { tensor, ..made });
}

/// `n c h w -> n (c k) l`: each channel's windows follow each other.
fn unfolded(input: &[i64], result: &[i64]) -> Option<(Terms, Terms)> {
    let planes = input.len().checked_sub(2)?;
    let read = [&terms(input)[..planes], &whole(&input[planes..], "x")].concat();
    let mut written = read[..planes].to_vec();
    let last = planes.checked_sub(1)?;
    written[last] = product(&[read[last].clone(), window(result[last], input[last])]);
    written.push(mark(&term(*result.last()?, "l"), "^"));
    Some((read, written))
}

/// What is left of a product of channels and something else.
fn window(all: i64, channels: i64) -> String {
    mark(&term(all / channels, "k"), "^")
}

/// Channels become space, or space channels.
fn shuffled(input: &[i64], result: &[i64]) -> Option<(Terms, Terms)> {
    let planes = input.len().checked_sub(2)?;
    let last = planes.checked_sub(1)?;
    let channels = input[last].min(result[last]);
    let side = |shape: &[i64], stem: &str| {
        let mut names = [&terms(shape)[..planes], &whole(&shape[planes..], stem)].concat();
        names[last] = product(&[term(channels, &letter(last)), window(shape[last], channels)]);
        names
    };
    Some((side(input, "x"), side(result, "y")))
}

/// Groups of channels become channels of groups.
fn mixed(op: &Op, input: &[i64]) -> Option<(Terms, Terms)> {
    let groups = int(op, 1, "groups", 1).max(1);
    let (mut read, mut written) = (terms(input), terms(input));
    let (groups, inner) = (term(groups, "g"), term(input.get(1)? / groups, "each"));
    read[1] = product(&[groups.clone(), inner.clone()]);
    written[1] = product(&[inner, groups]);
    Some((read, written))
}

/// Beside the planes, where in them something is: their places, or random numbers for them.
fn placed(view: View<'_>, input: &[i64], result: &[i64]) -> Option<String> {
    let planes = input.len().checked_sub(spatial(name(view.op)))?;
    let places = *view.input_shapes().get(1)?;
    let names = &terms(input)[..planes];
    let operand_of = |shape: &[i64], stem: &str| operand(&[names, &whole(&shape[planes..], stem)].concat());
    let unpooled = name(view.op).starts_with("max_unpool");
    let stem = if unpooled { "x" } else { "r" };
    if !unpooled && (planes != 2 || places.len() != 3) {
        return None; // Random numbers always have a batch.
    }
    let linear = if unpooled { vec![vec![0]] } else { vec![] };
    let outputs = vec![operand_of(result, "y"); view.op.outputs.len()];
    text(view, &[operand_of(input, "x"), operand_of(places, stem)], &outputs, &linear)
}

/// Each place of the grid reads anywhere in its image.
fn sampled(view: View<'_>) -> Option<String> {
    let (image, grid) = (shape(view, 0, "input")?, shape(view, 1, "grid")?);
    let (result, rank) = (output(view)?, image.len());
    let written = terms(result);
    let read = [&written[..2], &whole(&image[2..], "x")].concat();
    let mut places = vec![written[0].clone()];
    places.extend(written[2..rank].iter().cloned());
    places.push(mark(&term(*grid.last()?, "xy"), "^"));
    text(view, &[operand(&read), operand(&places)], &[operand(&written)], &[vec![0]])
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let mut local = plain(view, rule, part);
    match name(view.op) {
        "channel_shuffle" => {
            set(&mut local, 1, "groups", LocalArg::Int(size(rule, part, "g")));
        }
        "affine_grid_generator" => {
            let mut sizes = ints(view.op, 1, "size").unwrap_or_default();
            sizes.iter_mut().take(1).for_each(|size| *size = part.outputs[0][0]);
            set(&mut local, 1, "size", crate::local::ints(&sizes));
        }
        name if name.contains("upsample_nearest") && ints(view.op, 1, "output_size").is_some() => {
            let made = &part.outputs[0];
            let space = &made[made.len() - spatial(name)..];
            set(&mut local, 1, "output_size", crate::local::ints(space));
        }
        _ => {}
    }
    local
}

fn cost(call: &Call<'_>) -> Sketch {
    let sketch = Sketch::new(call);
    let places = call.made() * Dtype::I64.bytes() as u64;
    match call.name() {
        name if name.contains("max_pool") => sketch.keeps("*: 0").keeps_result(call, 1, places),
        name if name.starts_with("adaptive_avg") && averages_all(call) => sketch.keeps("*:"),
        name if name.contains("avg_pool") || name.contains("_pad") => sketch.keeps("*: 0"),
        name if name.starts_with("max_unpool") => sketch.keeps("*: 1"),
        name if name.starts_with("grid_sampler") => sketch.keeps("*: 0 1"),
        "pixel_shuffle" | "pixel_unshuffle" | "channel_shuffle" | "im2col" | "col2im" => sketch.flops(0),
        _ => sketch,
    }
}

/// One place of images is their mean.
fn averages_all(call: &Call<'_>) -> bool {
    let Some(Some(made)) = call.results.first() else { return false };
    let planes = made.shape.len().saturating_sub(spatial(call.name()));
    made.shape[planes..].iter().all(|size| *size == 1)
}
