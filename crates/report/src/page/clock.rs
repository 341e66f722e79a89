//! Times as whole numbers: in nanoseconds, or coarser where a step is long.

/// Longer numbers would fill the page.
const LONGEST: f64 = 1e9;

#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) ticks_per_second: f64,
}

impl Clock {
    /// For a step of so many seconds.
    pub(super) fn new(seconds: f64) -> Self {
        let mut ticks_per_second = 1e9;
        while seconds * ticks_per_second > LONGEST && ticks_per_second > 1.0 {
            ticks_per_second /= 10.0;
        }
        Self { ticks_per_second }
    }

    pub(super) fn ticks(self, seconds: f64) -> i64 {
        (seconds * self.ticks_per_second).round() as i64
    }
}

#[cfg(test)]
mod tests {
    use super::Clock;

    #[test]
    fn long_steps_have_coarse_ticks() {
        assert_eq!(Clock::new(0.5).ticks(0.25), 250_000_000);
        assert_eq!(Clock::new(20.0).ticks(0.25), 2_500_000);
    }
}
