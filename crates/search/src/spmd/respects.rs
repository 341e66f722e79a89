//! What constraints leave of the choices of bundles.
//!
//! Choices that a constraint forbids are left out before anything is priced. Operators that are tied make their bundles one
//! decision where these have the same choices, and else a table that forbids all but equal ones.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use diag::Result;
use elimination::{NEVER, Problem, Solver, Term};
use graph::OpId;
use rules::Analysis;

use super::bundles::Bundle;
use super::choices::{Choice, choices, loops};
use super::demanded::pinned;
use super::digits::Digits;
use super::maker::{Maker, Operators};
use super::messages::{Count, Messages};
use super::recomputed::spans;
use super::sharding::{Loops, splits};
use super::solved::MOST;
use crate::Question;
use crate::constraints::{Constraints, by_digits, named_splits};

/// All choices that a bundle has along some dims, whatever constraints say; of what they have divided also those that are
/// seldom any good.
pub(super) fn all_choices(maker: &Maker<'_>, ops: &[OpId], dims: &[usize]) -> Vec<Choice> {
    let is_pinned = !pinned(&maker.question, &maker.operators.classes, ops).is_empty();
    let is_dear = ops.iter().any(|op| maker.traits[op.index()].is_dear());
    choices(maker.digits, dims, is_dear && !is_pinned, is_pinned)
}

/// Who forbids a choice of a bundle.
fn against(maker: &Maker<'_>, constraints: &Constraints, ops: &[OpId], choice: &Choice) -> BTreeSet<usize> {
    let (question, digits) = (&maker.question, maker.digits);
    let who_forbids = |op: &OpId| {
        let loops = loops(question.graph, question.analysis, &maker.operators.classes, digits, *op, choice);
        let count = question.analysis.op(*op).loops.len();
        let all = by_digits(count, loops.iter().zip(&digits.sizes));
        let inside = by_digits(count, loops.iter().zip(&digits.sizes).skip(digits.outside));
        constraints.against(*op, &all, &inside)
    };
    ops.iter().flat_map(who_forbids).collect()
}

/// The choices of a bundle that constraints leave.
pub(super) fn left(maker: &Maker<'_>, ops: &[OpId], dims: &[usize]) -> Vec<Choice> {
    let mut all = all_choices(maker, ops, dims);
    if let Some(constraints) = maker.question.constraints {
        all.retain(|choice| against(maker, constraints, ops, choice).is_empty());
    }
    all
}

type DemandCosts = Rc<[f64]>;

/// Bundles that are decided together.
pub(super) struct Ties {
    /// The bundle that decides for each.
    pub(super) of: Vec<usize>,
    terms: Vec<Term>,
}

impl Ties {
    pub(super) fn new(maker: &Maker<'_>, bundles: &[Bundle]) -> Self {
        let mut ties = Self { of: (0..bundles.len()).collect(), terms: vec![] };
        let Some(constraints) = maker.question.constraints else { return ties };
        let (mut same, mut others) = (Pairs::new(), Pairs::new());
        for (_, set) in constraints.ties() {
            collect(maker, bundles, set, &mut same, &mut others);
        }
        for ((one, other), pairs) in same {
            let first = keys(maker, &bundles[one].choices, pairs.iter().map(|it| it.0));
            let second = keys(maker, &bundles[other].choices, pairs.iter().map(|it| it.1));
            let tied: BTreeSet<OpId> = pairs.iter().map(|it| it.1).collect();
            let differ = first.iter().collect::<BTreeSet<_>>().len() == first.len();
            let is_one = differ || tied.len() == bundles[other].ops.len();
            if one != other && first == second && is_one {
                let (a, b) = (ties.of[one], ties.of[other]);
                ties.of.iter_mut().filter(|it| **it == a.max(b)).for_each(|it| *it = a.min(b));
            } else {
                ties.terms.push(equal(one, other, &first, &second));
            }
        }
        for ((one, other), pairs) in others {
            let first = keys(maker, &bundles[one].choices, pairs.iter().map(|it| it.0));
            let second = keys(maker, &bundles[other].choices, pairs.iter().map(|it| it.1));
            ties.terms.push(equal(one, other, &first, &second));
        }
        ties
    }

    /// Those that decide for themselves.
    pub(super) fn deciding(&self) -> impl Iterator<Item = usize> {
        (0..self.of.len()).filter(|at| self.of[*at] == *at)
    }

    /// The same problem with one decision for what is tied.
    pub(super) fn tied(&self, mut problem: Problem) -> Problem {
        problem.terms.extend(self.terms.iter().cloned());
        // With each table that was given, so that nothing else comes to lie there.
        let mut known: BTreeMap<usize, (DemandCosts, DemandCosts)> = BTreeMap::new();
        for term in &mut problem.terms {
            term.scope.iter_mut().for_each(|it| *it = self.of[*it]);
            if let [one, other] = term.scope[..] {
                if one == other {
                    let (at, size) = (Rc::as_ptr(&term.costs).cast::<f64>() as usize, problem.sizes[one]);
                    let given = Rc::clone(&term.costs);
                    let diagonal = || (0..size).map(|value| given[value * size + value]).collect();
                    let both = known.entry(at).or_insert_with(|| (Rc::clone(&given), diagonal()));
                    term.costs = Rc::clone(&both.1);
                    term.scope.truncate(1);
                }
            }
        }
        problem
    }

