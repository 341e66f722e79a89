//! Timetables that are unusual and right, and some that seem right and are not: of loops for the first micro-batches, of
//! loops that advance by several, and of ranks that do not go through their tasks together.

use check::Fault;
use graph::Graph;
use program::*;
use rules::Region;

use crate::support::texts::{ALONE, DIVIDED, MEAN, ROWS, STAGES, UPDATED};
use crate::support::{LINEARS, graph, program};

const LATER: usize = 0;
const FIRST: usize = 1;

/// The same on so many ranks for each block, which have a row each. Both blocks read one parameter, whose gradients are
/// reduced over all ranks at the end of a step.
fn rows(count: usize) -> (Graph, String) {
    let model = graph(&format!(
        "input %x f64[{count},8] 0
param %w f64[8,8] \"w\"
op %y f64[{count},8] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %z f64[{count},8] = aten.linear.default(%y, %w) in \"b\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:3\"
output %s
"
    ));
    let row = |at: usize| format!("{at}..{},:", at + 1);
    let ends = |word: &str, from: usize| -> String {
        (0..count).map(|at| format!("{word} {} {}\n", from + at, row(at))).collect()
    };
    let pieces: String = (0..count).map(|at| format!("piece {at} {at} {}\n", row(at))).collect();
    let numbers = |from: usize| (from..from + count).map(|it| it.to_string()).collect::<Vec<_>>().join(",");
    let (one, two) = (numbers(0), numbers(count));
    let all = (0..count).map(row).collect::<Vec<_>>().join(" | ");
    let text = format!(
        "group {one} {two}
group {one},{two}
table 9 %y sum
{}{}{pieces}table 10 %y sum
{}{}{pieces}ranks {two}
block 1
shard v %w :,:
receive 9 -> y
call 0 y, v -> p : z = aten.linear.default(y, v) ; p = aten.sum.default(z)
all_reduce g0 sum p -> s
output s
seed ds
grad 0 ds -> dy
send 10 dy
end
reduce_gradients g1 v
ranks {one}
shard w %w :,:
input x %x {all}
call 0 x, w -> y : y = aten.linear.default(x, w)
output none
send 9 y
backward
receive 10 -> dy
grad 0 dy ->
end
reduce_gradients g1 w
",
        ends("from", 0),
        ends("to", count),
        ends("from", count),
        ends("to", 0),
    );
    (model, text)
}

/// One block, whose ranks meet in each forward, in the last backward, and at the end of the step.
const HALVES: &str = "group 0,1
group 0 1
ranks 0,1
shard w %w :,:
shard v %v :,:
input x %x 0..2,: | 2..4,:
call 0 x, w, v -> s : y = aten.linear.default(x, w) ; z = aten.linear.default(y, v) ; s = aten.sum.default(z)
all_reduce g1 sum s -> r
all_reduce g0 sum r -> t
output t
seed ds
grad 0 ds ->
reduce_gradients g0 w
end
reduce_gradients g0 v
";

fn found(model: &Graph, text: &str, plant: impl Fn(&mut Program)) -> Vec<Fault> {
    let mut made = program(model, text);
    plant(&mut made);
    check::check(model, &made).err().unwrap_or_default()
}

/// The first thing that is found has this code and says this.
fn says(found: &[Fault], code: &str, words: &str) {
    let said = |fault: &Fault| {
        fault.code == code && (fault.what.contains(words) || fault.why.iter().any(|why| why.contains(words)))
    };
    assert!(found.first().is_some_and(said), "{code} {words}: {found:?}");
}

fn early(iterations: u32, tasks: Vec<Task>) -> Loop {
    Loop { every: 1, iterations: Some(iterations), tasks }
}

fn forward(at: i32) -> Task {
    Task::forward(0).at(at)
}

fn backward(at: i32) -> Task {
    Task::backward(0, When::Last).at(at)
}

/// So many forwards of a block, and then as many backwards.
fn in_turn(every: u32, block: u32) -> Loop {
    let places = || (0..every).map(|at| i32::try_from(at).expect("a few"));
    let forwards = places().map(|at| Task::forward(block).at(at));
    let backwards = places().map(|at| Task::backward(block, When::Last).at(at));
    Loop { every, iterations: None, tasks: forwards.chain(backwards).collect() }
}

