//! Ranks that do not do the same where they meet: one thing wrong on one of them, and what is said of it.

use graph::TensorId;
use program::*;
use rules::{Interval, Reduction, Region};

use crate::support::texts::DIVIDED;
use crate::support::{self, LINEARS, graph, program};

const MLP: &str = include_str!("programs/mlp.graph");
const DATA: &str = include_str!("programs/data.txt");
const MEGATRON: &str = include_str!("programs/megatron.txt");
const EXCHANGED: &str = include_str!("programs/exchanged.txt");

/// The same with a role for each rank.
fn apart(made: Program) -> Program {
    let roles = made.roles.iter().flat_map(|role| (0..role.ranks.len()).map(move |at| alone(role, at)));
    let mut roles: Vec<Role> = roles.collect();
    roles.sort_by_key(|role| role.ranks[0]);
    Program { roles, ..made }
}

fn alone(role: &Role, at: usize) -> Role {
    let only = |per_rank: &PerRank<Region>| PerRank::Same(per_rank.get(at).clone());
    let mut table = role.table.clone();
    table.constants = table.constants.iter().map(|per_rank| PerRank::Same(*per_rank.get(at))).collect();
    table.shards.iter_mut().for_each(|shard| shard.region = only(&shard.region));
    table.copies.iter_mut().for_each(|copy| copy.region = only(&copy.region));
    table.leaves.iter_mut().for_each(|(_, region)| *region = only(region));
    table.inputs.iter_mut().for_each(|region| *region = only(region));
    table.outputs.iter_mut().flatten().for_each(|region| *region = only(region));
    Role { ranks: vec![role.ranks[at]], table, body: role.body.clone() }
}

/// Once something is planted into the second rank, a fault that has this code and says this is found.
fn refused(model: &str, text: &str, code: &str, words: &str, plant: impl Fn(&mut Role)) {
    planted(model, text, code, words, |made| plant(&mut made.roles[1]));
}

fn planted(model: &str, text: &str, code: &str, words: &str, plant: impl Fn(&mut Program)) {
    let model = graph(model);
    let mut made = apart(program(&model, text));
    assert_eq!(check::check(&model, &made).err(), None, "{words}");
    plant(&mut made);
    let found = check::check(&model, &made).expect_err(words);
    let said = |fault: &check::Fault| fault.code == code && fault.what.contains(words);
    assert!(found.iter().any(said), "{code} {words}: {found:?}");
}

fn instrs(role: &mut Role, pass: Pass) -> &mut Vec<Instr> {
    &mut role.body.code_mut(0, pass).instrs
}

fn find(role: &mut Role, pass: Pass, kind: Kind) -> &mut Instr {
    instrs(role, pass).iter_mut().find(|instr| instr.kind() == kind).expect("there is one")
}

fn buffer(role: &mut Role) -> BufId {
    role.body.bufs.push(Buf { name: "new".into(), tensor: TensorId(0), grad: false });
    BufId::new(role.body.bufs.len() - 1)
}

#[test]
fn ranks_communicate_as_many_values_by_the_same_reduction() {
    refused(MLP, DATA, "SW0506", "different numbers of values", |role| {
        let more = buffer(role);
        let Instr::Collective(all) = find(role, Pass::Forward, Kind::AllReduce) else { panic!() };
        all.from.push(all.from[0]);
        all.to.push(more);
    });
    refused(MLP, DATA, "SW0506", "name different reductions", |role| {
        let Instr::Collective(all) = find(role, Pass::Forward, Kind::AllReduce) else { panic!() };
        all.how = How::AllReduce(Reduction::Max);
    });
    planted(MLP, DATA, "SW0506", "is in none of its groups", |made| {
        made.groupings[0] = vec![vec![RankId(0)]];
    });
    refused(MLP, DATA, "SW0506", "wait for rank 1 for ever", |role| {
        let Instr::Collective(all) = find(role, Pass::Forward, Kind::AllReduce).clone() else { panic!() };
        *find(role, Pass::Forward, Kind::AllReduce) = Instr::Add { from: all.from, to: all.to[0] };
        instrs(role, Pass::Backward).pop();
    });
    refused(MLP, DATA, "SW0506", "do different things", |role| {
        let Instr::Collective(all) = find(role, Pass::Forward, Kind::AllReduce) else { panic!() };
        all.how = How::AllGather(Cut { extents: vec![], factor: 0, sizes: vec![1, 1] });
    });
}

