//! What is made of constants alone is computed by each block that reads it, instead of sent to it: tables of rotary
//! embeddings, masks.
//!
//! The operators behind such a value are added to the graph once more, as replicas on the devices that read it, and
//! the readers read these. Once that graph is lowered, replicas go by the numbers of their operators again: to
//! whoever reads the program they are operators that several ranks compute.
//!
//! This holds for values that depend on constants and on buffers that no step writes, by operators that have a rule
//! and draw no random numbers. Their maker must have them whole, and on none of the devices that read them. And what
//! the operators read, write and compute must be no more than [`WORTH`] times what would be sent.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use graph::{Arg, Graph, Op, OpId, Source, Tensor, TensorId};
use plan::{On, OpPlan, Plan, Split};
use program::{Boundary, Instr, Program};
use rules::families::{self, View};
use rules::{Analysis, of_constants};

use crate::boundary;
use crate::layout::{bytes, whole};
use crate::reshard_steps::LATENCY;

/// Devices read and write so many bytes, or do as many operations, in about the time in which they send one.
const WORTH: u64 = 32;

/// The graph with replicas behind its operators, and a plan for it.
pub struct Replicas {
    pub graph: Graph,
    pub analysis: Analysis,
    pub plan: Plan,
    /// Of each replica the operator that it is of, and the same of what replicas give.
    ops: Vec<OpId>,
    tensors: Vec<TensorId>,
}

/// Values that a block reads of earlier ones, each with the devices that do.
type Reads = BTreeMap<(u32, TensorId), BTreeSet<u32>>;

/// `None` if no block needs one.
pub fn add(graph: &Graph, analysis: &Analysis, plan: &Plan, boundary: &Boundary) -> Option<Replicas> {
    if plan.block_count() == 1 {
        return None;
    }
    let constant = of_constants(graph, analysis);
    let wanted = boundary::wanted(graph, boundary);
    let reads = reads(graph, plan, &wanted, &constant);
    let old = Old { graph, analysis, plan, constant };
    let mut new = Maker::new(&old);
    let mut anew: HashMap<(u32, TensorId), TensorId> = HashMap::new();
    for ((block, tensor), devices) in reads {
        if let Some(replica) = new.value(block, tensor, &devices) {
            anew.insert((block, tensor), replica);
        }
    }
    let mut made = new.made?;
    for op in graph.op_ids().filter(|op| wanted[op.index()]) {
        let block = plan.block(op);
        rename(&mut made.graph.ops[op.index()], &|tensor| anew.get(&(block, tensor)).copied());
    }
    Some(made)
}

impl Replicas {
    /// How many operators are no replicas.
    pub fn originals(&self) -> usize {
        self.graph.ops.len() - self.ops.len()
    }

    /// Gives replicas the numbers of what they are of.
    pub fn renumber(&self, program: &mut Program) {
        let (ops, tensors) = (self.originals(), self.graph.tensors.len() - self.tensors.len());
        let of_tensor = |tensor: &mut TensorId| {
            if let Some(replica) = tensor.index().checked_sub(tensors) {
                *tensor = self.tensors[replica];
            }
        };
        program.factors.truncate(tensors);
        program.exchanges.iter_mut().for_each(|exchange| of_tensor(&mut exchange.tensor));
        for body in program.roles.iter_mut().map(|role| &mut role.body) {
            body.bufs.iter_mut().for_each(|buf| of_tensor(&mut buf.tensor));
            for instr in body.codes.iter_mut().flat_map(|code| &mut code.instrs) {
                let Instr::Call(call) = instr else { continue };
                for op in &mut call.ops {
                    if let Some(replica) = op.op.index().checked_sub(ops) {
                        op.op = self.ops[replica];
                    }
                }
            }
        }
    }
}

/// What each block reads of earlier ones that is made of constants alone, in the order of blocks.
fn reads(graph: &Graph, plan: &Plan, wanted: &[bool], constant: &[bool]) -> Reads {
    let mut reads = Reads::new();
    for op in graph.op_ids().filter(|op| wanted[op.index()]) {
        for tensor in graph.op(op).inputs() {
            let Some((maker, _)) = graph.producer(tensor) else { continue };
            if constant[maker.index()] && plan.block(maker) != plan.block(op) {
                reads.entry((plan.block(op), tensor)).or_default().extend(plan.op(op).devices.iter());
            }
        }
    }
    reads
}

/// The model's graph, and what is known of it.
struct Old<'a> {
    graph: &'a Graph,
    analysis: &'a Analysis,
    plan: &'a Plan,
    constant: Vec<bool>,
}

impl Old<'_> {
    fn is_whole(&self, op: OpId) -> bool {
        self.plan.op(op).splits.iter().all(|split| split.on == On::Copies || split.parts == 1)
    }

    /// Bytes that an operator reads and writes, or its operations, if these are more.
    fn work(&self, op: OpId) -> u64 {
        let (view, rule) = (View::new(self.graph, op), self.analysis.rules[op.index()].as_ref());
        let part = self.analysis.part(self.graph, op, &self.analysis.op(op).whole(), true, 0);
        let executed = families::executed(view, rule, &part);
        let needs_grad = vec![false; self.graph.tensors.len()];
        let cost = families::cost_of(view, rule, &part, &executed, &needs_grad);
        cost.flops.max(cost.forward.read + cost.forward.written)
    }

    fn size(&self, tensor: TensorId) -> u64 {
        bytes(self.graph, tensor, &whole(self.analysis, tensor))
    }
}

