//! How leaves are written: `p.transformer.h[0].attn.c_attn.weight`.

use std::fmt::Write;

use graph::{Graph, Source};
use program::{Body, Leaf};

use crate::python::{is_identifier, print};

/// The names of every leaf of a role; the first is the canonical one, the others are tied to it.
pub(crate) struct Leaves<'a> {
    names: Vec<Vec<&'a str>>,
    numbers: Vec<u32>,
}

impl<'a> Leaves<'a> {
    pub(crate) fn new(graph: &'a Graph, body: &Body) -> Self {
        Self {
            names: body.leaves.iter().map(|leaf| names_of(graph, leaf)).collect(),
            numbers: body.leaves.iter().map(|leaf| leaf.number).collect(),
        }
    }

    /// As the model calls it.
    pub(crate) fn name(&self, leaf: usize) -> &'a str {
        self.names[leaf].first().copied().unwrap_or_default()
    }

    /// The module that has the leaf.
    pub(crate) fn module(&self, leaf: usize) -> &'a str {
        self.names[leaf].first().map_or("", |name| split(name).0)
    }

    /// The module's and the leaf's own name: `c_attn_weight`.
    pub(crate) fn short(&self, leaf: usize) -> &'a str {
        self.names[leaf].first().map_or("x", |name| split(name).1)
    }

    /// The leaf seen from `p`, which stands for the module `tree`; nothing if it is outside. Of
    /// several names the one in `user` is taken, the module of the operator that reads it.
    pub(crate) fn within(&self, leaf: usize, tree: &str, user: &str) -> Option<String> {
        let names = &self.names[leaf];
        let in_user = |name: &&&str| !user.is_empty() && inside(name, user).is_some();
        let preferred = names.iter().find(in_user).and_then(|name| inside(name, tree));
        let rest = preferred.or_else(|| names.iter().find_map(|name| inside(name, tree)))?;
        Some(written(rest, self.numbers[leaf]))
    }

    pub(crate) fn full(&self, leaf: usize) -> String {
        self.within(leaf, "", "").unwrap_or_else(|| "p".to_owned())
    }
}

/// The names under which a program reads a leaf's tensor.
pub(crate) fn names_of<'a>(graph: &'a Graph, leaf: &Leaf) -> Vec<&'a str> {
    match graph.tensors.get(leaf.tensor.index()).map(|t| (&t.source, &t.name)) {
        Some((Source::Param { names, .. }, _)) => names.iter().map(String::as_str).collect(),
        Some((Source::Buffer { name, .. } | Source::Const { name }, _)) => vec![name],
        Some((_, name)) => vec![name],
        None => vec![],
    }
}

/// The module and the own name.
fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}

/// A dotted name seen from a module that contains it.
pub(crate) fn strip<'a>(name: &'a str, module: &str) -> Option<&'a str> {
    if module.is_empty() {
        return Some(name);
    }
    let rest = name.strip_prefix(module)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('.') }
}

/// A leaf's name seen from a module that it is in.
fn inside<'a>(name: &'a str, module: &str) -> Option<&'a str> {
    if module.is_empty() { Some(name) } else { name.strip_prefix(module)?.strip_prefix('.') }
}

/// A module as Python, seen from `p`: `p.h[0].attn["odd name"]`, or just `p`.
pub(crate) fn path(name: &str) -> String {
    if name.is_empty() { "p".to_owned() } else { parts(name) }
}

fn parts(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 5);
    text.push('p');
    for part in name.split('.') {
        let number = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if number && part.len() < 10 && (part == "0" || !part.starts_with('0')) {
            let _ = write!(text, "[{part}]");
        } else if is_identifier(part) && !part.starts_with("__") {
            text.push('.');
            text.push_str(part);
        } else {
            text.push('[');
            print::string(&mut text, part);
            text.push(']');
        }
    }
    text
}

/// A leaf as Python, by its name and number. The second leaf of a tensor is `weight__1`, or
/// `["odd name__1"]`, or `["0__1"]`.
pub(crate) fn written(name: &str, number: u32) -> String {
    let mut text = parts(name);
    if number == 0 {
        return text;
    }
    if text.ends_with("\"]") {
        text.truncate(text.len() - 2);
        let _ = write!(text, "__{number}\"]");
    } else if text.ends_with(']') {
        let open = text.rfind('[').unwrap_or(0);
        text.pop();
        let index = text.split_off(open + 1);
        let _ = write!(text, "\"{index}__{number}\"]");
    } else {
        let _ = write!(text, "__{number}");
    }
    text
}
