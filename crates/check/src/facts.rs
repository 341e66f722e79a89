//! What the checker knows of the graph before it looks at a program.
//!
//! Operators that compute the same from the same are one: each has a canonical operator, each tensor
//! a canonical tensor, and everything below is said of those.

use std::collections::HashMap;

use graph::{Graph, OpId, TensorId};
use rules::local::unchanged;
use rules::{Analysis, Kind, LocalArg, LocalOp, Reduction, View, families};

use crate::uniform;

/// A way in which a gradient reaches a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Operand {
        op: OpId,
        position: usize,
    },
    /// The gradient that the caller gives for an output.
    Seed {
        output: usize,
    },
}

#[derive(Debug, Default)]
pub(crate) struct OpFacts {
    pub(crate) inputs: Vec<TensorId>,
    pub(crate) outputs: Vec<Option<TensorId>>,
    pub(crate) random: bool,
    /// What it computes needs none of its operands' values.
    creates: bool,
    /// Operands whose value matters.
    matters: Vec<bool>,
    /// The loops that are reduced.
    pub(crate) reduced: Vec<usize>,
    /// For each operand, the loops over which its gradient is summed.
    pub(crate) loose: Vec<Vec<usize>>,
    /// For each operand, the number of its use, if a gradient flows through it.
    pub(crate) uses: Vec<Option<u32>>,
}

pub(crate) struct Facts<'g> {
    pub(crate) graph: &'g Graph,
    pub(crate) analysis: &'g Analysis,
    /// All factors of each tensor, over its dims in order.
    pub(crate) flat: Vec<Vec<i64>>,
    class: Vec<TensorId>,
    canon: Vec<OpId>,
    ops: Vec<OpFacts>,
    readers: Vec<Vec<OpId>>,
    pub(crate) creators: Vec<OpId>,
    needs: Vec<bool>,
    class_needs: Vec<bool>,
    depends: Vec<bool>,
    reached: Vec<bool>,
    /// For each tensor and factor, whether the value is the same all along it.
    uniform: Vec<Vec<bool>>,
    pub(crate) uses: Vec<Use>,
    uses_of: Vec<Vec<u32>>,
    /// For each use, whether what it contributes is zero.
    zero_uses: Vec<bool>,
}

impl OpFacts {
    /// Operands whose value matters.
    fn values(&self) -> impl Iterator<Item = (usize, TensorId)> {
        self.inputs.iter().copied().enumerate().filter(|(position, _)| self.matters[*position])
    }
}

/// Local targets that draw random numbers by a key.
const KEYED: [&str; 4] = ["sw.dropout", "sw.native_dropout", "sw.attention", "sw.draw"];

/// Operators that draw without a key: never the same twice, never split.
const UNKEYED: [&str; 11] = [
    "rand",
    "randn",
    "randint",
    "randperm",
    "rand_like",
    "randn_like",
    "randint_like",
    "bernoulli",
    "exponential",
    "multinomial",
    "normal",
];

impl<'g> Facts<'g> {
    /// `needs` says of each tensor whether the program's code counts it among those that need a gradient,
    /// `seeded` which of the graph's outputs leave with a gradient.
    pub(crate) fn new(graph: &'g Graph, analysis: &'g Analysis, needs: Vec<bool>, seeded: &[bool]) -> Self {
        let tensors = graph.tensors.len();
        let mut facts = Self {
            graph,
            analysis,
            flat: graph.tensor_ids().map(|id| analysis.flat(id)).collect(),
            class: graph.tensor_ids().collect(),
            canon: graph.op_ids().collect(),
            ops: vec![],
            readers: vec![vec![]; tensors],
            creators: vec![],
            needs,
            class_needs: vec![false; tensors],
            depends: vec![false; tensors],
            reached: vec![false; tensors],
            uniform: vec![],
            uses: vec![],
            uses_of: vec![vec![]; tensors],
            zero_uses: vec![],
        };
        facts.number();
        facts.uniform = uniform::factors(graph, analysis, |op| facts.op(op).random);
        facts.flow(seeded);
        facts.list_uses(seeded);
        facts.find_zeros();
        facts
    }

