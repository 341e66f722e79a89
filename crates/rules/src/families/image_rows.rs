//! The rows of an image under a window that slides over them: how they can be divided.
//!
//! A window that is taller than its step reads rows of the next part. Rows are divided in blocks, then: each
//! block is given the last rows of the one above and the first ones of the one below, and is an image of its own.
//! What is exchanged is these rows alone.

use graph::{Arg, Op, TensorId};

use super::common::{Terms, int_list, ints, mark, operand, product, term};
use crate::rewriting::Builder;

/// The name of the dim of the blocks.
pub(super) const BLOCKS: &str = "p";
/// Into how many blocks rows are divided at most, and that a block is twice as high as what it is given on a side:
/// of more and lower blocks more would be exchanged.
const MOST: i64 = 8;
const TIMES: i64 = 2;

/// How a window slides over a dim of space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// How many elements are read, one out of `dilation`.
    pub(super) size: i64,
    pub(super) step: i64,
    pub(super) padding: i64,
    pub(super) dilation: i64,
}

/// How a dim of space under a window can be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// Each row is made of rows of its own, so many, one after the other.
    Apart(i64),
    /// Each row makes rows of its own, so many.
    Repeated(i64),
    /// Blocks of rows, each with rows of its neighbours.
    Blocks(Blocks),
    Whole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    count: i64,
    /// The rows of a block that is read.
    height: i64,
    /// How many rows of the block above and of the one below are read; fewer than none: rows of its own are not.
    above: i64,
    below: i64,
}

impl Rows {
    /// Of so many rows that are read, and so many that are made.
    pub(super) fn from_window(window: Window, input: i64, result: i64) -> Self {
        let Window { size, step, padding, dilation } = window;
        let reach = dilation * (size - 1) + 1;
        if step < 1 || padding < 0 || result < 2 || input != result * step {
            return Self::Whole;
        }
        if padding == 0 && reach <= step {
            return Self::Apart(step);
        }
        let (above, below) = (padding, reach - step - padding);
        let halved = std::iter::successors(Some(MOST), |count| Some(count / 2));
        let mut counts = halved.take_while(|count| *count > 1);
        let count = counts.find(|count| result % count == 0 && input / count >= TIMES * above.max(below));
        count.map_or(Self::Whole, |count| Self::Blocks(Blocks { count, height: input / count, above, below }))
    }

    /// Of rows that make a whole number of rows each.
    pub(super) fn repeated(input: i64, result: i64) -> Self {
        if input > 1 && result > 0 && result % input == 0 {
            Self::Repeated(result / input)
        } else {
            Self::Whole
        }
    }

    /// The terms of what is read and of what is made, for the dim of space that is the `at`th.
    pub(super) fn terms(self, input: i64, result: i64, at: usize) -> [String; 2] {
        let whole = |size: i64, stem: char| mark(&term(size, &format!("{stem}{at}")), "^");
        match self {
            Self::Apart(step) => {
                let row = term(result, &format!("y{at}"));
                [product(&[row.clone(), whole(step, 'x')]), row]
            }
            Self::Repeated(times) => {
                let row = term(input, &format!("x{at}"));
                [row.clone(), product(&[row, whole(times, 'y')])]
            }
            Self::Blocks(Blocks { count, .. }) => {
                let blocks = |size: i64, stem| product(&[format!("{BLOCKS}@"), whole(size / count, stem)]);
                [blocks(input, 'x'), blocks(result, 'y')]
            }
            Self::Whole => [whole(input, 'x'), whole(result, 'y')],
        }
    }

    /// What the rule says of the size of the blocks.
    pub(super) fn clause(self) -> String {
        match self {
            Self::Blocks(blocks) => format!(" ; size {BLOCKS}={}", blocks.count),
            _ => String::new(),
        }
    }
}

/// Images `[n, channels, rows, ...]` while they are rewritten: a tensor, and what its dims are called.
pub(super) struct Images {
    pub(super) tensor: TensorId,
    /// Of the batch and of the channels.
    pub(super) names: [String; 2],
    /// Of the dims behind the rows.
    pub(super) others: Terms,
}

