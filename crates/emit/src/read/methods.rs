//! The methods of `run`, back to instructions.

use std::collections::{HashMap, HashSet};

use diag::{Error, Result};
use graph::TensorId;
use program::{
    Arg, BufId, Call, CallId, Collective, Cut, ExchangeId, FieldMut, Grad, GradSync, GroupingId, How, Instr,
    KeepId, Kind, LeafId, Of, Offloaded, Saves, Slice, Which,
};
use rules::Reduction;

use super::code::{Code, Value, plain};
use super::reader::{Reader, Scope};
use super::tables::reduction;
use crate::hints::UNKNOWN;
use crate::names::{AT, call_name};
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

/// What the results of an instruction are values of.
enum Results {
    /// Of the same tensors as these, one for each.
    Like(Vec<BufId>),
    Exchanged(ExchangeId),
    Kept(KeepId),
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
        let Some(kind) = Kind::of_method(name) else {
            return Err(self.misuse(format!("`run` has no method `{name}`")));
        };
        if let Some((key, _)) = call.kwargs.iter().find(|(key, _)| !kind.has_keyword(name, key)) {
            return Err(self.misuse(format!("`run.{name}` has no argument `{key}`")));
        }
        let mut args = Args { args: call.args.iter(), kwargs: &call.kwargs };
        match (kind, name) {
            (Kind::Call, _) => self.call(targets, unpack, &mut args),
            (Kind::Grad, "grad_inputs") => self.grad(Which::Inputs, targets, unpack, &mut args),
            (Kind::Grad, "grad_weights") => self.grad_weights(targets, unpack, &mut args),
            (Kind::Grad, _) => self.grad(Which::Both, targets, unpack, &mut args),
            (Kind::AllReduce | Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll, _) => {
                self.collective(kind, targets, unpack, &mut args)
            }
            _ => self.fields(kind, targets, unpack, &mut args),
        }
    }

    /// An instruction whose text is its fields in turn.
    fn fields(
        &mut self,
        kind: Kind,
        targets: &[&'a str],
        unpack: bool,
        args: &mut Args<'_, 'a>,
    ) -> Result<Instr> {
        let Some(mut instr) = kind.blank() else {
            return Err(self.misuse(format!("`run.{}` is written in another form", kind.name())));
        };
        let mut results = Results::Like(vec![]);
        let mut has_results = false;
        for field in instr.fields_mut() {
            match field {
                FieldMut::Group(group) => *group = self.group(args)?,
                FieldMut::Exchange(exchange) => {
                    *exchange = ExchangeId(self.id(args.args.next())?);
                    results = Results::Exchanged(*exchange);
                }
                FieldMut::Kept(kept) => {
                    *kept = KeepId(self.id(args.args.next())?);
                    results = Results::Kept(*kept);
                }
                FieldMut::Reads(bufs) => {
                    *bufs = args.args.by_ref().map(|arg| self.buf(arg)).collect::<Result<_>>()?;
                    if let Results::Like(likes) = &mut results {
                        likes.clone_from(bufs);
                    }
                }
                FieldMut::Read(buf) => *buf = self.next_buf(args)?,
                FieldMut::Writes(bufs) => {
                    *bufs = self.results(&results, targets, unpack)?;
                    has_results = true;
                }
                FieldMut::Leaves(leaves) => *leaves = self.leaves(args.args.next())?,
                FieldMut::LeafPlaces(leaves) => *leaves = self.trees(args.args.next(), Gathered::Each)?,
                FieldMut::Copies(copies) => *copies = self.copies(args.args.next())?,
                FieldMut::Shards(shards) => {
                    *shards = self.list(args.args.next(), |item| self.index(Some(item)))?;
                }
                FieldMut::ShardPlaces(shards) => {
                    let copies = self.copies(args.args.next())?;
                    *shards = copies.iter().map(|copy| self.reader.parts.copies[*copy].shard).collect();
                }
                FieldMut::Shard(shard) => *shard = self.index(args.args.next())?,
                FieldMut::When(when) => *when = self.when(),
                FieldMut::Offloads(offloads) => *offloads = self.mark(args, "offload")?,
                FieldMut::Fetched(what) => *what = self.fetched(args)?,
                other => return Err(self.misuse(format!("`run.{}` has {other:?}", kind.name()))),
            }
        }
        // Their number is looked at where they are made.
        let count = if has_results { targets.len() } else { 0 };
        self.end(targets, count, unpack && !has_results, args)?;
        match &instr {
            Instr::Receive { to, .. } if to.is_empty() => {
                return Err(self.misuse("what is received by a table has a name"));
            }
            Instr::Keep { id, from, .. } => _ = self.reader.kept.insert(*id, from.clone()),
            _ => {}
        }
        Ok(instr)
    }

    fn fetched(&self, args: &Args<'_, 'a>) -> Result<Offloaded> {
        match args.kwargs {
            [("call", call), ..] if args.named("keep").is_none() => {
                Ok(Offloaded::Call(self.called(Some(call), args)?))
            }
            [("keep", kept)] => Ok(Offloaded::Kept(KeepId(self.id(Some(kept))?))),
            _ => Err(self.misuse("`run.fetch` brings back one call or what is kept as one number")),
        }
    }

    fn results(&mut self, results: &Results, targets: &[&'a str], unpack: bool) -> Result<Vec<BufId>> {
        match results {
            Results::Exchanged(exchange) => self.exchanged(*exchange, targets, unpack),
            Results::Kept(kept) => self.taken(*kept, targets, unpack),
            Results::Like(likes) => self.all_like(likes, targets, unpack),
        }
    }

    /// A result for each value, of the same tensor.
    fn all_like(&mut self, likes: &[BufId], targets: &[&'a str], unpack: bool) -> Result<Vec<BufId>> {
        if targets.len() != likes.len() || unpack != (likes.len() > 1) {
            return Err(self.misuse(format!("there must be {} results", likes.len())));
        }
        targets.iter().zip(likes).map(|(name, like)| self.like(name, *like)).collect()
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

    fn taken(&mut self, id: KeepId, targets: &[&'a str], unpack: bool) -> Result<Vec<BufId>> {
        let Some(from) = self.reader.kept.remove(&id) else {
            return Err(self.misuse(format!("nothing is kept as {}", id.0)));
        };
        if targets.len() != from.len() || unpack != (targets.len() > 1) {
            return Err(self.misuse(format!("{} values are kept as {}", from.len(), id.0)));
        }
        targets.iter().zip(from).map(|(name, from)| self.like(name, from)).collect()
    }

    fn call(&mut self, targets: &[&'a str], unpack: bool, args: &mut Args<'_, 'a>) -> Result<Instr> {
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
        let [nothing, made, offloaded] = Saves::MARKS.map(|mark| self.mark(args, mark));
        let saves = Saves::from_marks([nothing?, made?, offloaded?]).ok_or_else(|| {
            self.misuse("a call with `recompute` saves nothing that it could forget or offload")
        })?;
        let id = self.new_call(name, args, saves == Saves::Nothing)?;
        let line = self.line;
        let mut code = Code::new(self.reader);
        let outputs = code.call(name, values, usize::MAX, false, line)?;
        let ops = code.ops;
        self.reader.called = Some(name);
        seen.clear();
        let read = ops.iter().flat_map(program::LocalOp::inputs).chain(outputs.iter().copied());
        inputs.extend(read.filter(|buf| self.reader.is_leaf(*buf) && seen.insert(*buf)));
        self.bind(targets, unpack, &outputs)?;
        Ok(Instr::Call(Call { id, inputs, outputs, ops, saves }))
    }

    /// Numbers a call. Only what computes another one again may have its name.
    fn new_call(&mut self, function: &str, args: &Args<'_, 'a>, recompute: bool) -> Result<CallId> {
        let name = call_name(function, self.which(args)?);
        let id = CallId::new(self.reader.calls.len());
        match self.reader.called_so.get(&name) {
            Some((_, true)) if !recompute => {}
            None => {}
            Some(_) => {
                let what = format!("there is a call `{name}` above: `at=` tells calls of a function apart");
                return Err(self.misuse(what));
            }
        }
        self.reader.called_so.insert(name.clone(), (id, recompute));
        self.reader.calls.push(name);
        Ok(id)
    }

    /// A call by its name.
    fn called(&self, function: Option<&Expr<'a>>, args: &Args<'_, 'a>) -> Result<CallId> {
        let Some(Expr::Name(function)) = function else {
            return Err(self.misuse("a call is named by its function"));
        };
        let name = call_name(function, self.which(args)?);
        let known = self.reader.called_so.get(&name).map(|(id, _)| *id);
        known.ok_or_else(|| {
            let at =
                self.which(args).ok().flatten().map_or_else(String::new, |at| format!(" with `at={at}`"));
            self.reader.unknown(self.line, format!("no call of `{function}`{at} stands above"))
        })
    }

    /// Which of a function's calls it is.
    fn which(&self, args: &Args<'_, 'a>) -> Result<Option<i64>> {
        match args.named(AT) {
            None => Ok(None),
            Some(Expr::Int(at)) if *at >= 0 => Ok(Some(*at)),
            Some(_) => Err(self.misuse("`at` is no number")),
        }
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
        let call = self.called(args.args.next(), args)?;
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

    fn grad_weights(&mut self, targets: &[&'a str], unpack: bool, args: &mut Args<'_, 'a>) -> Result<Instr> {
        let call = self.called(args.args.next(), args)?;
        self.end(targets, 0, unpack, args)?;
        let (from, to, recomputed) = Default::default();
        Ok(Instr::Grad(Grad { call, which: Which::Weights, from, to, recomputed }))
    }

    /// What an exchange brings.
    fn exchanged(&mut self, exchange: ExchangeId, targets: &[&'a str], unpack: bool) -> Result<Vec<BufId>> {
        if unpack != (targets.len() > 1) {
            return Err(self.misuse("the results are assigned in another number"));
        }
        let tensor = self.reader.exchanged.get(exchange.index()).copied().unwrap_or(UNKNOWN);
        let grad = self.reader.pass.is_backward();
        targets.iter().map(|name| self.new_buf(name, tensor, grad)).collect()
    }

    fn collective(
        &mut self,
        kind: Kind,
        targets: &[&'a str],
        unpack: bool,
        args: &mut Args<'_, 'a>,
    ) -> Result<Instr> {
        let from = match args.args.next() {
            Some(Expr::List(items)) if kind == Kind::AllReduce && items.len() > 1 => {
                items.iter().map(|item| self.buf(item)).collect::<Result<Vec<_>>>()?
            }
            arg => vec![self.buf(arg.ok_or_else(|| self.misuse("a tensor is missing"))?)?],
        };
        let group = self.group(args)?;
        let how = match kind {
            Kind::AllGather => How::AllGather(self.cut(args, group, "")?),
            Kind::ReduceScatter => How::ReduceScatter(self.cut(args, group, "")?),
            Kind::AllToAll => {
                let send = self.cut(args, group, "send_")?;
                How::AllToAll { send, receive: self.cut(args, group, "receive_")? }
            }
            _ => How::AllReduce(self.reduction(args.named("op"))?),
        };
        if args.args.len() > 0 {
            return Err(self.misuse("there are too many arguments"));
        }
        let to = self.all_like(&from, targets, unpack)?;
        let overlaps = self.mark(args, "async_op")?;
        Ok(Instr::Collective(Collective { how, group, from, to, overlaps }))
    }

    fn reduction(&self, op: Option<&Expr<'a>>) -> Result<Reduction> {
        let parsed = match op {
            None => Some(Reduction::Sum),
            Some(Expr::Str(word)) => reduction(word),
            Some(_) => None,
        };
        parsed.ok_or_else(|| self.misuse("`op` is no reduction"))
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
