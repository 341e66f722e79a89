//! What of its peak a GPU reaches, by kind of kernel and size.
//!
//! The figures are of PyTorch's own kernels, without a compiler: products by cuBLAS, attention by FlashAttention 2, the
//! others one kernel for each operator. `docs/explanation/cost-model.md` says where they are from.

use crate::Direction;

/// Kernels of some kinds, in one direction or both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Efficiency {
    kinds: &'static [&'static str],
    direction: Option<Direction>,
    /// What of the peak is reached by so many operations, or of the bandwidth by so many bytes; sizes rise.
    shares: &'static [(f64, f64)],
}

/// GPUs of one architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    Blackwell,
    Hopper,
    Ada,
    Ampere,
    Turing,
    Volta,
}

impl Generation {
    pub fn name(self) -> &'static str {
        match self {
            Self::Blackwell => "Blackwell",
            Self::Hopper => "Hopper",
            Self::Ada => "Ada",
            Self::Ampere => "Ampere",
            Self::Turing => "Turing",
            Self::Volta => "Volta",
        }
    }
}

/// What kernels reach on the GPUs of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Curves {
    compute: &'static [Efficiency],
    memory: &'static [Efficiency],
}

const PRODUCTS: &[&str] = &["contraction", "products", "convolution", "experts", "mixtures", "recurrent"];
const ATTENTION: &[&str] = &["attention"];

const fn products(shares: &'static [(f64, f64)]) -> Efficiency {
    Efficiency { kinds: PRODUCTS, direction: None, shares }
}

const fn attention(direction: Direction, shares: &'static [(f64, f64)]) -> Efficiency {
    Efficiency { kinds: ATTENTION, direction: Some(direction), shares }
}

/// What moves bytes: norms and losses go over them more often than they are counted.
const MEMORY: &[Efficiency] = &[
    Efficiency {
        kinds: &["norms"],
        direction: Some(Direction::Backward),
        shares: &[(1e6, 0.20), (1e7, 0.38), (1e8, 0.48)],
    },
    Efficiency {
        kinds: &["norms"],
        direction: Some(Direction::Forward),
        shares: &[(1e6, 0.25), (1e7, 0.55), (1e8, 0.72)],
    },
    Efficiency {
        kinds: &["losses", "softmax"],
        direction: None,
        shares: &[(1e6, 0.20), (1e7, 0.45), (1e8, 0.60)],
    },
    Efficiency {
        kinds: &["pointwise", "copies", "splitting", "views", "reductions", "optimizer", "random"],
        direction: None,
        shares: &[(1e6, 0.35), (1e7, 0.65), (1e8, 0.82), (1e9, 0.86)],
    },
];

const VOLTA: Curves = Curves {
    compute: &[
        products(&[
            (1e8, 0.04),
            (1e9, 0.12),
            (1e10, 0.32),
            (5e10, 0.53),
            (2e11, 0.63),
            (1e12, 0.70),
            (1e13, 0.74),
        ]),
        attention(Direction::Forward, &[(1e9, 0.08), (1e10, 0.20), (1e11, 0.30)]),
        attention(Direction::Backward, &[(1e9, 0.06), (1e10, 0.15), (1e11, 0.22)]),
    ],
    memory: MEMORY,
};
const AMPERE: Curves = Curves {
    compute: &[
        products(&[(1e8, 0.05), (1e9, 0.28), (1e10, 0.62), (1e11, 0.78), (1e12, 0.85), (1e13, 0.86)]),
        attention(Direction::Forward, &[(1e9, 0.15), (1e10, 0.38), (1e11, 0.52), (1e12, 0.58), (1e13, 0.60)]),
        attention(
            Direction::Backward,
            &[(1e9, 0.12), (1e10, 0.30), (1e11, 0.42), (1e12, 0.48), (1e13, 0.50)],
        ),
    ],
    memory: MEMORY,
};
const ADA: Curves = Curves {
    compute: &[
        products(&[(1e8, 0.06), (1e9, 0.30), (1e10, 0.58), (1e11, 0.66), (1e12, 0.68)]),
        attention(Direction::Forward, &[(1e9, 0.15), (1e10, 0.38), (1e11, 0.50), (1e12, 0.54)]),
        attention(Direction::Backward, &[(1e9, 0.12), (1e10, 0.30), (1e11, 0.40), (1e12, 0.44)]),
    ],
    memory: MEMORY,
};
const HOPPER: Curves = Curves {
    compute: &[
        products(&[(1e8, 0.02), (1e9, 0.15), (1e10, 0.40), (1e11, 0.58), (1e12, 0.66), (1e13, 0.68)]),
        attention(Direction::Forward, &[(1e9, 0.06), (1e10, 0.20), (1e11, 0.34), (1e12, 0.40), (1e13, 0.42)]),
        attention(
            Direction::Backward,
            &[(1e9, 0.05), (1e10, 0.16), (1e11, 0.27), (1e12, 0.33), (1e13, 0.35)],
        ),
    ],
    memory: MEMORY,
};
const BLACKWELL: Curves = Curves {
    compute: &[
        products(&[(1e8, 0.01), (1e9, 0.09), (1e10, 0.28), (1e11, 0.50), (1e12, 0.66), (1e13, 0.70)]),
        attention(Direction::Forward, &[(1e9, 0.03), (1e10, 0.12), (1e11, 0.24), (1e12, 0.32), (1e13, 0.34)]),
        attention(
            Direction::Backward,
            &[(1e9, 0.025), (1e10, 0.09), (1e11, 0.18), (1e12, 0.25), (1e13, 0.27)],
        ),
    ],
    memory: MEMORY,
};

