//! What it takes to bring values to their readers, and gradients back.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use graph::TensorId;
use hashing::Map;
use sharding::{AXES, COPIES};

use super::super::bundles::{Bundle, Edge, EdgePrices};
use super::super::messages::{Count, MessagePrice, SizesId};
use super::super::sharding::{Sharding, complete, learns, read, written};
use super::Maker;

/// How a tensor lies that an operator makes, and once it is complete.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct MadeTensor {
    sharding: Sharding,
    whole: Sharding,
}

impl MadeTensor {
    fn new(sharding: Sharding) -> Self {
        Self { sharding, whole: complete(sharding) }
    }
}

/// How a tensor is read, and how its gradient comes back, if it does.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Reading {
    value: Sharding,
    gradient: Option<MadeTensor>,
    /// Whether it is brought a second time for backward.
    recomputed: bool,
}

impl Maker<'_> {
    /// How a tensor lies that an operator makes, under a choice of its bundle.
    fn written(&self, tensor: TensorId, at: usize) -> MadeTensor {
        let (op, output) = self.graph().producer(tensor).expect("an operator makes it");
        MadeTensor::new(written(self.question.analysis, op, output, &self.loops[op.index()][at]))
    }

    /// How a bundle reads a tensor under a choice: each way once.
    fn reads(&self, tensor: TensorId, bundle: usize, at: usize) -> Vec<Reading> {
        let mut readings: Vec<Reading> = vec![];
        for (op, input) in &self.operators.readers[tensor.index()] {
            if self.bundles.of[op.index()] != bundle {
                continue;
            }
            let read = read(self.question.analysis, *op, *input, &self.loops[op.index()][at]);
            let learns = learns(self.graph(), &self.operators.needs_grad, *op, *input);
            let gradient = learns.then(|| MadeTensor::new(read.gradient));
            let recomputed = self.repeated.inputs[op.index()][*input];
            let differ =
                |known: Option<MadeTensor>| gradient.is_some() && known.is_some() && known != gradient;
            match readings.iter_mut().find(|it| it.value == read.value && !differ(it.gradient)) {
                Some(known) => {
                    known.gradient = known.gradient.or(gradient);
                    known.recomputed |= recomputed;
                }
                None => readings.push(Reading { value: read.value, gradient, recomputed }),
            }
        }
        readings
    }

    /// What it takes to bring a tensor to a bundle, and gradients back, where makers and readers have made their choices.
    pub(super) fn moved(&self, tensor: TensorId, reader: usize, from: usize, to: usize) -> MessagePrice {
        self.ways(tensor, self.sizes(tensor), self.written(tensor, from), &self.reads(tensor, reader, to))
    }

    fn ways(&self, tensor: TensorId, sizes: SizesId, written: MadeTensor, ways: &[Reading]) -> MessagePrice {
        let all = ways.iter().map(|way| {
            let forward = self.messages.between(sizes, written.sharding, way.value);
            self.way(tensor, written, *way, forward, |gradient| {
                self.messages.between(sizes, gradient.sharding, written.whole)
            })
        });
        self.together(all)
    }

    fn together(&self, ways: impl Iterator<Item = MessagePrice>) -> MessagePrice {
        match self.messages.count {
            Count::Alone => ways.fold(MessagePrice::default(), |a, b| a + b),
            // What is read in several ways may come in one message.
            Count::Least => ways.fold(MessagePrice::default(), |a, b| if b.line > a.line { b } else { a }),
        }
    }

    /// One of them, where it is known what the value takes, and `back` says what its gradient does.
    fn way(
        &self,
        tensor: TensorId,
        written: MadeTensor,
        reading: Reading,
        forward: MessagePrice,
        back: impl FnOnce(MadeTensor) -> MessagePrice,
    ) -> MessagePrice {
        let recomputed = if reading.recomputed { forward.backward() } else { MessagePrice::default() };
        let Some(gradient) = reading.gradient else { return forward + recomputed };
        // Each that makes the value has a part of its gradient, which it may pass on.
        let passes = self.operators.passes[tensor.index()] && gradient.whole == written.whole;
        if passes && self.messages.count == Count::Least {
            return forward + recomputed;
        }
        forward + recomputed + back(gradient).backward()
    }

    /// The same of all ways to write a tensor and to read it. Many of them differ in the gradient alone, or not in it: each
    /// two shardings are looked at once.
    fn table(
        &self,
        tensor: TensorId,
        writes: &[MadeTensor],
        reads: &[Vec<Reading>],
    ) -> Vec<Vec<MessagePrice>> {
        let sizes = self.sizes(tensor);
        let (values, of_value) = distinct(reads.iter().flatten().map(|way| way.value));
        let sharding = |way: &Reading| way.gradient.map_or(way.value, |gradient| gradient.sharding);
        let (gradients, of_gradient) = distinct(reads.iter().flatten().map(sharding));
        let (wholes, of_whole) = distinct(writes.iter().map(|written| written.whole));
        let [values, wholes] = [values, wholes].map(|shardings| self.messages.numbered(sizes, &shardings));
        let to_each = |from: &Sharding, to| self.messages.to_each(*from, to);
        let back: Vec<Vec<MessagePrice>> =
            gradients.iter().map(|gradient| to_each(gradient, &wholes)).collect();
        let candidate = |(written, whole): (&MadeTensor, &usize)| {
            let forward = to_each(&written.sharding, &values);
            let mut numbers = of_value.iter().zip(&of_gradient);
            let cell = |ways: &Vec<Reading>| {
                self.together(ways.iter().zip(&mut numbers).map(|(way, (value, gradient))| {
                    self.way(tensor, *written, *way, forward[*value], |_| back[*gradient][*whole])
                }))
            };
            reads.iter().map(cell).collect()
        };
        writes.iter().zip(&of_whole).map(candidate).collect()
    }

    /// What of a tensor's way to each of those that read it is counted there under a choice of its maker: if all read it
    /// alike, it is moved once.
    pub(super) fn share(&self, tensor: TensorId, others: usize, at: usize) -> f64 {
        let (maker, _) = self.graph().producer(tensor).expect("an operator makes it");
        let bundle = self.bundles.of[maker.index()];
        let here = self.moved(tensor, bundle, at, at) != MessagePrice::default();
        let leaves = self.left(tensor, at) != MessagePrice::default();
        1.0 / (others + usize::from(here) + usize::from(leaves)).max(1) as f64
    }

    /// What it takes to have a result whole on all devices.
    pub(super) fn left(&self, tensor: TensorId, at: usize) -> MessagePrice {
        if !self.leaves(tensor) {
            return MessagePrice::default();
        }
        self.messages.between(self.sizes(tensor), self.written(tensor, at).sharding, [COPIES; AXES])
    }

    /// The other bundles that read a tensor.
    pub(super) fn others(&self, tensor: TensorId) -> &[usize] {
        &self.others[tensor.index()]
    }

    /// None where it is late.
    pub(in super::super) fn edges(&self, bundles: &[Bundle], same: &[usize]) -> Option<Vec<Edge>> {
        let mut between: BTreeMap<(usize, usize), Vec<(TensorId, usize)>> = BTreeMap::new();
        for tensor in self.graph().tensor_ids() {
            let Some((maker, _)) = self.graph().producer(tensor) else { continue };
            let (bundle, others) = (self.bundles.of[maker.index()], self.others(tensor));
            for other in others {
                between.entry((bundle, *other)).or_default().push((tensor, others.len()));
            }
        }
        let mut known: HashMap<Vec<usize>, Rc<EdgePrices>> = HashMap::new();
        let mut edges = vec![];
        for (ends, tensors) in between {
            if self.question.stop.is_late() {
                return None;
            }
            let signature = self.edge_signature(ends, &tensors, same);
            let prices =
                known.entry(signature).or_insert_with(|| Rc::new(self.prices(bundles, ends, &tensors)));
            edges.push(Edge { ends, prices: Rc::clone(prices) });
        }
        Some(edges)
    }

    /// Of what several bundles read each bears its share: if all read it alike, it is moved once.
    fn prices(
        &self,
        bundles: &[Bundle],
        (from, to): (usize, usize),
        tensors: &[(TensorId, usize)],
    ) -> EdgePrices {
        let (writers, readers) = (bundles[from].choices.len(), bundles[to].choices.len());
        let (mut writings, mut reading): (Vec<Vec<_>>, Vec<Vec<_>>) =
            (vec![vec![]; writers], vec![vec![]; readers]);
        let mut tables = vec![];
        for (tensor, shared) in tensors {
            let (writes, write_of) = distinct((0..writers).map(|at| self.written(*tensor, at)));
            let (reads, read_of) = distinct((0..readers).map(|at| self.reads(*tensor, to, at)));
            tables.push(self.table(*tensor, &writes, &reads));
            for (at, writing) in writings.iter_mut().enumerate() {
                writing.push((write_of[at], self.share(*tensor, *shared, at).to_bits()));
            }
            reading.iter_mut().zip(read_of).for_each(|(reading, read)| reading.push(read));
        }
        let ((writings, writing_of), (reading, reading_of)) =
            (distinct(writings.into_iter()), distinct(reading.into_iter()));
        let price = |writing: &[(usize, u64)], reading: &[usize]| {
            let parts = tables.iter().zip(writing.iter().zip(reading));
            let parts = parts
                .map(|(table, ((write, share), read))| table[*write][*read].times(f64::from_bits(*share)));
            parts.fold(MessagePrice::default(), |all, part| all + part)
        };
        let table =
            writings.iter().map(|writing| reading.iter().map(|it| price(writing, it)).collect()).collect();
        EdgePrices { writing_of, reading_of, table }
    }
}

/// What is different among many, and which of these each is.
fn distinct<T: Eq + std::hash::Hash + Clone>(all: impl Iterator<Item = T>) -> (Vec<T>, Vec<usize>) {
    let mut known: Map<T, usize> = Map::default();
    let (mut values, mut numbers) = (vec![], vec![]);
    for it in all {
        let next = values.len();
        let at = *known.entry(it).or_insert_with_key(|it| {
            values.push(it.clone());
            next
        });
        numbers.push(at);
    }
    (values, numbers)
}
