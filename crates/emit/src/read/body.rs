//! One role's file back to its body.

use std::collections::HashMap;

use diag::Result;
use graph::Graph;
use program::{Body, BufId, Code, CodeKey, Instr, Leaf, Pass, Program, Timetable};

use super::iterations::{iterations, one_by_one};
use super::methods::Methods;
use super::reader::{Reader, Scope};
use super::tables::RoleTable;
use super::timetable::timetable;
use crate::hints::Hints;
use crate::leaves::{names_of, written};
use crate::lines::{Line, LinesOfRole};
use crate::names::{code_of, is_reserved};
use crate::python::{Expr, Function, Stmt, StmtKind, parser};
use crate::write::step_called;

/// What `backward` takes before tensors; `forward` takes the first three.
const PARAMS: [&str; 4] = ["run", "p", "rank", "last"];
/// Operators in all calls of a role.
const MOST_OPS: usize = 1_000_000;

pub(super) fn read(
    graph: &Graph,
    program: &Program,
    role: &RoleTable,
    text: &str,
) -> Result<(Body, LinesOfRole)> {
    let functions = parser::module(&role.file, text)?;
    let holes = (0_u32..).zip(&role.holes).map(|(index, name)| (name.clone(), index)).collect();
    let body = Body { holes: role.holes.clone(), ..Body::default() };
    let mut reader = Reader {
        file: &role.file,
        body,
        leaves: HashMap::new(),
        holes,
        functions: HashMap::new(),
        hints: Hints::new(graph, &program.boundary, role.operators.clone()),
        budget: MOST_OPS,
        exchanged: program.exchanges.iter().map(|exchange| exchange.tensor).collect(),
        codes: vec![],
        block: 0,
        pass: Pass::Begin,
        parts: &role.table,
        texts: vec![],
        lines: vec![],
        lines_of_ops: vec![],
        called: None,
        calls: vec![],
        called_so: HashMap::new(),
        kept: HashMap::new(),
        in_loop: false,
    };
    for (index, function) in functions.into_iter().enumerate() {
        let line = function.line;
        if is_reserved(function.name) {
            return Err(reader.unknown(line, format!("the name `{}` is taken", function.name)));
        }
        if reader.functions.insert(function.name, (index, function)).is_some() {
            return Err(reader.misuse(line, "a function is defined twice"));
        }
    }
    let codes = codes(&mut reader)?;
    let step = step(&mut reader)?;
    reader.make_inputs(role, &codes)?;
    reader.make_leaves(graph, role)?;
    let sizes = group_sizes(program, role);
    let mut lines = LinesOfRole::new(&role.file);
    for ((block, pass), function) in &codes {
        (reader.block, reader.pass) = (*block, *pass);
        match pass {
            Pass::Begin | Pass::End => reader.once(function, &sizes)?,
            Pass::Forward => reader.forward(role, function, &sizes)?,
            Pass::Backward | Pass::Inputs => reader.back(role, function, &sizes)?,
            Pass::Weights => reader.weights(function, &sizes)?,
        }
        lines.put(CodeKey { block: *block, pass: *pass }, std::mem::take(&mut reader.lines));
    }
    reader.gives_all(role)?;
    reader.body.timetable = match step {
        Some(step) => timetable(&reader, &step)?,
        None if reader.body.codes_of(Pass::Forward).next().is_none() => Timetable::default(),
        None => Timetable::in_turn(reader.body.code(0, Pass::Begin).is_some(), false),
    };
    lines.calls = reader.calls;
    Ok((reader.body, lines))
}

/// The function of the timetable.
fn step<'a>(reader: &mut Reader<'a>) -> Result<Option<Function<'a>>> {
    let mut take = |goes_on| reader.functions.remove(step_called(goes_on)).map(|(_, function)| function);
    match (take(false), take(true)) {
        (Some(_), Some(on)) => Err(reader.misuse(on.line, "a file has two timetables")),
        (step, on) => Ok(step.or(on)),
    }
}

/// A code's function.
type CodeFunction<'a> = ((u32, Pass), Function<'a>);

/// The functions of codes, in the order of codes.
fn codes<'a>(reader: &mut Reader<'a>) -> Result<Vec<CodeFunction<'a>>> {
    let mut functions: Vec<CodeFunction<'a>> = vec![];
    for (name, pass) in [("begin", Pass::Begin), ("end", Pass::End)] {
        functions.extend(reader.functions.remove(name).map(|(_, function)| ((0, pass), function)));
    }
    let names: Vec<&'a str> =
        reader.functions.keys().copied().filter(|name| code_of(name).is_some()).collect();
    for name in names {
        let (Some(code), Some((_, function))) = (code_of(name), reader.functions.remove(name)) else {
            continue;
        };
        functions.push((code, function));
    }
    functions.sort_by_key(|((block, pass), function)| (Code::new(*block, *pass).place(), function.line));
    if let Some(two) = functions.windows(2).find(|two| two[0].0 == two[1].0) {
        return Err(reader.misuse(two[1].1.line, "a function is defined twice"));
    }
    reader.codes = functions.iter().map(|(code, function)| (function.name.to_owned(), *code)).collect();
    Ok(functions)
}