    pub(crate) fn class(&self, tensor: TensorId) -> TensorId {
        self.class[tensor.index()]
    }

    /// The canonical operator, if there is one of that number.
    pub(crate) fn canon(&self, op: OpId) -> Option<OpId> {
        self.canon.get(op.index()).copied()
    }

    pub(crate) fn op(&self, op: OpId) -> &OpFacts {
        &self.ops[op.index()]
    }

    pub(crate) fn readers(&self, tensor: TensorId) -> &[OpId] {
        &self.readers[tensor.index()]
    }

    /// Whether the program's instructions count this value among those that need a gradient.
    /// Of equal computations one may need it and the other not: the declared one is meant.
    /// For each tensor whether the program's code counts it among those that need a gradient.
    pub(crate) fn all_needs(&self) -> &[bool] {
        &self.needs
    }

    pub(crate) fn needs(&self, declared: TensorId, held: TensorId) -> bool {
        match self.class.get(declared.index()) {
            Some(class) if *class == held => self.needs[declared.index()],
            _ => self.class_needs[held.index()],
        }
    }

    pub(crate) fn depends(&self, tensor: TensorId) -> bool {
        self.depends[tensor.index()]
    }

    /// Whether a gradient arises for it.
    pub(crate) fn reached(&self, tensor: TensorId) -> bool {
        self.reached[tensor.index()]
    }

    /// Whether the value is the same all along a factor, counted over all dims.
    pub(crate) fn is_uniform(&self, tensor: TensorId, factor: usize) -> bool {
        self.uniform[tensor.index()][factor]
    }

    /// Whether all operands of an operator that carry this loop are the same all along it.
    pub(crate) fn is_same_along(&self, op: OpId, index: usize) -> bool {
        let inputs = self.analysis.op(op).inputs.iter().zip(&self.op(op).inputs);
        let mut carried = inputs.flat_map(|(carried, tensor)| {
            let along = carried.iter().enumerate().filter(|(_, l)| **l == Some(index));
            along.map(|(factor, _)| self.is_uniform(*tensor, factor))
        });
        carried.all(|uniform| uniform)
    }

    pub(crate) fn uses_of(&self, tensor: TensorId) -> &[u32] {
        &self.uses_of[tensor.index()]
    }

    /// Whether the gradient of a tensor is a sum of nothing but zeros.
    pub(crate) fn has_zero_gradient(&self, tensor: TensorId) -> bool {
        let uses = self.uses_of(tensor);
        !uses.is_empty() && uses.iter().all(|number| self.is_zero(*number))
    }

    /// Whether what a use contributes to a gradient is zero.
    pub(crate) fn is_zero(&self, number: u32) -> bool {
        self.zero_uses[number as usize]
    }

    pub(crate) fn producer(&self, tensor: TensorId) -> Option<OpId> {
        self.graph.producer(tensor).and_then(|(op, _)| self.canon(op))
    }

    /// How partial values of an operator are completed.
    pub(crate) fn reduction(&self, op: OpId) -> Reduction {
        let loops = &self.analysis.op(op).loops;
        let kinds = self.op(op).reduced.iter().map(|&l| loops[l].kind);
        kinds.fold(Reduction::Sum, |chosen, kind| match kind {
            Kind::Reduce(reduction) if reduction != Reduction::Sum => reduction,
            _ => chosen,
        })
    }

    fn number(&mut self) {
        let mut known: HashMap<String, OpId> = HashMap::new();
        for id in self.graph.op_ids() {
            let local = whole(self.graph, self.analysis, id);
            let random = unkeyed(&self.graph.op(id).target) || KEYED.contains(&&local.target[..]);
            let creates = !reads(&local);
            let key = self.key(id, random, creates, &local);
            let canon = *known.entry(key).or_insert(id);
            self.canon[id.index()] = canon;
            let pairs = self.graph.op(id).outputs.iter().zip(&self.graph.op(canon).outputs);
            for (output, other) in pairs {
                if let (Some(output), Some(other)) = (output, other) {
                    self.class[output.index()] = *other;
                }
            }
            let facts = OpFacts { random, creates, ..self.op_facts(id) };
            self.ops.push(facts);
            if canon == id {
                self.enlist(id);
            }
        }
        for tensor in self.graph.tensor_ids() {
            let class = self.class(tensor);
            self.class_needs[class.index()] |= self.needs[tensor.index()];
        }
    }

