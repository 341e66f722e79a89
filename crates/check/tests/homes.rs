//! Parameters that ranks divide among them: what is gathered of them, and how gradients reach their parts.

use graph::TensorId;
use program::{Code, Grad, Instr, Loop, Pass, Program, RankId, Task, Update, When, Which};

use crate::support::{LINEARS, faults, graph, program, proof};

/// `old` becomes `new`, which must be refused.
fn breaks(program: &str, old: &str, new: &str, code: &str) {
    assert!(program.contains(old), "{old}");
    let found = faults(&graph(LINEARS), &program.replacen(old, new, 1));
    assert_eq!(found.first().map(|fault| fault.code), Some(code), "{old:?} to {new:?}: {found:?}");
}

/// `zero3` on two devices: gathered ahead, and for backward once more.
const PASSING: &str = "group 0,1
ranks 0,1
hold w_part %w 0..4,: | 4..8,:
hold v_part %v :,0..4 | :,4..8
copy w w_part 0 2 :,:
copy v v_part 1 2 :,:
input x %x 0..2,: | 2..4,:
gather g0 w
gather g0 v
call 0 x, w -> y : y = aten.linear.default(x, w)
release w
call 1 y, v -> s : z = aten.linear.default(y, v) ; s = aten.sum.default(z)
release v
all_reduce g0 sum s -> t
output t
seed ds
gather g0 v
gather g0 w
grad 1 ds -> dy
release v
scatter g0 v
grad 0 dy ->
release w
scatter g0 w
";

/// `zero1`: gathered once a step, and reduced with the last micro-batch.
const ONCE: &str = "group 0,1
ranks 0,1
hold w_part %w 0..4,: | 4..8,:
hold v_part %v :,0..4 | :,4..8
copy w w_part 0 2 :,:
copy v v_part 1 2 :,:
begin
gather g0 w, v
forward
input x %x 0..2,: | 2..4,:
call 0 x, w -> y : y = aten.linear.default(x, w)
call 1 y, v -> s : z = aten.linear.default(y, v) ; s = aten.sum.default(z)
all_reduce g0 sum s -> t
output t
seed ds
grad 1 ds -> dy
grad 0 dy ->
scatter_last g0 v, w
";

/// Divided inside of a node, copied between two of them.
const BOTH: &str = "group 0,1 2,3
group 0,2 1,3
group 0,1,2,3
ranks 0,1,2,3
hold w_part %w 0..4,: | 4..8,: | 0..4,: | 4..8,:
shard v %v :,:
copy w w_part 0 2 :,:
input x %x 0..1,: | 1..2,: | 2..3,: | 3..4,:
gather g0 w
call 0 x, w -> y : y = aten.linear.default(x, w)
release w
call 1 y, v -> s : z = aten.linear.default(y, v) ; s = aten.sum.default(z)
all_reduce g2 sum s -> t
output t
seed ds
gather g0 w
grad 1 ds -> dy
grad 0 dy ->
release w
scatter g0 w
reduce_gradients g2 v
reduce_shards g1 w_part
";

#[test]
fn what_is_gathered_for_each_use_is_proved() {
    proof(&graph(LINEARS), PASSING);
}

#[test]
fn what_is_gathered_once_a_step_is_proved() {
    proof(&graph(LINEARS), ONCE);
}

#[test]
fn what_is_divided_inside_and_copied_outside_is_proved() {
    proof(&graph(LINEARS), BOTH);
}

#[test]
fn a_gather_is_not_dropped_or_undone_too_early() {
    breaks(PASSING, "gather g0 w\ngather g0 v\ncall", "gather g0 v\ncall", "SW0523");
    breaks(PASSING, "gather g0 v\ngather g0 w\ngrad", "gather g0 v\ngrad", "SW0523");
    breaks(PASSING, "call 1 y, v", "release v\ncall 1 y, v", "SW0523");
    breaks(PASSING, "grad 1 ds -> dy\nrelease v", "release v\ngrad 1 ds -> dy", "SW0523");
    breaks(ONCE, "gather g0 w, v", "gather g0 w", "SW0523");
    // What stands before the first micro-batch only gathers.
    breaks(ONCE, "forward\n", "add w -> k\nforward\n", "SW0523");
}

#[test]
fn what_a_micro_batch_gathers_it_releases() {
    // The next step would compute with what was gathered before its update.
    breaks(PASSING, "release w\nscatter g0 w\n", "scatter g0 w\n", "SW0523");
    breaks(PASSING, "release w\ncall", "call", "SW0523");
    breaks(PASSING, "release v\nall_reduce", "release v\nrelease v\nall_reduce", "SW0523");
    breaks(ONCE, "all_reduce g0", "release w\nall_reduce g0", "SW0523");
    breaks(ONCE, "begin\n", "", "SW0523");
}

