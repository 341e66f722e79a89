//! Reading and writing by index: the dims that indices point into stay whole, those of the indices
//! themselves and all others map.

use graph::{Arg, Op};

use super::common::{
    Terms, along, broadcast, float, int, mark, operand, output, plain, set, shape, term, terms, text, unary,
    whole, wrap,
};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch};
use crate::local::{LocalArg, LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "indexing",
    targets: &[
        "aten.gather.default",
        "aten.index.Tensor",
        "aten._unsafe_index.Tensor",
        "aten.take.default",
        "aten.take_along_dim.default",
        "aten.index_select.default",
        "aten.index_put.default",
        "aten._unsafe_index_put.default",
        "aten.put.default",
        "aten.index_add.default",
        "aten.index_copy.default",
        "aten.index_fill.int_Scalar",
        "aten.index_fill.int_Tensor",
        "aten.index_reduce.default",
        "aten.scatter.src",
        "aten.scatter.value",
        "aten.scatter.reduce",
        "aten.scatter.value_reduce",
        "aten.scatter_add.default",
        "aten.scatter_reduce.two",
        "aten.masked_scatter.default",
        "aten.one_hot.default",
        "aten.bucketize.Tensor",
        "aten.searchsorted.Tensor",
        "aten.isin.Tensor_Tensor",
        "aten.isin.Tensor_Scalar",
        "aten.embedding_bag.default",
        "aten.embedding_bag.padding_idx",
        "aten.tril.default",
        "aten.triu.default",
        "aten.repeat_interleave.self_Tensor",
    ],
    rule,
    local,
    rewriting: None,
    cost,
    costs: "reads what is picked; keeps the indices, `gather` its input too",
    nature: Nature::PLAIN,
};

fn name(op: &Op) -> &str {
    op.target.split('.').nth(1).unwrap_or_default()
}

fn rule(view: View<'_>) -> Option<String> {
    match name(view.op) {
        "gather" => gather(view, 2, 1),
        "take_along_dim" => gather(view, 1, 2),
        "index_select" => index_select(view),
        "take" => take(view),
        "index" | "_unsafe_index" => index(view),
        "index_put" | "_unsafe_index_put" => index_put(view),
        "scatter" | "scatter_add" | "scatter_reduce" => scatter(view),
        "index_add" | "index_copy" | "index_fill" | "index_reduce" => written_rows(view),
        "bucketize" | "searchsorted" | "isin" => looked_up(view),
        "embedding_bag" => bags(view),
        "one_hot" => one_hot(view),
        "tril" | "triu" => triangle(view),
        _ => entire(view),
    }
}

/// The dims of a tensor that is indexed along `dim`, and those of its index: other dims are shared
/// where both have all of them.
fn paired(all: &[i64], index: &[i64], dim: usize) -> (Terms, Terms) {
    let mut names = along(all, index, |at| at != dim);
    if let (Some(all), Some(index)) = (all.get(dim), index.get(dim)) {
        names.0[dim] = mark(&term(*all, "rows"), "^");
        names.1[dim] = term(*index, "index");
    }
    names
}

/// `index_at` and `dim_at` are the places of the index and of the dim among the arguments.
fn gather(view: View<'_>, index_at: usize, dim_at: usize) -> Option<String> {
    let all = shape(view, 0, "self")?;
    let index = shape(view, index_at, if index_at == 1 { "indices" } else { "index" })?;
    let Some(Arg::Int(dim)) = view.op.arg(dim_at, "dim") else { return None };
    if index_at == 1 && (index.len() != all.len() || output(view)? != index) {
        return None; // Other dims are broadcast.
    }
    let (read, made) = paired(all, index, wrap(*dim, all.len())?);
    text(view, &[operand(&read), operand(&made)], &[operand(&made)], &[vec![0]])
}

