//! Exact transfers, region by region.

use hashing::Map;
use program::{Exchange, ExchangeId, GradSync, LeafId, Of, Piece, RankId};
use rules::{Interval, Reduction, Region};

use crate::fault::Fault;
use crate::held::Held;
use crate::moves::{fits_reduction, rests};
use crate::region::{fits, region_text, unify_all};
use crate::share::{EMPTY, Quantity, ShareId};
use crate::state::{Context, Rank, place};
use crate::sum::sum;
use crate::sweep::sweep;
use crate::symmetry::agree;

/// Each rank's own entries of an exchange's list, by their place in the whole list.
struct OwnEntries(Map<u32, Vec<usize>>);

impl OwnEntries {
    fn new(list: &[(RankId, Region)]) -> Self {
        let mut entries: Map<u32, Vec<usize>> = Map::default();
        list.iter().enumerate().for_each(|(i, (rank, _))| entries.entry(rank.0).or_default().push(i));
        Self(entries)
    }

    fn get(&self, rank: RankId) -> &[usize] {
        self.0.get(&rank.0).map_or(&[], |list| list)
    }
}

/// What is wrong with a table, given the factors of all tensors: whether or not an instruction names it, what is read of
/// it later must be there.
pub(crate) fn wrong(exchange: &Exchange, world: u32, flat: &[Vec<i64>]) -> Option<&'static str> {
    let Some(factors) = flat.get(exchange.tensor.index()) else {
        return Some("is of a tensor that does not exist");
    };
    let ends = || exchange.sources.iter().chain(exchange.targets.iter());
    if ends().any(|(rank, _)| rank.0 >= world) {
        return Some("has ends on a rank that does not exist");
    }
    if !ends().all(|(_, region)| fits(region, factors)) {
        return Some("has regions that are not of its tensor");
    }
    let inside = |piece: &Piece| {
        let ends = (exchange.sources.get(piece.from), exchange.targets.get(piece.to));
        matches!(ends, (Some(from), Some(to)) if from.1.contains(&piece.region) && to.1.contains(&piece.region))
            && fits(&piece.region, factors)
    };
    let all = exchange.pieces.iter().all(inside);
    (!all).then_some("has a piece that is outside its source or target")
}

/// What arrives in each target, given what the sources hold.
pub(crate) fn arrivals(
    cx: &mut Context<'_>,
    exchange: &Exchange,
    grad: bool,
    sources: &[ShareId],
) -> Result<Vec<Held>, Fault> {
    let quantity = Quantity { tensor: cx.facts.class(exchange.tensor), grad };
    let mut pieces: Vec<Vec<&Piece>> = vec![vec![]; exchange.targets.len()];
    exchange.pieces.iter().for_each(|piece| pieces[piece.to].push(piece));
    let mut made = vec![];
    for ((_, region), pieces) in exchange.targets.iter().zip(pieces) {
        let region = cx.store.intervals.number(&region.0);
        rests(cx, Held { of: quantity, region, share: EMPTY })?;
        let share = arrival(cx, quantity, region, &pieces, exchange, sources)?;
        made.push(Held { of: quantity, region, share });
    }
    Ok(made)
}

fn arrival(
    cx: &mut Context<'_>,
    quantity: Quantity,
    region: u32,
    pieces: &[&Piece],
    exchange: &Exchange,
    sources: &[ShareId],
) -> Result<ShareId, Fault> {
    let mut shares = vec![];
    for piece in pieces {
        let part = cx.store.intervals.number(&piece.region.0);
        let share = cx.store.within(sources[piece.from], part);
        shares.push((part, share));
    }
    let (covered, overlapping) = tiling(cx, region, pieces);
    let symmetric = shares.iter().all(|(_, share)| *share == shares[0].1);
    if let (true, false, Some((_, share))) = (covered, overlapping, shares.first()) {
        if symmetric && cx.store.is_everywhere(*share) {
            return Ok(*share);
        }
    }
    let given: Vec<ShareId> = shares.iter().map(|(_, share)| *share).collect();
    if overlapping || (!covered && !quantity.grad) {
        let held = Held { of: quantity, region, share: EMPTY };
        let by = if overlapping { exchange.reduction } else { needed(cx, &given) };
        let mut given = given;
        if !covered && by != Reduction::Sum {
            given.push(EMPTY);
        }
        fits_reduction(cx, held, &given, by)?;
    }
    let placed: Vec<ShareId> =
        shares.into_iter().map(|(part, share)| cx.store.placed(share, part, region)).collect();
    sum(cx, quantity, region, &placed)
}

/// The reduction that completes these shares.
fn needed(cx: &Context<'_>, shares: &[ShareId]) -> Reduction {
    let mut kinds = shares.iter().flat_map(|share| cx.store.kinds(*share));
    kinds.find(|kind| *kind != Reduction::Sum).unwrap_or(Reduction::Sum)
}

/// Whether pieces cover a region, and whether any two overlap.
fn tiling(cx: &Context<'_>, region: u32, pieces: &[&Piece]) -> (bool, bool) {
    let frame = cx.store.region(region);
    if let [only] = pieces {
        return (only.region.0[..] == *frame, false);
    }
    let boxes: Vec<&[Interval]> = pieces.iter().map(|piece| &piece.region.0[..]).collect();
    let (mut covered, mut overlapping) = (true, false);
    sweep::<()>(frame, &boxes, &mut |inside, _| {
        covered &= !inside.is_empty();
        overlapping |= inside.len() > 1;
        None
    });
    (covered, overlapping)
}

