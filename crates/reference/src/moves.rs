//! Communications: groups, exchanges, and gradients on their way to the shards.

use program::{Collective, Cut, ExchangeId, GroupingId, How, Instr, LeafId};
use rules::{Interval, Reduction, Region};

use crate::instr::{extents, store, summed};
use crate::machine::{Machine, Trouble};
use crate::number::Num;
use crate::regions;
use crate::state::{Job, Rank};
use crate::tape::{ElementKind, Value};

impl<'a> Machine<'a> {
    pub fn communicate(&mut self, rank: &mut Rank<'a>, job: &Job, instr: &'a Instr) -> Result<bool, Trouble> {
        match instr {
            Instr::Collective(it) => self.collective(rank, job, it),
            Instr::Exchange { exchange, from, to } => {
                if !rank.waits {
                    let values = self.read_all(rank, from, job)?;
                    let occasion = occasion(rank, *exchange, job);
                    self.post(rank, *exchange, occasion, &values)?;
                }
                let occasion = occasion(rank, *exchange, job);
                let Some(values) = self.collect(rank, *exchange, occasion)? else { return Ok(false) };
                again(rank, *exchange);
                store(rank, to, values)?;
                Ok(true)
            }
            Instr::Send { exchange, from } => {
                let values = self.read_all(rank, from, job)?;
                self.post(rank, *exchange, job.when.key(), &values)?;
                Ok(true)
            }
            Instr::Receive { exchange, to } => {
                let Some(values) = self.collect(rank, *exchange, job.when.key())? else { return Ok(false) };
                store(rank, to, values)?;
                Ok(true)
            }
            Instr::ExchangeGradients { exchange, leaves, shards, .. } => {
                if !rank.waits {
                    let values: Vec<Value> = self.gradients_of(rank, job, leaves);
                    let occasion = occasion(rank, *exchange, job);
                    self.post(rank, *exchange, occasion, &values)?;
                }
                let occasion = occasion(rank, *exchange, job);
                let Some(values) = self.collect(rank, *exchange, occasion)? else { return Ok(false) };
                again(rank, *exchange);
                if values.len() != shards.len() {
                    return Err(Trouble::fault("gets another number of gradients than it has shards for"));
                }
                for (shard, value) in shards.iter().zip(values) {
                    self.arrives(rank, job.when.step, *shard, value)?;
                }
                Ok(true)
            }
            Instr::ReduceGradients { group, leaves } => {
                let give = |it: &mut Self, rank: &mut Rank<'a>| Ok(it.gradients_of(rank, job, leaves));
                let Some((all, _)) = self.meet(rank, *group, "reduce_gradients", give)? else {
                    return Ok(false);
                };
                for (at, leaf) in leaves.iter().enumerate() {
                    let sum = reduced(&all, at, Reduction::Sum)?;
                    rank.gradients(job.when.step).leaves[leaf.index()] = Some(sum);
                }
                Ok(true)
            }
            Instr::ReduceShards { group, shards } => {
                let give = |_: &mut Self, rank: &mut Rank<'a>| {
                    let taken = shards.iter().map(|shard| {
                        let zeros = || Value::zeros(rank.shards[*shard].shape.clone());
                        let zeros = zeros();
                        rank.gradients(job.when.step).arrived[*shard].take().unwrap_or(zeros)
                    });
                    Ok(taken.collect())
                };
                let Some((all, _)) = self.meet(rank, *group, "reduce_shards", give)? else {
                    return Ok(false);
                };
                for (at, shard) in shards.iter().enumerate() {
                    let sum = reduced(&all, at, Reduction::Sum)?;
                    rank.gradients(job.when.step).arrived[*shard] = Some(sum);
                }
                Ok(true)
            }
            Instr::Gather { group, copies } => self.gather(rank, *group, copies),
            Instr::Release { copies } => {
                for copy in copies {
                    if rank.copies[*copy].take().is_none() {
                        return Err(Trouble::fault("releases what is not gathered"));
                    }
                }
                Ok(true)
            }
            Instr::Scatter { group, leaves, .. } => self.scatter(rank, job, *group, leaves),
            Instr::Part { leaves, .. } => {
                for leaf in leaves {
                    let gradient = self.gradient_of(rank, job.when.step, leaf.index());
                    self.part_arrives(rank, job, leaf.index(), &gradient)?;
                }
                Ok(true)
            }
            _ => Err(Trouble::fault("does what is no communication")),
        }
    }

    fn gradients_of(&self, rank: &mut Rank<'a>, job: &Job, leaves: &[LeafId]) -> Vec<Value> {
        leaves.iter().map(|leaf| self.gradient_of(rank, job.when.step, leaf.index())).collect()
    }

    fn collective(&mut self, rank: &mut Rank<'a>, job: &Job, it: &'a Collective) -> Result<bool, Trouble> {
        let what = match &it.how {
            How::AllReduce(reduction) => format!("all_reduce {}", reduction.name()),
            How::AllGather(cut) => format!("all_gather {} {:?}", cut.factor, cut.sizes),
            How::ReduceScatter(cut) => format!("reduce_scatter {} {:?}", cut.factor, cut.sizes),
            How::AllToAll { .. } => "all_to_all".to_owned(),
        };
        // Who sends knows how what it has is cut.
        let give = |machine: &mut Self, rank: &mut Rank<'a>| {
            let values = machine.read_all(rank, &it.from, job)?;
            let How::AllToAll { send, .. } = &it.how else { return Ok(values) };
            (0..send.sizes.len()).map(|at| piece(rank, send, &values[0], at)).collect()
        };
        let Some((all, place)) = self.meet(rank, it.group, &what, give)? else { return Ok(false) };
        let made = match &it.how {
            How::AllReduce(reduction) => (0..it.from.len())
                .map(|at| reduced(&all, at, *reduction))
                .collect::<Result<Vec<_>, Trouble>>()?,
            How::AllGather(cut) => {
                let pieces: Vec<Value> = one_of_each(&all)?;
                vec![join(rank, cut, &pieces)?]
            }
            How::ReduceScatter(cut) => {
                let sum = reduced(&all, 0, Reduction::Sum)?;
                vec![piece(rank, cut, &sum, place)?]
            }
            How::AllToAll { receive, .. } => {
                let pieces: Option<Vec<Value>> = all.iter().map(|given| given.get(place).cloned()).collect();
                let pieces =
                    pieces.ok_or_else(|| Trouble::fault("sends fewer pieces than its group has ranks"))?;
                vec![join(rank, receive, &pieces)?]
            }
        };
        if it.overlaps {
            if rank.in_flight.replace((&it.to, made)).is_some() {
                return Err(Trouble::fault("begins a message beside another"));
            }
        } else {
            store(rank, &it.to, made)?;
        }
        Ok(true)
    }

    fn gather(
        &mut self,
        rank: &mut Rank<'a>,
        group: GroupingId,
        copies: &'a [usize],
    ) -> Result<bool, Trouble> {
        let give = |_: &mut Self, rank: &mut Rank<'a>| {
            Ok(copies.iter().map(|copy| rank.shards[rank.role.table.copies[*copy].shard].clone()).collect())
        };
        let Some((all, _)) = self.meet(rank, group, "gather", give)? else { return Ok(false) };
        for (at, copy) in copies.iter().enumerate() {
            let table = &rank.role.table.copies[*copy];
            let region = table.region.get(rank.at);
            let tensor = rank.role.table.shards[table.shard].tensor;
            let mut data = vec![Num::ZERO; regions::numel(region)];
            if all.len() != table.parts as usize {
                return Err(Trouble::fault("gathers another number of parts than its group has"));
            }
            for (part, given) in all.iter().enumerate() {
                let part = part_of(region, table.factor, part as u32, table.parts)?;
                regions::join(&mut data, region, &given[at].data, &part, |_, new| new)
                    .ok_or_else(|| Trouble::fault("gathers parts that do not fit"))?;
            }
            let shape = regions::shape(region, &self.program.factors[tensor.index()]);
            rank.copies[*copy] = Some(Value::new(ElementKind::Float, shape, data));
        }
        Ok(true)
    }

    fn scatter(
        &mut self,
        rank: &mut Rank<'a>,
        job: &Job,
        group: GroupingId,
        leaves: &'a [LeafId],
    ) -> Result<bool, Trouble> {
        let give = |it: &mut Self, rank: &mut Rank<'a>| Ok(it.gradients_of(rank, job, leaves));
        let Some((all, place)) = self.meet(rank, group, "scatter_gradients", give)? else { return Ok(false) };
        for (at, leaf) in leaves.iter().enumerate() {
            let sum = reduced(&all, at, Reduction::Sum)?;
            let table = rank.role.table.leaves.get(leaf.index());
            let Some((program::Of::Copy(copy), _)) = table else {
                return Err(Trouble::fault("scatters what is no copy"));
            };
            let table = &rank.role.table.copies[*copy];
            // By the place in the group, as the runtime sends it.
            let part = part_of(table.region.get(rank.at), table.factor, place as u32, table.parts)?;
            self.region_arrives(rank, job, leaf.index(), &sum, &part)?;
        }
        Ok(true)
    }

    fn part_arrives(
        &self,
        rank: &mut Rank<'a>,
        job: &Job,
        leaf: usize,
        gradient: &Value,
    ) -> Result<(), Trouble> {
        let region = rank.table().shard(rank.table().shard_of(leaf)).clone();
        self.region_arrives(rank, job, leaf, gradient, &region)
    }

    fn region_arrives(
        &self,
        rank: &mut Rank<'a>,
        job: &Job,
        leaf: usize,
        gradient: &Value,
        region: &Region,
    ) -> Result<(), Trouble> {
        let (_, frame) = rank.table().leaf(leaf);
        let tensor = rank.role.body.leaves[leaf].tensor;
        let part = regions::cut(gradient, frame, region, &self.program.factors[tensor.index()]);
        let part = part.ok_or_else(|| Trouble::fault("a part that is not in what is gathered"))?;
        self.arrives(rank, job.when.step, rank.table().shard_of(leaf), part)
    }

    /// Sends the pieces of a rank's sources.
    fn post(
        &mut self,
        rank: &Rank<'a>,
        exchange: ExchangeId,
        occasion: u64,
        values: &[Value],
    ) -> Result<(), Trouble> {
        let Some(table) = self.program.exchanges.get(exchange.index()) else {
            return Err(Trouble::fault("no such table"));
        };
        let is_own = |(_, (owner, _)): &(usize, &(program::RankId, Region))| owner.index() == rank.number;
        let sources: Vec<usize> = table.sources.iter().enumerate().filter(is_own).map(|(at, _)| at).collect();
        if sources.len() != values.len() {
            return Err(Trouble::fault("gives another number of values than its table says"));
        }
        let factors = &self.program.factors[table.tensor.index()];
        for piece in table.pieces.iter() {
            let Some(at) = sources.iter().position(|source| *source == piece.from) else { continue };
            let frame = &table.sources[piece.from].1;
            let part = regions::cut(&values[at], frame, &piece.region, factors);
            let part = part.ok_or_else(|| Trouble::fault("sends what it does not have"))?;
            let to = table.targets[piece.to].0.index();
            self.messages.entry((exchange.0, occasion, rank.number, to)).or_default().push(part);
        }
        Ok(())
    }

    /// The rank's targets, once all pieces are there.
    fn collect(
        &mut self,
        rank: &Rank<'a>,
        exchange: ExchangeId,
        occasion: u64,
    ) -> Result<Option<Vec<Value>>, Trouble> {
        let Some(table) = self.program.exchanges.get(exchange.index()) else {
            return Err(Trouble::fault("no such table"));
        };
        let key = |from: usize| (exchange.0, occasion, from, rank.number);
        let mut next: std::collections::HashMap<usize, usize> = std::collections::HashMap::new();
        let mut targets = vec![];
        for (target, (owner, region)) in table.targets.iter().enumerate() {
            if owner.index() == rank.number {
                targets.push((target, region, vec![Num::ZERO; regions::numel(region)]));
            }
        }
        // Where no piece comes to, there are zeros, whatever the reduction is.
        for piece in table.pieces.iter() {
            if let Some((_, region, data)) = targets.iter_mut().find(|(target, ..)| *target == piece.to) {
                let begin = vec![neutral(table.reduction); regions::numel(&piece.region)];
                regions::join(data, region, &begin, &piece.region, |_, neutral| neutral)
                    .ok_or_else(|| Trouble::fault("receives what does not fit"))?;
            }
        }
        for piece in table.pieces.iter() {
            let Some((_, region, data)) = targets.iter_mut().find(|(target, ..)| *target == piece.to) else {
                continue;
            };
            let giver = table.sources[piece.from].0.index();
            let number = next.entry(giver).or_default();
            let Some(part) = self.messages.get(&key(giver)).and_then(|parts| parts.get(*number)) else {
                return Ok(None);
            };
            *number += 1;
            regions::join(data, region, &part.data, &piece.region, |a, b| combined(table.reduction, a, b))
                .ok_or_else(|| Trouble::fault("receives what does not fit"))?;
        }
        let factors = &self.program.factors[table.tensor.index()];
        let kind = crate::ops::kind(self.graph.tensor(table.tensor).dtype);
        let value = |(_, region, data): (usize, &Region, Vec<Num>)| {
            Value::new(kind, regions::shape(region, factors), data)
        };
        next.keys().for_each(|giver| drop(self.messages.remove(&key(*giver))));
        Ok(Some(targets.into_iter().map(value).collect()))
    }
}

