//! What may be tried.

use super::FactorPlace;

/// Factors of one size, cut together; an argument of this value is the size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    pub size: i64,
    pub inputs: Vec<FactorPlace>,
    pub argument: Option<usize>,
}

/// All that tensors of these shapes and arguments of these values allow: whole dims before factors, few tensors
/// before many, large factors before what they are made of. Where a size has more than `most`, only whole dims
/// are tried, and how many others there are is returned too.
pub fn splits(inputs: &[Vec<i64>], arguments: &[i64], most: usize) -> (Vec<Split>, usize) {
    let mut sizes: Vec<i64> = inputs.iter().flatten().flat_map(|size| divisors(*size)).collect();
    sizes.extend(arguments);
    sizes.retain(|size| *size > 1);
    sizes.sort_unstable();
    sizes.dedup();
    let (mut splits, mut left_out) = (vec![], 0);
    for size in sizes {
        let mut places: Vec<Vec<FactorPlace>> =
            inputs.iter().enumerate().map(|(operand, shape)| places(operand, shape, size)).collect();
        let ways = |places: &[Vec<FactorPlace>]| {
            places.iter().fold(1_usize, |product, candidates| product.saturating_mul(candidates.len() + 1))
        };
        let all = ways(&places);
        if all > most {
            for (candidates, shape) in places.iter_mut().zip(inputs) {
                candidates.retain(|place| shape[place.dim] == size);
            }
            left_out += all - ways(&places).min(all);
        }
        if ways(&places) <= most {
            splits.extend(of_size(size, &places, arguments));
        } else {
            left_out += ways(&places);
        }
    }
    let is_factor =
        |split: &Split| split.inputs.iter().any(|place| inputs[place.operand][place.dim] != split.size);
    splits.sort_by_cached_key(|split| {
        let with = split.inputs.len() + usize::from(split.argument.is_some());
        (is_factor(split), with, split.argument, -split.size, split.inputs.clone())
    });
    (splits, left_out)
}

/// Where a tensor of this shape has a factor of this size.
pub fn places(operand: usize, shape: &[i64], size: i64) -> Vec<FactorPlace> {
    let mut places = vec![];
    for (dim, whole) in shape.iter().enumerate() {
        if *whole > 0 && whole % size == 0 {
            places.extend(divisors(whole / size).map(|outer| FactorPlace { operand, dim, outer }));
        }
    }
    places
}

/// One place in each of some tensors, in all ways.
fn of_size(size: i64, places: &[Vec<FactorPlace>], arguments: &[i64]) -> Vec<Split> {
    let mut ways: Vec<Vec<FactorPlace>> = vec![vec![]];
    for candidates in places {
        let more: Vec<Vec<FactorPlace>> = ways
            .iter()
            .flat_map(|way| candidates.iter().map(move |place| way.iter().copied().chain([*place]).collect()))
            .collect();
        ways.extend(more);
    }
    let fitting = arguments.iter().enumerate().filter(|(_, value)| **value == size);
    let named: Vec<Option<usize>> = [None].into_iter().chain(fitting.map(|(at, _)| Some(at))).collect();
    let split = |inputs: &Vec<FactorPlace>, argument| Split { size, inputs: inputs.clone(), argument };
    ways.iter()
        .flat_map(|inputs| named.iter().map(|argument| split(inputs, *argument)))
        .filter(|split| !split.inputs.is_empty() || split.argument.is_some())
        .collect()
}

fn divisors(number: i64) -> impl Iterator<Item = i64> {
    (1..=number).filter(move |d| number % d == 0)
}
