//! Rules as text: what prints parses, and what is not a rule is refused with its reason.

use proptest::prelude::*;
use rules::algebra::{check_grammar, refuse_found, was_found};
use rules::{Dim, DimId, Kind, Operand, Passes, Reduction, Rule, Through};

fn shape(rule: &Rule, operand: &Operand) -> Vec<i64> {
    let size = |product: &Vec<DimId>| product.iter().map(|dim| rule.dim(*dim).size).product();
    operand.dims.iter().map(size).collect()
}

fn parse_again(rule: &Rule) -> diag::Result<Rule> {
    let inputs: Vec<Vec<i64>> = rule.inputs.iter().map(|o| shape(rule, o)).collect();
    let outputs: Vec<Vec<i64>> = rule.outputs.iter().map(|o| shape(rule, o)).collect();
    let inputs: Vec<&[i64]> = inputs.iter().map(Vec::as_slice).collect();
    let given = outputs.iter().zip(&rule.outputs);
    let outputs: Vec<Option<&[i64]>> =
        given.map(|(shape, o)| (!o.absent).then_some(shape.as_slice())).collect();
    Rule::parse(&rule.to_string(), &inputs, &outputs)
}

const REDUCTIONS: [Reduction; 5] =
    [Reduction::Sum, Reduction::Max, Reduction::Min, Reduction::Any, Reduction::All];

/// Dims that are reduced are so in one way.
fn dims() -> impl Strategy<Value = Vec<Dim>> {
    let one = (0..4_usize, 2..9_i64, any::<bool>());
    (prop::collection::vec(one, 1..8), 0..REDUCTIONS.len()).prop_map(|(rows, reduction)| {
        let kinds = [Kind::Map, Kind::Whole, Kind::Own, Kind::Reduce(REDUCTIONS[reduction])];
        let dim = |(i, (kind, size, contiguous))| Dim {
            name: format!("d{i}"),
            size,
            kind: kinds[kind],
            contiguous,
        };
        rows.into_iter().enumerate().map(dim).collect()
    })
}

/// Dims in groups of up to three, and a dim of size one now and then.
fn grouped(dims: &[DimId], seed: u64) -> Vec<Vec<DimId>> {
    let (mut groups, mut rest, mut seed) = (vec![], dims, seed);
    while !rest.is_empty() {
        let take = (seed % 4).min(rest.len() as u64) as usize;
        groups.push(rest[..take].to_vec());
        rest = &rest[take..];
        seed = seed / 4 + if seed < 4 { 6 } else { 0 };
    }
    groups
}

/// One input has every dim in its order, by itself or in products; the others have products.
fn rules() -> impl Strategy<Value = Rule> {
    let shuffled = dims().prop_flat_map(|dims| {
        let ids: Vec<DimId> = (0..dims.len()).map(DimId::new).collect();
        (Just(dims), Just(ids).prop_shuffle(), any::<u64>(), any::<[bool; 4]>())
    });
    shuffled.prop_map(|(dims, order, seed, [once, absent, linear, alone])| {
        let ids: Vec<DimId> = (0..dims.len()).map(DimId::new).collect();
        let all = if alone { ids.iter().map(|dim| vec![*dim]).collect() } else { grouped(&ids, seed / 7) };
        let kept: Vec<DimId> =
            order.iter().copied().filter(|dim| !matches!(dims[dim.index()].kind, Kind::Reduce(_))).collect();
        let operand = |dims| Operand { dims, ..Operand::default() };
        let second = Operand { once, ..operand(grouped(&order, seed)) };
        let gone = Operand { absent: true, ..Operand::default() };
        let mut outputs = vec![operand(grouped(&kept, seed / 3))];
        outputs.extend(absent.then_some(gone));
        let passes = |through, operands| Passes { through, operands };
        let passes = match linear {
            true => vec![passes(Through::Linear, vec![0]), passes(Through::Rising, vec![0, 1])],
            false => vec![passes(Through::Falling, vec![1])],
        };
        Rule { dims, inputs: vec![operand(all), second], outputs, passes }
    })
}

