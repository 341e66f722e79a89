//! What backward makes once more: calls and moves of forward, on buffers of their own.

use std::collections::{HashMap, HashSet};

use graph::Source;
use program::{Arg, BufId, Call, CallId, Instr, KeepId, Pass, Saves};

use super::Projector;
use super::per_rank::Asked;
use crate::event::ReshardPath;
use crate::uses::UseId;

/// Something that forward did, and backward may do again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Begun {
    Call(CallId),
    Move(UseId),
}

/// An instruction of a block's forward, or its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ForwardPlace {
    block: u32,
    at: usize,
}

#[derive(Default)]
pub(super) struct Recomputed {
    /// In which block's forward it begins, and where in it.
    begun: HashMap<Begun, ForwardPlace>,
    /// What was made again, by what it was in forward.
    made: HashMap<BufId, BufId>,
    /// What was taken, for what is made again now.
    taken: HashMap<BufId, BufId>,
    /// Before which instruction of forward something is kept, and what.
    kept: Vec<(ForwardPlace, Vec<BufId>)>,
    /// Calls of forward of which the plan says that what is kept goes to the host.
    offloaded: HashSet<CallId>,
    /// Whether values are moved now, in backward.
    pub(super) moves: bool,
}

impl Recomputed {
    /// What is made again later takes what it needs itself, even if that is the same: so layers stay alike.
    pub(super) fn drop_taken(&mut self) {
        self.taken.clear();
    }

    pub(super) fn goes(&mut self, call: CallId) {
        self.offloaded.insert(call);
    }
}

