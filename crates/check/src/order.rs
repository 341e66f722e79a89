//! Follows all ranks together, in the one order of steps.
//!
//! A rank runs up to its next communication and waits there. The communication with the smallest
//! number among those that wait is next; whoever must take part in it must wait for it.

use std::collections::BTreeMap;

use program::{BufId, Cut, GroupingId, Instr, RankId, StepId};

use crate::calls;
use crate::count;
use crate::exchange;
use crate::fault::Fault;
use crate::finish;
use crate::held::Held;
use crate::moves::{self, Group};
use crate::state::{Context, Rank, place};

/// Runs the program to its end, or to a fault after which nothing can be said.
pub(crate) fn run(cx: &mut Context<'_>, ranks: &mut [Rank<'_>]) -> bool {
    let places = Places::of(cx, ranks);
    let mut waiting: BTreeMap<StepId, Vec<usize>> = BTreeMap::new();
    let all: Vec<usize> = (0..ranks.len()).collect();
    advance(cx, ranks, &all, &mut waiting);
    while let Some((step, members)) = waiting.pop_first() {
        if cx.faults.is_full() {
            return false;
        }
        if let Err(fault) = communicate(cx, ranks, &places, step, &members) {
            // Who waits for somebody who does not come, waits for ever.
            let stuck = fault.code == "SW0506";
            let first = ranks[members[0]].id;
            let whose = fault.rank.unwrap_or(first);
            let place = place(&ranks[places.index[&whose]], None);
            cx.faults.push(fault.at(first, Some(place)));
            if stuck {
                return false;
            }
        }
        members.iter().for_each(|&member| ranks[member].next += 1);
        advance(cx, ranks, &members, &mut waiting);
    }
    true
}

fn advance(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    members: &[usize],
    waiting: &mut BTreeMap<StepId, Vec<usize>>,
) {
    for &member in members {
        let rank = &mut ranks[member];
        while let Some(instr) = cx.codes[rank.role].instrs.get(rank.next).copied() {
            if let Some(step) = instr.step() {
                waiting.entry(step).or_default().push(member);
                break;
            }
            local(cx, rank, rank.next, instr);
            rank.next += 1;
        }
    }
}

/// Follows an instruction that concerns this rank only.
fn local(cx: &mut Context<'_>, rank: &mut Rank<'_>, index: usize, instr: &Instr) {
    match instr {
        Instr::Call(made) => calls::call(cx, rank, index, made),
        Instr::Grad(made) => calls::grad(cx, rank, made),
        Instr::Slice(slice) => moves::slice(cx, rank, slice),
        Instr::Add { from, to } => moves::add(cx, rank, from, *to),
        Instr::Update { shard, from } => finish::update(cx, rank, *shard, *from),
        _ => {}
    }
}

/// Where each rank is: in the list of ranks, and in the groups of each grouping.
struct Places {
    index: BTreeMap<RankId, usize>,
    groups: Vec<Vec<Option<(usize, usize)>>>,
}

impl Places {
    fn of(cx: &Context<'_>, ranks: &[Rank<'_>]) -> Self {
        let index: BTreeMap<RankId, usize> = ranks.iter().enumerate().map(|(i, rank)| (rank.id, i)).collect();
        let groups = cx.program.groupings.iter().map(|grouping| {
            let mut places = vec![None; ranks.len()];
            for (group, members) in grouping.iter().enumerate() {
                for (position, rank) in members.iter().enumerate() {
                    places[index[rank]] = Some((group, position));
                }
            }
            places
        });
        let groups = groups.collect();
        Self { index, groups }
    }
}

