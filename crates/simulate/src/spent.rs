//! What a turn of a rank takes.

/// What a turn of a rank takes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spent {
    /// Seconds in which the rank does something or waits; none of a turn of which nothing is known.
    seconds: Option<f64>,
    /// Seconds for which it waits for each message from other blocks.
    exposed: Vec<f64>,
    /// Seconds for which these are on their way.
    receives: f64,
}

impl Spent {
    pub(crate) fn does(&mut self, seconds: f64) {
        *self.seconds.get_or_insert(0.0) += seconds;
    }

    pub(crate) fn receives(&mut self, exposed: f64, seconds: f64) {
        self.exposed.push(exposed);
        self.receives += seconds;
    }

    /// Seconds without those for which it waits for other blocks, and those of their messages.
    pub(crate) fn by_itself(&self) -> Option<(f64, f64)> {
        let without_exposed =
            |seconds: f64| self.exposed.iter().fold(seconds, |left, exposed| left - exposed);
        self.seconds.map(|seconds| (without_exposed(seconds), self.receives))
    }
}
