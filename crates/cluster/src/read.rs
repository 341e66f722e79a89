//! Reads a cluster's file. Every error has its line and column.

use std::collections::BTreeMap;
use std::ops::Range;

use diag::Result;
use graph::Dtype;
use serde::Deserialize;
use toml::Spanned;

use crate::quantity::Unit;
use crate::read_measured::{WrittenMessages, WrittenOperators, WrittenRuntime};
use crate::reader::{ClusterReader, Written};
use crate::{Cluster, Curves, Device, Link, Node, Origin, Runtime, catalog};

/// More devices than any cluster has.
const MOST: u64 = 1 << 20;

/// Where it is not said, a device has so many times its own memory on its host.
const HOST_TIMES: f64 = 2.0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<String>,
    nodes: Spanned<Vec<Spanned<WrittenNode>>>,
    network: Option<WrittenLink>,
    #[serde(default)]
    devices: BTreeMap<String, Spanned<WrittenDevice>>,
    profile: Option<WrittenOrigin>,
}

/// Where measured figures are from.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenOrigin {
    device: String,
    torch: String,
    threads: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenNode {
    count: Option<Spanned<i64>>,
    devices: Spanned<Devices>,
    link: Option<WrittenLink>,
}

/// `"h100:8"`, or several such.
#[derive(Deserialize)]
#[serde(untagged)]
enum Devices {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLink {
    bandwidth: Spanned<Written>,
    latency: Option<Spanned<Written>>,
    start: Option<Spanned<Written>>,
    reached: Option<Spanned<Written>>,
    #[serde(default)]
    shared: bool,
    #[serde(default)]
    sums: bool,
    #[serde(default)]
    collectives: Vec<Spanned<WrittenMessages>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenDevice {
    /// A device of the catalog, of which only some things are different.
    like: Option<Spanned<String>>,
    memory: Option<Spanned<Written>>,
    bandwidth: Option<Spanned<Written>>,
    peak: Option<BTreeMap<String, Spanned<Written>>>,
    overhead: Option<Spanned<Written>>,
    compute_reached: Option<Spanned<Written>>,
    memory_reached: Option<Spanned<Written>>,
    host: Option<Spanned<Written>>,
    host_memory: Option<Spanned<Written>>,
    host_bandwidth: Option<Spanned<Written>>,
    #[serde(default)]
    operators: Vec<Spanned<WrittenOperators>>,
    runtime: Option<WrittenRuntime>,
}

/// Reads a file's text; `file` is what it is called in errors.
pub fn read(text: &str, file: &str) -> Result<Cluster> {
    let reader = ClusterReader { text, file };
    let description: File = toml::from_str(text).map_err(|error| {
        let place = error.span().unwrap_or(0..0);
        reader.refuse(place, "it is not a description of a cluster", error.message().trim())
    })?;
    reader.cluster(description)
}

impl Devices {
    fn listed(&self) -> &[String] {
        match self {
            Devices::One(text) => std::slice::from_ref(text),
            Devices::Several(list) => list,
        }
    }
}

impl ClusterReader<'_> {
    fn cluster(&self, description: File) -> Result<Cluster> {
        let mut kinds: Vec<Device> = vec![];
        for (name, written) in &description.devices {
            kinds.push(self.device(name, written)?);
        }
        let mut nodes = vec![];
        for node in description.nodes.get_ref() {
            let written = node.get_ref();
            let node = self.node(written, &mut kinds)?;
            let count =
                written.count.as_ref().map_or(Ok(1), |count| self.count(*count.get_ref(), count.span()))?;
            let all = nodes.len() as u64 + count;
            if all * node.devices.len() as u64 > MOST {
                let span = written.count.as_ref().map_or(0..0, Spanned::span);
                return Err(self.refuse(
                    span,
                    "there are more devices than any cluster has",
                    "at most 1,048,576",
                ));
            }
            nodes.extend(std::iter::repeat_n(node, usize::try_from(count).unwrap_or(0)));
        }
        if nodes.is_empty() {
            return Err(self.refuse(
                description.nodes.span(),
                "there is no node",
                "a cluster has at least one",
            ));
        }
        let network = match &description.network {
            Some(link) => self.link(link, &catalog::link_of("network"))?,
            None if nodes.len() == 1 => nodes[0].link.clone(),
            None => {
                let what = "there is no [network]";
                return Err(self.refuse(
                    description.nodes.span(),
                    what,
                    "several nodes are connected by one",
                ));
            }
        };
        let name = description.name.unwrap_or_else(|| self.file.to_owned());
        let origin =
            description.profile.map(|it| Origin { device: it.device, torch: it.torch, threads: it.threads });
        Ok(Cluster { origin, ..Cluster::new(name, kinds, nodes, network) })
    }

