//! All that one hop can make of a state.

use rules::Reduction;

use crate::hop::{Along, HopKind};
use crate::state::{Chain, Codec, Held, State};

/// A hop without its cost: how it goes, along which axes, and where it leads.
pub(crate) struct Step {
    pub(crate) kind: HopKind,
    pub(crate) axes: Chain,
    pub(crate) next: State,
}

/// Beyond so many axes a permutation only leads to the goal.
const FEW: usize = 5;

pub(crate) struct Steps<'c, 'a> {
    pub(crate) codec: &'c mut Codec<'a>,
    pub(crate) goal: &'c State,
    pub(crate) found: Vec<Step>,
}

impl Steps<'_, '_> {
    /// All but permutations.
    pub(crate) fn from(&mut self, state: &State) {
        (0..self.codec.factors.len()).for_each(|factor| self.gathers(state, factor));
        if state.partial != 0 {
            self.reductions(state);
        }
        let copies = !self.codec.used(state);
        for axis in bits(copies, self.axes(state.side)) {
            let axes = Chain::default().push(axis);
            for factor in 0..self.codec.factors.len() {
                if let Some(held) = self.finer(state, factor, axes) {
                    self.add(HopKind::Slice, axes, with(state, factor, held));
                }
            }
            if state.as_goal && state.side == self.goal.side && self.goal.partial >> axis & 1 == 1 {
                self.add(HopKind::Share, axes, State { partial: state.partial | 1 << axis, ..*state });
            }
        }
        if state.side + 1 < self.codec.frame.sides.len() {
            self.relabel(state, state.side + 1);
        }
    }

    pub(crate) fn permutations(&mut self, state: &State) {
        self.relabel(state, state.side);
    }

    fn axes(&self, side: usize) -> usize {
        self.codec.frame.sides[side].axes.len()
    }

    fn in_turn(&self, state: &State, axis: usize) -> bool {
        self.codec.axis(state.side, axis).in_turn()
    }

    fn collective(&mut self, how: Along, axes: Chain, next: State) {
        self.add(HopKind::Collective(how), axes, next);
    }

    fn add(&mut self, kind: HopKind, axes: Chain, mut next: State) {
        next.as_goal |= next.partial == 0;
        self.found.push(Step { kind, axes, next });
    }

    /// Along the innermost axes of a factor, and from there either to everybody or to another factor.
    fn gathers(&mut self, state: &State, factor: usize) {
        let (mut left, mut along) = (state.factors[factor].chain, vec![]);
        while let Some((outer, axis)) = left.pop() {
            along.insert(0, axis);
            if self.in_turn(state, axis) != self.in_turn(state, along[along.len() - 1]) {
                return;
            }
            left = outer;
            let axes = along.iter().fold(Chain::default(), |chain, &a| chain.push(a));
            let held = self.coarser(state, factor, left, axes);
            let gathered = with(state, factor, held);
            let others = if self.in_turn(state, axis) { 0 } else { self.codec.factors.len() };
            for other in (0..others).filter(|&f| f != factor) {
                if let Some(held) = self.finer(state, other, axes) {
                    let (send, receive) = (self.codec.factors[other], self.codec.factors[factor]);
                    self.collective(Along::AllToAll { send, receive }, axes, with(&gathered, other, held));
                }
            }
            self.collective(Along::AllGather(self.codec.factors[factor]), axes, gathered);
        }
    }

    /// Over any of the axes that hold partial results, and scattered in any order of them.
    fn reductions(&mut self, state: &State) {
        let goal = state.as_goal && !self.codec.to.partial().is_empty();
        let reduction = if goal { self.codec.to.reduction() } else { self.codec.from.reduction() };
        for mask in (1..=state.partial).filter(|mask| mask & !state.partial == 0) {
            let axes: Vec<usize> = bits(mask, MANY).collect();
            if axes.iter().any(|&a| self.in_turn(state, a) != self.in_turn(state, axes[0])) {
                continue;
            }
            let reduced = State { partial: state.partial & !mask, ..*state };
            let chain = axes.iter().fold(Chain::default(), |chain, &a| chain.push(a));
            self.collective(Along::AllReduce(reduction), chain, reduced);
            if reduction != Reduction::Sum || self.in_turn(state, axes[0]) {
                continue;
            }
            for order in orders(&axes) {
                for factor in 0..self.codec.factors.len() {
                    if let Some(held) = self.finer(state, factor, order) {
                        let how = Along::ReduceScatter(self.codec.factors[factor]);
                        self.collective(how, order, with(&reduced, factor, held));
                    }
                }
            }
        }
    }

