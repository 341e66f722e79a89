//! The one global order: what all ranks do, forward and backward.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use graph::{Source, TensorId};
use indexmap::IndexSet;
use program::{Exchange, ExchangeId, GradSync, Grouping, GroupingId, Pass, Piece, RankId, Saves};
use sharding::{Along, Get};

use crate::buckets::{Across, Buckets, Message};
use crate::event::{Crossing, Event, ReshardPath, ReshardStep};
use crate::exchange;
use crate::gathers;
use crate::layout::{Entry, Interner, Layout, LayoutId, Middle, PortsId, bytes};
use crate::moves::{self, Method, Move};
use crate::param_sharding::{self, Arrives, Divided, ParamShardings};
use crate::recompute::{self, Recomputed};
use crate::reshard_steps;
use crate::segments::Segments;
use crate::uses::{Context, TensorReader, UseId, Uses};

/// Moves one after another, each with the layout that it makes.
type Moves = Rc<[(LayoutId, Rc<Move>)]>;

/// What is to be scheduled.
pub struct ScheduleInput<'a> {
    pub cx: &'a Context<'a>,
    pub uses: &'a Uses,
    pub param_shardings: &'a ParamShardings,
    pub segments: &'a Segments,
}

/// What all ranks do in one code, in one order.
pub struct Codes {
    pub block: u32,
    pub pass: Pass,
    pub events: Vec<Event>,
}

/// What decides how a gradient arrives: its leaves, what reads, what holds, and the groups that a parameter is divided
/// in, to which those that live on the host add groups of one.
type Arriving = (LayoutId, LayoutId, LayoutId, GroupingId, bool);

#[derive(Default)]
pub struct Schedule {
    /// In the order in which one micro-batch runs them.
    pub codes: Vec<Codes>,
    /// Those of the code that is being made.
    events: Vec<Event>,
    /// What earlier blocks must receive, before the segments that make it.
    received: HashMap<usize, Vec<Event>>,
    /// Gradients that several blocks contribute to, region by region.
    at_the_end: Vec<Event>,
    pub groupings: IndexSet<Grouping>,
    pub exchanges: Vec<Exchange>,
    /// For each use of a parameter, buffer or constant: the leaves through which it is read.
    pub leaves: HashMap<UseId, Rc<Leaves>>,
    known_patterns: HashMap<(LayoutId, LayoutId), Option<Rc<Move>>>,
    known_exchanges: HashMap<(LayoutId, LayoutId), Rc<Move>>,
    /// By move, which is kept so that it has its place for itself, and target.
    known_tables: HashMap<(*const Move, LayoutId), (Rc<Move>, Exchange)>,
    known_ways: HashMap<(LayoutId, LayoutId), Moves>,
    known_leaves: HashMap<PortsId, Rc<Leaves>>,
    known_reductions: HashMap<(LayoutId, LayoutId), Reduce>,
    known_arrivals: HashMap<Arriving, Option<Arrives>>,
    complete: HashMap<LayoutId, LayoutId>,
}

/// The leaves of a use: ports on one rank whose gradients may be added up are one leaf.
pub struct Leaves {
    pub middle: Vec<Middle>,
    pub layout: LayoutId,
    /// The layout of the gradients before they are added up: `middle.from` points here.
    pub gradient: LayoutId,
    /// For each gradient the middle entry that it is added up in.
    pub of: Vec<usize>,
}

impl Leaves {
    /// The positions of a rank's leaves.
    pub fn on(&self, rank: RankId) -> std::ops::Range<usize> {
        moves::on_rank(&self.middle, rank)
    }
}

pub fn schedule(
    asked: &ScheduleInput<'_>,
    interner: &mut Interner,
    groupings: IndexSet<Grouping>,
) -> Schedule {
    let ScheduleInput { cx, param_shardings, segments, .. } = *asked;
    let mut it = Schedule { groupings, ..Schedule::default() };
    it.end_code(0, Pass::Begin, gathers::once(cx, param_shardings));
    it.forward(asked, interner);
    it.backward(asked, interner);
    for code in it.codes.iter_mut().filter(|code| matches!(code.pass, Pass::Forward | Pass::Backward)) {
        code.events = gathers::in_passing(cx, param_shardings, segments, std::mem::take(&mut code.events));
    }
    it
}

