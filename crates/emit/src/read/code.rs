//! The functions that a call runs, inlined back to its operators.

use std::collections::HashMap;

use diag::{Error, Result};
use program::{Arg, BufId, LocalOp};

use super::iterations::{iterations, one_by_one};
use super::reader::Reader;
use crate::python::{Call, Expr, Function, Stmt, StmtKind};
use crate::templates;

/// What a name stands for inside a function.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Buf(BufId),
    /// A part of `p`, as it is written from the root.
    Tree(String),
    Holes,
    Int(i64),
}

type Names<'a> = HashMap<&'a str, Value>;

pub(super) struct Code<'a, 'r> {
    pub(super) reader: &'r mut Reader<'a>,
    pub(super) ops: Vec<LocalOp>,
    /// Whether what is read stands in a loop of its function, where names are assigned again.
    in_loop: bool,
}

impl<'a, 'r> Code<'a, 'r> {
    pub(super) fn new(reader: &'r mut Reader<'a>) -> Self {
        Self { reader, ops: vec![], in_loop: false }
    }

    /// The value of an argument of a function, in a scope.
    pub(super) fn argument(&self, names: &Names<'a>, expr: &Expr<'a>, line: u32) -> Result<Value> {
        if let Expr::Name(name) = expr {
            let value = names.get(name).cloned();
            return value.ok_or_else(|| self.reader.unknown(line, format!("`{name}` is not known here")));
        }
        if let Expr::Int(value) = expr {
            return Ok(Value::Int(*value));
        }
        let mut text = self.tree(names, line)?.to_owned();
        self.reader.path(expr, &mut text, line)?;
        let leaf = self.reader.leaves.get(text.as_str());
        Ok(leaf.map_or(Value::Tree(text), |leaf| Value::Buf(self.reader.body.leaves[*leaf].buf)))
    }

    fn tree<'n>(&self, names: &'n Names<'a>, line: u32) -> Result<&'n str> {
        match names.get("p") {
            Some(Value::Tree(tree)) => Ok(tree),
            _ => Err(self.reader.unknown(line, "`p` is not an argument of this function")),
        }
    }

    /// Runs a function. Functions call only those above them, so this ends.
    pub(super) fn call(
        &mut self,
        name: &str,
        args: Vec<Value>,
        below: usize,
        no_grad: bool,
        line: u32,
    ) -> Result<Vec<BufId>> {
        let entry = self.reader.functions.remove_entry(name);
        let Some((key, (index, function))) = entry else {
            return Err(self.reader.unknown(line, format!("there is no function `{name}` above")));
        };
        let outside = std::mem::replace(&mut self.in_loop, false);
        let result = self.run(&function, args, index, below, no_grad, line);
        self.in_loop = outside;
        self.reader.functions.insert(key, (index, function));
        result
    }

    fn run(
        &mut self,
        function: &Function<'a>,
        args: Vec<Value>,
        index: usize,
        below: usize,
        no_grad: bool,
        line: u32,
    ) -> Result<Vec<BufId>> {
        if index >= below {
            let what = format!("`{}` is called before it is defined", function.name);
            return Err(self.reader.unknown(line, what));
        }
        if function.params.len() != args.len() {
            let what =
                format!("`{}` takes {} arguments, not {}", function.name, function.params.len(), args.len());
            return Err(self.reader.misuse(line, what));
        }
        let mut names = Names::new();
        for (param, value) in function.params.iter().zip(args) {
            let right = match *param {
                "p" => matches!(value, Value::Tree(_)),
                "rank" => value == Value::Holes,
                _ => matches!(value, Value::Buf(_) | Value::Int(_)),
            };
            if !right {
                return Err(self
                    .reader
                    .misuse(line, format!("the argument for `{param}` is of another kind")));
            }
            self.name(&mut names, param, value, function.line)?;
        }
        self.block(&mut names, &function.body, index, no_grad)?.map_or_else(|| Ok(vec![]), Ok)
    }

