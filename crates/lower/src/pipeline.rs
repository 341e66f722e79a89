//! Blocks on their devices: who runs which, and in which order.

use std::collections::{BTreeSet, HashMap};

use diag::{Error, Result};
use graph::TensorId;
use program::{Body, BufId, Code, CodeKey, Instr, Loop, Pass, RankId, Steps, Task, Timetable, When};
use schedule::{Block, Orders, Shape, ShapeStep, Stuck, Times, simulate};

use crate::no_flush;
use crate::project::Projected;
use crate::uses::Context;

/// Those who run the same codes, by a timetable that the plan has for them, or not.
#[derive(Clone, PartialEq)]
struct SameCodes {
    codes: Vec<CodeKey>,
    /// Of these those of which one keeps something for another.
    handed: Vec<(ShapeStep, ShapeStep)>,
    written: Option<Vec<schedule::ShapeLoop>>,
}

/// Gives all ranks their timetables.
pub fn timetables(cx: &Context<'_>, projected: &mut [Projected]) -> Result<()> {
    let mut kinds: Vec<SameCodes> = vec![];
    let mut devices = vec![];
    for it in &*projected {
        let kind =
            SameCodes { codes: codes(&it.body), handed: handed_on(&it.body), written: written(cx, it)? };
        let known = kinds.iter().position(|other| *other == kind);
        devices.push(known.unwrap_or(kinds.len()));
        kinds.extend(known.is_none().then_some(kind));
    }
    let buffers: BTreeSet<(usize, usize)> = projected.iter().flat_map(blocks_with_buffers).collect();
    let goes_on = cx.plan.schedule.goes_on() && projected.iter().any(|it| it.body.trains());
    if goes_on {
        no_flush::validate(cx, projected)?;
    }
    let orders = ordered(cx, &kinds, &buffers)?;
    for (it, device) in projected.iter_mut().zip(devices) {
        let there = |pass: Pass| it.body.codes_of(pass).next().is_some();
        let (begins, ends) = (there(Pass::Begin), there(Pass::End));
        let loops: Vec<Loop> = orders.get(device).into_iter().flatten().map(looped).collect();
        let apart = Timetable { begins, loops, ends, steps: Steps::Apart };
        let stashes = apart.behind() > 0;
        let steps = if goes_on && !apart.loops.is_empty() { Steps::On { stashes } } else { Steps::Apart };
        it.body.timetable = Timetable { steps, ..apart };
    }
    Ok(())
}

fn codes(body: &Body) -> Vec<CodeKey> {
    body.codes_of_batches().map(Code::key).collect()
}

/// Blocks of which one updates a buffer that the other one reads or updates: no two micro-batches are between them.
fn blocks_with_buffers(it: &Projected) -> Vec<(usize, usize)> {
    let leaf_of: HashMap<BufId, TensorId> = it.body.leaves.iter().map(|it| (it.buf, it.tensor)).collect();
    let (mut updated, mut touched) = (BTreeSet::new(), BTreeSet::new());
    for code in it.body.codes_of(Pass::Forward) {
        for instr in &code.instrs {
            let read = instr.reads().filter_map(|buf| leaf_of.get(&buf).copied());
            touched.extend(read.map(|tensor| (tensor, code.block)));
            if let Instr::Update { shard, .. } = instr {
                updated.insert((it.table.shards[*shard].tensor, code.block));
            }
        }
    }
    touched.extend(updated.iter().copied());
    let pairs = updated.iter().flat_map(|(tensor, block)| {
        let others = touched.iter().filter(move |other| other.0 == *tensor && other.1 != *block);
        others.map(|other| (block.min(&other.1), block.max(&other.1)))
    });
    pairs.map(|(first, then)| (*first as usize, *then as usize)).collect()
}

/// The timetable that the plan has for ranks that are one in the program.
fn written(cx: &Context<'_>, it: &Projected) -> Result<Option<Vec<schedule::ShapeLoop>>> {
    let timetable_of = |rank: &RankId| cx.plan.timetables.get(&rank.0);
    let first = it.ranks.first().and_then(timetable_of);
    match it.ranks.iter().find(|rank| timetable_of(rank) != first) {
        None => Ok(first.cloned()),
        Some(rank) => {
            let what = format!(
                "devices {} and {} run the same code, but have different timetables",
                it.ranks[0].0, rank.0
            );
            Err(Error::new("SW0422", what)
                .why("in this code they may communicate with each other")
                .fix("give them the same timetable: `timetable 0..2: F0+1 B0`"))
        }
    }
}