#[test]
fn gradients_are_reduced_with_those_of_the_same_thing() {
    refused(MLP, DATA, "SW0508", "reduce different numbers of gradients", |role| {
        let Instr::ReduceGradients { leaves, .. } = find(role, Pass::Backward, Kind::ReduceGradients) else {
            panic!()
        };
        leaves.pop();
    });
    refused(MLP, DATA, "SW0508", "gradients of different things are reduced", |role| {
        let Instr::ReduceGradients { leaves, .. } = find(role, Pass::Backward, Kind::ReduceGradients) else {
            panic!()
        };
        leaves.swap(0, 1);
    });
    let swap = |role: &mut Role| match find(role, Pass::Backward, Kind::ReduceGradients) {
        Instr::ReduceGradients { leaves, .. } => leaves.swap(0, 1),
        other => panic!("{other:?}"),
    };
    let other = "gradients of different things are reduced";
    refused(LINEARS, REPLICATED, "SW0508", other, swap);
    refused(MULTIPLIED, IN_TWO, "SW0508", other, swap);
}

/// Two parameters of one shape.
const REPLICATED: &str = "group 0,1
ranks 0,1
shard w %w :,:
shard v %v :,:
input x %x 0..2,: | 2..4,:
call 0 x, w, v -> s : y = aten.linear.default(x, w) ; z = aten.linear.default(y, v) ; s = aten.sum.default(z)
all_reduce g0 sum s -> t
output t
seed ds
grad 0 ds ->
reduce_gradients g0 w, v
";

const MULTIPLIED: &str = "input %x f64[2,4] 0
param %w f64[4] \"w\"
op %y f64[2,4] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:2\"
output %s
";

/// Two parts of one parameter.
const IN_TWO: &str = "group 0,1
ranks 0,1
hold w %w :
leaf a w 0..2
leaf b w 2..4
input x %x 0..1,: | 1..2,:
slice x -> p : [1, 4] 0..1, 0..2
slice x -> q : [1, 4] 0..1, 2..4
call 0 p, a -> r : y = aten.mul.Tensor(p, a) ; r = aten.sum.default(y)
call 1 q, b -> u : z = aten.mul.Tensor(q, b) ; u = aten.sum.default(z)
add r, u -> s
all_reduce g0 sum s -> t
output t
seed ds
grad 0 ds ->
grad 1 ds ->
reduce_gradients g0 a, b
";

/// A block's backward may have no forward, if it is given nothing.
#[test]
fn gradients_may_be_communicated_in_a_code_of_their_own() {
    let text = REPLICATED
        .replace("input x", "block 1\ninput x")
        .replace("reduce_gradients", "block 0\nbackward\nreduce_gradients");
    support::proof(&graph(LINEARS), &text);
}

/// A rank that communicates with nobody: what it brings from its own host is not told, and what goes through a group is.
#[test]
fn a_rank_may_be_alone_in_a_group() {
    let alone = "group 0
ranks 0
hold w_part %w :,:
hold v_part %v :,:
copy w w_part 0 1 :,:
copy v v_part 0 1 :,:
input x %x :,:
gather g0 w, v
call 0 x, w -> y : y = aten.linear.default(x, w)
call 1 y, v -> s : z = aten.linear.default(y, v) ; s = aten.sum.default(z)
release w, v
all_reduce g0 sum s -> t
output t
seed ds
gather g0 w, v
grad 1 ds -> dy
grad 0 dy ->
release w, v
scatter g0 w, v
";
    let proof = support::proof(&graph(LINEARS), alone);
    let told: Vec<_> =
        proof.traffic[0].iter().map(|(what, issued)| (*what, issued.count, issued.bytes)).collect();
    assert_eq!(told, [(("forward", "all_reduce"), 1, 8)]);
    let table = |number: u32, tensor: &str| {
        format!("table {number} {tensor} sum\nfrom 0 :,:\nto 0 :,:\npiece 0 0 :,:\n")
    };
    let sent = "exchange_gradients 5 w -> w_part\nexchange_gradients 6 v -> v_part";
    let exchanged = alone.replace("scatter g0 w, v", sent) + &table(5, "%w") + &table(6, "%v");
    support::proof(&graph(LINEARS), &exchanged);
}

