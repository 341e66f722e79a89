//! What memory is for, and how much of it a rank has when that is the most.

use std::collections::BTreeMap;
use std::fmt;

use graph::Dtype;

/// The types in which ranks hold parameters, by name, where these are not what a program reads: it reads casts.
pub type Masters = BTreeMap<String, Dtype>;

/// What bytes are for. Each is for one of these at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    Parameters,
    /// Parameters that are divided between steps, while they are there.
    Gathered,
    Gradients,
    Optimizer,
    /// Buffers and constants of the model.
    Buffers,
    Inputs,
    /// What forward keeps for backward.
    Activations,
    /// What is computed with and nobody keeps.
    Working,
    /// What is sent from and received in.
    Communication,
}

impl Purpose {
    pub const COUNT: usize = 9;
    pub const ALL: [Purpose; Self::COUNT] = [
        Purpose::Parameters,
        Purpose::Gathered,
        Purpose::Gradients,
        Purpose::Optimizer,
        Purpose::Buffers,
        Purpose::Inputs,
        Purpose::Activations,
        Purpose::Working,
        Purpose::Communication,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Purpose::Parameters => "parameters",
            Purpose::Gathered => "gathered",
            Purpose::Gradients => "gradients",
            Purpose::Optimizer => "optimizer",
            Purpose::Buffers => "buffers",
            Purpose::Inputs => "inputs",
            Purpose::Activations => "activations",
            Purpose::Working => "working",
            Purpose::Communication => "communication",
        }
    }
}

/// Bytes of a rank in a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// By purpose, when all together are the most.
    pub peak: [u64; Purpose::COUNT],
    /// Of each purpose the most at any time.
    pub most: [u64; Purpose::COUNT],
    /// The most that is on the host at any time, and not among these.
    pub offloaded: u64,
    /// When that is; nothing of a rank that does nothing.
    pub at: Option<Moment>,
    /// By purpose, when backward is over and the optimizer steps.
    pub end: [u64; Purpose::COUNT],
    /// The parameters that an optimizer steps: how many there are, and their bytes. Apart from those of which its
    /// state is on the host, and those that it steps there.
    pub trained: (u64, u64),
    pub trained_from_host: (u64, u64),
    pub trained_on_host: (u64, u64),
}

/// A turn of a rank: a code that runs for a micro-batch, and the most bytes at once in it, without an optimizer's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    pub block: u32,
    pub pass: program::Pass,
    pub batch: u32,
    pub most: u64,
    /// For each instruction that it runs, by its number in the code: the bytes by purpose when they are the most in it.
    /// Of ranks that are looked at closely ([`CLOSE`]).
    pub instrs: Vec<(usize, [u64; Purpose::COUNT])>,
}

/// So many ranks are looked at closely; of more, the first of each role.
pub(crate) const CLOSE: usize = 64;

/// Where in a step a rank is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// `forward`, `backward`, or `the optimizer's step`.
    pub pass: &'static str,
    /// The kind of the instruction (`call`, `grad`, `all_reduce`), and its number in the pass; none of a step.
    pub instruction: (&'static str, usize),
    /// The operator that is computed, or whose value is moved, with its module and line.
    pub operator: Option<String>,
}

impl fmt::Display for Moment {
    /// `backward, grad 3: aten.linear.default %linear_7 in "h.0.attn" at model.py:56`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, number) = self.instruction;
        f.write_str(self.pass)?;
        if !kind.is_empty() {
            write!(f, ", {kind} {number}")?;
        }
        self.operator.as_ref().map_or(Ok(()), |operator| write!(f, ": {operator}"))
    }
}

impl Memory {
    pub fn total(&self) -> u64 {
        self.peak.iter().sum()
    }

    /// With an optimizer that has so many tensors like each parameter, and so many numbers of four bytes.
    #[must_use]
    pub fn stepped(mut self, tensors: u64, numbers: u64) -> Self {
        let state = |(parameters, bytes): (u64, u64)| tensors * bytes + 4 * numbers * parameters;
        let (here, offloaded) = (state(self.trained), state(self.trained_from_host));
        self.peak[Purpose::Optimizer as usize] = here;
        // It is all there while the optimizer steps.
        self.end[Purpose::Optimizer as usize] = here + offloaded;
        self.most[Purpose::Optimizer as usize] = here + offloaded;
        self.offloaded += offloaded + state(self.trained_on_host);
        if self.end.iter().sum::<u64>() > self.total() {
            self.peak = self.end;
            self.at = Some(Moment { pass: "the optimizer's step", ..Moment::default() });
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::{Memory, Moment, Purpose};

    /// Three parameters of 100 bytes, of which the states are here, come from the host, and stay there.
    fn memory(working: u64) -> Memory {
        let with_working = |bytes: u64| {
            let mut all = [0; Purpose::COUNT];
            (all[Purpose::Parameters as usize], all[Purpose::Working as usize]) = (300, bytes);
            all
        };
        Memory {
            peak: with_working(working),
            most: with_working(working),
            end: with_working(0),
            offloaded: 7,
            at: Some(Moment { pass: "backward", ..Moment::default() }),
            trained: (1, 100),
            trained_from_host: (2, 30),
            trained_on_host: (3, 5),
        }
    }

    /// Two tensors like each parameter and a number, so 204, 68 and 22 bytes.
    #[test]
    fn an_optimizer_has_its_state_here_or_on_the_host() {
        let stepped = memory(1000).stepped(2, 1);
        let optimizer = Purpose::Optimizer as usize;
        assert_eq!(memory(1000).total(), 1300);
        assert_eq!((stepped.peak[optimizer], stepped.total()), (204, 1504));
        assert_eq!((stepped.end[optimizer], stepped.most[optimizer]), (272, 272));
        assert_eq!(stepped.offloaded, 7 + 68 + 22);
        assert_eq!(stepped.at.map(|at| at.pass), Some("backward"));
    }

    /// All of the state is there then, and what is computed with is not.
    #[test]
    fn a_step_may_be_when_there_is_most() {
        let pass = |working: u64| {
            let stepped = memory(working).stepped(2, 1);
            (stepped.at.map(|at| at.pass), stepped.peak == stepped.end)
        };
        assert_eq!(pass(67), (Some("the optimizer's step"), true));
        // Of as much, the first is told.
        assert_eq!(pass(68), (Some("backward"), false));
        assert_eq!(pass(69), (Some("backward"), false));
    }
}
