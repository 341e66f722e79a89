//! The model's modules, with what is decided of each and what it takes. Layers that are alike are one.

use std::collections::{BTreeMap, BTreeSet};

use graph::{Graph, OpId, Source};
use plan::dim_names::DimNames;
use rules::{Analysis, Kind};
use serde_json::{Value, json};
use simulate::{Share, Shares};

use super::Subject;
use super::alternatives::Alternatives;
use super::names::{PageNames, shape};
use crate::modules::{Module, layer};
use crate::{Decided, share};

/// A module, or several that are alike.
struct ModuleNode {
    /// The last word of its path: `attn`, or `{0-11}`.
    name: String,
    /// Of all that are alike.
    paths: Vec<String>,
    /// Its own operators, each with those that it stands for.
    own: Vec<Vec<OpId>>,
    inner: Vec<ModuleNode>,
    /// Two with the same are alike.
    signature: String,
}

pub(super) fn model(subject: &Subject<'_>, names: &mut PageNames) -> Value {
    let words = DimNames::new(subject.graph, subject.analysis);
    let decide = |op: OpId| Decided::new(subject.analysis, &words, subject.plan, op);
    let decided: Vec<Decided> = subject.graph.op_ids().map(decide).collect();
    let mut view = View {
        subject,
        decided: &decided,
        work: compiler::operations_of_each(subject.graph, subject.analysis),
        parameters: parameters(subject.graph),
        classes: subject.graph.modules.iter().cloned().collect(),
        alternatives: Alternatives::new(subject, &words),
        placements: vec![],
        names,
    };
    let root = view.node(&Module::from_graph(subject.graph), "");
    let tree = view.module(&root);
    json!({ "tree": tree, "placements": view.placements.iter().map(|it| runs(it)).collect::<Vec<_>>() })
}

struct View<'v> {
    subject: &'v Subject<'v>,
    decided: &'v [Decided],
    work: Vec<f64>,
    /// By the module that has it.
    parameters: BTreeMap<String, u64>,
    classes: BTreeMap<String, String>,
    alternatives: Alternatives,
    placements: Vec<Vec<u32>>,
    names: &'v mut PageNames,
}

impl View<'_> {
    fn node(&self, module: &Module, path: &str) -> ModuleNode {
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let mut inner: Vec<ModuleNode> = vec![];
        for module in &module.inner {
            let node = self.node(module, &below(&module.name));
            match inner.last_mut().filter(|last| last.is_before(&node)) {
                Some(last) => last.take(node),
                None => inner.push(node),
            }
        }
        let of_ops: Vec<String> = module.own.iter().map(|op| self.signature(*op)).collect();
        let of_inner: Vec<String> = inner.iter().map(|it| format!("{}:{}", it.name, it.signature)).collect();
        ModuleNode {
            name: module.name.clone(),
            paths: vec![path.to_owned()],
            own: module.own.iter().map(|op| vec![*op]).collect(),
            signature: format!("({};{})", of_ops.join(","), of_inner.join(",")),
            inner,
        }
    }

    fn signature(&self, op: OpId) -> String {
        let operator = self.subject.graph.op(op);
        let made: Vec<String> =
            operator.outputs.iter().flatten().map(|it| shape(self.subject.graph, *it)).collect();
        let decided = &self.decided[op.index()];
        format!("{} {made:?} {decided} {} {:?}", operator.target, decided.placed(), decided.block)
    }

    fn module(&mut self, node: &ModuleNode) -> Value {
        let every = node.every();
        let operators: Vec<Value> = node.own.iter().map(|ops| self.operator(ops)).collect();
        let inner: Vec<Value> = node.inner.iter().map(|it| self.module(it)).collect();
        let most = self.mostly(&every);
        let work: f64 = every.iter().map(|op| self.work[op.index()]).sum();
        let all: f64 = self.work.iter().sum();
        json!({
            "name": node.name,
            "path": node.paths[0],
            "class": self.classes.get(&node.paths[0]),
            "count": node.paths.len(),
            "operators": operators,
            "inner": inner,
            "mostly": most.map(|op| self.ways(op)),
            "is_even": every.iter().all(|op| self.decided[op.index()] == self.decided[every[0].index()]),
            "placement": most.map(|op| self.placement(op)),
            "everywhere": self.everywhere(&every),
            "block": most.map(|op| self.decided[op.index()].block),
            "recomputed": count(&self.subject.plan.recompute, &every),
            "work": if all > 0.0 { work / all } else { 0.0 },
            "parameters": self.parameters_of(&node.paths),
            "takes": takes(share(&self.subject.step.shares, &every)),
            "number": every.len(),
        })
    }

    /// The operator with most of the work.
    fn mostly(&self, ops: &[OpId]) -> Option<OpId> {
        ops.iter()
            .copied()
            .max_by(|a, b| self.work[a.index()].total_cmp(&self.work[b.index()]).then(b.cmp(a)))
    }

    fn ways(&self, op: OpId) -> Value {
        json!(self.decided[op.index()].ways)
    }

    fn placement(&mut self, op: OpId) -> usize {
        self.numbered(&self.decided[op.index()].devices)
    }

    /// All devices of some operators.
    fn everywhere(&mut self, ops: &[OpId]) -> usize {
        let kinds: BTreeSet<&Vec<u32>> = ops.iter().map(|op| &self.decided[op.index()].devices).collect();
        let all: BTreeSet<u32> = kinds.into_iter().flatten().copied().collect();
        self.numbered(&all.into_iter().collect::<Vec<_>>())
    }

    fn numbered(&mut self, devices: &[u32]) -> usize {
        let known = self.placements.iter().position(|known| known == devices);
        known.unwrap_or_else(|| {
            self.placements.push(devices.to_vec());
            self.placements.len() - 1
        })
    }

    fn operator(&mut self, ops: &[OpId]) -> Value {
        let (graph, analysis) = (self.subject.graph, self.subject.analysis);
        let (id, op) = (ops[0], graph.op(ops[0]));
        let first = op.outputs.iter().flatten().next();
        let inputs: Vec<&String> = op.inputs().iter().map(|it| &graph.tensor(*it).name).collect();
        let summed: Vec<Share> = self.subject.step.shares.iter().map(|rank| of_all(rank, ops)).collect();
        let rule = analysis.rules[id.index()].as_ref().map(ToString::to_string);
        json!({
            "name": first.map_or("_", |it| &graph.tensor(*it).name),
            "target": self.names.targets.number(&op.target),
            "line": self.names.lines.number(&op.line),
            "makes": first.map(|it| shape(graph, *it)),
            "inputs": inputs,
            "reads": op.inputs().iter().map(|it| shape(graph, *it)).collect::<Vec<_>>(),
            "rule": rule,
            "dims": dims(analysis, id),
            "alternatives": self.alternatives.to_json(id),
            "ways": self.ways(id),
            "placement": self.placement(id),
            "work": self.work[id.index()],
            "takes": takes(summed.into_iter().fold(Share::default(), larger)),
            "count": ops.len(),
        })
    }

    fn parameters_of(&self, paths: &[String]) -> u64 {
        let is_in = |module: &str, path: &str| {
            path.is_empty()
                || module == path
                || module.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'))
        };
        let all = self.parameters.iter().filter(|(module, _)| paths.iter().any(|path| is_in(module, path)));
        all.map(|(_, bytes)| bytes).sum()
    }
}