/// Makes replicas, from what the earliest block reads on.
struct Maker<'a> {
    old: &'a Old<'a>,
    made: Option<Replicas>,
    /// The replicas of each tensor, with the devices that they are on.
    known: HashMap<TensorId, Vec<(BTreeSet<u32>, TensorId)>>,
}

impl<'a> Maker<'a> {
    fn new(old: &'a Old<'a>) -> Self {
        Self { old, made: None, known: HashMap::new() }
    }

    /// What a block reads for a tensor on these devices, if that is a replica.
    fn value(&mut self, block: u32, tensor: TensorId, devices: &BTreeSet<u32>) -> Option<TensorId> {
        let old = self.old;
        let (maker, _) = old.graph.producer(tensor)?;
        if !old.is_whole(maker) || old.plan.op(maker).devices.iter().any(|device| devices.contains(device)) {
            return None;
        }
        let behind = self.behind(tensor, devices);
        let held: BTreeSet<TensorId> = behind.iter().flat_map(|op| old.graph.op(*op).inputs()).collect();
        let held = held.into_iter().filter(|tensor| old.graph.producer(*tensor).is_none());
        let work =
            behind.iter().map(|op| old.work(*op)).sum::<u64>() + held.map(|it| old.size(it)).sum::<u64>();
        if work > WORTH * (LATENCY + old.size(tensor)) {
            return None;
        }
        behind.into_iter().for_each(|op| self.replicate(op, block, devices));
        self.there(tensor, devices)
    }

    /// What these devices have of a tensor, each all of it.
    fn there(&self, tensor: TensorId, devices: &BTreeSet<u32>) -> Option<TensorId> {
        let old = self.old;
        let Some((maker, _)) = old.graph.producer(tensor) else { return Some(tensor) };
        let is_there = || devices.iter().all(|device| old.plan.op(maker).devices.contains(device));
        if old.is_whole(maker) && is_there() {
            return Some(tensor);
        }
        let replicas = self.known.get(&tensor).into_iter().flatten();
        replicas.into_iter().find(|(on, _)| on.is_superset(devices)).map(|(_, replica)| *replica)
    }

    /// The operators by which devices make a tensor of what they have, in order.
    fn behind(&self, tensor: TensorId, devices: &BTreeSet<u32>) -> BTreeSet<OpId> {
        let (mut behind, mut open) = (BTreeSet::new(), vec![tensor]);
        while let Some(tensor) = open.pop() {
            if self.there(tensor, devices).is_some() {
                continue;
            }
            let Some((maker, _)) = self.old.graph.producer(tensor) else { continue };
            debug_assert!(self.old.constant[maker.index()]);
            if behind.insert(maker) {
                open.extend(self.old.graph.op(maker).inputs());
            }
        }
        behind
    }

    fn replicate(&mut self, op: OpId, block: u32, devices: &BTreeSet<u32>) {
        let old = self.old;
        let mut replica = old.graph.op(op).clone();
        rename(&mut replica, &|tensor| self.there(tensor, devices));
        let made = self.made.get_or_insert_with(|| Replicas {
            graph: old.graph.clone(),
            analysis: old.analysis.clone(),
            plan: old.plan.clone(),
            ops: vec![],
            tensors: vec![],
        });
        let number = OpId::new(made.graph.ops.len());
        for (output, tensor) in replica.outputs.iter_mut().enumerate() {
            let Some(of) = *tensor else { continue };
            let fresh = TensorId::new(made.graph.tensors.len());
            let source = Source::Op { op: number, output };
            made.graph.tensors.push(Tensor { source, ..old.graph.tensor(of).clone() });
            made.analysis.factors.push(old.analysis.factors[of.index()].clone());
            made.tensors.push(of);
            self.known.entry(of).or_default().push((devices.clone(), fresh));
            *tensor = Some(fresh);
        }
        made.graph.ops.push(replica);
        made.analysis.rules.push(old.analysis.rules[op.index()].clone());
        made.analysis.ops.push(old.analysis.op(op).clone());
        made.plan.ops.push(on_each(devices));
        made.plan.blocks.push(block);
        made.ops.push(op);
    }
}

fn on_each(devices: &BTreeSet<u32>) -> OpPlan {
    let parts = u32::try_from(devices.len()).unwrap_or(u32::MAX);
    let splits = if parts > 1 { vec![Split { on: On::Copies, parts }] } else { vec![] };
    OpPlan { splits, devices: devices.iter().copied().collect() }
}

/// Lets an operator read other tensors.
fn rename(op: &mut Op, new: &impl Fn(TensorId) -> Option<TensorId>) {
    op.args.iter_mut().chain(op.kwargs.iter_mut().map(|(_, arg)| arg)).for_each(|arg| rename_in(arg, new));
}

fn rename_in(arg: &mut Arg, new: &impl Fn(TensorId) -> Option<TensorId>) {
    match arg {
        Arg::Tensor(tensor) => *tensor = new(*tensor).unwrap_or(*tensor),
        Arg::List(items) => items.iter_mut().for_each(|item| rename_in(item, new)),
        _ => {}
    }
}
