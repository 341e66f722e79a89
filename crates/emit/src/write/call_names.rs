//! Which of a function's calls one is: by the layer that it is of, else by its place among them.

use std::collections::BTreeMap;

use program::{Call, Saves};

use super::iterations::counted;
use super::outline::FunctionUse;

/// For each call a number that tells it from the other calls of its function, if there are any.
///
/// A call that is computed again has the number that it had before: what is computed again keeps nothing, so
/// there is one backward of that name.
pub(super) fn numbers(calls: &[&Call], uses: &[FunctionUse<'_>]) -> Vec<Option<i64>> {
    let mut by_function: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, used) in uses.iter().enumerate() {
        by_function.entry(used.function).or_default().push(at);
    }
    let mut numbers = vec![None; calls.len()];
    for members in by_function.into_values() {
        let recomputed: Vec<bool> = members.iter().map(|at| calls[*at].saves == Saves::Nothing).collect();
        if is_one(&recomputed) {
            continue;
        }
        let by_path = layers(&members, &|at| Some(uses[at].path.to_owned()), &recomputed);
        let by_tree = || layers(&members, &|at| uses[at].tree.clone(), &recomputed);
        let by_place = || (0..).take(members.len()).collect();
        for (at, number) in members.iter().zip(by_path.or_else(by_tree).unwrap_or_else(by_place)) {
            numbers[*at] = Some(number);
        }
    }
    numbers
}

/// The numbers in one place of a text, if they tell all calls apart.
fn layers(
    members: &[usize],
    text: &dyn Fn(usize) -> Option<String>,
    recomputed: &[bool],
) -> Option<Vec<i64>> {
    let texts: Vec<String> = members.iter().map(|at| text(*at)).collect::<Option<_>>()?;
    let counted: Vec<(Vec<&str>, Vec<i64>)> = texts.iter().map(|text| counted(text)).collect();
    let (words, first) = &counted[0];
    if counted.iter().any(|(other, numbers)| other != words || numbers.len() != first.len()) {
        return None;
    }
    let place = |place: usize| counted.iter().map(|(_, numbers)| numbers[place]).collect::<Vec<i64>>();
    (0..first.len()).map(place).find(|numbers| tell_apart(numbers, recomputed))
}

fn tell_apart(numbers: &[i64], recomputed: &[bool]) -> bool {
    let mut same: BTreeMap<i64, Vec<bool>> = BTreeMap::new();
    for (number, recomputed) in numbers.iter().zip(recomputed) {
        same.entry(*number).or_default().push(*recomputed);
    }
    same.values().all(|calls| is_one(calls))
}

/// Whether calls are one by its name: a single one, or one and that which computes it again.
fn is_one(recomputed: &[bool]) -> bool {
    matches!(recomputed, [_] | [true, false])
}