/// How often a rank was at a table, as a word for the occasion.
fn occasion(rank: &Rank<'_>, exchange: ExchangeId, _: &Job) -> u64 {
    rank.met.get(&format!("table {}", exchange.0)).copied().unwrap_or(0)
}

fn again(rank: &mut Rank<'_>, exchange: ExchangeId) {
    *rank.met.entry(format!("table {}", exchange.0)).or_default() += 1;
}

fn neutral(reduction: Reduction) -> Num {
    match reduction {
        Reduction::Sum | Reduction::Any => Num::ZERO,
        Reduction::Max => Num::NEG_INF,
        Reduction::Min => Num::INF,
        Reduction::All => Num::ONE,
    }
}

fn combined(reduction: Reduction, a: Num, b: Num) -> Num {
    let greater = a.compare(b).is_ge();
    match reduction {
        Reduction::Sum => a.plus(b),
        Reduction::Max | Reduction::Any => {
            if greater {
                a
            } else {
                b
            }
        }
        Reduction::Min | Reduction::All => {
            if greater {
                b
            } else {
                a
            }
        }
    }
}

fn reduced(all: &[Vec<Value>], at: usize, reduction: Reduction) -> Result<Value, Trouble> {
    let values: Option<Vec<Value>> = all.iter().map(|given| given.get(at).cloned()).collect();
    let Some(values) = values else {
        return Err(Trouble::fault("gives another number of values than others"));
    };
    summed(&values, |a, b| combined(reduction, a, b))
}

