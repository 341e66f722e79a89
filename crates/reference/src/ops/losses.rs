//! Losses: of classes exactly, of pairs of numbers by a table where they are no squares.

use crate::number::{Num, hash, hash_text};
use crate::ops::elements::{add, dot, each, exp, extreme, log, mul, rows, scaled, sub, sum};
use crate::ops::pointwise::opaque_of;
use crate::ops::{Made, OpCall, wrong};
use crate::tape::{ElementKind, T, Tape};

const NONE: i64 = 0;
const MEAN: i64 = 1;

impl OpCall<'_, '_> {
    pub(super) fn loss(&mut self) -> Made<Option<Vec<T>>> {
        match self.name {
            "cross_entropy_loss" => self.classes(true),
            "nll_loss" | "nll_loss_nd" | "nll_loss2d" | "nll_loss_forward" | "nll_loss2d_forward" => {
                self.classes(false)
            }
            "mse_loss" => self.of_pairs(2, |tape, x, y, _| {
                let far = sub(tape, x, y);
                mul(tape, far, far)
            }),
            "l1_loss" | "smooth_l1_loss" | "huber_loss" | "kl_div" | "soft_margin_loss" => {
                self.of_pairs(2, pair_table)
            }
            "binary_cross_entropy" if self.maybe(2, "weight").is_none() => self.of_pairs(3, pair_table),
            "binary_cross_entropy_with_logits"
                if self.maybe(2, "weight").is_none() && self.maybe(3, "pos_weight").is_none() =>
            {
                self.of_pairs(4, pair_table)
            }
            _ => Ok(None),
        }
    }

    fn of_pairs(&mut self, at: usize, f: impl Fn(&mut Tape, u32, u32, u64) -> u32) -> Made<Option<Vec<T>>> {
        let reduction = self.int(at, "reduction", MEAN);
        let mut rest: Vec<u64> = vec![hash_text(self.name)];
        for name in ["beta", "delta", "log_target"] {
            rest.push(self.number(at + 1, name).map_or(0, Num::bits));
        }
        let which = hash(&rest);
        let (x, y) = (self.tensor(0, "self")?, self.tensor(1, "target")?);
        let all = each(self.tape, &[x, y], ElementKind::Float, |tape, at| f(tape, at[0], at[1], which))?;
        if reduction == NONE {
            return Ok(Some(vec![all]));
        }
        let total = sum(self.tape, &all.at);
        let by = if reduction == MEAN { Num::count(all.numel()).inverse() } else { Num::ONE };
        let made = scaled(self.tape, total, by);
        Ok(Some(vec![T::new(ElementKind::Float, vec![], vec![made])]))
    }

    fn classes(&mut self, takes_logits: bool) -> Made<Option<Vec<T>>> {
        let (x, target) = (self.tensor(0, "self")?, self.tensor(1, "target")?);
        let (reduction, ignored) = (self.int(3, "reduction", MEAN), self.int(4, "ignore_index", -100));
        let smooth = self.number(5, "label_smoothing").unwrap_or(Num::ZERO);
        let weight = self.maybe(2, "weight");
        let dim = usize::from(x.rank() > 1);
        let grouped = rows(&x, &[dim]);
        if target.kind == ElementKind::Float {
            return self.of_probabilities(&x, &target, dim, reduction, smooth, weight.as_ref());
        }
        if smooth != Num::ZERO && weight.is_some() {
            return Ok(None);
        }
        if target.numel() != grouped.rows.len() {
            return wrong(format!("{}: {:?} with targets {:?}", self.target, x.shape, target.shape));
        }
        let (mut losses, mut counts) = (vec![], vec![]);
        for (row, target) in grouped.rows.iter().zip(target.at.iter()) {
            let target = self.tape.value(*target);
            if target == Num::int(ignored) {
                losses.push(self.tape.constant(Num::ZERO));
                counts.push(self.tape.constant(Num::ZERO));
                continue;
            }
            if target.is_special() {
                losses.push(self.tape.constant(target));
                counts.push(self.tape.constant(target));
                continue;
            }
            let class = target.index(row.len());
            let loss = if takes_logits {
                self.entropy(row, class, smooth)?
            } else {
                scaled(self.tape, row[class], Num::int(-1))
            };
            let count = match &weight {
                Some(weight) => weight.at[class % weight.numel().max(1)],
                None => self.tape.constant(Num::ONE),
            };
            losses.push(if weight.is_some() { mul(self.tape, loss, count) } else { loss });
            counts.push(count);
        }
        self.reduced(losses, &counts, reduction, &target.shape).map(Some)
    }

