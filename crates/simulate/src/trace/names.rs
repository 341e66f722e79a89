//! What slices are called: by the module whose operators they compute, and by the function of the emitted program.

use std::collections::BTreeMap;

use graph::{Graph, OpId};
use program::{Call, CallId, Instr, Which};

use crate::{Scene, Span, What};

/// For each role the functions that its calls run, as the emitted program calls them.
pub type Functions = Vec<BTreeMap<CallId, String>>;

pub(super) struct SliceNames<'s> {
    pub(super) graph: &'s Graph,
    scene: &'s Scene<'s>,
    /// For each role what its calls are called.
    calls: Vec<BTreeMap<CallId, String>>,
}

impl<'s> SliceNames<'s> {
    pub(super) fn new(scene: &'s Scene<'s>, graph: &'s Graph, functions: &Functions) -> Self {
        let none = BTreeMap::new();
        let of_role = |(at, role): (usize, &program::Role)| {
            let functions = functions.get(at).unwrap_or(&none);
            let mut calls = BTreeMap::new();
            for call in role.body.calls() {
                calls.entry(call.id).or_insert_with(|| name_of(graph, call, functions.get(&call.id)));
            }
            calls
        };
        Self { graph, scene, calls: scene.program.roles.iter().enumerate().map(of_role).collect() }
    }

    /// Of the rank at this place among those that were followed.
    pub(super) fn of_span(&self, at: usize, span: &Span) -> String {
        let What::Instr(kind, number) = span.what else {
            return if span.what == What::Wait { "waits" } else { "optimizer" }.to_owned();
        };
        let role = self.scene.rank_traces[at].role;
        let code = self.scene.program.roles[role].body.code(span.block, span.pass);
        let called = |id: CallId| self.calls[role].get(&id).map_or("", String::as_str);
        match code.and_then(|code| code.instrs.get(number)) {
            Some(Instr::Call(call)) if span.pass.is_backward() => format!("{}, again", called(call.id)),
            Some(Instr::Call(call)) => called(call.id).to_owned(),
            Some(Instr::Grad(grad)) => match grad.which {
                Which::Both => format!("{}, backward", called(grad.call)),
                Which::Inputs => format!("{}, input gradients", called(grad.call)),
                Which::Weights => format!("{}, weight gradients", called(grad.call)),
            },
            _ => match self.operator(at, span).map(|op| &self.graph.op(op).module[..]) {
                None | Some("") => kind.name().to_owned(),
                Some(module) => format!("{module}: {}", kind.name()),
            },
        }
    }

    /// The operator with which what a rank does begins.
    pub(super) fn operator_of(&self, at: usize, span: &Span) -> String {
        self.operator(at, span).map_or_else(String::new, |op| self.graph.describe(op))
    }

    fn operator(&self, at: usize, span: &Span) -> Option<OpId> {
        let What::Instr(_, number) = span.what else { return None };
        let rank_trace = &self.scene.rank_traces[at];
        let body = &self.scene.program.roles[rank_trace.role].body;
        let code = body.position(span.block, span.pass)?;
        let before: usize = body.codes[..code].iter().map(|code| code.instrs.len()).sum();
        rank_trace.instr_costs[before + number].op
    }
}

/// `h.0.attn: causal_self_attention`.
fn name_of(graph: &Graph, call: &Call, function: Option<&String>) -> String {
    let known = |op: OpId| (op.index() < graph.ops.len()).then(|| &graph.op(op).module[..]);
    let modules: Vec<&str> = call.ops.iter().filter_map(|op| known(op.op)).collect();
    let modules = spanned(&modules).unwrap_or_else(|| graph.model.clone());
    match function {
        Some(function) => format!("{modules}: {function}"),
        None => format!("{modules}: call {}", call.id.0),
    }
}

/// The module that has all of these in it, or the first and the last of several; none is the whole model.
fn spanned(modules: &[&str]) -> Option<String> {
    let paths: Vec<Vec<&str>> =
        modules.iter().filter(|it| !it.is_empty()).map(|it| it.split('.').collect()).collect();
    let (first, last) = (paths.first()?, paths.last()?);
    let is_common = |at: usize| paths.iter().all(|path| path.get(at) == first.get(at));
    let common = (0..first.len()).take_while(|at| is_common(*at)).count();
    let [from, to] = [first, last].map(|path| {
        // A layer is one of a list, so a name without its number says nothing.
        let numbers = path[common..].iter().skip(1).take(1).filter(|name| is_number(name)).count();
        path[..path.len().min(common + 1 + numbers)].join(".")
    });
    let has_list = [first, last].iter().any(|path| path[common..].iter().take(2).any(|name| is_number(name)));
    Some(match common {
        _ if from != to && (common == 0 || has_list) => format!("{from} to {to}"),
        0 => from,
        _ => first[..common].join("."),
    })
}

fn is_number(name: &str) -> bool {
    name.parse::<u64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::spanned;

    #[test]
    fn modules_of_a_call_are_one_or_from_first_to_last() {
        let said = |modules: &[&str]| spanned(modules).unwrap_or_default();
        assert_eq!(said(&["h.0.attn", "h.0.attn.c_proj", "h.0.attn"]), "h.0.attn");
        assert_eq!(said(&["h.0.ln_1", "h.0.attn", "h.0.mlp"]), "h.0");
        assert_eq!(said(&["h.0.mlp", "h.0", "h.1.ln_1"]), "h.0 to h.1");
        assert_eq!(said(&["wte", "wpe", "h.0.ln_1"]), "wte to h.0");
        assert_eq!(said(&["t.wte", "t.h.0.ln_1"]), "t.wte to t.h.0");
        assert_eq!(said(&["t.h.2.ln_1", "t.h.3.mlp", "t.ln_f"]), "t.h.2 to t.ln_f");
        assert_eq!(said(&["", "ln_f", "", "lm_head"]), "ln_f to lm_head");
        assert_eq!(said(&["", ""]), "");
    }
}
