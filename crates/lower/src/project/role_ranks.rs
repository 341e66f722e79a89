//! Ranks that are projected together. What is asked of them has one answer for all; where they answer
//! differently they come apart, and each kind is projected by itself. So cost grows with the number of
//! different ranks, and what is asked of a layout is asked once, however many layers have it.
//!
//! Shards, ports and parts are counted from the first one that the rank has. Regions and numbers may differ
//! among the ranks: they are columns.

use std::collections::HashMap;
use std::rc::Rc;

use program::{PerRank, RankId};
use rules::Region;
use sharding::Get;

use super::per_rank::{Asked, PerRankValues, RegionsId, agreed};
use crate::layout::{Entry, Interner, LayoutId, PortsId};
use crate::moves::{Method, Move, on_rank};
use crate::param_sharding::Divided;
use crate::placement::Placement;
use crate::schedule::Leaves;

/// The parts of an operator that each rank has: for each input the port that it reads, for each output the
/// shard that it writes.
pub struct PartsHere {
    pub parts: Vec<PartHere>,
    /// The position of each rank's first part among all.
    pub first: Vec<usize>,
}

#[derive(Clone, PartialEq)]
pub struct PartHere {
    pub reads: Vec<Option<usize>>,
    pub writes: Vec<Option<usize>>,
}

/// A rank's share of a move.
pub struct MoveHere {
    pub shape: RoleShape,
    /// The regions of the middle shards.
    pub middle: Vec<RegionsId>,
    /// What the rank has after the communication, if it takes part in one of a group.
    pub result: Option<RegionsId>,
}

#[derive(PartialEq)]
pub struct RoleShape {
    /// For each middle shard those whose sum it is.
    pub sums: Vec<Vec<usize>>,
    /// For each target where it comes from; middle shards are counted from the rank's first.
    pub gets: Vec<Get>,
    /// What the rank gives, and the lengths of the pieces of its group.
    pub member: Option<(usize, Vec<i64>, Vec<i64>)>,
    /// What the rank gives to an exchange.
    pub gives: Vec<usize>,
}

struct Spots {
    starts: Vec<usize>,
    count: usize,
}

/// Answers that are known.
#[derive(Default)]
struct KnownAnswers {
    layouts: HashMap<LayoutId, Rc<Spots>>,
    ports: HashMap<PortsId, Rc<Spots>>,
    entries: HashMap<(LayoutId, usize), RegionsId>,
    reads: HashMap<(PortsId, usize), RegionsId>,
    direct: HashMap<(PortsId, usize, LayoutId), usize>,
    arrives: HashMap<(PortsId, LayoutId), Rc<Vec<Vec<usize>>>>,
    gives: HashMap<(PortsId, LayoutId), Rc<Vec<Option<usize>>>>,
    twins: HashMap<(LayoutId, LayoutId), Rc<Vec<Vec<usize>>>>,
    placements: HashMap<*const Placement, Rc<PartsHere>>,
    moves: HashMap<(*const Move, LayoutId, LayoutId), Rc<MoveHere>>,
    divided: HashMap<*const Divided, Option<u32>>,
    leaf: HashMap<(PortsId, usize, *const Leaves), usize>,
    leaves: HashMap<*const Leaves, Rc<Vec<(usize, usize)>>>,
}

pub struct RoleRanks<'a> {
    pub ranks: &'a [RankId],
    pub per_rank: PerRankValues<'a>,
    interner: &'a Interner,
    known: KnownAnswers,
}

impl<'a> RoleRanks<'a> {
    pub fn new(ranks: &'a [RankId], interner: &'a Interner) -> Self {
        Self { ranks, per_rank: PerRankValues::new(ranks), interner, known: KnownAnswers::default() }
    }

    // Layouts and ports.

    /// How many shards of a layout each rank has.
    pub fn shards(&mut self, layout: LayoutId) -> Asked<usize> {
        Ok(self.spots(layout)?.count)
    }

    pub fn shard(&mut self, layout: LayoutId, shard: usize) -> Asked<RegionsId> {
        if let Some(known) = self.known.entries.get(&(layout, shard)) {
            return Ok(*known);
        }
        let (spots, entries) = (self.spots(layout)?, &self.interner.get(layout).entries);
        let regions = spots.starts.iter().map(|start| entries[start + shard].region.clone()).collect();
        let id = self.per_rank.add(PerRank::from_values(regions));
        Ok(*self.known.entries.entry((layout, shard)).or_insert(id))
    }

