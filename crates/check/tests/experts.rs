//! Experts that exchange rows: proved, and faults planted into that.

use crate::support::{faults, graph, program, proof};

const GRAPH: &str = include_str!("programs/experts.graph");
const PROGRAM: &str = include_str!("programs/experts.txt");

#[test]
fn rows_that_are_exchanged_are_the_mixture() {
    let proof = proof(&graph(GRAPH), PROGRAM);
    assert!(proof.backward);
    let communications: Vec<_> = proof.communications.clone().into_iter().collect();
    assert_eq!(communications, [("all-reduce", 1), ("all-to-all", 4), ("reduction of gradients", 1)]);
    assert_eq!(proof.rewritings, ["%y (shardwright.experts.default) along e"]);
}

/// The code of a fault is found in the program that results of some changes.
fn planted(name: &str, code: &str, changes: &[(&str, &str)]) {
    let mut text = PROGRAM.to_string();
    for (old, new) in changes {
        assert!(text.contains(old), "{name}: nothing to change: {old}");
        text = text.replace(old, new);
    }
    let found = faults(&graph(GRAPH), &text);
    let codes: Vec<&str> = found.iter().map(|fault| fault.code).collect();
    assert!(codes.contains(&code), "{name}: {found:?}");
}

#[test]
fn planted_faults_are_found() {
    let swapped = "all_to_all g1 r -> rr";
    planted("the first matrix of another expert", "SW0504", &[("%u 0..1,:,: | 1..2,:,:", "%u 0..1,:,:")]);
    planted(
        "two ranks have the same expert, and none has the other",
        "SW0504",
        &[("%u 0..1,:,: | 1..2,:,:", "%u 0..1,:,:"), ("%d 0..1,:,: | 1..2,:,:", "%d 0..1,:,:")],
    );
    planted("a rank's tokens are left out", "SW0507", &[("0..2,: | 2..4,:", "0..2,:")]);
    planted(
        "another expert's second matrix",
        "SW0504",
        &[("%d 0..1,:,: | 1..2,:,:", "%d 1..2,:,: | 0..1,:,:")],
    );
    planted("the other rank's weights", "SW0504", &[("%p 0..2,: | 2..4,:", "%p 2..4,: | 0..2,:")]);
    planted(
        "another order of the group",
        "SW0507",
        &[("group 0,1\n", "group 0,1\ngroup 1,0\n"), ("all_to_all g0 r -> rr", swapped)],
    );
    planted(
        "rows that are not sent",
        "SW0504",
        &[("call 2 rr", "call 2 r"), ("sw.expert_rows(rr", "sw.expert_rows(r")],
    );
    planted(
        "results that do not come back",
        "SW0504",
        &[("call 4 mm", "call 4 m"), ("sw.combine(mm", "sw.combine(m")],
    );
    planted("gradients of the other rank's rows", "SW0509", &[("grad 2 dm", "grad 2 dmm")]);
    planted("gradients that do not come back", "SW0509", &[("grad 0 dr", "grad 0 drr")]);
    planted(
        "rows are gathered, which nobody can",
        "SW0507",
        &[(
            "all_to_all g0 r -> rr : [2, 2, 8] 0 [1, 1] : [1, 4, 8] 1 [2, 2]",
            "all_gather g0 r -> rr : [2, 4, 8] 1 [2, 2]",
        )],
    );
    planted(
        "rows are sliced",
        "SW0507",
        &[
            ("call 4 mm", "slice mm -> mx : [2, 2, 8] 0..2, 0..2, 0..8\ncall 4 mx"),
            ("sw.combine(mm", "sw.combine(mx"),
        ],
    );
    planted(
        "rows are added to nothing",
        "SW0507",
        &[("call 4 mm", "add mm -> mx\ncall 4 mx"), ("sw.combine(mm", "sw.combine(mx")],
    );
    planted(
        "rows are exchanged by a table",
        "SW0507",
        &[
            ("group 0,1", &format!("{}group 0,1", rows_by_table())),
            ("call 2 rr", "exchange 9 rr -> rx\ncall 2 rx"),
            ("expert_rows(rr", "expert_rows(rx"),
        ],
    );
    planted("gradients of experts are reduced among ranks", "SW0508", &[("g0 g\n", "g0 g, u\n")]);
    planted("a gradient is not reduced", "SW0511", &[("reduce_gradients g0 g\n", "")]);
}

/// Each rank keeps the rows of its expert.
fn rows_by_table() -> String {
    let experts = ["0..1,:,:", "1..2,:,:"];
    let end = |word: &str| -> String {
        experts.iter().enumerate().map(|(rank, region)| format!("{word} {rank} {region}\n")).collect()
    };
    let pieces = experts.iter().enumerate().map(|(rank, region)| format!("piece {rank} {rank} {region}\n"));
    format!("table 9 %y.0 sum\n{}{}{}", end("from"), end("to"), pieces.collect::<String>())
}

/// One rank meets the others later than they do.
#[test]
fn ranks_that_exchange_rows_in_another_order_do_not_meet() {
    let model = graph(GRAPH);
    let good = program(&model, PROGRAM);
    let mut bad = good.clone();
    let mut other = bad.roles[0].clone();
    let (first, second) = (&mut bad.roles[0], &mut other);
    (first.ranks, second.ranks) = (vec![first.ranks[0]], vec![second.ranks[1]]);
    let at = |role: &mut program::Role, keep: usize| {
        let table = &mut role.table;
        let one = |per_rank: &mut program::PerRank<rules::Region>| {
            *per_rank = program::PerRank::from_values(vec![per_rank.get(keep).clone()]);
        };
        table.shards.iter_mut().for_each(|shard| one(&mut shard.region));
        table.leaves.iter_mut().for_each(|(_, region)| one(region));
        table.inputs.iter_mut().for_each(one);
        table.outputs.iter_mut().flatten().for_each(one);
    };
    at(first, 0);
    at(second, 1);
    let code = second.body.code_mut(0, program::Pass::Forward);
    let place = code.instrs.iter().position(|it| matches!(it, program::Instr::Collective(_))).expect("one");
    code.instrs.remove(place);
    bad.roles.push(other);
    let found = check::check(&model, &bad).expect_err("a fault is found");
    assert!(found.iter().any(|fault| ["SW0503", "SW0506"].contains(&fault.code)), "{found:?}");
}
