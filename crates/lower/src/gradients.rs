//! Where partial gradients are completed: where that is the fewest bytes.
//!
//! An operator that several ranks compute alike may pass partial gradients of what it makes on to what it
//! reads: backward is linear. So a row that several experts read gets one gradient, not one for each of
//! its copies.

use std::collections::HashMap;
use std::rc::Rc;

use graph::{OpId, TensorId};
use program::Output;

use crate::layout::{Interner, Layout, LayoutId, Port, Ports, PortsId};
use crate::moves::collapse;
use crate::placement::{Placement, Read};
use crate::uses::Context;

/// What is decided: where operators are placed now, and the layout in which the gradient of a tensor goes
/// to the operator that makes it, where that is partial.
pub struct Passed {
    pub placements: Vec<Rc<Placement>>,
    pub wanted: Vec<Option<LayoutId>>,
}

pub fn pass_on(cx: &Context<'_>, interner: &mut Interner) -> Passed {
    let mut readers: Vec<Vec<(OpId, usize)>> = vec![vec![]; cx.graph.tensors.len()];
    for &op in cx.order {
        for (position, tensor) in cx.graph.op(op).inputs().into_iter().enumerate() {
            readers[tensor.index()].push((op, position));
        }
    }
    let leaves = (cx.graph.outputs.iter().zip(&cx.boundary.outputs))
        .filter(|(_, how)| **how != Output::None)
        .filter_map(|(tensor, _)| *tensor)
        .collect();
    let passed = Passed { placements: cx.placements.to_vec(), wanted: vec![None; cx.graph.tensors.len()] };
    let mut it = GradientSearch { cx, interner, readers, leaves, passed, known: KnownLayouts::default() };
    for &op in cx.order.iter().rev() {
        if let Some(tensor) = it.learns(op) {
            it.sync_grads(tensor);
        }
    }
    it.passed
}

struct GradientSearch<'a, 'c> {
    cx: &'a Context<'c>,
    interner: &'a mut Interner,
    readers: Vec<Vec<(OpId, usize)>>,
    leaves: Vec<TensorId>,
    passed: Passed,
    known: KnownLayouts,
}

/// What is asked of the same layouts in every layer.
#[derive(Default)]
struct KnownLayouts {
    summed: HashMap<LayoutId, LayoutId>,
    largest: HashMap<LayoutId, i64>,
    /// Whether one layout has the shards of another.
    one_each: HashMap<(LayoutId, LayoutId), bool>,
    numbered: HashMap<Reading, Read>,
}

/// How an operand is read, and the partial gradients over which its own is partial too.
#[derive(PartialEq, Eq, Hash)]
struct Reading {
    ports: PortsId,
    port: Vec<Option<usize>>,
    entry: Vec<usize>,
    gradient: LayoutId,
}

/// One operator that could pass the gradient of what it makes on.
struct GradientStep {
    tensor: TensorId,
    gradient: LayoutId,
    op: OpId,
    placement: Rc<Placement>,
}

impl GradientSearch<'_, '_> {
    /// Follows a partial gradient back through operators, and lets those pass it on behind which it is
    /// completed with the fewest bytes.
    fn sync_grads(&mut self, tensor: TensorId) {
        if self.passed.wanted[tensor.index()].is_some() {
            return;
        }
        let mut steps: Vec<GradientStep> = vec![];
        let (mut at, mut beside) = (tensor, 0);
        let mut best: Option<(u64, usize)> = None;
        while let Some(gradient) = self.partial(at, steps.last()) {
            let least = best.map_or_else(|| self.size(at, gradient), |(least, _)| least);
            best.get_or_insert((least, 0));
            let Some(step) = self.step(at, gradient) else { break };
            let (mut gives, op) = (self.gives(&step), step.op);
            steps.push(step);
            let total = beside + gives.iter().map(|(_, size)| size).sum::<u64>();
            // On through the largest of what it reads; the others are completed where they are.
            gives.sort_by_key(|(_, size)| *size);
            let next = gives.pop().map(|(next, _)| next);
            // What several operators give to one tensor is added up before it is completed.
            if total < least || total == least && next.is_some_and(|next| self.is_shared(next, op)) {
                best = Some((total, steps.len()));
            }
            let Some(next) = next else { break };
            beside += gives.iter().map(|(_, size)| size).sum::<u64>();
            at = next;
        }
        for step in steps.into_iter().take(best.map_or(0, |(_, count)| count)) {
            self.passed.placements[step.op.index()] = step.placement;
            self.passed.wanted[step.tensor.index()] = Some(step.gradient);
        }
    }

