//! Calls of local code, and their backward.

use std::collections::HashMap;
use std::rc::Rc;

use graph::{OpId, TensorId};
use program::{Arg, BufId, Call, CallId, Grad, Instr, LocalOp, PerRank, Saves, Which};
use rules::families::{self, View};
use rules::local::{self, LocalArg};
use rules::{Kind, Rule};

use super::per_rank::{Asked, NumbersId, agreed};
use super::recomputed::Begun;
use super::{MadeCall, Owner, Projector};
use crate::placement::Placement;
use crate::uses::{TensorReader, UseId};

/// One part of an operator of a segment: the first, second, ... on its rank.
#[derive(Clone, Copy)]
struct Item {
    op: OpId,
    slot: usize,
}

/// The parts of operators that execute the same, by placement, slot, and the dims of which it matters where
/// a part begins.
#[derive(Default)]
pub(super) struct Variants {
    known: HashMap<(*const Placement, usize, Vec<bool>), Rc<Alternatives>>,
    per_rank: HashMap<(*const Alternatives, Vec<i64>), NumbersId>,
}

/// Which of several things each rank's part executes.
struct Alternatives {
    of: Vec<usize>,
    /// One part of each, among all parts of the placement.
    parts: Vec<usize>,
}

impl Projector<'_> {
    pub(super) fn call(&mut self, segment: usize) -> Asked<()> {
        let items = self.items(segment)?;
        let mut made = vec![];
        for group in self.pieces(segment, &items)? {
            made.push(self.piece(segment, &group)?);
        }
        self.made.insert(segment, made);
        Ok(())
    }

    fn items(&mut self, segment: usize) -> Asked<Vec<Item>> {
        let mut items = vec![];
        for &op in &self.global.segments.all[segment].ops {
            let parts = self.role_ranks.parts(&self.global.cx.placements[op.index()])?.parts.len();
            items.extend((0..parts).map(|slot| Item { op, slot }));
        }
        Ok(items)
    }

    /// Parts that run one after another are calls of their own; everything else is one call.
    fn pieces(&mut self, segment: usize, items: &[Item]) -> Asked<Vec<Vec<Item>>> {
        let ops = &self.global.segments.all[segment].ops;
        let in_turn = ops.iter().any(|op| self.global.cx.placements[op.index()].in_turn);
        if !in_turn || items.is_empty() {
            return Ok(if items.is_empty() { vec![] } else { vec![items.to_vec()] });
        }
        let mut parent: Vec<usize> = (0..items.len()).collect();
        let mut maker: HashMap<(TensorId, usize), usize> = HashMap::new();
        for (index, item) in items.iter().enumerate() {
            for (id, port, _) in self.reads(item)?.into_iter().flatten() {
                let it = self.global.uses.get(id);
                if it.direct {
                    let shard = self.direct_shard(id, port)?;
                    if let Some(&from) = maker.get(&(it.tensor, shard)) {
                        let (a, b) = (root(&parent, from), root(&parent, index));
                        parent[a.max(b)] = a.min(b);
                    }
                }
            }
            for written in self.writes(item)?.into_iter().flatten() {
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
        Ok(groups.into_iter().map(|g| g.1).collect())
    }

    /// The use and port of each input of a part, and whether it gives a gradient back; `None` for an operand
    /// it is not given.
    fn reads(&mut self, item: &Item) -> Asked<Vec<Option<(UseId, usize, bool)>>> {
        let cx = self.global.cx;
        let placement = &cx.placements[item.op.index()];
        let here = self.role_ranks.parts(placement)?;
        let reads = placement.inputs.iter().zip(&here.parts[item.slot].reads);
        let uses = (cx.graph.op(item.op).inputs().into_iter().zip(reads)).map(|(tensor, (read, port))| {
            let id = self.global.uses.through(tensor, read.ports, read.carries_grad);
            port.map(|port| (id, port, read.carries_grad))
        });
        Ok(uses.collect())
    }

    /// The tensor and shard of each output of a part.
    fn writes(&mut self, item: &Item) -> Asked<Vec<Option<(TensorId, usize)>>> {
        let cx = self.global.cx;
        let here = self.role_ranks.parts(&cx.placements[item.op.index()])?;
        let written = |(tensor, shard): (&Option<TensorId>, &Option<usize>)| Some(((*tensor)?, (*shard)?));
        Ok(cx.graph.op(item.op).outputs.iter().zip(&here.parts[item.slot].writes).map(written).collect())
    }

    fn piece(&mut self, segment: usize, items: &[Item]) -> Asked<MadeCall> {
        let id = CallId::new(self.calls);
        self.calls += 1;
        let mut inside: HashMap<BufId, ()> = HashMap::new();
        let mut inputs: Vec<(BufId, Owner)> = vec![];
        let mut outputs: Vec<(TensorId, usize)> = vec![];
        let mut ops = vec![];
        for item in items {
            let mut operands = vec![];
            for read in self.reads(item)? {
                let Some((id, port, carries)) = read else {
                    operands.push(None);
                    continue;
                };
                let mut buf = self.fetch(id, port)?;
                if !inside.contains_key(&buf) {
                    let owner = if carries { self.owner(id, port)? } else { Owner::Nobody };
                    buf = self.as_input(id, port, buf, owner, &mut inputs)?;
                }
                operands.push(Some(buf));
            }
            let mut results = vec![];
            for written in self.writes(item)? {
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
            ops.push(self.local_op(item, &operands, results)?);
        }
        let learns = outputs.iter().any(|(t, _)| self.global.cx.needs_grad[t.index()]);
        let segment = &self.global.segments.all[segment];
        if segment.offloaded.is_some() {
            self.recomputed.goes(id);
        }
        // A part may need none of the values that its operator reads, as one without what is added once.
        let reads_values = inputs.iter().any(|(buf, _)| !self.leaf_of.contains_key(buf));
        let saves = match segment.saves {
            _ if !learns => Saves::All { offloaded: false },
            Saves::Made { offloaded } if !reads_values => Saves::All { offloaded },
            saves => saves,
        };
        let call = Call {
            id,
            inputs: inputs.iter().map(|i| i.0).collect(),
            outputs: outputs.iter().map(|key| self.written[key]).collect(),
            ops,
            saves,
        };
        self.begins(Begun::Call(id));
        self.push(Instr::Call(call));
        Ok(MadeCall { first: id, id, outputs, inputs })
    }

    /// A call's input; where one buffer would give gradients to two owners, the second gets a name of
    /// its own.
    fn as_input(
        &mut self,
        id: UseId,
        port: usize,
        buf: BufId,
        owner: Owner,
        inputs: &mut Vec<(BufId, Owner)>,
    ) -> Asked<BufId> {
        if let Some((known, _)) = inputs.iter().find(|(_, o)| *o == owner && owner != Owner::Nobody) {
            return Ok(*known);
        }
        Ok(match inputs.iter_mut().find(|(b, _)| *b == buf) {
            Some((_, o)) if *o == owner || owner == Owner::Nobody => buf,
            Some((_, o)) if *o == Owner::Nobody => {
                *o = owner;
                buf
            }
            Some(_) => {
                let it = self.global.uses.get(id);
                let region = self.role_ranks.port(it.ports, port)?;
                let to = self.buf(it.tensor, false);
                let slice = self.slice_of(id, buf, to, region, region);
                self.push(Instr::Slice(slice));
                inputs.push((to, owner));
                to
            }
            None => {
                inputs.push((buf, owner));
                buf
            }
        })
    }

    fn escapes(&self, tensor: TensorId, segment: usize) -> bool {
        let uses = &self.global.uses;
        let stays = |reader: &TensorReader| match reader {
            TensorReader::Op(op, _) => self.global.segments.of[op.index()] == segment,
            _ => false,
        };
        !uses.of[tensor.index()]
            .iter()
            .all(|id| uses.get(*id).direct && uses.get(*id).readers.iter().all(stays))
    }

    fn local_op(
        &mut self,
        item: &Item,
        operands: &[Option<BufId>],
        outputs: Vec<Option<BufId>>,
    ) -> Asked<LocalOp> {
        let cx = self.global.cx;
        let view = View::new(cx.graph, item.op);
        let (no_grad, rule) = (view.op.no_grad, cx.analysis.rules[item.op.index()].as_ref());
        let (local, numbers) = match rule {
            None => (local::unchanged(view.op), vec![]),
            Some(rule) => self.local_of(item, rule)?,
        };
        if local.is_random() {
            self.random_regions(item.op)?;
        }
        let mut numbers = numbers.into_iter();
        let mut arg = |a: &LocalArg| arg(a, operands, &mut numbers);
        let args = local.args.iter().map(&mut arg).collect();
        let kwargs = local.kwargs.iter().map(|(k, a)| (k.clone(), arg(a))).collect();
        Ok(LocalOp { op: item.op, target: local.target, args, kwargs, outputs, no_grad })
    }

    /// What the ranks' parts execute, and its integers, in order.
    fn local_of(&mut self, item: &Item, rule: &Rule) -> Asked<(local::LocalOp, Vec<Arg>)> {
        let cx = self.global.cx;
        let (view, placement) = (View::new(cx.graph, item.op), &cx.placements[item.op.index()]);
        let alternatives = self.alternatives(item, rule)?;
        let slot = i64::try_from(item.slot).unwrap_or(0);
        let mut locals = vec![];
        for part in &alternatives.parts {
            let sub = &placement.subs[*part];
            let part = cx.analysis.part(cx.graph, item.op, &sub.at, sub.first, slot);
            let mut local = families::local_of(view, rule, &part);
            let ints = local.take_ints();
            locals.push((local, ints));
        }
        agreed(self.role_ranks.ranks, |at| &locals[alternatives.of[at]].0)?;
        let mut numbers = vec![];
        for position in 0..locals[0].1.len() {
            let values: Vec<i64> = locals.iter().map(|(_, ints)| ints[position]).collect();
            numbers.push(self.number(&alternatives, values));
        }
        Ok((locals.swap_remove(0).0, numbers))
    }

    /// A number that parts have by what they execute.
    fn number(&mut self, alternatives: &Rc<Alternatives>, values: Vec<i64>) -> Arg {
        if values.iter().all(|value| *value == values[0]) {
            return Arg::Int(values[0]);
        }
        let key = (Rc::as_ptr(alternatives), values);
        let known = self.variants.per_rank.get(&key).copied();
        let id = known.unwrap_or_else(|| {
            let per_rank = PerRank::from_values(alternatives.of.iter().map(|index| key.1[*index]).collect());
            self.role_ranks.per_rank.number(per_rank)
        });
        self.variants.per_rank.insert(key, id);
        self.role_ranks.per_rank.arg(id)
    }

    /// Parts of one size execute the same. Where a part begins is only told for dims marked `~`, and which one
    /// is the first.
    fn alternatives(&mut self, item: &Item, rule: &Rule) -> Asked<Rc<Alternatives>> {
        let cx = self.global.cx;
        let (dims, placement) = (cx.analysis.op(item.op), &cx.placements[item.op.index()]);
        let begins: Vec<bool> = dims.loops.iter().map(|l| rule.dim(l.dim).contiguous).collect();
        let key = (Rc::as_ptr(placement), item.slot, begins);
        if let Some(known) = self.variants.known.get(&key) {
            return Ok(Rc::clone(known));
        }
        let here = self.role_ranks.parts(placement)?;
        let reduces = |l: usize| matches!(dims.loops[l].kind, Kind::Reduce(_));
        let (mut by_rank, mut parts, mut numbers) = (vec![], vec![], HashMap::new());
        for first in &here.first {
            let sub = &placement.subs[first + item.slot];
            let first_part = sub.first && sub.at.iter().enumerate().all(|(l, i)| !reduces(l) || i.lo == 0);
            let spans = sub.at.iter().zip(&key.2).map(|(i, begins)| (i.len(), begins.then_some(i.lo)));
            let next = parts.len();
            let number = *numbers.entry((first_part, spans.collect::<Vec<_>>())).or_insert(next);
            if number == next {
                parts.push(first + item.slot);
            }
            by_rank.push(number);
        }
        let alternatives = Rc::new(Alternatives { of: by_rank, parts });
        Ok(Rc::clone(self.variants.known.entry(key).or_insert(alternatives)))
    }

    /// The regions that an operator's parts draw for, in the order of the parts, which may run in another.
    fn random_regions(&mut self, op: OpId) -> Asked<()> {
        if self.table.random.iter().any(|(known, _)| *known == op) {
            return Ok(());
        }
        let mut slots = vec![];
        for slot in 0..self.role_ranks.parts(&self.global.cx.placements[op.index()])?.parts.len() {
            let Some((tensor, shard)) = self.writes(&Item { op, slot })?.into_iter().flatten().next() else {
                return Ok(());
            };
            let region = self.role_ranks.shard(self.global.uses.written[tensor.index()], shard)?;
            slots.push(self.role_ranks.per_rank.region(region).clone());
        }
        self.table.random.push((op, slots));
        Ok(())
    }

    /// The backward of a segment's calls, each of which is made again first if forward kept nothing of it, or
    /// is given again what it reads.
    pub(super) fn grad(&mut self, segment: usize, recomputed: bool) -> Asked<()> {
        for mut made in self.made.remove(&segment).unwrap_or_default().into_iter().rev() {
            let needs = |t: TensorId| self.global.cx.needs_grad[t.index()];
            let learning: Vec<(TensorId, usize)> =
                made.outputs.iter().copied().filter(|(t, _)| needs(*t)).collect();
            if learning.is_empty() {
                continue;
            }
            let reads_recomputed =
                recomputed && matches!(self.global.segments.all[segment].saves, Saves::Made { .. });
            if recomputed && !reads_recomputed {
                made.id = self.recomputed_value(made.first, true);
            }
            let mut from = vec![];
            for (tensor, entry) in learning {
                from.push(self.gradient(Owner::Written(tensor, entry), tensor));
            }
            let mut to = vec![];
            for (buf, owner) in &made.inputs {
                let tensor = self.body.bufs[buf.index()].tensor;
                let leaf = self.leaf_of.contains_key(buf);
                if *owner != Owner::Nobody {
                    let grad = self.buf(tensor, true);
                    self.gradients.entry(*owner).or_default().push(grad);
                    to.push(Some(grad));
                } else if !leaf && self.global.cx.needs_grad[tensor.index()] {
                    to.push(None);
                }
            }
            let recomputed = if reads_recomputed { self.read_recomputed(made.first) } else { vec![] };
            self.push(Instr::Grad(Grad { call: made.id, which: Which::Both, from, to, recomputed }));
            self.recomputed.drop_taken();
        }
        Ok(())
    }
}

fn root(parent: &[usize], mut node: usize) -> usize {
    while parent[node] != node {
        node = parent[node];
    }
    node
}

fn arg(a: &LocalArg, operands: &[Option<BufId>], numbers: &mut impl Iterator<Item = Arg>) -> Arg {
    match a {
        LocalArg::None => Arg::None,
        LocalArg::Bool(v) => Arg::Bool(*v),
        LocalArg::Int(v) => numbers.next().unwrap_or(Arg::Int(*v)),
        LocalArg::Float(v) => Arg::Float(*v),
        LocalArg::Str(v) => Arg::Str(v.clone()),
        LocalArg::Dtype(v) => Arg::Dtype(*v),
        LocalArg::Input(position) => operands[*position].map_or(Arg::None, Arg::Buf),
        LocalArg::List(items) => Arg::List(items.iter().map(|i| arg(i, operands, numbers)).collect()),
    }
}