    /// How many ports each rank has.
    pub fn ports(&mut self, ports: PortsId) -> Asked<usize> {
        Ok(self.port_spots(ports)?.count)
    }

    pub fn port(&mut self, ports: PortsId, port: usize) -> Asked<RegionsId> {
        if let Some(known) = self.known.reads.get(&(ports, port)) {
            return Ok(*known);
        }
        let (spots, entries) = (self.port_spots(ports)?, &self.interner.get_ports(ports).entries);
        let regions = spots.starts.iter().map(|start| entries[start + port].region.clone()).collect();
        let id = self.per_rank.add(PerRank::from_values(regions));
        Ok(*self.known.reads.entry((ports, port)).or_insert(id))
    }

    fn spots(&mut self, layout: LayoutId) -> Asked<Rc<Spots>> {
        if let Some(known) = self.known.layouts.get(&layout) {
            return Ok(Rc::clone(known));
        }
        let spots = self.find_spots(|rank| self.interner.get(layout).on(rank))?;
        Ok(Rc::clone(self.known.layouts.entry(layout).or_insert(spots)))
    }

    fn port_spots(&mut self, ports: PortsId) -> Asked<Rc<Spots>> {
        if let Some(known) = self.known.ports.get(&ports) {
            return Ok(Rc::clone(known));
        }
        let spots = self.find_spots(|rank| self.interner.get_ports(ports).on(rank))?;
        Ok(Rc::clone(self.known.ports.entry(ports).or_insert(spots)))
    }

    fn find_spots(&self, on: impl Fn(RankId) -> std::ops::Range<usize>) -> Asked<Rc<Spots>> {
        let ranges: Vec<std::ops::Range<usize>> = self.ranks.iter().map(|rank| on(*rank)).collect();
        let count = agreed(self.ranks, |at| ranges[at].len())?;
        Ok(Rc::new(Spots { starts: ranges.into_iter().map(|range| range.start).collect(), count }))
    }

    /// The written shard that a port reads as it is.
    pub fn direct(&mut self, ports: PortsId, port: usize, written: LayoutId) -> Asked<usize> {
        let key = (ports, port, written);
        if let Some(known) = self.known.direct.get(&key) {
            return Ok(*known);
        }
        let (reads, there) = (self.port_spots(ports)?, self.spots(written)?);
        let (entries, layout) = (&self.interner.get_ports(ports).entries, self.interner.get(written));
        let shard = agreed(self.ranks, |at| {
            let wanted = &entries[reads.starts[at] + port];
            let entry = Entry { rank: wanted.rank, region: wanted.region.clone(), part: wanted.value };
            layout.find(&entry).expect("a direct use finds its shard") - there.starts[at]
        })?;
        Ok(*self.known.direct.entry(key).or_insert(shard))
    }

    /// For each shard of what is needed the ports that read it.
    pub fn arrives(&mut self, ports: PortsId, need: LayoutId) -> Asked<Rc<Vec<Vec<usize>>>> {
        if let Some(known) = self.known.arrives.get(&(ports, need)) {
            return Ok(Rc::clone(known));
        }
        let (reads, there) = (self.port_spots(ports)?, self.spots(need)?);
        let (readers, entries) = (&self.interner.get_ports(ports).entries, &self.interner.get(need).entries);
        let by_shard = agreed(self.ranks, |at| {
            let readers_of = |shard: usize| {
                let entry = &entries[there.starts[at] + shard];
                let reads_it = |port: &usize| {
                    let port = &readers[reads.starts[at] + port];
                    port.region == entry.region && port.value == entry.part
                };
                (0..reads.count).filter(reads_it).collect()
            };
            (0..there.count).map(readers_of).collect::<Vec<Vec<usize>>>()
        })?;
        Ok(Rc::clone(self.known.arrives.entry((ports, need)).or_insert(Rc::new(by_shard))))
    }

