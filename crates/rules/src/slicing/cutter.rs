//! Makes the graph, slice after slice.

use std::collections::{HashMap, HashSet};

use graph::{Arg, Dtype, Graph, Op, OpId, Source, Tensor, TensorId};

use super::Piece;
use super::forms::{Forms, How};
use crate::families::{self, View};
use crate::interval::Interval;
use crate::local::{LocalArg, LocalOp, Part, unchanged};

type FactorCut = (Graph, Vec<Piece>, Vec<Option<TensorId>>);

pub(super) fn cut(forms: &Forms<'_>) -> FactorCut {
    let mut cutter = Cutter::new(forms);
    for slice in 0..forms.slices.count() {
        for op in forms.graph.op_ids() {
            cutter.now = Piece { op, slice };
            match forms.how[op.index()] {
                How::Whole(since) if since == slice => cutter.whole_op(op),
                How::Whole(_) => {}
                How::Sliced(index) => cutter.part(op, index),
                How::Summed(index) => cutter.summand(op, index),
                How::Causal => cutter.attention(op),
            }
        }
    }
    cutter.finish()
}

/// A value of the whole graph in a form of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum ValueKey<'a> {
    Whole(TensorId),
    /// One slice along a factor.
    Slice(TensorId, usize, usize),
    /// All slices up to one along a factor.
    UpTo(TensorId, usize, usize),
    /// An interval of what is whole. Each module has its own, so that they do not go from one stage to another.
    Part(TensorId, usize, (i64, i64), &'a str),
}

struct Cutter<'a> {
    forms: &'a Forms<'a>,
    new: Graph,
    pieces: Vec<Piece>,
    likes: Vec<Option<TensorId>>,
    made: HashMap<ValueKey<'a>, TensorId>,
    taken: HashSet<String>,
    /// What new operators are made for.
    now: Piece,
}

/// Where a factor is in its tensor.
struct FactorPlace {
    dim: usize,
    /// Elements of the dim's outer factors, and of its inner ones.
    outer: i64,
    inner: i64,
}

impl<'a> Cutter<'a> {
    fn new(forms: &'a Forms<'a>) -> Self {
        let old = forms.graph;
        let new = Graph {
            model: old.model.clone(),
            in_spec: old.in_spec.clone(),
            out_spec: old.out_spec.clone(),
            modules: old.modules.clone(),
            ..Graph::default()
        };
        let taken = old.tensors.iter().map(|tensor| tensor.name.clone()).collect();
        let now = Piece { op: OpId(0), slice: 0 };
        let mut cutter = Self { forms, new, pieces: vec![], likes: vec![], made: HashMap::new(), taken, now };
        for id in old.tensor_ids().filter(|id| old.producer(*id).is_none()) {
            let new = cutter.tensor(old.tensor(id).clone(), Some(id));
            cutter.made.insert(ValueKey::Whole(id), new);
        }
        cutter
    }

    fn finish(mut self) -> FactorCut {
        let old = self.forms.graph;
        self.new.outputs = old.outputs.iter().map(|id| id.map(|id| self.whole_at_last(id))).collect();
        let updates = old.updates.iter().map(|(name, id)| (name.clone(), self.whole_at_last(*id)));
        self.new.updates = updates.collect();
        (self.new, self.pieces, self.likes)
    }

    /// What leaves is joined where its slices are made.
    fn whole_at_last(&mut self, id: TensorId) -> TensorId {
        if let Some((op, _)) = self.forms.graph.producer(id) {
            self.now = Piece { op, slice: self.forms.slices.count() - 1 };
        }
        self.whole(id)
    }

    // Operators.

    fn whole_op(&mut self, op: OpId) {
        let inputs = self.forms.graph.op(op).inputs();
        let read: Vec<TensorId> = inputs.into_iter().map(|id| self.whole(id)).collect();
        let old = self.forms.graph;
        let mut same = |id: TensorId| self.tensor(old.tensor(id).clone(), Some(id));
        let outputs: Vec<Option<TensorId>> =
            old.op(op).outputs.iter().copied().map(|id| id.map(&mut same)).collect();
        self.append(op, &unchanged(old.op(op)), &read, outputs.clone());
        self.note(op, &outputs, ValueKey::Whole);
    }

