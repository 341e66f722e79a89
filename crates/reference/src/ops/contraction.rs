//! Sums of products: matrices, convolutions, and the like.

use crate::ops::elements::{add, broadcast, dot, each, expand, indices, linear, scaled};
use crate::ops::movement::permuted;
use crate::ops::{Made, OpArg, OpCall, wrong};
use crate::tape::{ElementKind, T};

impl OpCall<'_, '_> {
    pub(super) fn contraction(&mut self) -> Made<Option<Vec<T>>> {
        let output = match self.name {
            "linear" => self.linear_map()?,
            "mm" | "bmm" | "matmul" | "mv" | "dot" => {
                let (a, b) = (self.tensor(0, "self")?, self.tensor(1, "mat2")?);
                self.product(&a, &b)?
            }
            "addmm" | "baddbmm" | "addmv" => self.added_to()?,
            "outer" => {
                let (a, b) = (self.tensor(0, "self")?, self.tensor(1, "vec2")?);
                let (a, b) = (T { shape: vec![a.numel(), 1], ..a }, T { shape: vec![1, b.numel()], ..b });
                self.product(&a, &b)?
            }
            "einsum" => return self.by_letters(),
            "conv1d" | "conv2d" | "conv3d" | "convolution" => return self.convolved(),
            _ => return Ok(None),
        };
        Ok(Some(vec![output]))
    }

    fn linear_map(&mut self) -> Made<T> {
        let (x, weight) = (self.tensor(0, "input")?, self.tensor(1, "weight")?);
        let order: Vec<usize> = (0..weight.rank()).rev().collect();
        let product = self.product(&x, &permuted(&weight, &order))?;
        match self.maybe(2, "bias") {
            Some(bias) => {
                each(self.tape, &[product, bias], ElementKind::Float, |tape, at| add(tape, at[0], at[1]))
            }
            None => Ok(product),
        }
    }

    fn added_to(&mut self) -> Made<T> {
        let (x, a, b) = (self.tensor(0, "self")?, self.tensor(1, "mat1")?, self.tensor(2, "mat2")?);
        let one = crate::number::Num::ONE;
        let (beta, alpha) = (self.number(9, "beta").unwrap_or(one), self.number(9, "alpha").unwrap_or(one));
        let product = self.product(&a, &b)?;
        let x = expand(&x, &product.shape)?;
        each(self.tape, &[x, product], ElementKind::Float, |tape, at| {
            let (x, y) = (scaled(tape, at[0], beta), scaled(tape, at[1], alpha));
            add(tape, x, y)
        })
    }

    /// As `torch.matmul` does it.
    fn product(&mut self, a: &T, b: &T) -> Made<T> {
        if a.rank() == 0 || b.rank() == 0 {
            return wrong(format!("{}: a product with a number", self.target));
        }
        let raise = |x: &T, row: bool| match (x.rank(), row) {
            (1, true) => T { shape: vec![1, x.shape[0]], ..x.clone() },
            (1, false) => T { shape: vec![x.shape[0], 1], ..x.clone() },
            _ => x.clone(),
        };
        let (left, right) = (raise(a, true), raise(b, false));
        let (m, k) = (left.shape[left.rank() - 2], left.shape[left.rank() - 1]);
        let (k2, n) = (right.shape[right.rank() - 2], right.shape[right.rank() - 1]);
        if k != k2 {
            return wrong(format!("{}: {:?} times {:?}", self.target, a.shape, b.shape));
        }
        let batch = broadcast(&[&left.shape[..left.rank() - 2], &right.shape[..right.rank() - 2]])?;
        let count: usize = batch.iter().product();
        self.room(count * m * n * k)?;
        let left = expand(&left, &[&batch[..], &[m, k]].concat())?;
        let right = expand(&right, &[&batch[..], &[k, n]].concat())?;
        let mut at = Vec::with_capacity(count * m * n);
        for one in 0..count {
            for row in 0..m {
                for column in 0..n {
                    let pair =
                        |i: usize| (left.at[(one * m + row) * k + i], right.at[(one * k + i) * n + column]);
                    let pairs: Vec<(u32, u32)> = (0..k).map(pair).collect();
                    at.push(dot(self.tape, &pairs, None));
                }
            }
        }
        let mut shape = batch;
        shape.extend((a.rank() > 1).then_some(m));
        shape.extend((b.rank() > 1).then_some(n));
        let kind = if a.kind == ElementKind::Float || b.kind == ElementKind::Float {
            ElementKind::Float
        } else {
            ElementKind::Int
        };
        Ok(T::new(kind, shape, at))
    }