#[test]
fn what_a_code_gathers_does_not_stay_for_another() {
    // Of several micro-batches the backward of the first would give up what that of the second reads.
    let kept =
        PASSING.replace("release v\nall_reduce", "all_reduce").replace("seed ds\ngather g0 v\n", "seed ds\n");
    let found = faults(&graph(LINEARS), &kept);
    assert_eq!(found.first().map(|fault| fault.code), Some("SW0523"), "{found:?}");
    assert!(
        found[0].what.contains("a parameter that forward gathers stays gathered at its end"),
        "{found:?}"
    );
}

/// `zero3` on two devices, with a backward in two halves.
fn in_halves() -> Program {
    let mut made = program(&graph(LINEARS), PASSING);
    let body = &mut made.roles[0].body;
    let whole = body.codes.pop().expect("the last code is backward");
    let (mut first, mut second) = (vec![], vec![]);
    for instr in whole.instrs {
        match instr {
            Instr::Grad(grad) => {
                let call = grad.call;
                second.push(Instr::Grad(Grad {
                    call,
                    which: Which::Weights,
                    from: vec![],
                    to: vec![],
                    recomputed: vec![],
                }));
                first.push(Instr::Grad(Grad { which: Which::Inputs, ..grad }));
            }
            instr if instr.leaves().is_empty() => first.push(instr),
            instr => second.push(instr),
        }
    }
    let inputs = Code { instrs: first, takes: whole.takes, gives: whole.gives, ..Code::new(0, Pass::Inputs) };
    body.codes.extend([inputs, Code { instrs: second, ..Code::new(0, Pass::Weights) }]);
    let tasks = vec![Task::forward(0), Task::inputs(0), Task::weights(0, When::Last)];
    body.timetable.loops = vec![Loop::over_all(tasks)];
    made
}

/// What is found once something is moved in the first half.
fn found_in_halves(plant: impl Fn(&mut Vec<Instr>)) -> Vec<check::Fault> {
    let mut made = in_halves();
    plant(&mut made.roles[0].body.code_mut(0, Pass::Inputs).instrs);
    check::check(&graph(LINEARS), &made).map_or_else(|faults| faults, |_| vec![])
}

#[test]
fn the_first_half_reads_what_is_gathered_and_the_second_does_not() {
    assert!(found_in_halves(|_| ()).is_empty());
    let release =
        |instrs: &[Instr]| instrs.iter().position(|it| matches!(it, Instr::Release { .. })).unwrap();
    let grad = |instrs: &[Instr]| instrs.iter().position(|it| matches!(it, Instr::Grad(_))).unwrap();
    let before = |instrs: &mut Vec<Instr>| {
        let released = instrs.remove(release(instrs));
        instrs.insert(grad(instrs), released);
    };
    let found = found_in_halves(before);
    assert_eq!(found.first().map(|fault| fault.code), Some("SW0523"), "{found:?}");
    assert!(found[0].what.contains("reads a parameter that is not gathered"), "{found:?}");
    let never = |instrs: &mut Vec<Instr>| drop(instrs.remove(release(instrs)));
    let found = found_in_halves(never);
    assert_eq!(found.first().map(|fault| fault.code), Some("SW0523"), "{found:?}");
    let ungathered = |instrs: &mut Vec<Instr>| {
        instrs.retain(|it| !matches!(it, Instr::Gather { .. } | Instr::Release { .. }));
    };
    let found = found_in_halves(ungathered);
    assert_eq!(found.first().map(|fault| fault.code), Some("SW0523"), "{found:?}");
}

#[test]
fn parts_are_those_of_the_group_in_its_order() {
    breaks(PASSING, "w_part %w 0..4,: | 4..8,:", "w_part %w 4..8,: | 0..4,:", "SW0507");
    breaks(PASSING, "w_part %w 0..4,: | 4..8,:", "w_part %w 0..4,: | 0..4,:", "SW0507");
    breaks(PASSING, "w_part %w 0..4,: | 4..8,:", "w_part %w 0..3,: | 3..8,:", "SW0507");
    breaks(PASSING, "copy w w_part 0 2", "copy w w_part 0 4", "SW0507");
    breaks(PASSING, "copy w w_part 0 2", "copy w w_part 1 2", "SW0507");
    breaks(BOTH, "gather g0 w\ncall", "gather g1 w\ncall", "SW0507");
    breaks(PASSING, "gather g0 w\ngather g0 v\ncall", "gather g0 w, w\ngather g0 v\ncall", "SW0523");
}

