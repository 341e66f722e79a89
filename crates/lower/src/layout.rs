//! Layouts: which shards of a tensor are where.

use std::collections::HashMap;

use graph::{Graph, TensorId};
use indexmap::IndexSet;
use program::RankId;
use rules::{Analysis, Reduction, Region};

graph::id!(
    /// An interned [`Layout`].
    LayoutId
);
graph::id!(
    /// An interned [`Ports`].
    PortsId
);

/// One shard: a region, and which of several partial results it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    pub rank: RankId,
    pub region: Region,
    pub part: u32,
}

/// Shards in the order of ranks; no two are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    pub entries: Vec<Entry>,
    /// How many partial results make the value; 1 if shards are whole.
    pub parts: u32,
    pub reduction: Reduction,
}

/// A shard on its way to another layout.
#[derive(Debug)]
pub struct Middle {
    pub entry: Entry,
    /// The entries of the source layout whose sum it is.
    pub from: Vec<usize>,
}

/// What the readers of a tensor need, and the layout of the gradients that they give back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port {
    pub rank: RankId,
    pub region: Region,
    /// Which partial result of the value is read.
    pub value: u32,
    /// Which partial result of the gradient is given back.
    pub grad: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ports {
    pub entries: Vec<Port>,
    pub values: u32,
    /// Of what kind the shares of the value are that are read.
    pub reduction: Reduction,
    pub grads: u32,
}

impl Layout {
    pub fn new(mut entries: Vec<Entry>, parts: u32, reduction: Reduction) -> Layout {
        entries.sort_unstable();
        entries.dedup();
        // What is whole is of no kind.
        let reduction = if parts == 1 { Reduction::Sum } else { reduction };
        Layout { entries, parts, reduction }
    }

    /// Whether both are whole, or shares of the same kind.
    pub fn is_of_kind(&self, other: &Layout) -> bool {
        self.parts == 1 || other.parts == 1 || self.reduction == other.reduction
    }

    pub fn whole(places: impl IntoIterator<Item = (RankId, Region)>) -> Layout {
        let entries = places.into_iter().map(|(rank, region)| Entry { rank, region, part: 0 }).collect();
        Layout::new(entries, 1, Reduction::Sum)
    }

    /// Whether shards of both are in the same places, whatever share of the value they are.
    pub fn lies_as(&self, other: &Layout) -> bool {
        let same = |(a, b): (&Entry, &Entry)| a.rank == b.rank && a.region == b.region;
        self.entries.len() == other.entries.len() && self.entries.iter().zip(&other.entries).all(same)
    }

    /// The same shards with complete values: the layout that gradients of these shards need.
    pub fn complete(&self) -> Layout {
        Layout::whole(self.entries.iter().map(|e| (e.rank, e.region.clone())))
    }

    /// The positions of a rank's entries.
    pub fn on(&self, rank: RankId) -> std::ops::Range<usize> {
        let start = self.entries.partition_point(|e| e.rank < rank);
        let count = self.entries[start..].partition_point(|e| e.rank == rank);
        start..start + count
    }

    pub fn find(&self, entry: &Entry) -> Option<usize> {
        self.entries.binary_search(entry).ok()
    }
}

impl Ports {
    pub fn new(mut entries: Vec<Port>, values: u32, reduction: Reduction, grads: u32) -> Ports {
        entries.sort_unstable();
        entries.dedup();
        let reduction = if values == 1 { Reduction::Sum } else { reduction };
        Ports { entries, values, reduction, grads }
    }

    /// Ports that read complete values and give back complete gradients.
    pub fn whole(places: impl IntoIterator<Item = (RankId, Region)>) -> Ports {
        let entries =
            places.into_iter().map(|(rank, region)| Port { rank, region, value: 0, grad: 0 }).collect();
        Ports::new(entries, 1, Reduction::Sum, 1)
    }

    /// Whether both read the same, in the same places.
    pub fn reads_as(&self, other: &Ports) -> bool {
        let same = |a: &Port, b: &Port| a.rank == b.rank && a.value == b.value && a.region == b.region;
        (self.values, self.reduction) == (other.values, other.reduction)
            && self.entries.len() == other.entries.len()
            && self.entries.iter().zip(&other.entries).all(|(a, b)| same(a, b))
    }

    pub fn need(&self) -> Layout {
        let entry = |p: &Port| Entry { rank: p.rank, region: p.region.clone(), part: p.value };
        Layout::new(self.entries.iter().map(entry).collect(), self.values, self.reduction)
    }

    pub fn gradient(&self) -> Layout {
        let entry = |p: &Port| Entry { rank: p.rank, region: p.region.clone(), part: p.grad };
        Layout::new(self.entries.iter().map(entry).collect(), self.grads, Reduction::Sum)
    }

    pub fn on(&self, rank: RankId) -> std::ops::Range<usize> {
        let start = self.entries.partition_point(|e| e.rank < rank);
        let count = self.entries[start..].partition_point(|e| e.rank == rank);
        start..start + count
    }

    pub fn find(&self, port: &Port) -> usize {
        self.entries.binary_search(port).expect("a port of this operator")
    }
}

/// Layouts and ports, each kept once, and what is asked of them again for every layer.
#[derive(Default)]
pub struct Interner {
    layouts: IndexSet<Layout>,
    ports: IndexSet<Ports>,
    needs: HashMap<PortsId, LayoutId>,
    gradients: HashMap<PortsId, LayoutId>,
}

impl Interner {
    pub fn layout(&mut self, layout: Layout) -> LayoutId {
        LayoutId::new(self.layouts.insert_full(layout).0)
    }

    pub fn ports(&mut self, ports: Ports) -> PortsId {
        PortsId::new(self.ports.insert_full(ports).0)
    }

    pub fn get(&self, id: LayoutId) -> &Layout {
        &self.layouts[id.index()]
    }

    pub fn get_ports(&self, id: PortsId) -> &Ports {
        &self.ports[id.index()]
    }

    /// What ports read.
    pub fn need(&mut self, ports: PortsId) -> LayoutId {
        if let Some(known) = self.needs.get(&ports) {
            return *known;
        }
        let layout = self.get_ports(ports).need();
        let id = self.layout(layout);
        *self.needs.entry(ports).or_insert(id)
    }

    /// What ports give back.
    pub fn gradient(&mut self, ports: PortsId) -> LayoutId {
        if let Some(known) = self.gradients.get(&ports) {
            return *known;
        }
        let layout = self.get_ports(ports).gradient();
        let id = self.layout(layout);
        *self.gradients.entry(ports).or_insert(id)
    }
}

/// A tensor whole on every rank.
pub fn everywhere(analysis: &Analysis, tensor: TensorId, world: u32) -> Vec<(RankId, Region)> {
    let region = whole(analysis, tensor);
    (0..world).map(|r| (RankId(r), region.clone())).collect()
}

pub fn whole(analysis: &Analysis, tensor: TensorId) -> Region {
    Region::whole(&analysis.flat(tensor))
}

pub fn bytes(graph: &Graph, tensor: TensorId, region: &Region) -> u64 {
    u64::try_from(region.numel()).unwrap_or(0) * graph.tensor(tensor).dtype.bytes() as u64
}