    fn part(&mut self, op: OpId, index: usize) {
        let (part, read) = (self.part_of(op, index), self.read_along(op, index));
        let local = self.executed(op, &part);
        let outputs = self.slices_of(op, |_, number| part.outputs[number].clone());
        self.append(op, &local, &read, outputs.clone());
        self.note_slices(op, &outputs);
    }

    /// The sum of all slices up to this one. A mean is that of a slice, by its share.
    fn summand(&mut self, op: OpId, index: usize) {
        let (part, read) = (self.part_of(op, index), self.read_along(op, index));
        let (local, is_mean) = (self.executed(op, &part), self.rule_call(op, &part).target == "sw.mean");
        let outputs = self.slices_of(op, |_, number| part.outputs[number].clone());
        self.append(op, &local, &read, outputs.clone());
        let old = self.forms.graph.op(op).outputs.clone();
        for (id, mut value) in old.into_iter().zip(outputs).filter_map(|(id, made)| Some((id?, made?))) {
            if is_mean {
                let share = self.here().len() as f64 / self.forms.analysis.op(op).loops[index].size as f64;
                let name = self.free(&self.forms.graph.tensor(id).name, self.now.slice);
                value = self.of_two("aten.mul.Tensor", value, Arg::Float(share), name, id);
            }
            if let Some(before) = self.made.get(&ValueKey::Whole(id)).copied() {
                let name = self.forms.graph.tensor(id).name.clone();
                let is_last = self.now.slice + 1 == self.forms.slices.count();
                let name = if is_last { name } else { self.free(&name, self.now.slice) };
                value = self.of_two("aten.add.Tensor", before, Arg::Tensor(value), name, id);
            }
            self.made.insert(ValueKey::Whole(id), value);
        }
    }

    /// What has the dims and the type of a value of the whole graph.
    fn of_two(&mut self, target: &str, first: TensorId, then: Arg, name: String, like: TensorId) -> TensorId {
        let to = Tensor { name, ..self.forms.graph.tensor(like).clone() };
        self.step(target, vec![Arg::Tensor(first), then], to, Some(like))
    }

    /// Queries of this slice over the keys and values of all slices up to it. Behind the first one a mask hides
    /// those that are later than a query.
    fn attention(&mut self, op: OpId) {
        let it = self.forms.graph.op(op);
        let dims = self.forms.analysis.op(op);
        let inputs = it.inputs();
        let along = |at: usize| {
            let tokens = self.forms.graph.tensor(inputs[at]).shape.len() - 2;
            let factors = &self.forms.analysis.factors[inputs[at].index()];
            factors[..tokens].iter().map(Vec::len).sum::<usize>()
        };
        debug_assert!(dims.inputs.len() == 3, "a causal attention is given no mask");
        let [query, key, value] = [along(0), along(1), along(2)];
        let slice = self.now.slice;
        let q = self.slice(inputs[0], query, slice);
        let k = self.up_to(inputs[1], key, slice);
        let v = self.up_to(inputs[2], value, slice);
        let mask = (slice > 0).then(|| self.mask());
        let here = self.here().len();
        let shape = |tensor: &Tensor, _: usize| {
            let mut shape = tensor.shape.clone();
            let tokens = shape.len() - 2;
            shape[tokens] = here;
            shape
        };
        let outputs = self.slices_of(op, shape);
        let mut local = unchanged(it);
        if mask.is_some() {
            set(&mut local, 3, "attn_mask", LocalArg::Input(3));
            set(&mut local, 5, "is_causal", LocalArg::Bool(false));
        }
        let read: Vec<TensorId> = [q, k, v].into_iter().chain(mask).collect();
        self.append(op, &local, &read, outputs.clone());
        self.note_slices(op, &outputs);
    }

    /// Which keys each query of this slice sees: those up to its own.
    fn mask(&mut self) -> TensorId {
        let Interval { lo, hi } = self.here();
        let rows = hi - lo;
        let named = |cutter: &mut Self| Tensor {
            name: cutter.free("seen", cutter.now.slice),
            dtype: Dtype::Bool,
            shape: vec![rows, hi],
            source: Source::Const { name: String::new() },
        };
        let all = named(self);
        let sizes = Arg::List(vec![Arg::Int(rows), Arg::Int(hi)]);
        let dtype = vec![("dtype".to_owned(), Arg::Dtype(Dtype::Bool))];
        let all = self.step_with("aten.ones.default", vec![sizes], dtype, all, None);
        let seen = named(self);
        self.step("aten.tril.default", vec![Arg::Tensor(all), Arg::Int(lo)], seen, None)
    }

