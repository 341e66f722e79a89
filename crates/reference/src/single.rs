//! The model on one device: its graph, operator by operator, forward and back, for the micro-batches of a step.

use std::collections::BTreeMap;

use graph::{Graph, Source, TensorId};
use program::{Boundary, Output};

use crate::number::Num;
use crate::ops::{self, Env, Made, kind, wrong};
use crate::sources::{Sources, When, argument};
use crate::tape::{T, Tape, Value};

/// What a step must give.
#[derive(Default)]
pub struct Expected {
    /// By micro-batch and output of the graph.
    pub outputs: Vec<Vec<Option<Value>>>,
    /// Of parameters, by their names, summed over the step.
    pub gradients: BTreeMap<String, Value>,
    /// Of inputs, by micro-batch and name.
    pub of_inputs: Vec<BTreeMap<String, Value>>,
    /// What buffers and changed parameters hold after it, by first name.
    pub updated: BTreeMap<String, Value>,
}

/// A graph, and by which number each of its operators draws random numbers.
pub struct Single<'g> {
    pub graph: &'g Graph,
    pub numbers: Vec<u32>,
    pub boundary: &'g Boundary,
    pub trains: bool,
}

impl Single<'_> {
    /// A step of so many micro-batches; `held` are what buffers have become.
    pub fn step(
        &self,
        env: &mut Env<'_>,
        sources: &Sources,
        step: u32,
        batches: u32,
        held: &mut BTreeMap<String, Value>,
    ) -> Made<Expected> {
        let mut expected = Expected::default();
        for batch in 0..batches {
            self.micro_batch(env, sources, When { step, batch }, held, &mut expected)?;
        }
        expected.updated.clone_from(held);
        Ok(expected)
    }

    fn micro_batch(
        &self,
        env: &mut Env<'_>,
        sources: &Sources,
        when: When,
        held: &mut BTreeMap<String, Value>,
        expected: &mut Expected,
    ) -> Made<()> {
        (env.single, env.batch) = (true, when.key());
        let graph = self.graph;
        let (mut tape, mut values) = (Tape::new(), vec![None; graph.tensors.len()]);
        for (tensor, place) in graph.tensors.iter().zip(&mut values) {
            if matches!(tensor.source, Source::Op { .. }) {
                continue;
            }
            let now = name(&tensor.source).and_then(|name| held.get(name));
            let value = now.cloned().unwrap_or_else(|| sources.value(tensor, when));
            *place = Some(tape.enter(&value, self.trains && tensor.wants_grad()));
        }
        env.spend(tape.len())?;
        for at in 0..graph.ops.len() {
            self.operator(env, &mut tape, &mut values, at)?;
        }
        let value = |id: TensorId| values[id.index()].as_ref();
        let leave = |id: &Option<TensorId>| id.and_then(&value).map(|x| tape.leave(x));
        expected.outputs.push(graph.outputs.iter().map(leave).collect());
        for (name, id) in &graph.updates {
            if let Some(x) = value(*id) {
                held.insert(name.clone(), tape.leave(x));
            }
        }
        if self.trains {
            self.back(&tape, &values, sources, when, expected);
        }
        Ok(())
    }

    fn operator(&self, env: &mut Env<'_>, tape: &mut Tape, values: &mut [Option<T>], at: usize) -> Made<()> {
        let op = &self.graph.ops[at];
        let read = |id: TensorId| values[id.index()].clone();
        let arg = |arg: &graph::Arg| argument(arg, &read, &ops::OpArg::Tensor);
        let args: Option<Vec<ops::OpArg>> = op.args.iter().map(arg).collect();
        let kwargs = op.kwargs.iter().map(|(name, value)| Some((name.clone(), arg(value)?)));
        let (Some(args), Some(kwargs)) = (args, kwargs.collect::<Option<Vec<_>>>()) else {
            return wrong(format!("{}: reads what is not there", op.target));
        };
        let made = |id: &Option<TensorId>| match id {
            Some(id) => {
                let tensor = self.graph.tensor(*id);
                (kind(tensor.dtype), tensor.shape.iter().map(|size| *size as usize).collect())
            }
            None => (crate::tape::ElementKind::Float, vec![0]),
        };
        env.makes = op.outputs.iter().map(made).collect();
        env.op = Some(self.numbers[at]);
        tape.records = !op.no_grad;
        let results = ops::run(tape, env, &op.target, args, kwargs)?;
        tape.records = true;
        for (output, (id, (_, shape))) in op.outputs.iter().zip(env.makes.clone()).enumerate() {
            let Some(id) = id else { continue };
            let Some(result) = results.get(output) else {
                return wrong(format!("{}: gives {} results", op.target, results.len()));
            };
            if result.shape != shape {
                return wrong(format!(
                    "{}: gives {:?}, and the graph says {shape:?}",
                    op.target, result.shape
                ));
            }
            // The type is the graph's.
            values[id.index()] = Some(T { kind: kind(self.graph.tensor(*id).dtype), ..result.clone() });
        }
        Ok(())
    }

    fn back(
        &self,
        tape: &Tape,
        values: &[Option<T>],
        sources: &Sources,
        when: When,
        expected: &mut Expected,
    ) {
        let needs = self.boundary.needs_grad(self.graph);
        let scale = sources.scale(when.step);
        let mut seeds: Vec<(u32, Num)> = vec![];
        for (number, output) in self.graph.outputs.iter().enumerate() {
            let leaves = self.boundary.outputs.get(number).is_some_and(|it| *it != Output::None);
            let Some(id) = output.filter(|id| leaves && needs[id.index()]) else { continue };
            let Some(x) = &values[id.index()] else { continue };
            let seed = sources.seed(number, self.graph.tensor(id), when);
            seeds.extend(x.at.iter().copied().zip(seed.data.iter().map(|it| it.times(scale))));
        }
        let gradients = tape.back(seeds);
        let mut of_inputs = BTreeMap::new();
        for (tensor, x) in self.graph.tensors.iter().zip(values) {
            let (Some(x), true) = (x, tensor.wants_grad()) else { continue };
            let data = x.at.iter().map(|at| gradients[*at as usize]).collect();
            let gradient = Value { kind: x.kind, shape: x.shape.clone(), data };
            match tensor.source {
                Source::Input { .. } => {
                    of_inputs.insert(tensor.name.clone(), gradient);
                }
                _ => {
                    let sum = expected.gradients.entry(tensor.name.clone());
                    sum.and_modify(|sum| *sum = sum.zip(&gradient, Num::plus)).or_insert(gradient);
                }
            }
        }
        expected.of_inputs.push(of_inputs);
    }
}

/// By which name a held tensor is updated.
pub fn name(source: &Source) -> Option<&str> {
    match source {
        Source::Param { names, .. } => names.first().map(String::as_str),
        Source::Buffer { name, .. } => Some(name),
        _ => None,
    }
}