/// Where the rows of images stand, and those of their blocks.
const ROWS: usize = 2;
const ROWS_OF_BLOCK: usize = 3;

impl Blocks {
    /// Each block as an image of its own, with the rows that it needs of its neighbours, `beyond` the border:
    /// `[n * blocks, channels, rows of a block, ...]`.
    pub(super) fn apart(self, to: &mut Builder<'_>, images: &Images, beyond: &Arg) -> TensorId {
        let whole = to.shape(images.tensor).to_vec();
        let rows = format!("({BLOCKS} x0)");
        let divided = [&whole[..ROWS], &[self.count, self.height], &whole[ROWS + 1..]].concat();
        let labels = format!("{} -> {}", images.words(&[&rows]), images.words(&[BLOCKS, "x0"]));
        let blocks = reshape(to, images.tensor, &divided, &labels);
        let (mut parts, mut names) = (vec![], vec![]);
        if self.above > 0 {
            let last = self.rows_of(to, images, blocks, self.height - self.above, self.height, "above");
            parts.push(moved(to, images, last, 1, beyond, "above"));
            names.push("above");
        }
        let kept_height = self.height + self.below.min(0);
        let all = kept_height == self.height;
        parts.push(if all { blocks } else { self.rows_of(to, images, blocks, 0, kept_height, "own") });
        names.push(if all { "x0" } else { "own" });
        if self.below > 0 {
            let first = self.rows_of(to, images, blocks, 0, self.below, "below");
            parts.push(moved(to, images, first, -1, beyond, "below"));
            names.push("below");
        }
        let joined = joined(to, images, &parts, &names);
        folded(to, images, joined)
    }

    /// What was made of the blocks, as the rows of images again.
    pub(super) fn together(self, to: &mut Builder<'_>, made: &Images) {
        let folded = to.shape(made.tensor).to_vec();
        let divided = [&[folded[0] / self.count, self.count], &folded[1..]].concat();
        let labels = format!("{} -> {}", made.folded("y0"), made.unfolded("y0"));
        let blocks = reshape(to, made.tensor, &divided, &labels);
        let labels = format!("{} -> {}", made.unfolded("y0"), made.words(&[BLOCKS, "y0"]));
        let turned = turned(to, blocks, &labels);
        let rows = format!("({BLOCKS} y0)");
        let whole = [&[divided[0], folded[1], self.count * folded[ROWS]], &folded[ROWS + 1..]].concat();
        let labels = format!("{} -> {}", made.words(&[BLOCKS, "y0"]), made.words(&[&rows]));
        to.result(0, "aten.reshape.default", vec![Arg::Tensor(turned), int_list(&whole)], &labels);
    }

    /// The shape of what is made of the blocks as images of their own.
    pub(super) fn shape(self, result: &[i64]) -> Vec<i64> {
        let mut shape = result.to_vec();
        shape[0] *= self.count;
        shape[ROWS] /= self.count;
        shape
    }

    /// Some rows of each block.
    fn rows_of(
        self,
        to: &mut Builder<'_>,
        images: &Images,
        blocks: TensorId,
        from: i64,
        end: i64,
        name: &str,
    ) -> TensorId {
        let (mut shape, dtype) = (to.shape(blocks).to_vec(), to.dtype(blocks));
        shape[ROWS_OF_BLOCK] = end - from;
        let labels = format!("{} -> {}", images.words(&[BLOCKS, "x0"]), images.words(&[BLOCKS, name]));
        let args = vec![Arg::Tensor(blocks), Arg::Int(ROWS_OF_BLOCK as i64), Arg::Int(from), Arg::Int(end)];
        to.op("aten.slice.Tensor", args, &labels, dtype, &shape)
    }
}

impl Images {
    fn words(&self, rows: &[&str]) -> String {
        let rows = rows.iter().map(|word| (*word).to_string()).collect();
        operand(&[self.names.to_vec(), rows, self.others.clone()].concat())
    }