fn one_of_each(all: &[Vec<Value>]) -> Result<Vec<Value>, Trouble> {
    let first: Option<Vec<Value>> = all.iter().map(|given| given.first().cloned()).collect();
    first.ok_or_else(|| Trouble::fault("gives nothing"))
}

/// The extents of a cut tensor with a piece of another length, and where the piece begins.
fn span(rank: &Rank<'_>, cut: &Cut, at: usize) -> Result<(Vec<Vec<i64>>, Region), Trouble> {
    let whole = extents(rank, &cut.extents)?;
    let mut region = regions::whole(&whole.concat());
    let (Some(side), Some(size)) = (region.0.get_mut(cut.factor), cut.sizes.get(at)) else {
        return Err(Trouble::fault("a cut along no factor"));
    };
    let start: i64 = cut.sizes[..at].iter().sum();
    if cut.sizes.iter().sum::<i64>() != side.hi {
        return Err(Trouble::fault("pieces that are not the whole"));
    }
    *side = Interval { lo: start, hi: start + size };
    Ok((whole, region))
}

fn join(rank: &Rank<'_>, cut: &Cut, pieces: &[Value]) -> Result<Value, Trouble> {
    if pieces.len() != cut.sizes.len() {
        return Err(Trouble::fault("another number of pieces than its group has ranks"));
    }
    let whole = extents(rank, &cut.extents)?;
    let frame = regions::whole(&whole.concat());
    let mut data = vec![Num::ZERO; regions::numel(&frame)];
    for (at, given) in pieces.iter().enumerate() {
        let (_, region) = span(rank, cut, at)?;
        regions::join(&mut data, &frame, &given.data, &region, |_, new| new)
            .ok_or_else(|| Trouble::fault("joins pieces that do not fit"))?;
    }
    let shape = regions::shape(&frame, &whole);
    Ok(Value::new(pieces[0].kind, shape, data))
}

fn piece(rank: &Rank<'_>, cut: &Cut, value: &Value, at: usize) -> Result<Value, Trouble> {
    let (whole, region) = span(rank, cut, at)?;
    let part = regions::cut(value, &regions::whole(&whole.concat()), &region, &whole);
    part.ok_or_else(|| Trouble::fault("cuts what does not fit"))
}

/// A balanced part of a region along a factor: sizes differ by one at most, longer ones first.
fn part_of(region: &Region, factor: usize, at: u32, parts: u32) -> Result<Region, Trouble> {
    let mut part = region.clone();
    let Some(side) = part.0.get_mut(factor) else { return Err(Trouble::fault("parts along no factor")) };
    let (size, at, parts) = (side.hi - side.lo, i64::from(at), i64::from(parts.max(1)));
    let start = |at: i64| side.lo + at * (size / parts) + at.min(size % parts);
    (side.lo, side.hi) = (start(at), start(at + 1));
    Ok(part)
}
