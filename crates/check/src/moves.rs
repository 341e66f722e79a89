//! Slices, additions and the collectives that follow the order of a group.

use program::{BufId, Cut, Slice};
use rules::{Interval, Reduction};

use crate::cuts::{extents, gathered, lengths, locate, of_piece, part_of, same_shape, scattered};
use crate::fault::Fault;
use crate::held::Held;
use crate::region::unify_all;
use crate::share::{EMPTY, Quantity, ShareId, WHOLE};
use crate::state::{Context, Rank};
use crate::sum::sum;
use crate::symmetry::{agree, divided_as};

pub(crate) fn slice(cx: &mut Context<'_>, rank: &mut Rank<'_>, slice: &Slice) {
    let Some(held) = rank.held(slice.from) else { return };
    if let Err(fault) = rests(cx, held) {
        return cx.refuse(rank, fault);
    }
    match sliced(cx, rank, slice, held) {
        Some(region) => {
            let region = cx.store.intervals.number(&region);
            let share = cx.store.within(held.share, region);
            let share = settled(cx, held.of, region, share);
            rank.bufs[slice.to.index()] = Some(Held { region, share, ..held });
        }
        None => {
            let actual = cx.text(held);
            cx.refuse(
                rank,
                Fault::new("SW0507", "a slice does not fit what it slices").why(format!("found {actual}")),
            );
        }
    }
}

fn sliced(cx: &Context<'_>, rank: &Rank<'_>, slice: &Slice, held: Held) -> Option<Vec<Interval>> {
    let factors = &cx.facts.analysis.factors[held.of.tensor.index()];
    let flat: Vec<i64> = factors.iter().flatten().copied().collect();
    let given = extents(rank, &slice.extents)?;
    let mut region = divided(cx, held, held.region, &given);
    let known = lengths(factors, &region);
    let sizes: Vec<i64> = given.iter().flatten().copied().collect();
    if !same_shape(&known, &given) || sizes.len() != slice.region.len() {
        return None;
    }
    for (factor, ((lo, hi), size)) in slice.region.iter().zip(sizes).enumerate() {
        let part = Interval { lo: rank.integer(lo)?, hi: rank.integer(hi)? };
        if part.lo < 0 || part.lo > part.hi || part.hi > size {
            return None;
        }
        if part != Interval::whole(size) {
            let (index, part) = locate(&known, &given, factor, part).into_iter().next()?;
            region = part_of(&region, &flat, index, part);
        }
    }
    Some(region)
}

/// A region, of a value with its fluid runs divided as the program says: one that is the same share in all of it, since
/// what lies in some of a region lies elsewhere once that is divided otherwise.
pub(crate) fn divided(cx: &Context<'_>, held: Held, region: u32, extents: &[Vec<i64>]) -> Vec<Interval> {
    let region = cx.store.region(region);
    let stays = held.of.grad || !cx.store.is_everywhere(held.share);
    if stays { region.to_vec() } else { divided_as(cx.facts, held.of.tensor, region, extents) }
}

/// A share, or all of it if it is.
fn settled(cx: &mut Context<'_>, quantity: Quantity, region: u32, share: ShareId) -> ShareId {
    cx.store.sum(cx.facts, quantity, region, &[share]).unwrap_or(share)
}

pub(crate) fn add(cx: &mut Context<'_>, rank: &mut Rank<'_>, from: &[BufId], to: BufId) {
    let held: Option<Vec<Held>> = from.iter().map(|buf| rank.held(*buf)).collect();
    let Some(held) = held else { return };
    if let Some(fault) = held.iter().find_map(|held| rests(cx, *held).err()) {
        return cx.refuse(rank, fault);
    }
    match combined(cx, &held, Reduction::Sum) {
        Ok(sum) => rank.bufs[to.index()] = sum,
        Err(fault) => cx.refuse(rank, fault),
    }
}

