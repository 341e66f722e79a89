//! Ranks that stand for others: that they are alike is seen from the tables and numbers of all of them.

use graph::Graph;
use program::*;
use rules::Reduction;

use crate::support::{graph, program};

/// Axes of so many ranks and more are folded here.
const LEAST: u32 = 5;
/// A rank that is not followed.
const FAR: usize = 6;

const LINEAR: &str = "input %x f64[16,8] 0
param %w f64[32,8] \"w\"
op %y f64[16,32] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:2\"
output %s
";

fn list(all: impl Iterator<Item = usize>) -> String {
    all.map(|number| number.to_string()).collect::<Vec<_>>().join(",")
}

fn numbers(all: impl Iterator<Item = i64>) -> String {
    all.map(|number| number.to_string()).collect::<Vec<_>>().join(" ")
}

fn each(count: usize, region: impl Fn(usize) -> String) -> String {
    (0..count).map(region).collect::<Vec<_>>().join(" | ")
}

fn folded(model: &Graph, made: &Program) -> Option<u32> {
    check::check(model, made).expect("it is right");
    check::check_folding(model, made, LEAST).expect("it is right").folded
}

/// Folded as it is; once something is planted, what is found is what is found rank by rank.
fn refused(model: &str, text: &str, plant: impl Fn(&mut Program)) {
    let model = graph(model);
    let mut made = program(&model, text);
    assert_eq!(folded(&model, &made), Some(8));
    plant(&mut made);
    let found = check::check_folding(&model, &made, LEAST).expect_err("something is wrong with it");
    assert_eq!(Some(found), check::check(&model, &made).err());
}

/// The number of this place is another one on a rank that is not followed.
fn far(made: &mut Program, place: usize, number: i64) {
    let constant = &mut made.roles[0].table.constants[place];
    let mut all: Vec<i64> = (0..8).map(|at| *constant.get(at)).collect();
    all[FAR] = number;
    *constant = PerRank::from_values(all);
}

/// Each rank of two lines gives all of a value to itself, and sums its rows with those of its line.
fn given() -> String {
    let ends = |word: &str| -> String { (0..16).map(|rank| format!("{word} {rank} :,:\n")).collect() };
    let pieces: String = (0..16).map(|rank| format!("piece {rank} {rank} :,:\n")).collect();
    let rows = |plus: i64| numbers((0..16).map(|rank| 2 * (rank % 8) + plus));
    format!(
        "group {} {}
         table 9 %y sum
         {}{}{pieces}ranks {}
         constant lo {}
         constant hi {}
         shard w %w :,:
         input x %x :,:
         call 0 x, w -> h : h = aten.linear.default(x, w)
         exchange 9 h -> k
         slice k -> p : [16, 32] lo..hi, 0..32
         call 1 p -> s : s = aten.sum.default(p)
         all_reduce g0 sum s -> t
         output t",
        list(0..8),
        list(8..16),
        ends("from"),
        ends("to"),
        list(0..16),
        rows(0),
        rows(2),
    )
}

#[test]
fn exchanges_are_the_same_at_each_place() {
    refused(LINEAR, &given(), |made| made.exchanges[0].lists().2[FAR].to = FAR - 1);
    refused(LINEAR, &given(), |made| {
        let again = made.exchanges[0].sources[FAR].clone();
        made.exchanges[0].lists().0.push(again);
    });
    refused(LINEAR, &given(), |made| {
        let again = made.exchanges[0].targets[FAR].clone();
        made.exchanges[0].lists().1.push(again);
    });
    // The rank at that place of the other line.
    refused(LINEAR, &given(), |made| made.exchanges[0].lists().0[FAR].0 = RankId(FAR as u32 + 8));
}

