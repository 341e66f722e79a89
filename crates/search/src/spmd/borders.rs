//! What stages send each other: how a value that crosses a place lies before it and behind it.

use std::collections::BTreeMap;
use std::rc::Rc;

use cluster::Cluster;
use graph::{OpId, TensorId};

use super::sharding::{Sharding, complete, elements, read, written};
use super::space::Space;

/// Bytes of a device, for each choice of a bundle.
type Bytes = (usize, Rc<[f64]>);

pub(super) struct Borders {
    /// Of what each segment or a later one reads from those before: the first bundle that reads it.
    to: Vec<Option<Bytes>>,
    /// And who makes it.
    from: Vec<Option<Bytes>>,
}

impl Borders {
    pub(super) fn new(space: &Space<'_>, segments: &[usize], crossing: &[Option<TensorId>]) -> Self {
        let graph = space.question.graph;
        let mut bundle_of = vec![0; graph.ops.len()];
        for (number, bundle) in space.bundles.iter().enumerate() {
            bundle.ops.iter().for_each(|op| bundle_of[op.index()] = number);
        }
        let uses = graph.uses();
        let mut known: BTreeMap<Vec<u64>, Rc<[f64]>> = BTreeMap::new();
        let mut keep = |bytes: Vec<f64>| {
            let key = bytes.iter().map(|bytes| bytes.to_bits()).collect();
            Rc::clone(known.entry(key).or_insert_with(|| bytes.into()))
        };
        let (mut to, mut from) = (vec![], vec![]);
        for (segment, tensor) in crossing.iter().enumerate() {
            let maker = tensor.and_then(|tensor| Some((tensor, graph.producer(tensor)?)));
            let Some((tensor, (maker, output))) = maker else {
                to.push(None);
                from.push(None);
                continue;
            };
            let readers =
                uses[tensor.index()].iter().map(|(op, input)| (bundle_of[op.index()], (*op, *input)));
            let reader = readers.into_iter().find(|(bundle, _)| segments[*bundle] >= segment);
            to.push(reader.map(|(bundle, at)| (bundle, keep(bytes(space, bundle, tensor, at)))));
            let made = made(space, bundle_of[maker.index()], tensor, maker, output);
            from.push(Some((bundle_of[maker.index()], keep(made))));
        }
        Self { to, from }
    }

    /// The bundles of a run that read what comes to it, and the one that makes what goes on.
    pub(super) fn bytes(&self, (first, end): (usize, usize)) -> Vec<Bytes> {
        let from = self.from.get(end).into_iter().flatten();
        self.to[first].iter().chain(from).cloned().collect()
    }

    /// Bytes of all devices: what comes, and what goes on.
    pub(super) fn crossing(
        &self,
        (first, end): (usize, usize),
        values: &[Option<usize>],
        devices: u32,
    ) -> (f64, f64) {
        // Of what others make or read it is known how little it can be.
        let least = |bytes: &[f64]| bytes.iter().copied().fold(f64::INFINITY, f64::min);
        let bytes_of =
            |(bundle, bytes): &Bytes| values[*bundle].map_or_else(|| least(bytes), |value| bytes[value]);
        let all = |bytes: Option<&Bytes>| bytes.map_or(0.0, bytes_of) * f64::from(devices);
        (all(self.to[first].as_ref()), all(self.from.get(end).and_then(Option::as_ref)))
    }

    /// Bytes a second that a device sends to another stage: over the network, if there is one.
    pub(super) fn rate(&self, cluster: &Cluster) -> f64 {
        let link = if cluster.nodes.len() > 1 { &cluster.network } else { &cluster.nodes[0].link };
        link.rate()
    }
}

fn sized(space: &Space<'_>, tensor: TensorId, sharding: &Sharding) -> f64 {
    let width = space.question.graph.tensor(tensor).dtype.bytes() as f64;
    elements(&space.question.analysis.flat(tensor), space.digits, sharding) * width
}

fn bytes(space: &Space<'_>, bundle: usize, tensor: TensorId, (op, input): (OpId, usize)) -> Vec<f64> {
    let lies = |loops| read(space.question.analysis, op, input, &loops).value;
    let choices = space.bundles[bundle].choices.iter();
    choices.map(|choice| sized(space, tensor, &lies(space.loops(op, choice)))).collect()
}

fn made(space: &Space<'_>, bundle: usize, tensor: TensorId, op: OpId, output: usize) -> Vec<f64> {
    let lies = |loops| complete(written(space.question.analysis, op, output, &loops));
    let choices = space.bundles[bundle].choices.iter();
    choices.map(|choice| sized(space, tensor, &lies(space.loops(op, choice)))).collect()
}