fn loops(role: &mut Role, loops: Vec<Loop>) {
    role.body.timetable.loops = loops;
}

fn steps(role: &mut Role, stashes: bool) {
    role.body.timetable.steps = Steps::On { stashes };
}

/// A role for each rank.
fn apart(made: &mut Program) {
    let roles = made.roles.iter().flat_map(|role| (0..role.ranks.len()).map(move |at| alone(role, at)));
    let mut roles: Vec<Role> = roles.collect();
    roles.sort_by_key(|role| role.ranks[0]);
    made.roles = roles;
}

fn alone(role: &Role, at: usize) -> Role {
    let only = |per_rank: &PerRank<Region>| PerRank::Same(per_rank.get(at).clone());
    let mut table = role.table.clone();
    table.shards.iter_mut().for_each(|shard| shard.region = only(&shard.region));
    table.leaves.iter_mut().for_each(|(_, region)| *region = only(region));
    table.inputs.iter_mut().for_each(|region| *region = only(region));
    table.outputs.iter_mut().flatten().for_each(|region| *region = only(region));
    Role { ranks: vec![role.ranks[at]], table, body: role.body.clone() }
}

/// Ranks of a block go through it together; of each other's turns they know nothing.
#[test]
fn blocks_advance_by_different_numbers_after_loops_of_their_own() {
    let (tied, at_end) = rows(2);
    let linears = graph(LINEARS);
    for (model, text) in [(&linears, STAGES), (&linears, ROWS), (&tied, &at_end[..])] {
        let different = |made: &mut Program| {
            loops(&mut made.roles[FIRST], vec![early(2, vec![forward(0)]), in_turn(4, 0)]);
            loops(&mut made.roles[LATER], vec![early(1, vec![Task::forward(1)]), in_turn(2, 1)]);
        };
        assert_eq!(found(model, text, different), []);
        let apart = |made: &mut Program| {
            different(made);
            apart(made);
        };
        assert_eq!(found(model, text, apart), []);
        let all_first = |made: &mut Program| {
            let all = |task: Task| Loop::over_all(vec![task]);
            let first = vec![early(1, vec![forward(0)]), all(forward(0)), all(backward(0))];
            loops(&mut made.roles[FIRST], first);
            loops(&mut made.roles[LATER], vec![in_turn(2, 1)]);
        };
        assert_eq!(found(model, text, all_first), []);
        let threes = |made: &mut Program| {
            loops(&mut made.roles[FIRST], vec![in_turn(3, 0)]);
        };
        assert_eq!(found(model, text, threes), []);
    }
}

/// The second block is ahead by one; of every second micro-batch the first block is not.
#[test]
fn every_second_micro_batch_is_waited_for_too() {
    let plant = |made: &mut Program| {
        loops(&mut made.roles[FIRST], vec![in_turn(2, 0)]);
        let tasks = vec![Task::forward(1).at(1), Task::backward(1, When::Last)];
        loops(&mut made.roles[LATER], vec![Loop::over_all(tasks)]);
    };
    says(&found(&graph(LINEARS), STAGES, plant), "SW0506", "wait");
}

/// The second block has two forwards before its first backward, and the first block has one.
#[test]
fn each_of_several_micro_batches_is_waited_for() {
    let plant = |made: &mut Program| {
        let tasks = (0..3).flat_map(|at| [forward(at), backward(at)]).collect();
        loops(&mut made.roles[FIRST], vec![Loop { every: 3, iterations: None, tasks }]);
        let mut later = in_turn(3, 1);
        later.tasks.swap(2, 3);
        loops(&mut made.roles[LATER], vec![later]);
    };
    says(&found(&graph(LINEARS), STAGES, plant), "SW0506", "wait");
}

/// Ranks that meet, and go through their tasks in different orders.
#[test]
fn ranks_of_one_block_may_have_loops_of_their_own() {
    let plant = |made: &mut Program| {
        apart(made);
        loops(&mut made.roles[0], vec![in_turn(2, 0)]);
        loops(&mut made.roles[1], vec![early(1, vec![forward(0)]), in_turn(2, 0)]);
        made.roles[2..].iter_mut().for_each(|role| loops(role, vec![in_turn(2, 1)]));
    };
    assert_eq!(found(&graph(LINEARS), ROWS, plant), []);
    // The one is behind; both are at the end of the step after all that is theirs.
    let behind = |made: &mut Program| {
        apart(made);
        let first = || early(1, vec![forward(0)]);
        loops(&mut made.roles[0], vec![first(), Loop::over_all(vec![forward(0), backward(0)])]);
        loops(&mut made.roles[1], vec![first(), Loop::over_all(vec![backward(-1), forward(0)])]);
    };
    assert_eq!(found(&graph(LINEARS), HALVES, behind), []);
}

