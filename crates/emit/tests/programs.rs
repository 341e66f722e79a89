//! Programs made by hand: their text, and reading it back.

use std::sync::Arc;

use emit::{File, emit, read};
use graph::Graph;
use program::{
    Arg, CallId, Collective, Cut, Does, Exchange, ExchangeId, GradSync, GroupingId, How, Instr, KeepId, Leaf,
    Loop, Of, Offloaded, Pass, PerRank, Piece, Program, RankId, Saves, Slice, Steps, Task, Timetable, Update,
    When,
};
use rules::{Interval, Reduction, Region};
use serde_json::Value;

use crate::common::{Builder, graph, program, roundtrip, single, stable, text};

const GPT: &str = include_str!("gpt.graph");

fn region(list: &[(i64, i64)]) -> Region {
    Region(list.iter().map(|&(lo, hi)| Interval { lo, hi }).collect())
}

#[test]
fn gpt_on_one_rank() {
    let graph = graph(GPT);
    insta::assert_snapshot!(text(&stable(&graph, &single(&graph))));
}

const MLP: &str = r#"
model "MLP"
module "c_fc" "Linear"
module "gelu" "GELU"
module "c_proj" "Linear"
input %x f32[4,8] 0
param %w1 f32[32,8] "c_fc.weight"
param %b1 f32[32] "c_fc.bias"
param %w2 f32[8,32] "c_proj.weight"
op %linear f32[4,32] = aten.linear.default(%x, %w1, %b1) in "c_fc" at "model.py:10"
op %gelu f32[4,32] = aten.gelu.default(%linear, approximate="tanh") in "gelu" at "model.py:11"
op %linear_1 f32[4,8] = aten.linear.default(%gelu, %w2) in "c_proj" at "model.py:12"
op %mean f32[] = aten.mean.default(%linear_1) in "" at "model.py:13"
output %mean
"#;

#[test]
fn every_timetable_that_can_be_written_is_read_back() {
    let graph = graph(MLP);
    for scaled in 0..3 {
        for settles in [When::Never, When::Each, When::First, When::Last] {
            let mut program = megatron(&graph);
            let backward = Task { does: Does::Backward { scaled, settles }, ..Task::forward(0) };
            for (at, every, iterations) in [
                (0, 1, None),
                (3, 1, None),
                (-2, 1, None),
                (9, 4, None),
                (-9, 4, None),
                (-2, 1, Some(7)),
                (1, 3, Some(2)),
            ] {
                let tasks = vec![backward.clone(), Task::forward(0).at(at), Task::forward(0)];
                let loops = vec![Loop { every, iterations, tasks }];
                program.roles[0].body.timetable = Timetable { loops, ..Timetable::default() };
                stable(&graph, &program);
            }
        }
    }
    for (at, stashes) in [(0, false), (-1, true), (-7, true), (2, false)] {
        for settles in [When::Never, When::Each, When::First, When::Last] {
            let mut program = megatron(&graph);
            let tasks = vec![Task::forward(0), Task::backward(0, settles).at(at)];
            let loops = vec![Loop::over_all(tasks)];
            let steps = Steps::On { stashes };
            program.roles[0].body.timetable = Timetable { loops, steps, ..Timetable::default() };
            stable(&graph, &program);
        }
    }
    for (every, at) in [(1, 5), (3, 5), (3, -5), (4, -8)] {
        let mut program = megatron(&graph);
        let parts = [vec![Task::forward(0).at(at)], vec![Task::backward(0, When::Each)], vec![]];
        let loops = parts.map(|tasks| Loop { every, iterations: None, tasks }).to_vec();
        program.roles[0].body.timetable = Timetable { loops, ..Timetable::default() };
        stable(&graph, &program);
    }
}