    /// Whether other operators too give partial gradients to a tensor, or could pass them on, and none a complete one.
    fn is_shared(&mut self, tensor: TensorId, reader: OpId) -> bool {
        let readers = self.readers[tensor.index()].clone();
        let mut others = 0;
        for (op, position) in readers.into_iter().filter(|(op, _)| *op != reader) {
            let read = &self.passed.placements[op.index()].inputs[position];
            if !read.carries_grad {
                continue;
            }
            let given = self.interner.gradient(read.ports);
            let given = self.summed_up(given);
            let partial = self.interner.get(given).parts > 1;
            if !partial && self.learns(op).and_then(|made| self.partial(made, None)).is_none() {
                return false;
            }
            others += 1;
        }
        others > 0
    }

    /// The one thing that an operator makes and that gets a gradient.
    fn learns(&self, op: OpId) -> Option<TensorId> {
        let made = self.cx.graph.op(op).outputs.iter().flatten();
        let mut with_grad = made.copied().filter(|t| self.cx.needs_grad[t.index()]);
        with_grad.next().filter(|_| with_grad.next().is_none())
    }

    /// The layout of a tensor's gradient, if it is partial and the same for all that read it. `last` is
    /// the step before, which is not decided yet.
    fn partial(&mut self, tensor: TensorId, last: Option<&GradientStep>) -> Option<LayoutId> {
        if self.leaves.contains(&tensor) || self.crosses(tensor) {
            return None;
        }
        let mut common: Option<LayoutId> = None;
        for &(op, position) in &self.readers[tensor.index()] {
            let decided = &self.passed.placements[op.index()];
            let placement = last.filter(|step| step.op == op).map_or(decided, |step| &step.placement);
            let read = &placement.inputs[position];
            if read.carries_grad {
                let gradient = self.interner.gradient(read.ports);
                if *common.get_or_insert(gradient) != gradient {
                    return None;
                }
            }
        }
        let summed = self.summed_up(common?);
        (self.interner.get(summed).parts > 1).then_some(summed)
    }

    /// Whether another block than the one that makes a tensor reads it: gradients go there complete.
    fn crosses(&self, tensor: TensorId) -> bool {
        let made_in = self.cx.block_of(tensor);
        self.readers[tensor.index()]
            .iter()
            .any(|(op, _)| made_in.is_some_and(|block| block != self.cx.plan.block(*op)))
    }

    /// The same, after what lies on one rank was added up.
    fn summed_up(&mut self, gradient: LayoutId) -> LayoutId {
        if let Some(known) = self.known.summed.get(&gradient) {
            return *known;
        }
        let layout = self.interner.get(gradient);
        let (middle, parts) = collapse(layout, 1);
        let summed = Layout::new(middle.into_iter().map(|m| m.entry).collect(), parts, layout.reduction);
        let summed = self.interner.layout(summed);
        *self.known.summed.entry(gradient).or_insert(summed)
    }

    /// The bytes of the largest shard of a gradient.
    fn size(&mut self, tensor: TensorId, gradient: LayoutId) -> u64 {
        let entries = &self.interner.get(gradient).entries;
        let largest = self.known.largest.entry(gradient);
        let largest = largest.or_insert_with(|| entries.iter().map(|e| e.region.numel()).max().unwrap_or(0));
        u64::try_from(*largest).unwrap_or(0) * self.cx.graph.tensor(tensor).dtype.bytes() as u64
    }