proptest! {
    #[test]
    fn what_prints_parses(rule in rules()) {
        let again = parse_again(&rule);
        prop_assert_eq!(again.as_ref().map(ToString::to_string), Ok(rule.to_string()));
        prop_assert_eq!(again, Ok(rule));
    }
}

#[test]
fn sizes_follow_from_each_other() {
    let rule = Rule::parse("a (b c) d -> (a b) (c d)", &[&[2, 6, 2]], &[Some(&[4, 6])]).expect("a rule");
    let sizes: Vec<i64> = rule.dims.iter().map(|dim| dim.size).collect();
    assert_eq!(sizes, [2, 2, 3, 2]);
}

#[test]
fn sizes_that_do_not_follow_are_printed() {
    let text = "n (g c) s, c -> n (g c) s";
    let rule = Rule::parse(text, &[&[2, 6, 5], &[3]], &[Some(&[2, 6, 5])]).expect("a rule");
    assert_eq!(rule.to_string(), text);
    let text = "n (g c) s -> n (g c) s ; size g=2";
    let rule = Rule::parse(text, &[&[2, 6, 5]], &[Some(&[2, 6, 5])]).expect("a rule");
    assert_eq!(rule.to_string(), text);
}

#[test]
fn operands_that_do_not_matter_have_no_dims() {
    let rule = Rule::parse("a, - -> a, -", &[&[2], &[7, 7]], &[Some(&[2]), None]).expect("a rule");
    assert!(rule.inputs[1].absent && rule.outputs[1].absent);
    assert_eq!(rule.to_string(), "a, - -> a, -");
}

#[track_caller]
fn refuse(text: &str, inputs: &[&[i64]], outputs: &[Option<&[i64]>], why: &str) {
    let error = Rule::parse(text, inputs, outputs).expect_err(text);
    assert_eq!((error.code, error.why.as_deref()), ("SW0320", Some(why)), "{text}");
}

#[test]
fn bad_grammar_is_refused() {
    let refuse = |text, why| refuse(text, &[&[2, 3]], &[Some(&[2, 3])], why);
    refuse("a b", "`->` is missing");
    refuse(
        "a b -> a b ; found by us",
        "only `linear`, `rising`, `falling` and `size` clauses may follow `;`",
    );
    refuse("a b -> a b ; fast 0", "only `linear`, `rising`, `falling` and `size` clauses may follow `;`");
    refuse("a b -> a b ; linear x", "`linear` takes positions");
    refuse("a b -> a b ; linear 1", "`linear` names an operand that does not exist");
    refuse("a b -> a b ; falling 1", "`falling` names an operand that does not exist");
    refuse("a+ b> -> c d", "dims are reduced in two different ways");
    refuse("(a b -> a b", "parentheses do not match");
    refuse("a b) -> a b", "parentheses do not match");
    refuse("a ((b)) -> a b", "parentheses do not match");
    refuse("a ? -> a b", "a dim's name is made of letters, digits and `_`");
    refuse("a b* -> a b", "an unknown mark");
    refuse("a b^ -> a b@", "a dim carries two different marks");
    refuse("a b -> a b ; size a", "`size` takes dims, as `h=8`");
    refuse("a b -> a b ; size c=2", "no operand has this dim");
    refuse("a b -> a b ; size a=5", "a dim has two different sizes, 5 and 2");
    refuse("a ... -> a _0", "with `...`, no dim's name may begin with `_`");
    refuse("a a -> a b", "a dim has two different sizes, 2 and 3");
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    refuse("a, a -> a", &[&[2]], &[Some(&[2])], "operands: 2, where the operator has 1");
    refuse("a -> a, a", &[&[2]], &[Some(&[2])], "results: 2, where the operator has 1");
    refuse("a b -> a", &[&[2]], &[Some(&[2])], "2 dims, where its tensor is [2]");
    refuse("a -> a", &[&[2]], &[Some(&[3])], "a dim has two different sizes, 2 and 3");
    refuse("a -> a 1", &[&[2]], &[Some(&[2, 3])], "a product of 1, where its tensor has 3");
    refuse("(a b) -> a b", &[&[7]], &[Some(&[2, 3])], "a product of 6, where its tensor has 7");
    let why = "of a product of 6 the sizes of several dims are unknown";
    refuse("(a b) -> (a b)", &[&[6]], &[Some(&[6])], why);
    refuse("a -> a, b", &[&[2]], &[Some(&[2]), None], "a dim's size cannot be inferred");
}