/// How values are moved in forward, by use.
fn ways(codes: &[Codes]) -> HashMap<UseId, ReshardPath> {
    let moved = |event: &Event| match event {
        Event::Move { id, path } => Some((*id, path.clone())),
        _ => None,
    };
    codes.iter().flat_map(|code| &code.events).filter_map(moved).collect()
}

/// The block after which a new value takes the place of the old one: that which makes it, or the last that reads the old.
fn updated_in(cx: &Context<'_>, uses: &Uses, value: TensorId, number: usize) -> u32 {
    let maker = cx.block_of(value).unwrap_or(0);
    let Some(old) = cx.graph.held(&cx.graph.updates[number].0) else { return maker };
    let readers = uses.of[old.index()].iter().flat_map(|id| &uses.get(*id).readers);
    let blocks = readers.filter_map(|reader| match reader {
        TensorReader::Op(op, _) => Some(cx.plan.block(*op)),
        _ => None,
    });
    blocks.fold(maker, u32::max)
}

impl Schedule {
    fn end_code(&mut self, block: u32, pass: Pass, events: Vec<Event>) {
        if !events.is_empty() {
            self.codes.push(Codes { block, pass, events });
        }
    }

    fn forward(&mut self, asked: &ScheduleInput<'_>, interner: &mut Interner) {
        let ScheduleInput { cx, uses, segments, .. } = *asked;
        // What leaves each block, after its last segment.
        let mut leaving: BTreeMap<u32, Vec<Event>> = BTreeMap::new();
        for block in 0..cx.plan.block_count() {
            for (index, segment) in segments.of_block(block) {
                for &id in &segment.before {
                    self.forward_move(cx, uses, id, block, interner, &mut leaving);
                }
                self.events.push(Event::Call { segment: index });
            }
            for &id in &segments.after {
                if cx.block_of(uses.get(id).tensor).unwrap_or(0) == block {
                    self.forward_move(cx, uses, id, block, interner, &mut leaving);
                }
            }
            self.updates(cx, uses, block);
            let events = std::mem::take(&mut self.events);
            self.end_code(block, Pass::Forward, events);
        }
        for (block, events) in leaving {
            let code = self.codes.iter_mut().find(|code| (code.block, code.pass) == (block, Pass::Forward));
            code.expect("a block that makes something").events.extend(events);
        }
    }

    fn updates(&mut self, cx: &Context<'_>, uses: &Uses, block: u32) {
        for (index, it) in uses.all.iter().enumerate() {
            for reader in &it.readers {
                if let TensorReader::Update(number) = reader {
                    if updated_in(cx, uses, it.tensor, *number) == block {
                        self.events.push(Event::Update { id: UseId::new(index), number: *number });
                    }
                }
            }
        }
    }

    /// How something gets from one block to another, if it has to be sent. Ranks that all run both meet in the later one.
    fn crossing(
        &mut self,
        cx: &Context<'_>,
        tensor: TensorId,
        from: LayoutId,
        to: LayoutId,
        interner: &mut Interner,
    ) -> Option<Crossing> {
        let complete = self.completed(from, interner);
        if self.pattern(complete, to, interner).is_some() {
            return None;
        }
        let plan = self.exchanged(cx, complete, to, interner);
        let exchange = self.exchange(tensor, &plan, to, interner);
        let inside = match complete == from {
            true => ReshardPath { reshard_steps: vec![], from, to: from },
            false => self.path(cx, tensor, from, complete, interner),
        };
        Some(Crossing { inside, step: ReshardStep { plan, exchange, to } })
    }

    fn forward_move(
        &mut self,
        cx: &Context<'_>,
        uses: &Uses,
        id: UseId,
        block: u32,
        interner: &mut Interner,
        leaving: &mut BTreeMap<u32, Vec<Event>>,
    ) {
        let it = uses.get(id);
        match cx.graph.tensor(it.tensor).source {
            Source::Input { .. } => {}
            Source::Op { .. } => {
                if it.direct {
                    return;
                }
                let from = uses.written[it.tensor.index()];
                let to = interner.need(it.ports);
                let maker = cx.block_of(it.tensor).filter(|maker| *maker != block);
                let crossing =
                    maker.and_then(|maker| Some((maker, self.crossing(cx, it.tensor, from, to, interner)?)));
                if let Some((maker, crossing)) = crossing {
                    self.events.push(Event::Receive { id, crossing: crossing.clone() });
                    leaving.entry(maker).or_default().push(Event::Send { id, crossing });
                    return;
                }
                let path = self.path(cx, it.tensor, from, to, interner);
                self.events.push(Event::Move { id, path });
            }
            _ => {
                let known = self.known_leaves.entry(it.ports);
                let leaves = known.or_insert_with(|| Rc::new(leaves(interner, it.ports)));
                self.leaves.insert(id, Rc::clone(leaves));
            }
        }
    }