impl Curves {
    /// Those of a GPU with so many TFLOP/s in half.
    pub(crate) fn of_card(generation: Generation, half: f64) -> Self {
        match generation {
            Generation::Blackwell => BLACKWELL,
            // Of a Hopper with so little compute, H20, products reach as much as those of an Ampere.
            Generation::Hopper if half < 300.0 => AMPERE,
            Generation::Hopper => HOPPER,
            Generation::Ada => ADA,
            Generation::Ampere => AMPERE,
            Generation::Turing | Generation::Volta => VOLTA,
        }
    }

    /// What of its peak and of its bandwidth the best of all kernels reaches; nothing is said without curves.
    pub(crate) fn best(&self) -> Option<(f64, f64)> {
        let most = |curves: &[Efficiency]| {
            curves.iter().flat_map(|it| it.shares).map(|(_, share)| *share).reduce(f64::max)
        };
        most(self.compute).zip(most(self.memory))
    }

    /// What of the peak some work of these kinds reaches with so many operations, and of the bandwidth with so many bytes.
    pub(crate) fn reached(
        &self,
        kinds: [&str; 2],
        direction: Direction,
        operations: f64,
        bytes: f64,
    ) -> (Option<f64>, Option<f64>) {
        let share_of = |all: &[Efficiency], size: f64| {
            let is = |it: &&Efficiency| {
                kinds.iter().any(|kind| it.kinds.contains(kind))
                    && it.direction.is_none_or(|only| only == direction)
            };
            all.iter().find(is).map(|it| share(it.shares, size))
        };
        (share_of(self.compute, operations), share_of(self.memory, bytes))
    }
}

/// Between two sizes in the logarithms of both; the ends are as they are beyond.
fn share(points: &[(f64, f64)], size: f64) -> f64 {
    let after = points.partition_point(|(other, _)| *other < size);
    let (first, last) = (points[0], points[points.len() - 1]);
    if after == 0 {
        return first.1;
    }
    if after == points.len() {
        return last.1;
    }
    let ((low, before), (high, behind)) = (points[after - 1], points[after]);
    before * (behind / before).powf((size / low).ln() / (high / low).ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_kernel_reaches_no_less() {
        for curves in [VOLTA, AMPERE, ADA, HOPPER, BLACKWELL] {
            for it in curves.compute.iter().chain(curves.memory) {
                assert!(it.shares.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1));
                assert!(it.shares.iter().all(|(_, share)| 0.0 < *share && *share < 1.0));
            }
            let (compute, memory) = curves.best().expect("it has curves");
            assert!(compute <= 0.9 && memory <= 0.9);
        }
    }

    #[test]
    fn a_larger_kernel_takes_no_less_time() {
        for curves in [VOLTA, AMPERE, ADA, HOPPER, BLACKWELL] {
            for it in curves.compute.iter().chain(curves.memory) {
                let seconds = |size: f64| size / share(it.shares, size);
                let sizes: Vec<f64> = (0..800).map(|at| 1e6 * 10_f64.powf(f64::from(at) / 100.0)).collect();
                assert!(sizes.windows(2).all(|two| seconds(two[0]) <= seconds(two[1])), "{it:?}");
            }
        }
    }
}
