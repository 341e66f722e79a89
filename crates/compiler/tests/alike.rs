//! Proofs that follow some of the ranks along an axis, beside those that follow all: of right programs, and of
//! programs with a planted fault, of every kind in every place.

use check::{Proof, check_folding};
use graph::Graph;
use plan::{Plan, random, repeat, sets, text};
use program::{Arg, Body, Boundary, Inputs, Instr, Output, PerRank, Program, RankId, Table};
use rules::{Analysis, Interval, Region};

/// Axes of five ranks are folded, or none.
const SHORT: u32 = 5;
const NEVER: u32 = u32::MAX;

fn graph() -> Graph {
    include_str!("alike.graph").parse().expect("it parses")
}

fn made(graph: &Graph, analysis: &Analysis, plan: &Plan, boundary: &Boundary) -> Program {
    match compiler::compile(graph, analysis, plan, boundary) {
        Ok(compiled) => compiled.program,
        Err(error) => panic!("{}: {error}", plan.name),
    }
}

/// Both proofs, which say the same; whether one of them was by folding.
fn both(graph: &Graph, program: &Program) -> Option<bool> {
    let (short, long) = (check_folding(graph, program, SHORT), check_folding(graph, program, NEVER));
    match (short, long) {
        (Ok(short), Ok(long)) => {
            let folded = short.folded.is_some();
            assert_eq!(Proof { folded: None, ..short }, long);
            Some(folded)
        }
        (Err(short), Err(long)) => {
            let texts =
                |faults: Vec<check::Fault>| faults.iter().map(ToString::to_string).collect::<Vec<_>>();
            assert_eq!(texts(short), texts(long));
            None
        }
        (short, long) => panic!("folded: {:?}, one by one: {:?}", short.is_ok(), long.is_ok()),
    }
}

fn boundaries(graph: &Graph) -> Vec<Boundary> {
    let loss = Boundary { inputs: Inputs::Global, outputs: vec![Output::Whole, Output::None] };
    let local = Boundary { inputs: Inputs::Local, outputs: vec![Output::Whole, Output::Local] };
    let whole = Boundary { inputs: Inputs::Global, outputs: vec![Output::Whole; graph.outputs.len()] };
    vec![loss, local, whole]
}

#[test]
fn right_programs_are_proved_alike() {
    let graph = graph();
    let analysis = Analysis::new(&graph);
    let mut folded = vec![];
    for (name, devices) in [
        ("data", 6),
        ("data", 12),
        ("data", 5),
        ("data:6 x megatron:2", 12),
        ("megatron:2 x data:6", 12),
        ("data:2 x data:6", 12),
        ("data:6 x coshard:2", 6),
        ("stages:2 x data:6", 12),
        ("data:6 x stages:2 x megatron:2", 24),
        ("replicate", 6),
    ] {
        let plan = sets::named(name, &graph, &analysis, devices).expect("a plan");
        for boundary in boundaries(&graph) {
            folded.push((name, devices, both(&graph, &made(&graph, &analysis, &plan, &boundary))));
        }
    }
    let was = |name: &str, devices: u32| -> Vec<Option<bool>> {
        folded.iter().filter(|it| (it.0, it.1) == (name, devices)).map(|it| it.2).collect()
    };
    // Where logits are gathered along the axis, and where pieces are of different sizes, all ranks are followed.
    for (name, devices) in [("data", 6), ("data:6 x megatron:2", 12), ("megatron:2 x data:6", 12)] {
        assert_eq!(was(name, devices), [Some(true), Some(true), Some(false)], "{name} {devices}");
    }
    assert_eq!(was("data", 5), [Some(false); 3]);
    // What goes from stage to stage stays at its position.
    for (name, devices) in [("stages:2 x data:6", 12), ("data:6 x stages:2 x megatron:2", 24)] {
        assert_eq!(was(name, devices)[..2], [Some(true), Some(true)], "{name}");
    }
}

