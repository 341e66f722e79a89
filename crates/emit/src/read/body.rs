//! One role's file back to its body.

use std::collections::HashMap;

use diag::Result;
use graph::Graph;
use program::{Body, BufId, Instr, Leaf, Pass, Program, Timetable};

use super::methods::Methods;
use super::reader::{Reader, Scope};
use super::tables::RoleTable;
use super::timetable::timetable;
use super::turns::{in_turn, turns};
use crate::hints::Hints;
use crate::leaves::{names_of, written};
use crate::names::is_reserved;
use crate::python::{Expr, Function, Stmt, StmtKind, parser};

/// What `backward` takes before tensors; `forward` takes the first three.
const PARAMS: [&str; 4] = ["run", "p", "rank", "last"];
/// Operators in all calls of a role.
const MOST_OPS: usize = 1_000_000;

pub(super) fn read(graph: &Graph, program: &Program, role: &RoleTable, text: &str) -> Result<Body> {
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
        pass: Pass::Begin,
        parts: &role.table,
        texts: vec![],
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
    let forward = reader.functions.remove("forward");
    let (_, forward) = forward.ok_or_else(|| reader.misuse(1, "there is no function `forward`"))?;
    let begin = reader.functions.remove("begin").map(|(_, function)| function);
    let backward = reader.functions.remove("backward").map(|(_, function)| function);
    let step = reader.functions.remove("step").map(|(_, function)| function);
    reader.inputs(role, &forward)?;
    reader.make_leaves(graph, role)?;
    let sizes = group_sizes(program, role);
    if let Some(begin) = &begin {
        reader.params(begin, &PARAMS[..3], 0)?;
        let instrs = reader.instrs(&mut Scope::new(), &begin.body, &sizes)?;
        reader.body.code_mut(Pass::Begin).instrs = instrs;
    }
    reader.forward(role, &forward, &sizes)?;
    if let Some(backward) = backward {
        reader.backward(role, &backward, &sizes)?;
    } else if !role.gradients.is_empty() {
        return Err(reader.misuse(1, "there is no function `backward`, which gives the gradients of inputs"));
    }
    reader.body.timetable = match step {
        Some(step) => timetable(&reader, &step)?,
        None => Timetable::in_turn(begin.is_some(), false),
    };
    Ok(reader.body)
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
    fn inputs(&mut self, role: &RoleTable, forward: &Function<'a>) -> Result<()> {
        let names = self.params(forward, &PARAMS[..3], role.inputs.len())?.to_vec();
        for (name, tensor) in names.iter().zip(&role.inputs) {
            let buf = self.new_buf(name, *tensor, false);
            self.body.inputs.push(*tensor);
            self.body.code_mut(Pass::Forward).takes.push(buf);
        }
        Ok(())
    }

    /// What follows the first parameters.
    fn params<'f>(&self, function: &'f Function<'a>, first: &[&str], count: usize) -> Result<&'f [&'a str]> {
        match function.params.split_at_checked(first.len()) {
            Some((start, rest)) if start == first && rest.len() == count => Ok(rest),
            _ => {
                let what = format!("`{}` must take {} and {count} tensors", function.name, first.join(", "));
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
        let inputs = self.body.takes(Pass::Forward).to_vec();
        for (name, buf) in function.params[3..].iter().zip(inputs) {
            self.define(&mut scope, name, buf, function.line)?;
        }
        self.pass = Pass::Forward;
        let (values, line, stmts) = returned(function);
        let instrs = self.instrs(&mut scope, stmts, sizes)?;
        self.body.code_mut(Pass::Forward).instrs = instrs;
        if values.len() != role.outputs.len() {
            let what = format!("`forward` returns {} values, not {}", values.len(), role.outputs.len());
            return Err(self.misuse(line, what));
        }
        for (value, output) in values.iter().zip(&role.outputs) {
            let buf = if *value == Expr::None { None } else { Some(self.buf(&scope, value, line)?) };
            if buf.is_some() != output.is_some() {
                return Err(self.misuse(line, "`forward` does not return what program.json says"));
            }
            self.body.code_mut(Pass::Forward).gives.push(buf);
        }
        Ok(())
    }

    fn backward(&mut self, role: &RoleTable, function: &Function<'a>, sizes: &[usize]) -> Result<()> {
        let wanted: Vec<_> = role.outputs.iter().flatten().filter(|(_, grad)| *grad).collect();
        let names = self.params(function, &PARAMS, wanted.len())?.to_vec();
        let mut scope = Scope::new();
        for (name, (tensor, _)) in names.iter().zip(wanted) {
            let seed = self.new_buf(name, *tensor, true);
            self.body.code_mut(Pass::Backward).takes.push(seed);
            self.define(&mut scope, name, seed, function.line)?;
        }
        self.pass = Pass::Backward;
        let (values, line, stmts) = returned(function);
        let instrs = self.instrs(&mut scope, stmts, sizes)?;
        self.body.code_mut(Pass::Backward).instrs = instrs;
        if values.len() != role.gradients.len() {
            let (found, wanted) = (values.len(), role.gradients.len());
            return Err(self.misuse(line, format!("`backward` returns {found} values, not {wanted}")));
        }
        for (value, tensor) in values.iter().zip(&role.gradients) {
            let buf = self.buf(&scope, value, line)?;
            self.body.gradients.push(*tensor);
            self.body.code_mut(Pass::Backward).gives.push(Some(buf));
        }
        Ok(())
    }

    fn instrs(&mut self, scope: &mut Scope<'a>, stmts: &[Stmt<'a>], sizes: &[usize]) -> Result<Vec<Instr>> {
        let mut found = Vec::with_capacity(stmts.len());
        for stmt in stmts {
            match &stmt.kind {
                StmtKind::If(Expr::Name("last"), inner) if self.pass == Pass::Backward => {
                    for stmt in inner {
                        found.push(self.instr(scope, stmt, sizes, true)?);
                    }
                }
                StmtKind::For { target, values, body } => {
                    let outside = std::mem::replace(&mut self.in_loop, true);
                    for value in turns(self, scope, (target, values, body), stmt.line)? {
                        self.spend(body.len().max(1), stmt.line)?;
                        let turn: Vec<Stmt<'a>> = body.iter().map(|s| in_turn(s, target, value)).collect();
                        found.extend(self.instrs(scope, &turn, sizes)?);
                    }
                    self.in_loop = outside;
                }
                _ => found.push(self.instr(scope, stmt, sizes, false)?),
            }
        }
        Ok(found)
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
        let mut methods = Methods { reader: self, scope, sizes, line: stmt.line, last };
        let instr = methods.instr(targets, unpack, value)?;
        if instr.settles() != last {
            let stands = if last { "may not stand" } else { "must stand" };
            let what = format!("`run.{}` {stands} below `if last:`", instr.kind().name());
            return Err(self.misuse(stmt.line, what));
        }
        Ok(instr)
    }
}
