//! `image`: every operator splits the rows of images, wherever it has them.
//!
//! Rows are what convolutions of images have first of space. A window that is taller than its step reads rows of its
//! neighbours, too, which are exchanged: such a convolution splits its rows in blocks.

use graph::OpId;
use rules::{Kind, families};

use super::sequence::{is_long, open_loops};
use super::{Along, Auto, Model, Set, batch, too_few};

pub(super) const SET: Set = Set {
    along: Some(Along::new(choose, why)),
    auto: Auto::Instead(|model, devices| batch::is_short(model, devices) && has_rows(model)),
    ..Set::new(
        "image",
        "spatial parallelism: operators are split along rows of images, and convolutions exchange halos",
    )
};

/// What convolutions call their rows, and the blocks of these.
const NAMES: [&str; 2] = ["y0", "p"];

/// Whether any rows of images may be split.
fn has_rows(model: &Model<'_>) -> bool {
    !classes(model).is_empty()
}

fn choose(model: &Model<'_>, parts: u32) -> Vec<Option<usize>> {
    let rows = classes(model);
    let fits = |op: OpId| open_loops(model, op, &rows).find(|index| is_long(model, op, *index, parts));
    model.graph.op_ids().map(fits).collect()
}

fn why(model: &Model<'_>, op: OpId, parts: u32) -> String {
    open_loops(model, op, &classes(model)).next().map_or_else(
        || "it has no rows of images that may be split".into(),
        |index| too_few("its rows", model.analysis.op(op).loops[index].size, parts),
    )
}

/// The classes of the rows of all convolutions of images.
fn classes(model: &Model<'_>) -> Vec<usize> {
    let mut classes: Vec<usize> = vec![];
    for op in model.graph.op_ids().filter(|op| is_of_images(model, *op)) {
        let Some(rule) = &model.analysis.rules[op.index()] else { continue };
        for (index, it) in model.analysis.op(op).loops.iter().enumerate() {
            if it.kind != Kind::Whole && NAMES.contains(&&rule.dim(it.dim).name[..]) {
                classes.push(model.classes.of_loop(op, index));
            }
        }
    }
    classes.sort_unstable();
    classes.dedup();
    classes
}

fn is_of_images(model: &Model<'_>, op: OpId) -> bool {
    const DIMS: usize = 4;
    let it = model.graph.op(op);
    let made = it.outputs.iter().flatten().next().map(|id| model.graph.tensor(*id).shape.len());
    families::nature_of(&it.target).convolves && made.is_some_and(|dims| dims >= DIMS)
}
