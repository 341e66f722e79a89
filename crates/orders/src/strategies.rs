//! Ways to search: which pair is decided next, and what is tried first for it. Each finds whatever there is; which is
//! quickest is different from one problem to the next.

use crate::net::Net;
use crate::pairs::Pair;
use crate::search::Search;

pub(crate) struct Strategy {
    next: Next,
    first: First,
    /// Pairs that are on several devices have their exact times before all others are looked at.
    phases: bool,
}

/// The pair that is decided next.
enum Next {
    /// One that is wrong as long as all is as early as it can be.
    Wrong,
    /// One on most devices, of those with the fewest numbers.
    Few,
    /// One on most devices, of those the earliest.
    Early,
}

/// The number that is tried first.
enum First {
    /// That with which least changes if all is as early as it can be.
    Near,
    /// That in the middle.
    Middle,
    /// That which leaves most room.
    Wide,
}

pub(crate) const WAYS: [Strategy; 5] = [
    Strategy { next: Next::Wrong, first: First::Near, phases: false },
    Strategy { next: Next::Early, first: First::Near, phases: false },
    Strategy { next: Next::Few, first: First::Near, phases: true },
    Strategy { next: Next::Few, first: First::Wide, phases: true },
    Strategy { next: Next::Few, first: First::Middle, phases: true },
];

/// So many times are tried one by one; of more, halves.
const ONE_BY_ONE: i64 = 16;

/// A pair, and the parts of what the difference of its times may be, the best first.
type Choice = (usize, Vec<(i64, i64)>);

impl Strategy {
    /// None if all is decided.
    pub fn choose(&self, search: &Search<'_>, net: &Net) -> Option<Choice> {
        let several = search.pairs.iter().filter(|pair| pair.shared > 1);
        if self.phases && several.clone().all(|pair| is_decided(search, net, pair)) {
            let open = |pair: &&Pair| net.least(pair.first, pair.then) < net.most(pair.first, pair.then);
            let width = |pair: &&Pair| net.most(pair.first, pair.then) - net.least(pair.first, pair.then);
            if let Some(pair) = several.filter(open).min_by_key(width) {
                return Some(times(search, net, pair));
            }
        }
        let open = search.pairs.iter().enumerate().filter(|(_, pair)| !is_decided(search, net, pair));
        let (at, pair) = open.min_by_key(|(_, pair)| self.rank(search, net, pair))?;
        Some((at, self.numbers(search, net, pair)))
    }

    fn rank(&self, search: &Search<'_>, net: &Net, pair: &Pair) -> (bool, i64, i64, i64) {
        let (least, most) = search.between(net, pair);
        let slack = net.most(pair.first, pair.then) - net.least(pair.first, pair.then);
        let shared = -(pair.shared as i64);
        let early = |block: usize| net.least(search.source(), block);
        match self.next {
            Next::Wrong => (is_right(search, net, pair), shared, most - least, slack),
            Next::Few => (false, shared, most - least, slack),
            Next::Early => (false, shared, early(pair.first).max(early(pair.then)), 0),
        }
    }

    fn numbers(&self, search: &Search<'_>, net: &Net, pair: &Pair) -> Vec<(i64, i64)> {
        let (least, most) = search.between(net, pair);
        let mut windows: Vec<(i64, i64)> = (least..=most).map(|k| search.window(pair, k)).collect();
        let (low, high) = (net.least(pair.first, pair.then), net.most(pair.first, pair.then));
        let early = apart(search, net, pair);
        windows.sort_by_key(|window| match self.first {
            First::Near => (window.0 - early).max(early - window.1).max(0),
            First::Middle => (window.0 + window.1 - low - high).abs(),
            First::Wide => window.0.max(low) - window.1.min(high),
        });
        windows
    }
}

fn is_decided(search: &Search<'_>, net: &Net, pair: &Pair) -> bool {
    let (least, most) = search.between(net, pair);
    least == most
}

/// The difference of its times if both are as early as they can be.
fn apart(search: &Search<'_>, net: &Net, pair: &Pair) -> i64 {
    net.least(search.source(), pair.then) - net.least(search.source(), pair.first)
}

/// Whether they are not there at once if all is as early as it can be.
fn is_right(search: &Search<'_>, net: &Net, pair: &Pair) -> bool {
    let apart = (apart(search, net, pair) - pair.times.0).rem_euclid(search.ask.period);
    apart <= search.ask.period - pair.times.0 - pair.times.1
}

fn times(search: &Search<'_>, net: &Net, pair: &Pair) -> Choice {
    let is_it = |other: &Pair| (other.first, other.then) == (pair.first, pair.then);
    let at = search.pairs.iter().position(is_it).expect("a pair of the search");
    let (low, high) = (net.least(pair.first, pair.then), net.most(pair.first, pair.then));
    let middle = (low + high).div_euclid(2);
    match high - low <= ONE_BY_ONE {
        true => (at, (low..=high).map(|time| (time, time)).collect()),
        false => (at, vec![(low, middle), (middle + 1, high)]),
    }
}
