//! Attention: keys in a tail are seen by no query outside of it.

use diag::Result;
use graph::{Arg, OpId};

use crate::Proof;
use crate::content::Content;
use crate::state::{Filled, MOST, Tail};

const FIX: &str = "give the model its attention mask, 0 where it is filled, or set `is_causal`";

pub(super) fn attention(proof: &Proof<'_>, id: OpId) -> Option<Result<Vec<Filled>>> {
    let op = proof.long.op(id);
    let inputs = op.inputs();
    let operand = |at: usize| inputs.get(at).map(|id| (&proof.of[id.index()], proof.shape(*id)));
    if inputs.iter().all(|id| proof.of[id.index()].tails.is_empty()) {
        return None;
    }
    let (q, k, v) = (operand(0)?, operand(1)?, operand(2)?);
    let parts = AttentionParts {
        proof,
        id,
        causal: op.arg(5, "is_causal") == Some(&Arg::Bool(true)),
        mask: operand(3),
    };
    Some(proof.require_same_numbers(id).and_then(|()| parts.result(q, k, v)))
}

struct AttentionParts<'a> {
    proof: &'a Proof<'a>,
    id: OpId,
    causal: bool,
    mask: Option<(&'a Filled, &'a [i64])>,
}

type AttentionOperand<'a> = (&'a Filled, &'a [i64]);

impl AttentionParts<'_> {
    fn result(
        &self,
        q: AttentionOperand<'_>,
        k: AttentionOperand<'_>,
        v: AttentionOperand<'_>,
    ) -> Result<Vec<Filled>> {
        let keys = |it: AttentionOperand<'_>| {
            it.1.len().checked_sub(2).and_then(|dim| it.0.tail(dim).map(|(_, tail)| tail.clone()))
        };
        let (queries, of_keys, of_values) = (keys(q), keys(k), keys(v));
        match (&of_keys, &of_values) {
            (Some(a), Some(b)) if !a.is_like(b) => return Err(self.proof.mixed_along(self.id, a)),
            (Some(tail), None) | (None, Some(tail)) => return Err(self.proof.mixed_along(self.id, tail)),
            (Some(tail), _) => self.require_unseen(tail, queries.as_ref())?,
            (None, None) => {}
        }
        let tails = self.kept(q, k, v)?;
        let all = [Some(q), Some(k), Some(v)].into_iter().flatten();
        let finite = all.flat_map(|it| &it.0.contents).all(|content| content.is_finite());
        let mask = self.mask.is_none_or(|mask| !mask.0.contents.contains(&Content::Wild));
        // A query that sees nothing gets zeros.
        let made = if finite && mask { Content::FINITE } else { Content::Wild };
        Ok(vec![Filled::build(tails, |_| made)])
    }

    fn require_unseen(&self, keys: &Tail, queries: Option<&Tail>) -> Result<()> {
        let refuse = |why: &str| Err(self.proof.mixed(self.id, keys.length, why, FIX));
        if !keys.is_plain() {
            return refuse("its keys are several rows in one dim");
        }
        if let Some((mask, shape)) = self.mask {
            let mask_tail = shape.len().checked_sub(1).and_then(|dim| mask.tail(dim));
            let Some((bit, _)) = mask_tail.filter(|(_, tail)| tail.is_like(keys)) else {
                return refuse("its mask is the same for keys that are filled in");
            };
            let content = mask.contents[1 << bit];
            let hides = content.is_low() || (content.is_zero() && self.is_bool());
            return if hides {
                Ok(())
            } else {
                refuse("its mask is not known to hide keys that are filled in")
            };
        }
        match queries {
            Some(queries) if self.causal && queries.is_like(keys) => Ok(()),
            _ if self.causal => refuse("its queries have another length than its keys"),
            _ => refuse("queries attend to what is filled in: it has no mask, and `is_causal` is not set"),
        }
    }

    fn is_bool(&self) -> bool {
        let mask = self.proof.long.op(self.id).inputs()[3];
        self.proof.long.tensor(mask).dtype == graph::Dtype::Bool
    }

    /// The tails of queries and of what is before them; those of the width are summed over.
    fn kept(
        &self,
        q: AttentionOperand<'_>,
        k: AttentionOperand<'_>,
        v: AttentionOperand<'_>,
    ) -> Result<Vec<Tail>> {
        let made = self.proof.long.op(self.id).outputs[0];
        let rank = made.map_or(0, |made| self.proof.shape(made).len());
        let mut tails: Vec<Tail> = vec![];
        let operands = [Some(q), Some(k), Some(v), self.mask].into_iter().flatten().enumerate();
        for (at, (filled, shape)) in operands {
            for tail in &filled.tails {
                let dim = tail.dim + rank - shape.len();
                // The last two dims of keys and values are no queries'; nor is the last one of a mask.
                let others = if at == 1 || at == 2 { 2 } else { usize::from(at == 3) };
                if dim + others >= rank {
                    continue;
                }
                let here = Tail { dim, ..tail.clone() };
                match tails.iter().find(|known| known.dim == dim) {
                    Some(known) if *known != here => return Err(self.proof.mixed_along(self.id, tail)),
                    Some(_) => {}
                    None => tails.push(here),
                }
            }
        }
        let wrong = |tail: &&Tail| tail.dim + 1 == rank;
        match tails.iter().find(wrong).or(tails.get(MOST)) {
            Some(tail) => Err(self.proof.mixed_along(self.id, tail)),
            None => Ok(tails),
        }
    }
}
