//! Shares of maxima, minima and the like: what passes them, and by what they are put together.

use crate::support::{faults, graph, proof};

/// Something without a gradient is reduced over the columns and goes on, through one operator or none.
fn model(reduce: &str, then: &str) -> graph::Graph {
    graph(&format!(
        "input %x f64[4,8] 0
         param %w f64[8] \"w\"
         op %m f64[4,1] = {reduce}(%x, [1], True) in \"\" at \"m.py:1\"
         op %d f64[4,1] = aten.detach.default(%m) in \"\" at \"m.py:2\"
         op %t f64[4,1] = {then} in \"\" at \"m.py:3\"
         op %y f64[4,8] = aten.mul.Tensor(%x, %t) in \"\" at \"m.py:4\"
         op %z f64[4,8] = aten.mul.Tensor(%y, %w) in \"\" at \"m.py:5\"
         op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:6\"
         output %s"
    ))
}

/// Two ranks have half of the columns each. Shares go through `passed`, are put together by `how`, and `whole` follows.
fn columns(passed: &str, how: &str, whole: &str) -> String {
    format!(
        "group 0,1
         ranks 0,1
         shard w %w 0..4 | 4..8
         input x %x :,0..4 | :,4..8
         call 0 x -> h : {passed}
         {how}
         call 3 x, k, w -> s : {whole}y = aten.mul.Tensor(x, t) ; z = aten.mul.Tensor(y, w) ; s = aten.sum.default(z)
         all_reduce g0 sum s -> s2
         output s2
         seed ds
         grad 3 ds ->"
    )
}

const AMAX: &str = "aten.amax.default";
const AMIN: &str = "aten.amin.default";

fn codes(model: &graph::Graph, program: &str) -> Vec<&'static str> {
    faults(model, program).iter().map(|fault| fault.code).collect()
}

/// A model whose detached extreme goes through `then` while it is a share, and what completes it by which all-reduce.
fn passed(reduce: &str, then: &str, by: &str) -> Vec<&'static str> {
    let model = model(reduce, &then.replace("(d", "(%d").replace(", d)", ", %d)"));
    let text = format!("m = {reduce}(x, [1], True) ; d = aten.detach.default(m) ; h = {then}");
    let program = columns(&text, &format!("all_reduce g0 {by} h -> k"), "").replace("(x, t)", "(x, k)");
    codes(&model, &program)
}

#[test]
fn what_moves_or_only_rises_passes_a_maximum() {
    for then in ["aten.clone.default(d)", "aten.exp.default(d)", "aten.mul.Tensor(d, 2.0)"] {
        assert_eq!(passed(AMAX, then, "max"), [""; 0], "{then}");
        assert_eq!(passed(AMIN, then, "min"), [""; 0], "{then}");
        assert_eq!(passed(AMAX, then, "sum"), ["SW0508"], "{then}");
        assert_eq!(passed(AMAX, then, "min"), ["SW0508"], "{then}");
    }
}

#[test]
fn what_falls_makes_a_minimum_of_it() {
    for then in ["aten.neg.default(d)", "aten.mul.Tensor(d, -2.0)", "aten.rsub.Scalar(d, 1.0)"] {
        assert_eq!(passed(AMAX, then, "min"), [""; 0], "{then}");
        assert_eq!(passed(AMIN, then, "max"), [""; 0], "{then}");
        assert_eq!(passed(AMAX, then, "max"), ["SW0508"], "{then}");
        assert_eq!(passed(AMAX, then, "sum"), ["SW0508"], "{then}");
    }
}

/// A root of the largest of some elements may be no number where that of the largest of all is one.
#[test]
fn nothing_else_passes_it() {
    for then in [
        "aten.sqrt.default(d)",
        "aten.mul.Tensor(d, d)",
        "aten.cos.default(d)",
        "aten.mul.Tensor(d, 0.0)",
        "aten.add.Tensor(d, inf)",
    ] {
        for by in ["max", "min", "sum"] {
            assert_eq!(passed(AMAX, then, by).first(), Some(&"SW0505"), "{then} {by}");
        }
    }
}

/// A sum that is negated is a sum, and one that is raised to e is nothing of the kind.
#[test]
fn sums_pass_what_is_linear() {
    let sum = "aten.sum.dim_IntList";
    assert_eq!(passed(sum, "aten.neg.default(d)", "sum"), [""; 0]);
    assert_eq!(passed(sum, "aten.neg.default(d)", "max"), ["SW0508"]);
    assert_eq!(passed(sum, "aten.exp.default(d)", "sum"), ["SW0505"]);
}

