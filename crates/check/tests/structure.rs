//! What must hold of a program before it can be followed: one thing wrong at a time, and what is said of it.

use graph::{OpId, TensorId};
use program::*;
use rules::{Interval, Region};

use crate::support::{self, graph, program};

const MLP: &str = include_str!("programs/mlp.graph");
const DATA: &str = include_str!("programs/data.txt");
const MEGATRON: &str = include_str!("programs/megatron.txt");
const EXCHANGED: &str = include_str!("programs/exchanged.txt");

/// Once something is planted, a fault that has this code and says this is found.
fn refused(text: &str, code: &str, words: &str, plant: impl Fn(&mut Program)) {
    let mut made = program(&graph(MLP), text);
    plant(&mut made);
    let found = check::check(&graph(MLP), &made).expect_err(words);
    let said = |fault: &check::Fault| fault.code == code && fault.what.contains(words);
    assert!(found.iter().any(said), "{code} {words}: {found:?}");
}

fn body(program: &mut Program) -> &mut Body {
    &mut program.roles[0].body
}

fn forward(program: &mut Program) -> &mut Code {
    body(program).code_mut(0, Pass::Forward)
}

fn collective(program: &mut Program) -> &mut Collective {
    let all = forward(program).instrs.iter_mut();
    all.filter_map(|instr| if let Instr::Collective(it) = instr { Some(it) } else { None })
        .next()
        .expect("one")
}

fn call(program: &mut Program) -> &mut Call {
    let all = forward(program).instrs.iter_mut();
    all.filter_map(|instr| if let Instr::Call(it) = instr { Some(it) } else { None }).next().expect("one")
}

const NOWHERE: BufId = BufId(99);
const NOTHING: TensorId = TensorId(99);

#[test]
fn a_program_is_of_its_model() {
    refused(DATA, "SW0501", "another model", |it| it.digest.push('0'));
    refused(DATA, "SW0501", "factors", |it| it.factors[0][0] = vec![2, 2]);
}

#[test]
fn every_rank_has_one_role() {
    refused(DATA, "SW0502", "rank 2 of 3 has 0 roles", |it| it.world = 3);
    refused(DATA, "SW0502", "rank 1 of 1 has 1 roles", |it| it.world = 1);
    refused(MEGATRON, "SW0502", "rank 0 of 2 has 2 roles", |it| it.roles[1].ranks[0] = RankId(0));
    refused(DATA, "SW0502", "is not a partition", |it| it.groupings[0][0][1] = RankId(0));
    refused(DATA, "SW0502", "is not a partition", |it| it.groupings[0].push(vec![RankId(1)]));
    refused(DATA, "SW0502", "is not a partition", |it| it.groupings[0].push(vec![RankId(2)]));
    refused(DATA, "SW0502", "is not a partition", |it| it.groupings[0].push(vec![RankId(0)]));
    refused(DATA, "SW0502", "a role has no ranks", |it| {
        it.roles.push(Role { ranks: vec![], table: Table::default(), body: Body::default() });
    });
    refused(DATA, "SW0502", "a role has no ranks", |it| {
        let role = Role { ranks: vec![], ..it.roles[0].clone() };
        it.roles.push(role);
    });
    refused(DATA, "SW0502", "for a different number of ranks", |it| {
        let region = Region([Interval::whole(4), Interval::whole(8)].into());
        it.roles[0].table.inputs[0] = PerRank::Each(vec![region].into());
    });
}

#[test]
fn tables_have_the_sizes_that_the_code_needs() {
    let sizes = "has another size than its code needs";
    refused(DATA, "SW0502", sizes, |it| it.roles[0].table.constants.push(PerRank::Same(1)));
    refused(DATA, "SW0502", sizes, |it| drop(it.roles[0].table.leaves.pop()));
    refused(DATA, "SW0502", sizes, |it| drop(it.roles[0].table.inputs.pop()));
    refused(DATA, "SW0502", sizes, |it| it.roles[0].table.outputs.push(None));
    let missing = "a shard belongs to a tensor that does not exist";
    refused(DATA, "SW0502", missing, |it| it.roles[0].table.shards[0].tensor = NOTHING);
    let other = "is not a part of a parameter, buffer or constant";
    refused(DATA, "SW0502", other, |it| it.roles[0].table.shards[0].tensor = TensorId(0));
    let leaf = "is not a part of a shard of it";
    refused(DATA, "SW0502", leaf, |it| it.roles[0].table.leaves[0].0 = Of::Shard(1));
    refused(DATA, "SW0502", leaf, |it| it.roles[0].table.leaves[0].0 = Of::Shard(9));
    refused(DATA, "SW0502", leaf, |it| it.roles[0].table.leaves[0].0 = Of::Copy(0));
    refused(MEGATRON, "SW0502", sizes, |it| it.roles[1].table.constants.push(PerRank::Same(1)));
    let input = "is not a part of an input of the model";
    refused(DATA, "SW0502", input, |it| body(it).inputs[0] = TensorId(1));
    refused(DATA, "SW0502", input, |it| body(it).inputs[0] = NOTHING);
}