/// The loops of all, with nothing that they have no code for.
fn ordered(cx: &Context<'_>, kinds: &[SameCodes], buffers: &BTreeSet<(usize, usize)>) -> Result<Orders> {
    let shape = shape(cx, kinds);
    let forward = |block: usize, at: i32| schedule::Task { block, pass: schedule::Pass::Forward, at };
    let of_buffers = buffers.iter().flat_map(|(first, then)| {
        [(forward(*first, 0), forward(*then, 0)), (forward(*then, 0), forward(*first, 1))]
    });
    let before: Vec<(schedule::Task, schedule::Task)> =
        cx.plan.before.iter().copied().chain(of_buffers).collect();
    let mut orders = cx
        .plan
        .schedule
        .order(&shape, &before)
        .ok_or_else(|| if cx.plan.schedule.goes_on() { no_flush::several(cx) } else { circle(cx) })?;
    for (kind, order) in kinds.iter().zip(&mut orders) {
        for it in &mut *order {
            it.tasks.retain(|task| kind.codes.contains(&code_of(task)));
        }
        order.retain(|it| !it.tasks.is_empty());
    }
    if kinds.iter().all(|kind| kind.written.is_none()) {
        return Ok(orders);
    }
    for (kind, order) in kinds.iter().zip(&mut orders) {
        let Some(written) = &kind.written else { continue };
        missing_or_strange(cx, kind, written)?;
        keeps_all(cx, written, &before)?;
        hands_on(cx, kind, written)?;
        order.clone_from(written);
    }
    let longest = orders.iter().flatten().flat_map(|it| {
        it.tasks.iter().map(|task| task.at.unsigned_abs() + it.every + it.iterations.unwrap_or(0))
    });
    let most = 2 * longest.max().unwrap_or(0) + 2;
    for batches in 1..=most {
        simulate(&shape, &orders, batches, Times::EQUAL).map_err(|stuck| wait_for_ever(batches, &stuck))?;
    }
    Ok(orders)
}

/// The blocks on those who run the same codes.
fn shape(cx: &Context<'_>, kinds: &[SameCodes]) -> Shape {
    let mut blocks: Vec<Block> = (0..cx.plan.block_count()).map(|_| Block::default()).collect();
    for (device, kind) in kinds.iter().enumerate() {
        for &CodeKey { block, pass } in &kind.codes {
            let block = &mut blocks[block as usize];
            block.trains |= pass.is_backward();
            if block.devices.last() != Some(&device) {
                block.devices.push(device);
            }
        }
    }
    for op in cx.graph.op_ids() {
        let reader = cx.plan.block(op);
        for (maker, _) in cx.graph.op(op).inputs().into_iter().filter_map(|tensor| cx.graph.producer(tensor))
        {
            let (maker, reads) = (cx.plan.block(maker), &mut blocks[reader as usize].reads);
            if maker != reader && !reads.contains(&(maker as usize)) {
                reads.push(maker as usize);
            }
        }
    }
    Shape { blocks, ..Shape::default() }.handing_on(kinds.iter().flat_map(|kind| kind.handed.clone()))
}

/// Passes of blocks of which one keeps something for the other on the ranks of a body.
pub fn handed_on(body: &Body) -> Vec<(ShapeStep, ShapeStep)> {
    let step = |CodeKey { block, pass }: CodeKey| {
        let pass = match pass {
            Pass::Forward => schedule::Pass::Forward,
            Pass::Backward => schedule::Pass::Backward,
            Pass::Inputs => schedule::Pass::Inputs,
            Pass::Weights => schedule::Pass::Weights,
            Pass::Begin | Pass::End => return None,
        };
        Some((block as usize, pass))
    };
    body.handed_on().into_iter().filter_map(|(first, then)| Some((step(first)?, step(then)?))).collect()
}

fn looped(order: &schedule::ShapeLoop) -> Loop {
    let tasks = order.tasks.iter().map(|task| made(task).at(task.at)).collect();
    Loop { every: order.every, iterations: order.iterations, tasks }
}

fn made(task: &schedule::Task) -> Task {
    let block = u32::try_from(task.block).unwrap_or(u32::MAX);
    match task.pass {
        schedule::Pass::Forward => Task::forward(block),
        schedule::Pass::Backward => Task::backward(block, When::Last),
        schedule::Pass::Inputs => Task::inputs(block),
        schedule::Pass::Weights => Task::weights(block, When::Last),
    }
}

fn code_of(task: &schedule::Task) -> CodeKey {
    made(task).code()
}