    fn by_letters(&mut self) -> Made<Option<Vec<T>>> {
        let Some(equation) = self.text(0, "equation").map(|text| text.replace(' ', "")) else {
            return Ok(None);
        };
        let operands = self.tensors(1, "tensors")?;
        let Some((given, made)) = equation.split_once("->") else { return Ok(None) };
        let terms: Vec<Vec<char>> = given.split(',').map(|term| term.chars().collect()).collect();
        let made: Vec<char> = made.chars().collect();
        if equation.contains('.') || terms.len() != operands.len() || operands.len() != 2 {
            return Ok(None);
        }
        let mut sizes: Vec<(char, usize)> = vec![];
        for (term, x) in terms.iter().zip(&operands) {
            if term.len() != x.rank() {
                return wrong(format!("{equation} of {:?}", x.shape));
            }
            for (letter, size) in term.iter().zip(&x.shape) {
                match sizes.iter_mut().find(|(other, _)| other == letter) {
                    None => sizes.push((*letter, *size)),
                    Some((_, known)) if *known == *size => {}
                    Some(_) => return wrong(format!("{equation}: sizes of {letter}")),
                }
            }
        }
        let size =
            |letter: &char| sizes.iter().find(|(other, _)| other == letter).map_or(1, |(_, size)| *size);
        let summed: Vec<char> =
            sizes.iter().map(|(letter, _)| *letter).filter(|letter| !made.contains(letter)).collect();
        let shape: Vec<usize> = made.iter().map(size).collect();
        let inner: Vec<usize> = summed.iter().map(size).collect();
        self.room(shape.iter().product::<usize>() * inner.iter().product::<usize>())?;
        let mut at = vec![];
        for outer in indices(&shape) {
            let place = |term: &[char], x: &T, within: &[usize]| {
                let index = term.iter().map(|letter| match made.iter().position(|other| other == letter) {
                    Some(dim) => outer[dim],
                    None => within[summed.iter().position(|other| other == letter).unwrap_or(0)],
                });
                x.at[linear(&index.collect::<Vec<_>>(), &x.shape)]
            };
            let pairs: Vec<(u32, u32)> = indices(&inner)
                .map(|within| {
                    (place(&terms[0], &operands[0], &within), place(&terms[1], &operands[1], &within))
                })
                .collect();
            at.push(dot(self.tape, &pairs, None));
        }
        Ok(Some(vec![T::new(ElementKind::Float, shape, at)]))
    }

    fn convolved(&mut self) -> Made<Option<Vec<T>>> {
        let (x, weight) = (self.tensor(0, "input")?, self.tensor(1, "weight")?);
        let general = self.name == "convolution";
        if general && self.flag(6, "transposed", false) {
            return Ok(None);
        }
        let dims = weight.rank().saturating_sub(2);
        if x.rank() != dims + 2 {
            return Ok(None);
        }
        let per_dim = |given: Option<Vec<i64>>, default: i64| match given {
            Some(values) if values.len() == 1 => vec![values[0]; dims],
            Some(values) if values.len() == dims => values,
            _ => vec![default; dims],
        };
        let stride = per_dim(self.ints(3, "stride"), 1);
        let dilation = per_dim(self.ints(5, "dilation"), 1);
        let kernel = &weight.shape[2..];
        let padding = match self.arg(4, "padding") {
            Some(OpArg::Str(word)) if word == "same" => return Ok(None),
            Some(OpArg::Str(_)) => vec![0; dims],
            _ => per_dim(self.ints(4, "padding"), 0),
        };
        let groups = self.int(if general { 8 } else { 6 }, "groups", 1).max(1) as usize;
        let (channels, each) = (weight.shape[0], weight.shape[1]);
        if x.shape[1] != each * groups || channels % groups != 0 {
            return wrong(format!(
                "{}: {:?} with {:?} in {groups} groups",
                self.target, x.shape, weight.shape
            ));
        }
        let mut shape = vec![x.shape[0], channels];
        for dim in 0..dims {
            let reach = dilation[dim] * (kernel[dim] as i64 - 1) + 1;
            let span = x.shape[2 + dim] as i64 + 2 * padding[dim] - reach;
            shape.push(if span < 0 { 0 } else { (span / stride[dim] + 1) as usize });
        }
        self.room(shape.iter().product::<usize>() * weight.shape[1..].iter().product::<usize>())?;
        let bias = self.maybe(2, "bias");
        let window: Vec<Vec<usize>> = indices(&weight.shape[1..]).collect();
        let mut at = vec![];
        for index in indices(&shape) {
            let group = index[1] / (channels / groups);
            let pair = |inner: &Vec<usize>| {
                let mut from = vec![index[0], group * each + inner[0]];
                for dim in 0..dims {
                    let place = index[2 + dim] as i64 * stride[dim] - padding[dim]
                        + inner[1 + dim] as i64 * dilation[dim];
                    from.push(usize::try_from(place).ok().filter(|at| *at < x.shape[2 + dim])?);
                }
                let by = [&[index[1]], &inner[..]].concat();
                Some((x.at[linear(&from, &x.shape)], weight.at[linear(&by, &weight.shape)]))
            };
            let pairs: Vec<(u32, u32)> = window.iter().filter_map(pair).collect();
            at.push(dot(self.tape, &pairs, bias.as_ref().map(|bias| bias.at[index[1]])));
        }
        Ok(Some(vec![T::new(ElementKind::Float, shape, at)]))
    }
}
