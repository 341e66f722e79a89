//! The well-known plans in all their shapes.

use plan::PlanName;
use plan::sets::{Argument, Set, SetTerm, auto};

/// So many stages, copies of the model, and ways in which `megatron` divides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub stages: u32,
    pub copies: u32,
    pub ways: u32,
}

/// All that fill so many devices: first those with few stages, and of these with many copies. A stage has something to
/// do where there are at least as many micro-batches as stages.
pub fn shapes(devices: u32, batches: u32) -> Vec<Shape> {
    let divisors = |n: u32| (1..=n).filter(move |d| n % d == 0);
    let with_ways = |stages: u32| divisors(devices / stages).map(move |ways| (stages, ways));
    let all = divisors(devices).filter(|stages| *stages <= batches.max(1)).flat_map(with_ways);
    all.map(|(stages, ways)| Shape { stages, copies: devices / stages / ways, ways }).collect()
}

impl Shape {
    /// For each way to hold parameters names of plans, each of which needs less memory than the one before.
    pub fn ladders(&self) -> Vec<Vec<PlanName>> {
        self.held().iter().map(|held| self.fallbacks(held, auto::schedule())).collect()
    }

    /// The ways to hold parameters.
    pub(crate) fn held(&self) -> &'static [&'static Set] {
        let all = auto::replicas();
        if self.copies > 1 { all } else { &all[..1] }
    }

    /// What is recomputed: nothing, more and more up to everything, and that in turns.
    pub(crate) fn fallbacks(&self, held: &'static Set, schedule: SetTerm) -> Vec<PlanName> {
        let plain = self.name(held, schedule);
        let recomputed = auto::recompute().into_iter().map(|it| plain.with(it));
        let over_time = plain.with(auto::over_time()).with(everything());
        std::iter::once(plain.clone()).chain(recomputed).chain([over_time]).collect()
    }

    /// With what layers keep on the host, if all that does not fit on the devices.
    pub(crate) fn kept_offloaded(plain: &PlanName) -> PlanName {
        plain.with(auto::offload()[0])
    }

    /// What is tried where none of that fits: all is recomputed, and something on the host besides, more and more.
    pub(crate) fn offload(&self, held: &'static Set) -> Vec<PlanName> {
        let recomputed = self.name(held, auto::schedule()).with(everything());
        let all = auto::offload();
        let some = |part: usize| {
            let terms = all.iter().enumerate().filter(|(at, _)| part >> at & 1 == 1);
            terms.fold(recomputed.clone(), |name, (_, term)| name.with(*term))
        };
        (1..1 << all.len()).map(some).collect()
    }

    /// Where nothing is recomputed, and nothing on the host.
    fn name(&self, held: &'static Set, schedule: SetTerm) -> PlanName {
        let axis =
            |set: &'static Set, size: u32| (size > 1).then(|| SetTerm::new(set, Argument::Number(size)));
        let axes = [(auto::stages(), self.stages), (held, self.copies), (auto::model_axis(), self.ways)];
        let name = PlanName::new(axes.into_iter().filter_map(|(set, size)| axis(set, size)).collect());
        if self.stages > 1 { name.with(schedule) } else { name }
    }
}

/// Recomputes most.
fn everything() -> SetTerm {
    *auto::recompute().last().expect("something can be recomputed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_fill_the_devices() {
        for devices in [1, 2, 6, 8, 12, 64] {
            let all = shapes(devices, 64);
            assert!(all.iter().all(|s| s.stages * s.copies * s.ways == devices));
            let pairs: u32 = (1..=devices)
                .filter(|p| devices % p == 0)
                .map(|p| {
                    let left = devices / p;
                    u32::try_from((1..=left).filter(|w| left % w == 0).count()).expect("few")
                })
                .sum();
            assert_eq!(all.len(), pairs as usize);
        }
        assert!(shapes(8, 1).iter().all(|shape| shape.stages == 1));
    }

    fn joined(names: &[PlanName]) -> String {
        names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn names() {
        let all = |stages, copies, ways| joined(&Shape { stages, copies, ways }.ladders().concat());
        assert_eq!(
            all(1, 1, 1),
            "replicate, replicate x recompute:selective, replicate x recompute:attention, replicate x recompute, \
             replicate x coshard x recompute"
        );
        assert_eq!(
            all(2, 1, 4),
            "stages:2 x megatron:4 x 1f1b, stages:2 x megatron:4 x 1f1b x recompute:selective, \
             stages:2 x megatron:4 x 1f1b x recompute:attention, \
             stages:2 x megatron:4 x 1f1b x recompute, stages:2 x megatron:4 x 1f1b x coshard x recompute"
        );
        assert!(all(1, 8, 1).starts_with(
            "data:8, data:8 x recompute:selective, data:8 x recompute:attention, data:8 x recompute, \
             data:8 x coshard x recompute, zero1:8"
        ));
        assert!(all(1, 8, 1).ends_with("zero3:8 x coshard x recompute"));
    }

    #[test]
    fn names_with_something_on_the_host() {
        let shape = Shape { stages: 2, copies: 2, ways: 1 };
        assert_eq!(
            joined(&shape.offload(auto::replicas()[1])),
            "stages:2 x zero1:2 x 1f1b x recompute x offload:activations, \
             stages:2 x zero1:2 x 1f1b x recompute x offload:state, \
             stages:2 x zero1:2 x 1f1b x recompute x offload:activations x offload:state"
        );
        let plain = &shape.ladders()[0][0];
        assert_eq!(
            Shape::kept_offloaded(plain).to_string(),
            "stages:2 x data:2 x 1f1b x offload:activations"
        );
    }

    #[test]
    fn other_schedules() {
        let all: Vec<String> = auto::other_schedules().iter().map(ToString::to_string).collect();
        assert_eq!(all.join(", "), "gpipe, interleaved:2, interleaved:4, zb-h1, zb-v, kf1b");
    }
}
