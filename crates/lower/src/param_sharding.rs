//! Parameters that devices divide among them, or that live on the host: which part each device holds, and when what operators
//! read is gathered.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use graph::{OpId, TensorId};
use indexmap::{IndexMap, IndexSet};
use plan::{Gather, ParamSharding, Reduce, lives_on_host, param_sharding_of};
use program::{Grouping, GroupingId, RankId};
use rules::{Interval, Region};
use sharding::Along;

use crate::layout::{Entry, Interner, Layout, LayoutId, Port, PortsId};
use crate::moves::{self, Method};
use crate::uses::{Context, TensorReader, UseId, Uses};

/// How one parameter is divided. One that nothing but the host holds is in one part, in groups of one.
#[derive(Debug)]
pub struct Divided {
    pub group: GroupingId,
    /// The parts.
    pub held: LayoutId,
    /// The factor that is cut, counted over all dims.
    pub factor: usize,
    pub gather: Gather,
    pub reduce: Reduce,
    pub on_host: bool,
    /// For each rank its group.
    group_of: HashMap<RankId, usize>,
    groups: Vec<Vec<RankId>>,
}

impl Divided {
    /// Whether every shard is on a rank that holds a part.
    pub fn holds_all(&self, layout: &Layout) -> bool {
        layout.entries.iter().all(|entry| self.group_of.contains_key(&entry.rank))
    }

    /// How many parts there are in a rank's group.
    pub fn parts(&self, rank: RankId) -> Option<u32> {
        let group = &self.groups[*self.group_of.get(&rank)?];
        u32::try_from(group.len()).ok()
    }
}

/// For each tensor how it is divided, if it is.
#[derive(Default)]
pub struct ParamShardings {
    pub of: Vec<Option<Rc<Divided>>>,
    /// For each of them what it is gathered with.
    unit: HashMap<TensorId, usize>,
}

/// Where it is read and by which uses, what is said of it, and its size.
type ParamKey<'p> = (LayoutId, Vec<PortsId>, Option<&'p [Vec<u32>]>, WantedSharding, Vec<i64>);
type KnownParams<'p> = HashMap<ParamKey<'p>, Option<Rc<Divided>>>;

impl ParamShardings {
    /// What devices read of a parameter may not be what its plan could know, since operators are rewritten, or the
    /// plan was made for another graph of the model: where they read different parts, it is held whole.
    pub fn find(
        cx: &Context<'_>,
        uses: &Uses,
        interner: &mut Interner,
        groupings: &mut IndexSet<Grouping>,
    ) -> ParamShardings {
        let mut param_shardings =
            ParamShardings { of: vec![None; cx.graph.tensors.len()], unit: HashMap::new() };
        let (mut known, mut units) = (KnownParams::new(), IndexSet::new());
        for tensor in cx.graph.tensor_ids() {
            let sharding = param_sharding_of(cx.plan, cx.graph, tensor);
            let on_host = lives_on_host(cx.plan, cx.graph, tensor);
            if sharding.is_none() && !on_host {
                continue;
            }
            let Some(first) = first_reader(uses, tensor) else { continue };
            // What several blocks contribute to adds up where it is read until the end of the step.
            if uses.in_several_blocks(cx, tensor) {
                continue;
            }
            let read = uses.written[tensor.index()];
            let flat = cx.analysis.flat(tensor);
            let ports = uses.of[tensor.index()].iter().map(|id| uses.get(*id).ports).collect();
            let wanted = WantedSharding::new(sharding, on_host);
            let key = (read, ports, sharding.map(|sharding| &sharding.groups[..]), wanted, flat);
            let divided = match known.get(&key) {
                Some(divided) => divided.clone(),
                None => divided(cx, uses, tensor, sharding, wanted, interner)
                    .map(|it| Rc::new(it.sync_grads(interner, groupings))),
            };
            known.insert(key, divided.clone());
            if divided.is_some() {
                // Of a layer that is cut each block gathers its own.
                let path = layer(cx, first).unwrap_or(&cx.graph.op(first).module);
                param_shardings.unit.insert(tensor, units.insert_full((path, cx.plan.block(first))).0);
            }
            param_shardings.of[tensor.index()] = divided;
        }
        param_shardings
    }

    pub fn get(&self, tensor: TensorId) -> Option<&Rc<Divided>> {
        self.of[tensor.index()].as_ref()
    }

    /// Those that live on the host.
    pub fn on_host(&self) -> Vec<TensorId> {
        let there = |tensor: &TensorId| self.get(*tensor).is_some_and(|it| it.on_host);
        (0..self.of.len()).map(TensorId::new).filter(there).collect()
    }

    /// What a parameter is gathered with, if that is for each use of it.
    pub fn in_passing(&self, tensor: TensorId) -> Option<usize> {
        self.get(tensor).filter(|it| it.gather == Gather::Pass).map(|_| self.unit[&tensor])
    }