#[test]
fn programs_of_units_are_proved_alike() {
    let graph = graph();
    let analysis = Analysis::new(&graph);
    let named = |name: &str, devices: u32| sets::named(name, &graph, &analysis, devices).expect("a plan");
    for (unit, regular) in [
        (named("megatron", 2), true),
        (named("replicate", 3), true),
        (named("data:2 x megatron:2", 4), true),
        // What is exchanged region by region is followed on all ranks.
        (random::plan(&graph, &analysis, 2, 1), false),
        (random::plan(&graph, &analysis, 1, 2), false),
    ] {
        let plan = repeat(&unit, &graph, &analysis, 6).expect("a plan of units");
        for boundary in &boundaries(&graph)[..2] {
            let folded = both(&graph, &made(&graph, &analysis, &plan, boundary));
            assert_eq!(folded, Some(regular), "{}", plan.name);
        }
    }
}

/// A plan with other decisions, as a file has them.
fn changed(plan: &Plan, graph: &Graph, analysis: &Analysis, lines: &[&str]) -> Plan {
    let begins = |line: &str| line.split_once(':').map(|(begins, _)| begins.to_owned());
    let is_other = |line: &&str| !lines.iter().any(|new| begins(new) == begins(line));
    let printed = text::print(plan, graph, analysis);
    let kept: Vec<&str> = printed.lines().filter(is_other).collect();
    let text = format!("{}\n{}\n", kept.join("\n"), lines.join("\n"));
    text::parse(&text, graph, analysis, Some(plan.devices)).expect("a plan")
}

/// What is asked for is copied to all ranks, each of which reads its rows of it.
fn of_rows(graph: &Graph, analysis: &Analysis) -> Plan {
    let plan = sets::named("data", graph, analysis, 6).expect("a plan");
    changed(&plan, graph, analysis, &["op %reshape_9: replicate 6 on 0..6"])
}

/// A model with parameters that twelve ranks can divide.
fn words() -> Graph {
    include_str!("../../search/tests/graphs/words.graph").parse().expect("it parses")
}

/// Of these operators rows and words are divided, of others rows alone, and parameters among all ranks: those of one part
/// of the words are not together.
fn over_lines(graph: &Graph, analysis: &Analysis, of: impl Fn(&str) -> bool) -> Plan {
    let plan = sets::named("zero3", graph, analysis, 12).expect("a plan");
    let both = [("a 12", "a 6, split b 2"), ("b 12", "b 6, split s 2"), ("b.0 12", "b.0 6, split b.1 2")];
    let divide = |line: &str| {
        let divided = both.iter().fold(line.to_owned(), |line, (from, to)| {
            line.replace(&format!("split {from} "), &format!("split {to} "))
        });
        if of(line) { divided } else { line.to_owned() }
    };
    let lines: Vec<String> = text::print(&plan, graph, analysis).lines().map(divide).collect();
    text::parse(&format!("{}\n", lines.join("\n")), graph, analysis, Some(12)).expect("a plan")
}

/// Of half the model, words are whole: what lies between the rows of two ranks of one part of the words are those of others.
fn over_rows(graph: &Graph, analysis: &Analysis) -> Plan {
    over_lines(graph, analysis, |line| line.contains(" h.0"))
}

#[test]
fn slices_that_move_on_are_proved_alike() {
    let graph = graph();
    let analysis = Analysis::new(&graph);
    let program = made(&graph, &analysis, &of_rows(&graph, &analysis), &boundaries(&graph)[0]);
    assert!(!program.roles[0].table.constants.is_empty());
    assert_eq!(both(&graph, &program), Some(true));
}