/// Gradients that were reduced with each micro-batch would be waited for here, and there not be given.
#[test]
fn gradients_are_reduced_with_the_last_micro_batch_only() {
    let plant = |is_early: bool| {
        move |made: &mut Program| {
            apart(made);
            for (role, ahead) in made.roles.iter_mut().zip([0, 1]) {
                let first = is_early.then(|| early(1, vec![forward(0)]));
                let all = Loop::over_all(vec![forward(ahead), backward(0)]);
                loops(role, first.into_iter().chain([all]).collect());
            }
        }
    };
    assert_eq!(found(&graph(LINEARS), HALVES, plant(false)), []);
    // What is right is not always seen to be.
    says(&found(&graph(LINEARS), HALVES, plant(true)), "SW0506", "in a long step");
}

const LAYER: &str = include_str!("programs/layer.graph");
const TENSOR: &str = include_str!("programs/layer_tensor.txt");

/// The ranks meet in each forward and backward, and the one has two forwards before its first backward.
#[test]
fn ranks_that_meet_advance_by_the_same_number() {
    let plant = |made: &mut Program| {
        apart(made);
        loops(&mut made.roles[1], vec![in_turn(2, 0)]);
    };
    assert_eq!(found(&graph(LAYER), TENSOR, apart), []);
    says(&found(&graph(LAYER), TENSOR, plant), "SW0506", "");
}

/// The second block on rank 1; the first and the third on rank 0.
const AROUND: &str = "table 9 %y sum
from 0 :,:
to 1 :,:
piece 0 0 :,:
table 11 %z sum
from 1 :,:
to 0 :,:
piece 0 0 :,:
ranks 0
shard w %w :,:
input x %x :,:
call 0 x, w -> y : y = aten.linear.default(x, w)
send 9 y
block 2
receive 11 -> q
call 1 q -> s : s = aten.sum.default(q)
output s
ranks 1
block 1
shard v %v :,:
receive 9 -> q
call 0 q, v -> z : z = aten.linear.default(q, v)
output none
send 11 z
";

/// Both blocks on one rank, which sends to itself.
const ITSELF: &str = "table 9 %y sum
from 0 :,:
to 0 :,:
piece 0 0 :,:
ranks 0
shard w %w :,:
shard v %v :,:
input x %x :,:
call 0 x, w -> y : y = aten.linear.default(x, w)
send 9 y
block 1
receive 9 -> q
call 1 q, v -> s : z = aten.linear.default(q, v) ; s = aten.sum.default(z)
output s
";

/// Each micro-batch is over before the next one begins, and none is ever over.
#[test]
fn a_rank_that_waits_for_what_it_runs_later_is_found() {
    for (text, last) in [(AROUND, 2), (ITSELF, 1)] {
        let plant = |blocks: [u32; 2]| {
            move |made: &mut Program| {
                made.roles[0].body.code_mut(0, Pass::Forward).gives = vec![None];
                let tasks = blocks.map(Task::forward).to_vec();
                loops(&mut made.roles[0], vec![Loop::over_all(tasks)]);
            }
        };
        assert_eq!(found(&graph(LINEARS), text, plant([0, last])), []);
        says(&found(&graph(LINEARS), text, plant([last, 0])), "SW0506", "for ever");
    }
}

const TWO: &str = "input %x f64[4,8] 0
param %w f64[8,8] \"w\"
param %v f64[8,8] \"v\"
op %y f64[4,8] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:2\"
op %z f64[4,8] = aten.linear.default(%x, %v) in \"b\" at \"m.py:3\"
op %t f64[] = aten.sum.default(%z) in \"\" at \"m.py:4\"
output %s
output %t
";

