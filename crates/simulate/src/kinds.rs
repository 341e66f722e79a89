//! What the operators of a graph are, as clusters call what was measured.

use cluster::{COPIES, Sort, Way};
use graph::{Dtype, Graph, OpId};
use rules::families::family_of;

const OPTIMIZER: &str = "optimizer";

/// For each operator its own name and that of its family.
#[derive(Clone, Debug)]
pub struct Kinds(Vec<[String; 2]>);

impl Kinds {
    pub fn of(graph: &Graph) -> Self {
        Self(graph.ops.iter().map(|op| kind(&op.target)).collect())
    }

    /// What work of an operator is; of none it is a copy.
    pub fn sort(&self, op: Option<OpId>, dtype: Dtype, way: Way) -> Sort<'_> {
        let known = op.and_then(|op| self.0.get(op.index()));
        let kinds = known.map_or([COPIES, COPIES], |[own, family]| [own, family]);
        Sort { kinds, dtype, way }
    }
}

/// That of an optimizer's step.
pub(crate) fn step() -> Sort<'static> {
    Sort { kinds: [OPTIMIZER, OPTIMIZER], dtype: Dtype::F32, way: Way::Forward }
}

/// Without the overload: `aten.gelu`, and `pointwise`.
fn kind(target: &str) -> [String; 2] {
    let own = target.rsplit_once('.').map_or(target, |(own, _)| own);
    let family = family_of(target).map_or("", |family| family.name);
    [own.to_owned(), family.to_owned()]
}
