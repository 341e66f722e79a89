//! The functions behind the calls of a role: one for each different piece of code.
//!
//! Two pieces of code are the same if they differ only in names of variables, in where their leaves
//! hang, and in the numbers of random operators: those become arguments.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use graph::{Dtype, Graph};
use program::{Arg, Body, BufId, Call, LocalOp};

use super::group::{Group, ModuleNode, group, shared};
use super::modules::{Modules, plain};
use super::naming::{Naming, of_target};
use super::sharding::Shardings;
use crate::leaves::{self, Leaves};
use crate::names;
use crate::templates;

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
pub(crate) struct FunctionShape<'a> {
    pub(crate) params: Vec<Var>,
    pub(crate) items: Vec<Item<'a>>,
    pub(crate) results: Vec<Value<'a>>,
    pub(crate) uses_leaves: bool,
    pub(crate) uses_rank: bool,
}

pub(crate) struct Outlined<'a> {
    pub(crate) shape: FunctionShape<'a>,
    pub(crate) name: String,
    /// What each variable would like to be called, as far as all uses agree. Nothing for a parameter that is
    /// something else in each.
    pub(crate) hints: Vec<Hint>,
    /// One for each item.
    pub(crate) notes: Vec<Note<'a>>,
    /// The first few of the modules that use it.
    pub(crate) paths: Vec<&'a str>,
    pub(crate) users: HashSet<&'a str>,
    /// Numbers of random operators, where all uses agree.
    pub(crate) numbers: Vec<Option<i64>>,
}

/// A name for a variable, and the one that is true of all code that is alike.
#[derive(Clone)]
pub(crate) struct Hint {
    pub(crate) name: String,
    shared: String,
}

/// What is said of an item, as far as it is true of all uses; else empty.
#[derive(Default)]
pub(crate) struct Note<'a> {
    /// Where in the model it comes from.
    pub(crate) line: &'a str,
    /// How what it makes lies, where that is divided.
    pub(crate) sharding: String,
}

/// One use of a function.
pub(crate) struct FunctionUse<'a> {
    pub(crate) function: usize,
    /// The module that `p` stands for.
    pub(crate) tree: Option<String>,
    pub(crate) tensors: Vec<BufId>,
    /// Leaves that are arguments, after the tensors.
    pub(crate) leaves: Vec<usize>,
    pub(crate) numbers: Vec<i64>,
    pub(crate) path: &'a str,
    /// The operator of the model that this is a piece of.
    pub(crate) piece: Option<&'a str>,
}

pub(crate) struct Outline<'a> {
    graph: &'a Graph,
    modules: &'a Modules<'a>,
    naming: Naming<'a>,
    body: &'a Body,
    pub(crate) leaves: &'a Leaves<'a>,
    shardings: &'a Shardings<'a>,
    pub(crate) leaf_of: Vec<Option<usize>>,
    /// The last operator of the current call that reads a buf; the largest number if it leaves.
    last_use: Vec<usize>,
    known: HashMap<u64, Vec<usize>>,
    pub(crate) functions: Vec<Outlined<'a>>,
}

/// A function that is being written.
struct OutlinedFunction<'a> {
    shape: FunctionShape<'a>,
    tree: String,
    vars: HashMap<BufId, Var>,
    hints: Vec<Hint>,
    notes: Vec<Note<'a>>,
    leaves: Vec<usize>,
    numbers: Vec<i64>,
    /// The module of the operator that is being written.
    user: &'a str,
}

