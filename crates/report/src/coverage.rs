//! What of a model has a rule, by which it may be split, and what has none: where that is, what share of the work and the
//! memory it has, and what is in the way.
//!
//! What runs as Python shows no operations. Whoever captured the model has counted them, as a share of a forward's; backward
//! is taken to be twice as much. Without a count an operation for each element is told, as of all that no family knows.

use std::collections::{BTreeMap, BTreeSet};

use compiler::{Costs, Division, division_of, operations_of_each};
use graph::{Graph, OpId, Source, TensorId};
use plan::Plan;
use rules::{Analysis, Kind, families};

use crate::modules::pattern_of;

/// So many operators, with the operations of a forward and backward, the bytes of what they give and of the parameters
/// and buffers that they read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount {
    pub operators: usize,
    pub operations: f64,
    pub activations: u64,
    pub parameters: u64,
}

/// Operators without a rule for one reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Unruled {
    pub target: String,
    /// The modules or functions, of what runs as Python; and the same as one name, layers that are alike as `h.*`.
    pub names: Vec<String>,
    pub name: Option<String>,
    pub lack: Lack,
    /// Layers that are alike as `h.*`.
    pub modules: Vec<String>,
    pub lines: Vec<String>,
    pub amount: Amount,
    pub counted: bool,
}

/// Why operators have no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// A module that was not traced, and runs as Python.
    Module,
    /// A function that runs as Python, for which no rule is registered.
    Function,
    /// An operator of somebody's own library.
    Library,
    /// A family has the operator, and no rule for a call of this kind.
    Call(&'static str),
    /// No family has it.
    Operator,
}

impl Lack {
    pub fn name(self) -> &'static str {
        match self {
            Lack::Module => "module",
            Lack::Function => "function",
            Lack::Library => "library",
            Lack::Call(_) => "call",
            Lack::Operator => "operator",
        }
    }

    pub fn is_python(self) -> bool {
        matches!(self, Lack::Module | Lack::Function)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Coverage {
    pub all: Amount,
    pub ruled: Amount,
    /// Those with a rule that leaves no dim to be split.
    pub whole: Amount,
    /// The most operations first.
    pub unruled: Vec<Unruled>,
    pub planned: Option<Planned>,
}

/// What a plan does with the operators.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Planned {
    pub split: Amount,
    pub replicated: Amount,
    pub single: Amount,
}

/// `counted` are the shares of a forward's operations of what runs as Python, by name.
pub fn coverage(
    graph: &Graph,
    analysis: &Analysis,
    plan: Option<&Plan>,
    counted: &BTreeMap<String, f64>,
) -> Coverage {
    let sums = Sums::new(graph, analysis, counted);
    let ops: Vec<OpId> = graph.op_ids().collect();
    let has_rule = |op: &OpId| analysis.rules[op.index()].is_some();
    let (ruled, without): (Vec<OpId>, Vec<OpId>) = ops.iter().partition(|op| has_rule(op));
    let splits = |op: &&OpId| analysis.op(**op).loops.iter().any(|l| l.kind != Kind::Whole && l.size > 1);
    let whole: Vec<OpId> = ruled.iter().filter(|op| !splits(op)).copied().collect();
    let mut rows: BTreeMap<(String, Option<String>), Vec<OpId>> = BTreeMap::new();
    for op in without {
        let key = (graph.op(op).target.clone(), name_of(graph, op).map(pattern_of));
        rows.entry(key).or_default().push(op);
    }
    let mut unruled: Vec<Unruled> = rows.into_values().map(|ops| sums.unruled(&ops, counted)).collect();
    unruled.sort_by(|a, b| b.amount.operations.total_cmp(&a.amount.operations));
    let planned = plan.map(|plan| {
        let amount_of = |way: Division| {
            sums.amount(
                &ops.iter().filter(|op| division_of(plan.op(**op)) == way).copied().collect::<Vec<_>>(),
            )
        };
        Planned {
            split: amount_of(Division::Split),
            replicated: amount_of(Division::Replicated),
            single: amount_of(Division::Single),
        }
    });
    Coverage {
        all: sums.amount(&ops),
        ruled: sums.amount(&ruled),
        whole: sums.amount(&whole),
        unruled,
        planned,
    }
}

/// What each operator has of the work and the memory.
struct Sums<'g> {
    graph: &'g Graph,
    operations: Vec<f64>,
    /// Bytes of results that lie in no operand's memory.
    made: Vec<u64>,
}

