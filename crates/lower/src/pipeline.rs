//! Blocks on their devices: who runs which, and in which order.

use std::collections::BTreeSet;

use plan::Schedule;
use program::{Body, Bound, Loop, Pass, RankId, Task, Timetable, When};

use crate::uses::Context;

/// The ranks that run operators of a block.
pub fn owners(cx: &Context<'_>, block: u32) -> BTreeSet<RankId> {
    let own = cx.order.iter().filter(|op| cx.plan.block(**op) == block);
    own.flat_map(|op| &cx.plan.op(*op).devices).copied().map(RankId).collect()
}

/// What is known of all blocks when a timetable is made for some ranks.
pub struct Pipeline {
    schedule: Schedule,
    /// For each block how many times further ones are on other ranks than the one before them.
    behind: Vec<u32>,
}

impl Pipeline {
    pub fn of(cx: &Context<'_>) -> Self {
        let owners: Vec<BTreeSet<RankId>> =
            (0..cx.plan.block_count()).map(|block| owners(cx, block)).collect();
        let mut behind = vec![0; owners.len()];
        // Where some rank comes back to an earlier one's turn, nothing of the next micro-batch can go ahead of it.
        if follow_each_other(&owners) {
            for block in (1..owners.len()).rev() {
                behind[block - 1] = behind[block] + u32::from(owners[block] != owners[block - 1]);
            }
        }
        Self { schedule: cx.plan.schedule, behind }
    }

    /// In which order ranks run their codes.
    pub fn timetable(&self, body: &Body) -> Timetable {
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