    /// The values of all bundles, of those that decide.
    pub(super) fn expand(&self, values: &[usize]) -> Vec<usize> {
        self.of.iter().map(|deciding| values[*deciding]).collect()
    }
}

type Pairs = BTreeMap<(usize, usize), Vec<(OpId, OpId)>>;

/// The first operator of a set beside the others, by their bundles.
fn pairs(maker: &Maker<'_>, set: &[OpId]) -> Pairs {
    let mut pairs: Pairs = BTreeMap::new();
    for other in &set[1..] {
        let bundles = (maker.bundles.of[set[0].index()], maker.bundles.of[other.index()]);
        pairs.entry(bundles).or_default().push((set[0], *other));
    }
    pairs
}

/// Of operators that are tied those whose bundles have one table beside the first of them, and one of each table beside the
/// first of all.
fn collect(maker: &Maker<'_>, bundles: &[Bundle], set: &[OpId], same: &mut Pairs, others: &mut Pairs) {
    let bundle = |op: OpId| maker.bundles.of[op.index()];
    let mut firsts: Vec<OpId> = vec![];
    for op in set {
        let is_same =
            |first: &&OpId| Rc::ptr_eq(&bundles[bundle(**first)].unary, &bundles[bundle(*op)].unary);
        let (pairs, first) = match firsts.iter().find(is_same) {
            Some(first) => (&mut *same, *first),
            None => {
                firsts.push(*op);
                (&mut *others, firsts[0])
            }
        };
        if first != *op {
            pairs.entry((bundle(first), bundle(*op))).or_default().push((first, *op));
        }
    }
}

type DemandKey = Vec<Vec<(String, u32)>>;

/// For each choice how it divides some operators.
fn keys(maker: &Maker<'_>, choices: &[Choice], ops: impl Iterator<Item = OpId>) -> Vec<DemandKey> {
    let (graph, analysis): (_, &Analysis) = (maker.question.graph, maker.question.analysis);
    let ops: Vec<OpId> = ops.collect();
    let key_of = |op: &OpId, choice: &Choice| {
        let loops: Loops = loops(graph, analysis, &maker.operators.classes, maker.digits, *op, choice);
        named_splits(&splits(maker.digits, &loops), analysis, *op)
    };
    choices.iter().map(|choice| ops.iter().map(|op| key_of(op, choice)).collect()).collect()
}

/// Nothing where two have equal keys, and never elsewhere.
fn equal(one: usize, other: usize, first: &[DemandKey], second: &[DemandKey]) -> Term {
    let cost = |same: bool| if same { 0.0 } else { NEVER };
    if one == other {
        let costs = first.iter().zip(second).map(|(a, b)| cost(a == b)).collect();
        return Term { scope: vec![one], costs };
    }
    let costs = first.iter().flat_map(|a| second.iter().map(move |b| cost(a == b))).collect();
    Term { scope: vec![one, other], costs }
}

/// All choices of all bundles, and who forbids them: to know which constraints can hold together.
pub(crate) struct Skeleton {
    bundles: Vec<Vec<BTreeSet<usize>>>,
    ties: Vec<(usize, Term)>,
    /// Constraints that no plan of one block respects.
    never: BTreeSet<usize>,
}

impl Skeleton {
    pub(crate) fn new(question: &Question<'_>, constraints: &Constraints) -> Result<Self> {
        let digits = Digits::new(question.cluster, question.devices);
        let messages = Messages::new(question.cluster, &digits, Count::Alone);
        let operators = Operators::new(question);
        let maker = Maker::new(question, (&operators, &digits, &messages), &[], &[]);
        let (mut bundles, mut all) = (vec![], vec![]);
        for number in 0..maker.bundles.all.len() {
            let ops = &maker.bundles.all[number];
            let choices = all_choices(&maker, ops, &maker.dims(number));
            bundles.push(choices.iter().map(|it| against(&maker, constraints, ops, it)).collect());
            all.push(choices);
        }
        let mut ties = vec![];
        for (who, set) in constraints.ties() {
            for ((one, other), pairs) in pairs(&maker, set) {
                let first = keys(&maker, &all[one], pairs.iter().map(|it| it.0));
                let second = keys(&maker, &all[other], pairs.iter().map(|it| it.1));
                ties.push((who, equal(one, other, &first, &second)));
            }
        }
        let recomputed = spans(question, None).is_some_and(|spans| !spans.is_empty());
        let never = constraints.no_recompute().filter(|_| recomputed).into_iter().collect();
        Ok(Self { bundles, ties, never })
    }

    /// Whether a plan of one block respects some of the constraints.
    pub(crate) fn holds(&self, keep: &BTreeSet<usize>) -> bool {
        let open = |who: &BTreeSet<usize>| who.is_disjoint(keep);
        if !open(&self.never) || !self.bundles.iter().all(|choices| choices.iter().any(open)) {
            return false;
        }
        let ties = self.ties.iter().filter(|(who, _)| keep.contains(who));
        let mut terms: Vec<Term> = ties.map(|(_, term)| term.clone()).collect();
        if terms.is_empty() {
            return true;
        }
        for (number, choices) in self.bundles.iter().enumerate() {
            let costs = choices.iter().map(|who| if open(who) { 0.0 } else { NEVER }).collect();
            terms.push(Term { scope: vec![number], costs });
        }
        let sizes = self.bundles.iter().map(Vec::len).collect();
        // Where tables would be too large it is not known, and no clash is claimed.
        Solver::default().solve(&Problem { sizes, terms }, MOST).is_none_or(|least| least.cost < NEVER)
    }
}