#[test]
fn what_is_gathered_over_several_lines_is_proved_alike() {
    let graph = words();
    let analysis = Analysis::new(&graph);
    for plan in [over_lines(&graph, &analysis, |_| true), over_rows(&graph, &analysis)] {
        let program = made(&graph, &analysis, &plan, &lower::loss(&graph, Inputs::Global));
        assert!(program.groupings.iter().any(|grouping| grouping[0].len() == 12));
        assert_eq!(both(&graph, &program), Some(true));
    }
}

/// One value, expanded and summed up: each rank has an equal part of that, no matter which.
const EXPANDED: &str = r#"shardwright-graph 1
model "Expanded"
in_spec ""
out_spec ""
module "" "Expanded"
param %c f32[1] "c"
op %wide f32[30] = aten.expand.default(%c, [30]) in "" at "expanded.py:1"
op %loss f32[] = aten.sum.default(%wide) in "" at "expanded.py:2"
output %loss
"#;

/// Of six ranks four are followed, and one stands for the rest: five times too much are six that are too much.
#[test]
fn what_lies_anywhere_is_counted_for_each_rank() {
    let graph: Graph = EXPANDED.parse().expect("it parses");
    let analysis = Analysis::new(&graph);
    let lines = "name \"six\"\ndevices 6\nop %wide: split a 6 on 0..6\nop %loss: split a 6 on 0..6\n";
    let plan =
        text::parse(&format!("shardwright-plan 1\n{lines}"), &graph, &analysis, Some(6)).expect("a plan");
    let right = made(&graph, &analysis, &plan, &lower::loss(&graph, Inputs::Global));
    assert!(both(&graph, &right).is_some());
    let mut wrong = right;
    let mut changed = 0;
    for (arg, _) in instrs(&mut wrong).into_iter().flatten().flat_map(Instr::args_mut) {
        if let Arg::Int(size @ 5) = arg {
            (*size, changed) = (6, changed + 1);
        }
    }
    assert!(changed > 0);
    assert_eq!(both(&graph, &wrong), None);
}

/// What an edit does to a program; `false` if there is nothing of its kind at this place.
type Edit = fn(&mut Program, usize) -> bool;

fn instrs(program: &mut Program) -> Vec<&mut Vec<Instr>> {
    let codes = program.roles.iter_mut().flat_map(|role| &mut role.body.codes);
    codes.map(|code| &mut code.instrs).collect()
}

/// The code of the instruction with a number among all, and where in it.
fn locate(program: &mut Program, mut number: usize) -> Option<(&mut Vec<Instr>, usize)> {
    for code in instrs(program) {
        if number < code.len() {
            return Some((code, number));
        }
        number -= code.len();
    }
    None
}

fn argument(program: &mut Program, number: usize, change: impl Fn(&mut Arg)) -> bool {
    let all = instrs(program).into_iter().flatten().flat_map(Instr::args_mut).map(|(arg, _)| arg);
    let Some(arg) = { all }.filter(|arg| matches!(arg, Arg::Int(_) | Arg::Hole(_))).nth(number) else {
        return false;
    };
    change(arg);
    true
}

fn columns(table: &mut Table) -> impl Iterator<Item = &mut PerRank<Region>> {
    let shards = table.shards.iter_mut().map(|shard| &mut shard.region);
    let leaves = table.leaves.iter_mut().map(|(_, region)| region);
    let random = table.random.iter_mut().flat_map(|(_, regions)| regions);
    shards.chain(leaves).chain(&mut table.inputs).chain(table.outputs.iter_mut().flatten()).chain(random)
}

/// Another region for one rank of a column.
fn region(program: &mut Program, number: usize, rank: usize, change: impl Fn(&mut Interval)) -> bool {
    let mut all = program.roles.iter_mut().flat_map(|role| {
        let ranks = role.ranks.len();
        columns(&mut role.table).map(move |column| (column, ranks))
    });
    let Some((column, ranks)) = all.nth(number) else { return false };
    let mut regions: Vec<Region> = (0..ranks).map(|at| column.get(at).clone()).collect();
    let Some(interval) = regions[rank % ranks].0.first_mut() else { return true };
    change(interval);
    *column = PerRank::from_values(regions);
    true
}

