//! What a program must compute of a model and what it need not: values that are drawn, gradients that do not flow or are
//! nothing, and what is told of it.

use program::{Output, PerRank};
use rules::{Interval, Region};

use crate::support::{LINEARS, faults, graph, program, proof};

fn codes(model: &str, text: &str) -> Vec<&'static str> {
    faults(&graph(model), text).iter().map(|fault| fault.code).collect()
}

const DRAWN: &str = "input %x f64[4] 0
op %a f64[4] = aten.bernoulli.default(%x) in \"\" at \"m.py:1\"
op %b f64[4] = aten.bernoulli.default(%x) in \"\" at \"m.py:2\"
op %c f64[4] = aten.nobody_knows.default(%x) in \"\" at \"m.py:3\"
op %d f64[4] = aten.sub.Tensor(%a, %b) in \"\" at \"m.py:4\"
op %y f64[4] = aten.mul.Tensor(%d, %c) in \"\" at \"m.py:5\"
output %y
";

/// What is drawn twice is not the same.
#[test]
fn what_is_drawn_without_a_key_is_drawn_by_each_operator() {
    let text = |drawn: &str| {
        format!(
            "ranks 0\ninput x %x :\ncall 0 x -> y : a = aten.bernoulli.default(x) ; {drawn} ; c = aten.nobody_knows.default(x) ; \
             d = aten.sub.Tensor(a, b) ; y = aten.mul.Tensor(d, c)\noutput y\n"
        )
    };
    // Of operators that read the same, each local one says which it is.
    let named = |text: &str, ops: [u32; 5]| {
        let mut made = program(&graph(DRAWN), text);
        let code = made.roles[0].body.code_mut(0, program::Pass::Forward);
        let Some(program::Instr::Call(call)) = code.instrs.first_mut() else { panic!("a call") };
        call.ops.iter_mut().zip(ops).for_each(|(local, op)| local.op = graph::OpId(op));
        check::check(&graph(DRAWN), &made)
    };
    let made = named(&text("b = aten.bernoulli.default(x)"), [0, 1, 2, 3, 4]).expect("it is right");
    let once = text("b").replace("b ; ", "").replace("(a, b)", "(a, a)");
    for drawn in [0, 1] {
        let found = named(&once, [drawn, 2, 3, 4, 4]).expect_err("it is drawn once");
        assert_eq!(found[0].code, "SW0504", "{found:?}");
    }
    assert!(made.unknown.iter().any(|what| what.contains("nobody_knows")), "{made}");
    assert!(!made.unkeyed.iter().any(|what| what.contains("nobody_knows")), "{made}");
    let drawn = |all: &[String]| all.iter().filter(|what| what.contains("bernoulli")).count();
    assert_eq!((drawn(&made.unknown), drawn(&made.unkeyed)), (2, 2), "{made}");
}

/// An operator that nobody reads, beside one that leaves.
const UNREAD: &str = "param %w f64[4] \"w\"
op %y f64[4] = aten.mul.Tensor(%w, 2.0) in \"\" at \"m.py:1\"
op %q f64[4] = aten.relu.default(%w) in \"\" at \"m.py:2\"
output %y
";

#[test]
fn what_nobody_reads_is_not_computed() {
    let text = "ranks 0
shard w %w :
call 0 w -> y : y = aten.mul.Tensor(w, 2.0)
output y
seed dy
grad 0 dy ->
";
    let made = proof(&graph(UNREAD), text);
    assert_eq!((made.operators, made.rules.len()), (1, 1), "{made}");
}

/// One output is read by another operator, and the last one depends on no parameter.
const LEAVING: &str = "input %x f64[4] 0
param %w f64[4] \"w\"
op %y f64[4] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %s f64[4] = aten.sigmoid.default(%y) in \"\" at \"m.py:2\"
op %k f64[4] = aten.relu.default(%x) in \"\" at \"m.py:3\"
output %y
output %s
output %k
";

const LEFT: &str = "ranks 0
shard w %w :
input x %x :
call 0 x, w -> y : y = aten.mul.Tensor(x, w)
call 1 y -> s : s = aten.sigmoid.default(y)
call 2 x -> k : k = aten.relu.default(x)
output y
output s
output k
seed dy
seed ds
grad 1 ds -> e
add dy, e -> d
grad 0 d ->
";

#[test]
fn each_output_that_leaves_gives_its_gradient_once() {
    proof(&graph(LEAVING), LEFT);
    assert_eq!(codes(LEAVING, &LEFT.replace("grad 0 d ->", "grad 0 e ->")), ["SW0511"]);
    assert_eq!(codes(LEAVING, &LEFT.replace("grad 0 d ->", "grad 0 dy ->")), ["SW0511"]);
    let twice = LEFT.replace("add dy, e -> d", "add dy, e, dy -> d");
    assert_eq!(codes(LEAVING, &twice).first(), Some(&"SW0508"));
}