    fn pattern(&mut self, from: LayoutId, to: LayoutId, interner: &Interner) -> Option<Rc<Move>> {
        let groupings = &mut self.groupings;
        let make = || moves::pattern(interner.get(from), interner.get(to), groupings).map(Rc::new);
        self.known_patterns.entry((from, to)).or_insert_with(make).clone()
    }

    fn exchanged(&mut self, cx: &Context<'_>, from: LayoutId, to: LayoutId, interner: &Interner) -> Rc<Move> {
        let make = || Rc::new(moves::exchange(interner.get(from), interner.get(to), cx.plan.devices));
        Rc::clone(self.known_exchanges.entry((from, to)).or_insert_with(make))
    }

    fn path(
        &mut self,
        cx: &Context<'_>,
        tensor: TensorId,
        from: LayoutId,
        to: LayoutId,
        interner: &mut Interner,
    ) -> ReshardPath {
        let mut reshard_steps = vec![];
        for (to, plan) in self.moves(cx, from, to, interner).iter() {
            let exchange = self.exchange(tensor, plan, *to, interner);
            reshard_steps.push(ReshardStep { plan: Rc::clone(plan), exchange, to: *to });
        }
        ReshardPath { reshard_steps, from, to }
    }

    /// One move, or several where one would be an exchange.
    fn moves(&mut self, cx: &Context<'_>, from: LayoutId, to: LayoutId, interner: &mut Interner) -> Moves {
        if let Some(known) = self.known_ways.get(&(from, to)) {
            return Rc::clone(known);
        }
        if !interner.get(from).is_of_kind(interner.get(to)) {
            return self.through_the_whole(cx, from, to, interner);
        }
        let moves = match self.pattern(from, to, interner) {
            Some(plan) => Rc::new([(to, plan)]),
            None => (self.reshard_steps(cx, from, to, interner))
                .or_else(|| self.summed_by_all(cx, from, to, interner))
                .unwrap_or_else(|| Rc::new([(to, self.exchanged(cx, from, to, interner))])),
        };
        self.known_ways.insert((from, to), Rc::clone(&moves));
        moves
    }

    /// Shares of one kind, completed, and shares of another kind made of that.
    fn through_the_whole(
        &mut self,
        cx: &Context<'_>,
        from: LayoutId,
        to: LayoutId,
        interner: &mut Interner,
    ) -> Moves {
        let whole = self.completed(to, interner);
        let completed = self.moves(cx, from, whole, interner);
        let divided = self.moves(cx, whole, to, interner);
        let moves: Moves = completed.iter().chain(divided.iter()).cloned().collect();
        self.known_ways.insert((from, to), Rc::clone(&moves));
        moves
    }

    /// Shares that some of their ranks want summed: an all-reduce by all of them, where an exchange would bring a rank
    /// more than twice as much. In an exchange every share goes to each rank that wants the sum.
    fn summed_by_all(
        &mut self,
        cx: &Context<'_>,
        from: LayoutId,
        to: LayoutId,
        interner: &mut Interner,
    ) -> Option<Moves> {
        let (source, target) = (interner.get(from), interner.get(to));
        let has_share = |entry: &Entry| !source.on(entry.rank).is_empty();
        if source.parts == 1 || target.parts != 1 || !target.entries.iter().all(has_share) {
            return None;
        }
        let everywhere = self.completed(from, interner);
        let sum = self.pattern(from, everywhere, interner)?;
        let taken = self.pattern(everywhere, to, interner)?;
        let (Method::Collective(Along::AllReduce(_), group, _), Method::Local) = (&sum.method, &taken.method)
        else {
            return None;
        };
        let sums = received_for_sums(interner.get(from), &self.groupings[group.index()]);
        let exchange = self.exchanged(cx, from, to, interner);
        let exchanged = received(&exchange, interner.get(to));
        (most(&exchanged) > 2 * most(&sums)).then(|| Rc::from([(everywhere, sum), (to, taken)]))
    }