/// Refuses rows for experts, which are as many as the router says: all-to-alls move them, and nothing else can.
pub(crate) fn rests(cx: &Context<'_>, held: Held) -> Result<(), Fault> {
    let graph = &cx.facts.graph;
    let maker = graph.producer(held.of.tensor).map(|(op, _)| &graph.op(op).target[..]);
    if maker.is_some_and(rules::families::makes_rows) {
        let what = "rows for experts are not moved by an all-to-all";
        return Err(Fault::new("SW0507", what).why(format!("found {}", cx.text(held))));
    }
    Ok(())
}

/// Parts of one tensor's value or gradient in the same region, as one.
fn combined(cx: &mut Context<'_>, held: &[Held], reduction: Reduction) -> Result<Option<Held>, Fault> {
    let Some(first) = held.first().copied() else { return Ok(None) };
    // What may lie anywhere lies where the others do.
    let mut region = first.region;
    // What lies in some of a region would lie elsewhere in another.
    let moves = held.iter().all(|held| cx.store.is_everywhere(held.share));
    for other in held.iter().filter(|other| other.of != first.of || other.region != first.region) {
        let (one, two) = (cx.store.region(region), cx.store.region(other.region));
        let joined =
            if first.of.grad { unify_all(one, two) } else { agree(cx.facts, first.of.tensor, one, two) };
        let Some(joined) = joined.filter(|_| moves && other.of == first.of) else {
            let (expected, actual) = (cx.text(first), cx.text(*other));
            return Err(Fault::new("SW0507", "different things are added")
                .why(format!("expected {expected} everywhere, found {actual}")));
        };
        region = cx.store.intervals.number(&joined);
    }
    let first = Held { region, ..first };
    let shares: Vec<ShareId> = held.iter().map(|held| held.share).collect();
    let share = reduced(cx, first, &shares, reduction)?;
    Ok(Some(Held { share, ..first }))
}

fn reduced(cx: &mut Context<'_>, first: Held, shares: &[ShareId], by: Reduction) -> Result<ShareId, Fault> {
    // The largest of several copies is a copy.
    let copies = shares.iter().all(|share| *share == shares[0]);
    if by != Reduction::Sum && copies && shares[0] == WHOLE {
        return Ok(WHOLE);
    }
    if shares.len() > 1 {
        fits_reduction(cx, first, shares, by)?;
    }
    sum(cx, first.of, first.region, shares)
}

/// Partial maxima are completed by a maximum, partial sums by a sum.
pub(crate) fn fits_reduction(
    cx: &Context<'_>,
    held: Held,
    shares: &[ShareId],
    by: Reduction,
) -> Result<(), Fault> {
    let wrong = shares.iter().flat_map(|share| cx.store.kinds(*share)).find(|kind| *kind != by);
    let partly = |share: &ShareId| *share == EMPTY || !cx.store.is_everywhere(*share);
    match wrong {
        Some(wrong) => Err(Fault::new(
            "SW0508",
            format!("partial values of {} are combined by another reduction", cx.text(held)),
        )
        .why(format!("expected {}, found {}", wrong.name(), by.name()))),
        None if by != Reduction::Sum && shares.iter().any(partly) => Err(Fault::new(
            "SW0508",
            format!("the {} of {} includes zeros that are not part of it", by.name(), cx.text(held)),
        )),
        None => Ok(()),
    }
}

/// What the members of a group give to a collective, in the order of the group.
pub(crate) struct Group<'g> {
    /// Indices into the list of ranks.
    pub(crate) members: &'g [usize],
    pub(crate) held: Vec<Held>,
}

