//! What is known while the text of a role is read: its bufs, leaves, constants and functions.

use std::collections::HashMap;

use diag::{Error, Result};
use graph::TensorId;
use program::{Arg, Body, Buf, BufId, CallId, KeepId, LeafId, Pass, Table};

use crate::hints::{Hints, UNKNOWN};
use crate::lines::Line;
use crate::names::is_reserved;
use crate::python::{Expr, Function, print};
use crate::write::{Gathered, gathered, is_below};

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
    /// The tensor of each exchange.
    pub(super) exchanged: Vec<TensorId>,
    /// What the calls that were read so far are called.
    pub(super) calls: Vec<String>,
    /// The last call of each name, and whether it keeps nothing.
    pub(super) called_so: HashMap<String, (CallId, bool)>,
    /// What was kept and not taken so far.
    pub(super) kept: HashMap<KeepId, Vec<BufId>>,
    pub(super) in_loop: bool,
    /// The codes that have a function, by its name.
    pub(super) codes: Vec<(String, (u32, Pass))>,
    /// The code that is read.
    pub(super) block: u32,
    pub(super) pass: Pass,
    pub(super) parts: &'a Table,
    /// How each leaf is written.
    pub(super) texts: Vec<String>,
    /// The lines of the instructions of this code that were read so far, and of the operators of the last call.
    pub(super) lines: Vec<Line>,
    pub(super) lines_of_ops: Vec<u32>,
    /// The function of the last call.
    pub(super) called: Option<&'a str>,
}

/// The names of one function's bufs.
pub(super) type Scope<'a> = HashMap<&'a str, BufId>;

impl<'a> Reader<'a> {
    pub(super) fn misuse(&self, line: u32, what: impl Into<String>) -> Error {
        Error::new("SW0607", what)
            .at(format!("{}:{line}", self.file))
            .fix("see docs/reference/emitted-program.md for what may stand there, or compile again")
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

    /// The block and pass of a code by the name of its function.
    pub(super) fn code_of(&self, name: &str) -> Option<(u32, Pass)> {
        self.codes.iter().find(|(known, _)| known == name).map(|(_, code)| *code)
    }

    pub(super) fn is_function(&self, name: &str) -> bool {
        self.functions.contains_key(name)
    }

    /// Takes so many operators or statements of a loop from what is allowed.
    pub(super) fn spend(&mut self, count: usize, line: u32) -> Result<()> {
        self.budget = self.budget.saturating_sub(count);
        if self.budget > 0 {
            return Ok(());
        }
        Err(Error::new("SW0608", "the program runs more operators than can be read")
            .at(format!("{}:{line}", self.file))
            .why("functions that call others several times, and loops, grow without end")
            .fix("compile again"))
    }

    /// Gives a name to a value. Only what a loop makes may be called as something before.
    pub(super) fn define(&self, scope: &mut Scope<'a>, name: &'a str, buf: BufId, line: u32) -> Result<()> {
        let taken = is_reserved(name) || self.is_function(name);
        if taken || (scope.insert(name, buf).is_some() && !self.in_loop) {
            return Err(self.unknown(line, format!("the name `{name}` is taken and is assigned again")));
        }
        Ok(())
    }

    /// The leaf that an expression is, if it begins with `p`.
    pub(super) fn leaf(&self, expr: &Expr<'a>, tree: &str, line: u32) -> Result<usize> {
        let mut text = String::with_capacity(tree.len() + 32);
        text.push_str(tree);
        self.path(expr, &mut text, line)?;
        let leaf = self.leaves.get(text.as_str()).copied();
        leaf.ok_or_else(|| self.unknown(line, format!("this rank has no leaf `{text}`")))
    }

    /// A leaf, or what is gathered at a place in the tree.
    pub(super) fn tree(&self, expr: &Expr<'a>, which: Gathered, line: u32) -> Result<Vec<LeafId>> {
        let mut text = String::from("p");
        self.path(expr, &mut text, line)?;
        if let Some(leaf) = self.leaves.get(text.as_str()) {
            return Ok(vec![LeafId::new(*leaf)]);
        }
        let here = |leaf: &usize| is_below(&self.texts[*leaf], &text);
        let leaves: Vec<LeafId> = gathered(self.parts, which).filter(here).map(LeafId::new).collect();
        if leaves.is_empty() {
            return Err(self.unknown(line, format!("nothing is gathered at `{text}`")));
        }
        Ok(leaves)
    }

    /// Writes what follows `p` in the one way in which leaves are written.
    pub(super) fn path(&self, expr: &Expr<'a>, text: &mut String, line: u32) -> Result<()> {
        let strange = || self.misuse(line, "a path in `p` is written in an unknown way");
        let (Expr::Name("p"), links) = expr.links() else { return Err(strange()) };
        for link in links {
            match link {
                Expr::Attr(_, name) => {
                    text.push('.');
                    text.push_str(name);
                }
                Expr::Index(_, subscripts) => match subscripts.as_slice() {
                    [Expr::Int(index)] if *index >= 0 => text.push_str(&format!("[{index}]")),
                    [Expr::Str(name)] => {
                        text.push('[');
                        print::string(text, name);
                        text.push(']');
                    }
                    _ => return Err(strange()),
                },
                _ => return Err(strange()),
            }
        }
        Ok(())
    }

    /// A buf at the level of instructions: a name or a leaf.
    pub(super) fn buf(&self, scope: &Scope<'a>, expr: &Expr<'a>, line: u32) -> Result<BufId> {
        if let Expr::Name(name) = expr {
            let buf = scope.get(name).copied();
            return buf.ok_or_else(|| self.unknown(line, format!("`{name}` is not assigned before")));
        }
        Ok(self.body.leaves[self.leaf(expr, "p", line)?].buf)
    }

    /// Leaves are numbered right after the inputs.
    pub(super) fn is_leaf(&self, buf: BufId) -> bool {
        let first = self.body.inputs.len();
        (first..first + self.body.leaves.len()).contains(&buf.index())
    }

    /// The tensors whose gradients the backward of a call gives, where that can be told.
    pub(super) fn grad_tensors(&self, id: CallId, count: usize) -> Vec<TensorId> {
        let call = self.body.calls().find(|call| call.id == id);
        let inputs = call.map_or(&[][..], |call| &call.inputs);
        let tensors = inputs.iter().filter(|buf| !self.is_leaf(**buf)).map(|buf| self.body.buf(*buf).tensor);
        let tensors: Vec<TensorId> = tensors.filter(|tensor| self.hints.needs_grad(*tensor)).collect();
        if tensors.len() == count { tensors } else { vec![UNKNOWN; count] }
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
}
