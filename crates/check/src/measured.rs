//! What ranks of a program do and hold, if it is right: for comparing many programs, of which the one that is taken is proved.

use std::rc::Rc;

use program::{Program, RankId};

use crate::alone::{self, Positions};
use crate::axis::{FOLLOWED, Folding, RankAxis};
use crate::facts::Facts;
use crate::memory;
use crate::purpose::{Masters, Memory};
use crate::rank_kinds;
use crate::rank_trace::{self, InstrCost, RankTrace};
use crate::state::Rank;
use crate::{context, given, symmetric_axes};

/// Ranks of one kind, of which the first was followed.
struct KindOfRanks {
    memory: Memory,
    instr_costs: Rc<[InstrCost]>,
}

/// The memory of all ranks, and what ranks do: of those along an axis that may be folded, a few. `None` if that cannot be
/// told of ranks that are followed by themselves.
pub(crate) fn measured(
    facts: &Facts<'_>,
    program: &Program,
    masters: &Masters,
    folding: Folding<'_>,
    batches: u32,
) -> Option<(Vec<Memory>, Vec<RankTrace>)> {
    let mut cx = context(facts, program, None);
    let (mut kinds, mut kind_of) = (vec![], vec![(0, 0); program.world as usize]);
    let mut positions = Positions::default();
    for (number, role) in program.roles.iter().enumerate() {
        let first = kinds.len();
        for (at, kind) in rank_kinds::kinds(&mut cx, number, &mut positions).into_iter().enumerate() {
            kind_of[role.ranks[at].index()] = (number, first + kind);
            if first + kind == kinds.len() {
                kinds.push((number, at));
            }
        }
    }
    let mut followed = vec![];
    for (role, at) in kinds {
        let mut rank = Rank::new(&mut cx, role, at);
        given(&mut cx, &mut rank);
        if !alone::follow(&mut cx, &mut rank, &mut positions) {
            return None;
        }
        followed.push(rank);
    }
    let (memory, offloaded) = memory::of_all(&mut cx, &followed, masters, batches);
    let traces = rank_trace::of_all(&mut cx, &followed, masters, &offloaded);
    let kinds: Vec<KindOfRanks> = memory
        .into_iter()
        .zip(traces)
        .map(|(memory, trace)| KindOfRanks { memory, instr_costs: trace.instr_costs })
        .collect();
    let same = same(&kinds);
    let is_like = |axis: &RankAxis| {
        let standing = |rank: u32| kind_of[axis.standing_for(RankId(rank)).index()].1;
        (0..program.world).all(|rank| same[kind_of[rank as usize].1] == same[standing(rank)])
    };
    let axis = symmetric_axes::all(program, folding).find(is_like);
    let ranks = (0..program.world).map(RankId);
    let ranks = ranks.filter(|rank| axis.is_none_or(|axis| axis.position(*rank) < FOLLOWED));
    let traces = ranks.map(|rank| {
        let (role, kind) = kind_of[rank.index()];
        let (instr_costs, sent) =
            (Rc::clone(&kinds[kind].instr_costs), rank_trace::sent(&mut cx, role, rank));
        RankTrace { rank, role, instr_costs, sent, held: vec![] }
    });
    let traces = traces.collect();
    let memory = kind_of.iter().map(|(_, kind)| kinds[*kind].memory.clone()).collect();
    Some((memory, traces))
}

/// For each kind the first one that does the same, whomever it sends something.
fn same(kinds: &[KindOfRanks]) -> Vec<usize> {
    let first = |kind: &KindOfRanks| {
        let is_same = |other: &KindOfRanks| other.instr_costs == kind.instr_costs;
        kinds.iter().position(is_same).expect("it is one of them")
    };
    kinds.iter().map(first).collect()
}