/// Two calls of one rank compute the same, and the second one's result is given a gradient that is nothing.
#[test]
fn an_exchange_without_sources_makes_nothing() {
    let model = "input %x f64[4] 0
param %w f64[4] \"w\"
op %y f64[4] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:2\"
output %s
";
    let backward = "table 1 %y sum
to 0 :
ranks 0
shard w %w :
input x %x :
call 0 x, w -> y : y = aten.mul.Tensor(x, w)
call 1 y -> s : s = aten.sum.default(y)
call 2 x, w -> y2 : y2 = aten.mul.Tensor(x, w)
output s
seed ds
exchange 1 -> n
grad 2 n ->
grad 1 ds -> dy
grad 0 dy ->
";
    support::proof(&graph(model), backward);
    let forward = "table 1 %x sum
to 0 0..0,:
ranks 0
exchange 1 -> p
call 0 p -> y : y = aten.relu.default(p)
output y local 0..0,:
ranks 1
input x %x :,:
call 0 x -> y : y = aten.relu.default(x)
output y local :,:
";
    support::proof(&graph(TWO), forward);
}

/// Of a value and of its gradient no parts are put together.
#[test]
fn an_exchange_is_of_values_or_of_gradients() {
    let model = "input %x f64[4] 0
param %w f64[4] \"w\"
op %y f64[4] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %z f64[4] = aten.mul.Tensor(%y, 2.0) in \"\" at \"m.py:2\"
output %z
";
    let text = "table 1 %y sum
from 0 0..2
from 0 2..4
to 0 :
piece 0 0 0..2
piece 1 0 2..4
ranks 0
shard w %w :
input x %x :
call 0 x, w -> y : y = aten.mul.Tensor(x, w)
call 1 y -> z : z = aten.mul.Tensor(y, 2.0)
keep 0 y
output z
seed dz
grad 1 dz -> dy
take 0 -> v
slice dy -> a : [4] 0..2
slice dy -> b : [4] 2..4
slice v -> c : [4] 2..4
exchange 1 a, b -> d
grad 0 d ->
";
    support::proof(&graph(model), text);
    let found = support::faults(&graph(model), &text.replace("1 a, b ->", "1 a, c ->"));
    assert!(found.iter().any(|fault| fault.code == "SW0507"), "{found:?}");
}

#[test]
fn what_is_gathered_and_scattered_is_the_same_on_all_ranks() {
    let one_by_one = |role: &mut Role, pass: Pass, kind: Kind| {
        let at = instrs(role, pass).iter().position(|instr| instr.kind() == kind).expect("there is one");
        let whole = instrs(role, pass).remove(at);
        for one in (0..2).rev() {
            let mut instr = whole.clone();
            match &mut instr {
                Instr::Gather { copies, .. } => *copies = vec![copies[one]],
                Instr::Scatter { leaves, .. } => *leaves = vec![leaves[one]],
                other => panic!("{other:?}"),
            }
            instrs(role, pass).insert(at, instr);
        }
    };
    let numbers = "gather different numbers of parameters";
    refused(LINEARS, DIVIDED, "SW0506", numbers, |role| one_by_one(role, Pass::Forward, Kind::Gather));
    let numbers = "reduce different numbers of gradients";
    refused(LINEARS, DIVIDED, "SW0506", numbers, |role| one_by_one(role, Pass::Backward, Kind::Scatter));
    let other = "is not what its shards make up";
    refused(LINEARS, DIVIDED, "SW0507", other, |role| {
        let Instr::Gather { copies, .. } = find(role, Pass::Forward, Kind::Gather) else { panic!() };
        copies.swap(0, 1);
    });
    refused(LINEARS, DIVIDED, "SW0507", other, |role| {
        let Instr::Scatter { leaves, .. } = find(role, Pass::Backward, Kind::Scatter) else { panic!() };
        leaves.swap(0, 1);
    });
    refused(LINEARS, DIVIDED, "SW0507", other, |role| role.table.copies[0].parts = 1);
    refused(LINEARS, DIVIDED, "SW0507", other, |role| role.table.copies[0].factor = 1);
    refused(LINEARS, DIVIDED, "SW0506", "in different micro-batches", |role| {
        let Instr::Scatter { when, .. } = find(role, Pass::Backward, Kind::Scatter) else { panic!() };
        *when = GradSync::Last;
    });
}