    fn enlist(&mut self, id: OpId) {
        let inputs = self.ops[id.index()].inputs.clone();
        if self.ops[id.index()].creates {
            self.creators.push(id);
        }
        for tensor in inputs {
            let readers = &mut self.readers[tensor.index()];
            if readers.last() != Some(&id) {
                readers.push(id);
            }
        }
    }

    /// What makes two operators the same: what they execute, on what, and their layouts.
    fn key(&self, id: OpId, random: bool, creates: bool, local: &LocalOp) -> String {
        let op = self.graph.op(id);
        let unique = random.then_some(id);
        let dims = self.analysis.op(id);
        let read: Vec<_> = op.inputs().into_iter().map(|t| self.class(t)).zip(&dims.inputs).collect();
        let read = if creates { vec![] } else { read };
        let made: Vec<_> = (op.outputs.iter().flatten())
            .map(|t| {
                (self.graph.tensor(*t).dtype, &self.graph.tensor(*t).shape, &self.analysis.factors[t.index()])
            })
            .collect();
        let present: Vec<bool> = op.outputs.iter().map(Option::is_some).collect();
        let carried = (&dims.loops, &dims.outputs);
        format!("{local:?} {read:?} {} {unique:?} {made:?} {present:?} {carried:?}", op.no_grad)
    }

    fn op_facts(&self, id: OpId) -> OpFacts {
        let dims = self.analysis.op(id);
        let reduces = |l: usize| matches!(dims.loops[l].kind, Kind::Reduce(_));
        let rule = self.analysis.rules[id.index()].as_ref();
        let loose = |(position, carried): (usize, &Vec<Option<usize>>)| {
            let once = rule.is_some_and(|rule| rule.inputs[position].once);
            let free = |l: &usize| !(carried.contains(&Some(*l)) || once && reduces(*l));
            (0..dims.loops.len()).filter(free).collect()
        };
        let op = self.graph.op(id);
        OpFacts {
            inputs: op.inputs().into_iter().map(|t| self.class(t)).collect(),
            outputs: op.outputs.iter().map(|t| t.map(|t| self.class(t))).collect(),
            matters: (0..op.inputs().len()).map(|i| rule.is_none_or(|rule| !rule.inputs[i].absent)).collect(),
            reduced: (0..dims.loops.len()).filter(|&l| reduces(l)).collect(),
            loose: dims.inputs.iter().enumerate().map(loose).collect(),
            uses: vec![None; op.inputs().len()],
            ..OpFacts::default()
        }
    }

    fn flow(&mut self, seeded: &[bool]) {
        for id in self.graph.tensor_ids() {
            self.depends[id.index()] = self.graph.tensor(id).wants_grad();
        }
        for id in self.graph.op_ids().filter(|id| self.canon[id.index()] == *id) {
            for (number, out) in self.ops[id.index()].outputs.iter().enumerate() {
                let Some(out) = out.filter(|out| self.graph.tensor(*out).dtype.is_float()) else { continue };
                let mut given = self.ops[id.index()].values().filter(|(_, t)| self.depends[t.index()]);
                let op = self.graph.op(id);
                self.depends[out.index()] = given.any(|(input, _)| op.gives_gradient(number, input));
            }
        }
        for (out, _) in self.graph.outputs.iter().zip(seeded).filter(|(_, seeded)| **seeded) {
            let Some(out) = out.map(|out| self.class[out.index()]) else { continue };
            self.reached[out.index()] = self.depends[out.index()];
        }
        for id in (0..self.graph.ops.len()).rev().map(OpId::new) {
            if self.canon[id.index()] != id {
                continue;
            }
            let values: Vec<(usize, TensorId)> = self.ops[id.index()].values().collect();
            for (position, input) in values {
                self.reached[input.index()] |= self.depends[input.index()] && self.is_asked(id, position);
            }
        }
    }

