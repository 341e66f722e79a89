//! Looks at plans in the order of what they take at least, until none that is left can be among the wanted ones.
//!
//! Of each shape and way to hold parameters there is a ladder of plans, each of which needs less memory than the one
//! before: the next one is looked at if one does not fit, and where the first one does not, the same with what its layers
//! keep on the host. First with the usual schedule; then, in one block, with what may divide the model instead of
//! `megatron`; then other schedules of the few that would be quickest if stages never waited; and if nothing fits, what is on
//! the host besides.
//!
//! This file has the loop: whose turn it is ([`Search::go_on`]), and what becomes of one plan ([`Search::step`]).

mod ahead;
mod by_few_layers;
mod fallbacks;
mod late;
mod rounds;

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use diag::Result;
use plan::sets::{SetTerm, auto};
use plan::{Plan, PlanName, sets};

use crate::few_layers::{Extrapolated, FewLayers};
use crate::lower_bound::{LowerBound, LowerBounds};
use crate::spmd::idle;
use crate::{Evaluated, Found, Question, Shape, Wanted, bound, is_refusal, least_of, shapes};

/// A ladder of plans, on one of its rungs.
#[derive(Clone)]
struct Fallback {
    shape: usize,
    /// Where it stands among all: of plans that take the same the first is taken.
    place: usize,
    names: Vec<PlanName>,
    at: usize,
    bound: LowerBound,
    /// Whether that is of this plan; else of others that take no more.
    is_own: bool,
    /// Whether that is what the model with few layers tells of it.
    is_extrapolated: bool,
}

pub(crate) struct Search<'q, 'w> {
    all: Vec<Shape>,
    usual: Vec<Fallback>,
    question: &'q Question<'q>,
    model: sets::Model<'q>,
    leasts: LowerBounds<'q>,
    wanted: Wanted,
    watch: &'w mut dyn FnMut(&str),
    found: Found,
    /// Of each row its place.
    places: Vec<usize>,
    open: Vec<Fallback>,
    /// Those that cannot fit, whatever is computed again.
    too_large: Vec<Fallback>,
    /// The shapes that were looked at.
    seen: BTreeSet<usize>,
    is_late: bool,
    is_hurried: bool,
    /// By name what was evaluated before its turn.
    ahead: BTreeMap<String, Result<Evaluated>>,
    /// Made when it is first asked.
    few_layers: OnceCell<Option<FewLayers>>,
    /// By name what the model with few layers tells.
    extrapolated: BTreeMap<String, Option<Extrapolated>>,
    /// Names of what was evaluated and does not fit, or follows on what no less memory fits.
    never_fit: BTreeSet<String>,
    /// Sets that recompute nothing more than others of this model.
    idle: Vec<SetTerm>,
}

pub(crate) fn search(question: &Question<'_>, wanted: Wanted, watch: &mut dyn FnMut(&str)) -> Result<Found> {
    Search::new(question, wanted, watch)?.finish(wanted.below)
}

/// Where nothing more is looked at.
pub(crate) fn nothing(question: &Question<'_>) -> Result<Found> {
    let all = shapes(question.devices, question.batches).len();
    Ok(Found { bound: bound(question)?, tried: (0, all), ..Found::default() })
}

impl<'q, 'w> Search<'q, 'w> {
    pub(crate) fn new(
        question: &'q Question<'q>,
        wanted: Wanted,
        watch: &'w mut dyn FnMut(&str),
    ) -> Result<Self> {
        let all = shapes(question.devices, question.batches);
        let result = nothing(question)?;
        let mut search = Self {
            all: vec![],
            usual: vec![],
            question,
            model: sets::Model::new(question.graph, question.analysis),
            leasts: LowerBounds::new(question),
            wanted,
            watch,
            found: result,
            places: vec![],
            open: vec![],
            too_large: vec![],
            seen: BTreeSet::new(),
            is_late: false,
            is_hurried: false,
            ahead: BTreeMap::new(),
            few_layers: OnceCell::new(),
            extrapolated: BTreeMap::new(),
            never_fit: BTreeSet::new(),
            idle: idle(question),
        };
        search.usual = search.usual(&all)?;
        search.open.clone_from(&search.usual);
        search.all = all;
        Ok(search)
    }

