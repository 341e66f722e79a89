//! Local code between communications: operators in order, cut wherever a value or a gradient has to
//! move between two of them.

use graph::{OpId, Source};

use crate::uses::{Context, Reader, UseId, Uses};

#[derive(Debug, Default)]
pub struct Segment {
    pub ops: Vec<OpId>,
    /// The uses whose values are moved before it.
    pub before: Vec<UseId>,
}

/// The segments in order, and the segment of each operator.
pub struct Segments {
    pub all: Vec<Segment>,
    pub of: Vec<usize>,
    /// Uses by results and updates, moved after the last segment.
    pub after: Vec<UseId>,
}

pub fn cut(cx: &Context<'_>, uses: &Uses) -> Segments {
    let mut all: Vec<Segment> = vec![Segment::default()];
    let mut of = vec![usize::MAX; cx.graph.ops.len()];
    let mut moved = vec![false; uses.all.len()];
    for &op in cx.order {
        let placement = &cx.placements[op.index()];
        let mut needed = vec![];
        for (tensor, read) in cx.graph.op(op).inputs().into_iter().zip(&placement.inputs) {
            let id = uses.through(tensor, read.ports, read.carries_grad);
            if !uses.get(id).direct {
                needed.push(id);
            }
        }
        let current = all.len() - 1;
        let made_here = |id: &UseId| match cx.graph.tensor(uses.get(*id).tensor).source {
            Source::Op { op, .. } => of[op.index()] == current,
            _ => false,
        };
        // Parts that run one after another do not share local code with what runs once.
        let turn = |op: &OpId| cx.placements[op.index()].in_turn;
        let changes_turn = all[current].ops.last().is_some_and(|last| turn(last) != placement.in_turn);
        if needed.iter().any(made_here) || changes_turn {
            all.push(Segment::default());
        }
        let segment = all.len() - 1;
        for id in needed {
            if !std::mem::replace(&mut moved[id.index()], true) {
                all[segment].before.push(id);
            }
        }
        all[segment].ops.push(op);
        of[op.index()] = segment;
    }
    let leaves = |id: &UseId| uses.get(*id).readers.iter().any(|r| !matches!(r, Reader::Op(..)));
    let after = (0..uses.all.len()).map(UseId::new).filter(|id| leaves(id) && !moved[id.index()]).collect();
    all.retain(|s| !s.ops.is_empty());
    Segments { all, of, after }
}
