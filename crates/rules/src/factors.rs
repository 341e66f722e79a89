//! Dims as products of factors, followed through the whole graph.
//!
//! A fused projection's output dim is `(3 h d)`: an interval of `h` is strided in the tensor but
//! simple in its factors. Every operator's rule relates the dims of its operands; [`Analysis::new`]
//! carries the places where dims are cut along these relations until nothing changes. Afterwards
//! each tensor dim has a list of factors, outer to inner, and each operator has [`Loop`]s: the
//! factors of its rule's dims, which are what a plan splits.
//!
//! Invariants: a dim's strides form a chain in which each divides the next; a relation that would
//! break the chain is dropped and the rule's dim becomes whole for that operator.

use graph::{Graph, OpId, TensorId};

use crate::algebra::{DimId, Kind, Operand, Rule};
use crate::families::{self, View};
use crate::interval::{Interval, Region};
use crate::local::Part;

/// One factor of one dim of an operator's rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Loop {
    /// The dim's name, with the factor's position if the dim has several: `n.1`.
    pub name: String,
    pub dim: DimId,
    pub size: i64,
    pub kind: Kind,
}

/// What one operand carries along each factor of its tensor: a loop, or nothing that may be split.
pub type Carried = Vec<Option<usize>>;

/// The loops of one operator, and where its operands carry them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpDims {
    pub loops: Vec<Loop>,
    /// For each tensor argument, for each factor of the tensor over all dims.
    pub inputs: Vec<Carried>,
    pub outputs: Vec<Carried>,
}

/// Factors of every tensor and loops of every operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Analysis {
    /// Tensor, dim, factor. A dim of size one has no factors.
    pub factors: Vec<Vec<Vec<i64>>>,
    /// `None` for an operator without a rule: it is replicated.
    pub rules: Vec<Option<Rule>>,
    pub ops: Vec<OpDims>,
}

impl Analysis {
    pub fn new(graph: &Graph) -> Analysis {
        let rules: Vec<Option<Rule>> =
            graph.op_ids().map(|id| families::rule_of(View::new(graph, id))).collect();
        let mut cuts = Cuts::new(graph, &rules);
        cuts.unify(graph, &rules);
        let factors: Vec<Vec<Vec<i64>>> = (graph.tensors.iter().zip(&cuts.tensors))
            .map(|(tensor, dims)| tensor.shape.iter().zip(dims).map(|(&s, c)| sizes(s, c)).collect())
            .collect();
        let ops = graph.op_ids().map(|id| cuts.op_dims(graph, id, rules[id.index()].as_ref())).collect();
        Analysis { factors, rules, ops }
    }

    /// All factors of a tensor, over its dims in order.
    pub fn flat(&self, tensor: TensorId) -> Vec<i64> {
        self.factors[tensor.index()].iter().flatten().copied().collect()
    }

    pub fn op(&self, op: OpId) -> &OpDims {
        &self.ops[op.index()]
    }

    /// The region of one operand, given the interval of each loop.
    pub fn region(&self, tensor: TensorId, carried: &Carried, at: &[Interval]) -> Region {
        let factors = self.factors[tensor.index()].iter().flatten();
        let interval = |(&size, loop_of): (&i64, &Option<usize>)| match loop_of {
            Some(index) => at[*index],
            None => Interval::whole(size),
        };
        Region(factors.zip(carried).map(interval).collect())
    }

    /// The part of an operator that computes these intervals of its loops. `first` says that this is
    /// also the first of the parts by value, if the operator is split by value.
    pub fn part(&self, graph: &Graph, op: OpId, at: &[Interval], first: bool, slot: i64) -> Part {
        let dims = self.op(op);
        let view = graph.op(op);
        let shape = |tensor: TensorId, carried: &Carried| {
            self.region(tensor, carried, at).shape(&self.factors[tensor.index()])
        };
        let inputs = view.inputs().into_iter().zip(&dims.inputs).map(|(t, c)| shape(t, c)).collect();
        let outputs = (view.outputs.iter().zip(&dims.outputs))
            .map(|(t, c)| t.map_or_else(Vec::new, |t| shape(t, c)))
            .collect();
        let reduced_first =
            dims.loops.iter().zip(at).all(|(l, i)| !matches!(l.kind, Kind::Reduce(_)) || i.lo == 0);
        let (size, start) = self.rules[op.index()].as_ref().map_or((vec![], vec![]), |rule| {
            (0..rule.dims.len()).map(|d| dims.extent(DimId::new(d), at)).unzip()
        });
        Part { size, start, first: first && reduced_first, inputs, outputs, slot }
    }
}

