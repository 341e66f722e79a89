//! Devices and clusters that have names.

use diag::{Error, Result};
use graph::Dtype;

use crate::link::{network, pcie, shared};
use crate::{Cluster, Curves, Device, Link, Node, Runtime, cards};

/// Clusters by name, as they are written: devices of a node, and how many nodes.
pub const NAMES: [(&str, &str); 10] = [
    ("dgx-h100:8x4", "nodes of H100 on NVSwitch, 400 Gbit/s of network for each device"),
    ("dgx-h200:8x4", "nodes of H200 on NVSwitch, 400 Gbit/s of network for each device"),
    ("dgx-b200:8x4", "nodes of B200 on NVSwitch, 400 Gbit/s of network for each device"),
    ("dgx-b300:8x4", "nodes of B300 on NVSwitch, 800 Gbit/s of network for each device"),
    ("dgx-a100:8x2", "nodes of A100 80 GB on NVSwitch, 200 Gbit/s of network for each device"),
    ("dgx-v100:16x2", "nodes of V100 32 GB on NVLink, 100 Gbit/s of network for a node"),
    ("h200:1", "one node with that many devices of a kind: v100, a100, h100, b200, l40s and others"),
    ("ethernet-25g:4x8", "nodes of A100 40 GB on PCIe, 25 Gbit/s of network for a node"),
    ("l4:8x2", "nodes of L4, which communicate over their host; 100 Gbit/s of network for a node"),
    ("cpu:4", "processes on this machine; measure it with `shardwright profile`"),
];

const GIGA: f64 = 1e9;
const TERA: f64 = 1e12;
const MICRO: f64 = 1e-6;

/// A device by its name.
pub(crate) fn device(name: &str) -> Option<Device> {
    if name != "cpu" {
        return cards::device(name);
    }
    Some(Device {
        name: name.into(),
        memory: 8_000_000_000,
        bandwidth: 8.0 * GIGA,
        peak: vec![(Dtype::F64, 0.02 * TERA), (Dtype::F32, 0.04 * TERA)],
        overhead: 6.0 * MICRO,
        reached: (0.8, 0.8),
        curves: Curves::default(),
        host: 5.0 * GIGA,
        host_memory: 8_000_000_000,
        host_bandwidth: 6.4 * GIGA,
        measured: vec![],
        runtime: Runtime::default(),
    })
}

/// The names of all devices that need no description.
pub fn devices() -> impl Iterator<Item = &'static str> {
    cards::names().chain(["cpu"])
}

/// The link between devices of a kind in one node.
pub(crate) fn link_of(device: &str) -> Link {
    match device {
        "cpu" => Link { latency: 60.0 * MICRO, start: 120.0 * MICRO, ..shared(2.0) },
        _ => cards::link_of(device).unwrap_or_else(pcie),
    }
}

/// A cluster by its name: `dgx-h100:8x4`, `h200:1`.
pub fn named(text: &str) -> Result<Cluster> {
    let (name, size) = text.split_once(':').unwrap_or((text, ""));
    let (device, network) = match name {
        "dgx-h100" => ("h100", network(400.0, false)),
        "dgx-h200" => ("h200", network(400.0, false)),
        "dgx-b200" => ("b200", network(400.0, false)),
        "dgx-b300" => ("b300", network(800.0, false)),
        "dgx-a100" => ("a100", network(200.0, false)),
        "dgx-v100" => ("v100", network(100.0, true)),
        "ethernet-25g" => ("a100-40g", network(25.0, true)),
        other if devices().any(|known| known == other) => (other, network(100.0, true)),
        _ => return Err(unknown(text)),
    };
    let (devices, nodes) = size_of(text, size)?;
    let kind = device_of_catalog(device)?;
    let node = Node { devices: vec![0; devices as usize], link: link_of(device) };
    Ok(Cluster::new(text.into(), vec![kind], vec![node; nodes as usize], network))
}

fn device_of_catalog(name: &str) -> Result<Device> {
    device(name).ok_or_else(|| unknown(name))
}

/// `8x4` are four nodes of eight.
fn size_of(text: &str, size: &str) -> Result<(u32, u32)> {
    let (devices, nodes) = size.split_once('x').unwrap_or((size, "1"));
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| (1..=1 << 16).contains(number));
    number(devices)
        .zip(number(nodes))
        .filter(|(a, b)| a.checked_mul(*b).is_some_and(|all| all <= 1 << 20))
        .ok_or_else(|| {
            Error::new("SW0901", format!("{text:?} does not say how many devices there are"))
                .why(
                    "after the colon comes the number of devices in a node, then the number of nodes: at \
                      least one of each",
                )
                .fix("write it as `dgx-h100:8x4`, or as `h200:1` for one node")
        })
}

fn unknown(text: &str) -> Error {
    let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
    Error::new("SW0900", format!("there is no cluster {text:?}"))
        .why("it is neither a file nor a known name")
        .fix(format!("name a TOML file, or one such as {}", known.join(", ")))
}
