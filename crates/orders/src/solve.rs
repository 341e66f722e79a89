//! Finds times of the blocks so that micro-batches may follow each other every so often, or proves that there are none.
//!
//! Micro-batch `i` runs block `b` at `T(b) + i * period`. Two blocks `a`, `b` on one device are never there at once exactly if for some
//! whole number `k` of periods
//!
//! ```text
//! k * period + time(a) <= T(b) - T(a) <= (k + 1) * period - time(b)
//! ```
//!
//! When `b` begins for a micro-batch, `a` has begun for this one and `k` further ones. So what a device keeps when `b` begins is linear
//! in these numbers. The search decides them, one pair after the other; all else are bounds of differences of times, which a [`Net`]
//! keeps. With all numbers decided the earliest times are an answer.

use std::time::Instant;

use crate::net::{Clash, Net};
use crate::search::{Ask, Search};
use crate::strategies::{Strategy, WAYS};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// When each block begins.
    Times(Vec<i64>),
    /// There are no such times.
    No,
    /// Not found out.
    Unknown,
}

/// How much may be searched.
pub(crate) struct Budget {
    pub nodes: u64,
    pub most: u64,
    pub until: Option<Instant>,
}

impl Budget {
    pub fn is_spent(&self) -> bool {
        self.nodes >= self.most || self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// The nodes that each way has at first, before another one is tried.
const FIRST: u64 = 60;
/// Bounds that creep towards each other would take long: so often all pairs are looked at, where that is not the end.
const ROUNDS: usize = 24;

/// Tries all ways in turn, each time for longer.
pub(crate) fn solve(ask: Ask<'_>, budget: &mut Budget) -> Answer {
    let search = Search::new(ask);
    let Ok(net) = search.start() else { return Answer::No };
    let mut each = FIRST;
    while !budget.is_spent() {
        for way in &WAYS {
            let mut trial_budget =
                Budget { nodes: 0, most: each.min(budget.most.saturating_sub(budget.nodes)), ..*budget };
            let answer = search.dive(net.clone(), way, &mut trial_budget);
            budget.nodes += trial_budget.nodes;
            if answer != Answer::Unknown {
                return answer;
            }
        }
        each = each.saturating_mul(3);
    }
    Answer::Unknown
}

/// Whether it is plain that there are no such times, before anything is tried.
pub(crate) fn is_refuted(ask: Ask<'_>) -> bool {
    Search::new(ask).start().is_err()
}

impl Search<'_> {
    fn dive(&self, net: Net, way: &Strategy, budget: &mut Budget) -> Answer {
        budget.nodes += 1;
        if budget.is_spent() {
            return Answer::Unknown;
        }
        let Some((pair, parts)) = way.choose(self, &net) else { return self.leaf(net) };
        for (low, high) in parts {
            let mut next = net.clone();
            let is_possible = next
                .within(&self.pairs[pair], low, high)
                .and_then(|_| self.follow(&mut next, ROUNDS))
                .is_ok();
            match is_possible.then(|| self.dive(next, way, budget)) {
                None | Some(Answer::No) => {}
                Some(answer) => return answer,
            }
        }
        Answer::No
    }

    fn leaf(&self, mut net: Net) -> Answer {
        let source = self.source();
        match self.follow(&mut net, usize::MAX) {
            Ok(()) => Answer::Times((0..source).map(|block| net.least(source, block)).collect()),
            Err(Clash) => Answer::No,
        }
    }
}
