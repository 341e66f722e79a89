//! What of a rank's time is whose: each operator's, and that of parameters.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

use check::{InstrCost, RankTrace};
use graph::OpId;
use program::{Kind, Pass, RankId};

use crate::price::seconds_of;
use crate::{Scene, Simulation};

/// What is done for an operator in a step, or for several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// Seconds in which the device computes it, forward, backward and again.
    pub works: f64,
    /// Seconds in which its values are moved between devices.
    pub moves: f64,
    /// Seconds of these for which the rank waits.
    pub exposed: f64,
    /// What is moved, as [`crate::Message`] counts it.
    pub bytes: u64,
}

/// Of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Shares {
    pub rank: RankId,
    /// Of each operator of the program's graph.
    pub of: Vec<Share>,
    /// What goes to other blocks of a pipeline, and comes from there.
    pub between: Share,
    /// Copies and sums, and what is moved of parameters and their gradients.
    pub rest: Share,
}

impl Add for Share {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            works: self.works + other.works,
            moves: self.moves + other.moves,
            exposed: self.exposed + other.exposed,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl AddAssign for Share {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Share {
    fn sum<I: Iterator<Item = Self>>(shares: I) -> Self {
        shares.fold(Self::default(), Self::add)
    }
}

/// Of the first rank of each role that was followed, with so many operators.
pub fn shares(scene: &Scene<'_>, operators: usize, simulation: &Simulation) -> Vec<Shares> {
    let mut seen = vec![false; scene.program.roles.len()];
    let is_first = |role: usize| !std::mem::replace(&mut seen[role], true);
    let followed = scene.rank_traces.iter().zip(&simulation.parts);
    let mut is_wanted = followed.clone().map(|(rank_trace, _)| rank_trace.role).map(is_first);
    let firsts = followed.filter(|_| is_wanted.next().unwrap_or(false));
    firsts
        .map(|(rank_trace, parts)| {
            let none = Share::default();
            let mut shares =
                Shares { rank: rank_trace.rank, of: vec![none; operators], between: none, rest: none };
            let codes = &scene.program.roles[rank_trace.role].body.codes;
            let instrs =
                codes.iter().flat_map(|code| code.instrs.iter().map(move |instr| (code.pass, instr)));
            for ((pass, instr), instr_cost) in instrs.zip(rank_trace.instr_costs.iter()) {
                shares.works(scene, instr_cost, instr.kind(), pass);
            }
            for part in parts {
                let message = &simulation.messages[part.message];
                let share = Share {
                    works: 0.0,
                    moves: message.end - message.start,
                    exposed: part.exposed,
                    bytes: message.bytes,
                };
                *match part.kind {
                    Kind::Send | Kind::Receive => &mut shares.between,
                    _ => shares.whose(part.op),
                } += share;
            }
            shares
        })
        .collect()
}

/// Of each instruction of a rank, in their order, the seconds of a step in which the device computes for each operator.
pub fn works_of(scene: &Scene<'_>, rank_trace: &RankTrace) -> Vec<Vec<(Option<OpId>, f64)>> {
    let codes = &scene.program.roles[rank_trace.role].body.codes;
    let instrs = codes.iter().flat_map(|code| code.instrs.iter().map(move |instr| (code.pass, instr)));
    let all = instrs.zip(rank_trace.instr_costs.iter());
    all.map(|((pass, instr), cost)| works(scene, rank_trace.rank, cost, instr.kind(), pass)).collect()
}

fn works(
    scene: &Scene<'_>,
    rank: RankId,
    instr_cost: &InstrCost,
    kind: Kind,
    pass: Pass,
) -> Vec<(Option<OpId>, f64)> {
    let times = if matches!(pass, Pass::Begin | Pass::End) { 1 } else { scene.batches };
    let device = scene.cluster.device(rank.0);
    let seconds = |work| seconds_of(work, kind, device, scene.kinds) * f64::from(times);
    instr_cost.work.iter().map(|work| (work.op, seconds(work))).collect()
}

impl Shares {
    fn works(&mut self, scene: &Scene<'_>, instr_cost: &InstrCost, kind: Kind, pass: Pass) {
        for (op, works) in works(scene, self.rank, instr_cost, kind, pass) {
            *self.whose(op) += Share { works, ..Share::default() };
        }
    }

    fn whose(&mut self, op: Option<graph::OpId>) -> &mut Share {
        let known = op.and_then(|op| self.of.get_mut(op.index()));
        known.unwrap_or(&mut self.rest)
    }
}