    fn node(&self, written: &WrittenNode, kinds: &mut Vec<Device>) -> Result<Node> {
        let span = || written.devices.span();
        let mut devices = vec![];
        for text in written.devices.get_ref().listed() {
            let (name, count) = text.split_once(':').unwrap_or((text, "1"));
            let count = count.trim().parse().map_err(|_| {
                self.refuse(
                    span(),
                    &format!("{text:?} names no devices"),
                    "write a kind and how many, such as \"h100:8\"",
                )
            })?;
            let count = self.count(count, span())?;
            let kind = self.kind(name.trim(), span(), kinds)?;
            devices.extend(std::iter::repeat_n(kind, usize::try_from(count).unwrap_or(0)));
        }
        let Some(first) = devices.first() else {
            return Err(self.refuse(span(), "a node has no devices", "each has at least one"));
        };
        let usual = catalog::link_of(&kinds[*first].name);
        let link = written.link.as_ref().map_or(Ok(usual.clone()), |link| self.link(link, &usual))?;
        Ok(Node { devices, link })
    }

    /// The number of a kind of devices, which the file describes or the catalog has.
    fn kind(&self, name: &str, span: Range<usize>, kinds: &mut Vec<Device>) -> Result<usize> {
        if let Some(known) = kinds.iter().position(|kind| kind.name == name) {
            return Ok(known);
        }
        kinds.push(self.of_catalog(name, span)?);
        Ok(kinds.len() - 1)
    }

    fn device(&self, name: &str, written: &Spanned<WrittenDevice>) -> Result<Device> {
        let (span, it) = (written.span(), written.get_ref());
        let like = match &it.like {
            Some(like) => Some(self.of_catalog(like.get_ref(), like.span())?),
            None => catalog::device(name),
        };
        let number = |written: &Option<Spanned<Written>>, unit: Unit, usual: Option<f64>, what: &str| match (
            written, usual,
        ) {
            (Some(written), _) => self.number(written, unit),
            (None, Some(usual)) => Ok(usual),
            (None, None) => {
                let why =
                    format!("it is {}; or say `like = \"h100\"`, and give what differs", unit.expected());
                Err(self.refuse(span.clone(), &format!("the device {name:?} has no `{what}`"), &why))
            }
        };
        let default_of = |get: fn(&Device) -> f64| like.as_ref().map(get);
        let share = |written, usual: fn(&Device) -> f64| {
            number(written, Unit::Share, default_of(usual).or(Some(0.8)), "")
        };
        let memory = number(&it.memory, Unit::Bytes, default_of(|d| d.memory as f64), "memory")?;
        let host_memory = default_of(|d| d.host_memory as f64).or(Some(HOST_TIMES * memory));
        let host = number(&it.host, Unit::BytesPerSecond, default_of(|d| d.host).or(Some(25e9)), "host")?;
        let host_bandwidth = default_of(|d| d.host_bandwidth).or(Some(host));
        Ok(Device {
            name: name.to_owned(),
            memory: memory as u64,
            bandwidth: number(&it.bandwidth, Unit::BytesPerSecond, default_of(|d| d.bandwidth), "bandwidth")?,
            peak: self.peak(name, it, like.as_ref(), span.clone())?,
            overhead: number(
                &it.overhead,
                Unit::Seconds,
                default_of(|d| d.overhead).or(Some(4e-6)),
                "overhead",
            )?,
            reached: (
                share(&it.compute_reached, |d| d.reached.0)?,
                share(&it.memory_reached, |d| d.reached.1)?,
            ),
            curves: self.curves(it, like.as_ref()),
            host,
            host_memory: number(&it.host_memory, Unit::Bytes, host_memory, "host_memory")? as u64,
            host_bandwidth: number(
                &it.host_bandwidth,
                Unit::BytesPerSecond,
                host_bandwidth,
                "host_bandwidth",
            )?,
            measured: it.operators.iter().map(|it| self.operators(it)).collect::<Result<_>>()?,
            runtime: match &it.runtime {
                Some(it) => self.runtime(it)?,
                None => like.as_ref().map_or(Runtime::default(), |like| like.runtime),
            },
        })
    }

