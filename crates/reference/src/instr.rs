//! What each instruction does on a rank, as the runtime does it.

use program::{Arg, BufId, Call, Grad, Instr, Offloaded, Saves, Slice, Which};
use rules::{Interval, Region};

use crate::machine::{Machine, Trouble};
use crate::number::Num;
use crate::ops::{self, Draws};
use crate::regions;
use crate::state::{Job, Rank, Saved};
use crate::tape::{ElementKind, T, Tape, Value};

/// A call on the tape of its own.
struct Ran {
    tape: Tape,
    /// In the order of the call's inputs and outputs.
    inputs: Vec<T>,
    outputs: Vec<T>,
}

impl<'a> Machine<'a> {
    /// Whether the instruction is done; if not, others have to come first.
    pub fn execute(&mut self, rank: &mut Rank<'a>, job: &Job, instr: &'a Instr) -> Result<bool, Trouble> {
        match instr {
            Instr::Call(call) => self.call(rank, job, call)?,
            Instr::Grad(grad) => self.grad(rank, job, grad)?,
            Instr::Slice(slice) => self.slice(rank, job, slice)?,
            Instr::Add { from, to } => {
                let all = self.read_all(rank, from, job)?;
                let sum = summed(&all, Num::plus)?;
                rank.bufs.insert(*to, sum);
            }
            Instr::Update { shard, from } => {
                let value = self.read(rank, *from, job)?;
                let place = rank.shards.get_mut(*shard).ok_or_else(|| Trouble::fault("updates no shard"))?;
                if value.shape != place.shape {
                    return Err(Trouble::fault("updates a shard with another shape"));
                }
                *place = value;
            }
            Instr::Keep { id, from, offloads } => {
                let values = self.read_all(rank, from, job)?;
                rank.runs.entry(job.when).or_default().kept.insert(*id, (values, *offloads));
            }
            Instr::Take { id, to } => {
                let run = rank.runs.entry(job.when).or_default();
                let Some((values, offloaded)) = run.kept.remove(id) else {
                    return Err(Trouble::fault("takes what is not kept"));
                };
                if offloaded {
                    return Err(Trouble::fault("takes what is on the host"));
                }
                store(rank, to, values)?;
            }
            Instr::Fetch { what } => {
                let run = rank.runs.entry(job.when).or_default();
                let offloaded = match what {
                    Offloaded::Call(id) => run.saved.get_mut(id).map(|saved| &mut saved.offloaded),
                    Offloaded::Kept(id) => run.kept.get_mut(id).map(|(_, offloaded)| offloaded),
                };
                match offloaded {
                    Some(offloaded) if *offloaded => *offloaded = false,
                    _ => return Err(Trouble::fault("fetches what is not on the host")),
                }
            }
            other => return self.communicate(rank, job, other),
        }
        Ok(true)
    }

    pub fn read(&self, rank: &Rank<'a>, buf: BufId, job: &Job) -> Result<Value, Trouble> {
        if let Some(value) = rank.bufs.get(&buf) {
            return Ok(value.clone());
        }
        match self.leaf_of(rank.role, buf) {
            Some((number, _)) => self.leaf(rank, number, job),
            None => {
                Err(Trouble::fault(format!("reads `{}`, which is not there", rank.role.body.buf(buf).name)))
            }
        }
    }

    pub fn read_all(&self, rank: &Rank<'a>, bufs: &[BufId], job: &Job) -> Result<Vec<Value>, Trouble> {
        bufs.iter().map(|buf| self.read(rank, *buf, job)).collect()
    }

    fn call(&mut self, rank: &mut Rank<'a>, job: &Job, call: &'a Call) -> Result<(), Trouble> {
        let inputs = self.read_all(rank, &call.inputs, job)?;
        let ran = self.run_call(rank, job, call, &inputs, false)?;
        for (buf, x) in call.outputs.iter().zip(&ran.outputs) {
            rank.bufs.insert(*buf, ran.tape.leave(x));
        }
        if call.saves != Saves::Nothing {
            let is_leaf = |buf: &BufId| self.leaf_of(rank.role, *buf).is_some();
            let keeps = matches!(call.saves, Saves::All { .. });
            let keep = |(buf, value): (&BufId, Value)| (!is_leaf(buf) && keeps).then_some(value);
            let inputs = call.inputs.iter().zip(inputs).map(keep).collect();
            let saved = Saved { inputs, offloaded: call.saves.is_offloaded() };
            rank.runs.entry(job.when).or_default().saved.insert(call.id, saved);
        }
        Ok(())
    }