    /// Looks at the first plans, until a pipeline fits: then it is known what others must beat.
    pub(crate) fn until_piped(&mut self) -> Result<()> {
        let is_piped = |candidate: &Evaluated| candidate.fits() && candidate.plan.block_count() > 1;
        while !self.is_late() && !self.found.rows.iter().any(is_piped) {
            let Some(first) = self.pop() else { break };
            if first.bound.seconds > self.limit() {
                self.open.push(first);
                break;
            }
            self.step(first)?;
        }
        Ok(())
    }

    /// Looks at all others that may take less than so many seconds.
    pub(crate) fn finish(mut self, below: f64) -> Result<Found> {
        self.wanted.below = below;
        let (all, usual) = (self.all.clone(), std::mem::take(&mut self.usual));
        self.go_on()?;
        self.otherwise(&all)?;
        self.schedules(&all, usual)?;
        // What was left out may fit.
        if !self.fits() && self.found.left_out == 0 {
            self.offload(&all)?;
            self.least_of_all()?;
        }
        Ok(self.result(&all))
    }

    /// Without all others.
    pub(crate) fn so_far(mut self) -> Found {
        self.is_late = true;
        let all = std::mem::take(&mut self.all);
        self.result(&all)
    }

    /// Seconds of the quickest that fits so far.
    pub(crate) fn quickest(&self) -> f64 {
        least_of(&self.found.rows)
    }

    fn named(&mut self, name: &PlanName) -> Option<Plan> {
        self.respected(name).map_err(|error| self.found.passed_over.push((name.to_string(), error.what))).ok()
    }

    /// The plan of a name, if it is one for the model and the constraints.
    fn respected(&self, name: &PlanName) -> Result<Plan> {
        let named = sets::named_of(name, &self.model, self.question.devices);
        named.and_then(|plan| self.question.respected(plan))
    }

    fn is_late(&mut self) -> bool {
        self.is_late |= self.question.stop.is_late();
        self.is_late
    }

    /// What takes more is not wanted.
    fn limit(&self) -> f64 {
        let fits = self.found.rows.iter().filter(|candidate| candidate.fits());
        let mut seconds: Vec<f64> = fits.map(Evaluated::seconds).collect();
        seconds.sort_by(f64::total_cmp);
        let last = self.wanted.count.checked_sub(1).and_then(|last| seconds.get(last));
        last.copied().unwrap_or(f64::INFINITY).min(self.wanted.below)
    }

    fn fits(&self) -> bool {
        self.found.rows.iter().any(Evaluated::fits)
    }

    fn looks_at_all(&self) -> bool {
        self.wanted.count == usize::MAX
    }

    fn shape(&self, at: usize) -> Shape {
        self.all[at]
    }

    fn go_on(&mut self) -> Result<()> {
        while let Some(first) = self.pop() {
            if self.is_late() && !self.is_hurried && !self.fits() {
                self.is_hurried = true;
                self.open.push(first);
                self.hurry()?;
                continue;
            }
            let enough = if self.looks_at_all() { !self.found.rows.is_empty() } else { self.fits() };
            if self.is_late() && (enough || self.question.stop.is_over()) {
                break;
            }
            if first.bound.seconds > self.limit() {
                self.found.left_out += 1 + self.open.len();
                break;
            }
            self.step(first)?;
        }
        self.open.clear();
        Ok(())
    }

    fn pop(&mut self) -> Option<Fallback> {
        let at = (0..self.open.len()).min_by(|a, b| before(&self.open[*a], &self.open[*b]))?;
        Some(self.open.swap_remove(at))
    }