/// Two blocks that have nothing to do with each other; both ranks have half of the rows of both.
const BESIDE: &str = "group 0,1
group 0,1
ranks 0,1
shard w %w :,:
shard v %v :,:
input x %x 0..2,: | 2..4,:
call 0 x, w -> a : y = aten.linear.default(x, w) ; a = aten.sum.default(y)
all_reduce g0 sum a -> b
output b
seed db
grad 0 db ->
reduce_gradients g0 w
block 1
input u %x 0..2,: | 2..4,:
call 1 u, v -> c : z = aten.linear.default(u, v) ; c = aten.sum.default(z)
all_reduce g1 sum c -> d
output none
output d
seed dd
grad 1 dd ->
reduce_gradients g0 v
";

/// The first block gives the first output, and the second one the second.
fn beside(made: &mut Program) {
    let role = &mut made.roles[0];
    role.table.outputs.remove(1);
    role.body.code_mut(0, Pass::Forward).gives.push(None);
    apart(made);
}

#[test]
fn gradients_of_two_blocks_are_reduced_in_one_order() {
    let plant = |blocks: [u32; 2]| {
        move |made: &mut Program| {
            beside(made);
            let backwards = blocks.map(|block| Task::backward(block, When::Last));
            let tasks = [Task::forward(0), Task::forward(1)].into_iter().chain(backwards).collect();
            loops(&mut made.roles[1], vec![Loop::over_all(tasks)]);
        }
    };
    assert_eq!(found(&graph(TWO), BESIDE, plant([1, 0])), []);
    says(&found(&graph(TWO), BESIDE, plant([0, 1])), "SW0506", "do so for different micro-batches");
}

/// The second rank has in its first block what the first rank has in its second one.
#[test]
fn ranks_with_one_timetable_meet_in_the_same_codes() {
    let text: String =
        BESIDE.lines().filter(|line| !is_of_backward(line)).map(|it| format!("{it}\n")).collect();
    let plant = |ahead: i32| {
        move |made: &mut Program| {
            beside(made);
            let body = &mut made.roles[1].body;
            let empty = Code { gives: vec![None; 2], ..Code::new(1, Pass::Forward) };
            let moved = std::mem::replace(body.code_mut(1, Pass::Forward), empty);
            let first = body.code_mut(0, Pass::Forward);
            first.instrs.extend(moved.instrs);
            first.takes.extend(moved.takes);
            first.gives[1] = moved.gives[1];
            for role in &mut made.roles {
                let tasks = vec![Task::forward(0).at(ahead), Task::forward(1)];
                loops(role, vec![Loop::over_all(tasks)]);
            }
        }
    };
    assert_eq!(found(&graph(TWO), &text, plant(0)), []);
    says(&found(&graph(TWO), &text, plant(1)), "SW0506", "");
}

fn is_of_backward(line: &str) -> bool {
    ["seed", "grad", "reduce"].iter().any(|word| line.starts_with(word))
}

#[test]
fn messages_of_first_micro_batches_are_in_order() {
    let order = "does not run in the order of the messages";
    let twos = Loop { every: 2, iterations: Some(2), tasks: vec![forward(0)] };
    let turned = early(1, vec![forward(1), forward(0)]);
    for first in [early(2, vec![forward(2)]), early(1, vec![forward(1)]), twos, turned] {
        let plant = |made: &mut Program| {
            let all = Loop::over_all(vec![forward(0), backward(0)]);
            loops(&mut made.roles[FIRST], vec![first.clone(), all]);
        };
        says(&found(&graph(LINEARS), STAGES, plant), "SW0517", order);
    }
}

#[test]
fn a_backward_runs_after_its_forward_in_whatever_loops() {
    let all = |tasks: Vec<Task>| Loop::over_all(tasks);
    let usual = || all(vec![forward(0), backward(0)]);
    let model = graph(LINEARS);
    let wrong = [
        vec![early(1, vec![backward(0)]), usual()],
        vec![early(1, vec![backward(0), forward(0)]), usual()],
        vec![early(1, vec![forward(0)]), early(2, vec![backward(0)]), usual()],
        vec![all(vec![forward(0), backward(1)])],
        vec![all(vec![backward(0)]), all(vec![forward(0)])],
    ];
    for wrong in wrong {
        let plant = |made: &mut Program| loops(&mut made.roles[0], wrong.clone());
        says(&found(&model, ALONE, plant), "SW0517", "whose forward has not run");
    }
    // The second micro-batch has its forward before the first one.
    let second = vec![early(1, vec![forward(1)]), all(vec![forward(1), backward(0)])];
    for right in [second, vec![in_turn(3, 0)], vec![early(1, vec![forward(0)]), in_turn(3, 0)]] {
        assert_eq!(found(&model, ALONE, |made| loops(&mut made.roles[0], right.clone())), []);
    }
}

