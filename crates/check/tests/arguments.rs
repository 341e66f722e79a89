//! An operator of a program is the model's only if all its arguments are, whatever their kind.

use crate::support::{faults, graph, proof};

/// Each operator reads the same input, and has arguments of another kind.
const MODEL: &str = "input %x f64[4,8] 0
op %a f64[4,1] = aten.mean.dim(%x, [1], True) in \"\" at \"m.py:1\"
op %b f64[4,8] = aten.gelu.default(%x, approximate=\"tanh\") in \"\" at \"m.py:2\"
op %c f64[4,8] = aten.mul.Tensor(%x, 2.5) in \"\" at \"m.py:3\"
op %d f64[] = aten.sum.default(%x, dtype=f64) in \"\" at \"m.py:4\"
op %e f64[4,8] = aten.leaky_relu.default(%x, 3) in \"\" at \"m.py:5\"
op %f f64[4,2,4] = aten.view.default(%x, [4, 2, 4]) in \"\" at \"m.py:6\"
op %g f64[4,8] = aten.add.Tensor(%x, %b, alpha=2) in \"\" at \"m.py:7\"
output %a
output %b
output %c
output %d
output %e
output %f
output %g
";

const PROGRAM: &str = "group 0
ranks 0
input x %x :,:,:
call 0 x -> a : a = aten.mean.dim(x, [1], True)
call 1 x -> b : b = aten.gelu.default(x, approximate=\"tanh\")
call 2 x -> c : c = aten.mul.Tensor(x, 2.5)
call 3 x -> d : d = aten.sum.default(x, dtype=f64)
call 4 x -> e : e = aten.leaky_relu.default(x, 3)
call 5 x -> f : f = aten.reshape.default(x, [4, 2, 4])
call 6 x, b -> g : g = aten.add.Tensor(x, b, alpha=2)
output a
output b
output c
output d
output e
output f
output g
";

#[test]
fn arguments_of_each_kind_are_compared() {
    proof(&graph(MODEL), PROGRAM);
    for (old, new) in [
        ("True", "False"),
        ("\"tanh\"", "\"none\""),
        ("2.5", "2.75"),
        ("2.5", "-2.5"),
        ("dtype=f64", "dtype=f32"),
        ("(x, 3)", "(x, 4)"),
        ("[4, 2, 4]", "[4, 4, 2]"),
        ("[1], True", "[0], True"),
        ("[1], True", "[0, 1], True"),
        ("[1], True", "[1, 0], True"),
        ("alpha=2", "alpha=3"),
        ("alpha=2", "beta=2"),
        (", alpha=2", ""),
        ("aten.mul.Tensor(x, 2.5)", "aten.mul.Tensor(x, 2.5, alpha=1)"),
        (", dtype=f64", ""),
        ("aten.mul.Tensor(x, 2.5)", "aten.mul.Tensor(x, 2.5, 1)"),
        ("aten.mul.Tensor(x, 2.5)", "aten.mul.Tensor(x)"),
        ("aten.mul.Tensor(x, 2.5)", "aten.div.Tensor(x, 2.5)"),
        ("(x, b, alpha", "(b, x, alpha"),
        ("(x, b, alpha", "(x, x, alpha"),
    ] {
        assert!(PROGRAM.contains(old), "{old}");
        let found = faults(&graph(MODEL), &PROGRAM.replacen(old, new, 1));
        assert_eq!(found.first().map(|fault| fault.code), Some("SW0504"), "{old} to {new}: {found:?}");
    }
}

/// A number that is none is the same only as itself, and the two zeros differ.
#[test]
fn numbers_are_the_same_to_the_last_bit() {
    for number in ["0.0", "-0.0", "nan", "inf"] {
        let model = graph(&format!(
            "input %x f64[4] 0
op %y f64[4] = aten.div.Tensor(%x, {number}) in \"\" at \"m.py:1\"
output %y
"
        ));
        for other in ["0.0", "-0.0", "nan", "inf", "1.0"] {
            let text = format!(
                "ranks 0
input x %x :
call 0 x -> y : y = aten.div.Tensor(x, {other})
output y
"
            );
            let found = faults(&model, &text);
            let wanted = (number != other).then_some("SW0504");
            assert_eq!(found.first().map(|fault| fault.code), wanted, "{number} {other}: {found:?}");
        }
    }
}

/// Ranks run one code, and have numbers of their own.
#[test]
fn numbers_of_each_rank_are_compared() {
    let model = graph(
        "input %x f64[4,8] 0
op %f f64[4,2,4] = aten.view.default(%x, [4, 2, 4]) in \"\" at \"m.py:1\"
output %f
",
    );
    let text = "group 0,1
ranks 0,1
constant n 2 2
input x %x 0..2,:,: | 2..4,:,:
call 0 x -> f : f = aten.reshape.default(x, [n, 2, 4])
output f local 0..2,:,: | 2..4,:,:
";
    proof(&model, text);
    for other in ["2 3", "3 2"] {
        let found = faults(&model, &text.replace("n 2 2", &format!("n {other}")));
        assert_eq!(found.first().map(|fault| fault.code), Some("SW0504"), "{other}: {found:?}");
    }
}