    /// Where the blocks stand beside the batch.
    fn unfolded(&self, rows: &str) -> String {
        let [batch, channels] = self.names.clone();
        operand(&[vec![batch, BLOCKS.into(), channels, rows.into()], self.others.clone()].concat())
    }

    /// Where the blocks are a part of the batch.
    pub(super) fn folded(&self, rows: &str) -> String {
        let [batch, channels] = self.names.clone();
        let batch = product(&[batch, BLOCKS.into()]);
        operand(&[vec![batch, channels, rows.into()], self.others.clone()].concat())
    }
}

/// Rows of each block at the next one, or the one before, and what is beyond the border.
fn moved(
    to: &mut Builder<'_>,
    images: &Images,
    rows: TensorId,
    by: i64,
    beyond: &Arg,
    name: &str,
) -> TensorId {
    let (shape, dtype) = (to.shape(rows).to_vec(), to.dtype(rows));
    let mut amounts = vec![0; 2 * (shape.len() - ROWS)];
    let last = amounts.len() - 2;
    amounts[last..].copy_from_slice(&[by, -by]);
    let words = images.words(&[BLOCKS, name]);
    let args = vec![Arg::Tensor(rows), int_list(&amounts), beyond.clone()];
    to.op("aten.constant_pad_nd.default", args, &format!("{words} -> {words}"), dtype, &shape)
}

fn joined(to: &mut Builder<'_>, images: &Images, parts: &[TensorId], names: &[&str]) -> TensorId {
    let (mut shape, dtype) = (to.shape(parts[0]).to_vec(), to.dtype(parts[0]));
    shape[ROWS_OF_BLOCK] = parts.iter().map(|part| to.shape(*part)[ROWS_OF_BLOCK]).sum();
    let read: Vec<String> = names.iter().map(|name| images.words(&[BLOCKS, name])).collect();
    let labels = format!("{} -> {}", read.join(", "), images.words(&[BLOCKS, "high"]));
    let parts = Arg::List(parts.iter().map(|part| Arg::Tensor(*part)).collect());
    let args = vec![parts, Arg::Int(ROWS_OF_BLOCK as i64)];
    to.op("aten.cat.default", args, &labels, dtype, &shape)
}

/// The blocks as a part of the batch.
fn folded(to: &mut Builder<'_>, images: &Images, blocks: TensorId) -> TensorId {
    let labels = format!("{} -> {}", images.words(&[BLOCKS, "high"]), images.unfolded("high"));
    let turned = turned(to, blocks, &labels);
    let shape = to.shape(turned).to_vec();
    let all = [&[shape[0] * shape[1]], &shape[2..]].concat();
    reshape(to, turned, &all, &format!("{} -> {}", images.unfolded("high"), images.folded("high")))
}

/// The channels and the blocks in each other's place.
fn turned(to: &mut Builder<'_>, x: TensorId, labels: &str) -> TensorId {
    let (mut shape, dtype) = (to.shape(x).to_vec(), to.dtype(x));
    let mut order: Vec<i64> = (0..shape.len() as i64).collect();
    order.swap(1, 2);
    shape.swap(1, 2);
    to.op("aten.permute.default", vec![Arg::Tensor(x), int_list(&order)], labels, dtype, &shape)
}

fn reshape(to: &mut Builder<'_>, x: TensorId, shape: &[i64], labels: &str) -> TensorId {
    let dtype = to.dtype(x);
    to.op("aten.reshape.default", vec![Arg::Tensor(x), int_list(shape)], labels, dtype, shape)
}

/// An argument of one integer for each dim of space, or of one for all.
pub(super) fn each(op: &Op, at: usize, name: &str, default: &[i64]) -> Vec<i64> {
    match ints(op, at, name) {
        Some(all) if all.len() == default.len() => all,
        Some(all) if all.len() == 1 => vec![all[0]; default.len()],
        _ => default.to_vec(),
    }
}
