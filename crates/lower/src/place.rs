//! Where each operator's parts are, and what they read and write there.
//!
//! Operators with the same dims and the same plan are placed alike; that is computed once.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use graph::{Graph, OpId};
use plan::{On, OpPlan, Plan, Split};
use program::RankId;
use rules::{Analysis, Interval, OpDims, Reduction};
use sharding::propagate::{self, Has, Input};

use crate::layout::{Entry, Interner, Layout, Port, Ports};
use crate::placement::{Placement, Read, Sub, Written};
use crate::shares::{Known, Shares};

/// What two operators must have in common to be placed alike.
#[derive(Clone, PartialEq, Eq)]
struct Class {
    dims: OpDims,
    factors: Vec<Vec<i64>>,
    once: Vec<bool>,
    /// Operands that no part reads: their shapes are known.
    unread: Vec<bool>,
    /// What it is given shares of, if its value is split.
    shares: Option<Shares>,
    grads: Vec<bool>,
    plan: OpPlan,
}

pub fn place_all(
    graph: &Graph,
    analysis: &Analysis,
    plan: &Plan,
    arrives: &[bool],
    interner: &mut Interner,
) -> Vec<Rc<Placement>> {
    let mut classes: HashMap<Class, Rc<Placement>> = HashMap::new();
    let mut placement_of = |class: Class, interner: &mut Interner| {
        Rc::clone(classes.entry(class).or_insert_with_key(|class| Rc::new(place(class, interner))))
    };
    let mut placements: Vec<Rc<Placement>> = vec![];
    for op in graph.op_ids() {
        let class = class(graph, analysis, plan, arrives, op);
        let splits_value = class.plan.splits.iter().any(|s| s.on == On::Value);
        let known = Known { graph, analysis, plan, placements: &placements, interner };
        let passing = known.others(op).filter(|_| splits_value && !class.grads.contains(&true));
        let sums = if splits_value { known.sums(op) } else { None };
        let passing = passing.map(|shares| placement_of(class.with(Some(shares)), interner));
        let known = Known { graph, analysis, plan, placements: &placements, interner };
        let placed = match passing.filter(|placed| are_there(&known, op, placed)) {
            Some(placed) => placed,
            None => placement_of(class.with(sums), interner),
        };
        placements.push(placed);
    }
    placements
}

/// Whether each rank has the shares that its parts are to be given.
fn are_there(known: &Known<'_>, op: OpId, placed: &Placement) -> bool {
    placed.inputs.iter().enumerate().all(|(operand, read)| {
        let ports = known.interner.get_ports(read.ports);
        let there = |layout: &Layout| ports.need().entries.iter().all(|entry| layout.find(entry).is_some());
        ports.values == 1 || known.layout(op, operand).is_some_and(there)
    })
}

/// Lists of devices are long, and most operators have the same: how it is split tells nearly all.
impl Hash for Class {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { dims, factors, once, unread, shares, grads, plan } = self;
        (dims, factors, once, unread, shares, grads).hash(state);
        (&plan.splits, plan.devices.first()).hash(state);
    }
}

impl Class {
    /// Given these shares. Without any, parts by value are copies.
    fn with(&self, shares: Option<Shares>) -> Class {
        let mut class = Class { shares, ..self.clone() };
        if class.shares.is_none() {
            let by_value = class.plan.splits.iter_mut().filter(|split| split.on == On::Value);
            by_value.for_each(|split| split.on = On::Copies);
        }
        class
    }

    /// An input, as splits see it.
    fn input(&self, index: usize) -> Input<'_> {
        let linear = self.shares.as_ref().is_some_and(|shares| shares.operands.contains(&index));
        Input { carried: &self.dims.inputs[index], once: self.once[index], linear }
    }
}

fn class(graph: &Graph, analysis: &Analysis, plan: &Plan, arrives: &[bool], op: OpId) -> Class {
    let it = graph.op(op);
    let inputs = it.inputs();
    let rule = analysis.rules[op.index()].as_ref();
    let asked = |i: usize| it.passes_on(|out| arrives[out.index()], i);
    let outputs = it.outputs.iter().map(|t| t.map_or(vec![], |t| analysis.flat(t)));
    let unread = |i: usize| rule.is_some_and(|r| r.inputs[i].absent);
    Class {
        dims: analysis.op(op).clone(),
        factors: inputs.iter().map(|t| analysis.flat(*t)).chain(outputs).collect(),
        unread: (0..inputs.len()).map(unread).collect(),
        once: (0..inputs.len()).map(|i| rule.is_some_and(|r| r.inputs[i].once)).collect(),
        shares: None,
        grads: (inputs.iter().enumerate())
            .map(|(i, t)| !unread(i) && arrives[t.index()] && asked(i))
            .collect(),
        plan: plan.op(op).clone(),
    }
}

/// One part with its digits, before copies are merged.
struct Numbered {
    sub: Sub,
    digits: Vec<u32>,
}

fn place(class: &Class, interner: &mut Interner) -> Placement {
    let parts = numbered(class);
    let in_turn = parts.windows(2).any(|w| w[0].sub.rank == w[1].sub.rank);
    let inputs = (0..class.dims.inputs.len()).map(|i| read(class, i, &parts, interner)).collect();
    let outputs = (0..class.dims.outputs.len()).map(|o| written(class, o, &parts, interner)).collect();
    Placement { subs: parts.into_iter().map(|p| p.sub).collect(), inputs, outputs, in_turn }
}

