//! Ranks that are alike, of which a few stand for all: what is wrong with one that is not followed is found.

use graph::Graph;
use program::{Loop, Pass, PerRank, Program, RankId, Task};

use crate::support::{graph, program};

/// Axes of so many ranks and more are folded here.
const LEAST: u32 = 5;
/// A rank that is not followed, and the one before it.
const FAR: usize = 6;

const MODEL: &str = "input %x f64[16,8] 0
param %w f64[32,8] \"w\"
param %v f64[8,32] \"v\"
op %h f64[16,32] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %a f64[16,32] = aten.relu.default(%h) in \"\" at \"m.py:2\"
op %y f64[16,8] = aten.linear.default(%a, %v) in \"b\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:4\"
output %s
";

/// So many parts of a dim, one after the other: `before` and `after` are what stands around an interval.
fn parts(ranks: usize, size: usize, before: &str, after: &str) -> String {
    let part = |rank: usize| format!("{before}{}..{}{after}", rank * size / ranks, (rank + 1) * size / ranks);
    (0..ranks).map(part).collect::<Vec<_>>().join(" | ")
}

fn ranks(all: std::ops::Range<usize>) -> String {
    all.map(|rank| rank.to_string()).collect::<Vec<_>>().join(",")
}

/// Each rank has some rows of the batch.
fn rows() -> String {
    format!(
        "group {all}
         ranks {all}
         shard w %w :,:
         shard v %v :,:
         input x %x {}
         call 0 x, w, v -> s : h = aten.linear.default(x, w) ; a = aten.relu.default(h) ; y = aten.linear.default(a, v) ; s = aten.sum.default(y)
         all_reduce g0 sum s -> t
         output t
         seed ds
         grad 0 ds ->
         reduce_gradients g0 w, v",
        parts(8, 16, "", ",:"),
        all = ranks(0..8)
    )
}

/// Each rank has some rows of the one matrix, and the columns of the other.
fn inner() -> String {
    format!(
        "group {all}
         ranks {all}
         shard w %w {}
         shard v %v {}
         input x %x :,:
         call 0 x, w, v -> y : h = aten.linear.default(x, w) ; a = aten.relu.default(h) ; y = aten.linear.default(a, v)
         all_reduce g0 sum y -> z
         call 1 z -> s : s = aten.sum.default(z)
         output s
         seed ds
         grad 1 ds -> dz
         grad 0 dz ->",
        parts(8, 32, "", ",:"),
        parts(8, 32, ":,", ""),
        all = ranks(0..8)
    )
}

/// The same for rows, where parameters are divided and gathered.
fn divided() -> String {
    format!(
        "group {all}
         ranks {all}
         hold w_part %w {}
         shard v %v :,:
         copy w w_part 0 8 :,:
         input x %x {}
         gather g0 w
         call 0 x, w, v -> s : h = aten.linear.default(x, w) ; a = aten.relu.default(h) ; y = aten.linear.default(a, v) ; s = aten.sum.default(y)
         release w
         all_reduce g0 sum s -> t
         output t
         seed ds
         gather g0 w
         grad 0 ds ->
         release w
         scatter g0 w
         reduce_gradients g0 v",
        parts(8, 32, "", ",:"),
        parts(8, 16, "", ",:"),
        all = ranks(0..8)
    )
}

/// Two lines of eight: rows along the lines, and each line has half of the inner dim.
fn both() -> String {
    let lines = format!("{} {}", ranks(0..8), ranks(8..16));
    let across = (0..8).map(|rank| format!("{rank},{}", rank + 8)).collect::<Vec<_>>().join(" ");
    let split_backward =
        |first: &str, second: &str| [[first; 8].join(" | "), [second; 8].join(" | ")].join(" | ");
    let rows = parts(8, 16, "", ",:");
    format!(
        "group {lines}
         group {across}
         ranks {}
         shard w %w {}
         shard v %v {}
         input x %x {rows} | {rows}
         call 0 x, w, v -> y : h = aten.linear.default(x, w) ; a = aten.relu.default(h) ; y = aten.linear.default(a, v)
         all_reduce g1 sum y -> z
         call 1 z -> s : s = aten.sum.default(z)
         all_reduce g0 sum s -> t
         output t
         seed ds
         grad 1 ds -> dz
         grad 0 dz ->
         reduce_gradients g0 w, v",
        ranks(0..16),
        split_backward("0..16,:", "16..32,:"),
        split_backward(":,0..16", ":,16..32"),
    )
}

