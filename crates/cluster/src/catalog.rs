//! Devices and clusters that have names.

use diag::{Error, Result};
use graph::Dtype;

use crate::link::{network, pcie, shared};
use crate::presets::{Network, PRESETS, Preset};
use crate::{Cluster, Curves, Device, Link, Node, Runtime, cards};

const GIGA: f64 = 1e9;
const TERA: f64 = 1e12;
const MICRO: f64 = 1e-6;

/// Gbit/s of a node of devices that are named alone.
const PLAIN: f64 = 100.0;

/// Names that show how clusters are named, each with what it is: one of each kind of nodes that has a name, and some
/// of devices.
pub fn examples() -> Vec<(String, String)> {
    let some = [
        ("h200:1", "one node with so many devices of a kind"),
        ("l4:8x2", "nodes of a kind of devices, with 100 Gbit/s of network for a node"),
        ("cpu:4", "processes on this machine; measure it with `shardwright profile`"),
    ];
    let some = some.map(|(name, about)| (name.to_owned(), about.to_owned()));
    PRESETS.iter().map(|it| (format!("{}:{}", it.name, it.size), about(it))).chain(some).collect()
}

fn about(preset: &Preset) -> String {
    let (rate, whose) = match preset.network {
        Network::Each(rate) => (rate, "each device"),
        Network::Node(rate) => (rate, "a node"),
    };
    format!("{}, {rate} Gbit/s of network for {whose}", preset.about)
}

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
    let preset = PRESETS.iter().find(|it| it.name == name);
    let is_device = || devices().any(|device| device == name);
    let (device, network) = match preset.map(|it| (it.device, it.network)) {
        Some((device, Network::Each(rate))) => (device, network(rate, false)),
        Some((device, Network::Node(rate))) => (device, network(rate, true)),
        None if is_device() => (name, network(PLAIN, true)),
        None => return Err(unknown(text)),
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
    let known: Vec<String> = examples().into_iter().map(|(name, _)| name).collect();
    Error::new("SW0900", format!("there is no cluster {text:?}"))
        .why("it is neither a file nor a known name")
        .fix(format!(
            "name a TOML file, or one such as {}; `shardwright clusters` lists them",
            known.join(", ")
        ))
}
