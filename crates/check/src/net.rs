//! Steps of several micro-batches: ranks meet for the same micro-batch, and come to their ends.
//!
//! [`crate::order`] has followed one micro-batch, and knows what each communication brings. In a step codes of many
//! micro-batches run as the timetables of ranks say. Nothing is lost or mixed up by that if whoever meets does so in
//! the same instruction for the same micro-batch, and nobody waits for ever. What is sent waits for its receiver,
//! and is told apart by its table and micro-batch; so that is all.
//!
//! What runs in loops for the first micro-batches is proved by itself: it waits for nothing that runs later, and comes to
//! its end, as is seen by following it. Of shorter steps less of it runs, and that waits for less. What is left has its
//! order from the loops for all micro-batches, of which it is proved that nothing waits for itself, of no number of them;
//! so nothing does of what is left.

use std::collections::{BTreeMap, HashMap};

use program::{Body, ExchangeId, Instr, Pass, Program, RankId, Task};

use crate::fault::Fault;
use crate::lockstep::Lockstep;
use crate::order::{Communications, Rendezvous, named};
use crate::periodic::Periodic;
use crate::state::{Context, Rank};
use crate::timetable::enough;

/// A communication of a code: where it stands among all instructions, and what it waits for.
#[derive(Clone, Copy)]
struct Event {
    at: usize,
    settles: bool,
    does: Doing,
}

#[derive(Clone, Copy)]
enum Doing {
    Send(ExchangeId),
    Receive(ExchangeId),
    /// So many collectives of the same ranks come before it in one micro-batch.
    Meet(Rendezvous, usize),
}

/// What a rank is at: an event for a micro-batch. What runs once a step has none.
type At = (Event, Option<u32>);

/// Looks at the steps of all numbers of micro-batches. Where all ranks are through with each before the next, a step is
/// one micro-batch after the other, and there is nothing to look at.
pub(crate) fn steps(cx: &mut Context<'_>, ranks: &[Rank<'_>]) {
    let roles = || cx.program.roles.iter();
    let is_one_block = |body: &Body| body.codes.iter().all(|code| code.block == 0);
    if roles().all(|role| is_one_block(&role.body) && role.body.timetable.is_one_by_one()) {
        return;
    }
    let communications = Communications::new(cx, ranks);
    let most = roles().filter_map(|role| enough(&role.body.timetable)).max().unwrap_or(1);
    let follow = |net: &Net<'_>| (1..=most).find_map(|batches| net.follow(batches).err());
    if roles().any(|role| role.body.timetable.goes_on()) {
        let apart = roles().all(|role| !role.body.timetable.ends);
        let lockstep = Lockstep::new(ranks, &communications).filter(|_| apart);
        let refusal = no_flush(&Net::new(cx, ranks, &communications), lockstep.as_ref(), cx.program);
        refusal.into_iter().for_each(|fault| cx.faults.push(fault));
        return;
    }
    if Lockstep::new(ranks, &communications).is_some_and(|it| it.comes_to_its_end()) {
        debug_assert!(ranks.len() > 8 || follow(&Net::new(cx, ranks, &communications)).is_none());
        return;
    }
    let net = Net::new(cx, ranks, &communications);
    if net.comes_to_its_end() {
        debug_assert!(ranks.len() > 8 || follow(&net).is_none());
        return;
    }
    // Gradients are communicated once a step, and codes may be run every so many micro-batches here, and every so many
    // others there: what seems to wait for itself may not. Beyond these numbers only more of the same turns follow,
    // unless the first micro-batches run in loops of their own.
    let early = roles().find(|role| role.body.timetable.loops.iter().any(|it| it.iterations.is_some()));
    let refusal = follow(&net).or_else(|| early.map(|role| unproved().at(role.ranks[0], None)));
    refusal.into_iter().for_each(|fault| cx.faults.push(fault));
}

/// Steps that follow each other are one in which gradients are communicated now and then, and steps end: nothing waits
/// for itself if each turn does so. A few steps are followed besides.
fn no_flush(net: &Net<'_>, lockstep: Option<&Lockstep<'_>>, program: &Program) -> Option<Fault> {
    let blocks = program.roles.iter().flat_map(|role| &role.body.codes).map(|code| code.block + 1).max();
    let batches = blocks.unwrap_or(1);
    let few = net.ranks.len() <= FEW;
    let followed = || (batches..batches + 2).find_map(|batches| net.follow_on(batches).err());
    let refusal = few.then(followed).flatten();
    let goes_on = || lockstep.is_some_and(Lockstep::comes_to_its_end) || net.goes_on();
    refusal.or_else(|| (!goes_on()).then(|| unproved_on().at(net.ranks[0], None)))
}

