//! The operators of a call, grouped by the modules that they belong to.

use std::ops::Range;

use program::LocalOp;

use super::modules::Modules;

/// Deeper modules are not told apart.
const MAX_DEPTH: usize = 48;
/// A shorter run of operators is read more easily where it stands.
const FEWEST: usize = 3;

pub(crate) enum ModuleNode<'a> {
    Op(usize),
    Group(Group<'a>),
}

/// A run of operators inside one module; it becomes a function.
pub(crate) struct Group<'a> {
    pub(crate) path: &'a str,
    pub(crate) range: Range<usize>,
    pub(crate) nodes: Vec<ModuleNode<'a>>,
    /// All of the module is here.
    pub(crate) complete: bool,
}

/// All operators of a call as one group, whose path is the module that it is (a part of).
pub(crate) fn group<'a>(modules: &Modules<'a>, ops: &[LocalOp]) -> Group<'a> {
    let all = 0..ops.len();
    let nodes = Grouper { modules, ops }.nodes(all.clone(), "", 0);
    let complete = ops.len() >= modules.size("");
    let mut group = Group { path: "", range: all, nodes, complete };
    let mut whole = complete;
    while let [ModuleNode::Group(_)] = group.nodes.as_slice() {
        let Some(ModuleNode::Group(inner)) = group.nodes.pop() else { break };
        whole |= inner.complete;
        group = inner;
    }
    if whole { group } else { dissolve(modules, ops, group) }
}

/// One group and a few operators beside it read better as one function.
fn dissolve<'a>(modules: &Modules<'a>, ops: &[LocalOp], mut outer: Group<'a>) -> Group<'a> {
    let groups = outer.nodes.iter().filter(|node| matches!(node, ModuleNode::Group(_))).count();
    let loose = outer.nodes.len() - groups;
    let partial = |node: &ModuleNode<'_>| matches!(node, ModuleNode::Group(group) if !group.complete);
    if outer.path.is_empty() {
        outer.path = common(modules, ops);
    }
    if groups == 1 && loose <= FEWEST && outer.nodes.iter().any(partial) {
        let mut nodes = vec![];
        for node in outer.nodes {
            match node {
                ModuleNode::Op(_) => nodes.push(node),
                ModuleNode::Group(inner) => {
                    outer.path = inner.path;
                    nodes.extend(inner.nodes);
                }
            }
        }
        outer.nodes = nodes;
    }
    outer
}

/// The innermost module that all operators are in.
fn common<'a>(modules: &Modules<'a>, ops: &[LocalOp]) -> &'a str {
    let mut paths = ops.iter().map(|op| modules.path_of(op.op));
    let first = paths.next().unwrap_or("");
    paths.fold(first, shared)
}

/// The longest path that both are inside of.
pub(crate) fn shared<'a>(a: &'a str, b: &str) -> &'a str {
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let ends = |text: &str| text.len() == same || text.as_bytes()[same] == b'.';
    if ends(a) && ends(b) {
        return &a[..same];
    }
    a.as_bytes()[..same].iter().rposition(|b| *b == b'.').map_or("", |at| &a[..at])
}

struct Grouper<'m, 'a> {
    modules: &'m Modules<'a>,
    ops: &'m [LocalOp],
}

impl<'a> Grouper<'_, 'a> {
    fn nodes(&self, range: Range<usize>, module: &str, depth: usize) -> Vec<ModuleNode<'a>> {
        let mut nodes = vec![];
        let mut at = range.start;
        while at < range.end {
            let path = self.modules.path_of(self.ops[at].op);
            let Some(child) = child(path, module).filter(|_| depth < MAX_DEPTH) else {
                nodes.push(ModuleNode::Op(at));
                at += 1;
                continue;
            };
            let inside = |i: &usize| {
                super::super::leaves::strip(self.modules.path_of(self.ops[*i].op), child).is_some()
            };
            let end = (at..range.end).take_while(inside).last().map_or(at + 1, |last| last + 1);
            let inner = self.nodes(at..end, child, depth + 1);
            if self.is_worth(child, &inner, end - at) {
                let complete = end - at >= self.modules.size(child);
                nodes.push(ModuleNode::Group(Group { path: child, range: at..end, nodes: inner, complete }));
            } else {
                nodes.extend(inner);
            }
            at = end;
        }
        nodes
    }

    fn is_worth(&self, path: &str, nodes: &[ModuleNode<'_>], count: usize) -> bool {
        self.modules.class(path).is_some()
            && !self.modules.is_leaf(path)
            && (count >= FEWEST || nodes.iter().any(|node| matches!(node, ModuleNode::Group(_))))
    }
}

/// The module one step further inside.
fn child<'a>(path: &'a str, module: &str) -> Option<&'a str> {
    let start = if module.is_empty() { 0 } else { module.len() + 1 };
    let rest = path.get(start..).filter(|rest| !rest.is_empty())?;
    Some(rest.find('.').map_or(path, |dot| &path[..start + dot]))
}
