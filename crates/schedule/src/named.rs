//! Schedules by name.

use crate::interleaved::interleaved;
use crate::shape::{Loop, Pass, Shape};
use crate::simulate::{Times, simulate};
use crate::turns::{Turns, backwards, forwards};

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
}

impl Schedule {
    pub const NAMES: [(Schedule, &'static str); 4] = [
        (Schedule::OneFOneB, "1f1b"),
        (Schedule::Gpipe, "gpipe"),
        (Schedule::Interleaved, "interleaved"),
        (Schedule::ZbH1, "zb-h1"),
    ];

    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|row| row.0 == self).expect("every schedule has a name").1
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Whether backward runs in two passes, gradients of parameters in the second.
    pub fn splits_backward(self) -> bool {
        self == Schedule::ZbH1
    }

    /// The loops of each device, one after the other.
    pub fn order(self, shape: &Shape) -> Vec<Vec<Loop>> {
        match self {
            _ if !shape.trains() => one_after_the_other(shape, &[forwards(shape)]),
            Schedule::OneFOneB => one_f_one_b(shape),
            Schedule::Gpipe => {
                one_after_the_other(shape, &[forwards(shape), backwards(shape, Pass::Backward)])
            }
            Schedule::Interleaved => interleaved(shape).unwrap_or_else(|| one_f_one_b(shape)),
            Schedule::ZbH1 => zero_bubble(shape),
        }
    }
}

fn one_f_one_b(shape: &Shape) -> Vec<Vec<Loop>> {
    one_after_the_other(shape, &[[forwards(shape), backwards(shape, Pass::Backward)].concat()])
}

/// Phases, each of which is for all micro-batches before the next one is for any. Whether it is better to think of
/// backwards as long, or as short as forwards, so that more of them fit, is seen when they run.
fn one_after_the_other(shape: &Shape, phases: &[Vec<(usize, Pass)>]) -> Vec<Vec<Loop>> {
    let orders = [1, 2].map(|backward| {
        let placed: Vec<Turns<'_>> =
            phases.iter().map(|tasks| Turns::place(shape, tasks, backward)).collect();
        let loops = |device: usize| placed.iter().filter_map(|turns| turns.of(device)).collect();
        (0..shape.devices()).map(loops).collect()
    });
    quickest(shape, orders)
}

/// In a step that is long enough for the steady state to count.
fn quickest(shape: &Shape, orders: [Vec<Vec<Loop>>; 2]) -> Vec<Vec<Loop>> {
    let [first, second] = orders;
    let batches = 4 * u32::try_from(shape.blocks.len()).unwrap_or(1);
    let end = |order: &[Vec<Loop>]| {
        let lanes = simulate(shape, order, batches, Times { forward: 1, inputs: 1, weights: 1 });
        lanes.map_or(u64::MAX, |lanes| lanes.iter().map(|lane| lane.end).max().unwrap_or(0))
    };
    if first != second && end(&second) < end(&first) { second } else { first }
}

/// As many micro-batches of a block are kept as there are devices. Where backward is soon back, what gradients of
/// parameters need is kept until there is nothing else to do.
fn zero_bubble(shape: &Shape) -> Vec<Vec<Loop>> {
    let tasks = [forwards(shape), backwards(shape, Pass::Inputs), backwards(shape, Pass::Weights)].concat();
    let mut turns = Turns::place(shape, &tasks, 1);
    for device in 0..shape.devices() {
        turns.late(device, shape.of(device).count() * shape.devices());
    }
    (0..shape.devices()).map(|device| turns.of(device).into_iter().collect()).collect()
}
