//! Follows calls: forward through their operators, backward through them in reverse.

use graph::{OpId, TensorId};
use program::{BufId, Call, CallId, Grad, Saves, Which};
use rules::{Interval, Kind, Reduction, Through};

use crate::facts::Facts;
use crate::fault::Fault;
use crate::held::{Held, LocalPart, Scene, Sums};
use crate::local::clause_shares;
use crate::proof::Computes;
use crate::region::unify_all;
use crate::share::{
    EMPTY, FULL, ListId, Mode, Owner, Quantity, ShareId, Term, WHOLE, reached_outputs, sizes,
};
use crate::state::{Context, Rank, place};
use crate::sum::sum;
use crate::symmetry::agree;

pub(crate) fn call(cx: &mut Context<'_>, rank: &mut Rank<'_>, index: usize, call: &Call) {
    after_update(cx, rank, call);
    let recomputed = rank.body.pass_at(rank.next).is_backward();
    let (first, base) = (cx.codes[rank.role].first_op[index], cx.codes[rank.role].base);
    let mut inputs: Vec<Held> = vec![];
    for (offset, local) in call.ops.iter().enumerate() {
        let number = first + offset;
        inputs.clear();
        let reads = &cx.codes[rank.role].reads[number];
        inputs.extend(reads.iter().filter_map(|buf| rank.held(*buf)));
        if inputs.len() != reads.len() {
            continue;
        }
        let site = base + u32::try_from(number).expect("fewer than 2^32 operators");
        let (facts, role, rank_table) = (cx.facts, rank.role, rank.own);
        let scene = Scene { facts, local, site, role, bufs: &rank.bufs, inputs: &inputs, own: rank_table };
        match cx.finder.find(&mut cx.store, &scene) {
            Ok(part) => {
                for (buf, held) in local.outputs.iter().zip(&cx.finder.outputs) {
                    if let Some(buf) = buf {
                        rank.bufs[buf.index()] = *held;
                    }
                }
                rank.parts[number] = Some(part);
                cx.tally.local(part.op, &local.target);
                let work = cx.finder.work(cx.facts, &cx.store, &part);
                cx.tally.computes(rank.id, Computes::Values { recomputed }, work);
            }
            Err(fault) => {
                let place = place(rank, Some(offset));
                cx.faults.push(fault.at(rank.id, Some(place)));
            }
        }
    }
}

/// What was updated is not read any more.
fn after_update(cx: &mut Context<'_>, rank: &Rank<'_>, call: &Call) {
    let leaves = call.inputs.iter().filter_map(|buf| cx.codes[rank.role].leaf_of.get(buf));
    let late = { leaves }.find(|leaf| rank.updated[rank.leaves[**leaf].shard]).copied();
    if let Some(leaf) = late {
        let name = cx.name(rank.leaves[leaf].tensor);
        cx.refuse(rank, Fault::new("SW0513", format!("{name} is read after its update")));
    }
}

pub(crate) fn grad(cx: &mut Context<'_>, rank: &mut Rank<'_>, grad: &Grad) {
    let Some((index, call)) = cx.codes[rank.role].call(grad.call) else { return };
    if grad.which == Which::Weights {
        return weights(cx, rank, grad.call);
    }
    let mut sums = std::mem::take(&mut cx.sums);
    sums.clear(rank.bufs.len());
    let done = match follow(cx, rank, index, call, grad, &mut sums) {
        Ok(true) => give(cx, rank, call, grad, &sums),
        Ok(false) => Ok(()),
        Err(fault) => Err(fault),
    };
    cx.sums = sums;
    if let Err(fault) = done {
        cx.refuse(rank, fault);
    }
}

/// The gradients of leaves that the first half of a backward has left.
fn weights(cx: &mut Context<'_>, rank: &mut Rank<'_>, call: CallId) {
    for (leaf, region, share) in rank.owed.remove(&call.0).unwrap_or_default() {
        if let Err(fault) = give_leaf(cx, rank, leaf, region, share) {
            cx.refuse(rank, fault);
        }
    }
}

/// The buffers that count among those that need a gradient; `None` if one is unknown.
pub(crate) fn needing(
    cx: &Context<'_>,
    rank: &Rank<'_>,
    bufs: impl Iterator<Item = BufId>,
) -> Option<Vec<BufId>> {
    let mut needing = vec![];
    for buf in bufs {
        let held = rank.held(buf)?;
        if cx.facts.needs(rank.body.buf(buf).tensor, held.of.tensor) {
            needing.push(buf);
        }
    }
    Some(needing)
}