#[test]
fn the_gradient_of_a_copy_goes_to_its_part_once() {
    let leaf = |role: &mut Role| instrs(role, Pass::Backward).last().expect("a scatter").leaves()[0];
    refused(LINEARS, DIVIDED, "SW0508", "reaches its shards twice", |role| {
        let leaves = vec![leaf(role)];
        instrs(role, Pass::Backward).push(Instr::Part { leaves, when: GradSync::Each });
    });
    refused(MLP, DATA, "SW0508", "is not gathered from shards", |role| {
        let part = Instr::Part { leaves: vec![LeafId(0)], when: GradSync::Each };
        instrs(role, Pass::Backward).push(part);
    });
}

/// Of a copy that is not read there is no gradient, and so none that would reach its part.
#[test]
fn the_gradient_of_a_copy_is_that_of_all_of_it() {
    refused(LINEARS, DIVIDED, "SW0508", "or not in full", |role| {
        let none = Region([Interval { lo: 0, hi: 0 }, Interval::whole(8)].into());
        role.table.leaves[0].1 = PerRank::Same(none);
    });
}

/// Changes the leaves, the shards and the time of an exchange of gradients.
type Plant<'p> = &'p dyn Fn(&mut Vec<LeafId>, &mut Vec<usize>, &mut GradSync);

/// The second linear's parameter has a whole copy on each rank, and each gives its part of the rows of its input.
#[test]
fn an_exchange_has_what_its_table_says() {
    let exchange =
        |role: &mut Role, plant: Plant<'_>| match find(role, Pass::Backward, Kind::ExchangeGradients) {
            Instr::ExchangeGradients { leaves, shards, when, .. } => plant(leaves, shards, when),
            other => panic!("{other:?}"),
        };
    let refused = |code: &str, words: &str, plant: Plant<'_>| {
        refused(MLP, EXCHANGED, code, words, |role| exchange(role, plant));
    };
    let buffers = "are not those of its table";
    refused("SW0507", buffers, &|leaves, _, _| leaves.push(LeafId(1)));
    refused("SW0507", buffers, &|_, shards, _| shards.push(1));
    refused("SW0507", buffers, &|_, shards, _| shards.truncate(shards.len() - 1));
    refused("SW0507", "brings gradients to another shard", &|_, shards, _| shards[0] = 1);
    refused("SW0507", "sends something else than its table says", &|leaves, _, _| leaves[0] = LeafId(1));
    refused("SW0506", "in different micro-batches", &|_, _, when| *when = GradSync::Each);
    planted(MLP, EXCHANGED, "SW0510", "is summed over micro-batches is exchanged with each", |made| {
        for role in &mut made.roles {
            exchange(role, &|_, _, when| *when = GradSync::Each);
        }
    });
}

/// What a rank gathers of a parameter lies around its part, and it reads all of that, or nothing.
#[test]
fn copies_lie_around_shards_and_are_read_whole_or_not() {
    let around = "does not include the rank's shard";
    refused(LINEARS, DIVIDED, "SW0502", around, |role| {
        role.table.copies[0].region = PerRank::Same(Region::whole(&[4, 8]));
    });
    refused(LINEARS, DIVIDED, "SW0502", around, |role| {
        role.table.copies[0].region = PerRank::Same(Region::whole(&[9, 8]));
    });
    refused(LINEARS, DIVIDED, "SW0523", "reads a parameter that is not gathered", |role| {
        instrs(role, Pass::Forward).retain(|instr| instr.kind() != Kind::Gather);
    });
    let model = graph(LINEARS);
    let mut made = apart(program(&model, DIVIDED));
    for role in &mut made.roles {
        let buf = buffer(role);
        role.body.leaves.push(Leaf { tensor: role.body.leaves[0].tensor, number: 1, buf });
        role.table.leaves.push((Of::Copy(0), PerRank::Same(Region::whole(&[0, 8]))));
    }
    assert_eq!(check::check(&model, &made).err(), None, "nothing is read of it");
}