    /// Whether each part that writes complete shards has one of the partial gradients.
    fn one_each(&mut self, written: LayoutId, gradient: LayoutId) -> bool {
        let (there, gradients) = (self.interner.get(written), self.interner.get(gradient));
        let one_each = || there.parts == 1 && there.lies_as(gradients);
        *self.known.one_each.entry((written, gradient)).or_insert_with(one_each)
    }

    /// The maker of a tensor, passing its gradient on: each of its parts has one of the partial gradients.
    fn step(&mut self, tensor: TensorId, gradient: LayoutId) -> Option<GradientStep> {
        let (op, output) = self.cx.graph.producer(tensor)?;
        let placement = Rc::clone(&self.passed.placements[op.index()]);
        self.learns(op)?;
        let written = placement.outputs[output].as_ref()?;
        if !self.one_each(written.layout, gradient) || !self.keeps_dtype(op, tensor, &placement) {
            return None;
        }
        let inputs = placement.inputs.iter().map(|read| self.reads(read, &written.entry, gradient)).collect();
        let placement = Placement {
            subs: placement.subs.clone(),
            inputs,
            outputs: placement.outputs.clone(),
            in_turn: placement.in_turn,
        };
        Some(GradientStep { tensor, gradient, op, placement: Rc::new(placement) })
    }

    /// Whether gradients keep their type: what is summed later is not rounded before.
    fn keeps_dtype(&self, op: OpId, made: TensorId, placement: &Placement) -> bool {
        let dtype = |t: TensorId| self.cx.graph.tensor(t).dtype;
        let inputs = self.cx.graph.op(op).inputs();
        let mut given = inputs.into_iter().zip(&placement.inputs).filter(|(_, read)| read.carries_grad);
        given.all(|(input, _)| dtype(input) == dtype(made))
    }

    /// The same operand, whose gradient is partial over the parts of what is made too.
    fn reads(&mut self, read: &Read, entry: &[usize], gradient: LayoutId) -> Read {
        if !read.carries_grad {
            return read.clone();
        }
        let key = Reading { ports: read.ports, port: read.port.clone(), entry: entry.to_vec(), gradient };
        if let Some(known) = self.known.numbered.get(&key) {
            return known.clone();
        }
        let (ports, gradients) = (self.interner.get_ports(read.ports), self.interner.get(gradient));
        let parts = gradients.parts;
        let numbered = |(port, entry): (&Option<usize>, &usize)| {
            port.map(|port| {
                let port = &ports.entries[port];
                Port { grad: port.grad * parts + gradients.entries[*entry].part, ..port.clone() }
            })
        };
        let all: Vec<Option<Port>> = read.port.iter().zip(entry).map(numbered).collect();
        let entries = all.iter().flatten().cloned().collect();
        let ports = Ports::new(entries, ports.values, ports.reduction, ports.grads * parts);
        let port = all.iter().map(|p| p.as_ref().map(|p| ports.find(p))).collect();
        let operand = Read { ports: self.interner.ports(ports), port, carries_grad: true };
        self.known.numbered.entry(key).or_insert(operand).clone()
    }

    /// What gets a gradient from a step, and how many bytes of it are to be completed.
    fn gives(&mut self, step: &GradientStep) -> Vec<(TensorId, u64)> {
        let mut gradients: Vec<(TensorId, u64)> = vec![];
        for (tensor, read) in self.cx.graph.op(step.op).inputs().into_iter().zip(&step.placement.inputs) {
            if read.carries_grad && !gradients.iter().any(|(known, _)| *known == tensor) {
                let gradient = self.interner.gradient(read.ports);
                gradients.push((tensor, self.size(tensor, gradient)));
            }
        }
        gradients
    }
}