    /// What is gathered in one message: of one unit, group and size of an element.
    pub fn messages(&self, cx: &Context<'_>, gather: Gather) -> Vec<Message> {
        let mut grouped: IndexMap<(usize, GroupingId, usize), Vec<TensorId>> = IndexMap::new();
        for tensor in cx.graph.tensor_ids() {
            let Some(it) = self.get(tensor).filter(|it| it.gather == gather) else { continue };
            let key = (self.unit[&tensor], it.group, cx.graph.tensor(tensor).dtype.bytes());
            grouped.entry(key).or_default().push(tensor);
        }
        let message = |((unit, group, _), tensors)| Message { unit, group, tensors };
        grouped.into_iter().map(message).collect()
    }
}

/// Copies that are gathered together.
#[derive(Clone)]
pub struct Message {
    pub unit: usize,
    pub group: GroupingId,
    pub tensors: Vec<TensorId>,
}

/// The first operator that reads a parameter, if nothing else does.
fn first_reader(uses: &Uses, tensor: TensorId) -> Option<OpId> {
    let mut readers = uses.of[tensor.index()].iter().flat_map(|id| &uses.get(*id).readers);
    let op = |reader: &TensorReader| if let TensorReader::Op(op, _) = reader { Some(*op) } else { None };
    readers
        .try_fold(None, |first, reader| Some(first.max(Some(std::cmp::Reverse(op(reader)?)))))?
        .map(|it| it.0)
}

/// The path of the repeated layer that an operator belongs to: everything up to the first number.
pub fn layer<'a>(cx: &Context<'a>, op: OpId) -> Option<&'a str> {
    let path = &cx.graph.op(op).module[..];
    let mut end = 0;
    for part in path.split('.') {
        end += part.len();
        if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
            return Some(&path[..end]);
        }
        end += 1;
    }
    None
}

/// What is asked of a parameter besides the devices that divide it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct WantedSharding {
    dim: Option<usize>,
    gather: Gather,
    reduce: Reduce,
    on_host: bool,
}

impl WantedSharding {
    /// What lives on the host is brought for each use, and its gradients go there with each micro-batch.
    fn new(sharding: Option<&ParamSharding>, on_host: bool) -> WantedSharding {
        let dim = sharding.and_then(|sharding| sharding.dim);
        let said = sharding.filter(|_| !on_host).map(|sharding| (sharding.gather, sharding.reduce));
        let (gather, reduce) = said.unwrap_or((Gather::Pass, Reduce::Each));
        WantedSharding { dim, gather, reduce, on_host }
    }
}

/// Before it is known by its numbers.
struct Parts {
    groups: Vec<Vec<RankId>>,
    held: Layout,
    factor: usize,
    wanted: WantedSharding,
}

impl Parts {
    fn sync_grads(self, interner: &mut Interner, groupings: &mut IndexSet<Grouping>) -> Divided {
        let numbered = self.groups.iter().enumerate();
        let group_of = numbered.flat_map(|(at, group)| group.iter().map(move |rank| (*rank, at))).collect();
        Divided {
            group: moves::grouping(self.groups.clone(), groupings),
            held: interner.layout(self.held),
            factor: self.factor,
            gather: self.wanted.gather,
            reduce: self.wanted.reduce,
            on_host: self.wanted.on_host,
            group_of,
            groups: self.groups,
        }
    }
}

/// `None` if there is nothing to divide: groups of one, or fewer elements than parts along every dim; or if a
/// device reads several parts of it, or another part than those that it should divide it with. What lives on the host is
/// there then as it is read.
fn divided(
    cx: &Context<'_>,
    uses: &Uses,
    tensor: TensorId,
    sharding: Option<&ParamSharding>,
    wanted: WantedSharding,
    interner: &Interner,
) -> Option<Parts> {
    let read = interner.get(uses.written[tensor.index()]);
    let reads_all = |id: UseId| {
        let ports = interner.get_ports(uses.get(id).ports);
        let held = |port: &Port| read.on(port.rank).any(|at| read.entries[at].region == port.region);
        ports.entries.iter().all(held)
    };
    let several = read.entries.windows(2).any(|two| two[0].rank == two[1].rank);
    if several && !wanted.on_host || !uses.of[tensor.index()].iter().all(|id| reads_all(*id)) {
        return None;
    }
    let among = sharding.filter(|_| !several).and_then(|sharding| sharing(sharding, read));
    let cut = among.and_then(|groups| Some((factor(cx, tensor, wanted.dim, read, &groups)?, groups)));
    let (factor, groups) = match cut {
        Some((factor, groups)) if wanted.on_host => (factor, with_the_others(groups, read)),
        Some(cut) => cut,
        None if wanted.on_host => {
            let groups = with_the_others(vec![], read);
            (factor(cx, tensor, None, read, &groups)?, groups)
        }
        None => return None,
    };
    let mut parts: HashMap<RankId, Interval> = HashMap::new();
    for group in groups.iter().filter(|group| group.len() > 1) {
        let whole = region(read, group[0])?.0[factor];
        let count = u32::try_from(group.len()).unwrap_or(u32::MAX);
        parts.extend(group.iter().zip(0..).map(|(rank, at)| (*rank, whole.part(at, count))));
    }
    let part = |entry: &Entry| {
        let mut region = entry.region.clone();
        if let Some(interval) = parts.get(&entry.rank) {
            region.0[factor] = *interval;
        }
        (entry.rank, region)
    };
    let held = Layout::whole(read.entries.iter().map(part));
    Some(Parts { groups, held, factor, wanted })
}