    // Values.

    fn whole(&mut self, id: TensorId) -> TensorId {
        if let Some(known) = self.made.get(&ValueKey::Whole(id)) {
            return *known;
        }
        let factor = self.forms.cut_along(id).expect("what is not whole is in slices");
        let slices = (0..self.forms.slices.count()).map(|slice| self.slice(id, factor, slice)).collect();
        let tensor = self.forms.graph.tensor(id).clone();
        let joined = self.joined(id, factor, slices, tensor);
        self.made.insert(ValueKey::Whole(id), joined);
        joined
    }

    /// One slice along a factor.
    fn slice(&mut self, id: TensorId, factor: usize, slice: usize) -> TensorId {
        match self.made.get(&ValueKey::Slice(id, factor, slice)) {
            Some(known) => *known,
            None => self.part_of_whole(id, factor, self.forms.slices.interval(slice)),
        }
    }

    /// All slices up to one along a factor.
    fn up_to(&mut self, id: TensorId, factor: usize, slice: usize) -> TensorId {
        let hi = self.forms.slices.interval(slice).hi;
        if self.forms.cut_along(id).is_none() {
            return self.part_of_whole(id, factor, Interval { lo: 0, hi });
        }
        if slice == 0 {
            return self.slice(id, factor, 0);
        }
        let key = ValueKey::UpTo(id, factor, slice);
        if let Some(known) = self.made.get(&key) {
            return *known;
        }
        let parts = vec![self.up_to(id, factor, slice - 1), self.slice(id, factor, slice)];
        let tensor = self.forms.graph.tensor(id).clone();
        let name = self.free(&tensor.name, slice);
        let mut shape = tensor.shape.clone();
        shape[self.at(id, factor).dim] = hi;
        let joined = self.joined(id, factor, parts, Tensor { name, shape, ..tensor });
        self.made.insert(key, joined);
        joined
    }

    fn part_of_whole(&mut self, id: TensorId, factor: usize, at: Interval) -> TensorId {
        let module = &self.forms.graph.op(self.now.op).module;
        let key = ValueKey::Part(id, factor, (at.lo, at.hi), module);
        if let Some(known) = self.made.get(&key) {
            return *known;
        }
        let part = self.interval_of(id, factor, at);
        self.made.insert(key, part);
        part
    }

    /// An interval of a whole value.
    fn interval_of(&mut self, id: TensorId, factor: usize, Interval { lo, hi }: Interval) -> TensorId {
        let (whole, tensor, at) = (self.whole(id), self.forms.graph.tensor(id).clone(), self.at(id, factor));
        let tokens = tensor.shape[at.dim] / at.outer / at.inner;
        if (lo, hi) == (0, tokens) {
            return whole;
        }
        let opened = self.opened(whole, &tensor, &at, tokens);
        let dim = at.opened_dim();
        let mut shape = self.new.tensor(opened).shape.clone();
        shape[dim] = hi - lo;
        let args = vec![Arg::Tensor(opened), Arg::Int(dim as i64), Arg::Int(lo), Arg::Int(hi)];
        let name = self.free(&tensor.name, self.now.slice);
        let like = at.is_whole().then_some(id);
        let cut = self.step("aten.slice.Tensor", args, Tensor { name, shape, ..tensor.clone() }, like);
        let mut closed = tensor.shape.clone();
        closed[at.dim] = at.outer * (hi - lo) * at.inner;
        let name = self.free(&tensor.name, self.now.slice);
        self.closed(cut, id, &at, Tensor { name, shape: closed, ..tensor })
    }