impl<'a> Outline<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        modules: &'a Modules<'a>,
        body: &'a Body,
        leaves: &'a Leaves<'a>,
        shardings: &'a Shardings<'a>,
    ) -> Self {
        let mut leaf_of = vec![None; body.bufs.len()];
        for (index, leaf) in body.leaves.iter().enumerate() {
            leaf_of[leaf.buf.index()] = Some(index);
        }
        let last_use = vec![0; body.bufs.len()];
        let naming = Naming { graph, modules };
        Self {
            graph,
            modules,
            naming,
            body,
            leaves,
            shardings,
            leaf_of,
            last_use,
            known: HashMap::new(),
            functions: vec![],
        }
    }

    /// The function of a call, and its arguments: first the call's inputs that are no leaves.
    pub(crate) fn call(&mut self, call: &'a Call) -> FunctionUse<'a> {
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
            self.sync_grads(call, &mut group)
        };
        let name = self.name(call, &group);
        let piece = self.modules.piece(&call.ops);
        FunctionUse { piece, ..self.function(&call.ops, &group, name, tree, &params, &call.outputs) }
    }

    /// Part of a module, or parts of several, belong to the module that all leaves hang in, if there
    /// is one further inside. Gives the module that `p` stands for.
    fn sync_grads(&self, call: &Call, group: &mut Group<'a>) -> String {
        let read = call.ops.iter().flat_map(LocalOp::inputs).chain(call.outputs.iter().copied());
        let leaves: Vec<usize> = read.filter_map(|buf| self.leaf_of[buf.index()]).collect();
        let modules: Vec<&str> = leaves.iter().map(|leaf| self.leaves.module(*leaf)).collect();
        let Some(layer) = of_one_layer(&modules) else { return String::new() };
        let outer = |path: &'a str| path.rsplit_once('.').map_or("", |(outer, _)| outer);
        let mut common = layer;
        let layers = modules.iter().copied().reduce(shared).unwrap_or_default();
        if has_whole_layer(&group.nodes, layers, layer) {
            common = self.modules.around(layers);
            group.path = self.modules.around(group.path);
        }
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
    fn name(&self, call: &Call, group: &Group<'a>) -> String {
        const MOST_CHILDREN: usize = 64;
        let ops = &call.ops[..];
        let name = self.modules.function_name(group.path);
        if group.complete || self.modules.is_leaf(group.path) {
            return name;
        }
        if let Some(whole) = self.modules.piece(ops) {
            return self.name_of_piece(ops, whole);
        }
        if let [first, second] = self.children_of_results(call, group.path)[..] {
            return format!("{name}_{}_{}", names::snake(first), names::snake(second));
        }
        let mut counts: Vec<(&str, usize)> = vec![];
        for op in ops {
            let child = self.child_of(op, group.path);
            let named = !child.is_empty();
            match counts.iter().position(|(known, _)| *known == child) {
                Some(at) => counts[at].1 += 1,
                None if named && counts.len() < MOST_CHILDREN => counts.push((child, 1)),
                None => {}
            }
        }
        if let Some((child, _)) = counts.iter().max_by_key(|(_, count)| *count) {
            return format!("{name}_{}", names::snake(child));
        }
        let is_outside = |op: &&LocalOp| leaves::strip(self.modules.path_of(op.op), group.path).is_none();
        match (ops.iter().rfind(is_outside), ops.last()) {
            (Some(outside), Some(last)) if !is_outside(&last) => {
                format!("{}_{name}", of_target(&outside.target))
            }
            // What it adds up to is called as what it adds to is.
            (_, Some(only)) if ops.len() == 1 && of_target(&only.target) == "add" => format!("{name}_add"),
            (_, Some(last)) => format!("{name}_{}", self.result_name(last, group.path)),
            _ => name,
        }
    }

    /// The named parts of a module that a call's results are made in, in their order.
    fn children_of_results(&self, call: &Call, path: &str) -> Vec<&'a str> {
        let mut children = vec![];
        for op in
            call.ops.iter().filter(|op| op.outputs.iter().flatten().any(|buf| call.outputs.contains(buf)))
        {
            let child = self.child_of(op, path);
            if !child.is_empty() && !children.contains(&child) {
                children.push(child);
            }
        }
        children
    }

    /// The named part of a module that an operator is in.
    fn child_of(&self, op: &LocalOp, path: &str) -> &'a str {
        let rest = leaves::strip(self.modules.path_of(op.op), path).unwrap_or("");
        let child = rest.split(['.', '@']).next().unwrap_or(rest);
        if child.bytes().all(|b| b.is_ascii_digit()) { "" } else { child }
    }

    /// A piece of a rewritten operator: `cross_entropy_loss_pick`, and the last one `cross_entropy_loss`.
    fn name_of_piece(&self, ops: &[LocalOp], whole: &str) -> String {
        match ops.last() {
            Some(last) if last.outputs.iter().flatten().any(|buf| self.is_made_up(*buf)) => {
                format!("{whole}_{}", of_target(&last.target))
            }
            _ => names::identifier(whole),
        }
    }

    fn result_name(&self, op: &LocalOp, inside: &str) -> String {
        let made = op.outputs.iter().flatten().next();
        made.map_or_else(|| of_target(&op.target), |buf| self.hint(op, *buf, inside).name)
    }

    fn function(
        &mut self,
        ops: &'a [LocalOp],
        group: &Group<'a>,
        name: String,
        tree: String,
        params: &[BufId],
        results: &[BufId],
    ) -> FunctionUse<'a> {
        let mut draft = OutlinedFunction::new(tree);
        for buf in params {
            let name = self.naming.known(self.body.buf(*buf).tensor, "").unwrap_or_default();
            let var = draft.define(*buf, Hint { name, shared: String::new() });
            draft.shape.params.push(var);
        }
        for node in &group.nodes {
            match node {
                ModuleNode::Op(index) => self.op(&mut draft, &ops[*index], group),
                ModuleNode::Group(inner) => self.nested(&mut draft, ops, inner),
            }
        }
        for buf in results {
            let value = self.buf(&mut draft, *buf);
            draft.shape.results.push(value);
        }
        let OutlinedFunction { shape, tree, hints, notes, leaves, numbers, .. } = draft;
        let tree = shape.uses_leaves.then_some(tree);
        let new = Outlined::new(shape, name, hints, notes, &numbers);
        let function = self.intern(new, group.path, &numbers);
        FunctionUse {
            function,
            tree,
            tensors: params.to_vec(),
            leaves,
            numbers,
            path: group.path,
            piece: None,
        }
    }

    /// The number of a function, which is an old one if that is the same: code of one name, or of the same lines.
    fn intern(&mut self, new: Outlined<'a>, path: &'a str, numbers: &[i64]) -> usize {
        const MOST_PATHS: usize = 4;
        let mut hasher = DefaultHasher::new();
        new.shape.hash(&mut hasher);
        let same = self.known.entry(hasher.finish()).or_default();
        let functions = &mut self.functions;
        let existing = same.iter().copied().find(|id| functions[*id].is_like(&new));
        let id = existing.unwrap_or(functions.len());
        match existing {
            Some(id) => functions[id].join(&new),
            None => {
                same.push(id);
                functions.push(new);
            }
        }
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

    fn op(&self, draft: &mut OutlinedFunction<'a>, op: &'a LocalOp, group: &Group<'a>) {
        draft.user = self.modules.path_of(op.op);
        draft.shape.uses_rank |= templates::creates(&op.target);
        let mut args: Vec<Value<'a>> = op.args.iter().map(|arg| self.value(draft, arg)).collect();
        if let Some(Value::Int(number)) = random_number(&op.target).and_then(|at| args.get(at)) {
            draft.numbers.push(*number);
            let at = random_number(&op.target).unwrap_or_default();
            args[at] = Value::Number(draft.numbers.len() - 1);
        }
        let kwargs = op.kwargs.iter().map(|(name, arg)| (name.as_str(), self.value(draft, arg))).collect();
        let outputs = op.outputs.iter();
        let outputs =
            outputs.map(|buf| buf.map(|buf| draft.define(buf, self.hint(op, buf, group.path)))).collect();
        let (target, no_grad) = (op.target.as_str(), op.no_grad);
        draft.shape.items.push(Item::Op { target, args, kwargs, outputs, no_grad });
        draft.notes.push(Note { line: self.modules.line(op.op), sharding: self.sharding(&op.outputs) });
    }

    fn nested(&mut self, draft: &mut OutlinedFunction<'a>, ops: &'a [LocalOp], group: &Group<'a>) {
        let (params, results) = self.interface(ops, group);
        let path = plain(group.path);
        // The leaves of this group may all hang deeper than its own module, or elsewhere.
        let tree = if leaves::strip(&path, &draft.tree).is_some() { path } else { draft.tree.clone() };
        let name = self.modules.function_name(group.path);
        let inner = self.function(ops, group, name, tree, &params, &results);
        let tree = inner.tree.map(|tree| {
            draft.shape.uses_leaves = true;
            leaves::path(leaves::strip(&tree, &draft.tree).unwrap_or(""))
        });
        draft.shape.uses_rank |= self.functions[inner.function].shape.uses_rank;
        let mut args: Vec<_> = params.iter().map(|buf| self.buf(draft, *buf)).collect();
        args.extend(inner.leaves.iter().map(|leaf| self.leaf(draft, *leaf)));
        let numbers = draft.numbers.len();
        draft.numbers.extend(inner.numbers);
        let whole = (results.len() == 1).then(|| names::tail(group.path));
        let class = self.modules.function_name(group.path);
        let shared = class.rsplit('_').next().unwrap_or(&class).to_owned();
        let outputs = results.iter().map(|buf| {
            let name = whole.clone().unwrap_or_else(|| self.buf_hint(*buf));
            draft.define(*buf, Hint { name, shared: shared.clone() })
        });
        let outputs = outputs.collect();
        draft.shape.items.push(Item::Call { function: inner.function, tree, args, outputs, numbers });
        draft.notes.push(Note::default());
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

    fn value(&self, draft: &mut OutlinedFunction<'a>, arg: &'a Arg) -> Value<'a> {
        match arg {
            Arg::None => Value::None,
            Arg::Bool(value) => Value::Bool(*value),
            Arg::Int(value) => Value::Int(*value),
            Arg::Hole(index) => {
                draft.shape.uses_rank = true;
                Value::Hole(*index)
            }
            Arg::Float(value) => Value::Float(value.to_bits()),
            Arg::Str(text) => Value::Str(text),
            Arg::Dtype(dtype) => Value::Dtype(*dtype),
            Arg::Buf(buf) => self.buf(draft, *buf),
            Arg::List(items) => Value::List(items.iter().map(|item| self.value(draft, item)).collect()),
        }
    }

    fn buf(&self, draft: &mut OutlinedFunction<'a>, buf: BufId) -> Value<'a> {
        match self.leaf_of[buf.index()] {
            Some(leaf) => self.leaf(draft, leaf),
            None => Value::Var(*draft.vars.get(&buf).unwrap_or(&usize::MAX)),
        }
    }

    fn leaf(&self, draft: &mut OutlinedFunction<'a>, leaf: usize) -> Value<'a> {
        if let Some(text) = self.leaves.within(leaf, &draft.tree, draft.user) {
            draft.shape.uses_leaves = true;
            return Value::Leaf(text);
        }
        let buf = self.body.leaves[leaf].buf;
        if let Some(var) = draft.vars.get(&buf) {
            return Value::Var(*var);
        }
        let name = names::identifier(self.leaves.short(leaf));
        let var = draft.define(buf, Hint { shared: name.clone(), name });
        draft.shape.params.push(var);
        draft.leaves.push(leaf);
        Value::Var(var)
    }

    fn sharding(&self, made: &[Option<BufId>]) -> String {
        let [Some(only)] = made else { return String::new() };
        self.shardings.divided(*only).unwrap_or_default()
    }

    /// What the result of an operator is called inside a module.
    fn hint(&self, op: &LocalOp, buf: BufId, inside: &str) -> Hint {
        let shared = of_target(self.modules.target(op.op).unwrap_or(&op.target));
        let name = self.naming.known(self.body.buf(buf).tensor, inside).unwrap_or_else(|| shared.clone());
        Hint { name, shared }
    }

    fn is_made_up(&self, buf: BufId) -> bool {
        let tensor = self.graph.tensors.get(self.body.buf(buf).tensor.index());
        tensor.is_some_and(|tensor| names::is_made_up(&tensor.name))
    }

    fn buf_hint(&self, buf: BufId) -> String {
        let buf = self.body.buf(buf);
        let tensor = self.graph.tensors.get(buf.tensor.index());
        let name = tensor.map_or(buf.name.as_str(), |tensor| &tensor.name);
        names::nickname(names::base(name.trim_start_matches('_'))).to_owned()
    }
}

impl<'a> Outlined<'a> {
    fn new(
        shape: FunctionShape<'a>,
        name: String,
        hints: Vec<Hint>,
        notes: Vec<Note<'a>>,
        numbers: &[i64],
    ) -> Self {
        let numbers = numbers.iter().copied().map(Some).collect();
        Self { shape, name, hints, notes, paths: vec![], users: HashSet::new(), numbers }
    }

    fn is_like(&self, other: &Self) -> bool {
        let lines = |function: &Self| function.notes.iter().map(|note| note.line).collect::<Vec<_>>();
        self.shape == other.shape && (self.name == other.name || lines(self) == lines(other))
    }

    /// Keeps what is true of both.
    fn join(&mut self, other: &Self) {
        for (hint, _) in self.hints.iter_mut().zip(&other.hints).filter(|(hint, new)| hint.name != new.name) {
            hint.name.clone_from(&hint.shared);
        }
        for (note, new) in self.notes.iter_mut().zip(&other.notes) {
            note.line = if note.line == new.line { new.line } else { "" };
            if note.sharding != new.sharding {
                note.sharding.clear();
            }
        }
    }
}

impl<'a> OutlinedFunction<'a> {
    fn new(tree: String) -> Self {
        let (shape, vars, hints, notes) = (FunctionShape::default(), HashMap::new(), vec![], vec![]);
        Self { shape, tree, vars, hints, notes, leaves: vec![], numbers: vec![], user: "" }
    }

    fn define(&mut self, buf: BufId, hint: Hint) -> Var {
        let var = self.hints.len();
        self.hints.push(hint);
        self.vars.insert(buf, var);
        var
    }
}

/// The module that all of these are in, or that those of the last layer are in: what hangs in others is given as it is,
/// so that the code is the same for all layers.
fn of_one_layer<'a>(modules: &[&'a str]) -> Option<&'a str> {
    let all = modules.iter().copied().reduce(shared)?;
    let layer = |module: &'a str| leaves::strip(module, all).and_then(|rest| rest.split('.').next());
    let last =
        modules.last().and_then(|last| layer(last)).filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
    let inside =
        modules.iter().copied().filter(|module| last.is_some_and(|last| layer(module) == Some(last)));
    inside.reduce(shared).or(Some(all))
}

/// Whether there is all of one of these layers, but for the one that `layer` is in.
fn has_whole_layer(nodes: &[ModuleNode<'_>], layers: &str, layer: &str) -> bool {
    nodes.iter().any(|node| match node {
        ModuleNode::Op(_) => false,
        ModuleNode::Group(group) => {
            let number = leaves::strip(group.path, layers).is_some_and(|rest| !rest.contains('.'));
            let is_other = leaves::strip(layer, group.path).is_none();
            number && is_other && group.complete && names::is_number(group.path)
                || has_whole_layer(&group.nodes, layers, layer)
        }
    })
}

/// Which argument of a random operator is its number.
fn random_number(target: &str) -> Option<usize> {
    match target {
        "sw.dropout" | "sw.native_dropout" => Some(2),
        "sw.attention" => Some(9),
        "sw.draw" => Some(4),
        _ => None,
    }
}
