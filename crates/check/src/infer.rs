//! The intervals of an operator's loops, from what its operands hold.

use graph::OpId;
use rules::Interval;

use crate::facts::Facts;
use crate::fault::Fault;
use crate::held::{Held, Scene};
use crate::region::{any, is_any, unify};
use crate::share::Store;
use crate::symmetry;

/// What the operands of a local operator tell of its part.
pub(crate) struct Inferred {
    /// The interval of each loop that an operand carries.
    pub(crate) at: Vec<Option<Interval>>,
    /// Which operand each input is.
    pub(crate) positions: Vec<usize>,
    symmetry: Vec<Symmetry>,
}

/// A fluid run of an operand: its loops, and what the operand has of them.
struct Symmetry {
    loops: Vec<usize>,
    found: Vec<Interval>,
}

pub(crate) fn infer(store: &Store, scene: &Scene<'_>, op: OpId) -> Result<Inferred, Fault> {
    let dims = scene.facts.analysis.op(op);
    let positions = positions(scene, op).ok_or_else(|| other_tensors(scene, op))?;
    let mut inferred = Inferred { at: vec![None; dims.loops.len()], positions, symmetry: vec![] };
    for (held, &position) in scene.inputs.iter().zip(&inferred.positions) {
        let (carried, region) = (&dims.inputs[position], store.region(held.region));
        for (factors, symmetry) in symmetry::runs(scene.facts, held.of.tensor) {
            let (carried, region) = (&carried[factors.clone()], &region[factors]);
            match carried.iter().copied().collect::<Option<Vec<usize>>>() {
                Some(loops) if symmetry => inferred.symmetry.push(Symmetry { loops, found: region.to_vec() }),
                _ => join(scene, op, held, carried, region, &mut inferred.at)?,
            }
        }
    }
    Ok(inferred)
}

fn join(
    scene: &Scene<'_>,
    op: OpId,
    held: &Held,
    carried: &[Option<usize>],
    region: &[Interval],
    at: &mut [Option<Interval>],
) -> Result<(), Fault> {
    for (carried, interval) in carried.iter().zip(region) {
        let Some(l) = *carried else { continue };
        let joined = at[l].map_or(Some(*interval), |known| unify(known, *interval));
        let Some(joined) = joined else {
            let known = at[l].map(text).unwrap_or_default();
            let name = &scene.facts.analysis.op(op).loops[l].name;
            return Err(Fault::new(
                "SW0504",
                format!("the operands of a local operator disagree along `{name}`"),
            )
            .why(format!(
                "expected {known} of %{} as of the operands before it, found {}",
                scene.facts.graph.tensor(held.of.tensor).name,
                text(*interval)
            ))
            .operator(scene.facts.graph.describe(op)));
        };
        at[l] = Some(joined);
    }
    Ok(())
}

/// How often fluid runs are divided in another way, to find one that fits.
const DIVISIONS: usize = 32;

impl Inferred {
    /// The intervals of loops that may be meant: several where fluid runs may be divided in several ways,
    /// that of the operands first.
    pub(crate) fn candidates(&self, facts: &Facts<'_>, op: OpId) -> Vec<Vec<Option<Interval>>> {
        let mut all = vec![self.at.clone()];
        for symmetry in &self.symmetry {
            let more = all.iter().flat_map(|at| symmetry.placed(facts, op, at));
            all = more.take(DIVISIONS).collect();
        }
        all
    }
}

impl Symmetry {
    fn placed(&self, facts: &Facts<'_>, op: OpId, at: &[Option<Interval>]) -> Vec<Vec<Option<Interval>>> {
        let loops = &facts.analysis.op(op).loops;
        let open = |l: usize| at[l].is_none();
        if !self.loops.iter().any(|&l| open(l)) {
            return vec![at.to_vec()];
        }
        let sizes: Vec<_> = self.loops.iter().map(|&l| (loops[l].size, at[l].map(Interval::len))).collect();
        let lens: Vec<i64> = self.found.iter().map(|i| i.len()).collect();
        let mut ways = symmetry::divisions(lens.iter().product(), &sizes);
        ways.sort_by_key(|way| *way != lens);
        let with = |way: Vec<i64>| {
            let mut at = at.to_vec();
            for (interval, (&l, len)) in self.found.iter().zip(self.loops.iter().zip(way)) {
                let same = interval.len() == len;
                at[l] = at[l].or(Some(if same { *interval } else { any(len, loops[l].size) }));
            }
            at
        };
        ways.into_iter().map(with).collect()
    }
}

fn text(i: Interval) -> String {
    if is_any(i) { format!("any {}", i.len()) } else { format!("{}..{}", i.lo, i.hi) }
}

/// Which operand each input of the local operator is, as far as tensors tell. Operands that another
/// part is given may be absent.
fn positions(scene: &Scene<'_>, op: OpId) -> Option<Vec<usize>> {
    let expected = &scene.facts.op(op).inputs;
    let tensors = scene.inputs.iter().map(|held| held.of.tensor);
    if expected.len() == scene.inputs.len() && tensors.clone().eq(expected.iter().copied()) {
        return Some((0..expected.len()).collect());
    }
    let rule = scene.facts.analysis.rules[op.index()].as_ref();
    let optional = |p: &usize| rule.is_some_and(|rule| rule.inputs[*p].once || rule.inputs[*p].absent);
    let mut order: Vec<usize> = (0..expected.len()).filter(|p| !optional(p)).collect();
    order.extend((0..expected.len()).filter(optional));
    let mut taken = vec![false; expected.len()];
    tensors
        .map(|tensor| {
            let position = order.iter().copied().find(|&p| !taken[p] && expected[p] == tensor)?;
            taken[position] = true;
            Some(position)
        })
        .collect()
}

fn other_tensors(scene: &Scene<'_>, op: OpId) -> Fault {
    let facts = scene.facts;
    let name = |t: graph::TensorId| format!("%{}", facts.graph.tensor(t).name);
    let expected: Vec<String> = facts.op(op).inputs.iter().map(|t| name(*t)).collect();
    let actual: Vec<String> = scene.inputs.iter().map(|held| name(held.of.tensor)).collect();
    Fault::new("SW0504", "a local operator reads other tensors than its operator in the model")
        .why(format!("expected {}, found {}", expected.join(", "), actual.join(", ")))
        .operator(facts.graph.describe(op))
}

/// The part of an operator in words.
pub(crate) fn describe(facts: &Facts<'_>, op: OpId, at: &[Interval]) -> String {
    let loops = &facts.analysis.op(op).loops;
    let cut = loops.iter().zip(at).filter(|(l, i)| **i != Interval::whole(l.size));
    let parts: Vec<String> = cut.map(|(l, i)| format!("{} {}", l.name, text(*i))).collect();
    if parts.is_empty() { "the whole of it".into() } else { parts.join(", ") }
}
