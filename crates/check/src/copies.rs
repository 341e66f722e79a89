//! Parameters that ranks divide among them, or that live on the host: what is gathered of them and for how long, and how
//! gradients reach their parts.

use hashing::Map;
use program::{Body, BufId, Call, Grad, GroupingId, Instr, LeafId, Of, Own, Pass, RankId, Which};
use rules::Region;

use crate::fault::Fault;
use crate::fold::summed;
use crate::held::Held;
use crate::region::region_text;
use crate::share::{EMPTY, ListId, Quantity, ShareId, WHOLE};
use crate::state::{Context, Rank};
use crate::sum::sum;

/// Where in a body something is wrong with copies: the instruction, counted over all codes, and what.
pub(crate) type Wrong = (usize, String);

#[derive(Clone, Copy, PartialEq, Eq)]
enum There {
    No,
    /// For all of the step.
    Step,
    /// For a part of a micro-batch.
    Passing,
}

/// Copies are gathered before they are read and released after it; what a code gathers it releases, since between two
/// codes of a micro-batch those of others may run, which release it too, and since the next step would read what is old.
/// Nothing else than gathering happens once a step.
pub(crate) fn in_time(body: &Body, rank_table: Own<'_>) -> Option<Wrong> {
    let mut watch = Watch::new(body, rank_table);
    let mut at = 0;
    for code in &body.codes {
        for instr in &code.instrs {
            if let Some(wrong) = watch.instr(code.pass, instr) {
                return Some((at, format!("{} {wrong}", instr.kind().name())));
            }
            at += 1;
        }
        if code.gives.iter().flatten().any(|buf| watch.copies.contains_key(buf)) {
            return Some((
                at.saturating_sub(1),
                "a function returns a parameter that was gathered for it".into(),
            ));
        }
        if watch.there.contains(&There::Passing) {
            let what = format!("a parameter that {} gathers stays gathered at its end", code.pass.name());
            return Some((at.saturating_sub(1), what));
        }
    }
    None
}

struct Watch<'a> {
    there: Vec<There>,
    /// The copy of each leaf that is one.
    copies: Map<BufId, usize>,
    calls: Map<u32, &'a Call>,
}

impl<'a> Watch<'a> {
    fn new(body: &'a Body, rank_table: Own<'_>) -> Self {
        let copy = |(number, leaf): (usize, &program::Leaf)| match rank_table.leaf(number).0 {
            Of::Copy(copy) => Some((leaf.buf, copy)),
            Of::Shard(_) => None,
        };
        Self {
            there: vec![There::No; rank_table.table.copies.len()],
            copies: body.leaves.iter().enumerate().filter_map(copy).collect(),
            calls: body.calls().map(|call| (call.id.0, call)).collect(),
        }
    }

    /// What is wrong with an instruction.
    fn instr(&mut self, pass: Pass, instr: &Instr) -> Option<&'static str> {
        let begin = pass == Pass::Begin;
        match instr {
            Instr::Gather { copies, .. } => {
                let now = if begin { There::Step } else { There::Passing };
                let mut before = copies.iter().map(|copy| std::mem::replace(&mut self.there[*copy], now));
                before
                    .any(|there| there != There::No)
                    .then_some("gathers a parameter that is gathered already")
            }
            _ if begin => Some("stands where only parameters may be gathered, once a step"),
            _ if pass == Pass::End && !instr.settles() => {
                Some("stands where only gradients may be communicated, once a step")
            }
            Instr::Release { copies } => {
                let free = |copy: &usize| std::mem::replace(&mut self.there[*copy], There::No);
                match copies.iter().map(free).find(|there| *there != There::Passing)? {
                    There::Step => Some("releases a parameter that is gathered once for the whole step"),
                    _ => Some("releases a parameter that is not gathered"),
                }
            }
            _ => {
                let needed = needs_values(instr).and_then(|grad| self.calls.get(&grad.call.0));
                let needed = needed.into_iter().flat_map(|call| &call.inputs).copied();
                let mut copies = instr.reads().chain(needed).filter_map(|buf| self.copies.get(&buf));
                copies
                    .any(|copy| self.there[*copy] == There::No)
                    .then_some("reads a parameter that is not gathered")
            }
        }
    }
}

/// A backward that reads leaves. The second half of one reads nothing that is gathered: the runtime computes with the
/// first half what would, whatever the operators are.
fn needs_values(instr: &Instr) -> Option<&Grad> {
    if let Instr::Grad(grad) = instr { Some(grad).filter(|grad| grad.which != Which::Weights) } else { None }
}