    fn entropy(&mut self, row: &[u32], class: usize, smooth: Num) -> Made<u32> {
        let tape = &mut *self.tape;
        let (shifted, log_sum) = shifted(tape, row)?;
        let loss = sub(tape, log_sum, shifted[class]);
        if smooth == Num::ZERO {
            return Ok(loss);
        }
        let all: Vec<u32> = shifted.iter().map(|at| sub(tape, log_sum, *at)).collect();
        let spread = sum(tape, &all);
        let spread = scaled(tape, spread, smooth.over(Num::count(row.len())));
        let weighted = scaled(tape, loss, Num::ONE.minus(smooth));
        Ok(add(tape, weighted, spread))
    }

    fn of_probabilities(
        &mut self,
        x: &T,
        target: &T,
        dim: usize,
        reduction: i64,
        smooth: Num,
        weight: Option<&T>,
    ) -> Made<Option<Vec<T>>> {
        if smooth != Num::ZERO || weight.is_some() || target.shape != x.shape {
            return Ok(None);
        }
        let (given, wanted) = (rows(x, &[dim]), rows(target, &[dim]));
        let mut losses = vec![];
        for (row, wanted) in given.rows.iter().zip(&wanted.rows) {
            let (shifted, log_sum) = shifted(self.tape, row)?;
            let logs: Vec<u32> = shifted.iter().map(|at| sub(self.tape, log_sum, *at)).collect();
            let pairs: Vec<(u32, u32)> = logs.into_iter().zip(wanted.iter().copied()).collect();
            losses.push(dot(self.tape, &pairs, None));
        }
        let ones: Vec<u32> = losses.iter().map(|_| self.tape.constant(Num::ONE)).collect();
        self.reduced(losses, &ones, reduction, &given.shape).map(Some)
    }

    fn reduced(&mut self, losses: Vec<u32>, counts: &[u32], reduction: i64, shape: &[usize]) -> Made<Vec<T>> {
        let count = sum(self.tape, counts);
        let total_weight = T::new(ElementKind::Float, vec![], vec![count]);
        if reduction == NONE {
            return Ok(vec![T::new(ElementKind::Float, shape.to_vec(), losses), total_weight]);
        }
        let mut loss = sum(self.tape, &losses);
        if reduction == MEAN {
            loss = super::elements::div(self.tape, loss, count);
        }
        Ok(vec![T::new(ElementKind::Float, vec![], vec![loss]), total_weight])
    }
}

/// A row without its greatest, and the logarithm of the sum of its exponentials.
fn shifted(tape: &mut Tape, row: &[u32]) -> Made<(Vec<u32>, u32)> {
    let (most, _) = extreme(tape, row, true)?;
    let value = tape.value(most);
    let most = tape.constant(value);
    let shifted: Vec<u32> = row.iter().map(|at| sub(tape, *at, most)).collect();
    let exps: Vec<u32> = shifted.iter().map(|at| exp(tape, *at)).collect();
    let total = sum(tape, &exps);
    Ok((shifted, log(tape, total)))
}

fn pair_table(tape: &mut Tape, x: u32, y: u32, which: u64) -> u32 {
    let given = [tape.value(x), tape.value(y)];
    let [value, by_x, by_y] = [0, 1, 2].map(|part| opaque_of(&given, &[which, part]));
    tape.node(value, [(x, by_x), (y, by_y)])
}
