//! Backwards in two halves, and faults planted into them.

use check::Fault;
use program::*;

use crate::support::{graph, program};

const MLP: &str = include_str!("programs/mlp.graph");
const DATA: &str = include_str!("programs/data.txt");
const MEGATRON: &str = include_str!("programs/megatron.txt");
const LAYER: &str = include_str!("programs/layer.graph");
const TENSOR: &str = include_str!("programs/layer_tensor.txt");
const SEQUENCE: &str = include_str!("programs/layer_sequence.txt");

/// A program whose backward has two halves, that was one.
fn in_halves(text: &str) -> Program {
    let mut program = program(&graph(MLP), text);
    for role in &mut program.roles {
        let body = &mut role.body;
        let backward = body.codes.pop().expect("the last code is backward");
        let (mut first, mut second) = (vec![], vec![]);
        for instr in backward.instrs {
            match instr {
                Instr::Grad(grad) => {
                    second.push(weights(grad.call));
                    first.push(Instr::Grad(Grad { which: Which::Inputs, ..grad }));
                }
                instr if instr.leaves().is_empty() => first.push(instr),
                instr => second.push(instr),
            }
        }
        let (pass, codes) = (Pass::Inputs, &mut body.codes);
        codes.push(Code { pass, instrs: first, ..Code::new(0, pass) });
        codes.push(Code { instrs: second, ..Code::new(0, Pass::Weights) });
        (codes[1].takes, codes[1].gives) = (backward.takes, backward.gives);
        body.timetable.loops =
            vec![Loop::over_all(vec![Task::forward(0), Task::inputs(0), Task::weights(0, When::Last)])];
    }
    program
}

fn weights(call: CallId) -> Instr {
    Instr::Grad(Grad { call, which: Which::Weights, from: vec![], to: vec![], recomputed: vec![] })
}

fn faults_of(text: &str, plant: impl Fn(&mut Body)) -> Vec<Fault> {
    let mut program = in_halves(text);
    program.roles.iter_mut().for_each(|role| plant(&mut role.body));
    check::check(&graph(MLP), &program).map_or_else(|faults| faults, |_| vec![])
}

fn refused(code: &str, plant: impl Fn(&mut Body)) {
    [DATA, MEGATRON].iter().for_each(|text| refused_of(text, code, &plant));
}

fn refused_of(text: &str, code: &str, plant: impl Fn(&mut Body)) {
    let found = faults_of(text, plant);
    assert!(found.iter().any(|fault| fault.code == code), "expected {code}, found {found:?}");
}

fn second(body: &mut Body) -> &mut Vec<Instr> {
    &mut body.code_mut(0, Pass::Weights).instrs
}

fn first(body: &mut Body) -> &mut Vec<Instr> {
    &mut body.code_mut(0, Pass::Inputs).instrs
}

fn tasks(body: &mut Body) -> &mut Vec<Task> {
    &mut body.timetable.loops[0].tasks
}

fn is_grad(instr: &Instr) -> bool {
    matches!(instr, Instr::Grad(_))
}

fn grads(instrs: &mut [Instr]) -> impl Iterator<Item = &mut Grad> {
    instrs.iter_mut().filter_map(|instr| if let Instr::Grad(grad) = instr { Some(grad) } else { None })
}

#[test]
fn two_halves_are_a_whole() {
    for text in [DATA, MEGATRON] {
        assert!(faults_of(text, |_| ()).is_empty());
        let (whole, split_backward) = (program(&graph(MLP), text), in_halves(text));
        let proof = |program: &Program| check::check(&graph(MLP), program).unwrap();
        assert_eq!(proof(&whole).computed, proof(&split_backward).computed);
    }
}

#[test]
fn a_second_half_that_is_missing_twice_or_another_is_found() {
    refused("SW0509", |body| {
        let at = second(body).iter().position(is_grad).unwrap();
        second(body).remove(at);
    });
    refused("SW0509", |body| {
        let at = second(body).iter().position(is_grad).unwrap();
        let twice = second(body)[at].clone();
        second(body).insert(at, twice);
    });
    refused("SW0509", |body| grads(second(body)).for_each(|grad| grad.call = CallId(7)));
    refused("SW0509", |body| {
        let others = body.calls().count();
        let next = |call: CallId| CallId::new((call.index() + 1) % others.max(2));
        let grad = grads(second(body)).next().unwrap();
        grad.call = next(grad.call);
    });
}

