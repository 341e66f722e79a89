//! Random operators: tables of the operator and the place of each element in the whole, as the runtime keys its numbers.

use graph::{Graph, OpId};
use program::{Program, Role};

use crate::number::{Num, hash};
use crate::ops::elements::scaled;
use crate::ops::{Env, Made, OpCall, wrong};
use crate::regions;
use crate::tape::{ElementKind, T};

/// For whom random operators draw.
#[derive(Clone, Copy)]
pub enum Draws<'a> {
    /// One device: always all of it, by the numbers that these operators have where they are drawn in parts.
    All(&'a Graph),
    Rank {
        graph: &'a Graph,
        program: &'a Program,
        role: &'a Role,
        at: usize,
    },
}

/// Which elements of the whole are drawn, and how wide the whole's last dim is.
pub struct Drawn {
    pub at: Vec<usize>,
    pub width: usize,
}

impl Draws<'_> {
    pub fn positions(&self, op: u32, slot: i64) -> Option<Drawn> {
        let graph = match self {
            Draws::All(graph) | Draws::Rank { graph, .. } => graph,
        };
        let tensor = (*graph.ops.get(op as usize)?.outputs.first()?)?;
        let shape = &graph.tensor(tensor).shape;
        let width = shape.last().map_or(1, |size| *size as usize);
        let at = match self {
            Draws::All(_) => (0..usize::try_from(graph.tensor(tensor).numel()).ok()?).collect(),
            Draws::Rank { program, role, at, .. } => {
                let (_, slots) = role.table.random.iter().find(|(other, _)| *other == OpId(op))?;
                let region = slots.get(usize::try_from(slot).ok()?)?.get(*at);
                let factors: Vec<i64> = program.factors.get(tensor.index())?.concat();
                regions::places(&regions::whole(&factors), region)?
            }
        };
        Some(Drawn { at, width })
    }
}

impl Env<'_> {
    /// What is drawn at a place.
    pub fn drawn(&self, op: u32, place: &[u64]) -> u64 {
        hash(&[&[self.seed, 0x5eed, self.batch, u64::from(op)], place].concat())
    }
}

impl OpCall<'_, '_> {
    pub(super) fn random(&mut self) -> Made<Option<Vec<T>>> {
        match self.name {
            "dropout" | "native_dropout" => self.dropped_in_training().map(Some),
            "rand" | "randn" | "randint" | "rand_like" | "randn_like" | "randint_like" | "bernoulli"
            | "exponential" => self.drawn_alone(),
            _ => Ok(None),
        }
    }

    fn dropped_in_training(&mut self) -> Made<Vec<T>> {
        let x = self.tensor(0, "input")?;
        let (p, trains) = (self.number(1, "p").unwrap_or(Num::ZERO), self.flag(2, "train", false));
        if trains && p != Num::ZERO {
            let Some(op) = self.env.op else { return wrong("dropout that draws for nobody") };
            return self.dropped(&x, p, op, 0);
        }
        let at = x.at.iter().map(|_| self.tape.constant(Num::ONE)).collect();
        let mask = T { kind: ElementKind::Bool, at, shape: x.shape.clone() };
        Ok(vec![x, mask])
    }

    pub(super) fn dropped(&mut self, x: &T, p: Num, op: u32, slot: i64) -> Made<Vec<T>> {
        let drawn = self.places(op, slot, x.numel())?;
        let factor = if p == Num::ONE { Num::ZERO } else { Num::ONE.minus(p).inverse() };
        let (mut made, mut mask) = (vec![], vec![]);
        for (at, place) in x.at.iter().zip(drawn) {
            let keep = self.env.drawn(op, &[place as u64]) & 1 == 1 && p != Num::ONE;
            made.push(scaled(self.tape, *at, if keep { factor } else { Num::ZERO }));
            mask.push(self.tape.constant(Num::of_bool(keep)));
        }
        Ok(vec![T::new(x.kind, x.shape.clone(), made), T::new(ElementKind::Bool, x.shape.clone(), mask)])
    }

    fn places(&self, op: u32, slot: i64, count: usize) -> Made<Vec<usize>> {
        match self.env.draws.positions(op, slot) {
            Some(drawn) if drawn.at.len() == count => Ok(drawn.at),
            _ => wrong(format!("{}: draws for another region", self.target)),
        }
    }

    /// On one device.
    fn drawn_alone(&mut self) -> Made<Option<Vec<T>>> {
        let Some(op) = self.env.op else { return Ok(None) };
        let Draws::All(graph) = self.env.draws else { return Ok(None) };
        let Some(tensor) = graph.ops.get(op as usize).and_then(|op| op.outputs.first().copied().flatten())
        else {
            return Ok(None);
        };
        let tensor = graph.tensor(tensor);
        let (shape, kind) = (tensor.shape.clone(), super::kind(tensor.dtype));
        let (what, p) = match self.name {
            "rand" | "rand_like" => ("uniform", Num::ZERO),
            "randn" | "randn_like" => ("normal", Num::ZERO),
            "bernoulli" => ("bernoulli", Num::ZERO),
            "exponential" => ("exponential", self.number(1, "lambd").unwrap_or(Num::ONE)),
            // The bounds of integers are arguments that several overloads have in several places.
            _ => return Ok(None),
        };
        Ok(Some(vec![self.draw(what, &shape, p, kind, op, 0)?]))
    }

    pub(super) fn draw(
        &mut self,
        what: &str,
        size: &[i64],
        p: Num,
        kind: ElementKind,
        op: u32,
        slot: i64,
    ) -> Made<T> {
        let shape: Vec<usize> = size.iter().map(|size| (*size).max(0) as usize).collect();
        let places = self.places(op, slot, shape.iter().product())?;
        let mut at = vec![];
        for place in places {
            let key = self.env.drawn(op, &[place as u64]);
            let value = match what {
                "bernoulli" => Num::of_bool(key & 1 == 1),
                "integers" => Num::int((key >> 8) as i64).plus(Num::ZERO),
                "exponential" => Num::table(&[key, p.bits()]),
                _ => Num::table(&[key]),
            };
            at.push(self.tape.constant(value));
        }
        Ok(T::new(kind, shape, at))
    }
}
