//! What may be tried of a function, and the text of what holds.

use rules::Kind;
use rules::discovered::{Discovery, FactorPlace, Split, ValidSplit, kind_of, splits};

fn place((operand, dim, outer): (usize, usize, i64)) -> FactorPlace {
    FactorPlace { operand, dim, outer }
}

fn split(size: i64, inputs: &[(usize, usize, i64)], argument: Option<usize>) -> Split {
    Split { size, inputs: inputs.iter().copied().map(place).collect(), argument }
}

fn held(split: Split, mark: &str, outputs: &[(usize, usize, i64)]) -> ValidSplit {
    let outputs = outputs.iter().copied().map(place).collect();
    ValidSplit { split, kind: kind_of(mark).unwrap(), outputs, once: vec![] }
}

/// Every gap is a dim of its own.
fn text(discovery: &Discovery, linear: &[Vec<usize>]) -> String {
    let (inputs, outputs) = discovery.gaps();
    let all: Vec<usize> = (0..inputs.len() + outputs.len()).collect();
    let (of_inputs, of_outputs) = all.split_at(inputs.len());
    let proposed = discovery.propose(of_inputs, of_outputs, linear);
    let given: Vec<_> = proposed.given.iter().map(|(name, size)| format!(" {name}={size}")).collect();
    format!("{}{}{}", proposed.rule, if given.is_empty() { "" } else { " ; size" }, given.concat())
}

fn of(inputs: &[&[i64]], outputs: &[&[i64]], all: &[ValidSplit]) -> Discovery {
    let shapes = |of: &[&[i64]]| of.iter().map(|shape| shape.to_vec()).collect();
    let mut discovery = Discovery { inputs: shapes(inputs), outputs: shapes(outputs), held: vec![] };
    for held in all {
        assert!(discovery.hold(held.clone()));
    }
    discovery
}

#[test]
fn whole_dims_come_before_factors_and_few_tensors_before_many() {
    let (all, left_out) = splits(&[vec![2, 6], vec![6]], &[3], 100);
    assert_eq!(left_out, 0);
    let whole = [
        split(6, &[(0, 1, 1)], None),
        split(6, &[(1, 0, 1)], None),
        split(2, &[(0, 0, 1)], None),
        split(3, &[], Some(0)),
        split(6, &[(0, 1, 1), (1, 0, 1)], None),
    ];
    assert_eq!(all[..5], whole);
    assert!(all.contains(&split(3, &[(0, 1, 2), (1, 0, 1)], Some(0))));
    assert!(!all.contains(&split(2, &[], Some(0))));
}

#[test]
fn what_is_too_much_is_counted() {
    let shapes = vec![vec![16, 16, 16]; 3];
    let (few, left_out) = splits(&shapes, &[], 100);
    let (all, none) = splits(&shapes, &[], 1_000_000);
    assert_eq!(none, 0);
    assert!(few.len() < all.len() && few.len() + left_out >= all.len());
    assert!(few.contains(&split(16, &[(0, 0, 1), (1, 0, 1), (2, 0, 1)], None)));
}

#[test]
fn dims_that_are_left_stay_whole() {
    let rows = held(split(4, &[(0, 0, 1)], None), "", &[(0, 0, 1)]);
    assert_eq!(text(&of(&[&[4, 6]], &[&[4, 6]], &[rows]), &[]), "a b^ -> a c^");
    assert_eq!(text(&of(&[&[4, 1], &[]], &[&[1]], &[]), &[]), "a^ 1, scalar -> 1");
}

#[test]
fn sums_are_marked_and_operands_that_only_one_part_is_given() {
    let k = ValidSplit { once: vec![2], ..held(split(6, &[(0, 1, 1), (1, 1, 1)], None), "+", &[]) };
    let n = held(split(5, &[(1, 0, 1), (2, 0, 1)], None), "", &[(0, 1, 1)]);
    let rows = held(split(4, &[(0, 0, 1)], None), "", &[(0, 0, 1)]);
    let all = of(&[&[4, 6], &[5, 6], &[5]], &[&[4, 5]], &[k, n, rows]);
    assert_eq!(text(&all, &[vec![0], vec![1]]), "a b+, c b+, !c -> a c ; linear 0 ; linear 1");
}

#[test]
fn factors_are_in_the_order_in_which_they_lie() {
    let inner = held(split(7, &[(0, 2, 1)], None), "", &[(0, 0, 5)]);
    let outer = held(split(5, &[(0, 1, 1)], None), "", &[(0, 0, 1)]);
    let merged = of(&[&[4, 5, 7]], &[&[35, 4]], &[inner, outer]);
    assert_eq!(text(&merged, &[]), "a^ b c -> (b c) d^");
}

#[test]
fn sizes_that_nothing_tells_are_in_the_text() {
    let half = held(split(3, &[(0, 0, 2)], None), "", &[(0, 0, 2)]);
    let all = of(&[&[6]], &[&[6]], std::slice::from_ref(&half));
    let proposed = all.propose(&[0], &[0], &[]);
    assert_eq!(
        (proposed.rule.without_sizes().as_str(), proposed.given),
        ("(a^ b) -> (a^ b)", vec![("a".into(), 2)])
    );
    let told = ValidSplit { split: Split { argument: Some(0), ..half.split.clone() }, ..half };
    let proposed = of(&[&[6]], &[&[6]], &[told]).propose(&[0], &[0], &[]);
    assert_eq!((proposed.told, proposed.given), (vec![("b".into(), 3)], vec![]));
}

#[test]
fn splits_that_hold_share_nothing() {
    let mut all = of(&[&[12]], &[&[12]], &[held(split(3, &[(0, 0, 2)], None), "", &[(0, 0, 2)])]);
    assert!(all.is_open(&split(2, &[(0, 0, 1)], None)));
    assert!(all.is_open(&split(2, &[(0, 0, 6)], None)));
    for (size, outer) in [(12, 1), (6, 1), (3, 2), (3, 4), (2, 2), (4, 3)] {
        assert!(!all.is_open(&split(size, &[(0, 0, outer)], None)), "{size} inside of {outer}");
    }
    // Another dim of the results would lie where there is one already.
    assert!(!all.hold(held(split(2, &[(0, 0, 1)], None), "", &[(0, 0, 3)])));
    assert!(all.hold(held(split(2, &[(0, 0, 1)], None), "", &[(0, 0, 1)])));
}

#[test]
fn marks_are_those_of_the_algebra() {
    for mark in ["", "+", ">", "<", "|", "&", "^"] {
        assert_eq!(kind_of(mark).map(|kind| kind.to_string()).as_deref(), Some(mark));
    }
    assert_eq!(kind_of("?"), None);
    assert_eq!(kind_of(""), Some(Kind::Map));
}
