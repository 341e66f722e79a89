//! Local code between communications: operators in order, cut wherever a value or a gradient has to
//! move between two of them, where other parameters have to be gathered, and where a bucket of parameters' gradients is full, so that reducing it
//! overlaps with the rest of backward.

use std::collections::BTreeSet;
use std::rc::Rc;

use graph::{OpId, Source};
use program::Saves;

use crate::layout::{Interner, bytes};
use crate::param_sharding::{ParamShardings, layer};
use crate::spans::{self, Inside};
use crate::uses::{Context, TensorReader, UseId, Uses};

/// Gradients of parameters are reduced in buckets of about this many bytes.
pub const BUCKET: u64 = 25 << 20;

#[derive(Debug)]
pub struct Segment {
    pub ops: Vec<OpId>,
    /// The uses whose values are moved before it.
    pub before: Vec<UseId>,
    pub block: u32,
    /// The spans that it is in, which are recomputed.
    pub inside: Inside,
    /// What forward saves of it. Of what is in spans that is nothing, and backward calls it again. What is dear and
    /// reads from spans that it is not in saves what it gives: what it reads, backward computes again.
    pub saves: Saves,
    /// What must be gathered for it, if parameters are gathered in passing.
    pub units: BTreeSet<usize>,
    /// What the plan sends to the host that it is in.
    pub offloaded: Option<usize>,
}

impl Segment {
    fn new(inside: &Inside, offloaded: Option<usize>, block: u32) -> Self {
        Self {
            ops: vec![],
            before: vec![],
            block,
            inside: Rc::clone(inside),
            saves: Saves::All { offloaded: false },
            units: BTreeSet::new(),
            offloaded,
        }
    }
}

/// The segments in order, and the segment of each operator.
pub struct Segments {
    pub all: Vec<Segment>,
    pub of: Vec<usize>,
    /// Uses by results and updates, moved after the last segment.
    pub after: Vec<UseId>,
}

impl Segments {
    /// The segments of a block with their numbers, in order.
    pub fn of_block(&self, block: u32) -> impl DoubleEndedIterator<Item = (usize, &Segment)> {
        self.all.iter().enumerate().filter(move |(_, segment)| segment.block == block)
    }
}

pub fn cut(cx: &Context<'_>, uses: &Uses, param_shardings: &ParamShardings, interner: &Interner) -> Segments {
    let (spans, offloaded) = (spans::spans(cx), offloaded(cx));
    let first = |op: &OpId| Segment::new(&spans[op.index()], offloaded[op.index()], cx.plan.block(*op));
    let mut all: Vec<Segment> = cx.order.first().map(first).into_iter().collect();
    let mut segment_of = vec![usize::MAX; cx.graph.ops.len()];
    let mut moved = vec![false; uses.all.len()];
    let mut waiting = 0;
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
            Source::Op { op, .. } => segment_of[op.index()] == current,
            _ => false,
        };
        // Parts that run one after another do not share local code with what runs once.
        let turn = |op: &OpId| cx.placements[op.index()].in_turn;
        let new_layer = all[current].ops.last().is_some_and(|last| layer(cx, *last) != layer(cx, op));
        let bucket_full = waiting >= BUCKET && new_layer;
        let block = cx.plan.block(op);
        let new_block = all[current].block != block;
        let changes_turn = all[current].ops.last().is_some_and(|last| turn(last) != placement.in_turn);
        let inside = &spans[op.index()];
        let changes_span = all[current].inside != *inside || all[current].offloaded != offloaded[op.index()];
        let units: BTreeSet<usize> = cx
            .graph
            .op(op)
            .inputs()
            .into_iter()
            .filter_map(|tensor| param_shardings.in_passing(tensor))
            .collect();
        let before = &all[current].units;
        let changes_unit = !before.is_empty() && !units.is_subset(before);
        if needed.iter().any(made_here)
            || changes_turn
            || changes_span
            || changes_unit
            || bucket_full
            || new_block
        {
            all.push(Segment::new(inside, offloaded[op.index()], block));
            waiting = 0;
        }
        let segment = all.len() - 1;
        all[segment].units.extend(units);
        for id in needed {
            if !moved[id.index()] {
                waiting += to_reduce(cx, uses, interner, id);
            }
            if !std::mem::replace(&mut moved[id.index()], true) {
                all[segment].before.push(id);
            }
        }
        all[segment].ops.push(op);
        segment_of[op.index()] = segment;
    }
    let leaves = |id: &UseId| uses.get(*id).readers.iter().any(|r| !matches!(r, TensorReader::Op(..)));
    let after = (0..uses.all.len()).map(UseId::new).filter(|id| leaves(id) && !moved[id.index()]).collect();
    all.retain(|s| !s.ops.is_empty());
    all.iter_mut().for_each(|segment| segment.saves = saves(cx, &spans, segment));
    Segments { all, of: segment_of, after }
}

fn saves(cx: &Context<'_>, spans: &[Inside], segment: &Segment) -> Saves {
    let keeps = || segment.ops.iter().any(|op| spans::keeps(cx.graph, cx.analysis, *op, cx.needs_grad));
    if !segment.inside.is_empty() && keeps() {
        return Saves::Nothing;
    }
    let offloaded = segment.offloaded.is_some() && keeps();
    if spans::reads_recomputed(cx, spans, &segment.ops) {
        Saves::Made { offloaded }
    } else {
        Saves::All { offloaded }
    }
}

/// For each operator the set of the plan that goes to the host with it.
fn offloaded(cx: &Context<'_>) -> Vec<Option<usize>> {
    let mut offloaded = vec![None; cx.graph.ops.len()];
    for (number, span) in cx.plan.offload.iter().enumerate() {
        span.iter().for_each(|op| offloaded[op.index()] = Some(number));
    }
    offloaded
}

/// Bytes of a parameter's gradient that have to be summed over ranks.
fn to_reduce(cx: &Context<'_>, uses: &Uses, interner: &Interner, id: UseId) -> u64 {
    let it = uses.get(id);
    let is_param = matches!(cx.graph.tensor(it.tensor).source, Source::Param { .. });
    let ports = interner.get_ports(it.ports);
    if is_param && it.carries_grad && ports.grads > 1 {
        bytes(cx.graph, it.tensor, &ports.entries[0].region)
    } else {
        0
    }
}
