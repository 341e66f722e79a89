//! What is known of a model's operators, on whatever devices and however they are divided.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use cluster::Device;
use compiler::Kinds;
use graph::{Graph, OpId};
use hashing::Map;
use plan::classes::Classes;
use plan::{OpPlan, Split};
use rules::Analysis;

use super::super::messages::{Count, Messages};
use super::part::{PartTimes, part};
use super::passing::passes;
use super::signature::signature;
use crate::Question;
use crate::bound::arriving;

pub(crate) struct Operators<'q> {
    pub(super) graph: &'q Graph,
    pub(super) analysis: &'q Analysis,
    pub(super) needs_grad: Vec<bool>,
    pub(super) kinds: Kinds,
    pub(in super::super) classes: Rc<Classes>,
    /// The number of each operator's text: those of one number have the same parts.
    pub(super) signature: Vec<usize>,
    /// Operators that nothing needs read nothing.
    pub(super) readers: Vec<Vec<(OpId, usize)>>,
    pub(super) wanted: Vec<bool>,
    /// For each tensor whether its gradient can be completed further back, with fewer bytes.
    pub(super) passes: Vec<bool>,
    /// Sets of kinds of devices, by their numbers.
    devices: RefCell<Vec<Vec<Device>>>,
    parts: RefCell<Map<OperatorKey, PartTimes>>,
}

/// A set of kinds of devices, whether it is the least that counts, the number of an operator's text, and its splits.
type OperatorKey = (usize, bool, usize, Vec<Split>);

impl<'q> Operators<'q> {
    /// Of a question about some devices, and of any other that differs in these and in constraints.
    pub(crate) fn new(question: &Question<'q>) -> Self {
        let (graph, analysis) = (question.graph, question.analysis);
        let needs_grad = arriving(question);
        let wanted = compiler::wanted(graph, question.boundary);
        let mut readers = graph.uses();
        readers.iter_mut().for_each(|all| all.retain(|(op, _)| wanted[op.index()]));
        let mut known: HashMap<String, usize> = HashMap::new();
        let number = |op: OpId| {
            let next = known.len();
            *known.entry(signature(graph, analysis, &needs_grad, op)).or_insert(next)
        };
        Self {
            graph,
            analysis,
            signature: graph.op_ids().map(number).collect(),
            passes: passes(graph, &readers, &needs_grad),
            needs_grad,
            kinds: Kinds::new(graph),
            classes: Rc::new(Classes::new(graph, analysis)),
            readers,
            wanted,
            devices: RefCell::default(),
            parts: RefCell::default(),
        }
    }

    /// The number of the kinds of devices that messages are between.
    pub(super) fn devices(&self, messages: &Messages<'_>) -> usize {
        let mut known = self.devices.borrow_mut();
        let same = |kinds: &Vec<Device>| kinds.iter().eq(messages.kinds.iter().copied());
        known.iter().position(same).unwrap_or_else(|| {
            known.push(messages.kinds.iter().map(|kind| (*kind).clone()).collect());
            known.len() - 1
        })
    }

    /// A part of an operator that is divided so.
    pub(super) fn part(&self, op: OpId, devices: usize, count: Count, splits: Vec<Split>) -> PartTimes {
        let key = (devices, count == Count::Least, self.signature[op.index()], splits);
        if let Some(known) = self.parts.borrow().get(&key) {
            return known.clone();
        }
        let plan = OpPlan { splits: key.3.clone(), devices: [].into() };
        let kinds = &self.devices.borrow()[devices];
        let made =
            part((self.graph, self.analysis), (&self.needs_grad, &self.kinds, kinds), op, (&plan, count));
        self.parts.borrow_mut().insert(key, made.clone());
        made
    }
}