    fn run_call(
        &mut self,
        rank: &Rank<'a>,
        job: &Job,
        call: &'a Call,
        given: &[Value],
        back: bool,
    ) -> Result<Ran, Trouble> {
        let mut tape = Tape::new();
        let mut tensors: std::collections::HashMap<BufId, T> = std::collections::HashMap::new();
        let mut inputs = vec![];
        for (buf, value) in call.inputs.iter().zip(given) {
            let wanted = match self.leaf_of(rank.role, *buf) {
                Some((_, leaf)) => self.graph.tensor(leaf.tensor).wants_grad(),
                None => self.needs_grad(rank, *buf),
            };
            let x = tape.enter(value, back && wanted);
            inputs.push(x.clone());
            tensors.insert(*buf, x);
        }
        self.env.single = false;
        self.env.batch = job.when.key();
        self.env.op = None;
        self.env.draws =
            Draws::Rank { graph: self.graph, program: self.program, role: rank.role, at: rank.at };
        self.env.spend(tape.len())?;
        for op in &call.ops {
            let arg = |arg: &Arg| argument(arg, rank, &tensors);
            let args = op.args.iter().map(arg).collect::<Result<Vec<_>, Trouble>>()?;
            let kwargs = op.kwargs.iter().map(|(name, value)| Ok((name.clone(), arg(value)?)));
            let kwargs = kwargs.collect::<Result<Vec<_>, Trouble>>()?;
            tape.records = back && !op.no_grad;
            let results = ops::run(&mut tape, &mut self.env, &op.target, args, kwargs)?;
            if results.len() < op.outputs.len() {
                return Err(Trouble::fault(format!("{} gives {} results", op.target, results.len())));
            }
            for (buf, result) in op.outputs.iter().zip(results) {
                if let Some(buf) = buf {
                    tensors.insert(*buf, result);
                }
            }
        }
        let made = |buf: &BufId| {
            tensors.get(buf).cloned().ok_or_else(|| Trouble::fault("gives what it has not made"))
        };
        let outputs = call.outputs.iter().map(made).collect::<Result<Vec<_>, Trouble>>()?;
        // The numbers stay in the budget for as long as the tape is there.
        self.env.left += tape.len();
        Ok(Ran { tape, inputs, outputs })
    }

    fn needs_grad(&self, rank: &Rank<'a>, buf: BufId) -> bool {
        let tensor = rank.role.body.buf(buf).tensor;
        self.needs.get(tensor.index()).is_some_and(|needs| *needs)
    }

    fn grad(&mut self, rank: &mut Rank<'a>, job: &Job, grad: &'a Grad) -> Result<(), Trouble> {
        if grad.which == Which::Weights {
            let run = rank.runs.entry(job.when).or_default();
            let Some(left) = run.left.remove(&grad.call) else {
                return Err(Trouble::fault("a second half without a first"));
            };
            for (leaf, gradient) in left {
                self.accumulate(rank, job.when.step, leaf, gradient);
            }
            if let Some((to, values)) = rank.in_flight.take() {
                store(rank, to, values)?;
            }
            return Ok(());
        }
        let run = rank.runs.entry(job.when).or_default();
        let Some(saved) = run.saved.remove(&grad.call) else {
            return Err(Trouble::fault("the backward of what has not run"));
        };
        if saved.offloaded {
            return Err(Trouble::fault("needs what is on the host"));
        }
        let role = rank.role;
        let Some(call) = role.body.calls().find(|call| call.id == grad.call) else {
            return Err(Trouble::fault("the backward of no call"));
        };
        let given = self.given_again(rank, job, call, grad, saved)?;
        let ran = self.run_call(rank, job, call, &given, true)?;
        let is_leaf = |buf: &BufId| self.leaf_of(role, *buf).map(|(number, _)| number);
        let wanted: Vec<usize> = (0..call.inputs.len())
            .filter(|at| is_leaf(&call.inputs[*at]).is_none() && self.needs_grad(rank, call.inputs[*at]))
            .collect();
        let given: Vec<usize> =
            (0..call.outputs.len()).filter(|at| self.needs_grad(rank, call.outputs[*at])).collect();
        if given.len() != grad.from.len() || wanted.len() != grad.to.len() {
            return Err(Trouble::fault(format!(
                "backward gives {} gradients to a call, of whose results {} need one, and takes {} of {}",
                grad.from.len(),
                given.len(),
                grad.to.len(),
                wanted.len()
            )));
        }
        let mut seeds: Vec<(u32, Num)> = vec![];
        for (at, buf) in given.iter().zip(&grad.from) {
            let Some(buf) = buf else { continue };
            let (value, x) = (self.read(rank, *buf, job)?, &ran.outputs[*at]);
            if value.shape != x.shape {
                return Err(Trouble::fault(format!(
                    "a gradient {:?} of a result {:?}",
                    value.shape, x.shape
                )));
            }
            seeds.extend(x.at.iter().copied().zip(value.data.iter().copied()));
        }
        let all = ran.tape.back(seeds);
        let gradient = |at: usize| {
            let x = &ran.inputs[at];
            Value {
                kind: ElementKind::Float,
                shape: x.shape.clone(),
                data: x.at.iter().map(|at| all[*at as usize]).collect(),
            }
        };
        for (at, buf) in wanted.into_iter().zip(&grad.to) {
            if let Some(buf) = buf {
                rank.bufs.insert(*buf, gradient(at));
            }
        }
        let leaves = (0..call.inputs.len()).filter_map(|at| Some((is_leaf(&call.inputs[at])?, gradient(at))));
        let leaves: Vec<(usize, Value)> = leaves.collect();
        if grad.which == Which::Inputs {
            rank.runs.entry(job.when).or_default().left.insert(grad.call, leaves);
        } else {
            leaves
                .into_iter()
                .for_each(|(leaf, gradient)| self.accumulate(rank, job.when.step, leaf, gradient));
        }
        Ok(())
    }