#[test]
fn whole_backwards_in_both_halves_are_found() {
    refused("SW0509", |body| {
        let whole: Vec<Grad> = grads(first(body)).map(|grad| grad.clone()).collect();
        grads(first(body)).for_each(|grad| grad.which = Which::Both);
        for (grad, whole) in grads(second(body)).zip(whole.into_iter().rev()) {
            *grad = Grad { which: Which::Both, ..whole };
        }
    });
    refused("SW0509", |body| grads(first(body)).for_each(|grad| grad.which = Which::Both));
}

#[test]
fn a_second_half_is_given_nothing_and_gives_nothing() {
    let what = "takes or returns something";
    let said = |plant: &dyn Fn(&mut Grad)| {
        let found = faults_of(DATA, |body| plant(grads(second(body)).next().expect("a second half")));
        assert!(found.iter().any(|fault| fault.code == "SW0509" && fault.what.contains(what)), "{found:?}");
    };
    said(&|grad| grad.to.push(None));
    said(&|grad| grad.from.push(None));
    said(&|grad| grad.recomputed.push(BufId(0)));
    refused("SW0502", |body| {
        let buf = body.bufs[0].clone();
        body.bufs.push(buf);
        let taken = BufId::new(body.bufs.len() - 1);
        body.code_mut(0, Pass::Weights).takes = vec![taken];
    });
}

/// Gradients of leaves may arise with the others.
#[test]
fn a_whole_backward_in_the_first_half_is_one() {
    for text in [DATA, MEGATRON] {
        let found = faults_of(text, |body| {
            grads(first(body)).for_each(|grad| grad.which = Which::Both);
            second(body).retain(|instr| !is_grad(instr));
        });
        assert!(found.is_empty(), "{found:?}");
    }
}

#[test]
fn halves_in_the_wrong_place_are_found() {
    refused("SW0509", |body| {
        let moved = second(body).remove(0);
        first(body).push(moved);
    });
    refused("SW0509", |body| {
        let seed = body.back_of(0).unwrap().takes.clone();
        grads(second(body)).next().unwrap().from = seed.into_iter().map(Some).collect();
    });
    refused("SW0502", |body| {
        let whole = Code { pass: Pass::Backward, ..Code::new(0, Pass::Backward) };
        body.codes.insert(1, whole);
    });
    refused("SW0502", |body| {
        body.codes.pop();
        tasks(body).pop();
    });
}

#[test]
fn gradients_are_not_communicated_before_they_have_arisen() {
    refused_of(DATA, "SW0510", |body| {
        let at = second(body).iter().position(|instr| !instr.leaves().is_empty()).unwrap();
        let moved = second(body).remove(at);
        second(body).insert(0, moved);
    });
    refused_of(DATA, "SW0519", |body| {
        let at = second(body).iter().position(|instr| !instr.leaves().is_empty()).unwrap();
        let moved = second(body).remove(at);
        first(body).push(moved);
    });
    refused("SW0519", |body| tasks(body)[2] = Task::weights(0, When::First));
    refused("SW0519", |body| tasks(body)[2] = Task::weights(0, When::Each));
}

#[test]
fn halves_run_once_and_in_order() {
    refused("SW0517", |body| tasks(body).swap(1, 2));
    refused("SW0517", |body| tasks(body).swap(0, 1));
    refused("SW0517", |body| tasks(body).truncate(2));
    refused("SW0517", |body| tasks(body)[1] = Task::backward(0, When::Never));
    refused("SW0518", |body| tasks(body)[1].does = Does::Inputs { scaled: 2 });
}

/// A program of which a message runs beside the second half of a backward.
fn overlapping() -> Program {
    let mut program = program(&graph(LAYER), TENSOR);
    for role in &mut program.roles {
        let backward = role.body.code_mut(0, Pass::Backward);
        let at = backward.instrs.iter().position(is_message).expect("a gradient is summed");
        let Instr::Grad(grad) = &mut backward.instrs[at - 1] else { panic!("a message follows a backward") };
        grad.which = Which::Inputs;
        let second = weights(grad.call);
        overlap(backward);
        backward.instrs.insert(at + 1, second);
    }
    program
}

fn is_message(instr: &Instr) -> bool {
    matches!(instr, Instr::Collective(_))
}