/// What the ranks of a group name at each position of their lists, which are of one length.
fn positions<T: Copy>(lists: &[&[T]], different: &str) -> Result<Vec<Vec<T>>, Fault> {
    if lists.iter().any(|list| list.len() != lists[0].len()) {
        return Err(Fault::new("SW0506", format!("the ranks of one group {different}")));
    }
    Ok((0..lists[0].len()).map(|at| lists.iter().map(|list| list[at]).collect()).collect())
}

pub(crate) fn gather(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    group: GroupingId,
    members: &[usize],
    lists: &[&[usize]],
) -> Result<(), Fault> {
    for copies in positions(lists, "gather different numbers of parameters")? {
        joined(cx, ranks, group, members, &copies)?;
    }
    members.iter().zip(lists).for_each(|(&member, list)| there(cx, &mut ranks[member], list));
    Ok(())
}

/// The leaves that are parts of copies have values then.
pub(crate) fn there(cx: &Context<'_>, rank: &mut Rank<'_>, copies: &[usize]) {
    for leaf in cx.codes[rank.role].leaves_of(copies) {
        let (quantity, region) =
            (Quantity { tensor: rank.body.leaves[leaf].tensor, grad: false }, rank.leaves[leaf].region);
        rank.bufs[rank.body.leaves[leaf].buf.index()] = Some(Held { of: quantity, region, share: WHOLE });
    }
}