    /// What a call read, at its backward: what it kept, what it is given again, and leaves as they are there.
    fn given_again(
        &self,
        rank: &Rank<'a>,
        job: &Job,
        call: &Call,
        grad: &Grad,
        saved: Saved,
    ) -> Result<Vec<Value>, Trouble> {
        let mut recomputed = grad.recomputed.iter();
        let mut given = vec![];
        for (buf, kept) in call.inputs.iter().zip(saved.inputs) {
            given.push(match (self.leaf_of(rank.role, *buf), kept) {
                (Some((number, _)), _) => self.leaf(rank, number, job)?,
                (None, Some(value)) => value,
                (None, None) => {
                    let Some(buf) = recomputed.next() else {
                        return Err(Trouble::fault("is not given again what it forgot"));
                    };
                    self.read(rank, *buf, job)?
                }
            });
        }
        if recomputed.next().is_some() {
            return Err(Trouble::fault("is given again what it did not forget"));
        }
        Ok(given)
    }

    fn slice(&mut self, rank: &mut Rank<'a>, job: &Job, slice: &Slice) -> Result<(), Trouble> {
        let value = self.read(rank, slice.from, job)?;
        let extents = extents(rank, &slice.extents)?;
        let side = |(lo, hi): &(Arg, Arg)| Ok(Interval { lo: number(rank, lo)?, hi: number(rank, hi)? });
        let region = Region(slice.region.iter().map(side).collect::<Result<Vec<_>, Trouble>>()?.into());
        let whole = regions::whole(&extents.concat());
        let shape: Vec<usize> = extents.iter().map(|dim| dim.iter().product::<i64>() as usize).collect();
        if shape != value.shape {
            return Err(Trouble::fault(format!("cuts {:?} as {shape:?}", value.shape)));
        }
        let part = regions::cut(&value, &whole, &region, &extents);
        rank.bufs.insert(slice.to, part.ok_or_else(|| Trouble::fault("cuts what is not there"))?);
        Ok(())
    }
}

/// Values that are alike, element by element.
pub fn summed(all: &[Value], combine: impl Fn(Num, Num) -> Num) -> Result<Value, Trouble> {
    let Some((first, rest)) = all.split_first() else { return Err(Trouble::fault("a sum of nothing")) };
    let mut sum = first.clone();
    for other in rest {
        if other.data.len() != sum.data.len() || other.shape != sum.shape {
            return Err(Trouble::fault(format!("adds {:?} and {:?}", sum.shape, other.shape)));
        }
        sum = sum.zip(other, &combine);
    }
    Ok(sum)
}

pub fn store(rank: &mut Rank<'_>, to: &[BufId], values: Vec<Value>) -> Result<(), Trouble> {
    if to.len() != values.len() {
        return Err(Trouble::fault(format!("gets {} values for {}", values.len(), to.len())));
    }
    rank.bufs.extend(to.iter().copied().zip(values));
    Ok(())
}

pub fn number(rank: &Rank<'_>, arg: &Arg) -> Result<i64, Trouble> {
    match arg {
        Arg::Int(value) => Ok(*value),
        Arg::Hole(hole) => {
            rank.table().constant(*hole).ok_or_else(|| Trouble::fault("a number that is in no table"))
        }
        _ => Err(Trouble::fault("no number where one is needed")),
    }
}

pub fn extents(rank: &Rank<'_>, dims: &[Vec<Arg>]) -> Result<Vec<Vec<i64>>, Trouble> {
    dims.iter().map(|dim| dim.iter().map(|size| number(rank, size)).collect()).collect()
}

fn argument(
    arg: &Arg,
    rank: &Rank<'_>,
    tensors: &std::collections::HashMap<BufId, T>,
) -> Result<ops::OpArg, Trouble> {
    Ok(match arg {
        Arg::None => ops::OpArg::None,
        Arg::Bool(value) => ops::OpArg::Bool(*value),
        Arg::Int(value) => ops::OpArg::Int(*value),
        Arg::Hole(_) => ops::OpArg::Int(number(rank, arg)?),
        Arg::Float(value) => ops::OpArg::Float(*value),
        Arg::Str(text) => ops::OpArg::Str(text.clone()),
        Arg::Dtype(dtype) => ops::OpArg::Dtype(*dtype),
        Arg::Buf(buf) => {
            let missing =
                || Trouble::fault(format!("reads `{}`, which is not there", rank.role.body.buf(*buf).name));
            ops::OpArg::Tensor(tensors.get(buf).cloned().ok_or_else(missing)?)
        }
        Arg::List(items) => ops::OpArg::List(
            items.iter().map(|item| argument(item, rank, tensors)).collect::<Result<_, Trouble>>()?,
        ),
    })
}