    /// A factor that is cut further along these axes: where the goal cuts it, else in balanced pieces.
    fn finer(&mut self, state: &State, factor: usize, axes: Chain) -> Option<Held> {
        let held = state.factors[factor];
        let chain = axes.outermost_first().into_iter().fold(held.chain, Chain::push);
        let (by, count) = (self.codec.count(state.side, axes), self.codec.count(state.side, chain));
        let goal = self.goal.factors[factor];
        let wanted = self.codec.pieces(self.goal.side, factor, goal);
        if held.bounds == 0 && wanted.is_even() && self.codec.size(factor) % i64::from(count) == 0 {
            return (self.codec.size(factor) > 0).then_some(Held { chain, bounds: 0 });
        }
        let now = self.codec.pieces(state.side, factor, held);
        let as_wanted = (wanted.count() % count == 0).then(|| wanted.coarser(wanted.count() / count));
        let fine = || (now.shortest() >= i64::from(by)).then(|| now.finer(by));
        let pieces = as_wanted.filter(|pieces| pieces.coarser(by) == now).or_else(fine)?;
        Some(Held { chain, bounds: self.codec.bounds(pieces) })
    }

    /// A factor that is no longer cut along these innermost axes.
    fn coarser(&mut self, state: &State, factor: usize, chain: Chain, without: Chain) -> Held {
        let held = state.factors[factor];
        let count = self.codec.count(state.side, held.chain);
        if held.bounds == 0 && self.codec.size(factor) % i64::from(count) == 0 {
            return Held { chain, bounds: 0 };
        }
        let by = self.codec.count(state.side, without);
        let pieces = self.codec.pieces(state.side, factor, held).coarser(by);
        Held { chain, bounds: self.codec.bounds(pieces) }
    }

    /// The same shards on other devices: every way to give the same numbers of pieces to axes of a side.
    fn relabel(&mut self, state: &State, side: usize) {
        let counts = |codec: &Codec<'_>, s: &State| -> Vec<u32> {
            let mask = bits(s.partial, MANY).fold(Chain::default(), Chain::push);
            let chains = s.factors[..codec.factors.len()].iter().map(|h| h.chain).chain([mask]);
            chains.map(|chain| codec.count(s.side, chain)).collect()
        };
        let wanted = counts(self.codec, state);
        let same_bounds = state.factors.iter().zip(&self.goal.factors).all(|(a, b)| a.bounds == b.bounds);
        if side == self.goal.side && same_bounds && wanted == counts(self.codec, self.goal) {
            self.relabelled(state, *self.goal);
        }
        if self.axes(side) <= FEW {
            let next = State { side, partial: 0, ..*state };
            self.give(state, next, 0, Chain::default(), &wanted);
        }
    }

    /// Gives axes to a factor, or to partial results, until their sizes make the number wanted.
    fn give(&mut self, state: &State, next: State, slot: usize, chain: Chain, wanted: &[u32]) {
        if slot == wanted.len() {
            return self.relabelled(state, next);
        }
        let have = self.codec.count(next.side, chain);
        if have == wanted[slot] {
            let mut next = next;
            match next.factors[..wanted.len() - 1].get_mut(slot) {
                Some(held) => held.chain = chain,
                None => next.partial = chain.inwards().fold(0, |mask, a| mask | 1 << a),
            }
            return self.give(state, next, slot + 1, Chain::default(), wanted);
        }
        let given = next.factors.iter().take(slot).flat_map(|h| h.chain.inwards()).chain(chain.inwards());
        let taken = given.fold(0_u16, |mask, a| mask | 1 << a);
        // Partial results have no order.
        let least = chain.pop().filter(|_| slot + 1 == wanted.len()).map_or(0, |(_, last)| last + 1);
        for axis in bits(!taken, self.axes(next.side)).filter(|&a| a >= least) {
            if wanted[slot] % (have * self.codec.axis(next.side, axis).size) == 0 {
                self.give(state, next, slot, chain.push(axis), wanted);
            }
        }
    }

    fn relabelled(&mut self, state: &State, next: State) {
        if next != *state {
            let kind = if next.side == state.side { HopKind::Permute } else { HopKind::Send };
            let as_goal = state.as_goal;
            self.add(kind, Chain::default(), State { as_goal, ..next });
        }
    }
}

const MANY: usize = u16::BITS as usize;

fn bits(mask: u16, below: usize) -> impl Iterator<Item = usize> {
    (0..below).filter(move |a| mask >> a & 1 == 1)
}

fn with(state: &State, factor: usize, held: Held) -> State {
    let mut next = *state;
    next.factors[factor] = held;
    next
}

/// All orders of a few axes; of many only the one that they have.
fn orders(axes: &[usize]) -> Vec<Chain> {
    if axes.len() > 3 {
        return vec![axes.iter().fold(Chain::default(), |chain, &a| chain.push(a))];
    }
    let mut orders = vec![Chain::default()];
    for _ in axes {
        let open = |chain: &Chain, a: usize| !chain.inwards().any(|b| b == a);
        let longer = |chain: &Chain| {
            let chain = *chain;
            axes.iter().filter(move |&&a| open(&chain, a)).map(move |&a| chain.push(a)).collect::<Vec<_>>()
        };
        orders = orders.iter().flat_map(longer).collect();
    }
    orders
}