/// A call's function says for which of its values there are gradients: which tensor a buffer is told to be is a guess.
#[test]
fn what_a_buffer_is_told_to_be_is_a_guess() {
    let model = graph(LEAVING);
    let mut made = program(&model, LEFT);
    let input = model.find("x").expect("an input");
    made.roles[0].body.bufs.iter_mut().for_each(|buf| buf.tensor = input);
    assert_eq!(check::check(&model, &made).err(), None);
}

/// Of two equal values one is read by what has a gradient: which of them a buffer is told to be says whether it has one.
#[test]
fn of_equal_values_one_may_have_a_gradient() {
    let model = graph(
        "input %x f64[4] 0
param %w f64[4] \"w\"
op %a f64[4] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %b f64[4] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:2\"
op %y f64[4] = aten.relu.default(%a) in \"\" at \"m.py:3\"
op %d f64[4] = aten.detach.default(%b) in \"\" at \"m.py:4\"
output %y
output %d
",
    );
    let text = "ranks 0
shard w %w :
input x %x :
call 0 x, w -> a, b : a = aten.mul.Tensor(x, w) ; b = aten.mul.Tensor(x, w)
call 1 a -> y : y = aten.relu.default(a)
call 2 b -> d : d = aten.detach.default(b)
output y
output d
seed dy
grad 1 dy -> da
grad 0 da ->
";
    let mut made = program(&model, text);
    let told = |made: &mut program::Program, of: &str, tensor: &str| {
        let buf = made.roles[0].body.bufs.iter_mut().find(|buf| buf.name == of).expect("a buffer");
        buf.tensor = model.find(tensor).expect("a tensor");
    };
    told(&mut made, "a", "a");
    told(&mut made, "b", "b");
    assert_eq!(check::check(&model, &made).err(), None);
    told(&mut made, "b", "a");
    let found = check::check(&model, &made).expect_err("the second one has a gradient, too");
    assert_eq!(found[0].code, "SW0509", "{found:?}");
}

/// Whether something is more than nothing has no gradient, though what it is asked of has one.
const MASKED: &str = "param %w f64[4] \"w\"
op %m bool[4] = aten.gt.Scalar(%w, 0.0) in \"\" at \"m.py:1\"
op %y f64[4] = aten.mul.Tensor(%w, %m) in \"\" at \"m.py:2\"
output %y
";

#[test]
fn no_gradient_flows_through_what_is_no_number() {
    let text = "ranks 0
shard w %w :
call 0 w -> m : m = aten.gt.Scalar(w, 0.0)
call 1 w, m -> y : y = aten.mul.Tensor(w, m)
output y
seed dy
grad 1 dy ->
";
    proof(&graph(MASKED), text);
}

/// Neither what is read of an input nor what is cut off has a gradient.
const CUT_OFF: &str = "input %x f64[4] 0
param %w f64[4] \"w\"
op %h f64[4] = aten.relu.default(%x) in \"\" at \"m.py:1\"
op %k f64[4] = aten.sigmoid.default(%h) in \"\" at \"m.py:2\"
op %d f64[4] = aten.detach.default(%w) in \"\" at \"m.py:3\"
op %g f64[4] = aten.sigmoid.default(%d) in \"\" at \"m.py:4\"
op %a f64[4] = aten.mul.Tensor(%w, %k) in \"\" at \"m.py:5\"
op %y f64[4] = aten.mul.Tensor(%a, %g) in \"\" at \"m.py:6\"
output %y
";

#[test]
fn gradients_may_be_off_where_none_flows() {
    let text = |off: &str| {
        format!(
            "ranks 0\nshard w %w :\ninput x %x :\ncall 0 x, w -> y : h = aten.relu.default(x){off} ; \
             k = aten.sigmoid.default(h){off} ; d = aten.detach.default(w) ; g = aten.sigmoid.default(d){off} ; \
             a = aten.mul.Tensor(w, k) ; y = aten.mul.Tensor(a, g)\noutput y\nseed dy\ngrad 0 dy ->\n"
        )
    };
    proof(&graph(CUT_OFF), &text(""));
    proof(&graph(CUT_OFF), &text(" nograd"));
    let all = text("").replace("Tensor(w, k)", "Tensor(w, k) nograd");
    assert_eq!(codes(CUT_OFF, &all).first(), Some(&"SW0504"));
}

