//! How values lie on a rank: which part of each dim it has, and of how many partial results it has one.
//!
//! The tables tell it of what goes in; from there it follows the code, by the rules. It is for comments: what does
//! not follow easily is not known, and nothing rests on it.

use std::collections::{HashMap, HashSet};

use graph::{Graph, OpId, TensorId};
use program::{Arg, Body, BufId, Call, CallId, Collective, Cut, Grad, How, Instr, KeepId, LocalOp, PerRank};
use program::{Pass, Program, Role, Slice};
use rules::families::local_of;
use rules::{Analysis, Interval, LocalArg, On, OpDims, Reduction, Region, View};
use sharding::propagate;

use super::ranks::group_of;
use crate::leaves::Leaves;

/// How one value lies, on every rank of a role.
#[derive(Clone, PartialEq)]
struct ValueSharding {
    /// The length along each factor of the tensor, over all dims.
    lengths: Vec<i64>,
    /// Of so many partial results this is one.
    parts: i64,
}

/// How the values of a role lie.
pub(crate) struct Shardings<'a> {
    graph: &'a Graph,
    factors: &'a [Vec<Vec<i64>>],
    body: &'a Body,
    known: Vec<Option<ValueSharding>>,
}

impl<'a> Shardings<'a> {
    pub(crate) fn new(graph: &'a Graph, analysis: &'a Analysis, program: &Program, role: &'a Role) -> Self {
        let body = &role.body;
        let known = vec![None; body.bufs.len()];
        let shardings = Self { graph, factors: &analysis.factors, body, known };
        let (calls, kept) = Default::default();
        let mut follow = Follow { analysis, program, role, calls, kept, shardings };
        let leaves =
            body.leaves.iter().map(|leaf| leaf.buf).zip(role.table.leaves.iter().map(|leaf| &leaf.1));
        let inputs = body.takes(Pass::Forward).zip(&role.table.inputs);
        leaves.chain(inputs).for_each(|(buf, per_rank)| follow.given(buf, per_rank));
        body.instrs().for_each(|instr| follow.instr(instr));
        follow.shardings
    }

    /// `[64, 8192, 4096/8]`; nothing where it is not known.
    pub(crate) fn shape(&self, buf: BufId) -> Option<String> {
        let sharding = self.known[buf.index()].as_ref()?;
        let mut lengths = sharding.lengths.iter();
        let dim = |factors: &Vec<i64>| {
            let whole: i64 = factors.iter().product();
            share(lengths.by_ref().take(factors.len()).product(), whole)
        };
        let dims: Vec<String> = self.factors(buf)?.iter().map(dim).collect();
        Some(format!("[{}]", dims.join(", ")))
    }

    /// The same for what is divided or partial.
    pub(crate) fn divided(&self, buf: BufId) -> Option<String> {
        let sharding = self.get(buf)?;
        let whole = self.factors(buf)?.iter().flatten().eq(&sharding.lengths);
        match sharding.parts {
            1 if whole => None,
            1 => self.shape(buf),
            parts => Some(format!("{}, partial over {parts}", self.shape(buf)?)),
        }
    }

    /// What a rank holds of parameters and buffers that are divided, layers together, and those that follow each
    /// other and lie alike: `h.*.k.weight, v.weight [1024/8, 4096]`.
    pub(crate) fn held(&self, leaves: &Leaves<'_>) -> Vec<String> {
        const MOST: usize = 16;
        let mut seen = HashSet::new();
        let mut all: Vec<(Vec<String>, String)> = vec![];
        for (at, leaf) in self.body.leaves.iter().enumerate() {
            let Some(shape) = self.divided(leaf.buf) else { continue };
            let name = of_any_layer(leaves.name(at));
            if !seen.insert((name.clone(), shape.clone())) {
                continue;
            }
            match all.last_mut().filter(|(_, other)| *other == shape) {
                Some((names, _)) => names.push(beside(&names[0], &name).to_owned()),
                None => all.push((vec![name], shape)),
            }
        }
        let more = all.len().saturating_sub(MOST);
        let lines = all.into_iter().take(MOST).map(|(names, shape)| format!("{} {shape}", names.join(", ")));
        lines.chain((more > 0).then(|| format!("and {more} more"))).collect()
    }

    pub(crate) fn bytes(&self, buf: BufId) -> Option<i64> {
        let tensor = self.graph.tensors.get(self.body.buf(buf).tensor.index())?;
        let numel: i64 = self.known[buf.index()].as_ref()?.lengths.iter().product();
        i64::try_from(tensor.dtype.bytes()).ok().map(|size| size * numel)
    }

    fn factors(&self, buf: BufId) -> Option<&'a Vec<Vec<i64>>> {
        self.factors.get(self.body.buf(buf).tensor.index())
    }

    fn get(&self, buf: BufId) -> Option<&ValueSharding> {
        self.known[buf.index()].as_ref()
    }

    /// Nothing is known of lengths that are not those of the tensor's factors.
    fn set(&mut self, buf: BufId, new: Option<ValueSharding>) {
        let count = self.factors(buf).map(|dims| dims.iter().map(Vec::len).sum());
        self.known[buf.index()] = new.filter(|sharding| Some(sharding.lengths.len()) == count);
    }
}

