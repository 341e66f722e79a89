//! The functions behind the calls of a role: one for each different piece of code.
//!
//! Two pieces of code are the same if they differ only in names of variables, in where their leaves
//! hang, and in the numbers of random operators: those become arguments.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use graph::{Dtype, Graph, Source};
use program::{Arg, Body, BufId, Call, LocalOp};

use super::group::{Group, Node, group, shared};
use super::modules::{Modules, plain};
use crate::leaves::{self, Leaves};
use crate::names;

/// A variable of a function.
pub(crate) type Var = usize;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Value<'a> {
    Var(Var),
    /// As it is written: `p.c_attn.weight`.
    Leaf(String),
    Hole(u32),
    /// The number of a random operator: a position in [`Outlined::numbers`].
    Number(usize),
    None,
    Bool(bool),
    Int(i64),
    /// Its bits, so that code can be compared.
    Float(u64),
    Str(&'a str),
    Dtype(Dtype),
    List(Vec<Value<'a>>),
}

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
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Shape<'a> {
    pub(crate) params: Vec<Var>,
    pub(crate) items: Vec<Item<'a>>,
    pub(crate) results: Vec<Value<'a>>,
    pub(crate) uses_leaves: bool,
    pub(crate) uses_holes: bool,
}

pub(crate) struct Outlined<'a> {
    pub(crate) shape: Shape<'a>,
    pub(crate) name: String,
    /// What each variable would like to be called.
    pub(crate) hints: Vec<String>,
    /// The first few of the modules that use it.
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
    pub(crate) tensors: Vec<BufId>,
    /// Leaves that are arguments, after the tensors.
    pub(crate) leaves: Vec<usize>,
    pub(crate) numbers: Vec<i64>,
    pub(crate) path: &'a str,
}

pub(crate) struct Outline<'a> {
    graph: &'a Graph,
    modules: &'a Modules<'a>,
    body: &'a Body,
    pub(crate) leaves: &'a Leaves<'a>,
    pub(crate) leaf_of: Vec<Option<usize>>,
    /// The last operator of the current call that reads a buf; the largest number if it leaves.
    last_use: Vec<usize>,
    known: HashMap<u64, Vec<usize>>,
    pub(crate) functions: Vec<Outlined<'a>>,
}

/// A function that is being written.
struct Draft<'a> {
    shape: Shape<'a>,
    tree: String,
    vars: HashMap<BufId, Var>,
    hints: Vec<String>,
    leaves: Vec<usize>,
    numbers: Vec<i64>,
    /// The module of the operator that is being written.
    user: &'a str,
    /// Parameters that have no name of their own so far.
    unnamed: usize,
}