/// All rows are there, and each rank slices its own.
fn sliced() -> String {
    let numbers =
        |plus: usize| (0..8).map(|rank| (2 * rank + plus).to_string()).collect::<Vec<_>>().join(" ");
    let (lo, hi) = (numbers(0), numbers(2));
    let text = rows().replace(&format!("input x %x {}", parts(8, 16, "", ",:")), "input all %x :,:");
    text.replace("shard w", &format!("constant lo {lo}\nconstant hi {hi}\nshard w"))
        .replace("call 0", "slice all -> x : [16, 8] lo..hi, 0..8\ncall 0")
}

/// Each rank of the first line gives what it has to that of the second one at its place.
fn exchanged() -> String {
    let rows = parts(8, 16, "", ",:");
    let each = |line: &str, from: usize| -> String {
        let row = |(rank, region): (usize, &str)| format!("{line} {} {region}\n", rank + from);
        rows.split(" | ").enumerate().map(row).collect()
    };
    let piece = |(rank, region): (usize, &str)| format!("piece {rank} {rank} {region}\n");
    let pieces: String = rows.split(" | ").enumerate().map(piece).collect();
    let table = format!("table 9 %y sum\n{}{}{pieces}", each("from", 0), each("to", 8));
    let (first, second) = ("ranks 0,1,2,3,4,5,6,7", "ranks 8,9,10,11,12,13,14,15");
    let role = |of: &str, call: &str, all: &str, exchange: &str| {
        format!("{of}\nshard w %w :,:\nshard v %v :,:\ninput x %x {rows}\n{call}{exchange}{all}")
    };
    let linears = "h = aten.linear.default(x, w) ; a = aten.relu.default(h) ; y = aten.linear.default(a, v)";
    let sum = "call 1 z -> s : s = aten.sum.default(z)\nall_reduce g0 sum s -> t\noutput t\n";
    let one = role(
        first,
        &format!("call 0 x, w, v -> z : {}\n", linears.replace("y =", "z =")),
        sum,
        "exchange 9 z ->\n",
    );
    let other = role(second, "", sum, "exchange 9 -> z\n");
    format!("group {} {}\n{table}{one}{other}", ranks(0..8), ranks(8..16))
}

fn folded(model: &Graph, made: &Program) -> Option<u32> {
    let proof = check::check_folding(model, made, LEAST).expect("it is right");
    let plain = check::check(model, made).expect("it is right");
    assert_eq!((plain.folded, &plain.communications), (None, &proof.communications));
    assert_eq!((plain.memory, plain.computed, plain.traffic), (proof.memory, proof.computed, proof.traffic));
    proof.folded
}

/// Folded as it is; once something is planted, what is found is what is found rank by rank.
fn refused(text: &str, plant: impl Fn(&mut Program)) {
    let model = graph(MODEL);
    let mut made = program(&model, text);
    assert_eq!(folded(&model, &made), Some(8));
    plant(&mut made);
    let found = check::check_folding(&model, &made, LEAST).expect_err("something is wrong with it");
    assert_eq!(Some(found), check::check(&model, &made).err());
}

/// One rank has the value of the rank before it.
fn repeated<T: Clone>(per_rank: &mut PerRank<T>, at: usize) {
    let PerRank::Each(values) = per_rank else { panic!("they differ") };
    let mut all = values.to_vec();
    all[at] = all[at - 1].clone();
    *per_rank = PerRank::Each(all.into());
}

#[test]
fn parts_that_a_rank_has_twice_are_found() {
    refused(&rows(), |it| repeated(&mut it.roles[0].table.inputs[0], FAR));
    refused(&both(), |it| repeated(&mut it.roles[0].table.inputs[0], FAR));
    refused(&both(), |it| repeated(&mut it.roles[0].table.inputs[0], 8 + FAR));
    refused(&inner(), |it| {
        repeated(&mut it.roles[0].table.shards[0].region, FAR);
        repeated(&mut it.roles[0].table.leaves[0].1, FAR);
    });
    refused(&inner(), |it| {
        let table = &mut it.roles[0].table;
        for shard in 0..2 {
            repeated(&mut table.shards[shard].region, FAR);
            repeated(&mut table.leaves[shard].1, FAR);
        }
    });
    refused(&divided(), |it| repeated(&mut it.roles[0].table.shards[0].region, FAR));
}

#[test]
fn groups_that_are_others_further_on_are_found() {
    refused(&rows(), |it| {
        it.groupings[0] = vec![(0..7).map(RankId).collect(), vec![RankId(7)]];
    });
    refused(&divided(), |it| it.groupings[0][0].swap(6, 7));
    refused(&both(), |it| {
        let (one, other) = (it.groupings[1][6][1], it.groupings[1][7][1]);
        (it.groupings[1][6][1], it.groupings[1][7][1]) = (other, one);
    });
    refused(&both(), |it| {
        let last = it.groupings[0][0].pop().expect("a rank");
        it.groupings[0].push(vec![last]);
    });
}

