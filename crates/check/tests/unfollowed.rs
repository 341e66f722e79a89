//! Faults that only ranks have which are not followed, while a few stand for all: those few are right, and so is what they
//! do together. Rank by rank each is found.

use graph::Graph;

use crate::support::{graph, program};

/// Axes of so many ranks and more are folded here.
const LEAST: u32 = 5;

fn ranks(all: impl Iterator<Item = usize>) -> String {
    all.map(|rank| rank.to_string()).collect::<Vec<_>>().join(",")
}

/// A region for each of so many ranks.
fn each(count: usize, region: impl Fn(usize) -> String) -> String {
    (0..count).map(region).collect::<Vec<_>>().join(" | ")
}

/// Of how many ranks four were followed; the same is proved rank by rank.
fn folded(model: &Graph, text: &str) -> Option<u32> {
    let made = program(model, text);
    let plain = check::check(model, &made).expect("it is right");
    let proof = check::check_folding(model, &made, LEAST).expect("it is right");
    assert_eq!((plain.folded, plain.memory, plain.traffic), (None, proof.memory, proof.traffic));
    proof.folded
}

/// What is found rank by rank is found, with this code.
fn refused(model: &Graph, text: &str, code: &str) {
    let made = program(model, text);
    let found = check::check(model, &made).expect_err("something is wrong with it");
    assert_eq!(found[0].code, code, "{found:?}");
    assert_eq!(check::check_folding(model, &made, LEAST).err(), Some(found));
}

/// Rows that are all the same, so that it does not matter which of them a rank has.
const ONES: &str = "param %w f64[4] \"w\"
op %e f64[8,4] = aten.ones.default([8, 4]) in \"\" at \"m.py:1\"
op %y f64[8,4] = aten.mul.Tensor(%e, %w) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:3\"
output %s
";

/// Four times two rows are all of them, and eight times two are twice that.
#[test]
fn rows_that_may_lie_anywhere_are_counted_on_all_ranks() {
    let text = |rows: usize| {
        format!(
            "group {all}
             ranks {all}
             shard w %w :
             call 0 w -> s : e = aten.ones.default([{rows}, 4]) ; y = aten.mul.Tensor(e, w) ; s = aten.sum.default(y)
             all_reduce g0 sum s -> t
             output t",
            all = ranks(0..8)
        )
    };
    let model = graph(ONES);
    assert_eq!(folded(&model, &text(1)), None);
    refused(&model, &text(2), "SW0508");
}

/// Each rank has one row of the first eight and one that may lie anywhere: sixteen rows, of which thirteen are asked for.
#[test]
fn rows_that_may_lie_anywhere_are_counted_beside_others() {
    let text = |rows: usize| {
        let numbers =
            |plus: usize| (0..8).map(|rank| (rank + plus).to_string()).collect::<Vec<_>>().join(" ");
        format!(
            "group {all}
             ranks {all}
             constant lo {}
             constant hi {}
             shard w %w :
             call 0 -> e : e = aten.ones.default([{rows}, 4])
             slice e -> f : [{rows}, 4] lo..hi, 0..4
             call 1 f, w -> a : y = aten.mul.Tensor(f, w) ; a = aten.sum.default(y)
             call 2 w -> b : g = aten.ones.default([1, 4]) ; z = aten.mul.Tensor(g, w) ; b = aten.sum.default(z)
             add a, b -> s
             all_reduce g0 sum s -> t
             output t",
            numbers(0),
            numbers(1),
            all = ranks(0..8)
        )
    };
    let model = |rows: usize| {
        graph(&ONES.replace("[8,4]", &format!("[{rows},4]")).replace("[8, 4]", &format!("[{rows}, 4]")))
    };
    assert_eq!(folded(&model(16), &text(16)), None);
    refused(&model(13), &text(13), "SW0508");
}

/// Four pieces are named, and eight ranks give one.
#[test]
fn pieces_are_those_of_all_ranks() {
    let text = |rows: usize, sizes: &str| {
        format!(
            "group {all}
             ranks {all}
             shard w %w :
             call 0 -> p : p = aten.ones.default([{rows}, 4])
             all_gather g0 p -> e : [8, 4] 0 [{sizes}]
             call 1 e, w -> s : y = aten.mul.Tensor(e, w) ; s = aten.sum.default(y)
             output s",
            all = ranks(0..8)
        )
    };
    let model = graph(ONES);
    assert_eq!(folded(&model, &text(1, "1, 1, 1, 1, 1, 1, 1, 1")), None);
    refused(&model, &text(2, "2, 2, 2, 2"), "SW0507");
}

const LINEAR: &str = "input %x f64[16,8] 0
param %w f64[32,8] \"w\"
op %y f64[16,32] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:2\"
output %s
";