fn circle(cx: &Context<'_>) -> Error {
    let all: Vec<String> = cx.plan.before.iter().map(|(first, then)| format!("`{first} < {then}`")).collect();
    Error::new("SW0422", format!("no order of tasks respects {}", all.join(" and ")))
        .why("the `order` lines and what blocks need of each other form a cycle")
        .fix("remove one of the lines, or let the second task be of a later micro-batch: `order B0 < F0+2`")
}

/// Of a timetable that is written out.
fn missing_or_strange(cx: &Context<'_>, kind: &SameCodes, written: &[schedule::ShapeLoop]) -> Result<()> {
    let device = cx.plan.timetables.iter().find(|row| row.1 == written).map_or(0, |row| *row.0);
    let letter = |pass: Pass| match pass {
        Pass::Forward => 'F',
        Pass::Inputs => 'I',
        Pass::Weights => 'W',
        Pass::Begin | Pass::Backward | Pass::End => 'B',
    };
    let word = |CodeKey { block, pass }: CodeKey| format!("{}{block}", letter(pass));
    let all: BTreeSet<CodeKey> = written.iter().flat_map(|it| &it.tasks).map(code_of).collect();
    if let Some(code) = kind.codes.iter().find(|code| !all.contains(code)) {
        let what = format!("the timetable of device {device} leaves out `{}`", word(*code));
        return Err(Error::new("SW0422", what)
            .why("the device has something to do there")
            .fix(format!("say when it runs it: `timetable {device}: ... {}`", word(*code))));
    }
    if let Some(code) = all.iter().find(|code| !kind.codes.contains(code)) {
        let what = format!("the timetable of device {device} has `{}`", word(*code));
        return Err(Error::new("SW0422", what).why("the device has nothing to do there").fix("leave it out"));
    }
    match schedule::not_in_turn(written) {
        None => Ok(()),
        Some(task) => {
            let name = schedule::Task { at: 0, ..task };
            let what =
                format!("the timetable of device {device} does not run `{name}` once for each micro-batch");
            Err(Error::new("SW0422", what)
                .why("a line names a task once for each micro-batch by which it advances, in order")
                .fix(format!("write `timetable {device} by 2: ... {name} {name}+1` for two at a time")))
        }
    }
}

/// Orders of tasks hold in a timetable that is written out, too.
fn keeps_all(
    cx: &Context<'_>,
    written: &[schedule::ShapeLoop],
    before: &[(schedule::Task, schedule::Task)],
) -> Result<()> {
    let Some((first, then)) = before.iter().find(|pair| !schedule::comes_before(written, pair.0, pair.1))
    else {
        return Ok(());
    };
    let device = cx.plan.timetables.iter().find(|row| row.1 == written).map_or(0, |row| *row.0);
    let what = format!("the timetable of device {device} runs `{then}` before `{first}`");
    Err(Error::new("SW0422", what)
        .why("the plan orders these tasks, or one reads a buffer that the other updates")
        .fix(format!("write `{first}` before `{then}`, for every micro-batch")))
}

/// Nothing is run before what is kept for it is there.
fn hands_on(cx: &Context<'_>, kind: &SameCodes, written: &[schedule::ShapeLoop]) -> Result<()> {
    let task = |(block, pass): ShapeStep| schedule::Task { block, pass, at: 0 };
    let pairs = kind.handed.iter().map(|(first, then)| (task(*first), task(*then)));
    let mut late = pairs.filter(|(first, then)| !schedule::comes_before(written, *first, *then));
    let Some((first, then)) = late.next() else { return Ok(()) };
    let device = cx.plan.timetables.iter().find(|row| row.1 == written).map_or(0, |row| *row.0);
    let what = format!("the timetable of device {device} runs `{then}` before `{first}`");
    Err(Error::new("SW0422", what)
        .why(format!("for each micro-batch `{first}` keeps something on the device that `{then}` reads"))
        .fix(format!("write `{first}` before `{then}`, for every micro-batch")))
}

fn wait_for_ever(batches: u32, stuck: &Stuck) -> Error {
    let word = |(_, task, batch): &(usize, schedule::Task, u32)| {
        format!("`{}` of micro-batch {batch}", schedule::Task { at: 0, ..*task })
    };
    let what = format!("in a step of {batches} micro-batches devices would wait for each other for ever");
    Error::new("SW0422", what)
        .why(format!("they are in {}", stuck.iter().take(4).map(word).collect::<Vec<_>>().join(", in ")))
        .fix("let forwards of earlier blocks run further ahead, or leave the order to the schedule")
}
