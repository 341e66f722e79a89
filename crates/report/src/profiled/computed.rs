//! What modules compute: forward, backward, and again.
//!
//! Local code is measured call by call, and perhaps line by line. A line has the operators that stand in it; where a call was
//! measured as a whole, its operators have of it what they were predicted to have.

use std::collections::{BTreeMap, BTreeSet};

use compiler::FollowedStep;
use graph::OpId;
use program::{Code, Instr, Pass};
use serde_json::{Value, json};
use simulate::works_of;

use crate::modules::pattern_of;
use crate::page::recorded::PairedRank;
use crate::page::recorded::read::MeasuredCall;
use crate::took::Took;

/// A module's part of a pass, or that of several that are alike.
pub(super) struct ComputedEntry {
    pub(super) pattern: String,
    pub(super) pass: &'static str,
    modules: BTreeSet<String>,
    ranks: BTreeSet<u32>,
    took: Took,
}

pub(super) struct ComputedModules {
    pub(super) entries: Vec<ComputedEntry>,
    /// Of each rank what is predicted and measured of all its modules.
    pub(super) of_ranks: Vec<(u32, Took)>,
}

/// A call, or its backward: of each operator how long it is predicted to take, and where it stands.
#[derive(Default)]
struct CallCost {
    pass: &'static str,
    ops: BTreeMap<OpId, f64>,
    lines: BTreeMap<u32, Vec<OpId>>,
}

/// By whether it is the backward, and by number.
type Calls = BTreeMap<(bool, u32), CallCost>;