/// A batch without rows, of which half of the parameter is read.
const NO_ROWS: &str = "input %x f64[0,2] 0
param %w f64[4] \"w\"
op %a f64[2], %b f64[2] = aten.split.Tensor(%w, 2) in \"\" at \"m.py:1\"
op %y f64[0,2] = aten.mul.Tensor(%x, %a) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:3\"
output %s
";
const NO_ELEMENTS: &str = "input %x f64[0,4] 0
param %w f64[4] \"w\"
op %y f64[0,4] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:2\"
output %s
";

/// Whether or not somebody adds up nothing.
#[test]
fn the_gradient_of_what_meets_no_elements_is_zero() {
    let one = "ranks 0
shard w %w :
input x %x :,:
call 0 x, w -> s : y = aten.mul.Tensor(x, w) ; s = aten.sum.default(y)
output s
seed ds
grad 0 ds ->
";
    let read = "a, b = aten.split.Tensor(w, 2) ; y = aten.mul.Tensor(x, a)";
    let halves = one.replace("y = aten.mul.Tensor(x, w)", read).replace("shard w %w :", "shard w %w :,:");
    for (model, text) in [(NO_ELEMENTS, one), (NO_ROWS, &halves[..])] {
        proof(&graph(model), text);
        proof(&graph(model), &text.replace("grad 0 ds ->", "grad 0 _ ->"));
    }
    let full = NO_ELEMENTS.replace("[0,4]", "[2,4]");
    assert_eq!(codes(&full, &one.replace("grad 0 ds ->", "grad 0 _ ->")), ["SW0511"]);
}

/// No gradient of a frozen parameter reaches its parts.
#[test]
fn what_is_gathered_of_a_frozen_parameter_has_no_gradient() {
    let model = LINEARS.replace("\"v\"", "\"v\" frozen");
    let text = "group 0,1
ranks 0,1
shard w %w :,:
hold v_part %v 0..4,: | 4..8,:
copy v v_part 0 2 :,:
input x %x 0..2,: | 2..4,:
gather g0 v
call 0 x, w, v -> s : y = aten.linear.default(x, w) ; z = aten.linear.default(y, v) ; s = aten.sum.default(z)
release v
all_reduce g0 sum s -> t
output t
seed ds
gather g0 v
grad 0 ds ->
release v
reduce_gradients g0 w
";
    proof(&graph(&model), text);
    assert!(codes(LINEARS, text).contains(&"SW0511"));
}

/// Two inputs with gradients, of which ranks are given different parts.
#[test]
fn the_gradient_of_an_input_is_that_of_its_own_part() {
    let model = "input %x f64[4,2] 0 grad
input %z f64[2] 1 grad
op %y f64[4,2] = aten.mul.Tensor(%x, %z) in \"\" at \"m.py:1\"
output %y
";
    let text = "inputs local
group 0,1
ranks 0,1
input x %x 0..2,: | 2..4,:
input z %z :
call 0 x, z -> y : y = aten.mul.Tensor(x, z)
output y local 0..2,: | 2..4,:
seed dy
grad 0 dy -> dx, dp
all_reduce g0 sum dp -> dz
gradient dx %x
gradient dz %z
";
    proof(&graph(model), text);
    assert_eq!(codes(model, &text.replace("gradient dz", "gradient dp")), ["SW0511"]);
}

const RELU: &str = "input %x f64[4] 0
op %y f64[4] = aten.relu.default(%x) in \"\" at \"m.py:1\"
op %z f64[4] = aten.sigmoid.default(%x) in \"\" at \"m.py:2\"
output %y
";

const HALF: &str = "ranks 0,1
input x %x 0..2 | 2..4
call 0 x -> y : y = aten.relu.default(x)
output y local 0..2 | 2..4
";

/// All of it, whatever tables say, and nothing else.
#[test]
fn an_output_that_is_whole_is_all_of_it() {
    proof(&graph(RELU), HALF);
    let refused = |plant: &dyn Fn(&mut program::Program)| {
        let mut made = program(&graph(RELU), HALF);
        made.boundary.outputs[0] = Output::Whole;
        plant(&mut made);
        let found = check::check(&graph(RELU), &made).expect_err("it is not whole");
        assert_eq!(found.first().map(|fault| fault.code), Some("SW0512"), "{found:?}");
    };
    let all = || PerRank::Same(Region([Interval::whole(4)].into()));
    // A part that is told to be one, or to be all of it; and all of it that is told to be a part.
    refused(&|_| ());
    refused(&|made| made.roles[0].table.outputs[0] = Some(all()));
    refused(&|made| made.roles[0].table.inputs[0] = all());
    let text = "ranks 0\ninput x %x :\ncall 0 x -> y : y = aten.relu.default(x)\noutput y\n";
    proof(&graph(RELU), text);
    assert_eq!(codes(RELU, &text.replace("relu", "sigmoid")), ["SW0512"]);
}

