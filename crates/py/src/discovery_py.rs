//! Rules that are found by trying.

use pyo3::prelude::*;
use rules::Rule;
use rules::discovered::{self, FactorPlace, Proposed, Split, ValidSplit, kind_of, places, splits};
use rules::families::registered::with_sizes;

use crate::guard::{Evidence, guarded, sound};

type Shapes = Vec<Vec<i64>>;
/// Which tensor, which of its dims, and how many elements of the dim lie outside of the factor.
type DimPlace = (usize, usize, i64);

/// A function's tensors, and the splits of them that are to be tried or are known to hold.
#[pyclass(module = "shardwright._core")]
pub(crate) struct Discovery {
    known: discovered::Discovery,
    left: std::vec::IntoIter<Split>,
    tried: Option<Split>,
    #[pyo3(get)]
    left_out: usize,
}

#[pymethods]
impl Discovery {
    /// `arguments` may be sizes. Of no size more than `most` splits are tried.
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "what comes from Python is owned")]
    fn new(inputs: Shapes, outputs: Shapes, arguments: Vec<i64>, most: usize) -> PyResult<Self> {
        sound(Evidence::none(), || {
            let (left, left_out) = splits(&inputs, &arguments, most);
            let known = discovered::Discovery { inputs, outputs, held: vec![] };
            Self { known, left: left.into_iter(), tried: None, left_out }
        })
    }

    /// The next split to try: its size, what of the inputs it cuts, and which argument is its size.
    fn next(&mut self) -> Option<(i64, Vec<DimPlace>, Option<usize>)> {
        self.tried = self.left.find(|split| self.known.is_open(split));
        self.tried.as_ref().map(|split| (split.size, split.inputs.iter().map(at).collect(), split.argument))
    }

    /// The one that was tried holds: its mark, where the outputs have it, the inputs that only one part is given.
    #[expect(clippy::needless_pass_by_value, reason = "what comes from Python is owned")]
    fn hold(&mut self, mark: &str, outputs: Vec<DimPlace>, once: Vec<usize>) -> bool {
        let (Some(split), Some(kind)) = (self.tried.take(), kind_of(mark)) else { return false };
        let outputs =
            outputs.iter().map(|at| FactorPlace { operand: at.0, dim: at.1, outer: at.2 }).collect();
        self.known.hold(ValidSplit { split, kind, outputs, once })
    }

    /// One of those that hold does not.
    fn drop(&mut self, index: usize) {
        self.known.held.remove(index);
    }

    /// What none of them divides, with its size: of the inputs, and of the outputs.
    #[expect(clippy::type_complexity, reason = "plain data for Python")]
    fn gaps(&self) -> PyResult<(Vec<(DimPlace, i64)>, Vec<(DimPlace, i64)>)> {
        sound(Evidence::none(), || {
            let plain = |gaps: Vec<discovered::Gap>| gaps.iter().map(|gap| (at(&gap.0), gap.1)).collect();
            let (inputs, outputs) = self.known.gaps();
            (plain(inputs), plain(outputs))
        })
    }

    /// The text of all of them, the name of each, and the sizes that nothing tells. Gaps of one class are one dim.
    #[expect(clippy::type_complexity, reason = "plain data for Python")]
    #[expect(clippy::needless_pass_by_value, reason = "what comes from Python is owned")]
    fn propose(
        &self,
        classes: (Vec<usize>, Vec<usize>),
        linear: Vec<Vec<usize>>,
    ) -> PyResult<(String, Vec<String>, Vec<(String, i64)>)> {
        guarded(Evidence::none(), || {
            let Proposed { rule, names, told: argument_sizes, given } =
                self.known.propose(&classes.0, &classes.1, &linear);
            let text = rule.without_sizes();
            let inputs: Vec<&[i64]> = self.known.inputs.iter().map(Vec::as_slice).collect();
            let outputs: Vec<Option<&[i64]>> =
                self.known.outputs.iter().map(|shape| Some(shape.as_slice())).collect();
            let sizes: Vec<_> = argument_sizes.iter().chain(&given).cloned().collect();
            Rule::parse(&with_sizes(&text, &sizes), &inputs, &outputs)?;
            Ok((text, names, given))
        })
    }
}

fn at(place: &FactorPlace) -> DimPlace {
    (place.operand, place.dim, place.outer)
}

/// Where a tensor has a factor of this size: which dim, and how many elements lie outside.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what comes from Python is owned")]
pub(crate) fn places_of(shape: Vec<i64>, size: i64) -> PyResult<Vec<(usize, i64)>> {
    sound(Evidence::none(), || {
        let size = size.max(1);
        places(0, &shape, size).iter().map(|place| (place.dim, place.outer)).collect()
    })
}
