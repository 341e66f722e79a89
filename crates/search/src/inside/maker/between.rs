//! What it takes to bring values to their readers, and gradients back.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use graph::TensorId;

use super::super::messages::{Price, Sizes};
use super::super::space::{Bundle, Edge};
use super::super::spread::{Read, complete, learns, read, written};
use super::Maker;

impl Maker<'_> {
    /// How a tensor lies that an operator makes, under a choice of its bundle.
    pub(super) fn written(&self, tensor: TensorId, at: usize) -> Vec<u8> {
        let (op, output) = self.graph().producer(tensor).expect("an operator makes it");
        written(self.question.analysis, op, output, &self.loops[op.index()][at])
    }

    /// How a bundle reads a tensor under a choice: each way once, and whether gradients come back, and whether forward does
    /// it twice.
    fn reads(&self, tensor: TensorId, bundle: usize, at: usize) -> Vec<(Read, bool, bool)> {
        let (maker, _) = self.graph().producer(tensor).expect("an operator makes it");
        let mut found: Vec<(Read, bool, bool)> = vec![];
        for (op, input) in &self.readers[tensor.index()] {
            if self.bundles.of[op.index()] != bundle {
                continue;
            }
            let read = read(self.question.analysis, *op, *input, &self.loops[op.index()][at]);
            let learns = learns(self.graph(), &self.needs_grad, *op, *input);
            let span = self.span_of[op.index()];
            let again = span.is_some() && span == self.span_of[maker.index()];
            let same = |it: &&mut (Read, bool, bool)| {
                it.0.value == read.value && (it.0.gradient == read.gradient || !learns || !it.1)
            };
            match found.iter_mut().find(same) {
                Some(known) if learns && !known.1 => *known = (read, true, known.2 || again),
                Some(known) => known.2 |= again,
                None => found.push((read, learns, again)),
            }
        }
        found
    }

    /// What it takes to bring a tensor to a bundle, and gradients back, where makers and readers have made their choices.
    pub(super) fn moved(&self, tensor: TensorId, reader: usize, (from, to): (usize, usize)) -> Price {
        let (sizes, written) = (self.sizes(tensor), self.written(tensor, from));
        self.ways(&sizes, &written, &self.reads(tensor, reader, to))
    }

    fn ways(&self, sizes: &Sizes, written: &Vec<u8>, ways: &[(Read, bool, bool)]) -> Price {
        ways.iter().map(|way| self.way(sizes, written, way)).fold(Price::default(), |a, b| a + b)
    }

    fn way(&self, sizes: &Sizes, written: &Vec<u8>, (read, learns, again): &(Read, bool, bool)) -> Price {
        let forward = self.messages.between(sizes, written, &read.value);
        let again = if *again { forward.backward() } else { Price::default() };
        if !*learns {
            return forward + again;
        }
        forward + again + self.messages.between(sizes, &read.gradient, &complete(written)).backward()
    }

    pub(in super::super) fn edges(&self, bundles: &[Bundle], signatures: &[Rc<str>]) -> Vec<Edge> {
        let mut between: BTreeMap<(usize, usize), Vec<(TensorId, usize)>> = BTreeMap::new();
        for tensor in self.graph().tensor_ids() {
            let Some((maker, _)) = self.graph().producer(tensor) else { continue };
            let own = self.bundles.of[maker.index()];
            let mut others: Vec<usize> =
                self.readers[tensor.index()].iter().map(|(op, _)| self.bundles.of[op.index()]).collect();
            others.sort_unstable();
            others.dedup();
            others.retain(|other| *other != own);
            for other in &others {
                between.entry((own, *other)).or_default().push((tensor, others.len()));
            }
        }
        let mut known: HashMap<String, Rc<Vec<Price>>> = HashMap::new();
        let mut edges = vec![];
        for (ends, tensors) in between {
            let text = self.edge_signature(ends, &tensors, signatures);
            let prices = known.entry(text).or_insert_with(|| Rc::new(self.prices(bundles, ends, &tensors)));
            edges.push(Edge { ends, prices: Rc::clone(prices) });
        }
        edges
    }

    /// Of what several bundles read each bears its share: if all read it alike, it is moved once.
    fn prices(
        &self,
        bundles: &[Bundle],
        (from, to): (usize, usize),
        tensors: &[(TensorId, usize)],
    ) -> Vec<Price> {
        let (rows, columns) = (bundles[from].choices.len(), bundles[to].choices.len());
        let mut all = vec![Price::default(); rows * columns];
        for (tensor, shared) in tensors {
            let sizes = self.sizes(*tensor);
            let (writes, of_row) = distinct((0..rows).map(|at| self.written(*tensor, at)));
            let (reads, of_column) = distinct((0..columns).map(|at| self.reads(*tensor, to, at)));
            let table: Vec<Vec<Price>> = writes
                .iter()
                .map(|written| reads.iter().map(|ways| self.ways(&sizes, written, ways)).collect())
                .collect();
            let share = 1.0 / *shared as f64;
            for (row, write) in of_row.iter().enumerate() {
                for (column, read) in of_column.iter().enumerate() {
                    let sum = &mut all[row * columns + column];
                    *sum = *sum + table[*write][*read].share(share);
                }
            }
        }
        all
    }
}

/// What is different among many, and which of these each is.
fn distinct<T: Eq + std::hash::Hash + Clone>(all: impl Iterator<Item = T>) -> (Vec<T>, Vec<usize>) {
    let mut known: HashMap<T, usize> = HashMap::new();
    let (mut found, mut of) = (vec![], vec![]);
    for it in all {
        let next = found.len();
        let at = *known.entry(it).or_insert_with_key(|it| {
            found.push(it.clone());
            next
        });
        of.push(at);
    }
    (found, of)
}