    /// Slices that follow each other along a factor, under a name of their own.
    fn joined(&mut self, id: TensorId, factor: usize, parts: Vec<TensorId>, to: Tensor) -> TensorId {
        let at = self.at(id, factor);
        let mut opened = vec![];
        for part in parts {
            let tensor = self.new.tensor(part).clone();
            let tokens = tensor.shape[at.dim] / at.outer / at.inner;
            opened.push(self.opened(part, &tensor, &at, tokens));
        }
        let dim = at.opened_dim();
        let mut shape = self.new.tensor(opened[0]).shape.clone();
        shape[dim] = opened.iter().map(|part| self.new.tensor(*part).shape[dim]).sum();
        let args = vec![Arg::List(opened.into_iter().map(Arg::Tensor).collect()), Arg::Int(dim as i64)];
        if at.is_whole() {
            return self.step("aten.cat.default", args, Tensor { shape, ..to }, Some(id));
        }
        let name = self.free(&to.name, self.now.slice);
        let joined = self.step("aten.cat.default", args, Tensor { name, shape, ..to.clone() }, None);
        self.closed(joined, id, &at, to)
    }

    /// The factor as a dim of its own, if it is not one.
    fn opened(&mut self, value: TensorId, tensor: &Tensor, at: &FactorPlace, tokens: i64) -> TensorId {
        if at.is_whole() {
            return value;
        }
        let mut shape = tensor.shape.clone();
        let outer = Some(at.outer).filter(|size| *size != 1);
        let inner = Some(at.inner).filter(|size| *size != 1);
        shape.splice(at.dim..=at.dim, outer.into_iter().chain([tokens]).chain(inner));
        let name = self.free(&tensor.name, self.now.slice);
        self.viewed(value, Tensor { name, shape, ..tensor.clone() }, None)
    }

    fn closed(&mut self, value: TensorId, id: TensorId, at: &FactorPlace, to: Tensor) -> TensorId {
        if at.is_whole() { value } else { self.viewed(value, to, Some(id)) }
    }

    fn viewed(&mut self, value: TensorId, to: Tensor, like: Option<TensorId>) -> TensorId {
        let sizes = Arg::List(to.shape.iter().map(|size| Arg::Int(*size)).collect());
        self.step("aten.reshape.default", vec![Arg::Tensor(value), sizes], to, like)
    }

    fn at(&self, id: TensorId, factor: usize) -> FactorPlace {
        let mut left = factor;
        for (dim, factors) in self.forms.analysis.factors[id.index()].iter().enumerate() {
            if left < factors.len() {
                let (outer, inner) = (&factors[..left], &factors[left + 1..]);
                return FactorPlace { dim, outer: outer.iter().product(), inner: inner.iter().product() };
            }
            left -= factors.len();
        }
        unreachable!("a factor is one of its tensor's")
    }

    // What is executed.

    fn here(&self) -> Interval {
        self.forms.slices.interval(self.now.slice)
    }

    fn part_of(&self, op: OpId, index: usize) -> Part {
        let mut at = self.forms.analysis.op(op).whole();
        at[index] = self.here();
        self.forms.analysis.part(self.forms.graph, op, &at, true, 0)
    }

    fn rule_call(&self, op: OpId, part: &Part) -> LocalOp {
        let rule = self.forms.analysis.rules[op.index()].as_ref();
        families::executed(View::new(self.forms.graph, op), rule, part)
    }

    /// What the rule says, in operators of the model: the runtime's own are for parts of these.
    fn executed(&self, op: OpId, part: &Part) -> LocalOp {
        let (local, it) = (self.rule_call(op, part), self.forms.graph.op(op));
        if local.target.starts_with("sw.") && local.target != it.target { unchanged(it) } else { local }
    }

    /// The operands of this slice.
    fn read_along(&mut self, op: OpId, index: usize) -> Vec<TensorId> {
        let inputs = self.forms.graph.op(op).inputs();
        let carried = &self.forms.analysis.op(op).inputs;
        let along = carried.iter().map(|carried| carried.iter().position(|it| *it == Some(index)));
        let slice = self.now.slice;
        let one = |(id, factor): (TensorId, Option<usize>)| match factor {
            Some(factor) => self.slice(id, factor, slice),
            None => self.whole(id),
        };
        inputs.into_iter().zip(along.collect::<Vec<_>>()).map(one).collect()
    }

    fn slices_of(&mut self, op: OpId, shape: impl Fn(&Tensor, usize) -> Vec<i64>) -> Vec<Option<TensorId>> {
        let old = self.forms.graph.op(op).outputs.clone();
        let mut made = vec![];
        for (number, id) in old.into_iter().enumerate() {
            let new = id.map(|id| {
                let tensor = self.forms.graph.tensor(id).clone();
                let (name, shape) = (self.free(&tensor.name, self.now.slice), shape(&tensor, number));
                self.tensor(Tensor { name, shape, ..tensor }, Some(id))
            });
            made.push(new);
        }
        made
    }

