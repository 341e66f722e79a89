//! GPUs by the name that their driver has for them, as their makers describe them.

use graph::Dtype;

use crate::efficiency::{Curves, Generation};
use crate::presets::{Bus, CARDS, Card};
use crate::{Device, Link, Runtime, link};

const GIGA: f64 = 1e9;
const TERA: f64 = 1e12;
const MICRO: f64 = 1e-6;

/// What Python takes around a call of emitted code, each operator in it, and each whose weight gradient is later.
const ON_GPUS: Runtime = Runtime {
    step: 0.0,
    call: 45.0 * MICRO,
    wake: 0.0,
    apart: 40.0 * MICRO,
    hidden: 1.0,
    launch: Some(6.0 * MICRO),
};

/// The names of all.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    CARDS.iter().map(|card| card.name)
}

/// Bytes of a GPU that a model may have, of all that its driver counts: not those of CUDA's context, of cuBLAS and NCCL, nor
/// those between tensors.
pub(crate) fn left(memory: u64) -> u64 {
    (0.95 * memory as f64 - 1.2 * GIGA).max(0.0) as u64
}

pub(crate) fn device(name: &str) -> Option<Device> {
    let card = CARDS.iter().find(|card| card.name == name)?;
    let (double, single, half, bf16) = card.peak;
    let curves = Curves::of_card(card.generation, half);
    let mut peak = vec![(Dtype::F64, double), (Dtype::F32, single), (Dtype::F16, half)];
    peak.extend(bf16.then_some((Dtype::Bf16, half)));
    Some(Device {
        name: name.into(),
        memory: card.memory.0 * 1_000_000_000,
        bandwidth: card.memory.1 * TERA,
        peak: peak.into_iter().map(|(dtype, rate)| (dtype, rate * TERA)).collect(),
        overhead: 4.0 * MICRO,
        reached: curves.best().unwrap_or((0.8, 0.9)),
        curves,
        host: card.host.0 * GIGA,
        host_memory: card.host.1 * 1_000_000_000,
        host_bandwidth: card.host.2 * GIGA,
        measured: vec![],
        runtime: Runtime { hidden: hidden(card), ..ON_GPUS },
    })
}

/// What of a message does not slow what is computed meanwhile: NCCL's kernels have so many of the multiprocessors for
/// themselves.
fn hidden(card: &Card) -> f64 {
    let (busy, all) = match (card.bus, card.generation) {
        (Bus::Nvlink(..), Generation::Ampere) => (24.0, 108.0),
        (Bus::Nvlink(..), Generation::Volta) => (12.0, 80.0),
        (Bus::Nvlink(..), _) => (16.0, 132.0),
        (Bus::Pcie | Bus::Host(_), _) => (4.0, 80.0),
    };
    1.0 - busy / all
}

/// The link between the devices of a node; of what is no GPU there is none.
pub(crate) fn link_of(name: &str) -> Option<Link> {
    CARDS.iter().find(|card| card.name == name).map(link_of_card)
}

fn link_of_card(card: &Card) -> Link {
    match card.bus {
        Bus::Nvlink(bandwidth, sums) => link::nvlink(bandwidth, sums),
        Bus::Pcie => link::pcie(),
        Bus::Host(bus) => link::over_host(bus),
    }
}

/// What the maker says of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Gpu {
    pub name: &'static str,
    pub generation: Generation,
    /// Bytes that a model may have, and bytes a second.
    pub memory: f64,
    pub bandwidth: f64,
    /// Operations a second in half.
    pub half: f64,
    /// The link between devices of a node, and its bytes a second each way.
    pub link: &'static str,
    pub link_bandwidth: f64,
}

/// All that have names.
pub fn gpus() -> impl Iterator<Item = Gpu> {
    CARDS.iter().map(|card| Gpu {
        name: card.name,
        generation: card.generation,
        memory: card.memory.0 as f64 * GIGA,
        bandwidth: card.memory.1 * TERA,
        half: card.peak.2 * TERA,
        link: match card.bus {
            Bus::Nvlink(..) => "NVLink",
            Bus::Pcie => "PCIe",
            Bus::Host(_) => "through the host",
        },
        link_bandwidth: link_of_card(card).bandwidth,
    })
}

/// A GPU as its driver describes it.
pub struct Driver {
    pub name: String,
    /// Bytes.
    pub memory: u64,
    pub multiprocessors: u32,
    /// Its compute capability.
    pub capability: (u32, u32),
    /// Hertz.
    pub clock: Option<f64>,
    /// Bytes a second.
    pub bandwidth: Option<f64>,
}

/// What the catalog calls a GPU, of which this is all: a part of one computes less than its name says.
pub fn known(driver: &Driver) -> Option<&'static str> {
    let upper = driver.name.to_uppercase();
    let words: Vec<&str> = upper.split([' ', '-']).collect();
    if words.contains(&"MIG") || words.contains(&"LAPTOP") {
        return None;
    }
    let has = |all: &&str| all.split(' ').all(|word| words.contains(&word));
    CARDS.iter().find(|card| card.words.iter().any(has)).map(|card| card.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_names_each_card_by_its_words() {
        for card in CARDS {
            for words in card.words {
                let name = format!("NVIDIA {words}");
                let driver = Driver {
                    name: name.clone(),
                    memory: 1 << 40,
                    multiprocessors: 1,
                    capability: (9, 0),
                    clock: None,
                    bandwidth: None,
                };
                assert_eq!(known(&driver), Some(card.name), "{name}");
            }
        }
    }

    #[test]
    fn a_name_is_of_one_card_whose_figures_are_above_zero() {
        for gpu in gpus() {
            assert_eq!(CARDS.iter().filter(|card| card.name == gpu.name).count(), 1, "{gpu:?}");
            let figures = [gpu.memory, gpu.bandwidth, gpu.half, gpu.link_bandwidth];
            assert!(figures.iter().all(|it| *it > 1e9), "{gpu:?}");
            let card = CARDS.iter().find(|card| card.name == gpu.name).expect("it is there");
            assert!(card.peak.0 <= card.peak.1 && card.peak.1 < card.peak.2, "{gpu:?}: wider is no quicker");
        }
    }
}