/// So many ranks are followed through some steps.
const FEW: usize = 64;
/// How many.
const STEPS: u32 = 3;

fn unproved_on() -> Fault {
    Fault::new("SW0506", "across steps, ranks may wait for each other for ever")
        .why("a task waits for a later one, perhaps of the next step")
}

fn unproved() -> Fault {
    Fault::new("SW0506", "in a long step, ranks may wait for each other for ever")
        .why("loops for the first micro-batches wait for something that runs later")
}

struct Net<'n> {
    ranks: Vec<RankId>,
    bodies: Vec<&'n Body>,
    /// For each rank and code, by its position, what it communicates.
    events: Vec<Vec<Vec<Event>>>,
    communications: &'n Communications,
    /// Of each exchange and receiver, from whom it gets something.
    givers: HashMap<(ExchangeId, usize), Vec<usize>>,
}

impl<'n> Net<'n> {
    fn new(cx: &'n Context<'_>, ranks: &'n [Rank<'_>], communications: &'n Communications) -> Self {
        let mut givers: HashMap<(ExchangeId, usize), Vec<usize>> = HashMap::new();
        let place: HashMap<RankId, usize> =
            ranks.iter().enumerate().map(|(at, rank)| (rank.id, at)).collect();
        for (id, exchange) in cx.program.exchanges.iter().enumerate() {
            for piece in exchange.pieces.iter() {
                let (from, to) = (exchange.sources[piece.from].0, exchange.targets[piece.to].0);
                let (Some(from), Some(to)) = (place.get(&from), place.get(&to)) else { continue };
                givers.entry((ExchangeId::new(id), *to)).or_default().push(*from);
            }
        }
        let events = ranks.iter().enumerate().map(|(member, rank)| events(rank.body, member, communications));
        Self {
            ranks: ranks.iter().map(|rank| rank.id).collect(),
            bodies: ranks.iter().map(|rank| rank.body).collect(),
            events: events.collect(),
            communications,
            givers,
        }
    }

    /// All that a rank communicates in a step, in its order.
    fn step(&self, member: usize, batches: u32) -> Vec<At> {
        let code = |block: u32, pass: Pass| self.of_code(member, block, pass);
        let settles = |task: &Task, batch: u32| task.settles().is(batch, batches);
        let mut events: Vec<At> = code(0, Pass::Begin).iter().map(|event| (*event, None)).collect();
        for (task, batch) in self.bodies[member].timetable.tasks(batches) {
            let settles = settles(task, batch);
            let task_events = code(task.block, task.pass()).iter().filter(|event| settles || !event.settles);
            events.extend(task_events.map(|event| (*event, Some(batch))));
        }
        events.extend(code(0, Pass::End).iter().map(|event| (*event, None)));
        events
    }

    /// All that a rank communicates in a few steps that go on, and in the end after them. Micro-batches are counted through, and
    /// so are ends.
    fn steps_on(&self, member: usize, batches: u32) -> Vec<At> {
        let mut events: Vec<At> = vec![];
        for step in 0..=STEPS {
            for run in self.bodies[member].timetable.no_flush(step, batches, step == STEPS) {
                let settles = run.task.settles().is(run.batch, batches);
                let code_events = self.of_code(member, run.task.block, run.task.pass());
                let task_events = code_events.iter().filter(|event| settles || !event.settles);
                events.extend(task_events.map(|event| (*event, Some(run.of * batches + run.batch))));
            }
            let last = if step > 0 { self.of_code(member, 0, Pass::End) } else { &[] };
            events.extend(last.iter().map(|event| (*event, Some(step))));
        }
        events
    }

    fn follow_on(&self, batches: u32) -> Result<(), Fault> {
        let steps: Vec<Vec<At>> =
            (0..self.ranks.len()).map(|member| self.steps_on(member, batches)).collect();
        self.run(STEPS * batches, &steps)
    }

    /// Whether nothing waits for itself in any step, as far as that is seen from the turns of ranks: if gradients
    /// were communicated in all micro-batches. What runs early comes to its end by itself, and the others are left, in
    /// their order.
    fn comes_to_its_end(&self) -> bool {
        let early = (0..self.ranks.len()).map(|member| self.early(member)).collect::<Vec<_>>();
        self.run(0, &early).is_ok() && self.goes_on()
    }

    /// What a rank communicates in loops for the first micro-batches.
    fn early(&self, member: usize) -> Vec<At> {
        let events = |(task, batch): (&Task, u32)| {
            let code_events = self.of_code(member, task.block, task.pass());
            code_events.iter().map(move |event| (*event, Some(batch)))
        };
        self.bodies[member].timetable.early_tasks().flat_map(events).collect()
    }

    fn goes_on(&self) -> bool {
        let mut waits = Periodic::default();
        let mut ends: Ends = Ends::default();
        for (member, body) in self.bodies.iter().enumerate() {
            let events = |task: &Task| self.of_code(member, task.block, task.pass());
            let last = if body.timetable.goes_on() { self.of_code(member, 0, Pass::End) } else { &[] };
            let (tasks, nodes) = waits.with_ends(&body.timetable, |task| events(task).len(), last.len());
            for (event, node) in last.iter().zip(nodes) {
                ends.add(event, member, 0, node);
            }
            for (task, every, nodes) in tasks {
                if ends.every.is_some_and(|known| known != every) {
                    return false;
                }
                ends.every = Some(every);
                for (event, node) in events(task).iter().zip(nodes) {
                    ends.add(event, member, i64::from(task.at).rem_euclid(i64::from(every.max(1))), node);
                }
            }
        }
        ends.meet(&mut waits, &self.givers);
        waits.comes_to_its_end()
    }

    fn of_code(&self, member: usize, block: u32, pass: Pass) -> &[Event] {
        self.bodies[member].position(block, pass).map_or(&[], |at| &self.events[member][at])
    }

    fn follow(&self, batches: u32) -> Result<(), Fault> {
        let steps: Vec<Vec<At>> = (0..self.ranks.len()).map(|member| self.step(member, batches)).collect();
        self.run(batches, &steps)
    }

    /// Goes through what ranks communicate, in a step of so many micro-batches.
    fn run(&self, batches: u32, steps: &[Vec<At>]) -> Result<(), Fault> {
        let mut next = vec![0; steps.len()];
        let mut sent: BTreeMap<(ExchangeId, Option<u32>), Vec<usize>> = BTreeMap::new();
        let mut waiting: BTreeMap<Rendezvous, Vec<usize>> = BTreeMap::new();
        // Those who wait for something to be sent.
        let mut receiving: BTreeMap<(ExchangeId, Option<u32>), Vec<usize>> = BTreeMap::new();
        let mut open: Vec<usize> = (0..steps.len()).rev().collect();
        while let Some(member) = open.pop() {
            while let Some((event, batch)) = steps[member].get(next[member]).copied() {
                match event.does {
                    Doing::Send(exchange) => {
                        sent.entry((exchange, batch)).or_default().push(member);
                        open.extend(receiving.remove(&(exchange, batch)).unwrap_or_default());
                    }
                    Doing::Receive(exchange) => {
                        let there = sent.get(&(exchange, batch)).map_or(&[][..], |there| there);
                        let givers = self.givers.get(&(exchange, member)).map_or(&[][..], |givers| givers);
                        if !givers.iter().all(|giver| there.contains(giver)) {
                            receiving.entry((exchange, batch)).or_default().push(member);
                            break;
                        }
                    }
                    Doing::Meet(rendezvous, _) => {
                        let there = waiting.entry(rendezvous).or_default();
                        there.push(member);
                        if there.len() < self.communications.everybody(rendezvous).len() {
                            break;
                        }
                        let there = waiting.remove(&rendezvous).unwrap_or_default();
                        self.same(steps, &next, &there)?;
                        for other in there.into_iter().filter(|other| *other != member) {
                            next[other] += 1;
                            open.push(other);
                        }
                    }
                }
                next[member] += 1;
            }
        }
        self.all_at_their_ends(batches, steps, &next)
    }

    /// Those who meet are in the same instruction, for the same micro-batch.
    fn same(&self, steps: &[Vec<At>], next: &[usize], there: &[usize]) -> Result<(), Fault> {
        let is = |member: usize| {
            let (event, batch) = steps[member][next[member]];
            match event.does {
                Doing::Meet(_, number) => (number, batch),
                _ => (usize::MAX, batch),
            }
        };
        let Some(other) = there.iter().find(|member| is(**member) != is(there[0])) else { return Ok(()) };
        let said = |member: usize| {
            let (event, batch) = steps[member][next[member]];
            format!(
                "rank {} is in {} of {}",
                self.ranks[member].0,
                self.code(member, event),
                batch_name(batch)
            )
        };
        let what = "ranks that communicate with each other do so for different micro-batches";
        let why = format!("{}, {}", said(there[0]), said(*other));
        Err(Fault::new("SW0506", what).why(why).at(self.ranks[there[0]], None))
    }

    fn all_at_their_ends(&self, batches: u32, steps: &[Vec<At>], next: &[usize]) -> Result<(), Fault> {
        let stuck = |member: &usize| next[*member] < steps[*member].len();
        let all: Vec<usize> = (0..steps.len()).filter(stuck).collect();
        let Some(first) = all.first() else { return Ok(()) };
        let said = |member: &usize| {
            let (event, batch) = steps[*member][next[*member]];
            let instr = self.bodies[*member].instrs().nth(event.at).map_or(String::new(), named);
            let code = self.code(*member, event);
            format!("rank {} waits in {code} of {} in {instr}", self.ranks[*member].0, batch_name(batch))
        };
        let what = format!("in a step of {batches} micro-batches ranks wait for each other for ever");
        let why = all.iter().take(4).map(said).collect::<Vec<_>>().join("; ");
        Err(Fault::new("SW0506", what).why(why).at(self.ranks[*first], None))
    }

    fn code(&self, member: usize, event: Event) -> String {
        let body = self.bodies[member];
        let code = &body.codes[body.locate(event.at).0];
        if code.block == 0 { code.pass.name().into() } else { format!("{}_{}", code.pass.name(), code.block) }
    }
}

