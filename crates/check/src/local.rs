//! Finds of which operator of the graph, and of which part of it, a local operator is.
//!
//! The operator named by [`program::LocalOp::op`] is only the first guess. What counts is that the
//! rule, for the intervals that the operands have, gives exactly what is executed.

use std::collections::BTreeSet;
use std::rc::Rc;

use graph::OpId;
use hashing::Map;
use program::{BufId, PerRank, Table};
use rules::local::unchanged;
use rules::{Analysis, Cost, Interval, Kind, Passes, Reduction, Region, View, families};

use crate::args::{compare, expected_ints, expected_text, found_text, has_holes, integer};
use crate::facts::Facts;
use crate::fault::Fault;
use crate::held::{Held, LocalPart, Scene};
use crate::infer::{describe, infer};
use crate::intern::Lists;
use crate::region::{is_any, region_text, unify};
use crate::share::{EMPTY, FULL, ListId, Mode, Owner, Quantity, ShareId, Store, Term, WHOLE, has_once};
use crate::solve::solve;
use crate::symmetry::agree;

/// Remembers what was found, so that ranks and steps that do the same are looked up.
pub(crate) struct Finder {
    last: Vec<Option<OpId>>,
    numbers: Map<Box<[i64]>, usize>,
    expected: Vec<rules::LocalOp>,
    /// Of each of these what it costs, once somebody asks.
    costs: Vec<Option<Rc<Cost>>>,
    compared: Map<(u32, usize), Option<u32>>,
    pub(crate) bindings: Lists<(BufId, usize)>,
    /// What the operator that was found last makes.
    pub(crate) outputs: Vec<Option<Held>>,
    key: Vec<i64>,
    /// Where tables say which regions random operators draw for: the operator, the role and the slot.
    pub(crate) drawn: BTreeSet<(OpId, usize, i64)>,
}

/// How far an operator got before it was refused, and why it was.
type Refusal = (u8, Fault);

/// How a part is applied to what its operands hold.
#[derive(Clone, Copy)]
struct Application {
    clause: Option<u32>,
    /// The kind of share that the clause makes of those of its operands.
    made: Reduction,
    first: bool,
}

/// That a local operator executes what is expected of a part: its operands, and the number of what that is.
#[derive(Clone, Copy)]
struct Same {
    binding: u32,
    executes: usize,
}

/// Floating point operations of a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) forward: u64,
    pub(crate) backward: u64,
}

impl Finder {
    pub(crate) fn new(sites: usize) -> Self {
        Self {
            last: vec![None; sites],
            numbers: Map::default(),
            expected: vec![],
            costs: vec![],
            compared: Map::default(),
            bindings: Lists::new(),
            outputs: vec![],
            key: vec![],
            drawn: BTreeSet::new(),
        }
    }

    pub(crate) fn find(&mut self, store: &mut Store, scene: &Scene<'_>) -> Result<LocalPart, Fault> {
        if let Some(held) = scene.inputs.iter().find(|held| held.of.grad) {
            let name = &scene.facts.graph.tensor(held.of.tensor).name;
            return Err(Fault::new("SW0504", format!("forward code reads the gradient of %{name}")));
        }
        if let Some(op) = self.last[scene.site as usize] {
            if let Ok(part) = self.attempt(store, scene, op) {
                return Ok(part);
            }
        }
        // The refusal of the operator that came closest is reported.
        let mut closest: Option<Refusal> = None;
        for op in candidates(scene) {
            match self.attempt(store, scene, op) {
                Ok(part) => {
                    self.last[scene.site as usize] = Some(op);
                    return Ok(part);
                }
                Err(refusal) if closest.as_ref().is_some_and(|best| best.0 >= refusal.0) => {}
                Err(refusal) => closest = Some(refusal),
            }
        }
        Err(closest.map_or_else(|| nothing_reads(scene), |refusal| refusal.1))
    }

    fn attempt(&mut self, store: &mut Store, scene: &Scene<'_>, op: OpId) -> Result<LocalPart, Refusal> {
        let inferred = infer(store, scene, op).map_err(|fault| (0, fault))?;
        let mut closest: Option<Refusal> = None;
        for at in inferred.candidates(scene.facts, op) {
            match self.attempt_at(store, scene, op, &at, &inferred.positions) {
                Ok(part) => return Ok(part),
                Err(refusal) if closest.as_ref().is_some_and(|best| best.0 >= refusal.0) => {}
                Err(refusal) => closest = Some(refusal),
            }
        }
        let none = || (0, nothing_reads(scene));
        Err(closest.unwrap_or_else(none))
    }

