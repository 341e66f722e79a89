//! What ranks have made beside what one device makes, element by element.

use std::collections::{BTreeMap, HashSet};

use graph::TensorId;
use program::{Inputs, Output};
use rules::Region;

use crate::Difference;
use crate::machine::Machine;
use crate::number::Num;
use crate::regions;
use crate::single::{Expected, name};
use crate::sources::When;
use crate::state::Rank;
use crate::step::is_trained;
use crate::tape::Value;

/// How much was compared.
#[derive(Default)]
pub struct Tally {
    pub elements: u64,
    /// Those that are no number on either side.
    pub undefined: u64,
}

pub struct Comparison<'m, 'a> {
    pub machine: &'m Machine<'a>,
    pub tally: Tally,
}

type Compared = Result<(), Difference>;

impl Comparison<'_, '_> {
    fn part(
        &mut self,
        what: &str,
        rank: usize,
        tensor: TensorId,
        region: &Region,
        got: &Value,
        wanted: Option<&Value>,
    ) -> Compared {
        let factors = &self.machine.program.factors[tensor.index()];
        let tensor = self.machine.graph.tensor(tensor);
        let places = regions::places(&regions::whole(&factors.concat()), region);
        let differs = |element: Option<usize>, text: String| {
            let element = element.map(|at| index_of(at, &tensor.shape));
            Difference { what: what.to_owned(), tensor: tensor.name.clone(), rank, element, text }
        };
        let Some(places) = places.filter(|places| places.len() == got.data.len()) else {
            return Err(differs(None, format!("is {:?} where its table says another region", got.shape)));
        };
        for (at, got) in places.into_iter().zip(got.data.iter()) {
            let wanted = wanted.map_or(Num::ZERO, |value| value.data[at]);
            self.tally.elements += 1;
            self.tally.undefined += u64::from(wanted == Num::NAN);
            if *got != wanted {
                return Err(differs(Some(at), format!("is {got:?}, and {wanted:?} on one device")));
            }
        }
        Ok(())
    }

    /// The gradients of a rank's parameters at the end of a step.
    pub fn gradients(&mut self, rank: &Rank<'_>, gradients: &[Value], expected: &Expected) -> Compared {
        for (shard, got) in rank.role.table.shards.iter().zip(gradients) {
            if is_trained(self.machine, shard.tensor) {
                let wanted = expected.gradients.get(&self.machine.graph.tensor(shard.tensor).name);
                self.part(
                    "the gradient of",
                    rank.number,
                    shard.tensor,
                    shard.region.get(rank.at),
                    got,
                    wanted,
                )?;
            }
        }
        Ok(())
    }

    /// What buffers have become, and parameters that the model itself changes.
    pub fn buffers(&mut self, rank: &Rank<'_>, expected: &Expected) -> Compared {
        for (shard, got) in rank.role.table.shards.iter().zip(&rank.shards) {
            let key = name(&self.machine.graph.tensor(shard.tensor).source);
            if let Some(wanted) = key.and_then(|key| expected.updated.get(key)) {
                self.part(
                    "the new value of",
                    rank.number,
                    shard.tensor,
                    shard.region.get(rank.at),
                    got,
                    Some(wanted),
                )?;
            }
        }
        Ok(())
    }

