//! Schedules by name.

use crate::interleaved::interleaved;
use crate::placing::{Placing, backwards, forwards};
use crate::shape::{Orders, Pass, Shape, ShapeLoop, ShapeStep, Task, comes_before};
use crate::simulate::{Times, simulate};
use crate::two_bw::two_bw;
use crate::zb_v::zb_v;

/// In which order blocks run the micro-batches of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Schedule {
    /// One forward, one backward, as soon as a backward can be: few micro-batches are kept at a time.
    #[default]
    OneFOneB,
    /// All forwards, then all backwards.
    Gpipe,
    /// As many micro-batches as there are devices go through the first block of each, then through the second...
    Interleaved,
    /// Gradients of parameters where there is nothing else to do, with as many micro-batches kept as in `1f1b`.
    ZbH1,
    /// Two blocks on each device, which a micro-batch goes through down and up again.
    ZbV,
    /// As `1f1b`, and steps follow each other without a pause: what is under way at the end of one is of older parameters.
    TwoBw,
}

impl Schedule {
    pub const NAMES: [(Schedule, &'static str); 6] = [
        (Schedule::OneFOneB, "1f1b"),
        (Schedule::Gpipe, "gpipe"),
        (Schedule::Interleaved, "interleaved"),
        (Schedule::ZbH1, "zb-h1"),
        (Schedule::ZbV, "zb-v"),
        (Schedule::TwoBw, "2bw"),
    ];

    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|row| row.0 == self).expect("every schedule has a name").1
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Whether backward runs in two passes, gradients of parameters in the second.
    pub fn splits_backward(self) -> bool {
        matches!(self, Schedule::ZbH1 | Schedule::ZbV)
    }

    /// Whether more micro-batches are under way at a time than with `1f1b`.
    pub fn keeps_more(self) -> bool {
        matches!(self, Schedule::Gpipe | Schedule::Interleaved)
    }

    /// Whether a step begins before the one before it has ended.
    pub fn goes_on(self) -> bool {
        self == Schedule::TwoBw
    }

    /// Whether there may be tasks that must come before others. Where not, the schedule leaves nothing open.
    pub fn is_open(self) -> bool {
        matches!(self, Schedule::OneFOneB | Schedule::ZbH1)
    }

    /// None if the first task of some pairs cannot always come before the second, or the schedule is not for such blocks.
    pub fn order(self, shape: &Shape, before: &[(Task, Task)]) -> Option<Orders> {
        let backward = || backwards(shape, Pass::Backward);
        // Of an order that leaves nothing open: where it is none, or not one that is asked for, another one is.
        let keeps = |orders: &Orders| keep(orders, before) && hand_on(orders, shape);
        let or_open = |orders: Option<Orders>, other: Schedule| {
            orders.filter(keeps).or_else(|| other.order(shape, before))
        };
        match self {
            _ if !shape.trains() => phases(shape, &[forwards(shape)], before),
            Schedule::Interleaved => or_open(interleaved(shape), Schedule::OneFOneB),
            Schedule::OneFOneB => phases(shape, &[[forwards(shape), backward()].concat()], before),
            Schedule::Gpipe => phases(shape, &[forwards(shape), backward()], before),
            Schedule::ZbH1 => zero_bubble(shape, before),
            Schedule::ZbV => or_open(zb_v(shape), Schedule::ZbH1),
            Schedule::TwoBw => two_bw(shape).filter(keeps),
        }
    }
}

fn keep(orders: &Orders, before: &[(Task, Task)]) -> bool {
    before.iter().all(|(first, then)| orders.iter().all(|loops| comes_before(loops, *first, *then)))
}

/// Whether nothing runs before what is kept for it is there.
fn hand_on(orders: &Orders, shape: &Shape) -> bool {
    let task = |(block, pass): ShapeStep| Task { block, pass, at: 0 };
    let handed = || shape.handed.iter().map(|(first, then)| (task(*first), task(*then)));
    handed().all(|(first, then)| orders.iter().all(|loops| comes_before(loops, first, then)))
}

/// Each is for all micro-batches before the next one is for any. Whether it is better to think of backwards as
/// long, or as short as forwards, so that more of them fit, is seen when they run.
fn phases(shape: &Shape, phases: &[Vec<(usize, Pass)>], before: &[(Task, Task)]) -> Option<Orders> {
    let place = |backward: i64| {
        let iterations = phases.iter().map(|tasks| Placing::place(shape, tasks, before, backward));
        let iterations: Vec<Placing<'_>> = iterations.collect::<Option<_>>()?;
        let loops =
            |device: usize| iterations.iter().filter_map(|iterations| iterations.loop_of(device)).collect();
        Some((0..shape.devices()).map(loops).collect())
    };
    quickest(shape, [place(1)?, place(2)?]).into()
}

/// In a step that is long enough for the steady state to count.
fn quickest(shape: &Shape, [first, second]: [Orders; 2]) -> Orders {
    let batches = 4 * u32::try_from(shape.blocks.len()).unwrap_or(1);
    let end = |order: &[Vec<ShapeLoop>]| {
        let lanes = simulate(shape, order, batches, Times::EQUAL).ok();
        lanes.map_or(u64::MAX, |lanes| lanes.iter().map(|lane| lane.end).max().unwrap_or(0))
    };
    if first != second && end(&second) < end(&first) { second } else { first }
}

/// As many micro-batches of a block are kept as there are devices. Where backward is soon back, what gradients of
/// parameters need is kept until there is nothing else to do.
fn zero_bubble(shape: &Shape, before: &[(Task, Task)]) -> Option<Orders> {
    let tasks = [forwards(shape), backwards(shape, Pass::Inputs), backwards(shape, Pass::Weights)].concat();
    let mut iterations = Placing::place(shape, &tasks, before, 1)?;
    if before.is_empty() {
        for device in 0..shape.devices() {
            iterations.late(device, shape.blocks_of(device).count() * shape.devices());
        }
    }
    Some((0..shape.devices()).map(|device| iterations.loop_of(device).into_iter().collect()).collect())
}
