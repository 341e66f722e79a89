//! Devices and clusters that have names.

use diag::{Error, Result};
use graph::Dtype;

use crate::{Cluster, Device, Link, Node, Runtime};

/// The names of the devices that need no description.
pub const DEVICES: [&str; 7] = ["v100", "a100", "a100-40g", "h100", "h200", "l4", "cpu"];

/// Clusters by name, as they are written: devices of a node, and how many nodes.
pub const NAMES: [(&str, &str); 8] = [
    ("dgx-h100:8x4", "nodes of H100 on NVSwitch, 400 Gbit/s of network for each device"),
    ("dgx-h200:8x4", "nodes of H200 on NVSwitch, 400 Gbit/s of network for each device"),
    ("dgx-a100:8x2", "nodes of A100 80 GB on NVSwitch, 200 Gbit/s of network for each device"),
    ("dgx-v100:16x2", "nodes of V100 32 GB on NVLink, 100 Gbit/s of network for a node"),
    ("h200:1", "so many devices of a kind in one node: v100, a100, h100, h200, l4"),
    ("ethernet-25g:4x8", "nodes of A100 40 GB on PCIe, 25 Gbit/s of network for a node"),
    ("l4:8x2", "nodes of L4 on PCIe, 100 Gbit/s of network for a node"),
    ("cpu:4", "processes of this machine; profile it to know more"),
];

const GIGA: f64 = 1e9;
const TERA: f64 = 1e12;
const MICRO: f64 = 1e-6;

/// A device by its name.
pub(crate) fn device(name: &str) -> Option<Device> {
    // Of the memory of a server's sockets each of its devices has a part.
    let gpu = |memory: u64, bandwidth: f64, peak: &[(Dtype, f64)], host: (f64, u64, f64)| Device {
        name: name.into(),
        memory: memory * 1_000_000_000,
        bandwidth: bandwidth * TERA,
        peak: peak.iter().map(|(dtype, rate)| (*dtype, rate * TERA)).collect(),
        overhead: 4.0 * MICRO,
        reached: (0.8, 0.9),
        host: host.0 * GIGA,
        host_memory: host.1 * 1_000_000_000,
        host_bandwidth: host.2 * GIGA,
        measured: vec![],
        runtime: Runtime::default(),
    };
    let (f64_, f32_, f16, bf16) = (Dtype::F64, Dtype::F32, Dtype::F16, Dtype::Bf16);
    Some(match name {
        "v100" => gpu(32, 0.9, &[(f64_, 7.8), (f32_, 15.7), (f16, 125.0)], (12.0, 96, 12.0)),
        "a100" => gpu(80, 2.0, &[(f64_, 19.5), (f32_, 19.5), (f16, 312.0), (bf16, 312.0)], (25.0, 256, 40.0)),
        "a100-40g" => {
            gpu(40, 1.555, &[(f64_, 19.5), (f32_, 19.5), (f16, 312.0), (bf16, 312.0)], (25.0, 128, 40.0))
        }
        "h100" => {
            gpu(80, 3.35, &[(f64_, 67.0), (f32_, 67.0), (f16, 989.0), (bf16, 989.0)], (50.0, 256, 60.0))
        }
        "h200" => {
            gpu(141, 4.8, &[(f64_, 67.0), (f32_, 67.0), (f16, 989.0), (bf16, 989.0)], (50.0, 256, 60.0))
        }
        "l4" => gpu(24, 0.3, &[(f64_, 0.5), (f32_, 30.0), (f16, 121.0), (bf16, 121.0)], (25.0, 48, 25.0)),
        "cpu" => Device {
            name: name.into(),
            memory: 8_000_000_000,
            bandwidth: 8.0 * GIGA,
            peak: vec![(f64_, 0.02 * TERA), (f32_, 0.04 * TERA)],
            overhead: 6.0 * MICRO,
            reached: (0.8, 0.8),
            host: 5.0 * GIGA,
            host_memory: 8_000_000_000,
            host_bandwidth: 6.4 * GIGA,
            measured: vec![],
            runtime: Runtime::default(),
        },
        _ => return None,
    })
}

/// The link between devices of a kind in one node.
pub(crate) fn link_of(device: &str) -> Link {
    let nvlink = |bandwidth: f64, sums: bool| Link {
        bandwidth: bandwidth * GIGA,
        latency: 3.4 * MICRO,
        start: 8.4 * MICRO,
        reached: 0.77,
        shared: false,
        sums,
        measured: vec![],
    };
    match device {
        "v100" => nvlink(150.0, false),
        "a100" => nvlink(300.0, false),
        "h100" | "h200" => nvlink(450.0, true),
        "cpu" => Link { latency: 60.0 * MICRO, start: 120.0 * MICRO, ..shared(2.0) },
        _ => Link { latency: 5.0 * MICRO, ..shared(25.0) },
    }
}

/// A network of so many Gbit/s.
fn network(gigabits: f64, shared: bool) -> Link {
    Link {
        bandwidth: gigabits / 8.0 * GIGA,
        latency: 14.0 * MICRO,
        start: 20.0 * MICRO,
        reached: 0.85,
        shared,
        sums: false,
        measured: vec![],
    }
}

/// What the devices of a node have together.
fn shared(gigabytes: f64) -> Link {
    Link { shared: true, ..network(gigabytes * 8.0, true) }
}

/// A cluster by its name: `dgx-h100:8x4`, `h200:1`.
pub fn named(text: &str) -> Result<Cluster> {
    let (name, size) = text.split_once(':').unwrap_or((text, ""));
    let (device, network) = match name {
        "dgx-h100" => ("h100", network(400.0, false)),
        "dgx-h200" => ("h200", network(400.0, false)),
        "dgx-a100" => ("a100", network(200.0, false)),
        "dgx-v100" => ("v100", network(100.0, true)),
        "ethernet-25g" => ("a100-40g", network(25.0, true)),
        other if DEVICES.contains(&other) => (other, network(100.0, true)),
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
    number(devices).zip(number(nodes)).filter(|(a, b)| a.checked_mul(*b).is_some_and(|all| all <= 1 << 20)).ok_or_else(
        || {
            Error::new("SW0901", format!("{text:?} does not say how many devices there are"))
                .why("behind the colon is how many devices a node has, and how many nodes there are: at least one of each")
                .fix("write it as `dgx-h100:8x4`, or as `h200:1` for one node")
        },
    )
}

fn unknown(text: &str) -> Error {
    let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
    Error::new("SW0900", format!("there is no cluster {text:?}"))
        .why("it is neither a file nor a name that is known")
        .fix(format!("name a TOML file, or one such as {}", known.join(", ")))
}