#[test]
fn buffers_have_their_values_in_loops_for_the_first_micro_batches() {
    let tasks = || vec![Task::forward(0), Task::forward(1)];
    let plant = |made: &mut Program| {
        made.roles[0].body.code_mut(1, Pass::Forward).gives = vec![None];
        loops(&mut made.roles[0], vec![early(2, tasks()), Loop::over_all(tasks())]);
    };
    assert_eq!(found(&graph(MEAN), UPDATED, plant), []);
}

/// Of two ranks of a block the one is two micro-batches behind.
#[test]
fn ranks_of_a_block_may_be_behind_by_different_numbers() {
    let plant = |made: &mut Program| {
        apart(made);
        made.roles.iter_mut().for_each(|role| steps(role, false));
        loops(&mut made.roles[0], vec![Loop::over_all(vec![backward(-2), forward(0)])]);
        steps(&mut made.roles[0], true);
    };
    assert_eq!(found(&graph(LINEARS), ROWS, plant), []);
}

/// More ranks than are followed through some steps.
#[test]
fn many_ranks_meet_at_the_ends_of_steps_that_go_on() {
    let (model, text) = rows(33);
    let plant = |later: i32, first: i32| {
        move |made: &mut Program| {
            for (role, block, behind) in [(LATER, 1, later), (FIRST, 0, first)] {
                let role = &mut made.roles[role];
                let backward = Task::backward(block, When::Last).at(-behind);
                let mut tasks = vec![Task::forward(block), backward];
                tasks.rotate_left(usize::from(behind > 0));
                loops(role, vec![Loop::over_all(tasks)]);
                steps(role, behind > 0);
            }
        }
    };
    assert_eq!(found(&model, &text, plant(0, 1)), []);
    says(&found(&model, &text, plant(1, 0)), "SW0506", "across steps");
}

#[test]
fn a_forward_is_not_behind_its_step() {
    let plant = |made: &mut Program| {
        made.roles.iter_mut().for_each(|role| steps(role, false));
        loops(&mut made.roles[FIRST], vec![Loop::over_all(vec![forward(-1), backward(-1)])]);
        steps(&mut made.roles[FIRST], true);
    };
    let version = "is computed with the parameters of another step";
    says(&found(&graph(LINEARS), STAGES, plant), "SW0531", version);
}

/// Steps have no turn before their first one, which would be for the forward of the first micro-batch.
#[test]
fn steps_that_go_on_begin_with_their_first_micro_batch() {
    let plant = |made: &mut Program| {
        loops(&mut made.roles[0], vec![Loop::over_all(vec![forward(1), backward(0)])]);
        steps(&mut made.roles[0], false);
    };
    says(&found(&graph(LINEARS), ALONE, plant), "SW0531", "are not complete");
    // Of two blocks no step has fewer than two micro-batches: there is a forward of the second one.
    let two = |made: &mut Program| {
        made.roles.iter_mut().for_each(|role| steps(role, false));
        loops(&mut made.roles[FIRST], vec![Loop::over_all(vec![forward(1), backward(0)])]);
    };
    says(&found(&graph(LINEARS), STAGES, two), "SW0531", "1 of 2 micro-batches have run forward");
}

const MLP: &str = include_str!("programs/mlp.graph");
const EXCHANGED: &str = include_str!("programs/exchanged.txt");

#[test]
fn only_parameters_that_are_held_have_versions() {
    let on = |made: &mut Program| made.roles.iter_mut().for_each(|role| steps(role, false));
    says(&found(&graph(LINEARS), DIVIDED, on), "SW0531", "parameters are gathered");
    assert_eq!(found(&graph(MLP), EXCHANGED, on), [], "gradients are exchanged");
}

