//! What a step of a pipeline takes at least, from its last stage to its first.
//!
//! Under `1f1b` a stage with `n` others after it runs `n + 1` forwards before its first backward, and then one of each; so
//! after its last forward `n + 1` backwards are left. The gradient of its first micro-batch cannot be there before that
//! has gone through all stages after it and back, no more can that of its last one, and forward `n + 1` waits for the first. What a stage sends goes on while it
//! computes, one after the other.

/// What a stage takes: seconds, and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stage {
    /// Of a micro-batch.
    pub forward: f64,
    pub backward: f64,
    /// After its last backward: gradients that could not be sent before it, and the optimizer.
    pub tail: f64,
    /// If it never waited for other stages.
    pub busy: f64,
    /// Bytes that all its devices together need of what the stage before makes, and hold of what the next one reads.
    pub takes: f64,
    pub gives: f64,
}

impl Stage {
    /// Whether a pipeline takes as long with the other in its place, or longer.
    pub fn is_no_worse(&self, other: &Self) -> bool {
        let both = [
            (self.forward, other.forward),
            (self.backward, other.backward),
            (self.tail, other.tail),
            (self.busy, other.busy),
            (self.takes, other.takes),
            (self.gives, other.gives),
        ];
        both.iter().all(|(this, other)| this <= other)
    }
}

/// A stage and all after it, from when the first micro-batch comes to it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flow {
    pub stages: u32,
    /// A micro-batch goes through all of them and back.
    pub through: f64,
    /// The gradient of the last micro-batch leaves the stage.
    pub last: f64,
    /// All of them have stepped.
    pub end: f64,
    /// The most that one of them takes if it never waits.
    pub busy: f64,
    /// The stage sends a micro-batch on.
    pub sends: f64,
    /// Bytes that it needs for that.
    pub takes: f64,
}

impl Flow {
    /// With a stage before them, and the seconds in which a micro-batch is sent from it to the next one, and back.
    pub fn after(&self, stage: &Stage, on: f64, back: f64, batches: u32) -> Self {
        let (f, b, m) = (stage.forward, stage.backward, f64::from(batches));
        let ahead = f64::from(self.stages) + 1.0;
        // The last stage sends nothing on.
        let (on, back) = if self.stages == 0 { (0.0, 0.0) } else { (on, back) };
        let below = on + self.through + back;
        let makespan = if m > ahead {
            (f + below).max(ahead * f) + (m - ahead) * (f + b) + (below + b).max(ahead * b)
        } else {
            (f + below + m * b).max(m * f + below + b)
        };
        let rounds = self.rounds(stage, below, batches);
        let sent = below + (m - 1.0) * on.max(back);
        let last = makespan.max(rounds).max(f + sent + b).max(f + on + self.last + back + b);
        Self {
            stages: self.stages + 1,
            through: f + below + b,
            last,
            end: (last + stage.tail).max(f + on + self.end),
            busy: self.busy.max(stage.busy).max(m * (self.sends + back)),
            sends: on,
            takes: stage.takes,
        }
    }

    /// Of so many micro-batches as may be under way the first one is back before the next ones begin: so the way to the end
    /// and back is gone once for each of these rounds.
    fn rounds(&self, stage: &Stage, below: f64, batches: u32) -> f64 {
        let (ahead, last) = (self.stages + 1, batches - 1);
        let from = |first: u32| {
            let (rounds, rest) = ((last - first) / ahead + 1, (last - first) % ahead);
            f64::from(first) * stage.forward
                + f64::from(rounds) * (stage.forward + below + stage.backward)
                + f64::from(rest) * stage.backward
        };
        from(0).max(from(last % ahead))
    }

    /// Seconds of a step that begins with this stage.
    pub fn seconds(&self) -> f64 {
        self.end.max(self.busy)
    }

    /// Whether whatever is put before the other takes as long before this one, or longer.
    pub fn is_no_worse(&self, other: &Self) -> bool {
        let both = [
            (self.through, other.through),
            (self.last, other.last),
            (self.end, other.end),
            (self.busy, other.busy),
            (self.sends, other.sends),
            (self.takes, other.takes),
        ];
        both.iter().all(|(this, other)| this <= other)
    }
}