/// The members' shards are, in their order, the parts of the copy that all of them have then.
fn joined(
    cx: &mut Context<'_>,
    ranks: &[Rank<'_>],
    group: GroupingId,
    members: &[usize],
    copies: &[usize],
) -> Result<(), Fault> {
    let first = &ranks[members[0]].own.table.copies[copies[0]];
    let whole = ranks[members[0]].own.copy(copies[0]);
    let (places, count) = places(cx, ranks, group, members).ok_or_else(|| irregular(cx, "a gather"))?;
    let tensor = ranks[members[0]].own.table.shards[first.shard].tensor;
    let tiled = first.parts as usize == count && first.factor < whole.0.len();
    // Those that are not followed are further on by as much.
    let even = || whole.0[first.factor].len() % i64::from(first.parts) == 0;
    let symmetric = tiled && (count == members.len() || even());
    let fits = |(at, (&member, &copy)): (&usize, (&usize, &usize))| {
        let rank = &ranks[member];
        let it = &rank.own.table.copies[copy];
        (it.factor, it.parts, rank.own.copy(copy)) == (first.factor, first.parts, whole)
            && rank.own.table.shards[it.shard].tensor == tensor
            && *rank.own.shard(it.shard) == part(whole, first.factor, first.parts, *at)
    };
    if symmetric && places.iter().zip(members.iter().zip(copies)).all(fits) {
        return Ok(());
    }
    let factors = &cx.facts.analysis.factors[tensor.index()];
    let parts: Vec<String> = members
        .iter()
        .zip(copies)
        .map(|(&member, &copy)| {
            let rank = &ranks[member];
            region_text(factors, &rank.own.shard(rank.own.table.copies[copy].shard).0)
        })
        .collect();
    let (name, whole) = (cx.name(tensor), region_text(factors, &whole.0));
    Err(Fault::new("SW0507", format!("what is gathered of {name} is not what its shards make up"))
        .why(format!("expected shards of {whole} in the group's order, found {}", parts.join(", "))))
}

/// Where members are in their group, and of how many, also those that are not followed.
fn places(
    cx: &Context<'_>,
    ranks: &[Rank<'_>],
    group: GroupingId,
    members: &[usize],
) -> Option<(Vec<usize>, usize)> {
    match cx.fold.as_ref().filter(|fold| fold.along[group.index()]) {
        None => Some(((0..members.len()).collect(), members.len())),
        Some(fold) => {
            let ids: Vec<RankId> = members.iter().map(|member| ranks[*member].id).collect();
            fold.places(group, &ids)
        }
    }
}

fn part(whole: &Region, factor: usize, parts: u32, at: usize) -> Region {
    let mut region = whole.clone();
    region.0[factor] = region.0[factor].part(u32::try_from(at).unwrap_or(u32::MAX), parts);
    region
}

/// The sum of the gradients of a copy's leaves; each member's shard gets its part.
pub(crate) fn scatter(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    group: GroupingId,
    members: &[usize],
    lists: &[&[LeafId]],
) -> Result<(), Fault> {
    for leaf_ids in positions(lists, "reduce different numbers of gradients")? {
        let leaves: Vec<usize> = leaf_ids.iter().map(|leaf| leaf.index()).collect();
        scattered(cx, ranks, group, members, &leaves)?;
    }
    Ok(())
}

fn scattered(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    group: GroupingId,
    members: &[usize],
    leaves: &[usize],
) -> Result<(), Fault> {
    let pairs = || members.iter().copied().zip(leaves.iter().copied());
    let mut copies = vec![];
    for (member, leaf) in pairs() {
        copies.push(open(cx, &ranks[member], leaf)?);
    }
    joined(cx, ranks, group, members, &copies)?;
    let quantity = Quantity { tensor: ranks[members[0]].leaves[leaves[0]].tensor, grad: true };
    let given = pairs().map(|(member, leaf)| ranks[member].leaves[leaf]);
    let held =
        given.map(|state| Held { of: quantity, region: state.region, share: state.gradient }).collect();
    let total = summed(cx, ranks, group, members, held)?;
    pairs().try_for_each(|(member, leaf)| take(cx, &mut ranks[member], leaf, total))
}

/// Each rank takes its part of gradients that it has.
pub(crate) fn part_gradients(cx: &mut Context<'_>, rank: &mut Rank<'_>, leaves: &[LeafId]) {
    for leaf in leaves {
        let copy = open(cx, rank, leaf.index());
        let gradient = rank.leaves[leaf.index()].gradient;
        if let Err(fault) = copy.and_then(|_| take(cx, rank, leaf.index(), gradient)) {
            cx.refuse(rank, fault);
        }
    }
}

/// The copy that a leaf is all of, and whose gradient has not gone to the shards.
fn open(cx: &Context<'_>, rank: &Rank<'_>, leaf: usize) -> Result<usize, Fault> {
    let state = rank.leaves[leaf];
    let name = cx.name(state.tensor);
    let (Of::Copy(copy), region) = rank.own.leaf(leaf) else {
        let what =
            format!("the gradient of {name} goes to shards, but the parameter is not gathered from shards");
        return Err(Fault::new("SW0508", what));
    };
    if region != rank.own.copy(copy) || state.sealed {
        let what = format!("the gradient of {name} reaches its shards twice, or not in full");
        return Err(Fault::new("SW0508", what));
    }
    Ok(copy)
}

/// Adds a rank's part of a leaf's gradient to its shard's.
fn take(cx: &mut Context<'_>, rank: &mut Rank<'_>, leaf: usize, gradient: ShareId) -> Result<(), Fault> {
    let state = rank.leaves[leaf];
    let region = cx.store.intervals.number(&rank.own.shard(state.shard).0);
    let part = cx.store.within(gradient, region);
    let quantity = Quantity { tensor: state.tensor, grad: true };
    rank.shards[state.shard] = sum(cx, quantity, region, &[rank.shards[state.shard], part])?;
    let state = &mut rank.leaves[leaf];
    (state.gradient, state.sealed, state.exchanged) = (EMPTY, true, true);
    Ok(())
}

/// The gradients of shards, summed over ranks that hold the same ones.
pub(crate) fn reduce_shards(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    group: GroupingId,
    members: &[usize],
    lists: &[&[usize]],
) -> Result<(), Fault> {
    for shards in positions(lists, "reduce different numbers of gradients")? {
        let pairs: Vec<(usize, usize)> = members.iter().copied().zip(shards).collect();
        let what = |(member, shard): (usize, usize)| {
            let rank_table = ranks[member].own;
            (rank_table.table.shards[shard].tensor, rank_table.shard(shard).clone())
        };
        let (tensor, region) = what(pairs[0]);
        if pairs.iter().any(|it| what(*it) != (tensor, region.clone())) {
            return Err(Fault::new("SW0508", "gradients of different things are reduced")
                .why(format!("expected the same part of {} on every rank of the group", cx.name(tensor))));
        }
        let region: ListId = cx.store.intervals.number(&region.0);
        let quantity = Quantity { tensor, grad: true };
        let held = pairs.iter().map(|&(member, shard)| Held {
            of: quantity,
            region,
            share: ranks[member].shards[shard],
        });
        let held = held.collect();
        let total = summed(cx, ranks, group, members, held)?;
        pairs.iter().for_each(|&(member, shard)| ranks[member].shards[shard] = total);
    }
    Ok(())
}

/// Something that is not followed of ranks along an axis.
fn irregular(cx: &mut Context<'_>, what: &str) -> Fault {
    cx.give_up();
    Fault::new("SW0506", format!("{what} runs along an axis in an irregular order"))
}
