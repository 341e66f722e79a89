//! A plan as people read it: layers that are alike are one line, and dims have the names of what
//! they are. It parses to the same plan.

use graph::{Graph, OpId};
use rules::Analysis;

use crate::dim_names::DimNames;
use crate::op_index::OpIndex;
use crate::ranges::ranges;
use crate::select::{Selector, folded_path, with_numbers_as};
use crate::{On, OpPlan, Plan, dim_names, text};

/// Operators of one kind at paths that differ in numbers only.
struct FoldedGroup {
    path: String,
    target: String,
    /// Which of the operators of this target at its path.
    nth: usize,
    ops: Vec<OpId>,
}

impl FoldedGroup {
    fn named<'s>(&'s self, path: &'s str, nth: Option<usize>) -> Selector<'s> {
        Selector { path, target: &self.target, nth }
    }
}

pub fn print_folded(plan: &Plan, graph: &Graph, analysis: &Analysis) -> String {
    let printer =
        Printer { plan, graph, analysis, index: OpIndex::new(graph), names: DimNames::new(graph, analysis) };
    let groups = groups(graph);
    let lines: String = groups.iter().map(|group| printer.lines(group, is_alone(group, &groups))).collect();
    let dims = dim_names::of_inputs(graph, analysis, &printer.names);
    let dims = if dims.is_empty() { dims } else { format!("# dims of the model: {dims}\n") };
    let printed = text::header(plan) + &dims + &lines + &text::rest(plan, &printer.index);
    match text::parse(&printed, graph, analysis, None) {
        Ok(same) if same == *plan => printed,
        // A path that is a glob itself, say.
        _ => text::print(plan, graph, analysis),
    }
}

fn groups(graph: &Graph) -> Vec<FoldedGroup> {
    let mut groups: Vec<FoldedGroup> = vec![];
    let mut place = std::collections::BTreeMap::new();
    let mut seen = std::collections::BTreeMap::new();
    for op in graph.op_ids() {
        let it = graph.op(op);
        let count: &mut usize = seen.entry((&it.module, &it.target)).or_default();
        let nth = *count;
        *count += 1;
        let path = folded_path(&it.module);
        let at = *place.entry((path.clone(), &it.target, nth)).or_insert_with(|| {
            groups.push(FoldedGroup { path, target: it.target.clone(), nth, ops: vec![] });
            groups.len() - 1
        });
        groups[at].ops.push(op);
    }
    groups
}

/// Whether no other operator at its path has its target.
fn is_alone(group: &FoldedGroup, groups: &[FoldedGroup]) -> bool {
    groups.iter().all(|g| g.nth == 0 || (&g.path, &g.target) != (&group.path, &group.target))
}

struct Printer<'g> {
    plan: &'g Plan,
    graph: &'g Graph,
    analysis: &'g Analysis,
    index: OpIndex<'g>,
    names: DimNames,
}

impl Printer<'_> {
    /// One line if they are decided alike. Else one for each run of layers, if that is one for each way to decide; and
    /// else what most of them do, and the runs of the others.
    fn lines(&self, group: &FoldedGroup, alone: bool) -> String {
        let nth = (!alone).then_some(group.nth);
        let numbers = with_numbers_as("?", &self.graph.op(group.ops[0]).module);
        let means = |path: &str, ops: &[OpId]| group.named(path, nth).select(&self.index) == ops;
        let folded = [&group.path[..], &numbers].into_iter().find(|path| means(path, &group.ops));
        let ways = self.ways(&group.ops);
        let most = ways.iter().rev().max_by_key(|ops| ops.len()).filter(|_| group.ops.len() > 1);
        let runs = self.runs(&group.ops);
        let mut lines = String::new();
        let mut rest = &runs[..];
        let others: Vec<(String, Vec<OpId>)>;
        if let (Some(path), Some(most)) =
            (folded, most.filter(|_| ways.len() == 1 || runs.len() > ways.len()))
        {
            lines += &self.line(&group.named(path, nth), most);
            let left: Vec<OpId> = group.ops.iter().copied().filter(|op| !most.contains(op)).collect();
            others = self.runs(&left);
            rest = &others;
        }
        for (pattern, ops) in rest {
            if means(pattern, ops) {
                lines += &self.line(&group.named(pattern, nth), ops);
                continue;
            }
            for op in ops {
                lines += &self.line(&group.named(&self.graph.op(*op).module, nth), &[*op]);
            }
        }
        lines
    }

    /// Operators that are decided alike, the first ones first.
    fn ways(&self, ops: &[OpId]) -> Vec<Vec<OpId>> {
        let mut groups: Vec<(&OpPlan, Vec<OpId>)> = vec![];
        for &op in ops {
            let decided = self.plan.op(op);
            match groups.iter_mut().find(|(known, _)| *known == decided) {
                Some((_, ops)) => ops.push(op),
                None => groups.push((decided, vec![op])),
            }
        }
        groups.into_iter().map(|(_, ops)| ops).collect()
    }

    /// Those one after another that are decided alike, by patterns for their paths.
    fn runs(&self, ops: &[OpId]) -> Vec<(String, Vec<OpId>)> {
        let mut runs = vec![];
        for run in ops.chunk_by(|a, b| self.plan.op(*a) == self.plan.op(*b)) {
            let paths: Vec<&str> = run.iter().map(|op| &self.graph.op(*op).module[..]).collect();
            let mut rest = run;
            for (pattern, count) in ranges(&paths) {
                runs.push((pattern, rest[..count].to_vec()));
                rest = &rest[count..];
            }
        }
        runs
    }

    fn line(&self, selector: &Selector<'_>, ops: &[OpId]) -> String {
        let decision = text::decision(self.plan, self.analysis, ops[0]);
        let mut said = self.dims(ops[0]);
        if ops.len() > 1 {
            said.push(format!("{} alike", ops.len()));
        }
        let comment = if said.is_empty() { String::new() } else { format!("  # {}", said.join(", ")) };
        format!("op {selector}: {decision}{comment}\n")
    }

    /// What the dims are that an operator is split along.
    fn dims(&self, op: OpId) -> Vec<String> {
        let name = |on| match on {
            On::Loop(index) => self.names.of_loop(op, index).map(String::from),
            On::Exchange { tokens, .. } => self.names.of_loop(op, tokens).map(String::from),
            On::Copies | On::Value => None,
        };
        self.plan.op(op).splits.iter().filter_map(|split| name(split.on)).collect()
    }
}