impl ComputedModules {
    pub(super) fn new(
        step: &FollowedStep<'_>,
        ranks: &[PairedRank<'_>],
    ) -> std::result::Result<Self, String> {
        let mut entries = BTreeMap::new();
        let mut of_ranks = vec![];
        for rank in ranks {
            let calls = calls_of(step, rank);
            let mut of_rank: BTreeMap<(OpId, &'static str), Took> = BTreeMap::new();
            for called in calls.values() {
                for (op, seconds) in &called.ops {
                    of_rank.entry((*op, called.pass)).or_default().predicted += seconds;
                }
            }
            for measured in &rank.rank.calls {
                let called = calls.get(&(measured.is_backward, measured.call)).ok_or_else(|| {
                    format!(
                        "its rank {} makes call {}, which is not made here",
                        rank.rank.rank, measured.call
                    )
                })?;
                for (op, seconds) in called.seconds_of_ops(measured) {
                    of_rank.entry((op, called.pass)).or_default().measured += seconds;
                }
            }
            of_ranks.push((rank.rank.rank, of_rank.values().copied().sum()));
            for ((op, pass), took) in of_rank {
                add(step, &mut entries, rank.rank.rank, op, pass, took);
            }
        }
        Ok(Self { entries: entries.into_values().collect(), of_ranks })
    }
}

fn add(
    step: &FollowedStep<'_>,
    entries: &mut BTreeMap<(String, &'static str), ComputedEntry>,
    rank: u32,
    op: OpId,
    pass: &'static str,
    took: Took,
) {
    let module = &step.graph.op(op).module;
    let pattern = pattern_of(module);
    let entry = entries.entry((pattern.clone(), pass)).or_insert_with(|| ComputedEntry {
        pattern,
        pass,
        modules: BTreeSet::new(),
        ranks: BTreeSet::new(),
        took: Took::default(),
    });
    entry.modules.insert(module.clone());
    entry.ranks.insert(rank);
    entry.took += took;
}

fn calls_of(step: &FollowedStep<'_>, rank: &PairedRank<'_>) -> Calls {
    let rank_trace = &step.scene.rank_traces[rank.track];
    let mut works = works_of(&step.scene, rank_trace).into_iter();
    let mut calls = Calls::new();
    for code in &step.scene.program.roles[rank.role].body.codes {
        for (at, instr) in code.instrs.iter().enumerate() {
            let works = works.next().unwrap_or_default();
            let Some((key, pass)) = called(instr, code.pass) else { continue };
            let call = calls.entry(key).or_default();
            call.pass = pass;
            for (op, seconds) in works.into_iter().filter_map(|(op, seconds)| Some((op?, seconds))) {
                *call.ops.entry(op).or_default() += seconds;
            }
            if let Instr::Call(made) = instr {
                let lines = lines_of(step, rank.role, code, at, made);
                calls.entry((true, made.id.0)).or_default().lines.clone_from(&lines);
                calls.entry((false, made.id.0)).or_default().lines = lines;
            }
        }
    }
    calls.values_mut().filter(|call| call.pass.is_empty()).for_each(|call| call.pass = "backward");
    calls
}

fn called(instr: &Instr, pass: Pass) -> Option<((bool, u32), &'static str)> {
    match instr {
        Instr::Call(call) => {
            Some(((false, call.id.0), if pass == Pass::Forward { "forward" } else { "recomputation" }))
        }
        Instr::Grad(grad) => Some(((true, grad.call.0), "backward")),
        _ => None,
    }
}

fn lines_of(
    step: &FollowedStep<'_>,
    role: usize,
    code: &Code,
    at: usize,
    made: &program::Call,
) -> BTreeMap<u32, Vec<OpId>> {
    let mut lines: BTreeMap<u32, Vec<OpId>> = BTreeMap::new();
    let stands = step.lines.line(role, code.key(), at);
    let is_known = |op: &OpId| op.index() < step.graph.ops.len();
    for (op, line) in made.ops.iter().zip(stands.map_or(&[][..], |it| &it.ops)) {
        if is_known(&op.op) {
            lines.entry(*line).or_default().push(op.op);
        }
    }
    lines
}

impl CallCost {
    /// What of its measured seconds each operator has.
    fn seconds_of_ops(&self, measured: &MeasuredCall) -> Vec<(OpId, f64)> {
        let all: f64 = measured.lines.iter().map(|(_, seconds)| seconds).sum();
        if all <= 0.0 {
            return self.shared(self.ops.keys(), measured.seconds);
        }
        let scale = measured.seconds / all;
        let seconds_of_line = |(line, seconds): &(u32, f64)| {
            // A statement may take several lines; before the first one is what is around the call.
            let nearest = self.lines.range(..=*line).next_back();
            nearest.map_or(vec![], |(_, ops)| self.shared(ops.iter(), seconds * scale))
        };
        measured.lines.iter().flat_map(seconds_of_line).collect()
    }

    /// As the prediction shares it out; alike where that says nothing.
    fn shared<'o>(&self, ops: impl Iterator<Item = &'o OpId> + Clone, seconds: f64) -> Vec<(OpId, f64)> {
        let predicted = |op: &OpId| self.ops.get(op).copied().unwrap_or(0.0);
        let (all, count) = (ops.clone().map(predicted).sum::<f64>(), ops.clone().count() as f64);
        let share = |op: &OpId| if all > 0.0 { predicted(op) / all } else { 1.0 / count };
        ops.map(|op| (*op, seconds * share(op))).collect()
    }
}

impl ComputedEntry {
    /// Seconds of a device's step, as predicted and as measured.
    pub(super) fn of_device(&self) -> Took {
        self.took.each(self.ranks.len().max(1) as f64)
    }

    /// Seconds of all devices.
    pub(super) fn sums(&self) -> Took {
        self.took
    }

    pub(super) fn times(&self) -> Option<f64> {
        let Took { predicted, measured } = self.took;
        (predicted > 0.0).then(|| measured / predicted)
    }

    /// The module, or the pattern of several.
    pub(super) fn module(&self) -> &str {
        match (self.modules.len(), self.modules.first()) {
            (1, Some(module)) => module,
            _ => &self.pattern,
        }
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "name": if self.module().is_empty() { "the model itself" } else { self.module() },
            "kind": "computation",
            "pass": self.pass,
            "module": self.module(),
            "link": Value::Null,
            "ranks": self.ranks.len(),
            "count": self.modules.len(),
            "predicted": self.of_device().predicted,
            "measured": self.of_device().measured,
            "times": self.times(),
        })
    }
}