/// Each rank gives two parts of a sum to itself.
#[test]
fn pieces_come_from_the_same_of_several_values() {
    let rows = |rank: usize| format!("{}..{}", 2 * rank, 2 * rank + 2);
    let from: String = (0..8).map(|rank| format!("from {rank} {0},:\n", rows(rank)).repeat(2)).collect();
    let to: String = (0..8).map(|rank| format!("to {rank} {},:\n", rows(rank))).collect();
    let piece = |rank: usize| {
        [0, 1].map(|one| format!("piece {} {rank} {},:\n", 2 * rank + one, rows(rank))).concat()
    };
    let text = format!(
        "group {all}
         table 9 %y sum
         {from}{to}{}ranks {all}
         shard w %w :,0..4
         shard v %w :,4..8
         input a %x {}
         input b %x {}
         call 0 a, w -> p : p = aten.linear.default(a, w)
         call 1 b, v -> q : q = aten.linear.default(b, v)
         exchange 9 p, q -> y
         call 2 y -> s : s = aten.sum.default(y)
         all_reduce g0 sum s -> t
         output t",
        (0..8).map(piece).collect::<String>(),
        each(8, |rank| format!("{},0..4", rows(rank))),
        each(8, |rank| format!("{},4..8", rows(rank))),
        all = list(0..8),
    );
    refused(LINEAR, &text, |made| made.exchanges[0].lists().2[2 * FAR + 1].from = 2 * FAR);
}

/// Two lines, of which each has half of the inner dim.
#[test]
fn groups_across_are_the_same_at_each_place() {
    let rows = each(16, |rank| format!("{}..{},LINE", 2 * (rank % 8), 2 * (rank % 8) + 2));
    let rows: Vec<String> = rows
        .split(" | ")
        .enumerate()
        .map(|(rank, row)| row.replace("LINE", ["0..4", "4..8"][rank / 8]))
        .collect();
    let text = format!(
        "group {} {}
         group {}
         ranks {}
         shard w %w {}
         input x %x {}
         call 0 x, w -> p : p = aten.linear.default(x, w)
         all_reduce g1 sum p -> y
         call 1 y -> s : s = aten.sum.default(y)
         all_reduce g0 sum s -> t
         output t",
        list(0..8),
        list(8..16),
        (0..8).map(|rank| format!("{rank},{}", rank + 8)).collect::<Vec<_>>().join(" "),
        list(0..16),
        each(16, |rank| [":,0..4", ":,4..8"][rank / 8].into()),
        rows.join(" | "),
    );
    refused(LINEAR, &text, |made| {
        let other = made.groupings[1][FAR].split_off(1);
        made.groupings[1].push(other);
    });
    refused(LINEAR, &text, |made| drop(made.groupings[1].remove(FAR)));
}

/// All ranks do the same, and one of them has a role for itself.
#[test]
fn a_role_has_all_of_a_line() {
    let text = format!(
        "group {all}
         ranks {all}
         shard w %w :,:
         input x %x :,:
         call 0 x, w -> s : y = aten.linear.default(x, w) ; s = aten.sum.default(y)
         all_reduce g0 max s -> t
         output t",
        all = list(0..8)
    );
    refused(LINEAR, &text, |made| {
        let mut other = made.roles[0].clone();
        other.ranks = vec![made.roles[0].ranks.remove(FAR)];
        for instr in &mut other.body.code_mut(0, Pass::Forward).instrs {
            if let Instr::Collective(it) = instr {
                it.how = How::AllReduce(Reduction::Sum);
            }
        }
        made.roles.push(other);
    });
}

/// Two lines, of which each gathers its half of the parameter.
#[test]
fn lines_may_gather_different_parts() {
    let part = |rank: usize| 16 * (rank / 8) + 2 * (rank % 8);
    let text = format!(
        "group {} {}
         group {all}
         ranks {all}
         hold part %w {}
         copy w part 0 8 {}
         input x %x :,:
         gather g0 w
         call 0 x, w -> y : y = aten.linear.default(x, w)
         release w
         slice y -> p : [16, 16] lo..hi, 0..16
         call 1 p -> s : s = aten.sum.default(p)
         all_reduce g1 sum s -> t
         output t",
        list(0..8),
        list(8..16),
        each(16, |rank| format!("{}..{},:", part(rank), part(rank) + 2)),
        each(16, |rank| ["0..16,:", "16..32,:"][rank / 8].into()),
        all = list(0..16),
    );
    let rows = |plus: i64| numbers((0..16).map(|rank| 2 * (rank % 8) + plus));
    let constants = format!("constant lo {}\nconstant hi {}\nhold part", rows(0), rows(2));
    let model = graph(LINEAR);
    let made = program(&model, &text.replace("hold part", &constants));
    assert_eq!(folded(&model, &made), Some(8));
}