impl OpDims {
    /// The intervals of an operator that is not split.
    pub fn whole(&self) -> Vec<Interval> {
        self.loops.iter().map(|l| Interval::whole(l.size)).collect()
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.loops.iter().position(|l| l.name == name)
    }

    /// How many elements of a dim the intervals cover, and where they begin if they are contiguous:
    /// below the first factor that is really cut, every factor must be whole.
    fn extent(&self, dim: DimId, at: &[Interval]) -> (i64, Option<i64>) {
        let (mut size, mut start, mut contiguous, mut loose) = (1, 0, true, false);
        for (l, i) in self.loops.iter().zip(at).filter(|(l, _)| l.dim == dim) {
            contiguous &= !loose || i.len() == l.size;
            // Outer factors fixed to one element keep an inner interval contiguous.
            loose |= i.len() != 1;
            size *= i.len();
            start = start * l.size + i.lo;
        }
        (size, contiguous.then_some(start))
    }
}

/// The strides at which a dim is cut, ascending, between 1 and its size, both excluded.
type Chain = Vec<i64>;

fn sizes(size: i64, cuts: &Chain) -> Vec<i64> {
    if size == 1 {
        return vec![];
    }
    let mut bounds = vec![1];
    bounds.extend(cuts);
    bounds.push(size);
    bounds.windows(2).rev().map(|w| if w[0] == 0 { 0 } else { w[1] / w[0] }).collect()
}

/// Adds a stride if the chain stays a chain. Says whether anything changed.
fn insert(chain: &mut Chain, size: i64, stride: i64) -> bool {
    if stride <= 1 || stride >= size || size % stride != 0 || chain.contains(&stride) {
        return false;
    }
    let fits = chain.iter().all(|&c| c % stride == 0 || stride % c == 0);
    if fits {
        chain.push(stride);
        chain.sort_unstable();
    }
    fits
}

/// The cuts found so far, of every tensor dim and of every dim of every rule.
struct Cuts {
    tensors: Vec<Vec<Chain>>,
    rules: Vec<Vec<Chain>>,
}

impl Cuts {
    fn new(graph: &Graph, rules: &[Option<Rule>]) -> Cuts {
        let tensors = graph.tensors.iter().map(|t| vec![vec![]; t.shape.len()]).collect();
        let rules = rules.iter().map(|r| vec![vec![]; r.as_ref().map_or(0, |r| r.dims.len())]).collect();
        Cuts { tensors, rules }
    }

    /// Carries cuts along all rules until nothing changes. Sweeps alternate in direction, so that
    /// most graphs settle in three.
    fn unify(&mut self, graph: &Graph, rules: &[Option<Rule>]) {
        let mut forward = true;
        loop {
            let mut changed = false;
            let mut visit = |id: OpId| {
                if let Some(rule) = &rules[id.index()] {
                    changed |= self.relate(graph, id, rule);
                }
            };
            if forward {
                graph.op_ids().for_each(&mut visit);
            } else {
                (0..graph.ops.len()).rev().map(OpId::new).for_each(&mut visit);
            }
            if !changed {
                return;
            }
            forward = !forward;
        }
    }

    fn relate(&mut self, graph: &Graph, id: OpId, rule: &Rule) -> bool {
        let mut changed = false;
        loop {
            let mut again = false;
            for (tensor, operand) in operands(graph, id, rule) {
                for (dim, product) in operand.dims.iter().enumerate() {
                    again |= self.relate_dim(graph, id, rule, tensor, dim, product);
                }
            }
            changed |= again;
            if !again {
                return changed;
            }
        }
    }

    fn relate_dim(
        &mut self,
        graph: &Graph,
        id: OpId,
        rule: &Rule,
        tensor: TensorId,
        dim: usize,
        product: &[DimId],
    ) -> bool {
        let size = graph.tensor(tensor).shape[dim];
        let mut changed = false;
        let mut inner = 1;
        for atom in product.iter().rev() {
            let atom_size = rule.dim(*atom).size;
            let chain = &mut self.rules[id.index()][atom.index()];
            let outer_chain = &mut self.tensors[tensor.index()][dim];
            changed |= insert(outer_chain, size, inner);
            for stride in outer_chain.clone() {
                if stride % inner == 0 {
                    changed |= insert(chain, atom_size, stride / inner);
                }
            }
            for stride in chain.clone() {
                changed |= insert(outer_chain, size, stride * inner);
            }
            inner *= atom_size;
        }
        changed
    }

