//! GPUs by the name that their driver has for them, as their makers describe them.

use graph::Dtype;

use crate::{Curves, Device, Link, Runtime, link};

const GIGA: f64 = 1e9;
const TERA: f64 = 1e12;
const MICRO: f64 = 1e-6;

/// How the devices of a node are connected.
#[derive(Clone, Copy)]
enum Bus {
    /// GB/s each way of each device, and whether the switch sums.
    Nvlink(f64, bool),
    /// They read and write each other's memory over the bus.
    Pcie,
    /// They have no access to each other's memory. GB/s of their bus.
    Host(f64),
}
use Bus::{Host, Nvlink, Pcie};

struct Card {
    name: &'static str,
    /// Words of the driver's name: all of one of these.
    words: &'static [&'static str],
    /// GB that a model may have ([`left`]), and TB/s.
    memory: (u64, f64),
    /// Dense TFLOP/s in double and single, in half, and whether bf16 is as quick.
    peak: (f64, f64, f64, bool),
    bus: Bus,
    /// GB/s to the host; GB of its memory for each device, and GB/s of that.
    host: (f64, u64, f64),
}

const SMALL: (f64, u64, f64) = (25.0, 48, 25.0);
const USUAL: (f64, u64, f64) = (25.0, 256, 40.0);
const FIFTH: (f64, u64, f64) = (50.0, 256, 60.0);
const GRACE: (f64, u64, f64) = (400.0, 240, 250.0);

const fn card(
    name: &'static str,
    words: &'static [&'static str],
    memory: (u64, f64),
    peak: (f64, f64, f64, bool),
    bus: Bus,
    host: (f64, u64, f64),
) -> Card {
    Card { name, words, memory, peak, bus, host }
}

/// What has more words stands before what has fewer of the same.
#[rustfmt::skip]
const CARDS: [Card; 29] = [
    card("gb300", &["GB300"], (277, 8.0), (1.3, 80.0, 2500.0, true), Nvlink(900.0, true), GRACE),
    card("b300", &["B300"], (268, 8.0), (1.3, 75.0, 2250.0, true), Nvlink(900.0, true), FIFTH),
    card("gb200", &["GB200"], (185, 8.0), (40.0, 80.0, 2500.0, true), Nvlink(900.0, true), GRACE),
    card("b200", &["B200"], (180, 7.7), (37.0, 75.0, 2250.0, true), Nvlink(900.0, true), FIFTH),
    card("gh200", &["GH200"], (96, 4.0), (67.0, 67.0, 989.0, true), Pcie, GRACE),
    card("h200-nvl", &["H200 NVL"], (141, 4.8), (60.0, 60.0, 835.0, true), Pcie, FIFTH),
    card("h200", &["H200"], (141, 4.8), (67.0, 67.0, 989.0, true), Nvlink(450.0, true), FIFTH),
    card("h100-nvl", &["H100 NVL"], (94, 3.9), (60.0, 60.0, 835.0, true), Pcie, FIFTH),
    card("h100-pcie", &["H100 PCIE"], (80, 2.0), (51.0, 51.0, 756.0, true), Pcie, FIFTH),
    card("h100", &["H100"], (80, 3.35), (67.0, 67.0, 989.0, true), Nvlink(450.0, true), FIFTH),
    card("h800", &["H800"], (80, 3.35), (1.0, 67.0, 989.0, true), Nvlink(200.0, true), FIFTH),
    card("h20", &["H20"], (96, 4.0), (1.0, 44.0, 148.0, true), Nvlink(450.0, true), FIFTH),
    card("a100-pcie", &["A100 80GB PCIE"], (80, 1.935), (19.5, 19.5, 312.0, true), Pcie, USUAL),
    card("a100-40g-pcie", &["A100 40GB PCIE"], (40, 1.555), (19.5, 19.5, 312.0, true), Pcie, (25.0, 128, 40.0)),
    card("a100-40g", &["A100 40GB"], (40, 1.555), (19.5, 19.5, 312.0, true), Nvlink(300.0, false), (25.0, 128, 40.0)),
    card("a100", &["A100"], (80, 2.0), (19.5, 19.5, 312.0, true), Nvlink(300.0, false), USUAL),
    card("a800", &["A800"], (80, 2.0), (19.5, 19.5, 312.0, true), Nvlink(200.0, false), USUAL),
    card("v100", &["V100", "V100S"], (32, 0.9), (7.8, 15.7, 125.0, false), Nvlink(150.0, false), (12.0, 96, 12.0)),
    card("a30", &["A30"], (23, 0.933), (10.3, 10.3, 165.0, true), Pcie, SMALL),
    card("a40", &["A40"], (44, 0.696), (0.6, 37.4, 150.0, true), Pcie, SMALL),
    card("a10g", &["A10G"], (21, 0.6), (0.5, 31.5, 70.0, true), Host(link::BUS), SMALL),
    card("a10", &["A10"], (21, 0.6), (0.5, 31.2, 125.0, true), Host(link::BUS), SMALL),
    card("l40s", &["L40S"], (44, 0.864), (1.4, 91.6, 362.0, true), Pcie, SMALL),
    card("l40", &["L40"], (44, 0.864), (1.4, 90.5, 181.0, true), Pcie, SMALL),
    card("l4", &["L4"], (21, 0.3), (0.5, 30.0, 121.0, true), Host(link::BUS), SMALL),
    card("t4", &["T4"], (14, 0.32), (0.25, 8.1, 65.0, false), Host(12.0), (12.0, 48, 25.0)),
    card("rtx-pro-6000", &["PRO 6000 BLACKWELL"], (96, 1.79), (2.0, 126.0, 503.0, true), Pcie, FIFTH),
    card("rtx-6000-ada", &["6000 ADA"], (47, 0.96), (1.4, 91.0, 364.0, true), Pcie, SMALL),
    card("rtx-a6000", &["A6000"], (47, 0.768), (0.6, 38.7, 155.0, true), Pcie, SMALL),
];

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
    let curves = Curves::of_card(name);
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
    let (busy, all) = match (card.bus, card.name) {
        (Nvlink(..), "a100" | "a100-40g" | "a800") => (24.0, 108.0),
        (Nvlink(..), "v100") => (12.0, 80.0),
        (Nvlink(..), _) => (16.0, 132.0),
        (Pcie | Host(_), _) => (4.0, 80.0),
    };
    1.0 - busy / all
}

/// The link between the devices of a node; of what is no GPU there is none.
pub(crate) fn link_of(name: &str) -> Option<Link> {
    Some(match CARDS.iter().find(|card| card.name == name)?.bus {
        Nvlink(bandwidth, sums) => link::nvlink(bandwidth, sums),
        Pcie => link::pcie(),
        Host(bus) => link::over_host(bus),
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
