//! One role's file back to its body.

use std::collections::HashMap;

use diag::{Error, Result};
use graph::{Graph, TensorId};
use program::{Arg, Body, Buf, BufId, InputPart, Instr, Leaf, Program, StepId};

use super::code::Code;
use super::hints::{Hints, UNKNOWN};
use super::methods::Methods;
use super::tables::RoleTable;
use crate::leaves::{names_of, written};
use crate::python::{Expr, Function, Stmt, StmtKind, parser};

/// Everything that is known while the text of a role is read.
pub(super) struct Reader<'a> {
    pub(super) file: &'a str,
    pub(super) body: Body,
    /// Leaves by the way they are written: `p.h[0].weight`.
    pub(super) leaves: HashMap<String, usize>,
    pub(super) holes: HashMap<String, u32>,
    pub(super) functions: HashMap<&'a str, (usize, Function<'a>)>,
    pub(super) hints: Hints<'a>,
    /// What is still allowed, so that functions that call each other cannot grow without end.
    pub(super) budget: usize,
    pub(super) exchanged: HashMap<StepId, TensorId>,
    pub(super) in_backward: bool,
}

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
        hints: Hints::new(graph),
        budget: MOST_OPS,
        exchanged: program.exchanges.iter().map(|(step, exchange)| (*step, exchange.tensor)).collect(),
        in_backward: false,
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
    let backward = reader.functions.remove("backward").map(|(_, function)| function);
    reader.inputs(role, &forward)?;
    reader.make_leaves(graph, role)?;
    let sizes = group_sizes(program, role);
    reader.forward(role, &forward, &sizes)?;
    if let Some(backward) = backward {
        reader.backward(role, &backward, &sizes)?;
    }
    Ok(reader.body)
}

fn group_sizes(program: &Program, role: &RoleTable) -> Vec<usize> {
    let group = |grouping: &program::Grouping| {
        let rank = role.ranks.first()?;
        grouping.iter().find(|group| group.contains(rank)).map(Vec::len)
    };
    program.groupings.iter().map(|grouping| group(grouping).unwrap_or(0)).collect()
}

/// Names that mean the same in every program.
fn is_reserved(name: &str) -> bool {
    matches!(name, "p" | "rank" | "run" | "torch" | "F" | "ops" | "float" | "_")
}

/// The names of one function's bufs.
pub(super) type Scope<'a> = HashMap<&'a str, BufId>;

impl<'a> Reader<'a> {
    pub(super) fn misuse(&self, line: u32, what: impl Into<String>) -> Error {
        Error::new("SW0607", what)
            .at(format!("{}:{line}", self.file))
            .fix("see docs/emitted-program.md for what may stand there, or compile again")
    }

    pub(super) fn unknown(&self, line: u32, what: impl Into<String>) -> Error {
        Error::new("SW0606", what)
            .at(format!("{}:{line}", self.file))
            .why("every name is assigned once in a function, before it is used")
            .fix("correct the name, or compile again")
    }

    pub(super) fn new_buf(&mut self, name: &str, tensor: TensorId, grad: bool) -> BufId {
        let id = BufId::new(self.body.bufs.len());
        self.body.bufs.push(Buf { name: name.to_owned(), tensor, grad });
        id
    }

    pub(super) fn define(&self, scope: &mut Scope<'a>, name: &'a str, buf: BufId, line: u32) -> Result<()> {
        if is_reserved(name) || self.functions.contains_key(name) || scope.insert(name, buf).is_some() {
            return Err(self.unknown(line, format!("the name `{name}` is taken and is assigned again")));
        }
        Ok(())
    }

    fn inputs(&mut self, role: &RoleTable, forward: &Function<'a>) -> Result<()> {
        let names = self.params(forward, role.inputs.len())?.to_vec();
        for (name, tensor) in names.iter().zip(&role.inputs) {
            let buf = self.new_buf(name, *tensor, false);
            self.body.inputs.push(InputPart { tensor: *tensor, buf });
        }
        Ok(())
    }

