//! Looks at plans in the order of what they take at least, until none that is left can be among the wanted ones.
//!
//! Of each shape and way to hold parameters there is a ladder of plans, each of which needs less memory than the one
//! before: the next one is looked at if one does not fit, and where the first one does not, the same with what its layers
//! keep on the host. First with the usual schedule; then, in one block, with what may divide the model instead of
//! `megatron`; then other schedules of the few that would be quickest if stages never waited; and if nothing fits, what is on
//! the host besides.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use check::Purpose;
use diag::Result;
use plan::sets::auto;
use plan::{Plan, PlanName, Schedule, sets};

use crate::few_layers::{Extrapolated, FewLayers};
use crate::lower_bound::{LowerBound, LowerBounds};
use crate::{
    Evaluated, Found, Question, Shape, Wanted, ahead, bound, candidate, is_refusal, least_of, shapes,
};

/// Of so many the other schedules are looked at.
const FEW: usize = 2;

/// What needs no more than this share of the memory at least, fits most often.
const ROOM: f64 = 0.6;

/// Among the plans of a shape the place of those that divide it by another set than `megatron`: after all schedules.
const INSTEAD: usize = 70;

/// Among the plans of a ladder the place of that whose layers keep what they do on the host: after all others.
const OFFLOADS: usize = 4;

/// What the model with few layers tells may be off by so much: by 1% at most, of those that were measured.
const OFF: f64 = 0.02;

/// What needs more than so many times the memory there, as it is told, does not fit. Where messages pile up, or what is
/// gathered ahead, that may be more than it is.
const MORE: f64 = 1.3;

/// What layers keep of all that is kept, at least.
const NEARLY: f64 = 0.75;

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
}

pub(crate) fn search(question: &Question<'_>, wanted: Wanted, watch: &mut dyn FnMut(&str)) -> Result<Found> {
    Search::new(question, wanted, watch)?.finish(wanted.below)
}

/// Where nothing more is looked at.
pub(crate) fn nothing(question: &Question<'_>) -> Result<Found> {
    let all = shapes(question.devices, question.batches).len();
    Ok(Found { bound: bound(question)?, tried: (0, all), ..Found::default() })
}