/// Both halves on one rank: what is added there is as wrong as what is added between ranks.
#[test]
fn maxima_are_not_added() {
    let model = model(AMAX, "aten.clone.default(%d)");
    let program = "ranks 0
         shard w %w :
         input x %x :,:
         slice x -> a : [4, 8] 0..4, 0..4
         slice x -> b : [4, 8] 0..4, 4..8
         call 0 a, b -> d1, d2 : m1 = aten.amax.default(a, [1], True) ; d1 = aten.detach.default(m1) ; m2 = aten.amax.default(b, [1], True) ; d2 = aten.detach.default(m2)
         add d1, d2 -> d
         call 3 x, d, w -> s : t = aten.clone.default(d) ; y = aten.mul.Tensor(x, t) ; z = aten.mul.Tensor(y, w) ; s = aten.sum.default(z)
         output s
         seed ds
         grad 3 ds ->";
    assert_eq!(codes(&model, program).first(), Some(&"SW0508"));
}

#[test]
fn an_exchange_says_by_what_it_puts_shares_together() {
    let model = model(AMAX, "aten.clone.default(%d)");
    let shares = "m = aten.amax.default(x, [1], True) ; h = aten.detach.default(m)";
    let table = |by: &str| {
        format!(
            "table 1 %d {by}\nfrom 0 :\nfrom 1 :\nto 0 :\nto 1 :\npiece 0 0 :\npiece 1 0 :\npiece 0 1 :\npiece 1 1 :\n"
        )
    };
    let program = columns(shares, "exchange 1 h -> k", "t = aten.clone.default(k) ; ");
    proof(&model, &(table("max") + &program));
    assert_eq!(codes(&model, &(table("sum") + &program)).first(), Some(&"SW0508"));
    assert_eq!(codes(&model, &(table("min") + &program)).first(), Some(&"SW0508"));
}

/// Whether any element is one says, turned round, whether all are none.
#[test]
fn logical_shares_turn_round() {
    let model = graph(
        "input %x f64[4,8] 0
         param %w f64[8] \"w\"
         op %b bool[4,8] = aten.gt.Scalar(%x, 0.0) in \"\" at \"m.py:1\"
         op %m bool[4,1] = aten.any.dim(%b, 1, True) in \"\" at \"m.py:2\"
         op %t bool[4,1] = aten.logical_not.default(%m) in \"\" at \"m.py:3\"
         op %y f64[4,8] = aten.mul.Tensor(%x, %t) in \"\" at \"m.py:4\"
         op %z f64[4,8] = aten.mul.Tensor(%y, %w) in \"\" at \"m.py:5\"
         op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:6\"
         output %s",
    );
    let shares =
        "b = aten.gt.Scalar(x, 0.0) ; m = aten.any.dim(b, 1, True) ; h = aten.logical_not.default(m)";
    let by =
        |by: &str| columns(shares, &format!("all_reduce g0 {by} h -> k"), "").replace("(x, t)", "(x, k)");
    proof(&model, &by("all"));
    assert_eq!(codes(&model, &by("any")), ["SW0508"]);
    assert_eq!(codes(&model, &by("sum")), ["SW0508"]);
}

/// Whether any element is one says nothing of how many are, and what becomes a number is no logical value.
#[test]
fn logical_shares_pass_what_leaves_them_as_they_are() {
    let cast = ("aten._to_copy.default(%m, dtype=bool)", "bool");
    for (then, of) in [("aten.cumsum.default(%m, 0)", "i64"), ("aten.mul.Tensor(%m, 2.0)", "f64"), cast] {
        let model = graph(&format!(
            "input %x f64[4,8] 0
             op %b bool[4,8] = aten.gt.Scalar(%x, 0.0) in \"\" at \"m.py:1\"
             op %m bool[4,1] = aten.any.dim(%b, 1, True) in \"\" at \"m.py:2\"
             op %t {of}[4,1] = {then} in \"\" at \"m.py:3\"
             output %t"
        ));
        let text = |by: &str| {
            format!(
                "group 0,1
                 ranks 0,1
                 input x %x :,0..4 | :,4..8
                 call 0 x -> t : b = aten.gt.Scalar(x, 0.0) ; m = aten.any.dim(b, 1, True) ; t = {}
                 all_reduce g0 {by} t -> k
                 output k",
                then.replace("%m", "m")
            )
        };
        let found = |by: &str| codes(&model, &text(by));
        if of == "bool" {
            assert_eq!((found("any"), found("all")), (vec![], vec!["SW0508"]), "{then}");
            continue;
        }
        assert_eq!(found("any").first(), Some(&"SW0505"), "{then}");
        assert_eq!(found("all").first(), Some(&"SW0505"), "{then}");
    }
}