impl<'g> Group<'g> {
    /// `None` if something is unknown, because of an earlier fault.
    pub(crate) fn new(ranks: &[Rank<'_>], members: &'g [usize], from: &[BufId]) -> Option<Self> {
        let held = members.iter().zip(from).map(|(&member, buf)| ranks[member].held(*buf));
        Some(Self { members, held: held.collect::<Option<_>>()? })
    }

    fn like(&self) -> bool {
        self.held.iter().all(|held| held.of == self.held[0].of)
    }
}

pub(crate) fn all_reduce(cx: &mut Context<'_>, group: &Group<'_>, by: Reduction) -> Result<Vec<Held>, Fault> {
    let held = combined(cx, &group.held, by)?;
    Ok(held.map(|held| vec![held; group.members.len()]).unwrap_or_default())
}

pub(crate) fn all_gather(
    cx: &mut Context<'_>,
    ranks: &[Rank<'_>],
    group: &Group<'_>,
    cuts: &[&Cut],
) -> Result<Vec<Held>, Fault> {
    let mut made: Vec<Held> = vec![];
    for (position, cut) in cuts.iter().enumerate() {
        // All members agree, unless their extents differ.
        let same = position > 0 && (std::ptr::eq(cuts[position - 1], *cut) || cuts[position - 1] == *cut);
        if same && !has_holes(cut) {
            made.push(made[position - 1]);
            continue;
        }
        let (region, pieces) = joined(cx, &ranks[group.members[position]], cut, group, &regions(group))?;
        made.push(together(cx, group, region, &pieces)?);
    }
    Ok(made)
}

fn has_holes(cut: &Cut) -> bool {
    cut.extents.iter().flatten().any(|arg| matches!(arg, program::Arg::Hole(_)))
}

fn regions(group: &Group<'_>) -> Vec<u32> {
    group.held.iter().map(|held| held.region).collect()
}

/// The region of what is put together, and the region of each piece in it.
fn joined(
    cx: &mut Context<'_>,
    rank: &Rank<'_>,
    cut: &Cut,
    group: &Group<'_>,
    pieces: &[u32],
) -> Result<(u32, Vec<u32>), Fault> {
    let quantity = group.held[0].of;
    let factors = &cx.facts.analysis.factors[quantity.tensor.index()];
    let given = extents(rank, &cut.extents).unwrap_or_default();
    let piece = |(position, region): (usize, &u32)| {
        let given = of_piece(&given, cut, position);
        divided(cx, group.held[position], *region, &given)
    };
    let lists: Vec<Vec<Interval>> = pieces.iter().enumerate().map(piece).collect();
    let lists: Vec<&[Interval]> = lists.iter().map(|list| &list[..]).collect();
    let whole = if group.like() { gathered(rank, cut, factors, &lists) } else { None };
    match whole {
        Some(joined) => {
            let placed = joined.pieces.iter().map(|piece| cx.store.intervals.number(piece)).collect();
            Ok((cx.store.intervals.number(&joined.whole), placed))
        }
        None => {
            let texts: Vec<String> = (group.held.iter().zip(pieces).take(3))
                .map(|(held, region)| cx.text(Held { region: *region, ..*held }))
                .collect();
            Err(Fault::new("SW0507", "the pieces that are joined are not consecutive").why(format!(
                "expected pieces of {:?} along one factor, found {}",
                cut.sizes,
                texts.join(", ")
            )))
        }
    }
}

/// The share of pieces that are put together.
fn together(cx: &mut Context<'_>, group: &Group<'_>, region: u32, pieces: &[u32]) -> Result<Held, Fault> {
    let first = group.held[0];
    let symmetric =
        group.held.iter().all(|held| held.share == first.share) && cx.store.is_everywhere(first.share);
    if symmetric {
        return Ok(Held { region, ..first });
    }
    let is_somewhere = |(held, piece): (&Held, &u32)| {
        cx.store.is_somewhere(*piece, region)
            || !cx.store.is_everywhere(held.share) && cx.store.is_somewhere(held.region, *piece)
    };
    if group.held.iter().zip(pieces).any(is_somewhere) {
        let what = "different shares are joined of what may lie anywhere";
        return Err(Fault::new("SW0507", what).why(format!("found {}", cx.text(first))));
    }
    let placed: Vec<ShareId> = (group.held.iter().zip(pieces))
        .map(|(held, piece)| {
            let share = cx.store.within(held.share, *piece);
            cx.store.placed(share, *piece, region)
        })
        .collect();
    let share = sum(cx, first.of, region, &placed)?;
    Ok(Held { region, share, ..first })
}

pub(crate) fn reduce_scatter(
    cx: &mut Context<'_>,
    ranks: &[Rank<'_>],
    group: &Group<'_>,
    cuts: &[&Cut],
) -> Result<Vec<Held>, Fault> {
    let Some(sum) = combined(cx, &group.held, Reduction::Sum)? else { return Ok(vec![]) };
    let pieces = cuts.len();
    one_cut(cx, ranks, group, cuts, sum)?;
    let scatter = |(position, cut): (usize, &&Cut)| {
        let region = piece(cx, &ranks[group.members[position]], cut, sum, position, pieces)?;
        let share = cx.store.within(sum.share, region);
        Ok(Held { region, share: settled(cx, sum.of, region, share), ..sum })
    };
    cuts.iter().enumerate().map(scatter).collect()
}

/// Every member cuts what it gives into the pieces that the others get.
fn one_cut(
    cx: &mut Context<'_>,
    ranks: &[Rank<'_>],
    group: &Group<'_>,
    cuts: &[&Cut],
    sum: Held,
) -> Result<(), Fault> {
    let given = |position: usize| extents(&ranks[group.members[position]], &cuts[position].extents);
    let (first, pieces) = (given(0), cuts.len());
    for (position, cut) in cuts.iter().enumerate() {
        if (cut.factor, &cut.sizes) == (cuts[0].factor, &cuts[0].sizes) && given(position) == first {
            continue;
        }
        for at in 0..pieces {
            let here = piece(cx, &ranks[group.members[position]], cut, sum, at, pieces)?;
            if here != piece(cx, &ranks[group.members[0]], cuts[0], sum, at, pieces)? {
                let what = "the ranks of one reduce-scatter cut a tensor in different pieces";
                return Err(Fault::new("SW0506", what));
            }
        }
    }
    Ok(())
}

/// The piece at a position of what is cut into so many.
pub(crate) fn piece(
    cx: &mut Context<'_>,
    rank: &Rank<'_>,
    cut: &Cut,
    held: Held,
    position: usize,
    pieces: usize,
) -> Result<u32, Fault> {
    let factors = &cx.facts.analysis.factors[held.of.tensor.index()];
    let region = divided(cx, held, held.region, &extents(rank, &cut.extents).unwrap_or_default());
    match scattered(rank, cut, factors, &region, position, pieces) {
        Some(region) => Ok(cx.store.intervals.number(&region)),
        None => Err(Fault::new("SW0507", "a tensor is cut into pieces that do not fit it").why(format!(
            "expected {pieces} pieces of {}, found {:?}",
            cx.text(held),
            cut.sizes
        ))),
    }
}

pub(crate) fn all_to_all(
    cx: &mut Context<'_>,
    ranks: &[Rank<'_>],
    group: &Group<'_>,
    cuts: &[(&Cut, &Cut)],
) -> Result<Vec<Held>, Fault> {
    let count = cuts.len();
    let mut made = vec![];
    for (position, (_, receive)) in cuts.iter().enumerate() {
        // The piece that every member sends to this one.
        let mut pieces = vec![];
        for (&member, (held, (send, _))) in group.members.iter().zip(group.held.iter().zip(cuts)) {
            pieces.push(piece(cx, &ranks[member], send, *held, position, count)?);
        }
        let (region, pieces) = joined(cx, &ranks[group.members[position]], receive, group, &pieces)?;
        made.push(together(cx, group, region, &pieces)?);
    }
    Ok(made)
}
