//! What a bundle may be divided along.
//!
//! A choice says for each digit of the devices along which dim of the model all operators of the bundle are divided; one
//! that does not have the dim is copied. Digits of one size, between nodes or inside of them, are given to dims in one
//! order, copies last: which of them it is makes no difference. Those between nodes divide the first dim, which is the
//! batch wherever there is one, and at most one other.

use std::collections::BTreeSet;

use graph::{Graph, OpId};
use plan::classes::Classes;
use rules::{Analysis, Kind};

use super::digits::Digits;
use super::sharding::Loops;

/// For each digit a class of dims; none where devices compute the same.
pub(super) type Choice = Vec<Option<usize>>;

/// A bundle is divided along so many dims.
const DIMS: usize = 4;

/// The dims along which most of the work of some operators can be divided, and those along which it must be, in the
/// model's order.
pub(super) fn dims(
    analysis: &Analysis,
    classes: &Classes,
    ops: &[OpId],
    pinned: &BTreeSet<usize>,
    work: &[f64],
) -> Vec<usize> {
    let mut class_work: Vec<(usize, f64)> = vec![];
    for op in ops {
        let mut op_classes: Vec<usize> = vec![];
        for (index, it) in analysis.op(*op).loops.iter().enumerate() {
            let class = classes.of_loop(*op, index);
            if it.kind != Kind::Whole && it.size > 1 && !op_classes.contains(&class) {
                op_classes.push(class);
            }
        }
        for class in op_classes {
            match class_work.iter_mut().find(|(known, _)| *known == class) {
                Some((_, all)) => *all += work[op.index()],
                None => class_work.push((class, work[op.index()])),
            }
        }
    }
    class_work.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let mut dims: Vec<usize> = class_work.into_iter().map(|(class, _)| class).take(DIMS).collect();
    dims.extend(pinned);
    dims.sort_unstable();
    dims.dedup();
    dims
}

/// All choices, the whole first. What is dear is not copied along some digits only, unless it is divided along at most one
/// dim besides. Where a dim is asked for, nodes may divide any.
pub(super) fn choices(digits: &Digits, dims: &[usize], is_dear: bool, is_pinned: bool) -> Vec<Choice> {
    let mut choices = vec![vec![]];
    for at in 0..digits.len() {
        let level = if at < digits.outside { 0 } else { digits.outside };
        choices = choices.iter().flat_map(|known| longer(digits, dims, is_pinned, known, level)).collect();
    }
    let kinds = |choice: &Choice| dims.iter().filter(|dim| choice.contains(&Some(**dim))).count();
    choices.retain(|choice| !is_dear || !choice.contains(&None) || kinds(choice) <= 1);
    choices.sort_by_key(|choice| choice.iter().any(Option::is_some));
    choices
}

fn longer(digits: &Digits, dims: &[usize], is_pinned: bool, known: &Choice, level: usize) -> Vec<Choice> {
    let at = known.len();
    let options = dims.iter().map(|dim| Some(*dim)).chain([None]);
    // After what the digit before it has, if that is of its size.
    let place =
        |it: &Option<usize>| it.map_or(dims.len(), |dim| dims.iter().position(|d| *d == dim).unwrap_or(0));
    let first =
        if at > level && digits.sizes[at - 1] == digits.sizes[at] { place(&known[at - 1]) } else { 0 };
    let longer = options.filter(|it| place(it) >= first).map(|it| [&known[..], &[it]].concat());
    longer.filter(|choice: &Choice| is_pinned || at >= digits.outside || divides_few(choice, dims)).collect()
}

/// Whether digits between nodes divide the first dim and at most one other.
fn divides_few(choice: &Choice, dims: &[usize]) -> bool {
    let mut others: Vec<&Option<usize>> =
        choice.iter().filter(|it| it.is_none() || **it != dims.first().copied()).collect();
    others.dedup();
    others.len() <= 1
}

/// What a choice means for an operator: the loop that each digit divides.
pub(super) fn loops(
    graph: &Graph,
    analysis: &Analysis,
    classes: &Classes,
    digits: &Digits,
    op: OpId,
    choice: &Choice,
) -> Loops {
    let dims = analysis.op(op);
    let mut left: Vec<i64> = dims.loops.iter().map(|it| it.size).collect();
    let mut reduced = None;
    let mut loops = vec![];
    for (class, &size) in choice.iter().zip(&digits.sizes) {
        let open = class.and_then(|class| classes.open_loop(analysis, op, class));
        let fits = open.filter(|index| {
            let reduction = match dims.loops[*index].kind {
                Kind::Reduce(reduction) => Some(reduction),
                _ => reduced,
            };
            let one = reduced.is_none() || reduction == reduced;
            let fits = one && left[*index] >= i64::from(size);
            if fits {
                reduced = reduction;
                left[*index] /= i64::from(size);
            }
            fits
        });
        loops.push(fits);
    }
    debug_assert!(plan::legal(graph, analysis, op, &super::sharding::splits(digits, &loops)).is_ok());
    loops
}
