//! GPUs and clusters that have names, a line each. What else is said of them follows from these lines: what commands
//! list and complete, what errors suggest, what tests go through.

use crate::efficiency::Generation::{self, Ada, Ampere, Blackwell, Hopper, Turing, Volta};
use crate::link;

/// How the devices of a node are connected.
#[derive(Clone, Copy)]
pub(crate) enum Bus {
    /// GB/s each way of each device, and whether the switch sums.
    Nvlink(f64, bool),
    /// They read and write each other's memory over the bus.
    Pcie,
    /// They have no access to each other's memory. GB/s of their bus.
    Host(f64),
}
use Bus::{Host, Nvlink, Pcie};

pub(crate) struct Card {
    pub name: &'static str,
    pub generation: Generation,
    /// Words of the driver's name: all of one of these.
    pub words: &'static [&'static str],
    /// GB that a model may have ([`crate::cards::left`]), and TB/s.
    pub memory: (u64, f64),
    /// Dense TFLOP/s in double and single, in half, and whether bf16 is as quick.
    pub peak: (f64, f64, f64, bool),
    pub bus: Bus,
    /// GB/s to the host; GB of its memory for each device, and GB/s of that.
    pub host: (f64, u64, f64),
}

const SMALL: (f64, u64, f64) = (25.0, 48, 25.0);
const USUAL: (f64, u64, f64) = (25.0, 256, 40.0);
const FIFTH: (f64, u64, f64) = (50.0, 256, 60.0);
const GRACE: (f64, u64, f64) = (400.0, 240, 250.0);

const fn card(
    name: &'static str,
    generation: Generation,
    words: &'static [&'static str],
    memory: (u64, f64),
    peak: (f64, f64, f64, bool),
    bus: Bus,
    host: (f64, u64, f64),
) -> Card {
    Card { name, generation, words, memory, peak, bus, host }
}

