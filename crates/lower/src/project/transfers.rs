//! Moves on one rank: local sums and slices around one communication.

use program::{Arg, BufId, Collective, Cut, How, Instr, Pass, Slice};
use rules::Region;

use super::{Owner, Projector};
use crate::layout::{Entry, extents};
use crate::moves::{self, Get, Member, Method};
use crate::schedule::{Leg, Way};
use crate::uses::UseId;

/// Where a move's target entries end up on this rank.
type Arrived = Vec<(usize, BufId)>;

impl Projector<'_> {
    pub(super) fn transfer(&mut self, id: UseId, way: &Way) {
        let global = self.global;
        let it = global.uses.get(id);
        let ports = global.interner.get_ports(it.ports);
        let (from, need) = (global.interner.get(way.from), global.interner.get(way.to));
        let sources: Vec<(usize, BufId)> =
            from.on(self.rank).filter_map(|e| Some((e, *self.written.get(&(it.tensor, e))?))).collect();
        for (entry, buf) in self.run(id, way, sources) {
            let entry = &need.entries[entry];
            for port in ports.on(self.rank) {
                let p = &ports.entries[port];
                if p.region == entry.region && p.value == entry.part {
                    self.ports.insert((id, port), buf);
                }
            }
        }
    }

    pub(super) fn transfer_gradient(&mut self, id: UseId, way: &Way) {
        let global = self.global;
        let it = global.uses.get(id);
        let ports = global.interner.get_ports(it.ports);
        let written = global.interner.get(global.uses.written[it.tensor.index()]);
        let gradient = global.interner.get(way.from);
        let mut sources = vec![];
        for entry in gradient.on(self.rank) {
            let e = &gradient.entries[entry];
            let port = ports
                .on(self.rank)
                .find(|&p| ports.entries[p].region == e.region && ports.entries[p].grad == e.part);
            if let Some(buf) = port.and_then(|p| self.gradient(Owner::Port(id, p), it.tensor)) {
                sources.push((entry, buf));
            }
        }
        let complete = global.interner.get(way.to);
        for (entry, buf) in self.run(id, way, sources) {
            if global.cx.given_back[it.tensor.index()] {
                self.gradients.entry(Owner::Input(it.tensor, way.to, entry)).or_default().push(buf);
                continue;
            }
            let region = &complete.entries[entry].region;
            for e in written.on(self.rank).filter(|&e| written.entries[e].region == *region) {
                self.gradients.entry(Owner::Written(it.tensor, e)).or_default().push(buf);
            }
        }
    }

    pub(super) fn give_back(&mut self, id: UseId, way: &Way) {
        let global = self.global;
        let tensor = global.uses.get(id).tensor;
        let mut sources = vec![];
        for entry in global.interner.get(way.from).on(self.rank) {
            if let Some(buf) = self.gradient(Owner::Input(tensor, way.from, entry), tensor) {
                sources.push((entry, buf));
            }
        }
        for (entry, buf) in self.run(id, way, sources) {
            self.gradients.entry(Owner::Written(tensor, entry)).or_default().push(buf);
        }
    }

    /// All legs of a way: what arrives from one is what the next one starts with.
    fn run(&mut self, id: UseId, way: &Way, sources: Arrived) -> Arrived {
        way.legs.iter().fold(sources, |sources, leg| self.leg(id, leg, &sources))
    }

    fn leg(&mut self, id: UseId, leg: &Leg, sources: &[(usize, BufId)]) -> Arrived {
        let (plan, to) = (&leg.plan, self.global.interner.get(leg.to));
        let middle = self.sums(id, plan, sources);
        let mid = |index: usize| middle.iter().find(|(i, _)| *i == index).map(|(_, buf)| *buf);
        let targets: Vec<usize> = to.on(self.rank).collect();
        let received: Vec<usize> =
            targets.iter().copied().filter(|&t| plan.gets[t] == Get::Received).collect();
        let mut results = vec![];
        let mut result_region: Option<Region> = None;
        match &plan.method {
            Method::Local => {}
            Method::Exchange(pieces) => {
                let from: Vec<BufId> = pieces.sources.iter().filter_map(|&s| mid(s)).collect();
                results = received.iter().map(|_| self.move_buf(id)).collect();
                if !from.is_empty() || !results.is_empty() {
                    let exchange = leg.exchange.expect("an exchange has a table");
                    self.push(Instr::Exchange { exchange, from, to: results.clone() });
                }
            }
            Method::AllReduce(c)
            | Method::AllGather(c, _)
            | Method::ReduceScatter(c, _)
            | Method::AllToAll(c, _, _) => {
                if let Some(member) = c.members.get(&self.rank) {
                    let from = mid(member.middle).expect("a member has its source");
                    let result = self.move_buf(id);
                    let how = self.how(id, plan, member);
                    let (group, from, to) = (c.group, vec![from], vec![result]);
                    self.push(Instr::Collective(Collective { how, group, from, to }));
                    results = received.iter().map(|_| result).collect();
                    result_region = Some(member.result.clone());
                    if received.is_empty() {
                        results = vec![result];
                    }
                }
            }
        }
        let mut arrived = vec![];
        let mut next = results.iter();
        for target in targets {
            let wanted = &to.entries[target];
            let buf = match plan.gets[target] {
                Get::Is(index) => mid(index).expect("a local source"),
                Get::Of(index) => {
                    let from = mid(index).expect("a local source");
                    self.slice(id, from, &plan.middle[index].entry.region, wanted)
                }
                Get::Received => *next.next().expect("one buffer for each target"),
                Get::OfResult => {
                    let whole = result_region.clone().expect("a result on this rank");
                    self.slice(id, results[0], &whole, wanted)
                }
            };
            arrived.push((target, buf));
        }
        arrived
    }

    fn move_buf(&mut self, id: UseId) -> BufId {
        self.buf(self.global.uses.get(id).tensor, self.pass == Pass::Backward)
    }

    /// The middle entries on this rank.
    fn sums(&mut self, id: UseId, plan: &moves::Move, sources: &[(usize, BufId)]) -> Vec<(usize, BufId)> {
        let rank = self.rank;
        let start = plan.middle.partition_point(|m| m.entry.rank < rank);
        let mut found = vec![];
        for (index, middle) in
            plan.middle.iter().enumerate().skip(start).take_while(|(_, m)| m.entry.rank == rank)
        {
            let of = |e: &usize| sources.iter().find(|(s, _)| s == e).map(|(_, buf)| *buf);
            let bufs: Vec<BufId> = middle.from.iter().filter_map(of).collect();
            match bufs[..] {
                [] => {}
                [one] => found.push((index, one)),
                _ => {
                    let to = self.move_buf(id);
                    self.push(Instr::Add { from: bufs, to });
                    found.push((index, to));
                }
            }
        }
        found
    }

    fn slice(&mut self, id: UseId, from: BufId, whole: &Region, wanted: &Entry) -> BufId {
        let to = self.move_buf(id);
        let slice = self.slice_of(id, from, to, whole, &wanted.region);
        self.push(Instr::Slice(slice));
        to
    }

    pub(super) fn slice_of(
        &self,
        id: UseId,
        from: BufId,
        to: BufId,
        whole: &Region,
        wanted: &Region,
    ) -> Slice {
        let inner = wanted.within(whole);
        let region = inner.0.iter().map(|i| (Arg::Int(i.lo), Arg::Int(i.hi))).collect();
        Slice { from, to, extents: self.extents(id, whole), region }
    }

    fn extents(&self, id: UseId, region: &Region) -> Vec<Vec<Arg>> {
        let tensor = self.global.uses.get(id).tensor;
        let factors = &self.global.cx.analysis.factors[tensor.index()];
        extents(factors, region).into_iter().map(|dim| dim.into_iter().map(Arg::Int).collect()).collect()
    }

    fn how(&self, id: UseId, plan: &moves::Move, member: &Member) -> How {
        let source = &plan.middle[member.middle].entry.region;
        let cut = |whole: &Region, factor: usize, sizes: &[i64]| Cut {
            extents: self.extents(id, whole),
            factor,
            sizes: sizes.to_vec(),
        };
        match &plan.method {
            Method::AllGather(_, along) => How::AllGather(cut(&member.result, along.factor, &member.sizes)),
            Method::ReduceScatter(_, along) => How::ReduceScatter(cut(source, along.factor, &member.sizes)),
            Method::AllToAll(_, sent, joined) => How::AllToAll {
                send: cut(source, sent.factor, &member.sizes),
                receive: cut(&member.result, joined.factor, &member.other_sizes),
            },
            _ => How::AllReduce(plan.reduction),
        }
    }
}