fn fifth(column: &PerRank<Region>) -> Region {
    match column {
        PerRank::Same(region) => region.clone(),
        PerRank::Each(regions) => regions[4].clone(),
    }
}

fn group(program: &mut Program, number: usize, change: impl Fn(&mut Vec<Vec<RankId>>)) -> bool {
    let Some(grouping) = program.groupings.get_mut(number) else { return false };
    change(grouping);
    true
}

fn body(program: &mut Program, change: impl Fn(&mut Body)) -> bool {
    change(&mut program.roles[0].body);
    true
}

/// Edits of every kind. Each is made in every place.
const EDITS: &[(&str, Edit)] = &[
    ("an instruction less", |program, at| {
        locate(program, at).map(|(code, index)| code.remove(index)).is_some()
    }),
    ("two instructions swapped", |program, at| match locate(program, at) {
        Some((code, index)) if index + 1 < code.len() => {
            code.swap(index, index + 1);
            true
        }
        found => found.is_some(),
    }),
    ("a leaf less in a reduction", |program, at| match locate(program, at) {
        Some((code, index)) => {
            if let Instr::ReduceGradients { leaves, .. } = &mut code[index] {
                leaves.pop();
            }
            true
        }
        None => false,
    }),
    ("a communication in another grouping", |program, at| {
        let groupings = program.groupings.len();
        match locate(program, at) {
            Some((code, index)) => {
                let other = |group: &mut program::GroupingId| {
                    *group = program::GroupingId::new((group.index() + 1) % groupings);
                };
                match &mut code[index] {
                    Instr::Collective(collective) => other(&mut collective.group),
                    Instr::ReduceGradients { group, .. } => other(group),
                    _ => {}
                }
                true
            }
            None => false,
        }
    }),
    ("a number larger", |program, at| {
        argument(program, at, |arg| {
            if let Arg::Int(value) = arg {
                *value += 1;
            }
        })
    }),
    ("a number that is a constant", |program, at| argument(program, at, |arg| *arg = Arg::Hole(0))),
    ("a region further on, on the first rank", |program, at| {
        region(program, at, 0, |i| (i.lo, i.hi) = (i.lo + 1, i.hi + 1))
    }),
    ("a region before, on the last but one", |program, at| {
        region(program, at, 4, |i| (i.lo, i.hi) = (i.lo - 1, i.hi - 1))
    }),
    ("a region of another rank, on the last", |program, at| {
        region(program, at, 5, |i| (i.lo, i.hi) = (0, i.hi - i.lo))
    }),
    ("a larger region, on the third", |program, at| region(program, at, 2, |i| i.hi += 1)),
    ("the region of the fifth, on all ranks", |program, at| {
        let mut all = program.roles.iter_mut().flat_map(|role| columns(&mut role.table));
        let found = all.nth(at).map(|column| *column = PerRank::Same(fifth(column)));
        found.is_some()
    }),
    ("all regions of the fifth, on all ranks", |program, at| {
        let all = program.roles.iter_mut().flat_map(|role| columns(&mut role.table));
        all.for_each(|column| *column = PerRank::Same(fifth(column)));
        at == 0
    }),
    ("a group the other way", |program, at| group(program, at, |all| all[0].reverse())),
    ("a group that lacks its last", |program, at| {
        group(program, at, |all| {
            all[0].pop();
        })
    }),
    ("a group that lacks its fifth", |program, at| {
        group(program, at, |all| {
            if all[0].len() > 4 {
                all[0].remove(4);
            }
        })
    }),
    ("two ranks of two groups exchanged", |program, at| {
        group(program, at, |all| {
            if let [first, .., last] = &mut all[..] {
                std::mem::swap(&mut first[0], &mut last[0]);
            }
        })
    }),
    ("constants of other ranks", |program, at| {
        let ranks = program.roles[0].ranks.len();
        let Some(constant) = program.roles[0].table.constants.get_mut(at) else { return false };
        let mut values: Vec<i64> = (0..ranks).map(|rank| *constant.get(rank)).collect();
        values.rotate_left(1);
        *constant = PerRank::from_values(values);
        true
    }),
    ("constants that are larger", |program, at| {
        let ranks = program.roles[0].ranks.len();
        for constant in &mut program.roles[0].table.constants {
            let larger = |rank: usize| *constant.get(rank) + 1;
            *constant = PerRank::from_values((0..ranks).map(larger).collect());
        }
        at == 0
    }),
    ("a constant that is larger, on the last", |program, at| {
        let ranks = program.roles[0].ranks.len();
        let Some(constant) = program.roles[0].table.constants.get_mut(at) else { return false };
        let mut values: Vec<i64> = (0..ranks).map(|rank| *constant.get(rank)).collect();
        values[ranks - 1] += 1;
        *constant = PerRank::from_values(values);
        true
    }),
    ("a constant twice as far from rank to rank", |program, at| {
        let ranks = program.roles[0].ranks.len();
        let Some(constant) = program.roles[0].table.constants.get_mut(at) else { return false };
        *constant = PerRank::from_values((0..ranks).map(|rank| 2 * *constant.get(rank)).collect());
        true
    }),
    ("shards of two ranks exchanged", |program, at| {
        let ranks = program.roles[0].ranks.len();
        let Some(shard) = program.roles[0].table.shards.get_mut(at) else { return false };
        let mut regions: Vec<Region> = (0..ranks).map(|rank| shard.region.get(rank).clone()).collect();
        regions.swap(ranks - 1, ranks - 2);
        shard.region = PerRank::from_values(regions);
        true
    }),
    ("a leaf that is another", |program, at| {
        let count = program.roles[0].body.leaves.len();
        at < count
            && body(program, |body| {
                let other = body.leaves[(at + 1) % count].buf;
                let own = std::mem::replace(&mut body.leaves[at].buf, other);
                body.leaves[(at + 1) % count].buf = own;
            })
    }),
];

