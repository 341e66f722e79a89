//! The runtime's own operators, as `docs/reference/runtime-operators.md` says them.

use crate::number::Num;
use crate::ops::attention::AttentionOptions;
use crate::ops::elements::{indices, linear, rows, scaled, sum};
use crate::ops::{Made, OpCall, wrong};
use crate::tape::{ElementKind, T};

impl OpCall<'_, '_> {
    pub(super) fn runtime(&mut self) -> Made<Option<Vec<T>>> {
        let made = match self.target {
            "sw.mean" => self.mean_of_part()?,
            "sw.embedding_shard" => {
                let (weight, numbers) = (self.tensor(0, "weight")?, self.tensor(1, "indices")?);
                if weight.rank() != 2 {
                    return wrong("an embedding without rows");
                }
                let (start, total) = (self.int(2, "start", 0), self.int(4, "total", 0).max(1) as usize);
                self.looked_up(&weight, &numbers, start, total, self.int(3, "padding_idx", -1))?
            }
            "sw.pick" => self.picked_of_part()?,
            "sw.dropout" | "sw.native_dropout" => {
                let (x, p) = (self.tensor(0, "x")?, self.number(1, "p").unwrap_or(Num::ZERO));
                let op = u32::try_from(self.int(2, "operator", -1)).unwrap_or(u32::MAX);
                let mut made = self.dropped(&x, p, op, self.int(3, "slot", 0))?;
                made.truncate(if self.target == "sw.dropout" { 1 } else { 2 });
                return Ok(Some(made));
            }
            "sw.draw" => {
                let (kind, size) =
                    (self.text(0, "kind").unwrap_or_default().to_owned(), self.sizes(1, "size")?);
                let (p, made) = (self.number(2, "p").unwrap_or(Num::ZERO), self.kind_of(3, "dtype"));
                let op = u32::try_from(self.int(4, "operator", -1)).unwrap_or(u32::MAX);
                if kind == "integers" {
                    return Ok(None);
                }
                self.draw(&kind, &size, p, made.unwrap_or(ElementKind::Float), op, self.int(5, "slot", 0))?
            }
            "sw.causal_attention" => {
                let [q, k, v] = [self.tensor(0, "q")?, self.tensor(1, "k")?, self.tensor(2, "v")?];
                let asked = AttentionOptions {
                    mask: None,
                    causal_from: Some(self.int(5, "start", 0)),
                    scale: self.number(3, "scale"),
                    grouped: self.flag(4, "enable_gqa", false),
                    kept: None,
                };
                self.attend(&q, &k, &v, &asked)?
            }
            "sw.attention" => {
                let [q, k, v] = [self.tensor(0, "q")?, self.tensor(1, "k")?, self.tensor(2, "v")?];
                let p = self.number(4, "dropout_p").unwrap_or(Num::ZERO);
                let op = u32::try_from(self.int(9, "operator", -1)).unwrap_or(u32::MAX);
                let kept = self.kept_pairs(op, self.int(10, "slot", 0), p, &q, &k, &v)?;
                let asked = AttentionOptions {
                    mask: self.maybe(3, "mask"),
                    causal_from: self.flag(5, "is_causal", false).then(|| self.int(8, "start", 0)),
                    scale: self.number(6, "scale"),
                    grouped: self.flag(7, "enable_gqa", false),
                    kept: Some(kept),
                };
                self.attend(&q, &k, &v, &asked)?
            }
            _ => return Ok(None),
        };
        Ok(Some(vec![made]))
    }

    fn mean_of_part(&mut self) -> Made<T> {
        let (x, count) = (self.tensor(0, "x")?, self.number(3, "count").unwrap_or(Num::ZERO));
        let dims = self.dims(1, "dims", x.rank())?;
        let grouped = rows(&x, &dims);
        let each = grouped.rows.iter().map(|row| {
            let total = sum(self.tape, row);
            scaled(self.tape, total, count.inverse())
        });
        let at = each.collect();
        Ok(T::new(ElementKind::Float, grouped.shape_of(self.flag(2, "keepdim", false)), at))
    }

    fn picked_of_part(&mut self) -> Made<T> {
        let (x, targets) = (self.tensor(0, "x")?, self.tensor(1, "targets")?);
        let dim = self.dim(self.int(2, "dim", 0), x.rank())?;
        let (start, ignored, total) =
            (self.int(3, "start", 0), self.int(4, "ignore_index", -100), self.int(5, "total", 1));
        let mut shape = x.shape.clone();
        if x.rank() == 0 {
            return wrong("columns of a number");
        }
        let columns = shape.remove(dim) as i64;
        if shape != targets.shape {
            return wrong(format!("sw.pick: {:?} by {:?}", x.shape, targets.shape));
        }
        let mut at = vec![];
        for (mut index, target) in indices(&shape).zip(targets.at.iter()) {
            let target = self.tape.value(*target);
            let column = target.index(total.max(1) as usize) as i64 - start;
            if target == Num::int(ignored) || !(0..columns).contains(&column) {
                at.push(self.tape.constant(Num::ZERO));
            } else {
                index.insert(dim, column as usize);
                at.push(x.at[linear(&index, &x.shape)]);
            }
        }
        Ok(T::new(x.kind, shape, at))
    }
}