/// What all shares are shares of a sum, or of a maximum, passes an operator; not some of this and some of that.
#[test]
fn shares_of_two_kinds_do_not_pass_together() {
    for (one, two) in [("d", "a"), ("a", "d")] {
        let model = graph(&format!(
            "input %x f64[4,8] 0
         param %w f64[8] \"w\"
         op %m f64[4,1] = aten.amax.default(%x, [1], True) in \"\" at \"m.py:1\"
         op %d f64[4,1] = aten.detach.default(%m) in \"\" at \"m.py:2\"
         op %a f64[4,1] = aten.sum.dim_IntList(%x, [1], True) in \"\" at \"m.py:3\"
         op %t f64[4,1] = aten.add.Tensor(%{one}, %{two}) in \"\" at \"m.py:4\"
         op %y f64[4,8] = aten.mul.Tensor(%x, %t) in \"\" at \"m.py:5\"
         op %z f64[4,8] = aten.mul.Tensor(%y, %w) in \"\" at \"m.py:6\"
         op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:7\"
         output %s",
        ));
        let shares = format!(
            "m = aten.amax.default(x, [1], True) ; d = aten.detach.default(m) ; a = aten.sum.dim_IntList(x, [1], True) ; h = aten.add.Tensor({one}, {two})"
        );
        for by in ["sum", "max"] {
            let program =
                columns(&shares, &format!("all_reduce g0 {by} h -> k"), "").replace("(x, t)", "(x, k)");
            assert_eq!(codes(&model, &program).first(), Some(&"SW0505"), "{one} {two} {by}");
        }
    }
}

/// Of rows that nobody sends there would be zeros, which may be more than the largest.
#[test]
fn a_maximum_is_not_taken_with_what_is_not_there() {
    let model = model(AMAX, "aten.clone.default(%d)");
    let shares = "m = aten.amax.default(x, [1], True) ; h = aten.detach.default(m)";
    let ends = "table 1 %d max\nfrom 0 :\nfrom 1 :\nto 0 :\nto 1 :\npiece 0 1 :\npiece 1 1 :\n";
    let program = columns(shares, "exchange 1 h -> k", "t = aten.clone.default(k) ; ");
    let found = |pieces: &str| faults(&model, &format!("{ends}{pieces}{program}"));
    assert_eq!(found("piece 0 0 :\npiece 1 0 :\n"), []);
    for pieces in
        ["piece 0 0 0..2\npiece 1 0 0..2\n", "piece 0 0 0..2\npiece 1 0 2..4\n", "piece 0 0 0..2\n", ""]
    {
        assert!(!found(pieces).is_empty(), "{pieces}");
    }
    let zeros = found("piece 0 0 0..2\npiece 1 0 0..2\n");
    assert!(zeros[0].what.contains("includes zeros that are not part of it"), "{zeros:?}");
}

/// The first two rows are a share of the maximum, the others nothing; the other ranks have all shares of all rows.
#[test]
fn a_maximum_is_not_taken_with_what_is_there_in_part() {
    let model = graph(
        "input %x f64[4,8] 0
         op %m f64[4] = aten.amax.default(%x, [1]) in \"\" at \"m.py:1\"
         output %m",
    );
    let text = "table 1 %m max
         to 1 2..4
         group 0,1
         group 0,1,2
         ranks 0
         input x %x :,0..4
         slice x -> a : [4, 4] 0..2, 0..4
         call 0 a -> p : p = aten.amax.default(a, [1])
         all_gather g0 p -> h : [4] 0 [2, 2]
         all_reduce g1 max h -> k
         output k
         ranks 1
         input x %x :,4..8
         exchange 1 -> p
         all_gather g0 p -> g : [4] 0 [2, 2]
         call 0 x -> h : h = aten.amax.default(x, [1])
         all_reduce g1 max h -> k
         output k
         ranks 2
         input x %x :,0..4
         call 0 x -> h : h = aten.amax.default(x, [1])
         all_reduce g1 max h -> k
         output k";
    let found = faults(&model, text);
    assert_eq!(found.first().map(|fault| fault.code), Some("SW0508"), "{found:?}");
    assert!(found[0].what.contains("includes zeros that are not part of it"), "{found:?}");
}

/// The largest of a whole and of a share of a sum is neither.
#[test]
fn a_maximum_is_taken_of_copies_only_where_all_are() {
    let model = graph(
        "input %x f64[4,8] 0
         op %p f64[4] = aten.sum.dim_IntList(%x, [1]) in \"\" at \"m.py:1\"
         output %p",
    );
    let text = |regions: &str| {
        format!(
            "group 0,1
             ranks 0,1
             input x %x {regions}
             call 0 x -> p : p = aten.sum.dim_IntList(x, [1])
             all_reduce g0 max p -> q
             output q"
        )
    };
    proof(&model, &text(":,:"));
    for regions in [":,: | :,4..8", ":,4..8 | :,:", ":,0..4 | :,4..8"] {
        assert_eq!(codes(&model, &text(regions)).first(), Some(&"SW0508"), "{regions}");
    }
}