/// The groups of a home that read something, unless some of a group read another part.
fn sharing(sharding: &ParamSharding, read: &Layout) -> Option<Vec<Vec<RankId>>> {
    let mut groups: Vec<Vec<RankId>> = vec![];
    for group in sharding.groups.iter().filter(|group| group.len() > 1) {
        let first = region(read, RankId(group[0]));
        if group.iter().any(|device| region(read, RankId(*device)) != first) {
            return None;
        }
        if first.is_some() {
            groups.push(group.iter().copied().map(RankId).collect());
        }
    }
    Some(groups)
}

/// Each rank that is in no group is one by itself.
fn with_the_others(mut groups: Vec<Vec<RankId>>, read: &Layout) -> Vec<Vec<RankId>> {
    let mut known: BTreeSet<RankId> = groups.iter().flatten().copied().collect();
    groups.extend(
        read.entries.iter().map(|entry| entry.rank).filter(|rank| known.insert(*rank)).map(|rank| vec![rank]),
    );
    groups
}

/// What a rank reads, of which it has one part at most.
fn region(read: &Layout, rank: RankId) -> Option<&Region> {
    read.on(rank).next().map(|at| &read.entries[at].region)
}

/// The factor to cut: the first that every group can cut evenly, else the longest that it can cut at all.
fn factor(
    cx: &Context<'_>,
    tensor: TensorId,
    dim: Option<usize>,
    read: &Layout,
    groups: &[Vec<RankId>],
) -> Option<usize> {
    let mut of_dim = vec![];
    for (dim, factors) in cx.analysis.factors[tensor.index()].iter().enumerate() {
        of_dim.extend(factors.iter().map(|_| dim));
    }
    let wanted = (0..of_dim.len()).filter(|f| dim.is_none_or(|dim| of_dim[*f] == dim));
    let wanted: Vec<usize> = wanted.filter(|_| !groups.is_empty()).collect();
    let pairs = |factor: usize| {
        let length = move |group: &Vec<RankId>| region(read, group[0]).map_or(0, |it| it.0[factor].len());
        groups.iter().map(move |group| (length(group), i64::try_from(group.len()).unwrap_or(i64::MAX)))
    };
    let even = |f: &usize| pairs(*f).all(|(length, parts)| length > 0 && length % parts == 0);
    let long = |f: &usize| pairs(*f).all(|(length, parts)| length >= parts);
    let shortest = |f: &usize| pairs(*f).map(|(length, _)| length).min();
    let first_even = wanted.iter().copied().find(even);
    first_even.or_else(|| wanted.iter().copied().filter(long).rev().max_by_key(shortest))
}

/// How gradients of leaves get to the parts, if there is a pattern.
#[derive(Clone, Copy)]
pub struct Arrives {
    /// What the members of a group have is summed; else each of them has all of it.
    pub summed: bool,
    /// What groups have are partial sums of each other's.
    pub across: Option<GroupingId>,
}

pub fn arrives(
    it: &Divided,
    leaves: &Layout,
    read: &Layout,
    interner: &Interner,
    groupings: &mut IndexSet<Grouping>,
) -> Option<Arrives> {
    let held = interner.get(it.held);
    if !leaves.lies_as(read) || !it.holds_all(leaves) {
        return None;
    }
    let mut sets: IndexMap<usize, Vec<u32>> = IndexMap::new();
    leaves.entries.iter().for_each(|e| sets.entry(it.group_of[&e.rank]).or_default().push(e.part));
    sets.values_mut().for_each(|parts| parts.sort_unstable());
    let shared = it.groups.iter().any(|group| group.len() > 1);
    let summed = shared && sets.values().all(|parts| parts.windows(2).all(|two| two[0] != two[1]));
    if !summed && !sets.values().all(|parts| parts.first() == parts.last()) {
        return None;
    }
    sets.values_mut().for_each(Vec::dedup);
    let mut distinct: Vec<&Vec<u32>> = sets.values().collect();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.iter().map(|parts| parts.len()).sum::<usize>() != leaves.parts as usize {
        return None;
    }
    if distinct.len() == 1 {
        return Some(Arrives { summed, across: None });
    }
    let place = |rank: RankId| distinct.binary_search(&&sets[&it.group_of[&rank]]).expect("one of the sets");
    let entry = |e: &Entry| Entry { part: u32::try_from(place(e.rank)).unwrap_or(u32::MAX), ..e.clone() };
    let parts = u32::try_from(distinct.len()).unwrap_or(u32::MAX);
    let after = Layout::new(held.entries.iter().map(entry).collect(), parts, leaves.reduction);
    match moves::pattern(&after, held, groupings)?.method {
        Method::Collective(Along::AllReduce(_), group, _) => Some(Arrives { summed, across: Some(group) }),
        _ => None,
    }
}