/// For each shape and way to hold parameters the shape's number, where its plans stand among all, and their names.
fn ladders_of(all: &[Shape]) -> impl Iterator<Item = (usize, usize, Vec<PlanName>)> {
    let numbered = |(at, shape): (usize, &Shape)| shape.ladders().into_iter().map(move |names| (at, names));
    let ladders = all.iter().enumerate().flat_map(numbered);
    ladders.enumerate().map(|(place, (at, names))| (at, place * 100, names))
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

    /// A ladder for each shape and way to hold parameters. How these are held makes no difference to what is computed.
    fn usual(&mut self, all: &[Shape]) -> Result<Vec<Fallback>> {
        let mut ladders: Vec<Fallback> = vec![];
        let mut known: Option<(usize, LowerBound)> = None;
        for (shape, place, names) in ladders_of(all) {
            known = known.filter(|(known_shape, _)| *known_shape == shape);
            if known.is_none() && self.looks_at_all() && self.is_late() && !ladders.is_empty() {
                break;
            }
            let (bound, is_own) = match known {
                Some((_, known)) => {
                    let seconds = known.computes;
                    (LowerBound { seconds, flat: seconds, computes: seconds, ..LowerBound::default() }, false)
                }
                // What it takes is looked at when it is its turn.
                None if self.is_late() => (LowerBound::default(), false),
                None => match self.named(&names[0]) {
                    Some(plan) => (self.leasts.bound(&plan)?, true),
                    None => continue,
                },
            };
            known = known.or(is_own.then_some((shape, bound)));
            ladders.push(Fallback { shape, place, names, at: 0, bound, is_own, is_extrapolated: false });
        }
        Ok(ladders)
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

    /// Where it is late and nothing fits: of each shape what needs least, first what is quick of that which surely fits.
    fn hurry(&mut self) -> Result<()> {
        let mut all: Vec<Fallback> = vec![];
        for mut fallback in std::mem::take(&mut self.open) {
            // The last way to hold parameters needs least.
            if self.has_least_held(fallback.shape, &fallback.names[0]) {
                fallback.at = fallback.names.len() - 1;
                let Some(plan) = self.named(&fallback.names[fallback.at].clone()) else { continue };
                (fallback.bound, fallback.is_own) = (self.leasts.bound(&plan)?, true);
                all.push(fallback);
            } else {
                self.open.push(fallback);
            }
        }
        let there = self.question.most();
        let memory = |fallback: &Fallback| fallback.bound.memory.max((ROOM * there as f64) as u64);
        all.sort_by(|a, b| {
            memory(a)
                .cmp(&memory(b))
                .then(a.bound.seconds.total_cmp(&b.bound.seconds))
                .then(a.place.cmp(&b.place))
        });
        for (at, fallback) in all.into_iter().enumerate() {
            if self.fits() || at > 0 && self.question.stop.is_over() {
                break;
            }
            self.step(fallback)?;
        }
        Ok(())
    }

    fn has_least_held(&self, shape: usize, name: &PlanName) -> bool {
        let shape = self.shape(shape);
        shape.copies == 1 || shape.held().last().is_some_and(|held| name.has(held))
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

    fn after_what_does_not_fit(&mut self, fallback: Fallback, candidate: &Evaluated) {
        let at = fallback.at + self.skipped(&fallback, candidate);
        if at + 1 < fallback.names.len() {
            self.next_of(Fallback { at, ..fallback }, Some(candidate));
        }
    }

    /// How many of the next plans do not fit, either, if this one does not: they save what layers keep, and the last one
    /// what is computed with as well. Where anything may be looked at, nothing is left out.
    fn skipped(&mut self, fallback: &Fallback, candidate: &Evaluated) -> usize {
        let later = fallback.names.len() - fallback.at - 1;
        self.never_fit.insert(candidate.plan.name.clone());
        if candidate.memory.1 <= candidate.memory.2 || self.looks_at_all() {
            return 0;
        }
        let kept = candidate.could_fit_without(&[Purpose::Activations]);
        let computed = [Purpose::Activations, Purpose::Working, Purpose::Communication];
        let skipped = match (kept, candidate.could_fit_without(&computed)) {
            (_, false) => later,
            (false, true) => later.saturating_sub(1),
            (true, true) => 0,
        };
        let names = &fallback.names[fallback.at + 1..][..skipped];
        self.never_fit.extend(names.iter().map(ToString::to_string));
        skipped
    }

    /// What the model with few layers tells of a plan whose turn it is, if nobody asked before. With more threads it is
    /// asked for the plans that follow, too.
    fn extrapolated(&mut self, fallback: &Fallback, name: &PlanName) -> Option<Extrapolated> {
        if self.is_late() || !self.is_to_be_extrapolated(fallback) {
            return None;
        }
        if let Some(known) = self.extrapolated.get(&name.to_string()) {
            return *known;
        }
        let mut names = vec![name.clone()];
        let follow = self.in_order().into_iter().map(|at| &self.open[at]);
        let follow =
            follow.filter(|other| self.is_to_be_extrapolated(other)).map(|other| &other.names[other.at]);
        let follow = follow.filter(|name| !self.extrapolated.contains_key(&name.to_string()));
        names.extend(follow.take(self.question.threads.max(1) - 1).cloned());
        let few_layers = self.few_layers()?;
        let few = ahead::each(self.question.threads, names.clone(), |name| {
            few_layers.extrapolated(self.question, &name)
        });
        self.extrapolated.extend(names.iter().map(ToString::to_string).zip(few));
        self.extrapolated[&name.to_string()]
    }

    /// Places of the open ladders, in the order of their turns: those that may be among the wanted plans.
    fn in_order(&self) -> Vec<usize> {
        let limit = self.limit();
        let mut open: Vec<usize> = (0..self.open.len()).collect();
        open.retain(|at| self.open[*at].bound.seconds <= limit);
        open.sort_by(|a, b| before(&self.open[*a], &self.open[*b]));
        open
    }

    fn is_to_be_extrapolated(&self, fallback: &Fallback) -> bool {
        let may = !self.looks_at_all() && !fallback.is_extrapolated && self.shape(fallback.shape).stages == 1;
        may && self.few_layers().is_some()
    }

    fn few_layers(&self) -> Option<&FewLayers> {
        self.few_layers.get_or_init(|| FewLayers::from_graph(self.question.graph)).as_ref()
    }

    /// Puts a plan to where it belongs by what is told of it; what surely does not fit is not looked at.
    fn go_by(&mut self, few: Extrapolated, fallback: Fallback) {
        if few.memory <= few.there * MORE {
            let seconds = fallback.bound.seconds.max(few.seconds * (1.0 - OFF));
            let bound = LowerBound { seconds, ..fallback.bound };
            self.open.push(Fallback { bound, is_extrapolated: true, ..fallback });
        } else if fallback.at + 1 == fallback.names.len() {
            let bound = LowerBound { memory: few.memory as u64, ..fallback.bound };
            self.too_large.push(Fallback { bound, ..fallback });
        } else {
            self.next_of(fallback, None);
        }
    }

    /// What is looked at where a plan does not fit.
    fn next_of(&mut self, fallback: Fallback, evaluated: Option<&Evaluated>) {
        self.open.extend(self.on_host(&fallback, evaluated));
        self.open.push(Fallback { at: fallback.at + 1, is_own: false, is_extrapolated: false, ..fallback });
    }

    /// A plan whose turn it is; with more threads the plans that follow if nothing changes are evaluated with it.
    fn evaluated(&mut self, plan: Plan) -> Result<Evaluated> {
        if let Some(known) = self.ahead.remove(&plan.name) {
            return known;
        }
        let mut plans = vec![plan];
        if self.question.threads > 1 && !self.is_late() {
            plans.extend(self.next(self.question.threads - 1));
        }
        let names: Vec<String> = plans.iter().map(|plan| plan.name.clone()).collect();
        let mut evaluated = names.into_iter().zip(ahead::evaluated(self.question, plans));
        let (_, first) = evaluated.next().expect("there is one");
        self.ahead.extend(evaluated);
        first
    }

    /// The plans whose turn comes next.
    fn next(&mut self, count: usize) -> Vec<Plan> {
        let (limit, most) = (self.limit(), self.question.most());
        let mut plans = vec![];
        for at in self.in_order() {
            let fallback = &self.open[at];
            if plans.len() == count {
                break;
            }
            let name = &fallback.names[fallback.at];
            let Some(plan) = self.respected(name).ok().filter(|_| !self.is_to_be_extrapolated(fallback))
            else {
                continue;
            };
            let bound = if fallback.is_own { Ok(fallback.bound) } else { self.leasts.bound(&plan) };
            let may = bound.is_ok_and(|bound| {
                bound.seconds <= limit && (self.looks_at_all() || bound.kept.max(bound.memory) <= most)
            });
            plans.extend((may && !self.ahead.contains_key(&plan.name)).then_some(plan));
        }
        plans
    }

    /// Where nothing is computed again, the same with what layers keep on the host. With each micro-batch nearly all that is
    /// kept goes there and comes back.
    fn on_host(&self, fallback: &Fallback, evaluated: Option<&Evaluated>) -> Option<Fallback> {
        if fallback.at > 0 {
            return None;
        }
        let Question { cluster, devices, batches, .. } = *self.question;
        let bound = fallback.bound;
        let stages = self.shape(fallback.shape).stages;
        let (kept, at_once) = match evaluated {
            Some(it) => {
                let kept = it.estimate.memory[it.memory.0 as usize].peak[Purpose::Activations as usize];
                (kept, at_once(&it.plan, stages))
            }
            None => (bound.kept.saturating_sub(bound.memory), stages),
        };
        let at_once = at_once.min(batches);
        let kept = NEARLY * kept as f64;
        let all = || (0..devices).map(|at| cluster.device(at));
        let there = all().map(|it| it.host_memory).max()? as f64;
        let host = all().map(|it| it.host).fold(0.0, f64::max);
        let moves = 2.0 * kept / f64::from(at_once) * f64::from(batches) / host;
        let bound = LowerBound { seconds: bound.seconds.max(moves), kept: bound.memory, ..bound };
        let names = vec![Shape::kept_offloaded(&fallback.names[0])];
        let offloaded = Fallback {
            names,
            place: fallback.place + OFFLOADS,
            bound,
            is_own: true,
            is_extrapolated: false,
            ..fallback.clone()
        };
        (kept <= there || self.looks_at_all()).then_some(offloaded)
    }

    /// Where the model is divided in one block, other sets that do so.
    fn otherwise(&mut self, all: &[Shape]) -> Result<()> {
        let sets = auto::instead_of_model_axis(&self.model, self.question.devices);
        // How parameters are held makes no difference to what is computed.
        let mut computes: BTreeMap<(usize, usize), f64> = BTreeMap::new();
        let one_block =
            |(shape, ..): &(usize, usize, Vec<PlanName>)| all[*shape].stages == 1 && all[*shape].ways > 1;
        for (shape, place, usual) in ladders_of(all).filter(one_block) {
            for (at, set) in sets.iter().enumerate() {
                if self.is_late() {
                    break;
                }
                let names: Vec<PlanName> =
                    usual.iter().map(|name| name.with_set_instead(auto::model_axis(), set)).collect();
                let known = computes.get(&(shape, at)).copied();
                let (bound, is_own) = match known {
                    Some(seconds) => (LowerBound { seconds, ..LowerBound::default() }, false),
                    None => match self.named(&names[0]) {
                        Some(plan) => (self.leasts.bound(&plan)?, true),
                        None => continue,
                    },
                };
                computes.entry((shape, at)).or_insert(bound.computes);
                let place = place + INSTEAD + names.len() * at;
                self.open.push(Fallback {
                    shape,
                    place,
                    names,
                    at: 0,
                    bound,
                    is_own,
                    is_extrapolated: false,
                });
            }
        }
        self.go_on()
    }

    /// The other schedules of the few that would be quickest if stages never waited.
    fn schedules(&mut self, all: &[Shape], usual: Vec<Fallback>) -> Result<()> {
        let mut few: Vec<Fallback> = vec![];
        for mut fallback in usual.into_iter().filter(|fallback| all[fallback.shape].stages > 1) {
            if fallback.bound.flat > self.limit() || self.is_late() {
                continue;
            }
            if !fallback.is_own {
                let Some(plan) = self.named(&fallback.names[0]) else { continue };
                fallback.bound = self.leasts.bound(&plan)?;
            }
            few.push(fallback);
        }
        few.sort_by(|a, b| a.bound.flat.total_cmp(&b.bound.flat).then(a.place.cmp(&b.place)));
        few.truncate(FEW);
        for fallback in few {
            for (at, schedule) in auto::other_schedules().into_iter().enumerate() {
                let names: Vec<PlanName> =
                    fallback.names.iter().map(|name| name.instead_of(&auto::schedule(), schedule)).collect();
                let Ok(plan) = self.respected(&names[0]) else { continue };
                let place = fallback.place + 10 * (at + 1);
                let first = Fallback {
                    names,
                    place,
                    at: 0,
                    bound: self.leasts.bound(&plan)?,
                    is_own: true,
                    is_extrapolated: false,
                    ..fallback.clone()
                };
                if keeps_as_much(&plan) {
                    self.open_from(first, &fallback.names);
                } else {
                    self.open.push(first);
                }
            }
        }
        self.go_on()
    }

    /// A ladder whose plans need no less memory than the usual ones of these names, but for those that do not fit for sure.
    fn open_from(&mut self, first: Fallback, usual: &[PlanName]) {
        let may_fit = |name: &PlanName| !self.never_fit.contains(&name.to_string());
        match usual.iter().position(may_fit) {
            Some(0) => self.open.push(first),
            at => {
                let with_offload = may_fit(&Shape::kept_offloaded(&usual[0]));
                let offloaded = if with_offload { self.on_host(&first, None) } else { None };
                self.open.extend(offloaded);
                let later = at.map(|at| Fallback { at, is_own: false, ..first });
                self.open.extend(later);
            }
        }
    }

    /// With some of it on the host.
    fn offload(&mut self, all: &[Shape]) -> Result<()> {
        for (at, shape) in all.iter().enumerate() {
            for held in shape.held() {
                let (names, place) = (shape.offload(held), self.places.len() * 100 + at);
                self.open.push(Fallback {
                    shape: at,
                    place,
                    names,
                    at: 0,
                    bound: LowerBound::default(),
                    is_own: false,
                    is_extrapolated: false,
                });
            }
        }
        self.go_on()
    }

    /// If there is no plan so far, the one that needs least: so that it can be said how much that is.
    fn least_of_all(&mut self) -> Result<()> {
        if !self.found.rows.is_empty() {
            return Ok(());
        }
        let Some(bound) =
            self.too_large.iter().min_by_key(|fallback| (fallback.bound.memory, fallback.place))
        else {
            return Ok(());
        };
        let last = bound.names[bound.names.len() - 1].clone();
        if let Some(plan) = self.named(&last) {
            (self.watch)(&last.to_string());
            self.found.rows.push(candidate(self.question, plan)?);
            self.places.push(0);
        }
        Ok(())
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

/// Of how many micro-batches a device keeps something at once, at most.
fn at_once(plan: &Plan, stages: u32) -> u32 {
    let blocks = (plan.block_count() / stages.max(1)).max(1);
    match plan.schedule {
        Schedule::OneFOneB => stages,
        // All stages' forwards of each block, and what the first stage is ahead.
        Schedule::Interleaved => stages + stages.saturating_sub(1).div_ceil(blocks),
        // What the second half of a backward reads is kept longer.
        Schedule::ZbH1 | Schedule::ZbV => 2 * stages,
        Schedule::Gpipe | Schedule::TwoBw => u32::MAX,
    }
}

/// Whether devices keep as much at once as in the usual schedule, or more.
fn keeps_as_much(plan: &Plan) -> bool {
    matches!(plan.schedule, Schedule::ZbH1 | Schedule::Gpipe)
}

fn is_usual(name: &PlanName) -> bool {
    name.terms().iter().all(|term| auto::is_usual(term.set()))
}