/// What a function returns, in which line, and what stands before.
fn returned<'f, 'a>(function: &'f Function<'a>) -> (&'f [Expr<'a>], u32, &'f [Stmt<'a>]) {
    match function.body.split_last() {
        Some((Stmt { kind: StmtKind::Return(values), line, .. }, stmts)) => (values, *line, stmts),
        _ => (&[], function.line, &function.body),
    }
}

fn group_sizes(program: &Program, role: &RoleTable) -> Vec<usize> {
    let group = |grouping: &program::Grouping| {
        let rank = role.ranks.first()?;
        grouping.iter().find(|group| group.contains(rank)).map(Vec::len)
    };
    program.groupings.iter().map(|grouping| group(grouping).unwrap_or(0)).collect()
}

impl<'a> Reader<'a> {
    /// What forwards take: the inputs of the role, one code after the other.
    fn make_inputs(&mut self, role: &RoleTable, codes: &[CodeFunction<'a>]) -> Result<()> {
        let mut tensors = role.inputs.iter();
        for ((block, pass), function) in codes.iter().filter(|(code, _)| code.1 == Pass::Forward) {
            for name in self.params(function, &PARAMS[..3], None)?.to_vec() {
                let Some(tensor) = tensors.next() else {
                    return Err(self.misuse(function.line, "more inputs are taken than program.json has"));
                };
                let buf = self.new_buf(name, *tensor, false);
                self.body.inputs.push(*tensor);
                self.body.code_mut(*block, *pass).takes.push(buf);
            }
        }
        if tensors.next().is_some() {
            let count = role.inputs.len();
            return Err(self.misuse(1, format!("program.json has {count} inputs, and not all are taken")));
        }
        Ok(())
    }

    fn once(&mut self, function: &Function<'a>, sizes: &[usize]) -> Result<()> {
        self.params(function, &PARAMS[..3], Some(0))?;
        let instrs = self.instrs(&mut Scope::new(), &function.body, sizes)?;
        self.body.code_mut(0, self.pass).instrs = instrs;
        Ok(())
    }

    /// The outputs and gradients of inputs that the tables name are given by some code.
    fn gives_all(&self, role: &RoleTable) -> Result<()> {
        let given = self.body.outputs();
        let mut outputs = role.outputs.iter().enumerate();
        if outputs.any(|(at, output)| output.is_some() != given.get(at).copied().flatten().is_some()) {
            return Err(self.misuse(1, "forward does not return what program.json says"));
        }
        if self.body.gradients != role.gradients {
            return Err(self.misuse(1, "backward does not return the gradients that program.json says"));
        }
        Ok(())
    }

    /// What follows the first parameters.
    fn params<'f>(
        &self,
        function: &'f Function<'a>,
        first: &[&str],
        count: Option<usize>,
    ) -> Result<&'f [&'a str]> {
        match function.params.split_at_checked(first.len()) {
            Some((start, rest)) if start == first && count.is_none_or(|count| rest.len() == count) => {
                Ok(rest)
            }
            _ => {
                let tensors = count.map_or_else(|| "tensors".into(), |count| format!("{count} tensors"));
                let what = format!("`{}` must take {} and {tensors}", function.name, first.join(", "));
                Err(self.misuse(function.line, what))
            }
        }
    }

    fn make_leaves(&mut self, graph: &Graph, role: &RoleTable) -> Result<()> {
        for (tensor, number) in &role.leaves {
            let mut leaf = Leaf { tensor: *tensor, number: *number, buf: BufId(0) };
            let names = names_of(graph, &leaf);
            leaf.buf = self.new_buf(names.first().unwrap_or(&""), *tensor, false);
            let index = self.body.leaves.len();
            self.texts.push(written(names.first().unwrap_or(&""), *number));
            for name in names {
                let text = written(name, *number);
                if self.leaves.insert(text, index).is_some() {
                    let what = format!("two leaves are called `{}`", name.escape_debug());
                    return Err(self.misuse(1, what).fix("rename one of the parameters in the model"));
                }
            }
            self.body.leaves.push(leaf);
        }
        Ok(())
    }

    fn forward(&mut self, role: &RoleTable, function: &Function<'a>, sizes: &[usize]) -> Result<()> {
        let mut scope = Scope::new();
        let inputs = self.body.code_mut(self.block, Pass::Forward).takes.clone();
        for (name, buf) in function.params[3..].iter().zip(inputs) {
            self.define(&mut scope, name, buf, function.line)?;
        }
        let (values, line, stmts) = returned(function);
        let instrs = self.instrs(&mut scope, stmts, sizes)?;
        let count = role.outputs.len();
        // With several blocks, what gives no output returns nothing.
        if values.len() != count && !(values.is_empty() && function.name != "forward") {
            let what = format!("`{}` returns {} values, not {count}", function.name, values.len());
            return Err(self.misuse(line, what));
        }
        let mut gives = vec![None; count];
        for (given, value) in gives.iter_mut().zip(values) {
            *given = if *value == Expr::None { None } else { Some(self.buf(&scope, value, line)?) };
        }
        let code = self.body.code_mut(self.block, Pass::Forward);
        (code.instrs, code.gives) = (instrs, gives);
        Ok(())
    }

    fn back(&mut self, role: &RoleTable, function: &Function<'a>, sizes: &[usize]) -> Result<()> {
        let given = self.body.code(self.block, Pass::Forward).map_or(&[][..], |code| &code.gives);
        let leaving = role.outputs.iter().zip(given).filter(|(_, given)| given.is_some());
        let wanted: Vec<_> =
            leaving.filter_map(|(output, _)| output.as_ref()).filter(|output| output.1).collect();
        let given = if self.pass == Pass::Inputs { &PARAMS[..3] } else { &PARAMS };
        let names = self.params(function, given, Some(wanted.len()))?.to_vec();
        let mut scope = Scope::new();
        for (name, (tensor, _)) in names.iter().zip(wanted) {
            let seed = self.new_buf(name, *tensor, true);
            self.body.code_mut(self.block, self.pass).takes.push(seed);
            self.define(&mut scope, name, seed, function.line)?;
        }
        let (values, line, stmts) = returned(function);
        let instrs = self.instrs(&mut scope, stmts, sizes)?;
        self.body.code_mut(self.block, self.pass).instrs = instrs;
        let rest = &role.gradients[self.body.gradients.len().min(role.gradients.len())..];
        if values.len() > rest.len() {
            let (count, wanted) = (values.len(), rest.len());
            return Err(
                self.misuse(line, format!("`{}` returns {count} values, not {wanted}", function.name))
            );
        }
        for (value, tensor) in values.iter().zip(rest) {
            let buf = self.buf(&scope, value, line)?;
            self.body.gradients.push(*tensor);
            self.body.code_mut(self.block, self.pass).gives.push(Some(buf));
        }
        Ok(())
    }

    fn weights(&mut self, function: &Function<'a>, sizes: &[usize]) -> Result<()> {
        self.params(function, &PARAMS, Some(0))?;
        let instrs = self.instrs(&mut Scope::new(), &function.body, sizes)?;
        self.body.code_mut(self.block, Pass::Weights).instrs = instrs;
        Ok(())
    }

    fn instrs(&mut self, scope: &mut Scope<'a>, stmts: &[Stmt<'a>], sizes: &[usize]) -> Result<Vec<Instr>> {
        let mut instrs = Vec::with_capacity(stmts.len());
        for stmt in stmts {
            match &stmt.kind {
                StmtKind::If(Expr::Name("last"), inner) if self.pass.settles() => {
                    for stmt in inner {
                        instrs.push(self.instr(scope, stmt, sizes, true)?);
                    }
                }
                // Of a loop, by its counter.
                StmtKind::If(Expr::Bool(goes_on), inner) if self.in_loop => {
                    if *goes_on {
                        instrs.extend(self.instrs(scope, inner, sizes)?);
                    }
                }
                StmtKind::For { target, values, body } => {
                    let outside = std::mem::replace(&mut self.in_loop, true);
                    let is_known = scope.contains_key(target);
                    for value in iterations(self, is_known, target, values, body, stmt.line)? {
                        self.spend(body.len().max(1), stmt.line)?;
                        let iteration: Vec<Stmt<'a>> =
                            body.iter().map(|s| one_by_one(s, target, value)).collect();
                        instrs.extend(self.instrs(scope, &iteration, sizes)?);
                    }
                    self.in_loop = outside;
                }
                _ => instrs.push(self.instr(scope, stmt, sizes, false)?),
            }
        }
        Ok(instrs)
    }

    fn instr(
        &mut self,
        scope: &mut Scope<'a>,
        stmt: &Stmt<'a>,
        sizes: &[usize],
        last: bool,
    ) -> Result<Instr> {
        let (targets, unpack, value): (&[&'a str], bool, _) = match &stmt.kind {
            StmtKind::Assign { targets, unpack, value } => (targets, *unpack, value),
            StmtKind::Expr(value) => (&[], false, value),
            _ => return Err(self.misuse(stmt.line, "only instructions may stand here")),
        };
        let last_or_end = last || self.pass == Pass::End;
        let mut methods = Methods { reader: self, scope, sizes, line: stmt.line, last: last_or_end };
        let instr = methods.instr(targets, unpack, value)?;
        let ops = std::mem::take(&mut self.lines_of_ops);
        let function = self.called.take().map(str::to_owned);
        self.lines.push(Line { line: stmt.line, ops, function });
        if instr.settles() != last && self.pass != Pass::End {
            let stands = if last { "may not stand" } else { "must stand" };
            let what = format!("`run.{}` {stands} below `if last:`", instr.kind().name());
            return Err(self.misuse(stmt.line, what));
        }
        Ok(instr)
    }
}
