//! What has to wait for what in a step of any number of micro-batches.
//!
//! A node stands for one thing that happens for each micro-batch `b`, at most once. An edge (from, to, d) says that
//! `from` of `b` comes before `to` of `b + d`, for all `b`. Something would have to come before itself, in some step, if
//! and only if there is a circle whose `d` add up to nothing or less: in the latter case it also comes before those
//! that come before it. If there is none, all steps come to their ends, since a step of few micro-batches has
//! nothing to wait for that one of more has not.

use program::{Task, Timetable};

/// No circle is so long.
const LONG: i64 = 1 << 40;

/// A task, every how many micro-batches it is run, and its nodes.
pub(crate) type PlacedTask<'t> = (&'t Task, u32, Vec<usize>);

#[derive(Default)]
pub(crate) struct Periodic {
    /// For each node an earlier one that happens together with it, or itself.
    nodes: Vec<usize>,
    /// From, to, by how many micro-batches later; none where it is of any.
    edges: Vec<(usize, usize, Option<i64>)>,
}

impl Periodic {
    pub(crate) fn node(&mut self) -> usize {
        self.nodes.push(self.nodes.len());
        self.nodes.len() - 1
    }

    /// They happen at once.
    pub(crate) fn together(&mut self, nodes: &[usize]) {
        for pair in nodes.windows(2) {
            let (a, b) = (self.find(pair[0]), self.find(pair[1]));
            self.nodes[a.max(b)] = a.min(b);
        }
    }

    fn find(&self, mut node: usize) -> usize {
        while self.nodes[node] != node {
            node = self.nodes[node];
        }
        node
    }

    /// `from` of each micro-batch comes before `to` of the one so many later.
    pub(crate) fn before(&mut self, from: usize, to: usize, later: i64) {
        self.edges.push((from, to, Some(later)));
    }

    /// `from` of all micro-batches comes before `to` of any.
    pub(crate) fn all_before(&mut self, from: usize, to: usize) {
        self.edges.push((from, to, None));
    }

    /// Nodes for the tasks of a timetable's loops for all micro-batches, so many for each, one after the other. For each
    /// task: every how many micro-batches it is run, and its nodes.
    pub(crate) fn timetable<'t>(
        &mut self,
        timetable: &'t Timetable,
        count: impl Fn(&Task) -> usize,
    ) -> Vec<PlacedTask<'t>> {
        self.with_ends(timetable, count, 0).0
    }

    /// The same, and so many nodes for the end of each turn: of steps that go on one may end there.
    pub(crate) fn with_ends<'t>(
        &mut self,
        timetable: &'t Timetable,
        count: impl Fn(&Task) -> usize,
        ends: usize,
    ) -> (Vec<PlacedTask<'t>>, Vec<usize>) {
        let mut placed = vec![];
        let ends: Vec<usize> = (0..ends).map(|_| self.node()).collect();
        let mut before: Option<usize> = None;
        for it in timetable.loops.iter().filter(|it| it.iterations.is_none()) {
            let first = placed.len();
            for task in &it.tasks {
                let nodes: Vec<usize> = (0..count(task)).map(|_| self.node()).collect();
                placed.push((task, it.every, nodes));
            }
            let places = |(task, _, nodes): &PlacedTask<'t>| {
                let at = i64::from(task.at);
                nodes.iter().map(|node| (*node, at)).collect::<Vec<_>>()
            };
            let last = ends.iter().map(|node| (*node, 0));
            let iteration: Vec<(usize, i64)> = placed[first..].iter().flat_map(places).chain(last).collect();
            let (Some(begin), Some(end)) = (iteration.first(), iteration.last()) else { continue };
            iteration.windows(2).for_each(|two| self.before(two[0].0, two[1].0, two[1].1 - two[0].1));
            self.before(end.0, begin.0, begin.1 + i64::from(it.every) - end.1);
            if let Some(before) = before.replace(end.0) {
                self.all_before(before, begin.0);
            }
        }
        (placed, ends)
    }

    /// Whether nothing waits for itself: no circle is without length, by Bellman and Ford. An edge is a little shorter than
    /// it is, so that a circle without length has less.
    pub(crate) fn comes_to_its_end(&self) -> bool {
        let count = self.nodes.len() as i64 + 1;
        let length = |later: Option<i64>| later.map_or(-LONG, |later| later * count - 1);
        let edge = |(from, to, later): &(usize, usize, _)| (self.find(*from), self.find(*to), length(*later));
        let edges: Vec<(usize, usize, i64)> = self.edges.iter().map(edge).collect();
        let mut nearest = vec![0i64; self.nodes.len()];
        for _ in 0..=self.nodes.len() {
            let mut nearer = false;
            for (from, to, length) in &edges {
                let there = nearest[*from].saturating_add(*length);
                if there < nearest[*to] {
                    (nearest[*to], nearer) = (there, true);
                }
            }
            if !nearer {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(edges: &[(usize, usize, Option<i64>)]) -> bool {
        let mut it = Periodic::default();
        (0..6).for_each(|_| _ = it.node());
        it.edges = edges.to_vec();
        it.comes_to_its_end()
    }

    #[test]
    fn a_circle_must_go_on_by_a_micro_batch() {
        assert!(ends(&[(0, 1, Some(0)), (1, 2, Some(0)), (2, 0, Some(1))]));
        assert!(!ends(&[(0, 1, Some(0)), (1, 2, Some(0)), (2, 0, Some(0))]));
        assert!(!ends(&[(0, 1, Some(1)), (1, 2, Some(-2)), (2, 0, Some(0))]));
        assert!(ends(&[(0, 1, Some(1)), (1, 2, Some(-2)), (2, 0, Some(2))]));
    }

    #[test]
    fn what_waits_for_all_of_something_does_not_come_before_any_of_it() {
        let loops = [(0, 0, Some(1)), (1, 1, Some(1)), (0, 1, None)];
        assert!(ends(&loops));
        assert!(ends(&[&loops[..], &[(0, 2, Some(0)), (2, 1, Some(0))]].concat()));
        assert!(!ends(&[&loops[..], &[(1, 2, Some(0)), (2, 0, Some(500))]].concat()));
    }
}