#[test]
fn regions_are_parts_of_what_they_are_of() {
    let region = |rows: i64| Region([Interval { lo: 0, hi: rows }, Interval::whole(8)].into());
    let too_many = PerRank::Same(region(17));
    refused(DATA, "SW0502", "a shard of %w1", |it| it.roles[0].table.shards[0].region = too_many.clone());
    let less = PerRank::Same(region(8));
    refused(DATA, "SW0502", "leaf 0", |it| it.roles[0].table.shards[0].region = less.clone());
    let empty = PerRank::Same(Region([].into()));
    refused(DATA, "SW0502", "leaf 0", |it| it.roles[0].table.leaves[0].1 = empty.clone());
    refused(DATA, "SW0502", "input of tensor 0", |it| it.roles[0].table.inputs[0] = PerRank::Same(region(5)));
    let second = PerRank::Each(vec![region(2), region(5)].into());
    refused(DATA, "SW0502", "input of tensor 0", |it| it.roles[0].table.inputs[0] = second.clone());
    let leaves = "what leaves the program is not part of an output";
    refused(DATA, "SW0502", leaves, |it| it.roles[0].table.outputs[0] = Some(PerRank::Same(region(1))));
    refused(DATA, "SW0502", leaves, |it| it.roles[0].table.outputs[0] = None);
    refused(DATA, "SW0502", leaves, |it| forward(it).gives[0] = None);
}

#[test]
fn what_leaves_is_what_is_asked_for() {
    refused(DATA, "SW0502", "the model does not have all outputs", |it| {
        it.boundary.outputs.push(Output::Whole);
    });
    let against = "on the ranks that it should leave on";
    refused(DATA, "SW0502", against, |it| it.boundary.outputs[0] = Output::None);
    // Where there are no blocks it leaves on all ranks, and where there are some, from one of them, if at all.
    let absent = |it: &mut Program, role: usize| {
        it.roles[role].body.code_mut(0, Pass::Forward).gives[0] = None;
        it.roles[role].table.outputs[0] = None;
    };
    let blocks = |it: &mut Program| {
        body(it).codes.insert(1, Code { gives: vec![None], ..Code::new(1, Pass::Forward) });
    };
    refused(MEGATRON, "SW0502", against, |it| absent(it, 1));
    refused(DATA, "SW0502", against, |it| {
        blocks(it);
        absent(it, 0);
    });
    refused(DATA, "SW0502", against, |it| {
        blocks(it);
        it.boundary.outputs[0] = Output::None;
    });
    refused(DATA, "SW0502", against, |it| {
        forward(it).gives[0] = None;
        it.roles[0].table.outputs[0] = None;
    });
}

#[test]
fn every_number_names_something() {
    let buffer = "names a buffer that does not exist";
    refused(DATA, "SW0502", buffer, |it| collective(it).to[0] = NOWHERE);
    refused(DATA, "SW0502", buffer, |it| collective(it).from[0] = NOWHERE);
    refused(DATA, "SW0502", buffer, |it| call(it).ops[0].args[0] = Arg::Buf(NOWHERE));
    refused(DATA, "SW0502", buffer, |it| call(it).ops[0].outputs[0] = Some(NOWHERE));
    refused(DATA, "SW0502", buffer, |it| body(it).leaves[0].buf = NOWHERE);
    refused(DATA, "SW0502", buffer, |it| forward(it).gives[0] = Some(NOWHERE));
    refused(DATA, "SW0502", buffer, |it| forward(it).takes[0] = NOWHERE);
    refused(DATA, "SW0502", buffer, |it| {
        let next = BufId::new(body(it).bufs.len());
        forward(it).takes[0] = next;
    });
    let constant = "names a constant that does not exist";
    refused(DATA, "SW0502", constant, |it| call(it).ops[0].args.push(Arg::Hole(0)));
    let other = "names a leaf, shard, grouping or table that does not exist";
    refused(DATA, "SW0502", other, |it| collective(it).group = GroupingId(1));
    refused(DATA, "SW0502", other, |it| {
        let from = collective(it).to[0];
        forward(it).instrs.push(Instr::Update { shard: 4, from });
    });
    refused(DATA, "SW0502", other, |it| {
        let reduced = Instr::ReduceGradients { group: GroupingId(0), leaves: vec![LeafId(4)] };
        body(it).code_mut(0, Pass::Backward).instrs.push(reduced);
    });
    refused(DATA, "SW0502", other, |it| forward(it).instrs.push(Instr::Release { copies: vec![0] }));
    refused(DATA, "SW0502", other, |it| {
        let exchange = Instr::Exchange { exchange: ExchangeId(0), from: vec![], to: vec![] };
        forward(it).instrs.push(exchange);
    });
}

