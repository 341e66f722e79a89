//! What the operators of a graph are, as clusters call what was measured.

use cluster::{COPIES, Direction, Sort};
use graph::{Dtype, Graph, OpId};
use rules::families::family_of;

use crate::fused;

/// For each operator its own name and that of its family.
#[derive(Clone, Debug)]
pub struct Kinds {
    names: Vec<[String; 2]>,
    /// What of the bytes of each operator still moves, where a compiler makes one kernel of several.
    moved: Option<Vec<f64>>,
}

impl Kinds {
    /// Each operator is a kernel of its own.
    pub fn new(graph: &Graph) -> Self {
        Self { names: graph.ops.iter().map(|op| kind(&op.target)).collect(), moved: None }
    }

    /// PyTorch compiles local code: operators that move bytes are joined.
    pub fn compiled(graph: &Graph) -> Self {
        let plain = Self::new(graph);
        let families: Vec<&str> = plain.names.iter().map(|[_, family]| &family[..]).collect();
        Self { moved: Some(fused::moved(graph, &families)), ..plain }
    }

    /// What work of an operator is; of none it is a copy.
    pub fn sort(&self, op: Option<OpId>, dtype: Dtype, direction: Direction) -> Sort<'_> {
        let known = op.and_then(|op| self.names.get(op.index()));
        let kinds = known.map_or([COPIES, COPIES], |[operator, family]| [operator, family]);
        Sort { kinds, dtype, direction }
    }

    /// What of an operator's bytes moves.
    pub(crate) fn moved(&self, op: Option<OpId>) -> f64 {
        let known = |op: OpId| self.moved.as_ref()?.get(op.index()).copied();
        op.and_then(known).unwrap_or(1.0)
    }
}

/// Without the overload: `aten.gelu`, and `pointwise`.
fn kind(target: &str) -> [String; 2] {
    let operator = target.rsplit_once('.').map_or(target, |(name, _)| name);
    let family = family_of(target).map_or("", |family| family.name);
    [operator.to_owned(), family.to_owned()]
}