fn follow(
    cx: &mut Context<'_>,
    rank: &mut Rank<'_>,
    index: usize,
    call: &Call,
    grad: &Grad,
    sums: &mut Sums,
) -> Result<bool, Fault> {
    let Some(outputs) = needing(cx, rank, call.outputs.iter().copied()) else { return Ok(false) };
    if outputs.len() != grad.from.len() {
        return Err(Fault::new(
            "SW0509",
            "a call gets a different number of gradients than it has results that need one",
        )
        .why(format!("expected {}, found {}", outputs.len(), grad.from.len())));
    }
    if !given_again(cx, rank, call, grad)? {
        return Ok(false);
    }
    for (buf, from) in outputs.iter().zip(&grad.from) {
        let Some(from) = from else { continue };
        let (Some(value), Some(given)) = (rank.held(*buf), rank.held(*from)) else { return Ok(false) };
        let (value_region, given_region) = (cx.store.region(value.region), cx.store.region(given.region));
        let region = agree(cx.facts, value.of.tensor, value_region, given_region);
        let wanted = Held { of: Quantity { grad: true, ..value.of }, ..value };
        if given.of != wanted.of || region.is_none() {
            let (wanted, given) = (cx.text(wanted), cx.text(given));
            return Err(Fault::new("SW0509", "a call gets the gradient of something else")
                .why(format!("expected {wanted}, found {given}")));
        }
        add(cx, rank, sums, *buf, given.region, given.share)?;
    }
    let first = cx.codes[rank.role].first_op[index];
    for (offset, local) in call.ops.iter().enumerate().rev() {
        let Some(part) = rank.parts[first + offset] else { return Ok(false) };
        let step = OperatorBackward { part, outputs: &local.outputs };
        step.back(cx, rank, sums).map_err(|fault| fault.operator(cx.facts.graph.describe(part.op)))?;
    }
    Ok(true)
}

/// Whether all is known of what a call forgot; an error if it is given something else.
fn given_again(cx: &Context<'_>, rank: &Rank<'_>, call: &Call, grad: &Grad) -> Result<bool, Fault> {
    if !matches!(call.saves, Saves::Made { .. }) {
        return Ok(true);
    }
    let leaf_of = &cx.codes[rank.role].leaf_of;
    let read: Vec<BufId> = call.inputs.iter().copied().filter(|buf| !leaf_of.contains_key(buf)).collect();
    if read.len() != grad.recomputed.len() {
        return Err(Fault::new("SW0509", "a call gets back a different number of values than it dropped")
            .why(format!("expected {}, found {}", read.len(), grad.recomputed.len())));
    }
    for (buf, recomputed) in read.iter().zip(&grad.recomputed) {
        let (Some(value), Some(given)) = (rank.held(*buf), rank.held(*recomputed)) else { return Ok(false) };
        let (value_region, given_region) = (cx.store.region(value.region), cx.store.region(given.region));
        // A share that lies in some of a region only would lie elsewhere in another one. No operator reads such.
        let same = given.of == value.of && given.share == value.share;
        if !same || agree(cx.facts, value.of.tensor, value_region, given_region).is_none() {
            let (wanted, given) = (cx.text(value), cx.text(given));
            return Err(Fault::new("SW0509", "a call gets back something else than it dropped")
                .why(format!("expected {wanted}, found {given}")));
        }
    }
    Ok(true)
}

fn add(
    cx: &mut Context<'_>,
    rank: &Rank<'_>,
    sums: &mut Sums,
    buf: BufId,
    region: ListId,
    share: ShareId,
) -> Result<(), Fault> {
    // A code may stand before the one whose values it reads; what is amiss with that is said there.
    let Some(held) = rank.held(buf) else {
        return Err(Fault::new("SW0509", "a gradient flows to a value that does not exist"));
    };
    let (region, shares) = match sums.get(buf) {
        Some((known, had)) if known == region => (region, vec![had, share]),
        Some((known, had)) => {
            // What lies in some of a region would lie elsewhere in another. What a call was given may be such, and is there
            // before what its operators add.
            let moves = cx.store.is_everywhere(had);
            let joined = unify_all(cx.store.region(known), cx.store.region(region)).filter(|_| moves);
            let joined = joined.ok_or_else(|| {
                Fault::new(
                    "SW0509",
                    format!("gradients of different parts of {} are added", cx.name(held.of.tensor)),
                )
            })?;
            (cx.store.intervals.number(&joined), vec![had, share])
        }
        None => (region, vec![share]),
    };
    let quantity = Quantity { grad: true, ..held.of };
    let share = sum(cx, quantity, region, &shares)?;
    sums.set(buf, region, share);
    Ok(())
}

/// One operator's backward.
struct OperatorBackward<'s> {
    part: LocalPart,
    outputs: &'s [Option<BufId>],
}