#[test]
fn codes_take_and_give_what_their_role_says() {
    let number = "takes or returns a different number of tensors";
    refused(DATA, "SW0502", number, |it| {
        forward(it).takes.pop();
    });
    refused(DATA, "SW0502", number, |it| body(it).gradients.push(TensorId(0)));
    refused(DATA, "SW0502", number, |it| body(it).code_mut(0, Pass::Backward).gives.push(None));
    refused(DATA, "SW0502", "another number of outputs", |it| forward(it).gives.push(None));
    refused(DATA, "SW0502", "out of order", |it| body(it).codes.swap(0, 1));
    refused(DATA, "SW0502", "has two functions for one pass, or functions are out of order", |it| {
        let twice = Code::new(0, Pass::Backward);
        body(it).codes.push(twice);
    });
    refused(DATA, "SW0502", "two functions return one output", |it| {
        let gives = forward(it).gives.clone();
        body(it).codes.push(Code { gives, ..Code::new(1, Pass::Forward) });
    });
    refused(DATA, "SW0502", "belongs to a block beyond", |it| {
        body(it).codes.insert(1, Code { gives: vec![None], ..Code::new(1 << 16, Pass::Forward) });
    });
    let once = "belongs to a block, or takes or returns something";
    refused(DATA, "SW0502", once, |it| {
        let gives = vec![Some(forward(it).takes[0])];
        body(it).codes.push(Code { gives, ..Code::new(0, Pass::End) });
    });
    refused(DATA, "SW0502", once, |it| body(it).codes.push(Code::new(1, Pass::End)));
    refused(DATA, "SW0502", once, |it| {
        let takes = body(it).code_mut(0, Pass::Backward).takes.clone();
        body(it).codes.push(Code { takes, ..Code::new(0, Pass::End) });
    });
}

#[test]
fn a_buffer_is_written_once_and_before_it_is_read() {
    let early = "is read before it is written";
    let twice = "is written twice";
    refused(DATA, "SW0503", early, |it| forward(it).instrs.swap(0, 1));
    refused(DATA, "SW0503", twice, |it| collective(it).to = collective(it).from.clone());
    refused(DATA, "SW0503", twice, |it| body(it).leaves[1].buf = BufId(0));
    refused(DATA, "SW0503", twice, |it| forward(it).takes[0] = BufId(0));
    // What is inside of a call stays there, as what is made in a code does.
    refused(DATA, "SW0503", early, |it| {
        let inside = call(it).ops[0].outputs[0].expect("an output");
        collective(it).from[0] = inside;
    });
    refused(DATA, "SW0503", early, |it| {
        let inside = call(it).ops[0].outputs[0].expect("an output");
        forward(it).gives[0] = Some(inside);
    });
    refused(DATA, "SW0503", early, |it| {
        let made = collective(it).to[0];
        body(it).code_mut(0, Pass::Backward).instrs.push(Instr::Add { from: vec![made], to: made });
    });
    refused(DATA, "SW0503", early, |it| {
        call(it).inputs.remove(0);
    });
    refused(DATA, "SW0503", early, |it| {
        let leaf = call(it).inputs[1];
        call(it).outputs[0] = leaf;
    });
    refused(DATA, "SW0503", early, |it| {
        let given = call(it).inputs[0];
        call(it).outputs.push(given);
    });
    refused(DATA, "SW0503", twice, |it| {
        let first = call(it).ops[0].outputs[0];
        call(it).ops[1].outputs[0] = first;
    });
}

#[test]
fn calls_are_numbered_in_their_order() {
    let misplaced = "call 1 stands in the place of call 0";
    refused(DATA, "SW0502", misplaced, |it| call(it).id = CallId(1));
    refused(MEGATRON, "SW0502", misplaced, |it| call(it).id = CallId(1));
}