    fn name(&self, names: &mut Names<'a>, name: &'a str, value: Value, line: u32) -> Result<()> {
        let reserved = matches!(name, "run" | "torch" | "F" | "ops" | "float" | "_" | "range" | "reversed");
        let odd = matches!(name, "p" | "rank") && matches!(value, Value::Buf(_) | Value::Int(_));
        let taken = reserved || odd || self.reader.functions.contains_key(name);
        if taken || (names.insert(name, value).is_some() && !self.in_loop) {
            return Err(self
                .reader
                .unknown(line, format!("the name `{name}` is taken and is assigned again")));
        }
        Ok(())
    }

    fn block(
        &mut self,
        names: &mut Names<'a>,
        stmts: &[Stmt<'a>],
        index: usize,
        no_grad: bool,
    ) -> Result<Option<Vec<BufId>>> {
        for (at, stmt) in stmts.iter().enumerate() {
            match &stmt.kind {
                StmtKind::Assign { targets, unpack, value } => {
                    self.assign(names, targets, *unpack, value, (index, no_grad, stmt.line))?;
                }
                StmtKind::Expr(value) => {
                    self.assign(names, &[], false, value, (index, no_grad, stmt.line))?;
                }
                StmtKind::NoGrad(inner) => {
                    if self.block(names, inner, index, true)?.is_some() {
                        return Err(self.reader.misuse(stmt.line, "a block without gradients returns"));
                    }
                }
                StmtKind::Return(values) if at + 1 == stmts.len() => {
                    return self.returned(names, values, stmt.line).map(Some);
                }
                StmtKind::Return(_) => return Err(self.reader.misuse(stmt.line, "code follows a return")),
                StmtKind::Comment => {}
                StmtKind::For { target, values, body } => {
                    let is_known = names.contains_key(target);
                    let outside = std::mem::replace(&mut self.in_loop, true);
                    for value in iterations(self.reader, is_known, target, values, body, stmt.line)? {
                        self.reader.spend(body.len().max(1), stmt.line)?;
                        let iteration: Vec<Stmt<'a>> =
                            body.iter().map(|s| one_by_one(s, target, value)).collect();
                        if self.block(names, &iteration, index, no_grad)?.is_some() {
                            return Err(self.reader.misuse(stmt.line, "a loop returns"));
                        }
                    }
                    self.in_loop = outside;
                }
                StmtKind::If(..) | StmtKind::Yield(_) => {
                    return Err(self
                        .reader
                        .misuse(stmt.line, "a function that is called has operators and loops only"));
                }
            }
        }
        Ok(None)
    }

    fn returned(&self, names: &Names<'a>, values: &[Expr<'a>], line: u32) -> Result<Vec<BufId>> {
        let buf = |value: &Expr<'a>| match self.argument(names, value, line)? {
            Value::Buf(buf) => Ok(buf),
            _ => Err(self.reader.misuse(line, "a function returns something that is no tensor")),
        };
        values.iter().map(buf).collect()
    }

    fn assign(
        &mut self,
        names: &mut Names<'a>,
        targets: &[&'a str],
        unpack: bool,
        value: &Expr<'a>,
        (index, no_grad, line): (usize, bool, u32),
    ) -> Result<()> {
        self.reader.spend(1, line)?;
        if let Expr::Call(call) = value {
            if let Expr::Name(name) = call.function {
                let results = self.nested(names, name, call, index, no_grad, line)?;
                return self.bind(names, targets, unpack, &results, line);
            }
        }
        let Some((applied, placed)) = templates::read(value) else {
            return Err(self.no_operator(value, line));
        };
        self.require_device(names, &applied.target, placed, line)?;
        if targets.is_empty() {
            return Err(self.reader.misuse(line, "the result of an operator is not assigned"));
        }
        if unpack != (targets.len() > 1 || templates::gives_list(&applied.target)) {
            return Err(self.reader.misuse(line, "an operator's results are assigned in another number"));
        }
        let args: Result<_> = applied.args.iter().map(|arg| self.arg(names, arg, line)).collect();
        let kwargs: Result<Vec<_>> = (applied.kwargs.iter())
            .map(|(name, arg)| Ok((name.clone().into_owned(), self.arg(names, arg, line)?)))
            .collect();
        let target = applied.target.into_owned();
        let op = graph::OpId(u32::MAX);
        let mut op = LocalOp { op, target, args: args?, kwargs: kwargs?, outputs: vec![], no_grad };
        let tensors = self.reader.hints.find(&self.reader.body, &mut op, targets.len());
        for (name, tensor) in targets.iter().zip(tensors) {
            let buf = (*name != "_").then(|| self.reader.new_buf(name, tensor, false));
            if let Some(buf) = buf {
                self.name(names, name, Value::Buf(buf), line)?;
            }
            op.outputs.push(buf);
        }
        self.ops.push(op);
        self.reader.lines_of_ops.push(line);
        Ok(())
    }

    fn no_operator(&self, value: &Expr<'a>, line: u32) -> Error {
        let error = self.reader.misuse(line, "this is no operator that is known");
        match templates::known_spelling(value) {
            Some(text) => error.fix(format!("write `{text}`")),
            None => error,
        }
    }

    /// A tensor that is made of numbers alone is made where the rank computes, and nothing else is told where.
    fn require_device(&self, names: &Names<'a>, target: &str, placed: bool, line: u32) -> Result<()> {
        if placed != templates::creates(target) {
            let what = if placed {
                "the device is given to an operator whose tensors say it"
            } else {
                "a tensor is made without `device=rank.device` as the last argument"
            };
            return Err(self.reader.misuse(line, what));
        }
        if placed && names.get("rank") != Some(&Value::Holes) {
            return Err(self.reader.unknown(line, "`rank` is not an argument of this function"));
        }
        Ok(())
    }

    fn nested(
        &mut self,
        names: &Names<'a>,
        name: &str,
        call: &Call<'a>,
        index: usize,
        no_grad: bool,
        line: u32,
    ) -> Result<Vec<BufId>> {
        if !call.kwargs.is_empty() {
            return Err(self.reader.misuse(line, "a function is called with keyword arguments"));
        }
        let args: Result<_> = call.args.iter().map(|arg| self.argument(names, arg, line)).collect();
        self.call(name, args?, index, no_grad, line)
    }

    fn bind(
        &self,
        names: &mut Names<'a>,
        targets: &[&'a str],
        unpack: bool,
        results: &[BufId],
        line: u32,
    ) -> Result<()> {
        if targets.len() != results.len() || unpack != (results.len() > 1) {
            return Err(self.reader.misuse(line, format!("a function returns {} values", results.len())));
        }
        for (name, buf) in targets.iter().zip(results) {
            if *name != "_" {
                self.name(names, name, Value::Buf(*buf), line)?;
            }
        }
        Ok(())
    }

    fn arg(&self, names: &Names<'a>, expr: &Expr<'a>, line: u32) -> Result<Arg> {
        if let Some(plain) = plain(expr) {
            return Ok(plain);
        }
        if let Expr::List(items) = expr {
            let items: Result<_> = items.iter().map(|item| self.arg(names, item, line)).collect();
            return items.map(Arg::List);
        }
        if expr.root() == Some("rank") {
            if names.get("rank") != Some(&Value::Holes) {
                return Err(self.reader.unknown(line, "`rank` is not an argument of this function"));
            }
            let hole = self.reader.hole(expr, line)?;
            return hole.ok_or_else(|| self.reader.misuse(line, "`rank` is used in an unknown way"));
        }
        if expr.root() == Some("p") {
            let leaf = self.reader.leaf(expr, self.tree(names, line)?, line)?;
            return Ok(Arg::Buf(self.reader.body.leaves[leaf].buf));
        }
        match self.argument(names, expr, line)? {
            Value::Buf(buf) => Ok(Arg::Buf(buf)),
            Value::Int(value) => Ok(Arg::Int(value)),
            _ => Err(self.reader.misuse(line, "an argument is no value")),
        }
    }
}

/// A value that means the same everywhere.
pub(super) fn plain(expr: &Expr<'_>) -> Option<Arg> {
    Some(match expr {
        Expr::None => Arg::None,
        Expr::Bool(value) => Arg::Bool(*value),
        Expr::Int(value) => Arg::Int(*value),
        Expr::Float(value) => Arg::Float(*value),
        Expr::Str(text) => Arg::Str(text.clone().into_owned()),
        Expr::Attr(object, _) if **object == Expr::Name("torch") => {
            Arg::Dtype(graph::Dtype::parse_torch(&expr.dotted()?)?)
        }
        _ => return None,
    })
}