fn scatter(view: View<'_>) -> Option<String> {
    let (all, index) = (shape(view, 0, "self")?, shape(view, 2, "index")?);
    let dim = wrap(int(view.op, 1, "dim", 0), all.len())?;
    let (mut kept, mut given) = paired(all, index, dim);
    given.get_mut(dim).into_iter().for_each(|name| *name = mark(name, "^"));
    let mut inputs = vec![operand(&kept), operand(&given)];
    let sums = matches!(view.op.arg(4, "reduce"), Some(Arg::Str(how)) if how == "sum");
    let reduces = view.op.target.contains("reduce") && !sums;
    let Some(source) = shape(view, 3, "src") else {
        let linear = name(view.op) == "scatter" && !reduces && float(view.op, 3, "value", 1.0) == 0.0;
        let linear = if linear { vec![vec![0]] } else { vec![] };
        return text(view, &inputs, &[operand(&kept)], &linear);
    };
    if source != index {
        // Only its first elements are used.
        (kept, given) = (whole(all, "v"), whole(index, "i"));
        inputs = vec![operand(&kept), operand(&given)];
    }
    inputs.push(if source == index { operand(&given) } else { operand(&whole(source, "s")) });
    let linear = if reduces { vec![] } else { vec![vec![0, 2]] };
    text(view, &inputs, &[operand(&kept)], &linear)
}

/// Rows that are written, or to which something is added: which ones, every part must know.
fn written_rows(view: View<'_>) -> Option<String> {
    let all = shape(view, 0, "self")?;
    let dim = wrap(int(view.op, 1, "dim", 0), all.len())?;
    let index = shape(view, 2, "index")?;
    let rows = mark(&term(index.iter().product(), "index"), "^");
    let mut kept = terms(all);
    kept[dim] = mark(&kept[dim], "^");
    let mut inputs = vec![operand(&kept), if index.is_empty() { "scalar".into() } else { rows.clone() }];
    let source = shape(view, 3, if name(view.op) == "index_fill" { "value" } else { "source" });
    if let Some(source) = source {
        let mut given = kept.clone();
        if source.is_empty() {
            given.clear();
        } else if source.len() == all.len() && index.len() == 1 {
            given[dim] = rows;
        } else {
            return None;
        }
        inputs.push(operand(&given));
    }
    let zero = float(view.op, 3, "value", 1.0) == 0.0;
    let linear = match (name(view.op), source) {
        ("index_reduce", _) => vec![],
        (_, Some(_)) => vec![vec![0, 2]],
        _ if zero => vec![vec![0]],
        _ => vec![],
    };
    text(view, &inputs, &[operand(&kept)], &linear)
}

/// By one number for all dims.
fn take(view: View<'_>) -> Option<String> {
    let (all, index) = (whole(shape(view, 0, "self")?, "x"), shape(view, 1, "index")?);
    let names: Terms = index.iter().enumerate().map(|(i, &size)| term(size, &format!("i{i}"))).collect();
    text(view, &[operand(&all), operand(&names)], &[operand(&names)], &[vec![0]])
}

/// Each element is looked up in a list, or in that of its row.
fn looked_up(view: View<'_>) -> Option<String> {
    let shapes = view.input_shapes();
    let searched = name(view.op) == "searchsorted";
    let (values, list) =
        if searched { (*shapes.get(1)?, shapes.first()) } else { (*shapes.first()?, shapes.get(1)) };
    if shapes.len() > 2 || values != output(view)? {
        return None;
    }
    let names = terms(values);
    let listed = |list: &&[i64]| -> Option<String> {
        let (last, rows) = list.split_last()?;
        let bounds = mark(&term(*last, "bounds"), "^");
        let index_names = if rows.is_empty() { &[][..] } else { &names[..rows.len().min(names.len())] };
        Some(operand(&[index_names, &[bounds]].concat()))
    };
    let inputs = match (searched, list) {
        (_, None) => vec![operand(&names)],
        (true, Some(list)) => vec![listed(list)?, operand(&names)],
        (false, Some(list)) if list.len() == 1 => vec![operand(&names), listed(list)?],
        _ => return None,
    };
    text(view, &inputs, &[operand(&names)], &[])
}

/// Sums of rows of a table: only the width of the table maps, and only where nothing else is asked for.
fn bags(view: View<'_>) -> Option<String> {
    let frequencies = matches!(view.op.arg(3, "scale_grad_by_freq"), Some(Arg::Bool(true)));
    let sparse = matches!(view.op.arg(5, "sparse"), Some(Arg::Bool(true)));
    if frequencies || sparse || view.op.outputs.iter().skip(1).any(Option::is_some) {
        return None;
    }
    let [rows, width] = *shape(view, 0, "weight")? else { return None };
    let (rows, width) = (mark(&term(rows, "vocab"), "^"), term(width, "width"));
    let bags = mark(&term(*output(view)?.first()?, "bags"), "^");
    let mut inputs = vec![operand(&[rows, width.clone()])];
    let others = view.input_shapes().into_iter().enumerate().skip(1);
    inputs.extend(others.map(|(at, shape)| operand(&whole(shape, &format!("x{at}_")))));
    let made = operand(&[bags, width]);
    let is_maximum = int(view.op, 4, "mode", 0) == 2;
    let linear = if is_maximum { vec![] } else { vec![vec![0]] };
    text(view, &inputs, &vec![made; view.op.outputs.len()], &linear)
}