/// Gradients of what was gathered go to the parts with each micro-batch.
#[test]
fn gradients_of_copies_may_be_exchanged_with_each_micro_batch() {
    let table = |number: u32, tensor: &str| {
        let ends = "from 0 :,:\nfrom 1 :,:\nto 0 0..4,:\nto 1 4..8,:\n";
        let pieces = "piece 0 0 0..4,:\npiece 1 0 0..4,:\npiece 0 1 4..8,:\npiece 1 1 4..8,:\n";
        format!("table {number} {tensor} sum\n{ends}{pieces}")
    };
    let sent = "exchange_gradients 5 w -> w_part\nexchange_gradients 6 v -> v_part";
    let text = DIVIDED.replace("scatter g0 w, v", sent);
    let text = format!("{text}{}{}", table(5, "%w"), table(6, "%v"));
    let model = graph(LINEARS);
    let mut made = program(&model, &text);
    for instr in instrs(&mut made.roles[0], Pass::Backward) {
        if let Instr::ExchangeGradients { when, .. } = instr {
            *when = GradSync::Each;
        }
    }
    assert_eq!(check::check(&model, &made).err(), None);
}

#[test]
fn gradients_that_are_exchanged_have_arisen() {
    let moved = |role: &mut Role| {
        let all = instrs(role, Pass::Backward);
        let at = all.iter().position(|instr| instr.kind() == Kind::ExchangeGradients).expect("one");
        let first = all.remove(at);
        all.insert(0, first);
    };
    planted(MLP, EXCHANGED, "SW0510", "communicated before its last contribution", |made| {
        made.roles.iter_mut().for_each(moved);
    });
}

/// What the first rank sends of `y` the second one receives, and does not need.
const SENT: &str = "table 9 %y sum\nfrom 0 :,:\nto 1 :,:\npiece 0 0 :,:\n";

fn sent(made: &mut Program, senders: &[usize], receivers: &[usize]) {
    let exchange = ExchangeId(0);
    for at in senders {
        let from = vec![
            find(&mut made.roles[*at], Pass::Forward, Kind::AllReduce).writes().next().expect("a result"),
        ];
        let at = instrs(&mut made.roles[*at], Pass::Forward);
        at.insert(2, Instr::Send { exchange, from });
    }
    for at in receivers {
        let to = vec![buffer(&mut made.roles[*at])];
        instrs(&mut made.roles[*at], Pass::Forward).insert(2, Instr::Receive { exchange, to });
    }
}

#[test]
fn what_is_sent_is_received() {
    let text = &format!("{MEGATRON}{SENT}");
    let model = graph(MLP);
    let mut made = program(&model, text);
    sent(&mut made, &[0], &[1]);
    assert_eq!(check::check(&model, &made).err(), None);
    let refused = |words: &str, senders: &[usize], receivers: &[usize]| {
        planted(MLP, text, "SW0506", words, |made| sent(made, senders, receivers));
    };
    refused("no rank receives what is sent", &[0], &[]);
    refused("wait for rank 0 for ever", &[], &[1]);
    planted(MLP, text, "SW0506", "no rank receives what is sent", |made| {
        sent(made, &[0], &[]);
        made.exchanges[0].lists().1.clear();
        made.exchanges[0].lists().2.clear();
    });
    refused("is not a source of, or sends it twice", &[0, 0], &[1]);
    refused("is not a source of, or sends it twice", &[1], &[]);
    refused("is in none of its groups", &[0], &[0]);
    planted(MLP, text, "SW0507", "sends something else", |made| {
        sent(made, &[0], &[1]);
        made.exchanges[0].lists().0[0].1.0[0].hi = 2;
        made.exchanges[0].lists().2[0].region.0[0].hi = 2;
    });
    planted(MLP, text, "SW0507", "are not those of its table", |made| {
        sent(made, &[0], &[1]);
        let more = buffer(&mut made.roles[1]);
        let Instr::Receive { to, .. } = find(&mut made.roles[1], Pass::Forward, Kind::Receive) else {
            panic!()
        };
        to.push(more);
    });
}

#[test]
fn backward_is_given_the_gradients_of_what_left() {
    let other = "gets a different number of gradients than there are outputs";
    refused(MLP, DATA, "SW0509", other, |role| {
        let more = buffer(role);
        role.body.code_mut(0, Pass::Backward).takes.push(more);
    });
    refused(MLP, DATA, "SW0509", "but its forward does not exist", |role| {
        let takes = vec![buffer(role)];
        role.body.codes.insert(1, Code { takes, ..Code::new(1, Pass::Backward) });
        role.body.timetable.loops[0].tasks.push(Task::backward(1, When::Last));
    });
}