fn communicate(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    places: &Places,
    step: StepId,
    members: &[usize],
) -> Result<(), Fault> {
    let instrs: Vec<&Instr> =
        members.iter().map(|&m| cx.codes[ranks[m].role].instrs[ranks[m].next]).collect();
    let first = instrs[0];
    cx.tally.communication(kind(first));
    for (instr, &member) in instrs.iter().zip(members) {
        if kind(instr) != kind(first) || group_of(instr) != group_of(first) {
            let (expected, found) = (named(first), named(instr));
            return Err(Fault::new("SW0506", format!("ranks do different things in step {}", step.0)).why(
                format!(
                    "rank {} does {expected}, rank {} does {found}",
                    ranks[members[0]].id.0, ranks[member].id.0
                ),
            ));
        }
    }
    count::count(cx, ranks, members, step);
    match group_of(first) {
        Some(grouping) => in_groups(cx, ranks, places, (step, grouping), (members, &instrs)),
        None => exchanged(cx, ranks, step, (members, &instrs)),
    }
}

fn kind(instr: &Instr) -> &'static str {
    match instr {
        Instr::AllReduce { .. } => "all-reduce",
        Instr::AllGather { .. } => "all-gather",
        Instr::ReduceScatter { .. } => "reduce-scatter",
        Instr::AllToAll { .. } => "all-to-all",
        Instr::Exchange { .. } => "exchange",
        Instr::ReduceGradients { .. } => "reduction of gradients",
        Instr::ExchangeGradients { .. } => "exchange of gradients",
        _ => "local code",
    }
}

fn group_of(instr: &Instr) -> Option<GroupingId> {
    match instr {
        Instr::AllReduce { group, .. }
        | Instr::AllGather { group, .. }
        | Instr::ReduceScatter { group, .. }
        | Instr::AllToAll { group, .. }
        | Instr::ReduceGradients { group, .. } => Some(*group),
        _ => None,
    }
}

fn named(instr: &Instr) -> String {
    match group_of(instr) {
        Some(group) => format!("an {} in grouping {}", kind(instr), group.0),
        None => format!("an {}", kind(instr)),
    }
}

fn in_groups(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    places: &Places,
    (step, grouping): (StepId, GroupingId),
    (members, instrs): (&[usize], &[&Instr]),
) -> Result<(), Fault> {
    let groups = &cx.program.groupings[grouping.index()];
    let mut present: Vec<Vec<(usize, usize)>> = vec![vec![]; groups.len()];
    for (at, &member) in members.iter().enumerate() {
        let Some((group, position)) = places.groups[grouping.index()][member] else {
            return Err(Fault::new(
                "SW0506",
                format!("a rank takes part in step {} that is in none of its groups", step.0),
            )
            .at(ranks[member].id, None));
        };
        present[group].push((position, at));
    }
    let mut fault = None;
    for (group, mut there) in groups.iter().zip(present) {
        if there.is_empty() {
            continue;
        }
        there.sort_unstable();
        if there.len() != group.len() {
            let came = |rank: &RankId| members.contains(&places.index[rank]);
            let missing = group.iter().find(|rank| !came(rank)).expect("one is missing");
            return Err(absent(ranks, places, step, *missing));
        }
        let own: Vec<usize> = there.iter().map(|(_, at)| members[*at]).collect();
        let own_instrs: Vec<&Instr> = there.iter().map(|(_, at)| instrs[*at]).collect();
        if let Err(found) = in_group(cx, ranks, &own, &own_instrs) {
            let at = place(&ranks[own[0]], None);
            fault = fault.or(Some(found.at(ranks[own[0]].id, Some(at))));
        }
    }
    fault.map_or(Ok(()), Err)
}