fn index_select(view: View<'_>) -> Option<String> {
    let all = shape(view, 0, "self")?;
    let dim = wrap(int(view.op, 1, "dim", 0), all.len())?;
    let (read, made) = paired(all, output(view)?, dim);
    let index = shape(view, 2, "index")?;
    let index = if index.is_empty() { "scalar".into() } else { made.get(dim)?.clone() };
    text(view, &[operand(&read), index], &[operand(&made)], &[vec![0]])
}

/// How `x[i, :, j]` is made: the terms of `x`, of each index, and of the result.
struct Indexed {
    all: Terms,
    indices: Vec<String>,
    result: Terms,
    shape: Vec<i64>,
}

impl Indexed {
    fn new(view: View<'_>) -> Option<Self> {
        let all = shape(view, 0, "self")?;
        let Some(Arg::List(items)) = view.op.arg(1, "indices") else { return None };
        let mut given = vec![];
        for (dim, item) in items.iter().enumerate() {
            let Arg::Tensor(id) = item else { continue };
            let tensor = view.graph.tensor(*id);
            if matches!(tensor.dtype, graph::Dtype::Bool | graph::Dtype::U8) {
                return None; // How many elements a mask picks is not known.
            }
            given.push((dim, &tensor.shape[..]));
        }
        let (first, last) = (given.first()?.0, given.last()?.0);
        let common = common_shape(given.iter().map(|(_, shape)| *shape));
        let names: Terms = common.iter().enumerate().map(|(i, &size)| term(size, &format!("i{i}"))).collect();
        let mut read = terms(all);
        given.iter().for_each(|(dim, _)| read[*dim] = mark(&read[*dim], "^"));
        let kept: Vec<usize> = (0..all.len()).filter(|dim| given.iter().all(|(at, _)| at != dim)).collect();
        // Indices that stand together keep their place; others move to the front.
        let together = last - first + 1 == given.len();
        let place = if together { first } else { 0 };
        let mut result: Terms = kept.iter().map(|&dim| read[dim].clone()).collect();
        let mut shape: Vec<i64> = kept.iter().map(|&dim| all[dim]).collect();
        result.splice(place..place, names.iter().cloned());
        shape.splice(place..place, common.iter().copied());
        let terms = |shape: &[i64]| operand(&broadcast(shape, &common, &names));
        let indices = given.iter().map(|(_, shape)| terms(shape)).collect();
        Some(Self { all: read, indices, result, shape })
    }
}

fn common_shape<'a>(shapes: impl Iterator<Item = &'a [i64]>) -> Vec<i64> {
    let mut common: Vec<i64> = vec![];
    for shape in shapes {
        while common.len() < shape.len() {
            common.insert(0, 1);
        }
        let skip = common.len() - shape.len();
        for (size, operand_size) in common[skip..].iter_mut().zip(shape) {
            if *size == 1 {
                *size = *operand_size;
            }
        }
    }
    common
}

fn index(view: View<'_>) -> Option<String> {
    let indexed = Indexed::new(view)?;
    let inputs = [vec![operand(&indexed.all)], indexed.indices].concat();
    text(view, &inputs, &[operand(&indexed.result)], &[vec![0]])
}

/// The places that are written must be known to every part: indices stay whole, a mask does not.
fn index_put(view: View<'_>) -> Option<String> {
    if let Some(rule) = masked_put(view) {
        return Some(rule);
    }
    let indexed = Indexed::new(view)?;
    let values = shape(view, 2, "values")?;
    let names: Terms = indexed.result.iter().map(|name| fixed(name)).collect();
    let indices: Vec<String> = indexed.indices.iter().map(|text| each_fixed(text)).collect();
    let values = broadcast(values, &indexed.shape, &names);
    let all = operand(&indexed.all);
    let last = 1 + indices.len();
    let inputs = [vec![all.clone()], indices, vec![operand(&values)]].concat();
    text(view, &inputs, &[all], &[vec![0, last]])
}