#[test]
fn a_gradient_reaches_its_parts_once_and_complete() {
    breaks(PASSING, "scatter g0 w\n", "", "SW0511");
    breaks(PASSING, "scatter g0 w\n", "scatter g0 w\nscatter g0 w\n", "SW0508");
    breaks(PASSING, "scatter g0 w\n", "part w\n", "SW0511");
    let late = "grad 0 dy ->\nrelease w\nscatter g0 w\n";
    breaks(PASSING, late, "scatter g0 w\ngrad 0 dy ->\nrelease w\n", "SW0510");
    breaks(PASSING, "scatter g0 v\n", "reduce_gradients g0 v\n", "SW0511");
    let reduced = "reduce_shards g1 w_part\n";
    breaks(BOTH, reduced, "", "SW0511");
    breaks(BOTH, reduced, "reduce_shards g1 w_part\nreduce_shards g1 w_part\n", "SW0508");
    breaks(BOTH, reduced, "reduce_shards g0 w_part\n", "SW0508");
    let early = "reduce_shards g1 w_part\nscatter g0 w\nreduce_gradients g2 v\n";
    breaks(BOTH, "scatter g0 w\nreduce_gradients g2 v\nreduce_shards g1 w_part\n", early, "SW0511");
}

#[test]
fn who_computes_the_update_of_a_whole_parameter_holds_some_of_it() {
    let model = graph(LINEARS);
    let tensor = |name: &str| {
        let found = model.tensor_ids().find(|id| model.tensor(*id).name == name);
        found.unwrap_or(TensorId(99))
    };
    let found = |updates: &[(&str, u32)]| {
        let mut made = program(&model, PASSING);
        let update = |(name, rank): &(&str, u32)| Update { tensor: tensor(name), rank: RankId(*rank) };
        made.updates = updates.iter().map(update).collect();
        check::check(&model, &made).err().and_then(|faults| Some(faults.first()?.code))
    };
    assert_eq!(found(&[("w", 1), ("v", 0)]), None);
    for wrong in [
        &[("w", 2)][..],
        &[("x", 0)],
        &[("s", 0)],
        &[("none", 0)],
        &[("w", 0), ("w", 1)],
        &[("v", 0), ("w", 1)],
    ] {
        assert_eq!(found(wrong), Some("SW0502"), "{wrong:?}");
    }
}

#[test]
fn what_forward_writes_is_not_gathered_from_parts() {
    let model = LINEARS
        .replace("param %v f64[8,8] \"v\"", "param %v f64[8,8] \"v\" frozen")
        .replace("op %z", "op %n f64[8,8] = aten.mul.Tensor(%v, 0.5) in \"b\" at \"m.py:4\" nograd\nop %z")
        + "update \"v\" %n\n";
    let whole = PASSING
        .replace("hold v_part %v :,0..4 | :,4..8", "shard v %v :,:")
        .replace("copy v v_part 1 2 :,:\n", "")
        .replace("gather g0 v\n", "")
        .replace("release v\n", "")
        .replace("scatter g0 v\n", "")
        .replace("call 1 y, v -> s :", "call 1 y, v -> s, n : n = aten.mul.Tensor(v, 0.5) nograd ;")
        .replace("output t", "update v n\noutput t");
    proof(&graph(&model), &whole);
    let divided = PASSING
        .replace("call 1 y, v -> s :", "call 1 y, v -> s, n : n = aten.mul.Tensor(v, 0.5) nograd ;")
        .replace("output t", "update v_part n\noutput t")
        .replace("scatter g0 v\n", "");
    let found = faults(&graph(&model), &divided);
    assert!(
        found.iter().any(|fault| fault.what.contains("gathered copies of it keep the old value")),
        "{found:?}"
    );
}

#[test]
fn only_parameters_are_gathered_from_parts() {
    let model = "input %x f64[4,8] 0
buffer %m f64[8] \"mean\"
op %y f64[4,8] = aten.sub.Tensor(%x, %m) in \"\" at \"m.py:1\"
output %y
";
    let text = "group 0,1
ranks 0,1
hold m_part %m 0..4 | 4..8
copy m m_part 0 2 :
input x %x :,:
gather g0 m
call 0 x, m -> y : y = aten.sub.Tensor(x, m)
release m
output y
";
    let found = faults(&graph(model), text);
    assert!(found[0].what.contains("something that is gathered is not a parameter"), "{found:?}");
}