#[test]
fn dims_that_make_no_sense_are_refused() {
    let pair: &[i64] = &[2, 3];
    refuse("a b+ -> a b", &[pair], &[Some(pair)], "a reduced dim appears in an output");
    refuse("a b -> a b, a", &[pair], &[Some(pair), Some(&[2])], "a mapped dim must appear in every output");
    refuse("a b -> a", &[pair], &[Some(&[2])], "a dim that only inputs have needs a mark");
    refuse("a a -> a", &[&[2, 2]], &[Some(&[2])], "a dim appears twice in one operand");
}

#[test]
fn dots_are_the_dims_that_others_leave() {
    let given: &[i64] = &[2, 3, 4, 5];
    let parse = |text: &str| Rule::parse(text, &[given], &[Some(given)]).map(|rule| rule.to_string());
    assert_eq!(parse("a ... -> a ..."), Ok("a _0 _1 _2 -> a _0 _1 _2".into()));
    assert_eq!(
        parse("... (a b) -> ... (a b) ; size a=5"),
        Ok("_0 _1 _2 (a b) -> _0 _1 _2 (a b) ; size a=5".into())
    );
    assert_eq!(parse("a b c d ... -> a b c d"), Ok("a b c d -> a b c d".into()));
    refuse("a ... -> ...", &[given], &[Some(given)], "a dim has two different sizes, 3 and 2");
    refuse("a b c d e ... -> ...", &[given], &[Some(given)], "5 dims, where its tensor is [2, 3, 4, 5]");
}

#[test]
fn sizes_may_be_given() {
    let rule = Rule::parse("a (h d) -> a (h d) ; size h=4", &[&[2, 12]], &[Some(&[2, 12])]).expect("a rule");
    let sizes: Vec<(&str, i64)> = rule.dims.iter().map(|dim| (dim.name.as_str(), dim.size)).collect();
    assert_eq!(sizes, [("a", 2), ("h", 4), ("d", 3)]);
    let refuse = |text, why| refuse(text, &[&[2, 12]], &[Some(&[2, 12])], why);
    refuse("a (h d) -> a (h d) ; size h=5", "5 does not divide its tensor's size, 12");
    refuse("a (h d) -> a (h d)", "of a product of 12 the sizes of several dims are unknown");
}

#[test]
fn a_caret_shows_what_is_to_blame() {
    let shown = |text: &str, inputs: &[&[i64]], outputs: &[Option<&[i64]>]| {
        Rule::read(text, inputs, outputs).expect_err(text).shown(text)
    };
    let pair: &[i64] = &[2, 3];
    insta::assert_snapshot!(
        [
            shown("a (b c -> a", &[pair], &[Some(pair)]),
            shown("a b, c d* -> a b", &[pair, pair], &[Some(pair)]),
            shown("a b -> a b c", &[pair], &[Some(pair)]),
            shown("a b, b c -> a c", &[pair, pair], &[Some(pair)]),
            shown("a b, a c -> a c", &[pair, &[2, 4]], &[Some(&[2, 4])]),
            shown("a b -> a b ; linear 0 2", &[pair], &[Some(pair)]),
            shown("a b -> a b ; size (c=2", &[pair], &[Some(pair)]),
            shown("a b -> a b", &[pair, pair], &[Some(pair)]),
            shown("a b -> a b", &[pair], &[]),
            shown("ä b -> ä b", &[pair], &[Some(pair)]),
            shown("", &[pair], &[Some(pair)]),
        ]
        .join("\n\n")
    );
}