#[test]
fn what_lives_on_the_host_are_parameters_in_order() {
    let (input, first, second) = (TensorId(0), TensorId(1), TensorId(2));
    let lives = "something that lives on the host is not a parameter";
    for wrong in [vec![input], vec![NOTHING], vec![second, first], vec![first, first]] {
        refused(DATA, "SW0502", lives, |it| it.held_on_host = wrong.clone());
    }
    let state = "is not that of a trained parameter on the device";
    for wrong in [vec![input], vec![NOTHING], vec![second, first], vec![first, first]] {
        refused(DATA, "SW0502", state, |it| it.state_on_host = wrong.clone());
    }
    refused(DATA, "SW0502", state, |it| {
        it.held_on_host = vec![first];
        it.state_on_host = vec![first];
    });
    let gathered = "lives on the host, and is read without having been gathered";
    refused(DATA, "SW0502", gathered, |it| it.held_on_host = vec![first]);
}

#[test]
fn whole_updates_are_computed_by_ranks_that_hold_some_of_it() {
    refused(MEGATRON, "SW0502", "by a rank that holds nothing of it", |it| {
        // The second rank has no part of the second bias.
        it.updates = vec![Update { tensor: TensorId(4), rank: RankId(1) }];
    });
}

/// Gradients are computed where gradients are, and each half of a split backward is there.
#[test]
fn backwards_stand_in_their_codes() {
    refused(DATA, "SW0509", "comes before the call, or a second time", |it| {
        let backward = body(it).code_mut(0, Pass::Backward);
        let at = backward.instrs.iter().position(|instr| matches!(instr, Instr::Grad(_))).expect("one");
        let moved = backward.instrs.remove(at);
        forward(it).instrs.push(moved);
    });
    let split_backward = "is neither one function nor a split backward";
    refused(DATA, "SW0502", split_backward, |it| body(it).codes.push(Code::new(0, Pass::Weights)));
}

/// What a function keeps is for others.
#[test]
fn what_is_kept_is_taken_in_a_later_code() {
    refused(DATA, "SW0503", "is taken in the same function", |it| {
        let from = collective(it).to.clone();
        let id = KeepId(0);
        let to = vec![BufId::new(body(it).bufs.len())];
        let buf = body(it).bufs[0].clone();
        body(it).bufs.push(buf);
        forward(it).instrs.push(Instr::Keep { id, from, offloads: false });
        forward(it).instrs.push(Instr::Take { id, to });
    });
}

/// Tables of exchanges are looked at when they are used.
#[test]
fn exchanges_are_of_their_tensor() {
    let table = |words: &str, plant: &dyn Fn(&mut Exchange)| {
        refused(EXCHANGED, "SW0502", words, |it| plant(&mut it.exchanges[0]));
    };
    table("is of a tensor that does not exist", &|it| it.tensor = NOTHING);
    let regions = "has regions that are not of its tensor";
    table(regions, &|it| it.lists().0[0].1.0[0].hi = 99);
    table(regions, &|it| it.lists().1[0].1.0[0].lo = -1);
    let ends = "has ends on a rank that does not exist";
    table(ends, &|it| it.lists().0[0].0 = RankId(2));
    table(ends, &|it| it.lists().1[0].0 = RankId(9));
    let piece = "has a piece that is outside its source or target";
    table(piece, &|it| it.lists().2[0].from = 99);
    table(piece, &|it| it.lists().2[0].to = 99);
    table(piece, &|it| it.lists().2[0].region.0[0].hi = 99);
}

const NONE: &str = "input %x f64[4] 0
op %y f64[4] = aten.relu.default(%x) in \"\" at \"m.py:1\"
output %y
output none
";

/// Whatever is asked of it.
#[test]
fn an_output_that_the_model_does_not_have_leaves_nowhere() {
    let text = |second: &str| {
        format!(
            "ranks 0\ninput x %x :\ncall 0 x -> y : y = aten.relu.default(x)\noutput y\noutput {second}\n"
        )
    };
    for second in ["none", "nothing", "nothing local"] {
        assert_eq!(support::faults(&graph(NONE), &text(second)), [], "{second}");
    }
    let mut made = program(&graph(NONE), &text("nothing local"));
    let given = forward(&mut made).gives[0];
    forward(&mut made).gives[1] = given;
    made.roles[0].table.outputs[1] = made.roles[0].table.outputs[0].clone();
    let found = check::check(&graph(NONE), &made).expect_err("it leaves");
    assert_eq!(found[0].code, "SW0502", "{found:?}");
}

/// A local operator may be told to be any: what counts is what it executes.
#[test]
fn the_operator_that_is_named_is_a_guess() {
    let mut made = program(&graph(MLP), DATA);
    for op in &mut call(&mut made).ops {
        op.op = OpId(op.op.0 ^ 1);
    }
    assert_eq!(check::check(&graph(MLP), &made).err(), None);
}