    fn note(&mut self, op: OpId, outputs: &[Option<TensorId>], key: impl Fn(TensorId) -> ValueKey<'a>) {
        let old = &self.forms.graph.op(op).outputs;
        let pairs = old.iter().zip(outputs).filter_map(|(old, new)| Some((key((*old)?), (*new)?)));
        self.made.extend(pairs);
    }

    fn note_slices(&mut self, op: OpId, outputs: &[Option<TensorId>]) {
        let (forms, slice) = (self.forms, self.now.slice);
        let factor = |id: TensorId| forms.cut_along(id).expect("it is in slices");
        self.note(op, outputs, |id| ValueKey::Slice(id, factor(id), slice));
    }

    // The new graph.

    fn tensor(&mut self, tensor: Tensor, like: Option<TensorId>) -> TensorId {
        let id = TensorId::new(self.new.tensors.len());
        self.new.tensors.push(tensor);
        self.likes.push(like);
        id
    }

    fn step(&mut self, target: &str, args: Vec<Arg>, to: Tensor, like: Option<TensorId>) -> TensorId {
        self.step_with(target, args, vec![], to, like)
    }

    fn step_with(
        &mut self,
        target: &str,
        args: Vec<Arg>,
        kwargs: Vec<(String, Arg)>,
        to: Tensor,
        like: Option<TensorId>,
    ) -> TensorId {
        let made = self.tensor(to, like);
        let origin = self.forms.graph.op(self.now.op);
        let op = Op {
            target: target.into(),
            args,
            kwargs,
            outputs: vec![Some(made)],
            order: vec![],
            ..origin.clone()
        };
        self.push(op);
        made
    }

    fn append(&mut self, op: OpId, local: &LocalOp, read: &[TensorId], outputs: Vec<Option<TensorId>>) {
        let args = local.args.iter().map(|it| arg(it, read)).collect();
        let kwargs = local.kwargs.iter().map(|(name, it)| (name.clone(), arg(it, read))).collect();
        let target = local.target.clone();
        self.push(Op { target, args, kwargs, outputs, ..self.forms.graph.op(op).clone() });
    }

    fn push(&mut self, op: Op) {
        let number = OpId::new(self.new.ops.len());
        for (output, id) in op.outputs.iter().enumerate() {
            if let Some(id) = id {
                self.new.tensors[id.index()].source = Source::Op { op: number, output };
            }
        }
        self.new.ops.push(op);
        self.pieces.push(self.now);
    }

    /// A name that no other value has.
    fn free(&mut self, name: &str, slice: usize) -> String {
        let mut free = format!("{name}_{slice}");
        while !self.taken.insert(free.clone()) {
            free = format!("{free}_{slice}");
        }
        free
    }
}

impl FactorPlace {
    /// Where the tokens are once they are a dim of their own.
    fn opened_dim(&self) -> usize {
        self.dim + usize::from(self.outer != 1)
    }

    fn is_whole(&self) -> bool {
        self.outer == 1 && self.inner == 1
    }
}

fn arg(local: &LocalArg, read: &[TensorId]) -> Arg {
    match local {
        LocalArg::None => Arg::None,
        LocalArg::Bool(value) => Arg::Bool(*value),
        LocalArg::Int(value) => Arg::Int(*value),
        LocalArg::Float(value) => Arg::Float(*value),
        LocalArg::Str(value) => Arg::Str(value.clone()),
        LocalArg::Dtype(value) => Arg::Dtype(*value),
        LocalArg::Input(at) => Arg::Tensor(read[*at]),
        LocalArg::List(items) => Arg::List(items.iter().map(|item| arg(item, read)).collect()),
    }
}

/// Sets an argument, given by position or by keyword.
fn set(local: &mut LocalOp, position: usize, name: &str, value: LocalArg) {
    let known = local.kwargs.iter().position(|(key, _)| key == name);
    match (local.args.get_mut(position), known) {
        (Some(arg), _) => *arg = value,
        (None, Some(at)) => local.kwargs[at].1 = value,
        (None, None) => local.kwargs.push((name.into(), value)),
    }
}