    /// Several moves, if there is a way that is no dearer than an exchange.
    fn reshard_steps(
        &mut self,
        cx: &Context<'_>,
        from: LayoutId,
        to: LayoutId,
        interner: &mut Interner,
    ) -> Option<Moves> {
        let route = reshard_steps::route(interner.get(from), interner.get(to))?;
        if !route.is_cheap() {
            let exchange = self.exchanged(cx, from, to, interner);
            let Method::Exchange(pieces) = &exchange.method else { return None };
            if !route.is_cheaper(pieces) {
                return None;
            }
        }
        let moves = route.moves(&mut self.groupings).into_iter();
        Some(moves.map(|(after, plan)| (interner.layout(after), Rc::new(plan))).collect())
    }

    /// Lists the table of a move that goes region by region. What is moved in the same way shares its lists.
    fn exchange(
        &mut self,
        tensor: TensorId,
        plan: &Rc<Move>,
        to: LayoutId,
        interner: &Interner,
    ) -> Option<ExchangeId> {
        let key = (Rc::as_ptr(plan), to);
        let known = match self.known_tables.get(&key) {
            Some((_, known)) => known.clone(),
            None => {
                let exchange = table(tensor, plan, interner.get(to))?;
                self.known_tables.insert(key, (Rc::clone(plan), exchange.clone()));
                exchange
            }
        };
        Some(self.listed(Exchange { tensor, ..known }))
    }

    fn listed(&mut self, exchange: Exchange) -> ExchangeId {
        self.exchanges.push(exchange);
        ExchangeId::new(self.exchanges.len() - 1)
    }

    fn backward(&mut self, asked: &ScheduleInput<'_>, interner: &mut Interner) {
        let ScheduleInput { cx, uses, segments, .. } = *asked;
        let mut recomputed = Recomputed::new(segments.all.len());
        let recomputes = segments.all.iter().any(|segment| segment.saves == Saves::Nothing);
        let ways = if recomputes { ways(&self.codes) } else { HashMap::new() };
        let mut end = Buckets::default();
        for block in (0..cx.plan.block_count()).rev() {
            let mut buckets = Buckets::default();
            for &id in segments.after.iter().rev() {
                if cx.block_of(uses.get(id).tensor).unwrap_or(0) == block {
                    self.backward_move(asked, id, block, interner, &mut buckets, &mut end);
                }
            }
            for (index, segment) in segments.of_block(block).rev() {
                let carries = |op: &graph::OpId| {
                    cx.graph.op(*op).outputs.iter().flatten().any(|t| cx.needs_grad[t.index()])
                };
                let received = self.received.remove(&index).unwrap_or_default();
                self.events.extend(received);
                if segment.ops.iter().any(carries) {
                    let known = recompute::Known { cx, uses, segments, interner };
                    let (events, recomputed) = recomputed.before(&known, index, &ways);
                    self.events.extend(events);
                    self.events.push(Event::Grad { segment: index, recomputed });
                }
                for &id in segment.before.iter().rev() {
                    self.backward_move(asked, id, block, interner, &mut buckets, &mut end);
                }
                let before = segments.all[..index].iter().rev().take_while(|before| before.block == block);
                let before = before.into_iter().find(|segment| !segment.units.is_empty());
                let events = buckets.full(before.map_or(&BTreeSet::new(), |segment| &segment.units));
                self.events.extend(events);
            }
            let events = buckets.rest();
            self.events.extend(events);
            let events = std::mem::take(&mut self.events);
            self.end_code(block, Pass::Backward, events);
        }
        let mut events = std::mem::take(&mut self.at_the_end);
        events.extend(end.rest());
        self.end_code(0, Pass::End, events);
    }

