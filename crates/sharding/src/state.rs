//! Spreads as the search for a route sees them: small, and over the axes of one frame.

use rules::Reduction;

use crate::frame::Frame;
use crate::mesh::{Axis, cut_at, marks};
use crate::pieces::Pieces;
use crate::sharding::{Cut, Sharding};

/// Numbers of axes, outermost first: four bits each, the innermost one in the lowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Chain(u64);

/// The most axes of a side: more than that do not fit in a chain.
pub(crate) const MOST: usize = 15;

/// The most factors that states are about.
const FACTORS: usize = 6;

impl Chain {
    pub(crate) fn push(self, axis: usize) -> Chain {
        Chain(self.0 << 4 | (axis as u64 + 1))
    }

    /// What is left without the innermost axis, and that one.
    pub(crate) fn pop(self) -> Option<(Chain, usize)> {
        (self.0 != 0).then(|| (Chain(self.0 >> 4), (self.0 & 15) as usize - 1))
    }

    /// Whether the other chain is this one, or goes on inside it.
    pub(crate) fn begins(self, other: Chain) -> bool {
        self.0 == 0 || std::iter::successors(Some(other.0), |o| (*o > 0).then(|| o >> 4)).any(|o| o == self.0)
    }

    /// Innermost first.
    pub(crate) fn inwards(self) -> impl Iterator<Item = usize> {
        std::iter::successors(self.pop(), |(rest, _)| rest.pop()).map(|(_, axis)| axis)
    }

    pub(crate) fn outermost_first(self) -> Vec<usize> {
        let mut all: Vec<usize> = self.inwards().collect();
        all.reverse();
        all
    }
}

/// How a factor is cut: along which axes, and a number for where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Held {
    pub(crate) chain: Chain,
    pub(crate) bounds: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// Which side of the frame.
    pub(crate) side: usize,
    pub(crate) factors: [Held; FACTORS],
    /// The axes that hold partial results, as bits.
    pub(crate) partial: u16,
    /// Whether they are those of the goal's reduction, not of the start's.
    pub(crate) as_goal: bool,
}

/// What turns states into shardings and back.
pub(crate) struct Codec<'a> {
    pub(crate) frame: Frame,
    pub(crate) from: &'a Sharding,
    pub(crate) to: &'a Sharding,
    /// The factors that states are about; the others stay whole.
    pub(crate) factors: Vec<usize>,
    /// Where factors are cut, if not in balanced pieces: the number 0.
    bounds: Vec<Pieces>,
    /// The elements of a shard along the factors that stay whole.
    pub(crate) whole: u64,
}

impl<'a> Codec<'a> {
    /// The states of both ends; `None` if there are too many axes, or too many factors are cut.
    pub(crate) fn new(from: &'a Sharding, to: &'a Sharding) -> Option<(Codec<'a>, State, State)> {
        let frame = Frame::new(from, to);
        if frame.sides.iter().any(|side| side.axes.len() > MOST) {
            return None;
        }
        let factors = interesting(from, to)?;
        let whole = (0..to.cuts().len()).filter(|f| !factors.contains(f));
        let whole = whole.map(|f| to.cuts()[f].pieces.size().unsigned_abs()).product();
        let mut codec = Codec { frame, from, to, factors, bounds: vec![], whole };
        let last = codec.frame.sides.len() - 1;
        let (start, goal) = (codec.state(from, 0)?, codec.state(to, last)?);
        let as_goal = from.reduction() == to.reduction() || start.partial == 0;
        Some((codec, State { as_goal, ..start }, goal))
    }

    fn state(&mut self, sharding: &Sharding, side: usize) -> Option<State> {
        let axes = self.frame.sides[side].axes.clone();
        let at = marks(&axes);
        let mut free = vec![true; axes.len()];
        let mut number = |axis: Axis| {
            let index = (0..axes.len()).find(|&i| free[i] && axes[i] == axis)?;
            free[index] = false;
            Some(index)
        };
        let mut factors = vec![];
        for &factor in &self.factors {
            let cut = &sharding.cuts()[factor];
            let mut chain = cut_at(&cut.axes, &at).into_iter().map(&mut number);
            let chain = chain.try_fold(Chain::default(), |chain, axis| Some(chain.push(axis?)))?;
            factors.push((chain, cut.pieces.clone()));
        }
        let mut partial = cut_at(sharding.partial(), &at).into_iter().map(number);
        let partial = partial.try_fold(0, |mask, axis| Some(mask | 1 << axis?))?;
        let mut state = State { side, factors: [Held::default(); FACTORS], partial, as_goal: true };
        for (held, (chain, pieces)) in state.factors.iter_mut().zip(factors) {
            *held = Held { chain, bounds: self.bounds(pieces) };
        }
        Some(state)
    }