    /// For each shard of a gradient the port that gives it.
    pub fn gives(&mut self, ports: PortsId, gradient: LayoutId) -> Asked<Rc<Vec<Option<usize>>>> {
        if let Some(known) = self.known.gives.get(&(ports, gradient)) {
            return Ok(Rc::clone(known));
        }
        let (reads, there) = (self.port_spots(ports)?, self.spots(gradient)?);
        let (readers, entries) =
            (&self.interner.get_ports(ports).entries, &self.interner.get(gradient).entries);
        let by_shard = agreed(self.ranks, |at| {
            let giver_of = |shard: usize| {
                let entry = &entries[there.starts[at] + shard];
                let gives_it = |port: &usize| {
                    let port = &readers[reads.starts[at] + port];
                    port.region == entry.region && port.grad == entry.part
                };
                (0..reads.count).find(gives_it)
            };
            (0..there.count).map(giver_of).collect::<Vec<Option<usize>>>()
        })?;
        Ok(Rc::clone(self.known.gives.entry((ports, gradient)).or_insert(Rc::new(by_shard))))
    }

    /// For each shard of one layout those of another that have its region.
    pub fn twins(&mut self, layout: LayoutId, among: LayoutId) -> Asked<Rc<Vec<Vec<usize>>>> {
        if let Some(known) = self.known.twins.get(&(layout, among)) {
            return Ok(Rc::clone(known));
        }
        let (spots, others) = (self.spots(layout)?, self.spots(among)?);
        let (left, right) = (&self.interner.get(layout).entries, &self.interner.get(among).entries);
        let twins = agreed(self.ranks, |at| {
            let same = |a: usize, b: &usize| {
                left[spots.starts[at] + a].region == right[others.starts[at] + b].region
            };
            let twins = |a: usize| (0..others.count).filter(|b| same(a, b)).collect();
            (0..spots.count).map(twins).collect::<Vec<Vec<usize>>>()
        })?;
        Ok(Rc::clone(self.known.twins.entry((layout, among)).or_insert(Rc::new(twins))))
    }

    /// Into how many parts a parameter is divided; `None` where a rank has no part.
    pub fn divided(&mut self, divided: &Rc<Divided>) -> Asked<Option<u32>> {
        let key = Rc::as_ptr(divided);
        if let Some(known) = self.known.divided.get(&key) {
            return Ok(*known);
        }
        let parts = agreed(self.ranks, |at| divided.parts(self.ranks[at]))?;
        Ok(*self.known.divided.entry(key).or_insert(parts))
    }

    // Parts and moves.

    pub fn parts(&mut self, placement: &Rc<Placement>) -> Asked<Rc<PartsHere>> {
        let key = Rc::as_ptr(placement);
        if let Some(known) = self.known.placements.get(&key) {
            return Ok(Rc::clone(known));
        }
        let on: Vec<_> = self.ranks.iter().map(|rank| placement.on(*rank)).collect();
        let parts = agreed(self.ranks, |at| {
            let rank = self.ranks[at];
            let read = |read: &crate::placement::Read, sub: usize| {
                Some(read.port[sub]? - self.interner.get_ports(read.ports).on(rank).start)
            };
            let written = |written: &Option<crate::placement::Written>, sub: usize| {
                let written = written.as_ref()?;
                Some(written.entry[sub] - self.interner.get(written.layout).on(rank).start)
            };
            let part = |sub: usize| PartHere {
                reads: placement.inputs.iter().map(|r| read(r, sub)).collect(),
                writes: placement.outputs.iter().map(|w| written(w, sub)).collect(),
            };
            on[at].clone().map(part).collect::<Vec<PartHere>>()
        })?;
        let first = on.into_iter().map(|range| range.start).collect();
        let here = Rc::new(PartsHere { parts, first });
        Ok(Rc::clone(self.known.placements.entry(key).or_insert(here)))
    }