/// Two lines of eight, in one group: first by turns, then one after the other.
#[test]
fn parts_are_gathered_in_the_order_of_all_ranks() {
    let text = |order: [usize; 16]| {
        format!(
            "group {} {}
             group {}
             ranks {}
             hold w_part %w {}
             copy w w_part 0 16 :,:
             input x %x {}
             gather g1 w
             call 0 x, w -> s : y = aten.linear.default(x, w) ; s = aten.sum.default(y)
             release w
             all_reduce g1 sum s -> t
             output t",
            ranks(0..8),
            ranks(8..16),
            ranks(order.into_iter()),
            ranks(0..16),
            each(16, |rank| {
                let at = 4 * (rank % 8) + 2 * (rank / 8);
                format!("{at}..{},:", at + 2)
            }),
            each(16, |rank| format!("{rank}..{},:", rank + 1)),
        )
    };
    let model = graph(LINEAR);
    assert_eq!(folded(&model, &text([0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15])), Some(8));
    refused(&model, &text([0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 6, 7, 13, 14, 15]), "SW0507");
    refused(&model, &text([0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 15, 7]), "SW0507");
}

/// The first line of eight moves on, and leaves a gap behind it from its fifth rank on.
#[test]
fn parts_of_a_maximum_leave_no_gap_further_on() {
    let model = graph(
        "input %x f64[4,16] 0
op %y f64[4] = aten.amax.default(%x, [1]) in \"\" at \"m.py:1\"
output %y
",
    );
    let text = |len: usize| {
        let columns = |rank: usize| match rank / 8 {
            0 => format!(":,{}..{}", rank % 8, rank % 8 + len),
            1 => format!(":,0..{}", 13 - len),
            _ => ":,8..16".into(),
        };
        format!(
            "group {} {} {}
             group {}
             ranks {}
             input x %x {}
             call 0 x -> y : y = aten.amax.default(x, [1])
             all_reduce g1 max y -> z
             output z",
            ranks(0..8),
            ranks(8..16),
            ranks(16..24),
            (0..8).map(|at| ranks([at, at + 8, at + 16].into_iter())).collect::<Vec<_>>().join(" "),
            ranks(0..24),
            each(24, columns)
        )
    };
    assert_eq!(folded(&model, &text(4).replace(":,0..9", ":,0..8")), None);
    refused(&model, &text(9), "SW0512");
}

const DROPOUT: &str = "input %x f64[16,4] 0
op %d f64[16,4] = aten.dropout.default(%x, 0.5, True) in \"\" at \"m.py:1\"
output %d
";

/// The second line of eight draws for rows that the fifth and the sixth rank of the first one draw for, too.
#[test]
fn what_is_drawn_overlaps_with_nothing_further_on() {
    let text = |lo: usize| {
        let rows = each(16, |rank| match rank / 8 {
            0 => format!("{}..{},:", 2 * rank, 2 * rank + 2),
            _ => format!("{lo}..{},:", lo + 2),
        });
        format!(
            "group {} {}
             ranks {}
             input x %x {rows}
             random 0 {rows}
             call 0 x -> d : d = sw.dropout(x, 0.5, 0, 0)
             output d local {rows}",
            ranks(0..8),
            ranks(8..16),
            ranks(0..16),
        )
    };
    let model = graph(DROPOUT);
    assert_eq!(folded(&model, &text(10)), Some(8));
    refused(&model, &text(9), "SW0515");
}

/// Ranks of two roles take turns, so that those of one line have every second row, and those of both all of them.
#[test]
fn neighbours_of_two_lines_are_summed_as_one() {
    let role = |from: usize| {
        format!(
            "ranks {}
             shard w %w :,:
             input x %x {}
             call 0 x, w -> s : y = aten.linear.default(x, w) ; s = aten.sum.default(y)
             all_reduce g0 sum s -> t
             output t
             seed ds
             grad 0 ds ->
             reduce_gradients g0 w\n",
            ranks((from..16).step_by(2)),
            each(8, |at| format!("{}..{},:", 2 * at + from, 2 * at + from + 1)),
        )
    };
    let text = format!("group {}\n{}{}", ranks(0..16), role(0), role(1));
    assert_eq!(folded(&graph(LINEAR), &text), Some(8));
}

/// The largest of copies is a copy, of however many.
#[test]
fn copies_of_which_the_largest_is_taken_stand_for_all() {
    let text = format!(
        "group {all}
         ranks {all}
         shard w %w :,:
         input x %x :,:
         call 0 x, w -> s : y = aten.linear.default(x, w) ; s = aten.sum.default(y)
         all_reduce g0 max s -> t
         output t",
        all = ranks(0..8)
    );
    assert_eq!(folded(&graph(LINEAR), &text), Some(8));
}
