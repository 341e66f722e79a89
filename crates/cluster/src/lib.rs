//! Devices, the links between them, and how long they need for work and messages.
//!
//! A cluster is a file (TOML) or a short name (`dgx-h100:8x4`). Its devices are numbered node by node, and rank i of
//! a program runs on device i. What is read is valid: every rate is above zero, every node has a device.
//!
//! It knows no program, no plan and no operator: [`Device::seconds`] is told how many operations and bytes some work
//! has, [`Cluster::collective`] which devices exchange how much. Formulas and their calibration are in
//! `docs/explanation/cost-model.md`.

mod cards;
mod catalog;
mod collective;
mod device;
mod efficiency;
mod faster;
mod here;
mod link;
mod measured;
mod presets;
mod quantity;
mod read;
mod read_measured;
mod reader;
mod text;
mod work;

pub use ::collective::Collective;
pub use cards::{Driver, Gpu, gpus, known};
pub use catalog::{devices, examples, named};
pub use collective::Contention;
pub use device::Device;
pub use efficiency::{Curves, Generation};
pub use faster::{Faster, Slower};
pub use here::{Here, here};
pub use link::Link;
pub use measured::{Curve, Messages, Operators, Origin, Runtime};
pub use quantity::Unit;
pub use read::read;
pub use work::{COPIES, Direction, OpCost, Sort};

/// Nodes of devices, and the network between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    pub name: String,
    /// The kinds of devices that there are.
    pub kinds: Vec<Device>,
    pub nodes: Vec<Node>,
    pub network: Link,
    /// Of figures that were measured.
    pub origin: Option<Origin>,
    /// The node of each device, and its kind.
    places: Vec<(usize, usize)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The kind of each of its devices: an index into [`Cluster::kinds`].
    pub devices: Vec<usize>,
    /// Between its devices.
    pub link: Link,
}

impl Cluster {
    pub fn new(name: String, kinds: Vec<Device>, nodes: Vec<Node>, network: Link) -> Self {
        let places = nodes.iter().enumerate();
        let places = places.flat_map(|(at, node)| node.devices.iter().map(move |kind| (at, *kind))).collect();
        Self { name, kinds, nodes, network, origin: None, places }
    }

    /// How many devices it has.
    pub fn devices(&self) -> u32 {
        u32::try_from(self.places.len()).unwrap_or(u32::MAX)
    }

    pub fn device(&self, at: u32) -> &Device {
        &self.kinds[self.places[at as usize].1]
    }

    /// On how many lines collectives of its first devices may go at once: inside of nodes, and between them.
    pub fn lines(&self, devices: u32) -> u32 {
        let mut nodes: Vec<usize> = (0..devices.min(self.devices())).map(|at| self.node(at)).collect();
        nodes.dedup();
        if nodes.len() > 1 && nodes.len() < devices as usize { 2 } else { 1 }
    }

    /// The node that a device is in.
    pub fn node(&self, at: u32) -> usize {
        self.places[at as usize].0
    }
}
