//! Where a timetable runs a code, for each micro-batch.

use program::{Loop, Task};

/// Where a code is run for all micro-batches, and where before for some.
pub(crate) struct Runs<'r> {
    pub(crate) number: usize,
    pub(crate) it: &'r Loop,
    /// The places of its tasks.
    pub(crate) tasks: Vec<usize>,
    pub(crate) early: Vec<Early<'r>>,
}

/// A task of a loop that has only so many turns: the number of the loop, and the place of the task.
#[derive(Clone, Copy)]
pub(crate) struct Early<'r> {
    pub(crate) number: usize,
    pub(crate) it: &'r Loop,
    pub(crate) place: usize,
}

/// The loop, turn and place at which a code is run early.
type Moment = (usize, i64, usize);

impl Early<'_> {
    fn task(&self) -> &Task {
        &self.it.tasks[self.place]
    }

    /// Beyond which micro-batch it is not run.
    fn end(&self) -> i64 {
        self.it.end().unwrap_or(0) + i64::from(self.task().at)
    }

    fn when(&self, batch: i64) -> Option<Moment> {
        let turn = batch - i64::from(self.task().at);
        let is_one = turn.rem_euclid(i64::from(self.it.every)) == 0;
        (is_one && (0..self.it.end().unwrap_or(0)).contains(&turn)).then_some((self.number, turn, self.place))
    }
}

impl Runs<'_> {
    /// In the loop that runs it for all.
    fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().map(|at| &self.it.tasks[*at])
    }

    pub(crate) fn all_tasks(&self) -> impl Iterator<Item = &Task> {
        self.early.iter().map(Early::task).chain(self.tasks())
    }

    /// The first micro-batches, one of which may be run early.
    fn first(&self) -> std::ops::Range<i64> {
        0..self.early.iter().map(Early::end).max().unwrap_or(0)
    }

    /// Where it is run for one of the first micro-batches: the first of all places, if there is one.
    fn early(&self, batch: i64) -> Option<Moment> {
        self.early.iter().filter_map(|early| early.when(batch)).min()
    }

    /// Whether it runs for the one micro-batch before another code does for the other one, if the loops for all say so:
    /// the loops for the first ones stand before them.
    fn is_early_enough(&self, batch: i64, other: &Runs<'_>, then: i64) -> bool {
        other.early(then).is_none_or(|then| self.early(batch).is_some_and(|first| first < then))
    }

    /// Why there is not one task for each micro-batch.
    pub(crate) fn covers(&self) -> Option<&'static str> {
        let every = i64::from(self.it.every);
        let mut seen = vec![false; self.it.every as usize];
        for task in self.tasks() {
            let turn = &mut seen[i64::from(task.at).rem_euclid(every) as usize];
            if std::mem::replace(turn, true) {
                return Some("it runs twice for the same micro-batch");
            }
        }
        (!seen.iter().all(|seen| *seen)).then_some("some micro-batches are left out")
    }

    pub(crate) fn in_order(&self) -> bool {
        let at: Vec<i64> = self.tasks().map(|task| task.at.into()).collect();
        let next = at.first().map(|first| first + i64::from(self.it.every));
        let follows = |batch: i64| self.is_early_enough(batch, self, batch + 1);
        at.into_iter().chain(next).is_sorted() && self.first().all(follows)
    }

    /// Whether it runs before another code does, for each micro-batch.
    pub(crate) fn is_before(&self, other: &Runs<'_>) -> bool {
        self.is_before_next(other, 0)
    }

    /// Whether it runs before another code does for the micro-batch that is so many later, for each.
    pub(crate) fn is_before_next(&self, other: &Runs<'_>, later: i64) -> bool {
        let every = i64::from(self.it.every);
        let before = |a: usize, b: usize| {
            let at = |it: &Runs<'_>, task: usize| i64::from(it.it.tasks[task].at);
            let (first, then) = (at(self, a), at(other, b) - later);
            // The turn of a micro-batch is an earlier one, or the same and the task stands before.
            (first - then).rem_euclid(every) != 0 || first > then || first == then && a < b
        };
        let then = match self.number == other.number {
            true => self.tasks.iter().all(|a| other.tasks.iter().all(|b| before(*a, *b))),
            false => self.number < other.number,
        };
        let early = 0..self.first().end.max(other.first().end - later);
        then && early.into_iter().all(|batch| self.is_early_enough(batch, other, batch + later))
    }
}