/// `h.0.q.weight` as `h.*.q.weight`.
fn of_any_layer(name: &str) -> String {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    name.split('.').map(|part| if number(part) { "*" } else { part }).collect::<Vec<_>>().join(".")
}

/// A name as it is said after another one: without the modules that both are in.
fn beside<'n>(first: &str, name: &'n str) -> &'n str {
    let module = name.match_indices('.').rev().nth(1).map_or(0, |(at, _)| at + 1);
    if first.starts_with(&name[..module]) { &name[module..] } else { name }
}

/// `4096`, the eighth of it `4096/8`, or `5 of 13`.
pub(crate) fn share(length: i64, whole: i64) -> String {
    match length {
        _ if length == whole => whole.to_string(),
        1.. if whole % length == 0 => format!("{whole}/{}", whole / length),
        _ => format!("{length} of {whole}"),
    }
}

struct Follow<'a, 'p> {
    analysis: &'a Analysis,
    program: &'p Program,
    role: &'a Role,
    calls: HashMap<CallId, &'a Call>,
    kept: HashMap<KeepId, Vec<Option<ValueSharding>>>,
    shardings: Shardings<'a>,
}

impl<'a> Follow<'a, '_> {
    /// What all ranks have as much of.
    fn given(&mut self, buf: BufId, per_rank: &PerRank<Region>) {
        let lengths = |region: &Region| -> Vec<i64> { region.0.iter().map(|part| part.len()).collect() };
        let (first, rest) = per_rank.values().split_first().expect("a role has a rank");
        let first = lengths(first);
        let same = rest.iter().all(|other| other.0.iter().map(|part| part.len()).eq(first.iter().copied()));
        self.shardings.set(buf, same.then_some(ValueSharding { lengths: first, parts: 1 }));
    }

    fn instr(&mut self, instr: &'a Instr) {
        match instr {
            Instr::Call(call) => {
                self.calls.insert(call.id, call);
                call.ops.iter().for_each(|op| self.op(op));
            }
            Instr::Grad(grad) => self.grad(grad),
            Instr::Slice(slice) => {
                let sharding = self.slice(slice);
                self.shardings.set(slice.to, sharding);
            }
            Instr::Add { from, to } => {
                let first = from.first().and_then(|buf| self.shardings.get(*buf));
                let sharding = first.filter(|sharding| sharding.parts == 1).cloned();
                self.shardings.set(*to, sharding);
            }
            Instr::Collective(it) => {
                for (from, to) in it.from.iter().zip(&it.to) {
                    let sharding =
                        self.shardings.get(*from).and_then(|sharding| self.collective(it, sharding));
                    self.shardings.set(*to, sharding);
                }
            }
            Instr::Keep { id, from, .. } => {
                let kept = from.iter().map(|buf| self.shardings.get(*buf).cloned()).collect();
                self.kept.insert(*id, kept);
            }
            Instr::Take { id, to } => {
                for (buf, sharding) in to.iter().zip(self.kept.remove(id).unwrap_or_default()) {
                    self.shardings.set(*buf, sharding);
                }
            }
            _ => instr.writes().for_each(|buf| self.shardings.set(buf, None)),
        }
    }

    /// A sub-operator has of its outputs what it has of the loops, which its inputs tell.
    fn op(&mut self, op: &LocalOp) {
        if op.op.index() >= self.analysis.ops.len() {
            return;
        }
        let dims = self.analysis.op(op.op);
        let Some((at, parts)) = self.loops(op, dims) else { return };
        for (made, carried) in op.outputs.iter().zip(&dims.outputs) {
            let Some(made) = made else { continue };
            // What nobody reads may be of any tensor.
            let Some(whole) = self.shardings.factors(*made) else { continue };
            let length =
                |(size, carried): (i64, &Option<usize>)| carried.map_or(Some(size), |loop_of| at[loop_of]);
            let lengths: Option<Vec<i64>> =
                whole.iter().flatten().copied().zip(carried).map(length).collect();
            self.shardings.set(*made, lengths.map(|lengths| ValueSharding { lengths, parts }));
        }
    }

    /// How long each loop is here, as far as inputs tell, and of how many partial results this gives one.
    fn loops(&self, op: &LocalOp, dims: &OpDims) -> Option<(Vec<Option<i64>>, i64)> {
        let mut at: Vec<Option<i64>> = vec![None; dims.loops.len()];
        let mut parts = 1;
        for buf in op.inputs() {
            let sharding = self.shardings.get(buf)?;
            let carried = self.carried(op.op, dims, self.tensor_of(buf))?;
            for (length, loop_of) in sharding.lengths.iter().zip(carried) {
                loop_of.iter().for_each(|it| at[*it] = Some(*length));
            }
            parts = parts.max(sharding.parts);
        }
        if at.contains(&None) {
            let all: Vec<i64> =
                at.iter().zip(&dims.loops).map(|(length, one)| length.unwrap_or(one.size)).collect();
            if self.computes(op, &all) {
                at = all.into_iter().map(Some).collect();
            }
        }
        let is_reduced = |index: &usize| propagate::reduced(dims, On::Loop(*index), Reduction::Sum).is_some();
        for index in (0..at.len()).filter(is_reduced) {
            let size = dims.loops[index].size;
            let length = at[index].unwrap_or(size);
            parts *= (length > 0 && size % length == 0).then(|| size / length)?;
        }
        Some((at, parts))
    }

    /// Whether a sub-operator of so long loops has these arguments.
    fn computes(&self, op: &LocalOp, lengths: &[i64]) -> bool {
        let Some(rule) = &self.analysis.rules[op.op.index()] else { return false };
        let graph = self.shardings.graph;
        let at: Vec<Interval> = lengths.iter().map(|length| Interval::whole(*length)).collect();
        let part = self.analysis.part(graph, op.op, &at, true, 0);
        let wanted = local_of(View::new(graph, op.op), rule, &part);
        wanted.target == op.target
            && wanted.args.len() == op.args.len()
            && wanted.args.iter().zip(&op.args).all(|(wanted, given)| same(wanted, given))
    }

    /// The loops along a tensor that the operator reads, or that it makes step by step.
    fn carried<'d>(&self, op: OpId, dims: &'d OpDims, tensor: TensorId) -> Option<&'d Vec<Option<usize>>> {
        let whole = self.shardings.graph.op(op);
        let read =
            whole.inputs().iter().position(|input| *input == tensor).and_then(|at| dims.inputs.get(at));
        let made = || whole.outputs.iter().position(|made| *made == Some(tensor));
        read.or_else(|| dims.outputs.get(made()?))
    }

    fn tensor_of(&self, buf: BufId) -> TensorId {
        self.role.body.buf(buf).tensor
    }

    /// A gradient lies as what it is the gradient of.
    fn grad(&mut self, grad: &Grad) {
        let Some(call) = self.calls.get(&grad.call) else { return };
        for to in grad.to.iter().flatten() {
            let same = |buf: &&BufId| self.tensor_of(**buf) == self.tensor_of(*to);
            let mut all = call.inputs.iter().filter(same).map(|buf| self.shardings.get(*buf));
            let first = all.next().flatten().cloned();
            let sharding = first.filter(|one| all.all(|other| other == Some(one)));
            self.shardings.set(*to, sharding);
        }
    }

    fn slice(&self, slice: &Slice) -> Option<ValueSharding> {
        let from = self.shardings.get(slice.from)?;
        let number = |arg: &Arg| if let Arg::Int(value) = arg { Some(*value) } else { None };
        let length = |(lo, hi): &(Arg, Arg)| Some(number(hi)? - number(lo)?);
        let lengths: Option<Vec<i64>> = slice.region.iter().map(length).collect();
        Some(ValueSharding { lengths: lengths?, ..*from })
    }

    fn collective(&self, it: &Collective, from: &ValueSharding) -> Option<ValueSharding> {
        let group = group_of(self.program, self.role, it.group)?;
        let summed = i64::try_from(group.len()).ok().map(|size| (from.parts / size).max(1));
        let mut sharding = from.clone();
        match &it.how {
            How::AllReduce(_) => sharding.parts = summed?,
            How::AllGather(cut) => *sharding.lengths.get_mut(cut.factor)? = cut.sizes.iter().sum(),
            How::ReduceScatter(cut) => {
                *sharding.lengths.get_mut(cut.factor)? = even(cut)?;
                sharding.parts = summed?;
            }
            How::AllToAll { send, receive } => {
                *sharding.lengths.get_mut(send.factor)? = even(send)?;
                *sharding.lengths.get_mut(receive.factor)? = receive.sizes.iter().sum();
            }
        }
        Some(sharding)
    }
}

/// Whether arguments are the same, whatever the tensors among them are.
fn same(wanted: &LocalArg, given: &Arg) -> bool {
    match (wanted, given) {
        (LocalArg::Input(_), Arg::Buf(_)) | (LocalArg::None, Arg::None) => true,
        (LocalArg::Bool(a), Arg::Bool(b)) => a == b,
        (LocalArg::Int(a), Arg::Int(b)) => a == b,
        (LocalArg::Float(a), Arg::Float(b)) => a == b,
        (LocalArg::Str(a), Arg::Str(b)) => a == b,
        (LocalArg::Dtype(a), Arg::Dtype(b)) => a == b,
        (LocalArg::List(a), Arg::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        _ => false,
    }
}

/// The length of all pieces, if they have one.
fn even(cut: &Cut) -> Option<i64> {
    cut.sizes.iter().all(|size| *size == cut.sizes[0]).then(|| cut.sizes.first().copied())?
}