    fn attempt_at(
        &mut self,
        store: &mut Store,
        scene: &Scene<'_>,
        op: OpId,
        at: &[Option<Interval>],
        positions: &[usize],
    ) -> Result<LocalPart, Refusal> {
        let at = solve(scene, op, at, &mut |at| {
            let number = self.expect(scene, op, at, true);
            expected_ints(&self.expected[number])
        });
        let at = first_at(scene, op, positions, drawn_at(scene, op, at));
        let ways = divisible(scene, op, &at)
            .and_then(|()| ways(store, scene, op, &partial(store, scene, op, positions)?))
            .map_err(|fault| (1, fault))?;
        let mut mismatch = None;
        for application in ways.into_iter().flatten() {
            match self.same(scene, op, &at, application) {
                Ok(same) => {
                    let fit = self.operands_fit(store, scene, op, &at, application.clause, same.binding);
                    fit.map_err(|fault| (2, fault))?;
                    return self
                        .outcome(store, scene, op, &at, application, same)
                        .map_err(|fault| (3, fault));
                }
                Err(fault) => mismatch = mismatch.or(Some((1, fault))),
            }
        }
        Err(mismatch.expect("there is at least one way"))
    }

    /// What a part computes.
    pub(crate) fn work(&mut self, facts: &Facts<'_>, store: &Store, part: &LocalPart) -> Work {
        let cost = self.cost(facts, store, part);
        Work { forward: cost.flops, backward: cost.gradients.iter().sum() }
    }

    /// What a part costs. Parts that execute the same cost as much.
    pub(crate) fn cost(&mut self, facts: &Facts<'_>, store: &Store, part: &LocalPart) -> Rc<Cost> {
        if self.costs.len() < self.expected.len() {
            self.costs.resize(self.expected.len(), None);
        }
        let executed = &self.expected[part.executes];
        let cost = self.costs[part.executes].get_or_insert_with(|| {
            let (op, at) = (part.op, plain(store.region(part.at)));
            let shapes = facts.analysis.part(facts.graph, op, &at, true, 0);
            let (view, rule) = (View::new(facts.graph, op), facts.analysis.rules[op.index()].as_ref());
            Rc::new(families::cost_of(view, rule, &shapes, executed, facts.all_needs()))
        });
        Rc::clone(cost)
    }

    /// What a part executes, by a number. Where a part begins is only told for dims marked `~`, so
    /// that parts of one size share what they execute.
    fn expect(&mut self, scene: &Scene<'_>, op: OpId, at: &[Interval], first: bool) -> usize {
        let dims = scene.facts.analysis.op(op);
        let slot = if scene.facts.op(op).random { slot(scene) } else { 0 };
        let rule = scene.facts.analysis.rules[op.index()].as_ref();
        let reduces = |l: usize| matches!(dims.loops[l].kind, Kind::Reduce(_));
        let first = first && at.iter().enumerate().all(|(l, i)| !reduces(l) || i.lo == 0);
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        key.extend([i64::from(op.0), i64::from(first), slot]);
        for (l, i) in dims.loops.iter().zip(at) {
            key.push(i.len());
            if rule.is_some_and(|rule| rule.dim(l.dim).contiguous) {
                key.push(i.lo);
            }
        }
        let known = self.numbers.get(&key[..]).copied();
        let number = known.unwrap_or_else(|| {
            self.expected.push(executed(scene, op, at, first, slot));
            self.numbers.insert(key[..].into(), self.expected.len() - 1);
            self.expected.len() - 1
        });
        self.key = key;
        number
    }