/// An exchange between buffers.
pub(crate) fn buffers(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    id: ExchangeId,
    members: &[(usize, &[program::BufId], &[program::BufId])],
) -> Result<(), Fault> {
    let exchange = &cx.program.exchanges[id.index()];
    let mut shares = vec![EMPTY; exchange.sources.len()];
    let (all_sources, all_targets) = (OwnEntries::new(&exchange.sources), OwnEntries::new(&exchange.targets));
    let mut grad = None;
    for (member, from, to) in members {
        let rank = &ranks[*member];
        let (sources, targets) = (all_sources.get(rank.id), all_targets.get(rank.id));
        counted(rank.id, sources, targets, from.len(), to.len())?;
        for (&source, buf) in sources.iter().zip(*from) {
            let Some(held) = rank.held(*buf) else { return Ok(()) };
            source_fits(cx, exchange, source, held, grad).map_err(|fault| fault.at(rank.id, None))?;
            grad = Some(held.of.grad);
            shares[source] = held.share;
        }
    }
    // An exchange without sources makes gradients that are nothing, or values without elements.
    let backward =
        || members.first().is_some_and(|(member, ..)| place(&ranks[*member], None).pass.is_backward());
    let made = arrivals(cx, exchange, grad.unwrap_or_else(backward), &shares)?;
    for (member, _, to) in members {
        for (&target, buf) in all_targets.get(ranks[*member].id).iter().zip(*to) {
            ranks[*member].bufs[buf.index()] = Some(made[target]);
        }
    }
    Ok(())
}

/// A rank gives and gets as much as the table says.
fn counted(rank: RankId, sources: &[usize], targets: &[usize], from: usize, to: usize) -> Result<(), Fault> {
    if (sources.len(), targets.len()) == (from, to) {
        return Ok(());
    }
    let expected = format!("expected {} sources and {} targets", sources.len(), targets.len());
    Err(Fault::new("SW0507", "the buffers of an exchange are not those of its table")
        .why(format!("{expected}, found {from} and {to}"))
        .at(rank, None))
}

fn source_fits(
    cx: &Context<'_>,
    exchange: &Exchange,
    source: usize,
    held: Held,
    grad: Option<bool>,
) -> Result<(), Fault> {
    let (region, held_region) = (&exchange.sources[source].1, cx.store.region(held.region));
    let tensor = cx.facts.class(exchange.tensor);
    // What lies in some of a region would lie elsewhere in another.
    let there = || match (cx.store.is_everywhere(held.share), held.of.grad) {
        (false, _) => (held_region[..] == *region.0).then(|| held_region.to_vec()),
        (true, true) => unify_all(held_region, &region.0),
        (true, false) => agree(cx.facts, tensor, held_region, &region.0),
    };
    let same = held.of.tensor == tensor && there().is_some() && grad.is_none_or(|grad| grad == held.of.grad);
    if same {
        return Ok(());
    }
    let factors = &cx.facts.analysis.factors[exchange.tensor.index()];
    let expected = format!("{}{}", cx.name(exchange.tensor), region_text(factors, &region.0));
    Err(Fault::new("SW0507", "an exchange sends something else than its table says")
        .why(format!("expected {expected}, found {}", cx.text(held))))
}

/// An exchange of gradients of leaves into gradients of shards.
pub(crate) fn gradients(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    id: ExchangeId,
    members: &[(usize, &[LeafId], &[usize])],
    when: GradSync,
) -> Result<(), Fault> {
    let exchange = &cx.program.exchanges[id.index()];
    let mut shares = vec![EMPTY; exchange.sources.len()];
    let (all_sources, all_targets) = (OwnEntries::new(&exchange.sources), OwnEntries::new(&exchange.targets));
    for (member, leaves, shards) in members {
        let rank = &mut ranks[*member];
        let (sources, targets) = (all_sources.get(rank.id), all_targets.get(rank.id));
        counted(rank.id, sources, targets, leaves.len(), shards.len())?;
        for (&source, leaf) in sources.iter().zip(*leaves) {
            if when == GradSync::Each && matches!(rank.own.leaf(leaf.index()).0, Of::Shard(_)) {
                let what = "a gradient that is summed over micro-batches is exchanged with each of them";
                return Err(Fault::new("SW0510", what).at(rank.id, None));
            }
            let state = &mut rank.leaves[leaf.index()];
            (state.sealed, state.exchanged) = (true, true);
            let quantity = Quantity { tensor: state.tensor, grad: false };
            let held = Held { of: quantity, region: state.region, share: state.gradient };
            shares[source] = state.gradient;
            source_fits(cx, exchange, source, held, None).map_err(|fault| fault.at(rank.id, None))?;
        }
        for (&target, &shard) in targets.iter().zip(*shards) {
            shard_fits(exchange, target, rank, shard)?;
        }
    }
    let made = arrivals(cx, exchange, true, &shares)?;
    for (member, _, shards) in members {
        for (&target, &shard) in all_targets.get(ranks[*member].id).iter().zip(*shards) {
            let (held, had) = (made[target], ranks[*member].shards[shard]);
            ranks[*member].shards[shard] = sum(cx, held.of, held.region, &[had, held.share])?;
        }
    }
    Ok(())
}

fn shard_fits(exchange: &Exchange, target: usize, rank: &Rank<'_>, shard: usize) -> Result<(), Fault> {
    let held = (rank.own.table.shards[shard].tensor, rank.own.shard(shard));
    if held == (exchange.tensor, &exchange.targets[target].1) {
        return Ok(());
    }
    Err(Fault::new("SW0507", "an exchange brings gradients to another shard than its table says")
        .at(rank.id, None))
}