fn batch_name(batch: Option<u32>) -> String {
    batch.map_or_else(|| "the step".into(), |batch| format!("micro-batch {batch}"))
}

/// Which events of ranks belong together, of micro-batches that are apart by some number of times [`Ends::every`].
#[derive(Default)]
struct Ends {
    every: Option<u32>,
    sends: BTreeMap<(ExchangeId, i64, usize), Vec<usize>>,
    receives: Vec<(ExchangeId, i64, usize, usize)>,
    meets: BTreeMap<(Rendezvous, usize, i64), Vec<usize>>,
}

impl Ends {
    fn add(&mut self, event: &Event, member: usize, batch: i64, node: usize) {
        match event.does {
            Doing::Send(exchange) => self.sends.entry((exchange, batch, member)).or_default().push(node),
            Doing::Receive(exchange) => self.receives.push((exchange, batch, member, node)),
            Doing::Meet(rendezvous, number) => {
                self.meets.entry((rendezvous, number, batch)).or_default().push(node);
            }
        }
    }

    fn meet(&self, waits: &mut Periodic, givers: &HashMap<(ExchangeId, usize), Vec<usize>>) {
        for (exchange, batch, member, to) in &self.receives {
            for giver in givers.get(&(*exchange, *member)).into_iter().flatten() {
                let from = self.sends.get(&(*exchange, *batch, *giver));
                from.into_iter().flatten().for_each(|from| waits.before(*from, *to, 0));
            }
        }
        self.meets.values().for_each(|nodes| waits.together(nodes));
    }
}

/// What each code of a rank communicates.
fn events(body: &Body, member: usize, communications: &Communications) -> Vec<Vec<Event>> {
    let mut met: BTreeMap<Rendezvous, usize> = BTreeMap::new();
    let mut by_code = vec![];
    let mut at = 0;
    for code in &body.codes {
        let mut events = vec![];
        for instr in &code.instrs {
            let does = match instr {
                Instr::Send { exchange, .. } => Some(Doing::Send(*exchange)),
                Instr::Receive { exchange, .. } => Some(Doing::Receive(*exchange)),
                _ => communications.of_instr(member, instr).map(|rendezvous| {
                    let number = met.entry(rendezvous).or_default();
                    *number += 1;
                    Doing::Meet(rendezvous, *number)
                }),
            };
            events.extend(does.map(|does| Event {
                at,
                settles: code.pass.settles() && instr.settles(),
                does,
            }));
            at += 1;
        }
        by_code.push(events);
    }
    by_code
}