impl Projector<'_> {
    pub(super) fn begins(&mut self, what: Begun) {
        let at = self.body.code(self.block, Pass::Forward).map_or(0, |code| code.instrs.len());
        self.recomputed.begun.insert(what, ForwardPlace { block: self.block, at });
    }

    pub(super) fn recompute_call(&mut self, segment: usize, saves: bool) -> Asked<()> {
        let mut all = self.made.remove(&segment).unwrap_or_default();
        for made in &mut all {
            let id = self.recomputed_value(made.first, saves);
            if saves {
                made.id = id;
            }
        }
        self.made.insert(segment, all);
        Ok(())
    }

    /// Makes a call of forward once more, keeping what its backward needs or not.
    pub(super) fn recomputed_value(&mut self, first: CallId, saves: bool) -> CallId {
        let begun = self.recomputed.begun[&Begun::Call(first)];
        let Instr::Call(mut call) = self.body.code_mut(begun.block, Pass::Forward).instrs[begun.at].clone()
        else {
            unreachable!("a call begins with itself")
        };
        let reads: Vec<BufId> =
            call.inputs.iter().copied().filter(|buf| !self.leaf_of.contains_key(buf)).collect();
        self.take(begun, &reads);
        for output in call.ops.iter().flat_map(|op| &op.outputs).flatten() {
            let fresh = self.body.another(*output);
            self.recomputed.made.insert(*output, fresh);
        }
        self.renamed(&mut call);
        let learns = |buf: &BufId| self.global.cx.needs_grad[self.body.buf(*buf).tensor.index()];
        let saves = saves || !call.outputs.iter().any(learns);
        call.saves = if saves { Saves::All { offloaded: false } } else { Saves::Nothing };
        call.id = CallId::new(self.calls);
        self.calls += 1;
        let id = call.id;
        self.push(Instr::Call(call));
        id
    }

    /// What a call of forward reads, leaves apart, as it was made again or is taken.
    pub(super) fn read_recomputed(&mut self, first: CallId) -> Vec<BufId> {
        let begun = self.recomputed.begun[&Begun::Call(first)];
        let Instr::Call(call) = &self.body.code_mut(begun.block, Pass::Forward).instrs[begun.at] else {
            unreachable!("a call begins with itself")
        };
        let inputs = call.inputs.clone();
        let reads: Vec<BufId> = inputs.into_iter().filter(|buf| !self.leaf_of.contains_key(buf)).collect();
        self.take(begun, &reads);
        reads.into_iter().map(|buf| self.now(buf)).collect()
    }

    pub(super) fn recompute_transfer(&mut self, id: UseId, path: &ReshardPath) -> Asked<()> {
        let sources = self.written_for(id, path)?;
        let reads: Vec<BufId> = sources.iter().map(|(_, buf)| *buf).collect();
        self.take(self.recomputed.begun[&Begun::Move(id)], &reads);
        let sources = sources.into_iter().map(|(shard, buf)| (shard, self.now(buf))).collect();
        let arrives = self.role_ranks.arrives(self.global.uses.get(id).ports, path.to)?;
        self.recomputed.moves = true;
        let arrived = self.run(id, path, sources);
        self.recomputed.moves = false;
        for (shard, buf) in arrived? {
            for port in &arrives[shard] {
                let before = self.ports[&(id, *port)];
                self.recomputed.made.insert(before, buf);
            }
        }
        Ok(())
    }

    /// Takes what is read of forward and was not made again.
    fn take(&mut self, place: ForwardPlace, reads: &[BufId]) {
        let there =
            |buf: &BufId| self.recomputed.made.contains_key(buf) || self.recomputed.taken.contains_key(buf);
        let mut from: Vec<BufId> = vec![];
        for buf in reads {
            if !there(buf) && !from.contains(buf) {
                from.push(*buf);
            }
        }
        if from.is_empty() {
            return;
        }
        let to: Vec<BufId> = from.iter().map(|buf| self.body.another(*buf)).collect();
        self.recomputed.taken.extend(from.iter().copied().zip(to.iter().copied()));
        let id = KeepId::new(self.recomputed.kept.len());
        self.recomputed.kept.push((place, from));
        self.push(Instr::Take { id, to });
    }

    /// What stands in backward for a value of forward.
    fn now(&self, buf: BufId) -> BufId {
        let recomputed = &self.recomputed;
        recomputed.made.get(&buf).or(recomputed.taken.get(&buf)).copied().unwrap_or(buf)
    }

    fn renamed(&self, call: &mut Call) {
        for op in &mut call.ops {
            let args = op.args.iter_mut().chain(op.kwargs.iter_mut().map(|(_, arg)| arg));
            args.for_each(|arg| self.in_arg(arg));
            op.outputs.iter_mut().flatten().for_each(|buf| *buf = self.now(*buf));
        }
        call.inputs.iter_mut().chain(&mut call.outputs).for_each(|buf| *buf = self.now(*buf));
    }

    fn in_arg(&self, arg: &mut Arg) {
        match arg {
            Arg::Buf(buf) => *buf = self.now(*buf),
            Arg::List(items) => items.iter_mut().for_each(|item| self.in_arg(item)),
            _ => {}
        }
    }

    /// Keeps in forward what backward takes, each where it is read first; numbered in this order.
    pub(super) fn keep(&mut self) {
        let kept = std::mem::take(&mut self.recomputed.kept);
        if kept.is_empty() {
            return;
        }
        let mut order: Vec<usize> = (0..kept.len()).collect();
        order.sort_by_key(|&number| kept[number].0);
        let mut new = vec![KeepId(0); kept.len()];
        order.iter().enumerate().for_each(|(id, &number)| new[number] = KeepId::new(id));
        let offloads: Vec<bool> = kept.iter().map(|(place, from)| self.offloads(*place, from)).collect();
        let made = |number: usize| Instr::Keep {
            id: new[number],
            from: kept[number].1.clone(),
            offloads: offloads[number],
        };
        let mut next = order.iter().peekable();
        for code in self.body.codes.iter_mut().filter(|code| code.pass == Pass::Forward) {
            let mut all = Vec::with_capacity(code.instrs.len() + kept.len());
            let last = code.instrs.len();
            let mut keep = |at: usize, all: &mut Vec<Instr>| {
                while let Some(&number) =
                    next.next_if(|number| kept[**number].0 == ForwardPlace { block: code.block, at })
                {
                    all.push(made(number));
                }
            };
            for (at, instr) in std::mem::take(&mut code.instrs).into_iter().enumerate() {
                keep(at, &mut all);
                all.push(instr);
            }
            keep(last, &mut all);
            code.instrs = all;
        }
        for code in self.body.codes.iter_mut().filter(|code| code.pass == Pass::Backward) {
            for instr in &mut code.instrs {
                if let Instr::Take { id, .. } = instr {
                    *id = new[id.index()];
                }
            }
        }
    }

    /// Whether what is kept at a place of forward goes to the host: it is made there, for the call that follows.
    fn offloads(&self, place: ForwardPlace, from: &[BufId]) -> bool {
        let made = |buf: &BufId| {
            let tensor = self.body.buf(*buf).tensor;
            matches!(self.global.cx.graph.tensor(tensor).source, Source::Op { .. })
        };
        let call = |instr: &Instr| if let Instr::Call(call) = instr { Some(call.id) } else { None };
        let forward = self.body.code(place.block, Pass::Forward).map_or(&[][..], |code| &code.instrs);
        let reader = forward[place.at.min(forward.len())..].iter().find_map(call);
        reader.is_some_and(|call| self.recomputed.offloaded.contains(&call)) && from.iter().any(made)
    }
}