impl OperatorBackward<'_> {
    fn back(&self, cx: &mut Context<'_>, rank: &Rank<'_>, sums: &mut Sums) -> Result<(), Fault> {
        let op = self.part.op;
        if cx.facts.op(op).uses.iter().all(Option::is_none) {
            return Ok(());
        }
        let mut at: Vec<Interval> = cx.store.region(self.part.at).to_vec();
        let mut shares = vec![];
        for (position, _) in reached_outputs(cx.facts, op) {
            let sum = self.outputs.get(position).copied().flatten().and_then(|buf| sums.get(buf));
            shares.push(sum.map_or(EMPTY, |(_, share)| share));
            if let Some((region, _)) = sum {
                resolve(cx, op, position, region, &mut at)?;
            }
        }
        if shares.iter().all(|share| *share == EMPTY) {
            return Ok(());
        }
        if shares.iter().any(|share| !cx.store.is_everywhere(*share)) {
            return Err(Fault::new(
                "SW0509",
                "an operator gets a gradient that does not cover its whole region",
            ));
        }
        refuse_ties(cx.facts, &self.part, &at)?;
        let work = cx.finder.work(cx.facts, &cx.store, &self.part);
        cx.tally.computes(rank.id, Computes::Gradients, work);
        let binding = cx.finder.bindings.get(self.part.binding).clone();
        for (buf, position) in binding.iter() {
            let use_of = cx.facts.op(op).uses[*position];
            let Some(number) = use_of.filter(|number| !cx.facts.is_zero(*number)) else { continue };
            let (mode, subs) = self.subs(cx, rank, *position, &shares)?;
            if matches!(mode, Mode::Clause(_)) && cx.store.are_nothing(subs) {
                continue;
            }
            let cut = cut(cx, op, *position, number, &at)?;
            let kind = Reduction::Sum;
            let term = Term { owner: Owner::Use(number), cut, mode, subs, once: true, kind };
            let tensor = cx.facts.op(op).inputs[*position];
            let share = cx.store.contribution(cx.facts, tensor, term);
            let carried = &cx.facts.analysis.op(op).inputs[*position];
            let region = cx.store.part(cx.facts, tensor, carried, &at);
            add(cx, rank, sums, *buf, region, share)?;
        }
        Ok(())
    }

    /// What the contribution to one operand is partial in: the gradients of the outputs or, for an
    /// operand in which the operator is not linear with the partial ones, their values.
    fn subs(
        &self,
        cx: &mut Context<'_>,
        rank: &Rank<'_>,
        position: usize,
        shares: &[ShareId],
    ) -> Result<(Mode, ListId), Fault> {
        let op = self.part.op;
        let rule = cx.facts.analysis.rules[op.index()].as_ref();
        let other = self.part.clause.filter(|clause| {
            rule.is_some_and(|rule| {
                !rule.passes[*clause as usize].operands.contains(&position) && !rule.inputs[position].once
            })
        });
        let complete = shares.iter().all(|share| *share == WHOLE);
        match other {
            Some(_) if !complete => {
                Err(Fault::new("SW0509", "an operator with partial operands gets a partial gradient"))
            }
            Some(clause) => {
                let binding = cx.finder.bindings.get(self.part.binding).clone();
                let shares = clause_shares(cx.facts, op, clause, |wanted| {
                    let (buf, _) = binding.iter().find(|(_, position)| *position == wanted)?;
                    rank.held(*buf).map(|held| held.share)
                });
                Ok((Mode::Clause(clause), cx.store.list(&shares)))
            }
            None if complete => Ok((Mode::Plain, 0)),
            None => Ok((Mode::Outputs, cx.store.list(shares))),
        }
    }
}

/// Intervals that could lie anywhere lie where the gradient is, and fluid runs are divided as it is.
fn resolve(
    cx: &Context<'_>,
    op: OpId,
    output: usize,
    region: ListId,
    at: &mut [Interval],
) -> Result<(), Fault> {
    let (facts, had) = (cx.facts, at.to_vec());
    let carried = &facts.analysis.op(op).outputs[output];
    let Some(tensor) = facts.op(op).outputs[output] else { return Ok(()) };
    let region = cx.store.region(region);
    let value = facts.analysis.region(tensor, carried, at);
    let joined = agree(facts, tensor, &value.0, region);
    let other = || Fault::new("SW0509", "an operator gets the gradient of another part");
    for (carried, i) in carried.iter().zip(&joined.ok_or_else(other)?) {
        if let Some(l) = *carried {
            at[l] = *i;
        }
    }
    if had == at || same_shapes(facts, op, &had, at) { Ok(()) } else { Err(other()) }
}

