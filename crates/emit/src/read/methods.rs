//! The methods of `run`, back to instructions.

use std::collections::{HashMap, HashSet};

use diag::{Error, Result};
use graph::TensorId;
use program::{
    Arg, BufId, Call, CallId, Collective, Cut, ExchangeId, Grad, GradSync, GroupingId, How, Instr, KeepId,
    LeafId, Of, Offloaded, Slice, Which,
};
use rules::Reduction;

use super::code::{Code, Value, plain};
use super::reader::{Reader, Scope};
use super::tables::reduction;
use crate::python::{self, Expr};
use crate::write::{Gathered, even_sizes};

/// One statement of `forward` or `backward`.
pub(super) struct Methods<'a, 'r> {
    pub(super) reader: &'r mut Reader<'a>,
    pub(super) scope: &'r mut Scope<'a>,
    /// The size of this role's group in each grouping.
    pub(super) sizes: &'r [usize],
    pub(super) line: u32,
    /// Whether it stands below `if last:`.
    pub(super) last: bool,
}

/// A method's arguments that are still to be read.
struct Args<'e, 'a> {
    args: std::slice::Iter<'e, Expr<'a>>,
    kwargs: &'e [(&'a str, Expr<'a>)],
}

impl<'e, 'a> Args<'e, 'a> {
    fn named(&self, name: &str) -> Option<&'e Expr<'a>> {
        self.kwargs.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }
}

