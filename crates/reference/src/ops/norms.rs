//! Norms: each row is centred and scaled by its own statistics.

use crate::number::Num;
use crate::ops::elements::{add, mul, rows, rsqrt, scaled, sub, sum, unrows};
use crate::ops::reductions::moments;
use crate::ops::{Made, OpCall, wrong};
use crate::tape::{ElementKind, T};

/// A normalised tensor, and the statistics of its rows.
struct Normed {
    x: T,
    means: Vec<u32>,
    vars: Vec<u32>,
    scales: Vec<u32>,
    kept: Vec<usize>,
}

impl OpCall<'_, '_> {
    pub(super) fn norm(&mut self) -> Made<Option<Vec<T>>> {
        match self.name {
            "layer_norm" | "native_layer_norm" => self.layer().map(Some),
            "rms_norm" => self.root_mean_square().map(Some),
            "group_norm" => self.groups(1, 2, 3, 4).map(Some),
            "native_group_norm" => self.groups(6, 1, 2, 7).map(Some),
            "batch_norm"
            | "_native_batch_norm_legit_functional"
            | "_native_batch_norm_legit"
            | "native_batch_norm"
            | "_native_batch_norm_legit_no_training" => self.batches(),
            _ => Ok(None),
        }
    }

    fn layer(&mut self) -> Made<Vec<T>> {
        let x = self.tensor(0, "input")?;
        let inner = self.sizes(1, "normalized_shape")?.len();
        let Some(kept) = x.rank().checked_sub(inner) else {
            return wrong("a norm over more dims than there are");
        };
        let eps = self.number(4, "eps").unwrap_or(Num::float(1e-5));
        let normed = self.normed(&x, &(kept..x.rank()).collect::<Vec<_>>(), eps);
        let output = self.weighted(&normed.x, 2, 3, kept)?;
        Ok(self.with_statistics(output, &normed, &normed.kept))
    }

    fn with_statistics(&self, output: T, normed: &Normed, shape: &[usize]) -> Vec<T> {
        if !self.name.starts_with("native") {
            return vec![output];
        }
        let [means, scales] =
            [&normed.means, &normed.scales].map(|at| T::new(ElementKind::Float, shape.to_vec(), at.clone()));
        vec![output, means, scales]
    }

    fn normed(&mut self, x: &T, dims: &[usize], eps: Num) -> Normed {
        let grouped = rows(x, dims);
        let eps = self.tape.constant(eps);
        let (mut means, mut vars, mut scales, mut made) = (vec![], vec![], vec![], vec![]);
        for row in &grouped.rows {
            let (centre, squares) = moments(self.tape, row);
            let total = sum(self.tape, &squares);
            let var = scaled(self.tape, total, Num::count(row.len()).inverse());
            let safe = add(self.tape, var, eps);
            let scale = rsqrt(self.tape, safe);
            let each = row.iter().map(|at| {
                let far = sub(self.tape, *at, centre);
                mul(self.tape, far, scale)
            });
            made.push(each.collect::<Vec<u32>>());
            means.push(centre);
            vars.push(var);
            scales.push(scale);
        }
        let x = unrows(&x.shape, dims, &made, x.kind);
        Normed { x, means, vars, scales, kept: grouped.kept }
    }

    /// Times the weight, plus the bias: both have the dims from one on.
    fn weighted(&mut self, x: &T, weight: usize, bias: usize, from: usize) -> Made<T> {
        let (weight, bias) = (self.maybe(weight, "weight"), self.maybe(bias, "bias"));
        let inner: usize = x.shape[from..].iter().product();
        if [&weight, &bias].iter().any(|it| it.as_ref().is_some_and(|it| it.numel() != inner)) {
            return wrong(format!("{}: a weight that does not fit", self.target));
        }
        let mut at = vec![];
        for (place, one) in x.at.iter().enumerate() {
            let mut node = *one;
            if let Some(weight) = &weight {
                node = mul(self.tape, node, weight.at[place % inner]);
            }
            if let Some(bias) = &bias {
                node = add(self.tape, node, bias.at[place % inner]);
            }
            at.push(node);
        }
        Ok(T::new(x.kind, x.shape.clone(), at))
    }

    fn root_mean_square(&mut self) -> Made<Vec<T>> {
        let x = self.tensor(0, "input")?;
        let inner = self.sizes(1, "normalized_shape")?.len();
        let Some(kept) = x.rank().checked_sub(inner) else {
            return wrong("a norm over more dims than there are");
        };
        let eps = self.number(3, "eps").unwrap_or(Num::float(f64::EPSILON));
        let eps = self.tape.constant(eps);
        let dims: Vec<usize> = (kept..x.rank()).collect();
        let grouped = rows(&x, &dims);
        let mut made = vec![];
        for row in &grouped.rows {
            let squares: Vec<u32> = row.iter().map(|at| mul(self.tape, *at, *at)).collect();
            let total = sum(self.tape, &squares);
            let mean = scaled(self.tape, total, Num::count(row.len()).inverse());
            let safe = add(self.tape, mean, eps);
            let scale = rsqrt(self.tape, safe);
            made.push(row.iter().map(|at| mul(self.tape, *at, scale)).collect::<Vec<u32>>());
        }
        let x = unrows(&x.shape, &dims, &made, x.kind);
        Ok(vec![self.weighted(&x, 2, 9, kept)?])
    }

