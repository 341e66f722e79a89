//! Attention, written out: products, a mask, a softmax, products.

use crate::number::Num;
use crate::ops::elements::{add, broadcast, dot, expand, scaled, softmax};
use crate::ops::{Made, OpCall, wrong};
use crate::tape::{ElementKind, T};

/// What attention is asked for besides its operands.
pub(super) struct AttentionOptions {
    pub mask: Option<T>,
    /// The place of the first query, where none sees what comes later.
    pub causal_from: Option<i64>,
    pub scale: Option<Num>,
    pub grouped: bool,
    /// What each probability is multiplied with, row by row.
    pub kept: Option<Vec<Vec<Num>>>,
}

impl OpCall<'_, '_> {
    pub(super) fn attention(&mut self) -> Made<Option<Vec<T>>> {
        if self.name != "scaled_dot_product_attention" {
            return Ok(None);
        }
        let [q, k, v] = [self.tensor(0, "query")?, self.tensor(1, "key")?, self.tensor(2, "value")?];
        let p = self.number(4, "dropout_p").unwrap_or(Num::ZERO);
        let kept = match self.env.op {
            _ if p == Num::ZERO => None,
            Some(op) => Some(self.kept_pairs(op, 0, p, &q, &k, &v)?),
            None => return wrong("attention with dropout that draws for nobody"),
        };
        let asked = AttentionOptions {
            mask: self.maybe(3, "attn_mask"),
            causal_from: self.flag(5, "is_causal", false).then_some(0),
            scale: self.number(6, "scale"),
            grouped: self.flag(7, "enable_gqa", false),
            kept,
        };
        Ok(Some(vec![self.attend(&q, &k, &v, &asked)?]))
    }

    pub(super) fn attend(&mut self, q: &T, k: &T, v: &T, asked: &AttentionOptions) -> Made<T> {
        let target = self.target;
        let least = |x: &T| x.rank() >= 2;
        if ![q, k, v].into_iter().all(least) {
            return wrong(format!("{target}: no matrices"));
        }
        let repeats = asked.grouped && q.rank() > 2;
        let heads = |x: &T| if repeats { grouped(q, x) } else { Ok(x.clone()) };
        let (k, v) = (heads(k)?, heads(v)?);
        let [queries, width] = last(q);
        let [keys, other] = last(&k);
        let [values, made] = last(&v);
        if width != other || keys != values {
            return wrong(format!("{target}: {:?}, {:?}, {:?}", q.shape, k.shape, v.shape));
        }
        let batch =
            broadcast(&[&q.shape[..q.rank() - 2], &k.shape[..k.rank() - 2], &v.shape[..v.rank() - 2]])?;
        let count: usize = batch.iter().product();
        self.room(2 * count * queries * keys * (width + made))?;
        let all = |x: &T, size: [usize; 2]| expand(x, &[&batch[..], &size].concat());
        let (q, k, v) = (all(q, [queries, width])?, all(&k, [keys, width])?, all(&v, [keys, made])?);
        let mask = asked.mask.as_ref().map(|mask| all(mask, [queries, keys])).transpose()?;
        let scale = asked.scale.unwrap_or_else(|| Num::float((width as f64).powf(-0.5)));
        let mut at = Vec::with_capacity(count * queries * made);
        for one in 0..count {
            for query in 0..queries {
                let row = one * queries + query;
                let mut scores = vec![];
                for key in 0..keys {
                    let pair = |i: usize| (q.at[row * width + i], k.at[(one * keys + key) * width + i]);
                    let score = dot(self.tape, &(0..width).map(pair).collect::<Vec<_>>(), None);
                    let score = scaled(self.tape, score, scale);
                    let hidden = asked.causal_from.is_some_and(|from| key as i64 > query as i64 + from);
                    scores.push(self.masked(
                        score,
                        hidden,
                        mask.as_ref().map(|mask| (mask.kind, mask.at[row * keys + key])),
                    ));
                }
                let mut weights = softmax(self.tape, &scores, true)?;
                if let Some(kept) = &asked.kept {
                    let each = weights.iter().zip(&kept[row]).map(|(at, by)| scaled(self.tape, *at, *by));
                    weights = each.collect();
                }
                for place in 0..made {
                    let pair = |key: usize| (weights[key], v.at[(one * keys + key) * made + place]);
                    at.push(dot(self.tape, &(0..keys).map(pair).collect::<Vec<_>>(), None));
                }
            }
        }
        Ok(T::new(ElementKind::Float, [&batch[..], &[queries, made]].concat(), at))
    }

    fn masked(&mut self, score: u32, hidden: bool, mask: Option<(ElementKind, u32)>) -> u32 {
        match mask {
            _ if hidden => self.tape.constant(Num::NEG_INF),
            Some((ElementKind::Float, by)) => add(self.tape, score, by),
            Some((_, by)) => match self.tape.value(by) {
                Num::ZERO => self.tape.constant(Num::NEG_INF),
                _ => score,
            },
            None => score,
        }
    }

    /// The factors of dropout on probabilities, drawn by the place in the output and the key.
    pub(super) fn kept_pairs(
        &mut self,
        op: u32,
        slot: i64,
        p: Num,
        q: &T,
        k: &T,
        v: &T,
    ) -> Made<Vec<Vec<Num>>> {
        let Some(drawn) = self.env.draws.positions(op, slot) else {
            return wrong(format!("{}: draws for nobody", self.target));
        };
        let ([_, made], [keys, _]) = (last(v), last(k));
        let (local, whole) = (made.max(1), drawn.width.max(1));
        let rows = q.numel() / last(q)[1].max(1);
        if drawn.at.len() != rows * local {
            return wrong(format!("{}: draws for another region", self.target));
        }
        let factor = Num::ONE.minus(p).inverse();
        let row = |row: usize| {
            let place = (drawn.at[row * local] / whole) as u64;
            let keep = |key: usize| self.env.drawn(op, &[place, key as u64]) & 1;
            (0..keys).map(|key| if keep(key) == 1 { factor } else { Num::ZERO }).collect()
        };
        Ok((0..rows).map(row).collect())
    }
}

fn last(x: &T) -> [usize; 2] {
    [x.shape[x.rank() - 2], x.shape[x.rank() - 1]]
}

/// Each head as often as there are heads of queries for it.
fn grouped(q: &T, x: &T) -> Made<T> {
    if x.rank() < 3 || x.shape[x.rank() - 3] == 0 || q.shape[q.rank() - 3] % x.shape[x.rank() - 3] != 0 {
        return wrong("heads that do not fit");
    }
    let dim = x.rank() - 3;
    let times = q.shape[q.rank() - 3] / x.shape[dim];
    let mut shape = x.shape.clone();
    shape[dim] *= times;
    Ok(super::movement::along(x, shape, dim, |at| at / times))
}