impl<'a> Methods<'a, '_> {
    pub(super) fn instr(&mut self, targets: &[&'a str], unpack: bool, value: &Expr<'a>) -> Result<Instr> {
        match value {
            Expr::Call(call) => match &call.function {
                Expr::Attr(object, name) if **object == Expr::Name("run") => {
                    self.method(name, targets, unpack, call)
                }
                Expr::Attr(object, "cut") if **object == Expr::Name("ops") => {
                    self.slice(targets, unpack, call)
                }
                _ => Err(self.misuse("only methods of `run` are called here")),
            },
            _ => self.add(targets, unpack, value),
        }
    }

    fn method(
        &mut self,
        name: &str,
        targets: &[&'a str],
        unpack: bool,
        call: &python::Call<'a>,
    ) -> Result<Instr> {
        let allowed: &[&str] = match name {
            "call" => &["recompute", "forget", "offload"],
            "keep" => &["offload"],
            "fetch" => &["call", "keep"],
            "grad" | "grad_inputs" => &["again"],
            "all_reduce" => &["op", "async_op"],
            "all_gather" => &["sizes", "factors"],
            "reduce_scatter" => &["sizes", "factors", "async_op"],
            "all_to_all" => &["send_sizes", "receive_sizes", "send_factors", "receive_factors"],
            _ => &[],
        };
        if let Some((key, _)) = call.kwargs.iter().find(|(key, _)| !allowed.contains(key)) {
            return Err(self.misuse(format!("`run.{name}` has no argument `{key}`")));
        }
        let mut args = Args { args: call.args.iter(), kwargs: &call.kwargs };
        match name {
            "call" => self.call(targets, unpack, &mut args),
            "grad" => self.grad(Which::Both, targets, unpack, &mut args),
            "grad_inputs" => self.grad(Which::Inputs, targets, unpack, &mut args),
            "grad_weights" => {
                let call = CallId(self.id(args.args.next())?);
                self.end(targets, 0, unpack, &args)?;
                let (from, to, recomputed) = Default::default();
                Ok(Instr::Grad(Grad { call, which: Which::Weights, from, to, recomputed }))
            }
            "exchange" => self.exchange(targets, unpack, &mut args),
            "send" => {
                let exchange = ExchangeId(self.id(args.args.next())?);
                let from = args.args.by_ref().map(|arg| self.buf(arg)).collect::<Result<_>>()?;
                self.end(targets, 0, unpack, &args)?;
                Ok(Instr::Send { exchange, from })
            }
            "receive" => self.receive(targets, unpack, &mut args),
            "all_reduce" | "all_gather" | "reduce_scatter" | "all_to_all" => {
                self.collective(name, targets, unpack, &mut args)
            }
            "reduce_gradients" => {
                let group = self.group(&mut args)?;
                let leaves = self.leaves(args.args.next())?;
                self.end(targets, 0, unpack, &args)?;
                Ok(Instr::ReduceGradients { group, leaves })
            }
            "exchange_gradients" => {
                let exchange = ExchangeId(self.id(args.args.next())?);
                let leaves = self.leaves(args.args.next())?;
                let shards = self.list(args.args.next(), |item| self.index(Some(item)))?;
                self.end(targets, 0, unpack, &args)?;
                Ok(Instr::ExchangeGradients { exchange, leaves, shards, when: self.when() })
            }
            "gather" => {
                let group = self.group(&mut args)?;
                let copies = self.copies(args.args.next())?;
                self.end(targets, 0, unpack, &args)?;
                Ok(Instr::Gather { group, copies })
            }
            "release" => {
                let copies = self.copies(args.args.next())?;
                self.end(targets, 0, unpack, &args)?;
                Ok(Instr::Release { copies })
            }
            "scatter_gradients" => {
                let group = self.group(&mut args)?;
                let leaves = self.trees(args.args.next(), Gathered::Each)?;
                self.end(targets, 0, unpack, &args)?;
                Ok(Instr::Scatter { group, leaves, when: self.when() })
            }
            "part_gradients" => {
                let leaves = self.trees(args.args.next(), Gathered::Each)?;
                self.end(targets, 0, unpack, &args)?;
                Ok(Instr::Part { leaves, when: self.when() })
            }
            "reduce_shards" => {
                let group = self.group(&mut args)?;
                let copies = self.copies(args.args.next())?;
                self.end(targets, 0, unpack, &args)?;
                let shards = copies.iter().map(|copy| self.reader.parts.copies[*copy].shard).collect();
                Ok(Instr::ReduceShards { group, shards })
            }
            "update" => {
                let (shard, from) = (self.index(args.args.next())?, self.next_buf(&mut args)?);
                self.end(targets, 0, unpack, &args)?;
                Ok(Instr::Update { shard, from })
            }
            "keep" => {
                let id = KeepId(self.id(args.args.next())?);
                let from = args.args.by_ref().map(|arg| self.buf(arg)).collect::<Result<Vec<_>>>()?;
                self.end(targets, 0, unpack, &args)?;
                self.reader.kept.insert(id, from.clone());
                Ok(Instr::Keep { id, from, offloads: self.mark(&args, "offload")? })
            }
            "take" => self.take(targets, unpack, &mut args),
            "fetch" => {
                let what = match call.kwargs[..] {
                    [("call", ref call)] => Offloaded::Call(CallId(self.id(Some(call))?)),
                    [("keep", ref kept)] => Offloaded::Kept(KeepId(self.id(Some(kept))?)),
                    _ => {
                        return Err(
                            self.misuse("`run.fetch` brings back one call or what is kept as one number")
                        );
                    }
                };
                self.end(targets, 0, unpack, &args)?;
                Ok(Instr::Fetch { what })
            }
            _ => Err(self.misuse(format!("`run` has no method `{name}`"))),
        }
    }

    fn when(&self) -> GradSync {
        if self.last { GradSync::Last } else { GradSync::Each }
    }

    /// Copies by a leaf of each.
    fn copies(&self, list: Option<&Expr<'a>>) -> Result<Vec<usize>> {
        let copy = |leaf: LeafId| match self.reader.parts.leaves.get(leaf.index()) {
            Some((Of::Copy(copy), _)) => Ok(*copy),
            _ => Err(self.misuse("this leaf is held, and not gathered")),
        };
        self.trees(list, Gathered::First)?.into_iter().map(copy).collect()
    }

    /// Leaves, and of modules all that is gathered.
    fn trees(&self, list: Option<&Expr<'a>>, which: Gathered) -> Result<Vec<LeafId>> {
        let places = self.list(list, |item| self.reader.tree(item, which, self.line))?;
        Ok(places.into_iter().flatten().collect())
    }

    fn take(&mut self, targets: &[&'a str], unpack: bool, args: &mut Args<'_, 'a>) -> Result<Instr> {
        let id = KeepId(self.id(args.args.next())?);
        let Some(from) = self.reader.kept.remove(&id) else {
            return Err(self.misuse(format!("nothing is kept as {}", id.0)));
        };
        if args.args.len() > 0 || targets.len() != from.len() || unpack != (targets.len() > 1) {
            return Err(self.misuse(format!("{} values are kept as {}", from.len(), id.0)));
        }
        let to = targets.iter().zip(from).map(|(name, from)| self.like(name, from)).collect::<Result<_>>()?;
        Ok(Instr::Take { id, to })
    }

    fn call(&mut self, targets: &[&'a str], unpack: bool, args: &mut Args<'_, 'a>) -> Result<Instr> {
        let id = CallId(self.id(args.args.next())?);
        let Some(Expr::Name(name)) = args.args.next() else {
            return Err(self.misuse("`run.call` runs something other than a function"));
        };
        let values = self.values(args)?;
        let mut inputs: Vec<BufId> = vec![];
        let mut seen = HashSet::new();
        for value in &values {
            if let Value::Buf(buf) = value {
                if !seen.insert(*buf) {
                    return Err(self.misuse("a tensor is passed twice"));
                }
                inputs.extend((!self.reader.is_leaf(*buf)).then_some(*buf));
            }
        }
        let (recompute, forgets) = (self.mark(args, "recompute")?, self.mark(args, "forget")?);
        let offloads = self.mark(args, "offload")?;
        let line = self.line;
        let mut code = Code::new(self.reader);
        let outputs = code.call(name, values, usize::MAX, false, line)?;
        let ops = code.ops;
        seen.clear();
        let read = ops.iter().flat_map(program::LocalOp::inputs).chain(outputs.iter().copied());
        inputs.extend(read.filter(|buf| self.reader.is_leaf(*buf) && seen.insert(*buf)));
        self.bind(targets, unpack, &outputs)?;
        Ok(Instr::Call(Call { id, inputs, outputs, ops, recompute, forgets, offloads }))
    }

    fn mark(&self, args: &Args<'_, 'a>, name: &str) -> Result<bool> {
        match args.named(name) {
            None => Ok(false),
            Some(Expr::Bool(value)) => Ok(*value),
            Some(_) => Err(self.misuse(format!("`{name}` is not True or False"))),
        }
    }

    fn values(&mut self, args: &mut Args<'_, 'a>) -> Result<Vec<Value>> {
        let mut names: HashMap<&str, Value> = HashMap::new();
        names.insert("p", Value::Tree("p".to_owned()));
        names.insert("rank", Value::Holes);
        let line = self.line;
        let mut values = vec![];
        for arg in args.args.by_ref() {
            values.push(match arg {
                Expr::Name(name) if !names.contains_key(name) => {
                    Value::Buf(self.reader.buf(self.scope, arg, line)?)
                }
                _ => Code::new(self.reader).argument(&names, arg, line)?,
            });
        }
        Ok(values)
    }

    fn bind(&mut self, targets: &[&'a str], unpack: bool, results: &[BufId]) -> Result<()> {
        if targets.len() != results.len() || unpack != (results.len() > 1) {
            return Err(self.misuse(format!("there are {} results", results.len())));
        }
        for (name, buf) in targets.iter().zip(results) {
            self.reader.define(self.scope, name, *buf, self.line)?;
            self.reader.body.bufs[buf.index()].name = (*name).to_owned();
        }
        Ok(())
    }

    /// The gradients of what a call returned and took.
    fn grad(
        &mut self,
        which: Which,
        targets: &[&'a str],
        unpack: bool,
        args: &mut Args<'_, 'a>,
    ) -> Result<Instr> {
        let call = CallId(self.id(args.args.next())?);
        let mut from = vec![];
        for arg in args.args.by_ref() {
            from.push(if *arg == Expr::None { None } else { Some(self.buf(arg)?) });
        }
        if unpack != (targets.len() > 1) {
            return Err(self.misuse("the gradients are assigned in another number"));
        }
        let tensors = self.reader.grad_tensors(call, targets.len());
        let mut to = vec![];
        for (name, tensor) in targets.iter().zip(tensors) {
            to.push(if *name == "_" { None } else { Some(self.new_buf(name, tensor, true)?) });
        }
        let recomputed = match args.named("again") {
            None => vec![],
            some => self.list(some, |item| self.buf(item))?,
        };
        Ok(Instr::Grad(Grad { call, which, from, to, recomputed }))
    }

    fn exchange(&mut self, targets: &[&'a str], unpack: bool, args: &mut Args<'_, 'a>) -> Result<Instr> {
        let exchange = ExchangeId(self.id(args.args.next())?);
        let mut from = vec![];
        for arg in args.args.by_ref() {
            from.push(self.buf(arg)?);
        }
        let to = self.exchanged(exchange, targets, unpack)?;
        Ok(Instr::Exchange { exchange, from, to })
    }

    fn receive(&mut self, targets: &[&'a str], unpack: bool, args: &mut Args<'_, 'a>) -> Result<Instr> {
        let exchange = ExchangeId(self.id(args.args.next())?);
        if args.args.len() > 0 || targets.is_empty() {
            return Err(self.misuse("what is received by a table has a name"));
        }
        let to = self.exchanged(exchange, targets, unpack)?;
        Ok(Instr::Receive { exchange, to })
    }

    /// What an exchange brings.
    fn exchanged(&mut self, exchange: ExchangeId, targets: &[&'a str], unpack: bool) -> Result<Vec<BufId>> {
        if unpack != (targets.len() > 1) {
            return Err(self.misuse("the results are assigned in another number"));
        }
        let tensor = self.reader.exchanged.get(exchange.index()).copied().unwrap_or(TensorId(u32::MAX));
        let grad = self.reader.pass.is_backward();
        targets.iter().map(|name| self.new_buf(name, tensor, grad)).collect()
    }

    fn collective(
        &mut self,
        name: &str,
        targets: &[&'a str],
        unpack: bool,
        args: &mut Args<'_, 'a>,
    ) -> Result<Instr> {
        let from = match args.args.next() {
            Some(Expr::List(items)) if name == "all_reduce" && items.len() > 1 => {
                items.iter().map(|item| self.buf(item)).collect::<Result<Vec<_>>>()?
            }
            arg => vec![self.buf(arg.ok_or_else(|| self.misuse("a tensor is missing"))?)?],
        };
        let group = self.group(args)?;
        let how = match name {
            "all_gather" => How::AllGather(self.cut(args, group, "")?),
            "reduce_scatter" => How::ReduceScatter(self.cut(args, group, "")?),
            "all_to_all" => {
                let send = self.cut(args, group, "send_")?;
                How::AllToAll { send, receive: self.cut(args, group, "receive_")? }
            }
            _ => How::AllReduce(self.reduction(args.named("op"))?),
        };
        if args.args.len() > 0 || targets.len() != from.len() || unpack != (from.len() > 1) {
            return Err(self.misuse(format!("there must be {} results, and no more arguments", from.len())));
        }
        let pairs = targets.iter().zip(&from);
        let to = pairs.map(|(name, from)| self.like(name, *from)).collect::<Result<_>>()?;
        let overlaps = self.mark(args, "async_op")?;
        Ok(Instr::Collective(Collective { how, group, from, to, overlaps }))
    }

    fn reduction(&self, op: Option<&Expr<'a>>) -> Result<Reduction> {
        let found = match op {
            None => Some(Reduction::Sum),
            Some(Expr::Str(word)) => reduction(word),
            Some(_) => None,
        };
        found.ok_or_else(|| self.misuse("`op` is no reduction"))
    }

    fn cut(&self, args: &mut Args<'_, 'a>, group: GroupingId, prefix: &str) -> Result<Cut> {
        let factor = self.index(args.args.next())?;
        let extents = args.named(&format!("{prefix}factors"));
        let extents = self.extents(extents.ok_or_else(|| self.misuse("`factors` is missing"))?)?;
        let sizes = match args.named(&format!("{prefix}sizes")) {
            Some(sizes) => self.list(Some(sizes), |item| self.int(item))?,
            None => {
                let count = self.sizes.get(group.index()).copied().unwrap_or(0);
                let even = even_sizes(&extents, factor, count);
                even.ok_or_else(|| self.misuse("`sizes` is missing, and the pieces are not all of one size"))?
            }
        };
        Ok(Cut { extents, factor, sizes })
    }

    fn slice(&mut self, targets: &[&'a str], unpack: bool, call: &python::Call<'a>) -> Result<Instr> {
        let [from, extents, region] = call.args.as_slice() else {
            return Err(self.misuse("`ops.cut` takes a tensor, its factors and a region"));
        };
        let from = self.buf(from)?;
        let extents = self.extents(extents)?;
        let region = self.list(Some(region), |item| match item {
            Expr::List(pair) if pair.len() == 2 => Ok((self.number(&pair[0])?, self.number(&pair[1])?)),
            _ => Err(self.misuse("a region is a list of pairs")),
        })?;
        self.end(targets, 1, unpack, &Args { args: [].iter(), kwargs: &call.kwargs })?;
        if !call.kwargs.is_empty() {
            return Err(self.misuse("`ops.cut` has no keyword arguments"));
        }
        let to = self.like(targets[0], from)?;
        Ok(Instr::Slice(Slice { from, to, extents, region }))
    }

    fn add(&mut self, targets: &[&'a str], unpack: bool, value: &Expr<'a>) -> Result<Instr> {
        let mut from = vec![];
        let mut rest = value;
        while let Expr::Binary("+", sides) = rest {
            from.push(self.buf(&sides.1)?);
            rest = &sides.0;
        }
        from.push(self.buf(rest)?);
        from.reverse();
        self.end(targets, 1, unpack, &Args { args: [].iter(), kwargs: &[] })?;
        let to = self.like(targets[0], from[0])?;
        Ok(Instr::Add { from, to })
    }

    /// All arguments are read, and there are so many results.
    fn end(&self, targets: &[&'a str], count: usize, unpack: bool, args: &Args<'_, 'a>) -> Result<()> {
        if args.args.len() > 0 {
            return Err(self.misuse("there are too many arguments"));
        }
        if targets.len() != count || unpack {
            return Err(self.misuse(format!("there must be {count} results")));
        }
        Ok(())
    }

    fn like(&mut self, name: &'a str, from: BufId) -> Result<BufId> {
        let (tensor, grad) = (self.reader.body.buf(from).tensor, self.reader.body.buf(from).grad);
        self.new_buf(name, tensor, grad)
    }

    fn new_buf(&mut self, name: &'a str, tensor: TensorId, grad: bool) -> Result<BufId> {
        let buf = self.reader.new_buf(name, tensor, grad);
        self.reader.define(self.scope, name, buf, self.line)?;
        Ok(buf)
    }

    fn next_buf(&self, args: &mut Args<'_, 'a>) -> Result<BufId> {
        let arg = args.args.next().ok_or_else(|| self.misuse("a tensor is missing"))?;
        self.buf(arg)
    }

    fn buf(&self, expr: &Expr<'a>) -> Result<BufId> {
        self.reader.buf(self.scope, expr, self.line)
    }

    fn group(&self, args: &mut Args<'_, 'a>) -> Result<GroupingId> {
        let id = GroupingId(self.id(args.args.next())?);
        if id.index() < self.sizes.len() {
            Ok(id)
        } else {
            Err(self.misuse("there is no grouping of this number"))
        }
    }

    fn leaves(&self, list: Option<&Expr<'a>>) -> Result<Vec<LeafId>> {
        self.list(list, |item| self.reader.leaf(item, "p", self.line).map(LeafId::new))
    }

    fn extents(&self, expr: &Expr<'a>) -> Result<Vec<Vec<Arg>>> {
        self.list(Some(expr), |dim| self.list(Some(dim), |factor| self.number(factor)))
    }

    fn list<T>(
        &self,
        expr: Option<&Expr<'a>>,
        mut read: impl FnMut(&Expr<'a>) -> Result<T>,
    ) -> Result<Vec<T>> {
        match expr {
            Some(Expr::List(items)) => items.iter().map(&mut read).collect(),
            _ => Err(self.misuse("a list is missing")),
        }
    }

    fn number(&self, expr: &Expr<'a>) -> Result<Arg> {
        if let Some(hole) = self.reader.hole(expr, self.line)? {
            return Ok(hole);
        }
        plain(expr).filter(|arg| matches!(arg, Arg::Int(_))).ok_or_else(|| self.misuse("a number is missing"))
    }

    fn int(&self, expr: &Expr<'a>) -> Result<i64> {
        if let Expr::Int(value) = expr { Ok(*value) } else { Err(self.misuse("a number is missing")) }
    }

    fn id(&self, expr: Option<&Expr<'a>>) -> Result<u32> {
        let value = expr.map(|expr| self.int(expr)).transpose()?.and_then(|value| u32::try_from(value).ok());
        value.ok_or_else(|| self.misuse("a number is missing"))
    }

    fn index(&self, expr: Option<&Expr<'a>>) -> Result<usize> {
        self.id(expr).map(|id| id as usize)
    }

    fn misuse(&self, what: impl Into<String>) -> Error {
        self.reader.misuse(self.line, what)
    }
}