/// Megatron: `c_fc` split by rows, `c_proj` by columns, one all-reduce.
fn megatron(graph: &Graph) -> Program {
    let mut b = Builder::new(graph);
    let first = b.call(0..3, &["linear_1"], |_| {});
    let partial = b.named("linear_1");
    let sum = b.buf(b.id("linear_1"));
    let (group, how) = (GroupingId(0), How::AllReduce(Reduction::Sum));
    b.forward(Instr::Collective(Collective {
        how,
        group,
        from: vec![partial],
        to: vec![sum],
        overlaps: false,
    }));
    let second = b.call(3..4, &["mean"], |_| {});
    b.outputs();
    let seed = b.gradient("mean");
    b.seeds(&[seed]);
    let g = b.gradient("linear_1");
    b.grad(second, &[seed], &[g]);
    b.grad(first, &[g], &[]);
    let mut program = program(graph, 2);
    program.groupings.push(vec![vec![RankId(0), RankId(1)]]);
    let mut role = b.role(0..2);
    let halves = |of: &dyn Fn((i64, i64)) -> Region| PerRank::from_values(vec![of((0, 16)), of((16, 32))]);
    let per_rank = [
        halves(&|half| region(&[half, (0, 8)])),
        halves(&|half| region(&[half])),
        halves(&|half| region(&[(0, 8), half])),
    ];
    for (index, per_rank) in per_rank.into_iter().enumerate() {
        role.table.shards[index].region = per_rank.clone();
        role.table.leaves[index].1 = per_rank;
    }
    program.roles.push(role);
    program
}

#[test]
fn megatron_mlp_on_two_ranks() {
    let graph = graph(MLP);
    insta::assert_snapshot!(text(&stable(&graph, &megatron(&graph))));
}

const MIXED: &str = r#"
model "Mixed"
input %x f32[4,12] 0
input %idx i64[4] 1
param %w f32[12,12] "w"
param %e f32[10,12] "e.weight" "head.weight"
buffer %m f32[12] "m"
op %embedding f32[4,12] = aten.embedding.default(%e, %idx) in "e" at "m.py:1"
op %linear f32[4,12] = aten.linear.default(%x, %w) in "" at "m.py:2"
op %mean f32[12] = aten.mean.dim(%linear, [0]) in "" at "m.py:3" nograd
op %mul f32[12] = aten.mul.Tensor(%m, 0.9) in "" at "m.py:3" nograd
op %add f32[12] = aten.add.Tensor(%mul, %mean, alpha=0.1) in "" at "m.py:3" nograd
op %add_1 f32[4,12] = aten.add.Tensor(%embedding, %linear) in "" at "m.py:4"
op %split f32[4,6], _ = aten.split.Tensor(%add_1, 6, 1) in "" at "m.py:5"
op %cat f32[4,12] = aten.cat.default([%split, %split], 1) in "" at "m.py:6"
op %dropout f32[4,12] = aten.dropout.default(%cat, 0.1, True) in "" at "m.py:7"
op %sum f32[] = aten.sum.default(%dropout) in "" at "m.py:8"
output %sum
output none
output %cat
update "m" %add
"#;

