//! The axes of a name, with sizes that fill the devices: of `data x megatron:4` on eight `data:2 x megatron:4`.

use diag::{Error, Result};

use super::{Along, Besides, Model, PlanName, Rounds, Set, SetTerm, megatron};
use crate::Schedule;

/// An axis of a plan.
pub(super) struct Axis {
    pub(super) set: &'static Set,
    pub(super) along: &'static Along,
    /// Zero where parts run in turn and the name does not say how many.
    pub(super) size: u32,
}

/// Gives each axis a size, so that together they fill the devices.
pub(super) fn axes(name: &PlanName, devices: u32) -> Result<Vec<Axis>> {
    let stated = product(device_axes(name).filter_map(SetTerm::number));
    let mut left = if devices % stated == 0 { devices / stated } else { 0 };
    let open = device_axes(name).filter(|term| term.number().is_none()).count();
    let mut seen = 0;
    let mut axes = vec![];
    for term in name.axes() {
        let along = along(term);
        let size = match term.number() {
            Some(size) => size,
            None if along.in_turn() => 0,
            None => {
                seen += 1;
                let share = if seen == open { left } else { near_root(left) };
                left /= share.max(1);
                share
            }
        };
        axes.push(Axis { set: term.set(), along, size });
    }
    if !axes.is_empty() && axes.iter().all(|a| a.along.in_turn()) && devices > 1 {
        return spread_in_turn(name, axes, devices);
    }
    let total = product(axes.iter().filter(|a| !a.along.in_turn()).map(|a| a.size));
    if total != devices {
        return Err(Error::new("SW0310", format!("the axes of `{name}` do not fit {devices} devices"))
            .why(format!("the product of their sizes is {total}"))
            .fix(
                "give each axis a size whose product is the number of devices, such as `data:2 x megatron:4`",
            ));
    }
    Ok(axes)
}

fn along(term: &SetTerm) -> &'static Along {
    term.set().along.as_ref().expect("an axis divides")
}

/// The axes whose parts are on devices of their own.
fn device_axes(name: &PlanName) -> impl Iterator<Item = &SetTerm> {
    name.axes().filter(|term| !along(term).in_turn())
}

impl PlanName {
    /// For how many devices a plan of this name is, where the name itself says it.
    pub fn devices(&self) -> Option<u32> {
        let mut axes = device_axes(self).peekable();
        axes.peek()?;
        axes.try_fold(1, |total: u32, term| Some(total.saturating_mul(term.number()?)))
    }

    /// The set that puts several blocks on each stage, if there is one, and how many the name says.
    pub(super) fn rounds(&self) -> Result<Option<(Rounds, Option<u32>)>> {
        let mut said = self.terms().iter().filter_map(|term| Some((term.set().rounds?, term.number())));
        let first = said.next();
        match said.next() {
            None => Ok(first),
            Some(_) => {
                Err(Error::new("SW0310", format!("`{self}` says twice how many blocks each stage has"))
                    .why("a pipeline has one schedule")
                    .fix("leave one of them out"))
            }
        }
    }

    /// The operators that its sets take out of a pipeline.
    pub(super) fn aside(&self, model: &Model<'_>, stages: u32) -> Vec<bool> {
        let mut all = vec![false; model.graph.ops.len()];
        for aside in self.terms().iter().filter_map(|term| term.set().aside) {
            aside(model, stages).into_iter().zip(&mut all).for_each(|(one, all)| *all |= one);
        }
        all
    }
}

/// What a set says besides how operators are divided.
pub(super) struct Said {
    pub(super) besides: Option<Besides>,
    pub(super) schedule: Option<Schedule>,
    /// Its axis, if it has one.
    pub(super) axis: Option<usize>,
    /// The number behind its name, if it has none.
    pub(super) number: Option<u32>,
}

/// What the sets of a name say besides, in their order.
pub(super) fn besides(name: &PlanName, axes: &[Axis]) -> Vec<Said> {
    let mut next = 0;
    let said = |term: &SetTerm| {
        let axis = axes[next..].iter().position(|axis| axis.set == term.set()).map(|at| next + at);
        next = axis.map_or(next, |axis| axis + 1);
        let number = term.number().filter(|_| axis.is_none());
        Said { besides: term.besides(), schedule: term.set().schedule, axis, number }
    };
    name.terms().iter().map(said).collect()
}

fn product(sizes: impl Iterator<Item = u32>) -> u32 {
    sizes.fold(1, u32::saturating_mul)
}

/// `coshard:4` on two devices is `megatron:2 x coshard:2`.
fn spread_in_turn(name: &PlanName, axes: Vec<Axis>, devices: u32) -> Result<Vec<Axis>> {
    let turn = axes.into_iter().find(|a| a.along.in_turn()).expect("called with an axis that runs in turn");
    let (set, along, parts) = (turn.set, turn.along, turn.size);
    if parts % devices != 0 {
        return Err(Error::new(
            "SW0310",
            format!("the {parts} parts of `{name}` do not fit {devices} devices"),
        )
        .why("each device runs the same number of parts, one after another")
        .fix(format!(
            "write `{0}:{1}` for two parts on each device, or say what the devices share: \
             `data:{devices} x {0}:{parts}`",
            set.name,
            devices.saturating_mul(2)
        )));
    }
    let across = megatron::SET.along.as_ref().expect("`megatron` divides");
    let parts = Axis { set, along, size: parts / devices };
    Ok(vec![Axis { set: &megatron::SET, along: across, size: devices }, parts])
}

/// The largest divisor not above the square root.
fn near_root(count: u32) -> u32 {
    (1..=count).take_while(|d| d * d <= count).filter(|d| count % d == 0).last().unwrap_or(1)
}