/// Whether two parts have operands of the same shapes.
fn same_shapes(facts: &Facts<'_>, op: OpId, a: &[Interval], b: &[Interval]) -> bool {
    let shape = |tensor: TensorId, carried: &Vec<Option<usize>>, at: &[Interval]| {
        facts.analysis.region(tensor, carried, at).shape(&facts.analysis.factors[tensor.index()])
    };
    let same = |(t, carried): (&TensorId, _)| shape(*t, carried, a) == shape(*t, carried, b);
    facts.op(op).inputs.iter().zip(&facts.analysis.op(op).inputs).all(same)
}

/// The gradient of a maximum over a part is not a part of the gradient of the maximum, and where a function of a share
/// of a maximum rises says nothing of where that of the maximum does.
fn refuse_ties(facts: &Facts<'_>, part: &LocalPart, at: &[Interval]) -> Result<(), Fault> {
    let op = part.op;
    let rule = facts.analysis.rules[op.index()].as_ref();
    let passes = part.clause.zip(rule).map(|(clause, rule)| rule.passes[clause as usize].through);
    if passes.is_some_and(|through| through != Through::Linear) {
        return Err(Fault::new(
            "SW0509",
            "a gradient flows through an operator whose operands are partial, but not shares of a sum",
        ));
    }
    let loops = facts.analysis.op(op).loops.iter().zip(at);
    let split = |kind: Kind| matches!(kind, Kind::Reduce(reduction) if reduction != Reduction::Sum);
    if { loops }.any(|(l, i)| split(l.kind) && *i != Interval::whole(l.size)) {
        return Err(Fault::new("SW0509", "a gradient flows through a split reduction that is not a sum"));
    }
    Ok(())
}

fn cut(
    cx: &mut Context<'_>,
    op: OpId,
    position: usize,
    number: u32,
    at: &[Interval],
) -> Result<ListId, Fault> {
    let loose = &cx.facts.op(op).loose[position];
    if loose.is_empty() {
        return Ok(FULL);
    }
    let loops = &cx.facts.analysis.op(op).loops;
    if loose.iter().all(|&l| at[l] == Interval::whole(loops[l].size)) {
        return Ok(FULL);
    }
    let intervals: Vec<Interval> = loose.iter().map(|&l| at[l]).collect();
    let sizes = sizes(cx.facts, Owner::Use(number));
    Ok(cx.store.cut(&intervals, &sizes))
}

/// Hands the gradients of a call's inputs to leaves and buffers; those of leaves later, if this is a first half.
fn give(
    cx: &mut Context<'_>,
    rank: &mut Rank<'_>,
    call: &Call,
    grad: &Grad,
    sums: &Sums,
) -> Result<(), Fault> {
    let leaf_of = &cx.codes[rank.role].leaf_of;
    let leaves = call.inputs.iter().filter_map(|buf| {
        let (leaf, (region, share)) = (*leaf_of.get(buf)?, sums.get(*buf)?);
        Some((leaf, region, share))
    });
    let leaves: Vec<(usize, ListId, ShareId)> = leaves.collect();
    if grad.which == Which::Inputs {
        rank.owed.insert(grad.call.0, leaves);
    } else {
        leaves.into_iter().try_for_each(|(leaf, region, share)| give_leaf(cx, rank, leaf, region, share))?;
    }
    let leaf_of = &cx.codes[rank.role].leaf_of;
    let others = call.inputs.iter().copied().filter(|buf| !leaf_of.contains_key(buf));
    let Some(inputs) = needing(cx, rank, others) else { return Ok(()) };
    if inputs.len() != grad.to.len() {
        return Err(Fault::new(
            "SW0509",
            "a call gives a different number of gradients than it has inputs that need one",
        )
        .why(format!("expected {}, found {}", inputs.len(), grad.to.len())));
    }
    for (buf, to) in inputs.iter().zip(&grad.to) {
        let (Some(to), Some(held)) = (to, rank.held(*buf)) else { continue };
        let (region, share) = sums.get(*buf).unwrap_or((held.region, EMPTY));
        let quantity = Quantity { grad: true, ..held.of };
        rank.bufs[to.index()] = Some(Held { of: quantity, region, share });
    }
    Ok(())
}

fn give_leaf(
    cx: &mut Context<'_>,
    rank: &mut Rank<'_>,
    leaf: usize,
    region: ListId,
    share: ShareId,
) -> Result<(), Fault> {
    let state = rank.leaves[leaf];
    debug_assert_eq!(region, state.region);
    if state.sealed {
        let name = cx.name(state.tensor);
        return Err(Fault::new(
            "SW0510",
            format!("the gradient of {name} is communicated before its last contribution"),
        )
        .why("expected the reduction after every backward that contributes, found one before this"));
    }
    let quantity = Quantity { tensor: state.tensor, grad: true };
    rank.leaves[leaf].gradient = sum(cx, quantity, region, &[state.gradient, share])?;
    Ok(())
}
