//! Blocks on their devices: who runs which, and in which order.

use std::collections::BTreeSet;

use plan::{Plan, Schedule};
use program::{Body, Bound, Loop, Pass, RankId, Task, Timetable, When};

use crate::project::Projected;
use crate::uses::Context;

/// The ranks that run operators of a block.
pub fn owners(cx: &Context<'_>, block: u32) -> BTreeSet<RankId> {
    let own = cx.order.iter().filter(|op| cx.plan.block(**op) == block);
    own.flat_map(|op| &cx.plan.op(*op).devices).copied().map(RankId).collect()
}

/// Gives all ranks their timetables.
pub fn timetables(plan: &Plan, projected: &mut [Projected]) {
    let pipeline = Pipeline::of(plan, projected);
    for it in projected {
        it.body.timetable = pipeline.timetable(&it.body);
    }
}

struct Pipeline {
    schedule: Schedule,
    /// For each block how many times further ones are on other ranks than the one before them.
    behind: Vec<u32>,
}

impl Pipeline {
    fn of(plan: &Plan, projected: &[Projected]) -> Self {
        let owners: Vec<BTreeSet<RankId>> =
            (0..plan.block_count()).map(|block| runs(projected, block)).collect();
        let mut behind = vec![0; owners.len()];
        // Where only some ranks of a block run another one too, or one comes back to them, nothing of the next
        // micro-batch can go ahead.
        if follow_each_other(&owners) && are_apart(&owners) {
            for block in (1..owners.len()).rev() {
                behind[block - 1] = behind[block] + u32::from(owners[block] != owners[block - 1]);
            }
        }
        Self { schedule: plan.schedule, behind }
    }

    /// In which order ranks run their codes.
    fn timetable(&self, body: &Body) -> Timetable {
        if self.schedule.splits_backward() && body.trains() {
            return in_halves(body);
        }
        let there = |pass: Pass| body.codes_of(pass).next().is_some();
        let (begins, ends) = (there(Pass::Begin), there(Pass::End));
        let forwards: Vec<Task> =
            body.codes_of(Pass::Forward).map(|code| Task::forward(code.block)).collect();
        let backwards = |settles: When| -> Vec<Task> {
            body.codes_of(Pass::Backward).map(|code| Task::backward(code.block, settles)).collect()
        };
        let loops = match body.codes_of(Pass::Forward).map(|code| self.behind[code.block as usize]).min() {
            None => vec![],
            _ if !body.trains() => vec![Loop::over_all(forwards)],
            Some(0) if self.schedule == Schedule::OneFOneB => {
                vec![Loop::over_all([forwards, backwards(When::Last)].concat())]
            }
            Some(warm) if self.schedule == Schedule::OneFOneB => one_f_one_b(warm, forwards, backwards),
            Some(_) => vec![Loop::over_all(forwards), Loop::over_all(backwards(When::Last))],
        };
        Timetable { begins, loops, ends }
    }
}

fn in_halves(body: &Body) -> Timetable {
    let there = |pass: Pass| body.codes_of(pass).next().is_some();
    let blocks = |pass: Pass| body.codes_of(pass).map(|code| code.block);
    let loops = vec![
        Loop::over_all(blocks(Pass::Forward).map(Task::forward).collect()),
        Loop::over_all(blocks(Pass::Inputs).map(Task::inputs).collect()),
        Loop::over_all(blocks(Pass::Weights).map(|block| Task::weights(block, When::Last)).collect()),
    ];
    Timetable { begins: there(Pass::Begin), loops, ends: there(Pass::End) }
}

/// The ranks that have something to do for a block.
fn runs(projected: &[Projected], block: u32) -> BTreeSet<RankId> {
    let has = |pass: &Pass| *pass == Pass::Forward || pass.gives_back();
    let own =
        projected.iter().filter(|it| it.body.codes.iter().any(|code| code.block == block && has(&code.pass)));
    own.flat_map(|it| &it.ranks).copied().collect()
}

/// Whether any two blocks have the same ranks, or none in common.
fn are_apart(owners: &[BTreeSet<RankId>]) -> bool {
    let fits = |a: &BTreeSet<RankId>, b: &BTreeSet<RankId>| a == b || a.is_disjoint(b);
    owners.iter().enumerate().all(|(at, own)| owners[..at].iter().all(|other| fits(own, other)))
}

/// Whether the blocks of each rank follow each other.
fn follow_each_other(owners: &[BTreeSet<RankId>]) -> bool {
    let ranks: BTreeSet<&RankId> = owners.iter().flatten().collect();
    let turns = |rank: &RankId| {
        let here: Vec<bool> = owners.iter().map(|own| own.contains(rank)).collect();
        usize::from(here[0]) + here.windows(2).filter(|two| !two[0] && two[1]).count()
    };
    ranks.into_iter().all(|rank| turns(rank) == 1)
}

/// So many forwards, then one more and one backward at a time, then the backwards that are left.
fn one_f_one_b(warm: u32, forwards: Vec<Task>, backwards: impl Fn(When) -> Vec<Task>) -> Vec<Loop> {
    let ahead = forwards.iter().cloned().map(|task| task.ahead(warm));
    let steady = ahead.chain(backwards(When::Never)).collect();
    vec![
        Loop { from: Bound::First(0), to: Bound::First(warm), tasks: forwards },
        Loop { from: Bound::First(0), to: Bound::Last(warm), tasks: steady },
        Loop { from: Bound::Last(warm), to: Bound::Last(0), tasks: backwards(When::Last) },
    ]
}