    fn same(
        &mut self,
        scene: &Scene<'_>,
        op: OpId,
        at: &[Interval],
        application: Application,
    ) -> Result<Same, Fault> {
        let number = self.expect(scene, op, at, application.first);
        let holes = has_holes(scene.local);
        if let Some(Some(binding)) = self.compared.get(&(scene.site, number)).filter(|_| !holes) {
            return Ok(Same { binding: *binding, executes: number });
        }
        let rank_table = scene.own;
        let mut binding = compare(&self.expected[number], scene.local, rank_table);
        if binding.is_none()
            && application.first
            && is_whole(scene.facts.analysis, op, at)
            && !scene.facts.op(op).random
        {
            binding = compare(&unchanged(scene.facts.graph.op(op)), scene.local, rank_table);
        }
        let binding = binding.map(|binding| self.bindings.number(&binding));
        if !holes {
            self.compared.insert((scene.site, number), binding);
        }
        binding.map(|binding| Same { binding, executes: number }).ok_or_else(|| {
            let expected = expected_text(&self.expected[number]);
            let actual = found_text(scene.local, rank_table);
            Fault::new("SW0504", "a local operator is no part of an operator of the model")
                .why(format!("expected `{expected}` for {}, found `{actual}`", describe(scene.facts, op, at)))
                .operator(scene.facts.graph.describe(op))
        })
    }

    fn operands_fit(
        &self,
        store: &Store,
        scene: &Scene<'_>,
        op: OpId,
        at: &[Interval],
        clause: Option<u32>,
        binding: u32,
    ) -> Result<(), Fault> {
        let (facts, dims) = (scene.facts, scene.facts.analysis.op(op));
        let rule = facts.analysis.rules[op.index()].as_ref();
        for (buf, position) in self.bindings.get(binding).iter() {
            let held = scene.bufs[buf.index()].expect("inputs are known");
            let passes = clause
                .zip(rule)
                .is_some_and(|(clause, rule)| rule.passes[clause as usize].operands.contains(position));
            if held.share != WHOLE && !passes {
                return Err(must_be_whole(store, facts, op, *position, held.share));
            }
            let expected = facts.op(op).inputs[*position];
            let name = &facts.graph.tensor(expected).name;
            if held.of.tensor != expected {
                let actual = &facts.graph.tensor(held.of.tensor).name;
                return Err(Fault::new(
                    "SW0504",
                    "a local operator reads another tensor than its operator in the model",
                )
                .why(format!("expected operand {position} to be %{name}, found %{actual}"))
                .operator(facts.graph.describe(op)));
            }
            let region = store.region(held.region);
            let wanted = facts.analysis.region(expected, &dims.inputs[*position], at);
            let fits = agree(facts, expected, &wanted.0, region).is_some();
            if !fits {
                let factors = &facts.analysis.factors[expected.index()];
                let (wanted, actual) = (region_text(factors, &wanted.0), region_text(factors, region));
                return Err(Fault::new(
                    "SW0504",
                    "a local operator reads another part of a tensor than it needs",
                )
                .why(format!("expected %{name}{wanted}, found %{name}{actual}"))
                .operator(facts.graph.describe(op)));
            }
        }
        Ok(())
    }

    fn outcome(
        &mut self,
        store: &mut Store,
        scene: &Scene<'_>,
        op: OpId,
        at: &[Interval],
        application: Application,
        Same { binding, executes }: Same,
    ) -> Result<LocalPart, Fault> {
        let facts = scene.facts;
        check_grad_mode(scene, op)?;
        let share = self.share(store, scene, op, at, application, binding)?;
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.clear();
        for (tensor, carried) in facts.op(op).outputs.iter().zip(&facts.analysis.op(op).outputs) {
            outputs.push(tensor.map(|tensor| {
                let region = store.part(facts, tensor, carried, at);
                Held { of: Quantity { tensor, grad: false }, region, share }
            }));
        }
        if scene.local.outputs.len() != outputs.len() {
            let (expected, actual) = (outputs.len(), scene.local.outputs.len());
            return Err(Fault::new(
                "SW0504",
                "a local operator has a different number of outputs than its operator in the model",
            )
            .why(format!("expected {expected}, found {actual}"))
            .operator(facts.graph.describe(op)));
        }
        if facts.op(op).random {
            self.drawn_region(store, scene, op, &outputs)?;
        }
        self.outputs = outputs;
        Ok(LocalPart { op, at: store.intervals.number(at), binding, executes, clause: application.clause })
    }

