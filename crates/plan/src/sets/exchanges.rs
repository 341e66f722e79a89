//! Which operators of a named plan exchange rows along an axis instead of reading all tokens there: those whose other
//! axes divide their tokens, too, and nothing else.

use graph::OpId;

use super::{Axis, Model};
use crate::{On, Split, exchange, legal};

/// For each operator the axis along which it exchanges rows, if it does.
pub(super) struct Exchanges(Vec<Option<(usize, On)>>);

impl Exchanges {
    pub(super) fn new(model: &Model<'_>, axes: &[Axis], choices: &[Vec<Option<usize>>]) -> Self {
        let mut exchanges = vec![None; model.graph.ops.len()];
        for (number, axis) in axes.iter().enumerate().filter(|(_, axis)| axis.size > 1) {
            let Some(exchange) = axis.along.exchange else { continue };
            let all = exchange(model, axis.size);
            for (op, on) in model.graph.op_ids().zip(all) {
                let splits = on.and_then(|on| splits(model, op, axes, choices, number, on));
                if splits.is_some_and(|splits| legal(model.graph, model.analysis, op, &splits).is_ok()) {
                    exchanges[op.index()] = on.map(|on| (number, on));
                }
            }
        }
        Self(exchanges)
    }

    /// The choices along the axes, in which tokens are divided where rows are exchanged: no operator sums there.
    pub(super) fn instead_of(&self, mut choices: Vec<Vec<Option<usize>>>) -> Vec<Vec<Option<usize>>> {
        for (op, exchange) in self.0.iter().enumerate() {
            if let Some((axis, On::Exchange { tokens, .. })) = exchange {
                choices[*axis][op] = Some(*tokens);
            }
        }
        choices
    }

    pub(super) fn within(&self, mut choices: Vec<Vec<Option<On>>>) -> Vec<Vec<Option<On>>> {
        for (op, exchange) in self.0.iter().enumerate() {
            if let Some((axis, on)) = exchange {
                choices[*axis][op] = Some(*on);
            }
        }
        choices
    }
}

/// All splits of an operator; `None` if one of another axis is not of its tokens.
fn splits(
    model: &Model<'_>,
    op: OpId,
    axes: &[Axis],
    choices: &[Vec<Option<usize>>],
    exchange_axis: usize,
    on: On,
) -> Option<Vec<Split>> {
    let mut splits = vec![];
    for (number, axis) in axes.iter().enumerate() {
        if number == exchange_axis {
            splits.push(Split { on, parts: axis.size });
            continue;
        }
        match choices[number][op.index()] {
            _ if axis.size == 1 || axis.along.stages.is_some() => {}
            None if axis.along.in_turn() => {}
            Some(index)
                if !axis.along.in_turn()
                    && axis.along.places.is_none()
                    && exchange::is_of_tokens(model.graph, model.analysis, op, index) =>
            {
                splits.push(Split { on: On::Loop(index), parts: axis.size });
            }
            _ => return None,
        }
    }
    Some(splits)
}
