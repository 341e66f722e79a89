//! What tensors are called in code: as the model calls them, else what they are.

use graph::{Graph, Source, TensorId};

use super::modules::Modules;
use crate::{leaves, names};

/// Operators that anything may be the result of.
const SAY_LITTLE: [&str; 22] = [
    "add",
    "sub",
    "mul",
    "div",
    "neg",
    "linear",
    "matmul",
    "mm",
    "bmm",
    "addmm",
    "reshape",
    "unsqueeze",
    "squeeze",
    "transpose",
    "permute",
    "expand",
    "cast",
    "cat",
    "getitem",
    "slice",
    "select",
    "clone",
];

pub(crate) struct Naming<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) modules: &'a Modules<'a>,
}

impl Naming<'_> {
    /// The name of an input, a parameter or a variable of the model, or of the module whose result it is, seen
    /// from inside the module `inside`. None for what only its operator names.
    pub(crate) fn known(&self, tensor: TensorId, inside: &str) -> Option<String> {
        let entry = self.graph.tensors.get(tensor.index())?;
        match &entry.source {
            Source::Input { .. } => Some(names::identifier(&entry.name)),
            Source::Param { names, .. } => Some(gathered(names.first().map_or("x", String::as_str))),
            Source::Buffer { name, .. } | Source::Const { name } => Some(gathered(name)),
            Source::Op { op, .. } => {
                let (module, target) = (self.modules.path_of(*op), self.modules.target(*op)?);
                let own_target = &self.graph.op(*op).target;
                // A piece that computes what the whole does, but for a bias.
                let nearly = self.modules.piece_of(*op) == Some(own_target) && self.modules.is_leaf(module);
                let path =
                    leaves::strip(module, inside).filter(|path| !path.is_empty() && says_what(path, inside));
                if names::is_made_up(&entry.name) {
                    return path.filter(|_| nearly).map(names::tail);
                }
                if target != *own_target {
                    return self.result(tensor, module, inside).or_else(|| Some(of_target(target)));
                }
                let result = || self.result(tensor, module, inside);
                let given = variable(&entry.name, target);
                // A line such as `y = self.down(self.up(x))` gives its name to more than it should.
                let preferred =
                    if self.modules.is_leaf(module) { result().or(given) } else { given.or_else(result) };
                preferred.or_else(|| Some(of_target(target)).filter(|name| !SAY_LITTLE.contains(&&name[..])))
            }
        }
    }

    /// The name of the module whose result a tensor is, seen from inside another.
    fn result(&self, tensor: TensorId, module: &str, inside: &str) -> Option<String> {
        let path = leaves::strip(module, inside).filter(|path| !path.is_empty())?;
        (self.modules.is_result(module, tensor) && says_what(path, inside)).then(|| names::tail(path))
    }

    /// What a code calls a buf; `other` where the graph does not know it.
    pub(crate) fn name_of(&self, tensor: TensorId, other: &str) -> String {
        let source = self.graph.tensors.get(tensor.index()).map(|tensor| &tensor.source);
        let target = match source {
            Some(Source::Op { op, .. }) => self.modules.target(*op).map(of_target),
            _ => None,
        };
        self.known(tensor, "").or(target).unwrap_or_else(|| names::base(other).to_owned())
    }
}

/// What an operator makes, by the operator's name.
pub(crate) fn of_target(target: &str) -> String {
    let name = target.split('.').nth(1).unwrap_or("x").trim_start_matches('_');
    names::identifier(names::nickname(name))
}

/// A tensor's name, where the model gave it and not the operator.
fn variable(name: &str, target: &str) -> Option<String> {
    let base = names::base(name.trim_start_matches('_'));
    let operator = target.split('.').nth(1).unwrap_or_default().trim_start_matches('_');
    (base != "getitem" && base != operator).then(|| names::identifier(base))
}

/// A number at the end of a path says which, and not what, but among the few parts of one module: `mlp.2`.
fn says_what(path: &str, inside: &str) -> bool {
    !names::is_number(path) || !inside.is_empty() && path.contains('.')
}

/// The module's and the parameter's own name: `c_attn_weight`.
fn gathered(name: &str) -> String {
    let (module, param) = name.rsplit_once('.').unwrap_or(("", name));
    if module.is_empty() {
        names::identifier(param)
    } else {
        names::identifier(&format!("{}_{param}", names::tail(module)))
    }
}
