//! Rules that are put among the arguments of a call.

use graph::OpId;
use rules::families::registered::with_sizes;
use rules::given::{Given, give};

use crate::support::graph;

const FUNCTION: &str = "%y f32[2,12], %z f32[2] = shardwright.function.default(\"m:f\", [%x], \"(T0, 4) -> float32[2,12], float32[2]\")";
const MODULE: &str = "%y f32[2,12] = shardwright.module.default(\"m\", [\"w\"], [%w], [%x], \
                      \"(T0) -> float32[2,12]\", [], True, None)";

fn given(inputs: &str, op: &str, rule: &str, told: &[(&str, i64)], call: Option<&str>) -> String {
    let mut graph = graph(inputs, op);
    let told: Vec<_> = told.iter().map(|(dim, size)| ((*dim).to_owned(), *size)).collect();
    let text = with_sizes(rule, &told);
    match give(&mut graph, OpId(0), &Given { rule, told, call, found: false }) {
        Ok(()) => {
            let text = graph.to_string();
            let line = text.lines().find(|line| line.starts_with("op ")).expect("an operator");
            let at = line.find("\"(T0").expect("a call");
            line[at..].trim_end_matches(" in \"m\" at \"model.py:1\"").to_owned()
        }
        Err(invalid) => invalid.shown(&text),
    }
}

#[test]
fn results_are_told_by_sizes_of_dims() {
    let check = |rule: &str, expect: &str| {
        assert_eq!(given("w f32[5]; x f32[2,12]", MODULE, rule, &[], None), expect);
    };
    check("a b^ -> a b^", r#""(T0) -> float32[S0,12]", [], True, None, "a b^ -> a b^", ["a"], [2])"#);
    check("a b -> a b", r#""(T0) -> float32[S0,S1]", [], True, None, "a b -> a b", ["a", "b"], [2, 12])"#);
    check("a^ b^ -> a^ b^", r#""(T0) -> float32[2,12]", [], True, None, "a^ b^ -> a^ b^")"#);
    check(
        "a (h d^) -> a (h d^) ; size h=4",
        r#""(T0) -> float32[S0,S1*3]", [], True, None, "a (h d^) -> a (h d^) ; size h=4", ["a", "h"], [2, 4])"#,
    );
}

#[test]
fn arguments_that_are_sizes_come_first() {
    let call = "(T0, S0) -> float32[2,12], float32[2]";
    let found = given("x f32[2,12]", FUNCTION, "a (h d^) -> a (h d^), a", &[("h", 4)], Some(call));
    // The second result has no `h`.
    assert_eq!(found, "a (h d^) -> a (h d^), a ; size h=4\n   ^ a mapped dim must appear in every output");
    let found = given("x f32[2,12]", FUNCTION, "a (h^ d^) -> a (h^ d^), a", &[("h", 4)], Some(call));
    let expect =
        r#""(T0, S0) -> float32[S1,12], float32[S1]", "a (h^ d^) -> a (h^ d^), a", ["h", "a"], [4, 2])"#;
    assert_eq!(found, expect);
}

#[test]
fn a_rule_that_does_not_fit_is_shown() {
    let check = |rule: &str, expect: &str| {
        assert_eq!(given("w f32[5]; x f32[2,12]", MODULE, rule, &[], None), expect);
    };
    check("a -> a", "a -> a\n^ 1 dims, where its tensor is [2, 12]");
    check("a b, c -> a b", "a b, c -> a b\n^^^^^^ operands: 2, where the operator has 1");
    check(
        "a b -> a b ; found",
        "a b -> a b ; found\n             ^^^^^ only a rule that is found by trying says so",
    );
}