fn absent(ranks: &[Rank<'_>], places: &Places, step: StepId, missing: RankId) -> Fault {
    let rank = &ranks[places.index[&missing]];
    let instrs = rank.body.forward.iter().chain(&rank.body.backward);
    let next = { instrs }.skip(rank.next).find_map(Instr::step);
    let found =
        next.map_or_else(|| "found it at its end".into(), |next| format!("found it at step {}", next.0));
    Fault::new("SW0506", format!("the ranks of step {} wait for rank {} for ever", step.0, missing.0))
        .why(format!("expected rank {} to take part, {found}", missing.0))
}

fn in_group(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    members: &[usize],
    instrs: &[&Instr],
) -> Result<(), Fault> {
    if let Instr::ReduceGradients { .. } = instrs[0] {
        return finish::reduce_gradients(cx, ranks, members, instrs);
    }
    let ends: Vec<(BufId, BufId)> = instrs.iter().filter_map(|instr| ends(instr)).collect();
    let from: Vec<BufId> = ends.iter().map(|(from, _)| *from).collect();
    let Some(group) = Group::of(ranks, members, &from) else { return Ok(()) };
    let made = collective(cx, ranks, &group, instrs)?;
    for ((&member, (_, to)), held) in members.iter().zip(ends).zip(made) {
        ranks[member].bufs[to.index()] = Some(held);
    }
    Ok(())
}

fn ends(instr: &Instr) -> Option<(BufId, BufId)> {
    match instr {
        Instr::AllReduce { from, to, .. }
        | Instr::AllGather { from, to, .. }
        | Instr::ReduceScatter { from, to, .. }
        | Instr::AllToAll { from, to, .. } => Some((*from, *to)),
        _ => None,
    }
}

fn collective(
    cx: &mut Context<'_>,
    ranks: &[Rank<'_>],
    group: &Group<'_>,
    instrs: &[&Instr],
) -> Result<Vec<Held>, Fault> {
    if let Instr::AllReduce { reduction, .. } = instrs[0] {
        let other =
            |instr: &&Instr| !matches!(instr, Instr::AllReduce { reduction: own, .. } if own == reduction);
        if instrs.iter().any(other) {
            return Err(Fault::new("SW0506", "the ranks of one all-reduce name different reductions"));
        }
        return moves::all_reduce(cx, group, *reduction);
    }
    let cuts: Vec<&Cut> = instrs.iter().filter_map(|instr| one_cut(instr)).collect();
    match instrs[0] {
        Instr::AllGather { .. } => moves::all_gather(cx, ranks, group, &cuts),
        Instr::ReduceScatter { .. } => moves::reduce_scatter(cx, ranks, group, &cuts),
        _ => {
            let both: Vec<(&Cut, &Cut)> = instrs.iter().filter_map(|instr| two_cuts(instr)).collect();
            moves::all_to_all(cx, ranks, group, &both)
        }
    }
}

fn one_cut<'i>(instr: &&'i Instr) -> Option<&'i Cut> {
    match instr {
        Instr::AllGather { cut, .. } | Instr::ReduceScatter { cut, .. } => Some(cut),
        _ => None,
    }
}

fn two_cuts<'i>(instr: &&'i Instr) -> Option<(&'i Cut, &'i Cut)> {
    match instr {
        Instr::AllToAll { send, receive, .. } => Some((send, receive)),
        _ => None,
    }
}

fn exchanged(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    step: StepId,
    (members, instrs): (&[usize], &[&Instr]),
) -> Result<(), Fault> {
    let table = exchange::table(cx, step)?;
    let involved = table.sources.iter().chain(&table.targets).map(|(rank, _)| *rank);
    let mut come: Vec<RankId> = members.iter().map(|&member| ranks[member].id).collect();
    come.sort_unstable();
    let missing = { involved }.find(|rank| come.binary_search(rank).is_err());
    if let Some(missing) = missing {
        return Err(Fault::new(
            "SW0506",
            format!("the ranks of step {} wait for rank {} for ever", step.0, missing.0),
        )
        .why(format!("expected rank {} to list the exchange, of which it is a part", missing.0)));
    }
    let pairs = members.iter().copied().zip(instrs);
    if let Instr::Exchange { .. } = instrs[0] {
        let all = pairs.filter_map(|(member, instr)| match instr {
            Instr::Exchange { from, to, .. } => Some((member, &from[..], &to[..])),
            _ => None,
        });
        return exchange::buffers(cx, ranks, step, &all.collect::<Vec<_>>());
    }
    let all = pairs.filter_map(|(member, instr)| match instr {
        Instr::ExchangeGradients { leaves, shards, .. } => Some((member, &leaves[..], &shards[..])),
        _ => None,
    });
    exchange::gradients(cx, ranks, step, &all.collect::<Vec<_>>())
}
