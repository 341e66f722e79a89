//! Who reads each tensor, and how: readers that need the same shards and give back gradients in the
//! same layout are one use, so that what they need is moved once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use graph::{Graph, OpId, Source, TensorId};
use indexmap::IndexMap;
use plan::Plan;
use program::{Boundary, Inputs, Output, RankId};
use rules::{Analysis, Region};

use crate::layout::{Entry, Interner, Layout, LayoutId, Ports, PortsId, everywhere, whole};
use crate::placement::Placement;

graph::id!(
    /// A use of a tensor.
    UseId
);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorReader {
    /// An operator, and the position among its inputs.
    Op(OpId, usize),
    /// The result of the program with this number.
    Output(usize),
    /// The update of a buffer or parameter: an index into [`graph::Graph::updates`].
    Update(usize),
}

#[derive(Debug)]
pub struct Use {
    pub tensor: TensorId,
    pub ports: PortsId,
    pub carries_grad: bool,
    pub readers: Vec<TensorReader>,
    /// Readers take what the producer wrote, and what they give back is what it needs.
    pub direct: bool,
}

/// All uses, by tensor, and where the tensors are that no operator makes.
pub struct Uses {
    pub all: Vec<Use>,
    pub of: Vec<Vec<UseId>>,
    /// What is there of each tensor: shards written, or held between steps.
    pub written: Vec<LayoutId>,
    /// Readers that give back nothing and read what others do that give a gradient back: the ports of these.
    shared: HashMap<(TensorId, PortsId), PortsId>,
}

impl Uses {
    /// Whether several blocks read a tensor. Whoever reads a parameter holds it and needs its gradient, also where
    /// it gives none.
    pub fn in_several_blocks(&self, cx: &Context<'_>, tensor: TensorId) -> bool {
        if cx.plan.blocks.is_empty() {
            return false;
        }
        let all = self.of[tensor.index()].iter().map(|id| self.get(*id));
        let block = |reader: &TensorReader| {
            if let TensorReader::Op(op, _) = reader { Some(cx.plan.block(*op)) } else { None }
        };
        let blocks: BTreeSet<u32> = all.flat_map(|it| &it.readers).filter_map(block).collect();
        blocks.len() > 1
    }

    pub fn get(&self, id: UseId) -> &Use {
        &self.all[id.index()]
    }

    /// The use through which an operator reads an input.
    pub fn through(&self, tensor: TensorId, ports: PortsId, carries_grad: bool) -> UseId {
        let uses = &self.of[tensor.index()];
        let shared = self.shared.get(&(tensor, ports)).filter(|_| !carries_grad);
        let (ports, carries_grad) = shared.map_or((ports, carries_grad), |ports| (*ports, true));
        let same = |id: &&UseId| self.get(**id).ports == ports && self.get(**id).carries_grad == carries_grad;
        *uses.iter().find(same).expect("every reader is part of a use")
    }
}

pub struct Context<'a> {
    pub graph: &'a Graph,
    pub analysis: &'a Analysis,
    pub plan: &'a Plan,
    pub placements: &'a [Rc<Placement>],
    pub needs_grad: &'a [bool],
    pub boundary: &'a Boundary,
    /// For each tensor, whether it is an input whose gradient the caller gets.
    pub given_back: &'a [bool],
    /// For each tensor the layout in which its gradient goes to its maker, if that is partial.
    pub wanted: &'a [Option<LayoutId>],
    pub order: &'a [OpId],
}

impl Context<'_> {
    /// The block that makes a tensor, if an operator does.
    pub fn block_of(&self, tensor: TensorId) -> Option<u32> {
        self.graph.producer(tensor).map(|(op, _)| self.plan.block(op))
    }

    pub fn same_factors(&self, a: TensorId, b: TensorId) -> bool {
        self.analysis.factors[a.index()] == self.analysis.factors[b.index()]
    }
}

/// The ranks that run operators of a block.
pub fn owners(cx: &Context<'_>, block: u32) -> BTreeSet<RankId> {
    let ops = cx.order.iter().filter(|op| cx.plan.block(**op) == block);
    ops.flat_map(|op| cx.plan.op(*op).devices.iter()).copied().map(RankId).collect()
}