    fn backward_move(
        &mut self,
        asked: &ScheduleInput<'_>,
        id: UseId,
        block: u32,
        interner: &mut Interner,
        buckets: &mut Buckets,
        end: &mut Buckets,
    ) {
        let ScheduleInput { cx, uses, param_shardings, segments } = *asked;
        let it = uses.get(id);
        if !it.carries_grad || it.direct {
            return;
        }
        let written = uses.written[it.tensor.index()];
        let late = uses.in_several_blocks(cx, it.tensor);
        let buckets = if late { end } else { buckets };
        if let Some(divided) = param_shardings.get(it.tensor) {
            return self.reduce_to_parts(asked, id, divided, interner, buckets);
        }
        let held = cx.wanted[it.tensor.index()].unwrap_or_else(|| self.completed(written, interner));
        if let Some(leaves) = self.leaves.get(&id).cloned() {
            match self.reduction(leaves.layout, held, interner) {
                Reduce::Nothing => {}
                Reduce::Group(group) => {
                    let size = bytes(cx.graph, it.tensor, &interner.get(leaves.layout).entries[0].region);
                    let message = Message::Reduce(group);
                    buckets.add(message, id, it.tensor, cx.graph.tensor(it.tensor).dtype.bytes(), size);
                }
                Reduce::Exactly => {
                    // Everything is summed into the shards by the exchange, what is local too.
                    let (group, plan) = self.exactly(cx, leaves.layout, held, interner);
                    let exchange = self.exchange(it.tensor, &plan, held, interner);
                    let exchange = exchange.expect("it is made of pieces");
                    let when = GradSync::Last;
                    let reduce = group.map(|group| Event::Reduce { group, uses: vec![id] });
                    let events = if late { &mut self.at_the_end } else { &mut self.events };
                    events.extend(reduce);
                    events.push(Event::ReduceExactly { id, exchange, plan, when });
                }
            }
            return;
        }
        let made = matches!(cx.graph.tensor(it.tensor).source, Source::Op { .. });
        if !made && !cx.given_back[it.tensor.index()] {
            return;
        }
        let from = interner.gradient(it.ports);
        let to = if made { held } else { self.completed(from, interner) };
        let maker = cx.graph.producer(it.tensor).map(|(op, _)| op).filter(|op| cx.plan.block(*op) != block);
        let crossing = maker.and_then(|op| Some((op, self.crossing(cx, it.tensor, from, to, interner)?)));
        if let Some((op, crossing)) = crossing {
            self.events.push(Event::SendGrad { id, crossing: crossing.clone() });
            let received = self.received.entry(segments.of[op.index()]).or_default();
            received.push(Event::ReceiveGrad { id, crossing });
            return;
        }
        let path = self.path(cx, it.tensor, from, to, interner);
        self.events.push(Event::MoveGrad { id, path });
        if !made && self.is_last(cx, uses, id) {
            self.give_back(cx, uses, id, held, interner);
        }
    }

    /// The gradient of a parameter that is divided goes to its parts.
    fn reduce_to_parts(
        &mut self,
        asked: &ScheduleInput<'_>,
        id: UseId,
        divided: &Divided,
        interner: &mut Interner,
        buckets: &mut Buckets,
    ) {
        let (cx, tensor) = (asked.cx, asked.uses.get(id).tensor);
        let leaves = self.leaves[&id].layout;
        let when = if divided.reduce == plan::Reduce::Each { GradSync::Each } else { GradSync::Last };
        let arrival = self.arrives(asked, id, divided, interner);
        // What is summed across groups must be partial there for each use.
        let uses = asked.uses.of[tensor.index()].iter().filter(|id| asked.uses.get(**id).carries_grad);
        let all: Vec<Option<Arrives>> = uses.map(|id| self.arrives(asked, *id, divided, interner)).collect();
        let across = |it: &Option<Arrives>| it.map(|it| it.across);
        let agree = all.iter().all(|it| across(it) == across(&arrival));
        let Some(Arrives { summed, across }) = arrival.filter(|arrives| agree || arrives.across.is_none())
        else {
            let target = interner.get(divided.held);
            let plan = exactly(interner.get(leaves), target, cx.plan.devices);
            let exchange = table(tensor, &plan, target).expect("it is made of pieces");
            let exchange = self.listed(exchange);
            // What some rank holds all of adds up in its leaf.
            let when = if divided.holds_all(interner.get(leaves)) { when } else { GradSync::Last };
            self.events.push(Event::ReduceExactly { id, exchange, plan: Rc::new(plan), when });
            return;
        };
        let (unit, group) = (asked.param_shardings.in_passing(tensor), summed.then_some(divided.group));
        let across = across.map(|group| Across { group, early: all.len() == 1 });
        let message = Message::Scatter { group, across, when, unit };
        let size = bytes(cx.graph, tensor, &interner.get(leaves).entries[0].region);
        buckets.add(message, id, tensor, cx.graph.tensor(tensor).dtype.bytes(), size);
    }