    /// What follows `run, p, k`.
    fn params<'f>(&self, function: &'f Function<'a>, count: usize) -> Result<&'f [&'a str]> {
        match function.params.strip_prefix(&["run", "p", "rank"]) {
            Some(rest) if rest.len() == count => Ok(rest),
            _ => {
                let what = format!("`{}` must take run, p, k and {count} tensors", function.name);
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
        for (name, buf) in function.params[3..].iter().zip(self.body.inputs.clone()) {
            self.define(&mut scope, name, buf.buf, function.line)?;
        }
        let (last, stmts) = match function.body.split_last() {
            Some((Stmt { kind: StmtKind::Return(values), line, .. }, stmts)) => {
                ((values.as_slice(), *line), stmts)
            }
            _ => ((&[] as &[Expr<'a>], function.line), function.body.as_slice()),
        };
        let instrs = self.instrs(&mut scope, stmts, sizes)?;
        self.body.forward = instrs;
        let (values, line) = last;
        if values.len() != role.outputs.len() {
            let what = format!("`forward` returns {} values, not {}", values.len(), role.outputs.len());
            return Err(self.misuse(line, what));
        }
        for (value, output) in values.iter().zip(&role.outputs) {
            let buf = if *value == Expr::None { None } else { Some(self.buf(&scope, value, line)?) };
            if buf.is_some() != output.is_some() {
                return Err(self.misuse(line, "`forward` does not return what program.json says"));
            }
            self.body.outputs.push(buf);
        }
        Ok(())
    }

    fn backward(&mut self, role: &RoleTable, function: &Function<'a>, sizes: &[usize]) -> Result<()> {
        let wanted: Vec<_> = role.outputs.iter().flatten().filter(|(_, grad)| *grad).collect();
        let names = self.params(function, wanted.len())?.to_vec();
        let mut scope = Scope::new();
        for (name, (tensor, _)) in names.iter().zip(wanted) {
            let seed = self.new_buf(name, *tensor, true);
            self.body.seeds.push(seed);
            self.define(&mut scope, name, seed, function.line)?;
        }
        self.in_backward = true;
        let instrs = self.instrs(&mut scope, &function.body, sizes)?;
        self.body.backward = instrs;
        Ok(())
    }

    fn instrs(&mut self, scope: &mut Scope<'a>, stmts: &[Stmt<'a>], sizes: &[usize]) -> Result<Vec<Instr>> {
        let mut found = Vec::with_capacity(stmts.len());
        for stmt in stmts {
            let (targets, unpack, value): (&[&'a str], bool, _) = match &stmt.kind {
                StmtKind::Assign { targets, unpack, value } => (targets, *unpack, value),
                StmtKind::Expr(value) => (&[], false, value),
                _ => return Err(self.misuse(stmt.line, "only instructions may stand here")),
            };
            let mut methods = Methods { reader: self, scope, sizes, line: stmt.line };
            found.push(methods.instr(targets, unpack, value)?);
        }
        Ok(found)
    }

    /// The leaf that an expression is, if it begins with `p`.
    pub(super) fn leaf(&self, expr: &Expr<'a>, tree: &str, line: u32) -> Result<usize> {
        let mut text = String::with_capacity(tree.len() + 32);
        text.push_str(tree);
        self.path(expr, &mut text, line)?;
        let found = self.leaves.get(text.as_str()).copied();
        found.ok_or_else(|| self.unknown(line, format!("this rank has no leaf `{text}`")))
    }

    /// Writes what follows `p` in the one way in which leaves are written.
    pub(super) fn path(&self, expr: &Expr<'a>, text: &mut String, line: u32) -> Result<()> {
        let strange = || self.misuse(line, "a path in `p` is written in an unknown way");
        match expr {
            Expr::Name("p") => {}
            Expr::Attr(object, name) => {
                self.path(object, text, line)?;
                text.push('.');
                text.push_str(name);
            }
            Expr::Index(object, subscripts) => {
                self.path(object, text, line)?;
                match subscripts.as_slice() {
                    [Expr::Int(index)] if *index >= 0 => text.push_str(&format!("[{index}]")),
                    [Expr::Str(name)] => {
                        text.push('[');
                        crate::python::print::string(text, name);
                        text.push(']');
                    }
                    _ => return Err(strange()),
                }
            }
            _ => return Err(strange()),
        }
        Ok(())
    }

    /// A buf at the level of instructions: a name or a leaf.
    pub(super) fn buf(&self, scope: &Scope<'a>, expr: &Expr<'a>, line: u32) -> Result<BufId> {
        if let Expr::Name(name) = expr {
            let found = scope.get(name).copied();
            return found.ok_or_else(|| self.unknown(line, format!("`{name}` is not assigned before")));
        }
        Ok(self.body.leaves[self.leaf(expr, "p", line)?].buf)
    }

    /// Leaves are numbered right after the inputs.
    pub(super) fn is_leaf(&self, buf: BufId) -> bool {
        let first = self.body.inputs.len();
        (first..first + self.body.leaves.len()).contains(&buf.index())
    }

    /// The tensors whose gradients the backward of a call gives, where that can be told.
    pub(super) fn grad_tensors(&self, step: StepId, count: usize) -> Vec<TensorId> {
        let call = self.body.forward.iter().find_map(|instr| match instr {
            Instr::Call(call) if call.step == step => Some(call),
            _ => None,
        });
        let inputs = call.map_or(&[][..], |call| &call.inputs);
        let tensors = inputs.iter().filter(|buf| !self.is_leaf(**buf)).map(|buf| self.body.buf(*buf).tensor);
        let found: Vec<TensorId> = tensors.filter(|tensor| self.hints.needs_grad(*tensor)).collect();
        if found.len() == count { found } else { vec![UNKNOWN; count] }
    }

    pub(super) fn hole(&self, expr: &Expr<'a>, line: u32) -> Result<Option<Arg>> {
        match expr {
            Expr::Attr(object, name) if **object == Expr::Name("rank") => match self.holes.get(*name) {
                Some(index) => Ok(Some(Arg::Hole(*index))),
                None => Err(self.unknown(line, format!("ranks of this file have no constant `rank.{name}`"))),
            },
            _ => Ok(None),
        }
    }

    pub(super) fn code(&mut self) -> Code<'a, '_> {
        Code { reader: self, ops: vec![] }
    }
}