pub fn find(cx: &Context<'_>, interner: &mut Interner) -> Uses {
    let mut grouped: IndexMap<(TensorId, PortsId, bool), Vec<TensorReader>> = IndexMap::new();
    for &op in cx.order {
        let reads = &cx.placements[op.index()].inputs;
        for (position, (tensor, read)) in cx.graph.op(op).inputs().into_iter().zip(reads).enumerate() {
            let key = (tensor, read.ports, read.carries_grad);
            grouped.entry(key).or_default().push(TensorReader::Op(op, position));
        }
    }
    for (number, tensor) in cx.graph.outputs.iter().enumerate() {
        if let (Some(tensor), Some(places)) = (tensor, leaving(cx, number, interner)) {
            let ports = interner.ports(Ports::whole(places));
            let key = (*tensor, ports, cx.needs_grad[tensor.index()]);
            grouped.entry(key).or_default().push(TensorReader::Output(number));
        }
    }
    let shared = share(cx, &mut grouped, interner);
    let by_tensor = vec![vec![]; cx.graph.tensors.len()];
    let mut uses = Uses { all: vec![], of: by_tensor, written: vec![], shared };
    for ((tensor, ports, carries_grad), readers) in grouped {
        uses.of[tensor.index()].push(UseId::new(uses.all.len()));
        uses.all.push(Use { tensor, ports, carries_grad, readers, direct: false });
    }
    let mut known = HashMap::new();
    uses.written = cx.graph.tensor_ids().map(|t| written(cx, &uses, t, interner, &mut known)).collect();
    add_updates(cx, &mut uses, interner);
    let mut known = HashMap::new();
    for index in 0..uses.all.len() {
        let it = &uses.all[index];
        if !matches!(cx.graph.tensor(it.tensor).source, Source::Op { .. }) {
            continue;
        }
        let wanted = cx.wanted[it.tensor.index()];
        let reading = Reading { ports: it.ports, carries_grad: it.carries_grad, wanted };
        let key = (uses.written[it.tensor.index()], reading);
        let direct = *known.entry(key).or_insert_with(|| is_direct(key.0, key.1, interner));
        uses.all[index].direct = direct;
    }
    uses
}

/// Lets operators that give back nothing read what others are given that do: it is moved once for both.
fn share(
    cx: &Context<'_>,
    grouped: &mut IndexMap<(TensorId, PortsId, bool), Vec<TensorReader>>,
    interner: &Interner,
) -> HashMap<(TensorId, PortsId), PortsId> {
    let made = |tensor: TensorId| matches!(cx.graph.tensor(tensor).source, Source::Op { .. });
    let keys: Vec<_> = grouped.keys().copied().filter(|(tensor, ..)| made(*tensor)).collect();
    let mut carrying: HashMap<TensorId, Vec<PortsId>> = HashMap::new();
    for (tensor, ports, _) in keys.iter().filter(|(.., carries)| *carries) {
        carrying.entry(*tensor).or_default().push(*ports);
    }
    let mut shared = HashMap::new();
    for (tensor, ports, _) in keys.into_iter().filter(|(.., carries)| !carries) {
        let reads = interner.get_ports(ports);
        let others = carrying.get(&tensor).into_iter().flatten();
        let same = others.copied().find(|other| interner.get_ports(*other).reads_as(reads));
        let readers = &grouped[&(tensor, ports, false)];
        if let Some(other) = same.filter(|_| readers.iter().all(|r| matches!(r, TensorReader::Op(..)))) {
            let readers = grouped.shift_remove(&(tensor, ports, false)).unwrap_or_default();
            grouped[&(tensor, other, true)].extend(readers);
            shared.insert((tensor, ports), other);
        }
    }
    shared
}

/// Where an output is needed, complete; `None` if it does not leave.
fn leaving(cx: &Context<'_>, number: usize, interner: &Interner) -> Option<Vec<(RankId, Region)>> {
    let tensor = cx.graph.outputs[number]?;
    match (cx.boundary.outputs[number], &cx.graph.tensor(tensor).source) {
        (Output::None, _) => None,
        // On all ranks that run the block.
        (Output::Whole, Source::Op { op, .. }) if cx.plan.block_count() > 1 => {
            let whole = whole(cx.analysis, tensor);
            let owners = owners(cx, cx.plan.block(*op));
            Some(owners.into_iter().map(|rank| (rank, whole.clone())).collect())
        }
        (Output::Local, Source::Op { op, output }) => {
            let there = cx.placements[op.index()].outputs[*output].as_ref().expect("an output that is read");
            let entries = &interner.get(there.layout).entries;
            Some(one_a_rank(entries.iter().map(|e| (e.rank, &e.region))))
        }
        _ => Some(everywhere(cx.analysis, tensor, cx.plan.devices)),
    }
}

/// For each rank the smallest region that holds all that it has.
fn one_a_rank<'a>(places: impl Iterator<Item = (RankId, &'a Region)>) -> Vec<(RankId, Region)> {
    let mut regions: BTreeMap<RankId, Region> = BTreeMap::new();
    for (rank, region) in places {
        regions.entry(rank).and_modify(|known| *known = known.hull(region)).or_insert_with(|| region.clone());
    }
    regions.into_iter().collect()
}

/// Of what tensors of some sizes are held: as all their uses read it, or all of it.
type HeldUses = HashMap<(Vec<i64>, Vec<PortsId>, bool), LayoutId>;