#[test]
fn forward_code_reads_no_gradients() {
    let read = DATA.replace("grad 0 ds ->", "call 9 ds -> k : k = aten.mul.Tensor(ds, ds)\ngrad 0 ds ->");
    let found = support::faults(&graph(MLP), &read);
    assert!(found.iter().any(|fault| fault.what.contains("forward code reads the gradient")), "{found:?}");
}

const TWO: &str = "input %x f64[4,8] 0
op %a f64[4,8] = aten.relu.default(%x) in \"\" at \"m.py:1\"
op %b f64[4,8] = aten.sigmoid.default(%x) in \"\" at \"m.py:2\"
output %a
";

const GATHERED: &str = "group 0,1
ranks 0,1
input x %x 0..2,: | 2..4,:
call 0 x -> p : p = aten.relu.default(x)
all_gather g0 p -> z : [4, 8] 0 [2, 2]
output z
";

#[test]
fn pieces_that_are_joined_are_of_one_tensor() {
    refused(TWO, GATHERED, "SW0507", "are not consecutive", |role| {
        let Instr::Call(call) = find(role, Pass::Forward, Kind::Call) else { panic!("a call") };
        call.ops[0].target = "aten.sigmoid.default".into();
    });
}

#[test]
fn each_rank_joins_the_pieces_that_there_are() {
    for at in 0..2 {
        planted(TWO, GATHERED, "SW0507", "are not consecutive", |made| {
            let Instr::Collective(it) = find(&mut made.roles[at], Pass::Forward, Kind::AllGather) else {
                panic!("one")
            };
            it.how = How::AllGather(Cut { sizes: vec![1, 3], ..rows(&[2, 2]) });
        });
    }
}

/// Rows of a matrix of four by eight.
fn rows(sizes: &[i64]) -> Cut {
    let extents = vec![vec![Arg::Int(4)], vec![Arg::Int(8)]];
    Cut { extents, factor: 0, sizes: sizes.to_vec() }
}

#[test]
fn pieces_of_one_value_are_gathered_at_a_time() {
    planted(TWO, GATHERED, "SW0502", "a different number of results than of values", |made| {
        for role in &mut made.roles {
            let other = buffer(role);
            let Instr::Collective(it) = find(role, Pass::Forward, Kind::AllGather) else { panic!("one") };
            it.from.push(it.from[0]);
            it.to.push(other);
        }
    });
}

/// A matrix times itself, of which each rank has a part as the first factor and all as the second.
#[test]
fn parts_of_a_product_are_parts_of_one_factor() {
    let model = "input %x f64[8,4] 0
param %w f64[8,4] \"w\"
op %y f64[8,8] = aten.linear.default(%x, %w) in \"\" at \"m.py:1\"
op %z f64[8,8] = aten.mm.default(%y, %y) in \"\" at \"m.py:2\"
output %z
";
    let text = "group 0,1
ranks 0,1
shard w %w :,0..2 | :,2..4
input x %x :,0..2 | :,2..4
call 0 x, w -> p : p = aten.linear.default(x, w)
all_reduce g0 sum p -> y
call 1 p, y -> q : q = aten.mm.default(p, y)
all_reduce g0 sum q -> z
output z
";
    refused(model, text, "SW0512", "is not whole", |role| {
        let calls = instrs(role, Pass::Forward).iter_mut();
        let calls = calls.filter_map(|instr| if let Instr::Call(call) = instr { Some(call) } else { None });
        calls.last().expect("one").ops[0].args.swap(0, 1);
    });
}

const LAYER: &str = include_str!("programs/layer.graph");
const SEQUENCE: &str = include_str!("programs/layer_sequence.txt");

