//! The check has an answer to any program, however wrong: it reads nothing that it has not seen to be there.

use std::sync::Arc;

use graph::TensorId;
use program::{Exchange, Of, Piece, Program, RankId, Steps};
use rules::{Interval, Reduction, Region};

use crate::support::{faults, graph, program};

const MLP: &str = include_str!("programs/mlp.graph");
const MEGATRON: &str = include_str!("programs/megatron.txt");
const DATA: &str = include_str!("programs/data.txt");
const INNER: &str = include_str!("programs/mlp_inner.graph");
const INNER_TENSOR: &str = include_str!("programs/inner_tensor.txt");
const INNER_DATA: &str = include_str!("programs/inner_data.txt");

/// The first code with which a program is refused that was changed as text.
fn refused(model: &str, text: &str, old: &str, new: &str) -> &'static str {
    assert!(text.contains(old), "nothing to change: {old}");
    faults(&graph(model), &text.replace(old, new)).first().map_or("proved", |fault| fault.code)
}

/// The same for a change of the program itself.
fn changed(change: impl FnOnce(&mut Program)) -> &'static str {
    let model = graph(MLP);
    let mut program = program(&model, DATA);
    change(&mut program);
    check::check(&model, &program).err().map_or("proved", |faults| faults[0].code)
}

#[test]
fn a_tensor_may_be_one_of_other_dims() {
    assert_eq!(refused(MLP, MEGATRON, "grad 0 dy ->", "grad 0 ds ->"), "SW0509");
    assert_eq!(refused(MLP, MEGATRON, "grad 2 ds -> dy", "grad 2 ds -> dy\nadd ds, dy -> dz"), "SW0507");
    assert_eq!(refused(MLP, MEGATRON, "output s\n", "output y2\n"), "SW0512");
    let (bias, weight) = ("yp = aten.linear.default(a, w2)", "yp = aten.linear.default(a, b1)");
    assert_eq!(refused(INNER, INNER_TENSOR, bias, weight), "SW0504");
}

#[test]
fn a_cut_may_have_any_numbers() {
    let cut = ": [4, 8] 0 [2, 2]";
    let of = |other: &str| refused(INNER, INNER_DATA, cut, other);
    assert_eq!(of(": [4, 8] 0 [9223372036854775807, 1]"), "SW0507");
    assert_eq!(of(": [4, 8] 0 [-1, 5]"), "SW0507");
    assert_eq!(of(": [4, 8] 7 [2, 2]"), "SW0507");
    assert_eq!(of(": [4] 0 [2, 2]"), "SW0507");
    assert_eq!(of(": [[4294967296, 4294967296, 4], 8] 2 [2, 2]"), "SW0507");
    assert_eq!(of(": [[0, 9223372036854775807, 4], 8] 2 [2, 2]"), "SW0507");
}

/// A table is looked at also where no instruction names it: other parts of the check go through all of them.
#[test]
fn a_table_of_an_exchange_may_name_anything() {
    let rows = |lo, hi| Region(Box::new([Interval { lo, hi }, Interval { lo: 0, hi: 8 }]));
    let ends = |rank| vec![(RankId(rank), rows(0, 4))];
    let with = |tensor: u32, rank: u32, pieces: Vec<Piece>| {
        changed(|program| {
            let (sources, targets) = (Arc::new(ends(rank)), Arc::new(ends(1)));
            let tensor = TensorId(tensor);
            program.exchanges.push(Exchange {
                tensor,
                reduction: Reduction::Sum,
                sources,
                targets,
                pieces: Arc::new(pieces),
            });
        })
    };
    let piece = |from, to, region| vec![Piece { from, to, region }];
    assert_eq!(with(0, 0, piece(0, 0, rows(0, 4))), "proved");
    assert_eq!(with(0, 0, piece(1, 0, rows(0, 4))), "SW0502");
    assert_eq!(with(0, 0, piece(0, usize::MAX, rows(0, 4))), "SW0502");
    assert_eq!(with(0, 0, piece(0, 0, rows(0, i64::MAX))), "SW0502");
    assert_eq!(with(0, 0, piece(0, 0, Region(Box::new([])))), "SW0502");
    assert_eq!(with(0, 7, piece(0, 0, rows(0, 4))), "SW0502");
    assert_eq!(with(1000, 0, vec![]), "SW0502");
}

#[test]
fn numbers_of_tensors_and_blocks_may_be_any() {
    let nowhere = TensorId(1000);
    let on_host = changed(|program| {
        program.held_on_host = vec![nowhere];
        let role = &mut program.roles[0];
        role.body.leaves[0].tensor = nowhere;
        role.table.leaves[0].0 = Of::Shard(0);
    });
    assert_eq!(on_host, "SW0502");
    let far = changed(|program| {
        let body = &mut program.roles[0].body;
        body.timetable.steps = Steps::On { stashes: true };
        let (codes, tasks) = (&mut body.codes, &mut body.timetable.loops[0].tasks);
        codes.iter_mut().for_each(|code| code.block = u32::MAX);
        tasks.iter_mut().for_each(|task| task.block = u32::MAX);
    });
    assert_eq!(far, "SW0502");
}

/// Also where nobody reads it.
#[test]
fn a_sum_is_of_something() {
    let empty = changed(|program| {
        let body = &mut program.roles[0].body;
        let to = program::BufId(body.bufs.len() as u32);
        body.bufs.push(program::Buf { name: "empty".into(), tensor: TensorId(0), grad: false });
        body.codes[0].instrs.insert(0, program::Instr::Add { from: vec![], to });
    });
    assert_eq!(empty, "SW0502");
}