#[test]
fn what_is_refused_one_by_one_is_never_proved_by_folding() {
    let (graph, words) = (graph(), words());
    let (analysis, analysis_of_words) = (Analysis::new(&graph), Analysis::new(&words));
    let named = |name: &str, devices| sets::named(name, &graph, &analysis, devices).expect("a plan");
    let [loss, local, _] = &boundaries(&graph)[..] else { unreachable!() };
    let program = |plan: &Plan, boundary| (&graph, made(&graph, &analysis, plan, boundary));
    let of_words = |plan: &Plan| made(&words, &analysis_of_words, plan, &lower::loss(&words, Inputs::Global));
    let (over_lines, over_rows) =
        (over_lines(&words, &analysis_of_words, |_| true), over_rows(&words, &analysis_of_words));
    let (mut refused, mut folded, mut all) = (0, 0, 0);
    for (graph, program) in [
        program(&named("data", 6), local),
        program(&named("data:6 x megatron:2", 12), local),
        program(&named("stages:2 x data:6", 12), local),
        program(&of_rows(&graph, &analysis), loss),
        (&words, of_words(&over_lines)),
        (&words, of_words(&over_rows)),
    ] {
        for (what, edit) in EDITS {
            for place in 0.. {
                let mut edited = program.clone();
                if !edit(&mut edited, place) {
                    assert!(place > 0 || what.contains("constant"), "{what}: nowhere");
                    break;
                }
                all += 1;
                match both(graph, &edited) {
                    None => refused += 1,
                    Some(one) => folded += usize::from(one),
                }
            }
        }
    }
    assert!(refused > 600 && folded > 0, "{all} edits: {refused} refused, {folded} proved by folding");
}