    /// Those of the device that it is like, unless it says itself what it reaches.
    fn curves(&self, written: &WrittenDevice, like: Option<&Device>) -> Curves {
        let says = written.compute_reached.is_some() || written.memory_reached.is_some();
        like.filter(|_| !says).map_or(Curves::default(), |like| like.curves)
    }

    fn peak(
        &self,
        name: &str,
        written: &WrittenDevice,
        like: Option<&Device>,
        span: Range<usize>,
    ) -> Result<Vec<(Dtype, f64)>> {
        let Some(given) = &written.peak else {
            let why = "it is FLOP/s by dtype, such as { bf16 = \"989 TFLOP/s\", f32 = \"67 TFLOP/s\" }";
            let none = || self.refuse(span, &format!("the device {name:?} has no `peak`"), why);
            return like.map(|like| like.peak.clone()).ok_or_else(none);
        };
        let mut peak = vec![];
        for (dtype, rate) in given {
            peak.push((self.dtype(dtype, rate.span())?, self.number(rate, Unit::OperationsPerSecond)?));
        }
        if peak.is_empty() {
            return Err(self.refuse(
                span,
                &format!("the device {name:?} computes nothing"),
                "its `peak` is empty",
            ));
        }
        Ok(peak)
    }

    fn link(&self, written: &WrittenLink, usual: &Link) -> Result<Link> {
        let number = |written: &Option<Spanned<Written>>, unit: Unit, usual: f64| {
            written.as_ref().map_or(Ok(usual), |written| self.number(written, unit))
        };
        let latency = number(&written.latency, Unit::Seconds, usual.latency)?;
        Ok(Link {
            bandwidth: self.number(&written.bandwidth, Unit::BytesPerSecond)?,
            latency,
            start: number(&written.start, Unit::Seconds, usual.start)?,
            reached: number(&written.reached, Unit::Share, usual.reached)?,
            shared: written.shared,
            sums: written.sums,
            measured: written.collectives.iter().map(|it| self.messages(it)).collect::<Result<_>>()?,
        })
    }

    fn count(&self, count: i64, span: Range<usize>) -> Result<u64> {
        let refuse =
            || self.refuse(span, &format!("{count} is not a number of devices or nodes"), "it is at least 1");
        u64::try_from(count).ok().filter(|count| (1..=MOST).contains(count)).ok_or_else(refuse)
    }

    fn of_catalog(&self, name: &str, span: Range<usize>) -> Result<Device> {
        let known = catalog::devices().collect::<Vec<_>>().join(", ");
        let why = format!("describe it under [devices.{name}], or name one of {known}");
        catalog::device(name).ok_or_else(|| self.refuse(span, &format!("there is no device {name:?}"), &why))
    }
}
