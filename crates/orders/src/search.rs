//! What is searched, and what follows from what is known: between how many periods two blocks of a device may lie.

use crate::net::{Clash, Net};
use crate::pairs::{OtherBlock, Pair, Peak, pairs, peaks};
use crate::problem::Problem;

/// What is asked.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'p> {
    pub problem: &'p Problem,
    /// The second of these blocks begins before the first one does in the next period.
    pub iterations: &'p [(usize, usize)],
    pub period: i64,
    /// The longest time from the first beginning to the last end, for one micro-batch.
    pub span: i64,
}

pub(crate) struct Search<'p> {
    pub ask: Ask<'p>,
    pub pairs: Vec<Pair>,
    peaks: Vec<Peak>,
}

impl<'p> Search<'p> {
    pub fn new(ask: Ask<'p>) -> Self {
        let pairs = pairs(ask.problem);
        let peaks = peaks(ask.problem, &pairs);
        Self { ask, pairs, peaks }
    }

    /// The number of the first beginning in the net; the next one is that of the last end.
    pub fn source(&self) -> usize {
        self.ask.problem.blocks.len()
    }

    /// What is known before anything is tried.
    pub fn start(&self) -> Result<Net, Clash> {
        let blocks = &self.ask.problem.blocks;
        let (source, sink) = (self.source(), self.source() + 1);
        let mut net = Net::new(blocks.len() + 2);
        for (at, block) in blocks.iter().enumerate() {
            net.later(source, at, 0)?;
            net.later(at, sink, block.time)?;
            for before in &block.after {
                net.later(*before, at, blocks[*before].time)?;
            }
        }
        net.later(sink, source, -self.ask.span)?;
        for (first, last) in self.ask.iterations {
            net.later(*last, *first, blocks[*last].time - self.ask.period)?;
        }
        self.follow(&mut net, usize::MAX)?;
        Ok(net)
    }

    /// The least and the most number of periods between a pair.
    pub fn between(&self, net: &Net, pair: &Pair) -> (i64, i64) {
        // Of small numbers quotients are quicker, and nearly all that the search does is here and in the net.
        let floor = |time: i64| i64::from((time as i32).div_euclid(self.ask.period as i32));
        let least = floor(net.least(pair.first, pair.then) + pair.times.1 + self.ask.period - 1) - 1;
        (least, floor(net.most(pair.first, pair.then) - pair.times.0))
    }

    /// What the difference of a pair's times may be for a number of periods.
    pub fn window(&self, pair: &Pair, k: i64) -> (i64, i64) {
        (k * self.ask.period + pair.times.0, (k + 1) * self.ask.period - pair.times.1)
    }

    /// What follows from what is known.
    pub fn follow(&self, net: &mut Net, rounds: usize) -> Result<(), Clash> {
        for _ in 0..rounds {
            let mut is_new = false;
            for pair in &self.pairs {
                let (least, most) = self.between(net, pair);
                if least > most {
                    return Err(Clash);
                }
                is_new |= net.within(pair, self.window(pair, least).0, self.window(pair, most).1)?;
            }
            for peak in &self.peaks {
                is_new |= self.keep(net, peak)?;
            }
            if !is_new {
                break;
            }
        }
        Ok(())
    }

    /// For how many micro-batches from its own on another block has begun when one begins: least and most.
    fn begun(&self, net: &Net, other: &OtherBlock) -> (i64, i64) {
        let (least, most) = self.between(net, &self.pairs[other.pair]);
        // Seen from the other side of a pair, the number of periods is -1 - k.
        if other.is_second { (-most, -least) } else { (least + 1, most + 1) }
    }

    /// A device does not keep more than it has room for.
    fn keep(&self, net: &mut Net, peak: &Peak) -> Result<bool, Clash> {
        let lowest = |other: &OtherBlock| {
            let (least, most) = self.begun(net, other);
            other.memory * if other.memory > 0 { least } else { most }
        };
        let left = peak.room - peak.others.iter().map(lowest).sum::<i64>();
        if left < 0 {
            return Err(Clash);
        }
        let mut is_new = false;
        for other in &peak.others {
            let (pair, (least, most)) = (&self.pairs[other.pair], self.begun(net, other));
            let (least, most) = match other.memory > 0 {
                true => (least, most.min(least + left / other.memory)),
                false => (least.max(most + left / other.memory), most),
            };
            let (low, high) = if other.is_second { (-most, -least) } else { (least - 1, most - 1) };
            is_new |= net.within(pair, self.window(pair, low).0, self.window(pair, high).1)?;
        }
        Ok(is_new)
    }
}
