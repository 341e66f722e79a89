//! `interlaced`: what reads the vocabulary (embeddings, and the projection to words with its loss) is taken out of the
//! stages of a pipeline, and divided over all its devices along the words, in blocks of its own between the stages.
//!
//! Lookups read nothing but inputs, so all of them come first, those of a decoder with those of its encoder, and what is
//! projected comes behind the stage that it reads from: so nothing goes round in a circle.

use diag::{Error, Result};
use graph::{Graph, OpId, Source};
use rules::{Kind, families};

use super::blocks::{Stages, stages};
use super::{AxisPlace, Model, Set, megatron};
use crate::{Draft, On, Split, legal};

pub(super) const SET: Set = Set {
    aside: Some(|model, stages| loops(model, stages).iter().map(Option::is_some).collect()),
    besides: &[("", interlace)],
    examples: &["stages:2 x interlaced"],
    ..Set::new(
        "interlaced",
        "embeddings and the projection to the vocabulary are sharded over all stages of a pipeline",
    )
};

fn interlace(model: &Model<'_>, draft: &mut Draft<'_>, _: &AxisPlace<'_>) -> Result<()> {
    let Stages { devices, of: stage_of, blocks: before } = stages(model, draft, "interlaced")?;
    let count = u32::try_from(devices.len()).unwrap_or(u32::MAX);
    let words = loops(model, count);
    if words.iter().all(Option::is_none) {
        return Err(Error::new(
            "SW0309",
            format!("`interlaced` finds no vocabulary in {}", model.graph.model),
        )
        .why("no embedding and no projection with a loss has a dim that can be split among all stages")
        .fix("leave it out"));
    }
    let ids = ids(model, &words);
    for op in model.graph.op_ids().filter(|op| words[op.index()].is_some() || ids[op.index()]) {
        let on = words[op.index()].map_or(On::Copies, On::Loop);
        spread(
            model,
            draft,
            op,
            Split { on, parts: count },
            &devices,
            stage_of[before[op.index()] as usize],
        )?;
    }
    draft.cut(blocks(model.graph, &before, &words, &ids));
    Ok(())
}

/// For each operator its loop over the words, if it has one: of the classes that end in a lookup or a loss those with the
/// largest parameters.
fn loops(model: &Model<'_>, parts: u32) -> Vec<Option<usize>> {
    let candidates: Vec<(usize, i64)> = (megatron::candidates(model, parts).into_iter())
        .filter(|class| is_of_words(model, *class))
        .map(|class| (class, largest(model, class)))
        .collect();
    let most = candidates.iter().map(|(_, size)| *size).max().unwrap_or(0);
    let mut words = vec![None; model.graph.ops.len()];
    for (class, _) in candidates.iter().filter(|(_, size)| *size > 0 && 2 * size >= most) {
        model.classes.all[*class].loops.iter().for_each(|(op, index)| words[op.index()] = Some(*index));
    }
    words
}

fn is_of_words(model: &Model<'_>, class: usize) -> bool {
    model.classes.all[class].loops.iter().any(|&(op, index)| {
        let is_map = model.analysis.op(op).loops[index].kind == Kind::Map;
        families::nature_of(&model.graph.op(op).target).has_vocabulary && !is_map
    })
}

/// The bytes of the largest parameter that a class divides.
fn largest(model: &Model<'_>, class: usize) -> i64 {
    let parameters = model.graph.tensor_ids().filter(|tensor| {
        let is_parameter = matches!(model.graph.tensor(*tensor).source, Source::Param { .. });
        let factors = 0..model.analysis.flat(*tensor).len();
        is_parameter && factors.into_iter().any(|f| model.classes.of_factor(*tensor, f) == class)
    });
    parameters.map(|tensor| model.graph.tensor(tensor).bytes()).max().unwrap_or(0)
}

/// What makes words and labels of inputs: no gradient goes through it, and no parameter is read.
fn ids(model: &Model<'_>, words: &[Option<usize>]) -> Vec<bool> {
    let graph = model.graph;
    let (needs_grad, mut of_inputs) = (graph.needs_grad(), vec![false; graph.ops.len()]);
    for op in graph.op_ids().filter(|op| words[op.index()].is_none()) {
        of_inputs[op.index()] = graph.op(op).inputs().into_iter().all(|tensor| {
            let made = graph.producer(tensor).is_none_or(|(maker, _)| of_inputs[maker.index()]);
            let parameter = matches!(graph.tensor(tensor).source, Source::Param { .. });
            made && !parameter && !needs_grad[tensor.index()]
        });
    }
    let mut ids = vec![false; graph.ops.len()];
    for op in graph.op_ids().collect::<Vec<_>>().into_iter().rev() {
        if words[op.index()].is_some() || ids[op.index()] {
            let makers = graph.op(op).inputs().into_iter().filter_map(|tensor| graph.producer(tensor));
            let asked = makers.filter(|(maker, _)| of_inputs[maker.index()]);
            asked.for_each(|(maker, _)| ids[maker.index()] = true);
        }
    }
    ids
}

/// Divides an operator once more, over all stages: each of its parts among the devices in the same place of each.
fn spread(
    model: &Model<'_>,
    draft: &mut Draft<'_>,
    op: OpId,
    split: Split,
    devices: &[Vec<u32>],
    stage: usize,
) -> Result<()> {
    let splits: Vec<Split> = draft.splits_of(op).iter().copied().chain([split]).collect();
    legal(model.graph, model.analysis, op, &splits)?;
    let stage_devices = &devices[stage];
    let place = |device: &u32| stage_devices.iter().position(|it| it == device).unwrap_or(0);
    let places: Vec<usize> = draft.devices_of(op).iter().map(place).collect();
    let all = places.iter().flat_map(|place| devices.iter().map(|stage| stage[*place])).collect::<Vec<_>>();
    draft.set(op, splits);
    draft.place(op, all)
}

/// Lookups first; then stage by stage, and behind each what is projected of what it gives. Whatever reads that goes along.
fn blocks(graph: &Graph, stages: &[u32], words: &[Option<usize>], ids: &[bool]) -> Vec<u32> {
    let mut blocks: Vec<u32> = vec![];
    for op in graph.op_ids() {
        let makers = graph.op(op).inputs().into_iter().filter_map(|tensor| graph.producer(tensor));
        let read = makers.map(|(maker, _)| blocks[maker.index()]).max().unwrap_or(0);
        blocks.push(match (words[op.index()], ids[op.index()]) {
            (_, true) => 0,
            // Even numbers are between stages.
            (Some(_), _) => read.next_multiple_of(2),
            (None, _) => read.max(2 * stages[op.index()] + 1),
        });
    }
    let mut used = blocks.clone();
    used.sort_unstable();
    used.dedup();
    let number =
        |block: &u32| used.binary_search(block).map_or(0, |at| u32::try_from(at).unwrap_or(u32::MAX));
    blocks.iter().map(number).collect()
}