/// A rank may get the piece that it should, and send the others pieces that they do not expect.
#[test]
fn ranks_cut_what_they_scatter_in_the_same_pieces() {
    let thirds = [
        ("group 0,1", "group 0,1,2"),
        ("ranks 0,1", "ranks 0,1,2"),
        ("%w 0..8,: | 8..16,:", "%w 0..8,: | 8..12,: | 12..16,:"),
        ("%v :,0..8 | :,8..16", "%v :,0..8 | :,8..12 | :,12..16"),
        ("%x 0..2,: | 2..4,:", "%x 0..1,: | 1..3,: | 3..4,:"),
        ("[2, 2]", "[1, 2, 1]"),
    ];
    let text = thirds.iter().fold(SEQUENCE.to_owned(), |text, (two, three)| text.replace(two, three));
    let whole = program(&graph(LAYER), &text);
    assert!(check::check(&graph(LAYER), &apart(whole)).is_ok());
    for pass in [Pass::Forward, Pass::Backward] {
        planted(LAYER, &text, "SW0506", "cut a tensor in different pieces", |made| {
            let instrs = &mut made.roles[2].body.code_mut(0, pass).instrs;
            let scatter = instrs.iter_mut().find_map(|instr| match instr {
                Instr::Collective(Collective { how: How::ReduceScatter(cut), .. }) => Some(cut),
                _ => None,
            });
            scatter.expect("a reduce-scatter").sizes = vec![2, 1, 1];
        });
    }
}

const SQUARE: &str = "input %x f64[4,4,6] 0
op %p f64[4,4] = aten.sum.dim_IntList(%x, [2]) in \"\" at \"m.py:1\"
output %p
";

const SCATTERED: &str = "group 0,1
ranks 0,1
input x %x :,:,0..3 | :,:,3..6
call 0 x -> p : p = aten.sum.dim_IntList(x, [2])
reduce_scatter g0 p -> q : [4, 4] 0 [2, 2]
output q local 0..2,: | 2..4,:
";

/// Changes how a rank cuts what it scatters.
fn cut(role: &mut Role, plant: impl Fn(&mut Cut)) {
    let Instr::Collective(it) = find(role, Pass::Forward, Kind::ReduceScatter) else { panic!("one") };
    let How::ReduceScatter(cut) = &mut it.how else { panic!("a cut") };
    plant(cut);
}

#[test]
fn ranks_may_name_the_same_pieces_otherwise() {
    let model = graph(SQUARE);
    let mut made = apart(program(&model, SCATTERED));
    cut(&mut made.roles[1], |cut| {
        cut.extents = vec![vec![Arg::Int(2), Arg::Int(2)], vec![Arg::Int(4)]];
        cut.sizes = vec![1, 1];
    });
    assert_eq!(check::check(&model, &made).err(), None);
    for at in 0..2 {
        let other = "cut a tensor in different pieces";
        planted(SQUARE, SCATTERED, "SW0506", other, |made| cut(&mut made.roles[at], |cut| cut.factor = 1));
        let sizes = |cut: &mut Cut| cut.sizes = vec![1, 3];
        planted(SQUARE, SCATTERED, "SW0506", other, |made| cut(&mut made.roles[at], sizes));
    }
    planted(SQUARE, SCATTERED, "SW0507", "pieces that do not fit it", |made| {
        for role in &mut made.roles {
            cut(role, |cut| cut.extents[1] = vec![Arg::Int(6)]);
        }
    });
}

/// In a step of several micro-batches ranks meet for the same one, and come to their ends.
#[test]
fn ranks_run_micro_batches_in_orders_that_meet() {
    const TENSOR: &str = include_str!("programs/layer_tensor.txt");
    let shifts = |made: &mut Program, roles: &[usize]| {
        for &role in roles {
            made.roles[role].body.timetable.loops[0].tasks[1].at = -1;
        }
    };
    for role in 0..2 {
        planted(LAYER, TENSOR, "SW0506", "", |made| shifts(made, &[role]));
    }
    let mut both = apart(program(&graph(LAYER), TENSOR));
    shifts(&mut both, &[0, 1]);
    assert!(check::check(&graph(LAYER), &both).is_ok(), "all do the same");
}

const SCALED: &str = "input %x f64[4,8] 0
param %g f64[8] \"g\"
op %y f64[4,8] = aten.mul.Tensor(%x, %g) in \"\" at \"m.py:1\"
output %y
";

#[test]
fn what_is_sent_has_as_many_dims_as_its_table_says() {
    let text = |sent: &str| {
        format!(
            "table 9 %y sum
from 0 :,:
to 0 :,:
piece 0 0 :,:
ranks 0
shard g %g :
input x %x :,:
call 0 x, g -> y : y = aten.mul.Tensor(x, g)
exchange 9 {sent} -> z
output z
"
        )
    };
    assert_eq!(support::faults(&graph(SCALED), &text("y")), []);
    let found = support::faults(&graph(SCALED), &text("g"));
    assert!(found.iter().any(|fault| fault.what.contains("sends something else")), "{found:?}");
}