impl ModuleNode {
    /// Whether another one goes on with these layers.
    fn is_before(&self, next: &ModuleNode) -> bool {
        let word = self.paths[self.paths.len() - 1].rsplit('.').next().unwrap_or_default();
        let goes_on = |((last, of), (number, mark))| last + 1 == number && of == mark;
        layer(word).zip(layer(&next.name)).is_some_and(goes_on) && self.signature == next.signature
    }

    /// The next of these layers.
    fn take(&mut self, other: ModuleNode) {
        let first = self.paths[0].rsplit('.').next().unwrap_or_default();
        if let Some(((first, mark), (last, _))) = layer(first).zip(layer(&other.name)) {
            self.name = format!("{{{first}-{last}}}{mark}");
        }
        self.join(other);
    }

    fn join(&mut self, other: ModuleNode) {
        self.paths.extend(other.paths);
        self.own.iter_mut().zip(other.own).for_each(|(ops, other)| ops.extend(other));
        self.inner.iter_mut().zip(other.inner).for_each(|(inner, other)| inner.join(other));
    }

    /// All operators in it.
    fn every(&self) -> Vec<OpId> {
        let inner = self.inner.iter().flat_map(ModuleNode::every);
        self.own.iter().flatten().copied().chain(inner).collect()
    }
}

/// Those that may be split, with their sizes.
fn dims(analysis: &Analysis, op: OpId) -> Vec<(&str, i64)> {
    let may = analysis.op(op).loops.iter().filter(|it| it.kind != Kind::Whole && it.size > 1);
    may.map(|it| (&it.name[..], it.size)).collect()
}

fn of_all(rank: &Shares, ops: &[OpId]) -> Share {
    ops.iter().map(|op| rank.of[op.index()]).sum()
}

fn larger(a: Share, b: Share) -> Share {
    if b.works + b.exposed > a.works + a.exposed { b } else { a }
}

/// Seconds of work, of communication, those waited for, and bytes.
fn takes(share: Share) -> Value {
    json!([share.works, share.moves, share.exposed, share.bytes])
}

fn count(spans: &[Vec<OpId>], ops: &[OpId]) -> usize {
    let marked: BTreeSet<OpId> = spans.iter().flatten().copied().collect();
    ops.iter().filter(|op| marked.contains(op)).count()
}

/// Bytes of parameters by the module that their first names say.
fn parameters(graph: &Graph) -> BTreeMap<String, u64> {
    let mut bytes = BTreeMap::new();
    for tensor in &graph.tensors {
        let Source::Param { names, .. } = &tensor.source else { continue };
        let Some(name) = names.first() else { continue };
        let module = name.rsplit_once('.').map_or("", |(module, _)| module);
        *bytes.entry(module.to_owned()).or_default() += tensor.bytes().unsigned_abs();
    }
    bytes
}

/// Devices as runs: where each begins, its step, and how many there are.
fn runs(devices: &[u32]) -> Vec<[i64; 3]> {
    let mut runs: Vec<[i64; 3]> = vec![];
    for device in devices.iter().map(|device| i64::from(*device)) {
        match runs.last_mut() {
            Some([first, step, count]) if *count == 1 => (*step, *count) = (device - *first, 2),
            Some([first, step, count]) if *first + *step * *count == device => *count += 1,
            _ => runs.push([device, 1, 1]),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn devices_are_runs() {
        assert_eq!(runs(&[0, 1, 2, 3]), [[0, 1, 4]]);
        assert_eq!(runs(&[0, 4, 1, 5]), [[0, 4, 2], [1, 4, 2]]);
        assert_eq!(runs(&[7]), [[7, 1, 1]]);
        assert_eq!(runs(&[2, 2, 2, 3]), [[2, 0, 3], [3, 1, 1]]);
    }
}