    /// How the gradient that a use gives back gets to the parts, if there is a pattern.
    fn arrives(
        &mut self,
        asked: &ScheduleInput<'_>,
        id: UseId,
        divided: &Divided,
        interner: &Interner,
    ) -> Option<Arrives> {
        let read = asked.uses.written[asked.uses.get(id).tensor.index()];
        let key = (self.leaves[&id].layout, read, divided.held, divided.group, divided.on_host);
        if let Some(known) = self.known_arrivals.get(&key) {
            return *known;
        }
        let (leaves, read) = (interner.get(key.0), interner.get(read));
        let arrival = param_sharding::arrives(divided, leaves, read, interner, &mut self.groupings);
        *self.known_arrivals.entry(key).or_insert(arrival)
    }

    fn reduction(&mut self, leaves: LayoutId, held: LayoutId, interner: &Interner) -> Reduce {
        if let Some(known) = self.known_reductions.get(&(leaves, held)) {
            return *known;
        }
        let plan = self.pattern(leaves, held, interner);
        let kind = reduction_kind(plan.as_deref(), interner.get(leaves), interner.get(held));
        *self.known_reductions.entry((leaves, held)).or_insert(kind)
    }

    /// The exchange that makes the gradients of shards, and the groups in which those of leaves are summed before, if
    /// less is sent then: the shards of other stages get sums instead of all that is summed.
    fn exactly(
        &mut self,
        cx: &Context<'_>,
        leaves: LayoutId,
        held: LayoutId,
        interner: &mut Interner,
    ) -> (Option<GroupingId>, Rc<Move>) {
        let summed = self.completed(leaves, interner);
        let plan = |leaves: LayoutId, interner: &Interner| {
            exactly(interner.get(leaves), interner.get(held), cx.plan.devices)
        };
        let directly = plan(leaves, interner);
        if let Reduce::Group(group) = self.reduction(leaves, summed, interner) {
            let (target, plan) = (interner.get(held), plan(summed, interner));
            let mut in_two_steps = received_for_sums(interner.get(leaves), &self.groupings[group.index()]);
            for (rank, elements) in received(&plan, target) {
                *in_two_steps.entry(rank).or_default() += elements;
            }
            if most(&in_two_steps) < most(&received(&directly, target)) {
                return (Some(group), Rc::new(plan));
            }
        }
        (None, Rc::new(directly))
    }

    fn completed(&mut self, layout: LayoutId, interner: &mut Interner) -> LayoutId {
        *self.complete.entry(layout).or_insert_with(|| {
            let complete = interner.get(layout).complete();
            interner.layout(complete)
        })
    }

    /// Whether all other uses of an input have given their gradients back.
    fn is_last(&self, cx: &Context<'_>, uses: &Uses, id: UseId) -> bool {
        let done = |other: &UseId| {
            let moved = |event: &Event| matches!(event, Event::MoveGrad { id, .. } if id == other);
            self.codes.iter().flat_map(|code| &code.events).chain(&self.events).any(moved)
        };
        let tensor = uses.get(id).tensor;
        debug_assert!(cx.given_back[tensor.index()]);
        uses.of[tensor.index()].iter().filter(|other| uses.get(**other).carries_grad).all(done)
    }

    /// Gradients of one layout are added up before they are moved, so each layout is moved once.
    fn give_back(
        &mut self,
        cx: &Context<'_>,
        uses: &Uses,
        id: UseId,
        held: LayoutId,
        interner: &mut Interner,
    ) {
        let tensor = uses.get(id).tensor;
        let mut layouts = IndexSet::new();
        for other in uses.of[tensor.index()].iter().filter(|other| uses.get(**other).carries_grad) {
            let gradient = interner.gradient(uses.get(*other).ports);
            layouts.insert(self.completed(gradient, interner));
        }
        for from in layouts {
            let path = self.path(cx, tensor, from, held, interner);
            self.events.push(Event::GiveBack { id, path });
        }
    }
}