#[test]
fn a_clause_begins_with_the_word_of_what_passes_or_says_that_the_rule_was_found() {
    let words = ["linear", "rising", "falling", "found", "a", ""];
    assert_eq!(words.map(Through::is_word), [true, true, true, false, false, false]);
    let texts = ["a b -> a", "a b -> a ; linear 0", "a b -> a ; linear 0 ; found"];
    assert_eq!(texts.map(rules::algebra::was_found), [false, false, true]);
}

/// The sizes of a rule's dims, in the order in which they are named.
fn sizes(text: &str, inputs: &[&[i64]], outputs: &[Option<&[i64]>]) -> Vec<i64> {
    Rule::parse(text, inputs, outputs).expect(text).dims.iter().map(|dim| dim.size).collect()
}

#[test]
fn texts_may_be_tight_or_end_with_their_arrow() {
    assert_eq!(sizes("a b->a b", &[&[2, 3]], &[Some(&[2, 3])]), [2, 3]);
    assert_eq!(sizes("_a -> _a", &[&[2]], &[Some(&[2])]), [2]);
    assert_eq!(sizes("a+ ->", &[&[2]], &[]), [2]);
    assert!(Rule::parse("a+ ->", &[&[2]], &[Some(&[])]).is_err());
}

#[test]
fn a_product_tells_of_one_dim_by_the_others() {
    assert_eq!(sizes("(a b) -> (a b) ; size a=1", &[&[4]], &[Some(&[4])]), [1, 4]);
    assert!(Rule::parse("(a b), a -> (a b), a", &[&[0], &[0]], &[Some(&[0]), Some(&[0])]).is_err());
}

#[test]
fn all_other_dims_are_those_that_no_term_names() {
    let shape: &[i64] = &[6, 5, 4];
    assert_eq!(sizes("(a b) c ... -> (a b) c ... ; size a=2", &[shape], &[Some(shape)]), [2, 3, 5, 4]);
    assert_eq!(sizes("c (a b) ... -> c (a b) ... ; size a=1", &[shape], &[Some(shape)]), [6, 1, 5, 4]);
}

#[test]
fn marks_and_dims_that_are_wrong_are_pointed_out() {
    let at = |text: &str| Rule::read(text, &[&[2]], &[Some(&[2])]).expect_err(text).at;
    assert_eq!((at("b? -> b"), at("b~? -> b"), at("(b -> b")), (1..2, 2..3, 0..1));
    let twice = check_grammar("a b a -> a b").expect_err("it is named twice");
    assert_eq!(twice.why, "a dim appears twice in one operand");
}

/// What is found by trying says so, and nothing else does.
#[test]
fn a_rule_that_was_found_says_so() {
    let text = "b -> b ; linear 0 ; found";
    assert!(Rule::parse(text, &[&[2]], &[Some(&[2])]).is_ok());
    assert_eq!((was_found(text), was_found("b -> b ; linear 0")), (true, false));
    assert_eq!((refuse_found(text).is_err(), refuse_found("b -> b ; linear 0").is_ok()), (true, true));
}

/// Only sums pass what is linear.
#[test]
fn what_rises_is_not_linear() {
    let rule = Rule::parse("a, a -> a ; rising 0 ; linear 1", &[&[2], &[2]], &[Some(&[2])]).expect("a rule");
    assert_eq!(rule.linear().collect::<Vec<_>>(), [&vec![1]]);
}

#[test]
fn sizes_are_told_of_dims_that_no_shape_tells() {
    let untold = |text: &str, told: &[(&str, i64)]| {
        let told: Vec<(String, i64)> = told.iter().map(|(name, size)| ((*name).to_string(), *size)).collect();
        Rule::parse(text, &[&[6]], &[Some(&[6])]).expect(text).untold(&told)
    };
    let (first, whole) = ("(a b) -> (a b) ; size a=2", "(a b^) -> (a b^) ; size a=2");
    assert_eq!(untold(first, &[]), [("a".to_string(), 2)]);
    assert_eq!(untold(first, &[("c", 2)]), [("a".to_string(), 2)]);
    assert!(untold(first, &[("a", 2)]).is_empty());
    assert_eq!(untold(whole, &[]), [("b".to_string(), 3)]);
}
