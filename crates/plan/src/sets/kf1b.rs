//! `kf1b`: a module is called several times, each time on what the time before gave, and the last time learns. Each
//! call goes through all stages of the pipeline, so that a stage has as many blocks as there are calls, with the same
//! parameters.
//!
//! The last call is cut evenly, with all that follows it; an operator of another one is on the stage of its like there.

use std::collections::BTreeMap;

use diag::{Error, Result};
use graph::OpId;

use super::{Argument, Auto, Model, Rounds, Set, stages};

pub(super) const SET: Set = Set {
    rounds: Some(Rounds { count, cut, stage: |block, stages| block % stages }),
    auto: Auto::OtherSchedule(&[Argument::None]),
    examples: &["stages:2 x kf1b"],
    ..Set::new(
        "kf1b",
        "a module that is called several times runs its forwards through all stages one after another",
    )
};

/// How many calls there are.
fn count(model: &Model<'_>, said: Option<u32>) -> Result<u32> {
    let begins = begins(model);
    let calls = u32::try_from(begins.len()).unwrap_or(u32::MAX);
    if calls > 1 && said.is_none_or(|said| said == calls) {
        return Ok(calls);
    }
    let name = said.map_or("kf1b".into(), |said| format!("kf1b:{said}"));
    let error = Error::new("SW0309", format!("`{name}` finds no such calls in {}", model.graph.model));
    Err(match calls {
        0 | 1 => error.why("no module is called several times, one call after another").fix("leave it out"),
        _ => error
            .why(format!("most of its operators are in modules that are called {calls} times"))
            .fix(format!("write `kf1b:{calls}`, or `kf1b`")),
    })
}

/// The path of a module, and the number of the call.
fn call(path: &str) -> (&str, usize) {
    let numbered = path.rsplit_once('@').and_then(|(path, number)| Some((path, number.parse().ok()?)));
    numbered.unwrap_or((path, 0))
}

/// How often each module is called.
fn calls<'m>(model: &Model<'m>) -> BTreeMap<&'m str, usize> {
    let mut calls = BTreeMap::new();
    for (path, number) in model.graph.ops.iter().map(|op| call(&op.module)) {
        let most: &mut usize = calls.entry(path).or_default();
        *most = (*most).max(number + 1);
    }
    calls
}

/// Where each call begins: of the modules that are called as often as those of most operators, the first operator.
/// Nothing, where these calls do not follow each other.
fn begins(model: &Model<'_>) -> Vec<usize> {
    let (graph, calls) = (model.graph, calls(model));
    let mut operators: BTreeMap<usize, usize> = BTreeMap::new();
    graph.ops.iter().for_each(|op| *operators.entry(calls[call(&op.module).0]).or_default() += 1);
    let most = operators.into_iter().max_by_key(|row| row.1).map(|row| row.0);
    let mut begins: Vec<usize> = vec![];
    for (at, op) in graph.ops.iter().enumerate() {
        let (path, number) = call(&op.module);
        match begins.len() {
            _ if Some(calls[path]) != most => {}
            known if number == known => begins.push(at),
            known if number + 1 == known => {}
            _ => return vec![],
        }
    }
    begins
}

/// An operator as it is in every call: the module, what it does, and how many of its like came before.
type Like<'m> = (&'m str, &'m str, usize);

fn cut(model: &Model<'_>, aside: &[bool], stages: u32, _: u32) -> Vec<u32> {
    let (graph, begins) = (model.graph, begins(model));
    let last = begins.last().copied().unwrap_or(0);
    let likes = likes(model, &begins);
    let but = |leaves_out: &dyn Fn(usize) -> bool| {
        let aside: Vec<bool> = (0..aside.len()).map(|op| aside[op] || leaves_out(op)).collect();
        stages::cut(model, &aside, stages)
    };
    let is_called = |op: &usize| *op >= last && likes[*op].1.is_some();
    let even = but(&|op| op < last);
    // A stage of nothing but what follows the calls would have nothing in the calls before.
    let has_part = |stage: u32| (last..even.len()).any(|op| even[op] == stage && is_called(&op));
    let even = if (0..stages).all(has_part) { even } else { but(&|op| !is_called(&op)) };
    let stage_of = |op: usize| Some((likes[op].1?, even[op]));
    let of_like: BTreeMap<Like<'_>, u32> = (last..likes.len()).filter_map(stage_of).collect();
    let mut blocks: Vec<u32> = vec![];
    for op in graph.op_ids() {
        let (call, like) = likes[op.index()];
        let makers = graph.op(op).inputs().into_iter().filter_map(|tensor| graph.producer(tensor));
        let read = makers.map(|(maker, _)| blocks[maker.index()]).max().unwrap_or(0);
        let stage =
            if op.index() < last { like.and_then(|like| of_like.get(&like)) } else { even.get(op.index()) };
        blocks.push(read.max(call * stages + stage.copied().unwrap_or(0)));
    }
    blocks
}

/// Of each operator the call that it is in, what comes before the first and after the last with these, and its like where
/// there may be one.
fn likes<'m>(model: &Model<'m>, begins: &[usize]) -> Vec<(u32, Option<Like<'m>>)> {
    let calls = calls(model);
    let mut seen: BTreeMap<(usize, &str, &str), usize> = BTreeMap::new();
    let like = |op: OpId| {
        let number = begins.iter().skip(1).filter(|begin| **begin <= op.index()).count();
        let (module, _) = call(&model.graph.op(op).module);
        let target = &model.graph.op(op).target[..];
        let before = seen.entry((number, module, target)).or_default();
        *before += 1;
        let like = (calls[module] > 1).then_some((module, target, *before));
        (u32::try_from(number).unwrap_or(u32::MAX), like)
    };
    model.graph.op_ids().map(like).collect()
}