    fn groups(&mut self, groups: usize, weight: usize, bias: usize, eps: usize) -> Made<Vec<T>> {
        let x = self.tensor(0, "input")?;
        let count = self.int(groups, "num_groups", 1).max(1) as usize;
        if x.rank() < 2 || x.shape[1] % count != 0 {
            return wrong(format!("{}: {:?} in {count} groups", self.target, x.shape));
        }
        let eps = self.number(eps, "eps").unwrap_or(Num::float(1e-5));
        let batch = x.shape[0];
        let flat = T { shape: vec![batch, count, x.numel() / (batch * count).max(1)], ..x.clone() };
        let normed = self.normed(&flat, &[2], eps);
        let back = T { shape: x.shape, ..normed.x.clone() };
        let output =
            self.by_channel(&back, self.maybe(weight, "weight").as_ref(), self.maybe(bias, "bias").as_ref())?;
        Ok(self.with_statistics(output, &normed, &[batch, count]))
    }

    fn by_channel(&mut self, x: &T, weight: Option<&T>, bias: Option<&T>) -> Made<T> {
        let (channels, inner) = (x.shape[1], x.shape[2..].iter().product::<usize>());
        if [weight, bias].iter().flatten().any(|it| it.numel() != channels) {
            return wrong(format!("{}: a weight that does not fit", self.target));
        }
        let mut at = vec![];
        for (place, one) in x.at.iter().enumerate() {
            let channel = place / inner.max(1) % channels;
            let mut node = *one;
            if let Some(weight) = weight {
                node = mul(self.tape, node, weight.at[channel]);
            }
            if let Some(bias) = bias {
                node = add(self.tape, node, bias.at[channel]);
            }
            at.push(node);
        }
        Ok(T::new(x.kind, x.shape.clone(), at))
    }

    fn batches(&mut self) -> Made<Option<Vec<T>>> {
        let x = self.tensor(0, "input")?;
        let without = self.target == "aten._native_batch_norm_legit.no_stats";
        let evaluates = self.name == "_native_batch_norm_legit_no_training";
        let flag_at = if without { 3 } else { 5 };
        let numbers = if evaluates { 5 } else { flag_at + 1 };
        let trains = !evaluates && self.flag(flag_at, "training", false);
        let eps = self.number(numbers + 1, "eps").unwrap_or(Num::float(1e-5));
        let running = |at, name| if without { None } else { self.maybe(at, name) };
        let old = (running(3, "running_mean"), running(4, "running_var"));
        let (weight, bias) = (self.maybe(1, "weight"), self.maybe(2, "bias"));
        let momentum = self.number(numbers, "momentum").unwrap_or(Num::float(0.1));
        if x.rank() < 2 {
            return wrong("a batch norm of no batch");
        }
        let dims: Vec<usize> = (0..x.rank()).filter(|dim| *dim != 1).collect();
        let channels = x.shape[1];
        let per_channel = |at: Vec<u32>| T::new(ElementKind::Float, vec![channels], at);
        if trains {
            let normed = self.normed(&x, &dims, eps);
            let output = self.by_channel(&normed.x, weight.as_ref(), bias.as_ref())?;
            let count = (x.numel() / channels.max(1)) as f64;
            let unbiased = Num::float(count / (count - 1.0).max(1.0));
            let mut made =
                vec![output, per_channel(normed.means.clone()), per_channel(normed.scales.clone())];
            for (old, new, factor) in [(old.0, &normed.means, Num::ONE), (old.1, &normed.vars, unbiased)] {
                let Some(old) = old else { continue };
                let moved = old.at.iter().zip(new).map(|(old, new)| {
                    let (before, now) = (self.tape.value(*old), self.tape.value(*new).times(factor));
                    self.tape.constant(before.plus(momentum.times(now.minus(before))))
                });
                made.push(per_channel(moved.collect()));
            }
            return Ok(Some(made));
        }
        let (Some(mean), Some(var)) = old else { return Ok(None) };
        let (grouped, eps) = (rows(&x, &dims), self.tape.constant(eps));
        let mut made = vec![];
        for (channel, row) in grouped.rows.iter().enumerate() {
            let safe = add(self.tape, var.at[channel], eps);
            let scale = rsqrt(self.tape, safe);
            let each = row.iter().map(|at| {
                let far = sub(self.tape, *at, mean.at[channel]);
                mul(self.tape, far, scale)
            });
            made.push(each.collect::<Vec<u32>>());
        }
        let normed = unrows(&x.shape, &dims, &made, x.kind);
        let output = self.by_channel(&normed, weight.as_ref(), bias.as_ref())?;
        let empty = || T::new(ElementKind::Float, vec![0], vec![]);
        Ok(Some(vec![output, empty(), empty(), mean, var]))
    }
}