    fn op_dims(&self, graph: &Graph, id: OpId, rule: Option<&Rule>) -> OpDims {
        let op = graph.op(id);
        let Some(rule) = rule else { return self.opaque(graph, id) };
        let broken = self.broken(graph, id, rule);
        let mut dims = OpDims::default();
        let mut first = Vec::with_capacity(rule.dims.len());
        for (index, dim) in rule.dims.iter().enumerate() {
            first.push(dims.loops.len());
            let list = sizes(dim.size, &self.rules[id.index()][index]);
            let many = list.len() > 1;
            for (position, &size) in list.iter().enumerate() {
                let name = if many { format!("{}.{position}", dim.name) } else { dim.name.clone() };
                let inner = dim.contiguous && position > 0;
                let kind = if broken[index] || inner { Kind::Whole } else { dim.kind };
                dims.loops.push(Loop { name, dim: DimId::new(index), size, kind });
            }
        }
        let carried = |operand: &Operand, tensor: Option<TensorId>| -> Carried {
            let Some(tensor) = tensor.filter(|_| !operand.absent) else {
                return tensor.map_or(vec![], |t| self.nothing(graph, t));
            };
            let mut all = vec![];
            for (dim, product) in operand.dims.iter().enumerate() {
                let count = sizes(graph.tensor(tensor).shape[dim], &self.tensors[tensor.index()][dim]).len();
                if product.iter().any(|d| broken[d.index()]) {
                    all.extend(std::iter::repeat_n(None, count));
                    continue;
                }
                for atom in product {
                    let list = sizes(rule.dim(*atom).size, &self.rules[id.index()][atom.index()]);
                    all.extend((0..list.len()).map(|i| Some(first[atom.index()] + i)));
                }
            }
            all
        };
        let inputs = op.inputs();
        dims.inputs = rule.inputs.iter().zip(&inputs).map(|(o, t)| carried(o, Some(*t))).collect();
        dims.outputs = rule.outputs.iter().zip(&op.outputs).map(|(o, t)| carried(o, *t)).collect();
        dims
    }

    fn opaque(&self, graph: &Graph, id: OpId) -> OpDims {
        let op = graph.op(id);
        let outputs = op.outputs.iter().map(|t| t.map_or(vec![], |t| self.nothing(graph, t))).collect();
        OpDims {
            loops: vec![],
            inputs: op.inputs().into_iter().map(|t| self.nothing(graph, t)).collect(),
            outputs,
        }
    }

    fn nothing(&self, graph: &Graph, tensor: TensorId) -> Carried {
        let dims = graph.tensor(tensor).shape.iter().zip(&self.tensors[tensor.index()]);
        vec![None; dims.map(|(&s, c)| sizes(s, c).len()).sum()]
    }

    /// The dims of a rule whose factors do not line up with some operand's: those become whole.
    fn broken(&self, graph: &Graph, id: OpId, rule: &Rule) -> Vec<bool> {
        let mut broken = vec![false; rule.dims.len()];
        loop {
            let mut again = false;
            for (tensor, operand) in operands(graph, id, rule) {
                for (dim, product) in operand.dims.iter().enumerate() {
                    let spread = product.iter().any(|d| broken[d.index()]);
                    if (spread || !self.lines_up(graph, id, rule, tensor, dim, product))
                        && product.iter().any(|d| !broken[d.index()])
                    {
                        product.iter().for_each(|d| broken[d.index()] = true);
                        again = true;
                    }
                }
            }
            if !again {
                return broken;
            }
        }
    }

    fn lines_up(
        &self,
        graph: &Graph,
        id: OpId,
        rule: &Rule,
        tensor: TensorId,
        dim: usize,
        product: &[DimId],
    ) -> bool {
        let whole = sizes(graph.tensor(tensor).shape[dim], &self.tensors[tensor.index()][dim]);
        let joined: Vec<i64> = product
            .iter()
            .flat_map(|d| sizes(rule.dim(*d).size, &self.rules[id.index()][d.index()]))
            .collect();
        whole == joined
    }
}

/// The tensors of an operator with their operands in the rule; absent ones left out.
fn operands<'a>(graph: &Graph, id: OpId, rule: &'a Rule) -> Vec<(TensorId, &'a Operand)> {
    let op = graph.op(id);
    let inputs = op.inputs().into_iter().zip(&rule.inputs);
    let outputs = op.outputs.iter().zip(&rule.outputs).filter_map(|(t, o)| t.map(|t| (t, o)));
    inputs.chain(outputs).filter(|(_, o)| !o.absent).collect()
}