#[test]
fn a_rank_without_code_has_no_steps() {
    let text = format!("{STAGES}ranks 2\n");
    let plant = |made: &mut Program| {
        made.roles[2].table.outputs = vec![None];
        made.roles[..2].iter_mut().for_each(|role| steps(role, false));
    };
    assert_eq!(found(&graph(LINEARS), &text, plant), []);
}

/// Gathered once a step here, and with each micro-batch there: in a step of one that is as often.
const OFTEN: &str = "group 0,1
ranks 0
hold part %w 0..4,:
shard v %v :,:
copy w part 0 2 :,:
begin
gather g0 w
forward
input x %x 0..2,:
call 0 x, w, v -> s : y = aten.linear.default(x, w) ; z = aten.linear.default(y, v) ; s = aten.sum.default(z)
all_reduce g0 sum s -> t
output t
ranks 1
hold part %w 4..8,:
shard v %v :,:
copy w part 0 2 :,:
input x %x 2..4,:
gather g0 w
call 0 x, w, v -> s : y = aten.linear.default(x, w) ; z = aten.linear.default(y, v) ; s = aten.sum.default(z)
release w
all_reduce g0 sum s -> t
output t
";

const ASIDE: &str = "input %x f64[4,8] 0
input %u f64[4,8] 1
param %w f64[8,8] \"w\"
param %v f64[8,8] \"v\"
op %y f64[4,8] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %z f64[4,8] = aten.linear.default(%y, %v) in \"b\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:3\"
op %r f64[4,8] = aten.linear.default(%u, %w) in \"c\" at \"m.py:4\"
op %t f64[] = aten.sum.default(%r) in \"\" at \"m.py:5\"
output %s
output %t
";

/// Gradients of one parameter are reduced at the end of the step here, and with the last backward there: before what the first
/// rank waits for, if that is how the second rank orders its blocks.
const SOONER: &str = "group 0,1
table 9 %y sum
from 0 :,:
to 1 :,:
piece 0 0 :,:
table 10 %y sum
from 1 :,:
to 0 :,:
piece 0 0 :,:
ranks 0
shard w %w :,:
input x %x :,:
call 0 x, w -> y : y = aten.linear.default(x, w)
output none
output none
send 9 y
backward
receive 10 -> dy
grad 0 dy ->
end
reduce_gradients g0 w
ranks 1
shard w %w :,:
shard v %v :,:
block 1
input u %u :,:
call 0 u, w -> t : r = aten.linear.default(u, w) ; t = aten.sum.default(r)
output none
output t
seed dt
grad 0 dt ->
reduce_gradients g0 w
block 2
receive 9 -> y
call 1 y, v -> s : z = aten.linear.default(y, v) ; s = aten.sum.default(z)
output s
output none
seed ds
grad 1 ds -> dy
send 10 dy
";

#[test]
fn ranks_meet_once_a_step_or_with_micro_batches() {
    says(&found(&graph(LINEARS), OFTEN, |_| ()), "SW0506", "rank 0 does so once a step, rank 1 does not");
    let (group, roles) = OFTEN.split_once("ranks 0").expect("a role");
    let (first, second) = roles.split_once("ranks 1").expect("two roles");
    let parts = |role: &str, [hold, input]: [&str; 2]| {
        let held = role.replace("0..4,:", hold).replace("4..8,:", hold);
        held.replace("0..2,:", input).replace("2..4,:", input)
    };
    let (first, second) = (parts(second, ["0..4,:", "0..2,:"]), parts(first, ["4..8,:", "2..4,:"]));
    let turned = format!("{group}ranks 0{first}ranks 1{second}");
    says(&found(&graph(LINEARS), &turned, |_| ()), "SW0506", "rank 1 does so once a step, rank 0 does not");
    let plant = |made: &mut Program| {
        made.boundary.outputs = vec![Output::Whole; 2];
        let outputs = &mut made.roles[1].table.outputs;
        *outputs = vec![outputs[2].clone(), outputs[1].clone()];
        let tasks = vec![
            Task::forward(1),
            Task::forward(2),
            Task::backward(1, When::Last),
            Task::backward(2, When::Last),
        ];
        loops(&mut made.roles[1], vec![Loop::over_all(tasks)]);
    };
    says(&found(&graph(ASIDE), SOONER, plant), "SW0506", "rank 0 does so once a step, rank 1 does not");
}
