//! The nearest legal thing to a split that was decided for other sizes, over the same devices.

use graph::{Graph, OpId};
use rules::Analysis;

use crate::{On, OpPlan, Split, legal};

/// Divides an operator further by `wanted`, or by as many parts of it as are legal, each computed
/// by several devices, or by none. The parts stay as many as `wanted` has, so that the devices of
/// the operator stay as they are.
pub(crate) fn fit(
    graph: &Graph,
    analysis: &Analysis,
    op: OpId,
    before: &[Split],
    wanted: Split,
) -> Vec<Split> {
    let fits = |parts: u32| {
        let all: Vec<Split> = before.iter().copied().chain([Split { on: wanted.on, parts }]).collect();
        legal(graph, analysis, op, &all).is_ok()
    };
    let parts = match wanted.on {
        On::Copies => 1,
        On::Loop(_) | On::Exchange { .. } => {
            divisors(wanted.parts).into_iter().find(|&d| fits(d)).unwrap_or(1)
        }
        On::Value => {
            if fits(wanted.parts) {
                wanted.parts
            } else {
                1
            }
        }
    };
    [Split { on: wanted.on, parts }, Split { on: On::Copies, parts: wanted.parts / parts }]
        .into_iter()
        .filter(|s| s.parts > 1)
        .collect()
}

/// Leaves out copies that the same device would compute again.
pub(crate) fn without_idle_copies(mut plan: OpPlan) -> OpPlan {
    for at in (0..plan.splits.len()).rev() {
        if plan.splits[at].on == On::Copies && is_idle(&plan, at) {
            let inner = inner(&plan.splits, at);
            let parts = plan.splits[at].parts as usize;
            let firsts = (0..plan.devices.len()).filter(|i| i / inner % parts == 0);
            plan.devices = firsts.map(|i| plan.devices[i]).collect();
            plan.splits.remove(at);
        }
    }
    plan
}

/// Whether the devices do not depend on the position in one split.
fn is_idle(plan: &OpPlan, at: usize) -> bool {
    let inner = inner(&plan.splits, at);
    let parts = plan.splits[at].parts as usize;
    (0..plan.devices.len()).all(|i| plan.devices[i] == plan.devices[i - i / inner % parts * inner])
}

/// How many sub-operators there are for one position in a split.
fn inner(splits: &[Split], at: usize) -> usize {
    splits[at + 1..].iter().map(|s| s.parts as usize).product()
}

/// Largest first, one left out.
fn divisors(number: u32) -> Vec<u32> {
    (2..=number).rev().filter(|d| number % d == 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_on_one_device_are_one() {
        let split = |on, parts| Split { on, parts };
        let plan = OpPlan {
            splits: vec![split(On::Loop(0), 2), split(On::Copies, 2), split(On::Loop(1), 2)],
            devices: [0, 1, 0, 1, 2, 3, 2, 3].into(),
        };
        let expected = OpPlan {
            splits: vec![split(On::Loop(0), 2), split(On::Loop(1), 2)],
            devices: [0, 1, 2, 3].into(),
        };
        assert_eq!(without_idle_copies(plan), expected);
    }

    #[test]
    fn copies_on_several_devices_stay() {
        let plan = OpPlan { splits: vec![Split { on: On::Copies, parts: 2 }], devices: [0, 1].into() };
        assert_eq!(without_idle_copies(plan.clone()), plan);
    }
}
