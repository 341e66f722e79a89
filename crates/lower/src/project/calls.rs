//! Calls of local code, and their backward.

use std::collections::HashMap;

use graph::{OpId, TensorId};
use program::{Arg, BufId, Call, CallId, Grad, Instr, LocalOp};
use rules::families::{self, View};
use rules::local::{self, LocalArg};

use super::{Made, Owner, Projector};
use crate::uses::{Reader, UseId};

/// One sub-operator of a segment on this rank.
#[derive(Clone, Copy)]
struct Item {
    op: OpId,
    sub: usize,
    slot: usize,
}

impl Projector<'_> {
    pub(super) fn call(&mut self, segment: usize) {
        let items = self.items(segment);
        let mut made = vec![];
        for group in self.pieces(segment, &items) {
            made.push(self.piece(segment, &group));
        }
        self.made.insert(segment, made);
    }

    fn items(&self, segment: usize) -> Vec<Item> {
        let mut items = vec![];
        for &op in &self.global.segments.all[segment].ops {
            let placement = &self.global.cx.placements[op.index()];
            items.extend(placement.on(self.rank).enumerate().map(|(slot, sub)| Item { op, sub, slot }));
        }
        items
    }

    /// Parts that run one after another are calls of their own; everything else is one call.
    fn pieces(&self, segment: usize, items: &[Item]) -> Vec<Vec<Item>> {
        let ops = &self.global.segments.all[segment].ops;
        let in_turn = ops.iter().any(|op| self.global.cx.placements[op.index()].in_turn);
        if !in_turn || items.is_empty() {
            return if items.is_empty() { vec![] } else { vec![items.to_vec()] };
        }
        let mut parent: Vec<usize> = (0..items.len()).collect();
        let mut maker: HashMap<(TensorId, usize), usize> = HashMap::new();
        for (index, item) in items.iter().enumerate() {
            for (id, port, _) in self.reads(item).into_iter().flatten() {
                let it = self.global.uses.get(id);
                if it.direct {
                    if let Some(&from) = maker.get(&(it.tensor, self.direct_entry(id, port))) {
                        let (a, b) = (root(&parent, from), root(&parent, index));
                        parent[a.max(b)] = a.min(b);
                    }
                }
            }
            for written in self.writes(item).into_iter().flatten() {
                maker.insert(written, index);
            }
        }
        let mut groups: Vec<(usize, Vec<Item>)> = vec![];
        for (index, item) in items.iter().enumerate() {
            let root = root(&parent, index);
            match groups.iter_mut().find(|g| g.0 == root) {
                Some(group) => group.1.push(*item),
                None => groups.push((root, vec![*item])),
            }
        }
        groups.into_iter().map(|g| g.1).collect()
    }

    /// The use and port of each input of a part, and whether it gives a gradient back; `None` for an operand
    /// it is not given.
    fn reads(&self, item: &Item) -> Vec<Option<(UseId, usize, bool)>> {
        let cx = self.global.cx;
        let placement = &cx.placements[item.op.index()];
        (cx.graph.op(item.op).inputs().into_iter().zip(&placement.inputs))
            .map(|(tensor, read)| {
                let id = self.global.uses.through(tensor, read.ports, read.carries_grad);
                read.port[item.sub].map(|port| (id, port, read.carries_grad))
            })
            .collect()
    }

    /// The tensor and shard of each output of a part.
    fn writes(&self, item: &Item) -> Vec<Option<(TensorId, usize)>> {
        let cx = self.global.cx;
        let outputs = &cx.placements[item.op.index()].outputs;
        let written = |(tensor, w): (&Option<TensorId>, &Option<crate::place::Written>)| {
            Some(((*tensor)?, w.as_ref()?.entry[item.sub]))
        };
        cx.graph.op(item.op).outputs.iter().zip(outputs).map(written).collect()
    }

    fn piece(&mut self, segment: usize, items: &[Item]) -> Made {
        let id = CallId::new(self.calls);
        self.calls += 1;
        let mut inside: HashMap<BufId, ()> = HashMap::new();
        let mut inputs: Vec<(BufId, Owner)> = vec![];
        let mut outputs: Vec<(TensorId, usize)> = vec![];
        let mut ops = vec![];
        for item in items {
            let mut operands = vec![];
            for read in self.reads(item) {
                let operand = read.map(|(id, port, carries)| {
                    let buf = self.fetch(id, port);
                    if inside.contains_key(&buf) {
                        return buf;
                    }
                    let owner = if carries { self.owner(id, port) } else { Owner::Nobody };
                    self.as_input((id, port), buf, owner, &mut inputs)
                });
                operands.push(operand);
            }
            let mut results = vec![];
            for written in self.writes(item) {
                results.push(written.map(|(tensor, entry)| {
                    let buf = self.buf(tensor, false);
                    self.written.insert((tensor, entry), buf);
                    inside.insert(buf, ());
                    if self.escapes(tensor, segment) {
                        outputs.push((tensor, entry));
                    }
                    buf
                }));
            }
            ops.push(self.local_op(item, &operands, results));
        }
        let in_turn = |i: &Item| self.global.cx.placements[i.op.index()].on(self.rank).len() > 1;
        let learns = outputs.iter().any(|(t, _)| self.global.cx.needs_grad[t.index()]);
        let call = Call {
            id,
            inputs: inputs.iter().map(|i| i.0).collect(),
            outputs: outputs.iter().map(|key| self.written[key]).collect(),
            ops,
            recompute: learns && items.iter().any(in_turn),
        };
        self.push(Instr::Call(call));
        Made { id, outputs, inputs }
    }

    /// A call's input; where one buffer would give gradients to two owners, the second gets a name of
    /// its own.
    fn as_input(
        &mut self,
        (id, port): (UseId, usize),
        buf: BufId,
        owner: Owner,
        inputs: &mut Vec<(BufId, Owner)>,
    ) -> BufId {
        if let Some((known, _)) = inputs.iter().find(|(_, o)| *o == owner && owner != Owner::Nobody) {
            return *known;
        }
        match inputs.iter_mut().find(|(b, _)| *b == buf) {
            Some((_, o)) if *o == owner || owner == Owner::Nobody => buf,
            Some((_, o)) if *o == Owner::Nobody => {
                *o = owner;
                buf
            }
            Some(_) => {
                let it = self.global.uses.get(id);
                let region = self.global.interner.get_ports(it.ports).entries[port].region.clone();
                let to = self.buf(it.tensor, false);
                let slice = self.slice_of(id, buf, to, &region, &region);
                self.push(Instr::Slice(slice));
                inputs.push((to, owner));
                to
            }
            None => {
                inputs.push((buf, owner));
                buf
            }
        }
    }

    fn escapes(&self, tensor: TensorId, segment: usize) -> bool {
        let uses = &self.global.uses;
        let stays = |reader: &Reader| match reader {
            Reader::Op(op, _) => self.global.segments.of[op.index()] == segment,
            _ => false,
        };
        !uses.of[tensor.index()]
            .iter()
            .all(|id| uses.get(*id).direct && uses.get(*id).readers.iter().all(stays))
    }

    fn local_op(&mut self, item: &Item, operands: &[Option<BufId>], outputs: Vec<Option<BufId>>) -> LocalOp {
        let cx = self.global.cx;
        let view = View::new(cx.graph, item.op);
        let slot = i64::try_from(item.slot).unwrap_or(0);
        let local = match &cx.analysis.rules[item.op.index()] {
            None => local::unchanged(view.op),
            Some(rule) => {
                let sub = &cx.placements[item.op.index()].subs[item.sub];
                let part = cx.analysis.part(cx.graph, item.op, &sub.at, sub.first, slot);
                families::local_of(view, rule, &part)
            }
        };
        if is_random(&local.target) {
            self.random_region(item);
        }
        let args = local.args.iter().map(|a| arg(a, operands)).collect();
        let kwargs = local.kwargs.iter().map(|(k, a)| (k.clone(), arg(a, operands))).collect();
        LocalOp { op: item.op, target: local.target, args, kwargs, outputs, no_grad: view.op.no_grad }
    }

    fn random_region(&mut self, item: &Item) {
        let Some((tensor, entry)) = self.writes(item).into_iter().flatten().next() else { return };
        let layout = self.global.interner.get(self.global.uses.written[tensor.index()]);
        let region = layout.entries[entry].region.clone();
        match self.table.random.iter_mut().find(|(op, _)| *op == item.op) {
            Some((_, slots)) => slots.push(region),
            None => self.table.random.push((item.op, vec![region])),
        }
    }

    pub(super) fn grad(&mut self, segment: usize) {
        for made in self.made.remove(&segment).unwrap_or_default().into_iter().rev() {
            let needs = |t: TensorId| self.global.cx.needs_grad[t.index()];
            let learning: Vec<(TensorId, usize)> =
                made.outputs.iter().copied().filter(|(t, _)| needs(*t)).collect();
            if learning.is_empty() {
                continue;
            }
            let mut from = vec![];
            for (tensor, entry) in learning {
                from.push(self.gradient(Owner::Written(tensor, entry), tensor));
            }
            let mut to = vec![];
            for (buf, owner) in &made.inputs {
                let tensor = self.body.bufs[buf.index()].tensor;
                let leaf = self.body.leaves.iter().any(|leaf| leaf.buf == *buf);
                if *owner != Owner::Nobody {
                    let grad = self.buf(tensor, true);
                    self.gradients.entry(*owner).or_default().push(grad);
                    to.push(Some(grad));
                } else if !leaf && self.global.cx.needs_grad[tensor.index()] {
                    to.push(None);
                }
            }
            self.push(Instr::Grad(Grad { call: made.id, from, to }));
        }
    }
}

fn root(parent: &[usize], mut node: usize) -> usize {
    while parent[node] != node {
        node = parent[node];
    }
    node
}

fn arg(a: &LocalArg, operands: &[Option<BufId>]) -> Arg {
    match a {
        LocalArg::None => Arg::None,
        LocalArg::Bool(v) => Arg::Bool(*v),
        LocalArg::Int(v) => Arg::Int(*v),
        LocalArg::Float(v) => Arg::Float(*v),
        LocalArg::Str(v) => Arg::Str(v.clone()),
        LocalArg::Dtype(v) => Arg::Dtype(*v),
        LocalArg::Input(position) => operands[*position].map_or(Arg::None, Arg::Buf),
        LocalArg::List(items) => Arg::List(items.iter().map(|i| arg(i, operands)).collect()),
    }
}

/// The runtime's operators that draw random numbers.
fn is_random(target: &str) -> bool {
    matches!(target, "sw.dropout" | "sw.native_dropout" | "sw.attention" | "sw.draw")
}