/// A buffer that is viewed, and becomes something that is viewed in another way.
#[test]
fn a_buffer_that_is_whole_may_become_what_is_divided_otherwise() {
    let model = "input %x f64[2,4] 0
buffer %b f64[8] \"b\"
op %v f64[4,2] = aten.view.default(%b, [4, 2]) in \"\" at \"m.py:1\"
op %y f64[4,2] = aten.mul.Tensor(%v, 2.0) in \"\" at \"m.py:2\"
op %n f64[8] = aten.view.default(%x, [8]) in \"\" at \"m.py:3\"
output %y
update \"b\" %n
";
    let text = "ranks 0
shard b %b :,:
input x %x :,:
call 0 x, b -> y, n : v = aten.view.default(b, [4, 2]) ; y = aten.mul.Tensor(v, 2.0) ; n = aten.view.default(x, [8])
update b n
output y
";
    proof(&graph(model), text);
    // Two rows of the buffer are not two columns of what it becomes, though their intervals are the same.
    let columns = text
        .replace("shard b %b :,:", "shard b %b :,:\nhold p %b 0..2,:")
        .replace(
            "call 0",
            "slice x -> c : [2, 4] 0..2, 0..2\ncall 9 c -> q : q = aten.reshape.default(c, [4])\ncall 0",
        )
        .replace("update b n", "update b n\nupdate p q");
    assert_eq!(codes(model, &columns), ["SW0513"]);
}

/// Half of a buffer is on no rank, though half of its new value is.
#[test]
fn all_of_a_buffer_that_changes_is_somewhere() {
    let model = "input %x f64[4] 0
buffer %b f64[4] \"b\"
op %n f64[4] = aten.mul.Tensor(%x, 2.0) in \"\" at \"m.py:1\"
output %n
update \"b\" %n
";
    let text = |region: &str| {
        format!(
            "ranks 0\nhold b %b {region}\ninput x %x :\ncall 0 x -> n : n = aten.mul.Tensor(x, 2.0)\n\
             slice n -> p : [4] {region}\nupdate b p\noutput n\n"
        )
    };
    proof(&graph(model), &text("0..4"));
    assert_eq!(codes(model, &text("0..2")), ["SW0514"]);
}

/// One byte is written.
#[test]
fn what_an_instruction_takes_is_told_to_the_last_byte() {
    let model =
        graph("op %e bool[1] = aten.ones.default([1], dtype=bool) in \"\" at \"m.py:1\"\noutput %e\n");
    let made = program(&model, "ranks 0\ncall 0 -> e : e = aten.ones.default([1], dtype=bool)\noutput e\n");
    let (_, traces) = check::rank_traces(&model, &made, &check::Masters::new()).expect("it is right");
    let work: Vec<u64> =
        traces[0].instr_costs[0].work.iter().map(|work| work.operations + work.bytes).collect();
    assert_eq!(work, [1]);
}

/// Whoever asks gets the memory of a step of one micro-batch, and of each rank its own.
#[test]
fn memory_is_that_of_one_micro_batch_rank_by_rank() {
    let rows = |first: &str, second: &str| {
        let role = |ranks: &str, rows: &str| {
            format!(
                "ranks {ranks}\nshard w %w :,:\nshard v %v :,:\ninput x %x {rows},:\n\
                 call 0 x, w, v -> s : y = aten.linear.default(x, w) ; z = aten.linear.default(y, v) ; s = aten.sum.default(z)\n\
                 all_reduce g0 sum s -> t\noutput t\nseed ds\ngrad 0 ds ->\nreduce_gradients g0 w, v\n"
            )
        };
        format!("group 0,1\n{}{}", role(first, "0..1"), role(second, "1..4"))
    };
    let model = graph(LINEARS);
    let (right, turned) = (program(&model, &rows("0", "1")), program(&model, &rows("1", "0")));
    let of = |made: &program::Program| check::check(&model, made).expect("it is right").memory;
    assert!(of(&right)[0] != of(&right)[1]);
    assert_eq!([&of(&right)[0], &of(&right)[1]], [&of(&turned)[1], &of(&turned)[0]]);
    let masters = check::Masters::new();
    let folding = check::Folding::LONG;
    let (expected, traces) =
        check::courses_folding(&model, &right, &masters, folding, 1).expect("it is right");
    assert_eq!(traces.len(), 2);
    assert_eq!(of(&right), expected.memory);
    assert_eq!(check::check_held(&model, &right, &masters).expect("it is right").memory, expected.memory);
    assert_eq!(check::rank_traces(&model, &right, &masters).expect("it is right").0.memory, expected.memory);
}
