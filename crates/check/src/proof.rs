//! What a proof rests on.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use graph::{Op, OpId};
use program::RankId;
use rules::families::registered;

use crate::facts::Facts;
use crate::local::Work;
use crate::purpose::Memory;

/// A program computes what the model's graph computes, if what is listed here is right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    pub model: String,
    pub plan: String,
    pub ranks: u32,
    /// How many different operators of the rewritten graph are computed.
    pub operators: usize,
    /// How many local operators were found to be parts of them, over all ranks.
    pub local_operators: usize,
    /// Whether gradients are proved too, or only outputs and updates.
    pub backward: bool,
    /// Targets of operators whose rule was used.
    pub rules: BTreeSet<String>,
    /// The operators of the model that are rewritten, and along which dims.
    pub rewritings: Vec<String>,
    /// The runtime's own functions.
    pub functions: BTreeSet<String>,
    /// Operators without a rule: every rank computes them whole.
    pub unknown: Vec<String>,
    /// Operators that draw random numbers without a key: ranks agree only if their generators do.
    pub unkeyed: Vec<String>,
    /// How many ranks along an axis are alike but for where their parts lie, if only some of them were followed.
    pub folded: Option<u32>,
    /// How many communications of each kind there are, in the one order.
    pub communications: BTreeMap<&'static str, usize>,
    /// Per rank: what it hands to its communications, by phase and kind.
    pub traffic: Vec<Traffic>,
    /// Per rank: the floating point operations of a micro-batch.
    pub computed: Vec<Computed>,
    /// Per rank: the bytes that it has at once in a step.
    pub memory: Vec<Memory>,
}

/// Floating point operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Computed {
    /// Of forward and of gradients.
    pub all: u64,
    /// How many of them backward does that forward had done.
    pub recomputed: u64,
}

/// By phase (`forward`, `backward`) and kind of communication (`all_reduce`).
pub type Traffic = BTreeMap<(&'static str, &'static str), Issued>;

/// How many communications, and of how many bytes in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Issued {
    pub count: usize,
    pub bytes: u64,
}

/// Counts, while a program is followed.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    computed: Vec<bool>,
    functions: BTreeSet<String>,
    local: usize,
    communications: BTreeMap<&'static str, usize>,
    traffic: Vec<Traffic>,
    operations: Vec<Computed>,
}

/// What is computed of an operator.
#[derive(Clone, Copy)]
pub(crate) enum Computes {
    Values { recomputed: bool },
    Gradients,
}

impl Tally {
    pub(crate) fn local(&mut self, op: OpId, target: &str) {
        self.local += 1;
        if self.computed.len() <= op.index() {
            self.computed.resize(op.index() + 1, false);
        }
        self.computed[op.index()] = true;
        if target.starts_with("sw.") && !self.functions.contains(target) {
            self.functions.insert(target.into());
        }
    }

    pub(crate) fn communication(&mut self, kind: &'static str) {
        *self.communications.entry(kind).or_insert(0) += 1;
    }

    pub(crate) fn computes(&mut self, rank: RankId, what: Computes, work: Work) {
        if self.operations.len() <= rank.index() {
            self.operations.resize(rank.index() + 1, Computed::default());
        }
        let counted = &mut self.operations[rank.index()];
        counted.all += if matches!(what, Computes::Gradients) { work.backward } else { work.forward };
        counted.recomputed +=
            if matches!(what, Computes::Values { recomputed: true }) { work.forward } else { 0 };
    }

    /// One more communication of a rank.
    pub(crate) fn issued(&mut self, rank: RankId, pass: &'static str, kind: &'static str, bytes: i64) {
        if self.traffic.len() <= rank.index() {
            self.traffic.resize(rank.index() + 1, Traffic::new());
        }
        let issued = self.traffic[rank.index()].entry((pass, kind)).or_default();
        issued.count += 1;
        issued.bytes += u64::try_from(bytes).unwrap_or(0);
    }

    pub(crate) fn proof(mut self, facts: &Facts<'_>, ranks: u32) -> Proof {
        self.traffic.resize(ranks as usize, Traffic::new());
        self.operations.resize(ranks as usize, Computed::default());
        let computed: Vec<OpId> = facts
            .graph
            .op_ids()
            .filter(|id| self.computed.get(id.index()).copied().unwrap_or(false))
            .collect();
        let has_rule = |id: &OpId| facts.analysis.rules[id.index()].is_some();
        let (ruled, unknown): (Vec<OpId>, Vec<OpId>) = computed.iter().copied().partition(has_rule);
        let unkeyed = unknown.iter().filter(|id| facts.op(**id).random);
        Proof {
            model: facts.graph.model.clone(),
            operators: computed.len(),
            local_operators: self.local,
            rules: ruled.iter().map(|id| rule_name(facts.graph.op(*id))).collect(),
            functions: self.functions,
            unkeyed: unkeyed.map(|id| facts.graph.describe(*id)).collect(),
            unknown: unknown.iter().map(|id| facts.graph.describe(*id)).collect(),
            communications: self.communications,
            traffic: self.traffic,
            computed: self.operations,
            ..Proof::default()
        }
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.backward { "outputs, updates and gradients" } else { "outputs and updates" };
        writeln!(
            f,
            "proved: plan {} on {} ranks computes the {what} of {}",
            self.plan, self.ranks, self.model
        )?;
        writeln!(f, "  {} operators, as {} local operators", self.operators, self.local_operators)?;
        for (kind, count) in &self.communications {
            writeln!(f, "  {kind}: {count}")?;
        }
        if self.backward {
            writeln!(
                f,
                "  of any number of micro-batches: losses scaled once, gradients reduced with the last"
            )?;
        }
        writeln!(f, "this rests on")?;
        if let Some(ranks) = self.folded {
            writeln!(
                f,
                "  {ranks} symmetric ranks along an axis, which run one code on different parts: 4 were \
                 followed"
            )?;
        }
        writeln!(f, "  the rules of {}", list(self.rules.iter()))?;
        for rewriting in &self.rewritings {
            writeln!(f, "  the rewriting of {rewriting}")?;
        }
        writeln!(f, "  the runtime's communications and its functions {}", list(self.functions.iter()))?;
        for operator in &self.unknown {
            writeln!(f, "  {operator}, which has no rule: every rank computes all of it")?;
        }
        for operator in &self.unkeyed {
            writeln!(f, "  {operator}, which draws without a key: generators must agree")?;
        }
        Ok(())
    }
}

/// An operator's target; of a function or module that runs as Python its name, and who vouches for its rule.
fn rule_name(op: &Op) -> String {
    let named = |name: &str| format!("`{name}` ({})", registered::origin(op));
    registered::name_of(op).map_or_else(|| op.target.clone(), named)
}

fn list<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    if names.is_empty() { "(none)".into() } else { names.join(", ") }
}