    pub fn moved(&mut self, plan: &Rc<Move>, from: LayoutId, to: LayoutId) -> Asked<Rc<MoveHere>> {
        let key = (Rc::as_ptr(plan), from, to);
        if let Some(known) = self.known.moves.get(&key) {
            return Ok(Rc::clone(known));
        }
        let (sources, targets) = (self.spots(from)?, self.spots(to)?);
        let (middle, given) = (self.middle(plan)?, given(plan));
        let shape = agreed(self.ranks, |at| {
            let start = middle.starts[at];
            let sum = |m: usize| plan.middle[start + m].from.iter().map(|e| e - sources.starts[at]).collect();
            let get = |target: usize| match plan.gets[targets.starts[at] + target] {
                Get::Is(m) => Get::Is(m - start),
                Get::Of(m) => Get::Of(m - start),
                Get::Reduced(m) => Get::Reduced(m - start),
                other => other,
            };
            let member = plan.method.member(self.ranks[at]);
            let gives = given.get(&self.ranks[at]).map_or(&[][..], Vec::as_slice);
            RoleShape {
                sums: (0..middle.count).map(sum).collect(),
                gets: (0..targets.count).map(get).collect(),
                member: member.map(|m| (m.shard - start, m.sizes.clone(), m.other_sizes.clone())),
                gives: gives.iter().map(|m| m - start).collect(),
            }
        })?;
        let region = |m: usize, at: usize| plan.middle[middle.starts[at] + m].entry.region.clone();
        let per_rank = (0..middle.count).map(|m| (0..self.ranks.len()).map(|at| region(m, at)).collect());
        let per_rank: Vec<Vec<Region>> = per_rank.collect();
        let result_of = |rank: &RankId| plan.method.member(*rank).map(|member| member.result.clone());
        let result =
            shape.member.as_ref().and_then(|_| self.ranks.iter().map(result_of).collect::<Option<Vec<_>>>());
        let here = MoveHere {
            shape,
            middle: per_rank
                .into_iter()
                .map(|per_rank| self.per_rank.add(PerRank::from_values(per_rank)))
                .collect(),
            result: result.map(|regions| self.per_rank.add(PerRank::from_values(regions))),
        };
        Ok(Rc::clone(self.known.moves.entry(key).or_insert(Rc::new(here))))
    }

    fn middle(&self, plan: &Move) -> Asked<Rc<Spots>> {
        self.find_spots(|rank| on_rank(&plan.middle, rank))
    }

    /// What each rank gives to an exchange, in its order.
    pub fn gives_exactly(&self, plan: &Move) -> Asked<Vec<usize>> {
        let (middle, given) = (self.middle(plan)?, given(plan));
        agreed(self.ranks, |at| {
            let sources = given.get(&self.ranks[at]).map_or(&[][..], Vec::as_slice);
            sources.iter().map(|m| m - middle.starts[at]).collect::<Vec<usize>>()
        })
    }

    // Leaves.

    /// Which of a use's leaves a port reads.
    pub fn leaf(&mut self, ports: PortsId, port: usize, leaves: &Rc<Leaves>) -> Asked<usize> {
        let key = (ports, port, Rc::as_ptr(leaves));
        if let Some(known) = self.known.leaf.get(&key) {
            return Ok(*known);
        }
        let (reads, entries) = (self.port_spots(ports)?, &self.interner.get_ports(ports).entries);
        let gradient = self.interner.get(leaves.gradient);
        let leaf = agreed(self.ranks, |at| {
            let port = &entries[reads.starts[at] + port];
            let entry = Entry { rank: port.rank, region: port.region.clone(), part: port.grad };
            let middle = leaves.of[gradient.find(&entry).expect("a gradient of this use")];
            middle - leaves.on(port.rank).start
        })?;
        Ok(*self.known.leaf.entry(key).or_insert(leaf))
    }

    /// The leaves of a use in the order of its layout: the position there, and which of its leaves it is.
    pub fn leaves(&mut self, leaves: &Rc<Leaves>) -> Asked<Rc<Vec<(usize, usize)>>> {
        let key = Rc::as_ptr(leaves);
        if let Some(known) = self.known.leaves.get(&key) {
            return Ok(Rc::clone(known));
        }
        let positions = agreed(self.ranks, |at| {
            let layout = self.interner.get(leaves.layout);
            let (range, start) = (leaves.on(self.ranks[at]), layout.on(self.ranks[at]).start);
            let position = |m: usize| layout.find(&leaves.middle[m].entry).expect("a leaf's entry");
            let mut positions: Vec<(usize, usize)> =
                range.clone().map(|m| (position(m) - start, m - range.start)).collect();
            positions.sort_unstable();
            positions
        })?;
        Ok(Rc::clone(self.known.leaves.entry(key).or_insert(Rc::new(positions))))
    }
}

/// By rank what is given to an exchange.
fn given(plan: &Move) -> HashMap<RankId, Vec<usize>> {
    let mut sources: HashMap<RankId, Vec<usize>> = HashMap::new();
    if let Method::Exchange(pieces) = &plan.method {
        for &source in &pieces.sources {
            sources.entry(plan.middle[source].entry.rank).or_default().push(source);
        }
    }
    sources
}