    /// Whether a gradient that arrives at an operator goes on to this operand.
    fn is_asked(&self, id: OpId, input: usize) -> bool {
        let outputs = self.ops[id.index()].outputs.iter().enumerate();
        let mut arrives = outputs.filter(|(_, out)| out.is_some_and(|out| self.reached[out.index()]));
        arrives.any(|(output, _)| self.graph.op(id).gives_gradient(output, input))
    }

    fn list_uses(&mut self, seeded: &[bool]) {
        for id in self.graph.op_ids() {
            if self.canon[id.index()] != id {
                continue;
            }
            let values: Vec<(usize, TensorId)> = self.ops[id.index()].values().collect();
            for (position, tensor) in values {
                if self.depends[tensor.index()] && self.is_asked(id, position) {
                    let number = self.add_use(tensor, Use::Operand { op: id, position });
                    self.ops[id.index()].uses[position] = Some(number);
                }
            }
        }
        for (output, seeded) in seeded.iter().enumerate() {
            let Some(tensor) = self.graph.outputs[output].map(|t| self.class(t)) else { continue };
            if *seeded && self.depends[tensor.index()] {
                self.add_use(tensor, Use::Seed { output });
            }
        }
    }

    /// Gradients that are sums over loops without elements, or of what such gradients become.
    fn find_zeros(&mut self) {
        self.zero_uses = vec![false; self.uses.len()];
        for id in (0..self.graph.ops.len()).rev().map(OpId::new).filter(|id| self.canon[id.index()] == *id) {
            let (op, loops) = (self.op(id), &self.analysis.op(id).loops);
            let mut given = op.outputs.iter().flatten().filter(|out| self.reached(**out));
            let nothing_arrives = given.all(|out| self.has_zero_gradient(*out));
            let is_zero = |loose: &[usize]| nothing_arrives || loose.iter().any(|&l| loops[l].size == 0);
            let uses = op.uses.iter().zip(&op.loose);
            let zeros: Vec<u32> =
                uses.filter(|(_, loose)| is_zero(loose)).filter_map(|(number, _)| *number).collect();
            zeros.into_iter().for_each(|number| self.zero_uses[number as usize] = true);
        }
    }

    fn add_use(&mut self, tensor: TensorId, made: Use) -> u32 {
        let number = u32::try_from(self.uses.len()).expect("fewer than 2^32 uses");
        self.uses.push(made);
        self.uses_of[tensor.index()].push(number);
        number
    }

    /// Whether the caller gives a gradient for this output of a program's code, if it leaves.
    pub(crate) fn expects_seed(&self, body: &program::Body, output: usize) -> bool {
        let needs = self.graph.outputs[output].is_some_and(|tensor| self.needs[tensor.index()]);
        body.trains() && needs
    }

    /// The use of an output's tensor by the caller.
    pub(crate) fn seed(&self, output: usize) -> Option<u32> {
        let at = self.uses.iter().rposition(|u| *u == Use::Seed { output })?;
        u32::try_from(at).ok()
    }
}

fn unkeyed(target: &str) -> bool {
    target.split('.').nth(1).is_some_and(|name| UNKEYED.contains(&name.trim_end_matches('_')))
}

fn whole(graph: &Graph, analysis: &Analysis, id: OpId) -> LocalOp {
    match &analysis.rules[id.index()] {
        Some(rule) => {
            let at = analysis.op(id).whole();
            families::local_of(View::new(graph, id), rule, &analysis.part(graph, id, &at, true, 0))
        }
        None => unchanged(graph.op(id)),
    }
}

fn reads(local: &LocalOp) -> bool {
    fn reads(arg: &LocalArg) -> bool {
        match arg {
            LocalArg::Input(_) => true,
            LocalArg::List(items) => items.iter().any(reads),
            _ => false,
        }
    }
    local.args.iter().chain(local.kwargs.iter().map(|(_, arg)| arg)).any(reads)
}