    pub(crate) fn bounds(&mut self, pieces: Pieces) -> u16 {
        if pieces.is_balanced() {
            return 0;
        }
        let known = self.bounds.iter().position(|p| *p == pieces).unwrap_or_else(|| {
            self.bounds.push(pieces);
            self.bounds.len() - 1
        });
        u16::try_from(known + 1).expect("a route has few bounds")
    }

    pub(crate) fn axis(&self, side: usize, axis: usize) -> Axis {
        self.frame.sides[side].axes[axis]
    }

    pub(crate) fn size(&self, factor: usize) -> i64 {
        self.to.cuts()[self.factors[factor]].pieces.size()
    }

    pub(crate) fn count(&self, side: usize, chain: Chain) -> u32 {
        chain.inwards().map(|a| self.axis(side, a).size).product()
    }

    pub(crate) fn pieces(&self, side: usize, factor: usize, held: Held) -> Pieces {
        match held.bounds {
            0 => Pieces::balanced(self.size(factor), self.count(side, held.chain)),
            number => self.bounds[number as usize - 1].clone(),
        }
    }

    pub(crate) fn longest(&self, side: usize, factor: usize, held: Held) -> u64 {
        let longest = match held.bounds {
            0 => Pieces::balanced(self.size(factor), self.count(side, held.chain)).longest(),
            number => self.bounds[number as usize - 1].longest(),
        };
        longest.unsigned_abs()
    }

    /// The axes that do not copy, as bits.
    pub(crate) fn used(&self, state: &State) -> u16 {
        let chains = state.factors.iter().flat_map(|h| h.chain.inwards());
        chains.fold(state.partial, |mask, axis| mask | 1 << axis)
    }

    pub(crate) fn sharding(&self, state: &State) -> Sharding {
        let side = &self.frame.sides[state.side];
        let named = |axis: usize| side.axes[axis];
        let mut cuts: Vec<Cut> = self.to.sizes().into_iter().map(Cut::none).collect();
        for (position, (&factor, held)) in self.factors.iter().zip(&state.factors).enumerate() {
            let axes = held.chain.outermost_first().into_iter().map(named).collect();
            cuts[factor] = Cut { axes, pieces: self.pieces(state.side, position, *held) };
        }
        let axes_of =
            |mask: u16| (0..side.axes.len()).filter(|a| mask >> a & 1 == 1).map(named).collect::<Vec<Axis>>();
        let reduction: Reduction = if state.as_goal && !self.to.partial().is_empty() {
            self.to.reduction()
        } else {
            self.from.reduction()
        };
        Sharding::new(side.base, cuts, &axes_of(state.partial), &axes_of(!self.used(state)), reduction)
            .expect("hops lead from spread to spread")
    }
}

/// Factors that either end cuts. Where something is to be completed also one that could be cut well; and all, where
/// pieces are uneven or none could: a way over another factor may be shorter then.
fn interesting(from: &Sharding, to: &Sharding) -> Option<Vec<usize>> {
    let is_cut = |f: usize| !from.cuts()[f].axes.is_empty() || !to.cuts()[f].axes.is_empty();
    let size = |f: usize| from.cuts()[f].pieces.size();
    let (mut factors, others): (Vec<usize>, Vec<usize>) =
        (0..from.cuts().len()).filter(|&f| size(f) > 1).partition(|&f| is_cut(f));
    if factors.len() > FACTORS {
        return None;
    }
    let even = from.cuts().iter().chain(to.cuts()).all(|cut| cut.pieces.is_even());
    let devices = i64::from(from.mesh().count());
    match others.iter().find(|&&f| size(f) % devices == 0) {
        _ if even && from.partial().is_empty() => {}
        Some(&factor) if even => factors.push(factor),
        _ => factors.extend(others),
    }
    factors.truncate(FACTORS);
    factors.sort_unstable();
    Some(factors)
}