    /// Looks at a plan, if it may be among the wanted ones, and else puts it back to where it belongs.
    fn step(&mut self, mut fallback: Fallback) -> Result<()> {
        self.seen.insert(fallback.shape);
        let name = fallback.names[fallback.at].clone();
        // What is known of a plan may be enough. To make it takes long where there are many devices.
        if fallback.is_own && fallback.bound.kept.max(fallback.bound.memory) <= self.question.most() {
            if let Some(few) = self.extrapolated(&fallback, &name) {
                self.go_by(few, fallback);
                return Ok(());
            }
        }
        let Some(plan) = self.named(&name) else { return Ok(()) };
        if !fallback.is_own {
            (fallback.bound, fallback.is_own) = (self.leasts.bound(&plan)?, true);
            if fallback.bound.seconds > self.limit() {
                self.open.push(fallback);
                return Ok(());
            }
        }
        let is_last = fallback.at + 1 == fallback.names.len();
        if !self.looks_at_all()
            && (fallback.bound.memory > self.question.most()
                || is_last && fallback.bound.kept > self.question.most())
        {
            self.too_large.push(fallback);
            return Ok(());
        }
        if !self.looks_at_all() && fallback.bound.kept > self.question.most() {
            self.next_of(fallback, None);
            return Ok(());
        }
        if let Some(few) = self.extrapolated(&fallback, &name) {
            self.go_by(few, fallback);
            return Ok(());
        }
        if let Some(same) = self.same_as(&plan).cloned() {
            if !same.fits() {
                self.after_what_does_not_fit(fallback, &Evaluated { plan, ..same });
            }
            return Ok(());
        }
        (self.watch)(&name.to_string());
        let candidate = match self.evaluated(plan) {
            Err(error) if !is_usual(&name) && is_refusal(&error) => {
                self.found.passed_over.push((name.to_string(), error.what));
                return Ok(());
            }
            other => other?,
        };
        let place = fallback.place + fallback.at;
        if !candidate.fits() {
            self.after_what_does_not_fit(fallback, &candidate);
        }
        self.found.rows.push(candidate);
        self.places.push(place);
        Ok(())
    }

    /// What was looked at by another name, where not all names are wanted: what one asks for besides may change nothing.
    fn same_as(&self, plan: &Plan) -> Option<&Evaluated> {
        let mut renamed = plan.clone();
        let mut is_same = |known: &&Evaluated| {
            renamed.name.clone_from(&known.plan.name);
            renamed == known.plan
        };
        self.found.rows.iter().find(|known| !self.looks_at_all() && is_same(known))
    }

    fn result(mut self, all: &[Shape]) -> Found {
        let mut order: Vec<usize> = (0..self.found.rows.len()).collect();
        order.sort_by(|a, b| {
            let (first, second) = (&self.found.rows[*a], &self.found.rows[*b]);
            let quicker = || first.seconds().total_cmp(&second.seconds());
            let fits = second.fits().cmp(&first.fits());
            fits.then_with(quicker).then_with(|| self.places[*a].cmp(&self.places[*b]))
        });
        let mut rows: Vec<Option<Evaluated>> =
            std::mem::take(&mut self.found.rows).into_iter().map(Some).collect();
        self.found.rows = order.into_iter().filter_map(|at| rows[at].take()).collect();
        self.found.tried.0 = if self.is_late { self.seen.len() } else { all.len() };
        self.found
    }
}

/// Whose turn comes first.
fn before(a: &Fallback, b: &Fallback) -> Ordering {
    let key = |fallback: &Fallback| (fallback.bound.seconds, fallback.place);
    let ((a, first), (b, second)) = (key(a), key(b));
    a.total_cmp(&b).then(first.cmp(&second))
}

fn is_usual(name: &PlanName) -> bool {
    name.terms().iter().all(|term| auto::is_usual(term.set()))
}
