//! The functions behind the calls of a role: one for each different piece of code.
//!
//! Two pieces of code are the same if they differ only in names of variables, in where their leaves
//! hang, and in the numbers of random operators: those become arguments.

use std::collections::{HashMap, HashSet};

use graph::{Graph, OpId, Source, TensorId};
use program::{Arg, Body, BufId, Call, LocalOp};

use super::group::{Group, Node, group, shared};
use super::modules::{Modules, plain};
use crate::leaves::{self, Leaves};
use crate::names;

/// A variable of a function. The parameters come first.
pub(crate) type Var = usize;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Value<'a> {
    Var(Var),
    /// As it is written: `p.c_attn.weight`.
    Leaf(String),
    Hole(u32),
    /// The number of a random operator: a position in [`Outlined::numbers`].
    Number(usize),
    /// The bits of a float, so that code can be compared.
    Float(u64),
    List(Vec<Value<'a>>),
    Plain(&'a PlainArg),
}

/// An argument that holds neither bufs nor floats.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlainArg(pub(crate) Arg);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Item<'a> {
    Op {
        target: &'a str,
        args: Vec<Value<'a>>,
        kwargs: Vec<(&'a str, Value<'a>)>,
        outputs: Vec<Option<Var>>,
        no_grad: bool,
        line: &'a str,
    },
    Call {
        function: usize,
        /// What its `p` is, seen from this function.
        tree: Option<String>,
        args: Vec<Value<'a>>,
        outputs: Vec<Var>,
        /// Where its numbers begin among this function's.
        numbers: usize,
    },
}

/// What makes functions the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape<'a> {
    pub(crate) params: Vec<Var>,
    pub(crate) items: Vec<Item<'a>>,
    pub(crate) results: Vec<Value<'a>>,
    pub(crate) uses_leaves: bool,
    pub(crate) uses_holes: bool,
}

pub(crate) struct Outlined<'a> {
    pub(crate) shape: std::rc::Rc<Shape<'a>>,
    pub(crate) name: String,
    /// What each variable would like to be called.
    pub(crate) hints: Vec<String>,
    /// The modules that use it, the first few, and how many there are.
    pub(crate) paths: Vec<&'a str>,
    pub(crate) users: HashSet<&'a str>,
    /// Numbers of random operators, where all uses agree.
    pub(crate) numbers: Vec<Option<i64>>,
}

/// One use of a function.
pub(crate) struct Use<'a> {
    pub(crate) function: usize,
    /// The module that `p` stands for.
    pub(crate) tree: Option<String>,
    /// Leaves that are arguments, after the tensors.
    pub(crate) leaves: Vec<usize>,
    pub(crate) numbers: Vec<i64>,
    pub(crate) path: &'a str,
}

pub(crate) struct Outline<'a> {
    graph: &'a Graph,
    modules: &'a Modules<'a>,
    body: &'a Body,
    leaves: &'a Leaves<'a>,
    leaf_of: Vec<Option<usize>>,
    /// The last operator of the current call that reads a buf; the largest number if it leaves.
    last_use: Vec<usize>,
    known: HashMap<std::rc::Rc<Shape<'a>>, usize>,
    pub(crate) functions: Vec<Outlined<'a>>,
}
