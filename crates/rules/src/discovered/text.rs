//! The rule of all splits that hold.

use super::{Discovery, Gap, SplitSide, SplitTerm};
use crate::algebra::{Dim, DimId, Kind, Operand, Passes, Rule, Through};

/// A rule, and what its text does not tell.
pub struct Proposed {
    pub rule: Rule,
    /// Of each split that holds.
    pub names: Vec<String>,
    /// The sizes that are arguments.
    pub told: Vec<(String, i64)>,
    /// Those that neither tensors nor arguments tell.
    pub given: Vec<(String, i64)>,
}

impl Discovery {
    /// Gaps of one class, of the inputs or of the outputs, are one dim.
    pub fn propose(&self, of_inputs: &[usize], of_outputs: &[usize], linear: &[Vec<usize>]) -> Proposed {
        let mut writing = Writing { discovery: self, dims: vec![], known: vec![] };
        let (inputs, outputs) = self.gaps();
        let inputs = writing.side(SplitSide::Inputs, &self.inputs, &inputs, of_inputs);
        let outputs = writing.side(SplitSide::Outputs, &self.outputs, &outputs, of_outputs);
        let names: Vec<String> =
            (0..self.held.len()).map(|id| writing.name_of(RuleKey::ValidSplit(id))).collect();
        let passes = |operands: &Vec<usize>| Passes { through: Through::Linear, operands: operands.clone() };
        let rule = Rule { dims: writing.dims, inputs, outputs, passes: linear.iter().map(passes).collect() };
        let named = self.held.iter().zip(&names).filter(|(held, _)| held.split.argument.is_some());
        let argument_sizes: Vec<_> = named.map(|(held, name)| (name.clone(), held.split.size)).collect();
        Proposed { given: rule.untold(&argument_sizes), rule, names, told: argument_sizes }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RuleKey {
    ValidSplit(usize),
    Whole(usize),
}

struct Writing<'a> {
    discovery: &'a Discovery,
    dims: Vec<Dim>,
    /// What each dim is.
    known: Vec<RuleKey>,
}

impl Writing<'_> {
    fn side(
        &mut self,
        side: SplitSide,
        shapes: &[Vec<i64>],
        gaps: &[Gap],
        classes: &[usize],
    ) -> Vec<Operand> {
        let class = |gap: Gap| {
            classes[gaps.iter().position(|candidate| *candidate == gap).expect("a gap of its own")]
        };
        let mut operands = vec![];
        for (operand, shape) in shapes.iter().enumerate() {
            let mut dims = vec![];
            for dim in 0..shape.len() {
                let terms = self.discovery.terms(side, operand, dim);
                dims.push(terms.into_iter().map(|term| self.dim(term, class)).collect());
            }
            let once = side == SplitSide::Inputs
                && self.discovery.held.iter().any(|held| held.once.contains(&operand));
            operands.push(Operand { dims, once, absent: false });
        }
        operands
    }

    fn dim(&mut self, term: SplitTerm, class: impl Fn(Gap) -> usize) -> DimId {
        let (key, size, kind) = match term {
            SplitTerm::ValidSplit(id) => {
                let held = &self.discovery.held[id];
                (RuleKey::ValidSplit(id), held.split.size, held.kind)
            }
            SplitTerm::Gap(gap) => (RuleKey::Whole(class(gap)), gap.1, Kind::Whole),
        };
        let at = self.known.iter().position(|known| *known == key).unwrap_or_else(|| {
            self.dims.push(Dim { name: letters(self.dims.len()), size, kind, contiguous: false });
            self.known.push(key);
            self.dims.len() - 1
        });
        DimId::new(at)
    }

    fn name_of(&self, key: RuleKey) -> String {
        let at = self.known.iter().position(|known| *known == key);
        at.map_or_else(String::new, |at| self.dims[at].name.clone())
    }
}

/// `a` to `z`, then `a1`.
fn letters(at: usize) -> String {
    let letter = char::from(b'a' + u8::try_from(at % 26).expect("a letter"));
    if at < 26 { letter.into() } else { format!("{letter}{}", at / 26) }
}