    fn share(
        &self,
        store: &mut Store,
        scene: &Scene<'_>,
        op: OpId,
        at: &[Interval],
        application: Application,
        binding: u32,
    ) -> Result<ShareId, Fault> {
        let (facts, reduced) = (scene.facts, &scene.facts.op(op).reduced);
        if reduced.is_empty() && application.clause.is_none() {
            return Ok(WHOLE);
        }
        let loops = &facts.analysis.op(op).loops;
        let intervals: Vec<Interval> = reduced.iter().map(|&l| at[l]).collect();
        let sizes: Vec<i64> = reduced.iter().map(|&l| loops[l].size).collect();
        let cut = store.cut(&intervals, &sizes);
        let Some(clause) = application.clause else {
            if cut == FULL {
                return Ok(WHOLE);
            }
            // Of equal terms any part of that many is the same, but for what is added to the first.
            let once = !intervals.iter().any(|i| is_any(*i));
            let kind = facts.reduction(op);
            let term = Term { owner: Owner::LocalPart(op), cut, mode: Mode::Plain, subs: 0, once, kind };
            return Ok(store.share(term));
        };
        if cut != FULL && (facts.reduction(op), application.made) != (Reduction::Sum, Reduction::Sum) {
            return Err(Fault::new(
                "SW0505",
                "an operator with partial operands is split, and does not compute a sum",
            )
            .operator(facts.graph.describe(op)));
        }
        let subs = self.clause_shares(store, scene, op, clause, binding);
        let once = application.first && intervals.iter().all(|i| i.lo == 0);
        // Linear in nothing, and without what is added once: zeros.
        if store.are_nothing(subs) && !(once && has_once(facts, op)) {
            return Ok(EMPTY);
        }
        let (mode, kind) = (Mode::Clause(clause), application.made);
        Ok(store.share(Term { owner: Owner::LocalPart(op), cut, mode, subs, once, kind }))
    }

    fn clause_shares(
        &self,
        store: &mut Store,
        scene: &Scene<'_>,
        op: OpId,
        clause: u32,
        binding: u32,
    ) -> ListId {
        let shares = clause_shares(scene.facts, op, clause, |position| {
            let (buf, _) = self.bindings.get(binding).iter().find(|(_, p)| *p == position)?;
            scene.bufs[buf.index()].map(|held| held.share)
        });
        store.list(&shares)
    }

    fn drawn_region(
        &mut self,
        store: &Store,
        scene: &Scene<'_>,
        op: OpId,
        outputs: &[Option<Held>],
    ) -> Result<(), Fault> {
        // Operators without a keyed form draw whole tensors; the proof names them.
        let keyed = scene.local.target.starts_with("sw.");
        let Some(held) = outputs.iter().flatten().next().filter(|_| keyed) else { return Ok(()) };
        let entry = table_region(scene, op);
        let region = store.region(held.region);
        let factors = &scene.facts.analysis.factors[held.of.tensor.index()];
        let actual = entry.map_or_else(|| "none".into(), |region| region_text(factors, &region.0));
        if entry.is_none_or(|entry| entry.0[..] != *region) {
            return Err(Fault::new(
                "SW0515",
                "random numbers are drawn for another region than the one that is computed",
            )
            .why(format!(
                "expected the region {} in the rank's table, found {actual}",
                region_text(factors, region)
            ))
            .operator(scene.facts.graph.describe(op)));
        }
        self.drawn.insert((op, scene.role, slot(scene)));
        Ok(())
    }
}

/// The shares of a clause's operands, by position; complete where an operand is not read.
pub(crate) fn clause_shares(
    facts: &Facts<'_>,
    op: OpId,
    clause: u32,
    share: impl Fn(usize) -> Option<ShareId>,
) -> Vec<ShareId> {
    let rule = facts.analysis.rules[op.index()].as_ref();
    let positions = rule.map_or(&[][..], |rule| &rule.passes[clause as usize].operands);
    positions.iter().map(|&position| share(position).unwrap_or(WHOLE)).collect()
}

fn is_whole(analysis: &Analysis, op: OpId, at: &[Interval]) -> bool {
    analysis.op(op).loops.iter().zip(at).all(|(l, i)| *i == Interval::whole(l.size))
}

/// The slot that a random operator names: its last argument.
fn slot(scene: &Scene<'_>) -> i64 {
    let last = scene.local.args.last();
    last.and_then(|arg| integer(arg, scene.own)).unwrap_or(0)
}