fn numbered(class: &Class) -> Vec<Numbered> {
    let whole = class.dims.whole();
    let plan = &class.plan;
    let mut parts: Vec<Numbered> = (plan.devices.iter().zip(0..))
        .map(|(&device, index)| {
            let digits = plan.digits(index);
            let at = plan.intervals(&whole, &digits);
            let first = plan.splits.iter().zip(&digits).all(|(s, &d)| s.on != On::Value || d == 0);
            Numbered { sub: Sub { rank: RankId(device), at, first }, digits }
        })
        .collect();
    parts.sort_by_key(|p| p.sub.rank);
    let copy = |a: &Numbered, b: &Numbered| {
        let same = |(split, (x, y)): (&Split, (&u32, &u32))| split.on == On::Copies || x == y;
        plan.splits.iter().zip(a.digits.iter().zip(&b.digits)).all(same)
    };
    let mut kept: Vec<Numbered> = Vec::with_capacity(parts.len());
    for part in parts {
        let start = kept.partition_point(|k| k.sub.rank < part.sub.rank);
        if !kept[start..].iter().any(|k| copy(k, &part)) {
            kept.push(part);
        }
    }
    kept
}

/// The number that some of the digits make, and how many such numbers there are.
fn number(class: &Class, digits: &[u32], counted: impl Fn(On) -> bool) -> (u32, u32) {
    let mut number = (0, 1);
    for (split, digit) in class.plan.splits.iter().zip(digits) {
        if counted(split.on) {
            number = (number.0 * split.parts + digit, number.1 * split.parts);
        }
    }
    number
}

fn region(factors: &[i64], carried: &[Option<usize>], at: &[Interval]) -> rules::Region {
    let interval = |(&size, l): (&i64, &Option<usize>)| l.map_or(Interval::whole(size), |l| at[l]);
    rules::Region(factors.iter().zip(carried).map(interval).collect())
}

fn read(class: &Class, index: usize, parts: &[Numbered], interner: &mut Interner) -> Read {
    let input = class.input(index);
    let is_value = |on: On| propagate::read(&class.dims, input, on) == Has::Share;
    let is_grad = |on: On| propagate::gradient(&class.dims, input, on) == Has::Share;
    let is_given = |p: &Numbered| {
        let given = |(split, &number): (&Split, &u32)| {
            number == 0 || propagate::read(&class.dims, input, split.on) != Has::First
        };
        class.plan.splits.iter().zip(&p.digits).all(given)
    };
    let port = |p: &Numbered| {
        (!class.unread[index] && is_given(p)).then(|| Port {
            rank: p.sub.rank,
            region: region(&class.factors[index], input.carried, &p.sub.at),
            value: number(class, &p.digits, is_value).0,
            grad: if class.grads[index] { number(class, &p.digits, is_grad).0 } else { 0 },
        })
    };
    let all: Vec<Option<Port>> = parts.iter().map(port).collect();
    let zeros = vec![0; class.plan.splits.len()];
    let grads = if class.grads[index] { number(class, &zeros, is_grad).1 } else { 1 };
    let kind = class.shares.as_ref().map_or(Reduction::Sum, |shares| shares.given);
    let values = number(class, &zeros, is_value).1;
    let ports = Ports::new(all.iter().flatten().cloned().collect(), values, kind, grads);
    let places = positions(&ports.entries, all.iter().flatten(), |port| ports.find(port));
    let mut places = places.into_iter();
    let port = all.iter().map(|port| port.as_ref().and_then(|_| places.next())).collect();
    Read { ports: interner.ports(ports), port, carries_grad: class.grads[index] }
}

fn written(class: &Class, output: usize, parts: &[Numbered], interner: &mut Interner) -> Option<Written> {
    let factors = &class.factors[class.dims.inputs.len() + output];
    let carried = &class.dims.outputs[output];
    let is_share = |on: On| propagate::written(&class.dims, carried, on) == Has::Share;
    let entry = |p: &Numbered| Entry {
        rank: p.sub.rank,
        region: region(factors, carried, &p.sub.at),
        part: number(class, &p.digits, is_share).0,
    };
    let all: Vec<Entry> = parts.iter().map(entry).collect();
    let count = number(class, &vec![0; class.plan.splits.len()], is_share).1;
    let made = class.shares.as_ref().map_or(Reduction::Sum, |shares| shares.made);
    let reduced = |split: &Split| propagate::reduced(&class.dims, split.on, made);
    let how = class.plan.splits.iter().find_map(reduced).unwrap_or(Reduction::Sum);
    let layout = Layout::new(all.clone(), count, how);
    let find = |entry: &Entry| layout.find(entry).expect("an entry of this layout");
    let entry = positions(&layout.entries, all.iter(), find);
    Some(Written { layout: interner.layout(layout), entry })
}

/// Where some are among all. Mostly one stands behind the other, as parts do.
fn positions<'a, T: PartialEq + 'a>(
    all: &[T],
    some: impl Iterator<Item = &'a T>,
    find: impl Fn(&T) -> usize,
) -> Vec<usize> {
    let mut next = 0;
    let position = |it: &T| {
        let at = if all.get(next) == Some(it) { next } else { find(it) };
        next = at + 1;
        at
    };
    some.map(position).collect()
}