impl<'g> Sums<'g> {
    fn new(graph: &'g Graph, analysis: &'g Analysis, counted: &BTreeMap<String, f64>) -> Self {
        let needs_grad = graph.needs_grad();
        let made = |op: OpId| {
            let mut costs = Costs::new(graph, analysis, op, &needs_grad);
            let results = graph.op(op).outputs.iter().zip(&costs.whole().cost.lies_in);
            results
                .filter(|(_, lies_in)| lies_in.is_none())
                .filter_map(|(t, _)| *t)
                .map(|t| bytes(graph, t))
                .sum()
        };
        let made = graph.op_ids().map(made).collect();
        let mut sums = Self { graph, operations: operations_of_each(graph, analysis), made };
        sums.count(counted);
        sums
    }

    /// Puts in what was counted: shares of all, of which what is known by its operators is the rest.
    fn count(&mut self, counted: &BTreeMap<String, f64>) {
        let share = |op: &OpId| name_of(self.graph, *op).and_then(|name| counted.get(name)).copied();
        let calls = |op: &OpId| {
            let name = name_of(self.graph, *op);
            self.graph.op_ids().filter(|other| name_of(self.graph, *other) == name).count() as f64
        };
        let shares: Vec<Option<f64>> =
            self.graph.op_ids().map(|op| share(&op).map(|share| share / calls(&op))).collect();
        let known: f64 = self
            .operations
            .iter()
            .zip(&shares)
            .filter(|(_, share)| share.is_none())
            .map(|(operations, _)| operations)
            .sum();
        let rest = 1.0 - shares.iter().flatten().sum::<f64>();
        for (operations, share) in self.operations.iter_mut().zip(shares) {
            if let Some(share) = share.filter(|_| rest > 1e-9 && known > 0.0) {
                *operations = share / rest * known;
            }
        }
    }

    fn amount(&self, ops: &[OpId]) -> Amount {
        let read: BTreeSet<TensorId> = ops.iter().flat_map(|op| self.graph.op(*op).inputs()).collect();
        let held = |t: &&TensorId| {
            matches!(self.graph.tensor(**t).source, Source::Param { .. } | Source::Buffer { .. })
        };
        Amount {
            operators: ops.len(),
            operations: ops.iter().map(|op| self.operations[op.index()]).sum(),
            activations: ops.iter().map(|op| self.made[op.index()]).sum(),
            parameters: read.iter().filter(held).map(|t| bytes(self.graph, *t)).sum(),
        }
    }

    fn unruled(&self, ops: &[OpId], counted: &BTreeMap<String, f64>) -> Unruled {
        let (first, name) = (self.graph.op(ops[0]), name_of(self.graph, ops[0]));
        let each = |text_of: &dyn Fn(OpId) -> String| {
            let mut texts: Vec<String> = vec![];
            for text in ops.iter().map(|op| text_of(*op)) {
                if !texts.contains(&text) {
                    texts.push(text);
                }
            }
            texts
        };
        Unruled {
            target: first.target.clone(),
            names: each(&|op| name_of(self.graph, op).unwrap_or_default().to_owned()),
            name: name.map(pattern_of),
            lack: lack(&first.target),
            modules: each(&|op| pattern_of(&self.graph.op(op).module)),
            lines: each(&|op| self.graph.op(op).line.clone()),
            amount: self.amount(ops),
            counted: name.is_some_and(|name| counted.contains_key(name)),
        }
    }
}

const MODULE: &str = "shardwright.module.default";
const FUNCTION: &str = "shardwright.function.default";

fn lack(target: &str) -> Lack {
    match (target, families::family_of(target)) {
        (MODULE, _) => Lack::Module,
        (FUNCTION, _) => Lack::Function,
        (_, Some(family)) => Lack::Call(family.name),
        _ if target.starts_with("aten.") => Lack::Operator,
        _ => Lack::Library,
    }
}

/// The module or function that an operator calls.
fn name_of(graph: &Graph, op: OpId) -> Option<&str> {
    match (&graph.op(op).target[..], graph.op(op).args.first()) {
        (MODULE | FUNCTION, Some(graph::Arg::Str(name))) => Some(name),
        _ => None,
    }
}

fn bytes(graph: &Graph, tensor: TensorId) -> u64 {
    u64::try_from(graph.tensor(tensor).bytes()).unwrap_or(0)
}
