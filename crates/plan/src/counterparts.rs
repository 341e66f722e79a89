//! What another graph has of each operator of a plan's, and what the plan says, said of these.

use graph::OpId;

use crate::recompute;

/// The operators of the other graph by the operator of this one that each is made of.
pub(crate) struct Counterparts(Vec<Vec<OpId>>);

impl Counterparts {
    /// Of the other graph's operators in turn what each is made of, if it is.
    pub(crate) fn new(num_ops: usize, origins: impl Iterator<Item = Option<OpId>>) -> Self {
        let mut pieces = vec![vec![]; num_ops];
        for (op, origin) in origins.enumerate() {
            origin.into_iter().for_each(|origin| pieces[origin.index()].push(OpId::new(op)));
        }
        Self(pieces)
    }

    pub(crate) fn spans(&self, spans: &[Vec<OpId>]) -> Vec<Vec<OpId>> {
        let of_span = |span: &Vec<OpId>| span.iter().flat_map(|op| &self.0[op.index()]).copied().collect();
        recompute::sorted(spans.iter().map(of_span).collect())
    }

    pub(crate) fn order(&self, order: &[(OpId, OpId)]) -> Vec<(OpId, OpId)> {
        let of_pair = |(a, b): &(OpId, OpId)| {
            let [a, b] = [a, b].map(|op| &self.0[op.index()]);
            a.iter().flat_map(|a| b.iter().map(|b| (*a, *b))).collect::<Vec<_>>()
        };
        order.iter().flat_map(of_pair).collect()
    }
}