    pub fn outputs(&mut self, ranks: &[Rank<'_>], when: When, expected: &Expected) -> Compared {
        for (number, tensor) in self.machine.graph.outputs.iter().enumerate() {
            let wanted = expected.outputs[when.batch as usize][number].as_ref();
            let (Some(tensor), Some(asked)) = (tensor, self.machine.program.boundary.outputs.get(number))
            else {
                continue;
            };
            let mut covered: HashSet<usize> = HashSet::new();
            let whole = regions::whole(&self.machine.program.factors[tensor.index()].concat());
            for rank in ranks {
                let region = rank
                    .role
                    .table
                    .outputs
                    .get(number)
                    .and_then(Option::as_ref)
                    .map(|column| column.get(rank.at));
                let output = rank.outputs.get(&(when, number));
                if let (Some(region), Some(got)) = (region, output) {
                    self.part("the output", rank.number, *tensor, region, got, wanted)?;
                    covered.extend(regions::places(&whole, region).into_iter().flatten());
                }
                let is_part = output.is_some() && region != Some(&whole);
                if output.is_some() != region.is_some() || (*asked == Output::Whole && is_part) {
                    return Err(self.missing("all of the output", rank.number, *tensor));
                }
            }
            if *asked != Output::None && covered.len() != regions::numel(&whole) {
                return Err(self.missing("a part of the output", 0, *tensor));
            }
        }
        Ok(())
    }

    fn missing(&self, what: &str, rank: usize, tensor: TensorId) -> Difference {
        let tensor = self.machine.graph.tensor(tensor).name.clone();
        Difference { what: what.to_owned(), tensor, rank, element: None, text: "is not there".into() }
    }

    /// The gradients of inputs.
    pub fn of_inputs(&mut self, rank: &Rank<'_>, when: When, expected: &Expected) -> Compared {
        for (number, tensor) in rank.role.body.gradients.iter().enumerate() {
            let Some(got) = rank.of_inputs.get(&(when, number)) else { continue };
            let taken = rank.role.body.inputs.iter().position(|other| other == tensor);
            let whole = regions::whole(&self.machine.program.factors[tensor.index()].concat());
            let region = match (self.machine.program.boundary.inputs, taken) {
                (Inputs::Local, Some(at)) => rank.role.table.inputs[at].get(rank.at).clone(),
                _ => whole,
            };
            let empty = BTreeMap::new();
            let all = expected.of_inputs.get(when.batch as usize).unwrap_or(&empty);
            let wanted = all.get(&self.machine.graph.tensor(*tensor).name);
            self.part("the gradient of", rank.number, *tensor, &region, got, wanted)?;
        }
        Ok(())
    }

    /// Somebody gives the gradient of each input that has one.
    pub fn inputs_have_theirs(&self, ranks: &[Rank<'_>], when: When, expected: &Expected) -> Compared {
        for tensor in self.machine.graph.tensor_ids() {
            let name = &self.machine.graph.tensor(tensor).name;
            let given = |rank: &Rank<'_>| {
                let place = rank.role.body.gradients.iter().position(|other| *other == tensor);
                place.is_some_and(|at| rank.of_inputs.contains_key(&(when, at)))
            };
            let wanted = expected.of_inputs.get(when.batch as usize).and_then(|all| all.get(name));
            let is_there =
                wanted.is_none_or(|it| it.data.iter().all(|x| *x == Num::ZERO)) || ranks.iter().any(given);
            if !is_there {
                return Err(self.missing("the gradient of", 0, tensor));
            }
        }
        Ok(())
    }

    /// Every element of every trained parameter is somewhere.
    pub fn held(&self, ranks: &[Rank<'_>]) -> Compared {
        let mut covered: BTreeMap<TensorId, HashSet<usize>> = BTreeMap::new();
        for rank in ranks {
            for shard in &rank.role.table.shards {
                let whole = regions::whole(&self.machine.program.factors[shard.tensor.index()].concat());
                let places = regions::places(&whole, shard.region.get(rank.at));
                covered.entry(shard.tensor).or_default().extend(places.into_iter().flatten());
            }
        }
        for id in self.machine.graph.tensor_ids() {
            let tensor = self.machine.graph.tensor(id);
            let updated = name(&tensor.source).is_some_and(|_| self.machine.graph.new_value(id).is_some());
            if !(is_trained(self.machine, id) || updated) {
                continue;
            }
            if covered.get(&id).map_or(0, HashSet::len) as i64 != tensor.numel() {
                return Err(self.missing("a part of", 0, id));
            }
        }
        Ok(())
    }
}

fn index_of(mut at: usize, shape: &[i64]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (place, size) in index.iter_mut().zip(shape).rev() {
        *place = at % *size as usize;
        at /= *size as usize;
    }
    index
}
