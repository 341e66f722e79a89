//! One form for programs that are the same up to names and numbers of bufs.

use std::collections::HashSet;

use graph::{OpId, TensorId};
use program::{Arg, Body, BufId, Call, Instr, LocalOp, Pass, Program};

/// The program as [`crate::read()`] would number it, without the hints that text does not hold: names
/// of bufs and holes, operators, and tensors of bufs that calls and their backward make.
///
/// Two programs are the same code if these are equal.
#[must_use]
pub fn canonical(program: &Program) -> Program {
    let mut program = program.clone();
    for role in &mut program.roles {
        role.body = body(&role.body);
    }
    program
}

fn body(old: &Body) -> Body {
    let mut new = old.clone();
    let mut order = Order { new: vec![None; old.bufs.len()], bufs: vec![], kept: vec![], old, told: true };
    let mut leaves = false;
    for code in &mut new.codes {
        code.takes.iter_mut().for_each(|buf| order.define(buf));
        if code.pass >= Pass::Forward && !leaves {
            new.leaves.iter_mut().for_each(|leaf| order.define(&mut leaf.buf));
            leaves = true;
        }
        code.instrs.iter_mut().for_each(|instr| order.instr(instr));
        code.gives.iter_mut().flatten().for_each(|buf| order.define(buf));
    }
    new.bufs = order.bufs;
    new.holes = (0..old.holes.len()).map(|index| format!("hole_{index}")).collect();
    new
}

struct Order<'a> {
    new: Vec<Option<BufId>>,
    bufs: Vec<program::Buf>,
    kept: Vec<Vec<BufId>>,
    old: &'a Body,
    /// Whether the text tells the tensors of the bufs that come now.
    told: bool,
}

impl Order<'_> {
    /// The new number of a buf, which is the next one if it had none.
    fn define(&mut self, buf: &mut BufId) {
        let entry = &mut self.new[buf.index()];
        let id = *entry.get_or_insert(BufId::new(self.bufs.len()));
        if id.index() == self.bufs.len() {
            let mut made = self.old.buf(*buf).clone();
            made.name.clear();
            if !self.told {
                made.tensor = TensorId(u32::MAX);
            }
            self.bufs.push(made);
        }
        *buf = id;
    }

    /// What is made of a buf that has its number.
    fn like(&mut self, from: &BufId, to: &mut BufId) {
        self.told = self.bufs[from.index()].tensor != TensorId(u32::MAX);
        self.define(to);
        self.told = true;
    }

    fn instr(&mut self, instr: &mut Instr) {
        match instr {
            Instr::Call(call) => self.call(call),
            Instr::Grad(grad) => {
                grad.from.iter_mut().flatten().for_each(|buf| self.define(buf));
                grad.recomputed.iter_mut().for_each(|buf| self.define(buf));
                self.told = false;
                grad.to.iter_mut().flatten().for_each(|buf| self.define(buf));
                self.told = true;
            }
            Instr::Keep { from, .. } => {
                from.iter_mut().for_each(|buf| self.define(buf));
                self.kept.push(from.clone());
            }
            Instr::Take { id, to } => {
                let from = self.kept.get(id.index()).cloned().unwrap_or_default();
                from.iter().zip(to).for_each(|(from, to)| self.like(from, to));
            }
            _ => {
                let mut from = vec![];
                for buf in instr.reads_mut() {
                    self.define(buf);
                    from.push(*buf);
                }
                // What a table brings is of the table's tensor, which the text tells.
                let likes = if instr.exchange().is_some() { &[][..] } else { &from };
                for (at, to) in instr.writes_mut().enumerate() {
                    match likes.get(at) {
                        Some(from) => self.like(from, to),
                        None => self.define(to),
                    }
                }
            }
        }
    }

    /// Inputs that are no leaves keep their order; leaves follow in the order of their first use.
    fn call(&mut self, call: &mut Call) {
        self.told = false;
        call.ops.iter_mut().for_each(|op| self.op(op));
        call.inputs.iter_mut().chain(&mut call.outputs).for_each(|buf| self.define(buf));
        let first = self.old.inputs.len();
        let leaves = first..first + self.old.leaves.len();
        let is_leaf = |buf: &BufId| leaves.contains(&buf.index());
        call.inputs.retain(|buf| !is_leaf(buf));
        let mut seen = HashSet::new();
        let read = call.ops.iter().flat_map(LocalOp::inputs).chain(call.outputs.iter().copied());
        call.inputs.extend(read.filter(|buf| is_leaf(buf) && seen.insert(*buf)));
        self.told = true;
    }

    fn op(&mut self, op: &mut LocalOp) {
        op.op = OpId(u32::MAX);
        op.args.iter_mut().for_each(|arg| self.arg(arg));
        op.kwargs.iter_mut().for_each(|(_, arg)| self.arg(arg));
        op.outputs.iter_mut().flatten().for_each(|buf| self.define(buf));
    }

    fn arg(&mut self, arg: &mut Arg) {
        match arg {
            Arg::Buf(buf) => self.define(buf),
            Arg::List(items) => items.iter_mut().for_each(|item| self.arg(item)),
            _ => {}
        }
    }
}