#[test]
fn slices_that_lie_elsewhere_further_on_are_found() {
    refused(&sliced(), |it| {
        repeated(&mut it.roles[0].table.constants[0], FAR);
        repeated(&mut it.roles[0].table.constants[1], FAR);
    });
    refused(&sliced(), |it| {
        let PerRank::Each(values) = &mut it.roles[0].table.constants[1] else { panic!("they differ") };
        let mut all = values.to_vec();
        all[7] = 17;
        *values = all.into();
    });
    refused(&sliced(), |it| {
        let PerRank::Each(values) = &mut it.roles[0].table.constants[0] else { panic!("they differ") };
        let mut all = values.to_vec();
        all[FAR] -= 1;
        *values = all.into();
    });
}

#[test]
fn exchanges_that_are_others_further_on_are_found() {
    refused(&exchanged(), |it| it.exchanges[0].lists().2[FAR].region.0[0].hi -= 1);
    refused(&exchanged(), |it| drop(it.exchanges[0].lists().2.remove(FAR)));
    refused(&exchanged(), |it| it.exchanges[0].lists().2[FAR].to = FAR - 1);
    refused(&exchanged(), |it| it.exchanges[0].lists().0[FAR].1.0[0].lo -= 1);
    refused(&exchanged(), |it| it.exchanges[0].lists().1[FAR].1.0[0].lo -= 1);
    refused(&exchanged(), |it| it.exchanges[0].lists().0[FAR].0 = RankId(FAR as u32 - 1));
}

/// All ranks have the first half of the rows of a value, and each reads its own rows: those that are followed have theirs.
#[test]
fn what_is_there_for_the_followed_ranks_only_is_found() {
    let ends: String = (0..8).map(|rank| format!("from {rank} :,:\n")).collect();
    let targets = ends.replace("from", "to");
    let table = |rows: &str| {
        let pieces: String = (0..8).map(|rank| format!("piece {rank} {rank} {rows},:\n")).collect();
        format!("table 9 %h sum\n{ends}{targets}{pieces}")
    };
    let code = sliced()
        .replace(
            "slice all -> x",
            "call 0 all, w -> h : h = aten.linear.default(all, w)\nexchange 9 h -> k\nslice k -> p",
        )
        .replace(": [16, 8] lo..hi, 0..8", ": [16, 32] lo..hi, 0..32")
        .replace(
            "call 0 x, w, v -> s : h = aten.linear.default(x, w) ; a = aten.relu.default(h)",
            "call 1 p, v -> s : a = aten.relu.default(p)",
        );
    let code = code.split("seed").next().expect("a forward").to_string();
    let model = graph(MODEL);
    let right = program(&model, &(table("0..16") + &code));
    assert_eq!(folded(&model, &right), Some(8));
    let wrong = program(&model, &(table("0..8") + &code));
    let found = check::check(&model, &wrong).expect_err("ranks read what is not there");
    assert_eq!(check::check_folding(&model, &wrong, LEAST).err(), Some(found));
}

/// What must hold at the end, and of several micro-batches, is asked of ranks that stand for others, too.
#[test]
fn the_end_of_followed_ranks_is_looked_at() {
    refused(&rows(), |it| {
        it.roles[0].body.code_mut(0, Pass::Backward).instrs.retain(|instr| !instr.settles());
    });
    refused(&exchanged(), |it| {
        let task = |at: i32| Task { at, ..Task::forward(0) };
        it.roles[0].body.timetable.loops =
            vec![Loop { every: 2, iterations: None, tasks: vec![task(1), task(0)] }];
    });
}

/// Groups of one grouping that do the same together communicate once.
#[test]
fn what_groups_do_together_counts_once() {
    let proof = check::check(&graph(MODEL), &program(&graph(MODEL), &both())).expect("it is right");
    let expected = [("all-reduce", 2), ("reduction of gradients", 1)];
    assert_eq!(proof.communications.into_iter().collect::<Vec<_>>(), expected);
}

/// Of ranks that are alike but for what they are asked for, none stands for others.
#[test]
fn short_axes_are_followed_rank_by_rank() {
    let model = graph(MODEL);
    let made = program(&model, &rows());
    assert_eq!(check::check_folding(&model, &made, 9).expect("it is right").folded, None);
    assert_eq!(check::check_folding(&model, &made, 8).expect("it is right").folded, Some(8));
}