fn written(
    cx: &Context<'_>,
    uses: &Uses,
    tensor: TensorId,
    interner: &mut Interner,
    known: &mut HeldUses,
) -> LayoutId {
    match &cx.graph.tensor(tensor).source {
        Source::Op { op, output } => {
            cx.placements[op.index()].outputs[*output].as_ref().expect("an output that is read").layout
        }
        Source::Input { .. } => {
            let given = match cx.boundary.inputs {
                Inputs::Global => everywhere(cx.analysis, tensor, cx.plan.devices),
                Inputs::Local => one_a_rank(read_of(uses, tensor, interner)),
            };
            interner.layout(Layout::whole(given))
        }
        Source::Param { .. } | Source::Buffer { .. } | Source::Const { .. } => {
            let ports = uses.of[tensor.index()].iter().map(|id| uses.get(*id).ports).collect();
            // A buffer whose new value has other factors is held whole: a region of the one is none of the other.
            let all = cx.graph.new_value(tensor).is_some_and(|value| !cx.same_factors(tensor, value));
            *known.entry((cx.analysis.flat(tensor), ports, all)).or_insert_with(|| {
                let held = held(cx, uses, tensor, all, interner);
                interner.layout(Layout::whole(held))
            })
        }
    }
}

/// The regions of a tensor that ranks read.
fn read_of<'a>(
    uses: &'a Uses,
    tensor: TensorId,
    interner: &'a Interner,
) -> impl Iterator<Item = (RankId, &'a Region)> {
    let ports = uses.of[tensor.index()].iter().map(|id| interner.get_ports(uses.get(*id).ports));
    ports.flat_map(|ports| ports.entries.iter().map(|p| (p.rank, &p.region)))
}

/// What each rank holds of a parameter, buffer or constant: what its operators read, as regions that
/// do not overlap. What nobody reads is held by every rank.
fn held(
    cx: &Context<'_>,
    uses: &Uses,
    tensor: TensorId,
    all: bool,
    interner: &Interner,
) -> Vec<(RankId, Region)> {
    let read = read_of(uses, tensor, interner);
    let whole = whole(cx.analysis, tensor);
    let place = |(rank, region): (RankId, &Region)| (rank, if all { whole.clone() } else { region.clone() });
    let mut places: Vec<(RankId, Region)> = read.map(place).collect();
    if places.is_empty() {
        return everywhere(cx.analysis, tensor, cx.plan.devices);
    }
    places.sort_unstable();
    places.dedup();
    let mut held: Vec<(RankId, Region)> = vec![];
    for (rank, mut region) in places {
        // Regions of a rank that overlap become the smallest one that holds them.
        let start = held.partition_point(|(r, _)| *r < rank);
        while let Some(at) = held[start..].iter().rposition(|(_, h)| overlaps(h, &region)) {
            region = region.hull(&held.remove(start + at).1);
        }
        held.push((rank, region));
    }
    held
}

fn overlaps(a: &Region, b: &Region) -> bool {
    a == b || !a.meet(b).is_empty()
}

/// The new value of a buffer or parameter is needed where that is held.
fn add_updates(cx: &Context<'_>, uses: &mut Uses, interner: &mut Interner) {
    for (number, (name, value)) in cx.graph.updates.iter().enumerate() {
        let Some(old) = cx.graph.held(name) else { continue };
        let held = interner.get(uses.written[old.index()]).clone();
        let same = cx.same_factors(old, *value);
        let place = |e: Entry| (e.rank, if same { e.region } else { whole(cx.analysis, *value) });
        let places: Vec<(RankId, Region)> = held.entries.into_iter().map(place).collect();
        let ports = interner.ports(Ports::whole(places));
        uses.of[value.index()].push(UseId::new(uses.all.len()));
        let readers = vec![TensorReader::Update(number)];
        uses.all.push(Use { tensor: *value, ports, carries_grad: false, readers, direct: false });
    }
}

/// How a use reads what an operator makes, and how its maker takes gradients.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Reading {
    ports: PortsId,
    carries_grad: bool,
    wanted: Option<LayoutId>,
}

fn is_direct(written: LayoutId, reading: Reading, interner: &mut Interner) -> bool {
    let ports = reading.ports;
    let need = interner.need(ports);
    let (need, there) = (interner.get(need), interner.get(written));
    if need.parts != there.parts
        || !need.is_of_kind(there)
        || !need.entries.iter().all(|e| there.find(e).is_some())
    {
        return false;
    }
    // Every shard that was written must be read, or it would get no gradient.
    let all = need.entries == there.entries;
    !reading.carries_grad || (all && is_wanted(reading.wanted, ports, interner))
}

/// Whether the gradients that readers give back are what the maker of the tensor takes.
fn is_wanted(wanted: Option<LayoutId>, ports: PortsId, interner: &mut Interner) -> bool {
    let gradient = interner.gradient(ports);
    wanted.map_or(interner.get_ports(ports).grads == 1, |wanted| gradient == wanted)
}