/// The region that the rank's table says a random operator draws for.
fn table_region<'s>(scene: &Scene<'s>, op: OpId) -> Option<&'s Region> {
    drawn_by(scene.own.table, scene.facts, op, slot(scene)).map(|region| region.get(scene.own.at))
}

/// The regions that a role's ranks draw for in a slot of a random operator.
pub(crate) fn drawn_by<'t>(
    table: &'t Table,
    facts: &Facts<'_>,
    op: OpId,
    slot: i64,
) -> Option<&'t PerRank<Region>> {
    let mut slots = table.random.iter().filter(|(other, _)| facts.canon(*other) == Some(op));
    slots.find_map(|(_, regions)| regions.get(usize::try_from(slot).ok()?))
}

/// Where a random operator's operands are the same everywhere, its part is that which it draws for.
fn drawn_at(scene: &Scene<'_>, op: OpId, mut at: Vec<Interval>) -> Vec<Interval> {
    let Some(region) = table_region(scene, op).filter(|_| scene.facts.op(op).random) else { return at };
    let carried = scene.facts.analysis.op(op).outputs.first().map_or(&[][..], Vec::as_slice);
    for (l, drawn) in carried.iter().zip(&region.0) {
        if let Some(joined) = l.and_then(|l| unify(at[l], *drawn)) {
            at[l.unwrap_or_default()] = joined;
        }
    }
    at
}

/// A part that reads what is added once, such as a bias, is the first: it says so where its place is open.
fn first_at(scene: &Scene<'_>, op: OpId, positions: &[usize], mut at: Vec<Interval>) -> Vec<Interval> {
    let rule = scene.facts.analysis.rules[op.index()].as_ref();
    if rule.is_some_and(|rule| positions.iter().any(|&position| rule.inputs[position].once)) {
        for &l in &scene.facts.op(op).reduced {
            at[l] = if is_any(at[l]) { Interval::whole(at[l].len()) } else { at[l] };
        }
    }
    at
}

/// What may lie anywhere at the start.
fn plain(at: &[Interval]) -> Vec<Interval> {
    at.iter().map(|i| if is_any(*i) { Interval::whole(i.len()) } else { *i }).collect()
}

fn executed(scene: &Scene<'_>, op: OpId, at: &[Interval], first: bool, slot: i64) -> rules::LocalOp {
    let analysis = scene.facts.analysis;
    let Some(rule) = &analysis.rules[op.index()] else { return unchanged(scene.facts.graph.op(op)) };
    let mut part = analysis.part(scene.facts.graph, op, &plain(at), first, slot);
    for (start, dim) in part.start.iter_mut().zip(&rule.dims).filter(|(_, dim)| !dim.contiguous) {
        // The rule does not ask for it: what it gives must not depend on it.
        debug_assert!(dim.size >= 0);
        *start = None;
    }
    families::local_of(View::new(scene.facts.graph, op), rule, &part)
}

/// The operators that read what a local operator reads: the one that it names first.
fn candidates(scene: &Scene<'_>) -> Vec<OpId> {
    let fewest = scene.inputs.iter().map(|held| scene.facts.readers(held.of.tensor)).min_by_key(|r| r.len());
    let mut all: Vec<OpId> = scene.facts.canon(scene.local.op).into_iter().collect();
    all.extend(fewest.unwrap_or(&scene.facts.creators));
    all
}

fn nothing_reads(scene: &Scene<'_>) -> Fault {
    let names: Vec<String> = scene
        .inputs
        .iter()
        .map(|held| format!("%{}", scene.facts.graph.tensor(held.of.tensor).name))
        .collect();
    let actual = found_text(scene.local, scene.own);
    Fault::new("SW0504", "a local operator is no part of an operator of the model")
        .why(format!("found `{actual}`; no operator reads {}", names.join(", ")))
}