/// Where a mask of the first dims is set, the same values are written.
fn masked_put(view: View<'_>) -> Option<String> {
    let (all, values) = (shape(view, 0, "self")?, shape(view, 2, "values")?);
    let Some(Arg::List(items)) = view.op.arg(1, "indices") else { return None };
    let [Arg::Tensor(mask)] = items[..] else { return None };
    let mask = view.graph.tensor(mask);
    let names = terms(all);
    let (places, rest) = names.split_at_checked(mask.shape.len())?;
    if mask.dtype != graph::Dtype::Bool || values.len() > rest.len() {
        return None; // Values that differ from place to place are counted through.
    }
    let values = broadcast(values, &all[places.len()..], rest);
    let inputs = [operand(&names), operand(places), operand(&values)];
    text(view, &inputs, &[operand(&names)], &[vec![0, 2]])
}

/// A term of the result; those of the indices, which have a number, whole.
fn fixed(name: &str) -> String {
    let counted = name.starts_with('i') && name[1..].starts_with(|c: char| c.is_ascii_digit());
    mark(name, if counted { "^" } else { "" })
}

fn each_fixed(text: &str) -> String {
    text.split(' ').map(fixed).collect::<Vec<_>>().join(" ")
}

fn one_hot(view: View<'_>) -> Option<String> {
    let mut written = terms(output(view)?);
    let read = written[..written.len().checked_sub(1)?].to_vec();
    if let Some(last) = written.last_mut() {
        *last = mark(last, "^");
    }
    unary(view, &read, &written, false)
}

fn triangle(view: View<'_>) -> Option<String> {
    let input = shape(view, 0, "self")?;
    let plane = input.len().checked_sub(2)?;
    let (read, written) = along(input, output(view)?, |dim| dim < plane);
    unary(view, &read, &written, true)
}

fn entire(view: View<'_>) -> Option<String> {
    let stems = ["a", "b", "c"].iter();
    let inputs: Vec<String> =
        view.input_shapes().iter().zip(stems).map(|(shape, stem)| operand(&whole(shape, stem))).collect();
    let linear = match name(view.op) {
        "masked_scatter" | "put" => vec![0, 2],
        _ => vec![0],
    };
    text(view, &inputs, &[operand(&whole(output(view)?, "o"))], &[linear])
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let mut local = plain(view, rule, part);
    if name(view.op) == "one_hot" {
        let classes = part.outputs[0].last().copied().unwrap_or(0);
        set(&mut local, 1, "num_classes", LocalArg::Int(classes));
    }
    local
}

/// What is picked is read, not what it is picked from.
fn cost(call: &Call<'_>) -> Sketch {
    let given = call.given(0) * call.width();
    let sketch = match call.name() {
        // Into zeros, which gives a new gradient.
        "gather" | "index" | "index_select" | "_unsafe_index" | "take" => {
            Sketch::new(call).meanwhile(0, given)
        }
        _ => Sketch::new(call),
    };
    let sketch = sketch.flops(0);
    let picked = || {
        let indices = call.operands.iter().skip(1).map(crate::cost::Operand::bytes).sum::<u64>();
        indices + call.made() * call.width()
    };
    match call.name() {
        "gather" => sketch.keeps("*: 0 1").reads(picked()),
        "take" => sketch.keeps("*: 0 1").reads(picked()),
        // The index is checked, and kept as it then is.
        "take_along_dim" => sketch.keeps("*: 0").keeps_more(call.made() * 8).reads(picked()),
        "index_add" => sketch.keeps("2: 1 2"),
        "index_copy" => sketch.keeps("0: 1; 2: 1 2"),
        "put" => sketch.keeps("0: 1; 2: 1 2"),
        "index_fill" => sketch.keeps("0: 1; 2: 1"),
        "scatter_reduce" | "index_reduce" => sketch.keeps("*: 0 1 2 r0"),
        "embedding_bag" => sketch.keeps("*: 1 2").keeps_more(call.given(1) * 8),
        "index" | "_unsafe_index" | "index_select" => sketch.reads(picked()),
        "scatter_add" => sketch.keeps("2: 1"),
        "scatter" => sketch.keeps("0: 1; 2: 1"),
        _ => sketch,
    }
}
