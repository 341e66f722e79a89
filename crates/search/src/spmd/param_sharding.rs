//! How a parameter is held by the devices that read the same of it.

use cluster::Collective;
use plan::{Gather, Reduce};
use sharding::AxisSet;

use super::digits::Digits;
use super::messages::Messages;

/// Some of a bundle's parameters, as bits by their places.
pub(super) type Params = u64;

/// What a device reads of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DeviceReads {
    /// Of the part that it reads, in the type in which it is held.
    pub(super) bytes: f64,
    /// Of the same, in the type in which it is read.
    pub(super) gathered: f64,
    /// Devices that differ in these digits have parts of one gradient.
    pub(super) partial: AxisSet,
    /// Elements of the longest dim of that part.
    pub(super) longest: i64,
    /// Whether others read it in ways that are not known here: how it is sent is not counted.
    pub(super) is_open: bool,
    pub(super) is_trained: bool,
}

/// Among which devices it is divided, and when it is gathered and its gradient reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParamChoice {
    pub(super) over: AxisSet,
    pub(super) gather: Gather,
    pub(super) reduce: Reduce,
}

/// Seconds of a step in which it is sent meanwhile, in all and what of it cannot begin before the last backward; seconds
/// in which it is updated, and in which gradients of micro-batches are added; bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Costs {
    pub(super) sent: f64,
    pub(super) late: f64,
    pub(super) updated: f64,
    pub(super) added: f64,
    pub(super) bytes: f64,
}

/// What is the same for all parameters.
pub(super) struct Terms<'m, 'c> {
    pub(super) messages: &'m Messages<'c>,
    pub(super) batches: f64,
    /// How many tensors like a parameter the optimizer has.
    pub(super) states: f64,
    /// Whether gradients are there when forward has kept most: not with the first micro-batch.
    pub(super) gradients: f64,
    /// Seconds for each byte of a parameter that the optimizer steps.
    pub(super) update: f64,
    /// Seconds for each byte of a gradient that is added in a step; nothing where that is not counted.
    pub(super) add: f64,
}

/// Whole, or divided among those that have parts of its gradient, all of them or those of a node.
pub(super) fn ways(digits: &Digits, held: &DeviceReads) -> Vec<Option<ParamChoice>> {
    let mut ways = vec![None];
    if !held.is_trained {
        return ways;
    }
    let inside = AxisSet(held.partial.0 & digits.inside().0);
    let mut sets = vec![held.partial];
    if inside != held.partial {
        sets.push(inside);
    }
    for over in sets {
        if over.is_empty() || held.longest < i64::from(digits.count(over)) {
            continue;
        }
        for (gather, reduce) in
            [(Gather::Step, Reduce::Last), (Gather::Step, Reduce::Each), (Gather::Pass, Reduce::Each)]
        {
            ways.push(Some(ParamChoice { over, gather, reduce }));
        }
    }
    ways
}

impl Terms<'_, '_> {
    pub(super) fn costs(&self, held: &DeviceReads, way: Option<ParamChoice>) -> Costs {
        let costs = self.alone(held, way);
        if held.is_open { Costs { sent: 0.0, late: 0.0, ..costs } } else { costs }
    }

    /// As if nothing else read it.
    fn alone(&self, held: &DeviceReads, way: Option<ParamChoice>) -> Costs {
        if !held.is_trained {
            return Costs { bytes: held.bytes, ..Costs::default() };
        }
        let more = |collective, set: AxisSet, bytes: f64| {
            if set.is_empty() { 0.0 } else { self.messages.more(collective, set, bytes) }
        };
        let Some(way) = way else {
            let sent = more(Collective::AllReduce, held.partial, held.bytes);
            return Costs {
                sent,
                late: sent,
                updated: self.update * held.bytes,
                added: self.add * held.bytes,
                bytes: held.bytes * (1.0 + self.gradients + self.states),
            };
        };
        let part = held.bytes / f64::from(self.messages.digits.count(way.over));
        let gathers = if way.gather == Gather::Pass { 2.0 * self.batches } else { 1.0 };
        let reductions = if way.reduce == Reduce::Each { self.batches } else { 1.0 };
        let others = AxisSet(held.partial.0 & !way.over.0);
        let reduced = more(Collective::ReduceScatter, way.over, held.bytes);
        let late = reduced + more(Collective::AllReduce, others, part);
        let sent = gathers * more(Collective::AllGather, way.over, held.gathered)
            + (reductions - 1.0) * reduced
            + late;
        let whole = |stays: bool| if stays { held.bytes } else { part };
        let bytes = whole(way.gather == Gather::Step)
            + self.gradients * whole(way.reduce == Reduce::Last)
            + self.states * part;
        // What is reduced with each micro-batch is waited for at the end of its backward.
        let waited = if self.add > 0.0 { (reductions - 1.0) * reduced } else { 0.0 };
        // And only the part that comes of it is added to what is there.
        let added = self.add * whole(way.reduce == Reduce::Last) + waited;
        Costs { sent, late, updated: self.update * part, added, bytes }
    }
}
