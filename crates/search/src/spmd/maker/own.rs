//! What a bundle costs by itself.

use check::held_as;
use graph::{OpId, Source, TensorId};
use rules::{Cost, Kind};
use sharding::{AxisSet, PARTIAL};

use super::super::bundles::Unary;
use super::super::choices::dims;
use super::super::demanded::pinned;
use super::super::kept::Keeps;
use super::super::messages::{Count, MessagePrice};
use super::super::param_sharding::DeviceReads;
use super::super::sharding::{Loops, Sharding, elements, read, splits, written};
use super::Maker;
use super::part::PartTimes;

/// What takes less of the work than this is copied, and not worth a decision,
const SMALL: f64 = 1e-4;
/// if what it makes has so many times fewer elements than what it is read with: positions, masks.
const BESIDE: u64 = 16;

impl Maker<'_> {
    /// The dims along which a bundle may be divided.
    pub(in super::super) fn dims(&self, number: usize) -> Vec<usize> {
        let ops = &self.bundles.all[number];
        let seconds: f64 = ops.iter().map(|op| self.seconds[op.index()]).sum();
        let pinned = pinned(&self.question, &self.operators.classes, ops);
        if pinned.is_empty() && seconds < SMALL * self.of_all && self.is_beside(number, ops) {
            return vec![];
        }
        dims(self.question.analysis, &self.operators.classes, ops, &pinned, &self.seconds)
    }

    /// Whether what a bundle makes is small beside what others read with it.
    fn is_beside(&self, bundle: usize, ops: &[OpId]) -> bool {
        let size = |tensor: TensorId| self.graph().tensor(tensor).numel().unsigned_abs();
        let made = || ops.iter().flat_map(|op| self.graph().op(*op).outputs.iter().flatten().copied());
        let readers = made().flat_map(|tensor| &self.operators.readers[tensor.index()]).map(|(op, _)| *op);
        let others = readers.filter(|op| self.bundles.of[op.index()] != bundle);
        let beside = others.flat_map(|op| self.graph().op(op).inputs()).map(size).max().unwrap_or(0);
        made().map(size).max().unwrap_or(0).saturating_mul(BESIDE) < beside
    }

    /// Whether a tensor is needed whole on all devices.
    pub(super) fn leaves(&self, tensor: TensorId) -> bool {
        let all = self.graph().outputs.iter().zip(&self.question.boundary.outputs);
        all.into_iter().any(|(it, how)| *it == Some(tensor) && *how == program::Output::Whole)
    }

    /// The parameters of which some operators are the first readers.
    pub(in super::super) fn params(&self, ops: &[OpId]) -> Vec<TensorId> {
        let mut params = vec![];
        for op in ops {
            for tensor in self.graph().op(*op).inputs() {
                let is_param = matches!(self.graph().tensor(tensor).source, Source::Param { .. });
                if is_param && self.is_first(*op, tensor) && !params.contains(&tensor) {
                    params.push(tensor);
                }
            }
        }
        params
    }

    /// Whether an operator is the first reader of a parameter, of those in its segment.
    fn is_first(&self, op: OpId, tensor: TensorId) -> bool {
        let readers = &self.operators.readers[tensor.index()];
        let first = readers.iter().find(|(reader, _)| self.segment(*reader) == self.segment(op));
        first.is_some_and(|(reader, _)| *reader == op)
    }

    fn segment(&self, op: OpId) -> usize {
        self.segments.get(op.index()).copied().unwrap_or(0)
    }

    /// The first and the last segment that read a tensor.
    fn segments_of(&self, tensor: TensorId) -> (usize, usize) {
        let all = self.operators.readers[tensor.index()].iter().map(|(op, _)| self.segment(*op));
        all.fold((usize::MAX, 0), |(from, to), segment| (from.min(segment), to.max(segment)))
    }

    /// Whether several stages may read a parameter: then each of them holds it whole.
    pub(super) fn is_shared(&self, tensor: TensorId) -> bool {
        let (from, to) = self.segments_of(tensor);
        from < to
    }

    /// Whether not all parts of an operator may read an operand that each could: a bias is added by one of those that sum.
    fn is_of_some(&self, op: OpId, input: usize, at: usize) -> bool {
        let dims = self.question.analysis.op(op);
        let sums = |index: usize| matches!(dims.loops[index].kind, Kind::Reduce(_));
        let loops = &self.loops[op.index()][at];
        loops.iter().flatten().any(|index| sums(*index) && !dims.inputs[input].contains(&Some(*index)))
    }

    fn part(&mut self, op: OpId, loops: &Loops) -> PartTimes {
        let key = (self.operators.signature[op.index()], loops.clone());
        if let Some(known) = self.parts.get(&key) {
            return known.clone();
        }
        let copies = splits(self.digits, loops);
        let made = self.operators.part(op, self.devices, self.messages.count, copies);
        self.parts.insert(key, made.clone());
        made
    }

    /// Whether lowering replaces an operator by others, which may be less work.
    fn is_rewritten(&self, op: OpId, loops: &Loops) -> bool {
        let all = &self.question.analysis.op(op).loops;
        loops.iter().flatten().any(|index| all[*index].kind == Kind::Own)
    }

    pub(in super::super) fn unary(&mut self, ops: &[OpId], params: &[TensorId], at: usize) -> Unary {
        let mut all = Unary::default();
        let wanted: Vec<OpId> = ops.iter().copied().filter(|op| self.operators.wanted[op.index()]).collect();
        for op in &wanted {
            let loops = self.loops[op.index()][at].clone();
            let part = self.part(*op, &loops);
            let recomputed = if self.repeated.ops[op.index()] { part.forward } else { 0.0 };
            let back = part.backward + recomputed;
            if self.messages.count == Count::Alone || !self.is_rewritten(*op, &loops) {
                all.price =
                    all.price + MessagePrice { work: part.forward + back, back, ..MessagePrice::default() };
                all.kept += self.kept(*op, &self.keeps[op.index()], &loops, &part.cost);
                if let Some(keeps) = self.keeps_all.get(op.index()).filter(|_| self.repeated.ops[op.index()])
                {
                    all.recomputed += self.kept(*op, keeps, &loops, &part.cost);
                }
            }
            if !self.segments.is_empty() {
                all.working = all.working.max(self.working(*op, &loops));
            }
            let outputs: Vec<TensorId> = self.graph().op(*op).outputs.iter().flatten().copied().collect();
            for tensor in outputs {
                let bundle = self.bundles.of[op.index()];
                let moved = self.moved(tensor, bundle, at, at) + self.left(tensor, at);
                if moved != MessagePrice::default() {
                    all.price = all.price + moved.times(self.share(tensor, self.others(tensor).len(), at));
                }
            }
        }
        all.held = params.iter().map(|tensor| self.held(ops, *tensor, at)).collect();
        all
    }

    fn bytes(&self, tensor: TensorId, sharding: &Sharding) -> f64 {
        let sizes = self.sizes_of(tensor);
        elements(&sizes.factors, self.digits, sharding) * sizes.width as f64
    }

    /// Bytes that an operator reads and makes, parameters apart.
    fn working(&self, op: OpId, loops: &Loops) -> f64 {
        let (analysis, it) = (self.question.analysis, self.graph().op(op));
        let is_made = |tensor: TensorId| matches!(self.graph().tensor(tensor).source, Source::Op { .. });
        let inputs = it.inputs().into_iter().enumerate().filter(|(_, tensor)| is_made(*tensor));
        let read = inputs.map(|(at, tensor)| self.bytes(tensor, &read(analysis, op, at, loops).value));
        let outputs = it.outputs.iter().enumerate().filter_map(|(at, tensor)| Some((at, (*tensor)?)));
        let made = outputs.map(|(at, tensor)| self.bytes(tensor, &written(analysis, op, at, loops)));
        read.sum::<f64>() + made.sum::<f64>()
    }

    fn kept(&self, op: OpId, keeps: &Keeps, loops: &Loops, cost: &Cost) -> f64 {
        let (analysis, it) = (self.question.analysis, self.graph().op(op));
        let inputs = it.inputs();
        let read = keeps.inputs.iter().map(|(at, (stored, all))| {
            self.bytes(inputs[*at], &read(analysis, op, *at, loops).value) * *stored as f64 / *all as f64
        });
        let made = keeps.outputs.iter().filter_map(|at| Some((it.outputs[*at]?, *at)));
        let made = made.map(|(tensor, at)| self.bytes(tensor, &written(analysis, op, at, loops)));
        read.sum::<f64>() + made.sum::<f64>() + if keeps.more { cost.kept.more as f64 } else { 0.0 }
    }

    fn held(&self, ops: &[OpId], tensor: TensorId, at: usize) -> DeviceReads {
        let it = self.graph().tensor(tensor);
        let mut readers = self.operators.readers[tensor.index()].iter().copied();
        let (op, input) = readers.find(|(op, _)| ops.contains(op)).expect("one of them reads it");
        let read = read(self.question.analysis, op, input, &self.loops[op.index()][at]);
        let sizes = self.sizes_of(tensor);
        let width = held_as(it, self.question.masters).bytes() as f64;
        let partial = AxisSet::from_axes((0..self.digits.len()).filter(|at| read.gradient[*at] == PARTIAL));
        let elements = elements(&sizes.factors, self.digits, &read.value);
        let least = self.messages.count == Count::Least;
        DeviceReads {
            bytes: elements * width,
            gathered: elements * sizes.width as f64,
            partial,
            // What forward writes is not divided, and what several stages read.
            longest: match it.shape.iter().copied().max() {
                _ if least => i64::MAX,
                Some(longest) if self.graph().new_value(tensor).is_none() && !self.is_shared(tensor) => {
                    longest
                }
                _ => 1,
            },
            is_open: least
                && (self.operators.readers[tensor.index()].len() > 1 || self.is_of_some(op, input, at)),
            is_trained: matches!(it.source, Source::Param { frozen: false, .. })
                && self.operators.needs_grad[tensor.index()],
        }
    }
}