fn overlap(code: &mut Code) {
    let mut messages = code.instrs.iter_mut();
    let first = messages.find_map(|instr| if let Instr::Collective(it) = instr { Some(it) } else { None });
    first.expect("a message").overlaps = true;
}

fn found_overlapping(plant: impl Fn(&mut Body)) -> Vec<Fault> {
    let mut program = overlapping();
    program.roles.iter_mut().for_each(|role| plant(&mut role.body));
    check::check(&graph(LAYER), &program).map_or_else(|faults| faults, |_| vec![])
}

fn refused_overlapping(code: &str, words: &str, plant: impl Fn(&mut Vec<Instr>, usize)) {
    let found = found_overlapping(|body| {
        let instrs = &mut body.code_mut(0, Pass::Backward).instrs;
        let at = instrs.iter().position(is_message).unwrap();
        plant(instrs, at);
    });
    let said = |fault: &Fault| fault.code == code && fault.what.contains(words);
    assert!(found.iter().any(said), "expected {code} {words}, found {found:?}");
}

#[test]
fn a_message_may_run_beside_the_second_half_of_a_backward() {
    assert!(found_overlapping(|_| ()).is_empty());
    let proof = |program: &Program| check::check(&graph(LAYER), program).unwrap();
    let whole = program(&graph(LAYER), TENSOR);
    assert_eq!(proof(&whole).computed, proof(&overlapping()).computed);
}

#[test]
fn a_message_beside_anything_else_is_found() {
    let what = "is not followed by the second half";
    refused_overlapping("SW0509", what, |instrs, at| instrs.swap(at + 1, at + 2));
    refused_overlapping("SW0509", what, |instrs, at| {
        let last = instrs.remove(at);
        instrs.push(last);
    });
    let found = found_overlapping(|body| overlap(body.code_mut(0, Pass::Forward)));
    assert!(found.iter().any(|fault| fault.what.contains(what)), "{found:?}");
    // Another code begins with the second half.
    let found = faults_of(MEGATRON, |body| {
        let mut messages = body.code_mut(0, Pass::Forward).instrs.iter();
        let message = messages.find(|instr| is_message(instr)).expect("a value is summed").clone();
        let Instr::Collective(message) = message else { unreachable!() };
        first(body).push(Instr::Collective(Collective { overlaps: true, ..message }));
    });
    assert!(found.iter().any(|fault| fault.what.contains(what)), "{found:?}");
}

#[test]
fn halves_in_one_code_are_both_there_once_and_in_order() {
    refused_overlapping("SW0509", "are never computed", |instrs, at| drop(instrs.remove(at + 1)));
    refused_overlapping("SW0509", "or a second time", |instrs, at| {
        instrs.insert(at + 1, instrs[at + 1].clone());
    });
    refused_overlapping("SW0509", "comes before its first half", |instrs, at| {
        let second = instrs.remove(at + 1);
        instrs.insert(at - 1, second);
    });
    refused_overlapping("SW0509", "returns something", |instrs, at| {
        let Instr::Collective(message) = &instrs[at] else { unreachable!() };
        let given = message.to.iter().copied().map(Some).collect();
        grads(&mut instrs[at + 1..]).next().unwrap().from = given;
    });
    refused_overlapping("SW0509", "comes before the call", |instrs, at| {
        let Instr::Grad(first) = instrs[at - 1].clone() else { unreachable!() };
        instrs.insert(at + 2, Instr::Grad(Grad { which: Which::Both, ..first }));
    });
}

/// A gradient of a parameter that is added after its sum was sent is in no sum.
#[test]
fn a_second_half_after_the_sum_of_its_gradients_is_found() {
    let found = |late: bool| {
        let mut program = program(&graph(LAYER), SEQUENCE);
        let instrs = &mut program.roles[0].body.code_mut(0, Pass::Backward).instrs;
        let last = grads(instrs).last().expect("a backward");
        last.which = Which::Inputs;
        let second = weights(last.call);
        let sum = instrs.iter().position(|instr| !instr.leaves().is_empty()).expect("a sum");
        instrs.insert(sum + usize::from(late), second);
        check::check(&graph(LAYER), &program).map_or_else(|faults| faults, |_| vec![])
    };
    assert!(found(false).is_empty());
    assert!(!found(true).is_empty());
}
