//! Moves on the ranks themselves: local sums and slices around one communication.

use program::{Arg, BufId, Collective, Cut, How, Instr, Pass, Slice};
use rules::Reduction;
use sharding::{Along, Get};

use super::per_rank::{Asked, RegionsId};
use super::recomputed::Begun;
use super::role_ranks::MoveHere;
use super::{Owner, Projector};
use crate::event::{Crossing, ReshardPath, ReshardStep};
use crate::layout::{LayoutId, bytes};
use crate::moves::Method;
use crate::uses::UseId;

/// Where a move's target shards end up.
type Arrived = Vec<(usize, BufId)>;

impl Projector<'_> {
    pub(super) fn transfer(&mut self, id: UseId, path: &ReshardPath) -> Asked<()> {
        self.begins(Begun::Move(id));
        let sources = self.written_for(id, path)?;
        let arrives = self.role_ranks.arrives(self.global.uses.get(id).ports, path.to)?;
        for (shard, buf) in self.run(id, path, sources)? {
            for port in &arrives[shard] {
                self.ports.insert((id, *port), buf);
            }
        }
        Ok(())
    }

    /// The written shards that a move begins with.
    pub(super) fn written_for(&mut self, id: UseId, path: &ReshardPath) -> Asked<Arrived> {
        let tensor = self.global.uses.get(id).tensor;
        let shards = 0..self.role_ranks.shards(path.from)?;
        Ok(shards.filter_map(|e| Some((e, *self.written.get(&(tensor, e))?))).collect())
    }

    pub(super) fn transfer_gradient(&mut self, id: UseId, path: &ReshardPath) -> Asked<()> {
        let it = self.global.uses.get(id);
        let sources = self.given_back(id, path)?;
        let given_back = self.global.cx.given_back[it.tensor.index()];
        let twins = self.role_ranks.twins(path.to, self.global.uses.written[it.tensor.index()])?;
        for (shard, buf) in self.run(id, path, sources)? {
            if given_back {
                self.gradients.entry(Owner::Input(it.tensor, path.to, shard)).or_default().push(buf);
                continue;
            }
            for written in &twins[shard] {
                self.gradients.entry(Owner::Written(it.tensor, *written)).or_default().push(buf);
            }
        }
        Ok(())
    }

    /// The gradients that have arisen at the ports of a use.
    fn given_back(&mut self, id: UseId, path: &ReshardPath) -> Asked<Arrived> {
        let it = self.global.uses.get(id);
        let gives = self.role_ranks.gives(it.ports, path.from)?;
        let mut sources = vec![];
        for (shard, port) in gives.iter().enumerate() {
            if let Some(buf) = port.and_then(|p| self.gradient(Owner::Port(id, p), it.tensor)) {
                sources.push((shard, buf));
            }
        }
        Ok(sources)
    }

    pub(super) fn give_back(&mut self, id: UseId, path: &ReshardPath) -> Asked<()> {
        let tensor = self.global.uses.get(id).tensor;
        let mut sources = vec![];
        for shard in 0..self.role_ranks.shards(path.from)? {
            if let Some(buf) = self.gradient(Owner::Input(tensor, path.from, shard), tensor) {
                sources.push((shard, buf));
            }
        }
        for (shard, buf) in self.run(id, path, sources)? {
            self.gradients.entry(Owner::Written(tensor, shard)).or_default().push(buf);
        }
        Ok(())
    }

    /// All legs of a way: what arrives from one is what the next one starts with.
    pub(super) fn run(&mut self, id: UseId, path: &ReshardPath, sources: Arrived) -> Asked<Arrived> {
        let (mut from, mut arrived) = (path.from, sources);
        for step in &path.reshard_steps {
            arrived = self.step(id, step, from, &arrived)?;
            from = step.to;
        }
        Ok(arrived)
    }

    /// Completes something and sends what others take of it.
    pub(super) fn send(&mut self, id: UseId, crossing: &Crossing) -> Asked<()> {
        let sources = match self.pass {
            Pass::Backward => self.given_back(id, &crossing.inside)?,
            _ => self.written_for(id, &crossing.inside)?,
        };
        let complete = self.run(id, &crossing.inside, sources)?;
        let here = self.role_ranks.moved(&crossing.step.plan, crossing.inside.to, crossing.step.to)?;
        let middle = self.sums(id, &here, &complete);
        let from: Vec<BufId> = here.shape.gives.iter().filter_map(|&m| middle[m]).collect();
        if !from.is_empty() {
            let exchange = crossing.step.exchange.expect("what crosses has a table");
            self.push(Instr::Send { exchange, from });
        }
        self.sent.insert((id, self.pass), middle);
        Ok(())
    }

    fn received(&mut self, id: UseId, crossing: &Crossing) -> Asked<Arrived> {
        let here = self.role_ranks.moved(&crossing.step.plan, crossing.inside.to, crossing.step.to)?;
        let count = here.shape.gets.iter().filter(|get| **get == Get::Received).count();
        let results: Vec<BufId> = (0..count).map(|_| self.move_buf(id)).collect();
        if !results.is_empty() {
            let exchange = crossing.step.exchange.expect("what crosses has a table");
            self.push(Instr::Receive { exchange, to: results.clone() });
        }
        let middle = self.sent.remove(&(id, self.pass)).unwrap_or_default();
        self.arrived(id, &crossing.step, &here, &middle, &results)
    }

    pub(super) fn receive(&mut self, id: UseId, crossing: &Crossing) -> Asked<()> {
        let arrives = self.role_ranks.arrives(self.global.uses.get(id).ports, crossing.step.to)?;
        for (shard, buf) in self.received(id, crossing)? {
            for port in &arrives[shard] {
                self.ports.insert((id, *port), buf);
            }
        }
        Ok(())
    }

    pub(super) fn receive_gradient(&mut self, id: UseId, crossing: &Crossing) -> Asked<()> {
        let tensor = self.global.uses.get(id).tensor;
        let twins = self.role_ranks.twins(crossing.step.to, self.global.uses.written[tensor.index()])?;
        for (shard, buf) in self.received(id, crossing)? {
            for written in &twins[shard] {
                self.gradients.entry(Owner::Written(tensor, *written)).or_default().push(buf);
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        id: UseId,
        step: &ReshardStep,
        source: LayoutId,
        sources: &[(usize, BufId)],
    ) -> Asked<Arrived> {
        let here = self.role_ranks.moved(&step.plan, source, step.to)?;
        let middle = self.sums(id, &here, sources);
        let received = here.shape.gets.iter().filter(|get| **get == Get::Received).count();
        let results = self.communicate(id, step, &here, &middle, received);
        self.arrived(id, step, &here, &middle, &results)
    }

    /// The targets of a leg, from what was there and what was communicated.
    fn arrived(
        &mut self,
        id: UseId,
        step: &ReshardStep,
        here: &MoveHere,
        middle: &[Option<BufId>],
        results: &[BufId],
    ) -> Asked<Arrived> {
        let mut arrived = vec![];
        let mut next = results.iter();
        for (target, get) in here.shape.gets.iter().enumerate() {
            let buf = match *get {
                Get::Is(index) => middle[index].expect("a local source"),
                Get::Of(index) => {
                    let from = middle[index].expect("a local source");
                    self.slice(id, from, here.middle[index], step.to, target)?
                }
                Get::Received => *next.next().expect("one buffer for each target"),
                Get::Reduced(index) => results[index],
                Get::OfResult => {
                    let whole = here.result.expect("a result on this rank");
                    self.slice(id, results[0], whole, step.to, target)?
                }
            };
            arrived.push((target, buf));
        }
        Ok(arrived)
    }

    /// The communication of a leg, if there is one: a buffer for each target that is received.
    fn communicate(
        &mut self,
        id: UseId,
        step: &ReshardStep,
        here: &MoveHere,
        middle: &[Option<BufId>],
        received: usize,
    ) -> Vec<BufId> {
        if let Method::Exchange(_) = &step.plan.method {
            let from: Vec<BufId> = here.shape.gives.iter().filter_map(|&m| middle[m]).collect();
            let results: Vec<BufId> = (0..received).map(|_| self.move_buf(id)).collect();
            if !from.is_empty() || !results.is_empty() {
                let exchange = step.exchange.expect("an exchange has a table");
                self.push(Instr::Exchange { exchange, from, to: results.clone() });
            }
            return results;
        }
        if let Method::AllReduceEach(group) = step.plan.method {
            let from: Vec<BufId> = middle.iter().map(|buf| buf.expect("a local source")).collect();
            let to: Vec<BufId> = from.iter().map(|_| self.move_buf(id)).collect();
            if !from.is_empty() {
                let how = How::AllReduce(step.plan.reduction);
                let to = to.clone();
                self.push(Instr::Collective(Collective { how, group, from, to, overlaps: false }));
            }
            return to;
        }
        let Method::Collective(how, group, _) = &step.plan.method else { return vec![] };
        let Some((shard, ..)) = &here.shape.member else { return vec![] };
        let from = middle[*shard].expect("a member has its source");
        let result = self.move_buf(id);
        let how = self.how(id, *how, here);
        let (group, from, to) = (*group, vec![from], vec![result]);
        let overlaps = self.overlaps(id, here.middle[*shard], &how);
        self.push(Instr::Collective(Collective { how, group, from, to, overlaps }));
        vec![result; received.max(1)]
    }

    /// Whether the sum of a gradient is large enough to run beside something.
    fn overlaps(&self, id: UseId, given: RegionsId, how: &How) -> bool {
        let cx = self.global.cx;
        let is_sum = matches!(how, How::AllReduce(Reduction::Sum) | How::ReduceScatter(_));
        let is_gradient = self.pass == Pass::Backward && !self.recomputed.moves;
        let tensor = self.global.uses.get(id).tensor;
        let is_large = |region| bytes(cx.graph, tensor, region) >= cx.plan.overlap;
        is_sum && is_gradient && self.role_ranks.per_rank.region(given).values().iter().all(is_large)
    }

    fn move_buf(&mut self, id: UseId) -> BufId {
        let gradient = self.pass == Pass::Backward && !self.recomputed.moves;
        self.buf(self.global.uses.get(id).tensor, gradient)
    }

    /// The middle shards; `None` where nothing has arisen.
    fn sums(&mut self, id: UseId, here: &MoveHere, sources: &[(usize, BufId)]) -> Vec<Option<BufId>> {
        let mut sums = vec![];
        for from in &here.shape.sums {
            let buf_of = |e: &usize| sources.iter().find(|(s, _)| s == e).map(|(_, buf)| *buf);
            let bufs: Vec<BufId> = from.iter().filter_map(buf_of).collect();
            sums.push(match bufs[..] {
                [] => None,
                [one] => Some(one),
                _ => {
                    let to = self.move_buf(id);
                    self.push(Instr::Add { from: bufs, to });
                    Some(to)
                }
            });
        }
        sums
    }

    fn slice(
        &mut self,
        id: UseId,
        from: BufId,
        whole: RegionsId,
        layout: LayoutId,
        target: usize,
    ) -> Asked<BufId> {
        let wanted = self.role_ranks.shard(layout, target)?;
        let to = self.move_buf(id);
        let slice = self.slice_of(id, from, to, whole, wanted);
        self.push(Instr::Slice(slice));
        Ok(to)
    }

    pub(super) fn slice_of(
        &mut self,
        id: UseId,
        from: BufId,
        to: BufId,
        whole: RegionsId,
        wanted: RegionsId,
    ) -> Slice {
        let inner = self.role_ranks.per_rank.within(whole, wanted);
        let region = inner
            .iter()
            .map(|(lo, hi)| (self.role_ranks.per_rank.arg(*lo), self.role_ranks.per_rank.arg(*hi)))
            .collect();
        Slice { from, to, extents: self.extents(id, whole), region }
    }

    /// The extents of a region, dim by dim.
    fn extents(&mut self, id: UseId, region: RegionsId) -> Vec<Vec<Arg>> {
        let tensor = self.global.uses.get(id).tensor;
        let lengths = self.role_ranks.per_rank.lengths(region);
        let mut rest = lengths.iter().map(|number| self.role_ranks.per_rank.arg(*number));
        let factors = &self.global.cx.analysis.factors[tensor.index()];
        factors.iter().map(|dim| rest.by_ref().take(dim.len()).collect()).collect()
    }

    fn how(&mut self, id: UseId, how: Along, here: &MoveHere) -> How {
        let (shard, sizes, other_sizes) = here.shape.member.as_ref().expect("a member");
        let (source, result) = (here.middle[*shard], here.result.expect("a member has a result"));
        let mut cut = |whole: RegionsId, factor: usize, sizes: &[i64]| Cut {
            extents: self.extents(id, whole),
            factor,
            sizes: sizes.to_vec(),
        };
        match how {
            Along::AllReduce(reduction) => How::AllReduce(reduction),
            Along::AllGather(factor) => How::AllGather(cut(result, factor, sizes)),
            Along::ReduceScatter(factor) => How::ReduceScatter(cut(source, factor, sizes)),
            Along::AllToAll { send, receive } => {
                How::AllToAll { send: cut(source, send, sizes), receive: cut(result, receive, other_sizes) }
            }
        }
    }
}