/// Loops that may not be split must not be.
fn divisible(scene: &Scene<'_>, op: OpId, at: &[Interval]) -> Result<(), Fault> {
    let (facts, dims) = (scene.facts, scene.facts.analysis.op(op));
    let rule = facts.analysis.rules[op.index()].as_ref();
    for (l, i) in dims.loops.iter().zip(at) {
        let whole = *i == Interval::whole(l.size);
        if !whole && matches!(l.kind, Kind::Whole | Kind::Own) {
            return Err(Fault::new(
                "SW0504",
                format!("an operator is split along `{}`, which its rule forbids", l.name),
            )
            .why(format!("expected all {}, found {}..{}", l.size, i.lo, i.hi))
            .operator(facts.graph.describe(op)));
        }
        if is_any(*i) && (facts.op(op).random || rule.is_some_and(|rule| rule.dim(l.dim).contiguous)) {
            return Err(unclear(scene, op));
        }
    }
    Ok(())
}

fn unclear(scene: &Scene<'_>, op: OpId) -> Fault {
    Fault::new("SW0504", "it is not clear which part of an operator this is")
        .why("along one dim its operands are the same everywhere, and the place of the part matters")
        .operator(scene.facts.graph.describe(op))
}

/// An operand that is not complete, and what there is of it.
type Partial = (usize, ShareId);

/// The operands that are not complete.
fn partial(store: &Store, scene: &Scene<'_>, op: OpId, positions: &[usize]) -> Result<Vec<Partial>, Fault> {
    let mut partial = vec![];
    for (held, &position) in scene.inputs.iter().zip(positions) {
        if held.share == WHOLE {
            continue;
        }
        if !store.is_everywhere(held.share) {
            let name = &scene.facts.graph.tensor(held.of.tensor).name;
            return Err(Fault::new("SW0505", format!("an operator reads %{name} where it is not complete"))
                .operator(scene.facts.graph.describe(op)));
        }
        partial.push((position, held.share));
    }
    Ok(partial)
}

/// The ways in which an operator may be applied to these partial operands: by a clause of its rule that names all of
/// them, and through which shares of their kind pass.
fn ways(
    store: &Store,
    scene: &Scene<'_>,
    op: OpId,
    partial: &[Partial],
) -> Result<[Option<Application>; 2], Fault> {
    let Some(&(position, share)) = partial.first() else {
        return Ok([Some(Application { clause: None, made: Reduction::Sum, first: true }), None]);
    };
    let rule = scene.facts.analysis.rules[op.index()].as_ref();
    let clauses = rule.map_or(&[][..], |rule| &rule.passes);
    let kind = store.kind(share).filter(|kind| partial.iter().all(|(_, s)| store.kind(*s) == Some(*kind)));
    let fits = |passes: &Passes| {
        let named = partial.iter().all(|(position, _)| passes.operands.contains(position));
        passes.through.gives(kind?).filter(|_| named)
    };
    let fitting = (0_u32..).zip(clauses).find_map(|(clause, passes)| Some((clause, fits(passes)?)));
    match fitting {
        Some((clause, made)) => {
            Ok([true, false].map(|first| Some(Application { clause: Some(clause), made, first })))
        }
        None => Err(must_be_whole(store, scene.facts, op, position, share)),
    }
}

fn must_be_whole(store: &Store, facts: &Facts<'_>, op: OpId, position: usize, share: ShareId) -> Fault {
    let name = &facts.graph.tensor(facts.op(op).inputs[position]).name;
    let what = match store.kind(share) {
        Some(Reduction::Sum) => format!("an operator reads a partial %{name}, and is not linear in it"),
        Some(kind) => {
            format!("an operator reads a share of the {} that %{name} is, and cannot pass it on", kind.name())
        }
        None => format!("an operator reads shares of %{name} of several kinds"),
    };
    Fault::new("SW0505", what)
        .why("expected a complete value, found a partial one")
        .operator(facts.graph.describe(op))
}

fn check_grad_mode(scene: &Scene<'_>, op: OpId) -> Result<(), Fault> {
    let matters = scene.facts.op(op).inputs.iter().any(|t| scene.facts.depends(*t));
    let (expected, actual) = (scene.facts.graph.op(op).no_grad, scene.local.no_grad);
    if expected == actual || !matters {
        return Ok(());
    }
    let text = |off| if off { "off" } else { "on" };
    Err(Fault::new("SW0504", "gradients are on where the model has them off, or the other way round")
        .why(format!("expected gradients {}, found them {}", text(expected), text(actual)))
        .operator(scene.facts.graph.describe(op)))
}
