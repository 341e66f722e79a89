//! The timetables of a program, drawn.

use std::collections::BTreeMap;

use program::{Body, Does, ExchangeId, Instr, Pass, Program, RankId, Timetable};
use schedule::{Block, Shape, ShapeLoop, Task, figure};

/// Ranks that run the same codes by the same timetable are a row. None where there is one block, or nothing runs.
pub fn drawn(program: &Program, batches: u32) -> Option<String> {
    let mut rows: Vec<(&Body, Vec<RankId>)> = vec![];
    for role in &program.roles {
        let same = |(body, _): &&mut (&Body, Vec<RankId>)| {
            body.timetable == role.body.timetable && run(body).eq(run(&role.body))
        };
        match rows.iter_mut().find(same) {
            Some((_, ranks)) => ranks.extend(&role.ranks),
            None => rows.push((&role.body, role.ranks.clone())),
        }
    }
    rows.iter_mut().for_each(|(_, ranks)| ranks.sort());
    rows.sort_by(|a, b| a.1.cmp(&b.1));
    let shape = shape(&rows);
    let names: Vec<String> = rows.iter().map(|(_, ranks)| named(ranks)).collect();
    let orders: Vec<Vec<ShapeLoop>> = rows.iter().map(|(body, _)| orders(&body.timetable)).collect();
    let text = figure(&shape, &names, &orders, batches).ok()?;
    (shape.blocks.len() > 1).then_some(text)
}

fn run(body: &Body) -> impl Iterator<Item = (u32, Pass)> + '_ {
    body.codes_of_batches().map(|code| (code.block, code.pass))
}

fn shape(rows: &[(&Body, Vec<RankId>)]) -> Shape {
    let mut blocks: Vec<Block> = vec![];
    let mut senders: BTreeMap<ExchangeId, usize> = BTreeMap::new();
    let all = || {
        rows.iter()
            .enumerate()
            .flat_map(|(row, (body, _))| body.codes_of_batches().map(move |code| (row, code)))
    };
    for (row, code) in all() {
        let at = code.block as usize;
        blocks.resize_with(blocks.len().max(at + 1), Block::default);
        blocks[at].trains |= code.pass != Pass::Forward;
        if blocks[at].devices.last() != Some(&row) {
            blocks[at].devices.push(row);
        }
        if code.pass == Pass::Forward {
            let sends = code.instrs.iter().filter(|instr| matches!(instr, Instr::Send { .. }));
            senders.extend(sends.filter_map(|instr| Some((instr.exchange()?, at))));
        }
    }
    for (_, code) in all().filter(|(_, code)| code.pass == Pass::Forward) {
        let received = code.instrs.iter().filter(|instr| matches!(instr, Instr::Receive { .. }));
        for from in received.filter_map(|instr| senders.get(&instr.exchange()?)) {
            let reads = &mut blocks[code.block as usize].reads;
            if !reads.contains(from) {
                reads.push(*from);
            }
        }
    }
    Shape { blocks, ..Shape::default() }.handing_on(rows.iter().flat_map(|(body, _)| lower::handed_on(body)))
}

fn orders(timetable: &Timetable) -> Vec<ShapeLoop> {
    let task = |task: &program::Task| Task {
        block: task.block as usize,
        pass: match task.does {
            Does::Forward => schedule::Pass::Forward,
            Does::Backward { .. } => schedule::Pass::Backward,
            Does::Inputs { .. } => schedule::Pass::Inputs,
            Does::Weights { .. } => schedule::Pass::Weights,
        },
        at: task.at,
    };
    let one = |it: &program::Loop| {
        let tasks = it.tasks.iter().map(task).collect();
        ShapeLoop { every: it.every, iterations: it.iterations, tasks }
    };
    timetable.loops.iter().map(one).collect()
}

/// `rank 0`, `ranks 0 2 5`, `ranks 0..64`.
fn named(ranks: &[RankId]) -> String {
    let run = ranks.windows(2).all(|two| two[0].0 + 1 == two[1].0);
    match ranks {
        [one] => format!("rank {}", one.0),
        [first, .., last] if run => format!("ranks {}..{}", first.0, last.0 + 1),
        [first, second, third, fourth, .., last] => {
            format!("ranks {} {} {} {} .. {}", first.0, second.0, third.0, fourth.0, last.0)
        }
        _ => format!("ranks {}", ranks.iter().map(|rank| rank.0.to_string()).collect::<Vec<_>>().join(" ")),
    }
}
