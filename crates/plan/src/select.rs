//! How a plan file names operators: `"path"`, `"path" target`, `"path" target[1]` or `%name`.

use std::fmt;

use diag::{Error, Result};
use graph::{Graph, OpId};

use crate::glob::glob;
use crate::nearby::nearby;
use crate::op_index::OpIndex;

/// Operators by path and target, globs both; `nth` counts those that fit at each path, from zero.
pub(crate) struct Selector<'t> {
    pub(crate) path: &'t str,
    pub(crate) target: &'t str,
    pub(crate) nth: Option<usize>,
}

impl Selector<'_> {
    pub(crate) fn select(&self, index: &OpIndex<'_>) -> Vec<OpId> {
        let mut selected: Vec<OpId> = vec![];
        for ops in index.in_modules(self.path) {
            let mut fitting = ops.iter().copied().filter(|op| self.has_target(index.graph, *op));
            match self.nth {
                Some(nth) => selected.extend(fitting.nth(nth)),
                None => selected.extend(fitting),
            }
        }
        selected.sort_unstable();
        selected
    }

    fn has_target(&self, graph: &Graph, op: OpId) -> bool {
        self.target.is_empty() || glob(self.target, &graph.op(op).target)
    }
}

impl fmt::Display for Selector<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" {}", self.path, self.target)?;
        self.nth.map_or(Ok(()), |nth| write!(f, "[{nth}]"))
    }
}

/// The operators that a line of a plan file names, at least one.
pub(crate) fn select(who: &str, index: &OpIndex<'_>) -> Result<Vec<OpId>> {
    let ops = match who.strip_prefix('%') {
        Some(name) => index.makers(name).to_vec(),
        None => parse(who)?.select(index),
    };
    if ops.is_empty() {
        return Err(Error::new("SW0302", format!("no operator is named {}", clip(who)))
            .why(near(who, index.graph))
            .fix("paths are those of the model's modules; `*` stands for any text"));
    }
    Ok(ops)
}

/// The same, or all operators from one to another in the graph's order: `%linear_8..%add_12`.
pub(crate) fn one_or_run(who: &str, index: &OpIndex<'_>) -> Result<Vec<OpId>> {
    let Some((first, last)) = who.split_once("..").filter(|(first, _)| first.starts_with('%')) else {
        return select(who, index);
    };
    let (from, to) = (select(first, index)?[0].index(), select(last, index)?[0].index());
    if from > to {
        return Err(Error::new("SW0301", format!("{} names no operators", clip(who)))
            .why(format!("{} comes after {}", clip(first), clip(last)))
            .fix(format!("write `{last}..{first}`")));
    }
    Ok((from..=to).map(OpId::new).collect())
}

pub(crate) fn parse(who: &str) -> Result<Selector<'_>> {
    let bad = || {
        Error::new("SW0301", format!("`{}` does not name operators", clip(who)))
            .fix("write a path in quotes, or `%name`")
    };
    let (path, target) = who.strip_prefix('"').and_then(|rest| rest.split_once('"')).ok_or_else(bad)?;
    let (target, nth) = match target.trim().strip_suffix(']').and_then(|rest| rest.rsplit_once('[')) {
        Some((target, nth)) => (target, Some(nth.parse().map_err(|_| bad())?)),
        None => (target.trim(), None),
    };
    Ok(Selector { path, target, nth })
}

/// What there is that is written nearly so, else some of what the model has.
pub(crate) fn near(who: &str, graph: &Graph) -> String {
    if let Some(name) = who.strip_prefix('%') {
        let results = graph.ops.iter().flat_map(|op| op.outputs.iter().flatten());
        let near = nearby(name, results.map(|t| &graph.tensor(*t).name[..]));
        return match near[..] {
            [] => "no operator gives a result of this name".into(),
            _ => format!("there is {}", list(&near, |name| format!("%{name}"))),
        };
    }
    let Selector { path, target, .. } =
        parse(who).unwrap_or(Selector { path: who.trim_matches('"'), target: "", nth: None });
    let mut targets: Vec<&str> =
        graph.ops.iter().filter(|op| glob(path, &op.module)).map(|op| &op.target[..]).collect();
    if !targets.is_empty() {
        targets.sort_unstable();
        targets.dedup();
        let near = nearby(target, targets.iter().copied());
        return format!(
            "at {path:?} there is {}",
            list(if near.is_empty() { &targets } else { &near }, str::to_owned)
        );
    }
    near_paths(path, graph)
}

fn near_paths(wanted: &str, graph: &Graph) -> String {
    let folded: Vec<String> = graph.ops.iter().map(|op| folded_path(&op.module)).collect();
    let mut paths: Vec<&str> =
        graph.ops.iter().map(|op| &op.module[..]).chain(folded.iter().map(|path| &path[..])).collect();
    paths.sort_unstable();
    paths.dedup();
    paths.retain(|path| !path.is_empty());
    let near = nearby(wanted, paths.iter().copied());
    if !near.is_empty() {
        return format!("there is {}", list(&near, |path| format!("{path:?}")));
    }
    let shared = |p: &str| p.chars().zip(wanted.chars()).take_while(|(a, b)| a == b).count();
    paths.retain(|path| !path.contains('*'));
    paths.sort_by_key(|p| (usize::MAX - shared(p), p.len()));
    format!("the model has, among others, {}", list(&paths, |path| format!("{path:?}")))
}

/// The first few, as a person reads them.
fn list(words: &[&str], show: impl Fn(&str) -> String) -> String {
    words.iter().take(3).map(|word| show(word)).collect::<Vec<_>>().join(", ")
}

/// A path with `*` in the places of numbers: `h.3.mlp` is `h.*.mlp`.
pub(crate) fn folded_path(path: &str) -> String {
    with_numbers_as("*", path)
}

/// A path with a sign in the places of numbers.
pub(crate) fn with_numbers_as(sign: &str, path: &str) -> String {
    let number = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    path.split('.').map(|word| if number(word) { sign } else { word }).collect::<Vec<_>>().join(".")
}

/// The numbers in a path, by which those that differ in nothing else are ordered.
pub(crate) fn numbers_of(path: &str) -> Vec<u64> {
    path.split('.').filter_map(|word| word.parse().ok()).collect()
}

/// As much of a word as belongs in a message.
pub(crate) fn clip(word: &str) -> String {
    const LONGEST: usize = 80;
    let shown: String = word.chars().take(LONGEST).collect();
    if shown.len() < word.len() { shown + "..." } else { shown }
}