/// Sixteen ranks in two lines have a row each, which they slice.
#[test]
fn lines_may_slice_different_rows() {
    let across = (0..8).map(|rank| format!("{rank},{}", rank + 8)).collect::<Vec<_>>().join(" ");
    let text = format!(
        "group {} {}
         group {across}
         ranks {}
         constant lo {}
         constant hi {}
         shard w %w :,:
         input a %x :,:
         slice a -> x : [16, 8] lo..hi, 0..8
         call 0 x, w -> s : y = aten.linear.default(x, w) ; s = aten.sum.default(y)
         all_reduce g0 sum s -> r
         all_reduce g1 sum r -> t
         output t",
        list(0..8),
        list(8..16),
        list(0..16),
        numbers(0..16),
        numbers(1..17),
    );
    let model = graph(LINEAR);
    assert_eq!(folded(&model, &program(&model, &text)), Some(8));
}

/// Slices by numbers of which some are the same on all ranks.
fn sliced() -> String {
    let all = |number: i64| numbers([number; 8].into_iter());
    let rows = |plus: i64| numbers((0..8).map(|rank| 2 * rank + plus));
    format!(
        "group {line}
         ranks {line}
         constant lo {}
         constant hi {}
         constant size {}
         constant begin {}
         constant end {}
         constant from {}
         constant to {}
         shard w %w :,:
         input a %x :,:
         slice a -> b : [16, 8] begin..end, 0..8
         slice a -> unused : [16, 8] from..to, 0..8
         slice b -> x : [size, 8] lo..hi, 0..8
         call 0 x, w -> s : y = aten.linear.default(x, w) ; s = aten.sum.default(y)
         all_reduce g0 sum s -> t
         output t",
        rows(0),
        rows(2),
        all(16),
        all(0),
        all(16),
        rows(0),
        rows(2),
        line = list(0..8),
    )
}

#[test]
fn numbers_are_the_same_on_all_ranks_but_for_where_slices_lie() {
    refused(LINEAR, &sliced(), |made| far(made, 2, 17));
    refused(LINEAR, &sliced(), |made| far(made, 3, 1));
    refused(LINEAR, &sliced(), |made| far(made, 4, 15));
    // What nobody reads leaves what it is sliced from, beyond the ranks that are followed.
    for (begin, step) in [(0, 4), (6, -2)] {
        refused(LINEAR, &sliced(), |made| {
            for (place, plus) in [(5, 0), (6, 2)] {
                let all = (0..8).map(|rank| begin + rank * step + plus).collect();
                made.roles[0].table.constants[place] = PerRank::from_values(all);
            }
        });
    }
    let model = "input %x f64[16,1] 0
op %e f64[16,4] = aten.expand.default(%x, [16, 4]) in \"\" at \"m.py:1\"
op %s f64[] = aten.sum.default(%e) in \"\" at \"m.py:2\"
output %s
";
    let text = format!(
        "group {all}
         ranks {all}
         constant n {}
         input x %x {}
         call 0 x -> s : e = aten.expand.default(x, [2, n]) ; s = aten.sum.default(e)
         all_reduce g0 sum s -> t
         output t",
        numbers([4; 8].into_iter()),
        each(8, |rank| format!("{}..{}", 2 * rank, 2 * rank + 2)),
        all = list(0..8),
    );
    refused(model, &text, |made| far(made, 0, 3));
}

/// Whoever follows four ranks of four, or of three, saves nothing.
#[test]
fn axes_are_longer_than_what_is_followed_of_them() {
    let model = graph(&LINEAR.replace("[16,", "[12,"));
    let text = |count: usize| {
        format!(
            "group {all}
             ranks {all}
             shard w %w :,:
             input x %x {}
             call 0 x, w -> s : y = aten.linear.default(x, w) ; s = aten.sum.default(y)
             all_reduce g0 sum s -> t
             output t",
            each(count, |at| format!("{}..{},:", at * 12 / count, (at + 1) * 12 / count)),
            all = list(0..count),
        )
    };
    let folded = |count: usize, may: bool| {
        let folding = check::Folding { least: 1, may: &|_| may };
        let made = program(&model, &text(count));
        let found = check::courses_folding(&model, &made, &check::Masters::new(), folding, 1);
        found.expect("it is right").0.folded
    };
    assert_eq!([3, 4, 6].map(|count| folded(count, true)), [None, None, Some(6)]);
    assert_eq!(folded(6, false), None, "somebody else tells them apart");
}