/// What has more words stands before what has fewer of the same.
#[rustfmt::skip]
pub(crate) const CARDS: &[Card] = &[
    card("gb300", Blackwell, &["GB300"], (277, 8.0), (1.3, 80.0, 2500.0, true), Nvlink(900.0, true), GRACE),
    card("b300", Blackwell, &["B300"], (268, 8.0), (1.3, 75.0, 2250.0, true), Nvlink(900.0, true), FIFTH),
    card("gb200", Blackwell, &["GB200"], (185, 8.0), (40.0, 80.0, 2500.0, true), Nvlink(900.0, true), GRACE),
    card("b200", Blackwell, &["B200"], (180, 7.7), (37.0, 75.0, 2250.0, true), Nvlink(900.0, true), FIFTH),
    card("gh200", Hopper, &["GH200"], (96, 4.0), (67.0, 67.0, 989.0, true), Pcie, GRACE),
    card("h200-nvl", Hopper, &["H200 NVL"], (141, 4.8), (60.0, 60.0, 835.0, true), Pcie, FIFTH),
    card("h200", Hopper, &["H200"], (141, 4.8), (67.0, 67.0, 989.0, true), Nvlink(450.0, true), FIFTH),
    card("h100-nvl", Hopper, &["H100 NVL"], (94, 3.9), (60.0, 60.0, 835.0, true), Pcie, FIFTH),
    card("h100-pcie", Hopper, &["H100 PCIE"], (80, 2.0), (51.0, 51.0, 756.0, true), Pcie, FIFTH),
    card("h100", Hopper, &["H100"], (80, 3.35), (67.0, 67.0, 989.0, true), Nvlink(450.0, true), FIFTH),
    card("h800", Hopper, &["H800"], (80, 3.35), (1.0, 67.0, 989.0, true), Nvlink(200.0, true), FIFTH),
    card("h20", Hopper, &["H20"], (96, 4.0), (1.0, 44.0, 148.0, true), Nvlink(450.0, true), FIFTH),
    card("a100-pcie", Ampere, &["A100 80GB PCIE"], (80, 1.935), (19.5, 19.5, 312.0, true), Pcie, USUAL),
    card("a100-40g-pcie", Ampere, &["A100 40GB PCIE"], (40, 1.555), (19.5, 19.5, 312.0, true), Pcie, (25.0, 128, 40.0)),
    card("a100-40g", Ampere, &["A100 40GB"], (40, 1.555), (19.5, 19.5, 312.0, true), Nvlink(300.0, false), (25.0, 128, 40.0)),
    card("a100", Ampere, &["A100"], (80, 2.0), (19.5, 19.5, 312.0, true), Nvlink(300.0, false), USUAL),
    card("a800", Ampere, &["A800"], (80, 2.0), (19.5, 19.5, 312.0, true), Nvlink(200.0, false), USUAL),
    card("v100", Volta, &["V100", "V100S"], (32, 0.9), (7.8, 15.7, 125.0, false), Nvlink(150.0, false), (12.0, 96, 12.0)),
    card("a30", Ampere, &["A30"], (23, 0.933), (10.3, 10.3, 165.0, true), Pcie, SMALL),
    card("a40", Ampere, &["A40"], (44, 0.696), (0.6, 37.4, 150.0, true), Pcie, SMALL),
    card("a10g", Ampere, &["A10G"], (21, 0.6), (0.5, 31.5, 70.0, true), Host(link::BUS), SMALL),
    card("a10", Ampere, &["A10"], (21, 0.6), (0.5, 31.2, 125.0, true), Host(link::BUS), SMALL),
    card("l40s", Ada, &["L40S"], (44, 0.864), (1.4, 91.6, 362.0, true), Pcie, SMALL),
    card("l40", Ada, &["L40"], (44, 0.864), (1.4, 90.5, 181.0, true), Pcie, SMALL),
    card("l4", Ada, &["L4"], (21, 0.3), (0.5, 30.0, 121.0, true), Host(link::BUS), SMALL),
    card("t4", Turing, &["T4"], (14, 0.32), (0.25, 8.1, 65.0, false), Host(12.0), (12.0, 48, 25.0)),
    card("rtx-pro-6000", Blackwell, &["PRO 6000 BLACKWELL"], (96, 1.79), (2.0, 126.0, 503.0, true), Pcie, FIFTH),
    card("rtx-6000-ada", Ada, &["6000 ADA"], (47, 0.96), (1.4, 91.0, 364.0, true), Pcie, SMALL),
    card("rtx-a6000", Ampere, &["A6000"], (47, 0.768), (0.6, 38.7, 155.0, true), Pcie, SMALL),
];

/// Gbit/s between nodes.
#[derive(Clone, Copy)]
pub(crate) enum Network {
    /// Of each device.
    Each(f64),
    /// Of all devices of a node together.
    Node(f64),
}
use Network::{Each, Node};

/// Nodes of one kind.
pub(crate) struct Preset {
    pub name: &'static str,
    /// A usual size: devices of a node, and nodes.
    pub size: &'static str,
    /// The GPU, by its name.
    pub device: &'static str,
    pub network: Network,
    pub about: &'static str,
}

const fn preset(
    name: &'static str,
    size: &'static str,
    device: &'static str,
    network: Network,
    about: &'static str,
) -> Preset {
    Preset { name, size, device, network, about }
}

/// Named `dgx-` and a GPU, they are also what several nodes of that GPU are taken for.
pub(crate) const PRESETS: &[Preset] = &[
    preset("dgx-h100", "8x4", "h100", Each(400.0), "nodes of H100 on NVSwitch"),
    preset("dgx-h200", "8x4", "h200", Each(400.0), "nodes of H200 on NVSwitch"),
    preset("dgx-b200", "8x4", "b200", Each(400.0), "nodes of B200 on NVSwitch"),
    preset("dgx-b300", "8x4", "b300", Each(800.0), "nodes of B300 on NVSwitch"),
    preset("dgx-a100", "8x2", "a100", Each(200.0), "nodes of A100 80 GB on NVSwitch"),
    preset("dgx-v100", "16x2", "v100", Node(100.0), "nodes of V100 32 GB on NVLink"),
    preset("ethernet-25g", "4x8", "a100-40g", Node(25.0), "nodes of A100 40 GB on PCIe"),
];
