//! The well-known plans in all their shapes.

/// So many stages, copies of the model, and ways in which `megatron` divides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub stages: u32,
    pub copies: u32,
    pub ways: u32,
}

/// What divides the model.
pub(crate) const WAYS: &str = "megatron";
/// How parameters are held where there are copies, from what sends least to what needs least.
const HELD: [&str; 3] = ["data", "zero1", "zero3"];
/// What is computed again, from nothing to everything, and that in turns.
const RECOMPUTED: [&str; 4] = ["", "recompute:selective", "recompute", "coshard x recompute"];
/// What is on the host instead of computed again.
const KEPT: &str = "offload:activations";
/// What is on the host besides, where nothing else fits.
const OFFLOADS: [&str; 3] = [
    "recompute x offload:activations",
    "recompute x offload:state",
    "recompute x offload:activations x offload:state",
];
/// The schedule of most pipelines, and those that are tried where stages wait for long.
pub(crate) const USUAL: &str = "1f1b";
pub(crate) const SCHEDULES: [&str; 6] = ["gpipe", "interleaved:2", "interleaved:4", "zb-h1", "zb-v", "kf1b"];

/// All that fill so many devices: first those with few stages, and of these with many copies. A stage has something to
/// do where there are at least as many micro-batches as stages.
pub fn shapes(devices: u32, batches: u32) -> Vec<Shape> {
    let divisors = |n: u32| (1..=n).filter(move |d| n % d == 0);
    let of = |stages: u32| divisors(devices / stages).map(move |ways| (stages, ways));
    let all = divisors(devices).filter(|stages| *stages <= batches.max(1)).flat_map(of);
    all.map(|(stages, ways)| Shape { stages, copies: devices / stages / ways, ways }).collect()
}

impl Shape {
    /// For each way to hold parameters names of plans, each of which needs less memory than the one before.
    pub fn ladders(&self) -> Vec<Vec<String>> {
        self.held().iter().map(|held| self.fallbacks(held, USUAL)).collect()
    }

    /// The ways to hold parameters.
    pub(crate) fn held(&self) -> &'static [&'static str] {
        if self.copies > 1 { &HELD } else { &HELD[..1] }
    }

    pub(crate) fn fallbacks(&self, held: &str, schedule: &str) -> Vec<String> {
        RECOMPUTED.iter().map(|recomputed| self.name(held, schedule, recomputed)).collect()
    }

    /// With what layers keep on the host, if all that does not fit on the devices.
    pub(crate) fn kept_offloaded(plain: &str) -> String {
        format!("{plain} x {KEPT}")
    }

    /// What is tried where none of that fits.
    pub(crate) fn offload(&self, held: &str) -> Vec<String> {
        OFFLOADS.iter().map(|offload| self.name(held, USUAL, offload)).collect()
    }

    fn name(&self, held: &str, schedule: &str, saves: &str) -> String {
        let axis = |set: &str, size: u32| (size > 1).then(|| format!("{set}:{size}"));
        let axes = [axis("stages", self.stages), axis(held, self.copies), axis(WAYS, self.ways)];
        let mut words: Vec<String> = axes.into_iter().flatten().collect();
        if words.is_empty() {
            words.push("replicate".into());
        }
        words.extend((self.stages > 1).then(|| schedule.into()));
        words.extend((!saves.is_empty()).then(|| saves.into()));
        words.join(" x ")
    }
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

    #[test]
    fn names() {
        let all = |stages, copies, ways| Shape { stages, copies, ways }.ladders().concat().join(", ");
        assert_eq!(
            all(1, 1, 1),
            "replicate, replicate x recompute:selective, replicate x recompute, replicate x coshard x recompute"
        );
        assert_eq!(
            all(2, 1, 4),
            "stages:2 x megatron:4 x 1f1b, stages:2 x megatron:4 x 1f1b x recompute:selective, \
             stages:2 x megatron:4 x 1f1b x recompute, stages:2 x megatron:4 x 1f1b x coshard x recompute"
        );
        assert!(all(1, 8, 1).starts_with(
            "data:8, data:8 x recompute:selective, data:8 x recompute, data:8 x coshard x recompute, zero1:8"
        ));
    }
}