/// Each kind of instruction at least once, with holes, slices, recomputation and uneven pieces.
fn mixed(graph: &Graph) -> Program {
    let mut b = Builder::new(graph);
    b.body.holes = vec!["start_0".to_owned(), "lambda".to_owned()];
    let again = b.extra("e", b.id("e"), false);
    b.body.leaves.push(Leaf { tensor: b.id("e"), number: 1, buf: again });
    let e = b.named("e");
    b.call(0..1, &["embedding"], |op| {
        op.target = "sw.embedding_shard".to_owned();
        op.args.push(Arg::Hole(0));
        op.args.push(Arg::Int(-1));
    });
    let (group, embedding) = (GroupingId(0), b.id("embedding"));
    let collective = |how, from, to| {
        Instr::Collective(Collective { how, group, from: vec![from], to: vec![to], overlaps: false })
    };
    let (from, to) = (b.named("embedding"), b.buf(embedding));
    b.forward(collective(How::AllReduce(Reduction::Max), from, to));
    let pair = vec![b.extra("embedding", embedding, false), b.extra("embedding", embedding, false)];
    let how = How::AllReduce(Reduction::Sum);
    b.forward(Instr::Collective(Collective { how, group, from: vec![from, to], to: pair, overlaps: false }));
    let (from, to) = (to, b.buf(embedding));
    let extents = vec![vec![Arg::Int(4)], vec![Arg::Int(3), Arg::Hole(1)]];
    let part = vec![(Arg::Int(0), Arg::Int(4)), (Arg::Hole(0), Arg::Int(3)), (Arg::Int(-1), Arg::Int(4))];
    b.forward(Instr::Slice(Slice { from, to, extents, region: part }));
    let cut = |factor, sizes: &[i64]| Cut {
        extents: vec![vec![Arg::Int(4)], vec![Arg::Int(3), Arg::Int(4)]],
        factor,
        sizes: sizes.to_vec(),
    };
    let (from, to) = (to, b.buf(embedding));
    b.forward(collective(How::AllGather(cut(1, &[2, 1])), from, to));
    let (from, to) = (to, b.buf(embedding));
    b.forward(collective(How::ReduceScatter(cut(0, &[2, 2])), from, to));
    let (from, to) = (to, b.buf(embedding));
    let (send, receive) = (cut(1, &[1, 2]), cut(2, &[2, 2]));
    b.forward(collective(How::AllToAll { send, receive }, from, to));
    let (from, to) = (to, b.buf(embedding));
    let other = b.extra("embedding", embedding, false);
    b.forward(Instr::Exchange { exchange: ExchangeId(0), from: vec![from], to: vec![to, other] });
    let last = b.call(1..10, &["sum", "cat", "add"], |op| {
        if op.target == "aten.dropout.default" {
            op.target = "sw.dropout".to_owned();
            op.args = vec![op.args[0].clone(), Arg::Float(0.1), Arg::Int(i64::from(op.op.0)), Arg::Int(0)];
        }
    });
    if let Some(Instr::Call(call)) = b.body.code_mut(0, Pass::Forward).instrs.last_mut() {
        call.saves = Saves::Nothing;
    }
    if let Some(Instr::Call(call)) = b.body.code_mut(0, Pass::Forward).instrs.first_mut() {
        call.saves = Saves::All { offloaded: true };
    }
    b.forward(Instr::Update { shard: 2, from: b.named("add") });
    b.forward(Instr::Keep { id: KeepId(0), from: vec![b.named("add")], offloads: true });
    b.outputs();
    let (seed, seed_2) = (b.gradient("sum"), b.gradient("cat"));
    b.seeds(&[seed, seed_2]);
    let (g, g_2, g_3) = (b.gradient("embedding"), b.gradient("embedding"), b.gradient("embedding"));
    b.backward(Instr::Grad(program::Grad {
        call: last,
        which: program::Which::Both,
        from: vec![Some(seed), None],
        to: vec![Some(g)],
        recomputed: vec![],
    }));
    b.backward(Instr::Fetch { what: Offloaded::Call(CallId(0)) });
    b.backward(Instr::Fetch { what: Offloaded::Kept(KeepId(0)) });
    b.backward(Instr::Exchange { exchange: ExchangeId(1), from: vec![], to: vec![g_2] });
    b.backward(Instr::Add { from: vec![g, g_2, g], to: g_3 });
    b.backward(Instr::Exchange { exchange: ExchangeId(0), from: vec![g_3], to: vec![] });
    b.backward(Instr::Grad(program::Grad {
        call: CallId(0),
        which: program::Which::Both,
        from: vec![Some(g_3)],
        to: vec![None],
        recomputed: vec![],
    }));
    let leaves = vec![program::LeafId(0), program::LeafId(3)];
    b.backward(Instr::ReduceGradients { group, leaves: leaves.clone() });
    b.backward(Instr::ExchangeGradients {
        exchange: ExchangeId(1),
        leaves,
        shards: vec![0, 1],
        when: GradSync::Last,
    });
    let own = vec![program::LeafId(0)];
    b.body.code_mut(0, Pass::Begin).instrs.push(Instr::Gather { group, copies: vec![0] });
    b.backward(Instr::Gather { group, copies: vec![0] });
    b.backward(Instr::Release { copies: vec![0] });
    b.backward(Instr::Scatter { group, leaves: own.clone(), when: GradSync::Each });
    b.backward(Instr::Scatter { group, leaves: own.clone(), when: GradSync::Last });
    b.backward(Instr::Part { leaves: own, when: GradSync::Each });
    b.backward(Instr::ReduceShards { group, shards: vec![0] });
    let _ = e;
    let mut program = program(graph, 3);
    program.groupings = vec![vec![vec![RankId(0), RankId(2)]]];
    program.factors[embedding.index()] = vec![vec![4], vec![3, 4]];
    let exchange = |reduction| Exchange {
        tensor: embedding,
        reduction,
        sources: Arc::new(vec![(RankId(0), region(&[(0, 2), (0, 3), (0, 4)]))]),
        targets: Arc::new(vec![(RankId(2), region(&[(1, 4), (0, 3), (0, 4)]))]),
        pieces: Arc::new(vec![Piece { from: 0, to: 0, region: region(&[(1, 2), (0, 3), (0, 4)]) }]),
    };
    program.exchanges = vec![exchange(Reduction::Sum), exchange(Reduction::Any)];
    let mut role = b.role(0..2);
    role.ranks[1] = RankId(2);
    role.table.constants = vec![PerRank::from_values(vec![0, 5]), PerRank::Same(7)];
    role.body.timetable.begins = true;
    role.table.leaves[0].0 = Of::Copy(0);
    let all = role.table.shards[0].region.clone();
    role.table.copies = vec![program::Gathered { shard: 0, region: all, factor: 1, parts: 2 }];
    role.table.leaves[3].0 = Of::Shard(1);
    role.table.shards.truncate(3);
    role.table.random = vec![(graph::OpId(8), vec![PerRank::Same(region(&[(0, 4), (0, 12)]))])];
    program.roles.push(role);
    program
}