fn leaves(interner: &mut Interner, ports: PortsId) -> Leaves {
    let gradient = interner.get_ports(ports).gradient();
    let (middle, parts) = moves::collapse(&gradient, 1);
    let layout = Layout::new(middle.iter().map(|m| m.entry.clone()).collect(), parts, gradient.reduction);
    let mut leaf_of = vec![0; gradient.entries.len()];
    for (index, it) in middle.iter().enumerate() {
        it.from.iter().for_each(|&entry| leaf_of[entry] = index);
    }
    Leaves { middle, layout: interner.layout(layout), gradient: interner.layout(gradient), of: leaf_of }
}

#[derive(Clone, Copy)]
enum Reduce {
    /// Every rank's own gradients are all there is.
    Nothing,
    Group(GroupingId),
    Exactly,
}

fn reduction_kind(plan: Option<&Move>, leaves: &Layout, held: &Layout) -> Reduce {
    let covered = || {
        held.entries.iter().all(|shard| {
            let inside =
                leaves.on(shard.rank).map(|i| &leaves.entries[i].region).filter(|r| shard.region.contains(r));
            inside.map(rules::Region::numel).sum::<i64>() == shard.region.numel()
        })
    };
    match plan.map(|plan| &plan.method) {
        _ if leaves.parts == 1 && covered() => Reduce::Nothing,
        Some(Method::Collective(Along::AllReduce(_), group, _)) if leaves.lies_as(held) => {
            Reduce::Group(*group)
        }
        Some(Method::AllReduceEach(group)) if leaves.lies_as(held) => Reduce::Group(*group),
        _ => Reduce::Exactly,
    }
}

/// Elements that each rank gets from others in an exchange.
fn received(plan: &Move, target: &Layout) -> BTreeMap<RankId, u64> {
    let Method::Exchange(pieces) = &plan.method else { return BTreeMap::new() };
    let messages = reshard_steps::received(&plan.middle, target, pieces);
    messages.into_iter().map(|(rank, from)| (rank, from.into_values().sum())).collect()
}

/// Elements that each rank gets from others where leaves are summed in groups: all but its own part, twice.
fn received_for_sums(leaves: &Layout, groups: &Grouping) -> BTreeMap<RankId, u64> {
    let of_group = |group: &Vec<RankId>| {
        let members = group.len() as u64;
        let of_rank = |rank: &RankId| {
            let shards = leaves.on(*rank).map(|at| leaves.entries[at].region.numel().unsigned_abs());
            let all = shards.sum::<u64>();
            (*rank, 2 * (all - all / members))
        };
        group.iter().map(of_rank).collect::<Vec<_>>()
    };
    groups.iter().flat_map(of_group).collect()
}

fn most(received: &BTreeMap<RankId, u64>) -> u64 {
    received.values().copied().max().unwrap_or(0)
}

/// The exchange that makes every shard's gradient, even where it is there already.
fn exactly(leaves: &Layout, held: &Layout, world: u32) -> Move {
    let single = |(i, e): (usize, &Entry)| Middle { entry: e.clone(), from: vec![i] };
    let middle: Vec<Middle> = leaves.entries.iter().enumerate().map(single).collect();
    let keep = vec![false; held.entries.len()];
    let pieces = exchange::pieces(&middle, leaves.parts, held, &keep, world).listing(middle.len());
    let gets = vec![Get::Received; held.entries.len()];
    Move { middle, reduction: leaves.reduction, method: Method::Exchange(pieces), gets }
}

/// The table of a move that goes region by region.
fn table(tensor: TensorId, plan: &Move, target: &Layout) -> Option<Exchange> {
    let Method::Exchange(pieces) = &plan.method else { return None };
    let source = |&i: &usize| (plan.middle[i].entry.rank, plan.middle[i].entry.region.clone());
    let wanted = |&i: &usize| (target.entries[i].rank, target.entries[i].region.clone());
    let piece = |(from, to, region): &(usize, usize, rules::Region)| Piece {
        from: *from,
        to: *to,
        region: region.clone(),
    };
    Some(Exchange {
        tensor,
        reduction: plan.reduction,
        sources: Arc::new(pieces.sources.iter().map(source).collect()),
        targets: Arc::new(pieces.targets.iter().map(wanted).collect()),
        pieces: Arc::new(pieces.pieces.iter().map(piece).collect()),
    })
}