impl<'a> Outline<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        modules: &'a Modules<'a>,
        body: &'a Body,
        leaves: &'a Leaves<'a>,
    ) -> Self {
        let mut leaf_of = vec![None; body.bufs.len()];
        for (index, leaf) in body.leaves.iter().enumerate() {
            leaf_of[leaf.buf.index()] = Some(index);
        }
        let last_use = vec![0; body.bufs.len()];
        Self { graph, modules, body, leaves, leaf_of, last_use, known: HashMap::new(), functions: vec![] }
    }

    /// The function of a call, and its arguments: first the call's inputs that are no leaves.
    pub(crate) fn call(&mut self, call: &'a Call) -> Use<'a> {
        for (index, op) in call.ops.iter().enumerate() {
            for buf in op.inputs() {
                self.last_use[buf.index()] = index;
            }
        }
        for buf in &call.outputs {
            self.last_use[buf.index()] = usize::MAX;
        }
        let mut group = group(self.modules, &call.ops);
        let params: Vec<BufId> =
            call.inputs.iter().copied().filter(|buf| self.leaf_of[buf.index()].is_none()).collect();
        let tree = if group.complete && !group.path.is_empty() {
            plain(group.path)
        } else {
            self.settle(call, &mut group)
        };
        let name = self.name(&call.ops, &group);
        self.function(&call.ops, &group, name, tree, &params, &call.outputs)
    }

    /// Part of a module, or parts of several, belong to the module that all leaves hang in, if there
    /// is one further inside. Gives the module that `p` stands for.
    fn settle(&self, call: &Call, group: &mut Group<'a>) -> String {
        let read = call.ops.iter().flat_map(LocalOp::inputs).chain(call.outputs.iter().copied());
        let leaves: Vec<usize> = read.filter_map(|buf| self.leaf_of[buf.index()]).collect();
        let modules = leaves.iter().map(|leaf| self.leaves.module(*leaf));
        let Some(common) = modules.reduce(shared) else { return String::new() };
        let outer = |path: &'a str| path.rsplit_once('.').map_or("", |(outer, _)| outer);
        let owner = if self.modules.is_leaf(common) { outer(common) } else { common };
        let path = plain(group.path);
        if owner.len() > path.len() && leaves::strip(owner, &path).is_some() {
            group.path = owner;
        }
        let path = plain(group.path);
        let inside = leaves.iter().any(|leaf| self.leaves.within(*leaf, &path, "").is_some());
        if inside { path } else { common.to_owned() }
    }

    /// What the function of a whole call is named: its module, and what in it this is mostly about.
    fn name(&self, ops: &[LocalOp], group: &Group<'a>) -> String {
        const MOST_CHILDREN: usize = 64;
        let name = self.modules.function_name(group.path);
        if group.complete || self.modules.is_leaf(group.path) {
            return name;
        }
        let mut counts: Vec<(&str, usize)> = vec![];
        for op in ops {
            let rest = leaves::strip(self.modules.of(op.op), group.path).unwrap_or("");
            let child = rest.split(['.', '@']).next().unwrap_or(rest);
            let named = !child.is_empty() && !child.bytes().all(|b| b.is_ascii_digit());
            match counts.iter().position(|(known, _)| *known == child) {
                Some(at) => counts[at].1 += 1,
                None if named && counts.len() < MOST_CHILDREN => counts.push((child, 1)),
                None => {}
            }
        }
        if let Some((child, _)) = counts.iter().max_by_key(|(_, count)| *count) {
            return format!("{name}_{}", names::snake(child));
        }
        let last = ops.last().and_then(|op| Some(self.op_hint(op, (*op.outputs.first()?)?)));
        last.map_or(name.clone(), |last| format!("{name}_{last}"))
    }

    fn function(
        &mut self,
        ops: &'a [LocalOp],
        group: &Group<'a>,
        name: String,
        tree: String,
        params: &[BufId],
        results: &[BufId],
    ) -> Use<'a> {
        let mut draft = Draft::new(tree);
        for buf in params {
            let hint = self.param_hint(*buf, &mut draft.unnamed);
            let var = draft.define(*buf, hint);
            draft.shape.params.push(var);
        }
        for (at, node) in group.nodes.iter().enumerate() {
            match node {
                Node::Op(index) => self.op(&mut draft, ops, *index, group, group.nodes.get(at + 1)),
                Node::Group(inner) => self.nested(&mut draft, ops, inner),
            }
        }
        for buf in results {
            let value = self.buf(&mut draft, *buf);
            draft.shape.results.push(value);
        }
        let tree = draft.shape.uses_leaves.then_some(draft.tree);
        let function = self.intern(draft.shape, draft.hints, name, group.path, &draft.numbers);
        let tensors = params.to_vec();
        Use { function, tree, tensors, leaves: draft.leaves, numbers: draft.numbers, path: group.path }
    }

    fn intern(
        &mut self,
        shape: Shape<'a>,
        hints: Vec<String>,
        name: String,
        path: &'a str,
        numbers: &[i64],
    ) -> usize {
        const MOST_PATHS: usize = 4;
        let mut hasher = DefaultHasher::new();
        shape.hash(&mut hasher);
        let same = self.known.entry(hasher.finish()).or_default();
        let functions = &mut self.functions;
        let found = same.iter().copied().find(|id| functions[*id].shape == shape);
        let id = found.unwrap_or_else(|| {
            let (paths, users) = (vec![], HashSet::new());
            let numbers = numbers.iter().copied().map(Some).collect();
            functions.push(Outlined { shape, name, hints, paths, users, numbers });
            same.push(functions.len() - 1);
            functions.len() - 1
        });
        let function = &mut functions[id];
        let title = self.modules.title(path);
        if function.users.insert(title) && function.paths.len() < MOST_PATHS {
            function.paths.push(title);
        }
        for (known, number) in function.numbers.iter_mut().zip(numbers) {
            *known = known.filter(|known| known == number);
        }
        id
    }

    fn op(
        &self,
        draft: &mut Draft<'a>,
        ops: &'a [LocalOp],
        index: usize,
        group: &Group<'a>,
        next: Option<&Node<'a>>,
    ) {
        let op = &ops[index];
        draft.user = self.modules.of(op.op);
        let mut args: Vec<Value<'a>> = op.args.iter().map(|arg| self.value(draft, arg)).collect();
        if let Some(Value::Int(number)) = random_number(&op.target).and_then(|at| args.get(at)) {
            draft.numbers.push(*number);
            let at = random_number(&op.target).unwrap_or_default();
            args[at] = Value::Number(draft.numbers.len() - 1);
        }
        let kwargs = op.kwargs.iter().map(|(name, arg)| (name.as_str(), self.value(draft, arg))).collect();
        let module = self.modules.of(op.op);
        let ends = !matches!(next, Some(Node::Op(next)) if self.modules.of(ops[*next].op) == module);
        let only = match op.outputs.as_slice() {
            [Some(buf)] => !self.is_made_up(*buf),
            _ => false,
        };
        let hint = (ends && only && module != group.path && !module.is_empty()).then(|| names::tail(module));
        let outputs = (op.outputs.iter())
            .map(|buf| {
                buf.map(|buf| draft.define(buf, hint.clone().unwrap_or_else(|| self.op_hint(op, buf))))
            })
            .collect();
        let (target, no_grad) = (op.target.as_str(), op.no_grad);
        let line = self.modules.line(op.op);
        draft.shape.items.push(Item::Op { target, args, kwargs, outputs, no_grad, line });
    }

    fn nested(&mut self, draft: &mut Draft<'a>, ops: &'a [LocalOp], group: &Group<'a>) {
        let (params, results) = self.interface(ops, group);
        let path = plain(group.path);
        // The leaves of this group may all hang deeper than its own module.
        let tree = if leaves::strip(&draft.tree, &path).is_some() { draft.tree.clone() } else { path };
        let name = self.modules.function_name(group.path);
        let inner = self.function(ops, group, name, tree, &params, &results);
        let tree = inner.tree.map(|tree| {
            draft.shape.uses_leaves = true;
            leaves::path(leaves::strip(&tree, &draft.tree).unwrap_or(""))
        });
        draft.shape.uses_holes |= self.functions[inner.function].shape.uses_holes;
        let mut args: Vec<_> = params.iter().map(|buf| self.buf(draft, *buf)).collect();
        args.extend(inner.leaves.iter().map(|leaf| self.leaf(draft, *leaf)));
        let numbers = draft.numbers.len();
        draft.numbers.extend(inner.numbers);
        let hint = (results.len() == 1).then(|| names::tail(group.path));
        let outputs = results.iter().map(|buf| {
            let hint = hint.clone().unwrap_or_else(|| self.buf_hint(*buf));
            draft.define(*buf, hint)
        });
        let outputs = outputs.collect();
        draft.shape.items.push(Item::Call { function: inner.function, tree, args, outputs, numbers });
    }

    /// What a group reads (leaves left out), and what it writes for others.
    fn interface(&self, ops: &[LocalOp], group: &Group<'a>) -> (Vec<BufId>, Vec<BufId>) {
        let (mut params, mut results) = (vec![], vec![]);
        let (mut seen, mut written) = (HashSet::new(), HashSet::new());
        for op in &ops[group.range.clone()] {
            for buf in op.inputs() {
                if self.leaf_of[buf.index()].is_none() && !written.contains(&buf) && seen.insert(buf) {
                    params.push(buf);
                }
            }
            for buf in op.outputs.iter().flatten() {
                written.insert(*buf);
                if self.last_use[buf.index()] >= group.range.end {
                    results.push(*buf);
                }
            }
        }
        (params, results)
    }

    fn value(&self, draft: &mut Draft<'a>, arg: &'a Arg) -> Value<'a> {
        match arg {
            Arg::None => Value::None,
            Arg::Bool(value) => Value::Bool(*value),
            Arg::Int(value) => Value::Int(*value),
            Arg::Hole(index) => {
                draft.shape.uses_holes = true;
                Value::Hole(*index)
            }
            Arg::Float(value) => Value::Float(value.to_bits()),
            Arg::Str(text) => Value::Str(text),
            Arg::Dtype(dtype) => Value::Dtype(*dtype),
            Arg::Buf(buf) => self.buf(draft, *buf),
            Arg::List(items) => Value::List(items.iter().map(|item| self.value(draft, item)).collect()),
        }
    }

    fn buf(&self, draft: &mut Draft<'a>, buf: BufId) -> Value<'a> {
        match self.leaf_of[buf.index()] {
            Some(leaf) => self.leaf(draft, leaf),
            None => Value::Var(*draft.vars.get(&buf).unwrap_or(&usize::MAX)),
        }
    }

    fn leaf(&self, draft: &mut Draft<'a>, leaf: usize) -> Value<'a> {
        if let Some(text) = self.leaves.within(leaf, &draft.tree, draft.user) {
            draft.shape.uses_leaves = true;
            return Value::Leaf(text);
        }
        let buf = self.body.leaves[leaf].buf;
        if let Some(var) = draft.vars.get(&buf) {
            return Value::Var(*var);
        }
        let var = draft.define(buf, names::identifier(self.leaves.short(leaf)));
        draft.shape.params.push(var);
        draft.leaves.push(leaf);
        Value::Var(var)
    }

    /// A parameter is named after what it is: an input of the model, a parameter that was gathered,
    /// else `x`, `y`, `z`, so that code is the same wherever its input comes from.
    fn param_hint(&self, buf: BufId, unnamed: &mut usize) -> String {
        let tensor = self.graph.tensors.get(self.body.buf(buf).tensor.index());
        match tensor.map(|tensor| &tensor.source) {
            Some(Source::Input { .. }) => names::identifier(&tensor.expect("it has a source").name),
            Some(Source::Param { names, .. }) => gathered(names.first().map_or("x", String::as_str)),
            Some(Source::Buffer { name, .. } | Source::Const { name }) => gathered(name),
            _ => {
                *unnamed += 1;
                ["x", "y", "z", "u", "v", "w"].get(*unnamed - 1).map_or("x", |name| *name).to_owned()
            }
        }
    }

    /// By the tensor's name; by the operator where that is made up.
    fn op_hint(&self, op: &LocalOp, buf: BufId) -> String {
        let hint = self.buf_hint(buf);
        if !hint.is_empty() && hint != "getitem" && !self.is_made_up(buf) {
            return hint;
        }
        let name = op.target.split('.').nth(1).unwrap_or("x").trim_start_matches('_');
        names::identifier(names::nickname(name))
    }

    /// Tensors inside a rewritten operator are named after that: `cross_entropy_loss.3`.
    fn is_made_up(&self, buf: BufId) -> bool {
        let tensor = self.graph.tensors.get(self.body.buf(buf).tensor.index());
        tensor.is_some_and(|tensor| tensor.name.contains('.'))
    }

    fn buf_hint(&self, buf: BufId) -> String {
        let buf = self.body.buf(buf);
        let tensor = self.graph.tensors.get(buf.tensor.index());
        let name = tensor.map_or(buf.name.as_str(), |tensor| &tensor.name);
        names::nickname(names::base(name.trim_start_matches('_'))).to_owned()
    }
}

impl<'a> Draft<'a> {
    fn new(tree: String) -> Self {
        let (vars, hints) = (HashMap::new(), vec![]);
        Self {
            shape: Shape::default(),
            tree,
            vars,
            hints,
            leaves: vec![],
            numbers: vec![],
            user: "",
            unnamed: 0,
        }
    }

    fn define(&mut self, buf: BufId, hint: String) -> Var {
        let var = self.hints.len();
        self.hints.push(hint);
        self.vars.insert(buf, var);
        var
    }
}

/// The module's and the parameter's own name: `c_attn_weight`.
fn gathered(name: &str) -> String {
    let (module, own) = name.rsplit_once('.').unwrap_or(("", name));
    if module.is_empty() {
        names::identifier(own)
    } else {
        names::identifier(&format!("{}_{own}", names::tail(module)))
    }
}

/// Which argument of a random operator is its number.
fn random_number(target: &str) -> Option<usize> {
    match target {
        "sw.dropout" | "sw.native_dropout" => Some(2),
        "sw.attention" => Some(8),
        "sw.draw" => Some(4),
        _ => None,
    }
}