#[test]
fn every_instruction() {
    let graph = graph(MIXED);
    insta::assert_snapshot!(text(&stable(&graph, &mixed(&graph))));
}

#[test]
fn emitting_twice_gives_the_same_bytes() {
    let graph = graph(MIXED);
    assert_eq!(emit(&graph, &mixed(&graph)).unwrap(), emit(&graph, &mixed(&graph)).unwrap());
}

#[test]
fn every_tensor_that_the_runtime_looks_up_is_in_the_tables() {
    let graph = graph(MIXED);
    let files = emit(&graph, &mixed(&graph)).unwrap();
    assert!(read(&graph, &files).is_ok());
    let at = files.iter().position(|file| file.name == "program.json").expect("it is emitted");
    let tables: Value = serde_json::from_str(&files[at].text).expect("it is JSON");
    let count = tables["tensors"].as_array().map_or(0, Vec::len);
    assert!(count > 4);
    for entry in 0..count {
        let (mut fewer, mut without) = (files.clone(), tables.clone());
        let left_out = without["tensors"].as_array_mut().map(|tensors| tensors.remove(entry));
        fewer[at].text = without.to_string();
        assert!(read(&graph, &fewer).is_err(), "{left_out:?}");
    }
}

const LAYERS: &str = r#"
model "Layers"
module "" "Layers"
module "layers.0" "DecoderLayer"
module "layers.0.norm" "RMSNorm"
module "layers.1" "DecoderLayer"
module "layers.1.norm" "RMSNorm"
module "odd layer" "DecoderLayer"
input %x f32[4,8] 0
param %n0 f32[8] "layers.0.norm.weight"
param %n1 f32[8] "layers.1.norm.weight"
param %n2 f32[8] "odd layer.norm.weight"
buffer %cos f32[8] "rope.cos" transient
op %r f32[4,8] = aten.rms_norm.default(%x, [8], %n0, 1e-06) in "layers.0.norm" at "m.py:1"
op %m f32[4,8] = aten.mul.Tensor(%r, %cos) in "layers.0" at "m.py:2"
op %d f32[4,8] = aten.dropout.default(%m, 0.1, True) in "layers.0" at "m.py:3"
op %r_1 f32[4,8] = aten.rms_norm.default(%d, [8], %n1, 1e-06) in "layers.1.norm" at "m.py:1"
op %m_1 f32[4,8] = aten.mul.Tensor(%r_1, %cos) in "layers.1" at "m.py:2"
op %d_1 f32[4,8] = aten.dropout.default(%m_1, 0.1, True) in "layers.1" at "m.py:3"
op %r_2 f32[4,8] = aten.rms_norm.default(%d_1, [8], %n2, 1e-06) in "odd layer.norm" at "m.py:1"
op %m_2 f32[4,8] = aten.mul.Tensor(%r_2, %cos) in "odd layer" at "m.py:2"
op %d_2 f32[4,8] = aten.dropout.default(%m_2, 0.1, True) in "odd layer" at "m.py:3"
op %s f32[] = aten.sum.default(%d_2) in "" at "m.py:9"
output %s
"#;

fn keyed(op: &mut program::LocalOp) {
    if op.target == "aten.dropout.default" {
        op.target = "sw.dropout".to_owned();
        op.args = vec![op.args[0].clone(), Arg::Float(0.1), Arg::Int(i64::from(op.op.0)), Arg::Int(0)];
    }
}

