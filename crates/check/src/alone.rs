//! Follows a rank by itself, taking it that the others give what the program says.
//!
//! Nothing is proved this way: what arrives is complete, and lies where tables and cuts say. It is enough to know what a
//! rank of a program computes, moves and holds if the program is right.

use std::collections::HashMap;

use hashing::Map;
use program::{BufId, Collective, Cut, ExchangeId, Grad, GroupingId, How, Instr, RankId, Which};

use crate::calls::{self, needing};
use crate::copies;
use crate::cuts::{extents, gathered_around, of_piece};
use crate::held::Held;
use crate::moves::{self, divided};
use crate::share::{Quantity, WHOLE};
use crate::state::{Context, Rank};

/// Where ranks are in the groups of a grouping, and how many each group has.
#[derive(Default)]
pub(crate) struct Positions(HashMap<GroupingId, Places>);

/// Of each rank where it is in its group, and how many ranks that has.
type Places = Map<u32, (usize, usize)>;

impl Positions {
    pub(crate) fn places(&mut self, cx: &Context<'_>, grouping: GroupingId) -> &Places {
        self.0.entry(grouping).or_insert_with(|| {
            let groups = cx.program.groupings[grouping.index()].iter();
            let place = |group: &Vec<RankId>, at: usize| (group[at].0, (at, group.len()));
            groups.flat_map(|group| (0..group.len()).map(move |at| place(group, at))).collect()
        })
    }
}

/// Follows all codes of a rank. Whether nothing was amiss: what was not understood says nothing of the program.
pub(crate) fn follow<'a>(cx: &mut Context<'a>, rank: &mut Rank<'a>, positions: &mut Positions) -> bool {
    let role = rank.role;
    for index in 0..cx.codes[role].instrs.len() {
        let instr = cx.codes[role].instrs[index];
        rank.next = index;
        if step(cx, rank, positions, index, instr).is_none() {
            return false;
        }
    }
    cx.faults.is_empty()
}

fn step<'a>(
    cx: &mut Context<'a>,
    rank: &mut Rank<'a>,
    positions: &mut Positions,
    index: usize,
    instr: &'a Instr,
) -> Option<()> {
    match instr {
        Instr::Call(call) => calls::call(cx, rank, index, call),
        Instr::Grad(grad) => backward(cx, rank, grad)?,
        Instr::Slice(slice) => moves::slice(cx, rank, slice),
        Instr::Add { from, to } if rank.body.buf(*to).grad => {
            rank.bufs[to.index()] = rank.held(*from.first()?);
        }
        Instr::Add { from, to } => moves::add(cx, rank, from, *to),
        Instr::Keep { id, from, .. } => rank.keep(*id, from),
        Instr::Take { id, to } => rank.take(*id, to),
        Instr::Collective(collective) => {
            let place = *positions.places(cx, collective.group).get(&rank.id.0)?;
            for (from, to) in collective.from.iter().zip(&collective.to) {
                let held = rank.held(*from)?;
                rank.bufs[to.index()] = Some(moved(cx, rank, collective, held, place)?);
            }
        }
        Instr::Exchange { exchange, to, .. } | Instr::Receive { exchange, to } => {
            arrives(cx, rank, *exchange, to)?;
        }
        Instr::Gather { copies, .. } => copies::there(cx, rank, copies),
        // Of gradients of leaves and shards only their sizes count, which tables say.
        Instr::Send { .. }
        | Instr::Update { .. }
        | Instr::Fetch { .. }
        | Instr::Release { .. }
        | Instr::Part { .. }
        | Instr::ReduceGradients { .. }
        | Instr::ExchangeGradients { .. }
        | Instr::Scatter { .. }
        | Instr::ReduceShards { .. } => {}
    }
    Some(())
}

/// The gradients of a call's inputs have their regions.
fn backward(cx: &mut Context<'_>, rank: &mut Rank<'_>, grad: &Grad) -> Option<()> {
    let (_, call) = cx.codes[rank.role].call(grad.call)?;
    if grad.which == Which::Weights {
        return Some(());
    }
    let leaf_of = &cx.codes[rank.role].leaf_of;
    let others = call.inputs.iter().copied().filter(|buf| !leaf_of.contains_key(buf));
    let inputs: Vec<BufId> = needing(cx, rank, others)?;
    if inputs.len() != grad.to.len() {
        return None;
    }
    for (buf, to) in inputs.iter().zip(&grad.to) {
        let Some(to) = to else { continue };
        let value = rank.held(*buf)?;
        rank.bufs[to.index()] = Some(Held { of: Quantity { grad: true, ..value.of }, share: WHOLE, ..value });
    }
    Some(())
}

/// What a rank gets of a collective, in the place that it has in its group, of so many.
fn moved(
    cx: &mut Context<'_>,
    rank: &Rank<'_>,
    collective: &Collective,
    held: Held,
    (position, count): (usize, usize),
) -> Option<Held> {
    let held = Held { share: WHOLE, ..held };
    let region = match &collective.how {
        How::AllReduce(_) => held.region,
        How::AllGather(cut) => joined(cx, rank, cut, held, (position, count))?,
        How::ReduceScatter(cut) => moves::piece(cx, rank, cut, held, position, count).ok()?,
        How::AllToAll { send, receive } => {
            let region = moves::piece(cx, rank, send, held, position, count).ok()?;
            joined(cx, rank, receive, Held { region, ..held }, (position, count))?
        }
    };
    Some(Held { region, ..held })
}

/// What the pieces are together of which this one is at a place.
fn joined(
    cx: &mut Context<'_>,
    rank: &Rank<'_>,
    cut: &Cut,
    held: Held,
    (position, count): (usize, usize),
) -> Option<u32> {
    let factors = &cx.facts.analysis.factors[held.of.tensor.index()];
    let given = extents(rank, &cut.extents)?;
    let piece = divided(cx, held, held.region, &of_piece(&given, cut, position));
    let whole = gathered_around(&given, cut, factors, &piece, (position, count))?;
    Some(cx.store.intervals.number(&whole))
}

/// What a table says that arrives.
fn arrives(cx: &mut Context<'_>, rank: &mut Rank<'_>, id: ExchangeId, to: &[BufId]) -> Option<()> {
    let exchange = &cx.program.exchanges[id.index()];
    let tensor = cx.facts.class(exchange.tensor);
    let mut regions = exchange.targets.iter().filter(|(target, _)| *target == rank.id);
    for buf in to {
        let (_, region) = regions.next()?;
        let quantity = Quantity { tensor, grad: rank.body.buf(*buf).grad };
        let region = cx.store.intervals.number(&region.0);
        rank.bufs[buf.index()] = Some(Held { of: quantity, region, share: WHOLE });
    }
    Some(())
}