/// Three layers print one function, though each has its own random operator, and though what they
/// share hangs elsewhere.
#[test]
fn layers_share_their_function() {
    let graph = graph(LAYERS);
    let mut b = Builder::new(&graph);
    b.call(0..10, &["s"], keyed);
    b.outputs();
    let mut whole = program(&graph, 1);
    whole.roles.push(b.role(0..1));
    let nested = stable(&graph, &whole)[0].text.clone();

    let mut b = Builder::new(&graph);
    for (first, out) in [(0, "d"), (3, "d_1"), (6, "d_2")] {
        b.call(first..first + 3, &[out], keyed);
    }
    b.call(9..10, &["s"], keyed);
    b.outputs();
    let mut parts = program(&graph, 1);
    parts.roles.push(b.role(0..1));
    let called = stable(&graph, &parts)[0].text.clone();
    insta::assert_snapshot!(format!("{nested}\n=== one call a layer\n{called}"));
}

const RANGES: &str = r#"
model "Ranges"
input %x f32[6] 0
op %short i64[4] = aten.arange.default(4) in "" at "m.py:1"
op %long i64[6] = aten.arange.default(6) in "" at "m.py:2"
op %s f32[] = aten.sum.default(%x) in "" at "m.py:3"
output %s
"#;

/// A part of either range reads alike; which one it is of stands in the tables.
#[test]
fn operators_whose_parts_read_alike_are_told_apart() {
    let graph = graph(RANGES);
    for wanted in [0, 1] {
        let mut b = Builder::new(&graph);
        b.call(wanted..wanted + 1, &[["short", "long"][wanted as usize]], |op| {
            op.target = "aten.arange.start_step".to_owned();
            op.args = vec![Arg::Int(0), Arg::Int(3), Arg::Int(1)];
        });
        b.call(2..3, &["s"], |_| {});
        b.outputs();
        let mut program = program(&graph, 1);
        program.roles.push(b.role(0..1));
        let files = stable(&graph, &program);
        let again = emit::read(&graph, &files).unwrap();
        let call = again.roles[0].body.calls().next().expect("a call comes first");
        assert_eq!(call.ops[0].op, graph::OpId(wanted));
        // Reading alone would find the second one.
        assert_eq!(files[1].text.contains("\"operators\": {\"0\": 0}"), wanted == 0, "{}", files[1].text);
    }
}

/// Left out where there are none.
#[test]
fn who_computes_the_update_of_a_whole_parameter_is_read_back() {
    let graph = graph(MLP);
    let mut program = megatron(&graph);
    assert!(!text(&roundtrip(&graph, &program)).contains("\"updates\""));
    let tensor = program.roles[0].table.shards[0].tensor;
    program.updates = vec![Update { tensor, rank: RankId(1) }];
    let files = roundtrip(&graph, &program);
    let listed = format!("\"updates\": [\n    [{}, 1]", tensor.0);
    assert!(text(&files).contains(&listed), "{}", text(&files));
    for (wrong, why) in
        [("[99, 1]", "there is no tensor"), ("[0, 7]", "there is no rank 7"), ("[0]", "a list of 2")]
    {
        let edit = |mut file: File| {
            file.text = file.text.replace(&listed, &format!("\"updates\": [\n    {wrong}"));
            file
        };
        let edited: Vec<File> = files.iter().cloned().map(edit).collect();
        let error = read(&graph, &edited).expect_err("it is refused");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn functions_say_what_is_in_them() {
    let graph = graph(
        "model \"Net\"\nmodule \"left\" \"Linear\"\nmodule \"right\" \"ReLU\"\ninput %x f64[8,8] 0\n\
         param %w f64[8,8] \"left.weight\"\n\
         op %a f64[8,8] = aten.linear.default(%x, %w) in \"left\" at \"net.py:1\"\n\
         op %b f64[8,8] = aten.relu.default(%x) in \"right\" at \"net.py:2\"\n\
         op %hidden f64[8,8] = aten.add.Tensor(%a, %b) in \"\" at \"net.py:3\"\n\
         op %loss f64[] = aten.sum.default(%hidden) in \"\" at \"net.py:4\"\noutput %loss\n",
    );
    let mut b = Builder::new(&graph);
    b.call(0..2, &["a", "b"], |_| {});
    b.call(2..3, &["hidden"], |_| {});
    b.call(3..4, &["loss"], |_| {});
    b.outputs();
    let mut made = program(&graph, 1);
    made.roles.push(b.role(0..1));
    let text = stable(&graph, &made).remove(0).text;
    let functions: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("def ")).collect();
    let called: Vec<&str> = functions.iter().filter_map(|line| line.split('(').next()).collect();
    assert_eq!(called, ["net_left_right", "net_add", "net_loss", "forward"], "{text}");
}
